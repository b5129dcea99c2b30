/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the common state says about the optimizer. A run builds its request from it: content_metadata says in which of Megatron's layouts
 * the state is stored. Tensors for each parameter, with the distributed optimizer's own copies among them (optimizer.state.param.…), are
 * the layout fully_reshardable; several optimizers are a dict by number, where legacy files have a list.
 */
#include "formats/mcore/mcore_items.h"

#include "base/array.h"
#include "formats/mcore/mcore.h"
#include "formats/mcore/mcore_buckets.h"
#include "formats/shared/step_number.h"
#include "formats/shared/value_edit.h"
#include "parallel/group_meta.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"

#define OPTIMIZER_KEY "optimizer"
#define CONTENT_KEY "content_metadata"

/* What the tensors show. */
struct found_state {
    bool has_copies, has_buckets;
};

static struct found_state mcore_optimizer_look_here(const struct catalog *wanted, enum mcore_masters masters)
{
    struct found_state found = { 0 };
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct state_key key;
        if (!state_key_read(wanted->tensors[i].key, &key))
            continue;
        bool is_own = masters == MCORE_MASTERS_KEPT ? str_is(key.state, STATE_MASTER) : masters == MCORE_MASTERS_PARAM;
        found.has_copies = found.has_copies || (key.kind == STATE_KEY_PARAMETER && key.is_master && is_own);
        found.has_buckets = found.has_buckets || key.group >= 0;
    }
    return found;
}

/* Whether it lies in buffers, and its groups in objects. */
static bool is_buffered(const struct mcore_target *state)
{
    return state->optimizer_layout == MCORE_BUCKETS || state->optimizer_layout == MCORE_GATHERED;
}

void mcore_optimizer_look(const struct layout_request *request, struct target *target)
{
    struct found_state found = mcore_optimizer_look_here(request->wanted, mcore_target_state(target)->masters);
    mcore_target_state(target)->has_parameter_state = (found.has_copies || is_buffered(mcore_target_state(target))) && !found.has_buckets;
    for (uint32_t i = 0; i < request->wanted->item_count && mcore_target_state(target)->flavour->has_common; i++) {
        if (state_key_is(request->wanted->items[i].key, STATE_KEY_GROUP_META))
            mcore_target_state(target)->has_group_meta = true;
    }
}

