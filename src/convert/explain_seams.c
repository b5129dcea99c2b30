/* SPDX-License-Identifier: Apache-2.0 */
/* Differences along the seams of shards. */
#include "convert/explain.h"

#include "tensor/box.h"

#define SHARDS_NAMED 4

static bool is_box_of_its_own(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return !(chunk->flags & CHUNK_REPLICA) && (!layout || layout->flat_count < 0);
}

void explain_cuts(const struct catalog *catalog, uint32_t tensor, int axis, unsigned char *cuts)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    for (uint32_t i = 0; i < entry->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[entry->first_chunk + i];
        if (is_box_of_its_own(catalog, chunk) && catalog_vector_at(catalog, chunk->extent)[axis] > 0)
            cuts[catalog_vector_at(catalog, chunk->start)[axis]] = 1;
    }
}

/* How many elements of the box are marked; *volume: of how many. */
static uint64_t count_in_box(int rank, const int64_t *shape, const int64_t *start, const int64_t *extent, const unsigned char *marks,
                             uint64_t *volume)
{
    int64_t index[RANK_MAX] = { 0 };
    uint64_t count = 0;
    *volume = (uint64_t)box_volume(rank, extent);
    for (bool more = *volume > 0; more;) {
        uint64_t at = 0, run = rank ? (uint64_t)extent[rank - 1] : 1;
        for (int i = 0; i < rank; i++)
            at = at * (uint64_t)shape[i] + (uint64_t)(start[i] + index[i]);
        for (uint64_t i = 0; i < run; i++)
            count += marks[at + i];
        more = false;
        for (int i = rank - 2; i >= 0 && !more; i--) {
            more = ++index[i] < extent[i];
            if (!more)
                index[i] = 0;
        }
    }
    return count;
}

static void name_shard(const struct catalog *catalog, const struct catalog_chunk *chunk, int rank, struct buffer *out)
{
    const int64_t *start = catalog_vector_at(catalog, chunk->start), *extent = catalog_vector_at(catalog, chunk->extent);
    if (catalog->has_writers)
        buffer_printf(out, "rank %u, ", (unsigned)chunk->writer);
    buffer_printf(out, "[");
    for (int i = 0; i < rank; i++)
        buffer_printf(out, "%s%lld:%lld", i ? "," : "", (long long)start[i], (long long)(start[i] + extent[i]));
    buffer_printf(out, "] in '%.*s'", STR_ARG(catalog->objects[chunk->object].name));
}

bool explain_seams(const struct catalog *catalog, uint32_t tensor, const unsigned char *is_changed, const char *side, struct buffer *out)
{
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    const int64_t *shape = catalog_vector_at(catalog, entry->shape);
    uint32_t shards = 0, touched = 0;
    struct buffer names = { 0 };
    bool is_whole = true;
    for (uint32_t i = 0; i < entry->chunk_count && is_whole; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[entry->first_chunk + i];
        uint64_t volume;
        if (chunk->flags & CHUNK_REPLICA)
            continue;
        is_whole = is_box_of_its_own(catalog, chunk);
        uint64_t count = count_in_box(entry->rank, shape, catalog_vector_at(catalog, chunk->start),
                                      catalog_vector_at(catalog, chunk->extent), is_changed, &volume);
        shards++;
        if (!count)
            continue;
        is_whole = is_whole && count * 2 > volume;
        if (touched++ < SHARDS_NAMED) {
            buffer_printf(&names, touched > 1 ? "; " : "");
            name_shard(catalog, chunk, entry->rank, &names);
        }
    }
    is_whole = is_whole && touched && touched < shards;
    if (is_whole)
        buffer_printf(out, "the difference begins and ends with shards of the %s, %u of %u: %.*s%s", side, touched, shards,
                      (int)names.size, (const char *)names.data, touched > SHARDS_NAMED ? ", and others" : "");
    buffer_release(&names);
    return is_whole;
}
