/* SPDX-License-Identifier: Apache-2.0 */
/* Globs on keys, renames, and the filter that tells which pattern matches nothing. */
#include "check.h"

#include "convert/key_filter.h"
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
        cmocka_unit_test(where_no_key_is_near_the_first_one_is_told),
        cmocka_unit_test(every_failed_allocation_is_told_as_such),
    };
    return cmocka_run_group_tests_name("key_pattern", tests, NULL, NULL);
}
