/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of every rank's file, and their numbers in the whole model: a file counts the layers of its stage and the experts of its
 * rank from 0.
 */
#include "formats/megatron/megatron_source.h"
#include "base/array.h"
#include "formats/megatron/optimizer_source.h"

#include <inttypes.h>
#include <stdlib.h>

struct collecting {
    struct source *source;
    struct megatron_source *state;
    struct megatron_items *items;
    uint32_t rank;
    int64_t stage;             /* of the chunk that is read */
    struct buffer text;
    struct pending_item {      /* of models: their keys have layer numbers too, known only when all layers are counted */
        struct partition_key key;
        struct path_part *parts;
        size_t count;
        int64_t stage;
        uint32_t rank;
        struct value *value;
    } *pending;
    size_t pending_count, pending_capacity;
};

/* ---- collecting ---- */

#define CLASS_STEPS_MAX 4 /* calls within calls that are looked through for a class */

static struct path_part *leaves_copy_parts(struct arena *arena, const struct path_part *parts, size_t count)
{
    struct path_part *out = arena_array(arena, count, sizeof(*out));
    if (!out)
        return NULL;
    memcpy(out, parts, count * sizeof(*parts));
    for (size_t i = 0; i < count; i++)
        if (out[i].kind == PATH_KEY && !arena_str(arena, parts[i].key, &out[i].key))
            return NULL;
    return out;
}

static reshard_status add_pending(struct collecting *collecting, const struct partition_key *key, const struct torch_leaf *leaf,
                                  reshard_error *err)
{
    if (!ARRAY_ROOM(collecting->pending, collecting->pending_count, collecting->pending_capacity))
        return error_set_memory(err);
    struct path_part *parts = leaves_copy_parts(&collecting->state->arena, leaf->parts, leaf->part_count);
    if (!parts)
        return error_set_memory(err);
    collecting->pending[collecting->pending_count++] =
        (struct pending_item){ *key, parts, leaf->part_count, collecting->stage, collecting->rank, leaf->value };
    return RESHARD_OK;
}

/* The class of an object, or the function that makes it; of a class' method, the class. */
static const struct value *class_of(const struct value *value)
{
    for (int i = 0; i < CLASS_STEPS_MAX && (value->kind == VALUE_CALL || value->kind == VALUE_NEW); i++) {
        const struct value *callable = value->object->callable, *args = value->object->args;
        bool is_attribute = value_is_global(callable, "builtins", "getattr") && args && args->kind == VALUE_TUPLE && args->list.count > 0;
        value = is_attribute ? args->list.items[0] : callable;
    }
    return value->kind == VALUE_GLOBAL ? value : NULL;
}

/*
 * A parameter that is no tensor but an object: what it holds is one rank's part, and nobody here puts such parts together. As an item it
 * would be taken for a value that the first rank has for all.
 */
