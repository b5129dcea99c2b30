/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what statements say in both directions, what demands refuse, and the texts of models/. */
#include "check.h"
#include "fail_malloc.h"

#include "base/limits.h"
#include "base/model_data.h"
#include "encoding/json.h"
#include "mapping/settings.h"

/* What the text makes of the members, as JSON; behind it what is missing and what is not read, where there is any. */
static reshard_status translate(const char *text, enum settings_side from, const char *members, const char *extra, const char *given,
                                struct buffer *out, reshard_error *err)
{
    struct settings settings = { 0 };
    struct settings_result result = { 0 };
    struct value_graph graphs[3] = { 0 };
    const char *const sources[] = { members, extra, given };
    reshard_status status = settings_parse("test", str_of(text), &settings, err);
    for (int i = 0; i < 3 && !status; i++)
        status = sources[i] ? json_parse(sources[i], strlen(sources[i]), &limits_default, &graphs[i], err) : RESHARD_OK;
    struct settings_input input = { graphs[0].root, graphs[1].root, graphs[0].count, graphs[1].count };
    if (!status)
        status = settings_run(&settings, from, &input, graphs[2].root, graphs[2].count, &result, err);
    if (!status)
        status = value_to_json(result.members, out, AT_MOST(100000), err);
    if (!status && result.missing.size)
        buffer_printf(out, " missing %.*s", STR_ARG(buffer_str(&result.missing)));
    if (!status && result.unused.size)
        buffer_printf(out, " unused %.*s", STR_ARG(buffer_str(&result.unused)));
    if (!status && out->failed)
        status = error_set_memory(err);
    settings_result_release(&result);
    settings_release(&settings);
    for (int i = 0; i < 3; i++)
        value_graph_release(&graphs[i]);
    return status;
}

