/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of parameters that are stored parameter by parameter. */
#include "check.h"

#include "fail_malloc.h"
#include "parallel/group_meta.h"

#define META "optimizer.param_to_group_meta.module."

/* Two parameters of one group, and an expert that differs in one member. */
static reshard_status fill(struct group_meta *meta, reshard_error *err)
{
    static const struct {
        const char *key;
        int64_t value;
    } items[] = {
        { META "a.weight.lr", 3 },  { META "a.weight.wd_mult", 1 },
        { META "b.weight.lr", 3 },  { META "mlp.experts.local_experts.0.weight.lr", 3 },
        { META "mlp.experts.local_experts.0.weight.wd_mult", 0 }, { META "b.weight.wd_mult", 1 },
        { META "mlp.experts.local_experts.1.weight.lr", 3 }, { META "mlp.experts.local_experts.1.weight.wd_mult", 0 },
    };
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < sizeof(items) / sizeof(items[0]) && !status; i++)
        status = group_meta_add(meta, str_of(items[i].key), value_new_int(meta->graph, items[i].value), err);
    return status;
}

static int64_t member(const struct value *list, size_t index, const char *name)
{
    int64_t number = -1;
    assert_true(value_as_int(value_dict_get(list->list.items[index], name), &number));
    return number;
}

TEST(parameters_of_equal_members_are_one_group)
{
    struct value_graph graph = { 0 };
    struct group_meta meta = { .graph = &graph };
    struct value *list;
    reshard_error err = { 0 };
    assert_int_equal(fill(&meta, &err), RESHARD_OK);
    assert_int_equal(group_meta_list(&meta, false, &list, &err), RESHARD_OK);
    assert_int_equal(list->list.count, 2);
    assert_int_equal(member(list, 0, "wd_mult"), 1);
    assert_int_equal(member(list, 1, "wd_mult"), 0);
    assert_null(value_dict_get(list->list.items[0], "is_expert_parallel"));
    group_meta_release(&meta);
    value_graph_release(&graph);
}

TEST(groups_of_experts_are_marked)
{
    struct value_graph graph = { 0 };
    struct group_meta meta = { .graph = &graph };
    struct value *list, *all;
    reshard_error err = { 0 };
    assert_int_equal(fill(&meta, &err), RESHARD_OK);
    for (int i = 0; i < 2; i++) {
        const char *key =
            i ? META "mlp.experts.local_experts.1.weight.is_expert_parallel" : META "mlp.experts.local_experts.0.weight.is_expert_parallel";
        assert_int_equal(group_meta_add(&meta, str_of(key), value_new(&graph, VALUE_BOOL), &err), RESHARD_OK);
    }
    assert_int_equal(group_meta_list(&meta, true, &list, &err), RESHARD_OK);
    assert_int_equal(list->list.count, 1);
    assert_true(value_dict_is_true(list->list.items[0], "is_expert_parallel"));
    assert_int_equal(group_meta_list(&meta, false, &all, &err), RESHARD_OK);
    assert_false(value_dict_is_true(all->list.items[1], "is_expert_parallel"));
    group_meta_release(&meta);
    value_graph_release(&graph);
}

TEST(no_allocation_is_taken_for_granted)
{
    unsigned long nth = 0;
    reshard_status status;
    do {
        struct value_graph graph = { 0 };
        struct group_meta meta = { .graph = &graph };
        struct value *list;
        reshard_error err = { 0 };
        fail_malloc_at(++nth);
        status = fill(&meta, &err);
        if (!status)
            status = group_meta_list(&meta, false, &list, &err);
        if (!status)
            status = group_meta_list(&meta, true, &list, &err);
        group_meta_release(&meta);
        value_graph_release(&graph);
        /* An arena asks for less where it does not get a whole block. */
        assert_true(status == RESHARD_OK || status == RESHARD_ERR_MEMORY);
    } while (fail_malloc_was_hit());
    assert_int_equal(status, RESHARD_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_of_equal_members_are_one_group),
        cmocka_unit_test(groups_of_experts_are_marked),
        cmocka_unit_test(no_allocation_is_taken_for_granted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
