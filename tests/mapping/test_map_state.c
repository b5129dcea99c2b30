/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer states follow their weights, in every framework's spelling. */
#include "check.h"
#include "map_run.h"

#define KEYS_MAX 8

struct side_tensor {
    const char *key;
    enum dtype dtype;
    int rank;
    int64_t shape[2];
};

struct state_case {
    const char *why, *text;
    struct side_tensor source[KEYS_MAX], target[KEYS_MAX]; /* no target: outputs are made */
    const char *copies; /* "target <- source" a line, in the order of the target's tensors, or the first message */
};

static bool make_space(struct map_space *space, const struct side_tensor *tensors)
{
    reshard_error err = { 0 };
    for (int i = 0; i < KEYS_MAX && tensors[i].key; i++)
        CHECK_OK(map_space_add(space, str_of(tensors[i].key), tensors[i].dtype, tensors[i].rank, tensors[i].shape, NULL, 0, &err));
    CHECK_OK(map_space_seal(space, &err));
    return tensors[0].key != NULL;
}

static void print_copies(const struct map_run *run, const struct map_space *source, struct buffer *out)
{
    for (uint32_t i = 0; i < run->diagnoses.count && run->diagnoses.error_count; i++) {
        if (run->diagnoses.rows[i].severity == MAP_ERROR) {
            buffer_append_text(out, run->diagnoses.rows[i].message);
            break;
        }
    }
    for (uint32_t i = 0; i < run->result.copy_count && !run->diagnoses.error_count; i++) {
        const struct map_copy *copy = &run->result.copies[i];
        struct str to = run->result.target->tensors[copy->target_tensor].key, from = source->tensors[copy->source_tensor].key;
        buffer_printf(out, "%.*s <- %.*s%s\n", STR_ARG(to), STR_ARG(from), copy->casts ? " cast" : "");
    }
    buffer_append_byte(out, '\0');
}

static void check_case(const struct state_case *row)
{
    struct map_space source = { 0 }, target = { 0 };
    struct map_run run;
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    make_space(&source, row->source);
    bool has_target = make_space(&target, row->target);
    CHECK_OK(map_run(&run, row->text, &source, has_target ? &target : NULL, false, &err));
    print_copies(&run, &source, &out);
    if (strcmp((const char *)out.data, row->copies) != 0)
        fail_msg("%s:\n%s\ninstead of\n%s", row->why, (const char *)out.data, row->copies);
    buffer_release(&out);
    map_run_release(&run);
    map_space_release(&source);
    map_space_release(&target);
}

#define W(key) { key, DTYPE_BF16, 2, { 2, 3 } }
#define S(key) { key, DTYPE_F32, 2, { 2, 3 } }

