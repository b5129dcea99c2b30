/* SPDX-License-Identifier: Apache-2.0 */
/* What the arguments of a run say, under the names of every version, and what they leave open. */
#include "check.h"

#include "base/limits.h"
#include "encoding/json.h"
#include "parallel/training_args.h"

/* The arguments that a JSON object holds. */
static void args_of(const char *json, struct value_graph *graph, struct training_args *out)
{
    reshard_error err = { 0 };
    CHECK_OK(json_parse(json, strlen(json), &limits_default, graph, &err));
    training_args_read(namespace_new(graph, graph->root), out);
}

TEST(numbers_have_their_name_or_an_older_one)
{
    struct value_graph graph = { 0 };
    struct training_args args;
    args_of("{\"tensor_model_parallel_size\":2,\"model_parallel_size\":7,\"gated_linear_unit\":true,\"num_layers\":12,\"kv_channels\":null,"
            "\"geglu\":false,\"quick_geglu\":true,\"hidden_size\":\"8\",\"group_query_attention\":false}", &graph, &args);
    assert_int_equal(args.tp, 2);
    assert_int_equal(args.is_swiglu, 1);
    assert_int_equal(args.is_geglu, 0);
    assert_int_equal(args.num_layers, 12);
    assert_int_equal(args.is_grouped_query, 0);
    assert_true(args.head_size == TRAINING_ARG_UNKNOWN && args.hidden_size == TRAINING_ARG_UNKNOWN && args.pp == TRAINING_ARG_UNKNOWN);
    assert_int_equal(training_args_int(&args, "model_parallel_size"), 7);
    assert_true(training_args_int(&args, "") == TRAINING_ARG_UNKNOWN);
    value_graph_release(&graph);
    args_of("{\"model_parallel_size\":7}", &graph, &args);
    assert_int_equal(args.tp, 7);
    value_graph_release(&graph);
}

TEST(what_is_no_namespace_says_nothing)
{
    struct value_graph graph = { 0 };
    struct training_args args;
    reshard_error err = { 0 };
    CHECK_OK(json_parse("{\"num_layers\":12}", 17, &limits_default, &graph, &err));
    const struct value *const given[] = { NULL, graph.root, namespace_new(&graph, value_new_int(&graph, 1)) };
    for (size_t i = 0; i < 3; i++) {
        training_args_read(given[i], &args);
        assert_null(args.members);
        assert_true(args.num_layers == TRAINING_ARG_UNKNOWN && !args.has_mixed_layers && !args.is_local_spec && !args.layout.size);
    }
    assert_null(namespace_new(&graph, NULL));
    value_graph_release(&graph);
}

TEST(layers_of_several_kinds_are_mixed)
{
    static const struct { const char *json; bool is_mixed; } cases[] = {
        { "{}", false }, { "{\"moe_layer_freq\":1}", false }, { "{\"moe_layer_freq\":2}", true }, { "{\"moe_layer_freq\":[0,1]}", true },
        { "{\"moe_layer_freq\":null}", false }, { "{\"moe_layer_freq\":\"1\"}", false }, { "{\"linear_attention_freq\":4}", true },
        { "{\"hybrid_layer_pattern\":\"M*\"}", true }, { "{\"hybrid_override_pattern\":\"M*\"}", true },
        { "{\"hybrid_layer_pattern\":null}", false }, { "{\"heterogeneous_layers_config_path\":\"x\"}", true },
        { "{\"hetereogenous_dist_checkpoint\":true}", true }, { "{\"hetereogenous_dist_checkpoint\":false}", false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct value_graph graph = { 0 };
        struct training_args args;
        args_of(cases[i].json, &graph, &args);
        if (args.has_mixed_layers != cases[i].is_mixed)
            fail_msg("%s: %d", cases[i].json, args.has_mixed_layers);
        value_graph_release(&graph);
    }
}

/* Modules of the local kind alone made matrices of experts, or who asked for the old kernels. */
TEST(modules_and_the_pipeline_s_layout)
{
    static const struct { const char *json, *layout; bool is_local, are_matrices; } cases[] = {
        { "{\"transformer_impl\":\"local\",\"moe_grouped_gemm\":true}", "", true, true },
        { "{\"transformer_impl\":\"transformer_engine\",\"moe_grouped_gemm\":true}", "", false, false },
        { "{\"transformer_impl\":1,\"moe_grouped_gemm\":true,\"moe_use_legacy_grouped_gemm\":true}", "", false, true },
        { "{\"moe_grouped_gemm\":false,\"moe_use_legacy_grouped_gemm\":true}", "", false, false },
        { "{\"transformer_impl\":\"local\"}", "", true, false },
        { "{\"pipeline_model_parallel_layout\":\"E|t*2|L\"}", "E|t*2|L", false, false },
        { "{\"pipeline_model_parallel_layout\":[1]}", "", false, false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct value_graph graph = { 0 };
        struct training_args args;
        args_of(cases[i].json, &graph, &args);
        if (!str_is(args.layout, cases[i].layout) || args.is_local_spec != cases[i].is_local ||
            experts_are_matrices(&args) != cases[i].are_matrices)
            fail_msg("%s", cases[i].json);
        value_graph_release(&graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_their_name_or_an_older_one),
        cmocka_unit_test(what_is_no_namespace_says_nothing),
        cmocka_unit_test(layers_of_several_kinds_are_mixed),
        cmocka_unit_test(modules_and_the_pipeline_s_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
