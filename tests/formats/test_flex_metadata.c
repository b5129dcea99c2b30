/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata of Flex Checkpoint: every generation, both ways of decoding, and what is refused. */
#include "formats/paddle/flex.h"
#include "formats/paddle/flex_metadata_build.h"

#include "check.h"
#include "flex_metadata_text.h"
#include "flex_vectors.h"

#include <glob.h>

static reshard_error err;

/* META-1 of the format's description: pickle.dumps(…, 4) with bfloat16 `w` of (4,4) in two shards and its flattened first moment. */
static const char meta_1[] =
    "8004953e020000000000008c2f706164646c652e64697374726962757465642e666c65785f636865636b706f696e742e6463702e6d65746164617461948c084d"
    "657461646174619493942981947d94288c1373746174655f646963745f6d65746164617461947d94288c0177945d942868008c134c6f63616c54656e736f724d"
    "657461646174619493942981947d94288c0d676c6f62616c5f6f6666736574944b004b0086948c0b6c6f63616c5f7368617065944b024b0486948c0564747970"
    "65948c0862666c6f61743136948c0c676c6f62616c5f7368617065944b044b0486948c0c69735f666c617474656e656494898c0f666c617474656e65645f7261"
    "6e6765944e7562680a2981947d9428680d4b024b008694680f6810681168126813681468158968164e7562658c0b772e6d6f6d656e74315f30945d94680a2981"
    "947d9428680d680e680f681068118c07666c6f61743332946813681468158868164b004b058694756261758c1073746f726167655f6d65746164617461947d94"
    "2868008c104c6f63616c54656e736f72496e6465789493942981947d94288c0a74656e736f725f6b6579946807680d680e68158968164e8c0a7265706c696361"
    "5f6964944e680f681075628c0a305f302e6469737463709468232981947d942868266807680d681968158968164e68274e680f681075628c0a315f302e646973"
    "7463709468232981947d94286826681a680d680e6815886816681f68274e680f681075626828758c0c666c61745f6d617070696e67947d942868076807859468"
    "1a681a85947575622e";

static size_t bytes_of(const char *hex, uint8_t **out)
{
    size_t size = strlen(hex) / 2;
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        bytes[i] = (uint8_t)byte;
    }
    *out = bytes;
    return size;
}

/* Decodes both ways, which must agree, and appends what was found. */
static void decode_bytes(const uint8_t *bytes, size_t size, bool must_be_fast, struct buffer *out)
{
    struct flex_metadata metadata;
    struct buffer general = { 0 };
    CHECK_OK(flex_metadata_decode(bytes, size, &limits_default, FLEX_DECODE_BEST, &metadata, &err));
    assert_int_equal(metadata.is_fast, must_be_fast);
    flex_text_of(out, &metadata);
    flex_metadata_release(&metadata);
    CHECK_OK(flex_metadata_decode(bytes, size, &limits_default, FLEX_DECODE_GENERAL, &metadata, &err));
    assert_false(metadata.is_fast);
    flex_text_of(&general, &metadata);
    flex_metadata_release(&metadata);
    if (!str_equal(buffer_str(out), buffer_str(&general)))
        fail_msg("the two ways differ:\n%.*s\n---\n%.*s", STR_ARG(buffer_str(out)), STR_ARG(buffer_str(&general)));
    buffer_release(&general);
}

static void expect(const char *hex, bool must_be_fast, const char *start, const char *end)
{
    uint8_t *bytes;
    size_t size = bytes_of(hex, &bytes);
    struct buffer text = { 0 };
    decode_bytes(bytes, size, must_be_fast, &text);
    if (!str_starts_with(buffer_str(&text), start) || !str_ends_with(buffer_str(&text), end))
        fail_msg("found:\n%.*s", STR_ARG(buffer_str(&text)));
    buffer_release(&text);
    free(bytes);
}

TEST(the_vector_of_the_description)
{
    expect(meta_1, true,
           "\"w\"\n (0,0,) (2,4,) \"bfloat16\" (4,4,) - 0\n (2,0,) (2,4,) \"bfloat16\" (4,4,) - 0\n"
           "\"w.moment1_0\"\n (0,0,) (2,4,) \"float32\" (4,4,) (0,5,) 1\n"
           "\"w\" (0,0,) - (2,4,) \"0_0.distcp\" -1 0\n\"w\" (2,0,) - (2,4,) \"1_0.distcp\" -1 0\n",
           "\"w.moment1_0\" (0,0,) (0,5,) (2,4,) \"0_0.distcp\" -1 1\n\"w\" \"w\"\n\"w.moment1_0\" \"w.moment1_0\"\n"
           " - - - -\n1 2 0 mapping 1 protocol 4\n");
}

