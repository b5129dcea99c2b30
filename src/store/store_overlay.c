/* SPDX-License-Identifier: Apache-2.0 */
/* A store whose missing files another one has: reading only. */
#include "store/store_parts.h"

#include <stdlib.h>

struct overlay_store {
    struct store base;
    struct store *below, *above;
    bool (*is_taken)(void *context, struct str name);
    void *context;
};

static struct overlay_store *overlay_of(const struct store *store)
{
    return (struct overlay_store *)(uintptr_t)store;
}

static void overlay_free(struct store *store)
{
    store_free(overlay_of(store)->below);
    store_free(overlay_of(store)->above);
    store_links_release(store);
    free(store);
}

static const char *overlay_path(const struct store *store)
{
    return store_path(overlay_of(store)->below);
}

static bool is_from_above(const struct overlay_store *overlay, const char *name)
{
    bool is_directory;
    uint64_t bytes;
    return overlay->is_taken(overlay->context, str_of(name)) && !store_exists(overlay->below, name, &is_directory, &bytes);
}

static reshard_status overlay_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                   size_t *count, reshard_error *err)
{
    struct overlay_store *overlay = overlay_of(store);
    struct store_entry *below, *above;
    reshard_error seen = { 0 };
    size_t below_count, above_count = 0;
    reshard_status status = store_list(overlay->below, directory, arena, &below, &below_count, err);
    if (status)
        return status;
    status = store_list(overlay->above, directory, arena, &above, &above_count, &seen);
    if (status == RESHARD_ERR_MEMORY)
        return error_set_memory(err);
    if (status)
        above_count = 0; /* the other one lacks this folder */
    *entries = arena_array(arena, below_count + above_count, sizeof(**entries));
    if (!*entries)
        return error_set_memory(err);
    memcpy(*entries, below, below_count * sizeof(**entries));
    *count = below_count;
    for (size_t i = 0; i < above_count; i++) {
        if (above[i].is_directory)
            continue;
        const char *name = arena_copy(arena, above[i].name.data, above[i].name.size);
        if (!name)
            return error_set_memory(err);
        if (is_from_above(overlay, name))
            (*entries)[(*count)++] = above[i];
    }
    store_entries_sort(*entries, *count);
    return RESHARD_OK;
}

static bool overlay_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    struct overlay_store *overlay = overlay_of(store);
    return store_exists(is_from_above(overlay, name) ? overlay->above : overlay->below, name, is_directory, bytes);
}

static uint64_t overlay_version(struct store *store, const char *name)
{
    return store_version(overlay_of(store)->below, name);
}

static reshard_status overlay_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                          reshard_error *err)
{
    struct overlay_store *overlay = overlay_of(store);
    return store_open_object_as(is_from_above(overlay, name) ? overlay->above : overlay->below, name, access, out, err);
}

static reshard_status overlay_txn_begin(struct store *store, const char *name, const struct store_txn_options *options,
                                        struct store_txn **out, reshard_error *err)
{
    (void)store, (void)options, (void)out;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': nothing is written to a store of two", name);
}

static const struct store_ops overlay_ops = {
    .free = overlay_free,
    .path = overlay_path,
    .list = overlay_list,
    .exists = overlay_exists,
    .version = overlay_version,
    .open_object = overlay_open_object,
    .txn_begin = overlay_txn_begin,
};

struct store *store_new_overlay(struct store *below, struct store *above, bool (*is_taken)(void *context, struct str name), void *context)
{
    struct overlay_store *overlay = calloc(1, sizeof(*overlay));
    if (!overlay)
        return NULL;
    overlay->base.ops = &overlay_ops;
    overlay->below = below;
    overlay->above = above;
    overlay->is_taken = is_taken;
    overlay->context = context;
    if (pthread_mutex_init(&overlay->base.links.lock, NULL)) {
        free(overlay);
        return NULL;
    }
    return &overlay->base;
}
