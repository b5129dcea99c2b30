/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_checkpoint.h"

#include "base/crc32.h"
#include "encoding/zip.h"
#include "engine/engine.h"
#include "fail_malloc.h"
#include "formats/zarr/zarr_array.h"

static reshard_error err;

#define V2(members) "{\"zarr_format\":2," members "}"
#define V2_F4 "\"dtype\":\"<f4\",\"compressor\":null,\"filters\":null,"
#define V3(shape, members) "{\"zarr_format\":3,\"node_type\":\"array\",\"shape\":" shape "," members "}"
#define GRID(shape) "\"chunk_grid\":{\"name\":\"regular\",\"configuration\":{\"chunk_shape\":" shape "}},"
#define KEYS "\"chunk_key_encoding\":{\"name\":\"default\",\"configuration\":{\"separator\":\"/\"}},"
#define LITTLE "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"little\"}}"

static void put_hex(struct store *store, const char *name, const char *hex)
{
    struct buffer bytes = { 0 };
    unsigned value;
    for (; *hex; hex += 2) {
        while (*hex == ' ')
            hex++;
        assert_int_equal(sscanf(hex, "%2x", &value), 1);
        buffer_append_byte(&bytes, (uint8_t)value);
    }
    memory_put(store, name, bytes.data, bytes.size);
    buffer_release(&bytes);
}

/* ---- reading ---- */

static reshard_status collect(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                              reshard_error *error)
{
    (void)tensor, (void)offset, (void)is_last, (void)error;
    return buffer_append(context, bytes, size) ? RESHARD_OK : RESHARD_ERR_MEMORY;
}

static reshard_status read_tensor(struct source *source, uint32_t tensor, struct buffer *out)
{
    struct engine_source from = { source->store, source->catalog, &source->limits, NULL };
    struct engine_options options = { .threads = 1, .memory_bytes = 1 << 20 };
    return engine_stream(&from, &tensor, 1, NULL, NULL, &options, collect, out, &err);
}

/* The first tensor as numbers of one byte each between spaces: the elements of the tests are small. */
static void check_elements(const char *why, struct store *store, unsigned width, const char *expected)
{
    struct source *source = NULL;
    struct buffer bytes = { 0 }, text = { 0 };
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_string_equal(source->driver->name, "zarr");
    CHECK_OK(read_tensor(source, 0, &bytes));
    for (size_t i = 0; i < bytes.size; i += width) {
        float value;
        memcpy(&value, bytes.data + i, width == 4 ? 4 : 0);
        buffer_printf(&text, "%s%d", i ? " " : "", width == 4 ? (int)value : bytes.data[i]);
    }
    buffer_append_byte(&text, 0);
    if (strcmp((char *)text.data, expected) != 0)
        fail_msg("%s: '%s', expected '%s'", why, (char *)text.data, expected);
    buffer_release(&bytes);
    buffer_release(&text);
    source_free(source);
}

static bool text_has(struct str text, const char *words)
{
    return memmem(text.data, text.size, words, strlen(words)) != NULL;
}

#define CHUNK_C "00000000 0000803f 00000040 0000a040 0000c040 0000e040"
#define EDGE_C "00004040 00008040 00000000 00000041 00001041 00000000"

TEST(chunks_at_the_edge_are_of_full_size_in_every_order)
{
    static const struct {
        const char *why, *document_name, *document, *first, *first_bytes, *second, *second_bytes;
    } cases[] = {
        { "format 2", ".zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":0.0,\"order\":\"C\""), "0.0", CHUNK_C, "0.1",
          EDGE_C },
        { "column-major", ".zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":0.0,\"order\":\"F\""), "0.0",
          "00000000 0000a040 0000803f 0000c040 00000040 0000e040", "0.1", "00004040 00000041 00008040 00001041 00000000 00000000" },
        { "slashes", ".zarray",
          V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":null,\"order\":\"C\",\"dimension_separator\":\"/\""), "0/0", CHUNK_C,
          "0/1", EDGE_C },
        { "format 3", "zarr.json",
          V3("[2,5]", "\"data_type\":\"float32\"," GRID("[2,3]") KEYS "\"fill_value\":0.0,\"codecs\":[" LITTLE "]"), "c/0/0", CHUNK_C,
          "c/0/1", EDGE_C },
        { "transposed, big-endian", "zarr.json",
          V3("[2,5]", "\"data_type\":\"float32\"," GRID("[2,3]") KEYS
             "\"fill_value\":0.0,\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":[1,0]}},"
             "{\"name\":\"bytes\",\"configuration\":{\"endian\":\"big\"}}]"),
          "c/0/0", "00000000 40a00000 3f800000 40c00000 40000000 40e00000", "c/0/1",
          "40400000 41000000 40800000 41100000 00000000 00000000" },
        { "names as in format 2", "zarr.json",
          V3("[2,5]", "\"data_type\":{\"name\":\"float32\"}," GRID(
                          "[2,3]") "\"chunk_key_encoding\":\"v2\",\"fill_value\":\"0x00000000\",\"codecs\":[" LITTLE "]"),
          "0.0", CHUNK_C, "0.1", EDGE_C },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = store_new_memory();
        memory_put_text(store, cases[i].document_name, cases[i].document);
        put_hex(store, cases[i].first, cases[i].first_bytes);
        put_hex(store, cases[i].second, cases[i].second_bytes);
        check_elements(cases[i].why, store, 4, "0 1 2 3 4 5 6 7 8 9");
        store_free(store);
    }
}

