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

/* Appends opcodes of a pickle, and what torch's pickler keeps of them in its memo. */
static void memoised(const struct buffer *plain, struct buffer *out)
{
    uint8_t kept = 0;
    for (size_t i = 0, size; i < plain->size; i += size) {
        const uint8_t *at = plain->data + i;
        switch (*at) {
        case 'c':
            size = 1;
            for (int lines = 0; lines < 2; size++)
                lines += at[size] == '\n';
            break;
        case 'X':
            size = 5 + at[1];
            break;
        case 0x8A:
            size = 2 + at[1];
            break;
        default:
            size = *at == 'J' ? 5 : *at == 'M' ? 3 : *at == 'K' || *at == 0x80 ? 2 : 1;
        }
        assert_true(buffer_append(out, at, size));
        if (strchr("cXtR\x85\x86\x87", *at))
            assert_true(buffer_append(out, (uint8_t[]){ 'q', kept++ }, 2));
    }
}

/* The pickle of a dense tensor, in two spellings. */
static void pickle_tensor(enum dtype dtype, int rank, const int64_t *shape, bool is_memoised, struct buffer *out, uint64_t *size)
{
    struct buffer plain = { 0 };
    assert_true(dtype_bytes(dtype, (uint64_t)box_volume(rank, shape), size));
    pickle_put_begin(&plain);
    torch_save_put_tensor(&plain, dtype, rank, shape, NULL, 0, "0", *size, rank == 2);
    pickle_put_end(&plain);
    if (is_memoised)
        memoised(&plain, out);
    else
        buffer_append(out, plain.data, plain.size);
    buffer_release(&plain);
}

/* The archive of a pickle and of one storage of zeros. */
static void blob_of_pickle(const char *top, const void *bytes, size_t size, uint64_t storage_bytes, struct buffer *out)
{
    struct buffer pickle = { 0 };
    uint8_t *zeros = calloc(1, storage_bytes + 1);
    assert_true(buffer_append(&pickle, bytes, size));
    blob_make(top, &pickle, &(struct blob_storage){ zeros, storage_bytes }, 1, 64, out);
    free(zeros);
}

