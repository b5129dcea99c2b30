/* SPDX-License-Identifier: Apache-2.0 */
/* The short way to a blob's tensor must never say anything that the long way does not. */
#include "torch_blob.h"

#include "fail_malloc.h"

#include "encoding/torch_save_parts.h"

static reshard_error err;

/* What the long way alone says of the blob. */
static reshard_status open_long(const struct reader *reader, struct torch_blob_tensor *out)
{
    struct torch_archive archive;
    reshard_status status = torch_save_open(reader, &limits_default, -1, &archive, NULL);
    memset(out, 0, sizeof(*out));
    if (status)
        return status;
    uint32_t index = archive.graph.root->tensor;
    if (index) {
        const struct torch_tensor *tensor = &archive.tensors[index - 1];
        const struct torch_storage *storage = &archive.storages[tensor->storage];
        out->is_tensor = true;
        out->dtype = tensor->dtype;
        out->rank = tensor->rank;
        memcpy(out->shape, tensor->shape, (size_t)tensor->rank * sizeof(int64_t));
        memcpy(out->strides, tensor->strides, (size_t)tensor->rank * sizeof(int64_t));
        out->payload_offset = storage->offset;
        out->payload_bytes = storage->bytes;
        out->offset_bytes = tensor->offset_bytes;
        out->codec = storage->codec;
        out->flags = tensor->flags;
        out->has_crc = storage->has_crc;
        out->crc32 = storage->crc32;
    }
    torch_save_release(&archive);
    return status;
}

static void check_same(const struct torch_blob_tensor *a, const struct torch_blob_tensor *b, size_t at)
{
    bool is_same = a->is_tensor == b->is_tensor;
    if (is_same && a->is_tensor)
        is_same = a->dtype == b->dtype && a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) == 0 &&
                  memcmp(a->strides, b->strides, (size_t)a->rank * sizeof(int64_t)) == 0 && a->payload_offset == b->payload_offset &&
                  a->payload_bytes == b->payload_bytes && a->offset_bytes == b->offset_bytes && a->codec == b->codec &&
                  a->flags == b->flags && a->has_crc == b->has_crc && (!a->has_crc || a->crc32 == b->crc32);
    if (!is_same)
        fail_msg("byte %zu changed: the two ways differ", at);
}

static void compare_ways(const void *bytes, size_t size, struct buffer *scratch, size_t at)
{
    struct reader reader = reader_over_memory(bytes, size, "blob");
    struct torch_blob_tensor fast, slow;
    reshard_status fast_status = torch_save_open_tensor(&reader, &limits_default, scratch, &fast, NULL),
                   slow_status = open_long(&reader, &slow);
    if (fast_status != slow_status)
        fail_msg("byte %zu changed: status %d, the long way says %d", at, fast_status, slow_status);
    if (!fast_status)
        check_same(&fast, &slow, at);
}

TEST(no_changed_byte_is_taken_for_good)
{
    static const uint8_t changes[] = { 0x01, 0x80, 0xFF };
    struct buffer blob = { 0 }, scratch = { 0 };
    blob_tensor(DTYPE_F32, 2, (int64_t[]){ 3, 5 }, &blob);
    for (size_t i = 0; i < blob.size; i++) {
        for (size_t c = 0; c < sizeof(changes); c++) {
            blob.data[i] ^= changes[c];
            compare_ways(blob.data, blob.size, &scratch, i);
            blob.data[i] ^= changes[c];
        }
    }
    buffer_release(&scratch);
    buffer_release(&blob);
}

TEST(no_cut_blob_is_taken_for_good)
{
    struct buffer blob = { 0 }, scratch = { 0 };
    blob_tensor(DTYPE_U16, 1, (int64_t[]){ 9 }, &blob);
    for (size_t size = 0; size < blob.size; size += size < 200 ? 1 : 7) {
        /* A copy of exactly this size, so that a read past its end is seen. */
        uint8_t *cut = malloc(size + !size);
        memcpy(cut, blob.data, size);
        compare_ways(cut, size, &scratch, size);
        free(cut);
    }
    buffer_release(&scratch);
    buffer_release(&blob);
}

TEST(large_blobs_are_read_at_both_ends_only)
{
    struct buffer blob = { 0 }, pickle = { 0 }, scratch = { 0 };
    struct torch_blob_tensor fast;
    uint64_t size = 1 << 20;
    uint8_t *bytes = calloc(1, size);
    bytes[0] = 1;
    pickle_put_begin(&pickle);
    torch_save_put_tensor(&pickle, DTYPE_BF16, 2, (int64_t[]){ 1024, 512 }, NULL, 0, "0", size, false);
    pickle_put_end(&pickle);
    blob_make("archive", &pickle, (struct blob_storage[]){ { bytes, size } }, 1, 64, &blob);
    struct reader reader = reader_over_memory(blob.data, blob.size, "blob");
    CHECK_OK(torch_save_open_tensor(&reader, &limits_default, &scratch, &fast, &err));
    assert_true(fast.is_tensor);
    assert_int_equal(fast.payload_bytes, size);
    assert_memory_equal(blob.data + fast.payload_offset, bytes, 64);
    assert_true(scratch.size < 16384);
    compare_ways(blob.data, blob.size, &scratch, 0);
    free(bytes);
    buffer_release(&scratch);
    buffer_release(&blob);
}

