/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp.h"
#include "formats/shared/parallel_words.h"

#include "formats/dcp/dcp_source.h"
#include "formats/dcp/dcp_target.h"

static const char *const folder_entries[] = { DCP_FOLDER_ENTRIES, NULL };

static const char *const layout_files[] = { DCP_LAYOUT_FILES, NULL };

const struct dcp_flavour dcp_plain = { 0 };

const struct format_driver format_torch_dcp = {
    .name = "torch-dcp",
    .summary = "PyTorch Distributed Checkpoint directory: .metadata and .distcp files",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_PAIRS_F4 |
                 FORMAT_TORCH_STATE,
    .words = rank_words,
    .folder_entries = folder_entries,
    .layout_files = layout_files,
    .probe = dcp_probe,
    .read_catalog = dcp_read_catalog,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .leave_out = dcp_leave_out,
    .verify = dcp_verify,
    .lay_out = dcp_lay_out,
    .publish_object = dcp_publish_object,
    .commit = dcp_commit,
    .close_source = dcp_close_source,
    .close_target = dcp_close_target,
};
