/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp.h"

#include "formats/dcp/dcp_read.h"
#include "formats/dcp/dcp_target.h"

/* With those of Megatron, Megatron Bridge and NeMo. */
static const char *const folder_entries[] = {
    ".metadata",    ".metadata.tmp",  "__*.metadata",   "*.distcp",     "metadata.json", "integrity.json", "common.pt", "*train_state.pt",
    "run_config.yaml", "modelopt_state/", "weights/",   "model_weights/", "context/",    "model_config.yaml", NULL,
};

const struct format_driver format_torch_dcp = {
    .name = "torch-dcp",
    .summary = "PyTorch Distributed Checkpoint directory: .metadata and .distcp files",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HOLDS_PATHS | FORMAT_SHARDED,
    .folder_entries = folder_entries,
    .probe = dcp_probe,
    .read_catalog = dcp_read_catalog,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = dcp_verify,
    .lay_out = dcp_lay_out,
    .publish = dcp_publish,
    .close_source = dcp_close_source,
    .close_target = dcp_close_target,
};

const struct format_driver format_torch_dist = {
    .name = "torch_dist",
    .name_space = "torch_dist",
    .summary = "Megatron Core distributed checkpoint: DCP with metadata.json and a common state",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_SHARDED | FORMAT_STATE_BY_PARAMETER |
                 FORMAT_IS_PARALLEL,
    .options = torch_dist_options,
    .folder_entries = folder_entries,
    .probe = torch_dist_probe,
    .read_catalog = torch_dist_read_catalog,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = torch_dist_verify,
    .lay_out = dcp_lay_out,
    .publish = dcp_publish,
    .close_source = dcp_close_source,
    .close_target = dcp_close_target,
};

const struct format_driver format_torch_dcp_megatron = {
    .name = "torch_dcp",
    .name_space = "torch_dcp",
    .summary = "Megatron's plain DCP: the directory of an iteration, without metadata.json",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HOLDS_PATHS | FORMAT_SHARDED,
    .options = megatron_dcp_options,
    .folder_entries = folder_entries,
    .probe = dcp_megatron_probe,
    .read_catalog = dcp_megatron_read_catalog,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = dcp_verify,
    .lay_out = dcp_lay_out,
    .publish = dcp_publish,
    .close_source = dcp_close_source,
    .close_target = dcp_close_target,
};

const struct format_driver format_fsdp_dtensor = {
    .name = "fsdp_dtensor",
    .name_space = "fsdp_dtensor",
    .summary = "Megatron-FSDP's DCP of DTensors",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HOLDS_PATHS | FORMAT_SHARDED |
                 FORMAT_STATE_BY_PARAMETER,
    .options = megatron_dcp_options,
    .folder_entries = folder_entries,
    .probe = fsdp_dtensor_probe,
    .read_catalog = dcp_megatron_read_catalog,
    .resolve = dcp_resolve,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = dcp_verify,
    .lay_out = dcp_lay_out,
    .publish = dcp_publish,
    .close_source = dcp_close_source,
    .close_target = dcp_close_target,
};

static const struct dcp_style styles[] = {
    { .format = "torch-dcp" },
    { .format = "torch_dist", .is_below_root = true, .has_common = true },
    { .format = "torch_dcp", .is_below_root = true, .flattens = true },
    { .format = "fsdp_dtensor", .is_below_root = true, .flattens = true, .has_group_meta = true },
};

const struct dcp_style *dcp_style_of(const struct format_driver *driver)
{
    for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++) {
        if (strcmp(styles[i].format, driver->name) == 0)
            return &styles[i];
    }
    return &styles[0];
}
