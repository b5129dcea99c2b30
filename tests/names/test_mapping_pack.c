/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings as bytes: what is read back is what was written, and bytes that are cut off or changed are refused, not read as less. */
#include "check.h"

#include "names/mapping_pack.h"

static const struct mapping_text texts[] = { { "first", STR("a -> b\n"), false }, { "", STR(""), true } };
static const struct mapping_text rules_text = { "rules", STR("c -> d\n"), true };
static const struct mapping_constant constants[] = { { "heads", 12 }, { "below", INT64_MIN } };
static const struct mapping_options nothing = { 0 };
static const struct mapping_options everything = {
    texts, 2, "llama", &rules_text, true, STR("{\"a\": 1}"), constants, 2, NULL, NULL,
};

static void check_text(const struct mapping_text *found, const struct mapping_text *expected)
{
    assert_string_equal(found->name, expected->name);
    assert_true(str_equal(found->text, expected->text));
    assert_int_equal(found->reverse, expected->reverse);
}

static void check_options(const struct mapping_options *found, const struct mapping_options *expected)
{
    assert_int_equal(found->text_count, expected->text_count);
    for (size_t i = 0; i < expected->text_count; i++)
        check_text(&found->texts[i], &expected->texts[i]);
    assert_int_equal(!found->rules, !expected->rules);
    if (expected->rules)
        assert_string_equal(found->rules, expected->rules);
    assert_int_equal(!found->rules_text, !expected->rules_text);
    if (expected->rules_text)
        check_text(found->rules_text, expected->rules_text);
    assert_int_equal(found->strict, expected->strict);
    assert_true(str_equal(found->config, expected->config));
    assert_int_equal(found->constant_count, expected->constant_count);
    for (size_t i = 0; i < expected->constant_count; i++) {
        assert_string_equal(found->constants[i].name, expected->constants[i].name);
        assert_int_equal(found->constants[i].value, expected->constants[i].value);
    }
}

static reshard_status unpack_within(struct str bytes, size_t memory, const struct mapping_options *expected, reshard_error *err)
{
    struct mapping_options found;
    struct arena arena = { .bytes_max = memory };
    reshard_status status = mapping_unpack(bytes, &arena, &found, err);
    if (!status && expected)
        check_options(&found, expected);
    arena_release(&arena);
    return status;
}

static reshard_status unpack(struct str bytes, const struct mapping_options *expected, reshard_error *err)
{
    return unpack_within(bytes, 0, expected, err);
}

TEST(what_is_packed_comes_back)
{
    const struct mapping_options *const all[] = { &nothing, &everything };
    for (size_t i = 0; i < 2; i++) {
        reshard_error err = { 0 };
        struct buffer bytes = { 0 };
        assert_true(mapping_pack(all[i], &bytes));
        CHECK_OK(unpack(buffer_str(&bytes), all[i], &err));
        buffer_release(&bytes);
    }
}

TEST(what_does_not_fit_its_numbers_is_not_packed)
{
    const struct mapping_text long_text = { "long", { "", UINT32_MAX }, false };
    struct mapping_options all[] = { everything, everything, everything, everything };
    struct buffer bytes = { 0 };
    all[0].constant_count = UINT32_MAX;
    all[1].config = long_text.text;
    all[2].texts = &long_text;
    all[2].text_count = 1;
    all[3].rules_text = &long_text;
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        assert_false(mapping_pack(&all[i], &bytes));
    assert_int_equal(bytes.size, 0);
}

/* Each prefix, copied so that what lies behind it is nobody's, and one byte too many. */
TEST(bytes_of_another_length_are_malformed)
{
    reshard_error err = { 0 };
    struct buffer bytes = { 0 };
    assert_true(mapping_pack(&everything, &bytes));
    for (size_t size = 0; size < bytes.size; size++) {
        char *part = malloc(size + 1);
        memcpy(part, bytes.data, size);
        CHECK_FAILS(unpack((struct str){ part, size }, NULL, &err), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "malformed"));
        free(part);
    }
    assert_true(buffer_append(&bytes, "", 1));
    CHECK_FAILS(unpack(buffer_str(&bytes), NULL, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(err.offset, bytes.size - 1);
    buffer_release(&bytes);
}

/* The bytes of `nothing`: no texts, no rules, no text of rules, not strict, no config, no constants. */
TEST(what_no_mapping_says_is_malformed)
{
    static const struct { size_t at; uint32_t number; } changes[] = { { 0, 1 }, { 4, 1 }, { 8, 2 }, { 12, 2 }, { 16, 1 }, { 20, 1 } };
    reshard_error err = { 0 };
    struct buffer bytes = { 0 };
    assert_true(mapping_pack(&nothing, &bytes));
    assert_int_equal(bytes.size, 24);
    for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
        char changed[24];
        memcpy(changed, bytes.data, sizeof(changed));
        memcpy(changed + changes[i].at, &changes[i].number, sizeof(changes[i].number));
        if (unpack((struct str){ changed, sizeof(changed) }, NULL, &err) != RESHARD_ERR_FORMAT)
            fail_msg("%u at byte %zu is taken", changes[i].number, changes[i].at);
    }
    buffer_release(&bytes);
}

/* A name is used as a C string: with a NUL in it, it would be another name. */
TEST(names_with_a_zero_byte_are_malformed)
{
    reshard_error err = { 0 };
    struct buffer bytes = { 0 };
    assert_true(mapping_pack(&everything, &bytes));
    static const char *const names[] = { "first", "llama", "rules", "heads" };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char *at = memmem(bytes.data, bytes.size, names[i], strlen(names[i])), kept = at[2];
        at[2] = 0;
        CHECK_FAILS(unpack(buffer_str(&bytes), NULL, &err), RESHARD_ERR_FORMAT);
        at[2] = kept;
    }
    buffer_release(&bytes);
}

TEST(want_of_memory_is_said_to_be_that)
{
    reshard_error err = { 0 };
    struct buffer bytes = { 0 };
    assert_true(mapping_pack(&everything, &bytes));
    size_t memory = 1;
    reshard_status status;
    while ((status = unpack_within(buffer_str(&bytes), memory, &everything, &err)) == RESHARD_ERR_MEMORY)
        memory++;
    CHECK_OK(status);
    assert_in_range(memory, 100, 10000);
    buffer_release(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_packed_comes_back),
        cmocka_unit_test(what_does_not_fit_its_numbers_is_not_packed),
        cmocka_unit_test(bytes_of_another_length_are_malformed),
        cmocka_unit_test(what_no_mapping_says_is_malformed),
        cmocka_unit_test(names_with_a_zero_byte_are_malformed),
        cmocka_unit_test(want_of_memory_is_said_to_be_that),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
