/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors models/hf.shapes says a config.json asks for. */
#include "check.h"
#include "fail_malloc.h"

#include "base/limits.h"
#include "names/model_shapes.h"

#define LLAMA "\"hidden_size\":8,\"num_attention_heads\":4,\"num_hidden_layers\":2,\"intermediate_size\":12,\"vocab_size\":20"
#define MOE LLAMA ",\"num_experts\":2,\"moe_intermediate_size\":6"
#define DEEPSEEK LLAMA ",\"model_type\":\"deepseek_v3\",\"n_routed_experts\":2,\"n_shared_experts\":3,\"moe_intermediate_size\":6," \
    "\"kv_lora_rank\":16,\"qk_nope_head_dim\":3,\"qk_rope_head_dim\":2,\"v_head_dim\":5,\"first_k_dense_replace\":1"

static reshard_status make(const char *config, struct model_shapes *out, reshard_error *err)
{
    return model_shapes_make(str_of(config), NULL, 0, &limits_default, out, err);
}

/* "" if there is no such tensor; a question mark if it may be there. */
static void describe(const struct model_shapes *shapes, const char *key, char *out, size_t size)
{
    const struct catalog *catalog = shapes->catalog;
    *out = 0;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        if (!str_is(tensor->key, key))
            continue;
        int used = snprintf(out, size, "%s%s", shapes->is_optional[i] ? "?" : "", dtype_info(tensor->dtype)->name);
        for (int axis = 0; axis < tensor->rank; axis++)
            used += snprintf(out + used, size - (size_t)used, " %lld", (long long)catalog->vectors[tensor->shape + (uint32_t)axis]);
        return;
    }
}

static const struct {
    const char *config;
    uint32_t count; /* of all tensors */
    struct { const char *key, *shape; } tensors[4];
} cases[] = {
    { "{\"model_type\":\"llama\"," LLAMA "}", 23, { { "model.layers.1.self_attn.k_proj.weight", "F32 8 8" },
      { "model.layers.2.self_attn.k_proj.weight", "" }, { "lm_head.weight", "F32 20 8" },
      { "model.layers.0.self_attn.rotary_emb.inv_freq", "?F32 1" } } },
    { "{\"model_type\":\"llama\",\"torch_dtype\":\"bfloat16\",\"num_key_value_heads\":2,\"head_dim\":6,\"tie_word_embeddings\":true," LLAMA
      "}", 23, { { "model.layers.1.self_attn.k_proj.weight", "BF16 12 8" }, { "model.layers.1.self_attn.o_proj.weight", "BF16 8 24" },
      { "lm_head.weight", "?BF16 20 8" }, { "model.layers.1.self_attn.k_proj.bias", "" } } },
    { "{\"model_type\":\"llama\",\"attention_bias\":true," LLAMA "}", 31, { { "model.layers.1.self_attn.k_proj.bias", "F32 8" },
      { "model.layers.1.self_attn.o_proj.bias", "F32 8" } } },
    { "{\"model_type\":\"qwen2\"," LLAMA "}", 29, { { "model.layers.1.self_attn.k_proj.bias", "F32 8" },
      { "model.layers.1.self_attn.o_proj.bias", "" }, { "model.layers.1.self_attn.q_norm.weight", "" } } },
    { "{\"model_type\":\"qwen3\"," LLAMA "}", 27, { { "model.layers.1.self_attn.q_norm.weight", "F32 2" } } },
    { "{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":2," MOE "}", 29, { { "model.layers.0.mlp.up_proj.weight", "F32 12 8" },
      { "model.layers.1.mlp.up_proj.weight", "" }, { "model.layers.0.mlp.experts.1.up_proj.weight", "" },
      { "model.layers.1.mlp.experts.1.up_proj.weight", "F32 6 8" } } },
    { "{" DEEPSEEK ",\"q_lora_rank\":null}", 31, { { "model.layers.0.self_attn.q_proj.weight", "F32 20 8" },
      { "model.layers.1.mlp.shared_experts.up_proj.weight", "F32 18 8" }, { "model.layers.1.mlp.gate_proj.weight", "" },
      { "model.layers.1.mlp.gate.e_score_correction_bias", "F32 2" } } },
    { "{\"model_type\":\"ernie4_5_moe\",\"moe_num_experts\":2,\"moe_intermediate_size\":6,\"moe_num_shared_experts\":1," LLAMA "}", 43, {
      { "model.layers.1.mlp.gate_proj.weight", "?F32 12 8" }, { "model.layers.1.mlp.experts.1.up_proj.weight", "?F32 6 8" },
      { "model.layers.1.self_attn.k_proj.weight", "F32 8 8" }, { "lm_head.weight", "?F32 20 8" } } },
    { "{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_layer\":1,\"n_positions\":6,\"vocab_size\":20}", 17, {
      { "transformer.h.0.mlp.c_fc.weight", "F32 8 32" }, { "transformer.wpe.weight", "F32 6 8" } } },
};

