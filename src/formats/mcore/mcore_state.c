/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the common state that tells how a model is spread over ranks. Megatron compares it with its own arguments when it loads:
 * where they agree, it asks for the RNG state of exactly those ranks. So the arguments say what the target is, and where that is not what
 * the source was saved under, that there is no RNG state.
 */
#include "formats/mcore/mcore_items.h"

#include "base/array.h"
#include "base/checked.h"
#include "formats/mcore/mcore_target.h"
#include "formats/shared/parallel_words.h"
#include "formats/shared/value_edit.h"
#include "parallel/state_keys.h"
#include "parallel/training_args.h"
#include "parallel/vocabulary.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PARALLEL_SAVE "ckpt_fully_parallel_save"
#define RANK_PREFIX "mp_rank_"
#define RNG_KEY "rng_state"
#define RERUN_KEY "rerun_state_machine"
#define RERUN_OBJECTS "rerun_state_machine_state"
#define GRID_CELLS_MAX 1000000

/* ---- sizes ---- */

/* A value and its graph's size; of an item that may be NULL. */
static void take_arguments(const struct catalog_item *item, const struct value **value, uint32_t *graph_count)
{
    *value = item ? item->value : NULL;
    *graph_count = item && item->graph ? item->graph->count : 0;
}

/* The arguments of what is laid out anew, if there are any. */
static reshard_status source_arguments(const struct layout_request *request, const struct value **value, uint32_t *graph_count,
                                       reshard_error *err)
{
    const struct catalog_item *item;
    reshard_status status = layout_item_named(request, "args", &item, err);
    take_arguments(status ? NULL : item, value, graph_count);
    return status;
}

/* Those of the reference. */
static reshard_status reference_arguments(const struct layout_request *request, const struct value **value, uint32_t *graph_count,
                                          reshard_error *err)
{
    struct source *like = (struct source *)request->like;
    uint32_t item = catalog_find_item(like->catalog, STR("args"));
    reshard_status status = item == CATALOG_NONE ? RESHARD_OK : source_load_item(like, item, err);
    take_arguments(status || item == CATALOG_NONE ? NULL : &like->catalog->items[item], value, graph_count);
    return status;
}

static int64_t size_or_one(int64_t number)
{
    return number == TRAINING_ARG_UNKNOWN || number < 1 ? 1 : number;
}

static struct mcore_sizes mcore_state_sizes_of(const struct value *arguments)
{
    struct training_args args;
    training_args_read(arguments, &args);
    struct mcore_sizes sizes = { .tp = size_or_one(args.tp),
                                 .pp = size_or_one(args.pp),
                                 .vp = size_or_one(args.vp),
                                 .ep = size_or_one(args.ep),
                                 .cp = size_or_one(training_args_int(&args, "context_parallel_size")),
                                 .dp = size_or_one(args.dp),
                                 .is_known = args.members != NULL,
                                 .parts_by_etp = args.parts_by_etp,
                                 .is_local_spec = args.is_local_spec };
    sizes.etp = args.etp == TRAINING_ARG_UNKNOWN ? sizes.tp : size_or_one(args.etp);
    sizes.spreads_rng = args.spreads_rng && sizes.ep > 1;
    return sizes;
}

static bool sizes_equal(const struct mcore_sizes *a, const struct mcore_sizes *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->vp == b->vp && a->ep == b->ep && a->etp == b->etp;
}

