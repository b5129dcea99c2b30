/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration objects: one row per file, with the text that is taken out of it, or what is said about it. */
#include "check.h"
#include "mapping/map_config.h"

struct config_case {
    const char *why, *file, *text; /* text NULL: the message is expected */
    bool is_reverse;
    const char *message;
};

static void check_case(const struct config_case *row)
{
    struct map_diagnoses diagnoses = { 0 };
    struct map_text text;
    reshard_error err = { 0 };
    CHECK_OK(map_text_read(str_of(row->file), &limits_default, &text, &diagnoses, &err));
    if (row->message) {
        if (!diagnoses.count || strcmp(diagnoses.rows[0].message, row->message) != 0)
            fail_msg("%s: '%s'", row->why, diagnoses.count ? diagnoses.rows[0].message : "no message");
    } else {
        if (diagnoses.count)
            fail_msg("%s: %s", row->why, diagnoses.rows[0].message);
        if (!str_is(text.text, row->text) || text.is_reverse != row->is_reverse)
            fail_msg("%s:\n%.*s", row->why, STR_ARG(text.text));
    }
    map_text_release(&text);
    map_diagnoses_release(&diagnoses);
}

#define CHECK_CASES(cases)                                               \
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)        \
        check_case(&cases[i])

TEST(json_and_python_are_read_without_evaluation)
{
    static const struct config_case cases[] = {
        { "a list", "[\"a -> b\", \"c -> d\"]", "a -> b\nc -> d\n", false, NULL },
        { "an object", "{\"aoa_statements\": [\"a -> b\"], \"aoa_config_reverse\": true}", "a -> b\n", true, NULL },
        { "the object inside another",
          "{\"x\": {\"y\": [1, \"z\"]}, \"aoa_config\": {\"enable_traceback\": false, \"aoa_statements\": [\"a -> b\"]}}", "a -> b\n",
          false, NULL },
        { "escapes of JSON", "[\"a -> b, dtype=\\\"float32\\\"\", \"\\u00e9 \\ud83d\\ude00\\n\\/\"]", "a -> b, dtype=\"float32\"\né 😀\n/\n",
          false, NULL },
        { "an assignment", "aoa_statements = [\n    'a -> b',  # one\n    'c'\n    ' -> d',\n]\n", "a -> b\nc -> d\n", false, NULL },
        { "a dict of Python", "aoa_config = {'aoa_statements': [('a -> '\n 'b')], 'aoa_config_reverse': False}", "a -> b\n", false, NULL },
        { "three quotes", "[\"\"\"a -> b\nc, 'd' -> \"e\\\n\"\"\"]", "a -> b\nc, 'd' -> \"e\n", false, NULL },
        { "one text", "{\"aoa_statements\": \"a -> b\"}", "a -> b\n", false, NULL },
        { "a tuple", "s = ('a -> b', 'c -> d')", "a -> b\nc -> d\n", false, NULL },
        { "a backslash that is no escape", "[\"l.\\$LAYER_ID -> b\"]", "l.\\$LAYER_ID -> b\n", false, NULL },
        { "nothing to do", "{\"aoa_statements\": []}", "", false, NULL },
        { "computed", "s = [f\"{x} -> b\"]", NULL, false, "a string that Python would compute" },
        { "a number", "[1]", NULL, false, "the list of statements holds something else than strings" },
        { "nested", "[[\"a -> b\"]]", NULL, false, "a statement is a string" },
        { "not closed", "[\"a -> b\"", NULL, false, "the bracket is not closed" },
        { "half a string", "[\"a -> b]\n", NULL, false, "the string is not closed" },
        { "no statements", "{\"a\": 1}", NULL, false, "no statements are found in this configuration object" },
        { "half a character", "[\"\\ud83d\"]", NULL, false, "the escape is no character" },
        { "an escape that ends", "[\"\\u00\"]", NULL, false, "the escape is no character" },
        { "no hexadecimal digit", "[\"\\u1g99\"]", NULL, false, "the escape is no character" },
        { "a list that goes on", "s = ['a -> b'] + ['c -> d']", NULL, false, "text behind the configuration" },
        { "a list that is made longer", "s = [\n'a -> b',\n]\ns += ['c -> d']\n", NULL, false, "text behind the configuration" },
        { "two documents", "{\"aoa_statements\": [\"a -> b\"]}\n{\"aoa_statements\": [\"c -> d\"]}", NULL, false,
          "text behind the configuration" },
        { "what may stand behind it", "s = ['a -> b'];  # the end\n ;\n# of the file\n", "a -> b\n", false, NULL },
        { "two lists", "{\"aoa_config\": {\"aoa_statements\": [\"a -> b\"]}, \"aoa_config_model_state\": {\"aoa_statements\": []}}", NULL,
          false, "a second aoa_statements" },
        { "a list and a text", "{\"aoa_statements\": [\"a -> b\"], \"x\": {\"aoa_statements\": \"c -> d\"}}", NULL, false,
          "a second aoa_statements" },
        { "of another object", "{\"a\": {\"aoa_statements\": [\"a -> b\"]}, \"b\": {\"aoa_config_reverse\": true}}", NULL, false,
          "aoa_config_reverse and aoa_statements are of two objects" },
        { "twice", "{\"aoa_config_reverse\": true, \"aoa_statements\": [], \"aoa_config_reverse\": false}", NULL, false,
          "a second aoa_config_reverse" },
        { "a strange truth", "{\"aoa_config_reverse\": 2, \"aoa_statements\": []}", NULL, false, "aoa_config_reverse is true or false" },
    };
    CHECK_CASES(cases);
}

