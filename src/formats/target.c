/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/driver.h"

#include "base/array.h"
#include "base/sort.h"

#include <stdlib.h>

void target_free(struct target *target)
{
    if (target->driver && target->driver->close_target)
        target->driver->close_target(target);
    for (uint32_t i = 0; target->read_parts && i < target->catalog->tensor_count; i++)
        free(target->read_parts[i].keys);
    catalog_free(target->catalog);
    free(target->chunks);
    free(target->first_chunk);
    note_list_release(&target->dropped);
    note_list_release(&target->changed);
    *target = (struct target){ 0 };
}

reshard_status target_note_dropped(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reshard_status status = note_add_args(&target->dropped, &target->catalog->arena, kind, key, err, format, args);
    va_end(args);
    return status;
}

reshard_status target_note_changed(struct target *target, enum note_kind kind, struct str key, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reshard_status status = note_add_args(&target->changed, &target->catalog->arena, kind, key, err, format, args);
    va_end(args);
    return status;
}

reshard_status target_add_tensors(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        uint32_t added;
        reshard_status status = catalog_add_tensor(target->catalog, tensor->key, tensor->dtype, tensor->rank,
                                                   catalog_vector_at(wanted, tensor->shape), &added, err);
        if (status)
            return status;
        struct catalog_tensor *copy = &target->catalog->tensors[added];
        copy->flags = tensor->flags;
        copy->tied_to = tensor->tied_to;
        copy->storage_group = tensor->storage_group;
    }
    return RESHARD_OK;
}

reshard_status target_read_as(struct target *target, uint32_t tensor, struct str key, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    if (!target->read_keys) {
        target->read_keys = arena_array(&catalog->arena, catalog->tensor_count, sizeof(*target->read_keys));
        for (uint32_t i = 0; target->read_keys && i < catalog->tensor_count; i++)
            target->read_keys[i] = catalog->tensors[i].key;
    }
    bool is_kept = target->read_keys && arena_str(&catalog->arena, key, &target->read_keys[tensor]);
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

reshard_status target_read_as_hidden(struct target *target, uint32_t tensor, struct str key, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    if (!target->hidden_keys)
        target->hidden_keys = arena_zalloc(&catalog->arena, (size_t)catalog->tensor_count * sizeof(*target->hidden_keys));
    bool is_kept = target->hidden_keys && arena_str(&catalog->arena, key, &target->hidden_keys[tensor]);
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

reshard_status target_read_in_parts(struct target *target, uint32_t tensor, struct str key, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    if (!target->read_parts)
        target->read_parts = arena_zalloc(&catalog->arena, (size_t)catalog->tensor_count * sizeof(*target->read_parts));
    struct target_parts *parts = target->read_parts ? &target->read_parts[tensor] : NULL;
    if (!parts || !ARRAY_ROOM(parts->keys, parts->count, parts->capacity))
        return error_set_memory(err);
    parts->keys[parts->count++] = key;
    return RESHARD_OK;
}

reshard_status target_read_as_path(struct target *target, uint32_t tensor, const struct path_part *parts, size_t count, reshard_error *err)
{
    struct buffer joined = { 0 };
    reshard_status status = path_join(parts, count, &joined) ? RESHARD_OK : error_set_memory(err);
    if (!status && !str_equal(buffer_str(&joined), target->catalog->tensors[tensor].key))
        status = target_read_as(target, tensor, buffer_str(&joined), err);
    buffer_release(&joined);
    return status;
}

/* Sorts the chunks by offset, and then, stable, by object. */
static void chunks_by_object(const struct catalog *catalog, struct sort_entry *order, struct target *target)
{
    uint32_t count = catalog->chunk_count;
    for (uint32_t i = 0; i < count; i++)
        order[i] = (struct sort_entry){ (int64_t)(catalog->chunks[i].offset & INT64_MAX), i };
    entries_sort(order, order + count, count);
    for (uint32_t i = 0; i < count; i++)
        order[i].key = catalog->chunks[order[i].value].object;
    entries_sort(order, order + count, count);
    for (uint32_t i = 0; i < count; i++) {
        target->chunks[i] = order[i].value;
        target->first_chunk[order[i].key + 1] = i + 1;
    }
    for (uint32_t i = 0; i < catalog->object_count; i++)
        if (target->first_chunk[i + 1] < target->first_chunk[i])
            target->first_chunk[i + 1] = target->first_chunk[i];
}

reshard_status target_seal(struct target *target, reshard_error *err)
{
    struct catalog *catalog = target->catalog;
    reshard_status status = catalog_seal(catalog, true, err);
    if (status)
        return status;
    struct sort_entry *order = array_new((size_t)catalog->chunk_count * 2, sizeof(*order));
    target->chunks = array_zeroed(catalog->chunk_count, sizeof(*target->chunks));
    target->first_chunk = array_zeroed((size_t)catalog->object_count + 1, sizeof(*target->first_chunk));
    if (order && target->chunks && target->first_chunk)
        chunks_by_object(catalog, order, target);
    else
        status = error_set_memory(err);
    free(order);
    return status;
}

reshard_status target_publish(const struct publish_job *job, reshard_error *err)
{
    const struct format_driver *driver = job->target->driver;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && driver->publish_object && i < job->target->catalog->object_count; i++)
        status = driver->publish_object(job, i, err);
    return status || !driver->commit ? status : driver->commit(job, err);
}

void removal_release(struct removal *removal)
{
    arena_release(&removal->arena);
    buffer_release(&removal->bytes);
    *removal = (struct removal){ .name = NULL };
}
