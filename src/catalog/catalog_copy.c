/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog.h"

#include <stdlib.h>

#include "base/array.h"

static reshard_status catalog_copy_objects(struct catalog *into, const struct catalog *from, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    uint32_t number;
    for (uint32_t i = 0; i < from->object_count && !status; i++)
        status = catalog_add_object(into, from->objects[i].name, from->objects[i].bytes, &number, err);
    return status;
}

/* A tensor of another key has no path. */
static reshard_status catalog_copy_tensor(struct catalog *into, const struct catalog *from, uint32_t index, struct str key,
                                          reshard_error *err)
{
    const struct catalog_tensor *tensor = &from->tensors[index];
    uint32_t made;
    reshard_status status =
        catalog_add_tensor(into, key, tensor->dtype, tensor->rank, catalog_vector_at(from, tensor->shape), &made, err);
    if (!status && tensor->path != CATALOG_NONE && str_equal(key, tensor->key))
        status = catalog_set_tensor_path(into, made, from->paths + tensor->path, tensor->path_count, err);
    if (status)
        return status;
    into->tensors[made].flags = tensor->flags & (uint16_t) ~(TENSOR_AMBIGUOUS | TENSOR_TORN);
    into->tensors[made].storage_group = tensor->storage_group;
    into->tensors[made].stored_as = tensor->stored_as;
    return RESHARD_OK;
}

/* Replicas are marked again by catalog_seal: what stands in another's place may be one of something else. */
static reshard_status catalog_copy_chunk(struct catalog *into, const struct catalog *from, const struct catalog_chunk *chunk,
                                         uint32_t tensor, uint32_t object, reshard_error *err)
{
    const struct chunk_layout *layout = catalog_layout_of(from, chunk);
    struct catalog_chunk *made;
    reshard_status status = catalog_add_chunk(into, tensor, catalog_vector_at(from, chunk->start), catalog_vector_at(from, chunk->extent),
                                              object, chunk->offset, chunk->bytes, &made, err);
    if (status)
        return status;
    made->flags = chunk->flags & (uint16_t)~CHUNK_REPLICA;
    made->writer = chunk->writer;
    made->driver_data = chunk->driver_data;
    if (!layout)
        return RESHARD_OK;
    struct chunk_layout *copy = catalog_chunk_layout(into, made);
    if (!copy)
        return error_set_memory(err);
    *copy = *layout;
    if (layout->strides != CATALOG_NONE)
        copy->strides = catalog_vector(into, catalog_vector_at(from, layout->strides), from->tensors[chunk->tensor].rank);
    return copy->strides == layout->strides || copy->strides != CATALOG_NONE ? RESHARD_OK : error_set_memory(err);
}

static reshard_status catalog_copy_tensors(struct catalog *into, struct catalog_copying *copying, uint8_t *is_replaced, reshard_error *err)
{
    const struct catalog *from = copying->from;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < from->tensor_count && !status; i++) {
        bool replaced = false;
        struct str key = from->tensors[i].key;
        copying->tensors[i] = into->tensor_count;
        if (copying->replace_tensor)
            status = copying->replace_tensor(copying->context, i, &replaced, err);
        if (copying->rename_tensor && !replaced)
            copying->rename_tensor(copying->context, i, &key);
        if (!status && !replaced)
            status = catalog_copy_tensor(into, from, i, key, err);
        is_replaced[i] = replaced;
    }
    for (uint32_t i = 0; i < from->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &from->tensors[i];
        if (is_replaced[i])
            continue;
        if (tensor->tied_to != CATALOG_NONE)
            into->tensors[copying->tensors[i]].tied_to = copying->tensors[tensor->tied_to];
        for (uint32_t c = 0; c < tensor->chunk_count && !status; c++) {
            const struct catalog_chunk *chunk = &from->chunks[tensor->first_chunk + c];
            status = catalog_copy_chunk(into, from, chunk, copying->tensors[i], chunk->object, err);
        }
    }
    return status;
}

