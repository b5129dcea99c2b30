/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dict of one rank's file: its parts of the parameters, and the items. An item may have a value for each rank of the source
 * ("mp_rank_01.KEY"): a rank gets that of the rank at its own place, or the one that stands for all.
 */
#include "formats/megatron/megatron_target.h"

#include "base/array.h"
#include "encoding/pickle_write.h"
#include "parallel/rank_parameters.h"
#include "formats/megatron/optimizer_target.h"
#include "formats/shared/path_nest.h"
#include "formats/shared/torch_spell.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct rank_pickle {
    const struct layout_request *request;
    struct target *target;
    struct megatron_target *state;
    uint32_t rank;
    struct value_graph graph;
    struct nest nest;
    struct work copying; /* of values of items into this file: what many of them share is there once for each */
    reshard_status status; /* of substitute */
    reshard_error *err;
};

/* ---- records ---- */

reshard_status megatron_record_add(struct megatron_target *state, uint32_t wanted, uint64_t bytes, uint32_t *out, reshard_error *err)
{
    if (!ARRAY_ROOM(state->records, state->record_count, state->record_capacity))
        return error_set_memory(err);
    state->records[state->record_count] = (struct target_record){ .wanted = wanted, .bytes = bytes };
    *out = state->record_count++;
    return RESHARD_OK;
}

/* ---- places in the dict ---- */

static bool put(struct rank_pickle *pickle, const struct path_part *parts, size_t count, struct value *leaf)
{
    bool is_taken;
    return nest_put(&pickle->nest, parts, count, leaf, &is_taken);
}

/* The path below the chunk of a model. Names are local ones: layers of the stage, experts of the rank. */
static reshard_status put_in_model(struct rank_pickle *pickle, const struct partition_key *key, struct str name,
                                   const struct path_part *parts, size_t count, int64_t stage, int64_t first_layer, struct value *leaf,
                                   reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    int64_t chunk = stage / state->layout.pp, experts = state->experts / state->layout.ep;
    struct path_part *local = arena_array(&pickle->graph.arena, count + 1, sizeof(*local));
    char *model =
        state->layout.vp > 1 ? arena_printf(&pickle->graph.arena, "model%" PRId64, chunk) : arena_printf(&pickle->graph.arena, "model");
    if (!local || !model)
        return error_set_memory(err);
    local[0] = (struct path_part){ .kind = PATH_KEY, .key = str_of(model) };
    memcpy(local + 1, parts, count * sizeof(*parts));
    int64_t expert = key->expert_size > 0 && experts > 0 ? key->expert % experts : key->expert;
    reshard_status status =
        partition_renumber_parts(&pickle->graph.arena, name, key, local + 1, count, key->layer - first_layer, expert, err);
    if (!status && !put(pickle, local, count + 1, leaf))
        status = error_set_memory(err);
    return status;
}

static bool holds_expert(const struct megatron_target *state, const struct partition_key *key, const struct rank_place *place)
{
    int64_t experts = state->experts / state->layout.ep;
    return key->expert_size == 0 || experts == 0 || key->expert / experts == place->ep;
}

/* A matrix of experts, for which the parameter stands. */
static reshard_status put_matrix(struct rank_pickle *pickle, const struct target_parameter *parameter, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    struct str name = state->matrices[parameter->matrix - 1].name;
    struct path_part part = { .kind = PATH_KEY, .key = name };
    struct partition_key key;
    uint32_t record;
    struct value *leaf = value_new(&pickle->graph, VALUE_NONE);
    if (!leaf)
        return error_set_memory(err);
    reshard_status status = megatron_matrix_record(pickle->request, state, (uint32_t)(parameter - state->parameters), NULL, &record, err);
    if (status)
        return status;
    leaf->tensor = record - state->ranks[pickle->rank].first_record + 1;
    leaf->storage = (uint32_t)(parameter - state->parameters);
    partition_key_read(&state->rules, name, &key);
    return put_in_model(pickle, &key, name, &part, 1, parameter->stage, megatron_first_layer(state, parameter), leaf, err);
}

