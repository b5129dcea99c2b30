/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/params_target.h"

#include "base/array.h"
#include "formats/paddle/flex.h"
#include "formats/paddle/paddle.h"
#include "formats/paddle/params.h"

#include <inttypes.h>
#include <stdlib.h>

#define PROTOCOL_DEFAULT 4

/* ---- what goes where ---- */

static reshard_status params_target_add_tensors(const struct layout_request *request, struct target *target, bool *is_nested,
                                                reshard_error *err)
{
    struct params_target *state = target->driver_state;
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
        if (!status)
            status = target_read_as_path(target, i, parts, count, err);
    }
    return status;
}

/* Whether paddle.save made the object, and what its arrays are there. */
static void params_target_look_at_source(const struct layout_request *request, struct params_target *state, bool is_nested)
{
    const struct value *tree = request->source_catalog->tree;
    const struct source *source = request->source;
    bool is_sequence = tree && (tree->kind == VALUE_LIST || tree->kind == VALUE_TUPLE);
    state->is_own = tree && source && source->driver == &format_paddle && source->catalog == request->source_catalog &&
                    params_source_of(source)->file_count == 1;
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

/* Whether a path is that of a table of names: of the source's one file, or of one of its files. */
static bool params_target_is_table(const struct layout_request *request, const struct path_part *parts, size_t count)
{
    const struct source *source = request->source;
    bool has_files = source && source->driver == &format_paddle && params_source_of(source)->file_count > 1;
    const struct path_part *last = &parts[count - 1];
    return (count == 1 || (count == 2 && has_files && parts[0].kind == PATH_KEY)) && last->kind == PATH_KEY &&
           str_is(last->key, PADDLE_NAME_TABLE);
}

/* The names go where the tensors are. */
static reshard_status params_target_add_table(struct target *target, const struct catalog_item *item, const struct value *table,
                                              const struct path_part *parts, size_t count, reshard_error *err)
{
    struct params_target *state = target->driver_state;
    if (!ARRAY_ROOM(state->tables, state->table_count, state->table_capacity))
        return error_set_memory(err);
    state->tables[state->table_count++] = (struct params_names){ table, count == 2 ? parts[0].key : (struct str){ 0 } };
    return count == 1 ? RESHARD_OK
                      : target_note_changed(target, NOTE_KEYS, item->key, err, "its names stand beside their arrays");
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
    size_t count = catalog_item_path(request->wanted, wanted, &single, &parts);
    if (params_target_is_table(request, parts, count) && item->value && item->value->kind == VALUE_DICT)
        return params_target_add_table(target, wanted, item->value, parts, count, err);
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

static reshard_status params_target_note_name(struct params_target *state, struct str key, struct str name, reshard_error *err)
{
    uint32_t number = name_map_intern(&state->name_index, key, NULL);
    if (number == NAME_NONE || !ARRAY_ROOM(state->name_of, number, state->name_capacity))
        return error_set_memory(err);
    state->name_of[number] = name;
    return RESHARD_OK;
}

static reshard_status params_target_read_table(struct params_target *state, const struct params_names *names, reshard_error *err)
{
    const struct value *table = names->table;
    struct buffer spelled = { 0 };
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < table->list.count && !status; i += 2) {
        const struct value *key = table->list.items[i];
        struct str name, text;
        if (!value_as_str(table->list.items[i + 1], &name))
            continue;
        buffer_clear(&spelled);
        bool is_good = true;
        if (names->file.size)
            is_good = buffer_append_str(&spelled, names->file) && buffer_append_byte(&spelled, '.');
        if (is_good && names->file.size)
            is_good = value_as_str(key, &text) ? buffer_append_str(&spelled, text) || !text.size : value_to_repr(key, &spelled, NULL);
        else if (is_good)
            is_good = params_target_spell(key, (struct str){ 0 }, &spelled);
        status = is_good ? params_target_note_name(state, buffer_str(&spelled), name, err) : error_set_memory(err);
    }
    buffer_release(&spelled);
    return status;
}

static reshard_status params_target_read_names(struct params_target *state, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->table_count && !status; i++)
        status = params_target_read_table(state, &state->tables[i], err);
    return status;
}

