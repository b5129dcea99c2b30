/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_checkpoint.h"

#include "fail_malloc.h"
#include "encoding/safetensors_header.h"
#include "formats/shared/safetensors_names.h"
#include "formats/shared/safetensors_pieces.h"

#include <inttypes.h>

static reshard_error err;

/* ---- the validation table of the format ---- */

struct header_case {
    const char *why, *header;
    size_t data_bytes;
    const char *message; /* part of it; NULL: must be accepted */
};

static reshard_status read_header(const char *header, size_t data_bytes, bool lenient, struct st_header *out)
{
    struct buffer file = { 0 };
    buffer_append_u64le(&file, strlen(header));
    buffer_append_text(&file, header);
    buffer_append_fill(&file, 7, data_bytes);
    struct reader reader = reader_over_memory(file.data, file.size, "test");
    reshard_status status = st_header_read(&reader, &limits_default, lenient, out, &err);
    buffer_release(&file);
    return status;
}

#define F32_1 "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}"
#define ENTRY(dtype, shape, offsets) "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct header_case refused[] = {
    { "a list", "[]", 0, "not a JSON object" },
    { "null", "null", 0, "not a JSON object" },
    { "a number", "1", 0, "not a JSON object" },
    { "byte order mark", "\xEF\xBB\xBF{}", 0, "byte" },
    { "second object", "{}{}", 0, "byte" },
    { "garbage after the object", "{} x", 0, "byte" },
    { "invalid UTF-8", "{\"\xFF\":" F32_1 "}", 4, "byte" },
    { "lone surrogate", "{\"\\ud800\":" F32_1 "}", 4, "byte" },
    { "trailing comma", "{\"w\":" F32_1 ",}", 4, "byte" },
    { "no dtype", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no field 'dtype'" },
    { "no shape", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no field 'shape'" },
    { "no offsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no field 'data_offsets'" },
    { "entry is null", "{\"w\":null}", 0, "not an object" },
    { "entry is a list", "{\"w\":[\"F32\",[1],[0,4]]}", 4, "not an object" },
    { "unknown dtype", ENTRY("\"F33\"", "[1]", "[0,4]"), 4, "unknown dtype 'F33'" },
    { "lower case", ENTRY("\"f32\"", "[1]", "[0,4]"), 4, "unknown dtype 'f32'" },
    { "complex128 is not in the format", ENTRY("\"C128\"", "[1]", "[0,16]"), 16, "unknown dtype 'C128'" },
    { "torch's own names are not either", ENTRY("\"qint8\"", "[1]", "[0,1]"), 1, "unknown dtype 'qint8'" },
    { "dtype is a number", ENTRY("32", "[1]", "[0,4]"), 4, "dtype is not a string" },
    { "negative dimension", ENTRY("\"F32\"", "[-1]", "[0,4]"), 4, "dimension -1" },
    { "minus zero", ENTRY("\"F32\"", "[-0]", "[0,0]"), 0, "dimension -0" },
    { "float dimension", ENTRY("\"F32\"", "[1.0]", "[0,4]"), 4, "dimension 1.0" },
    { "exponent", ENTRY("\"F32\"", "[1e0]", "[0,4]"), 4, "dimension 1e0" },
    { "string dimension", ENTRY("\"F32\"", "[\"1\"]", "[0,4]"), 4, "not a number" },
    { "leading zero", ENTRY("\"F32\"", "[01]", "[0,4]"), 4, "byte" },
    { "dimension over u64", ENTRY("\"F32\"", "[18446744073709551616]", "[0,4]"), 4, "dimension 18446744073709551616" },
    { "dimension over i64", ENTRY("\"F32\"", "[0,9223372036854775808]", "[0,0]"), 0, "beyond 63 bits" },
    { "shape is a number", ENTRY("\"F32\"", "1", "[0,4]"), 4, "shape is not a list" },
    { "one offset", ENTRY("\"F32\"", "[1]", "[0]"), 4, "not a list of two numbers" },
    { "three offsets", ENTRY("\"F32\"", "[1]", "[0,4,4]"), 4, "more than two numbers" },
    { "float offset", ENTRY("\"F32\"", "[1]", "[0,4.0]"), 4, "offset 4.0" },
    { "offset over u64", ENTRY("\"F32\"", "[1]", "[0,18446744073709551620]"), 4, "offset 18446744073709551620" },
    { "begin after end", ENTRY("\"F32\"", "[1]", "[4,0]"), 4, "begins at 4, after its end 0" },
    { "hole at the start", ENTRY("\"F32\"", "[1]", "[4,8]"), 8, "a hole after 0" },
    { "hole between", "{\"a\":" F32_1 ",\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[5,6]}}", 6, "a hole after 4" },
    { "overlap", "{\"a\":" F32_1 ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}", 5, "inside the data before it" },
    { "range too large", ENTRY("\"F32\"", "[1]", "[0,5]"), 5, "5 bytes, dtype and shape need 4" },
    { "range too small", ENTRY("\"F32\"", "[2]", "[0,4]"), 4, "4 bytes, dtype and shape need 8" },
    { "overflow before the zero", ENTRY("\"F32\"", "[4611686018427387904,4,0]", "[0,0]"), 0, "its size overflows" },
    { "bits overflow", ENTRY("\"U8\"", "[2305843009213693952]", "[0,2305843009213693952]"), 0, "its size overflows" },
    { "half a byte", ENTRY("\"F4\"", "[3]", "[0,2]"), 2, "no whole number of bytes" },
    { "bytes after the last tensor", ENTRY("\"F32\"", "[1]", "[0,4]"), 5, "the file has 5 after its header" },
    { "bytes missing", ENTRY("\"F32\"", "[1]", "[0,4]"), 3, "the file has 3 after its header" },
    { "bytes without tensors", "{}", 1, "the file has 1 after its header" },
    { "metadata is a list", "{\"__metadata__\":[]}", 0, "'__metadata__' is not an object" },
    { "metadata of a number", "{\"__metadata__\":{\"k\":1}}", 0, "not a string" },
    { "metadata of null", "{\"__metadata__\":{\"k\":null}}", 0, "not a string" },
    { "metadata is a tensor", "{\"__metadata__\":" F32_1 "}", 4, "not a string" },
    { "metadata twice", "{\"__metadata__\":null,\"__metadata__\":{}}", 0, "duplicate '__metadata__'" },
    { "field twice", "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "duplicate field 'dtype'" },
    { "name twice", "{\"w\":" F32_1 ",\"w\":" F32_1 "}", 4, "duplicate tensor name 'w'" },
    { "name twice by an escape", "{\"w\":" F32_1 ",\"\\u0077\":" F32_1 "}", 4, "duplicate tensor name 'w'" },
    { "comment", "{/**/}", 0, "byte" },
    { "NaN", ENTRY("NaN", "[1]", "[0,4]"), 4, "byte" },
};

static const struct header_case accepted[] = {
    { "no tensors", "{}", 0, NULL },
    { "padding", "{}      ", 0, NULL },
    { "every white space as padding", "{}\t\r\n ", 0, NULL },
    { "space before the object", " \n{}", 0, NULL },
    { "unknown field", "{\"w\":{\"x\":[{\"y\":null}],\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, NULL },
    { "fields in any order", "{\"w\":{\"data_offsets\":[0,4],\"shape\":[1],\"dtype\":\"F32\"}}", 4, NULL },
    { "dtype by an escape", ENTRY("\"\\u004632\"", "[1]", "[0,4]"), 4, NULL },
    { "scalar", ENTRY("\"I64\"", "[]", "[0,8]"), 8, NULL },
    { "zero before the overflow", ENTRY("\"F32\"", "[0,4611686018427387904,4]", "[0,0]"), 0, NULL },
    { "F4 counts half bytes", ENTRY("\"F4\"", "[3,2]", "[0,3]"), 3, NULL },
    { "metadata is null", "{\"__metadata__\":null}", 0, NULL },
    { "metadata is empty", "{\"__metadata__\":{}}", 0, NULL },
    { "a metadata key twice", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, NULL },
    { "empties share an offset",
      "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"c\":" F32_1
      ",\"b\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]}}",
      4, NULL },
    { "header order is not data order", "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},\"a\":" F32_1 "}", 7, NULL },
    { "empty name", "{\"\":" F32_1 "}", 4, NULL },
    { "NUL in a name", "{\"a\\u0000b\":" F32_1 "}", 4, NULL },
};

TEST(what_the_library_refuses_is_refused)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct st_header header = { 0 };
        err = (reshard_error){ 0 };
        reshard_status status = read_header(refused[i].header, refused[i].data_bytes, false, &header);
        if (status != RESHARD_ERR_FORMAT || !strstr(err.message, refused[i].message) || strncmp(err.message, "header: ", 8) != 0)
            fail_msg("%s: status %d, message '%s'", refused[i].why, status, err.message);
        if (err.offset < 0)
            fail_msg("%s: no offset in '%s'", refused[i].why, err.message);
        assert_null(header.entries);
    }
}

TEST(what_the_library_accepts_is_accepted)
{
    for (size_t i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {
        struct st_header header = { 0 };
        reshard_status status = read_header(accepted[i].header, accepted[i].data_bytes, false, &header);
        if (status)
            fail_msg("%s: status %d, message '%s'", accepted[i].why, status, err.message);
        st_header_release(&header);
    }
}

TEST(lengths_are_checked_before_anything_is_read)
{
    static const struct {
        uint8_t bytes[16];
        size_t size;
        reshard_status expected;
    } cases[] = {
        { { 0 }, 0, RESHARD_ERR_FORMAT },
        { { 2, 0, 0, 0, 0, 0, 0 }, 7, RESHARD_ERR_FORMAT },
        { { 0 }, 8, RESHARD_ERR_FORMAT },
        { { 3, 0, 0, 0, 0, 0, 0, 0, '{', '}' }, 10, RESHARD_ERR_FORMAT },
        { { 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, '{', '}' }, 10, RESHARD_ERR_FORMAT },
        { { 0xF8, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, '{', '}' }, 10, RESHARD_ERR_FORMAT },
        { { 2, 0, 0, 0, 0, 0, 0, 0, '{', '}' }, 10, RESHARD_OK },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_header header = { 0 };
        struct reader reader = reader_over_memory(cases[i].bytes, cases[i].size, "test");
        assert_int_equal(st_header_read(&reader, &limits_default, false, &header, &err), cases[i].expected);
        st_header_release(&header);
    }
}

TEST(a_header_over_the_limit_says_which_limit)
{
    struct limits limits = limits_default;
    struct st_header header = { 0 };
    struct reader reader = reader_over_memory("\4\0\0\0\0\0\0\0{}  ", 12, "test");
    limits.json_bytes = 3;
    CHECK_FAILS(st_header_read(&reader, &limits, false, &header, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "json_bytes"));
}

TEST(more_dimensions_than_we_hold_are_a_limit)
{
    struct buffer text = { 0 };
    struct st_header header = { 0 };
    buffer_append_text(&text, "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1");
    for (int i = 0; i < RANK_MAX; i++)
        buffer_append_text(&text, ",1");
    buffer_append(&text, "]}}", 4);
    CHECK_FAILS(read_header((const char *)text.data, 1, false, &header), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "more than 64 dimensions"));
    buffer_release(&text);
}

TEST(lenient_takes_the_last_of_equal_names)
{
    struct st_header header = { 0 };
    CHECK_OK(read_header("{\"w\":" F32_1 ",\"w\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, true, &header));
    assert_int_equal(header.count, 1);
    assert_int_equal(header.entries[0].dtype, DTYPE_I32);
    st_header_release(&header);
}

TEST(metadata_keeps_order_and_the_last_value)
{
    struct st_header header = { 0 };
    struct str value;
    CHECK_OK(read_header("{\"__metadata__\":{\"z\":\"1\",\"a\":\"2\",\"z\":\"3\"}}", 0, false, &header));
    assert_true(header.has_metadata);
    assert_int_equal(header.metadata_keys.count, 2);
    assert_true(str_is(name_map_at(&header.metadata_keys, 0), "z"));
    assert_true(st_metadata_find(&header, "z", &value) && str_is(value, "3"));
    assert_false(st_metadata_find(&header, "b", &value));
    st_header_release(&header);
}

/* ---- writing ---- */

/* The head of the file that safetensors 0.8.0 makes of b = int16 [0, 1, 2], a = float32 ones (2, 2), c = uint8 5, metadata {k: v}. */
TEST(the_head_is_what_the_library_writes)
{
    static const char expected[] = "\xC0\0\0\0\0\0\0\0"
                                   "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                                   "\"b\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[16,22]},\"c\":{\"dtype\":\"U8\",\"shape\":[],"
                                   "\"data_offsets\":[22,23]}}  ";
    static const int64_t two_two[] = { 2, 2 }, three[] = { 3 };
    struct st_piece pieces[] = {
        { .name = STR("c"), .dtype = DTYPE_U8, .rank = 0, .extent = three, .bytes = 1 },
        { .name = STR("b"), .dtype = DTYPE_I16, .rank = 1, .extent = three, .bytes = 6 },
        { .name = STR("a"), .dtype = DTYPE_F32, .rank = 2, .extent = two_two, .bytes = 16 },
    };
    struct st_metadata metadata = { 0 };
    struct buffer head = { 0 };
    uint64_t data_bytes;
    CHECK_OK(st_metadata_put(&metadata, STR("k"), STR("v"), &err));
    CHECK_OK(st_head_write(pieces, 3, &metadata, &limits_default, &head, &data_bytes, &err));
    assert_int_equal(head.size, sizeof(expected) - 1);
    assert_memory_equal(head.data, expected, sizeof(expected) - 1);
    assert_int_equal(data_bytes, 23);
    buffer_release(&head);
    st_metadata_release(&metadata);
}

TEST(metadata_is_sorted_and_an_empty_map_is_written)
{
    struct st_metadata metadata = { .is_present = true };
    struct buffer head = { 0 };
    uint64_t data_bytes;
    CHECK_OK(st_head_write(NULL, 0, &metadata, &limits_default, &head, &data_bytes, &err));
    assert_memory_equal(head.data + 8, "{\"__metadata__\":{}}     ", 24);
    buffer_clear(&head);
    CHECK_OK(st_metadata_put(&metadata, STR("b"), STR("\n"), &err));
    CHECK_OK(st_metadata_put(&metadata, STR("a"), STR("1"), &err));
    CHECK_OK(st_metadata_put(&metadata, STR("b"), STR("2"), &err));
    CHECK_OK(st_head_write(NULL, 0, &metadata, &limits_default, &head, &data_bytes, &err));
    assert_memory_equal(head.data + 8, "{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\"}}      ", 40);
    buffer_release(&head);
    st_metadata_release(&metadata);
}

/* ---- the driver ---- */

static struct source *open_text(struct store *store, const char *header, size_t data_bytes)
{
    struct source *source = NULL;
    memory_put_safetensors(store, "in.safetensors", header, data_bytes, 0);
    CHECK_OK(memory_open(store, "in.safetensors", false, &source, &err));
    return source;
}

TEST(a_file_is_read_and_written_unchanged)
{
    static const char header[] = "{\"__metadata__\":{\"x\":\"y\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[24,29]}}";
    struct store *store = store_new_memory();
    struct source *source = open_text(store, header, 29);
    assert_int_equal(source->catalog->tensor_count, 2);
    assert_int_equal(source->catalog->item_count, 1);
    assert_true(str_is(source->catalog->items[0].key, "__metadata__"));
    assert_int_equal(source->catalog->chunks[1].offset, 8 + sizeof(header) - 1 + 24);
    assert_int_equal(source->catalog->chunks[1].bytes, 5);

    struct whole_request whole = request_whole(source, NULL);
    struct target target;
    struct buffer in = { 0 }, out = { 0 };
    CHECK_OK(lay_out("safetensors", &whole.request, &target, &err));
    CHECK_OK(publish_simply(store, "out.safetensors", &whole.request, &target, &err));
    CHECK_OK(store_read_all(store, "in.safetensors", AT_MOST(10000), &in, &err));
    CHECK_OK(store_read_all(store, "out.safetensors", AT_MOST(10000), &out, &err));
    /* The library pads the header; this one was not padded. */
    size_t padding = (8 - (sizeof(header) - 1) % 8) % 8;
    assert_int_equal(out.size, in.size + padding);
    assert_memory_equal(out.data + 8, in.data + 8, sizeof(header) - 1);
    assert_memory_equal(out.data + out.size - 29, in.data + in.size - 29, 29);
    buffer_release(&in);
    buffer_release(&out);
    target_free(&target);
    request_release(&whole);
    source_free(source);
    store_free(store);
}

TEST(what_the_format_cannot_hold_is_refused_by_name)
{
    static const struct {
        const char *why;
        enum dtype dtype;
        const char *key, *message;
    } cases[] = {
        { "no complex128", DTYPE_C128, "a", "no dtype C128" },
        { "no quantized types", DTYPE_QINT8, "a", "no dtype qint8" },
        { "reserved", DTYPE_F32, "__metadata__", "reserves" },
        { "no Unicode", DTYPE_F32, "a\xED\xA0\x80", "no Unicode" },
    };
    static const int64_t shape[] = { 2 };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct catalog *wanted = catalog_new("test");
        struct st_pieces pieces = { 0 };
        struct st_metadata ties = { 0 };
        struct target target = { .catalog = catalog_new("safetensors") };
        struct layout_request request = { .wanted = wanted };
        uint32_t tensor;
        CHECK_OK(catalog_add_tensor(wanted, str_of(cases[i].key), cases[i].dtype, 1, shape, &tensor, &err));
        CHECK_FAILS(st_pieces_collect(&request, &target, false, &pieces, &ties, &err), RESHARD_ERR_UNSUPPORTED);
        if (!strstr(err.message, cases[i].message))
            fail_msg("%s: %s", cases[i].why, err.message);
        st_pieces_release(&pieces);
        st_metadata_release(&ties);
        target_free(&target);
        catalog_free(wanted);
    }
}

TEST(equal_keys_are_refused_with_both_paths)
{
    static const int64_t shape[] = { 2 };
    static const struct path_part nested[] = { { .kind = PATH_KEY, .key = { "a", 1 } }, { .kind = PATH_INDEX, .index = 0 } };
    struct catalog *wanted = catalog_new("test");
    struct st_pieces pieces = { 0 };
    struct st_metadata ties = { 0 };
    struct target target = { .catalog = catalog_new("safetensors") };
    struct layout_request request = { .wanted = wanted };
    uint32_t tensor;
    CHECK_OK(catalog_add_tensor(wanted, STR("a.0"), DTYPE_F32, 1, shape, &tensor, &err));
    CHECK_OK(catalog_add_tensor(wanted, STR("a.0"), DTYPE_F32, 1, shape, &tensor, &err));
    CHECK_OK(catalog_set_tensor_path(wanted, tensor, nested, 2, &err));
    CHECK_FAILS(st_pieces_collect(&request, &target, false, &pieces, &ties, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "[\"a.0\"] and [\"a\", 0]"));
    st_pieces_release(&pieces);
    st_metadata_release(&ties);
    target_free(&target);
    catalog_free(wanted);
}

TEST(ties_are_copied_or_recorded_under_the_first_name)
{
    static const int64_t shape[] = { 2 };
    for (int drop = 0; drop < 2; drop++) {
        struct catalog *wanted = catalog_new("test");
        struct st_pieces pieces = { 0 };
        struct st_metadata ties = { 0 };
        struct target target = { .catalog = catalog_new("safetensors") };
        struct layout_request request = { .wanted = wanted };
        uint32_t first, second, third;
        CHECK_OK(catalog_add_tensor(wanted, STR("z"), DTYPE_F32, 1, shape, &first, &err));
        CHECK_OK(catalog_add_tensor(wanted, STR("b"), DTYPE_F32, 1, shape, &second, &err));
        CHECK_OK(catalog_add_tensor(wanted, STR("c"), DTYPE_F32, 1, shape, &third, &err));
        wanted->tensors[second].tied_to = first;
        wanted->tensors[third].tied_to = second;
        CHECK_OK(st_pieces_collect(&request, &target, drop, &pieces, &ties, &err));
        assert_int_equal(pieces.count, drop ? 1 : 3);
        assert_int_equal(ties.count, drop ? 2 : 0);
        assert_int_equal(target.changed.count, 2);
        if (drop) {
            assert_true(str_is(pieces.items[0].name, "b"));
            assert_true(str_is(*st_metadata_get(&ties, STR("z")), "b"));
            assert_true(str_is(*st_metadata_get(&ties, STR("c")), "b"));
        }
        st_pieces_release(&pieces);
        st_metadata_release(&ties);
        target_free(&target);
        catalog_free(wanted);
    }
}

TEST(packed_pairs_become_f4_with_twice_the_last_dimension)
{
    static const int64_t shape[] = { 3, 2 };
    struct st_piece piece = { .name = STR("w"), .dtype = DTYPE_F4_X2, .rank = 2, .extent = shape, .bytes = 6 };
    struct st_metadata metadata = { 0 };
    struct buffer head = { 0 };
    uint64_t data_bytes;
    CHECK_OK(st_head_write(&piece, 1, &metadata, &limits_default, &head, &data_bytes, &err));
    assert_memory_equal(head.data + 8, "{\"w\":{\"dtype\":\"F4\",\"shape\":[3,4],\"data_offsets\":[0,6]}}", 55);
    buffer_release(&head);
}

TEST(every_failed_allocation_is_reported_and_leaks_nothing)
{
    struct store *store = store_new_memory();
    memory_put_safetensors(store, "in.safetensors",
                           "{\"__metadata__\":{\"k\":\"v\"},\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},\"a\":" F32_1 "}",
                           7, 1);
    unsigned long nth = 0;
    do {
        struct source *source = NULL;
        struct target target = { 0 };
        struct whole_request whole = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = memory_open(store, "in.safetensors", false, &source, &err);
        if (!status) {
            whole = request_whole(source, NULL);
            if (whole.tensors && whole.items)
                status = lay_out("safetensors", &whole.request, &target, &err);
        }
        assert_true(status == RESHARD_OK || status == RESHARD_ERR_MEMORY);
        target_free(&target);
        request_release(&whole);
        source_free(source);
    } while (fail_malloc_was_hit());
    assert_true(nth > 20);
    store_free(store);
}

/* ---- files of the real library ---- */

static reshard_status open_fixture(const char *folder, const char *file, struct source **out)
{
    char path[8300];
    struct store *store = NULL;
    char *name = NULL;
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    err = (reshard_error){ 0 };
    reshard_status status = store_open_path(path, 0, &store, &name, &err);
    if (!status) {
        struct open_options options = { .limits = limits_default, .iteration = -1 };
        status = format_open(store, name ? name : "", &options, out, &err);
    }
    free(name);
    return status;
}

static void check_refused(const char *folder, const char *name)
{
    struct source *source = NULL;
    const char *file = strstr(name, "-hf-") ? "ckpt" : "ckpt.safetensors";
    reshard_status status = open_fixture(folder, file, &source);
    if (status < RESHARD_ERR_FORMAT || status > RESHARD_ERR_LIMIT)
        fail_msg("%s: status %d: %s", name, status, err.message);
    assert_true(err.message[0] != '\0');
    source_free(source);
}

static void check_accepted(const char *folder, const char *name)
{
    struct source *source = NULL;
    const char *file = strstr(name, "-hf-") ? "ckpt" : "ckpt.safetensors";
    reshard_status status = open_fixture(folder, file, &source);
    if (status)
        fail_msg("%s: status %d: %s", name, status, err.message);
    source_free(source);
}

TEST(bad_files_of_the_fixtures_are_refused)
{
    assert_true(each_fixture("safetensors", "bad-safetensors-", check_refused) > 80);
}

TEST(good_files_of_the_fixtures_are_read)
{
    assert_true(each_fixture("safetensors", "safetensors-", check_accepted) >= 19);
}

/* Files that the library itself wrote, without metadata or with one pair: its head and ours must be equal to the byte. */
static void check_same_head(const char *folder, const char *name)
{
    static const char *const by_library[] = { "dtypes",           "many",      "numpy",          "scalars-empties",
                                              "unicode-keys",     "high-rank", "metadata-empty", "slices",
                                              "layout-canonical", "serialize", "no-tensors" };
    bool is_by_library = false;
    for (size_t i = 0; i < sizeof(by_library) / sizeof(by_library[0]); i++)
        is_by_library = is_by_library || strcmp(name + strlen("safetensors-"), by_library[i]) == 0;
    if (!is_by_library)
        return;
    struct source *source = NULL;
    struct target target;
    struct buffer file = { 0 };
    CHECK_OK(open_fixture(folder, "ckpt.safetensors", &source));
    struct whole_request whole = request_whole(source, NULL);
    CHECK_OK(lay_out("safetensors", &whole.request, &target, &err));
    CHECK_OK(store_read_all(source->store, source->name, AT_MOST(UINT64_C(1) << 30), &file, &err));
    assert_int_equal(target.catalog->objects[0].bytes, file.size);

    struct store *store = store_new_memory();
    struct buffer written = { 0 };
    CHECK_OK(publish_simply(store, "out", &whole.request, &target, &err));
    CHECK_OK(store_read_all(store, "out", AT_MOST(UINT64_C(1) << 30), &written, &err));
    if (written.size != file.size || memcmp(written.data, file.data, file.size) != 0)
        fail_msg("%s: written differently", name);
    buffer_release(&written);
    store_free(store);
    buffer_release(&file);
    target_free(&target);
    request_release(&whole);
    source_free(source);
}

TEST(files_of_the_library_are_written_again_to_the_byte)
{
    assert_true(each_fixture("safetensors", "safetensors-", check_same_head) >= 19);
}

TEST(names_of_indexes)
{
    static const struct {
        const char *name;
        bool is_index;
    } cases[] = {
        { "model.safetensors.index.json", true }, { "model.safetensors.index.fp16.json", true }, { "x.safetensors.index.json", true },
        { "model.safetensors.index.json.bak", false }, { "model.safetensors.index.fp16", false }, { "model.index.json", false },
        { "config.json", false }, { ".json", false }, { "", false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (st_name_is_index(str_of(cases[i].name)) != cases[i].is_index)
            fail_msg("'%s'", cases[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_indexes),
        cmocka_unit_test(what_the_library_refuses_is_refused),
        cmocka_unit_test(what_the_library_accepts_is_accepted),
        cmocka_unit_test(lengths_are_checked_before_anything_is_read),
        cmocka_unit_test(a_header_over_the_limit_says_which_limit),
        cmocka_unit_test(more_dimensions_than_we_hold_are_a_limit),
        cmocka_unit_test(lenient_takes_the_last_of_equal_names),
        cmocka_unit_test(metadata_keeps_order_and_the_last_value),
        cmocka_unit_test(the_head_is_what_the_library_writes),
        cmocka_unit_test(metadata_is_sorted_and_an_empty_map_is_written),
        cmocka_unit_test(a_file_is_read_and_written_unchanged),
        cmocka_unit_test(what_the_format_cannot_hold_is_refused_by_name),
        cmocka_unit_test(equal_keys_are_refused_with_both_paths),
        cmocka_unit_test(ties_are_copied_or_recorded_under_the_first_name),
        cmocka_unit_test(packed_pairs_become_f4_with_twice_the_last_dimension),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaks_nothing),
        cmocka_unit_test(bad_files_of_the_fixtures_are_refused),
        cmocka_unit_test(good_files_of_the_fixtures_are_read),
        cmocka_unit_test(files_of_the_library_are_written_again_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
