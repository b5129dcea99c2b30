/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/chain.h"
#include "base/crc32.h"
#include "fail_malloc.h"

#include "check.h"

static reshard_error err;

/* Bytes from "00 ff 3f"; spaces are left out. */
static struct buffer bytes_of(const char *hex)
{
    struct buffer bytes = { 0 };
    unsigned value;
    for (; *hex; hex += 2) {
        while (*hex == ' ')
            hex++;
        assert_int_equal(sscanf(hex, "%2x", &value), 1);
        buffer_append_byte(&bytes, (uint8_t)value);
    }
    return bytes;
}

static reshard_status decode(const struct chain *chain, const void *in, size_t size, void *out)
{
    struct chain_scratch scratch = { 0 };
    err = (reshard_error){ 0 };
    reshard_status status = chain_check(chain, &err);
    if (!status)
        status = chain_decode(chain, in, size, out, &scratch, &err);
    chain_scratch_release(&scratch);
    return status;
}

#define I4 { DTYPE_I32, false }
#define BIG_I2 { DTYPE_I16, true }
#define F4 { DTYPE_F32, false }
#define F8 { DTYPE_F64, false }

/* The right sides are what numcodecs 0.13 decodes the left sides to. */
TEST(stored_bytes_decode_as_numcodecs_decodes_them)
{
    static const struct {
        const char *why;
        struct chain_step step;
        const char *stored, *decoded;
    } cases[] = {
        { "blosc that only copied", { .kind = CHAIN_BLOSC },
          "02013304 18000000 18000000 28000000 00000000 0000803f 00000040 0000a040 0000c040 0000e040",
          "00000000 0000803f 00000040 0000a040 0000c040 0000e040" },
        { "lz4, one literal run", { .kind = CHAIN_LZ4 }, "04000000 40 61626364", "61626364" },
        { "crc32c behind", { .kind = CHAIN_CRC32C }, "31323334 35363738 39 839206e3", "31323334 35363738 39" },
        { "crc32 before", { .kind = CHAIN_CRC32, .at_start = true }, "2639f4cb 31323334 35363738 39", "31323334 35363738 39" },
        { "adler32 before", { .kind = CHAIN_ADLER32, .at_start = true }, "9803e611 57696b69 70656469 61", "57696b69 70656469 61" },
        { "a part of a shard", { .kind = CHAIN_SLICE, .slice_offset = 2, .slice_bytes = 3, .slice_within = 6 }, "0001020304 05", "020304" },
        { "shuffle with a rest", { .kind = CHAIN_SHUFFLE, .element_bytes = 2 }, "0103 0204 09", "01020304 09" },
        { "delta", { .kind = CHAIN_DELTA, .stored = I4, .shown = I4 }, "05000000 ffffffff 02000000", "05000000 04000000 06000000" },
        { "delta of floats", { .kind = CHAIN_DELTA, .stored = F4, .shown = F4 }, "0000c03f 0000003f 000000c0",
          "0000c03f 00000040 00000000" },
        { "delta stored smaller", { .kind = CHAIN_DELTA, .stored = BIG_I2, .shown = I4 }, "0005 ffff", "05000000 04000000" },
        { "astype", { .kind = CHAIN_ASTYPE, .stored = BIG_I2, .shown = F8 }, "fffe", "00000000 000000c0" },
        { "scale", { .kind = CHAIN_SCALE, .stored = I4, .shown = F8, .scale = 10, .offset = 1 }, "05000000", "00000000 0000f83f" },
        { "packed bits", { .kind = CHAIN_PACKBITS }, "03 a8", "0100010001" },
        { "packed bits, a whole byte", { .kind = CHAIN_PACKBITS }, "00 a5", "0100010000010001" },
        { "packed bits, one more", { .kind = CHAIN_PACKBITS }, "07 a580", "010001000001000101" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer stored = bytes_of(cases[i].stored), decoded = bytes_of(cases[i].decoded);
        const char *library;
        if (chain_kind_is_built_in(cases[i].step.kind, &library)) {
            struct chain chain = { .steps = &cases[i].step, .step_count = 1, .decoded_bytes = decoded.size };
            uint8_t *out = calloc(decoded.size, 1);
            reshard_status status = decode(&chain, stored.data, stored.size, out);
            if (status || memcmp(out, decoded.data, decoded.size) != 0)
                fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
            free(out);
        }
        buffer_release(&stored);
        buffer_release(&decoded);
    }
}

static const struct chain_packing packings[] = {
    { .kind = CHAIN_ZLIB, .level = 1 },
    { .kind = CHAIN_GZIP, .level = 9 },
    { .kind = CHAIN_ZSTD, .level = 3 },
    { .kind = CHAIN_LZ4, .level = 1 },
    { .kind = CHAIN_BLOSC, .level = 5, .inner = "lz4", .shuffle = 1, .element_bytes = 4 },
    { .kind = CHAIN_BLOSC, .level = 5, .inner = "zstd", .shuffle = 2, .element_bytes = 2 },
    { .kind = CHAIN_BLOSC, .level = 1, .inner = "blosclz", .shuffle = 0, .element_bytes = 8 },
};

#define PACKING_COUNT (sizeof(packings) / sizeof(packings[0]))

static struct buffer make_noise(size_t size, uint64_t seed, unsigned kinds)
{
    struct buffer bytes = { 0 };
    for (size_t i = 0; i < size; i++)
        buffer_append_byte(&bytes, (uint8_t)(test_random(&seed) % kinds));
    return bytes;
}

static bool pack(size_t index, const struct buffer *plain, struct buffer *packed)
{
    const char *library;
    if (!chain_kind_is_built_in(packings[index].kind, &library))
        return false;
    CHECK_OK(chain_pack(&packings[index], plain->data, plain->size, packed, &err));
    return true;
}

TEST(what_is_packed_decodes_to_itself)
{
    static const size_t sizes[] = { 1, 7, 65536, 300001 };
    for (size_t p = 0; p < PACKING_COUNT; p++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct buffer plain = make_noise(sizes[i], i, i & 1 ? 256 : 3), packed = { 0 };
            struct chain_step step = { .kind = packings[p].kind };
            struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = plain.size };
            uint8_t *out = malloc(plain.size);
            if (pack(p, &plain, &packed)) {
                CHECK_OK(decode(&chain, packed.data, packed.size, out));
                assert_memory_equal(out, plain.data, plain.size);
            }
            free(out);
            buffer_release(&plain);
            buffer_release(&packed);
        }
    }
}