static reshard_status refuse_object(const struct collecting *collecting, struct str name, const struct value *value, reshard_error *err)
{
    const struct value *class = class_of(value);
    struct str module = class ? class->global.module : STR("?"), own = class ? class->global.name : STR("?");
    if (collecting->source->lenient) {
        catalog_warn(collecting->source->catalog, true,
                     "'%.*s/%.*s' is no tensor but an object of %.*s.%.*s: it is an item of its rank, and no part of the model",
                     STR_ARG(collecting->state->ranks[collecting->rank].folder), STR_ARG(name), STR_ARG(module), STR_ARG(own));
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_UNSUPPORTED, "parameter '%.*s' is no tensor but an object of %.*s.%.*s, which is not read", STR_ARG(name),
              STR_ARG(module), STR_ARG(own));
    error_hint(err, "weights of 8 bits (--fp8-param-gather) are read once Megatron has loaded them and saved them without that flag; "
                    "reshard_open_options.lenient takes such objects as items");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status add_model_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct collecting *collecting = context;
    struct megatron_source *state = collecting->state;
    struct partition_key key;
    struct str name;
    buffer_clear(&collecting->text);
    if (!path_join(leaf->parts, leaf->part_count, &collecting->text) || !arena_str(&state->arena, buffer_str(&collecting->text), &name))
        return error_set_memory(err);
    bool is_known = partition_key_read(&state->rules, name, &key), is_item = is_known && key.rule->is_item;
    bool is_object = leaf->value->kind == VALUE_CALL || leaf->value->kind == VALUE_NEW;
    if (leaf->value->tensor == 0 && is_object && is_known && !is_item && !key.rule->is_assumed) {
        reshard_status status = refuse_object(collecting, name, leaf->value, err);
        if (status)
            return status;
    }
    if (leaf->value->tensor == 0 || is_item)
        return add_pending(collecting, &key, leaf, err);
    if (!is_known)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "no partition rule is for '%.*s'", STR_ARG(name));
    if (!ARRAY_ROOM(state->leaves, state->leaf_count, state->leaf_capacity))
        return error_set_memory(err);
    struct path_part *parts = leaf->part_count > 1 ? leaves_copy_parts(&state->arena, leaf->parts, leaf->part_count) : NULL;
    if (leaf->part_count > 1 && !parts)
        return error_set_memory(err);
    struct torch_file *file = &state->torch.files[state->ranks[collecting->rank].file];
    uint32_t tensor = leaf->value->tensor - 1;
    file->listed[tensor] = UINT32_MAX; /* it is no part of an item; which tensor it is, is not known yet */
    state->leaves[state->leaf_count] = (struct megatron_leaf){ .rank = collecting->rank,
                                                               .tensor = tensor,
                                                               .stage = collecting->stage,
                                                               .key = key,
                                                               .name = name,
                                                               .parts = parts,
                                                               .part_count = parts ? (uint32_t)leaf->part_count : 0,
                                                               .order = state->leaf_count };
    state->leaf_count++;
    return RESHARD_OK;
}

/* A member of the file that is no model. Tensors in it are part of the value. */
static reshard_status leaves_add_member(struct collecting *collecting, struct str key, struct value *value, reshard_error *err)
{
    struct path_part part = { .kind = PATH_KEY, .key = key };
    struct megatron_rank *rank = &collecting->state->ranks[collecting->rank];
    reshard_status status = RESHARD_OK;
    if (str_is(key, "optimizer"))
        status = megatron_optimizer_item(collecting->source, rank, value, &value, err);
    return status ? status : megatron_items_add(collecting->items, rank, &part, 1, value, err);
}

/* Number of "model" (-1), "model0" (0) …; false if the member is none. */
static bool model_number(struct str key, int64_t *out)
{
    uint64_t number;
    *out = -1;
    if (!str_starts_with(key, "model"))
        return false;
    if (key.size == 5)
        return true;
    if (!str_to_u64((struct str){ key.data + 5, key.size - 5 }, &number) || number >= MEGATRON_MODELS_MAX)
        return false;
    *out = (int64_t)number;
    return true;
}

static reshard_status read_model(struct collecting *collecting, struct value *model, int64_t number, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    struct megatron_rank *rank = &state->ranks[collecting->rank];
    struct value **pairs;
    size_t count;
    int64_t chunk = number < 0 ? 0 : number;
    if (!value_as_mapping(model, &pairs, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "member 'model' is no dictionary");
    if (chunk >= rank->models)
        rank->models = chunk + 1;
    collecting->stage = chunk * state->layout.pp + rank->place.pp;
    struct value_graph part = { .root = model, .count = state->torch.files[rank->file].graph->count };
    return torch_flatten(&part, &collecting->source->limits, add_model_leaf, collecting, err);
}

static reshard_status read_rank(struct collecting *collecting, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    struct megatron_rank *rank = &state->ranks[collecting->rank];
    const struct value *root = rank->root;
    reshard_status status = RESHARD_OK;
    rank->first_leaf = state->leaf_count;
    state->has_optimizer |= megatron_rank_has_optimizer(rank);
    for (size_t i = 0; !status && i + 1 < root->list.count; i += 2) {
        const struct value *key = root->list.items[i];
        struct value *value = root->list.items[i + 1];
        int64_t number;
        if (key->kind != VALUE_STR) {
            status = error_set(err, RESHARD_ERR_FORMAT, "a member of the file has a key that is no string");
            break;
        }
        char *name = arena_copy(&state->arena, key->text.data, key->text.size);
        if (!name)
            return error_set_memory(err);
        if (value_dict_get(root, name) != value)
            continue; /* of equal keys the last counts */
        status = model_number(key->text, &number) ? read_model(collecting, value, number, err)
                                                  : leaves_add_member(collecting, key->text, value, err);
    }
    rank->leaf_count = state->leaf_count - rank->first_leaf;
    if (!status && rank->models == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "no member 'model': found %zu others", root->list.count / 2);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(rank->folder));
        error_object(err, "%.*s/%s", STR_ARG(rank->folder), MEGATRON_MODEL_FILE);
    }
    return status;
}

