/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a .pdparams to be written, one after the other, out of the tree of what there is. */
#include "formats/paddle/params_target.h"

#include "base/array.h"
#include "formats/paddle/params.h"

#include <stdlib.h>

/* A walk over the tree: the containers that are open, the outermost first. */
struct stepping {
    struct target *target;
    struct params_target *state;
    struct work *work;
    uint32_t *stack;
    size_t depth;
};

/* ---- what cannot stay as it was ---- */

/* The name of a member of the innermost container, as catalogs spell it. */
static bool steps_path(const struct stepping *stepping, uint32_t node, struct buffer *out)
{
    const struct path_tree_node *nodes = stepping->state->tree.nodes;
    struct path_part *parts = array_zeroed(stepping->depth + 1, sizeof(*parts));
    size_t count = 0;
    for (size_t i = 0; parts && i < stepping->depth; i++)
        if (stepping->stack[i])
            parts[count++] = nodes[stepping->stack[i]].part;
    if (parts && node)
        parts[count++] = nodes[node].part;
    bool good = parts && path_join(parts, count, out);
    free(parts);
    return good;
}

static reshard_status steps_note(const struct stepping *stepping, uint32_t node, enum note_kind kind, const char *reason,
                                 reshard_error *err)
{
    struct buffer key = { 0 };
    bool is_good = steps_path(stepping, node, &key);
    reshard_status status = RESHARD_ERR_MEMORY;
    if (is_good)
        status = target_note_changed(stepping->target, kind, buffer_str(&key), err, "%s", reason);
    else
        error_set_memory(err);
    buffer_release(&key);
    return status;
}

/* Whether a value of the source's object can be written. */
static reshard_status steps_check(const struct stepping *stepping, const struct value *value, bool *fits, reshard_error *err)
{
    struct str stranger;
    *fits = value->kind < VALUE_LIST;
    return *fits ? RESHARD_OK
                 : paddle_save_check_value(value, stepping->state->form_count, stepping->work, &stepping->target->catalog->arena, fits,
                                           &stranger, err);
}

/* A dict-like object: its class, what the class takes, and attributes stay as far as paddle.load makes them. */
static reshard_status steps_look_at_object(struct stepping *stepping, uint32_t node, struct params_step *step, reshard_error *err)
{
    const struct value *form = stepping->state->tree.nodes[node].form, *argument = paddle_save_class_argument(form);
    bool is_ordered = value_is_call(form, "collections", "OrderedDict"), fits = true;
    bool is_refused = stepping->state->has_no_table && !stepping->state->is_own && !is_ordered;
    reshard_status status = argument ? steps_check(stepping, argument, &fits, err) : RESHARD_OK;
    if (status)
        return status;
    if (is_refused || !fits) {
        step->step = PADDLE_OPEN_DICT;
        return steps_note(stepping, node, NOTE_CLASS,
                          is_refused ? "becomes a dict: paddle.load takes no other class in a nested object"
                                     : "becomes a dict: its class is made with something that paddle.load does not make",
                          err);
    }
    for (uint32_t i = 0; i < form->object->state_count && !status && fits; i++)
        status = steps_check(stepping, form->object->states[i], &fits, err);
    step->is_stateless = !fits;
    if (status || fits)
        return status;
    return steps_note(stepping, node, NOTE_CLASS, "loses its attributes, which paddle.load does not make", err);
}

static reshard_status steps_look_at_container(struct stepping *stepping, uint32_t number, struct params_step *step, reshard_error *err)
{
    static const enum paddle_step steps[] = { [FORM_DICT] = PADDLE_OPEN_DICT, [FORM_LIST] = PADDLE_OPEN_LIST,
                                              [FORM_TUPLE] = PADDLE_OPEN_TUPLE, [FORM_OBJECT] = PADDLE_OPEN_OBJECT };
    const struct path_tree_node *node = &stepping->state->tree.nodes[number];
    step->step = steps[path_form_of(node)];
    if (step->step == PADDLE_OPEN_OBJECT)
        return steps_look_at_object(stepping, number, step, err);
    if (!path_form_is_broken(&stepping->state->tree, node))
        return RESHARD_OK;
    return steps_note(stepping, number, NOTE_KEYS,
                      "a list of which members are left out: it becomes a dict, the positions of the others are its keys", err);
}

static reshard_status steps_look_at_key(struct stepping *stepping, uint32_t number, struct params_step *step, reshard_error *err)
{
    const struct value *key = stepping->state->tree.nodes[number].key;
    bool fits = true;
    reshard_status status = key && step->has_key ? steps_check(stepping, key, &fits, err) : RESHARD_OK;
    step->is_plain_key = !fits;
    if (status || fits)
        return status;
    return steps_note(stepping, number, NOTE_KEYS, "a key that paddle.load does not make becomes its text", err);
}

/* float8 would come back as int8; NumPy has more types than Paddle. */
static reshard_status steps_check_type(const struct params_target *state, const struct path_tree_node *node, reshard_error *err)
{
    const struct catalog_tensor *tensor = &state->wanted->tensors[node->tensor - 1];
    struct str name;
    bool is_lost = tensor->dtype == DTYPE_F8_E4M3 || tensor->dtype == DTYPE_F8_E5M2;
    bool means_bfloat16 = tensor->dtype == DTYPE_U16 && state->array == PARAMS_BARE; /* nothing would leave it to NumPy */
    enum params_array array;
    reshard_status status = params_array_of(state, node, &array, &name, err);
    if (status)
        return status;
    bool is_bare = array == PARAMS_BARE && !means_bfloat16;
    if (!is_lost && (is_bare ? paddle_save_can_hold_bare(tensor->dtype) : paddle_save_can_hold(tensor->dtype)))
        return RESHARD_OK;
    status = error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': paddle.save has no %s", STR_ARG(tensor->key),
                       dtype_info(tensor->dtype)->name);
    error_hint(err, "%s", is_lost ? "reshard_convert_options.to paddle-flex keeps float8; reshard_convert_options.dtypes 'GLOB=bf16' casts"
                                  : "Paddle's integers are U8, I8, I16, I32 and I64: reshard_convert_options.dtypes 'GLOB=i64' casts");
    return status;
}

