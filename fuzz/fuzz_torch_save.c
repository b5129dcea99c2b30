/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a torch.save container, as they are and with the checksums of their members set right; what is no container is
 * taken for the pickle of one. What opens must describe only bytes that are there, and the short way to a single tensor must
 * say what the long way says.
 */
#include "zip_repair.h"

#include "base/crc32.h"
#include "encoding/torch_save.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define JSON_BYTES_MAX (64 << 10)

static struct limits small_limits(void)
{
    struct limits limits = limits_default;
    limits.metadata_bytes = 1 << 20;
    limits.inflate_bytes = 1 << 20;
    limits.pickle_values = 50000;
    limits.memo_gap = 10000;
    limits.zip_entries = 1000;
    limits.tensors = 1000;
    return limits;
}

/* Element 0 and all others must lie in the storage's decoded bytes. */
static void check_tensor(const struct torch_archive *archive, const struct torch_tensor *tensor, uint64_t archive_bytes)
{
    if (tensor->rank < 0 || tensor->rank > RANK_MAX || tensor->storage >= archive->storage_count)
        abort();
    const struct torch_storage *storage = &archive->storages[tensor->storage];
    if (storage->has_data && (storage->offset > archive_bytes || storage->stored_bytes > archive_bytes - storage->offset))
        abort();
    unsigned __int128 last = 0;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0 || tensor->strides[i] < 0)
            abort();
        if (tensor->shape[i] == 0)
            return;
        last += (unsigned __int128)(tensor->shape[i] - 1) * (uint64_t)tensor->strides[i];
    }
    if (tensor->flags & TORCH_TENSOR_META)
        return;
    if (tensor->offset_bytes + (last + 1) * dtype_info(tensor->dtype)->bits / 8 > storage->bytes)
        abort();
}

static void check_archive(const struct torch_archive *archive, uint64_t archive_bytes)
{
    struct buffer json = { 0 };
    for (uint32_t i = 0; i < archive->tensor_count; i++)
        check_tensor(archive, &archive->tensors[i], archive_bytes);
    for (uint32_t i = 0; i < archive->shard_count; i++) {
        if (archive->shards[i].tensor != UINT32_MAX && archive->shards[i].tensor >= archive->tensor_count)
            abort();
    }
    reshard_status status = value_to_json(archive->graph.root, &json, JSON_BYTES_MAX, NULL);
    if (!status && json.size > JSON_BYTES_MAX)
        abort();
    buffer_release(&json);
}

static void check_blob(const struct reader *reader, const struct limits *limits, const struct torch_archive *archive, reshard_status opened)
{
    struct torch_blob_tensor blob;
    struct buffer scratch = { 0 };
    reshard_status status = torch_save_open_tensor(reader, limits, &scratch, &blob, NULL);
    if (!status != !opened)
        abort();
    if (!status && blob.is_tensor) {
        if (archive->tensor_count != 1 || archive->tensors[0].dtype != blob.dtype || archive->tensors[0].rank != blob.rank ||
            archive->tensors[0].offset_bytes != blob.offset_bytes)
            abort();
        for (int i = 0; i < blob.rank; i++) {
            if (blob.shape[i] != archive->tensors[0].shape[i] || blob.strides[i] != archive->tensors[0].strides[i])
                abort();
        }
    }
    buffer_release(&scratch);
}

static void open_container(const void *bytes, size_t size)
{
    struct limits limits = small_limits();
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct torch_archive archive = { 0 };
    reshard_status status = torch_save_open(&reader, &limits, 0, &archive, NULL);
    if (!status)
        check_archive(&archive, size);
    check_blob(&reader, &limits, &archive, status);
    if (!status)
        torch_save_release(&archive);
}

struct frame_output {
    uint8_t *bytes;
    uint64_t size;
};

static reshard_status put_frame(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    const struct frame_output *out = context;
    (void)err;
    if (offset > out->size || size > out->size - offset)
        abort();
    memcpy(out->bytes + offset, bytes, size);
    return RESHARD_OK;
}

/* An archive with that pickle and a few storages of zeros. */
static void open_pickle(const void *pickle, size_t size)
{
    static const uint64_t storage_bytes[] = { 64, 24, 4, 0 };
    uint32_t crcs[4];
    uint8_t zeros[64] = { 0 };
    struct buffer copy = { 0 };
    struct torch_frame frame = { 0 };
    for (int i = 0; i < 4; i++)
        crcs[i] = crc32_zip(0, zeros, storage_bytes[i]);
    if (!buffer_append(&copy, pickle, size) || torch_frame_plan("archive", &copy, storage_bytes, 4, 64, &frame, NULL)) {
        buffer_release(&copy);
        return;
    }
    struct frame_output out = { .bytes = calloc(1, (size_t)frame.bytes), .size = frame.bytes };
    if (out.bytes && !torch_frame_write(&frame, crcs, put_frame, &out, NULL))
        open_container(out.bytes, (size_t)out.size);
    free(out.bytes);
    torch_frame_release(&frame);
    buffer_release(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    enum torch_container container;
    if (!torch_save_probe(&reader, &container)) {
        open_pickle(bytes, size);
        return 0;
    }
    open_container(bytes, size);
    uint8_t *copy = malloc(size);
    if (copy && container == TORCH_ZIP) {
        memcpy(copy, bytes, size);
        zip_repair(copy, size);
        if (memcmp(copy, bytes, size) != 0)
            open_container(copy, size);
    }
    free(copy);
    return 0;
}