/* The names that a Flex Checkpoint has in its files. */
static reshard_status params_target_keep_names(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct params_target *state = target->driver_state;
    struct static_names names = { 0 };
    reshard_status status = flex_called(request->source, &names, err);
    for (uint32_t t = 0; names.keys.count && t < request->wanted->tensor_count && !status; t++) {
        struct str key = request->wanted->tensors[t].key, name = flex_called_source(&names, request, t);
        if (name.size && name_map_find(&state->name_index, key) == NAME_NONE)
            status = arena_str(&target->catalog->arena, name, &name) ? params_target_note_name(state, key, name, err)
                                                                     : error_set_memory(err);
    }
    static_names_release(&names);
    return status;
}

/* *out stays as it is where no table has a name. */
static reshard_status params_target_find_name(const struct params_target *state, const struct path_tree_node *node, struct str key,
                                              struct str *out, bool *is_found, reshard_error *err)
{
    struct buffer spelled = { 0 };
    struct value number = { .kind = VALUE_INT, .integer = node->part.index };
    const struct value *other = node->key ? node->key : node->part.kind == PATH_INT_KEY ? &number : NULL;
    other = state->table_count && state->tables[0].file.size ? NULL : other;
    bool is_good = !other || params_target_spell(other, key, &spelled);
    uint32_t found = is_good ? name_map_find(&state->name_index, other ? buffer_str(&spelled) : key) : NAME_NONE;
    buffer_release(&spelled);
    *is_found = found != NAME_NONE;
    if (*is_found)
        *out = state->name_of[found];
    return is_good ? RESHARD_OK : error_set_memory(err);
}

/* The name in a pair (name, array), or in the call that makes one; NULL: the node is something else. */
static const struct value *params_target_pair_name(const struct value *node)
{
    if (node->kind == VALUE_CALL && value_is_call(node, "builtins", "tuple") && node->object->args->list.count == 1)
        node = node->object->args->list.items[0];
    bool is_pair = node->kind == VALUE_TUPLE && node->list.count == 2 && node->list.items[0]->kind == VALUE_STR;
    return is_pair ? node->list.items[0] : NULL;
}

reshard_status params_array_of(const struct params_target *state, const struct path_tree_node *node, enum params_array *out,
                               struct str *name, reshard_error *err)
{
    const struct catalog_tensor *tensor = &state->wanted->tensors[node->tensor - 1];
    const struct value *pair = state->is_own && node->form ? params_target_pair_name(node->form) : NULL;
    enum params_array array = tensor->rank > PARAMS_RANK_MAX ? PARAMS_BARE : state->array;
    *name = tensor->key;
    bool is_named;
    reshard_status status = params_target_find_name(state, node, tensor->key, name, &is_named, err);
    if (pair)
        *name = pair->text;
    if (!name->size)
        *name = tensor->key;
    *out = array;
    if (state->is_own && node->form && !node->is_form_open)
        *out = pair ? PARAMS_PAIR : array == PARAMS_NAMED && is_named ? PARAMS_NAMED : PARAMS_BARE;
    return status;
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
        status = params_target_keep_names(request, target, err);
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
    uint64_t *offsets = array_zeroed(state->step_count, sizeof(*offsets)), bytes;
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

/* What comes out is one file, whatever the reference is. */
static reshard_status params_target_note(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const uint32_t files = request->like ? params_source_of(request->like)->file_count : 1; /* of this format, conversion.c sees to it */
    return files > 1 ? target_note_changed(target, NOTE_LAYOUT, (struct str){ 0 }, err,
                                           "files: the reference is %" PRIu32 " of ranks, this is one", files)
                     : RESHARD_OK;
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
        status = params_target_note(request, target, err);
    if (!status)
        status = params_target_add_tensors(request, target, &is_nested, err);
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
    free(state->tables);
    free(state->name_of);
    free(state->steps);
    free(state);
    target->driver_state = NULL;
}
