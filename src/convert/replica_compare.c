/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/replica_compare.h"

#include "kernels/cast.h"

#include <math.h>
#include <stdlib.h>

#define WINDOW_BYTES (UINT64_C(16) << 20)

/* Bytes [begin, begin + size) of a chunk's content. */
struct window {
    uint8_t *bytes;
    uint64_t begin, size;
};

static reshard_status replica_compare_take(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                           reshard_error *err)
{
    struct window *window = context;
    uint64_t end = offset + size, window_end = window->begin + window->size;
    uint64_t from = offset > window->begin ? offset : window->begin, to = end < window_end ? end : window_end;
    (void)tensor, (void)is_last, (void)err;
    if (from < to)
        memcpy(window->bytes + (from - window->begin), (const uint8_t *)bytes + (from - offset), (size_t)(to - from));
    return RESHARD_OK;
}

static double difference_of(to_double_function to_double, const uint8_t *a, const uint8_t *b, unsigned width)
{
    uint8_t element[16] __attribute__((aligned(16)));
    double x[2] = { 0 }, y[2] = { 0 };
    if (!to_double)
        return NAN;
    memcpy(element, a, width);
    to_double(element, x, 1);
    memcpy(element, b, width);
    to_double(element, y, 1);
    return fmax(fabs(x[0] - y[0]), fabs(x[1] - y[1]));
}

static void replica_compare_compare(const struct window *a, const struct window *b, enum dtype dtype, unsigned width,
                                    struct replica_difference *out)
{
    to_double_function to_double = width <= 16 ? cast_to_double_find(dtype) : NULL;
    for (uint64_t at = 0; at + width <= a->size; at += width) {
        if (memcmp(a->bytes + at, b->bytes + at, width) == 0)
            continue;
        double difference = difference_of(to_double, a->bytes + at, b->bytes + at, width);
        if (out->count++ == 0)
            out->first = (a->begin + at) / width;
        if (difference > out->max_difference || isnan(difference))
            out->max_difference = difference;
    }
}

reshard_status replica_compare(const struct engine_source *source, uint32_t a, uint32_t b, const struct engine_options *options,
                               struct replica_difference *out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[a];
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    unsigned width = dtype_element_bytes(tensor->dtype) ? dtype_element_bytes(tensor->dtype) : 1;
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int64_t elements = layout && layout->flat_count >= 0 ? layout->flat_count
                                                         : box_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent));
    uint64_t bytes = 0, step = WINDOW_BYTES / width * width;
    if (!dtype_bytes(tensor->dtype, (uint64_t)elements, &bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "a chunk is too large");
    struct window one = { .bytes = calloc(1, (size_t)step) }, other = { .bytes = calloc(1, (size_t)step) };
    reshard_status status = one.bytes && other.bytes ? RESHARD_OK : error_set_memory(err);
    *out = (struct replica_difference){ 0 };
    for (uint64_t begin = 0; !status && begin < bytes; begin += step) {
        one.begin = other.begin = begin;
        one.size = other.size = bytes - begin < step ? bytes - begin : step;
        status = engine_stream_chunk(source, a, options, replica_compare_take, &one, err);
        if (!status)
            status = engine_stream_chunk(source, b, options, replica_compare_take, &other, err);
        if (!status)
            replica_compare_compare(&one, &other, tensor->dtype, width, out);
    }
    free(one.bytes);
    free(other.bytes);
    return status;
}
