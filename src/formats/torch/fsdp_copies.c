/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces that several ranks hold of one place of a tensor. They are copies where the axis of the mesh that tells these ranks apart only
 * replicates. Expert and pipeline ranks whose axis is not in the tensor's mesh say the same place too, and hold something else there: the
 * CRC-32s of their storages tell.
 */
#include "formats/torch/fsdp_assemble.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/sort.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Where a chunk lies in its tensor. Index vectors are kept once until the catalog is sealed. */
struct copy_place {
    int64_t begin, count;
    uint32_t tensor, start, extent, read_as;
};

/* What is not in order, or has no CRC-32 that is of nothing else, is for `verify` to compare. */
static bool copy_place_of(const struct catalog *catalog, const struct catalog_chunk *chunk, struct copy_place *out)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    bool is_known = layout && chunk->flags & CHUNK_HAS_CRC && layout->strides == CATALOG_NONE && layout->crc_offset == chunk->offset &&
                    layout->crc_bytes == chunk->bytes;
    if (is_known)
        *out = (struct copy_place){ layout->flat_begin, layout->flat_count, chunk->tensor, chunk->start, chunk->extent,
                                    chunk->flags & (CHUNK_SWAP | CHUNK_CONJUGATE | CHUNK_NEGATE) };
    return is_known;
}

static bool copies_are_same(const struct catalog *catalog, uint32_t a, uint32_t b)
{
    const struct catalog_chunk *chunks = catalog->chunks;
    struct copy_place place, other;
    bool is_one_place = copy_place_of(catalog, &chunks[a], &place) && copy_place_of(catalog, &chunks[b], &other) &&
                        memcmp(&place, &other, sizeof(place)) == 0;
    return !is_one_place || catalog_layout_of(catalog, &chunks[a])->crc32 == catalog_layout_of(catalog, &chunks[b])->crc32;
}

/* Of the chunks that are not what an earlier one is at the same place: the first, and of how many tensors there are some. */
static void copies_look(const struct catalog *catalog, const struct sort_entry *entries, size_t count, bool *is_torn, uint32_t *first,
                        uint32_t *torn_count)
{
    size_t begin = 0;
    *first = CATALOG_NONE;
    *torn_count = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t chunk = entries[i].value, tensor = catalog->chunks[chunk].tensor;
        begin = entries[i].key == entries[begin].key ? begin : i;
        if (copies_are_same(catalog, entries[begin].value, chunk))
            continue;
        *first = chunk < *first ? chunk : *first;
        *torn_count += !is_torn[tensor];
        is_torn[tensor] = true;
    }
}

/* An optimizer's key is its place in that file. */
static struct str copies_shown_key(struct str key)
{
    return fsdp_is_state(key) ? (struct str){ key.data + 1, key.size - 1 } : key;
}

static reshard_status copies_tell(struct source *source, uint32_t chunk, uint32_t tensors, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    struct str key = copies_shown_key(catalog->tensors[catalog->chunks[chunk].tensor].key);
    reshard_error said = { 0 };
    char more[48] = "";
    if (tensors > 1)
        snprintf(more, sizeof(more), " and of %" PRIu32 " more", tensors - 1);
    error_set(&said, RESHARD_ERR_UNSUPPORTED,
              "rank %u holds other values at the same place of '%.*s'%s than a rank before it (expert or pipeline ranks whose axis is not "
              "in the mesh?)",
              catalog->chunks[chunk].writer, STR_ARG(key), more);
    if (source->lenient || source_bears_loss(source)) {
        catalog_warn(source->catalog, true, "%s: those of the first rank are read", said.message);
        return RESHARD_OK;
    }
    error_hint(&said, "reshard_open_options.lenient opens it, with what the first of these ranks has");
    if (err)
        *err = said;
    return RESHARD_ERR_UNSUPPORTED;
}

/* By tensor: whether it is plain, which ranks hold whole, and was compared when it was found. */
static bool *plain_tensors(const struct assembling *assembling)
{
    bool *is_plain = array_zeroed(assembling->source->catalog->tensor_count, sizeof(*is_plain));
    for (uint32_t i = 0; is_plain && i < assembling->keys.count; i++)
        is_plain[assembling->tensors[i].tensor] = !assembling->tensors[i].is_cut;
    return is_plain;
}

reshard_status fsdp_copies_check(const struct assembling *assembling, reshard_error *err)
{
    struct source *source = assembling->source;
    const struct catalog *catalog = source->catalog;
    uint64_t seed = hash_table_seed();
    struct sort_entry *entries = array_new(2 * (size_t)catalog->chunk_count, sizeof(*entries));
    bool *is_plain = plain_tensors(assembling), *is_torn = array_zeroed(catalog->tensor_count, sizeof(*is_torn));
    uint32_t first = CATALOG_NONE, tensors = 0;
    size_t count = 0;
    reshard_status status = entries && is_plain && is_torn ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < catalog->chunk_count; i++) {
        struct copy_place place;
        if (!is_plain[catalog->chunks[i].tensor] && copy_place_of(catalog, &catalog->chunks[i], &place))
            entries[count++] = (struct sort_entry){ (int64_t)hash64(&place, sizeof(place), seed), i };
    }
    if (count > 0) {
        entries_sort(entries, entries + count, count);
        copies_look(catalog, entries, count, is_torn, &first, &tensors);
    }
    free(entries);
    free(is_plain);
    free(is_torn);
    return status || first == CATALOG_NONE ? status : copies_tell(source, first, tensors, err);
}