/* ---- layers of the whole model ---- */

/* A stack of layers: what stands before the number in a key. */
struct stack_counts {
    struct str prefix;
    bool is_own;
    int64_t *counts; /* by stage: highest local number + 1 */
};

struct stacks {
    struct name_map names;
    struct stack_counts *stacks;
    size_t count, capacity;
    int64_t stage_count;
};

static struct str stack_prefix(struct str name, const struct partition_key *key)
{
    return (struct str){ name.data, key->layer_at };
}

static reshard_status count_leaf(struct stacks *stacks, struct arena *arena, const struct megatron_leaf *leaf, reshard_error *err)
{
    bool was_new;
    uint32_t number = name_map_intern(&stacks->names, stack_prefix(leaf->name, &leaf->key), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(stacks->stacks, number, stacks->capacity))
        return error_set_memory(err);
    if (was_new) {
        stacks->stacks[number] = (struct stack_counts){ stack_prefix(leaf->name, &leaf->key), leaf->key.stack->is_own,
                                                        arena_zalloc(arena, (size_t)stacks->stage_count * sizeof(int64_t)) };
        stacks->count = number + 1;
        if (!stacks->stacks[number].counts)
            return error_set_memory(err);
    }
    int64_t *count = &stacks->stacks[number].counts[leaf->stage];
    *count = leaf->key.layer >= *count ? leaf->key.layer + 1 : *count;
    return RESHARD_OK;
}

/* The one stack that num_layers counts; NULL if there are several. */
static const struct stack_counts *main_stack(const struct stacks *stacks)
{
    const struct stack_counts *found = NULL;
    for (size_t i = 0; i < stacks->count; i++) {
        if (stacks->stacks[i].is_own)
            continue;
        if (found)
            return NULL;
        found = &stacks->stacks[i];
    }
    return found;
}

static reshard_status fail_layers(const struct megatron_source *state, int64_t stage, int64_t found, int64_t expected, reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT,
              "pipeline stage %" PRId64 " (rank %" PRId64 ", chunk %" PRId64 ") holds %" PRId64
              " layers, the arguments of the run place %" PRId64 " there",
              stage, stage % state->layout.pp, stage / state->layout.pp, found, expected);
    error_hint(err, "num_layers and the split of the pipeline in args say so: the file is not whole, or args are another run's");
    for (uint32_t i = 0; i < state->rank_count; i++) {
        if (state->ranks[i].place.pp == stage % state->layout.pp) {
            error_object(err, "%.*s/%s", STR_ARG(state->ranks[i].folder), MEGATRON_MODEL_FILE);
            break;
        }
    }
    return RESHARD_ERR_FORMAT;
}

/*
 * The pipeline as the arguments place it, checked against what the files hold; without arguments, as the files hold it. A stack
 * that the arguments do not know (a second one) follows the files.
 */
