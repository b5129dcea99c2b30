/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever walks values spends from the budget of work: for what it visits, and for the bytes that it makes. */
#include "base/value.h"
#include "base/value_members.h"
#include "check.h"

#define COUNT 1000

static struct value_graph graph;

static struct value *list_of(enum value_kind kind, size_t count, struct value *item)
{
    struct value **items = arena_array(&graph.arena, count, sizeof(struct value *));
    for (size_t i = 0; i < count; i++)
        items[i] = item ? item : value_new_int(&graph, (int64_t)i);
    return value_new_list(&graph, kind, items, count);
}

/* A dict of COUNT pairs whose keys are texts. */
static struct value *dict_of_texts(void)
{
    struct value *dict = list_of(VALUE_DICT, 2 * (size_t)COUNT, NULL);
    for (int i = 0; i < COUNT; i++) {
        char key[32];
        snprintf(key, sizeof(key), "k%d", i);
        dict->list.items[2 * i] = value_new_str(&graph, str_of(key));
    }
    return dict;
}

static struct value *parts(void)
{
    static struct value *made;
    return made ? made : (made = list_of(VALUE_LIST, COUNT, list_of(VALUE_LIST, 0, NULL)));
}

/* ---- what is done with a value; each says whether the budget sufficed ---- */

static bool sufficed(reshard_status status, const reshard_error *err)
{
    if (status) {
        assert_int_equal(status, RESHARD_ERR_LIMIT);
        assert_non_null(strstr(err->message, "work: "));
    }
    return !status;
}

static bool compare_with_itself(const struct value *value, struct value_graph *other, struct work *work)
{
    reshard_error err = { 0 };
    bool equal = false;
    const struct value *copy = value_copy(other, value, graph.count);
    reshard_status status = value_compare(value, copy, NULL, work, &equal, &err);
    assert_true(status || equal);
    return sufficed(status, &err);
}

static bool compare(const struct value *value, struct work *work)
{
    struct value_graph other = { 0 };
    bool good = compare_with_itself(value, &other, work);
    value_graph_release(&other);
    return good;
}

static bool repr(const struct value *value, struct work *work)
{
    struct buffer out = { 0 };
    bool good = value_to_repr(value, &out, work);
    assert_int_equal(good, !work_is_spent(work));
    buffer_release(&out);
    return good;
}

static bool visit(const struct value *value, void *context)
{
    (void)value, (void)context;
    return true;
}

static bool walk(const struct value *value, struct work *work)
{
    bool no_memory = false, good = value_walk(value, graph.count, work, visit, NULL, &no_memory);
    assert_int_equal(good, !no_memory);
    return good;
}

static bool member(void *context, struct str key, const struct value *value)
{
    (void)context, (void)key, (void)value;
    return true;
}

static bool members(const struct value *value, struct work *work)
{
    reshard_error err = { 0 };
    return sufficed(value_members(value, STR("x"), work, member, NULL, &err), &err);
}

static bool copy(const struct value *value, struct work *work)
{
    struct value_graph into = { .arena = { .work = work } };
    bool good = value_copy(&into, value, graph.count) != NULL;
    assert_int_equal(good, !work_is_spent(work));
    value_graph_release(&into);
    return good;
}

/* What the smallest budget is that suffices, by halving. */
static uint64_t price(bool (*act)(const struct value *value, struct work *work), const struct value *value)
{
    uint64_t low = 0, high = UINT64_C(1) << 30; /* low does not suffice, or is 0 */
    while (high - low > 1) {
        struct work work;
        uint64_t middle = low + (high - low) / 2;
        work_begin(&work, middle);
        if (act(value, &work))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Bytes of the keys of dict_of_texts. */
static uint64_t bytes_of_keys(void)
{
    const struct value *dict = dict_of_texts();
    uint64_t bytes = 0;
    for (size_t i = 0; i < COUNT; i++)
        bytes += dict->list.items[2 * i]->text.size;
    return bytes;
}

TEST(comparing_costs_a_step_an_element_and_what_texts_are_long)
{
    assert_int_equal(price(compare, list_of(VALUE_LIST, COUNT, NULL)), COUNT * WORK_STEP);
    assert_int_equal(price(compare, list_of(VALUE_TUPLE, COUNT, NULL)), COUNT * WORK_STEP);
    assert_int_equal(price(compare, list_of(VALUE_SET, COUNT, NULL)), 2 * COUNT * WORK_STEP);
    assert_int_equal(price(compare, dict_of_texts()), 4 * COUNT * WORK_STEP + bytes_of_keys());
}

TEST(printing_costs_its_bytes_and_a_step_an_element)
{
    const char text[] = "[[], [], ";
    struct value *letters = value_new_str(&graph, (struct str){ memset(arena_alloc(&graph.arena, 50000), 'a', 50000), 50000 });
    assert_int_equal(price(repr, letters), 50000 + strlen("''"));
    /* Each empty list is entered: a step for it, and one for its place in the list. */
    assert_int_equal(price(repr, parts()), (uint64_t)COUNT * (2 * WORK_STEP + (strlen(text) - 1) / 2) + WORK_STEP);
    /* Looking for equal keys costs a step a pair more. */
    struct value *dict = dict_of_texts();
    uint64_t bytes = 0;
    struct buffer out = { 0 };
    assert_true(value_to_repr(dict, &out, NULL));
    bytes = out.size;
    buffer_release(&out);
    assert_int_equal(price(repr, dict), bytes + (uint64_t)WORK_STEP * (2 * COUNT + 1));
}

TEST(walking_and_copying_cost_what_they_visit)
{
    struct value *list = list_of(VALUE_LIST, COUNT, NULL);
    uint64_t walked = price(walk, list);
    assert_in_range(walked, (uint64_t)COUNT / 2 * WORK_STEP, (uint64_t)COUNT * 2 * WORK_STEP);
    assert_true(price(copy, list) >= COUNT * (sizeof(struct value) + sizeof(struct value *)));
}

TEST(members_cost_a_step_for_each_key_and_value)
{
    assert_in_range(price(members, dict_of_texts()), (uint64_t)2 * COUNT * WORK_STEP, (uint64_t)8 * COUNT * WORK_STEP);
}

static int release_graph(void **state)
{
    (void)state;
    value_graph_release(&graph);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparing_costs_a_step_an_element_and_what_texts_are_long),
        cmocka_unit_test(printing_costs_its_bytes_and_a_step_an_element),
        cmocka_unit_test(walking_and_copying_cost_what_they_visit),
        cmocka_unit_test(members_cost_a_step_for_each_key_and_value),
    };
    return cmocka_run_group_tests(tests, NULL, release_graph);
}
