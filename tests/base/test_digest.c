/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "base/digest.h"

static void check_digest(enum digest_kind kind, const char *text, const char *expected)
{
    char hex[DIGEST_HEX_MAX];
    struct digest *digest = digest_new(kind);
    assert_non_null(digest);
    for (int round = 0; round < 2; round++) {
        digest_reset(digest);
        size_t size = strlen(text);
        digest_update(digest, text, size / 3);
        digest_update(digest, text + size / 3, size - size / 3);
        digest_hex(digest, hex);
        assert_string_equal(hex, expected);
    }
    digest_free(digest);
}

TEST(digests_have_their_published_values)
{
    check_digest(DIGEST_SHA256, "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_digest(DIGEST_SHA256, "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_digest(DIGEST_XXH3, "", "2d06800538d394c2");
    check_digest(DIGEST_MD5, "", "d41d8cd98f00b204e9800998ecf8427e");
    check_digest(DIGEST_MD5, "abc", "900150983cd24fb0d6963f7d28e17f72");
    check_digest(DIGEST_CRC32C, "", "00000000");
    check_digest(DIGEST_CRC32C, "123456789", "e3069283");
}

TEST(crcs_have_their_check_values_and_continue)
{
    static const char digits[] = "123456789";
    assert_int_equal(crc32_zip(0, digits, 9), 0xcbf43926);
    assert_int_equal(crc32c(0, digits, 9), 0xe3069283);
    for (size_t cut = 0; cut <= 9; cut++) {
        uint32_t zip_a = crc32_zip(0, digits, cut), zip_b = crc32_zip(0, digits + cut, 9 - cut);
        assert_int_equal(crc32_zip(zip_a, digits + cut, 9 - cut), 0xcbf43926);
        assert_int_equal(crc32c(crc32c(0, digits, cut), digits + cut, 9 - cut), 0xe3069283);
        assert_int_equal(crc32_zip_combine(zip_a, zip_b, 9 - cut), 0xcbf43926);
    }
}

/* Bit by bit: the definition. */
static uint32_t crc_naive(uint32_t polynomial, const uint8_t *bytes, size_t size)
{
    uint32_t crc = ~UINT32_C(0);
    for (size_t i = 0; i < size; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
    }
    return ~crc;
}

TEST(crcs_of_any_length_and_alignment_agree_with_the_definition)
{
    uint8_t bytes[2000];
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)test_random(&seed);
    for (size_t size = 0; size < 1900; size += 1 + size / 7) {
        const uint8_t *at = bytes + size % 17;
        assert_int_equal(crc32_zip(0, at, size), crc_naive(UINT32_C(0xedb88320), at, size));
        assert_int_equal(crc32c(0, at, size), crc_naive(UINT32_C(0x82f63b78), at, size));
    }
}

TEST(crcs_of_parts_give_that_of_the_whole)
{
    uint8_t a[700], b[700], both[1500];
    uint64_t seed = 4;
    for (int round = 0; round < 300; round++) {
        size_t size_a = test_random(&seed) % 700, size_b = test_random(&seed) % 700, offset_b = test_random(&seed) % 800;
        memset(both, 0, sizeof(both));
        for (size_t i = 0; i < size_a; i++)
            both[i] = a[i] = i < offset_b || i >= offset_b + size_b ? (uint8_t)test_random(&seed) : 0;
        for (size_t i = 0; i < size_b; i++)
            both[offset_b + i] |= b[i] = (uint8_t)test_random(&seed);
        uint32_t crc_a = crc32_zip(0, a, size_a), crc_b = crc32_zip(0, b, size_b);
        size_t end = size_a > offset_b + size_b ? size_a : offset_b + size_b;
        uint64_t size = 0;
        assert_int_equal(crc32_zip_overlay(crc_a, size_a, crc_b, size_b, offset_b, &size), crc_naive(UINT32_C(0xedb88320), both, end));
        assert_int_equal(size, end);
        memset(both, 0, sizeof(both));
        assert_int_equal(crc32_zip_zeros(size_a), crc_naive(UINT32_C(0xedb88320), both, size_a));
        memcpy(both, b, size_b);
        assert_int_equal(crc32_zip_extend(crc_b, size_b, size_b + offset_b), crc_naive(UINT32_C(0xedb88320), both, size_b + offset_b));
    }
}

TEST(digests_are_found_by_name)
{
    enum digest_kind kind;
    assert_true(digest_from_name(STR("xxh3"), &kind));
    assert_int_equal(kind, DIGEST_XXH3);
    assert_string_equal(digest_name(DIGEST_CRC32C), "crc32c");
    assert_false(digest_from_name(STR("sha1"), &kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_have_their_published_values),
        cmocka_unit_test(crcs_have_their_check_values_and_continue),
        cmocka_unit_test(crcs_of_any_length_and_alignment_agree_with_the_definition),
        cmocka_unit_test(crcs_of_parts_give_that_of_the_whole),
        cmocka_unit_test(digests_are_found_by_name),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
