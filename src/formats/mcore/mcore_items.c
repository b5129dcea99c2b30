/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the items of a source go in Megatron's flavours.
 *
 *   torch_dist                 ShardedObjects (KEY/shard_OFFSETS_SHAPE) stay what they are; the state of modules and of random number
 *                              generators becomes such; everything else is put together again as one dict, the common state
 *   torch_dcp, fsdp_dtensor    every leaf of a nested item is stored under its path, as torch flattens a state dict; ShardedObjects of the
 *                              RNG and of Transformer Engine belong to one layout and are left out
 */
#include "formats/mcore/mcore_items.h"

#include "formats/mcore/mcore.h"
#include "formats/mcore/mcore_target.h"
#include "parallel/group_meta.h"
#include "parallel/state_keys.h"
#include "parallel/training_args.h"

#include <inttypes.h>
#include <stdlib.h>

#define COMMON_FILE "common.pt"
#define COMMON_OBJECT "common_state/shard_0_1"
#define CHECKPOINT_VERSION 3.0
#define RNG_KEY "rng_state"
#define RERUN_KEY "rerun_state_machine_state"

/* ---- ShardedObjects ---- */

/* Decimal numbers between dots; how many there are, 0 if it is something else. */
static size_t mcore_items_count_numbers(struct str text)
{
    size_t count = 0, digits = 0;
    for (size_t i = 0; i <= text.size; i++) {
        if (i < text.size && text.data[i] >= '0' && text.data[i] <= '9') {
            digits++;
        } else if (digits > 0 && (i == text.size || text.data[i] == '.')) {
            count++;
            digits = 0;
        } else {
            return 0;
        }
    }
    return count;
}

bool mcore_object_key(struct str name, struct str *key)
{
    static const char prefix[] = "shard_";
    const size_t slash = str_folder(name).size;
    struct str rest = str_base_name(name);
    size_t middle;
    if (slash < 2 || !str_starts_with(rest, prefix))
        return false;
    rest = (struct str){ rest.data + sizeof(prefix) - 1, rest.size - (sizeof(prefix) - 1) };
    if (!str_find_char(rest, '_', &middle))
        return false;
    size_t offsets = mcore_items_count_numbers((struct str){ rest.data, middle });
    if (offsets == 0 || offsets != mcore_items_count_numbers((struct str){ rest.data + middle + 1, rest.size - middle - 1 }))
        return false;
    *key = (struct str){ name.data, slash - 1 };
    return true;
}

/* ---- the common state ---- */

static reshard_status add_to_tree(const struct layout_request *request, struct mcore_target *state, uint32_t item, reshard_error *err)
{
    struct path_part single;
    const struct path_part *parts;
    size_t count = catalog_item_path(request->wanted, &request->wanted->items[item], &single, &parts);
    return path_tree_add(&state->dcp.tree, parts, count, (struct path_tree_node){ .wanted = item }, err);
}

reshard_status mcore_add_value(struct mcore_target *state, const char *key, struct value *value, reshard_error *err)
{
    struct path_part part = { .kind = PATH_KEY, .key = str_of(key) };
    if (!value)
        return error_set_memory(err);
    struct path_tree_node leaf = { .wanted = CATALOG_NONE, .value = value };
    return path_tree_add(&state->dcp.tree, &part, 1, leaf, err);
}

/* The arguments of a run of one rank that saved weights alone. */
static struct value *make_arguments(struct value_graph *graph)
{
    static const struct {
        const char *name;
        bool is_size; /* a parallel size, of one; else a flag that is set */
    } members[] = {
        { "tensor_model_parallel_size", true },
        { "pipeline_model_parallel_size", true },
        { "no_save_optim", false },
        { "no_save_rng", false },
    };
    size_t count = sizeof(members) / sizeof(members[0]);
    struct value **items = arena_array(&graph->arena, 2 * count, sizeof(*items));
    if (!items)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        items[2 * i] = value_new_str(graph, str_of(members[i].name));
        items[2 * i + 1] = members[i].is_size ? value_new_int(graph, 1) : value_new(graph, VALUE_BOOL);
        if (!items[2 * i] || !items[2 * i + 1])
            return NULL;
        if (!members[i].is_size)
            items[2 * i + 1]->boolean = true;
    }
    return namespace_new(graph, value_new_list(graph, VALUE_DICT, items, 2 * count));
}

