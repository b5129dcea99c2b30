/* SPDX-License-Identifier: Apache-2.0 */
/* What users are told: one row per text, with everything that is printed. */
#include "check.h"
#include "map_run.h"
#include "mapping/map_permute.h"

static void add(struct map_space *space, const char *key, int rank, int64_t first, int64_t second)
{
    int64_t shape[2] = { first, second };
    reshard_error err = { 0 };
    CHECK_OK(map_space_add(space, str_of(key), DTYPE_F32, rank, shape, NULL, 0, &err));
}

static void make_source(struct map_space *space)
{
    reshard_error err = { 0 };
    add(space, "a", 2, 2, 3);
    add(space, "b", 2, 2, 3);
    add(space, "model.embed.weight", 2, 4, 2);
    add(space, "layer.0.w", 1, 4, 0);
    CHECK_OK(map_space_seal(space, &err));
}

static void print_diagnoses(const struct map_run *run, const char *text, enum map_reading reading, struct buffer *out)
{
    assert_true(map_diagnoses_render(&run->diagnoses, STR("t"), str_of(text), reading == STRICT, out));
}

TEST(a_diagnosis_shows_place_line_caret_and_hint)
{
    static const struct map_case cases[] = {
        { "a name that nearly exists", "model.embed.weigth -> embed",
          "t:1:1: error: 'model.embed.weigth' is neither a weight of the source nor assigned before\n"
          "    1 | model.embed.weigth -> embed\n      | ^^^^^^^^^^^^^^^^^^\nhint: did you mean 'model.embed.weight'?\n" },
        { "a letter too many", "layer.0.wx -> c",
          "t:1:1: error: 'layer.0.wx' is neither a weight of the source nor assigned before\n"
          "    1 | layer.0.wx -> c\n      | ^^^^^^^^^^\nhint: did you mean 'layer.0.w'?\n" },
        { "a name made before whose number the source lacks", "a, b -> layer.1.w, axis=0\nlayer.$LAYER_ID.w -> c.$LAYER_ID",
          "t:2:1: warning: the numbers are those of the source's keys: 'layer.1.w', which a statement before makes, is left out\n"
          "    2 | layer.$LAYER_ID.w -> c.$LAYER_ID\n      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
          "hint: a statement for these names alone does what this one does not\n" },
        { "several of them", "a -> layer.3.w, layer.2.w, axis=0\nlayer.$LAYER_ID.w -> c.$LAYER_ID",
          "t:2:1: warning: the numbers are those of the source's keys: 'layer.3.w', which a statement before makes, is left out, and so "
          "are others\n    2 | layer.$LAYER_ID.w -> c.$LAYER_ID\n      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
          "hint: a statement for these names alone does what this one does not\n" },
        { "one whose number the source has", "layer.0.w -> layer.0.w\nlayer.$LAYER_ID.w -> c.$LAYER_ID", "" },
        { "a macro of PaddleFormers' own", "a, b -> c, fused_in_proj, axis=0, tp_probe_key=c.d",
          "t:1:12: error: fused_in_proj is a macro of PaddleFormers' own, which is not supported\n"
          "    1 | a, b -> c, fused_in_proj, axis=0, tp_probe_key=c.d\n      |            ^^^^^^^^^^^^^\n"
          "hint: cut each tensor into as many parts as ranks cut the target, and join these rank by rank\n" },
        { "which may be a name", "a -> c, fused_in_proj, axis=0", "" },
        { "letters that lack", "modelembed.weigh -> c",
          "t:1:1: error: 'modelembed.weigh' is neither a weight of the source nor assigned before\n"
          "    1 | modelembed.weigh -> c\n      | ^^^^^^^^^^^^^^^^\nhint: did you mean 'model.embed.weight'?\n" },
        { "nothing that is near", "model.other_weighing -> c",
          "t:1:1: error: 'model.other_weighing' is neither a weight of the source nor assigned before\n"
          "    1 | model.other_weighing -> c\n      | ^^^^^^^^^^^^^^^^^^^^\n" },
        { "several errors in one run", "a ->\nb => c\na, b -> c, axis",
          "t:1:5: error: expected a name, found the end of the line\n    1 | a ->\n      |     ^\n"
          "t:2:4: error: unexpected character '>'\n    2 | b => c\n      |    ^\n"
          "t:3:12: error: 'axis' is a word of the language, not the name of a tensor\n    3 | a, b -> c, axis\n      |            ^^^^\n"
          "hint: an attribute has a value: axis=0\n" },
        { "columns count characters, not bytes", "a -> b, dtype='é', x",
          "t:1:21: error: expected '=', found the end of the line\n    1 | a -> b, dtype='é', x\n      |                     ^\n"
          "hint: attributes stand behind all names of the right side\n" },
        { "a carriage return ends a line", "a -> c\rb c -> d", "t:2:3: error: expected '->', found 'c'\n    2 | b c -> d\n      |   ^\n" },
        { "the backslash of a shell", "layer.\\$LAYER_ID.w -> c",
          "t:1:7: error: unexpected character '\\\\'\n    1 | layer.\\$LAYER_ID.w -> c\n      |       ^\nhint: remove the backslash before "
          "$\n" },
        { "a statement behind macros is shown", "layer.$LAYER_ID.w, a -> c.$LAYER_ID, axis=0",
          "t:1:20: error: 'a' lacks $LAYER_ID, which another name of the statement has\n    1 | layer.$LAYER_ID.w, a -> c.$LAYER_ID, "
          "axis=0\n"
          "      |                    ^\nhint: one statement is made for each number, so every name needs the placeholder\n" },
        { "an axis out of range", "layer.$LAYER_ID.w -> c.$LAYER_ID, d.$LAYER_ID, axis=1",
          "t:1:53: error: axis 1 is out of range: the tensor has 1 axes\n    1 | layer.$LAYER_ID.w -> c.$LAYER_ID, d.$LAYER_ID, axis=1\n"
          "      |                                                     ^\nhint: a bias needs axis=0; in the expansion: layer.0.w -> c.0, "
          "d.0, axis=1\n" },
        { "two of them, each with its own statement",
          "layer.$LAYER_ID.w -> c.$LAYER_ID, d.$LAYER_ID, axis=1\nlayer.$LAYER_ID.w -> e.$LAYER_ID, f.$LAYER_ID, axis=2",
          "t:1:53: error: axis 1 is out of range: the tensor has 1 axes\n    1 | layer.$LAYER_ID.w -> c.$LAYER_ID, d.$LAYER_ID, axis=1\n"
          "      |                                                     ^\nhint: a bias needs axis=0; in the expansion: layer.0.w -> c.0, "
          "d.0, axis=1\n"
          "t:2:53: error: axis 2 is out of range: the tensor has 1 axes\n    2 | layer.$LAYER_ID.w -> e.$LAYER_ID, f.$LAYER_ID, axis=2\n"
          "      |                                                     ^\nhint: a bias needs axis=0; in the expansion: layer.0.w -> e.0, "
          "f.0, axis=2\n" },
        { "an expression is shown whole", "n = 4\na -> x, y, axis=n - 1 # note",
          "t:2:17: error: axis 3 is out of range: the tensor has 2 axes\n    2 | a -> x, y, axis=n - 1 # note\n"
          "      |                 ^^^^^\n" },
        { "an unquoted value", "a -> c, dtype=float32",
          "t:1:15: error: expected a number or a string, found 'float32'\n    1 | a -> c, dtype=float32\n      |               "
          "^^^^^^^\nhint: put the value in quotes\n" },
        { "attributes beside a hole", "_ -> c, axis=1\n_ -> _, axis=0",
          "t:1:9: warning: attributes mean nothing beside '_'\n    1 | _ -> c, axis=1\n      |         ^^^^\n"
          "t:2:9: warning: attributes mean nothing beside '_'\n    2 | _ -> _, axis=0\n      |         ^^^^\n" },
        { "nothing is wrong", "a -> c # note\n`b` -> `x/y`\n", "" },
    };
    static const struct map_case strict[] = {
        { "comments are ours", "a -> c # note",
          "t:1:8: error: unexpected character '#'\n    1 | a -> c # note\n      |        ^\nhint: comments are an extension, which "
          "reshard_map_options.strict refuses\n" },
    };
    MAP_CASES_CHECK(cases, FORWARDS, make_source, print_diagnoses);
    MAP_CASES_CHECK(strict, STRICT, make_source, print_diagnoses);
}