TEST(yaml_is_read_as_mappings_are_written_in_it)
{
    static const struct config_case cases[] = {
        { "a list", "- a -> b\n- \"c -> d\"\n- 'e -> f, dtype=''float32'''\n", "a -> b\nc -> d\ne -> f, dtype='float32'\n", false, NULL },
        { "a member", "aoa_statements:\n- a -> b # first\n- c -> d\nother: 1\n", "a -> b\nc -> d\n", false, NULL },
        { "inside another",
          "model: x\naoa_config:\n  aoa_statements:\n    # comment\n    - a -> b,\n      axis=0\n\n    - c -> d\n  aoa_config_reverse: "
          "true\n",
          "a -> b, axis=0\nc -> d\n", true, NULL },
        { "in brackets", "aoa_config:\n  aoa_statements: [\"a -> b\",\n    \"c -> d\"]  # both\n  aoa_config_reverse: no\n",
          "a -> b\nc -> d\n", false, NULL },
        { "all in brackets", "aoa_config: {\"aoa_statements\": [\"a -> b\"], \"aoa_config_reverse\": true}\n", "a -> b\n", true, NULL },
        { "a block", "aoa_statements: |\n  a -> b\n  c -> d\n\nnext: 1\n", "a -> b\nc -> d\n", false, NULL },
        { "a folded block in a list", "aoa_statements:\n  - >\n    a, b -> c,\n    axis=0\n  - d -> e\n", "a, b -> c, axis=0\nd -> e\n",
          false, NULL },
        { "a document", "---\r\naoa_statements:\r\n  - a -> b\r\n", "a -> b\n", false, NULL },
        { "an empty item", "aoa_statements:\n  -\n", NULL, false, "the statement is empty" },
        { "text behind a value", "aoa_statements:\n  - \"a -> b\" c\n", NULL, false, "unexpected text behind a value" },
        { "a list on the next line", "aoa_config:\n  aoa_statements:\n    # both\n    [\n      \"a -> b\", \"c -> d\",\n    ]\n  x: 1\n",
          "a -> b\nc -> d\n", false, NULL },
        { "a text on the next line", "aoa_statements:\n  a -> b,\n    axis=0\nx: 1\n", "a -> b, axis=0\n", false, NULL },
        { "a text in quotes on the next line", "aoa_statements:\n\n  'a -> b'\n", "a -> b\n", false, NULL },
        { "none", "aoa_statements:\nother: 1\n", NULL, false, "aoa_statements has no value" },
        { "none at the end", "a:\n  aoa_statements: # none\n", NULL, false, "aoa_statements has no value" },
        { "an empty list", "aoa_statements: []\n", "", false, NULL },
        { "a tab", "aoa_statements:\n  - a -> b\n  -\tc -> d\n  - e -> f\n", NULL, false, "unexpected line in a list of statements" },
        { "no blank behind the dash", "x:\n    aoa_statements:\n    - a -> b\n    -c -> d\ny: 1\n", NULL, false,
          "unexpected line in a list of statements" },
        { "items that are indented less", "aoa_statements:\n    - a -> b\n  - c -> d\n", NULL, false,
          "unexpected line in a list of statements" },
        { "items that are indented more", "- \"a -> b\"\n  - c -> d\n", NULL, false, "unexpected line in a list of statements" },
        { "what follows a list alone", "- a -> b\nc -> d\n", NULL, false, "unexpected line in a list of statements" },
        { "a list of another member", "aoa_statements:\n- a -> b\nother:\n- c\n", "a -> b\n", false, NULL },
        { "the end of a document", "- a -> b\n...\n", "a -> b\n", false, NULL },
        { "two documents", "- a -> b\n---\n- c -> d\n", NULL, false, "a second aoa_statements" },
        { "two lists", "aoa_config:\n  aoa_statements:\n    - a -> b\naoa_config_master_weight:\n  aoa_statements:\n    - a -> b\n", NULL,
          false, "a second aoa_statements" },
        { "of another object", "a:\n  aoa_statements: [\"a -> b\"]\nb:\n  aoa_config_reverse: true\n", NULL, false,
          "aoa_config_reverse and aoa_statements are of two objects" },
        { "notes", "notes: |\n  aoa_statements:\n    - a -> b\naoa_statements:\n  - c -> d\n", "c -> d\n", false, NULL },
        { "nothing", "a: 1\n", NULL, false, "no statements are found in this configuration object" },
    };
    CHECK_CASES(cases);
}

