/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch.h"

#include "formats/atorch/atorch_source.h"

static const char *const folder_entries[] = { "flat_param.*", "flat_meta.*",  "buffers",    "ckpt_meta",   "optim_param.*",
                                              "optim_meta",   "lora_weight*", "lora_optim", "lora_meta.*", NULL };

const struct format_driver format_atorch = {
    .name = "atorch",
    .summary = "atorch's folders of FSDP flat parameters: a piece of each a rank, with metadata beside it",
    .abilities = FORMAT_READS | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_SHARDED,
    .folder_entries = folder_entries,
    .probe = atorch_probe,
    .read_catalog = atorch_read_catalog,
    .verify = atorch_verify,
    .close_source = atorch_close_source,
};