/* A compressor's result may be any size, so what says the size is the chunk. */
TEST(data_for_another_size_is_refused)
{
    for (size_t p = 0; p < PACKING_COUNT; p++) {
        struct buffer plain = make_noise(5000, 3, 7), packed = { 0 };
        struct chain_step step = { .kind = packings[p].kind };
        uint8_t *out = malloc(plain.size + 1);
        for (int off = -1; off <= 1 && pack(p, &plain, &packed); off += 2) {
            struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = plain.size + (size_t)off };
            CHECK_FAILS(decode(&chain, packed.data, packed.size, out), RESHARD_ERR_FORMAT);
            buffer_clear(&packed);
        }
        free(out);
        buffer_release(&plain);
        buffer_release(&packed);
    }
}

/* A header that promises more than the chunk holds is refused as that, before the library makes anything of it. */
TEST(a_blosc_header_with_too_many_bytes_is_refused_with_both_sizes)
{
    static const char *const stored[] = {
        "02013304 19000000 18000000 28000000 00000000 0000803f 00000040 0000a040 0000c040 0000e040",
        "02013304 ffffff7f 18000000 28000000 00000000 0000803f 00000040 0000a040 0000c040 0000e040",
    };
    static const char *const messages[] = { "says 25 decoded bytes, at most 24", "says 2147483647 decoded bytes, at most 24" };
    const char *library;
    for (size_t i = 0; i < 2 && chain_kind_is_built_in(CHAIN_BLOSC, &library); i++) {
        struct chain_step step = { .kind = CHAIN_BLOSC };
        struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = 24 };
        struct buffer bytes = bytes_of(stored[i]);
        uint8_t out[24];
        CHECK_FAILS(decode(&chain, bytes.data, bytes.size, out), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, messages[i]));
        buffer_release(&bytes);
    }
}