TEST(states_follow_their_weights)
{
    static const struct state_case cases[] = {
        { "Paddle",
          "a -> b, dtype='float32'",
          { W("a"), S("a.w_0"), S("a.moment1_0"), { "a.beta1_pow_acc_0", DTYPE_F32, 1, { 1 } } },
          { { 0 } },
          "b <- a cast\nb.w_0 <- a.w_0\nb.moment1_0 <- a.moment1_0\nb.beta1_pow_acc_0 <- a.beta1_pow_acc_0\n" },
        { "Megatron",
          "a.w -> b.w",
          { S("optimizer.state.exp_avg.a.w"), W("a.w"), S("optimizer.state.param.a.w"), S("optimizer.state.exp_avg_sq.a.w") },
          { { 0 } },
          "b.w <- a.w\noptimizer.state.param.b.w <- optimizer.state.param.a.w\noptimizer.state.exp_avg.b.w <- optimizer.state.exp_avg.a.w\n"
          "optimizer.state.exp_avg_sq.b.w <- optimizer.state.exp_avg_sq.a.w\n" },
        { "torch",
          "a.w -> b.w",
          { W("a.w"), S("optim.state.a.w.exp_avg"), { "optim.state.a.w.step", DTYPE_F32, 0, { 0 } } },
          { { 0 } },
          "b.w <- a.w\noptim.state.b.w.exp_avg <- optim.state.a.w.exp_avg\noptim.state.b.w.step <- optim.state.a.w.step\n" },
        { "weights in a container",
          "model.a -> model.b",
          { W("model.a"), S("optim.state.a.exp_avg"), S("optim.state.a.max_exp_avg_sq") },
          { { 0 } },
          "model.b <- model.a\noptim.state.b.exp_avg <- optim.state.a.exp_avg\noptim.state.b.max_exp_avg_sq <- "
          "optim.state.a.max_exp_avg_sq\n" },
        { "both in one container",
          "app.model.a -> c",
          { W("app.model.a"), S("app.optim.state.a.momentum_buffer") },
          { { 0 } },
          "c <- app.model.a\napp.optim.state.c.momentum_buffer <- app.optim.state.a.momentum_buffer\n" },
        { "Megatron-FSDP",
          "model.module.a -> model.module.b",
          { W("model.module.a"), S("optimizer.state.module.module.module.a.exp_avg") },
          { { 0 } },
          "model.module.b <- model.module.a\noptimizer.state.module.module.module.b.exp_avg <- "
          "optimizer.state.module.module.module.a.exp_avg\n" },
        { "files of FSDP", "a -> b", { W("a"), S("a-exp_avg") }, { { 0 } }, "b <- a\nb-exp_avg <- a-exp_avg\n" },
        { "Paddle's other optimizers", "a -> b", { W("a"), S("a.velocity_0") }, { { 0 } }, "b <- a\nb.velocity_0 <- a.velocity_0\n" },
        { "from one framework to another",
          "a -> b",
          { W("a"), S("a.w_0"), S("a.moment1_0"), S("a.moment2_0") },
          { W("b"), S("optimizer.state.fp32_param.b"), S("optimizer.state.exp_avg.b"), S("optimizer.state.exp_avg_sq.b") },
          "b <- a\noptimizer.state.fp32_param.b <- a.w_0\noptimizer.state.exp_avg.b <- a.moment1_0\noptimizer.state.exp_avg_sq.b <- "
          "a.moment2_0\n" },
        { "pieces too",
          "a, b -> c, axis=0",
          { W("a"), W("b"), S("optim.state.a.exp_avg"), S("optim.state.b.exp_avg") },
          { { "c", DTYPE_BF16, 2, { 4, 3 } }, { "optim.state.c.exp_avg", DTYPE_F32, 2, { 4, 3 } } },
          "c <- a\nc <- b\noptim.state.c.exp_avg <- optim.state.a.exp_avg\noptim.state.c.exp_avg <- optim.state.b.exp_avg\n" },
        { "and layers on an axis",
          "a, b -> c, stack=0",
          { W("a"), W("b"), S("optim.state.a.exp_avg"), S("optim.state.b.exp_avg") },
          { { 0 } },
          "c <- a\nc <- b\noptim.state.c.exp_avg <- optim.state.a.exp_avg\noptim.state.c.exp_avg <- optim.state.b.exp_avg\n" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_case(&cases[i]);
}

TEST(keys_of_a_unified_checkpoint_say_family_weight_and_state)
{
    static const struct { const char *key, *name; enum map_state state;
    } cases[] = {
        { "model:a.b", "a.b", MAP_STATE_WEIGHT },
        { "master_weights:a.b", "a.b", MAP_STATE_MASTER },
        { "optimizer:a.b/moment1_0", "a.b", MAP_STATE_MOMENT1 },
        { "optimizer:a/b/moment2_0", "a/b", MAP_STATE_MOMENT2 },
        { "optimizer:a/beta1_pow_acc_0", "a", MAP_STATE_BETA1 },
        { "optimizer:/moment1_0", NULL, MAP_STATE_WEIGHT },
        { "optimizer:moment1_0", NULL, MAP_STATE_WEIGHT },
        { "optimizer:a/moment1_0/", NULL, MAP_STATE_WEIGHT },
        { "optimizer:a/other", NULL, MAP_STATE_WEIGHT },
        { "optimizer:", NULL, MAP_STATE_WEIGHT },
        { "model:", NULL, MAP_STATE_WEIGHT },
        { "a.b", NULL, MAP_STATE_WEIGHT },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct map_state_key found;
        const bool is_one = map_state_of_family(str_of(cases[i].key), &found);
        if (is_one != (cases[i].name != NULL) || (is_one && (found.state != cases[i].state || !str_is(found.name, cases[i].name))))
            fail_msg("'%s': %d, state %d of '%.*s'", cases[i].key, (int)is_one, (int)found.state, STR_ARG(found.name));
    }
}

TEST(what_only_looks_like_a_state_is_a_tensor)
{
    static const struct state_case cases[] = {
        { "numbers instead of names",
          "a -> b",
          { W("a"), S("optim.state.0.exp_avg") },
          { { 0 } },
          "optim.state.0.exp_avg <- optim.state.0.exp_avg\nb <- a\n" },
        { "another shape",
          "a -> b",
          { W("a"), { "optimizer.state.exp_avg.a", DTYPE_F32, 1, { 6 } } },
          { { 0 } },
          "optimizer.state.exp_avg.a <- optimizer.state.exp_avg.a\nb <- a\n" },
        { "the state of nothing", "a.velocity_0 -> b", { S("a.velocity_0") }, { { 0 } }, "b <- a.velocity_0\n" },
        { "an unknown state", "a -> b", { W("a"), S("optim.state.a.foo") }, { { 0 } }, "optim.state.a.foo <- optim.state.a.foo\nb <- a\n" },
        { "a statement about a state",
          "optim.state.a.exp_avg -> b",
          { W("a"), S("optim.state.a.exp_avg") },
          { { 0 } },
          "'optim.state.a.exp_avg' is neither a weight of the source nor assigned before" },
        { "a state that the source lacks",
          "a -> b",
          { W("a") },
          { W("b"), S("b.moment1_0") },
          "'b.moment1_0' needs the first moment of 'a', which the source does not have" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_case(&cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(states_follow_their_weights),
                                        cmocka_unit_test(keys_of_a_unified_checkpoint_say_family_weight_and_state),
        cmocka_unit_test(what_only_looks_like_a_state_is_a_tensor) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
