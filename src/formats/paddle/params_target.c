/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/params_target.h"

#include "base/array.h"
#include "formats/paddle/paddle.h"
#include "formats/paddle/params.h"

#include <stdlib.h>

#define PROTOCOL_DEFAULT 4

/* ---- what goes where ---- */

/* float8 would come back as int8. */
static reshard_status params_target_check_type(const struct catalog_tensor *tensor, reshard_error *err)
{
    bool is_lost = tensor->dtype == DTYPE_F8_E4M3 || tensor->dtype == DTYPE_F8_E5M2;
    if (!is_lost && paddle_save_can_hold(tensor->dtype))
        return RESHARD_OK;
    reshard_status status = error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': paddle.save has no %s", STR_ARG(tensor->key),
                                      dtype_info(tensor->dtype)->name);
    error_hint(err, "%s", is_lost ? "--to paddle-flex keeps float8; --dtype 'GLOB=bf16' casts"
                                  : "Paddle's integers are U8, I8, I16, I32 and I64: cast with --dtype 'GLOB=i64'");
    return status;
}

static reshard_status params_target_add_tensors(const struct layout_request *request, struct params_target *state, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        struct path_part single;
        const struct path_part *parts;
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        status = params_target_check_type(tensor, err);
        if (status)
            return status;
        size_t count = catalog_tensor_path(wanted, tensor, &single, &parts);
        state->is_nested = state->is_nested || count > 1 || parts[0].kind != PATH_KEY;
        status = path_tree_add(&state->tree, parts, count, (struct path_tree_node){ .wanted = CATALOG_NONE, .tensor = i + 1 }, err);
    }
    return status;
}

static reshard_status params_target_drop(struct target *target, struct str key, struct str stranger, reshard_error *err)
{
    if (stranger.size)
        return target_note_dropped(target, NOTE_NO_PLACE, key, err, "an object of %.*s, which paddle.load does not make",
                                   STR_ARG(stranger));
    return target_note_dropped(target, NOTE_NO_PLACE, key, err, "a .pdparams file has no place for it");
}

static reshard_status params_target_add_item(const struct layout_request *request, struct target *target, uint32_t index,
                                             reshard_error *err)
{
    struct params_target *state = target->driver_state;
    const struct catalog_item *wanted = &request->wanted->items[index], *item;
    struct path_part single;
    const struct path_part *parts;
    struct str stranger = { 0 };
    bool fits = false;
    if (wanted->kind == ITEM_FILE || wanted->kind == ITEM_RAW)
        return params_target_drop(target, wanted->key, stranger, err);
    reshard_status status = layout_item(request, index, &item, err);
    if (status)
        return status;
    if (str_is(wanted->key, PADDLE_NAME_TABLE) && item->value && item->value->kind == VALUE_DICT) {
        state->names = item->value;
        return RESHARD_OK;
    }
    uint32_t graph_count = item->graph ? item->graph->count : 0;
    if (item->value)
        status = paddle_save_check_value(item->value, graph_count, request->limits.budget, &target->catalog->arena, &fits, &stranger, err);
    if (status || !fits)
        return status ? status : params_target_drop(target, wanted->key, stranger, err);
    size_t count = catalog_item_path(request->wanted, wanted, &single, &parts);
    struct path_tree_node leaf = { .wanted = index, .value = item->value, .graph_count = graph_count };
    return path_tree_add(&state->tree, parts, count, leaf, err);
}

/* ---- the framework's names ---- */

static reshard_status params_target_read_names(struct params_target *state, reshard_error *err)
{
    const struct value *table = state->names;
    size_t count = table ? table->list.count : 0;
    state->name_of = calloc(count / 2 + 1, sizeof(*state->name_of));
    if (!state->name_of)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < count; i += 2) {
        struct str key, name;
        if (!value_as_str(table->list.items[i], &key) || !value_as_str(table->list.items[i + 1], &name))
            continue;
        uint32_t number = name_map_intern(&state->name_index, key, NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        state->name_of[number] = name;
    }
    return RESHARD_OK;
}

static struct str params_target_name(const struct params_target *state, struct str key)
{
    uint32_t number = name_map_find(&state->name_index, key);
    return number == NAME_NONE ? (struct str){ 0 } : state->name_of[number];
}

/* ---- members in order ---- */

static bool params_target_add_step(struct params_target *state, uint32_t node, enum paddle_step step, bool has_key)
{
    if (!ARRAY_ROOM(state->steps, state->step_count, state->step_capacity))
        return false;
    state->steps[state->step_count++] = (struct params_step){ node, step, has_key };
    return true;
}

/* Walks the tree without recursion: a node's next sibling comes when its container has been closed. */
static reshard_status params_target_make_steps(struct params_target *state, reshard_error *err)
{
    const struct path_tree *tree = &state->tree;
    size_t depth = 0;
    bool good = true;
    if (!tree->node_count)
        return RESHARD_OK;
    uint32_t *stack = malloc(((size_t)tree->node_count + 1) * sizeof(*stack));
    if (!stack)
        return error_set_memory(err);
    uint32_t node = tree->nodes[0].first;
    while (good && (node != CATALOG_NONE || depth)) {
        if (node == CATALOG_NONE) {
            node = stack[--depth];
            good = params_target_add_step(state, node, PADDLE_CLOSE, false);
            node = tree->nodes[node].next;
            continue;
        }
        const struct path_tree_node *at = &tree->nodes[node];
        bool has_key = !depth || !tree->nodes[stack[depth - 1]].is_list;
        good = params_target_add_step(state, node, at->is_leaf ? PADDLE_LEAF : at->is_list ? PADDLE_OPEN_LIST : PADDLE_OPEN_DICT, has_key);
        if (!at->is_leaf)
            stack[depth++] = node;
        node = at->is_leaf ? at->next : at->first;
    }
    free(stack);
    return good ? RESHARD_OK : error_set_memory(err);
}