TEST(a_blosc_header_that_cannot_be_is_refused)
{
    static const struct { const char *header, *message; reshard_status status; } cases[] = {
        { "02013304 18000000 18000000 28000000", "", RESHARD_OK },
        { "00013304 18000000 18000000 28000000", "blosc version 0", RESHARD_ERR_UNSUPPORTED },
        { "03013304 18000000 18000000 28000000", "blosc version 3", RESHARD_ERR_UNSUPPORTED },
        { "0201b304 18000000 18000000 28000000", "blosc codec number 5 is unknown", RESHARD_ERR_FORMAT },
        { "02014004 18000000 18000000 28000000", "blosc with snappy", RESHARD_ERR_UNSUPPORTED },
        { "02013304 18000000 18000000 27000000", "says 39 stored bytes, there are 40", RESHARD_ERR_FORMAT },
        { "02013304 18000000 18000000 29000000", "says 41 stored bytes, there are 40", RESHARD_ERR_FORMAT },
        { "02013300 18000000 18000000 28000000", "blosc item size 0", RESHARD_ERR_FORMAT },
        { "02013304 18000000 00000000 28000000", "blosc block size 0", RESHARD_ERR_FORMAT },
        { "02010104 18000000 18000000 28000000", "invalid blosc data, 24 decoded bytes expected", RESHARD_ERR_FORMAT },
    };
    const char *library;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases) && chain_kind_is_built_in(CHAIN_BLOSC, &library); i++) {
        struct chain_step step = { .kind = CHAIN_BLOSC };
        struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = 24 };
        struct buffer bytes = bytes_of(cases[i].header);
        uint8_t out[24];
        buffer_append_fill(&bytes, 0xFF, 24);
        memset(&err, 0, sizeof(err));
        reshard_status status = decode(&chain, bytes.data, bytes.size, out);
        if (status != cases[i].status || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d: %s", cases[i].header, status, err.message);
        buffer_release(&bytes);
    }
}

TEST(cut_and_damaged_data_never_passes_for_more_than_it_is)
{
    uint64_t seed = 11;
    for (size_t p = 0; p < PACKING_COUNT; p++) {
        struct buffer plain = make_noise(3000, 5, 9), packed = { 0 };
        struct chain_step step = { .kind = packings[p].kind };
        struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = plain.size };
        uint8_t *out = malloc(plain.size);
        if (pack(p, &plain, &packed)) {
            for (size_t size = 0; size < packed.size; size += 1 + size / 16) {
                uint8_t *copy = malloc(size ? size : 1); /* of this size, so that reading on is noticed */
                memcpy(copy, packed.data, size);
                assert_true(decode(&chain, copy, size, out) != RESHARD_OK);
                free(copy);
            }
            for (int i = 0; i < 300; i++) {
                size_t at = test_random(&seed) % packed.size;
                uint8_t old = packed.data[at];
                packed.data[at] ^= (uint8_t)(1 << test_random(&seed) % 8);
                decode(&chain, packed.data, packed.size, out);
                packed.data[at] = old;
            }
        }
        free(out);
        buffer_release(&plain);
        buffer_release(&packed);
    }
}

TEST(several_steps_are_undone_one_after_the_other)
{
    struct buffer plain = bytes_of("05000000 04000000 06000000"), filtered = bytes_of("05ff0200ff0000ff0000ff00"), packed = { 0 };
    struct chain_packing packing = { .kind = CHAIN_ZSTD, .level = 1 };
    CHECK_OK(chain_pack(&packing, filtered.data, filtered.size, &packed, &err));
    struct chain_step steps[] = { { .kind = CHAIN_ZSTD },
                                  { .kind = CHAIN_SHUFFLE, .element_bytes = 4 },
                                  { .kind = CHAIN_DELTA, .stored = I4, .shown = I4 } };
    struct chain chain = { .steps = steps, .step_count = 3, .decoded_bytes = plain.size };
    uint8_t out[12];
    CHECK_OK(decode(&chain, packed.data, packed.size, out));
    assert_memory_equal(out, plain.data, sizeof(out));
    buffer_release(&plain);
    buffer_release(&filtered);
    buffer_release(&packed);
}

