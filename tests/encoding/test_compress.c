/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/compress.h"
#include "fail_malloc.h"

#include "check.h"

static reshard_error err;

static struct buffer make_noise(size_t size, uint64_t seed, unsigned kinds)
{
    struct buffer bytes = { 0 };
    for (size_t i = 0; i < size; i++)
        buffer_append_byte(&bytes, (uint8_t)(test_random(&seed) % kinds));
    return bytes;
}

static reshard_status decode(enum codec codec, const struct buffer *coded, struct buffer *out)
{
    struct reader reader = reader_over_memory(coded->data, coded->size, "coded");
    return decode_all(codec, &reader, 0, coded->size, &limits_default, out, &err);
}

TEST(what_is_encoded_decodes_to_itself)
{
    static const size_t sizes[] = { 0, 1, 65535, 65536, 65537, 300000 };
    for (int codec = 0; codec < CODEC_COUNT; codec++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct buffer plain = make_noise(sizes[i], i, i & 1 ? 256 : 5), coded = { 0 }, out = { 0 };
            buffer_append_text(&out, "before");
            CHECK_OK(encode_all(codec, 3, plain.data, plain.size, &coded, &err));
            CHECK_OK(decode(codec, &coded, &out));
            assert_int_equal(out.size, 6 + plain.size);
            assert_memory_equal(out.data, "before", 6);
            assert_true(str_equal((struct str){ (char *)out.data + 6, plain.size }, buffer_str(&plain)));
            buffer_release(&plain);
            buffer_release(&coded);
            buffer_release(&out);
        }
    }
}

TEST(decoding_in_small_steps_gives_the_same_and_then_ends)
{
    for (int codec = 0; codec < CODEC_COUNT; codec++) {
        struct buffer plain = make_noise(100000, 9, 20), coded = { 0 };
        struct decoder *decoder = NULL;
        CHECK_OK(encode_all(codec, 3, plain.data, plain.size, &coded, &err));
        struct reader reader = reader_over_memory(coded.data, coded.size, "coded");
        CHECK_OK(decoder_new(codec, &reader, 0, coded.size, &limits_default, &decoder, &err));
        uint8_t step[777];
        size_t got, at = 0;
        do {
            CHECK_OK(decoder_read(decoder, step, sizeof(step), &got, &err));
            assert_memory_equal(step, plain.data + at, got);
            at += got;
            assert_int_equal(decoder_position(decoder), at);
        } while (got == sizeof(step));
        assert_int_equal(at, plain.size);
        CHECK_OK(decoder_read(decoder, step, sizeof(step), &got, &err));
        assert_int_equal(got, 0);
        decoder_free(decoder);
        buffer_release(&plain);
        buffer_release(&coded);
    }
}

TEST(cut_and_damaged_streams_are_refused_and_leave_the_output_alone)
{
    static const enum codec codecs[] = { CODEC_DEFLATE, CODEC_ZSTD };
    for (int c = 0; c < 2; c++) {
        struct buffer plain = make_noise(2000, 3, 30), coded = { 0 }, out = { 0 };
        CHECK_OK(encode_all(codecs[c], 3, plain.data, plain.size, &coded, &err));
        size_t whole = coded.size;
        for (coded.size = 0; coded.size < whole; coded.size++) {
            CHECK_FAILS(decode(codecs[c], &coded, &out), RESHARD_ERR_FORMAT);
            assert_int_equal(out.size, 0);
        }
        coded.size = whole;
        coded.data[0] ^= 0x07;
        reshard_status status = decode(codecs[c], &coded, &out);
        assert_int_equal(status, RESHARD_ERR_FORMAT);
        coded.data[0] ^= 0x07;
        buffer_append_text(&coded, "behind");
        CHECK_FAILS(decode(codecs[c], &coded, &out), RESHARD_ERR_FORMAT);
        coded.size = whole;
        CHECK_OK(encode_all(codecs[c], 3, plain.data, plain.size, &coded, &err));
        assert_int_equal(decode(codecs[c], &coded, &out), codecs[c] == CODEC_ZSTD ? RESHARD_OK : RESHARD_ERR_FORMAT);
        buffer_release(&plain);
        buffer_release(&coded);
        buffer_release(&out);
    }
}

TEST(text_that_is_no_bytes_is_refused)
{
    static const char *const texts[] = { "a\xC3", "\xC1\x80", "\xC4\x80", "\x80", "\xC3z", "\xE2\x82\xAC" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct buffer coded = { 0 }, out = { 0 };
        buffer_append_text(&coded, texts[i]);
        CHECK_FAILS(decode(CODEC_LATIN1, &coded, &out), RESHARD_ERR_FORMAT);
        assert_int_equal(out.size, 0);
        buffer_release(&coded);
        buffer_release(&out);
    }
}