/* A copy, in the target's own graph, of the value that a leaf of the tree's root has; *out NULL if there is none. */
static reshard_status mcore_optimizer_copy_leaf(const struct layout_request *request, struct mcore_target *state, const char *key,
                                                uint32_t *node, struct value **out, reshard_error *err)
{
    *out = NULL;
    *node = path_tree_child(&state->dcp.tree, 0, str_of(key));
    if (*node == CATALOG_NONE || !state->dcp.tree.nodes[*node].is_leaf || state->dcp.tree.nodes[*node].wanted == CATALOG_NONE)
        return RESHARD_OK;
    const struct catalog_item *loaded;
    reshard_status status = layout_item(request, state->dcp.tree.nodes[*node].wanted, &loaded, err);
    if (status || !loaded->value || !loaded->graph)
        return status;
    *out = value_copy(&state->dcp.extra, loaded->value, loaded->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

/* Several optimizers: a list becomes a dict of their numbers. */
static bool number_members(struct value_graph *graph, struct value *list)
{
    size_t count = list->list.count;
    struct value **items = arena_array(&graph->arena, 2 * count, sizeof(*items));
    for (size_t i = 0; items && i < count; i++) {
        items[2 * i] = value_new_int(graph, (int64_t)i);
        items[2 * i + 1] = list->list.items[i];
        if (!items[2 * i])
            return false;
    }
    if (!items)
        return false;
    list->kind = VALUE_DICT;
    list->list.items = items;
    list->list.count = 2 * count;
    return true;
}

static bool mcore_optimizer_is_numbered(const struct value *dict)
{
    return dict->list.count >= 2 && dict->list.items[0]->kind == VALUE_INT;
}

static const char *layout_of(const struct mcore_target *state)
{
    return mcore_optimizer_layout_name(state->optimizer_layout);
}

static void set_layout(struct mcore_target *state, struct value *optimizer, bool *failed)
{
    struct value_edit editing = { .graph = &state->dcp.extra, .members = optimizer };
    if (optimizer->kind == VALUE_DICT)
        value_edit_text(&editing, "param_state_sharding_type", layout_of(state));
    *failed = *failed || editing.failed;
}

/* ---- groups that lie in objects ---- */

/* optimizer.distributed.dp_group_idx_0.optimizer, with chained_1. in front where there are several: which optimizer, and what of it. */
struct object_part {
    uint64_t number;
    struct str member; /* "optimizer" or "grad_scaler" */
};

static bool read_object_key(struct str key, struct object_part *out)
{
    struct state_key read;
    bool is_one = state_key_read(key, &read) && (read.kind == STATE_KEY_GROUPS || read.kind == STATE_KEY_SCALER) && !read.shard.size;
    *out = (struct object_part){ 0 };
    if (is_one) {
        out->number = (uint64_t)(read.chain >= 0 ? read.chain : read.group);
        out->member = read.kind == STATE_KEY_GROUPS ? STR("optimizer") : STR("grad_scaler");
    }
    return is_one;
}

bool mcore_optimizer_takes(const struct target *target, struct str key)
{
    struct object_part part;
    return mcore_target_state(target)->has_parameter_state && read_object_key(key, &part);
}

/* The dict of the numbered optimizer: the only one, or the member of that number. */
static struct value *optimizer_of(struct value *optimizer, uint64_t number)
{
    if (!mcore_optimizer_is_numbered(optimizer))
        return optimizer;
    for (size_t i = 0; i + 1 < optimizer->list.count; i += 2) {
        int64_t key;
        if (value_as_int(optimizer->list.items[i], &key) && key >= 0 && (uint64_t)key == number)
            return optimizer->list.items[i + 1];
    }
    return NULL;
}

/* Makes persistent ids name the item whose storages they are. */
struct keeping {
    struct mcore_target *state;
    uint32_t item;             /* of the source */
};

static bool keep_storage(const struct value *node, void *context)
{
    struct keeping *keeping = context;
    struct mcore_target *state = keeping->state;
    if (node->kind != VALUE_PERSID || node->storage == 0)
        return true;
    if (state->dcp.kept_count >= DCP_KEPT / 2 || !ARRAY_ROOM(state->dcp.kept, state->dcp.kept_count, state->dcp.kept_capacity))
        return false;
    state->dcp.kept[state->dcp.kept_count] = (struct dcp_kept_storage){ .item = keeping->item, .storage = node->storage - 1 };
    /* The node is our own copy. */
    ((struct value *)node)->storage = (DCP_KEPT | state->dcp.kept_count++) + 1;
    return true;
}

/* A copy in the target's graph of a value of another item than the one that it is stored with; NULL without memory. */
static struct value *copy_with_storages(struct mcore_target *state, const struct value *value, uint32_t graph_count, uint32_t item)
{
    struct keeping keeping = { .state = state, .item = item };
    struct value *copy = value_copy(&state->dcp.extra, value, graph_count);
    return copy && value_walk(copy, state->dcp.extra.count, state->dcp.extra.arena.work, keep_storage, &keeping, NULL) ? copy : NULL;
}

/* What the layouts by bucket keep in an object is part of the common state in the one by parameter. */
static reshard_status mcore_optimizer_take_object(const struct layout_request *request, struct mcore_target *state, uint32_t item,
                                                  struct value *optimizer, reshard_error *err)
{
    struct object_part part;
    struct str key;
    const struct catalog_item *loaded;
    if (!mcore_object_key(request->wanted->items[item].key, &key) || !read_object_key(key, &part))
        return RESHARD_OK;
    reshard_status status = layout_item(request, item, &loaded, err);
    struct value *of = optimizer_of(optimizer, part.number);
    if (status || !loaded->value || !loaded->graph)
        return status;
    const struct value *held =
        loaded->value->kind == VALUE_LIST && loaded->value->list.count == 1 ? loaded->value->list.items[0] : loaded->value;
    if (!of || of->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "item '%.*s': the common state has no optimizer %u", STR_ARG(loaded->key),
                         (unsigned)part.number);
    struct value_edit editing = { .graph = &state->dcp.extra, .members = of };
    value_edit_set(&editing, str_is(part.member, "optimizer") ? "optimizer" : "grad_scaler",
             copy_with_storages(state, held, loaded->graph->count, request->wanted_items[item]), true);
    return editing.failed ? error_set_memory(err) : RESHARD_OK;
}

/* ---- groups that lie parameter by parameter ---- */

/* {"optimizer": {"param_groups": […]}} of one optimizer; NULL without memory. */
static struct value *make_optimizer(struct value_graph *graph, struct value *groups)
{
    struct value_edit inner = { .graph = graph, .members = value_new_list(graph, VALUE_DICT, NULL, 0) };
    struct value_edit outer = { .graph = graph, .members = value_new_list(graph, VALUE_DICT, NULL, 0) };
    if (!inner.members || !outer.members)
        return NULL;
    value_edit_set(&inner, "param_groups", groups, true);
    value_edit_set(&outer, "optimizer", inner.members, true);
    return inner.failed || outer.failed ? NULL : outer.members;
}

/* One optimizer, and one more for experts that are apart. */
static reshard_status join_groups(struct mcore_target *state, const struct group_meta *meta, struct value **out, reshard_error *err)
{
    struct value_graph *graph = &state->dcp.extra;
    struct value *groups, *of_experts = NULL, **both = arena_array(&graph->arena, 4, sizeof(*both));
    reshard_status status = both ? group_meta_list(meta, false, &groups, err) : error_set_memory(err);
    if (!status && mcore_experts_are_apart(&state->sizes))
        status = group_meta_list(meta, true, &of_experts, err);
    if (status)
        return status;
    *out = make_optimizer(graph, groups);
    if (*out && of_experts && of_experts->list.count) {
        both[0] = value_new_int(graph, 0);
        both[1] = *out;
        both[2] = value_new_int(graph, 1);
        both[3] = make_optimizer(graph, of_experts);
        *out = both[0] && both[2] && both[3] ? value_new_list(graph, VALUE_DICT, both, 4) : NULL;
    }
    return *out ? RESHARD_OK : error_set_memory(err);
}

/* The common state's optimizer, of what the source says about every parameter. */
static reshard_status make_groups(const struct layout_request *request, struct mcore_target *state, struct value **out, reshard_error *err)
{
    struct group_meta meta = { .graph = &state->dcp.extra };
    *out = NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        struct str key = request->wanted->items[i].key;
        if (!state_key_is(key, STATE_KEY_GROUP_META))
            continue;
        const struct catalog_item *loaded;
        status = layout_item(request, i, &loaded, err);
        if (!status && loaded->value && loaded->graph)
            status = group_meta_add(&meta, key, value_copy(&state->dcp.extra, loaded->value, loaded->graph->count), err);
    }
    if (!status && meta.parameters.count)
        status = join_groups(state, &meta, out, err);
    group_meta_release(&meta);
    return status;
}

/* ---- steps ---- */

/* The distributed optimizer has its step in the groups, where others may have one of all parameters beside the state. */
static reshard_status move_step(const struct layout_request *request, struct mcore_target *state, uint32_t wanted, struct value *optimizer,
                                reshard_error *err)
{
    struct value *groups = parameter_group_list(optimizer), *step, *inner = value_dict_get(optimizer, "optimizer");
    const struct value *common = step_find_common(optimizer);
    if (!common || !groups)
        return RESHARD_OK;
    reshard_status status = step_of_item(request, wanted, common, &state->dcp.extra, &step, err);
    if (!status)
        status = step_to_groups(&state->dcp.extra, groups, step, err);
    value_edit_remove(inner && inner->kind == VALUE_DICT ? inner : optimizer, "state");
    return status;
}

static reshard_status move_steps(const struct layout_request *request, struct mcore_target *state, uint32_t wanted, struct value *optimizer,
                                 reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (optimizer->kind != VALUE_DICT || wanted == CATALOG_NONE)
        return RESHARD_OK;
    if (!mcore_optimizer_is_numbered(optimizer))
        return move_step(request, state, wanted, optimizer, err);
    for (size_t i = 1; i < optimizer->list.count && !status; i += 2) {
        if (optimizer->list.items[i]->kind == VALUE_DICT)
            status = move_step(request, state, wanted, optimizer->list.items[i], err);
    }
    return status;
}

/* ---- what the common state says ---- */

/* made: the optimizer put together by make_groups; NULL: it is the source's. */
static reshard_status adapt_optimizer(const struct layout_request *request, struct target *target, struct value *made, bool is_distributed,
                                      reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    struct value *optimizer;
    uint32_t node;
    bool failed = false;
    reshard_status status = mcore_optimizer_copy_leaf(request, state, OPTIMIZER_KEY, &node, &optimizer, err);
    if (!status && made) {
        optimizer = made;
        status = mcore_add_value(state, OPTIMIZER_KEY, made, err);
        node = path_tree_child(&state->dcp.tree, 0, STR(OPTIMIZER_KEY));
    }
    if (status || !optimizer)
        return status;
    if (optimizer->kind == VALUE_LIST && !number_members(&state->dcp.extra, optimizer))
        return error_set_memory(err);
    if (is_distributed && optimizer->kind == VALUE_DICT && !mcore_optimizer_is_numbered(optimizer))
        set_layout(state, optimizer, &failed);
    for (size_t i = 1;
         is_distributed && optimizer->kind == VALUE_DICT && mcore_optimizer_is_numbered(optimizer) && i < optimizer->list.count; i += 2)
        set_layout(state, optimizer->list.items[i], &failed);
    if (failed)
        return error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->item_count && is_distributed && optimizer->kind == VALUE_DICT && !status; i++)
        status = mcore_optimizer_take_object(request, state, i, optimizer, err);
    mcore_groups_drop_numbers(optimizer);
    if (!status && is_distributed)
        status = move_steps(request, state, state->dcp.tree.nodes[node].wanted, optimizer, err);
    if (!status)
        status = mcore_optimizers_regroup(request, target, &optimizer, err);
    if (!status && state->buckets)
        status = mcore_bucket_objects_add(request, state, state->dcp.tree.nodes[node].wanted, &optimizer, err);
    state->dcp.tree.nodes[node].value = optimizer;
    return status;
}

