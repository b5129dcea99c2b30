/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/accelerate_names.h"

#include <string.h>

bool accelerate_number(struct str stem, const char *word, uint32_t *number)
{
    uint64_t read = 0;
    size_t size = strlen(word);
    if (!str_starts_with(stem, word))
        return false;
    struct str rest = { stem.data + size, stem.size - size };
    if (rest.size && rest.data[rest.size - 1] == '_')
        rest.size--;
    bool is_named = !rest.size || (rest.data[0] == '_' && str_to_u64((struct str){ rest.data + 1, rest.size - 1 }, &read));
    *number = (uint32_t)read;
    return is_named && read < UINT32_MAX;
}

/* The name up to its extension and to "rankR". */
static struct str accelerate_stem(struct str base)
{
    struct str stem = base;
    const char *rank = memmem(stem.data, stem.size, "_rank", 5);
    if (rank)
        stem.size = (size_t)(rank - stem.data);
    else if (str_ends_with(stem, ".bin"))
        stem.size -= 4;
    return stem;
}

reshard_status accelerate_warn_further(struct source *source, const char *directory, uint32_t number, reshard_error *err)
{
    struct arena arena = { 0 };
    struct name_map seen = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    reshard_status status = store_list(source->store, directory, &arena, &entries, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(entries[i].name), stem = accelerate_stem(base);
        uint32_t found;
        bool was_new;
        if (!accelerate_number(stem, ACCELERATE_MODEL, &found) || found <= number)
            continue;
        if (name_map_intern(&seen, stem, &was_new) == NAME_NONE)
            status = error_set_memory(err);
        else if (was_new)
            catalog_warn(source->catalog, false, "the folder holds further models: '%.*s' opens by its own path", STR_ARG(base));
    }
    name_map_release(&seen);
    arena_release(&arena);
    return status;
}