/* What Megatron's loader asks for, where the source is none of its checkpoints: weights alone, without optimizer and RNG state. */
static reshard_status add_minimal_state(const struct layout_request *request, struct mcore_target *state, reshard_error *err)
{
    static const char *const marks[] = { "checkpoint_version", "iteration", "content_metadata" };
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        if (path_tree_child(&state->dcp.tree, 0, str_of(marks[i])) != CATALOG_NONE)
            return RESHARD_OK;
    }
    if (mcore_is_from(request, &format_torch_dist))
        return RESHARD_OK;
    struct value *version = value_new(&state->dcp.extra, VALUE_FLOAT);
    if (version)
        version->real = CHECKPOINT_VERSION;
    bool has_arguments = path_tree_child(&state->dcp.tree, 0, STR("args")) != CATALOG_NONE;
    reshard_status status = has_arguments ? RESHARD_OK : mcore_add_value(state, "args", make_arguments(&state->dcp.extra), err);
    if (!status)
        status = mcore_add_value(state, "checkpoint_version", version, err);
    /* Megatron reads the iteration with the arguments, of a release too. */
    if (!status && (has_arguments || state->iteration >= 0))
        status = mcore_add_value(state, "iteration", value_new_int(&state->dcp.extra, state->iteration >= 0 ? state->iteration : 0), err);
    return status;
}

static reshard_status store_common(struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    bool has_hole;
    reshard_status status = path_tree_finish(&state->dcp.tree, &has_hole, err);
    if (!status && has_hole)
        status =
            target_note_changed(target, NOTE_KEYS, (struct str){ 0 }, err, "lists with members left out become dicts of their positions");
    /* All values of its own are in the one graph, which has grown. */
    for (uint32_t i = 0; i < state->dcp.tree.node_count; i++) {
        if (state->dcp.tree.nodes[i].value)
            state->dcp.tree.nodes[i].graph_count = state->dcp.extra.count;
    }
    struct dcp_stored stored = { .key = STR(COMMON_FILE), .wanted = CATALOG_NONE, .node = 0, .is_file = true };
    if (state->common_is_object)
        stored = (struct dcp_stored){ .key = STR(COMMON_OBJECT), .wanted = CATALOG_NONE, .node = 0, .is_in_list = true };
    if (!status)
        status = dcp_stored_add(&state->dcp, &stored, err);
    return status;
}

static reshard_status mcore_items_add_common(const struct layout_request *request, struct target *target, reshard_error *err)
{
    reshard_status status = add_minimal_state(request, mcore_target_state(target), err);
    if (!status)
        status = mcore_state_adapt(request, target, err);
    if (!status)
        status = mcore_release_adapt(request, target, err);
    return status ? status : store_common(target, err);
}

/* ---- all of them ---- */

/* Of a list of one value, which a ShardedObject is in torch_dist, the value alone. */
static reshard_status take_out_of_list(const struct layout_request *request, struct dcp_stored *stored, reshard_error *err)
{
    const struct catalog_item *item;
    reshard_status status = layout_item(request, stored->wanted, &item, err);
    if (status)
        return status;
    if (!item->value || !item->graph || item->value->kind != VALUE_LIST || item->value->list.count != 1)
        return RESHARD_OK;
    stored->value = item->value->list.items[0];
    stored->graph_count = item->graph->count;
    return RESHARD_OK;
}

static reshard_status add_as_it_is(const struct layout_request *request, struct mcore_target *state, uint32_t item, reshard_error *err)
{
    const struct catalog_item *wanted = &request->wanted->items[item];
    struct dcp_stored stored = { .key = wanted->key, .wanted = item, .node = CATALOG_NONE, .is_file = wanted->kind == ITEM_FILE };
    if (wanted->path != CATALOG_NONE) {
        stored.parts = request->wanted->paths + wanted->path;
        stored.part_count = wanted->path_count;
    }
    reshard_status status = state->flavour->items_are_files && !stored.is_file ? take_out_of_list(request, &stored, err) : RESHARD_OK;
    return status ? status : dcp_stored_add(&state->dcp, &stored, err);
}

