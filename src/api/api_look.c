/* SPDX-License-Identifier: Apache-2.0 */
/* What a catalog holds besides items: tensors, chunks, paths, warnings, facts, files. */
#include "api/handle.h"

#include "base/array.h"

#include <stdlib.h>

API_EXPORT const char *reshard_checkpoint_format(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint_catalog(checkpoint)->format : NULL;
}

API_EXPORT const char *reshard_checkpoint_path(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint->opened->path : NULL;
}

API_EXPORT size_t reshard_tensor_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint->opened->listed_count : 0;
}

API_EXPORT reshard_status reshard_tensor_at(const reshard_checkpoint *checkpoint, size_t index, reshard_tensor *out)
{
    if (!entry_begin(out, "reshard_tensor", index, reshard_tensor_count(checkpoint)))
        return RESHARD_ERR_USAGE;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, index)];
    places_hold(checkpoint);
    reshard_tensor made = {
        .key = public_str(checkpoint_tensor_name(checkpoint->opened, index)),
        .dtype = dtype_info(tensor->dtype)->name,
        .rank = tensor->rank,
        .shape = catalog_vector_at(catalog, tensor->shape),
        .bytes = catalog_tensor_bytes(catalog, tensor),
        .chunk_count = tensor->chunk_count,
        .tied_to = -1,
        .is_ambiguous = (tensor->flags & TENSOR_AMBIGUOUS) != 0,
    };
    if (tensor->tied_to != CATALOG_NONE && checkpoint->public_index[tensor->tied_to] != CATALOG_NONE)
        made.tied_to = checkpoint->public_index[tensor->tied_to];
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        made.replica_count += (catalog->chunks[tensor->first_chunk + i].flags & CHUNK_REPLICA) != 0;
    places_leave(checkpoint);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT int64_t reshard_tensor_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size)
{
    if (!checkpoint || !key)
        return -1;
    const struct checkpoint_view *view = checkpoint->opened->view;
    if (view) {
        uint32_t number = name_map_find(&view->by_name, (struct str){ key, key_size });
        return number == NAME_NONE ? -1 : (int64_t)view->tensors[number];
    }
    uint32_t tensor = catalog_find(checkpoint_catalog(checkpoint), (struct str){ key, key_size });
    return tensor == CATALOG_NONE || checkpoint->public_index[tensor] == CATALOG_NONE ? -1 : (int64_t)checkpoint->public_index[tensor];
}

static const char *encoding_name(const struct chunk_layout *layout)
{
    static const char *const names[CODEC_COUNT] = { [CODEC_NONE] = "", [CODEC_DEFLATE] = "deflate", [CODEC_ZSTD] = "zstd",
                                                  [CODEC_LATIN1] = "latin1" };
    if (!layout)
        return "";
    if (layout->chain && layout->chain->literal)
        return "fill";
    if (layout->chain)
        return layout->chain->step_count ? chain_step_name(&layout->chain->steps[0]) : "";
    return names[layout->outer_codec != CODEC_NONE ? layout->outer_codec : layout->codec];
}

API_EXPORT reshard_status reshard_chunk_at(const reshard_checkpoint *checkpoint, size_t tensor_index, size_t index, reshard_chunk *out)
{
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_chunk", NULL);
    if (status || tensor_index >= reshard_tensor_count(checkpoint))
        return RESHARD_ERR_USAGE;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, tensor_index)];
    if (index >= tensor->chunk_count)
        return RESHARD_ERR_USAGE;
    places_hold(checkpoint);
    const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const struct catalog_span span = catalog_chunk_span(catalog, chunk);
    const reshard_chunk made = {
        .start = catalog_vector_at(catalog, chunk->start),
        .extent = catalog_vector_at(catalog, chunk->extent),
        .file = public_str(catalog->objects[chunk->object].name),
        .offset = span.offset,
        .bytes = span.bytes,
        .is_replica = (chunk->flags & CHUNK_REPLICA) != 0,
        .is_resolved = !(chunk->flags & CHUNK_UNRESOLVED),
        .flat_begin = layout ? layout->flat_begin : 0,
        .flat_count = layout ? layout->flat_count : -1,
        .encoding = encoding_name(layout),
        .writer = catalog_chunk_writer(catalog, chunk),
    };
    places_leave(checkpoint);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* ---- order ---- */

static int api_look_compare_keys(const void *a, const void *b, void *context)
{
    const reshard_checkpoint *checkpoint = context;
    size_t first = *(const size_t *)a, second = *(const size_t *)b;
    int order = str_compare(checkpoint_tensor_name(checkpoint->opened, first), checkpoint_tensor_name(checkpoint->opened, second));
    return order ? order : (first < second) - (first > second);
}