/* What a step takes says how much room the compressor before it has. */
/* A view makes no bytes: what the step behind it reads is still that of the step before. */
TEST(views_between_steps_keep_what_they_look_into)
{
    struct buffer plain = bytes_of("05000000 04000000 06000000"), within = bytes_of("7777 05ff0200ff0000ff0000ff00 8888"), packed = { 0 };
    struct chain_packing packing = { .kind = CHAIN_ZSTD, .level = 1 };
    CHECK_OK(chain_pack(&packing, within.data, within.size, &packed, &err));
    struct chain_step steps[] = { { .kind = CHAIN_ZSTD },
                                  { .kind = CHAIN_SLICE, .slice_offset = 2, .slice_bytes = 12, .slice_within = 16 },
                                  { .kind = CHAIN_SHUFFLE, .element_bytes = 4 },
                                  { .kind = CHAIN_DELTA, .stored = I4, .shown = I4 } };
    struct chain chain = { .steps = steps, .step_count = 4, .decoded_bytes = plain.size };
    struct chain_scratch scratch = { 0 };
    struct buffer shuffled = { 0 };
    uint8_t out[12];
    CHECK_OK(decode(&chain, packed.data, packed.size, out));
    assert_memory_equal(out, plain.data, sizeof(out));
    assert_int_equal(chain_between_bytes(&chain), 16 + 12);
    struct chain_step bounded[] = { { .kind = CHAIN_ZSTD }, { .kind = CHAIN_CRC32C }, { .kind = CHAIN_GZIP } };
    struct buffer zipped = { 0 }, twice = { 0 };
    packing.kind = CHAIN_GZIP;
    CHECK_OK(chain_pack(&packing, plain.data, plain.size, &zipped, &err));
    buffer_append_u32le(&zipped, crc32c(0, zipped.data, zipped.size));
    packing.kind = CHAIN_ZSTD;
    CHECK_OK(chain_pack(&packing, zipped.data, zipped.size, &twice, &err));
    CHECK_OK(chain_decode_bounded(bounded, 3, twice.data, twice.size, 1000, &scratch, &shuffled, &err));
    assert_int_equal(shuffled.size, plain.size);
    assert_memory_equal(shuffled.data, plain.data, plain.size);
    chain_scratch_release(&scratch);
    buffer_release(&shuffled);
    buffer_release(&zipped);
    buffer_release(&twice);
    buffer_release(&plain);
    buffer_release(&within);
    buffer_release(&packed);
}

TEST(packed_bits_may_be_compressed)
{
    static const uint8_t plain[9] = { 0, 1, 0, 0, 1, 0, 1, 1, 1 }, bits[3] = { 7, 0x4b, 0x80 };
    struct buffer packed = { 0 };
    struct chain_packing packing = { .kind = CHAIN_ZSTD, .level = 1 };
    CHECK_OK(chain_pack(&packing, bits, sizeof(bits), &packed, &err));
    struct chain_step steps[] = { { .kind = CHAIN_ZSTD }, { .kind = CHAIN_PACKBITS } };
    struct chain chain = { .steps = steps, .step_count = 2, .decoded_bytes = sizeof(plain) };
    uint8_t out[sizeof(plain)];
    CHECK_OK(decode(&chain, packed.data, packed.size, out));
    assert_memory_equal(out, plain, sizeof(out));
    buffer_release(&packed);
}

