/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint makes of little: fill values that nobody stored, and compressed bytes. A small file may stand for any number of them,
 * and all would be hashed, compared and written: the sum over the whole checkpoint counts against the limit of views (catalog_expansion.h).
 */
#include "catalog/catalog.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"

#define CODED_RATIO 48 /* weights and their state pack to a tenth at the least; what packs better, zeros, is what the limit is for */
#define PLAIN_RATIO 16 /* fill values of a store may have so many times the bytes of what is plainly stored */

static bool shown_is_unpacked(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return !layout->chain || !layout->chain->literal;
}

/* Bytes that come into being when the chunk is read. */
static uint64_t shown_bytes(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int64_t volume = box_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent));
    if (layout && layout->flat_count >= 0)
        volume = layout->flat_count;
    uint64_t shown = 0, made = layout && layout->chain ? chain_made_bytes(layout->chain) : 0;
    if (!dtype_bytes(tensor->dtype, (uint64_t)volume, &shown))
        shown = UINT64_MAX;
    return shown > made ? shown : made;
}

static void name_object(const struct catalog *catalog, uint32_t chunk, reshard_error *err)
{
    uint32_t object = catalog->chunks[chunk].object;
    if (object >= catalog->object_count)
        return;
    error_prefix(err, "'%.*s'", STR_ARG(catalog->objects[object].name));
    error_object(err, "%.*s", STR_ARG(catalog->objects[object].name));
}

reshard_status catalog_check_made(const struct catalog *catalog, reshard_error *err)
{
    uint64_t shown = 0, largest = 0, allowed = 0, limit = catalog->limits.tensor_expansion;
    uint32_t largest_chunk = 0;
    uint8_t *is_coded = array_zeroed(catalog->object_count, 1);
    if (!is_coded)
        return error_set_memory(err);
    for (uint32_t c = 0; c < catalog->chunk_count; c++) {
        const struct catalog_chunk *chunk = &catalog->chunks[c];
        if (!catalog_chunk_is_coded(catalog, chunk))
            continue;
        uint64_t bytes = shown_bytes(catalog, chunk);
        shown = capped_add_u64(shown, bytes);
        largest_chunk = bytes > largest ? c : largest_chunk;
        largest = bytes > largest ? bytes : largest;
        if (chunk->object < catalog->object_count)
            is_coded[chunk->object] |= shown_is_unpacked(catalog, chunk);
    }
    uint64_t coded_ratio = catalog->limits.inflate_ratio < CODED_RATIO ? catalog->limits.inflate_ratio : CODED_RATIO;
    for (uint32_t o = 0; o < catalog->object_count; o++) {
        uint64_t ratio = is_coded[o] ? coded_ratio : PLAIN_RATIO;
        allowed = capped_add_u64(allowed, capped_mul_u64(catalog->objects[o].bytes, ratio));
    }
    free(is_coded);
    if (shown <= allowed || shown - allowed <= limit)
        return RESHARD_OK;
    error_set_limit(err, "tensor_expansion", shown - allowed, limit);
    error_prefix(err, "tensors of %" PRIu64 " bytes out of files that may stand for %" PRIu64, shown, allowed);
    name_object(catalog, largest_chunk, err);
    return RESHARD_ERR_LIMIT;
}