/* The least number of data-parallel ranks, not below that of the sizes, over which the experts can be spread. */
static int64_t ranks_for_experts(const struct mcore_sizes *sizes)
{
    int64_t each, dense, rest, divisor, experts;
    if (!checked_mul_i64(sizes->ep, sizes->etp, &experts) || !checked_mul_i64(sizes->tp, sizes->cp, &dense))
        return sizes->dp;
    for (divisor = experts, rest = dense; rest;) {
        int64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    each = experts / divisor;
    rest = sizes->dp % each;
    return rest && sizes->dp <= INT64_MAX - each ? sizes->dp + each - rest : sizes->dp;
}

static void take_words(const struct layout_request *request, struct mcore_sizes *sizes)
{
    const struct parallel_sizes words = parallel_sizes_of(request);
    if (words.tp) {
        bool same = sizes->etp == sizes->tp;
        sizes->tp = words.tp;
        sizes->etp = same ? sizes->tp : sizes->etp;
    }
    sizes->pp = words.pp ? words.pp : sizes->pp;
    sizes->vp = words.vp ? words.vp : sizes->vp;
    sizes->ep = words.ep ? words.ep : sizes->ep;
    sizes->etp = words.etp ? words.etp : sizes->etp;
    if (words.dp)
        sizes->dp = words.dp;
    else if (words.ep + words.etp > 0)
        sizes->dp = ranks_for_experts(sizes);
}

reshard_status mcore_sizes_choose(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    const struct value *arguments;
    uint32_t graph_count;
    reshard_status status = source_arguments(request, &arguments, &graph_count, err);
    if (status)
        return status;
    state->source_sizes = state->sizes = mcore_state_sizes_of(arguments);
    if (request->like) {
        status = reference_arguments(request, &arguments, &graph_count, err);
        struct mcore_sizes sizes = mcore_state_sizes_of(arguments);
        sizes.parts_by_etp |= state->sizes.parts_by_etp; /* of the newer run */
        if (!status && sizes.is_known)
            state->sizes = sizes;
    }
    take_words(request, &state->sizes);
    return status;
}

bool mcore_layout_changes(const struct target *target)
{
    const struct mcore_target *state = mcore_target_state(target);
    return state->source_sizes.is_known && !sizes_equal(&state->sizes, &state->source_sizes);
}

bool mcore_world_changes(const struct layout_request *request, const struct target *target)
{
    const struct mcore_target *state = mcore_target_state(target);
    const struct mcore_sizes *from = &state->source_sizes, *to = &state->sizes;
    bool are_sizes_written = !mcore_is_from(request, target->driver) || state->optimizer_layout != MCORE_BY_PARAMETER;
    return mcore_layout_changes(target) || (from->is_known && are_sizes_written && (from->dp != to->dp || from->cp != to->cp));
}

/* ---- arguments ---- */

static void set_sizes(struct value_edit *editing, const struct mcore_sizes *sizes, bool is_split_kept)
{
    static const char *const split[] = { "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                                         "pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage",
                                         "num_virtual_stages_per_pipeline_rank" };
    struct value *none = value_new(editing->graph, VALUE_NONE);
    value_edit_number(editing, "tensor_model_parallel_size", sizes->tp, true);
    value_edit_number(editing, "pipeline_model_parallel_size", sizes->pp, true);
    value_edit_set(editing, "virtual_pipeline_model_parallel_size", sizes->vp > 1 ? value_new_int(editing->graph, sizes->vp) : none, false);
    value_edit_number(editing, "expert_model_parallel_size", sizes->ep, false);
    value_edit_number(editing, "expert_tensor_parallel_size", sizes->etp, false);
    value_edit_number(editing, "world_size", sizes->tp * sizes->pp * sizes->cp * sizes->dp, false);
    value_edit_number(editing, "data_parallel_size", sizes->dp, false);
    for (size_t i = 0; !is_split_kept && i < sizeof(split) / sizeof(split[0]); i++)
        value_edit_set(editing, split[i], none, false);
}

/* A run that takes its arguments from the checkpoint has this many rows, and TP must divide them. What is stored may have fewer or more. */
static void set_vocabulary(struct value_edit *editing, const struct value *arguments, int64_t tp)
{
    struct training_args args;
    int64_t least, most;
    training_args_read(arguments, &args);
    if (tp != args.tp && padded_vocabulary_rows(&args, tp, &least, &most) && least == most)
        value_edit_number(editing, "padded_vocab_size", least, false);
}

static bool has_optimizer(const struct layout_request *request, struct mcore_target *state)
{
    if (path_tree_child(&state->dcp.tree, 0, STR("optimizer")) != CATALOG_NONE)
        return true;
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++) {
        if (state_key_is_any(request->wanted->tensors[i].key))
            return true;
    }
    return false;
}

/*
 * What decides how the run of the reference spreads a model over stages and its optimizer over buffers. State that lies in buffers is laid
 * out for that run.
 */
