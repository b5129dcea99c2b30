/* SPDX-License-Identifier: Apache-2.0 */
/* Names of Megatron's parameters: registered, in distributed checkpoints, and their order. */
#include "check.h"

#include "base/model_data.h"
#include "parallel/parameter_names.h"

static struct arena arena;
static struct parameter_names names;

static int load(void **state)
{
    (void)state;
    reshard_error err = { 0 };
    const struct model_data *data = model_data_find(STR("megatron.names"));
    return data && parameter_names_parse(data->text, &arena, &names, &err) == RESHARD_OK ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

TEST(registered_names_have_keys)
{
    const struct {
        unsigned conditions;
        const char *name, *stacked, *indexed;
    } cases[] = {
        { 0, "embedding.word_embeddings.weight", "embedding.word_embeddings.weight", "embedding.word_embeddings.weight" },
        { NAME_LOCAL, "decoder.layers.3.input_layernorm.bias", "decoder.layers.self_attention.linear_qkv.layer_norm_bias",
          "decoder.layers.3.self_attention.linear_qkv.layer_norm_bias" },
        { NAME_LOCAL | NAME_MLA, "decoder.layers.3.input_layernorm.weight", "decoder.layers.input_layernorm.weight",
          "decoder.layers.3.input_layernorm.weight" },
        { 0, "decoder.layers.12.pre_mlp_layernorm.weight", "decoder.layers.pre_mlp_layernorm.weight",
          "decoder.layers.12.pre_mlp_layernorm.weight" },
        { NAME_LOCAL, "decoder.layers.1.mlp.experts.local_experts.7.linear_fc1.weight",
          "decoder.layers.mlp.experts.experts.linear_fc1.weight", "decoder.layers.1.mlp.experts.experts.linear_fc1.weight" },
        { NAME_GROUPED, "decoder.layers.1.mlp.experts.linear_fc2.weight7", "decoder.layers.mlp.experts.experts.linear_fc2.weight",
          "decoder.layers.1.mlp.experts.experts.linear_fc2.weight" },
        { 0, "decoder.layers.4.mixer.in_proj.weight", "decoder.layers.mixer.in_proj.weight", "decoder.layers.4.mixer.in_proj.weight" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct parameter_name parameter, back;
        struct buffer text = { 0 };
        assert_true(parameter_name_read(&names, cases[i].conditions, str_of(cases[i].name), &parameter));
        parameter_key_write(&names, &parameter, 0, &text);
        buffer_append_byte(&text, 0);
        assert_string_equal((char *)text.data, cases[i].stacked);
        assert_true(parameter_key_read(&names, cases[i].conditions, str_of(cases[i].stacked), &back));
        assert_int_equal(back.line, parameter.line);
        assert_int_equal(back.number_count, parameter.number_count);
        for (int k = 0; k < back.number_count; k++)
            assert_int_equal(back.numbers[k], -1);
        text.size = 0;
        parameter_key_write(&names, &parameter, 1, &text);
        buffer_append_byte(&text, 0);
        assert_string_equal((char *)text.data, cases[i].indexed);
        assert_true(parameter_key_read(&names, cases[i].conditions, str_of(cases[i].indexed), &back));
        assert_int_equal(back.line, parameter.line);
        text.size = 0;
        parameter_name_write(&names, &parameter, &text);
        buffer_append_byte(&text, 0);
        assert_string_equal((char *)text.data, cases[i].name);
        buffer_release(&text);
    }
}

TEST(numbers_of_own_stacks_stay_in_keys)
{
    const struct {
        unsigned conditions;
        const char *name, *key;
    } cases[] = {
        { 0, "mtp.layers.2.eh_proj.weight", "mtp.layers.2.eh_proj.weight" },
        { NAME_LOCAL, "mtp.layers.0.transformer_layer.input_layernorm.weight",
          "mtp.layers.0.transformer_layer.self_attention.linear_qkv.layer_norm_weight" },
        { NAME_LOCAL | NAME_MLA | NAME_SINCE_0_17, "mtp.layers.0.mtp_model_layer.pre_mlp_layernorm.weight",
          "mtp.layers.0.transformer_layer.pre_mlp_layernorm.weight" },
        { NAME_SINCE_0_17, "mtp.layers.1.mtp_model_layer.mlp.experts.local_experts.3.linear_fc2.weight",
          "mtp.layers.1.transformer_layer.mlp.experts.experts.linear_fc2.weight" },
        { 0, "decoder.layers.4.mixer.conv1d.weight", "decoder.layers.4.mixer.conv1d.weight" },
        { NAME_SINCE_0_19, "decoder.layers.4.mixer.conv1d_weight", "decoder.layers.4.mixer.conv1d.weight" },
        { NAME_LOCAL | NAME_HYBRID, "decoder.layers.4.pre_mlp_layernorm.weight", "decoder.layers.pre_mlp_layernorm.weight" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct parameter_name parameter, back;
        struct buffer text = { 0 };
        assert_true(parameter_name_read(&names, cases[i].conditions, str_of(cases[i].name), &parameter));
        int kept = parameter_key_kept(&names, &parameter, 0);
        assert_int_equal(parameter_key_kept(&names, &parameter, 1), 1);
        parameter_key_write(&names, &parameter, kept, &text);
        assert_true(str_is(buffer_str(&text), cases[i].key));
        assert_true(parameter_key_read(&names, cases[i].conditions, str_of(cases[i].key), &back));
        assert_int_equal(back.line, parameter.line);
        for (int k = 0; k < back.number_count; k++)
            assert_int_equal(back.numbers[k], k < kept ? parameter.numbers[k] : -1);
        buffer_release(&text);
    }
}

/* The order of the real optimizer's buffers, reversed (fixtures megatron-optim-*). */
TEST(parameters_are_ordered_as_modules_register_them)
{
    const char *local[] = {
        "embedding.word_embeddings.weight",
        "embedding.position_embeddings.weight",
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.input_layernorm.bias",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.0.self_attention.linear_proj.bias",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "decoder.layers.0.self_attention.linear_qkv.bias",
        "decoder.layers.0.self_attention.q_layernorm.weight",
        "decoder.layers.0.self_attention.k_layernorm.weight",
        "decoder.layers.0.self_attention.kv_layernorm.bias",
        "decoder.layers.0.pre_mlp_layernorm.weight",
        "decoder.layers.0.mlp.router.weight",
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight",
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight",
        "decoder.layers.0.mlp.experts.local_experts.10.linear_fc1.weight",
        "decoder.layers.0.mlp.shared_experts.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.linear_fc2.weight",
        "decoder.layers.1.input_layernorm.weight",
        "decoder.layers.10.input_layernorm.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    };
    struct parameter_name parameters[sizeof(local) / sizeof(local[0])];
    size_t count = sizeof(local) / sizeof(local[0]);
    for (size_t i = 0; i < count; i++)
        assert_true(parameter_name_read(&names, NAME_LOCAL, str_of(local[i]), &parameters[i]));
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < count; k++) {
            int order = parameter_name_compare(&names, &parameters[i], &parameters[k]);
            assert_true(i < k ? order < 0 : i > k ? order > 0 : order == 0);
        }
    }
}

TEST(grouped_experts_repeat_weight_by_weight)
{
    struct parameter_name a, b, c;
    assert_true(parameter_name_read(&names, NAME_GROUPED, STR("decoder.layers.0.mlp.experts.linear_fc1.weight1"), &a));
    assert_true(parameter_name_read(&names, NAME_GROUPED, STR("decoder.layers.0.mlp.experts.linear_fc1.weight2"), &b));
    assert_true(parameter_name_read(&names, NAME_GROUPED, STR("decoder.layers.0.mlp.experts.linear_fc2.weight0"), &c));
    assert_true(parameter_name_compare(&names, &a, &b) < 0);
    assert_true(parameter_name_compare(&names, &b, &c) < 0);
}

TEST(what_is_no_parameter_is_known)
{
    struct parameter_name parameter;
    assert_true(parameter_name_read(&names, 0, STR("decoder.layers.0.mlp.router.expert_bias"), &parameter));
    assert_true(names.lines[parameter.line].is_buffer);
    assert_false(parameter_name_read(&names, 0, STR("something.weight"), &parameter));
    assert_false(parameter_name_read(&names, 0, STR("decoder.layers.12345678901234567890.x"), &parameter));
    assert_false(parameter_name_read(&names, 0, STR(""), &parameter));
}

TEST(wrong_tables_are_refused)
{
    reshard_error err = { 0 };
    const char *texts[] = { "-",       "local\n",   "other a",     "- a b c",      "- a.# b", "- a.{b,c} d.{e}",
                            "- a.* b", "!buffer a", "- #.#.#.#.#", "- {a,b}.{c,d}", "- a.=b.", "!numbered a" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct arena own = { 0 };
        struct parameter_names made;
        CHECK_FAILS(parameter_names_parse(str_of(texts[i]), &own, &made, &err), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, "line 1"));
        arena_release(&own);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registered_names_have_keys),
        cmocka_unit_test(numbers_of_own_stacks_stay_in_keys),
        cmocka_unit_test(parameters_are_ordered_as_modules_register_them),
        cmocka_unit_test(grouped_experts_repeat_weight_by_weight),
        cmocka_unit_test(what_is_no_parameter_is_known),
        cmocka_unit_test(wrong_tables_are_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
