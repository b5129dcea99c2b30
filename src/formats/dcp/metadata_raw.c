/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ByteCheckpoint's all_tensor_metadata: {MetadataIndex: bytes}. The bytes are the pickle that torch.save would put beside the storage,
 * which alone is the blob. None is said of items, whose blobs are containers.
 */
#include "formats/dcp/metadata_build.h"

#include "base/array.h"
#include "encoding/torch_save.h"

#include <inttypes.h>
#include <stdlib.h>

/* Indexes by what finds a blob. */
static int compare_indexes(const struct dcp_index *a, const struct dcp_index *b)
{
    if (a->name != b->name)
        return a->name < b->name ? -1 : 1;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static int compare_storage(const void *a, const void *b, void *context)
{
    const struct dcp_index *indexes = context;
    return compare_indexes(&indexes[*(const uint32_t *)a], &indexes[*(const uint32_t *)b]);
}

/* The first of sorted that is not below the index; `count` if none is. */
static uint32_t first_storage(const struct dcp_metadata *metadata, const uint32_t *sorted, const struct dcp_index *index)
{
    uint32_t low = 0, high = metadata->storage_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_indexes(&metadata->indexes[sorted[middle]], index) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static reshard_status raw_tensor_decode(struct dcp_build *build, const struct value *pickle, struct str name, struct dcp_raw *out)
{
    struct torch_blob_tensor tensor;
    if (pickle->kind != VALUE_BYTES || !torch_save_tensor_of_pickle(pickle->text, build->limits, &tensor))
        return error_set_at(build->err, RESHARD_ERR_UNSUPPORTED, pickle->offset,
                            "tensor '%.*s': all_tensor_metadata says it by something else than the pickle of one dense tensor",
                            STR_ARG(name));
    *out = (struct dcp_raw){ .is_there = true, .dtype = tensor.dtype, .bytes = tensor.payload_bytes, .offset_bytes = tensor.offset_bytes };
    reshard_status status = dcp_build_vector(build, tensor.shape, (size_t)tensor.rank, &out->shape);
    return status ? status : dcp_build_vector(build, tensor.strides, (size_t)tensor.rank, &out->strides);
}

/* Every pair of storage_data with that index gets it. */
static reshard_status raw_note(struct dcp_build *build, const uint32_t *sorted, const struct dcp_index *index, const struct value *pickle)
{
    struct dcp_metadata *metadata = build->out;
    struct str name = name_map_at(&metadata->names, index->name);
    struct dcp_raw raw = { 0 };
    reshard_status status = raw_tensor_decode(build, pickle, name, &raw);
    for (uint32_t i = first_storage(metadata, sorted, index); !status && i < metadata->storage_count; i++) {
        const uint32_t storage = sorted[i];
        if (compare_indexes(&metadata->indexes[storage], index) != 0)
            break;
        if (metadata->ranges[storage].length != raw.bytes)
            status = error_set_at(build->err, RESHARD_ERR_FORMAT, pickle->offset,
                                  "tensor '%.*s': its storage has %" PRIu64 " bytes in all_tensor_metadata, its blob %" PRIu64,
                                  STR_ARG(name), raw.bytes, metadata->ranges[storage].length);
        metadata->raws[storage] = raw;
        status = status ? status : work_spend_steps(build->limits->budget, 1, build->err);
    }
    return status;
}

reshard_status dcp_raw_read(struct dcp_build *build, const struct value *mapping)
{
    struct dcp_metadata *metadata = build->out;
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!value_as_mapping(mapping, &pairs, &count))
        return error_set_at(build->err, RESHARD_ERR_FORMAT, mapping->offset, "all_tensor_metadata is no dict");
    if (!count)
        return RESHARD_OK;
    uint32_t *sorted = array_new(metadata->storage_count, sizeof(*sorted));
    metadata->raws = array_zeroed(metadata->storage_count, sizeof(*metadata->raws));
    if (!sorted || !metadata->raws)
        status = error_set_memory(build->err);
    for (uint32_t i = 0; !status && i < metadata->storage_count; i++)
        sorted[i] = i;
    if (!status)
        qsort_r(sorted, metadata->storage_count, sizeof(*sorted), compare_storage, metadata->indexes);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct dcp_index index;
        status = dcp_general_index(build, pairs[i], "all_tensor_metadata", &index);
        if (!status && pairs[i + 1]->kind != VALUE_NONE)
            status = raw_note(build, sorted, &index, pairs[i + 1]);
    }
    free(sorted);
    return status;
}