/* ---- steps ---- */

static reshard_status steps_add(struct stepping *stepping, const struct params_step *step, reshard_error *err)
{
    struct params_target *state = stepping->state;
    if (!ARRAY_ROOM(state->steps, state->step_count, state->step_capacity))
        return error_set_memory(err);
    state->steps[state->step_count++] = *step;
    return RESHARD_OK;
}

/* Adds a node, and opens it if it is a container. */
static reshard_status steps_enter(struct stepping *stepping, uint32_t number, reshard_error *err)
{
    const struct params_target *state = stepping->state;
    const struct path_tree_node *node = &state->tree.nodes[number];
    uint32_t parent = stepping->stack[stepping->depth - 1];
    struct params_step step = { .node = number, .step = PADDLE_LEAF, .has_key = !state->is_one && !state->tree.nodes[parent].is_list };
    reshard_status status = steps_look_at_key(stepping, number, &step, err);
    if (!status && node->is_leaf && node->tensor)
        status = steps_check_type(state, node, err);
    if (!status && !node->is_leaf)
        status = steps_look_at_container(stepping, number, &step, err);
    if (!status)
        status = steps_add(stepping, &step, err);
    if (!node->is_leaf)
        stepping->stack[stepping->depth++] = number;
    return status;
}

/* Walks the tree without recursion: a node's next sibling comes when its container has been closed. */
static reshard_status steps_walk(struct stepping *stepping, reshard_error *err)
{
    const struct path_tree_node *nodes = stepping->state->tree.nodes;
    uint32_t node = nodes[0].first;
    reshard_status status = RESHARD_OK;
    while (!status && (node != CATALOG_NONE || stepping->depth > 1)) {
        if (node == CATALOG_NONE) {
            node = stepping->stack[--stepping->depth];
            status = steps_add(stepping, &(struct params_step){ .node = node, .step = PADDLE_CLOSE }, err);
            node = nodes[node].next;
            continue;
        }
        status = steps_enter(stepping, node, err);
        node = nodes[node].is_leaf ? nodes[node].next : nodes[node].first;
    }
    return status;
}

static reshard_status params_step_member(void *context, uint64_t index, struct paddle_member *out, reshard_error *err)
{
    const struct params_target *state = context;
    const struct params_step *step = &state->steps[index];
    const struct path_tree_node *node = &state->tree.nodes[step->node];
    *out = (struct paddle_member){ .step = step->step, .key_kind = PADDLE_NO_KEY, .member_count = node->child_count,
                                   .is_stateless = step->is_stateless, .graph_count = state->form_count };
    if (step->has_key) {
        bool is_value = node->key && !step->is_plain_key;
        out->key_kind = is_value ? PADDLE_KEY_VALUE : node->part.kind == PATH_KEY ? PADDLE_KEY_TEXT : PADDLE_KEY_NUMBER;
        out->key = node->part.key;
        out->key_number = node->part.index;
        out->key_value = node->key;
    }
    if (step->step == PADDLE_OPEN_OBJECT)
        out->value = node->form;
    if (step->step != PADDLE_LEAF)
        return RESHARD_OK;
    if (!node->tensor) {
        out->value = node->value;
        out->value_graph_count = node->graph_count;
        return RESHARD_OK;
    }
    const struct catalog_tensor *tensor = &state->wanted->tensors[node->tensor - 1];
    enum params_array array;
    reshard_status status = params_array_of(state, node, &array, &out->name, err);
    out->dtype = tensor->dtype;
    out->rank = tensor->rank;
    out->shape = catalog_vector_at(state->wanted, tensor->shape);
    out->is_bare = array == PARAMS_BARE;
    out->is_pair = array == PARAMS_PAIR;
    return status;
}

reshard_status params_make_steps(struct target *target, struct work *work, reshard_error *err)
{
    struct params_target *state = target->driver_state;
    struct stepping stepping = { .target = target, .state = state, .work = work };
    struct params_step root = { .step = PADDLE_OPEN_DICT };
    state->content.member = params_step_member;
    state->root = (struct paddle_member){ .step = PADDLE_OPEN_DICT };
    if (!state->tree.node_count)
        return RESHARD_OK;
    stepping.stack = array_new(state->tree.node_count, sizeof(*stepping.stack));
    if (!stepping.stack)
        return error_set_memory(err);
    reshard_status status = state->is_one ? RESHARD_OK : steps_look_at_container(&stepping, 0, &root, err);
    state->root = (struct paddle_member){ .step = root.step, .value = root.step == PADDLE_OPEN_OBJECT ? state->tree.nodes[0].form : NULL,
                                          .graph_count = state->form_count, .is_stateless = root.is_stateless };
    stepping.stack[stepping.depth++] = 0;
    if (!status)
        status = steps_walk(&stepping, err);
    free(stepping.stack);
    return status;
}