/* The bits are those of torch 2.13, and for a NaN of bfloat16 those of ml_dtypes. */
TEST(fill_values_of_small_floats_are_rounded_to_nearest_even)
{
    static const char *const types[] = { "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16", "bfloat16" };
    static const struct {
        const char *value;
        uint16_t bits[6];
    } cases[] = {
        { "0.0", { 0 } }, { "0", { 0 } },
        { "-0.0", { 0x80, 0x80, 0, 0, 0x8000, 0x8000 } }, { "1", { 0x38, 0x3C, 0x40, 0x40, 0x3C00, 0x3F80 } },
        { "1.5", { 0x3C, 0x3E, 0x44, 0x42, 0x3E00, 0x3FC0 } }, { "-0.3125", { 0xAA, 0xB5, 0xB2, 0xB9, 0xB500, 0xBEA0 } },
        { "0.001953125", { 0x01, 0x18, 0x02, 0x1C, 0x1800, 0x3B00 } }, { "0.0001", { 0x00, 0x07, 0x00, 0x0B, 0x068E, 0x38D2 } },
        { "240.0", { 0x77, 0x5C, 0x7F, 0x60, 0x5B80, 0x4370 } }, { "17.0", { 0x58, 0x4C, 0x60, 0x50, 0x4C40, 0x4188 } },
        { "19.0", { 0x5A, 0x4D, 0x62, 0x51, 0x4CC0, 0x4198 } }, { "1.0625", { 0x38, 0x3C, 0x40, 0x40, 0x3C40, 0x3F88 } },
        { "\"NaN\"", { 0x7F, 0x7E, 0x80, 0x80, 0x7E00, 0x7FC0 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (size_t type = 0; type < 6; type++) {
            struct store *store = store_new_memory();
            char text[512], expected[16];
            snprintf(text, sizeof(text),
                     V3("[1]", "\"data_type\":\"%s\"," GRID("[1]") KEYS "\"fill_value\":%s,\"codecs\":[" LITTLE "]"),
                     types[type], cases[i].value);
            memory_put_text(store, "zarr.json", text);
            snprintf(expected, sizeof(expected), type < 4 ? "%d" : "%d %d", cases[i].bits[type] & 255, cases[i].bits[type] >> 8);
            check_elements(text, store, 1, expected);
            store_free(store);
        }
}

/* Of 2^(bits - 127) alone, as the OCP's specification of microscaling has it; 0 is what TensorStore says for the smallest. */
TEST(fill_values_of_e8m0_are_powers_of_two)
{
    static const struct {
        const char *value, *bits; /* NULL: it is none of them */
    } cases[] = {
        { "1.0", "127" }, { "2", "128" }, { "0.5", "126" }, { "5.877471754111438e-39", "0" }, { "1.7014118346046923e38", "254" },
        { "0.0", "0" }, { "\"NaN\"", "255" }, { "3.0", NULL }, { "3.402823669209385e38", NULL }, { "2.938735877055719e-39", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct store *store = store_new_memory();
        struct source *source = NULL;
        char text[512];
        snprintf(text, sizeof(text),
                 V3("[1]", "\"data_type\":\"float8_e8m0fnu\"," GRID("[1]") KEYS "\"fill_value\":%s,\"codecs\":[" LITTLE "]"),
                 cases[i].value);
        memory_put_text(store, "zarr.json", text);
        if (cases[i].bits)
            check_elements(text, store, 1, cases[i].bits);
        else if (memory_open(store, "", false, &source, &err) == RESHARD_OK)
            fail_msg("%s is taken", cases[i].value);
        store_free(store);
    }
}

/* That of a number alone is asked for; what there is no name for has none. */
TEST(types_have_the_names_of_either_version)
{
    assert_string_equal(zarr_dtype_name_v2(DTYPE_BOOL), "|b1");
    assert_string_equal(zarr_dtype_name_v3(DTYPE_BOOL), "bool");
    assert_string_equal(zarr_dtype_name_v3(DTYPE_BITS16), "r16");
    assert_null(zarr_dtype_name_v2(DTYPE_BITS16));
    assert_null(zarr_dtype_name_v3(DTYPE_F4));
}

TEST(absent_chunks_hold_the_fill_value)
{
    struct store *store = store_new_memory();
    memory_put_text(store, ".zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":7,\"order\":\"C\""));
    put_hex(store, "0.1", EDGE_C);
    check_elements("one of two", store, 4, "7 7 7 3 4 7 7 7 8 9");
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_int_equal(source->catalog->warning_count, 1);
    source_free(source);
    memory_put_text(store, ".zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":null,\"order\":\"C\""));
    err = (reshard_error){ 0 };
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'0.0' is missing"));
    assert_non_null(strstr(err.hint, "zarr-python 3 does not store chunks of zeros"));
    CHECK_OK(memory_open(store, "", true, &source, &err));
    assert_int_equal(source->catalog->tensors[0].chunk_count, 2);
    assert_int_equal(source->catalog->warning_count, 1);
    assert_true(text_has(source->catalog->warnings[0].text, "1 of 2 chunks are not stored: they hold zero"));
    source_free(source);
    store_free(store);
}

/* Megatron's writers store every chunk, and say null. */
TEST(a_chunk_that_megatron_wrote_and_is_not_there_was_lost)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_text(store, "metadata.json", "{\"sharded_backend\": \"zarr\", \"sharded_backend_version\": 1}");
    memory_put_text(store, "w/.zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":null,\"order\":\"C\""));
    put_hex(store, "w/0.1", EDGE_C);
    err = (reshard_error){ 0 };
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'w/0.0' is missing"));
    assert_string_equal(err.object, "w/0.0");
    CHECK_OK(memory_open(store, "", true, &source, &err)); /* what is there, for who asks for it */
    source_free(source);
    store_free(store);
}

#define SHARDED(extra)                                                                                                                     \
    V3("[4,6]", "\"data_type\":\"uint16\"," GRID("[4,4]") KEYS "\"fill_value\":0,\"codecs\":[{\"name\":\"sharding_indexed\","            \
       "\"configuration\":{\"chunk_shape\":[2,2],\"codecs\":[" LITTLE "],\"index_codecs\":[" LITTLE ",{\"name\":\"crc32c\"}]" extra "}}]")
