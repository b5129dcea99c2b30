/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore.h"

#include "formats/mcore/mcore_source.h"
#include "formats/mcore/mcore_stored.h"
#include "formats/mcore/mcore_zarr.h"
#include "formats/shared/parallel_words.h"
#include "formats/zarr/zarr.h"

/* What Megatron, Megatron Bridge and NeMo have beside DCP's own files. */
static const char *const folder_entries[] = {
    "metadata.json",   "integrity.json", "common.pt", "*train_state.pt",   "run_config.yaml",
    "modelopt_state/", "weights/",       "context/",  "model_config.yaml", "model_weights/",
    DCP_FOLDER_ENTRIES, NULL,
};

static const char *const layout_files[] = { "metadata.json", DCP_LAYOUT_FILES, NULL };

const struct format_driver format_torch_dist = {
    .name = "torch_dist",
    .name_space = "torch_dist",
    .summary = "Megatron Core distributed checkpoint: DCP with metadata.json and a common state",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_STATE_BY_PARAMETER,
    .options = mcore_options_torch_dist,
    .words = parallel_words,
    .folder_entries = folder_entries,
    .layout_files = layout_files,
    .probe = mcore_probe_torch_dist,
    .read_catalog = mcore_read_torch_dist,
    .view_by_parameter = mcore_view_by_parameter,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .leave_out = dcp_leave_out,
    .verify = mcore_verify_torch_dist,
    .lay_out = mcore_lay_out_torch_dist,
    .publish_object = dcp_publish_object,
    .commit = mcore_commit,
    .close_source = dcp_close_source,
    .close_target = mcore_close_target,
};

const struct format_driver format_torch_dcp_megatron = {
    .name = "torch_dcp",
    .name_space = "torch_dcp",
    .summary = "Megatron's plain DCP: the directory of an iteration, without metadata.json",
    .abilities = FORMAT_STATE_BY_NUMBER | FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS,
    .options = mcore_options_plain,
    .words = rank_words,
    .folder_entries = folder_entries,
    .layout_files = layout_files,
    .probe = mcore_probe_torch_dcp,
    .read_catalog = mcore_read_plain,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .leave_out = dcp_leave_out,
    .verify = dcp_verify,
    .lay_out = mcore_lay_out_torch_dcp,
    .publish_object = dcp_publish_object,
    .commit = mcore_commit,
    .close_source = dcp_close_source,
    .close_target = mcore_close_target,
};

const struct format_driver format_fsdp_dtensor = {
    .name = "fsdp_dtensor",
    .name_space = "fsdp_dtensor",
    .summary = "Megatron-FSDP's DCP of DTensors",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_STATE_BY_PARAMETER |
                 FORMAT_WEIGHTS_ARE_MASTERS,
    .options = mcore_options_plain,
    .words = rank_words,
    .folder_entries = folder_entries,
    .layout_files = layout_files,
    .probe = mcore_probe_fsdp_dtensor,
    .read_catalog = mcore_read_plain,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .leave_out = dcp_leave_out,
    .verify = dcp_verify,
    .lay_out = mcore_lay_out_fsdp_dtensor,
    .publish_object = dcp_publish_object,
    .commit = mcore_commit,
    .close_source = dcp_close_source,
    .close_target = mcore_close_target,
};

static const char *const zarr_entries[] = { ZARR_FOLDER_ENTRIES, "*.sync/", "common.pt", "shard_*.pt", "metadata.json", NULL };
static const char *const zarr_part_marks[] = { ZARR_PART_MARKS, NULL };

const struct format_driver format_zarr = {
    .name = "zarr",
    .summary = "zarr arrays and groups of format 2 or 3, and Megatron Core's zarr checkpoints",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HAS_BARE_FOLDERS,
    .options = mcore_zarr_options,
    .target_names = mcore_zarr_target_names,
    .folder_entries = zarr_entries,
    .part_marks = zarr_part_marks,
    .probe = mcore_zarr_probe,
    .probe_rest = zarr_probe_rest,
    .read_catalog = mcore_zarr_read,
    .view_by_parameter = mcore_view_by_parameter,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = mcore_zarr_verify,
    .lay_out = mcore_zarr_lay_out,
    .publish_object = mcore_zarr_publish_object,
    .commit = mcore_zarr_commit,
    .close_source = dcp_close_source,
    .close_target = mcore_zarr_close_target,
};
