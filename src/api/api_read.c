/* SPDX-License-Identifier: Apache-2.0 */
/* Values: boxes of tensors as bytes, and digests of all of them. */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/tensor_digests.h"

#include "encoding/npy.h"

#include <stdlib.h>

static reshard_status box_of_request(const reshard_checkpoint *checkpoint, size_t index, const int64_t *start, const int64_t *extent,
                                     uint32_t *tensor_index, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (index >= checkpoint->opened->listed_count)
        return error_set(err, RESHARD_ERR_USAGE, "tensor %zu of %u", index, checkpoint->opened->listed_count);
    *tensor_index = checkpoint_listed(checkpoint, index);
    const struct catalog_tensor *tensor = &catalog->tensors[*tensor_index];
    int bad_axis;
    if (!start != !extent)
        return error_set(err, RESHARD_ERR_USAGE, "a box needs start and extent");
    if (start && !box_check(tensor->rank, start, extent, catalog_vector_at(catalog, tensor->shape), &bad_axis))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': box [%lld, +%lld) on axis %d, the tensor has %lld", STR_ARG(tensor->key),
                         (long long)start[bad_axis], (long long)extent[bad_axis], bad_axis,
                         (long long)catalog_vector_at(catalog, tensor->shape)[bad_axis]);
    return source_resolve(checkpoint_source(checkpoint), tensor_index, 1, err);
}

struct read_context {
    reshard_sink sink;
    void *context;
};

static reshard_status read_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    const struct read_context *read = context;
    (void)tensor, (void)offset, (void)is_last;
    reshard_status status = size ? read->sink(bytes, size, read->context) : RESHARD_OK;
    return status ? error_set(err, status, "stopped by the receiver") : RESHARD_OK;
}

API_EXPORT reshard_status reshard_read(reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                                       const reshard_run_options *run, reshard_sink sink, void *context, reshard_error *err)
{
    uint32_t tensor_index;
    struct engine_options options;
    reshard_status status = run_options_read(run, &options, err);
    if (status)
        return status;
    work_renew(&checkpoint_source(checkpoint)->work);
    status = box_of_request(checkpoint, tensor, start, extent, &tensor_index, err);
    if (status)
        return status;
    struct engine_source source = checkpoint_engine_source(checkpoint->opened);
    struct read_context read = { sink, context };
    return engine_stream(&source, &tensor_index, 1, start, extent, &options, read_sink, &read, err);
}

struct into_context {
    uint8_t *out;
    size_t size, used;
};

static reshard_status into_sink(const void *bytes, size_t size, void *context)
{
    struct into_context *into = context;
    if (size > into->size - into->used)
        return RESHARD_ERR_USAGE;
    memcpy(into->out + into->used, bytes, size);
    into->used += size;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_read_into(reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                                            void *out, size_t size, reshard_error *err)
{
    struct into_context into = { .out = out, .size = size };
    reshard_status status = reshard_read(checkpoint, tensor, start, extent, NULL, into_sink, &into, err);
    if (!status && into.used != size)
        return error_set(err, RESHARD_ERR_USAGE, "room for %zu bytes, the box has %zu", size, into.used);
    return status;
}

API_EXPORT reshard_status reshard_npy_header(reshard_checkpoint *checkpoint, size_t tensor_index, const int64_t *extent, void **header,
                                             size_t *size, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (tensor_index >= checkpoint->opened->listed_count)
        return error_set(err, RESHARD_ERR_USAGE, "tensor %zu of %u", tensor_index, checkpoint->opened->listed_count);
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, tensor_index)];
    struct buffer out = { 0 };
    bool is_substitute;
    const int64_t *shape = extent ? extent : catalog_vector_at(catalog, tensor->shape);
    reshard_status status = npy_write_header(tensor->dtype, tensor->rank, shape, &is_substitute, &out, err);
    if (status) {
        buffer_release(&out);
        return status;
    }
    *header = out.data;
    *size = out.size;
    return RESHARD_OK;
}

/* ---- digests ---- */

API_EXPORT reshard_status reshard_hash(reshard_checkpoint *checkpoint, const char *digest, const reshard_run_options *run,
                                       reshard_hash_sink sink, void *context, reshard_error *err)
{
    enum digest_kind kind;
    struct engine_options options;
    if (!digest_from_name(str_of(digest), &kind))
        return error_set(err, RESHARD_ERR_USAGE, "unknown digest '%s': sha256, xxh3 or crc32c", digest);
    reshard_status status = run_options_read(run, &options, err);
    if (status)
        return status;
    work_renew(&checkpoint_source(checkpoint)->work);
    const uint32_t *sorted = checkpoint_sorted(checkpoint);
    char(*hex)[DIGEST_HEX_MAX] = calloc((size_t)checkpoint_catalog(checkpoint)->tensor_count + 1, sizeof(*hex));
    if (sorted && hex)
        status = tensor_digests(checkpoint->opened, kind, checkpoint->opened->listed, checkpoint->opened->listed_count, NULL, &options, hex,
                                err);
    else
        status = error_set_memory(err);
    for (uint32_t i = 0; !status && i < checkpoint->opened->listed_count; i++)
        sink(sorted[i], hex[checkpoint_listed(checkpoint, sorted[i])], context);
    free(hex);
    return status;
}

/* ---- order ---- */

static int compare_keys(const void *a, const void *b, void *context)
{
    const reshard_checkpoint *checkpoint = context;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    int order = str_compare(catalog->tensors[checkpoint_listed(checkpoint, first)].key,
                            catalog->tensors[checkpoint_listed(checkpoint, second)].key);
    return order ? order : (first < second) - (first > second);
}

const uint32_t *checkpoint_sorted(reshard_checkpoint *checkpoint)
{
    if (checkpoint->sorted)
        return checkpoint->sorted;
    uint32_t count = checkpoint->opened->listed_count;
    uint32_t *sorted = malloc(((size_t)count + 1) * sizeof(*sorted));
    if (!sorted)
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = i;
    qsort_r(sorted, count, sizeof(*sorted), compare_keys, checkpoint);
    checkpoint->sorted = sorted;
    return sorted;
}

API_EXPORT reshard_status reshard_sorted_tensors(const reshard_checkpoint *checkpoint, size_t **out, reshard_error *err)
{
    const uint32_t *sorted = checkpoint_sorted((reshard_checkpoint *)checkpoint);
    size_t *copy = malloc(((size_t)checkpoint->opened->listed_count + 1) * sizeof(*copy));
    if (!sorted || !copy) {
        free(copy);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < checkpoint->opened->listed_count; i++)
        copy[i] = sorted[i];
    *out = copy;
    return RESHARD_OK;
}
