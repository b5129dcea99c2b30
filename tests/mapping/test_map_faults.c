/* SPDX-License-Identifier: Apache-2.0 */
/* The public mapping functions with every allocation failing once: an error is returned, and nothing is lost. */
#include "check.h"
#include "fail_malloc.h"

#include "reshard/reshard.h"

static const char source_text[] = "{\"tensors\":{\"l.0.q\":{\"dtype\":\"float32\",\"shape\":[4,2],\"data\":[1,2,3,4,5,6,7,8]},"
                                  "\"l.0.k\":{\"dtype\":\"float32\",\"shape\":[2,2],\"data\":[1,2,3,4]},\"l.0.v\":{\"dtype\":\"float32\","
                                  "\"shape\":[2,2],\"data\":[5,6,7,8]},"
                                  "\"e.0\":{\"dtype\":\"bfloat16\",\"shape\":[2],\"data\":[1,2]},\"e.1\":{\"dtype\":\"bfloat16\",\"shape\":"
                                  "[2],\"shards\":[[[0],[1]],[[1],[1]]],\"data\":[3,4]},"
                                  "\"optim.state.e.0.exp_avg\":{\"dtype\":\"float32\",\"shape\":[2],\"data\":[8,9]},"
                                  "\"optim.state.e.1.exp_avg\":{\"dtype\":\"float32\",\"shape\":[2],\"data\":[7,6]},"
                                  "\"m\":{\"dtype\":\"float32\",\"shape\":[2,8],\"shards\":[[[0,0],[2,4]],[[0,4],[2,4]]],\"data\":[1,2,3,4,"
                                  "5,6,7,8,9,10,11,12,13,14,15,16]}}}";

static const char good_text[] =
    "l.$LAYER_ID.q^T, l.$LAYER_ID.k^T, l.$LAYER_ID.v^T -> n.$LAYER_ID, fused_qkv, num_heads=2, num_key_value_groups=1\n"
    "e.* -> t[0:1], axis=0\nt_0 -> t, dtype='float32'\nm -> m, fused_ffn\n";
static const char our_text[] =
    "n = 2 * 3 - 4 # numbers\nl.$LAYER_ID.k, l.$LAYER_ID.v -> `s/$LAYER_ID`, stack=n - 2, when=\"l.$LAYER_ID.q\"\n"
    "e.0 -> e.a.{0:n}.w, axis=0\nm -> m, reshape=\"[1, 2, 8]\"\nl.9.x -> y, optional\n`s/0` -> u.{0:2}, unstack=0, unless=\"n != 2\"\n";
static const char config_text[] = "aoa_config:\n  aoa_statements:\n    - \"e.0 -> \\x65.9\"\n    - 'e.1 -> f, dtype=''float32'''\n    - "
                                  "|\n      m -> o\n  aoa_config_reverse: no\n";
static const char bad_text[] = "nothing -> a\nl.$LAYER_ID.q -> x.$LAYER_ID, axis=1, axis=2\nm -> u, v, w, axis=1\n";

typedef reshard_status (*function)(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

static reshard_status run_once(function run, const char *text, reshard_error *err)
{
    reshard_map_space *source = NULL;
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    reshard_status status = reshard_map_space_describe(source_text, strlen(source_text), &source, err);
    if (status)
        return status;
    input.text = text;
    input.size = strlen(text);
    input.source = source;
    status = run(&input, &output, err);
    if (!status && (!output.text || !output.json || !output.diagnoses))
        status = RESHARD_ERR_FORMAT;
    reshard_map_output_release(&output);
    reshard_map_space_free(source);
    return status;
}

TEST(every_allocation_may_fail)
{
    static const function functions[] = { reshard_map_parse, reshard_map_expand, reshard_map_check, reshard_map_eval, reshard_map_invert };
    static const char *const texts[] = { good_text, our_text, config_text, bad_text };
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]) * 4; i++) {
        reshard_error err = { 0 };
        reshard_status expected = run_once(functions[i / 4], texts[i % 4], &err);
        if (i % 4 != 3 && expected)
            fail_msg("function %zu, text %zu: %s", i / 4, i % 4, err.message);
        for (unsigned long nth = 1;; nth++) {
            fail_malloc_at(nth);
            reshard_status status = run_once(functions[i / 4], texts[i % 4], &err);
            bool was_hit = fail_malloc_was_hit();
            if (!was_hit)
                break;
            if (status != RESHARD_ERR_MEMORY && status != expected)
                fail_msg("function %zu, text %zu, allocation %lu: status %d: %s", i / 4, i % 4, nth, status, err.message);
        }
    }
}

/* 70000 is beyond float16: no JSON has a number for what it becomes. */
TEST(values_that_are_no_numbers_are_text)
{
    static const char space[] = "{\"tensors\":{\"a\":{\"dtype\":\"float32\",\"shape\":[2],\"data\":[7,70000]}}}";
    reshard_error err = { 0 };
    reshard_map_space *source = NULL;
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    CHECK_OK(reshard_map_space_describe(space, strlen(space), &source, &err));
    input.text = "a -> b, dtype='float16'\n";
    input.size = strlen(input.text);
    input.source = source;
    CHECK_OK(reshard_map_eval(&input, &output, &err));
    if (!strstr(output.json, "[7.0,\"inf\"]"))
        fail_msg("%s", output.json);
    reshard_map_output_release(&output);
    reshard_map_space_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(values_that_are_no_numbers_are_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
