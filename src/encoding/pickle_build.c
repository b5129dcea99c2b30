/* SPDX-License-Identifier: Apache-2.0 */
/* The opcodes that make containers, calls and objects out of what lies on the stack. */
#include "encoding/pickle_machine.h"

#include <stdio.h>

/* Room for count pointers, with their capacity kept in front of them: such arrays can be appended to. */
static struct value **items_new(struct pickle_machine *m, size_t capacity)
{
    if (capacity > SIZE_MAX / sizeof(struct value *) - 1)
        return NULL;
    size_t *header = arena_alloc(&m->graph->arena, (capacity + 1) * sizeof(struct value *));
    if (!header)
        return NULL;
    *header = capacity;
    return (struct value **)(header + 1);
}

static size_t items_capacity(struct value **items)
{
    return items ? *((size_t *)items - 1) : 0;
}

/* Appends to an array of *used pointers made by items_new, or NULL. The first append is exact, later ones leave room. */
static reshard_status items_append(struct pickle_machine *m, struct value ***items, size_t used, struct value *const *added, size_t count)
{
    if (count > items_capacity(*items) - used) {
        size_t capacity = used + count;
        if (used)
            capacity += capacity / 2 + 4;
        struct value **grown = items_new(m, capacity);
        if (!grown)
            return error_set_memory(m->err);
        if (used)
            memcpy(grown, *items, used * sizeof(*grown));
        *items = grown;
    }
    if (count)
        memcpy(*items + used, added, count * sizeof(*added));
    return RESHARD_OK;
}

/* For the arrays of a value_object, whose counts have 32 bits. */
static reshard_status object_append(struct pickle_machine *m, struct value ***items, uint32_t *used, struct value *const *added,
                                    size_t count)
{
    if (count > UINT32_MAX - *used)
        return pickle_fail(m, RESHARD_ERR_LIMIT, "an object with more than %" PRIu32 " parts", UINT32_MAX);
    reshard_status status = items_append(m, items, *used, added, count);
    if (!status)
        *used += (uint32_t)count;
    return status;
}

static bool pickle_build_is_object(const struct value *value)
{
    return value->kind == VALUE_CALL || value->kind == VALUE_NEW;
}

static bool is_hashable(const struct value *value)
{
    switch (value->kind) {
    case VALUE_LIST:
    case VALUE_DICT:
    case VALUE_SET:
    case VALUE_BYTEARRAY:
        return false;
    default:
        return !(value->reserved & NODE_UNHASHABLE);
    }
}

static reshard_status pickle_build_check_members(struct pickle_machine *m, struct value *const *items, size_t count, size_t step,
                                                 const char *what)
{
    for (size_t i = 0; i < count; i += step) {
        char text[PICKLE_DESCRIBE_MAX];
        if (!is_hashable(items[i]))
            return pickle_fail(m, RESHARD_ERR_FORMAT, "%s cannot be %s", pickle_describe(items[i], text), what);
        if (items[i]->reserved & NODE_RAW_STRING)
            return pickle_fail(m, RESHARD_ERR_FORMAT, "a Python 2 string that is not UTF-8 as %s", what);
    }
    return RESHARD_OK;
}

static reshard_status fail_target(struct pickle_machine *m, const char *verb, const struct value *target)
{
    char text[PICKLE_DESCRIBE_MAX];
    return pickle_fail(m, RESHARD_ERR_FORMAT, "%s %s", verb, pickle_describe(target, text));
}

/* ---- containers ---- */

static reshard_status push_container(struct pickle_machine *m, enum value_kind kind, struct value *const *items, size_t count)
{
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, kind, &status);
    if (!node)
        return status;
    if (count) {
        status = items_append(m, &node->list.items, 0, items, count);
        if (status)
            return status;
        node->list.count = count;
    }
    if (kind == VALUE_TUPLE)
        for (size_t i = 0; i < count && !node->reserved; i++)
            node->reserved = is_hashable(items[i]) ? 0 : NODE_UNHASHABLE;
    return pickle_push(m, node);
}