#define SHARD                                                                                                                              \
    "0000 0100 0600 0700 0c00 0d00 1200 1300 0200 0300 0800 0900 0e00 0f00 1400 1500"                                                      \
    "0000000000000000 0800000000000000 1000000000000000 0800000000000000 0800000000000000 0800000000000000 1800000000000000 "              \
    "0800000000000000"
#define SHARD_2                                                                                                                            \
    "0400 0500 0a00 0b00 1000 1100 1600 1700"                                                                                              \
    "0000000000000000 0800000000000000 ffffffffffffffff ffffffffffffffff 0800000000000000 0800000000000000 ffffffffffffffff "              \
    "ffffffffffffffff"

TEST(shards_are_read_through_their_index)
{
    struct store *store = store_new_memory();
    memory_put_text(store, "zarr.json", SHARDED(""));
    put_hex(store, "c/0/0", SHARD "02ac3a26");
    put_hex(store, "c/0/1", SHARD_2 "9fd65780");
    check_elements("two shards", store, 2, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23");
    put_hex(store, "c/0/0", SHARD "02ac3a27");
    struct source *source = NULL;
    err = (reshard_error){ 0 };
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'c/0/0': shard index: crc32c"));
    /* To whoever wants what is left it is a hole, and told as damage. */
    const struct open_options options = { .limits = limits_default, .iteration = -1, .borrow_store = true, .is_salvage = true };
    CHECK_OK(format_open(store, "", &options, &source, &err));
    const struct catalog *catalog = source->catalog;
    bool is_told = false;
    for (uint32_t i = 0; i < catalog->warning_count; i++)
        is_told = is_told || (catalog->warnings[i].is_damage && strstr(catalog->warnings[i].text.data, "'c/0/0': shard index: crc32c"));
    assert_true(is_told);
    source_free(source);
    store_free(store);
}

#define UNCHECKED_SHARD(extra)                                                                                                             \
    V3("[2,2]", "\"data_type\":\"uint16\"," GRID("[2,2]") KEYS "\"fill_value\":0,\"codecs\":[{\"name\":\"sharding_indexed\","            \
       "\"configuration\":{\"chunk_shape\":[1,2],\"codecs\":[" LITTLE "],\"index_codecs\":[" LITTLE "]" extra "}}]")
#define AT_START ",\"index_location\":\"start\""
#define ROWS "0100 0200 0300 0400"
#define ROW_1 "0000000000000000 0400000000000000"

/* Inner chunks lie before the index, or behind it: never in it, and never in what is not the shard's. */
TEST(an_inner_chunk_outside_the_shards_data_is_refused)
{
    static const struct {
        const char *why, *document, *shard, *found;
    } cases[] = {
        { "as it should be", UNCHECKED_SHARD(""), ROWS ROW_1 "0400000000000000 0400000000000000", NULL },
        { "the index itself", UNCHECKED_SHARD(""), ROWS ROW_1 "0800000000000000 0400000000000000",
          "4 bytes at 8, beyond the shard's [0, 8)" },
        { "half of it in the index", UNCHECKED_SHARD(""), ROWS ROW_1 "0600000000000000 0400000000000000", "4 bytes at 6" },
        { "behind the file", UNCHECKED_SHARD(""), ROWS ROW_1 "2800000000000000 0400000000000000", "4 bytes at 40" },
        { "too long", UNCHECKED_SHARD(""), ROWS ROW_1 "0400000000000000 0500000000000000", "5 bytes at 4" },
        { "an end beyond 2^64", UNCHECKED_SHARD(""), ROWS ROW_1 "fcffffffffffffff 0400000000000000", "4 bytes at 18446744073709551612" },
        { "an absent chunk that has a place", UNCHECKED_SHARD(""), ROWS ROW_1 "0000000000000000 ffffffffffffffff",
          "18446744073709551615 bytes at 0" },
        { "index first, as it should be", UNCHECKED_SHARD(AT_START),
          "2000000000000000 0400000000000000 2400000000000000 0400000000000000" ROWS, NULL },
        { "index first, a chunk in it", UNCHECKED_SHARD(AT_START),
          "2000000000000000 0400000000000000 0000000000000000 0400000000000000" ROWS, "4 bytes at 0, beyond the shard's [32, 40)" },
        { "index first, half in it", UNCHECKED_SHARD(AT_START), "2000000000000000 0400000000000000 1e00000000000000 0400000000000000" ROWS,
          "4 bytes at 30" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = store_new_memory();
        struct source *source = NULL;
        memory_put_text(store, "zarr.json", cases[i].document);
        put_hex(store, "c/0/0", cases[i].shard);
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "", false, &source, &err);
        if (status != (cases[i].found ? RESHARD_ERR_FORMAT : RESHARD_OK) || (cases[i].found && !strstr(err.message, cases[i].found)))
            fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
        source_free(source);
        if (!cases[i].found)
            check_elements(cases[i].why, store, 2, "1 2 3 4");
        store_free(store);
    }
}

struct wrong_document {
    const char *why, *name, *document;
    reshard_status status;
    const char *message;
};

static void refused_must_be(const struct wrong_document *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct store *store = store_new_memory();
        struct source *source = NULL;
        memory_put_text(store, cases[i].name, cases[i].document);
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "", false, &source, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].message) || !strstr(err.message, cases[i].name))
            fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
        source_free(source);
        store_free(store);
    }
}

