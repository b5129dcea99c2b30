/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/params_target.h"

#include "formats/paddle/paddle.h"
#include "formats/paddle/params.h"

#include <stdlib.h>

#define PROTOCOL_DEFAULT 4

/* ---- what goes where ---- */

static reshard_status params_target_add_tensors(const struct layout_request *request, struct params_target *state, bool *is_nested,
                                                reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        struct path_part single;
        const struct path_part *parts;
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        size_t count = catalog_tensor_path(wanted, tensor, &single, &parts);
        *is_nested = *is_nested || count > 1 || parts[0].kind == PATH_INDEX;
        status = path_tree_add(&state->tree, parts, count, (struct path_tree_node){ .wanted = CATALOG_NONE, .tensor = i + 1 }, err);
    }
    return status;
}

/* Whether paddle.save made the object, and what its arrays are there. */
static void params_target_look_at_source(const struct layout_request *request, struct params_target *state, bool is_nested)
{
    const struct value *tree = request->source_catalog->tree;
    const struct source *source = request->source;
    bool is_sequence = tree && (tree->kind == VALUE_LIST || tree->kind == VALUE_TUPLE);
    state->is_own = tree && source && source->driver == &format_paddle && source->catalog == request->source_catalog;
    state->form_count = tree ? request->source_catalog->tree_graph->count : 0;
    state->has_no_table = is_nested || is_sequence;
    state->array = state->has_no_table ? PARAMS_PAIR : PARAMS_NAMED;
    if (!state->is_own)
        return;
    const struct paddle_archive *archive = &params_source_of(source)->files[0].archive;
    state->has_no_table = !archive->name_table;
    state->array = archive->name_table ? PARAMS_NAMED : PARAMS_BARE;
    for (uint32_t i = 0; i < archive->tensor_count && state->has_no_table; i++)
        if (archive->tensors[i].is_pair)
            state->array = PARAMS_PAIR;
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
    if (state->has_no_table && !state->is_own)
        status = paddle_save_check_load(item->value, graph_count, request->limits.budget, &fits, err);
    if (status || !fits)
        return status ? status
                      : target_note_dropped(target, NOTE_NO_PLACE, wanted->key, err,
                                            "bytes, a range, or a collection that paddle.load does not take in a nested object");
    size_t count = catalog_item_path(request->wanted, wanted, &single, &parts);
    struct path_tree_node leaf = { .wanted = index, .value = item->value, .graph_count = graph_count };
    return path_tree_add(&state->tree, parts, count, leaf, err);
}

/* ---- the framework's names ---- */

/* Keys of the table that are no texts stand apart from texts. */
static bool params_target_spell(const struct value *key, struct str text, struct buffer *out)
{
    if (!key || value_as_str(key, &text))
        return buffer_append_str(out, text) || !out->failed;
    return buffer_append_byte(out, 0) && value_to_repr(key, out, NULL);
}

static reshard_status params_target_read_names(struct params_target *state, reshard_error *err)
{
    const struct value *table = state->names;
    struct buffer spelled = { 0 };
    reshard_status status = RESHARD_OK;
    size_t count = table ? table->list.count : 0;
    state->name_of = calloc(count / 2 + 1, sizeof(*state->name_of));
    if (!state->name_of)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < count && !status; i += 2) {
        const struct value *key = table->list.items[i];
        struct str name;
        if (!value_as_str(table->list.items[i + 1], &name))
            continue;
        buffer_clear(&spelled);
        bool is_good = params_target_spell(key, (struct str){ 0 }, &spelled);
        uint32_t number = is_good ? name_map_intern(&state->name_index, buffer_str(&spelled), NULL) : NAME_NONE;
        if (number == NAME_NONE)
            status = error_set_memory(err);
        else
            state->name_of[number] = name;
    }
    buffer_release(&spelled);
    return status;
}

static bool params_target_find_name(const struct params_target *state, const struct path_tree_node *node, struct str key, struct str *out)
{
    struct buffer spelled = { 0 };
    struct value number = { .kind = VALUE_INT, .integer = node->part.index };
    const struct value *other = node->key ? node->key : node->part.kind == PATH_INT_KEY ? &number : NULL;
    uint32_t found = params_target_spell(other, key, &spelled) ? name_map_find(&state->name_index, buffer_str(&spelled)) : NAME_NONE;
    buffer_release(&spelled);
    if (found != NAME_NONE)
        *out = state->name_of[found];
    return found != NAME_NONE;
}

/* The name in a pair (name, array), or in the call that makes one; NULL: the node is something else. */
static const struct value *params_target_pair_name(const struct value *node)
{
    if (node->kind == VALUE_CALL && value_is_call(node, "builtins", "tuple") && node->object->args->list.count == 1)
        node = node->object->args->list.items[0];
    bool is_pair = node->kind == VALUE_TUPLE && node->list.count == 2 && node->list.items[0]->kind == VALUE_STR;
    return is_pair ? node->list.items[0] : NULL;
}

enum params_array params_array_of(const struct params_target *state, const struct path_tree_node *node, struct str *name)
{
    const struct catalog_tensor *tensor = &state->wanted->tensors[node->tensor - 1];
    const struct value *pair = state->is_own && node->form ? params_target_pair_name(node->form) : NULL;
    enum params_array array = tensor->rank > PARAMS_RANK_MAX ? PARAMS_BARE : state->array;
    *name = tensor->key;
    bool is_named = params_target_find_name(state, node, tensor->key, name);
    if (pair)
        *name = pair->text;
    if (!name->size)
        *name = tensor->key;
    if (!state->is_own || !node->form || node->is_form_open)
        return array;
    return pair ? PARAMS_PAIR : array == PARAMS_NAMED && is_named ? PARAMS_NAMED : PARAMS_BARE;
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

/* What is saved by itself: one tensor or value, and no container around it. */
static bool params_target_is_one(const struct layout_request *request, const struct params_target *state)
{
    const struct path_tree *tree = &state->tree;
    const struct path_tree_node *root = tree->node_count ? &tree->nodes[0] : NULL, *only;
    if (!root || root->child_count != 1)
        return false;
    only = &tree->nodes[root->first];
    if (!only->is_leaf || only->part.kind != PATH_KEY || only->part.key.size)
        return false;
    return request->source_catalog->tree ? root->form && !root->is_form_open : only->tensor > 0;
}

static reshard_status params_target_content(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct params_target *state = target->driver_state;
    const struct path_tree *tree = &state->tree;
    bool has_hole;
    reshard_status status = path_form_take(&state->tree, request->source_catalog, &request->limits, err);
    if (!status && tree->node_count)
        status = path_tree_finish(&state->tree, &has_hole, err);
    state->is_one = !status && params_target_is_one(request, state);
    if (state->is_one && !state->is_own)
        state->array = PARAMS_PAIR;
    if (!status)
        status = params_target_read_names(state, err);
    if (!status)
        status = params_make_steps(target, request->limits.budget, err);
    if (!status)
        status = params_target_protocol(request, &state->content.protocol, err);
    if (status)
        return status;
    state->content.is_one = state->is_one;
    state->content.count = state->step_count;
    state->content.member_count = tree->node_count ? tree->nodes[0].child_count : 0;
    state->content.root = &state->root;
    state->content.context = state;
    state->content.has_no_names = state->has_no_table;
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
    bool is_nested = false;
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    state->wanted = request->wanted;
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = params_target_add_tensors(request, state, &is_nested, err);
    params_target_look_at_source(request, state, is_nested);
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++)
        status = params_target_add_item(request, target, i, err);
    if (!status)
        status = params_target_content(request, target, err);
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
