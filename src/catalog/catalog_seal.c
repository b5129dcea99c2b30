/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog.h"

#include <stdlib.h>

#include "base/array.h"
#include "catalog/catalog_cover.h"
#include "catalog/catalog_expansion.h"

static void *array_shrunk(void *array, uint32_t count, uint32_t *capacity, size_t element_size)
{
    if (count == *capacity || count == 0)
        return array;
    void *shrunk = reallocarray(array, count, element_size);
    if (!shrunk)
        return array;
    *capacity = count;
    return shrunk;
}

/* Gives back the slack of doubling, and the vector table, which only building needs. */
static void arrays_shrink(struct catalog *catalog)
{
    catalog->tensors = array_shrunk(catalog->tensors, catalog->tensor_count, &catalog->tensor_capacity, sizeof(*catalog->tensors));
    catalog->chunks = array_shrunk(catalog->chunks, catalog->chunk_count, &catalog->chunk_capacity, sizeof(*catalog->chunks));
    catalog->objects = array_shrunk(catalog->objects, catalog->object_count, &catalog->object_capacity, sizeof(*catalog->objects));
    catalog->items = array_shrunk(catalog->items, catalog->item_count, &catalog->item_capacity, sizeof(*catalog->items));
    catalog->paths = array_shrunk(catalog->paths, catalog->path_count, &catalog->path_capacity, sizeof(*catalog->paths));
    catalog->vectors = array_shrunk(catalog->vectors, catalog->vector_count, &catalog->vector_capacity, sizeof(*catalog->vectors));
    free(catalog->vector_slots);
    catalog->vector_slots = NULL;
    catalog->vector_slots_capacity = catalog->vector_slots_used = 0;
}

/* Counts the chunks of each tensor and sets first_chunk; *is_grouped says whether they already lie in that order. */
static void chunks_count(struct catalog *catalog, bool *is_grouped)
{
    uint32_t previous = 0, first = 0;
    *is_grouped = true;
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        catalog->tensors[t].chunk_count = 0;
    for (uint32_t c = 0; c < catalog->chunk_count; c++) {
        uint32_t tensor = catalog->chunks[c].tensor;
        *is_grouped &= tensor >= previous;
        previous = tensor;
        catalog->tensors[tensor].chunk_count++;
    }
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        catalog->tensors[t].first_chunk = first;
        first += catalog->tensors[t].chunk_count;
    }
}

/* Stable counting sort in place: 4 bytes a chunk beside the array, each chunk moved once. */
static reshard_status chunks_group(struct catalog *catalog, reshard_error *err)
{
    bool is_grouped;
    chunks_count(catalog, &is_grouped);
    if (is_grouped)
        return RESHARD_OK;

    uint32_t *home = array_new(catalog->chunk_count, sizeof(*home));
    uint32_t *next = array_new(catalog->tensor_count, sizeof(*next));
    if (!home || !next) {
        free(home);
        free(next);
        return error_set_memory(err);
    }
    for (uint32_t t = 0; t < catalog->tensor_count; t++)
        next[t] = catalog->tensors[t].first_chunk;
    for (uint32_t c = 0; c < catalog->chunk_count; c++)
        home[c] = next[catalog->chunks[c].tensor]++;
    for (uint32_t c = 0; c < catalog->chunk_count; c++) {
        while (home[c] != c) {
            uint32_t to = home[c], to_home = home[to];
            struct catalog_chunk moved = catalog->chunks[to];
            catalog->chunks[to] = catalog->chunks[c];
            catalog->chunks[c] = moved;
            home[to] = to;
            home[c] = to_home;
        }
    }
    free(home);
    free(next);
    return RESHARD_OK;
}

/* Indexes listed tensors by key. The last of several with one key wins; all of them are marked. */
static reshard_status keys_index(struct catalog *catalog, reshard_error *err)
{
    free(catalog->key_tensors);
    catalog->key_tensors = array_new(catalog->tensor_count, sizeof(*catalog->key_tensors));
    if (!catalog->key_tensors)
        return error_set_memory(err);
    for (uint32_t t = 0; t < catalog->tensor_count; t++) {
        struct catalog_tensor *tensor = &catalog->tensors[t];
        bool was_new;
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        uint32_t number = name_map_intern(&catalog->keys, tensor->key, &was_new);
        if (number == NAME_NONE)
            return error_set_memory(err);
        if (!was_new) {
            tensor->flags |= TENSOR_AMBIGUOUS;
            catalog->tensors[catalog->key_tensors[number]].flags |= TENSOR_AMBIGUOUS;
        }
        catalog->key_tensors[number] = t;
    }
    return RESHARD_OK;
}

/* Items are ambiguous among themselves and with tensors. */
static reshard_status items_mark_ambiguous(struct catalog *catalog, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    struct name_map names = { 0 };
    uint32_t *first = array_new(catalog->item_count, sizeof(*first));
    if (!first)
        return error_set_memory(err);

    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        struct catalog_item *item = &catalog->items[i];
        bool was_new;
        uint32_t tensor = catalog_find(catalog, item->key);
        uint32_t number = name_map_intern(&names, item->key, &was_new);
        if (number == NAME_NONE) {
            status = error_set_memory(err);
            break;
        }
        if (was_new)
            first[number] = i;
        else
            item->is_ambiguous = catalog->items[first[number]].is_ambiguous = true;
        if (tensor != CATALOG_NONE) {
            item->is_ambiguous = true;
            catalog->tensors[tensor].flags |= TENSOR_AMBIGUOUS;
        }
    }
    name_map_release(&names);
    free(first);
    return status;
}

/* Of several ranks one at least has another number than 0. */
static bool writers_are_known(const struct catalog *catalog)
{
    bool is_known = catalog->ranks == 1;
    for (uint32_t i = 0; i < catalog->chunk_count && !is_known; i++)
        is_known = catalog->chunks[i].writer != 0;
    return is_known;
}

reshard_status catalog_seal(struct catalog *catalog, bool allow_holes, reshard_error *err)
{
    if (catalog->is_sealed)
        return RESHARD_OK;
    reshard_status status = chunks_group(catalog, err);
    if (!status)
        status = keys_index(catalog, err);
    if (!status)
        status = items_mark_ambiguous(catalog, err);
    if (!status)
        status = catalog_check_cover(catalog, allow_holes, err);
    if (!status)
        status = catalog_check_expansion(catalog, err);
    if (!status && catalog->is_short_of_memory)
        status = error_set_memory(err);
    if (status)
        return status;
    catalog->has_writers = writers_are_known(catalog);
    arrays_shrink(catalog);
    catalog->is_sealed = true;
    return RESHARD_OK;
}