static const struct {
    const char *rule, *text;
    enum settings_side from;
    const char *members, *extra, *given, *expected;
} cases[] = {
    { "a name alone is one value under two names", "a <-> b", SETTINGS_CONFIG, "{\"a\":[1,\"x\"]}", NULL, NULL, "{\"b\": [1, \"x\"]}" },
    { "unless it is no setting", "a <-> b, optional", SETTINGS_ARGS, "{\"b\":[1,{\"x\":null}]}", NULL, NULL, "{}" },
    { "and backwards", "a <-> b", SETTINGS_ARGS, "{\"b\":0.5}", NULL, NULL, "{\"a\": 0.5}" },
    { "an arrow that points one way is read that way", "a -> b\nc <- b", SETTINGS_ARGS, "{\"b\":1}", NULL, NULL, "{\"c\": 1}" },
    { "what is said first stays", "_ -> b = 2\na -> b", SETTINGS_CONFIG, "{\"a\":1}", NULL, NULL, "{\"b\": 2}" },
    { "what is given goes before", "a -> b, c", SETTINGS_CONFIG, "{\"a\":1}", NULL, "{\"b\":7}", "{\"b\": 7, \"c\": 1}" },
    { "extra members go before others", "a -> b", SETTINGS_CONFIG, "{\"a\":1}", "{\"a\":3}", NULL, "{\"b\": 3}" },
    { "every term must fit", "a = 1, b = \"x\" -> c = true", SETTINGS_CONFIG, "{\"a\":1,\"b\":\"y\"}", NULL, NULL,
      "{} missing c unused a, b" },
    { "a fraction of 0 is no difference", "a = 1 -> c = 1.5", SETTINGS_CONFIG, "{\"a\":1.0}", NULL, NULL, "{\"c\": 1.5}" },
    { "null is what is not there", "a = null -> c = null", SETTINGS_CONFIG, "{}", NULL, NULL, "{\"c\": null}" },
    { "what is absent is not null either", "config: a = absent -> a = 4\na = $w -> c = $w, optional", SETTINGS_CONFIG, "{}", NULL, NULL,
      "{\"c\": 4}" },
    { "and null is said", "config: a = absent -> a = 4\na = $w -> c = $w, optional", SETTINGS_CONFIG, "{\"a\":null}", NULL, NULL, "{}" },
    { "true is 1, which callers say", "a = true -> c = 1.5\nb = 0 -> d = 2", SETTINGS_CONFIG, "{\"b\":false}", "{\"a\":1}", NULL,
      "{\"c\": 1.5, \"d\": 2}" },
    { "every so many", "args: f = $f, n = $n -> l = every($f, $n)\np = $p <- l = marks($p, $n)", SETTINGS_ARGS, "{\"f\":2,\"n\":5}", NULL,
      NULL, "{\"p\": [1, 3]}" },
    { "but not of a list", "args: f = $f, n = $n -> l = every($f, $n)\np = $p <- l = marks($p, $n), optional", SETTINGS_ARGS,
      "{\"f\":[1],\"n\":1}", NULL, NULL, "{}" },
    { "nor of none", "args: f = $f, n = $n -> l = every($f, $n)\np = $p <- l = marks($p, $n), optional", SETTINGS_ARGS, "{\"f\":0,\"n\":5}",
      NULL, NULL, "{}" },
    { "and it is not matched", "a = 1 <- b = every($f, 2), optional", SETTINGS_ARGS, "{\"b\":[1,0]}", NULL, NULL, "{}" },
    { "numbers change their kind", "a = $x -> b = float($x), c = whole($x)", SETTINGS_CONFIG, "{\"a\":10000.0}", NULL, NULL,
      "{\"b\": 10000.0, \"c\": 10000}" },
    { "a number with a fraction stays", "a = $x -> c = whole($x)", SETTINGS_CONFIG, "{\"a\":0.5}", NULL, NULL, "{\"c\": 0.5}" },
    { "a difference", "a = $w <-> b = ($w - 1, 0)", SETTINGS_CONFIG, "{\"a\":5}", NULL, NULL, "{\"b\": [4, 0]}" },
    { "is solved", "a = $w <-> b = ($w - 1, 0)", SETTINGS_ARGS, "{\"b\":[4,0]}", NULL, NULL, "{\"a\": 5}" },
    { "a product", "n = $n, f = $f <-> p = $n * $f, q = $f", SETTINGS_CONFIG, "{\"n\":2,\"f\":24}", NULL, NULL, "{\"p\": 48, \"q\": 24}" },
    { "is solved once its other factor is known", "n = $n, f = $f <-> p = $n * $f, q = $f", SETTINGS_ARGS, "{\"p\":48,\"q\":24}", NULL,
      NULL, "{\"n\": 2, \"f\": 24}" },
    { "unless it leaves a rest", "n = $n, f = $f <-> p = $n * $f, q = $f, optional", SETTINGS_ARGS, "{\"p\":47,\"q\":24}", NULL, NULL,
      "{}" },
    { "a quotient", "a = $a, b = $b -> c = $a / $b", SETTINGS_CONFIG, "{\"a\":12,\"b\":4}", NULL, NULL, "{\"c\": 3}" },
    { "is solved", "a = $a / 3, b = $a / $b -> c = $a, d = $b", SETTINGS_CONFIG, "{\"a\":4,\"b\":6}", NULL, NULL, "{\"c\": 12, \"d\": 2}" },
    { "a multiple", "v = $v, u = $u -> p = rounded($v, $u)", SETTINGS_CONFIG, "{\"v\":77,\"u\":64}", NULL, NULL, "{\"p\": 128}" },
    { "runs", "k = $k, n = $k + $m <-> f = [0]*$k + [1]*$m", SETTINGS_CONFIG, "{\"k\":1,\"n\":3}", NULL, NULL, "{\"f\": [0, 1, 1]}" },
    { "are counted", "k = $k, n = $k + $m <-> f = [0]*$k + [1]*$m", SETTINGS_ARGS, "{\"f\":[0,0,1]}", NULL, NULL, "{\"k\": 2, \"n\": 3}" },
    { "and must be all there is", "k = $k <-> f = [0]*$k + [1]*$m, optional", SETTINGS_ARGS, "{\"f\":[0,1,0]}", NULL, NULL, "{}" },
    { "runs longer than the whole", "k = $k, n = $k + $m -> f = [0]*$k + [1]*$m", SETTINGS_CONFIG, "{\"k\":4,\"n\":3}", NULL, NULL,
      "{} missing f unused k, n" },
    { "an empty list", "p = [] -> f = 1", SETTINGS_CONFIG, "{\"p\":[]}", NULL, NULL, "{\"f\": 1}" },
    { "is not a full one", "p = [] -> f = 1", SETTINGS_CONFIG, "{\"p\":[0]}", NULL, NULL, "{} missing f unused p" },
    { "marks", "p = $p, n = $n <-> f = marks($p, $n)", SETTINGS_CONFIG, "{\"p\":[1,3],\"n\":4}", NULL, NULL, "{\"f\": [1, 0, 1, 0]}" },
    { "are positions", "p = $p, n = $n <-> f = marks($p, $n)", SETTINGS_ARGS, "{\"f\":[1,0,1,0]}", NULL, NULL,
      "{\"p\": [1, 3], \"n\": 4}" },
    { "positions outside are none", "p = $p, n = $n -> f = marks($p, $n)", SETTINGS_CONFIG, "{\"p\":[4],\"n\":4}", NULL, NULL,
      "{} missing f unused p, n" },
    { "names with dots are nested", "r.t = \"y\", r.f <-> u = true, v", SETTINGS_ARGS, "{\"u\":true,\"v\":2}", NULL, NULL,
      "{\"r\": {\"t\": \"y\", \"f\": 2}}" },
    { "both ways", "r.t = \"y\", r.f <-> u = true, v", SETTINGS_CONFIG, "{\"r\":{\"t\":\"y\",\"f\":2,\"g\":3}}", NULL, NULL,
      "{\"u\": true, \"v\": 2} unused r.g" },
    { "a default counts where nothing is said", "config: h = $h -> k = $h\nk -> g", SETTINGS_CONFIG, "{\"h\":8}", NULL, NULL,
      "{\"g\": 8} unused h" },
    { "but not otherwise", "config: h = $h -> k = $h\nk -> g", SETTINGS_CONFIG, "{\"h\":8,\"k\":2}", NULL, NULL, "{\"g\": 2} unused h" },
    { "nor on the other side", "config: _ -> k = 1\nk <-> g", SETTINGS_ARGS, "{}", NULL, NULL, "{} missing k" },
    { "what could be given is missing", "a <-> b\nc <-> d, optional\ne <- f", SETTINGS_ARGS, "{}", NULL, NULL, "{} missing a, e" },
    { "what is asked for too", "#: ask a b\na <-> x", SETTINGS_ARGS, "{\"x\":1}", NULL, NULL, "{\"a\": 1} missing b" },
    { "what is ignored is not unused", "#: ignore a b.*\n", SETTINGS_CONFIG, "{\"a\":1,\"b\":{\"c\":1},\"d\":2,\"e\":null}", NULL, NULL,
      "{} unused d" },
    { "a type of torch", "a = \"t\" -> b = torch.bfloat16", SETTINGS_CONFIG, "{\"a\":\"t\"}", NULL, NULL, "{\"b\": \"torch.bfloat16\"}" },
};