TEST(a_tensor_as_torch_writes_it_takes_no_memory)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_U16, DTYPE_F8_E5M2, DTYPE_BOOL };
    static const int64_t shape[] = { 2, 70000, 1, 3, 1, 0, 1 };
    for (int i = 0; i < 4 * 8 * 2; i++) {
        struct buffer blob = { 0 }, pickle = { 0 };
        uint64_t bytes;
        pickle_tensor(dtypes[i / 16], i / 2 % 8, shape, i % 2, &pickle, &bytes);
        blob_of_pickle("archive", pickle.data, pickle.size, bytes, &blob);
        check_takes_no_memory(blob.data, blob.size);
        buffer_release(&pickle);
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

static void compare_pickle(const void *bytes, size_t size, uint64_t storage_bytes, struct buffer *scratch, size_t at)
{
    struct buffer blob = { 0 };
    blob_of_pickle("archive", bytes, size, storage_bytes, &blob);
    compare_ways(blob.data, blob.size, scratch, at);
    buffer_release(&blob);
}

TEST(no_other_pickle_is_taken_for_a_tensor)
{
    static const int64_t shape[] = { 2, 300, 1, 2 };
    struct buffer scratch = { 0 };
    for (int i = 0; i < 2 * 5 * 2; i++) {
        struct buffer pickle = { 0 };
        uint64_t bytes;
        pickle_tensor(i < 10 ? DTYPE_U8 : DTYPE_F8_E5M2, i / 2 % 5, shape, i % 2, &pickle, &bytes);
        for (size_t at = 0; at < pickle.size; at++) {
            static const char others[] = "Kcq(t)R.\n\x88\x89\x85\x8A";
            uint8_t old = pickle.data[at];
            compare_pickle(pickle.data, at, bytes, &scratch, at);
            for (size_t c = 0; c <= sizeof(others); c++) {
                pickle.data[at] = c < sizeof(others) ? (uint8_t)others[c] : old ^ 1;
                compare_pickle(pickle.data, pickle.size, bytes, &scratch, at);
            }
            pickle.data[at] = old;
        }
        assert_true(buffer_append(&pickle, "", 1));
        compare_pickle(pickle.data, pickle.size, bytes, &scratch, pickle.size);
        buffer_release(&pickle);
    }
    buffer_release(&scratch);
}

/* A pickle of one byte, whose offset or whose stride, which does not count, is spelled otherwise. */
static void pickle_with_number(const struct str *spelled, bool is_stride, struct buffer *out)
{
    const uint8_t usual[] = { 'K', is_stride ? 78 : 77 };
    struct buffer plain = { 0 };
    pickle_put_begin(&plain);
    torch_save_put_tensor(&plain, DTYPE_U8, 1, (int64_t[]){ 1 }, (int64_t[]){ 78 }, is_stride ? 0 : 77, "0", 1, false);
    pickle_put_end(&plain);
    uint8_t *place = memmem(plain.data, plain.size, usual, sizeof(usual));
    assert_non_null(place);
    buffer_append(out, plain.data, (size_t)(place - plain.data));
    buffer_append(out, spelled->data, spelled->size);
    assert_true(buffer_append(out, place + 2, plain.size - (size_t)(place + 2 - plain.data)));
    buffer_release(&plain);
}

TEST(numbers_are_read_as_they_are_spelled)
{
    static const struct {
        struct str spelled;
        bool is_short; /* as torch could write it */
        int64_t number;
    } cases[] = {
        { STR("K\x00"), true, 0 },
        { STR("K\xFF"), true, 255 },
        { STR("M\x00\x00"), true, 0 },
        { STR("M\xFE\xFF"), true, 65534 },
        { STR("J\x00\x00\x00\x00"), true, 0 },
        { STR("J\xFF\xFF\xFF\x7F"), true, INT32_MAX },
        { STR("J\x00\x00\x00\x80"), false, 0 },
        { STR("J\xFF\xFF\xFF\xFF"), false, 0 },
        { STR("\x8A\x00"), false, 0 },
        { STR("\x8A\x01\x00"), true, 0 },
        { STR("\x8A\x01\x7F"), true, 127 },
        { STR("\x8A\x01\x80"), false, 0 },
        { STR("\x8A\x08\x00\x00\x00\x00\x00\x00\x00\x00"), true, 0 },
        { STR("\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"), true, INT64_MAX },
        { STR("\x8A\x08\x00\x00\x00\x00\x00\x00\x00\x80"), false, 0 },
        { STR("\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00"), false, 0 },
        { STR("\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"), false, 0 },
    };
    struct buffer scratch = { 0 };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer pickle = { 0 }, blob = { 0 };
        const bool is_stride = i % 2;
        pickle_with_number(&cases[i / 2].spelled, is_stride, &pickle);
        compare_pickle(pickle.data, pickle.size, 1, &scratch, i);
        blob_of_pickle("archive", pickle.data, pickle.size, 1, &blob);
        if (cases[i / 2].is_short && (is_stride || cases[i / 2].number == 0))
            check_takes_no_memory(blob.data, blob.size);
        buffer_release(&pickle);
        buffer_release(&blob);
    }
    buffer_release(&scratch);
}