static reshard_status adapt_content(const struct layout_request *request, struct mcore_target *state, bool is_distributed,
                                    reshard_error *err)
{
    struct value *content;
    uint32_t node;
    reshard_status status = mcore_optimizer_copy_leaf(request, state, CONTENT_KEY, &node, &content, err);
    bool is_new = !content;
    if (status || (node != CATALOG_NONE && is_new))
        return status;
    if (is_new && state->flavour->items_are_files)
        return RESHARD_OK; /* releases that read zarr know nothing of it */
    if (is_new && !(content = value_new_list(&state->dcp.extra, VALUE_DICT, NULL, 0)))
        return error_set_memory(err);
    if (content->kind != VALUE_DICT)
        return RESHARD_OK;
    struct value_edit editing = { .graph = &state->dcp.extra, .members = content };
    if (is_distributed) {
        value_edit_text(&editing, "distrib_optim_sharding_type", layout_of(state));
        if (state->optimizer_layout == MCORE_BY_PARAMETER)
            value_edit_bool(&editing, "distrib_optim_fully_reshardable_mem_efficient", false);
    }
    value_edit_bool(&editing, "singleton_local_shards", false);
    value_edit_bool(&editing, "chained_optim_avoid_prefix", !state->has_chained_keys);
    if (editing.failed)
        return error_set_memory(err);
    if (is_new)
        return mcore_add_value(state, CONTENT_KEY, content, err);
    state->dcp.tree.nodes[node].value = content;
    return RESHARD_OK;
}