static size_t *order_make(reshard_checkpoint *checkpoint)
{
    uint32_t count = checkpoint->opened->listed_count;
    size_t *order = array_new(count, sizeof(*order));
    for (uint32_t i = 0; order && i < count; i++)
        order[i] = i;
    if (order)
        qsort_r(order, count, sizeof(*order), api_look_compare_keys, checkpoint);
    return order;
}

API_EXPORT reshard_status reshard_tensor_order(const reshard_checkpoint *checkpoint, const size_t **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(checkpoint, err);
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    if (!handle->order)
        handle->order = order_make(handle);
    *out = handle->order;
    checkpoint_unlock(handle);
    return *out ? RESHARD_OK : error_set_memory(err);
}

/* ---- paths ---- */

static size_t api_look_tensor_path(const reshard_checkpoint *checkpoint, size_t index, struct path_part *single,
                                   const struct path_part **parts)
{
    if (index >= reshard_tensor_count(checkpoint))
        return 0;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    return catalog_tensor_path(catalog, &catalog->tensors[checkpoint_listed(checkpoint, index)], single, parts);
}

static size_t api_look_item_path(const reshard_checkpoint *checkpoint, size_t index, struct path_part *single,
                                 const struct path_part **parts)
{
    if (index >= reshard_item_count(checkpoint))
        return 0;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    return catalog_item_path(catalog, &catalog->items[checkpoint_item_at(checkpoint->opened, index)], single, parts);
}

static reshard_status path_part_give(const struct path_part *parts, size_t count, size_t index, reshard_path_part *out)
{
    static const int kinds[] = { [PATH_KEY] = RESHARD_PATH_KEY, [PATH_INDEX] = RESHARD_PATH_INDEX, [PATH_INT_KEY] = RESHARD_PATH_INT_KEY };
    if (index >= count)
        return RESHARD_ERR_USAGE;
    const reshard_path_part made = { .key = public_str(parts[index].key), .index = parts[index].index, .kind = kinds[parts[index].kind] };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT size_t reshard_tensor_path_count(const reshard_checkpoint *checkpoint, size_t tensor)
{
    struct path_part single;
    const struct path_part *parts;
    return api_look_tensor_path(checkpoint, tensor, &single, &parts);
}

API_EXPORT reshard_status reshard_tensor_path_at(const reshard_checkpoint *checkpoint, size_t tensor, size_t index, reshard_path_part *out)
{
    struct path_part single;
    const struct path_part *parts = NULL;
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_path_part", NULL);
    size_t count = api_look_tensor_path(checkpoint, tensor, &single, &parts);
    return status ? status : path_part_give(parts, count, index, out);
}

API_EXPORT size_t reshard_item_path_count(const reshard_checkpoint *checkpoint, size_t item)
{
    struct path_part single;
    const struct path_part *parts;
    return api_look_item_path(checkpoint, item, &single, &parts);
}

API_EXPORT reshard_status reshard_item_path_at(const reshard_checkpoint *checkpoint, size_t item, size_t index, reshard_path_part *out)
{
    struct path_part single;
    const struct path_part *parts = NULL;
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_path_part", NULL);
    size_t count = api_look_item_path(checkpoint, item, &single, &parts);
    return status ? status : path_part_give(parts, count, index, out);
}

/* ---- warnings, facts, files ---- */

API_EXPORT size_t reshard_warning_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint_catalog(checkpoint)->warning_count : 0;
}

API_EXPORT reshard_status reshard_warning_at(const reshard_checkpoint *checkpoint, size_t index, reshard_warning *out)
{
    if (!entry_begin(out, "reshard_warning", index, reshard_warning_count(checkpoint)))
        return RESHARD_ERR_USAGE;
    const struct catalog_warning *warning = &checkpoint_catalog(checkpoint)->warnings[index];
    const reshard_warning made = { .text = warning->text.data,
                                   .is_damage = warning->is_damage,
                                   .lost = { warning->key.data, warning->key.size } };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT size_t reshard_fact_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint_catalog(checkpoint)->fact_count : 0;
}

API_EXPORT reshard_status reshard_fact_at(const reshard_checkpoint *checkpoint, size_t index, reshard_fact *out)
{
    if (!entry_begin(out, "reshard_fact", index, reshard_fact_count(checkpoint)))
        return RESHARD_ERR_USAGE;
    const struct catalog_fact *fact = &checkpoint_catalog(checkpoint)->facts[index];
    const reshard_fact made = { .name = fact->name.data, .value = fact->value.data };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT size_t reshard_file_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint_catalog(checkpoint)->object_count : 0;
}

API_EXPORT reshard_status reshard_file_at(const reshard_checkpoint *checkpoint, size_t index, reshard_file *out)
{
    if (!entry_begin(out, "reshard_file", index, reshard_file_count(checkpoint)))
        return RESHARD_ERR_USAGE;
    const struct catalog_object *object = &checkpoint_catalog(checkpoint)->objects[index];
    const reshard_file made = { .name = public_str(object->name), .bytes = object->bytes };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}