static unsigned slow_distance(const char *a, const char *b)
{
    if (!*a || !*b)
        return (unsigned)(strlen(a) + strlen(b));
    if (*a == *b)
        return slow_distance(a + 1, b + 1);
    unsigned less = slow_distance(a + 1, b), more = slow_distance(a, b + 1), other = slow_distance(a + 1, b + 1);
    less = less < more ? less : more;
    return (less < other ? less : other) + 1;
}

static void random_name(uint64_t *seed, size_t least, char *out)
{
    size_t size = least + test_random(seed) % 4;
    for (size_t i = 0; i < size; i++)
        out[i] = "ab"[test_random(seed) % 2];
    out[size] = '\0';
}

/* The first of the nearest names, of which a third of the letters may differ. */
TEST(the_nearest_name_is_found)
{
    uint64_t seed = 5;
    for (int round = 0; round < 300; round++) {
        struct map_space space = { 0 };
        char names[4][10], asked[10];
        unsigned least = 100;
        random_name(&seed, 4, asked);
        for (int i = 0; i < 4; i++) {
            do
                random_name(&seed, 3, names[i]);
            while (strcmp(names[i], asked) == 0 || map_space_find(&space, str_of(names[i])) != MAP_NONE);
            add(&space, names[i], 1, 2, 0);
            unsigned distance = slow_distance(asked, names[i]);
            least = distance < least ? distance : least;
        }
        reshard_error err = { 0 };
        CHECK_OK(map_space_seal(&space, &err));
        struct str found = map_space_nearest(&space, str_of(asked));
        unsigned distance = 100;
        for (int i = 3; i >= 0; i--)
            if (str_is(found, names[i]))
                distance = slow_distance(asked, names[i]);
        bool is_near = least <= strlen(asked) / 3;
        if (is_near ? distance != least : found.size != 0)
            fail_msg("round %d: '%.*s' for '%s', least distance %u", round, STR_ARG(found), asked, least);
        map_space_release(&space);
    }
}

