/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "catalog/catalog_cover.h"
#include "catalog/catalog_path.h"

#define TEXT_BYTES_MAX 4096

struct catalog *catalog_new(const char *format)
{
    struct catalog *catalog = calloc(1, sizeof(*catalog));
    if (!catalog)
        return NULL;
    catalog->format = format;
    catalog->limits = limits_default;
    catalog->vector_seed = hash_table_seed();
    return catalog;
}

void catalog_free(struct catalog *catalog)
{
    if (!catalog)
        return;
    for (uint32_t i = 0; i < catalog->graph_count; i++) {
        value_graph_release(catalog->graphs[i]);
        free(catalog->graphs[i]);
    }
    free(catalog->graphs);
    free(catalog->tensors);
    free(catalog->chunks);
    free(catalog->objects);
    free(catalog->items);
    free(catalog->layouts);
    free(catalog->paths);
    free(catalog->warnings);
    free(catalog->facts);
    for (uint32_t i = 0; i < catalog->old_vector_count; i++)
        free(catalog->old_vectors[i]);
    free(catalog->old_vectors);
    free(catalog->vectors);
    free(catalog->vector_slots);
    free(catalog->key_tensors);
    name_map_release(&catalog->object_names);
    name_map_release(&catalog->keys);
    arena_release(&catalog->arena);
    free(catalog);
}

reshard_status catalog_add_object(struct catalog *catalog, struct str name, uint64_t bytes, uint32_t *out, reshard_error *err)
{
    bool was_new = false;
    if (catalog->object_count >= catalog->limits.objects && name_map_find(&catalog->object_names, name) == NAME_NONE)
        return error_set_limit(err, "objects", (uint64_t)catalog->object_count + 1, catalog->limits.objects);
    if (!ARRAY_ROOM(catalog->objects, catalog->object_count, catalog->object_capacity))
        return error_set_memory(err);

    work_add_input(catalog->limits.budget, name.size); /* a folder's names are input too */
    uint32_t index = name_map_intern(&catalog->object_names, name, &was_new);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (was_new) {
        catalog->objects[index] = (struct catalog_object){ .name = name_map_at(&catalog->object_names, index), .bytes = bytes };
        catalog->object_count = index + 1;
    }
    *out = index;
    return RESHARD_OK;
}

