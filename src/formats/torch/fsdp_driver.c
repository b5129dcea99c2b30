/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch.h"
#include "formats/shared/accelerate_names.h"
#include "formats/shared/parallel_words.h"

#include "formats/source_probe.h"
#include "formats/torch/fsdp_target.h"

#include <stdlib.h>

/* Whether the file of that name begins as a container of torch.save. */
static bool is_container(struct store *store, struct str name, reshard_error *err)
{
    struct store_object *object = NULL;
    enum torch_container container = TORCH_NO_CONTAINER;
    char *plain = strndup(name.data, name.size);
    if (!plain)
        error_set_memory(err);
    if (plain && !store_open_object(store, plain, &object, err)) {
        struct reader reader = store_object_reader(object);
        if (torch_save_probe(&reader, &container, err))
            container = TORCH_NO_CONTAINER;
        store_object_close(object);
    }
    free(plain);
    return container != TORCH_NO_CONTAINER;
}

/* A file of some rank, or a whole model; the optimizer that accelerate saves beside any model is not enough. */
static bool is_rank_file(struct str base)
{
    struct fsdp_file file;
    uint32_t number;
    if (!fsdp_file_parse(base, &file))
        return false;
    bool is_of_rank = file.prefix.size + file.extension.size < base.size;
    return is_of_rank || !accelerate_number(file.prefix, ACCELERATE_OPTIMIZER, &number);
}

/* Names decide, and the first bytes of one file: what else is wrong is said when it is read. */
static int fsdp_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    const char *other, *folder = fsdp_folder_find(store, name, &arena, &other, err);
    bool is_torch = false;
    if (!folder || !store_is_directory(store, folder) || store_list(store, folder, &arena, &entries, &count, err))
        count = 0;
    for (size_t i = 0; i < count && !is_torch; i++) {
        struct str base = str_base_name(entries[i].name);
        is_torch = !entries[i].is_directory && is_rank_file(base) && is_container(store, entries[i].name, err);
    }
    arena_release(&arena);
    return is_torch ? 50 : 0;
}

static const char *const folder_entries[] = { "*rank*.pt",        "*rank*.pth",   "*rank*.bin", "pytorch_model_fsdp*",
                                              "fsdp_config.json", "huggingface/", NULL };

const struct format_driver format_fsdp_ranks = {
    .name = "fsdp-ranks",
    .summary = "one torch.save file a rank, holding DTensors or ShardedTensors (FSDP, verl, accelerate)",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_ITEMS_NAME_TENSORS | FORMAT_WRAPS |
                 FORMAT_TORCH_STATE | FORMAT_OPTIMIZER_APART |
                 FORMAT_PAIRS_F4,
    .words = rank_words,
    .folder_entries = folder_entries,
    .probe = fsdp_probe,
    .read_catalog = fsdp_read_catalog,
    .verify = torch_source_verify,
    .lay_out = fsdp_lay_out,
    .publish_object = fsdp_publish_object,
    .close_source = fsdp_close_source,
    .close_target = fsdp_close_target,
};