/* Of the objects that every rank has, the first is kept, leaf by leaf. */
static reshard_status add_rerun_state(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err)
{
    const struct path_part parts[] = { { .kind = PATH_KEY, .key = STR("rerun_state_machine") },
                                       { .kind = PATH_KEY, .key = STR("sharded") } };
    struct str name = request->wanted->items[item].key;
    const char *at = memmem(name.data, name.size, "/shard_0", 8);
    bool is_first = at && (at[8] == '_' || (at[8] == '.' && at[9] == '0' && at[10] == '_'));
    if (is_first)
        return mcore_flatten_object(request, target, item, parts, 2, err);
    return target_note_dropped(target, NOTE_RANKS, name, err, "the first rank's is kept");
}

static reshard_status mcore_items_add_object(const struct layout_request *request, struct target *target, uint32_t item, struct str key,
                                 reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    bool is_of_ranks = str_ends_with(key, RNG_KEY) || str_is(key, RERUN_KEY);
    /* An RNG state is there for all data-parallel ranks, but where each has its own. */
    bool is_of_layout = str_is(key, RERUN_KEY) || state->source_sizes.spreads_rng;
    bool is_changed = is_of_ranks && (mcore_layout_changes(target) || (is_of_layout && mcore_world_changes(request, target)));
    bool is_kept = state->flavour->has_common ? !is_changed : !is_of_ranks && !mcore_is_module_state(key);
    state->lacks_rng = state->lacks_rng || (is_changed && state->flavour->has_common && str_ends_with(key, RNG_KEY));
    if (!state->flavour->has_common && str_is(key, RERUN_KEY))
        return add_rerun_state(request, target, item, err);
    if (state->flavour->has_common && mcore_optimizer_takes(target, key))
        return RESHARD_OK;
    if (is_kept)
        return add_as_it_is(request, state, item, err);
    return target_note_dropped(target, NOTE_LAYOUT, request->wanted->items[item].key, err,
                               "it belongs to the layout that it was saved under");
}

/* The RNG states of ranks are taken when the common state is made; of the rest torch_dist keeps the first rank's. */
static reshard_status add_rank_item(struct target *target, const struct catalog_item *item, reshard_error *err)
{
    bool is_rng = str_ends_with(item->key, "." RNG_KEY);
    if (is_rng && !mcore_layout_changes(target))
        return RESHARD_OK;
    return target_note_dropped(target, NOTE_RANKS, item->key, err, "%s",
                               is_rng ? "it belongs to the layout that it was saved under" : "torch_dist keeps the first rank's alone");
}

/* Whether the item is a leaf below KEY, which a flattened state dict has in place of one item. */
static bool is_leaf_of(struct str name, const char *key)
{
    return str_starts_with(name, key) && name.size > strlen(key) && name.data[strlen(key)] == '.';
}

/* What of a flattened source has no place of its own in the common state: the RNG states of ranks, and param_groups by parameter. */
static bool is_made_over(struct target *target, const struct catalog_item *wanted, reshard_status *status, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    bool is_rng = is_leaf_of(wanted->key, RNG_KEY);
    *status = RESHARD_OK;
    if (is_rng && !state->lacks_rng)
        *status = target_note_dropped(target, NOTE_LAYOUT, STR(RNG_KEY), err, "it belongs to the layout that it was saved under");
    state->lacks_rng = state->lacks_rng || is_rng;
    return is_rng || (state->has_group_meta && is_leaf_of(wanted->key, "optimizer"));
}

static reshard_status mcore_items_add_item(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    const struct catalog_item *wanted = &request->wanted->items[item];
    struct str key;
    if (wanted->kind == ITEM_FILE)
        return add_as_it_is(request, state, item, err);
    /* A zarr checkpoint's own metadata.json: the target has one of its own. */
    if (str_is(wanted->key, "metadata.json") && wanted->kind == ITEM_VALUE && mcore_is_from(request, &format_zarr))
        return RESHARD_OK;
    if (wanted->path == CATALOG_NONE && mcore_object_key(wanted->key, &key))
        return mcore_items_add_object(request, target, item, key, err);
    bool is_common = state->flavour->has_common;
    reshard_status status;
    if (is_common && is_made_over(target, wanted, &status, err))
        return status;
    if (is_common && mcore_is_rank_item(request->wanted, wanted))
        return add_rank_item(target, wanted, err);
    /* torch_dcp has one layout, whose modules ask for their state. */
    if (mcore_is_module_state(wanted->key) && mcore_is_from(request, target->driver) && !is_common)
        return add_as_it_is(request, state, item, err);
    if (mcore_is_module_state(wanted->key))
        return is_common ? RESHARD_OK
                         : target_note_dropped(target, NOTE_LAYOUT, wanted->key, err, "it belongs to the layout that it was saved under");
    if (is_common)
        return add_to_tree(request, state, item, err);
    return wanted->kind == ITEM_BLOB ? add_as_it_is(request, state, item, err) : mcore_flatten_item(request, target, item, err);
}

