/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of RFC 4648, section 10, and what is no such text. */
#include "check.h"

#include "encoding/base64.h"

static void is_text_of(const char *bytes, const char *text)
{
    struct buffer encoded = { 0 }, decoded = { 0 };
    assert_true(base64_encode(str_of(bytes), &encoded));
    assert_int_equal(encoded.size, strlen(text));
    assert_memory_equal(encoded.data ? encoded.data : (const uint8_t *)"", text, encoded.size);
    assert_true(base64_decode(str_of(text), &decoded));
    assert_int_equal(decoded.size, strlen(bytes));
    assert_memory_equal(decoded.data ? decoded.data : (const uint8_t *)"", bytes, decoded.size);
    buffer_release(&encoded);
    buffer_release(&decoded);
}

TEST(bytes_become_text_and_back)
{
    is_text_of("", "");
    is_text_of("f", "Zg==");
    is_text_of("fo", "Zm8=");
    is_text_of("foo", "Zm9v");
    is_text_of("foob", "Zm9vYg==");
    is_text_of("fooba", "Zm9vYmE=");
    is_text_of("foobar", "Zm9vYmFy");
    is_text_of("\xff\xfe\xfb", "//77");
    is_text_of("\xfb\xef\xbe", "++++");
}

TEST(what_is_no_base64)
{
    static const char *const bad[] = { "Z", "Zg", "Zg=", "Zm9vYg=", "Zm 9", "Zm9\n", "Zm9*", "Z===", "====", "=Zg=", "Zm-_" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct buffer decoded = { 0 };
        if (base64_decode(str_of(bad[i]), &decoded))
            fail_msg("'%s' is taken", bad[i]);
        buffer_release(&decoded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(bytes_become_text_and_back), cmocka_unit_test(what_is_no_base64) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