static reshard_status find_pipeline(struct collecting *collecting, struct stacks *stacks, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    const struct stack_counts *stack = main_stack(stacks);
    struct training_args args = state->args;
    args.pp = state->layout.pp;
    args.vp = state->layout.vp;
    const int64_t last = state->layout.pp * state->layout.vp - 1;
    state->pipeline = (struct pipeline_split){ state->layout.pp, state->layout.vp, NULL, last, last };
    reshard_error ignored = { 0 };
    const bool may_lack = megatron_may_lack(collecting->source);
    reshard_status status = stack ? pipeline_split_make(&args, &state->arena, &state->pipeline, &ignored) : RESHARD_ERR_UNSUPPORTED;
    if (status == RESHARD_ERR_MEMORY)
        return error_set_memory(err);
    if (status) {
        state->pipeline.counts = stack ? stack->counts : arena_zalloc(&state->arena, (size_t)stacks->stage_count * sizeof(int64_t));
        int64_t total = 0;
        for (int64_t i = 0; state->pipeline.counts && i < stacks->stage_count; i++)
            total += state->pipeline.counts[i];
        if (stack && args.num_layers != TRAINING_ARG_UNKNOWN && total != args.num_layers && !may_lack)
            return error_set(err, RESHARD_ERR_FORMAT, "the files hold %" PRId64 " layers, the arguments of the run say %" PRId64, total,
                             args.num_layers);
        return state->pipeline.counts ? RESHARD_OK : error_set_memory(err);
    }
    for (int64_t i = 0; i < stacks->stage_count; i++) {
        int64_t found = stack->counts[i], expected = state->pipeline.counts[i];
        if (found == expected)
            continue;
        if (found > expected || !may_lack)
            return fail_layers(state, i, found, expected, err);
        catalog_warn(collecting->source->catalog, true, "pipeline stage %" PRId64 " holds %" PRId64 " of %" PRId64 " layers", i, found,
                     expected);
    }
    return RESHARD_OK;
}

static int64_t layer_offset(const struct megatron_source *state, const struct stacks *stacks, struct str prefix, int64_t stage)
{
    uint32_t number = name_map_find(&stacks->names, prefix);
    if (number == NAME_NONE)
        return 0;
    const struct stack_counts *stack = &stacks->stacks[number];
    if (stack == main_stack(stacks))
        return pipeline_first_layer(&state->pipeline, stage);
    int64_t offset = 0;
    for (int64_t i = 0; i < stage; i++)
        offset += stack->counts[i];
    return offset;
}

/* ---- numbers of the whole model ---- */

static int64_t leaves_local_experts(const struct megatron_source *state)
{
    int64_t experts = state->args.experts;
    return experts > 0 ? experts / state->layout.ep : 0;
}