/* Streams that Python's lzma and bz2 wrote for "abcdefghij", and what is wrong with some. */
TEST(lzma_and_bz2_end_where_they_say)
{
    static const struct {
        const char *why;
        enum chain_kind kind;
        const char *stored;
        uint64_t decoded_bytes;
        reshard_status status;
        const char *message;
    } cases[] = {
        { "xz", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636465666768696a000000f47357cd2e3a09320001"
          "220a151ae1671fb6f37d010000000004595a",
          10, RESHARD_OK, "" },
        { "xz, two streams", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100036162636400ba60596e59289d3c00011c046f2c9cc11fb6"
          "f37d010000000004595afd377a585a000004e6d6b4460200210116000000742fe5a301000565666768696a00000016cdf160"
          "542e149a00011e06c12fa41d1fb6f37d010000000004595a",
          10, RESHARD_OK, "" },
        { "lzma alone", CHAIN_LZMA,
          "5d00000400ffffffffffffffff00309888983ecbe26f34b34fd02dc7fffce6c000",
          10, RESHARD_OK, "" },
        { "xz of nothing", CHAIN_LZMA,
          "fd377a585a000004e6d6b446000000001cdf44211fb6f37d010000000004595a",
          0, RESHARD_OK, "" },
        { "xz that ends in the middle", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636465666768696a000000f47357cd2e3a0932",
          10, RESHARD_ERR_FORMAT, "ends in the middle" },
        { "xz, damaged", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636565666768696a000000f47357cd2e3a09320001"
          "220a151ae1671fb6f37d010000000004595a",
          10, RESHARD_ERR_FORMAT, "invalid lzma data" },
        { "no xz", CHAIN_LZMA,
          "6e6f20787a20617420616c6c",
          10, RESHARD_ERR_FORMAT, "invalid lzma data" },
        { "xz of more", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636465666768696a000000f47357cd2e3a09320001"
          "220a151ae1671fb6f37d010000000004595a",
          9, RESHARD_ERR_FORMAT, "more than the 9 expected" },
        { "xz of something where nothing is due", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636465666768696a000000f47357cd2e3a09320001"
          "220a151ae1671fb6f37d010000000004595a",
          0, RESHARD_ERR_FORMAT, "more than the 0 expected" },
        { "xz of less", CHAIN_LZMA,
          "fd377a585a000004e6d6b4460200210116000000742fe5a30100096162636465666768696a000000f47357cd2e3a09320001"
          "220a151ae1671fb6f37d010000000004595a",
          11, RESHARD_ERR_FORMAT, "11" },
        { "a dictionary of 2 GiB", CHAIN_LZMA,
          "5d00000080ffffffffffffffff00309888983ecbe26f34b34fd02dc7fffce6c000",
          10, RESHARD_ERR_UNSUPPORTED, "more than 256 MiB" },
        { "bz2", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200",
          10, RESHARD_OK, "" },
        { "bz2, two streams", CHAIN_BZ2,
          "425a6839314159265359a35b4df400000001003e0020002183419a025c7177245385090a35b4df40425a6839314159265359"
          "d1b63f79000000010001f020002183419a025c7177245385090d1b63f790",
          10, RESHARD_OK, "" },
        { "bz2 with an empty stream behind", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200425a683917"
          "724538509000000000",
          10, RESHARD_OK, "" },
        { "bz2 that ends in the middle", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c28",
          10, RESHARD_ERR_FORMAT, "ends in the middle" },
        { "bz2, damaged", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff120002201a698400c155e68e3e98bb9229c284839c1322200",
          10, RESHARD_ERR_FORMAT, "damaged" },
        { "bz2 of more", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200",
          9, RESHARD_ERR_FORMAT, "more than the 9 expected" },
        { "bz2, its second stream is too much", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200425a683931"
          "41592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200",
          10, RESHARD_ERR_FORMAT, "more than the 10 expected" },
        { "bz2, its second stream is too much for what the first left", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200425a683931"
          "41592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200",
          15, RESHARD_ERR_FORMAT, "more than the 15 expected" },
        { "bz2 of less", CHAIN_BZ2,
          "425a68393141592653597382644400000001003ff020002201a698400c155e68e3e98bb9229c284839c1322200",
          11, RESHARD_ERR_FORMAT, "11" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer stored = bytes_of(cases[i].stored);
        struct chain_step step = { .kind = cases[i].kind };
        struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = cases[i].decoded_bytes };
        uint8_t out[64];
        memset(out, 0x5a, sizeof(out));
        const char *library;
        if (chain_kind_is_built_in(cases[i].kind, &library)) {
            reshard_status status = decode(&chain, stored.data, stored.size, out);
            if (status != cases[i].status || (status && !strstr(err.message, cases[i].message)))
                fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
            for (size_t at = cases[i].decoded_bytes; at < sizeof(out); at++)
                if (out[at] != 0x5a)
                    fail_msg("%s: wrote behind its room, at %zu", cases[i].why, at);
            if (!status)
                assert_memory_equal(out, "abcdefghij", cases[i].decoded_bytes);
        }
        buffer_release(&stored);
    }
}

/* Their libraries count in 32 bits. Nothing is read: the size alone is refused. */
TEST(data_beyond_32_bits_is_refused_by_size)
{
    static const enum chain_kind kinds[] = { CHAIN_ZLIB, CHAIN_GZIP, CHAIN_BZ2 };
    static const size_t large = ((size_t)1 << 32) + 2;
    uint8_t bytes[16] = { 0 };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && sizeof(size_t) > 4; i++) {
        for (int is_in = 0; is_in < 2; is_in++) {
            struct chain_step step = { .kind = kinds[i] };
            struct chain chain = { .steps = &step, .step_count = 1, .decoded_bytes = is_in ? 8 : large };
            const char *library;
            if (!chain_kind_is_built_in(kinds[i], &library))
                continue;
            CHECK_FAILS(decode(&chain, bytes, is_in ? large : 8, bytes), RESHARD_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, "at most 2^32 - 1"));
        }
    }
}