static reshard_status take_reference(const struct layout_request *request, struct value_edit *editing, reshard_error *err)
{
    static const char *const split[] = { "decoder_first_pipeline_num_layers",    "decoder_last_pipeline_num_layers",
                                         "pipeline_model_parallel_layout",       "num_layers_per_virtual_pipeline_stage",
                                         "num_virtual_stages_per_pipeline_rank", "account_for_embedding_in_pipeline_split",
                                         "account_for_loss_in_pipeline_split" };
    static const char *const buffers[] = { "use_distributed_optimizer",
                                           "overlap_grad_reduce",
                                           "ddp_bucket_size",
                                           "ddp_num_buckets",
                                           "ddp_pad_buckets_for_high_nccl_busbw",
                                           "overlap_param_gather_with_optimizer_step",
                                           "accumulate_allreduce_grads_in_fp32",
                                           "num_distributed_optimizer_instances",
                                           "transformer_impl",
                                           "moe_grouped_gemm",
                                           PARTS_EXPERTS_BY_ETP };
    const struct value *arguments;
    uint32_t graph_count = 0;
    reshard_status status = reference_arguments(request, &arguments, &graph_count, err);
    const struct value *members = status ? NULL : namespace_members(arguments);
    bool is_split_taken = !layout_number(request, "pp") && !layout_number(request, "vp");
    size_t split_count = is_split_taken ? sizeof(split) / sizeof(split[0]) : 0, count = split_count + sizeof(buffers) / sizeof(buffers[0]);
    for (size_t i = 0; members && i < count; i++) {
        const char *name = i < split_count ? split[i] : buffers[i - split_count];
        const struct value *value = value_dict_get(members, name);
        if (value)
            value_edit_set(editing, name, value_copy(editing->graph, value, graph_count), true);
    }
    return status;
}

