/* SPDX-License-Identifier: Apache-2.0 */
/* Every spelling of optimizer state that fixtures hold, and others that are near. */
#include "check.h"

#include "parallel/state_keys.h"

#define GROUP "optimizer.distributed.dp_group_idx_"
#define BUCKET_OF(number) GROUP "0.gbuf_idx_" number ".dtype_(torch.bfloat16, torch.float32).bucket_idx_"
#define META "optimizer.param_to_group_meta."

static const struct key_case {
    const char *key;
    enum state_key_kind kind;
    const char *state, *parameter;
    int64_t chain, group, buffer, bucket;
    bool is_master;
    const char *shard;
} cases[] = {
    /* torch_dist, zarr, and legacy files as they are listed */
    { "optimizer.state.exp_avg.output_layer.weight", STATE_KEY_PARAMETER, "exp_avg", "output_layer.weight", -1, -1, -1, -1, false, "" },
    { "optimizer.state.exp_avg_sq.decoder.layers.mlp.experts.experts.linear_fc1.weight", STATE_KEY_PARAMETER, "exp_avg_sq",
      "decoder.layers.mlp.experts.experts.linear_fc1.weight", -1, -1, -1, -1, false, "" },
    { "optimizer.state.param.embedding.word_embeddings.weight", STATE_KEY_PARAMETER, "param", "embedding.word_embeddings.weight", -1, -1,
      -1, -1, true, "" },
    { "optimizer.state.fp32_param.decoder.final_layernorm.bias", STATE_KEY_PARAMETER, "fp32_param", "decoder.final_layernorm.bias", -1, -1,
      -1, -1, true, "" },
    { "chained_1.optimizer.state.fp32_param.decoder.layers.mlp.experts.experts.linear_fc1.weight", STATE_KEY_PARAMETER, "fp32_param",
      "decoder.layers.mlp.experts.experts.linear_fc1.weight", 1, -1, -1, -1, true, "" },
    { "chained_0.optimizer.state.momentum_buffer.w", STATE_KEY_PARAMETER, "momentum_buffer", "w", 0, -1, -1, -1, false, "" },
    { "optimizer.state.common_step", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
    /* Megatron-FSDP */
    { "optimizer.state.module.module.module.decoder.layers.0.mlp.linear_fc1.weight_w.exp_avg", STATE_KEY_PARAMETER, "exp_avg",
      "module.module.module.decoder.layers.0.mlp.linear_fc1.weight_w", -1, -1, -1, -1, false, "" },
    { META "module.module.module.output_layer.weight.wd_mult", STATE_KEY_GROUP_META, "wd_mult", "module.module.module.output_layer.weight",
      -1, -1, -1, -1, false, "" },
    { META "lr", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
    { META "w.", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
    /* by number: torch's optimizers */
    { "optimizer.state.0.exp_avg", STATE_KEY_NUMBERED, "exp_avg", "", -1, -1, -1, -1, false, "" },
    { "optimizer.state.12.step", STATE_KEY_NUMBERED, "step", "", -1, -1, -1, -1, false, "" },
    { "optimizer.param_groups.0.lr", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
    /* buckets */
    { BUCKET_OF("0") "0.exp_avg", STATE_KEY_BUCKET, "exp_avg", "", -1, 0, 0, 0, false, "" },
    { "chained_1." BUCKET_OF("2") "13.param", STATE_KEY_BUCKET, "param", "", 1, 0, 2, 13, false, "" },
    { BUCKET_OF("0") "0.", STATE_KEY_OTHER, "", "", -1, 0, 0, 0, false, "" },
    { BUCKET_OF("0") "x.param", STATE_KEY_OTHER, "", "", -1, 0, 0, -1, false, "" },
    { GROUP "0.gbuf_idx_0.dtype_(torch.bfloat16).bucket_idx_0.param", STATE_KEY_OTHER, "", "", -1, 0, 0, -1, false, "" },
    /* objects, with and without the place among shards */
    { GROUP "3.param_state/shard_0_1", STATE_KEY_BUFFERS, "", "", -1, 3, -1, -1, false, "shard_0_1" },
    { "chained_0." GROUP "0.param_state/shard_0_1", STATE_KEY_BUFFERS, "", "", 0, 0, -1, -1, false, "shard_0_1" },
    { GROUP "0.per_bucket_numel/shard_0_1", STATE_KEY_BUCKET_SIZES, "", "", -1, 0, -1, -1, false, "shard_0_1" },
    { GROUP "0.per_bucket_numel_unpadded/shard_0_1", STATE_KEY_UNPADDED_SIZES, "", "", -1, 0, -1, -1, false, "shard_0_1" },
    { GROUP "0.optimizer/shard_0_1", STATE_KEY_GROUPS, "", "", -1, 0, -1, -1, false, "shard_0_1" },
    { "chained_1." GROUP "0.optimizer", STATE_KEY_GROUPS, "", "", 1, 0, -1, -1, false, "" },
    { GROUP "0.grad_scaler/shard_0_1", STATE_KEY_SCALER, "", "", -1, 0, -1, -1, false, "shard_0_1" },
    { GROUP "0.else/shard_0_1", STATE_KEY_OTHER, "", "", -1, 0, -1, -1, false, "shard_0_1" },
    { GROUP "x.param_state/shard_0_1", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
    { GROUP "99999999999.param_state/shard_0_1", STATE_KEY_OTHER, "", "", -1, -1, -1, -1, false, "" },
};

/* What is no optimizer state of these frameworks: weights, and state of others, which mappings relate. */
static const char *const others[] = {
    "",
    "optimizer",
    "optimizer_states.0.state.0.exp_avg",
    "optim.state.down.weight.exp_avg",
    "state.0.exp_avg",
    "param_groups.0.lr",
    "rng_state.consumed",
    "model.layers.0.up.weight.moment1_0",
    "chained_x.optimizer.state.exp_avg.w",
    "chained_.optimizer.state.exp_avg.w",
    "chained_0.model.w",
    "chained_0",
    "decoder.optimizer.state.exp_avg.w",
};

TEST(every_spelling_is_read)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct key_case *c = &cases[i];
        struct state_key read;
        if (!state_key_read(str_of(c->key), &read) || read.kind != c->kind)
            fail_msg("%s: kind %d, expected %d", c->key, (int)read.kind, (int)c->kind);
        if (!str_is(read.state, c->state) || !str_is(read.parameter, c->parameter) || !str_is(read.shard, c->shard))
            fail_msg("%s: state '%.*s' of '%.*s', shard '%.*s'", c->key, STR_ARG(read.state), STR_ARG(read.parameter), STR_ARG(read.shard));
        if (read.chain != c->chain || read.group != c->group || read.buffer != c->buffer || read.bucket != c->bucket)
            fail_msg("%s: a number is another than expected", c->key);
        assert_int_equal(read.is_master, c->is_master);
        assert_true(str_starts_with(read.plain, "optimizer."));
        assert_true(state_key_is_any(str_of(c->key)));
        assert_int_equal(state_key_is(str_of(c->key), c->kind), c->kind < STATE_KEY_BUFFERS || c->shard[0]);
    }
}

TEST(buckets_have_types)
{
    struct state_key read;
    assert_true(state_key_read(STR(BUCKET_OF("0") "0.exp_avg"), &read));
    assert_int_equal(read.param_dtype, DTYPE_BF16);
    assert_int_equal(read.grad_dtype, DTYPE_F32);
}

TEST(other_keys_are_no_state)
{
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct state_key read;
        if (state_key_read(str_of(others[i]), &read) || read.kind != STATE_KEY_NONE)
            fail_msg("'%s' is taken for optimizer state", others[i]);
        assert_false(state_key_is_any(str_of(others[i])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_is_read),
        cmocka_unit_test(buckets_have_types),
        cmocka_unit_test(other_keys_are_no_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