TEST(wrong_checksums_and_filters_that_do_not_fit_are_refused)
{
    static const struct {
        const char *why;
        struct chain_step step;
        const char *stored;
        uint64_t decoded_bytes;
        reshard_status status;
        const char *message;
    } cases[] = {
        { "another crc", { .kind = CHAIN_CRC32C }, "31 00000000", 1, RESHARD_ERR_FORMAT, "stored 00000000" },
        { "no room for a crc", { .kind = CHAIN_CRC32 }, "0102", 1, RESHARD_ERR_FORMAT, "fewer than" },
        { "half an element", { .kind = CHAIN_DELTA, .stored = I4, .shown = I4 }, "00000000", 6, RESHARD_ERR_FORMAT, "do not fit" },
        { "a type without arithmetic",
          { .kind = CHAIN_ASTYPE, .stored = { DTYPE_BF16, false }, .shown = F8 },
          "0000",
          8,
          RESHARD_ERR_UNSUPPORTED,
          "BF16" },
        { "another number of elements",
          { .kind = CHAIN_ASTYPE, .stored = I4, .shown = F8 },
          "0000000000000000",
          8,
          RESHARD_ERR_FORMAT,
          "expected 1 elements" },
        { "a slice beyond the shard",
          { .kind = CHAIN_SLICE, .slice_offset = 2, .slice_bytes = 2, .slice_within = 3 },
          "000000",
          2,
          RESHARD_ERR_FORMAT,
          "beyond" },
        { "too many packed bits", { .kind = CHAIN_PACKBITS }, "03 a8 a8", 5, RESHARD_ERR_FORMAT, "packed" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer stored = bytes_of(cases[i].stored);
        struct chain chain = { .steps = &cases[i].step, .step_count = 1, .decoded_bytes = cases[i].decoded_bytes };
        uint8_t out[16];
        reshard_status status = decode(&chain, stored.data, stored.size, out);
        if (status != cases[i].status || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
        buffer_release(&stored);
    }
}

TEST(failed_allocations_end_in_an_error)
{
    struct buffer plain = make_noise(4000, 1, 5), packed = { 0 };
    struct chain_step steps[] = { { .kind = CHAIN_GZIP }, { .kind = CHAIN_ZSTD }, { .kind = CHAIN_SHUFFLE, .element_bytes = 4 } };
    struct chain chain = { .steps = steps, .step_count = 3, .decoded_bytes = plain.size };
    struct buffer inner = { 0 };
    struct chain_packing zstd = { .kind = CHAIN_ZSTD, .level = 1 }, gzip = { .kind = CHAIN_GZIP, .level = 1 };
    CHECK_OK(chain_pack(&zstd, plain.data, plain.size, &inner, &err));
    CHECK_OK(chain_pack(&gzip, inner.data, inner.size, &packed, &err));
    unsigned long nth = 0;
    uint8_t *out = malloc(plain.size);
    bool was_hit;
    do {
        fail_malloc_at(++nth);
        reshard_status status = decode(&chain, packed.data, packed.size, out);
        was_hit = fail_malloc_was_hit();
        assert_int_equal(status, was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
    } while (was_hit);
    assert_true(nth > 3);
    free(out);
    buffer_release(&plain);
    buffer_release(&inner);
    buffer_release(&packed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stored_bytes_decode_as_numcodecs_decodes_them),
        cmocka_unit_test(what_is_packed_decodes_to_itself),
        cmocka_unit_test(data_for_another_size_is_refused),
        cmocka_unit_test(a_blosc_header_with_too_many_bytes_is_refused_with_both_sizes),
        cmocka_unit_test(a_blosc_header_that_cannot_be_is_refused),
        cmocka_unit_test(cut_and_damaged_data_never_passes_for_more_than_it_is),
        cmocka_unit_test(several_steps_are_undone_one_after_the_other),
        cmocka_unit_test(views_between_steps_keep_what_they_look_into),
        cmocka_unit_test(packed_bits_may_be_compressed),
        cmocka_unit_test(lzma_and_bz2_end_where_they_say),
        cmocka_unit_test(data_beyond_32_bits_is_refused_by_size),
        cmocka_unit_test(wrong_checksums_and_filters_that_do_not_fit_are_refused),
        cmocka_unit_test(failed_allocations_end_in_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