static reshard_status params_target_member(void *context, uint64_t index, struct paddle_member *out, reshard_error *err)
{
    const struct params_target *state = context;
    const struct params_step *step = &state->steps[index];
    const struct path_tree_node *node = &state->tree.nodes[step->node];
    (void)err;
    *out = (struct paddle_member){ .step = step->step, .key_kind = PADDLE_NO_KEY, .member_count = node->child_count };
    if (step->has_key) {
        out->key_kind = node->part.kind == PATH_KEY ? PADDLE_KEY_TEXT : PADDLE_KEY_NUMBER;
        out->key = node->part.key;
        out->key_number = node->part.index;
    }
    if (step->step != PADDLE_LEAF)
        return RESHARD_OK;
    if (!node->tensor) {
        out->value = node->value;
        out->graph_count = node->graph_count;
        return RESHARD_OK;
    }
    const struct catalog_tensor *tensor = &state->wanted->tensors[node->tensor - 1];
    out->dtype = tensor->dtype;
    out->rank = tensor->rank;
    out->shape = catalog_vector_at(state->wanted, tensor->shape);
    out->name = params_target_name(state, tensor->key);
    if (!out->name.size)
        out->name = tensor->key;
    out->is_bare = tensor->rank > PARAMS_RANK_MAX;
    out->is_pair = state->is_nested && !out->is_bare;
    return RESHARD_OK;
}

static reshard_status params_target_protocol(const struct layout_request *request, int *out, reshard_error *err)
{
    const char *text = layout_option(request, "protocol");
    const struct source *like = request->like;
    *out = PROTOCOL_DEFAULT;
    if (!text && like && like->driver == &format_paddle && params_source_of(like)->file_count &&
        params_source_of(like)->files[0].archive.protocol == 5)
        *out = 5;
    if (text && strcmp(text, "4") != 0 && strcmp(text, "5") != 0)
        return error_set(err, RESHARD_ERR_USAGE, "protocol=%s: 4 and 5 are written", text);
    if (text)
        *out = text[0] - '0';
    return RESHARD_OK;
}

/* One tensor without a name, and nothing else, is what paddle.save makes of a tensor that is saved by itself. */
static bool params_target_is_one_tensor(const struct params_target *state)
{
    return state->step_count == 1 && state->steps[0].step == PADDLE_LEAF && state->tree.nodes[state->steps[0].node].tensor &&
           !state->tree.nodes[state->steps[0].node].part.key.size;
}

static reshard_status params_target_content(const struct layout_request *request, struct params_target *state, reshard_error *err)
{
    bool has_hole;
    reshard_status status = state->tree.node_count ? path_tree_finish(&state->tree, &has_hole, err) : RESHARD_OK;
    if (!status)
        status = params_target_make_steps(state, err);
    if (!status)
        status = params_target_read_names(state, err);
    if (!status)
        status = params_target_protocol(request, &state->content.protocol, err);
    if (status)
        return status;
    state->is_nested = state->is_nested || params_target_is_one_tensor(state);
    state->content.is_one_array = params_target_is_one_tensor(state);
    state->content.count = state->step_count;
    state->content.member_count = state->tree.node_count ? state->tree.nodes[0].child_count : 0;
    state->content.member = params_target_member;
    state->content.context = state;
    state->content.has_no_names = state->is_nested;
    state->content.work = request->limits.budget;
    return RESHARD_OK;
}

static reshard_status params_target_add_chunks(struct target *target, const struct params_target *state, reshard_error *err)
{
    uint64_t *offsets = calloc((size_t)state->step_count + 1, sizeof(*offsets)), bytes;
    uint32_t object; /* without a name: the target is this one file */
    reshard_status status = offsets ? paddle_save_plan(&state->content, offsets, &bytes, err) : error_set_memory(err);
    if (!status)
        status = catalog_add_object(target->catalog, STR(""), bytes, &object, err);
    for (uint32_t i = 0; i < state->step_count && !status; i++) {
        uint32_t tensor = state->steps[i].step == PADDLE_LEAF ? state->tree.nodes[state->steps[i].node].tensor : 0;
        uint64_t size = tensor ? catalog_tensor_bytes(target->catalog, &target->catalog->tensors[tensor - 1]) : 0;
        if (size)
            status = catalog_add_chunk(target->catalog, tensor - 1, NULL, NULL, object, offsets[i], size, NULL, err);
    }
    free(offsets);
    return status;
}

reshard_status params_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct params_target *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    state->wanted = request->wanted;
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = params_target_add_tensors(request, state, err);
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++)
        status = params_target_add_item(request, target, i, err);
    if (!status)
        status = params_target_content(request, state, err);
    return status ? status : params_target_add_chunks(target, state, err);
}

static reshard_status params_target_write(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    return store_write_at(context, offset, bytes, size, err);
}

/* There is but one object. */
reshard_status params_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct params_target *state = job->target->driver_state;
    return paddle_save_write(&state->content, params_target_write, job->objects[object], err);
}

void params_close_target(struct target *target)
{
    struct params_target *state = target->driver_state;
    if (!state)
        return;
    path_tree_release(&state->tree);
    name_map_release(&state->name_index);
    free(state->name_of);
    free(state->steps);
    free(state);
    target->driver_state = NULL;
}