TEST(statements_say_the_same_on_both_sides)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer out = { 0 };
        reshard_error err = { 0 };
        print_message("# %s\n", cases[i].rule);
        CHECK_OK(translate(cases[i].text, cases[i].from, cases[i].members, cases[i].extra, cases[i].given, &out, &err));
        buffer_append_byte(&out, 0);
        assert_string_equal((const char *)out.data, cases[i].expected);
        buffer_release(&out);
    }
}

TEST(texts_that_cannot_be_are_refused)
{
    static const struct { const char *text, *message; } bad[] = {
        { "a b", "test:1: expected '<->', '->' or '<-', found 'b'" },
        { "\na = <-> b", "test:2: expected a value, found '<-> b'" },
        { "a -> b c", "test:1: expected the end of the line, found 'c'" },
        { "a = \"x -> b", "test:1: expected a quote at the end of the text, found 'x -> b'" },
        { "a = [0]*x -> b", "test:1: expected a number or a variable, found 'x -> b'" },
        { "a = [0 -> b", "test:1: expected a comma or the end of the list, found '-> b'" },
        { "a = rounded($a) -> b", "test:1: expected a comma, found ') -> b'" },
        { "demand a = 1", "test:1: expected 'config:' or 'args:', found 'a = 1'" },
        { "demand args: a = 1 or", "test:1: expected the end of the line, found 'or'" },
        { "a -> b or c", "test:1: expected the end of the line, found 'or c'" },
        { "#: with nothing.settings", "test:1: there is no text 'nothing.settings'" },
        { "#: families llama", "test:1: unknown word 'families'" },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct settings settings;
        reshard_error err = { 0 };
        CHECK_FAILS(settings_parse("test", str_of(bad[i].text), &settings, &err), RESHARD_ERR_USAGE);
        assert_string_equal(err.message, bad[i].message);
    }
}

