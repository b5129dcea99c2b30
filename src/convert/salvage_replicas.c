/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage_replicas.h"

#include "base/array.h"

#include <stdlib.h>

reshard_status bad_chunks_init(struct bad_chunks *bad, const struct catalog *catalog, reshard_error *err)
{
    bad->why = array_zeroed(catalog->chunk_count, sizeof(*bad->why));
    bad->first = array_zeroed(catalog->chunk_count, sizeof(*bad->first));
    bad->count = catalog->chunk_count;
    return bad->why && bad->first ? RESHARD_OK : error_set_memory(err);
}

void bad_chunks_release(struct bad_chunks *bad)
{
    free(bad->why);
    free(bad->first);
    arena_release(&bad->arena);
    *bad = (struct bad_chunks){ 0 };
}

reshard_status bad_chunks_add(struct bad_chunks *bad, uint32_t chunk, const char *why, reshard_error *err)
{
    if (chunk >= bad->count || bad->why[chunk])
        return RESHARD_OK;
    bad->why[chunk] = arena_printf(&bad->arena, "%s", why);
    if (!bad->first[chunk])
        bad->first[chunk] = bad->why[chunk];
    return bad->why[chunk] ? RESHARD_OK : error_set_memory(err);
}

reshard_status bad_chunks_add_checked(struct bad_chunks *bad, const struct catalog *catalog, uint32_t chunk, const char *why,
                                      reshard_error *err)
{
    const struct catalog_chunk *checked = &catalog->chunks[chunk];
    const struct chunk_layout *layout = catalog_layout_of(catalog, checked);
    reshard_status status = bad_chunks_add(bad, chunk, why, err);
    for (uint32_t i = 0; layout && i < catalog->chunk_count && !status; i++) {
        const struct catalog_chunk *other = &catalog->chunks[i];
        bool overlaps = other->object == checked->object && other->bytes && other->offset < layout->crc_offset + layout->crc_bytes &&
                        layout->crc_offset < other->offset + other->bytes;
        if (overlaps && !catalog_chunk_is_coded(catalog, other))
            status = bad_chunks_add(bad, i, why, err);
    }
    return status;
}

/* A good chunk with the same elements, or CATALOG_NONE. */
static uint32_t find_stand_in(const struct bad_chunks *bad, const struct catalog *catalog, uint32_t chunk)
{
    const struct catalog_tensor *tensor = &catalog->tensors[catalog->chunks[chunk].tensor];
    for (uint32_t i = tensor->first_chunk; i < tensor->first_chunk + tensor->chunk_count; i++)
        if (!bad->why[i] && i != chunk && catalog_chunks_are_copies(catalog, i, chunk))
            return i;
    return CATALOG_NONE;
}

/* It reads what the other one reads; which of the two is called the copy stays. */
static void take_place(struct catalog *catalog, uint32_t chunk, uint32_t other)
{
    uint16_t copy = catalog->chunks[chunk].flags & CHUNK_REPLICA;
    catalog->chunks[chunk] = catalog->chunks[other];
    catalog->chunks[chunk].flags = (uint16_t)((catalog->chunks[other].flags & (uint16_t)~CHUNK_REPLICA) | copy);
}

bool bad_chunks_replace(struct bad_chunks *bad, struct catalog *catalog, uint32_t tensor, uint32_t *replaced, const char **first)
{
    uint32_t begin = catalog->tensors[tensor].first_chunk, end = begin + catalog->tensors[tensor].chunk_count;
    *replaced = 0;
    *first = NULL;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t other = bad->why[i] ? find_stand_in(bad, catalog, i) : i;
        if (other == CATALOG_NONE) {
            *first = bad->why[i];
            return false;
        }
    }
    /* Only now: a chunk that has been replaced would be good again. */
    for (uint32_t i = begin; i < end; i++) {
        if (!bad->why[i])
            continue;
        *first = *first ? *first : bad->why[i];
        take_place(catalog, i, find_stand_in(bad, catalog, i));
        ++*replaced;
    }
    memset(bad->why + begin, 0, (size_t)(end - begin) * sizeof(*bad->why));
    return true;
}