static reshard_status catalog_copy_items(struct catalog *into, struct catalog_copying *copying, reshard_error *err)
{
    const struct catalog *from = copying->from;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < from->item_count && !status; i++) {
        const struct catalog_item *item = &from->items[i];
        bool has_path = item->path != CATALOG_NONE;
        uint32_t made;
        if (copying->skips_item && copying->skips_item(copying->context, i))
            continue;
        status = catalog_add_item(into, item, has_path ? from->paths + item->path : NULL, has_path ? item->path_count : 0, &made, err);
        if (!status)
            copying->items[made] = i;
    }
    return status;
}

static reshard_status catalog_copy_notes(struct catalog *into, const struct catalog_copying *copying, reshard_error *err)
{
    const struct catalog *from = copying->from;
    for (uint32_t i = 0; i < from->fact_count; i++) {
        if (!ARRAY_ROOM(into->facts, into->fact_count, into->fact_capacity))
            return error_set_memory(err);
        into->facts[into->fact_count++] = from->facts[i];
    }
    for (uint32_t i = 0; i < copying->warning_count; i++) {
        if (!ARRAY_ROOM(into->warnings, into->warning_count, into->warning_capacity))
            return error_set_memory(err);
        into->warnings[into->warning_count++] = from->warnings[i];
        into->damage_count += from->warnings[i].is_damage;
    }
    into->warnings_dropped = from->warnings_dropped;
    into->damage_dropped = from->damage_dropped;
    into->lost_count = from->lost_count;
    into->has_unnamed_loss = from->has_unnamed_loss;
    into->ranks = from->ranks;
    into->names_are_checked = from->names_are_checked;
    return RESHARD_OK;
}

reshard_status catalog_copy(struct catalog *into, struct catalog_copying *copying, reshard_error *err)
{
    const struct catalog *from = copying->from;
    uint8_t *is_replaced = array_zeroed(from->tensor_count, sizeof(*is_replaced));
    copying->tensors = array_zeroed(from->tensor_count, sizeof(*copying->tensors));
    copying->items = array_zeroed(from->item_count, sizeof(*copying->items));
    reshard_status status = is_replaced && copying->tensors && copying->items ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = catalog_copy_objects(into, from, err);
    if (!status)
        status = catalog_copy_tensors(into, copying, is_replaced, err);
    if (!status)
        status = catalog_copy_items(into, copying, err);
    if (!status)
        status = catalog_copy_notes(into, copying, err);
    free(is_replaced);
    return status;
}

reshard_status catalog_copy_one(struct catalog *into, const struct catalog *from, uint32_t index, const char *prefix, reshard_error *err)
{
    const struct catalog_tensor *tensor = &from->tensors[index];
    uint32_t made = into->tensor_count;
    struct buffer name = { 0 };
    reshard_status status = catalog_copy_tensor(into, from, index, tensor->key, err);
    if (!status)
        into->tensors[made].tied_to = into->tensors[made].storage_group = CATALOG_NONE;
    for (uint32_t c = 0; c < tensor->chunk_count && !status; c++) {
        const struct catalog_chunk *chunk = &from->chunks[tensor->first_chunk + c];
        uint32_t object;
        buffer_clear(&name);
        if (!buffer_append_text(&name, prefix) || !buffer_append_str(&name, from->objects[chunk->object].name))
            status = error_set_memory(err);
        if (!status)
            status = catalog_add_object(into, buffer_str(&name), from->objects[chunk->object].bytes, &object, err);
        if (!status)
            status = catalog_copy_chunk(into, from, chunk, made, object, err);
    }
    buffer_release(&name);
    return status;
}

reshard_status catalog_copy_again(struct catalog *into, const struct catalog *from, uint32_t index, struct str key, reshard_error *err)
{
    const struct catalog_tensor *tensor = &from->tensors[index];
    uint32_t made = into->tensor_count;
    reshard_status status = catalog_copy_tensor(into, from, index, key, err);
    if (!status)
        into->tensors[made].tied_to = into->tensors[made].storage_group = CATALOG_NONE;
    for (uint32_t c = 0; c < tensor->chunk_count && !status; c++) {
        const struct catalog_chunk *chunk = &from->chunks[tensor->first_chunk + c];
        status = catalog_copy_chunk(into, from, chunk, made, chunk->object, err);
    }
    return status;
}