/* State that a torch_dist checkpoint stores in that layout already, or in another that stays as it is, is described well. */
static bool is_described(const struct layout_request *request, struct mcore_target *state, bool is_distributed, reshard_status *status,
                         reshard_error *err)
{
    struct value *content;
    uint32_t node;
    struct str layout;
    if (!mcore_is_from(request, &format_torch_dist))
        return false;
    if (state->buckets)
        return false;
    *status = mcore_optimizer_copy_leaf(request, state, CONTENT_KEY, &node, &content, err);
    const struct value *type = content && content->kind == VALUE_DICT ? value_dict_get(content, "distrib_optim_sharding_type") : NULL;
    return *status || !is_distributed || (type && value_as_str(type, &layout) && str_is(layout, layout_of(state)));
}

/* The arguments that the target will have. */
static reshard_status target_arguments(const struct layout_request *request, struct mcore_target *state, const struct value **out,
                                       reshard_error *err)
{
    uint32_t node = path_tree_child(&state->dcp.tree, 0, STR("args"));
    *out = NULL;
    if (node == CATALOG_NONE || !state->dcp.tree.nodes[node].is_leaf)
        return RESHARD_OK;
    *out = state->dcp.tree.nodes[node].value;
    if (*out || state->dcp.tree.nodes[node].wanted == CATALOG_NONE)
        return RESHARD_OK;
    const struct catalog_item *loaded;
    reshard_status status = layout_item(request, state->dcp.tree.nodes[node].wanted, &loaded, err);
    *out = status ? NULL : loaded->value;
    return status;
}