/* The arguments as the target's; those of a torch_dist checkpoint whose layout stays are left as they are. */
static reshard_status edit_arguments(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    bool is_buffered = state->optimizer_layout == MCORE_BUCKETS || state->optimizer_layout == MCORE_GATHERED;
    bool is_changed = mcore_layout_changes(target), is_same_format = mcore_is_from(request, target->driver);
    uint32_t node = path_tree_child(&state->dcp.tree, 0, STR("args")), graph_count = 0;
    const struct value *arguments = NULL;
    if (node == CATALOG_NONE || !state->dcp.tree.nodes[node].is_leaf || state->dcp.tree.nodes[node].wanted == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = source_arguments(request, &arguments, &graph_count, err);
    if (status || !arguments || !namespace_members(arguments))
        return status;
    /* Releases up to 0.12 tell the layouts of the optimizer's state apart by it. */
    const struct value *members = namespace_members(arguments);
    bool is_parallel_missing = state->optimizer_layout == MCORE_MODEL_SPACE && value_dict_get(members, PARALLEL_SAVE) &&
                               !value_dict_is_true(members, PARALLEL_SAVE);
    if (is_same_format && !is_changed && !is_buffered && !is_parallel_missing && !state->lacks_rng)
        return RESHARD_OK;
    struct value *copy = value_copy(&state->dcp.extra, arguments, graph_count);
    struct value_edit editing = { .graph = &state->dcp.extra };
    if (!copy)
        return error_set_memory(err);
    editing.members = (struct value *)namespace_members(copy);
    set_sizes(&editing, &state->sizes, state->sizes.pp == state->source_sizes.pp && state->sizes.vp == state->source_sizes.vp);
    if (request->like && is_buffered)
        status = take_reference(request, &editing, err);
    if (status)
        return status;
    if (state->optimizer_layout == MCORE_GATHERED || is_parallel_missing)
        value_edit_bool(&editing, PARALLEL_SAVE, is_parallel_missing);
    set_vocabulary(&editing, arguments, state->sizes.tp);
    value_edit_set(&editing, "ckpt_format", value_new_str(&state->dcp.extra, str_of(state->flavour->format)), false);
    if (is_changed || state->lacks_rng)
        value_edit_bool(&editing, "no_save_rng", true);
    if (!has_optimizer(request, state))
        value_edit_bool(&editing, "no_save_optim", true);
    if (editing.failed)
        return error_set_memory(err);
    state->dcp.tree.nodes[node].value = copy;
    return is_changed ? target_note_changed(target, NOTE_ARGUMENTS, STR("args"), err,
                                            "the parallel sizes are those of the target, and no_save_rng is set")
                      : RESHARD_OK;
}

/* ---- the RNG state ---- */

bool mcore_is_rank_item(const struct catalog *wanted, const struct catalog_item *item)
{
    return item->path != CATALOG_NONE && item->path_count > 1 && wanted->paths[item->path].kind == PATH_KEY &&
           str_starts_with(wanted->paths[item->path].key, RANK_PREFIX);
}

/* Wanted items of single ranks. */
struct rank_items {
    struct name_map names;
    uint32_t *items; /* by name */
    bool *is_taken;  /* by item */
};

/* The wanted item of a rank's RNG state, CATALOG_NONE if it has none of its own. */
static uint32_t take_rank_rng(struct rank_items *ranks, const struct mcore_sizes *sizes, int64_t tp, int64_t pp, int64_t ep)
{
    char name[128];
    int size = snprintf(name, sizeof(name), RANK_PREFIX "%02" PRId64, tp);
    if (sizes->pp > 1)
        size += snprintf(name + size, sizeof(name) - (size_t)size, "_%03" PRId64, pp);
    if (sizes->ep > 1)
        size += snprintf(name + size, sizeof(name) - (size_t)size, "_%03" PRId64, ep);
    size += snprintf(name + size, sizeof(name) - (size_t)size, "." RNG_KEY);
    uint32_t index = ranks->names.count ? name_map_find(&ranks->names, (struct str){ name, (size_t)size }) : NAME_NONE;
    if (index == NAME_NONE)
        return CATALOG_NONE;
    ranks->is_taken[ranks->items[index]] = true;
    return ranks->items[index];
}

/* Data-parallel ranks that have states of their own; those of context parallelism count among them. */
static int64_t rng_replicas(const struct mcore_sizes *sizes)
{
    int64_t replicas;
    if (!sizes->spreads_rng)
        return 1;
    return checked_mul_i64(sizes->dp, sizes->cp, &replicas) ? replicas : INT64_MAX;
}

/* One cell of the grid: the rank's own state, else the first rank's, from which it does not differ. */
static reshard_status add_cell(struct target *target, uint32_t node, uint32_t item, const int64_t at[3], const struct mcore_sizes *sizes,
                               reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    struct dcp_stored stored = { .wanted = item, .node = CATALOG_NONE, .is_in_list = true };
    struct arena *arena = &target->catalog->arena;
    char *key = sizes->spreads_rng
                    ? arena_printf(arena, RNG_KEY "/shard_%" PRId64 ".%" PRId64 ".%" PRId64 "_%" PRId64 ".%" PRId64 ".%" PRId64,
                                   at[0], at[1], at[2], sizes->pp, sizes->tp, rng_replicas(sizes))
                    : arena_printf(arena, RNG_KEY "/shard_%" PRId64 ".%" PRId64 "_%" PRId64 ".%" PRId64,
                                   at[0], at[1], sizes->pp, sizes->tp);
    if (!key)
        return error_set_memory(err);
    stored.key = str_of(key);
    if (item == CATALOG_NONE)
        stored.node = node;
    return dcp_stored_add(&state->dcp, &stored, err);
}

static reshard_status add_grid(const struct layout_request *request, struct target *target, uint32_t node, struct rank_items *ranks,
                               reshard_error *err)
{
    const struct mcore_sizes *sizes = &mcore_target_state(target)->sizes;
    int64_t replicas = rng_replicas(sizes);
    if (sizes->pp > GRID_CELLS_MAX || sizes->tp > GRID_CELLS_MAX || replicas > GRID_CELLS_MAX ||
        sizes->pp * sizes->tp > GRID_CELLS_MAX / replicas)
        return error_set(err, RESHARD_ERR_FORMAT, "args: %" PRId64 " x %" PRId64 " x %" PRId64 " ranks", sizes->tp, sizes->pp, replicas);
    uint64_t cells = (uint64_t)(sizes->pp * sizes->tp * replicas);
    reshard_status status =
        cells > request->limits.objects ? error_set_limit(err, "objects", cells, request->limits.objects) : RESHARD_OK;
    for (int64_t pp = 0; pp < sizes->pp && !status; pp++) {
        for (int64_t tp = 0; tp < sizes->tp && !status; tp++) {
            for (int64_t dp = 0; dp < replicas && !status; dp++) {
                int64_t ep = (dp * sizes->tp + tp) / sizes->etp % sizes->ep;
                status = add_cell(target, node, take_rank_rng(ranks, sizes, tp, pp, ep), (int64_t[]){ pp, tp, dp }, sizes, err);
            }
        }
    }
    return status;
}

/* All releases but 0.16 store the first data-parallel rank's alone, although expert-parallel ranks may differ. */
static reshard_status note_other_ranks(struct target *target, const struct catalog *wanted, const struct rank_items *ranks,
                                       reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->item_count && !status; i++) {
        struct str key = wanted->items[i].key;
        if (mcore_is_rank_item(wanted, &wanted->items[i]) && str_ends_with(key, "." RNG_KEY) && !ranks->is_taken[i])
            status = target_note_dropped(target, NOTE_RANKS, key, err, "torch_dist keeps the first data-parallel rank's alone");
    }
    return status;
}

