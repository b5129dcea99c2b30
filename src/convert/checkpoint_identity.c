/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/checkpoint_identity.h"

#include "base/hash.h"

#include <string.h>

#define SAMPLE_BYTES 4096

/* ---- what is described ---- */

static uint64_t hash_vector(const struct catalog *catalog, uint32_t vector, int rank, uint64_t seed)
{
    return rank > 0 ? hash64(catalog_vector_at(catalog, vector), (size_t)rank * sizeof(int64_t), seed) : seed;
}

/* Not by the names of objects: who opens a folder of iterations sees more of them than who opens the iteration. */
static uint64_t hash_described_chunk(const struct catalog *catalog, const struct catalog_chunk *chunk, int rank, uint64_t seed)
{
    const struct catalog_span span = catalog_chunk_span(catalog, chunk);
    const uint64_t place[] = { span.offset, span.bytes };
    seed = hash_vector(catalog, chunk->start, rank, seed);
    return hash64(place, sizeof(place), hash_vector(catalog, chunk->extent, rank, seed));
}

/* A sum, which is the same in whatever order a driver came to know of things. */
static uint64_t hash_described(const struct source *source)
{
    const struct catalog *catalog = source->catalog;
    uint64_t sum = hash64(source->driver->name, strlen(source->driver->name), catalog->item_count);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        const uint64_t type[] = { (uint64_t)tensor->dtype, (uint64_t)tensor->rank };
        uint64_t hash = hash64(type, sizeof(type), tensor->key.size ? hash64(tensor->key.data, tensor->key.size, 0) : 0);
        hash = hash_vector(catalog, tensor->shape, tensor->rank, hash);
        sum += hash;
        for (uint32_t c = 0; c < tensor->chunk_count; c++)
            sum += hash_described_chunk(catalog, &catalog->chunks[tensor->first_chunk + c], tensor->rank, hash);
    }
    return sum;
}

/* ---- samples ---- */

/* The middle of a span: its ends may be a container's. 0: it has no bytes, or they cannot be read. */
static uint64_t span_sample(const struct source *source, struct catalog_span span)
{
    uint8_t bytes[SAMPLE_BYTES];
    struct store_object *object;
    const size_t size = span.bytes < SAMPLE_BYTES ? (size_t)span.bytes : SAMPLE_BYTES;
    if (!size || span.object >= source->catalog->object_count ||
        store_open_object(source->store, source->catalog->objects[span.object].name.data, &object, NULL))
        return 0;
    const bool is_read = store_read_at(object, span.offset + (span.bytes - size) / 2, bytes, size, NULL) == RESHARD_OK;
    store_object_close(object);
    return is_read ? hash64(bytes, size, 0) | 1 : 0;
}

static struct catalog_span item_span(const struct catalog_item *item)
{
    const bool has_bytes = item->kind == ITEM_BLOB || item->kind == ITEM_RAW || item->kind == ITEM_LATE;
    return (struct catalog_span){ item->object, item->offset, has_bytes ? item->bytes : 0 };
}

/* Which of `count` things sample i is of: some that lie far from each other, or all if there are few. */
static uint32_t sample_place(uint32_t count, unsigned i)
{
    return count <= IDENTITY_SAMPLES ? i : (uint32_t)((uint64_t)count * (2 * i + 1) / (2 * IDENTITY_SAMPLES));
}

void checkpoint_identify(const struct checkpoint *checkpoint, struct checkpoint_identity *out)
{
    const struct source *source = checkpoint->source;
    const struct catalog *catalog = source->catalog;
    *out = (struct checkpoint_identity){ .described = hash_described(source) };
    for (unsigned i = 0; i < IDENTITY_SAMPLES && i < catalog->chunk_count; i++)
        out->values[i] = span_sample(source, catalog_chunk_span(catalog, &catalog->chunks[sample_place(catalog->chunk_count, i)]));
    for (unsigned i = 0; i < IDENTITY_SAMPLES && i < catalog->item_count; i++)
        out->items[i] = span_sample(source, item_span(&catalog->items[sample_place(catalog->item_count, i)]));
}

static bool samples_agree(const uint64_t *a, const uint64_t *b)
{
    for (unsigned i = 0; i < IDENTITY_SAMPLES; i++) {
        if (a[i] && b[i] && a[i] != b[i])
            return false;
    }
    return true;
}

bool checkpoint_is_same(const struct checkpoint_identity *a, const struct checkpoint_identity *b)
{
    return a->described == b->described && samples_agree(a->values, b->values) && samples_agree(a->items, b->items);
}