static void check_takes_no_memory(const void *bytes, size_t size)
{
    struct buffer scratch = { 0 };
    struct torch_blob_tensor fast;
    struct reader reader = reader_over_memory(bytes, size, "blob");
    assert_true(buffer_reserve(&scratch, 16384));
    fail_malloc_at(1);
    reshard_status status = torch_save_open_tensor(&reader, &limits_default, &scratch, &fast, &err);
    assert_false(fail_malloc_was_hit());
    assert_int_equal(status, RESHARD_OK);
    assert_true(fast.is_tensor);
    buffer_release(&scratch);
}

TEST(a_tensor_as_torch_writes_it_takes_no_memory)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_U16, DTYPE_F8_E5M2, DTYPE_BOOL };
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        struct buffer blob = { 0 };
        blob_tensor(dtypes[i], 4, (int64_t[]){ 2, 1, 300, 1 }, &blob);
        check_takes_no_memory(blob.data, blob.size);
        buffer_release(&blob);
    }
    char name[4096];
    uint8_t bytes[65536];
    snprintf(name, sizeof(name), "%s/torch-file/torch-file-top-tensor/ckpt.pt", test_fixtures());
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof(bytes), file);
    fclose(file);
    check_takes_no_memory(bytes, size);
}

TEST(a_blob_that_is_no_tensor_is_an_item)
{
    struct buffer blob = { 0 }, pickle = { 0 }, scratch = { 0 };
    struct torch_blob_tensor fast = { .is_tensor = true };
    pickle_put_begin(&pickle);
    pickle_put_int(&pickle, 7);
    pickle_put_end(&pickle);
    blob_make("archive", &pickle, NULL, 0, 64, &blob);
    struct reader reader = reader_over_memory(blob.data, blob.size, "blob");
    CHECK_OK(torch_save_open_tensor(&reader, &limits_default, &scratch, &fast, &err));
    assert_false(fast.is_tensor);
    buffer_release(&scratch);
    buffer_release(&blob);
}

TEST(views_are_checked_against_their_storage)
{
    static const struct {
        const char *why;
        int64_t shape, stride, offset;
        reshard_status status;
    } cases[] = {
        { "all of it", 10, 1, 0, RESHARD_OK },
        { "the last element", 1, 1, 9, RESHARD_OK },
        { "one too many", 11, 1, 0, RESHARD_ERR_FORMAT },
        { "beyond by offset", 10, 1, 1, RESHARD_ERR_FORMAT },
        { "every third", 4, 3, 0, RESHARD_OK },
        { "every third, from one", 4, 3, 1, RESHARD_ERR_FORMAT },
        { "the same one", 1000, 0, 9, RESHARD_OK },
        { "empty, wherever", 0, 1, 100, RESHARD_OK },
        { "stride of one element does not count", 1, INT64_MAX, 0, RESHARD_OK },
        { "negative size", -1, 1, 0, RESHARD_ERR_FORMAT },
        { "negative stride", 2, -1, 1, RESHARD_ERR_FORMAT },
        { "negative offset", 2, 1, -1, RESHARD_ERR_FORMAT },
        { "offset in bytes overflows", 1, 1, INT64_MAX, RESHARD_ERR_FORMAT },
        { "stride overflows", 3, INT64_MAX / 2 + 1, 0, RESHARD_ERR_FORMAT },
        { "bytes overflow", INT64_MAX / 2, 0, 0, RESHARD_ERR_FORMAT },
        { "too much from nothing", INT64_C(1) << 40, 0, 0, RESHARD_ERR_LIMIT },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct torch_view view = { DTYPE_F32, 1, &cases[i].shape, &cases[i].stride, cases[i].offset };
        uint64_t offset;
        reshard_status status = torch_view_check(&view, 40, &limits_default, 0, &offset, NULL);
        if (status != cases[i].status)
            fail_msg("%s: status %d, expected %d", cases[i].why, status, cases[i].status);
        if (!status)
            assert_true(offset <= 40);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_changed_byte_is_taken_for_good),
        cmocka_unit_test(no_cut_blob_is_taken_for_good),
        cmocka_unit_test(large_blobs_are_read_at_both_ends_only),
        cmocka_unit_test(a_tensor_as_torch_writes_it_takes_no_memory),
        cmocka_unit_test(a_blob_that_is_no_tensor_is_an_item),
        cmocka_unit_test(views_are_checked_against_their_storage),
    };
    return cmocka_run_group_tests_name("torch_save_tensor", tests, NULL, NULL);
}