reshard_status catalog_add_tensor(struct catalog *catalog, struct str key, enum dtype dtype, int rank, const int64_t *shape, uint32_t *out,
                                  reshard_error *err)
{
    int64_t volume;
    uint64_t bytes;
    if (rank < 0 || rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %d axes, at most %d are supported", STR_ARG(key), rank, RANK_MAX);
    if (!shape_volume(rank, shape, &volume))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': its shape is negative or has more than 2^63 elements", STR_ARG(key));
    if (!dtype_bytes(dtype, (uint64_t)volume, &bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': %" PRId64 " elements of %s are no number of bytes", STR_ARG(key), volume,
                         dtype_info(dtype)->name);
    if (catalog->tensor_count >= catalog->limits.tensors)
        return error_set_limit(err, "tensors", (uint64_t)catalog->tensor_count + 1, catalog->limits.tensors);

    reshard_status status = work_spend(catalog->limits.budget, sizeof(*catalog->tensors) + key.size, err);
    if (status)
        return status;
    if (!ARRAY_ROOM(catalog->tensors, catalog->tensor_count, catalog->tensor_capacity))
        return error_set_memory(err);

    struct catalog_tensor tensor = { .dtype = dtype,
                                     .rank = rank,
                                     .path = CATALOG_NONE,
                                     .tied_to = CATALOG_NONE,
                                     .storage_group = CATALOG_NONE,
                                     .shape = catalog_vector(catalog, shape, rank) };
    if (tensor.shape == CATALOG_NONE || !arena_str(&catalog->arena, key, &tensor.key))
        return error_set_memory(err);
    catalog->tensors[catalog->tensor_count] = tensor;
    *out = catalog->tensor_count++;
    return RESHARD_OK;
}

static reshard_status chunk_outside(const struct catalog_tensor *tensor, const int64_t *shape, const int64_t *start, const int64_t *extent,
                                    int axis, reshard_error *err)
{
    char box[BOX_TEXT_MAX];
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': chunk %s lies outside the tensor on axis %d, which has %" PRId64 " elements",
              STR_ARG(tensor->key), box_text(tensor->rank, start, extent, box), axis, shape[axis]);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    return RESHARD_ERR_FORMAT;
}

reshard_status catalog_add_chunk(struct catalog *catalog, uint32_t tensor_index, const int64_t *start, const int64_t *extent,
                                 uint32_t object, uint64_t offset, uint64_t bytes, struct catalog_chunk **out, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_tensor *tensor = &catalog->tensors[tensor_index];
    int64_t begin[RANK_MAX];
    int axis = 0;

    if (catalog->chunk_count >= catalog->limits.chunks)
        return error_set_limit(err, "chunks", (uint64_t)catalog->chunk_count + 1, catalog->limits.chunks);
    reshard_status status = work_spend(catalog->limits.budget, sizeof(*catalog->chunks), err);
    if (status)
        return status;
    if (!ARRAY_ROOM(catalog->chunks, catalog->chunk_count, catalog->chunk_capacity))
        return error_set_memory(err);

    struct catalog_chunk chunk = { .offset = offset, .bytes = bytes, .tensor = tensor_index, .object = object, .extent = tensor->shape };
    if (start) {
        const int64_t *shape = catalog_vector_at(catalog, tensor->shape);
        if (!box_check(tensor->rank, start, extent, shape, &axis))
            return chunk_outside(tensor, shape, start, extent, axis, err);
    }
    /* Both may lie in the pool, which may move when the first of them is added. */
    if (tensor->rank > 0)
        memcpy(begin, start ? start : origin, (size_t)tensor->rank * sizeof(*begin));
    if (start)
        chunk.extent = catalog_vector(catalog, extent, tensor->rank);
    chunk.start = catalog_vector(catalog, begin, tensor->rank);
    if (chunk.start == CATALOG_NONE || chunk.extent == CATALOG_NONE)
        return error_set_memory(err);
    catalog->chunks[catalog->chunk_count] = chunk;
    if (out)
        *out = &catalog->chunks[catalog->chunk_count];
    catalog->chunk_count++;
    return RESHARD_OK;
}

bool catalog_chunks_are_copies(const struct catalog *catalog, uint32_t a_index, uint32_t b_index)
{
    const struct catalog_chunk *a = &catalog->chunks[a_index], *b = &catalog->chunks[b_index];
    const struct chunk_layout *a_layout = catalog_layout_of(catalog, a), *b_layout = catalog_layout_of(catalog, b);
    int64_t a_count = a_layout ? a_layout->flat_count : -1, b_count = b_layout ? b_layout->flat_count : -1;
    if (a_count != b_count || (a_count >= 0 && a_layout->flat_begin != b_layout->flat_begin))
        return false;
    return box_equal(catalog->tensors[a->tensor].rank, catalog_vector_at(catalog, a->start), catalog_vector_at(catalog, a->extent),
                     catalog_vector_at(catalog, b->start), catalog_vector_at(catalog, b->extent));
}

void catalog_chunk_strides(const struct catalog *catalog, const struct catalog_chunk *chunk, int64_t *strides)
{
    int rank = catalog->tensors[chunk->tensor].rank;
    if (!catalog_chunk_is_strided(catalog, chunk))
        strides_row_major(rank, catalog_vector_at(catalog, chunk->extent), strides);
    else if (rank > 0)
        memcpy(strides, catalog_vector_at(catalog, catalog_layout_of(catalog, chunk)->strides), (size_t)rank * sizeof(*strides));
}

struct chunk_layout *catalog_chunk_layout(struct catalog *catalog, struct catalog_chunk *chunk)
{
    if (chunk->layout)
        return &catalog->layouts[chunk->layout - 1];
    if (!ARRAY_ROOM(catalog->layouts, catalog->layout_count, catalog->layout_capacity))
        return NULL;
    catalog->layouts[catalog->layout_count] = (struct chunk_layout){ .strides = CATALOG_NONE, .flat_count = -1 };
    chunk->layout = ++catalog->layout_count;
    return &catalog->layouts[chunk->layout - 1];
}

reshard_status catalog_chunk_set_strides(struct catalog *catalog, struct catalog_chunk *chunk, int rank, const int64_t *strides,
                                         reshard_error *err)
{
    uint32_t vector = catalog_vector(catalog, strides, rank);
    struct chunk_layout *layout = vector == CATALOG_NONE ? NULL : catalog_chunk_layout(catalog, chunk);
    if (!layout)
        return error_set_memory(err);
    layout->strides = vector;
    return RESHARD_OK;
}

reshard_status catalog_chunk_set_run(struct catalog *catalog, struct catalog_chunk *chunk, int64_t begin, int64_t count, reshard_error *err)
{
    struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
    if (!layout)
        return error_set_memory(err);
    layout->flat_begin = begin;
    layout->flat_count = count;
    return RESHARD_OK;
}

reshard_status catalog_chunk_set_codec(struct catalog *catalog, struct catalog_chunk *chunk, enum codec codec, uint64_t offset,
                                       uint64_t bytes, reshard_error *err)
{
    struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
    if (!layout)
        return error_set_memory(err);
    layout->codec = codec;
    layout->coded_offset = offset;
    layout->coded_bytes = bytes;
    return RESHARD_OK;
}

reshard_status catalog_chunk_set_chain(struct catalog *catalog, struct catalog_chunk *chunk, const struct chain *chain, uint64_t offset,
                                       uint64_t bytes, reshard_error *err)
{
    struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
    if (!layout)
        return error_set_memory(err);
    layout->chain = chain;
    layout->coded_offset = offset;
    layout->coded_bytes = bytes;
    return RESHARD_OK;
}

reshard_status catalog_add_item(struct catalog *catalog, const struct catalog_item *item, const struct path_part *parts, size_t part_count,
                                uint32_t *out, reshard_error *err)
{
    struct catalog_item added = *item;
    reshard_status status = work_spend(catalog->limits.budget, sizeof(added) + item->key.size, err);
    if (status)
        return status;
    if (!ARRAY_ROOM(catalog->items, catalog->item_count, catalog->item_capacity))
        return error_set_memory(err);

    if (!arena_str(&catalog->arena, item->key, &added.key))
        return error_set_memory(err);
    status = path_add(catalog, added.key, parts, part_count, &added.path, &added.path_count, err);
    if (status)
        return status;
    added.is_ambiguous = false;
    catalog->items[catalog->item_count] = added;
    if (out)
        *out = catalog->item_count;
    catalog->item_count++;
    return RESHARD_OK;
}

reshard_status catalog_add_file(struct catalog *catalog, struct str key, struct str object, uint64_t bytes, reshard_error *err)
{
    struct catalog_item item = { .key = key, .kind = ITEM_FILE, .bytes = bytes };
    reshard_status status = catalog_add_object(catalog, object, bytes, &item.object, err);
    return status ? status : catalog_add_item(catalog, &item, NULL, 0, NULL, err);
}

struct value_graph *catalog_adopt_graph(struct catalog *catalog, struct value_graph graph)
{
    struct value_graph *kept = malloc(sizeof(*kept));
    struct value_graph **graphs = kept ? reallocarray(catalog->graphs, (size_t)catalog->graph_count + 1, sizeof(*graphs)) : NULL;
    if (!graphs) {
        free(kept);
        value_graph_release(&graph);
        return NULL;
    }
    *kept = graph;
    catalog->graphs = graphs;
    graphs[catalog->graph_count++] = kept;
    return kept;
}

/* Formats, escapes for terminals, and keeps in the arena; text without memory is lost. */
static bool catalog_text_keep(struct arena *arena, struct str *out, const char *format, va_list args) __attribute__((format(printf, 3, 0)));
static bool catalog_text_keep(struct arena *arena, struct str *out, const char *format, va_list args)
{
    struct buffer escaped = { 0 };
    char plain[TEXT_BYTES_MAX];
    int size = vsnprintf(plain, sizeof(plain), format, args);
    if (size < 0)
        return false;
    if ((size_t)size >= sizeof(plain))
        size = (int)sizeof(plain) - 1;
    bool is_kept = buffer_append_escaped(&escaped, (struct str){ plain, (size_t)size }) && arena_str(arena, buffer_str(&escaped), out);
    buffer_release(&escaped);
    return is_kept;
}

static void warning_keep(struct catalog *catalog, struct catalog_warning warning, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
static void warning_keep(struct catalog *catalog, struct catalog_warning warning, const char *format, va_list args)
{
    const uint32_t kept = warning.is_damage ? catalog->damage_count : catalog->warning_count - catalog->damage_count;
    uint32_t *dropped = warning.is_damage ? &catalog->damage_dropped : &catalog->warnings_dropped;
    if (kept >= CATALOG_WARNINGS_MAX) {
        ++*dropped;
        return;
    }
    bool is_kept = ARRAY_ROOM(catalog->warnings, catalog->warning_count, catalog->warning_capacity) &&
                   catalog_text_keep(&catalog->arena, &warning.text, format, args) &&
                   (!warning.key.size || arena_str(&catalog->arena, warning.key, &warning.key));
    catalog->is_short_of_memory |= !is_kept;
    if (!is_kept)
        return;
    catalog->warnings[catalog->warning_count++] = warning;
    catalog->damage_count += warning.is_damage;
}

void catalog_warn(struct catalog *catalog, bool is_damage, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    warning_keep(catalog, (struct catalog_warning){ .is_damage = is_damage }, format, args);
    va_end(args);
}

void catalog_warn_place(struct catalog *catalog, uint32_t object, uint64_t offset, uint64_t bytes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    warning_keep(catalog, (struct catalog_warning){ .is_damage = true, .object = object, .offset = offset, .bytes = bytes }, format, args);
    va_end(args);
}

void catalog_warn_lost(struct catalog *catalog, struct str key, const char *format, ...)
{
    va_list args;
    catalog->lost_count += key.size > 0;
    catalog->has_unnamed_loss |= key.size == 0;
    va_start(args, format);
    warning_keep(catalog, (struct catalog_warning){ .key = key, .is_damage = true }, format, args);
    va_end(args);
}

reshard_status catalog_add_fact(struct catalog *catalog, const char *name, reshard_error *err, const char *format, ...)
{
    struct catalog_fact fact;
    if (!ARRAY_ROOM(catalog->facts, catalog->fact_count, catalog->fact_capacity))
        return error_set_memory(err);

    va_list args;
    va_start(args, format);
    bool is_kept = catalog_text_keep(&catalog->arena, &fact.value, format, args);
    va_end(args);
    if (!is_kept || !arena_str(&catalog->arena, str_of(name), &fact.name))
        return error_set_memory(err);
    catalog->facts[catalog->fact_count++] = fact;
    return RESHARD_OK;
}

int catalog_span_order(const void *a, const void *b)
{
    const struct catalog_span *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

uint32_t catalog_find(const struct catalog *catalog, struct str key)
{
    uint32_t number = name_map_find(&catalog->keys, key);
    return number == NAME_NONE ? CATALOG_NONE : catalog->key_tensors[number];
}

uint32_t catalog_find_item(const struct catalog *catalog, struct str key)
{
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        if (str_equal(catalog->items[i].key, key))
            return i;
    }
    return CATALOG_NONE;
}

static uint64_t name_map_memory(const struct name_map *map)
{
    return map->arena.bytes_used + (uint64_t)map->names_capacity * sizeof(*map->names) +
           (uint64_t)map->slots_capacity * sizeof(*map->slots);
}

uint64_t catalog_memory(const struct catalog *catalog)
{
    uint64_t bytes = sizeof(*catalog) + catalog->arena.bytes_used;
    bytes += (uint64_t)catalog->tensor_capacity * sizeof(*catalog->tensors);
    bytes += (uint64_t)catalog->chunk_capacity * sizeof(*catalog->chunks);
    bytes += (uint64_t)catalog->object_capacity * sizeof(*catalog->objects);
    bytes += (uint64_t)catalog->item_capacity * sizeof(*catalog->items);
    bytes += (uint64_t)catalog->layout_capacity * sizeof(*catalog->layouts);
    bytes += (uint64_t)catalog->path_capacity * sizeof(*catalog->paths);
    bytes += (uint64_t)catalog->warning_capacity * sizeof(*catalog->warnings);
    bytes += (uint64_t)catalog->fact_capacity * sizeof(*catalog->facts);
    bytes += (uint64_t)catalog->vector_capacity * sizeof(*catalog->vectors);
    bytes += (uint64_t)catalog->vector_slots_capacity * 2 * sizeof(*catalog->vector_slots);
    bytes += (uint64_t)catalog->keys.count * sizeof(*catalog->key_tensors);
    bytes += name_map_memory(&catalog->object_names) + name_map_memory(&catalog->keys);
    for (uint32_t i = 0; i < catalog->graph_count; i++)
        bytes += sizeof(**catalog->graphs) + catalog->graphs[i]->arena.bytes_used;
    return bytes;
}

uint64_t catalog_tensor_bytes(const struct catalog *catalog, const struct catalog_tensor *tensor)
{
    uint64_t bytes = 0;
    int64_t volume = 0;
    bool fits = shape_volume(tensor->rank, catalog_vector_at(catalog, tensor->shape), &volume);
    return fits && dtype_bytes(tensor->dtype, (uint64_t)volume, &bytes) ? bytes : 0;
}