TEST(tensors_follow_from_the_configuration)
{
    for (size_t c = 0; c < sizeof(cases) / sizeof(*cases); c++) {
        struct model_shapes shapes;
        reshard_error err = { 0 };
        char found[200];
        CHECK_OK(make(cases[c].config, &shapes, &err));
        assert_non_null(shapes.catalog);
        if (shapes.catalog->tensor_count != cases[c].count)
            fail_msg("%s: %u tensors", cases[c].config, shapes.catalog->tensor_count);
        for (size_t i = 0; i < 4 && cases[c].tensors[i].key; i++) {
            describe(&shapes, cases[c].tensors[i].key, found, sizeof(found));
            if (strcmp(found, cases[c].tensors[i].shape) != 0)
                fail_msg("%s: %s is '%s'", cases[c].config, cases[c].tensors[i].key, found);
        }
        model_shapes_release(&shapes);
    }
}

TEST(keys_that_nobody_asks_for)
{
    struct model_shapes shapes;
    reshard_error err = { 0 };
    CHECK_OK(make("{" DEEPSEEK ",\"num_nextn_predict_layers\":1}", &shapes, &err));
    assert_int_equal(shapes.ignored_count, 2);
    assert_true(str_is(shapes.ignored[0], "model.layers.2.*"));
    assert_true(str_is(shapes.ignored[1], "*.weight_scale_inv"));
    model_shapes_release(&shapes);
}

/* The family is told all the same: `verify --against` says of it that its tensors are not known. */
TEST(what_is_not_known_is_not_guessed)
{
    static const struct { const char *config, *family; bool is_known; } configs[] = {
        { "{\"model_type\":\"qwen2_moe\",\"mlp_only_layers\":[1],\"shared_expert_intermediate_size\":6," MOE "}", "qwen2_moe", false },
        { "{\"model_type\":\"qwen2_moe\",\"mlp_only_layers\":[],\"shared_expert_intermediate_size\":6," MOE "}", "qwen2_moe", true },
        { "{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":null," MOE "}", "qwen3_moe", true },
        { "{\"model_type\":\"llama\",\"mlp_only_layers\":[1]," LLAMA "}", "llama", true },
        { "{\"model_type\":\"lama\"," LLAMA "}", "lama", false },
        { "{\"model_type\":7}", NULL, false },
        { "{}", NULL, false },
        { "[1]", NULL, false },
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(*configs); i++) {
        struct model_shapes shapes;
        reshard_error err = { 0 };
        CHECK_OK(make(configs[i].config, &shapes, &err));
        if ((shapes.catalog != NULL) != configs[i].is_known)
            fail_msg("%s: %s", configs[i].config, shapes.catalog ? "known" : "not known");
        assert_int_equal(!shapes.family, !configs[i].family);
        if (shapes.family)
            assert_string_equal(shapes.family, configs[i].family);
        model_shapes_release(&shapes);
    }
}

TEST(refusals_say_what_is_missing)
{
    static const struct { const char *config; reshard_status status; const char *words; } configs[] = {
        { "{\"model_type\":\"llama\",\"num_attention_heads\":0,\"hidden_size\":8}", RESHARD_ERR_UNSUPPORTED, "'head_dim'" },
        { "{\"model_type\":\"llama\",\"num_attention_heads\":2,\"hidden_size\":8}", RESHARD_ERR_UNSUPPORTED, "'layer'" },
        { "{\"model_type\":\"llama\",\"num_attention_heads\":2,\"hidden_size\":8,\"num_hidden_layers\":1}", RESHARD_ERR_UNSUPPORTED,
          "'[vocab_size,hidden_size]'" },
        { "{\"model_type\":\"llama\",\"num_attention_heads\":2,\"hidden_size\":8,\"num_hidden_layers\":1,\"vocab_size\":-1}",
          RESHARD_ERR_UNSUPPORTED, "'[vocab_size,hidden_size]'" },
        { "{\"model_type\":\"gpt2\",\"n_embd\":8,\"n_layer\":65537}", RESHARD_ERR_LIMIT, "65537 of 'layer', at most 65536" },
        { "{\"model_type\":\"qwen3_moe\"," MOE ",\"decoder_sparse_step\":0}", RESHARD_ERR_UNSUPPORTED, "(layer+1)%decoder_sparse_step" },
        { "{\"model_type\":", RESHARD_ERR_FORMAT, "" },
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(*configs); i++) {
        struct model_shapes shapes;
        reshard_error err = { 0 };
        reshard_status status = make(configs[i].config, &shapes, &err);
        if (status != configs[i].status || !strstr(err.message, configs[i].words) || shapes.catalog)
            fail_msg("%s: status %d: %s", configs[i].config, status, err.message);
        model_shapes_release(&shapes);
    }
}