static reshard_status members_put_parameter(struct rank_pickle *pickle, const struct target_parameter *parameter, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    const struct catalog_tensor *tensor = &pickle->request->wanted->tensors[parameter->wanted];
    uint64_t bytes;
    uint32_t record;
    if (!holds_expert(state, &parameter->key, &state->ranks[pickle->rank].place))
        return RESHARD_OK;
    if (parameter->matrix)
        return megatron_stands_for_matrix(state, parameter) ? put_matrix(pickle, parameter, err) : RESHARD_OK;
    if (!dtype_bytes(tensor->dtype, (uint64_t)box_volume(parameter->cut.rank, parameter->cut.local), &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' is too large", STR_ARG(tensor->key));
    struct value *leaf = value_new(&pickle->graph, VALUE_NONE);
    if (!leaf)
        return error_set_memory(err);
    reshard_status status = megatron_record_add(state, parameter->wanted, bytes, &record, err);
    if (status)
        return status;
    state->records[record].parameter = (uint32_t)(parameter - state->parameters) + 1;
    /* The record's number in the file is its number in the target less the file's first. */
    leaf->tensor = record - state->ranks[pickle->rank].first_record + 1;
    leaf->storage = (uint32_t)(parameter - state->parameters);
    return put_in_model(pickle, &parameter->key, parameter->name, parameter->parts, parameter->part_count, parameter->stage,
                        megatron_first_layer(state, parameter), leaf, err);
}

static reshard_status put_parameters(struct rank_pickle *pickle, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    reshard_status status = RESHARD_OK;
    for (int64_t chunk = 0; !status && chunk < state->layout.vp; chunk++) {
        int64_t stage = chunk * state->layout.pp + state->ranks[pickle->rank].place.pp;
        for (uint32_t i = state->stage_first[stage]; !status && i < state->stage_first[stage + 1]; i++)
            status = members_put_parameter(pickle, &state->parameters[i], err);
    }
    return status;
}

/* ---- items ---- */

enum item_use { ITEM_UNUSED, ITEM_TOP, ITEM_MODEL, ITEM_FOREIGN };

/* What is left of an item's path below the folder of a rank; *folder "" if it stands for all. */
static const struct path_part *megatron_members_item_path(const struct layout_request *request, uint32_t index, struct path_part *single,
                                                          size_t *count, struct str *folder)
{
    const struct path_part *parts;
    struct rank_folder parsed;
    *count = catalog_item_path(request->wanted, &request->wanted->items[index], single, &parts);
    *folder = (struct str){ 0 };
    if (*count > 1 && parts[0].kind == PATH_KEY && rank_folder_parse(parts[0].key, &parsed)) {
        *folder = parts[0].key;
        parts++;
        (*count)--;
    }
    return parts;
}

static bool is_object_key(struct str key)
{
    for (size_t i = 0; i + 7 <= key.size; i++)
        if (memcmp(key.data + i, "/shard_", 7) == 0)
            return true;
    return false;
}

/* Whether the path is that of a leaf of RNG states, which a flattened state dict has in place of one item. Its tensors are elsewhere. */
static bool is_rng_leaf(const struct path_part *parts, size_t count)
{
    return count > 1 && parts[0].kind == PATH_KEY && str_is(parts[0].key, "rng_state");
}

/*
 * Where an item belongs. Parts of models are told by their keys; objects of distributed checkpoints have names of their own. A member of a
 * file has a string for its key.
 */
static enum item_use item_use(const struct megatron_target *state, const struct catalog_item *item, const struct path_part *parts,
                              struct str name, struct partition_key *key)
{
    if (item->kind == ITEM_FILE || parts[0].kind != PATH_KEY || is_object_key(name) || str_is(name, "content_metadata"))
        return ITEM_FOREIGN;
    if (partition_key_read(&state->rules, name, key) && (key->rule->is_item || key->stack))
        return ITEM_MODEL;
    return partition_key_place(&state->rules, name) != PLACE_UNKNOWN ? ITEM_MODEL : ITEM_TOP;
}

static reshard_status item_value(struct rank_pickle *pickle, uint32_t index, struct value **out, reshard_error *err)
{
    struct target_rank *rank = &pickle->state->ranks[pickle->rank];
    const struct catalog_item *item;
    uint32_t first = pickle->graph.count;
    *out = NULL;
    reshard_status status = layout_item(pickle->request, index, &item, err);
    if (status == RESHARD_ERR_UNSUPPORTED)
        return RESHARD_OK;
    if (status || !item->value || !item->graph)
        return status;
    pickle->graph.arena.work = &pickle->copying;
    *out = value_copy(&pickle->graph, item->value, item->graph->count);
    pickle->graph.arena.work = NULL;
    if (!*out)
        return work_error(&pickle->copying, err);
    if (!ARRAY_ROOM(rank->items, rank->item_count, rank->item_capacity))
        return error_set_memory(err);
    rank->items[rank->item_count++] = (struct item_nodes){ first, pickle->graph.count, index };
    return RESHARD_OK;
}

static reshard_status put_model_item(struct rank_pickle *pickle, const struct partition_key *key, struct str name,
                                     const struct path_part *parts, size_t count, struct value *value, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    const struct rank_place *place = &state->ranks[pickle->rank].place;
    int64_t stages = state->layout.pp * state->layout.vp, first = 0;
    int64_t stage = stages > 1 ? pipeline_stage_of_key(&state->pipeline, &state->rules, name, key) : 0;
    if (stage == stages)
        return RESHARD_OK;
    if (key->stack && !key->stack->is_own && stages > 1)
        first = pipeline_first_layer(&state->pipeline, stage);
    if (stage % state->layout.pp != place->pp || !holds_expert(state, key, place))
        return RESHARD_OK;
    return put_in_model(pickle, key, name, parts, count, stage, first, value, err);
}

/* Whether another wanted item is this one's value for exactly the source rank that stands for the target's. */
static reshard_status check_overruled(const struct rank_pickle *pickle, uint32_t index, const struct name_map *own, bool *out,
                                      reshard_error *err)
{
    const struct megatron_source *source = megatron_folder_state(pickle->request->source);
    uint32_t rank = pickle->state->ranks[pickle->rank].source;
    *out = false;
    if (!source || rank == TORCH_NONE)
        return RESHARD_OK;
    const struct str parts[] = { source->ranks[rank].folder, STR("."), pickle->request->wanted->items[index].key };
    uint32_t found;
    reshard_status status = name_map_find_joined(own, parts, 3, &found, err);
    *out = found != NAME_NONE;
    return status;
}

#define RNG_AXES 3 /* PP, TP and, where experts are parallel in Megatron Core 0.16, data-parallel ranks */

/* Numbers with dots between them, as many as *count says at the end; false if there are others. */
static bool take_numbers(struct str text, int64_t out[RNG_AXES], size_t *count)
{
    for (*count = 0; text.size; (*count)++) {
        uint64_t number;
        if (*count == RNG_AXES || !str_to_u64(str_take(&text, '.'), &number) || number > INT32_MAX)
            return false;
        out[*count] = (int64_t)number;
    }
    return *count > 1;
}

/* "rng_state/shard_0.1_1.2": the list that rank (0, 1) of a (PP, TP) grid of (1, 2) stored around its value. */
static bool rng_object(struct str key, int64_t at[RNG_AXES], size_t *count)
{
    static const char prefix[] = "rng_state/shard_";
    if (!str_starts_with(key, prefix))
        return false;
    struct str rest = { key.data + sizeof(prefix) - 1, key.size - (sizeof(prefix) - 1) };
    return take_numbers(str_take(&rest, '_'), at, count);
}

/* Whether an object is that of the place. Each EP rank has some of the data-parallel ranks. */
static bool is_rng_of(const struct megatron_target *state, const int64_t at[RNG_AXES], size_t count, const struct rank_place *place)
{
    const struct parallel_layout *layout = &state->layout;
    if (at[0] != place->pp || at[1] != place->tp)
        return false;
    return count < RNG_AXES || (at[2] * layout->tp + place->tp) / layout->etp % layout->ep == place->ep;
}

/* The wanted item with the random number state of a distributed checkpoint for a rank: that of its place, else the first one. *is_own:
 * it is of its place. TORCH_NONE: there are none. */
static uint32_t find_rng_object(const struct layout_request *request, const struct megatron_target *state, const struct rank_place *place,
                                bool *is_own)
{
    const struct catalog *wanted = request->wanted;
    uint32_t found = TORCH_NONE;
    *is_own = false;
    for (uint32_t i = 0; i < wanted->item_count && !*is_own; i++) {
        int64_t at[RNG_AXES];
        size_t count;
        if (!rng_object(wanted->items[i].key, at, &count))
            continue;
        *is_own = is_rng_of(state, at, count, place);
        found = found == TORCH_NONE || *is_own ? i : found;
    }
    return found;
}

static reshard_status put_rng_object(struct rank_pickle *pickle, reshard_error *err)
{
    bool is_own;
    uint32_t found = find_rng_object(pickle->request, pickle->state, &pickle->state->ranks[pickle->rank].place, &is_own);
    struct value *value = NULL, **items;
    size_t count;
    reshard_status status = found == TORCH_NONE ? RESHARD_OK : item_value(pickle, found, &value, err);
    if (status || !value || !value_as_sequence(value, &items, &count) || count != 1)
        return status;
    struct path_part part = { .kind = PATH_KEY, .key = STR("rng_state") };
    return put(pickle, &part, 1, items[0]) ? RESHARD_OK : error_set_memory(err);
}

/* "args", changed. One that the source lacks is made of what is known. */
static reshard_status members_put_args(struct rank_pickle *pickle, reshard_error *err)
{
    struct value *value = NULL;
    uint32_t item = pickle->state->args_item;
    reshard_status status = item == TORCH_NONE ? RESHARD_OK : item_value(pickle, item, &value, err);
    if (status)
        return status;
    struct path_part part = { .kind = PATH_KEY, .key = STR("args") };
    value = megatron_write_args(pickle->request, pickle->state, pickle->rank, value, &pickle->graph);
    return value && put(pickle, &part, 1, value) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status put_version(struct rank_pickle *pickle, reshard_error *err)
{
    struct path_part part = { .kind = PATH_KEY, .key = STR("checkpoint_version") };
    struct value *version = value_new(&pickle->graph, VALUE_FLOAT);
    if (version)
        version->real = 3.0;
    return version && put(pickle, &part, 1, version) ? RESHARD_OK : error_set_memory(err);
}

/* Megatron reads the iteration with the arguments, of a release too: weights that come with arguments and no run begin at 0. */
static reshard_status put_iteration(struct rank_pickle *pickle, reshard_error *err)
{
    const struct catalog *wanted = pickle->request->wanted;
    struct path_part part = { .kind = PATH_KEY, .key = STR("iteration") };
    bool is_of_run = pickle->state->args_item == TORCH_NONE || catalog_find_item(wanted, STR("checkpoint_version")) != CATALOG_NONE ||
                     catalog_find_item(wanted, STR("iteration")) != CATALOG_NONE;
    if (is_of_run)
        return RESHARD_OK;
    struct value *value = value_new_int(&pickle->graph, 0);
    return value && put(pickle, &part, 1, value) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status put_item(struct rank_pickle *pickle, uint32_t index, const struct name_map *own, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    const struct megatron_source *source = megatron_folder_state(pickle->request->source);
    uint32_t source_rank = state->ranks[pickle->rank].source;
    struct path_part single;
    struct partition_key key;
    struct str folder, name;
    size_t count;
    const struct path_part *parts = megatron_members_item_path(pickle->request, index, &single, &count, &folder);
    bool is_others = folder.size > 0 && (!source || source_rank == TORCH_NONE || !str_equal(folder, source->ranks[source_rank].folder));
    reshard_status status = folder.size > 0 ? RESHARD_OK : check_overruled(pickle, index, own, &is_others, err);
    if (status || is_others)
        return status;
    struct buffer joined = { 0 };
    bool is_good = path_join(parts, count, &joined) && arena_str(&pickle->graph.arena, buffer_str(&joined), &name);
    buffer_release(&joined);
    if (!is_good)
        return error_set_memory(err);
    enum item_use use = item_use(state, &pickle->request->wanted->items[index], parts, name, &key);
    if (use == ITEM_FOREIGN || str_is(name, "args") || str_is(name, "checkpoint_version") ||
        /* Optimizer state by number belongs to one rank of one layout. */
        (str_is(name, "optimizer") && !megatron_same_ranks(pickle->request, state)) ||
        (megatron_is_rerun(name) && !megatron_keeps_rerun(pickle->request, state)))
        return RESHARD_OK;
    if ((state->optimizer && optimizer_item_is_known(name)) || is_rng_leaf(parts, count))
        return RESHARD_OK; /* put_optimizer; note_items */
    struct value *value;
    status = item_value(pickle, index, &value, err);
    if (status || !value)
        return status;
    if (use == ITEM_MODEL)
        return put_model_item(pickle, &key, name, parts, count, value, err);
    return put(pickle, parts, count, value) ? RESHARD_OK : error_set_memory(err);
}

/* Extra state that says nothing: the reference has it where its layers have a place for it. */
static reshard_status put_like_items(struct rank_pickle *pickle, reshard_error *err)
{
    const struct source *like = pickle->request->like;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && megatron_folder_state(like) && i < like->catalog->item_count; i++) {
        const struct catalog_item *item = &like->catalog->items[i];
        struct path_part single;
        const struct path_part *parts;
        struct partition_key key;
        size_t count = catalog_item_path(like->catalog, item, &single, &parts);
        if (!item->value || item->value->kind != VALUE_NONE || !partition_key_read(&pickle->state->rules, item->key, &key) ||
            !key.rule->is_item)
            continue;
        struct value *value = value_new(&pickle->graph, VALUE_NONE);
        status = value ? put_model_item(pickle, &key, item->key, parts, count, value, err) : error_set_memory(err);
    }
    return status;
}

/* Member "optimizer", made of what the source says about groups and of state by number. */
static reshard_status put_optimizer(struct rank_pickle *pickle, reshard_error *err)
{
    const struct catalog *wanted = pickle->request->wanted;
    const struct path_part part = { .kind = PATH_KEY, .key = STR("optimizer") };
    uint32_t count = 0;
    struct value *value = NULL;
    if (!pickle->state->optimizer)
        return RESHARD_OK;
    struct optimizer_item *items = arena_array(&pickle->graph.arena, wanted->item_count, sizeof(*items));
    reshard_status status = items ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < wanted->item_count; i++) {
        struct optimizer_item item = { .key = wanted->items[i].key, .wanted = i };
        if (!optimizer_item_is_known(item.key))
            continue;
        status = item_value(pickle, i, &item.value, err);
        if (item.value)
            items[count++] = item;
    }
    if (!status)
        status = megatron_optimizer_value(pickle->request, pickle->target, pickle->rank, items, count, &pickle->graph, &value, err);
    if (!status && value && !put(pickle, &part, 1, value))
        status = error_set_memory(err);
    return status;
}

static reshard_status put_like_rerun(struct rank_pickle *pickle, reshard_error *err)
{
    const struct path_part part = { .kind = PATH_KEY, .key = STR("rerun_state_machine") };
    struct value *value;
    reshard_status status = megatron_like_rerun(pickle->request, pickle->state, pickle->rank, &pickle->graph, &value, err);
    if (!status && value && !put(pickle, &part, 1, value))
        status = error_set_memory(err);
    return status;
}

static reshard_status members_put_items(struct rank_pickle *pickle, reshard_error *err)
{
    const struct catalog *wanted = pickle->request->wanted;
    struct name_map own = { 0 }; /* keys of items of single ranks */
    reshard_status status = members_put_args(pickle, err);
    for (uint32_t i = 0; !status && i < wanted->item_count; i++)
        if (str_starts_with(wanted->items[i].key, "mp_rank_") && name_map_intern(&own, wanted->items[i].key, NULL) == NAME_NONE)
            status = error_set_memory(err);
    if (!status)
        status = put_version(pickle, err);
    if (!status)
        status = put_iteration(pickle, err);
    for (uint32_t i = 0; !status && i < wanted->item_count; i++)
        status = put_item(pickle, i, &own, err);
    if (!status)
        status = put_optimizer(pickle, err);
    if (!status)
        status = put_rng_object(pickle, err);
    if (!status)
        status = put_like_items(pickle, err);
    if (!status)
        status = put_like_rerun(pickle, err);
    name_map_release(&own);
    return status;
}

/* ---- the pickle ---- */

static reshard_status members_find_storage(void *context, const struct value *persid, uint32_t *record, uint64_t *bytes)
{
    struct rank_pickle *pickle = context;
    struct megatron_target *state = pickle->state;
    struct target_rank *rank = &state->ranks[pickle->rank];
    const struct layout_request *request = pickle->request;
    uint32_t number = persid->storage - 1;
    reshard_status status = RESHARD_OK;
    if (request->items.read_storage) {
        uint32_t item = TORCH_NONE;
        for (uint32_t i = 0; i < rank->item_count; i++)
            if (persid->id >= rank->items[i].first && persid->id < rank->items[i].end)
                item = rank->items[i].item;
        if (item == TORCH_NONE)
            return error_set(pickle->err, RESHARD_ERR_UNSUPPORTED, "a storage outside of items");
        struct buffer content = { .limit = (size_t)pickle->request->limits.item_bytes, .limit_name = "item_bytes" };
        status = layout_item_storage(request, item, number, &content, pickle->err);
        if (!status)
            status = megatron_record_add(state, TORCH_NONE, content.size, record, pickle->err);
        if (status)
            buffer_release(&content);
        else
            state->records[*record].memory = content;
    } else if (number >= request->source_catalog->tensor_count || state->hidden_records[number] == 0) {
        return error_set(pickle->err, RESHARD_ERR_UNSUPPORTED, "an item refers to a storage that is not converted");
    } else {
        uint32_t wanted = state->hidden_records[number] - 1;
        status = megatron_record_add(
            state, wanted, catalog_tensor_bytes(pickle->request->wanted, &pickle->request->wanted->tensors[wanted]), record, pickle->err);
    }
    if (status)
        return status;
    *bytes = state->records[*record].bytes;
    *record -= rank->first_record;
    return RESHARD_OK;
}

static bool members_substitute(const struct value *value, struct buffer *out, void *context)
{
    struct rank_pickle *pickle = context;
    struct megatron_target *state = pickle->state;
    if (value->kind == VALUE_NONE && value->tensor > 0) {
        const struct target_parameter *parameter = &state->parameters[value->storage];
        uint32_t number = value->tensor - 1;
        const struct target_record *record = &state->records[state->ranks[pickle->rank].first_record + number];
        const struct catalog_tensor *tensor = &pickle->request->wanted->tensors[record->wanted];
        bool is_matrix = record->matrix[0] > 0;
        char key[16];
        snprintf(key, sizeof(key), "%" PRIu32, number);
        torch_save_put_tensor(out, tensor->dtype, is_matrix ? 2 : parameter->cut.rank, is_matrix ? record->matrix : parameter->cut.local,
                              NULL, 0, key, record->bytes, false);
        return true;
    }
    struct torch_storage_finder finder = { members_find_storage, pickle };
    return torch_spell(value, &finder, &pickle->status, out);
}

/* Models of today are an OrderedDict; the nested ones of old are dicts all through. A chunk without layers is an empty one. */
static reshard_status finish_models(struct rank_pickle *pickle, reshard_error *err)
{
    struct value *root = pickle->graph.root;
    for (size_t i = 0; i + 1 < root->list.count; i += 2) {
        struct value *inner = root->list.items[i + 1];
        if (!str_starts_with(root->list.items[i]->text, "model") || inner->kind != VALUE_DICT)
            continue;
        bool is_flat = true;
        for (size_t j = 1; j < inner->list.count; j += 2)
            is_flat = is_flat && inner->list.items[j]->kind != VALUE_DICT;
        if (!is_flat)
            continue;
        struct value *callable = value_new_global(&pickle->graph, "collections", "OrderedDict");
        struct value *ordered = callable ? value_new_call(&pickle->graph, callable, NULL, 0) : NULL;
        if (!ordered)
            return error_set_memory(err);
        ordered->object->dict_items = inner->list.items;
        ordered->object->dict_count = (uint32_t)inner->list.count;
        root->list.items[i + 1] = ordered;
    }
    return RESHARD_OK;
}

static reshard_status put_empty_models(struct rank_pickle *pickle, reshard_error *err)
{
    struct megatron_target *state = pickle->state;
    for (int64_t chunk = 0; chunk < state->layout.vp; chunk++) {
        int64_t stage = chunk * state->layout.pp + state->ranks[pickle->rank].place.pp;
        if (state->stage_first[stage + 1] > state->stage_first[stage])
            continue;
        char *name =
            state->layout.vp > 1 ? arena_printf(&pickle->graph.arena, "model%" PRId64, chunk) : arena_printf(&pickle->graph.arena, "model");
        struct value *empty = value_new_list(&pickle->graph, VALUE_DICT, NULL, 0);
        if (!name || !empty)
            return error_set_memory(err);
        struct path_part part = { .kind = PATH_KEY, .key = str_of(name) };
        if (!put(pickle, &part, 1, empty))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

reshard_status megatron_emit_rank(const struct layout_request *request, struct target *target, uint32_t rank, struct buffer *out,
                                  reshard_error *err)
{
    struct rank_pickle pickle = { .request = request, .target = target, .state = target->driver_state, .rank = rank, .err = err };
    pickle.state->ranks[rank].first_record = pickle.state->record_count;
    work_begin(&pickle.copying, request->limits.work);
    work_add_input(&pickle.copying, request->limits.budget ? request->limits.budget->read : 0);
    reshard_status status = nest_begin(&pickle.nest, &pickle.graph) ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = put_parameters(&pickle, err);
    if (!status)
        status = put_empty_models(&pickle, err);
    if (!status)
        status = members_put_items(&pickle, err);
    if (!status)
        status = nest_finish(&pickle.nest, err);
    if (!status)
        status = finish_models(&pickle, err);
    if (!status)
        status = pickle_write(pickle.graph.root, pickle.graph.count, NULL, members_substitute, &pickle, out, err);
    pickle.state->ranks[rank].record_count = pickle.state->record_count - pickle.state->ranks[rank].first_record;
    nest_release(&pickle.nest);
    value_graph_release(&pickle.graph);
    return pickle.status ? pickle.status : status;
}

/* ---- what is left out ---- */

/* Random number states that several ranks get, and those that none gets. */
static reshard_status note_rng_states(const struct layout_request *request, struct target *target, bool has_item, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    const struct catalog *wanted = request->wanted;
    uint32_t shared = 0, unused = 0, ranks = 0;
    bool *is_used = array_zeroed(wanted->item_count, sizeof(*is_used));
    if (!is_used)
        return error_set_memory(err);
    for (uint32_t i = 0; i < state->rank_count; i++) {
        bool is_own = state->ranks[i].source != TORCH_NONE;
        uint32_t found = has_item ? TORCH_NONE : find_rng_object(request, state, &state->ranks[i].place, &is_own);
        if (found != TORCH_NONE)
            is_used[found] = true;
        ranks += !state->ranks[i].is_optimizer;
        shared += !is_own && !state->ranks[i].is_optimizer && (has_item || found != TORCH_NONE);
    }
    for (uint32_t i = 0; i < wanted->item_count && !has_item; i++) {
        int64_t at[RNG_AXES];
        size_t count;
        unused += !is_used[i] && rng_object(wanted->items[i].key, at, &count);
    }
    free(is_used);
    reshard_status status = RESHARD_OK;
    if (shared)
        status = target_note_changed(target, NOTE_RANKS, STR("rng_state"), err,
                                     "%" PRIu32 " of %" PRIu32 " ranks have none of their own in the source, get the first one's and draw "
                                     "the same numbers",
                                     shared, ranks);
    if (!status && unused)
        status = target_note_dropped(target, NOTE_RANKS, STR("rng_state"), err,
                                     "those of ranks that the target has no files of (%" PRIu32 ")", unused);
    return status;
}

reshard_status megatron_note_items(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    uint32_t other_ranks = 0;
    bool has_optimizer = false, has_rerun = false, has_rng_leaf = false, has_rng = false;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < request->wanted->item_count; i++) {
        struct path_part single;
        struct partition_key key;
        struct str folder, name = request->wanted->items[i].key;
        size_t count;
        const struct path_part *parts = megatron_members_item_path(request, i, &single, &count, &folder);
        bool is_used = folder.size == 0;
        for (uint32_t j = 0; j < state->rank_count && !is_used; j++) {
            const struct megatron_source *source = megatron_folder_state(request->source);
            is_used = source && state->ranks[j].source != TORCH_NONE && str_equal(folder, source->ranks[state->ranks[j].source].folder);
        }
        other_ranks += !is_used;
        has_rng_leaf = has_rng_leaf || (folder.size == 0 && is_rng_leaf(parts, count));
        has_optimizer = has_optimizer || (count == 1 && parts[0].kind == PATH_KEY && str_is(parts[0].key, "optimizer"));
        has_rng = has_rng || (folder.size == 0 && count == 1 && parts[0].kind == PATH_KEY && str_is(parts[0].key, "rng_state"));
        has_rerun = has_rerun || (count == 1 && parts[0].kind == PATH_KEY && megatron_is_rerun(parts[0].key));
        if (folder.size == 0 && !(state->optimizer && optimizer_item_is_known(name)) &&
            item_use(state, &request->wanted->items[i], parts, name, &key) == ITEM_FOREIGN && !str_starts_with(name, "rng_state/"))
            status = target_note_dropped(target, NOTE_NO_PLACE, name, err, "legacy files have no place for it");
    }
    if (!status && has_rng_leaf)
        status = target_note_dropped(target, NOTE_LAYOUT, STR("rng_state"), err, "it belongs to the layout that it was saved under");
    if (!status)
        status = note_rng_states(request, target, has_rng, err);
    if (!status && other_ranks > 0)
        status =
            target_note_dropped(target, NOTE_RANKS, (struct str){ 0 }, err,
                                "%" PRIu32 " values of ranks that the target does not have (random number states, arguments)", other_ranks);
    if (!status && has_optimizer && !state->optimizer && !megatron_same_ranks(request, state))
        status = target_note_dropped(target, NOTE_LAYOUT, STR("optimizer"), err,
                                     "its state is numbered by the parameters of a rank, and the layout changes");
    return status ? status : megatron_note_rerun(request, target, has_rerun, err);
}
