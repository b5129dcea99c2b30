/* SPDX-License-Identifier: Apache-2.0 */
/* Objects over memory of a caller's. */
#include "store/store_parts.h"

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