/* Megatron's loaders ask for the version, and ours tells its checkpoints by it. */
static reshard_status add_version(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    if (catalog_find_item(request->wanted, STR("checkpoint_version")) != CATALOG_NONE)
        return RESHARD_OK;
    struct value *version = value_new(&state->dcp.extra, VALUE_FLOAT);
    if (!version)
        return error_set_memory(err);
    version->real = CHECKPOINT_VERSION;
    struct dcp_stored stored = { .key = STR("checkpoint_version"), .wanted = CATALOG_NONE, .node = CATALOG_NONE, .value = version,
                                 .graph_count = state->dcp.extra.count };
    return dcp_stored_add(&state->dcp, &stored, err);
}

/* torch_dcp numbers its optimizer state by the order of parameters, and nothing else does. */
static reshard_status mcore_items_check_states(const struct layout_request *request, const struct target *target, reshard_error *err)
{
    if (!mcore_is_from(request, &format_torch_dcp_megatron) || target->driver == &format_torch_dcp_megatron)
        return RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++) {
        struct str key = request->wanted->tensors[i].key;
        if (!state_key_is_any(key))
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "tensor '%.*s': torch_dcp numbers optimizer state, which %s has by the names of parameters", STR_ARG(key),
                  mcore_target_state(target)->flavour->format);
        error_hint(err, "reshard_convert_options.exclude 'optimizer.*' converts the weights");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

/* Layers along an axis beside layers by number, of one stack: no run asks for both. */
static reshard_status note_numbered_layers(const struct layout_request *request, struct target *target, const char *stack,
                                           reshard_error *err)
{
    const struct catalog_tensor *first = NULL;
    uint32_t count = 0;
    bool has_axis = false;
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &request->wanted->tensors[i];
        if ((tensor->flags & TENSOR_HIDDEN) || !str_starts_with(tensor->key, stack) || tensor->key.size == strlen(stack))
            continue;
        char next = tensor->key.data[strlen(stack)];
        bool is_number = next >= '0' && next <= '9';
        has_axis |= !is_number;
        count += is_number;
        first = is_number && !first ? tensor : first;
    }
    if (!first || !has_axis)
        return RESHARD_OK;
    return target_note_changed(target, NOTE_NAMES, first->key, err,
                               "keeps the number of its layer, where other tensors have all layers along an axis; so do %" PRIu32
                               " in all, for which no run asks",
                               count);
}

reshard_status mcore_items_keep(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        const struct catalog_item *wanted = &request->wanted->items[i];
        struct str key;
        bool is_apart = wanted->kind == ITEM_FILE || (wanted->path == CATALOG_NONE && mcore_object_key(wanted->key, &key));
        status = is_apart ? add_as_it_is(request, state, i, err) : add_to_tree(request, state, i, err);
        if (status)
            error_prefix(err, "item '%.*s'", STR_ARG(wanted->key));
    }
    return status ? status : store_common(target, err);
}

reshard_status mcore_items_make(const struct layout_request *request, struct target *target, reshard_error *err)
{
    bool has_common = mcore_target_state(target)->flavour->has_common;
    mcore_optimizer_look(request, target);
    reshard_status status = mcore_items_check_states(request, target, err);
    if (!status && has_common)
        status = mcore_sizes_choose(request, target, err);
    if (!status && has_common)
        status = note_numbered_layers(request, target, "decoder.layers.", err);
    if (!status && has_common)
        status = note_numbered_layers(request, target, "encoder.layers.", err);
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        status = mcore_items_add_item(request, target, i, err);
        if (status)
            error_prefix(err, "item '%.*s'", STR_ARG(request->wanted->items[i].key));
    }
    if (!status && !has_common)
        status = add_version(request, target, err);
    if (!status && mcore_target_state(target)->flavour->has_group_meta)
        status = mcore_group_meta_add(request, target, err);
    if (status || !has_common)
        return status;
    status = mcore_module_states_add(request, target, err);
    return status ? status : mcore_items_add_common(request, target, err);
}