static reshard_status push_marked(struct pickle_machine *m, enum value_kind kind)
{
    struct value **items;
    size_t count;
    reshard_status status = pickle_pop_mark(m, &items, &count);
    return status ? status : push_container(m, kind, items, count);
}

static reshard_status push_tuple_of(struct pickle_machine *m, size_t count)
{
    if (!pickle_has(m, count))
        return pickle_fail_underflow(m);
    m->stack_count -= count;
    return push_container(m, VALUE_TUPLE, m->stack + m->stack_count, count);
}

reshard_status pickle_op_empty_tuple(struct pickle_machine *m)
{
    return push_container(m, VALUE_TUPLE, NULL, 0);
}

reshard_status pickle_op_empty_list(struct pickle_machine *m)
{
    return push_container(m, VALUE_LIST, NULL, 0);
}

reshard_status pickle_op_empty_dict(struct pickle_machine *m)
{
    return push_container(m, VALUE_DICT, NULL, 0);
}

reshard_status pickle_op_empty_set(struct pickle_machine *m)
{
    return push_container(m, VALUE_SET, NULL, 0);
}

reshard_status pickle_op_tuple1(struct pickle_machine *m)
{
    return push_tuple_of(m, 1);
}

reshard_status pickle_op_tuple2(struct pickle_machine *m)
{
    return push_tuple_of(m, 2);
}

reshard_status pickle_op_tuple3(struct pickle_machine *m)
{
    return push_tuple_of(m, 3);
}

reshard_status pickle_op_tuple(struct pickle_machine *m)
{
    return push_marked(m, VALUE_TUPLE);
}

reshard_status pickle_op_list(struct pickle_machine *m)
{
    return push_marked(m, VALUE_LIST);
}

static reshard_status pickle_build_check_pairs(struct pickle_machine *m, struct value *const *items, size_t count)
{
    if (count % 2)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "an odd number of keys and values: %zu", count);
    return pickle_build_check_members(m, items, count, 2, "a key");
}

reshard_status pickle_op_dict(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pickle_pop_mark(m, &items, &count);
    if (!status)
        status = pickle_build_check_pairs(m, items, count);
    return status ? status : push_container(m, VALUE_DICT, items, count);
}

reshard_status pickle_op_frozenset(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pickle_pop_mark(m, &items, &count);
    if (!status)
        status = pickle_build_check_members(m, items, count, 1, "a member of a set");
    return status ? status : push_container(m, VALUE_FROZENSET, items, count);
}

/* ---- adding to containers and objects: the items lie above the target, which stays ---- */

/* Pops the mark, and checks that a target lies below it. */
static reshard_status pop_marked_items(struct pickle_machine *m, struct value ***items, size_t *count)
{
    reshard_status status = pickle_pop_mark(m, items, count);
    if (!status && !pickle_has(m, 1))
        status = pickle_fail_underflow(m);
    return status;
}

static reshard_status add_list_items(struct pickle_machine *m, struct value *target, struct value *const *items, size_t count)
{
    if (pickle_build_is_object(target))
        return object_append(m, &target->object->list_items, &target->object->list_count, items, count);
    if (target->kind != VALUE_LIST)
        return fail_target(m, "items are appended to", target);
    reshard_status status = items_append(m, &target->list.items, target->list.count, items, count);
    if (!status)
        target->list.count += count;
    return status;
}

static reshard_status add_pairs(struct pickle_machine *m, struct value *target, struct value *const *items, size_t count)
{
    reshard_status status = pickle_build_check_pairs(m, items, count);
    if (status)
        return status;
    if (pickle_build_is_object(target))
        return object_append(m, &target->object->dict_items, &target->object->dict_count, items, count);
    if (target->kind != VALUE_DICT)
        return fail_target(m, "keys are set in", target);
    status = items_append(m, &target->list.items, target->list.count, items, count);
    if (!status)
        target->list.count += count;
    return status;
}

