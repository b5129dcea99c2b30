/* SPDX-License-Identifier: Apache-2.0 */
/* What the language has beyond upstream's: one row per text, with the statements that it becomes, or what is said about it. */
#include "check.h"
#include "map_run.h"

#include "mapping/map_pattern.h"

static void add(struct map_space *space, const char *key, int rank, int64_t first, int64_t second)
{
    int64_t shape[2] = { first, second };
    reshard_error err = { 0 };
    CHECK_OK(map_space_add(space, str_of(key), DTYPE_F32, rank, shape, NULL, 0, &err));
}

static void make_source(struct map_space *space)
{
    reshard_error err = { 0 };
    add(space, "a", 2, 4, 6);
    add(space, "l.0.w", 2, 2, 3);
    add(space, "l.1.w", 2, 2, 3);
    add(space, "l.0.b", 1, 2, 0);
    add(space, "q", 2, 4, 6);
    add(space, "s", 2, 2, 6);
    CHECK_OK(map_space_seal(space, &err));
}

/* The statements behind all macros, or the first message. */
static void print_run(const struct map_run *run, const char *text, enum map_reading reading, struct buffer *out)
{
    (void)text, (void)reading;
    if (run->diagnoses.error_count) {
        for (uint32_t i = 0; i < run->diagnoses.count; i++) {
            if (run->diagnoses.rows[i].severity == MAP_ERROR) {
                buffer_append_text(out, run->diagnoses.rows[i].message);
                break;
            }
        }
    } else {
        for (uint32_t i = 0; i < run->expanded.count; i++) {
            map_statement_print(&run->expanded.statements[i], out);
            buffer_append_text(out, "\n");
        }
    }
}

static void print_json(const struct map_run *run, const char *text, enum map_reading reading, struct buffer *out)
{
    (void)reading;
    assert_true(map_program_json(&run->written, str_of(text), out));
}

#define CHECK_CASES(cases, reading) MAP_CASES_CHECK(cases, reading, make_source, print_run)

TEST(statements_are_told_as_json)
{
    static const struct map_case cases[] = {
        { "texts", "a -> b, dtype='x y', src_dtype=\"é\"",
          "[{\"left\":[\"a\"],\"right\":[\"b\"],\"attrs\":[[\"dtype\",\"x y\"],[\"src_dtype\",\"é\"]],\"line\":1}]" },
        { "numbers", "a -> b, axis=007\na -> c, axis=00",
          "[{\"left\":[\"a\"],\"right\":[\"b\"],\"attrs\":[[\"axis\",7]],\"line\":1},"
          "{\"left\":[\"a\"],\"right\":[\"c\"],\"attrs\":[[\"axis\",0]],\"line\":2}]" },
        { "digits of another script", "a -> b, axis=٢٠", "[{\"left\":[\"a\"],\"right\":[\"b\"],\"attrs\":[[\"axis\",20]],\"line\":1}]" },
        { "digits of two scripts, of three and four bytes", "a -> b, axis=१𝟙",
          "[{\"left\":[\"a\"],\"right\":[\"b\"],\"attrs\":[[\"axis\",11]],\"line\":1}]" },
        { "an array of names", "a -> x[0:2], axis=1",
          "[{\"left\":[\"a\"],\"right\":[\"x[0:2]\"],\"attrs\":[[\"axis\",1]],\"line\":1}]" },
        { "a flag and what follows it", "q, s -> z, fused_ffn, axis=1",
          "[{\"left\":[\"q\",\"s\"],\"right\":[\"z\"],\"attrs\":[[\"fused_ffn\",true],[\"axis\",1]],\"line\":1}]" },
    };
    MAP_CASES_CHECK(cases, FORWARDS, make_source, print_json);
}