TEST(a_plain_text_is_itself)
{
    static const struct config_case cases[] = {
        { "statements", "# [note]\na -> b\n", "# [note]\na -> b\n", false, NULL },
        { "a definition", "n = 3\na -> b", "n = 3\na -> b", false, NULL },
        { "nothing", "", "", false, NULL },
        { "only a comment", "# x", "# x", false, NULL },
    };
    CHECK_CASES(cases);
}

TEST(diagnoses_point_into_the_file)
{
    const char file[] = "{\"aoa_statements\": [\n  \"a -> b\",\n  \"c -> d, dtype=\\\"x\\\" y\"]}";
    struct map_diagnoses diagnoses = { 0 };
    struct map_text text;
    reshard_error err = { 0 };
    CHECK_OK(map_text_read(str_of(file), &limits_default, &text, &diagnoses, &err));
    const char *at = strstr(text.text.data, " y");
    map_diagnose(&diagnoses, MAP_ERROR, (struct map_span){ (uint32_t)(at + 1 - text.text.data), 1 }, NULL, "here");
    assert_int_equal(diagnoses.rows[0].span.offset, strstr(file, " y") + 1 - file);
    assert_int_equal(diagnoses.rows[0].span.size, 1);
    map_text_release(&text);
    map_diagnoses_release(&diagnoses);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_and_python_are_read_without_evaluation),
        cmocka_unit_test(yaml_is_read_as_mappings_are_written_in_it),
        cmocka_unit_test(a_plain_text_is_itself),
        cmocka_unit_test(diagnoses_point_into_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