TEST(wrong_documents_are_refused_with_the_member)
{
    static const struct wrong_document cases[] = {
#define GOOD2 V2_F4 "\"fill_value\":0,\"order\":\"C\","
        { "no chunks", ".zarray", V2(GOOD2 "\"shape\":[2]"), RESHARD_ERR_FORMAT, "'chunks' is missing" },
        { "an extent of 0", ".zarray", V2(GOOD2 "\"shape\":[2],\"chunks\":[0]"), RESHARD_ERR_FORMAT, "extent 0" },
        { "another rank", ".zarray", V2(GOOD2 "\"shape\":[2],\"chunks\":[1,1]"), RESHARD_ERR_FORMAT, "chunks has 2 axes" },
        { "a fraction", ".zarray", V2(GOOD2 "\"shape\":[2.0],\"chunks\":[1]"), RESHARD_ERR_FORMAT, "no list of integers" },
        { "too large", ".zarray", V2(GOOD2 "\"shape\":[4611686018427387904,4],\"chunks\":[1,1]"), RESHARD_ERR_FORMAT, "2^63" },
        { "fields", ".zarray",
          V2("\"dtype\":[[\"a\",\"<i4\"]],\"compressor\":null,\"filters\":null,\"fill_value\":0,\"order\":\"C\",\"shape\":[2],\"chunks\":["
             "1]"),
          RESHARD_ERR_UNSUPPORTED, "records" },
        { "bytes without meaning", ".zarray",
          V2("\"dtype\":\"|V2\",\"compressor\":null,\"filters\":null,\"fill_value\":null,\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_UNSUPPORTED, "unknown meaning" },
        { "pickled elements", ".zarray",
          V2("\"dtype\":\"|O\",\"compressor\":null,\"filters\":[{\"id\":\"pickle\"}],\"fill_value\":null,\"order\":\"C\",\"shape\":[2],"
             "\"chunks\":[1]"),
          RESHARD_ERR_UNSUPPORTED, "'pickle'" },
        { "a fill value of another type", ".zarray", V2(V2_F4 "\"fill_value\":\"x\",\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "no F32" },
        { "a huge hole", ".zarray", V2(GOOD2 "\"shape\":[1099511627776],\"chunks\":[1024]"), RESHARD_ERR_LIMIT, "tensor_expansion" },
#define GOOD3 "\"data_type\":\"float32\"," GRID("[2]") KEYS "\"fill_value\":0.0,"
        { "no codecs", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[]"), RESHARD_ERR_FORMAT, "no codec makes bytes" },
        { "bytes twice", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "," LITTLE "]"), RESHARD_ERR_FORMAT, "behind the one" },
        { "compressed before it is bytes", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[{\"name\":\"gzip\"}," LITTLE "]"), RESHARD_ERR_FORMAT,
          "before the one" },
        { "no byte order", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[\"bytes\"]"), RESHARD_ERR_FORMAT, "endian" },
        { "no permutation", "zarr.json",
          V3("[2]", GOOD3 "\"codecs\":[{\"name\":\"transpose\",\"configuration\":{\"order\":[1]}}," LITTLE "]"), RESHARD_ERR_FORMAT,
          "no permutation" },
        { "what must be understood", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "],\"x\":{\"must_understand\":true}"),
          RESHARD_ERR_UNSUPPORTED, "'x'" },
        { "an unknown grid", "zarr.json",
          V3("[2]", "\"data_type\":\"float32\",\"chunk_grid\":\"rectilinear\"," KEYS "\"fill_value\":0,\"codecs\":[" LITTLE "]"),
          RESHARD_ERR_UNSUPPORTED, "rectilinear" },
        { "a fill value that is none", "zarr.json",
          V3("[2]", "\"data_type\":\"float32\"," GRID("[2]") KEYS "\"fill_value\":null,\"codecs\":[" LITTLE "]"), RESHARD_ERR_FORMAT,
          "no F32" },
        { "inner chunks that do not divide", "zarr.json",
          V3("[4]", "\"data_type\":\"uint8\"," GRID("[4]") KEYS
             "\"fill_value\":0,\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{\"chunk_shape\":[3],"
             "\"codecs\":[\"bytes\"],\"index_codecs\":[" LITTLE "]}}]"),
          RESHARD_ERR_FORMAT, "do not divide" },
#define SHARD_OF(members) V3("[4]", "\"data_type\":\"uint8\"," GRID("[4]") KEYS \
                           "\"fill_value\":0,\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{" members "}}]")
        { "no inner codecs", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"index_codecs\":[" LITTLE "]"), RESHARD_ERR_FORMAT, "codecs" },
        { "inner codecs that are no list", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":7,\"index_codecs\":[" LITTLE "]"),
          RESHARD_ERR_FORMAT, "no list" },
        { "codecs that are no list", "zarr.json", V3("[2]", GOOD3 "\"codecs\":{}"), RESHARD_ERR_FORMAT, "no list" },
        { "a name that leads out", ".zmetadata", "{\"metadata\":{\"../x/.zarray\":{}}}", RESHARD_ERR_FORMAT, "'..'" },
    };
    refused_must_be(cases, sizeof(cases) / sizeof(cases[0]));
}

/* Each member of the documents of either version, as something that it may not be. */
TEST(members_that_are_something_else_are_refused)
{
    static const struct wrong_document cases[] = {
        { "no object", ".zarray", "[]",
          RESHARD_ERR_FORMAT, "the document is no object" },
        { "a format that is no number", ".zarray", "{\"zarr_format\":\"2\"}",
          RESHARD_ERR_FORMAT, "zarr_format is no integer" },
        { "another format", ".zarray", "{\"zarr_format\":3}",
          RESHARD_ERR_UNSUPPORTED, "zarr_format 3, expected 2" },
        { "a separator that is none", ".zarray", V2(GOOD2 "\"shape\":[2],\"chunks\":[1]" ",\"dimension_separator\":\"-\""),
          RESHARD_ERR_FORMAT, "the separator is neither" },
        { "an order that is none", ".zarray", V2(V2_F4 "\"fill_value\":0,\"order\":\"A\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "order is neither" },
        { "a dtype that is none", ".zarray", V2("\"dtype\":4,\"compressor\":null,\"filters\":null,\"fill_value\":0,\"order\":\"C\","
             "\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "dtype is no string" },
        { "a compressor without id", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":{\"level\":1},\"filters\":null,\"fill_value\":0,"
             "\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "compressor: a codec is no object with an id" },
        { "filters that are no list", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":null,\"filters\":{\"id\":\"zlib\"},"
             "\"fill_value\":0,\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "filters is no list" },
        { "a filter without id", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":null,\"filters\":[7],\"fill_value\":0,"
             "\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "filters: a codec is no object with an id" },
        { "a raw lzma", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":{\"id\":\"lzma\",\"format\":3},\"filters\":null,"
             "\"fill_value\":0,\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_UNSUPPORTED, "lzma without a header" },
        { "a shuffle of nothing", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":null,\"filters\":[{\"id\":\"shuffle\","
             "\"elementsize\":0}],\"fill_value\":0,\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "elementsize is no size" },
        { "a checksum in the middle", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":null,\"filters\":[{\"id\":\"crc32\","
             "\"location\":\"middle\"}],\"fill_value\":0,\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"),
          RESHARD_ERR_FORMAT, "location is neither" },
        { "many filters", ".zarray", V2("\"dtype\":\"<f4\",\"compressor\":null,"
             "\"filters\":[{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},"
             "{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"},{\"id\":\"zlib\"}],\"fill_value\":0,\"order\":\"C\",\"shape\":[2],"
             "\"chunks\":[1]"),
          RESHARD_ERR_UNSUPPORTED, "more than" },
        { "a group of another format", ".zgroup", "{\"zarr_format\":1}",
          RESHARD_ERR_FORMAT, "zarr_format of a group is not 2" },
        { "consolidated nothing", ".zmetadata", "{\"metadata\":7}",
          RESHARD_ERR_FORMAT, "no object 'metadata'" },
        { "no type of node", "zarr.json", "{\"zarr_format\":3}",
          RESHARD_ERR_FORMAT, "node_type is missing" },
        { "another type of node", "zarr.json", "{\"zarr_format\":3,\"node_type\":\"leaf\"}",
          RESHARD_ERR_FORMAT, "node_type 'leaf' is neither" },
        { "no chunk_shape", "zarr.json", V3("[2]", "\"data_type\":\"float32\",\"chunk_grid\":{\"name\":\"regular\","
             "\"configuration\":{}}," KEYS "\"fill_value\":0," "\"codecs\":[" LITTLE "]"),
          RESHARD_ERR_FORMAT, "chunk_grid has no chunk_shape" },
        { "keys of another kind", "zarr.json", V3("[2]", "\"data_type\":\"float32\"," GRID("[2]") "\"chunk_key_encoding\":\"fan\","
             "\"fill_value\":0," "\"codecs\":[" LITTLE "]"),
          RESHARD_ERR_UNSUPPORTED, "chunk_key_encoding 'fan', supported are 'default' and 'v2'" },
        { "transformers", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "],\"storage_transformers\":[\"x\"]"),
          RESHARD_ERR_UNSUPPORTED, "storage_transformers, none is supported" },
        { "attributes that are none", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "],\"attributes\":[]"),
          RESHARD_ERR_FORMAT, "attributes is no object" },
        { "names of more axes", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "],\"dimension_names\":[\"x\",\"y\"]"),
          RESHARD_ERR_FORMAT, "dimension_names is no list of 1 names" },
        { "a name that is a number", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[" LITTLE "],\"dimension_names\":[1]"),
          RESHARD_ERR_FORMAT, "dimension_names: name 0 is no string" },
        { "a codec that is a number", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[7]"),
          RESHARD_ERR_FORMAT, "is neither a name nor an object with one" },
        { "a configuration that is a number", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[{\"name\":\"bytes\",\"configuration\":7}]"),
          RESHARD_ERR_FORMAT, "configuration is no object" },
        { "an order of more axes", "zarr.json", V3("[2]", GOOD3 "\"codecs\":[{\"name\":\"transpose\","
             "\"configuration\":{\"order\":[0,1]}}," LITTLE "]"),
          RESHARD_ERR_FORMAT, "order is no list of 1 axes" },
        { "no index codecs", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":[\"bytes\"],\"index_codecs\":[]"),
          RESHARD_ERR_FORMAT, "index_codecs is no list of codecs" },
        { "an index that is compressed", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":[\"bytes\"],"
             "\"index_codecs\":[" LITTLE ",\"gzip\"]"),
          RESHARD_ERR_UNSUPPORTED, "index codec 'gzip'" },
        { "an index in an unknown order of bytes", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":[\"bytes\"],"
             "\"index_codecs\":[{\"name\":\"bytes\",\"configuration\":{\"endian\":\"middle\"}}]"),
          RESHARD_ERR_FORMAT, "endian" },
        { "an index in no order of bytes", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":[\"bytes\"],\"index_codecs\":[\"bytes\"]"),
          RESHARD_ERR_FORMAT, "endian is neither" },
        { "inner chunks of more axes", "zarr.json", SHARD_OF("\"chunk_shape\":[2,1],\"codecs\":[\"bytes\"],\"index_codecs\":[" LITTLE "]"),
          RESHARD_ERR_FORMAT, "chunk_shape is no list of 1 integers" },
        { "an index in the middle", "zarr.json", SHARD_OF("\"chunk_shape\":[2],\"codecs\":[\"bytes\"],\"index_location\":\"middle\","
             "\"index_codecs\":[" LITTLE "]"),
          RESHARD_ERR_FORMAT, "index_location is neither" },
    };
    refused_must_be(cases, sizeof(cases) / sizeof(cases[0]));
}

static struct store *nested_store(void)
{
    struct store *store = store_new_memory();
    memory_put_text(store, ".zgroup", "{\"zarr_format\":2}");
    memory_put_text(store, ".zattrs", "{\"step\":17}");
    memory_put_text(store, "a/b/.zarray", V2(V2_F4 "\"shape\":[2,5],\"chunks\":[2,3],\"fill_value\":0.0,\"order\":\"C\""));
    memory_put_text(store, "a/b/.zattrs", "{}");
    put_hex(store, "a/b/0.0", CHUNK_C);
    put_hex(store, "a/b/0.1", EDGE_C);
    memory_put_text(store, "a/b.w/zarr.json",
                    V3("[]", "\"data_type\":\"uint8\"," GRID("[]") KEYS
                       "\"fill_value\":3,\"codecs\":[{\"name\":\"bytes\"}],\"attributes\":{\"u\":\"m\"}"));
    memory_put_text(store, "left", "over");
    return store;
}

TEST(groups_attributes_and_stray_files_are_found)
{
    struct store *store = nested_store();
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_int_equal(source->catalog->tensor_count, 2);
    assert_true(catalog_find(source->catalog, STR("a/b")) != CATALOG_NONE);
    assert_true(catalog_find(source->catalog, STR("a/b.w")) != CATALOG_NONE);
    assert_int_equal(source->catalog->item_count, 2);
    assert_true(str_is(source->catalog->items[0].key, ".zattrs"));
    assert_true(str_is(source->catalog->items[1].key, "a/b.w/.zattrs"));
    assert_int_equal(source->catalog->warning_count, 1);
    source_free(source);
    CHECK_OK(memory_open(store, "a", false, &source, &err));
    assert_true(str_is(source->catalog->tensors[0].key, "b.w"));
    source_free(source);
    store_free(store);
}

TEST(unsupported_arrays_can_be_left_out)
{
    struct store *store = nested_store();
    struct source *source = NULL;
    memory_put_text(
        store, "s/.zarray",
        V2("\"dtype\":\"<U3\",\"compressor\":null,\"filters\":null,\"fill_value\":\"\",\"order\":\"C\",\"shape\":[2],\"chunks\":[1]"));
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_UNSUPPORTED);
    struct open_options options = { .limits = limits_default, .iteration = -1, .borrow_store = true, .skip_unsupported = true };
    CHECK_OK(format_open(store, "", &options, &source, &err));
    assert_int_equal(source->catalog->tensor_count, 2);
    source_free(source);
    store_free(store);
}

/* An archive of these members, each of which holds the text. */
static void put_zip(struct store *store, const char *name, const char *const *names, uint32_t count, const char *text)
{
    struct zip_plan_member members[4] = { 0 };
    struct buffer bytes = { 0 };
    uint64_t directory, size;
    assert_true(count <= 4);
    for (uint32_t i = 0; i < count; i++)
        members[i] = (struct zip_plan_member){ .name = str_of(names[i]), .bytes = strlen(text), .crc32 = crc32_zip(0, text, strlen(text)) };
    CHECK_OK(zip_plan(members, count, 1, &directory, &size, &err));
    for (uint32_t i = 0; i < count; i++) {
        zip_write_header(&members[i], 1, &bytes);
        buffer_append_text(&bytes, text);
        zip_write_descriptor(&members[i], &bytes);
    }
    zip_write_directory(members, count, directory, &bytes);
    assert_int_equal(bytes.size, size);
    memory_put(store, name, bytes.data, bytes.size);
    buffer_release(&bytes);
}

/* Whichever of the members it is. */
TEST(an_archive_is_known_by_a_document)
{
    static const struct {
        const char *names[3];
        uint32_t count;
        bool is_zarr;
    } cases[] = {
        { { ".zarray" }, 1, true }, { { ".zgroup", "b", "c" }, 3, true }, { { "a", "w/zarr.json", "c" }, 3, true },
        { { "a", "b", ".zmetadata" }, 3, true }, { { "a", "b", "c" }, 3, false }, { { "w.zarray", "zarr.json/a", "zarr.json_" }, 3, false },
    };
    const struct format_driver *driver = format_driver_find("zarr");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct store *store = store_new_memory();
        put_zip(store, "m", cases[i].names, cases[i].count, "{}");
        if ((driver->probe(store, "m", &err) > 0) != cases[i].is_zarr)
            fail_msg("%s, %u members: taken for %s", cases[i].names[0], cases[i].count, cases[i].is_zarr ? "something else" : "Zarr");
        store_free(store);
    }
}

