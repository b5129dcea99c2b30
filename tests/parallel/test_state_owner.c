/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensor a state belongs to, where optimizer and model lie beside each other in one checkpoint. */
#include "check.h"

#include "parallel/state_owner.h"

#include <stdio.h>

static struct catalog *catalog_of(const char *const *keys)
{
    struct catalog *catalog = catalog_new("test");
    const int64_t shape[] = { 2 };
    reshard_error err;
    for (uint32_t tensor; *keys; keys++)
        assert_int_equal(catalog_add_tensor(catalog, str_of(*keys), DTYPE_F32, 1, shape, &tensor, &err), RESHARD_OK);
    assert_int_equal(catalog_seal(catalog, true, &err), RESHARD_OK);
    return catalog;
}

static void check_owner(const struct state_owners *owners, const char *key, const char *weight, const char *state)
{
    uint32_t found;
    struct str name;
    bool is_found = state_owners_find(owners, str_of(key), &found, &name);
    assert_int_equal(is_found, weight != NULL);
    if (!weight)
        return;
    assert_true(str_is(owners->catalog->tensors[found].key, weight));
    assert_true(str_is(name, state));
}

static void owners_of_all_spellings(void **unused)
{
    static const char *const keys[] = {
        "ema.w", "model.w", "model.h.0.w", "optim.state.w.exp_avg", "optim.state.h.0.w.step", /* an average of the model has no state */
        "optim.state.w.z",
        "bare", "state.bare.exp_avg", "optimizer.state.exp_avg.bare",
        "a.net.w", "a.opt.state.w.exp_avg", "b.net.w", "b.opt.state.w.exp_avg", "late.b.net.w", /* two models with optimizers */
        "mamba.state.x.log", "layer.weight", "layer.weight.scale", NULL                         /* no states */
    };
    struct catalog *catalog = catalog_of(keys);
    struct state_owners owners;
    (void)unused;
    state_owners_begin(&owners, catalog);
    check_owner(&owners, "optim.state.w.exp_avg", "model.w", "exp_avg");
    check_owner(&owners, "optim.state.h.0.w.step", "model.h.0.w", "step");
    check_owner(&owners, "optim.state.w.z", "model.w", "z");
    check_owner(&owners, "state.bare.exp_avg", "bare", "exp_avg");
    check_owner(&owners, "optimizer.state.exp_avg.bare", "bare", "exp_avg");
    check_owner(&owners, "a.opt.state.w.exp_avg", "a.net.w", "exp_avg");
    check_owner(&owners, "b.opt.state.w.exp_avg", "b.net.w", "exp_avg");
    check_owner(&owners, "mamba.state.x.log", NULL, NULL);
    check_owner(&owners, "layer.weight.scale", NULL, NULL);
    check_owner(&owners, "optim.state.gone.exp_avg", NULL, NULL);
    assert_int_equal(state_owners_weight(&owners, STR("optim."), STR("bare")), 6);
    assert_int_equal(state_owners_weight(&owners, STR("optim."), STR("state.bare.exp_avg")), CATALOG_NONE);
    catalog_free(catalog);
}

/* A module that is called `state` has weights as any other, however many there are. */
static void owners_that_are_called_state(void **unused)
{
    char names[200][48];
    const char *keys[201] = { 0 };
    struct state_owners owners;
    (void)unused;
    for (int i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.%d.state.proj.weight", i);
        snprintf(names[100 + i], sizeof(names[i]), "optim.state.layers.%d.state.proj.weight.exp_avg", i);
    }
    snprintf(names[99], sizeof(names[99]), "model.head");
    snprintf(names[199], sizeof(names[199]), "optim.state.head.exp_avg");
    for (int i = 0; i < 200; i++)
        keys[i] = names[i];
    struct catalog *catalog = catalog_of(keys);
    state_owners_begin(&owners, catalog);
    for (int i = 0; i < 100; i++)
        check_owner(&owners, names[100 + i], names[i], "exp_avg");
    for (int i = 0; i < 100; i++)
        check_owner(&owners, names[i], NULL, NULL);
    catalog_free(catalog);
}

/* Weights may be called as states are: how other keys are spelled tells which is which. */
static void owners_that_are_called_as_states(void **unused)
{
    static const char *const keys[] = {
        "model.exp_avg", "model.step", "model.w", "optim.state.exp_avg.step", "optim.state.exp_avg.exp_avg", "optim.state.step.exp_avg",
        "optim.state.step.step", "optim.state.w.step", "optim.state.w.sum", NULL
    };
    static const char *const megatron[] = { "exp_avg", "step", "w", "optimizer.state.exp_avg.step", "optimizer.state.step.exp_avg",
                                            "optimizer.state.step.w", "optimizer.state.sum.w", NULL };
    struct catalog *catalog = catalog_of(keys);
    struct state_owners owners;
    (void)unused;
    state_owners_begin(&owners, catalog);
    check_owner(&owners, "optim.state.exp_avg.step", "model.exp_avg", "step");
    check_owner(&owners, "optim.state.step.exp_avg", "model.step", "exp_avg");
    check_owner(&owners, "optim.state.w.step", "model.w", "step");
    catalog_free(catalog);
    catalog = catalog_of(megatron);
    state_owners_begin(&owners, catalog);
    check_owner(&owners, "optimizer.state.exp_avg.step", "step", "exp_avg");
    check_owner(&owners, "optimizer.state.step.exp_avg", "exp_avg", "step");
    catalog_free(catalog);
}

/* As many optimizers as there are layers. */
static void owners_of_many_optimizers(void **unused)
{
    char names[80][48];
    const char *keys[81] = { 0 };
    struct state_owners owners;
    (void)unused;
    for (int i = 0; i < 40; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.%d.w", i);
        snprintf(names[40 + i], sizeof(names[i]), "optim.%d.state.layers.%d.w.exp_avg", i, i);
    }
    for (int i = 0; i < 80; i++)
        keys[i] = names[i];
    struct catalog *catalog = catalog_of(keys);
    state_owners_begin(&owners, catalog);
    for (int i = 0; i < 40; i++)
        check_owner(&owners, names[40 + i], names[i], "exp_avg");
    catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(owners_of_all_spellings), cmocka_unit_test(owners_that_are_called_state),
                                        cmocka_unit_test(owners_that_are_called_as_states),
                                        cmocka_unit_test(owners_of_many_optimizers) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