TEST(names_of_fused_statements_are_tensors)
{
    static const struct map_case cases[] = {
        { "nothing on the left", "q, _ -> z, fused_ffn", "fused_ffn: '_' is no tensor" },
        { "nothing on the right", "q -> _, fused_ffn", "fused_ffn: '_' is no tensor" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(constants_are_numbers_by_name)
{
    static const struct map_case cases[] = {
        { "a definition", "n = 1\na -> x, y, axis=n", "a -> x, y, axis=1\n" },
        { "one made of others", "n = 3\nk = n * 2 + 4 / 4 - 6\na -> x, y, axis=k", "a -> x, y, axis=1\n" },
        { "the later definition counts", "n = 0\nn = 1\na -> x, y, axis=n", "a -> x, y, axis=1\n" },
        { "an expression as a value", "n = 2\na -> x, y, axis=n - 1", "a -> x, y, axis=1\n" },
        { "products go before sums", "a -> x, y, axis=1 + 2 * 3 - 6", "a -> x, y, axis=1\n" },
        { "bounds of an array", "n = 2\na -> x[0:n],y[0:n * 2], axis=1", "a -> x_0, x_1, y_0, y_1, y_2, y_3, axis=1\n" },
        { "no such constant", "a -> x, y, axis=n", "the constant 'n' has no value" },
        { "no whole number", "n = 7 / 2", "7 / 2 is no whole number" },
        { "division by nothing", "n = 7 / 0", "7 / 0 is no whole number" },
        { "a negative number", "n = 1 - 2", "the number -1 is negative" },
        { "too large", "n = 9223372036854775807 * 2", "9223372036854775807 * 2 is too large" },
        { "a half expression", "n = 1 + ", "expected a number or a constant, found the end of the line" },
        { "an operator without blanks", "n = 1+2", "unexpected character '+'" },
        { "nothing behind the operator", "n = 1 + -> b", "expected a number or a constant, found '->'" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(braces_put_numbers_inside_names)
{
    static const struct map_case cases[] = {
        { "inside a name", "s -> m.{0:2}.w, unstack=0", "s -> m.0.w, m.1.w, unstack=0\n" },
        { "at its end", "n = 2\ns -> m{0:n}, axis=0", "s -> m0, m1, axis=0\n" },
        { "on the left, transposed", "l.{0:2}.w^T -> m, axis=1",
          "l.0.w -> l.0.w_transpose_tmp, permute=\"[]\"\nl.1.w -> l.1.w_transpose_tmp, permute=\"[]\"\nl.0.w_transpose_tmp, "
          "l.1.w_transpose_tmp -> m, axis=1\n" },
        { "beside a placeholder", "l.$LAYER_ID.w -> m.$LAYER_ID.{0:2}, axis=0",
          "l.0.w -> m.0.0, m.0.1, axis=0\nl.1.w -> m.1.0, m.1.1, axis=0\n" },
        { "one bound", "s -> m.{2}.w", "braces hold two bounds: layers.{0:4}.weight stands for layers.0.weight, …, layers.3.weight" },
        { "no bound", "s -> m.{:2}.w", "expected a number or a constant, found ''" },
        { "nothing between", "s -> m.{2:2}.w", "the array is empty: 2 is not below 2" },
        { "twice", "s -> m.{0:2}.{0:2}.w", "behind braces a name has no other braces and no placeholder" },
        { "not closed", "s -> m.{0:2.w", "unexpected character '{'" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(placeholders_match_numbers_of_any_digits)
{
    static const char *const numbers[] = { "0", "9", "10", "90", "1234567899" };
    struct map_space source = { 0 };
    struct map_run run;
    struct buffer out = { 0 }, expected = { 0 };
    reshard_error err = { 0 };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        char key[32];
        snprintf(key, sizeof(key), "l.%s.w", numbers[i]);
        add(&source, key, 1, 2, 0);
        buffer_printf(&expected, "%s -> m.%s\n", key, numbers[i]);
    }
    add(&source, "l.x9.w", 1, 2, 0);
    CHECK_OK(map_space_seal(&source, &err));
    CHECK_OK(map_run(&run, "l.$LAYER_ID.w -> m.$LAYER_ID", &source, NULL, false, &err));
    print_run(&run, NULL, FORWARDS, &out);
    buffer_append_byte(&out, '\0');
    buffer_append_byte(&expected, '\0');
    assert_string_equal(out.data, expected.data);
    buffer_release(&out);
    buffer_release(&expected);
    map_run_release(&run);
    map_space_release(&source);
}

/* What stands between two placeholders must stand there. */
TEST(several_placeholders_match_with_what_is_between_them)
{
    struct map_space source = { 0 };
    struct map_run run;
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    add(&source, "l.3.experts.12.w", 1, 2, 0);
    add(&source, "l.3.expertx.12.w", 1, 2, 0);
    CHECK_OK(map_space_seal(&source, &err));
    CHECK_OK(map_run(&run, "l.$LAYER_ID.experts.$EXPERT_ID.w -> m.$EXPERT_ID.of.$LAYER_ID", &source, NULL, false, &err));
    print_run(&run, NULL, FORWARDS, &out);
    buffer_append_byte(&out, '\0');
    assert_non_null(strstr((char *)out.data, "l.3.experts.12.w -> m.12.of.3\n"));
    assert_null(strstr((char *)out.data, "expertx.12.w -> m"));
    buffer_release(&out);
    map_run_release(&run);
    map_space_release(&source);
}

TEST(numbers_are_in_the_order_of_their_values)
{
    static const char *const ordered[] = { "0", "00", "01", "1", "7", "08", "9", "0009", "10", "010", "18446744073709551616" };
    const int count = (int)(sizeof(ordered) / sizeof(*ordered));
    for (int i = 0; i < count * count; i++) {
        struct str a = str_of(ordered[i / count]), b = str_of(ordered[i % count]);
        int order = map_digits_compare(a, b), back = map_digits_compare(b, a);
        assert_true((order == 0) == (i / count == i % count) && (order < 0) == (back > 0));
        if (strtold(ordered[i / count], NULL) < strtold(ordered[i % count], NULL))
            assert_true(order < 0);
    }
}

TEST(one_placeholder_twice_is_one_number)
{
    static const char *const keys[] = { "l.0.x.0", "l.0.x.1", "l.12.x.1", "l.12.x.12", "l.1.x.12" };
    struct map_space source = { 0 };
    struct map_run run;
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        add(&source, keys[i], 1, 2, 0);
    CHECK_OK(map_space_seal(&source, &err));
    CHECK_OK(map_run(&run, "l.$LAYER_ID.x.$LAYER_ID -> m.$LAYER_ID", &source, NULL, false, &err));
    print_run(&run, NULL, FORWARDS, &out);
    buffer_append_byte(&out, '\0');
    assert_string_equal((char *)out.data, "l.0.x.0 -> m.0\nl.12.x.12 -> m.12\n");
    buffer_release(&out);
    map_run_release(&run);
    map_space_release(&source);
}

TEST(conditions_keep_or_drop_a_statement)
{
    static const struct map_case cases[] = {
        { "a key that is there", "a -> x, when=\"q\"", "a -> x\n" },
        { "a key that is not", "a -> x, when=\"k\"\nq -> y", "q -> y\n" },
        { "unless", "a -> x, unless=\"q\"\na -> y, unless=\"k\"", "a -> y\n" },
        { "for each layer", "l.$LAYER_ID.w -> m.$LAYER_ID, when=\"l.$LAYER_ID.b\"", "l.0.w -> m.0\n" },
        { "beside other attributes", "a -> x, y, axis=0, when=\"q\"", "a -> x, y, axis=0\n" },
        { "numbers", "n = 1\na -> x, when=\"n == 1\"\na -> y, when=\"n > 1\"\na -> z, unless=\"n != 1\"", "a -> x\na -> z\n" },
        { "an unknown number", "a -> x, when=\"n == 1\"", "the constant 'n' has no value" },
        { "half a comparison", "a -> x, when=\"1 ==\"", "expected a number or a constant, found ''" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(conditions_read_backwards_ask_for_what_keys_come_from)
{
    static const struct map_case cases[] = {
        { "a key that another statement renames",
          "w.$LAYER_ID -> l.$LAYER_ID.w, when=\"bias.$LAYER_ID\"\nbias.$LAYER_ID -> l.$LAYER_ID.b, optional",
          "w.0 -> l.0.w\nbias.0 -> l.0.b\n" },
        { "unless, of such a key", "w.$LAYER_ID -> l.$LAYER_ID.w, unless=\"bias.$LAYER_ID\"\nbias.$LAYER_ID -> l.$LAYER_ID.b",
          "w.1 -> l.1.w\nbias.0 -> l.0.b\n" },
        { "a key that none renames", "w.$LAYER_ID -> l.$LAYER_ID.w, when=\"l.$LAYER_ID.b\"", "w.0 -> l.0.w\n" },
        { "what it reads is not there", "x -> k, unless=\"y\"\nz -> a", "z -> a\n" },
        { "what is dropped forwards", "x.$LAYER_ID -> _\nz -> a", "z -> a\n" },
    };
    CHECK_CASES(cases, BACKWARDS);
}

TEST(optional_statements_need_their_first_name)
{
    static const struct map_case cases[] = {
        { "it is there", "a -> x, optional", "a -> x\n" },
        { "it is not", "k -> x, optional\nq -> y", "q -> y\n" },
        { "transposed", "a^T -> x, optional\nk^T -> y, optional", "a -> a_transpose_tmp, permute=\"[]\"\na_transpose_tmp -> x\n" },
        { "no layer", "l.$LAYER_ID.k -> m.$LAYER_ID, optional\nq -> y", "q -> y\n" },
        { "beside attributes, in any order", "a -> x, y, optional, axis=0\nq -> u, v, axis=0, optional, when=\"a\"",
          "a -> x, y, axis=0\nq -> u, v, axis=0\n" },
        { "only the first name may be missing", "a, k -> x, axis=0, optional",
          "'k' is neither a weight of the source nor assigned before" },
        { "a tensor of that name", "a -> x\nx -> `optional`, y, axis=0", "a -> x\nx -> optional, y, axis=0\n" },
    };
    static const struct map_case back[] = {
        { "it is there", "x -> a, optional", "x -> a\n" },
        { "it is not", "x -> k, optional\ny -> q", "y -> q\n" },
        { "for each layer", "x.$LAYER_ID -> l.$LAYER_ID.b, optional\ny.$LAYER_ID -> l.$LAYER_ID.k, optional", "x.0 -> l.0.b\n" },
    };
    CHECK_CASES(cases, FORWARDS);
    CHECK_CASES(back, BACKWARDS);
}

TEST(an_offset_renumbers_layers_from_there_on)
{
    static const struct map_case cases[] = {
        { "those below it are left alone", "l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w, offset=1", "l.1.w -> m.0.w\n" },
        { "by a constant", "n = 1\nl.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w, offset=n", "l.1.w -> m.0.w\n" },
        { "none are that high", "l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w, offset=2\nq -> y", "q -> y\n" },
        { "beside other attributes", "l.$LAYER_ID_OFFSET.w -> x.$LAYER_ID_OFFSET, y.$LAYER_ID_OFFSET, offset=1, axis=0",
          "l.1.w -> x.0, y.0, axis=0\n" },
        { "without one it is 1, and layer 0 a mistake", "l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w",
          "$LAYER_ID_OFFSET counts down by one, but the source has a layer 0" },
        { "without the placeholder", "a -> x, offset=1", "unknown attribute 'offset'" },
        { "no number", "l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w, offset=\"1\"", "the offset is a number" },
        { "a condition about no number", "l.$LAYER_ID_OFFSET.w -> m.$LAYER_ID_OFFSET.w, offset=1, when=\"l.$LAYER_ID.b\"",
          "no name of the statement has a number for 'l.$LAYER_ID.b'" },
    };
    static const struct map_case back[] = {
        { "counted up", "m.$LAYER_ID_OFFSET.w -> l.$LAYER_ID_OFFSET.w, offset=61", "m.61.w -> l.0.w\nm.62.w -> l.1.w\n" },
    };
    CHECK_CASES(cases, FORWARDS);
    CHECK_CASES(back, BACKWARDS);
}

TEST(stacks_add_and_drop_an_axis)
{
    static const struct map_case cases[] = {
        { "a star that has keys", "l.*.w -> m, stack=0", "l.0.w, l.1.w -> m, stack=0\n" },
        { "a star without keys counts", "s -> m.*.w, unstack=0", "s -> m.0.w, m.1.w, unstack=0\n" },
        { "along the last axis", "q -> m.*.w, unstack=1", "q -> m.0.w, m.1.w, m.2.w, m.3.w, m.4.w, m.5.w, unstack=1\n" },
        { "of one", "l.0.b -> m, stack=1", "l.0.b -> m, stack=1\n" },
        { "other shapes", "l.0.w, s -> m, stack=0", "on axis 1 's' has 6, 'l.0.w' has 3: what is stacked has one shape" },
        { "other ranks", "l.0.w, l.0.b -> m, stack=0", "'l.0.b' has 1 axes, 'l.0.w' has 2" },
        { "an axis too far", "l.*.w -> m, stack=3", "the axis is a number below 3" },
        { "too few names", "a -> x, y, unstack=0", "'a' has 4 on axis 0, for 2 names" },
        { "no such axis", "a -> x, y, unstack=2", "the axis is a number below 2" },
        { "beside another attribute", "l.*.w -> m, stack=0, axis=0", "stack stands alone" },
        { "the wrong way", "l.*.w -> m, unstack=0", "an unstack takes one tensor apart, here are 2" },
        { "the other wrong way", "s -> m, n, stack=0", "a stack makes one tensor, here are 2" },
        { "a star with neither keys nor axis", "a -> x.*.w, axis=0", "a star needs the keys of the target, which is not known" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(what_is_joined_agrees_on_other_axes)
{
    static const struct map_case cases[] = {
        { "on its axis it need not", "a, s -> m, axis=0", "a, s -> m, axis=0\n" },
        { "another axis", "a, s -> m, axis=1", "on axis 0 's' has 2, 'a' has 4: parts that are joined on axis 1 agree on the others" },
        { "an axis behind it", "q, a, l.0.w -> m, axis=0",
          "on axis 1 'l.0.w' has 3, 'q' has 6: parts that are joined on axis 0 agree on the others" },
        { "other ranks", "l.0.w, l.0.b -> m, axis=0", "'l.0.b' has 1 axes, 'l.0.w' has 2" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(shares_say_how_parts_relate)
{
    static const struct map_case cases[] = {
        { "of a split", "q -> x, y, axis=1, shares=\"[1, 2]\"", "q -> x, y, axis=1, shares=\"[1, 2]\"\n" },
        { "by name", "n = 2\nq -> x, y, axis=1, shares=\"[ 1,n ]\"", "q -> x, y, axis=1, shares=\"[1, 2]\"\n" },
        { "of a join", "q, s -> m, axis=0, shares=\"[2, 1]\"", "q, s -> m, axis=0, shares=\"[2, 1]\"\n" },
        { "of a join, others", "q, s -> m, axis=0, shares=\"[1, 1]\"", "'s' has 2 on axis 0, which does not go with 4 of 'q'" },
        { "too few", "q -> x, y, axis=1, shares=\"[1]\"", "shares are 2 positive numbers here, one for each part, not [1]" },
        { "nothing", "n = 0\nq -> x, y, axis=1, shares=\"[1, n]\"", "shares are 2 positive numbers here, one for each part, not [1, 0]" },
        { "not a list", "q -> x, y, axis=1, shares=\"1\"", "shares are a list of numbers" },
        { "no such number", "q -> x, y, axis=1, shares=\"[1, n]\"", "the constant 'n' has no value" },
        { "that do not divide", "q -> x, y, axis=1, shares=\"[1, 3]\"", "6 on axis 1 cannot be split into 4 equal parts" },
        { "too many", "q -> x, y, axis=1, shares=\"[9223372036854775807, 1]\"",
          "shares are 2 positive numbers here, one for each part, not [9223372036854775807, 1]" },
        { "without an axis", "q -> x, y, shares=\"[1, 2]\"", "a split has exactly one attribute, axis=number" },
    };
    static const struct map_case back[] = {
        { "a join", "x, y -> q, axis=1, shares=\"[1, 2]\"", "x, y -> q, axis=1, shares=\"[1, 2]\"\n" },
        { "a split", "m -> q, s, axis=0, shares=\"[2, 1]\"", "m -> q, s, axis=0, shares=\"[2, 1]\"\n" },
    };
    CHECK_CASES(cases, FORWARDS);
    CHECK_CASES(back, BACKWARDS);
}

TEST(reshape_fits_or_says_why)
{
    static const struct map_case cases[] = {
        { "rows become two axes", "a -> x, reshape=\"[2, 2, 6]\"", "a -> x, reshape=\"[2, 2, 6]\"\n" },
        { "columns too", "a -> x, reshape=\"[2, 2, 3, 2]\"", "a -> x, reshape=\"[2, 2, 3, 2]\"\n" },
        { "another shape", "a -> x, reshape=\"[2, 3, 4]\"", "'a' has neither the shape that reshape gives nor the one with two axes" },
        { "too few axes", "a -> x, reshape=\"[4, 6]\"",
          "reshape takes a list of three numbers or more, the shape of the side that has more axes" },
        { "no number", "a -> x, reshape=\"[4, x, 6]\"",
          "reshape takes a list of three numbers or more, the shape of the side that has more axes" },
        { "nothing", "a -> x, reshape=\"[4, 0, 6]\"",
          "reshape takes a list of three numbers or more, the shape of the side that has more axes" },
        { "too large", "a -> x, reshape=\"[4294967296, 4294967296, 6]\"",
          "'a' has neither the shape that reshape gives nor the one with two axes" },
        { "two names", "a -> x, y, reshape=\"[2, 2, 6]\"", "a reshape makes one tensor of one" },
    };
    CHECK_CASES(cases, FORWARDS);
}

TEST(strict_aoa_knows_none_of_it)
{
    static const struct map_case cases[] = {
        { "definitions", "n = 1\na -> x, y, axis=1", "expected '->', found '='" },
        { "constants", "a -> x, y, axis=n", "expected a number or a string, found 'n'" },
        { "operators", "a -> x, y, axis=1 + 0", "unexpected character '+'" },
        { "braces", "a -> x{0:2}, axis=0", "unexpected character '{'" },
        { "stack", "l.*.w -> m, stack=0", "a join has exactly one attribute, axis=number" },
        { "unstack", "s -> x, y, unstack=0", "a split has exactly one attribute, axis=number" },
        { "shares", "s -> x, y, axis=0, shares=\"[1, 1]\"", "a split has exactly one attribute, axis=number" },
        { "when", "a -> x, when=\"q\"", "unknown attribute 'when'" },
        { "offset", "l.$LAYER_ID_OFFSET.k -> m.$LAYER_ID_OFFSET, offset=1\na -> x, offset=1", "unknown attribute 'offset'" },
        { "optional is a name", "s -> x, optional, axis=0", "s -> x, optional, axis=0\n" },
    };
    CHECK_CASES(cases, STRICT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statements_are_told_as_json),
        cmocka_unit_test(names_of_fused_statements_are_tensors),
        cmocka_unit_test(constants_are_numbers_by_name),
        cmocka_unit_test(braces_put_numbers_inside_names),
        cmocka_unit_test(placeholders_match_numbers_of_any_digits),
        cmocka_unit_test(several_placeholders_match_with_what_is_between_them),
        cmocka_unit_test(numbers_are_in_the_order_of_their_values),
        cmocka_unit_test(one_placeholder_twice_is_one_number),
        cmocka_unit_test(conditions_keep_or_drop_a_statement),
        cmocka_unit_test(conditions_read_backwards_ask_for_what_keys_come_from),
        cmocka_unit_test(optional_statements_need_their_first_name),
        cmocka_unit_test(an_offset_renumbers_layers_from_there_on),
        cmocka_unit_test(stacks_add_and_drop_an_axis),
        cmocka_unit_test(what_is_joined_agrees_on_other_axes),
        cmocka_unit_test(shares_say_how_parts_relate),
        cmocka_unit_test(reshape_fits_or_says_why),
        cmocka_unit_test(strict_aoa_knows_none_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