/* zarr-python appends a document that is written again; names may differ in case alone. */
TEST(an_archive_that_was_appended_to_is_read_as_it_was_last)
{
    static const char *const names[] = { "w/.zgroup", "W/.zgroup", "w/.zgroup", "w/.zgroup" };
    struct store *store = store_new_memory();
    struct source *source = NULL;
    put_zip(store, "m", names, 4, "{\"zarr_format\":2}");
    CHECK_OK(memory_open(store, "m", false, &source, &err));
    assert_string_equal(source->driver->name, "zarr");
    assert_int_equal(source->catalog->warning_count, 1);
    assert_true(text_has(source->catalog->warnings[0].text, "2 members of the zip file were written anew"));
    source_free(source);
    store_free(store);
}

/* ---- Megatron ---- */

TEST(an_extent_that_old_versions_lost_is_found_again)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_text(store, "metadata.json", "{\"sharded_backend\": \"zarr\", \"sharded_backend_version\": 1}");
    memory_put_text(
        store, "w/.zarray",
        V2("\"dtype\":\"<V2\",\"compressor\":null,\"filters\":null,\"fill_value\":null,\"order\":\"C\",\"shape\":[1],\"chunks\":[1]"));
    put_hex(store, "w/0", "803f");
    /* Bytes that are no torch.save container are their own value. */
    memory_put_text(store, "rng/shard_0.0_1.pt", "first");
    memory_put_text(store, "rng/shard_0.2_1.pt", "third");
    memory_put_text(store, "extra/shard_0_4.pt", "whole");
    memory_put_text(store, "w.sync/1.lock", "");
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_int_equal(source->catalog->tensors[0].dtype, DTYPE_BF16);
    static const char *const keys[] = { "metadata.json", "extra/shard_0_4", "rng/shard_0.0_1.3", "rng/shard_0.2_1.3" };
    assert_int_equal(source->catalog->item_count, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(str_is(source->catalog->items[i].key, keys[i]));
    assert_int_equal(source->catalog->items[1].value->kind, VALUE_LIST);
    assert_int_equal(source->catalog->warning_count, 0);
    source_free(source);
    store_free(store);
}

