/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/npy.h"

#include "check.h"

static reshard_error err;

/* A version 1.0 file with this header text. */
static struct buffer make_npy(const char *text)
{
    struct buffer bytes = { 0 };
    buffer_append(&bytes, "\x93NUMPY\x01\x00", 8);
    buffer_append_u16le(&bytes, (uint16_t)strlen(text));
    buffer_append_text(&bytes, text);
    return bytes;
}

TEST(headers_that_numpy_writes_are_read)
{
    static const struct {
        const char *text;
        enum dtype dtype;
        bool is_big_endian, is_fortran;
        int rank;
        int64_t shape[3];
    } cases[] = {
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n", DTYPE_F32, false, false, 2, { 3, 4 } },
        { "{'descr': '>i8', 'fortran_order': True, 'shape': (5,), }\n", DTYPE_I64, true, true, 1, { 5 } },
        { "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", DTYPE_BOOL, false, false, 0, { 0 } },
        { "{\"shape\":(0,2,3),\"fortran_order\":False,\"descr\":\"<c16\"}", DTYPE_C128, false, false, 3, { 0, 2, 3 } },
        { "{'descr': '<V2', 'fortran_order': False, 'shape': (3L, 4L)}", DTYPE_BF16, false, false, 2, { 3, 4 } },
        { "{'descr': '>u1', 'fortran_order': False, 'shape': (1,)}", DTYPE_U8, false, false, 1, { 1 } },
        { " {\n'descr' :\t'<f4'\r, 'fortran_order' :True , \"shape\" : ( 3 , 4 , ) , } ", DTYPE_F32, false, true, 2, { 3, 4 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = make_npy(cases[i].text);
        struct npy_header header;
        CHECK_OK(npy_parse(bytes.data, bytes.size, &header, &err));
        assert_int_equal(header.dtype, cases[i].dtype);
        assert_int_equal(header.is_big_endian, cases[i].is_big_endian);
        assert_int_equal(header.is_fortran, cases[i].is_fortran);
        assert_int_equal(header.rank, cases[i].rank);
        for (int axis = 0; axis < header.rank; axis++)
            assert_int_equal(header.shape[axis], cases[i].shape[axis]);
        assert_int_equal(header.data_offset, bytes.size);
        buffer_release(&bytes);
    }
}

TEST(other_headers_are_refused)
{
    static const struct {
        const char *text;
        reshard_status expected;
        const char *message;
    } cases[] = {
        { "", RESHARD_ERR_FORMAT, "no dict" },
        { "{}", RESHARD_ERR_FORMAT, "missing" },
        { "{'descr': '<f4', 'fortran_order': False}", RESHARD_ERR_FORMAT, "missing" },
        { "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_FORMAT, "twice" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (), 'more': 1}", RESHARD_ERR_FORMAT, "unknown key" },
        { "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "no plain type" },
        { "{'descr': system(1), 'fortran_order': False, 'shape': ()}", RESHARD_ERR_FORMAT, "no plain type" },
        { "{'descr': '|V2', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'|V2'" },
        { "{'descr': '<U3', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'<U3'" },
        { "{'descr': '|O', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'|O'" },
        { "{'descr': '<f3', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'<f3'" },
        { "{'descr': '', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "''" },
        { "{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", RESHARD_ERR_FORMAT, "neither True nor False" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': [3]}", RESHARD_ERR_FORMAT, "no tuple" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}", RESHARD_ERR_FORMAT, "integers" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (3", RESHARD_ERR_FORMAT, "not closed" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2)}", RESHARD_ERR_FORMAT, "overflows" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,)}", RESHARD_ERR_FORMAT, "integers" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", RESHARD_ERR_FORMAT, "follows" },
        { "{'descr': '<f4' 'fortran_order': False, 'shape': ()}", RESHARD_ERR_FORMAT, "expected ',' or '}'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': () ", RESHARD_ERR_FORMAT, "expected ',' or '}'" },
        { "{'descr' '<f4', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_FORMAT, "expected a key and ':'" },
        { "{descr: '<f4', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_FORMAT, "expected a key and ':'" },
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (3 4)}", RESHARD_ERR_FORMAT, "not closed" },
#define THIRTEEN "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, "
        { "{'descr': '<f4', 'fortran_order': False, 'shape': (" THIRTEEN THIRTEEN THIRTEEN THIRTEEN THIRTEEN ")}", RESHARD_ERR_LIMIT,
          "more than 64 axes" },
        { "{'descr': '<f\\x34', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "no plain type" },
        { "{'descr': '<f4, 'fortran_order\": False, 'shape': ()", RESHARD_ERR_UNSUPPORTED, "'<f4, '" },
        { "{'descr': '<f4', 'fortran_order", RESHARD_ERR_FORMAT, "expected a key and ':'" },
        { "{'descr': '<', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'<'" },
        { "{'descr': '<f', 'fortran_order': False, 'shape': ()}", RESHARD_ERR_UNSUPPORTED, "'<f'" },
        { "__import__('os').system('x')", RESHARD_ERR_FORMAT, "no dict" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = make_npy(cases[i].text);
        struct npy_header header;
        reshard_status status = npy_parse(bytes.data, bytes.size, &header, &err);
        if (status != cases[i].expected || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d: %s", cases[i].text, status, err.message);
        buffer_release(&bytes);
    }
    struct npy_header header;
    CHECK_FAILS(npy_parse("\x93NUMPX\x01\x00\x00\x00", 10, &header, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(npy_parse("\x93NUMPY\x04\x00\x00\x00\x00\x00", 12, &header, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_FAILS(npy_parse("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12, &header, &err), RESHARD_ERR_FORMAT);
}

/* Versions differ in how they write the header's length. */
TEST(three_versions_are_known)
{
    static const struct { uint8_t major, minor; bool is_known; } cases[] = {
        { 0, 0, false }, { 1, 0, true }, { 1, 1, false }, { 2, 0, true }, { 3, 0, true }, { 4, 0, false },
    };
    static const char text[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = { 0 };
        struct npy_header header;
        buffer_append(&bytes, "\x93NUMPY", 6);
        buffer_append_byte(&bytes, cases[i].major);
        buffer_append_byte(&bytes, cases[i].minor);
        if (cases[i].major < 2)
            buffer_append_u16le(&bytes, sizeof(text) - 1);
        else
            buffer_append_u32le(&bytes, sizeof(text) - 1);
        buffer_append_text(&bytes, text);
        assert_int_equal(npy_parse(bytes.data, bytes.size, &header, &err), cases[i].is_known ? RESHARD_OK : RESHARD_ERR_UNSUPPORTED);
        assert_true(cases[i].is_known || strstr(err.message, "1.0 to 3.0 are known"));
        buffer_release(&bytes);
    }
}

/* NumPy has an order of bytes for what has several alone, and numbers of the same width where it lacks a type. */
TEST(types_are_written_as_numpy_writes_them)
{
    static const struct { enum dtype dtype; const char *text; bool is_substitute; } cases[] = {
        { DTYPE_F32, "'descr': '<f4'", false }, { DTYPE_BOOL, "'descr': '|b1'", false }, { DTYPE_I8, "'descr': '|i1'", false },
        { DTYPE_C128, "'descr': '<c16'", false }, { DTYPE_F8_E4M3, "'descr': '|u1'", true }, { DTYPE_BF16, "'descr': '<u2'", true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = { 0 };
        bool is_substitute;
        CHECK_OK(npy_write_header(cases[i].dtype, 1, (const int64_t[]){ 3 }, &is_substitute, &bytes, &err));
        if (!memmem(bytes.data, bytes.size, cases[i].text, strlen(cases[i].text)) || is_substitute != cases[i].is_substitute)
            fail_msg("%s: %.*s", cases[i].text, (int)bytes.size - 10, (const char *)bytes.data + 10);
        buffer_release(&bytes);
    }
}

TEST(every_cut_of_a_header_is_refused)
{
    struct buffer bytes = make_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n");
    struct npy_header header;
    for (size_t size = 0; size < bytes.size; size++)
        assert_int_not_equal(npy_parse(bytes.data, size, &header, &err), RESHARD_OK);
    buffer_release(&bytes);
}

TEST(what_is_written_is_read_back)
{
    int64_t shape[RANK_MAX];
    for (int axis = 0; axis < RANK_MAX; axis++)
        shape[axis] = 1;
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (int rank = 0; rank <= RANK_MAX; rank = rank < 3 ? rank + 1 : rank == 3 ? RANK_MAX : RANK_MAX + 1) {
            struct buffer bytes = { 0 };
            struct npy_header header;
            bool is_substitute;
            shape[0] = 1234567;
            reshard_status status = npy_write_header(dtype, rank, shape, &is_substitute, &bytes, &err);
            if (!dtype_element_bytes(dtype)) {
                assert_int_equal(status, RESHARD_ERR_UNSUPPORTED);
                continue;
            }
            CHECK_OK(status);
            assert_int_equal(bytes.size % 64, 0);
            CHECK_OK(npy_parse(bytes.data, bytes.size, &header, &err));
            assert_int_equal(header.data_offset, bytes.size);
            assert_int_equal(header.rank, rank);
            for (int axis = 0; axis < rank; axis++)
                assert_int_equal(header.shape[axis], shape[axis]);
            assert_int_equal(dtype_element_bytes(header.dtype), dtype_element_bytes(dtype));
            assert_true(is_substitute || header.dtype == (enum dtype)dtype);
            buffer_release(&bytes);
        }
    }
    struct buffer bytes = { 0 };
    bool is_substitute;
    CHECK_OK(npy_write_header(DTYPE_BF16, 2, (int64_t[]){ 3, 4 }, &is_substitute, &bytes, &err));
    assert_true(is_substitute);
    assert_memory_equal(bytes.data, "\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }   ", 72);
    assert_int_equal(bytes.data[bytes.size - 1], '\n');
    buffer_release(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(headers_that_numpy_writes_are_read),
        cmocka_unit_test(other_headers_are_refused),
        cmocka_unit_test(three_versions_are_known),
        cmocka_unit_test(types_are_written_as_numpy_writes_them),
        cmocka_unit_test(every_cut_of_a_header_is_refused),
        cmocka_unit_test(what_is_written_is_read_back),
    };
    return cmocka_run_group_tests_name("npy", tests, NULL, NULL);
}