/* None, too many, one twice, one out of range. */
TEST(a_permutation_has_every_axis_once)
{
    const struct {
        int64_t values[4];
        int count, rank;
        bool is_one;
        uint8_t axes[3];
    } cases[] = {
        { { 0 }, 0, 3, true, { 2, 1, 0 } },  { { 0 }, 0, 0, true, { 0 } },          { { 2, 0, 1 }, 3, 3, true, { 2, 0, 1 } },
        { { 1, 0, 2 }, 3, 2, false, { 0 } }, { { 1, 0, 2 }, 2, 3, false, { 0 } },   { { 1, 1, 0 }, 3, 3, false, { 0 } },
        { { 0, 1, 3 }, 3, 3, false, { 0 } }, { { 0, 1, -1 }, 3, 3, false, { 0 } },  { { 0 }, 1, 1, true, { 0 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t axes[RANK_MAX];
        assert_int_equal(map_permutation_of(cases[i].values, cases[i].count, cases[i].rank, axes), cases[i].is_one);
        for (int k = 0; k < cases[i].rank && cases[i].is_one; k++)
            assert_int_equal(axes[k], cases[i].axes[k]);
    }
}

/* What we take and Paddle's own engine does not: an error for who asks for the latter, a warning for others. */
TEST(what_paddles_engine_would_not_take_is_told)
{
    static const struct map_case strict[] = {
        { "an attribute before the flag, axis apart", "a -> c, axis=0, num_heads=2, fused_ffn",
          "t:1:17: error: Paddle's engine takes an attribute before fused_ffn for a name\n"
          "    1 | a -> c, axis=0, num_heads=2, fused_ffn\n"
          "      |                 ^^^^^^^^^\n"
          "t:1:17: error: fused_ffn has no attribute 'num_heads'\n"
          "    1 | a -> c, axis=0, num_heads=2, fused_ffn\n"
          "      |                 ^^^^^^^^^\n"
          "hint: use a second statement\n" },
        { "one placeholder twice", "a.$LAYER_ID.$LAYER_ID -> c.$LAYER_ID",
          "t:1:1: error: Paddle's engine fails where a name has one placeholder twice\n"
          "    1 | a.$LAYER_ID.$LAYER_ID -> c.$LAYER_ID\n"
          "      | ^^^^^^^^^^^^^^^^^^^^^\n"
          "t:1:1: warning: no key matches: the statement has no effect\n"
          "    1 | a.$LAYER_ID.$LAYER_ID -> c.$LAYER_ID\n"
          "      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
          "hint: the numbers come from the keys of the source\n" },
        { "a hole without the placeholder", "layer.$LAYER_ID.w -> _",
          "t:1:22: error: Paddle's engine wants $LAYER_ID in '_' too\n"
          "    1 | layer.$LAYER_ID.w -> _\n"
          "      |                      ^\n" },
        { "a star in a transposed name", "layer.*.w^T -> c, axis=0",
          "t:1:1: error: Paddle's engine finds no key for a star in a transposed name\n"
          "    1 | layer.*.w^T -> c, axis=0\n"
          "      | ^^^^^^^^^^^\n" },
    };
    static const struct map_case forwards[] = {
        { "the same is a warning for us", "a -> c, axis=0, num_heads=2, fused_ffn",
          "t:1:17: warning: Paddle's engine takes an attribute before fused_ffn for a name\n"
          "    1 | a -> c, axis=0, num_heads=2, fused_ffn\n"
          "      |                 ^^^^^^^^^\n"
          "t:1:17: error: fused_ffn has no attribute 'num_heads'\n"
          "    1 | a -> c, axis=0, num_heads=2, fused_ffn\n"
          "      |                 ^^^^^^^^^\n"
          "hint: use a second statement\n" },
        { "what is written with words of ours is not for Paddle", "n = 1\na -> c, axis=0, num_heads=n, fused_ffn",
          "t:2:17: error: fused_ffn has no attribute 'num_heads'\n"
          "    2 | a -> c, axis=0, num_heads=n, fused_ffn\n"
          "      |                 ^^^^^^^^^\n"
          "hint: use a second statement\n" },
        { "and the rest", "layer.$LAYER_ID.w -> _",
          "t:1:22: warning: Paddle's engine wants $LAYER_ID in '_' too\n"
          "    1 | layer.$LAYER_ID.w -> _\n"
          "      |                      ^\n" },
    };
    static const struct map_case backwards[] = {
        { "a number of heads that is none", "a -> d, fused_qkv, num_heads='two', num_key_value_groups=1",
          "t:1:30: error: fused_qkv: the value must be a number\n"
          "    1 | a -> d, fused_qkv, num_heads='two', num_key_value_groups=1\n"
          "      |                              ^^^^^\n" },
        { "a flag that splits", "c -> a, b, fused_ffn",
          "t:1:1: warning: Paddle's engine crashes on fused_ffn into 2 names backwards\n"
          "    1 | c -> a, b, fused_ffn\n"
          "      | ^^^^^^^^^^^^^^^^^^^^\n" },
    };
    MAP_CASES_CHECK(strict, STRICT, make_source, print_diagnoses);
    MAP_CASES_CHECK(forwards, FORWARDS, make_source, print_diagnoses);
    MAP_CASES_CHECK(backwards, BACKWARDS, make_source, print_diagnoses);
}

/* The first are kept; all are counted, and the text says that there are more. */
TEST(many_diagnoses_are_counted)
{
    struct map_diagnoses diagnoses = { 0 };
    struct buffer out = { 0 };
    for (uint32_t i = 0; i < MAP_DIAGNOSES_MAX + 7; i++)
        assert_false(map_diagnose(&diagnoses, i % 2 ? MAP_WARNING : MAP_ERROR, (struct map_span){ i, 0 }, NULL, "number %u", i));
    assert_int_equal(diagnoses.count, MAP_DIAGNOSES_MAX);
    assert_int_equal(diagnoses.dropped, 7);
    assert_int_equal(diagnoses.error_count, MAP_DIAGNOSES_MAX / 2 + 4);
    assert_int_equal(diagnoses.warning_count, MAP_DIAGNOSES_MAX / 2 + 3);
    assert_string_equal(diagnoses.rows[MAP_DIAGNOSES_MAX - 1].message, "number 199");
    assert_true(map_diagnoses_render(&diagnoses, STR("t"), STR(""), false, &out));
    buffer_append_byte(&out, '\0');
    assert_non_null(strstr((const char *)out.data, "7 more"));
    assert_null(strstr((const char *)out.data, "number 200"));
    buffer_release(&out);
    map_diagnoses_release(&diagnoses);
}

TEST(growth_is_limited)
{
    static const struct {
        const char *why, *text;
    } cases[] = {
        { "an array of many names", "a -> b[0:99999999999], axis=0" },
        { "an array of more names than numbers", "a -> b[0:9223372036854775807], axis=0" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct map_space source = { 0 };
        struct map_run run;
        reshard_error err = { 0 };
        make_source(&source);
        reshard_status status = map_run(&run, cases[i].text, &source, NULL, false, &err);
        if (status != RESHARD_ERR_LIMIT)
            fail_msg("%s: status %d", cases[i].why, status);
        map_run_release(&run);
        map_space_release(&source);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_diagnosis_shows_place_line_caret_and_hint),
        cmocka_unit_test(what_paddles_engine_would_not_take_is_told),
        cmocka_unit_test(the_nearest_name_is_found),
        cmocka_unit_test(a_permutation_has_every_axis_once),
        cmocka_unit_test(many_diagnoses_are_counted),
        cmocka_unit_test(growth_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