static reshard_status add_pending_items(struct collecting *collecting, const struct stacks *stacks, uint32_t rank_index, size_t *at,
                                        reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    for (; *at < collecting->pending_count && collecting->pending[*at].rank == rank_index; (*at)++) {
        struct pending_item *item = &collecting->pending[*at];
        struct str name;
        struct buffer joined = { 0 };
        bool is_good = path_join(item->parts, item->count, &joined) && arena_str(&state->arena, buffer_str(&joined), &name);
        buffer_release(&joined);
        if (!is_good)
            return error_set_memory(err);
        const struct megatron_rank *rank = &state->ranks[rank_index];
        int64_t layer = item->key.stack ? item->key.layer + layer_offset(state, stacks, stack_prefix(name, &item->key), item->stage) : -1;
        int64_t expert = item->key.expert_size ? item->key.expert + rank->place.ep * leaves_local_experts(state) : -1;
        reshard_status status = partition_renumber_parts(&state->arena, name, &item->key, item->parts, item->count, layer, expert, err);
        if (!status)
            status = megatron_items_add(collecting->items, rank, item->parts, item->count, item->value, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* Without arguments, every rank has as many experts as the highest number says. */
static void leaves_count_experts(struct megatron_source *state)
{
    int64_t local = 0;
    for (uint32_t i = 0; i < state->leaf_count; i++)
        if (state->leaves[i].key.expert >= local)
            local = state->leaves[i].key.expert + 1;
    if (state->args.experts == TRAINING_ARG_UNKNOWN && local > 0)
        state->args.experts = local * state->layout.ep;
}

/* Whether two leaves of one rank and chunk are of the same layer of the same stack. */
static bool same_layer(const struct megatron_leaf *a, const struct megatron_leaf *b)
{
    size_t size = a->key.layer_at + a->key.layer_size;
    return a->rank == b->rank && a->stage == b->stage && size == b->key.layer_at + b->key.layer_size &&
           memcmp(a->name.data, b->name.data, size) == 0;
}

/* Layers and experts in the whole model; anchors: experts of a layer stand together. */
static reshard_status number_leaves(struct collecting *collecting, const struct stacks *stacks, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    const struct megatron_leaf *anchor = NULL;
    for (uint32_t i = 0; i < state->leaf_count; i++) {
        struct megatron_leaf *leaf = &state->leaves[i];
        const struct megatron_rank *rank = &state->ranks[leaf->rank];
        int64_t experts = leaves_local_experts(state);
        leaf->order = i - rank->first_leaf;
        leaf->anchor = leaf->order;
        if (leaf->key.expert_size > 0) {
            if (experts > 0 && leaf->key.expert >= experts)
                return error_set(err, RESHARD_ERR_FORMAT, "'%.*s': expert %" PRId64 " of a rank that has %" PRId64, STR_ARG(leaf->name),
                                 leaf->key.expert, experts);
            if (!anchor || !same_layer(anchor, leaf))
                anchor = leaf;
            leaf->anchor = anchor->order;
            leaf->key.expert += rank->place.ep * experts;
        }
        if (leaf->key.stack)
            leaf->key.layer += layer_offset(state, stacks, stack_prefix(leaf->name, &leaf->key), leaf->stage);
        if (leaf->part_count > 0) {
            reshard_status status = partition_renumber_parts(&state->arena, leaf->name, &leaf->key, (struct path_part *)leaf->parts,
                                                             leaf->part_count, leaf->key.layer, leaf->key.expert, err);
            if (status)
                return status;
        }
    }
    return RESHARD_OK;
}

/* The local names become those of the whole model; the digits' places go with them. */
static reshard_status rename_leaves(struct collecting *collecting, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    for (uint32_t i = 0; i < state->leaf_count; i++) {
        struct megatron_leaf *leaf = &state->leaves[i];
        buffer_clear(&collecting->text);
        if (!partition_renumber(&collecting->text, leaf->name, &leaf->key, 0, leaf->name.size, leaf->key.layer, leaf->key.expert) ||
            !arena_str(&state->arena, buffer_str(&collecting->text), &leaf->name))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static reshard_status number_all(struct collecting *collecting, reshard_error *err)
{
    struct megatron_source *state = collecting->state;
    struct stacks stacks = { .stage_count = state->layout.pp * state->layout.vp };
    reshard_status status = RESHARD_OK;
    size_t at = 0;
    for (uint32_t i = 0; !status && i < state->leaf_count; i++)
        if (state->leaves[i].key.stack)
            status = count_leaf(&stacks, &state->arena, &state->leaves[i], err);
    if (!status)
        status = find_pipeline(collecting, &stacks, err);
    if (!status)
        leaves_count_experts(state);
    if (!status)
        status = number_leaves(collecting, &stacks, err);
    for (uint32_t i = 0; !status && i < state->rank_count; i++)
        status = add_pending_items(collecting, &stacks, i, &at, err);
    if (!status)
        status = rename_leaves(collecting, err);
    name_map_release(&stacks.names);
    free(stacks.stacks);
    return status;
}

static reshard_status check_models(struct megatron_source *state, reshard_error *err)
{
    state->layout.vp = state->ranks[0].models;
    for (uint32_t i = 1; i < state->rank_count; i++)
        if (state->ranks[i].models != state->layout.vp)
            return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' holds %" PRId64 " model chunks, '%.*s' %" PRId64,
                             STR_ARG(state->ranks[0].folder), state->layout.vp, STR_ARG(state->ranks[i].folder), state->ranks[i].models);
    int64_t said = state->args.vp;
    if (said > 1 && said != state->layout.vp)
        return error_set(err, RESHARD_ERR_FORMAT, "the files hold %" PRId64 " model chunks each, the arguments of the run say %" PRId64,
                         state->layout.vp, said);
    return RESHARD_OK;
}

reshard_status megatron_collect_leaves(struct source *source, struct megatron_items *items, reshard_error *err)
{
    struct collecting collecting = { .source = source, .state = megatron_source_of(source), .items = items };
    reshard_status status = RESHARD_OK;
    for (; !status && collecting.rank < collecting.state->rank_count; collecting.rank++)
        status = read_rank(&collecting, err);
    if (!status)
        status = check_models(collecting.state, err);
    if (!status)
        status = number_all(&collecting, err);
    buffer_release(&collecting.text);
    free(collecting.pending);
    return status;
}
