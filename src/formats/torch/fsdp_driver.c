/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch.h"

#include "formats/torch/fsdp_assemble.h"

#include <stdlib.h>

/* Names decide, and the first bytes of one file: what else is wrong is said when it is read. */
static int fsdp_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0, skip = name[0] ? strlen(name) + 1 : 0;
    bool is_directory = name[0] == '\0', is_torch = false;
    uint64_t bytes;
    if ((!is_directory && !(store_exists(store, name, &is_directory, &bytes) && is_directory)) ||
        store_list(store, name, &arena, &entries, &count, err)) {
        arena_release(&arena);
        return 0;
    }
    for (size_t i = 0; i < count && !is_torch; i++) {
        struct fsdp_file file;
        struct store_object *object = NULL;
        if (entries[i].is_directory || !fsdp_file_parse((struct str){ entries[i].name.data + skip, entries[i].name.size - skip }, &file))
            continue;
        char *plain = strndup(entries[i].name.data, entries[i].name.size);
        if (!plain)
            error_set_memory(err);
        if (plain && !store_open_object(store, plain, &object, err)) {
            struct reader reader = store_object_reader(object);
            enum torch_container container;
            is_torch = !torch_save_probe(&reader, &container, err) && container != TORCH_NO_CONTAINER;
            store_object_close(object);
        }
        free(plain);
    }
    arena_release(&arena);
    return is_torch ? 50 : 0;
}

static const char *const folder_entries[] = { "*rank*.pt",        "*rank*.pth",   "*rank*.bin", "pytorch_model_fsdp*",
                                              "fsdp_config.json", "huggingface/", NULL };

const struct format_driver format_fsdp_ranks = {
    .name = "fsdp-ranks",
    .summary = "one torch.save file a rank, holding DTensors or ShardedTensors (FSDP, verl, accelerate)",
    .abilities = FORMAT_READS | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_HOLDS_PATHS | FORMAT_SHARDED | FORMAT_ITEMS_NAME_TENSORS,
    .folder_entries = folder_entries,
    .probe = fsdp_probe,
    .read_catalog = fsdp_read_catalog,
    .verify = torch_source_verify,
    .close_source = torch_source_close,
};