reshard_status pickle_op_append(struct pickle_machine *m)
{
    if (!pickle_has(m, 2))
        return pickle_fail_underflow(m);
    m->stack_count--;
    return add_list_items(m, pickle_top(m), m->stack + m->stack_count, 1);
}

reshard_status pickle_op_appends(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pop_marked_items(m, &items, &count);
    return status ? status : add_list_items(m, pickle_top(m), items, count);
}

reshard_status pickle_op_setitem(struct pickle_machine *m)
{
    if (!pickle_has(m, 3))
        return pickle_fail_underflow(m);
    m->stack_count -= 2;
    return add_pairs(m, pickle_top(m), m->stack + m->stack_count, 2);
}

reshard_status pickle_op_setitems(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pop_marked_items(m, &items, &count);
    return status ? status : add_pairs(m, pickle_top(m), items, count);
}

reshard_status pickle_op_additems(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pop_marked_items(m, &items, &count);
    if (!status)
        status = pickle_build_check_members(m, items, count, 1, "a member of a set");
    if (status)
        return status;
    struct value *target = pickle_top(m);
    if (pickle_build_is_object(target))
        return object_append(m, &target->object->set_items, &target->object->set_count, items, count);
    if (target->kind != VALUE_SET)
        return fail_target(m, "members are added to", target);
    status = items_append(m, &target->list.items, target->list.count, items, count);
    if (!status)
        target->list.count += count;
    return status;
}

/* ---- calls and objects ---- */

/* What may stand where something is called: a name, the result of a call, or a persistent object (old files keep classes so). */
static bool pickle_build_is_callable(const struct value *value)
{
    return value->kind == VALUE_GLOBAL || value->kind == VALUE_PERSID || pickle_build_is_object(value);
}

static reshard_status pickle_build_push_object(struct pickle_machine *m, enum value_kind kind, bool via_inst, struct value *callable,
                                               struct value *args, struct value *kwargs)
{
    if (!pickle_build_is_callable(callable))
        return fail_target(m, "a call of", callable);
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, kind, &status);
    if (!node)
        return status;
    node->object = arena_zalloc(&m->graph->arena, sizeof(*node->object));
    if (!node->object)
        return error_set_memory(m->err);
    node->via_inst = via_inst;
    node->object->callable = callable;
    node->object->args = args;
    node->object->kwargs = kwargs;
    return pickle_push(m, node);
}

reshard_status pickle_op_reduce(struct pickle_machine *m)
{
    if (!pickle_has(m, 2))
        return pickle_fail_underflow(m);
    struct value *args = m->stack[m->stack_count - 1], *callable = m->stack[m->stack_count - 2];
    if (args->kind != VALUE_TUPLE && args->kind != VALUE_LIST)
        return fail_target(m, "the arguments of a call are", args);
    m->stack_count -= 2;
    return pickle_build_push_object(m, VALUE_CALL, false, callable, args, NULL);
}

reshard_status pickle_op_newobj(struct pickle_machine *m)
{
    if (!pickle_has(m, 2))
        return pickle_fail_underflow(m);
    struct value *args = m->stack[m->stack_count - 1], *class = m->stack[m->stack_count - 2];
    if (args->kind != VALUE_TUPLE)
        return fail_target(m, "the arguments of a new object are", args);
    m->stack_count -= 2;
    return pickle_build_push_object(m, VALUE_NEW, false, class, args, NULL);
}

reshard_status pickle_op_newobj_ex(struct pickle_machine *m)
{
    if (!pickle_has(m, 3))
        return pickle_fail_underflow(m);
    struct value *kwargs = m->stack[m->stack_count - 1], *args = m->stack[m->stack_count - 2], *class = m->stack[m->stack_count - 3];
    if (args->kind != VALUE_TUPLE)
        return fail_target(m, "the arguments of a new object are", args);
    if (kwargs->kind != VALUE_DICT)
        return fail_target(m, "the named arguments of a new object are", kwargs);
    m->stack_count -= 3;
    return pickle_build_push_object(m, VALUE_NEW, false, class, args, kwargs);
}