TEST(demands_are_for_one_side_and_say_what_is_there)
{
    static const char text[] = "args: _ -> w = null, s = 1, f = 1\ndemand args: w = null, s = 1\ndemand config: t = \"x\"\n"
                               "require args: g = null or g = false\ndemand args: f = 1 or f = [0]*$k + [1]*$m";
    static const struct { enum settings_side side; const char *members, *why; bool is_refused; } demands[] = {
        { SETTINGS_ARGS, "{}", NULL },
        { SETTINGS_ARGS, "{\"w\":[3,0]}", "w is [3, 0]" },
        { SETTINGS_ARGS, "{\"s\":2}", "s is 2" },
        { SETTINGS_ARGS, "{\"f\":[0,1,1]}", NULL },
        { SETTINGS_ARGS, "{\"f\":[1,0]}", "f is [1, 0]" },
        { SETTINGS_ARGS, "{\"f\":2}", "f is 2" },
        { SETTINGS_ARGS, "{\"g\":false}", NULL },
        { SETTINGS_ARGS, "{\"s\":2,\"g\":true}", "g is True", true },
        { SETTINGS_CONFIG, "{\"t\":\"x\"}", NULL },
        { SETTINGS_CONFIG, "{}", "t is not set" },
    };
    for (size_t i = 0; i < sizeof(demands) / sizeof(demands[0]); i++) {
        struct settings settings;
        struct value_graph graph = { 0 };
        struct buffer why = { 0 };
        reshard_error err = { 0 };
        enum settings_verdict verdict;
        CHECK_OK(settings_parse("test", str_of(text), &settings, &err));
        CHECK_OK(json_parse(demands[i].members, strlen(demands[i].members), &limits_default, &graph, &err));
        struct settings_input input = { .members = graph.root, .members_count = graph.count };
        CHECK_OK(settings_fit(&settings, demands[i].side, &input, &verdict, &why, &err));
        assert_int_equal(verdict, !demands[i].why ? SETTINGS_FIT : demands[i].is_refused ? SETTINGS_REFUSED : SETTINGS_UNFIT);
        buffer_append_byte(&why, 0);
        assert_string_equal((const char *)why.data, demands[i].why ? demands[i].why : "");
        buffer_release(&why);
        value_graph_release(&graph);
        settings_release(&settings);
    }
}

/* Every text of models/ parses, and what it makes of an empty side it can read back. */
TEST(the_texts_of_all_families_are_read)
{
    const struct model_data *data;
    int families = 0;
    for (uint32_t i = 0; (data = model_data_at(i)); i++) {
        struct settings settings;
        reshard_error err = { 0 };
        if (!str_ends_with(str_of(data->name), ".settings"))
            continue;
        print_message("# %s\n", data->name);
        CHECK_OK(settings_parse(data->name, data->text, &settings, &err));
        families += settings.family_count > 0;
        if (settings.family_count) {
            assert_true(settings_mention(&settings, SETTINGS_CONFIG, STR("model_type")));
            assert_true(settings_mention(&settings, SETTINGS_ARGS, STR("num_layers")));
            assert_true(settings.vocabulary_count > 1);
        }
        settings_release(&settings);
    }
    assert_true(families > 10);
}

TEST(every_allocation_may_fail)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (unsigned long nth = 1;; nth++) {
            struct buffer out = { 0 };
            reshard_error err = { 0 };
            fail_malloc_at(nth);
            reshard_status status = translate(cases[i].text, cases[i].from, cases[i].members, cases[i].extra, cases[i].given, &out, &err);
            bool was_hit = fail_malloc_was_hit();
            buffer_append_byte(&out, 0);
            if (status ? status != RESHARD_ERR_MEMORY : strcmp((const char *)out.data, cases[i].expected) != 0)
                fail_msg("%s: allocation %lu: status %d: %s", cases[i].rule, nth, status, status ? err.message : (const char *)out.data);
            buffer_release(&out);
            if (!was_hit)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statements_say_the_same_on_both_sides),
        cmocka_unit_test(texts_that_cannot_be_are_refused),
        cmocka_unit_test(demands_are_for_one_side_and_say_what_is_there),
        cmocka_unit_test(the_texts_of_all_families_are_read),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
