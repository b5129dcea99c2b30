/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch.h"

#include "formats/atorch/atorch_target.h"

static const char *const folder_entries[] = { "flat_param.*", "flat_meta.*",  "buffers",    "ckpt_meta",   "optim_param.*",
                                              "optim_meta",   "lora_weight*", "lora_optim", "lora_meta.*", NULL };

static const struct format_option options[] = {
    { "buffers", "GLOB,…", "", "tensors that are no parameters, beside those that names, types and other atorch folders tell" },
    { "compute", "DTYPE", "", "type that FSDP computes in (mixed precision): parameters begin at multiples of 16 bytes of it" },
    { "orig_params", "true|false", "true", "FSDP's use_orig_params; without it state is kept by unit" },
    { "version", "0|1", "1", "of the files: 0 is that of atorch up to 2023" },
    { 0 },
};

static const struct layout_word words[] = {
    { "ranks", "ranks", "ranks that share the flat parameters", true, NULL },
    { "dp", "ranks", NULL, true, NULL },
    { NULL, NULL, NULL, false, NULL },
};

const struct format_driver format_atorch = {
    .name = "atorch",
    .summary = "atorch's folders of FSDP flat parameters: a piece of each a rank, with metadata beside it",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_WRAPS | FORMAT_IS_DIRECTORY | FORMAT_STATE_FLAT,
    .options = options,
    .words = words,
    .folder_entries = folder_entries,
    .probe = atorch_probe,
    .read_catalog = atorch_read_catalog,
    .verify = atorch_verify,
    .lay_out = atorch_lay_out,
    .publish_object = atorch_publish_object,
    .close_source = atorch_close_source,
    .close_target = atorch_close_target,
};