/* INST: the class is named by two lines, its arguments lie above the mark. */
reshard_status pickle_op_inst(struct pickle_machine *m)
{
    reshard_status status = push_marked(m, VALUE_TUPLE);
    if (!status)
        status = pickle_op_global(m);
    if (status)
        return status;
    struct value *callable = m->stack[m->stack_count - 1], *args = m->stack[m->stack_count - 2];
    m->stack_count -= 2;
    return pickle_build_push_object(m, VALUE_CALL, true, callable, args, NULL);
}

/* OBJ: the class and its arguments lie above the mark. */
reshard_status pickle_op_obj(struct pickle_machine *m)
{
    struct value **items;
    size_t count;
    reshard_status status = pickle_pop_mark(m, &items, &count);
    if (status)
        return status;
    if (!count)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a new object without a class");
    struct value *class = items[0];
    status = push_container(m, VALUE_TUPLE, items + 1, count - 1);
    if (status)
        return status;
    m->stack_count--;
    return pickle_build_push_object(m, VALUE_NEW, true, class, m->stack[m->stack_count], NULL);
}

reshard_status pickle_op_build(struct pickle_machine *m)
{
    if (!pickle_has(m, 2))
        return pickle_fail_underflow(m);
    m->stack_count--;
    struct value *state = m->stack[m->stack_count], *target = pickle_top(m);
    if (!pickle_build_is_object(target))
        return fail_target(m, "a state is set on", target);
    return object_append(m, &target->object->states, &target->object->state_count, &state, 1);
}

reshard_status pickle_op_binpersid(struct pickle_machine *m)
{
    if (!pickle_has(m, 1))
        return pickle_fail_underflow(m);
    if (!m->takes_ids)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a persistent id, which Python reads in files of torch.save only");
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, VALUE_PERSID, &status);
    if (!node)
        return status;
    node->inner = pickle_top(m);
    m->stack[m->stack_count - 1] = node;
    return RESHARD_OK;
}

/* ---- messages ---- */

const char *pickle_describe(const struct value *value, char out[PICKLE_DESCRIBE_MAX])
{
    static const char *const names[] = {
        [VALUE_NONE] = "None", [VALUE_BOOL] = "a bool", [VALUE_INT] = "an int", [VALUE_BIGINT] = "an int beyond 64 bits",
        [VALUE_FLOAT] = "a float", [VALUE_STR] = "a str", [VALUE_BYTES] = "bytes", [VALUE_BYTEARRAY] = "a bytearray",
        [VALUE_LIST] = "a list", [VALUE_TUPLE] = "a tuple", [VALUE_SET] = "a set", [VALUE_FROZENSET] = "a frozenset",
        [VALUE_DICT] = "a dict", [VALUE_GLOBAL] = "the global", [VALUE_CALL] = "the result of a call of",
        [VALUE_NEW] = "an object of", [VALUE_PERSID] = "a persistent object",
    };
    const char *name = names[value->kind];
    const struct value *global = value->kind == VALUE_GLOBAL ? value : pickle_build_is_object(value) ? value->object->callable : NULL;
    if (!global)
        snprintf(out, PICKLE_DESCRIBE_MAX, "%s", name);
    else if (global->kind != VALUE_GLOBAL)
        snprintf(out, PICKLE_DESCRIBE_MAX, "%s something computed", name);
    else
        snprintf(out, PICKLE_DESCRIBE_MAX, "%s %.*s.%.*s", name, (int)(global->global.module.size > 100 ? 100 : global->global.module.size),
                 global->global.module.data, (int)(global->global.name.size > 100 ? 100 : global->global.name.size),
                 global->global.name.data);
    return out;
}