TEST(zstd_frames_may_follow_one_another_and_say_no_size)
{
    struct buffer coded = { 0 }, out = { 0 };
    CHECK_OK(encode_all(CODEC_ZSTD, 3, "one", 3, &coded, &err));
    /* Frame header descriptor: no content size (bits 6-7), no single segment (5), a checksum (2), no dictionary (0-1). */
    assert_memory_equal(coded.data, "\x28\xb5\x2f\xfd", 4);
    assert_int_equal(coded.data[4], 4);
    CHECK_OK(encode_all(CODEC_ZSTD, 3, "two", 3, &coded, &err));
    CHECK_OK(decode(CODEC_ZSTD, &coded, &out));
    assert_true(str_is(buffer_str(&out), "onetwo"));
    buffer_release(&coded);
    buffer_release(&out);
}

TEST(expansion_is_limited)
{
    static const enum codec codecs[] = { CODEC_DEFLATE, CODEC_ZSTD };
    for (int c = 0; c < 2; c++) {
        struct buffer plain = { 0 }, coded = { 0 }, out = { 0 };
        buffer_append_fill(&plain, 0, 1 << 20);
        CHECK_OK(encode_all(codecs[c], 9, plain.data, plain.size, &coded, &err));
        CHECK_OK(decode(codecs[c], &coded, &out)); /* the first MiB is free */
        buffer_append_fill(&plain, 0, 31 << 20);
        buffer_clear(&coded);
        buffer_clear(&out);
        CHECK_OK(encode_all(codecs[c], 9, plain.data, plain.size, &coded, &err));
        CHECK_FAILS(decode(codecs[c], &coded, &out), RESHARD_ERR_LIMIT);
        assert_non_null(strstr(err.hint, "reshard_open_options.limits inflate_ratio="));
        struct limits limits = limits_default;
        limits.inflate_ratio = UINT64_MAX;
        struct reader reader = reader_over_memory(coded.data, coded.size, "coded");
        CHECK_OK(decode_all(codecs[c], &reader, 0, coded.size, &limits, &out, &err));
        assert_int_equal(out.size, plain.size);
        limits.inflate_bytes = plain.size - 1;
        CHECK_FAILS(decode_all(codecs[c], &reader, 0, coded.size, &limits, &out, &err), RESHARD_ERR_LIMIT);
        assert_int_equal(out.size, plain.size);
        buffer_release(&plain);
        buffer_release(&coded);
        buffer_release(&out);
    }
}

TEST(ranges_beyond_the_object_are_refused)
{
    struct reader reader = reader_over_memory("0123456789", 10, "ten");
    struct buffer out = { 0 };
    CHECK_OK(decode_all(CODEC_NONE, &reader, 2, 3, &limits_default, &out, &err));
    assert_true(str_is(buffer_str(&out), "234"));
    CHECK_FAILS(decode_all(CODEC_NONE, &reader, 8, 3, &limits_default, &out, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(decode_all(CODEC_NONE, &reader, UINT64_MAX, 3, &limits_default, &out, &err), RESHARD_ERR_FORMAT);
    buffer_release(&out);
}

TEST(each_allocation_that_fails_is_reported)
{
    for (int codec = 0; codec < CODEC_COUNT; codec++) {
        struct buffer plain = make_noise(200000, 5, 200);
        unsigned long nth = 0;
        bool was_hit;
        do {
            struct buffer coded = { 0 }, out = { 0 };
            fail_malloc_at(++nth);
            reshard_status status = encode_all(codec, 3, plain.data, plain.size, &coded, &err);
            if (!status)
                status = decode(codec, &coded, &out);
            was_hit = fail_malloc_was_hit();
            assert_int_equal(status, was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
            buffer_release(&coded);
            buffer_release(&out);
        } while (was_hit);
        buffer_release(&plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_encoded_decodes_to_itself),
        cmocka_unit_test(decoding_in_small_steps_gives_the_same_and_then_ends),
        cmocka_unit_test(cut_and_damaged_streams_are_refused_and_leave_the_output_alone),
        cmocka_unit_test(text_that_is_no_bytes_is_refused),
        cmocka_unit_test(zstd_frames_may_follow_one_another_and_say_no_size),
        cmocka_unit_test(expansion_is_limited),
        cmocka_unit_test(ranges_beyond_the_object_are_refused),
        cmocka_unit_test(each_allocation_that_fails_is_reported),
    };
    return cmocka_run_group_tests_name("compress", tests, NULL, NULL);
}
