/* SPDX-License-Identifier: Apache-2.0 */
/* Globs on keys, renames, and the filter that tells which pattern matches nothing. */
#include "check.h"

#include "convert/key_filter.h"
#include "convert/key_rules.h"
#include "fail_malloc.h"

static bool glob_matches(const char *glob, const char *key)
{
    struct key_pattern *pattern = NULL;
    reshard_error err = { 0 };
    bool matched = false;
    CHECK_OK(key_pattern_of_glob(str_of(glob), &pattern, &err));
    CHECK_OK(key_pattern_match(pattern, str_of(key), &matched, &err));
    key_pattern_free(pattern);
    return matched;
}

TEST(globs_match_whole_keys)
{
    static const struct {
        const char *glob, *yes, *no;
    } cases[] = {
        { "a.*", "a.b.c", "b.a.c" },
        { "a.?.w", "a.1.w", "a.12.w" },
        { "*.[ab]", "x.a", "x.c" },
        { "*.[!ab]", "x.c", "x.a" },
        { "*.[^ab]", "x.c", "x.a" },
        { "[^a-c]x", "dx", "bx" },
        { "[]x]", "]", "a" },
        { "a[0-3]", "a2", "a4" },
        { "{q,k,v}_proj", "k_proj", "o_proj" },
        { "{q,{k,v}x}", "vx", "v" },
        { "layers.{0..15}.w", "layers.15.w", "layers.16.w" },
        { "layers.{0..15}.w", "layers.0.w", "layers.00.w" },
        { "shard-{08..11}", "shard-09", "shard-9" },
        { "a{b", "a{b", "ab" },
        { "a{b}", "a{b}", "ab" },
        { "a[b", "a[b", "ab" },
        { "a.b", "a.b", "axb" },
        { "\\d+", "\\d+", "12" },
        { "", "", "a" },
        { "{2..1}", "{2..1}", "1" },
        { "a,b", "a,b", "a" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        if (!glob_matches(cases[i].glob, cases[i].yes))
            fail_msg("'%s' does not match '%s'", cases[i].glob, cases[i].yes);
        if (glob_matches(cases[i].glob, cases[i].no))
            fail_msg("'%s' matches '%s'", cases[i].glob, cases[i].no);
    }
}

TEST(globs_that_ask_for_too_much_are_refused)
{
    struct key_pattern *pattern = NULL;
    reshard_error err = { 0 };
    char deep[64] = { 0 };
    CHECK_FAILS(key_pattern_of_glob(STR("a{0..100000}"), &pattern, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(key_pattern_of_glob(STR("{0..60000}{0..60000}"), &pattern, &err), RESHARD_ERR_USAGE);
    for (int i = 0; i < 20; i++)
        strcat(deep, "{,");
    for (int i = 0; i < 20; i++)
        strcat(deep, "}");
    CHECK_FAILS(key_pattern_of_glob(str_of(deep), &pattern, &err), RESHARD_ERR_USAGE);
}

TEST(renames_change_what_they_match)
{
    static const struct {
        const char *rename, *from, *to;
    } cases[] = {
        { "s/^model\\.//", "model.a", "a" },
        { "s/^model\\.//", "x.model.a", "x.model.a" },
        { "s/layers\\.(\\d+)/h.\\1/", "layers.12.w", "h.12.w" },
        { "s/layers\\.(\\d+)/h.$1/", "layers.12.w", "h.12.w" },
        { "s|a|b|g", "aXaXa", "bXbXb" },
        { "s|a|b|", "aXaXa", "bXaXa" },
        { "s/x*/-/g", "abc", "-a-b-c-" },
        { "s/(?<=w)eight/&&/", "weight", "weighteight" },
        { "s/a\\/b/c/", "a/b", "c" },
        { "model.* -> *", "model.a.b", "a.b" },
        { "*.up.* -> *.fc.*", "l.0.up.w", "l.0.fc.w" },
        { "*.up.* -> *.fc.*", "l.0.down.w", "l.0.down.w" },
        { "a.{b,c}.* -> x.*", "a.c.w", "x.w" },
        { "stay -> gone", "stayed", "stayed" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct key_rename *rename = NULL;
        struct buffer out = { 0 };
        reshard_error err = { 0 };
        CHECK_OK(key_rename_parse(cases[i].rename, &rename, &err));
        CHECK_OK(key_rename_run(rename, str_of(cases[i].from), &out, &err));
        if (!str_is(buffer_str(&out), cases[i].to))
            fail_msg("%s of '%s' is '%.*s'", cases[i].rename, cases[i].from, STR_ARG(buffer_str(&out)));
        buffer_release(&out);
        key_rename_free(rename);
    }
}

TEST(renames_that_are_none_are_refused)
{
    static const char *const cases[] = { "", "s", "s/a", "s/a/b", "s/a/b/x", "s/(/x/", "ab", "* -> *.*", " -> a" };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct key_rename *rename = NULL;
        reshard_error err = { 0 };
        if (key_rename_parse(cases[i], &rename, &err) != RESHARD_ERR_USAGE)
            fail_msg("'%s' is taken", cases[i]);
        assert_null(rename);
    }
}

TEST(searches_end)
{
    struct key_rename *rename = NULL;
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(key_rename_parse("s/(a+)+$/x/", &rename, &err));
    /* 2^28 steps: a search that has no limit ends, too, and finds nothing */
    CHECK_FAILS(key_rename_run(rename, STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaab"), &out, &err), RESHARD_ERR_LIMIT);
    buffer_release(&out);
    key_rename_free(rename);
}

TEST(a_filter_names_the_pattern_that_matches_nothing)
{
    static const char *const include[] = { "layers.*.weight", "layres.0.bias", NULL }, *const exclude[] = { "*.1.*", NULL };
    static const struct {
        const char *key;
        bool wanted;
    } keys[] = { { "layers.0.weight", true }, { "layers.1.weight", false }, { "layers.0.bias", false }, { "head", false } };
    struct key_filter filter;
    reshard_error err = { 0 };
    CHECK_OK(key_filter_begin(&filter, include, exclude, &err));
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        bool wanted;
        CHECK_OK(key_filter_wants(&filter, str_of(keys[i].key), &wanted, &err));
        assert_int_equal(wanted, keys[i].wanted);
    }
    CHECK_FAILS(key_filter_check(&filter, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "include 'layres.0.bias' matches no key"));
    assert_non_null(strstr(err.hint, "the nearest keys are 'layers.0.bias'"));
    key_filter_release(&filter);
}

TEST(the_three_nearest_keys_are_told_the_nearest_first)
{
    static const char *const include[] = { "layers.0.weihgt", NULL };
    static const char *const keys[] = { "head", "layers.0.weight", "layers.1.weight", "layers.2.weight",
                                        "layers.0.weight_x", "layers.9.bias", "lay" };
    struct key_filter filter;
    reshard_error err = { 0 };
    CHECK_OK(key_filter_begin(&filter, include, NULL, &err));
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        bool wanted;
        CHECK_OK(key_filter_wants(&filter, str_of(keys[i]), &wanted, &err));
        assert_false(wanted);
    }
    CHECK_FAILS(key_filter_check(&filter, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.hint, "the nearest keys are 'layers.0.weight', 'layers.0.weight_x', 'layers.1.weight'");
    key_filter_release(&filter);
}

static void check_nearest(const char *glob, const struct str *keys, size_t count, const char *expected)
{
    const char *const include[] = { glob, NULL };
    struct key_filter filter;
    reshard_error err = { 0 };
    bool wanted;
    CHECK_OK(key_filter_begin(&filter, include, NULL, &err));
    for (size_t i = 0; i < count; i++)
        CHECK_OK(key_filter_wants(&filter, keys[i], &wanted, &err));
    CHECK_FAILS(key_filter_check(&filter, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.hint, expected);
    key_filter_release(&filter);
}

/* Two for each character at the beginning and the end, one for each pair between; of those with as many the first. */
TEST(what_makes_a_key_near)
{
    const struct str head_or_tail[] = { STR("YYYYefghij"), STR("abcdefgXXX"), STR("abcdefgZZZ") };
    check_nearest("abcdefghij", head_or_tail, 3, "the nearest keys are 'abcdefgXXX', 'abcdefgZZZ', 'YYYYefghij'");
    const struct str pairs[] = { STR("ab.cd"), { "abXXcdef", 4 } }; /* what lies behind a key is none of it */
    check_nearest("abcdef", pairs, 2, "the nearest keys are 'ab.cd', 'abXX'");
    const struct str last_pair[] = { STR("abyy."), STR("abef.") };
    check_nearest("abcdef", last_pair, 2, "the nearest keys are 'abef.', 'abyy.'");
    const struct str overlap[] = { STR("aaa"), STR("aaaaX") }; /* no character counts twice */
    check_nearest("aaaaa", overlap, 2, "the nearest keys are 'aaaaX', 'aaa'");
    const struct str far_off[] = { STR("a.bc") };
    check_nearest("abcd", far_off, 1, "no key is like it; the first is 'a.bc'");
    const struct str few[] = { STR("axx"), STR("abx"), STR("abxx"), STR("abc") };
    check_nearest("abcd", few, 4, "the nearest keys are 'abc', 'abx', 'abxx'");
}

TEST(where_no_key_is_near_the_first_one_is_told)
{
    static const char *const include[] = { "zz*", NULL }, *const keys[] = { "model.embed", "lm_head", NULL };
    struct key_filter filter;
    reshard_error err = { 0 };
    CHECK_OK(key_filter_begin(&filter, include, NULL, &err));
    for (size_t i = 0; keys[i]; i++) {
        bool wanted;
        CHECK_OK(key_filter_wants(&filter, str_of(keys[i]), &wanted, &err));
    }
    CHECK_FAILS(key_filter_check(&filter, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.hint, "no key is like it; the first is 'model.embed'");
    key_filter_release(&filter);
}

TEST(every_failed_allocation_is_told_as_such)
{
    static const char *const renames[] = { "s/a(b+)\\.c/x\\1y/", "*.abc.* -> *.x.*" };
    for (size_t i = 0; i < 2; i++)
        for (unsigned long n = 1;; n++) {
            struct key_rename *rename = NULL;
            reshard_error err = { 0 };
            fail_malloc_at(n);
            reshard_status status = key_rename_parse(renames[i], &rename, &err);
            bool was_hit = fail_malloc_was_hit();
            assert_int_equal(status, was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
            key_rename_free(rename);
            if (!was_hit)
                break;
        }
}

/* ---- types ---- */

TEST(the_last_type_that_is_asked_for_counts)
{
    static const struct {
        const char *dtypes[4], *key;
        enum dtype source, out;
    } cases[] = {
        { { NULL }, "w", DTYPE_F32, DTYPE_F32 },
        { { "bf16" }, "w", DTYPE_F32, DTYPE_BF16 },
        { { "bf16" }, "w", DTYPE_I64, DTYPE_I64 }, /* of floats only */
        { { "bf16", "w*=f32" }, "w1", DTYPE_F16, DTYPE_F32 },
        { { "bf16", "w*=f32" }, "v1", DTYPE_F16, DTYPE_BF16 },
        { { "w*=f32", "bf16" }, "w1", DTYPE_F16, DTYPE_BF16 },
        { { "w*=f32", "w1=f16", "x=bf16" }, "w1", DTYPE_F64, DTYPE_F16 },
        { { "x=bf16", "w*=f32" }, "w1", DTYPE_F64, DTYPE_F32 },
        { { "a=*=f32" }, "a=b", DTYPE_F16, DTYPE_F32 },
        { { "=f32" }, "", DTYPE_F16, DTYPE_F32 },
        { { "=f32" }, "w", DTYPE_F16, DTYPE_F16 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct key_rules rules;
        reshard_error err = { 0 };
        enum dtype out;
        CHECK_OK(key_rules_begin(&rules, NULL, NULL, cases[i].dtypes, &err));
        CHECK_OK(key_rules_dtype(&rules, str_of(cases[i].key), cases[i].source, &out, &err));
        if (out != cases[i].out)
            fail_msg("case %zu: %s", i, dtype_info(out)->name);
        key_rules_release(&rules);
    }
}

TEST(types_that_are_none_or_match_nothing_are_mistakes)
{
    static const char *const bad[] = { "", "f33", "w=", "w=f33", "f32=w", "=" };
    static const char *const dtypes[] = { "w*=f32", "bf16", "layers.1=f16", NULL }, *const wide[] = { "c=f32", NULL };
    static const char *const endless[] = { "*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*[bc]d=f32", NULL };
    struct key_rules rules;
    reshard_error err = { 0 };
    enum dtype out;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        const char *const one[] = { "bf16", bad[i], NULL };
        CHECK_FAILS(key_rules_begin(&rules, NULL, NULL, one, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "unknown dtype"));
        key_rules_release(&rules);
    }
    CHECK_OK(key_rules_begin(&rules, NULL, NULL, dtypes, &err));
    CHECK_OK(key_rules_dtype(&rules, STR("layers.0"), DTYPE_F32, &out, &err));
    CHECK_FAILS(key_rules_check(&rules, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "dtype 'w*' matches no key"));
    CHECK_OK(key_rules_dtype(&rules, STR("w"), DTYPE_F32, &out, &err));
    CHECK_FAILS(key_rules_check(&rules, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "dtype 'layers.1' matches no key"));
    assert_non_null(strstr(err.hint, "layers.0"));
    CHECK_OK(key_rules_dtype(&rules, STR("layers.1"), DTYPE_F32, &out, &err));
    CHECK_OK(key_rules_check(&rules, &err));
    key_rules_release(&rules);
    CHECK_OK(key_rules_begin(&rules, NULL, NULL, wide, &err));
    CHECK_FAILS(key_rules_dtype(&rules, STR("c"), DTYPE_C64, &out, &err), RESHARD_ERR_UNSUPPORTED);
    assert_string_equal(err.message, "tensor 'c': no cast from C64 to F32");
    key_rules_release(&rules);
    CHECK_OK(key_rules_begin(&rules, NULL, NULL, endless, &err));
    const struct str long_key = STR("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaad");
    CHECK_FAILS(key_rules_dtype(&rules, long_key, DTYPE_F32, &out, &err), RESHARD_ERR_LIMIT);
    key_rules_release(&rules);
}

TEST(want_of_memory_for_rules_is_an_error)
{
    static const char *const include[] = { "w*", "v", NULL }, *const exclude[] = { "w1", NULL };
    static const char *const dtypes[] = { "bf16", "w*=f32", NULL };
    bool was_hit = true;
    unsigned failed = 0;
    for (unsigned long n = 1; was_hit; n++) {
        struct key_rules rules;
        reshard_error err = { 0 };
        enum dtype out;
        bool is_wanted;
        fail_malloc_at(n);
        reshard_status status = key_rules_begin(&rules, include, exclude, dtypes, &err);
        if (!status)
            status = key_filter_wants(&rules.filter, STR("w2"), &is_wanted, &err);
        if (!status)
            status = key_rules_dtype(&rules, STR("v"), DTYPE_F32, &out, &err);
        if (!status)
            status = key_rules_dtype(&rules, STR("w2"), DTYPE_F16, &out, &err);
        was_hit = fail_malloc_was_hit();
        failed += status != RESHARD_OK;
        assert_true(!status || (was_hit && status == RESHARD_ERR_MEMORY)); /* near keys are told only if there is memory for them */
        if (!status)
            assert_int_equal(out, DTYPE_F32);
        key_rules_release(&rules);
    }
    assert_true(failed >= 6); /* two lists, the rules, and each pattern */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(globs_match_whole_keys),
        cmocka_unit_test(globs_that_ask_for_too_much_are_refused),
        cmocka_unit_test(renames_change_what_they_match),
        cmocka_unit_test(renames_that_are_none_are_refused),
        cmocka_unit_test(searches_end),
        cmocka_unit_test(a_filter_names_the_pattern_that_matches_nothing),
        cmocka_unit_test(the_three_nearest_keys_are_told_the_nearest_first),
        cmocka_unit_test(what_makes_a_key_near),
        cmocka_unit_test(where_no_key_is_near_the_first_one_is_told),
        cmocka_unit_test(every_failed_allocation_is_told_as_such),
        cmocka_unit_test(the_last_type_that_is_asked_for_counts),
        cmocka_unit_test(types_that_are_none_or_match_nothing_are_mistakes),
        cmocka_unit_test(want_of_memory_for_rules_is_an_error),
    };
    return cmocka_run_group_tests_name("key_pattern", tests, NULL, NULL);
}