TEST(every_generation_and_protocol)
{
    const char *first = "\"layers.0.weight\"\n (0,0,) (4,6,) \"bfloat16\" - - 0\n (4,0,) (4,6,) \"bfloat16\" - - 0\n";
    const char *full = "\"layers.0.weight\"\n (0,0,) (4,6,) \"bfloat16\" (16,6,) - 0\n (4,0,) (4,6,) \"bfloat16\" (16,6,) - 0\n";
    expect(v_1_p4, true, "\"layers.0.weight\"\n (0,0,) (4,6,) - - - 0\n (4,0,) (4,6,) - - - 0\n", "\n-1 0 1 mapping 0 protocol 4\n");
    expect(v0_p2, true, first, "\n0 0 1 mapping 1 protocol 2\n");
    expect(v0_p4, true, first, "\n0 0 1 mapping 1 protocol 4\n");
    expect(v1_lists, true, full, "\n1 1 0 mapping 1 protocol 4\n");
    expect(v2_p3, true, full, "\n1 2 0 mapping 1 protocol 3\n");
    expect(v2_p5, true, full, "\n1 2 0 mapping 1 protocol 5\n");
    expect(v2_many, true, full, "\n1 2 0 mapping 1 protocol 4\n");
}

/* Ends of ranges that are scalars of NumPy are numbers; protocol 2 writes their bytes as text, which the general way knows. */
TEST(scalars_of_numpy_are_numbers)
{
    uint8_t *bytes;
    struct buffer plain = { 0 }, scalars = { 0 };
    size_t size = bytes_of(v2_many, &bytes);
    decode_bytes(bytes, size, true, &plain);
    free(bytes);
    size = bytes_of(v2_numpy, &bytes);
    decode_bytes(bytes, size, true, &scalars);
    free(bytes);
    assert_true(str_equal(buffer_str(&plain), buffer_str(&scalars)));
    buffer_release(&plain);
    buffer_release(&scalars);
    expect(v2_numpy_p2, false, "\"layers.0.weight\"\n", "\n1 2 0 mapping 1 protocol 2\n");
}

TEST(integer_types_have_size_and_sign)
{
    bool is_signed;
    size_t bytes;
    int64_t number;
    assert_true(flex_integer_type(STR("i8"), &is_signed, &bytes) && is_signed && bytes == 8);
    assert_true(flex_integer_type(STR("<u2"), &is_signed, &bytes) && !is_signed && bytes == 2);
    assert_false(flex_integer_type(STR("f8"), &is_signed, &bytes));
    assert_false(flex_integer_type(STR(">i8"), &is_signed, &bytes));
    assert_true(flex_integer_of((struct str){ "\xfe\xff", 2 }, true, &number) && number == -2);
    assert_true(flex_integer_of((struct str){ "\xfe\xff", 2 }, false, &number) && number == 65534);
    assert_false(flex_integer_of((struct str){ "\0\0\0\0\0\0\0\x80", 8 }, false, &number));
}

TEST(as_many_chunks_as_the_limit_says_are_read)
{
    static const enum flex_decode_way ways[] = { FLEX_DECODE_BEST, FLEX_DECODE_GENERAL };
    uint8_t *bytes;
    size_t size = bytes_of(v2_numpy, &bytes);
    for (size_t i = 0; i < 2; i++) {
        struct flex_metadata metadata;
        struct limits limits = limits_default;
        CHECK_OK(flex_metadata_decode(bytes, size, &limits, ways[i], &metadata, &err));
        limits.chunks = metadata.shard_count;
        assert_true(limits.chunks > 1);
        flex_metadata_release(&metadata);
        CHECK_OK(flex_metadata_decode(bytes, size, &limits, ways[i], &metadata, &err));
        flex_metadata_release(&metadata);
        limits.chunks--;
        CHECK_FAILS(flex_metadata_decode(bytes, size, &limits, ways[i], &metadata, &err), RESHARD_ERR_LIMIT);
        assert_non_null(strstr(err.message, "chunks"));
    }
    free(bytes);
}

