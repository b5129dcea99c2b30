/* SPDX-License-Identifier: Apache-2.0 */
/* torch.save archives in memory, for tests. */
#ifndef TESTS_TORCH_BLOB_H
#define TESTS_TORCH_BLOB_H

#include "check.h"

#include "base/crc32.h"
#include "encoding/pickle_write.h"
#include "encoding/torch_save.h"

struct blob_storage {
    const void *bytes;
    uint64_t size;
};

static inline reshard_status blob_sink(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct buffer *out = context;
    (void)err;
    if (offset + size > out->size)
        fail_msg("frame byte %llu lies beyond the archive", (unsigned long long)(offset + size));
    memcpy(out->data + offset, bytes, size);
    return RESHARD_OK;
}

/* Appends the archive of this pickle, which is taken over, and these storages. */
static inline void blob_make(const char *top, struct buffer *pickle, const struct blob_storage *storages, uint32_t count,
                             uint32_t alignment, struct buffer *out)
{
    reshard_error err = { 0 };
    struct torch_frame frame;
    uint64_t sizes[64] = { 0 };
    uint32_t crcs[64] = { 0 };
    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++) {
        sizes[i] = storages[i].size;
        crcs[i] = crc32_zip(0, storages[i].bytes, storages[i].size);
    }
    CHECK_OK(torch_frame_plan(top, pickle, sizes, count, alignment, &frame, &err));
    size_t before = out->size;
    assert_non_null(buffer_extend(out, frame.bytes));
    struct buffer view = { .data = out->data + before, .size = frame.bytes };
    memset(view.data, 0xEE, view.size);
    for (uint32_t i = 0; i < count; i++)
        if (sizes[i])
            memcpy(view.data + frame.members[frame.first_storage + i].payload_offset, storages[i].bytes, sizes[i]);
    CHECK_OK(torch_frame_write(&frame, crcs, blob_sink, &view, &err));
    torch_frame_release(&frame);
}

/* The archive of one dense tensor whose bytes are 0, 1, 2, … */
static inline void blob_tensor(enum dtype dtype, int rank, const int64_t *shape, struct buffer *out)
{
    struct buffer pickle = { 0 };
    uint8_t bytes[4096];
    uint64_t size = 0;
    assert_true(dtype_bytes(dtype, (uint64_t)box_volume(rank, shape), &size) && size <= sizeof(bytes));
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)i;
    pickle_put_begin(&pickle);
    torch_save_put_tensor(&pickle, dtype, rank, shape, NULL, 0, "0", size, false);
    pickle_put_end(&pickle);
    struct blob_storage storage = { bytes, size };
    blob_make("archive", &pickle, &storage, 1, 64, out);
}

#endif
