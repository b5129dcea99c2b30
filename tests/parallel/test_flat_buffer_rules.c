/* SPDX-License-Identifier: Apache-2.0 */
/* Which buckets follow from the arguments of a run: Megatron-LM's rules (megatron/training, DistributedDataParallelConfig). */
#include "check.h"

#include "encoding/json.h"
#include "parallel/flat_buffer_rules.h"

/* What the arguments say for two parameters of 4,000 elements in all. */
static reshard_status rules_of(const char *args, int64_t stage, bool is_expert, struct flat_buffer_rules *out, reshard_error *err)
{
    static const int64_t shapes[2][2] = { { 30, 100 }, { 10, 100 } };
    const struct rank_parameter parameters[] = { { .name = str_of("a"), .rank = 2, .shape = shapes[0] },
                                                 { .name = str_of("b"), .rank = 2, .shape = shapes[1] } };
    struct value_graph graph = { 0 };
    reshard_status status = args ? json_parse(args, strlen(args), &limits_default, &graph, err) : RESHARD_OK;
    if (!status) {
        struct training_run run = { .args = args ? graph.root : NULL, .stage = stage };
        status = flat_buffer_rules_of(&run, parameters, 2, is_expert, out, err);
    }
    value_graph_release(&graph);
    return status;
}

TEST(without_arguments_one_rank_has_one_bucket)
{
    reshard_error err = { 0 };
    struct flat_buffer_rules rules;
    CHECK_OK(rules_of(NULL, 0, false, &rules, &err));
    assert_int_equal(rules.dp, 1);
    assert_int_equal(rules.bucket_size, 0);
    assert_int_equal(rules.alignment, 64);
    assert_int_equal(rules.bucket_multiple, 128);
    assert_int_equal(rules.bucketed_chunks, 1);
}

TEST(ranks_that_share_a_parameter_are_counted_apart_for_experts)
{
    reshard_error err = { 0 };
    struct flat_buffer_rules rules;
    const char *args = "{\"world_size\": 64, \"tensor_model_parallel_size\": 4, \"pipeline_model_parallel_size\": 2,"
                       " \"expert_model_parallel_size\": 8, \"expert_tensor_parallel_size\": 1}";
    CHECK_OK(rules_of(args, 0, false, &rules, &err));
    assert_int_equal(rules.dp, 8);
    CHECK_OK(rules_of(args, 0, true, &rules, &err));
    assert_int_equal(rules.dp, 4);
    CHECK_OK(rules_of("{\"world_size\": 8, \"model_parallel_size\": 4}", 0, false, &rules, &err)); /* the older name */
    assert_int_equal(rules.dp, 2);
    CHECK_OK(rules_of("{\"world_size\": 8, \"model_parallel_size\": 4, \"expert_model_parallel_size\": 2}", 0, true, &rules, &err));
    assert_int_equal(rules.dp, 1); /* experts are cut by TP as dense layers where nothing else is said */
    CHECK_OK(rules_of("{\"world_size\": 2, \"tensor_model_parallel_size\": 4}", 0, false, &rules, &err));
    assert_int_equal(rules.dp, 1);
}

TEST(buckets_close_only_where_gradients_are_reduced_while_others_are_computed)
{
    static const struct {
        const char *args;
        int64_t size;
    } cases[] = {
        { "{\"ddp_bucket_size\": 5000, \"world_size\": 2}", 0 },
        { "{\"overlap_grad_reduce\": false, \"ddp_num_buckets\": 4}", 0 },
        { "{\"overlap_grad_reduce\": true, \"ddp_bucket_size\": 5000, \"world_size\": 2}", 5000 },
        { "{\"overlap_grad_reduce\": true, \"ddp_bucket_size\": null, \"world_size\": 2}", 40000000 },
        { "{\"overlap_grad_reduce\": true, \"world_size\": 40}", 40000000 },
        { "{\"overlap_grad_reduce\": true, \"world_size\": 41}", 41000000 },
        { "{\"overlap_grad_reduce\": true, \"ddp_num_buckets\": 4}", 1000 },
        { "{\"overlap_grad_reduce\": true, \"ddp_num_buckets\": 3, \"ddp_bucket_size\": 7}", 1333 },
    };
    reshard_error err = { 0 };
    struct flat_buffer_rules rules;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(rules_of(cases[i].args, 0, false, &rules, &err));
        if (rules.bucket_size != cases[i].size)
            fail_msg("%s: buckets of %lld elements, not %lld", cases[i].args, (long long)rules.bucket_size, (long long)cases[i].size);
    }
}

TEST(padding_and_later_stages_follow_their_arguments)
{
    reshard_error err = { 0 };
    struct flat_buffer_rules rules;
    CHECK_OK(rules_of("{\"ddp_pad_buckets_for_high_nccl_busbw\": true}", 1, false, &rules, &err));
    assert_int_equal(rules.bucket_multiple, 65536);
    assert_int_equal(rules.bucketed_chunks, 0);
    CHECK_OK(rules_of("{\"overlap_param_gather_with_optimizer_step\": true}", 0, false, &rules, &err));
    assert_int_equal(rules.bucketed_chunks, 0);
}

TEST(impossible_numbers_are_refused)
{
    static const char *const cases[] = {
        "{\"tensor_model_parallel_size\": 0}",
        "{\"pipeline_model_parallel_size\": -1}",
        "{\"expert_model_parallel_size\": 0}",
        "{\"expert_tensor_parallel_size\": 0}",
        "{\"world_size\": -8}",
        "{\"tensor_model_parallel_size\": 4611686018427387904, \"pipeline_model_parallel_size\": 4}",
        "{\"expert_model_parallel_size\": 4611686018427387904, \"expert_tensor_parallel_size\": 4}",
        "{\"expert_model_parallel_size\": 4611686018427387904, \"pipeline_model_parallel_size\": 4}",
        "{\"overlap_grad_reduce\": true, \"ddp_bucket_size\": -1}",
        "{\"overlap_grad_reduce\": true, \"world_size\": 9223372036854775807}",
    };
    struct flat_buffer_rules rules;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reshard_error err = { 0 };
        if (rules_of(cases[i], 0, false, &rules, &err) != RESHARD_ERR_FORMAT)
            fail_msg("%s is taken", cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_arguments_one_rank_has_one_bucket),
        cmocka_unit_test(ranks_that_share_a_parameter_are_counted_apart_for_experts),
        cmocka_unit_test(buckets_close_only_where_gradients_are_reduced_while_others_are_computed),
        cmocka_unit_test(padding_and_later_stages_follow_their_arguments),
        cmocka_unit_test(impossible_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
