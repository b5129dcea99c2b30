/* SPDX-License-Identifier: Apache-2.0 */
/* Tied tensors: in every file that has them, theirs is the same piece of the same storage. */
#include "formats/torch/fsdp_assemble.h"

#include "base/array.h"

#include <stdlib.h>

/* Chunks by tensor, in the order in which they were found: the catalog is not sealed yet. */
struct chunk_lists {
    uint32_t *first;  /* by tensor: its place in chunks, and one past the last tensor, that behind them */
    uint32_t *chunks;
};

static bool chunk_lists_make(const struct catalog *catalog, struct chunk_lists *out)
{
    out->first = array_zeroed((size_t)catalog->tensor_count + 2, sizeof(*out->first));
    out->chunks = array_zeroed(catalog->chunk_count, sizeof(*out->chunks));
    if (!out->first || !out->chunks)
        return false;
    uint32_t *end = out->first + 1; /* while they are filled: where the next chunk of a tensor goes */
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        end[catalog->chunks[i].tensor + 1]++;
    for (uint32_t i = 1; i <= catalog->tensor_count; i++)
        end[i] += end[i - 1];
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        out->chunks[end[catalog->chunks[i].tensor]++] = i;
    return true;
}

static uint32_t chunk_strides(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    return chunk->layout ? catalog->layouts[chunk->layout - 1].strides : CATALOG_NONE;
}

/* Index vectors are kept once: equal ones have equal numbers. */
static bool chunks_are_same(const struct catalog *catalog, const struct catalog_chunk *a, const struct catalog_chunk *b)
{
    const uint16_t read_as = CHUNK_SWAP | CHUNK_CONJUGATE | CHUNK_NEGATE;
    return a->object == b->object && a->offset == b->offset && a->bytes == b->bytes && a->start == b->start && a->extent == b->extent &&
           (a->flags & read_as) == (b->flags & read_as) && chunk_strides(catalog, a) == chunk_strides(catalog, b);
}

static bool tensors_are_same(const struct catalog *catalog, const struct chunk_lists *lists, uint32_t a, uint32_t b)
{
    uint32_t count = lists->first[a + 1] - lists->first[a];
    bool is_same = lists->first[b + 1] - lists->first[b] == count && catalog->tensors[a].dtype == catalog->tensors[b].dtype &&
                   catalog->tensors[a].rank == catalog->tensors[b].rank && catalog->tensors[a].shape == catalog->tensors[b].shape;
    for (uint32_t i = 0; i < count && is_same; i++)
        is_same = chunks_are_same(catalog, &catalog->chunks[lists->chunks[lists->first[a] + i]],
                                  &catalog->chunks[lists->chunks[lists->first[b] + i]]);
    return is_same;
}

/* By where the first piece lies: its first tensor. */
static reshard_status ties_note(struct catalog *catalog, const struct chunk_lists *lists, struct name_map *places, uint32_t *tensor_of,
                                uint32_t tensor, reshard_error *err)
{
    const struct catalog_chunk *chunk = &catalog->chunks[lists->chunks[lists->first[tensor]]];
    const uint64_t place[] = { chunk->object, chunk->offset };
    bool is_new;
    uint32_t number = name_map_intern(places, (struct str){ (const char *)place, sizeof(place) }, &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (is_new)
        tensor_of[number] = tensor;
    else if (tensors_are_same(catalog, lists, tensor_of[number], tensor))
        catalog->tensors[tensor].tied_to = tensor_of[number];
    return RESHARD_OK;
}

reshard_status fsdp_ties_find(struct catalog *catalog, reshard_error *err)
{
    struct chunk_lists lists = { 0 };
    struct name_map places = { 0 };
    uint32_t *tensor_of = array_zeroed(catalog->tensor_count, sizeof(*tensor_of));
    reshard_status status = tensor_of && chunk_lists_make(catalog, &lists) ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        bool has_chunks = lists.first[i] < lists.first[i + 1];
        if (has_chunks && !(catalog->tensors[i].flags & TENSOR_HIDDEN))
            status = ties_note(catalog, &lists, &places, tensor_of, i, err);
    }
    name_map_release(&places);
    free(lists.first);
    free(lists.chunks);
    free(tensor_of);
    return status;
}