/* ---- writing ---- */

static struct str object_text(const struct target *target, const char *name, uint64_t *bytes)
{
    for (uint32_t i = 0; i < target->catalog->object_count; i++) {
        if (str_is(target->catalog->objects[i].name, name)) {
            *bytes = target->catalog->objects[i].bytes;
            return target->catalog->objects[i].name;
        }
    }
    return (struct str){ 0 };
}

TEST(chunk_files_have_the_names_and_sizes_of_their_grid)
{
    static const struct {
        const char *why;
        struct option_value options[4];
        const char *name;
        uint64_t bytes;
    } cases[] = {
        { "one chunk", { { 0 } }, "a/b/0.0", 40 },
        { "a grid", { { "chunks", "2,3" } }, "a/b/0.1", 24 },
        { "leading axes", { { "chunks", "1" } }, "a/b/1.0", 20 },
        { "as the source", { { "chunks", "source" } }, "a/b/0.1", 24 },
        { "slashes", { { "chunks", "2,3" }, { "separator", "/" } }, "a/b/0/1", 24 },
        { "format 3", { { "chunks", "2,3" }, { "zarr-format", "3" } }, "a/b/c/0/1", 24 },
        { "format 3 with dots", { { "chunks", "2,3" }, { "zarr-format", "3" }, { "separator", "." } }, "a/b/c.0.1", 24 },
        { "no axes", { { 0 } }, "a/b.w/0", 1 },
        { "no axes in format 3", { { "zarr-format", "3" } }, "a/b.w/c", 1 },
        { "a group", { { 0 } }, "a/.zgroup", 24 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = nested_store();
        struct source *source = NULL;
        struct target target;
        uint64_t bytes = 0;
        CHECK_OK(memory_open(store, "", false, &source, &err));
        struct whole_request whole = request_whole(source, cases[i].options);
        CHECK_OK(lay_out("zarr", &whole.request, &target, &err));
        if (!object_text(&target, cases[i].name, &bytes).data || bytes != cases[i].bytes)
            fail_msg("%s: '%s' has %llu bytes", cases[i].why, cases[i].name, (unsigned long long)bytes);
        target_free(&target);
        request_release(&whole);
        source_free(source);
        store_free(store);
    }
}

TEST(options_that_do_not_fit_are_refused)
{
    static const struct {
        struct option_value options[3];
        reshard_status status;
    } cases[] = {
        { { { "zarr-format", "4" } }, RESHARD_ERR_USAGE },
        { { { "chunks", "0" } }, RESHARD_ERR_USAGE },
        { { { "chunks", "2,x" } }, RESHARD_ERR_USAGE },
        { { { "codec", "snappy" } }, RESHARD_ERR_USAGE },
        { { { "codec", "zstd:x" } }, RESHARD_ERR_USAGE },
        { { { "codec", "zlib" }, { "zarr-format", "3" } }, RESHARD_ERR_UNSUPPORTED },
        { { { "codec", "zstd" }, { "flavour", "megatron" } }, RESHARD_ERR_UNSUPPORTED },
        { { { "zarr-format", "3" }, { "flavour", "megatron" } }, RESHARD_ERR_USAGE },
        { { { "separator", "-" } }, RESHARD_ERR_USAGE },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = nested_store();
        struct source *source = NULL;
        struct target target;
        CHECK_OK(memory_open(store, "", false, &source, &err));
        struct whole_request whole = request_whole(source, cases[i].options);
        assert_int_equal(lay_out("zarr", &whole.request, &target, &err), cases[i].status);
        target_free(&target);
        request_release(&whole);
        source_free(source);
        store_free(store);
    }
}

/* ---- faults ---- */

/* The items of a catalog as "key value", a line each. */
static void describe_items(const struct catalog *catalog, struct buffer *out)
{
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        buffer_append_str(out, catalog->items[i].key);
        buffer_append_byte(out, ' ');
        CHECK_OK(value_to_json(catalog->items[i].value, out, AT_MOST(1000), &err));
        buffer_append_byte(out, '\n');
    }
    buffer_append_byte(out, '\0');
}