/* No cut is good, and none is read beyond its end. */
static void cut_everywhere(const char *hex)
{
    uint8_t *bytes;
    size_t size = bytes_of(hex, &bytes);
    for (size_t cut = 0; cut < size; cut += cut < 600 ? 1 : 37) {
        struct flex_metadata metadata;
        uint8_t *part = malloc(cut ? cut : 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        CHECK_FAILS(flex_metadata_decode(part, cut, &limits_default, FLEX_DECODE_BEST, &metadata, &err), RESHARD_ERR_FORMAT);
        free(part);
    }
    free(bytes);
}

TEST(a_cut_pickle_is_refused)
{
    cut_everywhere(meta_1);
    cut_everywhere(v2_numpy);
    cut_everywhere(v0_p2);
}

/* Puts other bytes of the same length in the place of `from` and expects the message. */
static void expect_refused(const char *hex, const char *from, const char *to, const char *message)
{
    uint8_t *bytes;
    struct flex_metadata metadata;
    size_t size = bytes_of(hex, &bytes), length = strlen(from);
    assert_int_equal(length, strlen(to));
    uint8_t *found = memmem(bytes, size, from, length);
    assert_non_null(found);
    memcpy(found, to, length);
    CHECK_FAILS(flex_metadata_decode(bytes, size, &limits_default, FLEX_DECODE_BEST, &metadata, &err), RESHARD_ERR_FORMAT);
    if (!strstr(err.message, message))
        fail_msg("found '%s'", err.message);
    free(bytes);
}

TEST(what_is_wrong_is_named)
{
    expect_refused(meta_1, "LocalTensorIndex", "LocalTensorThing", "dcp.metadata.LocalTensorThing', which has no place in metadata");
    expect_refused(meta_1, "storage_metadata", "storage_madedata", "there is no 'storage_metadata'");
    expect_refused(meta_1, "local_shape", "lokal_shape", "tensor 'w': byte");
    expect_refused(meta_1, "tensor_key", "tensor_kee", "there is no 'tensor_key'");
}

/* What the releases of Paddle wrote is taken the fast way, and both ways say the same of it. */
TEST(metadata_of_real_checkpoints)
{
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/paddle/paddle*/ckpt/*.metadata", test_fixtures());
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 20);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        static uint8_t bytes[1 << 20];
        struct buffer text = { 0 };
        FILE *file = fopen(found.gl_pathv[i], "rb");
        assert_non_null(file);
        size_t size = fread(bytes, 1, sizeof(bytes), file);
        fclose(file);
        decode_bytes(bytes, size, true, &text);
        buffer_release(&text);
    }
    globfree(&found);
}

/* Whole: Paddle itself takes 0_10.distcp for a file of uid 0. */
TEST(files_are_known_by_their_names)
{
    static const struct {
        const char *name;
        enum flex_file_kind kind;
        uint64_t rank, uid;
    } cases[] = {
        { "0_0.distcp", FLEX_DISTCP, 0, 0 },
        { "12_345.distcp", FLEX_DISTCP, 12, 345 },
        { "7_8.safetensors", FLEX_SAFETENSORS, 7, 8 },
        { "18446744073709551615.metadata", FLEX_METADATA, 0, UINT64_MAX },
        { "9.metadata", FLEX_METADATA, 0, 9 },
        { "9.metadata.lock", FLEX_LOCK, 0, 9 },
        { "flex-ckpt.auto_generated.metadata", FLEX_AUTO, 0, 0 },
        { "18446744073709551616.metadata", FLEX_OTHER_FILE, 0, 0 },
        { ".metadata", FLEX_OTHER_FILE, 0, 0 },
        { "x.metadata", FLEX_OTHER_FILE, 0, 0 },
        { ".metadata.lock", FLEX_OTHER_FILE, 0, 0 },
        { "1.distcp", FLEX_OTHER_FILE, 0, 0 },
        { "_1.distcp", FLEX_OTHER_FILE, 0, 0 },
        { "x_1.distcp", FLEX_OTHER_FILE, 0, 0 },
        { "2_.safetensors", FLEX_OTHER_FILE, 0, 0 },
        { "2_1x.safetensors", FLEX_OTHER_FILE, 0, 0 },
        { "2_1_0.distcp", FLEX_OTHER_FILE, 0, 0 },
        { "2_1.distcp.bak", FLEX_OTHER_FILE, 0, 0 },
        { "saved_signal_0", FLEX_OTHER_FILE, 0, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t rank = 1, uid = 1;
        enum flex_file_kind kind = flex_file_kind_of(str_of(cases[i].name), &rank, &uid);
        if (kind != cases[i].kind || (kind != FLEX_OTHER_FILE && (rank != cases[i].rank || uid != cases[i].uid)))
            fail_msg("%s: kind %d, rank %llu, uid %llu", cases[i].name, kind, (unsigned long long)rank, (unsigned long long)uid);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integer_types_have_size_and_sign), cmocka_unit_test(the_vector_of_the_description),
        cmocka_unit_test(every_generation_and_protocol),    cmocka_unit_test(scalars_of_numpy_are_numbers),
        cmocka_unit_test(a_cut_pickle_is_refused),          cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(as_many_chunks_as_the_limit_says_are_read),
        cmocka_unit_test(metadata_of_real_checkpoints),     cmocka_unit_test(files_are_known_by_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
