/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens arbitrary bytes as a torch.save file. What opens must lie inside the file, its leaves must be findable, and the short way to a
 * blob's tensor must agree with the long one.
 */
#include "encoding/torch_save.h"
#include "formats/shared/torch_flatten.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_storages(const struct torch_archive *archive, size_t size)
{
    for (uint32_t i = 0; i < archive->storage_count; i++) {
        const struct torch_storage *storage = &archive->storages[i];
        if (storage->has_data && (storage->offset > size || storage->stored_bytes > size - storage->offset))
            abort();
        outcome_number(storage->offset);
        outcome_number(storage->bytes << 1 | storage->has_data);
    }
    for (uint32_t i = 0; i < archive->tensor_count; i++) {
        const struct torch_tensor *tensor = &archive->tensors[i];
        int64_t end = 0;
        if (tensor->storage >= archive->storage_count || !strides_span(tensor->rank, tensor->shape, tensor->strides, &end))
            abort();
        outcome_number((uint64_t)tensor->dtype << 32 | tensor->storage);
        outcome_number(tensor->offset_bytes);
        outcome_bytes(tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape));
        outcome_bytes(tensor->strides, (size_t)tensor->rank * sizeof(*tensor->strides));
        uint64_t bytes = archive->storages[tensor->storage].bytes, span = (uint64_t)end * dtype_element_bytes(tensor->dtype);
        if (tensor->offset_bytes > bytes || span > bytes - tensor->offset_bytes)
            abort();
    }
    for (uint32_t i = 0; i < archive->shard_count; i++)
        if (archive->shards[i].tensor != UINT32_MAX && archive->shards[i].tensor >= archive->tensor_count)
            abort();
}

static reshard_status count_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    (void)err;
    *(uint64_t *)context += leaf->part_count;
    outcome_number(leaf->part_count);
    return RESHARD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits limits = limits_default;
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct torch_archive archive;
    struct torch_blob_tensor tensor;
    struct buffer scratch = { 0 };
    limits.metadata_bytes = limits.inflate_bytes = 4 << 20;
    limits.memo_gap = 10000;
    limits.pickle_depth = 10000;
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(torch_save_open_cut_off(&reader, &limits, 0, &archive, &err), &err))
        torch_save_release(&archive);
    reshard_status status = outcome_status(torch_save_open(&reader, &limits, 0, &archive, &err), &err);
    reshard_status short_status = outcome_status(torch_save_open_tensor(&reader, &limits, &scratch, &tensor, NULL), NULL);
    if (!status) {
        uint64_t parts = 0;
        check_storages(&archive, size);
        outcome_value(archive.graph.root);
        torch_flatten(&archive.graph, &limits, count_leaf, &parts, NULL);
        if (short_status || tensor.is_tensor != (archive.graph.root->tensor > 0))
            abort();
        torch_save_release(&archive);
    } else if (!short_status) {
        /* Places in a device mesh depend on the rank, which the short way does not know. */
        if (tensor.is_tensor)
            abort();
    }
    buffer_release(&scratch);
    return 0;
}