/* Of the array, of the group that it is in, and of the outermost one: each in its own node, in either version of the format. Version 2
 * has no names of axes, which is noted. */
TEST(attributes_and_names_of_axes_stay_with_their_nodes)
{
    static const char *const expected[] = {
        ".zattrs {\"step\": 17}\ng/.zattrs {\"of\": \"g\"}\ng/w/.zattrs {\"u\": \"m\"}\n",
        "g/w/.zattrs {\"u\": \"m\"}\ng/w/dimension_names [\"x\"]\ng/.zattrs {\"of\": \"g\"}\n.zattrs {\"step\": 17}\n",
    };
    for (int i = 0; i < 2; i++) {
        const struct option_value options[] = { { "zarr-format", i ? "3" : "2" }, { NULL, NULL } };
        struct store *store = store_new_memory();
        struct source *source = NULL, *again = NULL;
        struct target target;
        struct buffer found = { 0 };
        memory_put_text(store, "in/zarr.json", "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"step\":17}}");
        memory_put_text(store, "in/g/zarr.json", "{\"zarr_format\":3,\"node_type\":\"group\",\"attributes\":{\"of\":\"g\"}}");
        memory_put_text(store, "in/g/w/zarr.json",
                        V3("[1]", "\"data_type\":\"float32\"," GRID("[1]") KEYS "\"fill_value\":3,\"codecs\":[" LITTLE "],"
                           "\"attributes\":{\"u\":\"m\"},\"dimension_names\":[\"x\"]"));
        memory_put(store, "in/g/w/c/0", "abcd", 4);
        CHECK_OK(memory_open(store, "in", false, &source, &err));
        struct whole_request whole = request_whole(source, options);
        CHECK_OK(lay_out("zarr", &whole.request, &target, &err));
        assert_int_equal(target.dropped.count, i ? 0 : 1);
        if (!i)
            assert_true(str_is(target.dropped.notes[0].key, "g/w/dimension_names"));
        CHECK_OK(publish_simply(store, "out", &whole.request, &target, &err));
        CHECK_OK(memory_open(store, "out", false, &again, &err));
        describe_items(again->catalog, &found);
        assert_string_equal((const char *)found.data, expected[i]);
        buffer_release(&found);
        source_free(again);
        target_free(&target);
        request_release(&whole);
        source_free(source);
        store_free(store);
    }
}