TEST(numbers_that_are_given_go_before)
{
    static const struct mapping_constant groups[] = { { "num_key_value_heads", 1 } };
    struct model_shapes shapes;
    reshard_error err = { 0 };
    char found[200];
    CHECK_OK(model_shapes_make(STR("{\"model_type\":\"llama\",\"num_key_value_heads\":2," LLAMA "}"), groups, 1, &limits_default, &shapes,
                               &err));
    describe(&shapes, "model.layers.1.self_attn.k_proj.weight", found, sizeof(found));
    assert_string_equal(found, "F32 2 8");
    model_shapes_release(&shapes);
}

/* What config.json leaves to its family; of a family whose tensors are not known, too. */
TEST(a_number_may_be_meant)
{
    static const struct { const char *config; int64_t tied; bool is_known; } configs[] = {
        { "{\"model_type\":\"llama\"}", 0, true },
        { "{\"model_type\":\"llama\",\"tie_word_embeddings\":true}", 1, true },
        { "{\"model_type\":\"ernie4_5\"}", 1, true },
        { "{\"model_type\":\"ernie4_5_moe\",\"tie_word_embeddings\":false}", 0, true },
        { "{\"model_type\":\"ernie4_5_moe\"}", 1, true },
        { "{\"model_type\":\"gpt2\"}", 1, true },
        { "{\"model_type\":\"lama\"}", 0, false },
        { "{}", 0, false },
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(*configs); i++) {
        reshard_error err = { 0 };
        int64_t tied = 0;
        bool is_known;
        CHECK_OK(model_shapes_number(str_of(configs[i].config), STR("tie_word_embeddings"), &limits_default, &tied, &is_known, &err));
        if (is_known != configs[i].is_known || tied != configs[i].tied)
            fail_msg("%s: %lld", configs[i].config, (long long)tied);
    }
}

TEST(tensors_are_counted)
{
    const char *config = "{\"model_type\":\"llama\"," LLAMA "}";
    struct limits limits = limits_default;
    struct model_shapes shapes;
    reshard_error err = { 0 };
    CHECK_OK(make(config, &shapes, &err));
    limits.tensors = shapes.catalog->tensor_count;
    model_shapes_release(&shapes);
    CHECK_OK(model_shapes_make(str_of(config), NULL, 0, &limits, &shapes, &err));
    model_shapes_release(&shapes);
    limits.tensors--;
    assert_int_equal(model_shapes_make(str_of(config), NULL, 0, &limits, &shapes, &err), RESHARD_ERR_LIMIT);
    assert_non_null(strstr(err.message, "tensors"));
    assert_null(shapes.catalog);
    model_shapes_release(&shapes);
}

/* Never fewer tensors, or others, because there was no memory for what was to be looked at. */
TEST(want_of_memory_is_an_error)
{
    const char *config = "{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[1]," MOE "}";
    for (unsigned long nth = 1;; nth = fail_next(nth)) {
        struct model_shapes shapes;
        reshard_error err = { 0 };
        fail_malloc_at(nth);
        reshard_status status = make(config, &shapes, &err);
        assert_true(status || !shapes.catalog);
        model_shapes_release(&shapes);
        if (!fail_malloc_was_hit())
            break;
        if (status && status != RESHARD_ERR_MEMORY) /* OK: an arena that asked for less then */
            fail_msg("allocation %lu: status %d", nth, status);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_follow_from_the_configuration),
        cmocka_unit_test(keys_that_nobody_asks_for),
        cmocka_unit_test(what_is_not_known_is_not_guessed),
        cmocka_unit_test(refusals_say_what_is_missing),
        cmocka_unit_test(numbers_that_are_given_go_before),
        cmocka_unit_test(a_number_may_be_meant),
        cmocka_unit_test(tensors_are_counted),
        cmocka_unit_test(want_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
