/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much more the tensors of a checkpoint show than its files hold: views with stride 0, and extents that many tensors name. A file of
 * 600 bytes may show 32 GiB, all of which is read, hashed and written by whoever looks at it, so the sum has a limit.
 */
#include "catalog/catalog_expansion.h"

#include "base/array.h"

#include <stdlib.h>

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t beyond(uint64_t shown, uint64_t held)
{
    return shown > held ? shown - held : 0;
}

/* Tied copies are read once, hidden tensors are what items show, and what is a cast of another tensor shows no more than that does. */
static bool counts(const struct catalog_tensor *tensor)
{
    return tensor->chunk_count && tensor->tied_to == CATALOG_NONE && !tensor->stored_as && !(tensor->flags & TENSOR_HIDDEN);
}

/* Most checkpoints hold what they show, which their sizes tell. */
static bool is_held_plainly(const struct catalog *catalog)
{
    uint64_t shown = 0, held = catalog->limits.tensor_expansion;
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        if (counts(&catalog->tensors[i]))
            shown = add(shown, catalog_tensor_bytes(catalog, &catalog->tensors[i]));
    for (uint32_t i = 0; i < catalog->object_count; i++)
        held = add(held, catalog->objects[i].bytes);
    return shown <= held;
}

/* What a chunk shows, and where that lies: bytes of an object, or of the stream that a part of the object decodes to. */
struct extent {
    uint64_t coded_offset, begin, end, shown;
    uint32_t object, tensor;
    bool is_open; /* what it decodes to is not known yet */
};

static struct extent extent_of(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    static const struct chunk_layout plain = { .flat_count = -1 };
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const struct chunk_layout *layout = chunk->layout ? &catalog->layouts[chunk->layout - 1] : &plain;
    struct extent extent = {
        .begin = chunk->offset, .end = add(chunk->offset, chunk->bytes), .object = chunk->object, .tensor = chunk->tensor
    };
    int64_t elements = 0;
    if (layout->flat_count >= 0)
        elements = layout->flat_count;
    else if (!shape_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent), &elements))
        elements = 0;
    if (!dtype_bytes(tensor->dtype, (uint64_t)elements, &extent.shown))
        extent.shown = 0;
    if (layout->codec != CODEC_NONE || layout->chain)
        extent.coded_offset = layout->coded_offset + 1;
    if (layout->chain && layout->chain->literal)
        extent.shown = 0; /* fill values are the format's matter */
    extent.is_open = chunk->flags & CHUNK_UNRESOLVED;
    return extent;
}

static int extent_order(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    if (x->coded_offset != y->coded_offset)
        return x->coded_offset < y->coded_offset ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* What extents[first] and those that overlap it or each other show beyond their union; *next is the first of the others. A stream that is
 * not open yet holds what the largest tensor on it shows. */
static uint64_t cluster_excess(const struct extent *extents, size_t count, size_t first, size_t *next)
{
    const struct extent *head = &extents[first];
    uint64_t shown = head->shown, largest = head->shown, end = head->end;
    bool is_open = head->is_open;
    size_t i = first + 1;
    for (; i < count && extents[i].object == head->object && extents[i].coded_offset == head->coded_offset && extents[i].begin < end; i++) {
        bool is_replica = extents[i].tensor == extents[i - 1].tensor && extents[i].begin == extents[i - 1].begin;
        shown = is_replica ? shown : add(shown, extents[i].shown);
        largest = extents[i].shown > largest ? extents[i].shown : largest;
        end = extents[i].end > end ? extents[i].end : end;
        is_open |= extents[i].is_open;
    }
    *next = i;
    uint64_t held = end - head->begin;
    return beyond(shown, is_open && largest > held ? largest : held);
}

reshard_status catalog_check_expansion(const struct catalog *catalog, reshard_error *err)
{
    if (is_held_plainly(catalog))
        return RESHARD_OK;
    struct extent *extents = array_new(catalog->chunk_count, sizeof(*extents));
    if (!extents)
        return error_set_memory(err);
    size_t count = 0;
    uint64_t excess = 0;
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        if (counts(&catalog->tensors[catalog->chunks[i].tensor]))
            extents[count++] = extent_of(catalog, &catalog->chunks[i]);
    qsort(extents, count, sizeof(*extents), extent_order);
    for (size_t i = 0; i < count;)
        excess = add(excess, cluster_excess(extents, count, i, &i));
    free(extents);
    if (excess <= catalog->limits.tensor_expansion)
        return RESHARD_OK;
    return error_set_limit(err, "tensor_expansion", excess, catalog->limits.tensor_expansion);
}