/* Format 3 keeps such names for itself: at the beginning of any part. */
TEST(keys_with_underscores_are_refused_where_they_mean_something)
{
    static const struct { const char *key; bool fits; } cases[] = {
        { "__a", false }, { "b/__a", false }, { "__", false }, { "b/__", false }, { "_a", true }, { "a__", true }, { "b/a__/_c", true },
        { "b/_", true },
    };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        const bool is_format_3 = i % 2, fits = cases[i / 2].fits || !is_format_3;
        const struct option_value options[] = { { "zarr-format", is_format_3 ? "3" : "2" }, { NULL, NULL } };
        char header[200];
        struct store *store = store_new_memory();
        struct source *source = NULL;
        struct target target;
        snprintf(header, sizeof(header), "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", cases[i / 2].key);
        memory_put_safetensors(store, "m.safetensors", header, 1, 0);
        CHECK_OK(memory_open(store, "m.safetensors", false, &source, &err));
        struct whole_request whole = request_whole(source, options);
        reshard_status status = lay_out("zarr", &whole.request, &target, &err);
        if (status != (fits ? RESHARD_OK : RESHARD_ERR_UNSUPPORTED) || (!fits && !strstr(err.message, "may not begin with '__'")))
            fail_msg("'%s' in format %d: status %d: %s", cases[i / 2].key, is_format_3 ? 3 : 2, status, err.message);
        target_free(&target);
        request_release(&whole);
        source_free(source);
        store_free(store);
    }
}

static reshard_status open_and_lay_out(struct store *store)
{
    static const struct option_value options[] = { { "chunks", "2,3" }, { "codec", "zstd" }, { NULL, NULL } };
    struct source *source = NULL;
    struct target target = { 0 };
    reshard_status status = memory_open(store, "", false, &source, &err);
    if (status)
        return status;
    struct whole_request whole = request_whole(source, options);
    if (whole.tensors && whole.items)
        status = lay_out("zarr", &whole.request, &target, &err);
    else
        status = RESHARD_ERR_MEMORY;
    if (target.catalog)
        target_free(&target);
    request_release(&whole);
    source_free(source);
    return status;
}

TEST(failed_allocations_end_in_an_error_and_leak_nothing)
{
    struct store *store = nested_store();
    put_hex(store, "s/c/0/0", SHARD "02ac3a26");
    put_hex(store, "s/c/0/1", SHARD_2 "9fd65780");
    memory_put_text(store, "s/zarr.json", SHARDED(""));
    for (int of_arenas = 0; of_arenas < 2; of_arenas++) {
        unsigned long nth = 0;
        bool was_hit;
        do {
            (of_arenas ? fail_arena_at : fail_malloc_at)(++nth);
            reshard_status status = open_and_lay_out(store);
            was_hit = fail_malloc_was_hit();
            bool may_go_on = !was_hit || !of_arenas; /* arenas ask for less where a block is not to be had */
            if (status ? status != RESHARD_ERR_MEMORY || !was_hit : !may_go_on)
                fail_msg("%s %lu: status %d: %s", of_arenas ? "allocation in an arena" : "allocation", nth, status, err.message);
        } while (was_hit);
        assert_true(nth > 50);
    }
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_at_the_edge_are_of_full_size_in_every_order),
        cmocka_unit_test(fill_values_of_small_floats_are_rounded_to_nearest_even),
        cmocka_unit_test(fill_values_of_e8m0_are_powers_of_two),
        cmocka_unit_test(types_have_the_names_of_either_version),
        cmocka_unit_test(absent_chunks_hold_the_fill_value),
        cmocka_unit_test(a_chunk_that_megatron_wrote_and_is_not_there_was_lost),
        cmocka_unit_test(shards_are_read_through_their_index),
        cmocka_unit_test(an_inner_chunk_outside_the_shards_data_is_refused),
        cmocka_unit_test(wrong_documents_are_refused_with_the_member),
        cmocka_unit_test(members_that_are_something_else_are_refused),
        cmocka_unit_test(groups_attributes_and_stray_files_are_found),
        cmocka_unit_test(unsupported_arrays_can_be_left_out),
        cmocka_unit_test(an_archive_is_known_by_a_document),
        cmocka_unit_test(an_archive_that_was_appended_to_is_read_as_it_was_last),
        cmocka_unit_test(an_extent_that_old_versions_lost_is_found_again),
        cmocka_unit_test(chunk_files_have_the_names_and_sizes_of_their_grid),
        cmocka_unit_test(options_that_do_not_fit_are_refused),
        cmocka_unit_test(attributes_and_names_of_axes_stay_with_their_nodes),
        cmocka_unit_test(keys_with_underscores_are_refused_where_they_mean_something),
        cmocka_unit_test(failed_allocations_end_in_an_error_and_leak_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