TEST(more_dimensions_than_a_tensor_has_are_refused)
{
    for (int rank = RANK_MAX - 1; rank <= RANK_MAX + 1; rank++) {
        struct buffer pickle = { 0 }, scratch = { 0 };
        pickle_put_begin(&pickle);
        pickle_put_global(&pickle, "torch._utils", "_rebuild_tensor_v2");
        pickle_put_opcode(&pickle, '(');
        torch_save_put_storage(&pickle, "torch", "ByteStorage", "0", 1);
        pickle_put_int(&pickle, 0);
        for (int tuple = 0; tuple < 2; tuple++) {
            pickle_put_opcode(&pickle, '(');
            for (int i = 0; i < rank; i++)
                pickle_put_int(&pickle, 1);
            pickle_put_opcode(&pickle, 't');
        }
        pickle_put_bool(&pickle, false);
        pickle_put_global(&pickle, "collections", "OrderedDict");
        assert_true(buffer_append(&pickle, ")RtR.", 5));
        compare_pickle(pickle.data, pickle.size, 1, &scratch, (size_t)rank);
        buffer_release(&pickle);
        buffer_release(&scratch);
    }
}

/* Puts another byte into every place where the archive has this name. */
static void change_names(struct buffer *blob, const char *name, size_t at, char byte)
{
    size_t size = strlen(name);
    uint8_t *place = blob->data;
    while ((place = memmem(place, (size_t)(blob->data + blob->size - place), name, size)) != NULL) {
        place[at] = (uint8_t)byte;
        place += size;
    }
}

TEST(members_with_other_names_are_not_the_tensors)
{
    static const char *const names[] = { "top/", "top/data.pkl", "top/byteorder", "top/data/0", "top/version" };
    static const char bytes[] = { 'x', '/', '\\', '.', '\x80', '\0' };
    struct buffer pickle = { 0 }, scratch = { 0 };
    uint64_t size;
    pickle_tensor(DTYPE_U8, 1, (int64_t[]){ 4 }, true, &pickle, &size);
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        for (size_t at = 0; at < strlen(names[n]); at++) {
            for (size_t b = 0; b < sizeof(bytes); b++) {
                struct buffer blob = { 0 };
                blob_of_pickle("top", pickle.data, pickle.size, size, &blob);
                change_names(&blob, names[n], at, bytes[b]);
                compare_ways(blob.data, blob.size, &scratch, at);
                buffer_release(&blob);
            }
        }
    }
    static const char *const tops[] = { ".", "..", "...", "a", "", "/a", "a/b" };
    for (size_t i = 0; i < sizeof(tops) / sizeof(tops[0]); i++) {
        struct buffer blob = { 0 };
        blob_of_pickle(tops[i], pickle.data, pickle.size, size, &blob);
        compare_ways(blob.data, blob.size, &scratch, i);
        buffer_release(&blob);
    }
    buffer_release(&pickle);
    buffer_release(&scratch);
}

TEST(a_storage_over_the_next_member_is_seen)
{
    struct buffer scratch = { 0 };
    for (uint8_t size = 8; size < 100; size++) {
        struct buffer pickle = { 0 }, blob = { 0 };
        uint64_t bytes;
        pickle_tensor(DTYPE_U8, 1, (int64_t[]){ size }, true, &pickle, &bytes);
        blob_of_pickle("top", pickle.data, pickle.size, 8, &blob);
        uint8_t *name = memmem(blob.data, blob.size, "top/data/0", 10);
        name = memmem(name + 10, (size_t)(blob.data + blob.size - name - 10), "top/data/0", 10);
        assert_non_null(name);
        name[-26] = name[-22] = size; /* of the directory */
        compare_ways(blob.data, blob.size, &scratch, size);
        buffer_release(&pickle);
        buffer_release(&blob);
    }
    buffer_release(&scratch);
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
        cmocka_unit_test(no_other_pickle_is_taken_for_a_tensor),
        cmocka_unit_test(numbers_are_read_as_they_are_spelled),
        cmocka_unit_test(more_dimensions_than_a_tensor_has_are_refused),
        cmocka_unit_test(members_with_other_names_are_not_the_tensors),
        cmocka_unit_test(a_storage_over_the_next_member_is_seen),
        cmocka_unit_test(a_blob_that_is_no_tensor_is_an_item),
        cmocka_unit_test(views_are_checked_against_their_storage),
    };
    return cmocka_run_group_tests_name("torch_save_tensor", tests, NULL, NULL);
}
