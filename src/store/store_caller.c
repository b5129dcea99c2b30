/* SPDX-License-Identifier: Apache-2.0 */
/* Objects over memory of a caller's, and stores of such objects. */
#include "store/store_parts.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct caller_object {
    struct store_object base;
    uint8_t *memory;
    atomic_uint_fast64_t written;
};

static struct caller_object *caller_object_of(struct store_object *object)
{
    return (struct caller_object *)(void *)object;
}

static const struct caller_object *caller_object_const(const struct store_object *object)
{
    return (const struct caller_object *)(const void *)object;
}

static void caller_close(struct store_object *object)
{
    free(caller_object_of(object));
}

static reshard_status caller_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    (void)err;
    memcpy(out, caller_object_const(object)->memory + offset, size);
    return RESHARD_OK;
}

static reshard_status caller_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct caller_object *caller = caller_object_of(object);
    (void)err;
    if (bytes != caller->memory + offset)
        memcpy(caller->memory + offset, bytes, size);
    atomic_fetch_add_explicit(&caller->written, size, memory_order_relaxed);
    return RESHARD_OK;
}

static reshard_status caller_copy_from(struct store_object *object, uint64_t offset, const struct store_object *source,
                                       uint64_t source_offset, uint64_t bytes, reshard_error *err)
{
    struct caller_object *caller = caller_object_of(object);
    reshard_status status = store_read_at(source, source_offset, caller->memory + offset, (size_t)bytes, err);
    if (!status)
        atomic_fetch_add_explicit(&caller->written, bytes, memory_order_relaxed);
    return status;
}

static const void *caller_map(const struct store_object *object)
{
    return caller_object_const(object)->memory;
}

static uint8_t *caller_room(struct store_object *object)
{
    return caller_object_of(object)->memory;
}

static const struct object_ops caller_ops = {
    .close = caller_close,
    .read_at = caller_read_at,
    .write_at = caller_write_at,
    .copy_from = caller_copy_from,
    .map = caller_map,
    .room = caller_room,
};

/* ---- by a function of the caller's ---- */

struct read_object {
    struct store_object base;
    const struct store_region *region;
};

static void read_close(struct store_object *object)
{
    free(object);
}

static reshard_status read_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct store_region *region = ((const struct read_object *)(const void *)object)->region;
    if (region->read)
        return region->read(region->context, offset, out, size, err);
    if (!region->give(out, offset, size, region->context))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_CANCELLED, "the function that gives values failed for %zu bytes at %" PRIu64, size, offset);
}

static const struct object_ops read_ops = { .close = read_close, .read_at = read_read_at };

static reshard_status read_object_new(const struct store_region *region, struct store_object **out, reshard_error *err)
{
    struct read_object *object = calloc(1, sizeof(*object));
    char *name = strdup("callback");
    if (!object || !name) {
        free(object);
        free(name);
        return error_set_memory(err);
    }
    *object = (struct read_object){ { &read_ops, name, region->bytes }, region };
    *out = &object->base;
    return RESHARD_OK;
}

/* ---- memory ---- */

reshard_status store_object_over(void *memory, uint64_t bytes, struct store_object **out, reshard_error *err)
{
    struct caller_object *caller = calloc(1, sizeof(*caller));
    char *name = strdup("memory");
    *out = NULL;
    if (!caller || !name) {
        free(caller);
        free(name);
        return error_set_memory(err);
    }
    caller->base = (struct store_object){ .ops = &caller_ops, .name = name, .size = bytes };
    caller->memory = memory;
    atomic_init(&caller->written, 0);
    *out = &caller->base;
    return RESHARD_OK;
}

uint64_t store_memory_written(const struct store_object *object)
{
    return atomic_load(&((struct caller_object *)(uintptr_t)object)->written);
}

/* ---- stores ---- */

struct caller_store {
    struct store base;
    struct store_region *regions;
    size_t count;
};

static struct caller_store *caller_store_of(struct store *store)
{
    return (struct caller_store *)(void *)store;
}

/* What messages call the memory that a shard has. */
#define REGION_PREFIX "shard "

void store_region_name(uint32_t number, char out[STORE_REGION_NAME_MAX])
{
    snprintf(out, STORE_REGION_NAME_MAX, REGION_PREFIX "%" PRIu32, number);
}

/* The region of that name, or NULL. */
static const struct store_region *region_find(const struct caller_store *store, const char *name)
{
    char own[STORE_REGION_NAME_MAX];
    if (strncmp(name, REGION_PREFIX, strlen(REGION_PREFIX)) != 0)
        return NULL;
    unsigned long number = strtoul(name + strlen(REGION_PREFIX), NULL, 10);
    if (number >= store->count)
        return NULL;
    store_region_name((uint32_t)number, own);
    return strcmp(own, name) == 0 ? &store->regions[number] : NULL;
}

void store_region_move(struct store *store, size_t number, const struct store_region *region)
{
    struct caller_store *caller = caller_store_of(store);
    if (number >= caller->count)
        return;
    const uint64_t bytes = caller->regions[number].bytes;
    caller->regions[number] = *region;
    caller->regions[number].bytes = bytes;
}

static void caller_store_free(struct store *store)
{
    free(caller_store_of(store)->regions);
    free(store);
}

static reshard_status caller_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                  size_t *count, reshard_error *err)
{
    struct caller_store *caller = caller_store_of(store);
    (void)directory;
    *count = 0;
    *entries = arena_alloc(arena, (caller->count + 1) * sizeof(**entries));
    for (size_t i = 0; *entries && i < caller->count; i++) {
        char name[STORE_REGION_NAME_MAX];
        store_region_name((uint32_t)i, name);
        struct store_entry *entry = &(*entries)[i];
        *entry = (struct store_entry){ .bytes = caller->regions[i].bytes };
        if (!arena_str(arena, str_of(name), &entry->name))
            return error_set_memory(err);
    }
    if (!*entries)
        return error_set_memory(err);
    *count = caller->count;
    store_entries_sort(*entries, *count);
    return RESHARD_OK;
}

static bool caller_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    const struct store_region *region = region_find(caller_store_of(store), name);
    *is_directory = *name == '\0';
    *bytes = region ? region->bytes : 0;
    return region || *is_directory;
}

static reshard_status caller_open(struct store *store, const char *name, unsigned access, struct store_object **out, reshard_error *err)
{
    const struct store_region *region = region_find(caller_store_of(store), name);
    (void)access;
    if (!region)
        return store_error_missing(name, err);
    if (region->read || region->give)
        return read_object_new(region, out, err);
    if (!region->memory && region->bytes)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "values are needed that are not there: they come piece by piece");
    return store_object_over((void *)(uintptr_t)region->memory, region->bytes, out, err);
}

static const struct store_ops caller_store_ops = {
    .free = caller_store_free,
    .list = caller_list,
    .exists = caller_exists,
    .open_object = caller_open,
};

reshard_status store_new_over(const struct store_region *regions, size_t count, struct store **out, reshard_error *err)
{
    struct caller_store *store = calloc(1, sizeof(*store));
    struct store_region *copy = array_zeroed(count, sizeof(*copy));
    *out = NULL;
    if (!store || !copy) {
        free(store);
        free(copy);
        return error_set_memory(err);
    }
    if (count)
        memcpy(copy, regions, count * sizeof(*copy));
    store->base.ops = &caller_store_ops;
    store->regions = copy;
    store->count = count;
    *out = &store->base;
    return RESHARD_OK;
}