/* Lays the buffers out. Where only the reference asks for them and they cannot be made, state is stored by parameter, and the report says
 * why. */
static reshard_status make_buffers(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    const struct value *arguments;
    reshard_error reason = { 0 };
    reshard_status status = target_arguments(request, state, &arguments, err);
    if (status)
        return status;
    status = mcore_buckets_make(request, state, arguments, &reason);
    if (!status || status != RESHARD_ERR_UNSUPPORTED || state->is_layout_asked) {
        if (status && err)
            *err = reason;
        if (status)
            error_prefix(err, "optimizer state as %s", layout_of(state));
        return status;
    }
    state->optimizer_layout = MCORE_BY_PARAMETER;
    mcore_optimizer_look(request, target);
    return target_note_changed(target, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                               "optimizer state: one tensor for each parameter (%s), not by bucket as the reference has it: %s",
                               layout_of(state), reason.message);
}

reshard_status mcore_optimizer_adapt(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    reshard_status status = is_buffered(state) ? make_buffers(request, target, err) : RESHARD_OK;
    bool is_distributed = state->has_parameter_state;
    if (status)
        return status;
    bool is_done = is_described(request, state, is_distributed, &status, err);
    if (status || (is_done && !mcore_optimizers_change(target)))
        return status;
    struct value *made = NULL;
    if (state->has_group_meta)
        status = make_groups(request, state, &made, err);
    if (!status)
        status = adapt_optimizer(request, target, made, is_distributed, err);
    /* Names of state have no number of an optimizer in front, which a release that can do either way is told by the content's description.
     */
    bool is_told = is_done && path_tree_child(&state->dcp.tree, 0, STR(CONTENT_KEY)) != CATALOG_NONE;
    return status || is_told ? status : adapt_content(request, state, is_distributed, err);
}
