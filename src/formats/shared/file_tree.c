/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/file_tree.h"

#include <stdlib.h>

#include "base/array.h"

struct tree_walk {
    struct str *stack; /* folders still to be listed, as names in the store */
    size_t count, capacity, prefix;
    struct store *store;
    struct arena *arena;
    file_tree_sink sink;
    void *context;
};

static reshard_status walk_push(struct tree_walk *walk, struct str name, reshard_error *err)
{
    if (!ARRAY_ROOM(walk->stack, walk->count, walk->capacity))
        return error_set_memory(err);
    walk->stack[walk->count++] = name;
    return RESHARD_OK;
}

static reshard_status list_directory(struct tree_walk *walk, struct str directory, reshard_error *err)
{
    struct store_entry *found;
    size_t count;
    char *name = arena_copy(walk->arena, directory.data, directory.size);
    if (!name)
        return error_set_memory(err);
    reshard_status status = store_list(walk->store, name, walk->arena, &found, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        const struct str below = { found[i].name.data + walk->prefix, found[i].name.size - walk->prefix };
        status = found[i].is_directory ? walk_push(walk, found[i].name, err) : walk->sink(walk->context, &found[i], below, err);
    }
    return status;
}

reshard_status file_tree_walk(struct store *store, const char *name, size_t folders_max, struct arena *arena, file_tree_sink sink,
                              void *context, reshard_error *err)
{
    struct tree_walk walk = { .prefix = name[0] ? strlen(name) + 1 : 0, .store = store, .arena = arena, .sink = sink, .context = context };
    reshard_status status = walk_push(&walk, str_of(name), err);
    for (size_t folders = 0; !status && walk.count && folders < folders_max; folders++)
        status = list_directory(&walk, walk.stack[--walk.count], err);
    free(walk.stack);
    return status;
}

reshard_status file_name_check(struct str name, reshard_error *err)
{
    reshard_status status = store_name_check(name, err);
    for (struct str rest = name; rest.size && !status;) {
        struct str part = str_take(&rest, '/');
        if (part.size > FILE_PART_BYTES_MAX)
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "it has a part of %zu bytes, file systems take %d", part.size,
                               FILE_PART_BYTES_MAX);
    }
    return status;
}