/* An RNG state that is a plain item becomes ShardedObjects: in the common state it would be in the way of those that Megatron asks for. */
static reshard_status take_rng_state(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    const struct catalog *wanted = request->wanted;
    uint32_t node = path_tree_child(&state->dcp.tree, 0, STR(RNG_KEY));
    if (node == CATALOG_NONE)
        return RESHARD_OK;
    state->dcp.tree.nodes[node].is_left_out = true;
    if (mcore_layout_changes(target))
        return target_note_dropped(target, NOTE_LAYOUT, STR(RNG_KEY), err, "it belongs to the layout that it was saved under");
    struct rank_items ranks = { .items = array_zeroed(wanted->item_count, sizeof(*ranks.items)),
                                .is_taken = array_zeroed(wanted->item_count, sizeof(*ranks.is_taken)) };
    reshard_status status = ranks.items && ranks.is_taken ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < wanted->item_count && !status; i++) {
        if (!mcore_is_rank_item(wanted, &wanted->items[i]))
            continue;
        uint32_t index = name_map_intern(&ranks.names, wanted->items[i].key, NULL);
        if (index == NAME_NONE)
            status = error_set_memory(err);
        else
            ranks.items[index] = i;
    }
    if (!status)
        status = add_grid(request, target, node, &ranks, err);
    if (!status)
        status = note_other_ranks(target, wanted, &ranks, err);
    name_map_release(&ranks.names);
    free(ranks.items);
    free(ranks.is_taken);
    return status;
}

/* A run that finds the rerun state machine's state asks for that of every rank. So it stands where these do, and not elsewhere. */
static reshard_status take_rerun_state(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    uint32_t node = path_tree_child(&state->dcp.tree, 0, STR(RERUN_KEY));
    bool has_ranks = false;
    if (node == CATALOG_NONE)
        return RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !has_ranks; i++) {
        struct str key;
        has_ranks = mcore_object_key(request->wanted->items[i].key, &key) && str_is(key, RERUN_OBJECTS);
    }
    if (has_ranks && !mcore_world_changes(request, target))
        return RESHARD_OK;
    state->dcp.tree.nodes[node].is_left_out = true;
    return target_note_dropped(target, NOTE_LAYOUT, STR(RERUN_KEY), err, "%s",
                               has_ranks ? "it belongs to the layout that it was saved under" : "that of each rank is not there");
}

reshard_status mcore_state_adapt(const struct layout_request *request, struct target *target, reshard_error *err)
{
    reshard_status status = edit_arguments(request, target, err);
    if (!status)
        status = mcore_optimizer_adapt(request, target, err);
    if (!status)
        status = take_rerun_state(request, target, err);
    return status ? status : take_rng_state(request, target, err);
}
