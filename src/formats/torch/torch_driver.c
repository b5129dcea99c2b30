/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch.h"

#include "formats/torch/torch_alone.h"
#include "formats/torch/torch_folder.h"
#include "formats/torch/torch_target.h"

#include <stdlib.h>

static int torch_probe(struct store *store, const char *name, reshard_error *err)
{
    if (store_is_directory(store, name))
        return torch_folder_probe(store, name, err) ? 60 : 0;
    struct store_object *object = NULL;
    if (store_open_object(store, name, &object, err))
        return 0;
    struct reader reader = store_object_reader(object);
    enum torch_container container;
    bool is_torch = !torch_save_probe(&reader, &container, err) && container != TORCH_NO_CONTAINER;
    store_object_close(object);
    return is_torch ? 90 : 0;
}

static reshard_status read_one_file(struct source *source, reshard_error *err)
{
    uint32_t file;
    reshard_status status = torch_open_alone(source, source->name, &file, err);
    if (!status)
        status = torch_source_add_file(source, file, NULL, NULL, err);
    if (!status)
        status = torch_source_add_facts(source, file, err);
    if (status)
        return status;
    source->catalog->tree_graph = torch_source_of(source)->files[file].graph;
    source->catalog->tree = source->catalog->tree_graph->root;
    return RESHARD_OK;
}

static reshard_status torch_read_catalog(struct source *source, reshard_error *err)
{
    bool is_folder = store_is_directory(source->store, source->name);
    reshard_status status = torch_source_new(source, err);
    if (!status)
        torch_source_of(source)->is_kept_whole = true;
    if (!status)
        status = is_folder ? torch_folder_read(source, err) : read_one_file(source, err);
    if (!status)
        status = torch_source_add_sizes(source, err);
    if (!status)
        torch_warn_of_pieces(source);
    return status;
}

static const struct format_option torch_options[] = {
    { "alignment", "number", "64", "storages start on a multiple of this, a power of two" },
    { "views", "auto|keep|compact", "auto",
      "tensors that share a storage: keep it whole, write each on its own, or (auto) whatever takes less space" },
    { NULL, NULL, NULL, NULL },
};

static const char *const folder_entries[] = { "*pytorch_model*.bin", "*pytorch_model*.bin.index.json", "adapter_model*.bin",
                                              "adapter_model*.bin.index.json", NULL };

static const char *const torch_endings[] = { ".pt", ".pth", ".bin", NULL };

const struct format_driver format_torch = {
    .name = "torch",
    .summary = "one torch.save file (zip, legacy stream or tar), or a folder of *pytorch_model*.bin or adapter_model.bin",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_HOLDS_ITEMS | FORMAT_ITEMS_NAME_TENSORS | FORMAT_PAIRS_F4 | FORMAT_TORCH_STATE,
    .options = torch_options,
    .folder_entries = folder_entries,
    .file_endings = torch_endings,
    .probe = torch_probe,
    .read_catalog = torch_read_catalog,
    .verify = torch_source_verify,
    .lay_out = torch_lay_out,
    .publish_object = torch_publish_object,
    .close_source = torch_source_close,
    .close_target = torch_close_target,
};
