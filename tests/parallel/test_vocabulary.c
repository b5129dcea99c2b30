/* SPDX-License-Identifier: Apache-2.0 */
/* How many rows a run of another TP gives the vocabulary, as far as the source's arguments tell. */
#include "check.h"

#include "formats/megatron/megatron_target.h"
#include "parallel/vocabulary.h"

#define U TRAINING_ARG_UNKNOWN

struct padding {
    const char *why, *tokenizer;
    bool has_eod_id;
    int64_t vocabulary, unit, old, tp, new_tp, least, most; /* least 0: cannot be told */
};

static const struct padding cases[] = {
    { "vocab_size, padded for TP 1", "GPT2BPETokenizer", false, 50257, 128, 50304, 1, 8, 51200, 51200 },
    { "the tokenizer without a text has one more token", "NullTokenizer", false, 48, 4, 56, 2, 1, 52, 52 },
    { "from 0.18 on it has not", "NullTokenizer", true, 48, 4, 48, 2, 1, 48, 48 },
    { "a checkpoint that went through another TP: it still says", "NullTokenizer", false, 48, 4, 56, 1, 1, 52, 52 },
    { "not said, but all that were padded to 32000 are padded to 32256", "HuggingFaceTokenizer", false, U, 128, 32000, 1, 4, 32256, 32256 },
    { "not said, the same TP", "HuggingFaceTokenizer", false, U, 128, 32256, 4, 4, 32256, 32256 },
    { "not said, a smaller TP", "HuggingFaceTokenizer", false, U, 128, 32768, 8, 1, 31872, 32768 },
    { "said, but not what was padded", "HuggingFaceTokenizer", false, 100, 128, 32768, 8, 8, 32768, 32768 },
    { "not padded as Megatron does", "HuggingFaceTokenizer", false, U, 128, 32001, 1, 2, 0, 0 },
    { "no unit", "HuggingFaceTokenizer", false, 100, U, 128, 1, 2, 0, 0 },
    { "no TP", "HuggingFaceTokenizer", false, 100, 128, 128, U, 2, 0, 0 },
    { "a unit too large", "HuggingFaceTokenizer", false, 100, INT64_MAX / 2, 128, 1, 2, 0, 0 },
    { "no rows", "HuggingFaceTokenizer", false, 100, 128, U, 1, 2, 0, 0 },
    { "rows without room for more", "HuggingFaceTokenizer", false, U, 128, INT64_MAX / 2 + 1, 1, 2, 0, 0 },
    { "no TP of the target", "HuggingFaceTokenizer", false, 100, 128, 128, 1, 0, 0, 0 },
    { "a TP of the target too large", "HuggingFaceTokenizer", false, 100, 1, 128, 1, INT64_MAX / 8, 0, 0 },
    { "units that overflow", "HuggingFaceTokenizer", false, 100, INT32_MAX, INT64_MAX / 5, INT32_MAX, INT32_MAX, 0, 0 },
};

TEST(rows_follow_the_target)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct padding *c = &cases[i];
        struct value_graph graph = { 0 };
        struct value *members = value_new_list(&graph, VALUE_DICT, NULL, 0);
        assert_true(members && value_dict_set(&graph, members, "tokenizer_type", value_new_str(&graph, str_of(c->tokenizer)), true));
        if (c->has_eod_id)
            assert_true(value_dict_set(&graph, members, "null_tokenizer_eod_id", value_new(&graph, VALUE_NONE), true));
        struct training_args args = {
            .members = members, .vocabulary = c->vocabulary, .vocabulary_unit = c->unit, .padded_vocabulary = c->old, .tp = c->tp
        };
        int64_t least = 0, most = 0;
        bool is_told = padded_vocabulary_rows(&args, c->new_tp, &least, &most);
        if (is_told != (c->least > 0) || least != c->least || most != c->most)
            fail_msg("%s: %lld to %lld", c->why, (long long)least, (long long)most);
        value_graph_release(&graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(rows_follow_the_target) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
