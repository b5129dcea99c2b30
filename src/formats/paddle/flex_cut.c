/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks hold what of each tensor, after the rules of models/paddle.rules and the degrees of the parallel dimensions. */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "base/model_data.h"
#include "base/name_map.h"
#include "parallel/partition_rules.h"
#include "parallel/pipeline.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- parameters and their state ---- */

/* What Paddle's optimizers call the state of a parameter that is not there itself. A master weight alone may be a parameter of that name.
 */
static const char *const state_suffixes[] = { ".moment1_0",  ".moment2_0",       ".moment2_max_0",
                                              ".velocity_0", ".beta1_pow_acc_0", ".beta2_pow_acc_0" };
static const char master_suffix[] = ".w_0";

struct key_index {
    struct name_map tensors, parameters;
    uint32_t *tensor_of;
};

static struct str without(struct str key, size_t suffix)
{
    return (struct str){ key.data, key.size - suffix };
}

/* Whether the key with another suffix is a tensor. */
static bool has_sibling(const struct key_index *index, struct buffer *scratch, struct str base, const char *suffix)
{
    buffer_clear(scratch);
    buffer_append_str(scratch, base);
    buffer_append_text(scratch, suffix);
    return !scratch->failed && name_map_find(&index->tensors, buffer_str(scratch)) != NAME_NONE;
}

/* The parameter's key in that of its state: what stands before the last part, if that is a tensor, or the last part is Paddle's. The key
 * itself if it is no state. */
static struct str parameter_key(const struct key_index *index, struct buffer *scratch, struct str key)
{
    size_t dot = key.size;
    while (dot > 0 && key.data[dot - 1] != '.')
        dot--;
    struct str base = { key.data, dot ? dot - 1 : 0 };
    if (base.size && name_map_find(&index->tensors, base) != NAME_NONE)
        return base;
    for (size_t i = 0; i < sizeof(state_suffixes) / sizeof(state_suffixes[0]); i++)
        if (str_ends_with(key, state_suffixes[i]))
            return without(key, strlen(state_suffixes[i]));
    if (str_ends_with(key, master_suffix) && has_sibling(index, scratch, without(key, strlen(master_suffix)), state_suffixes[0]))
        return without(key, strlen(master_suffix));
    return key;
}

static bool is_scalar_state(struct str key)
{
    return str_ends_with(key, ".beta1_pow_acc_0") || str_ends_with(key, ".beta2_pow_acc_0");
}

/* Notes the tensor with its parameter, which may be new. */
static reshard_status cut_add_tensor(struct flex_cutting *cutting, struct key_index *index, struct buffer *scratch, uint32_t number,
                                     reshard_error *err)
{
    const struct catalog_tensor *tensor = &cutting->wanted->tensors[number];
    struct str key = parameter_key(index, scratch, tensor->key);
    bool was_new, is_state = key.size != tensor->key.size;
    uint32_t parameter = name_map_intern(&index->parameters, key, &was_new);
    if (parameter == NAME_NONE || !ARRAY_ROOM(cutting->parameters, cutting->parameter_count, cutting->parameter_capacity))
        return error_set_memory(err);
    if (was_new) {
        uint32_t own = name_map_find(&index->tensors, key);
        cutting->parameters[cutting->parameter_count++] =
            (struct flex_parameter){ .key = key, .tensor = own == NAME_NONE ? CATALOG_NONE : index->tensor_of[own], .expert_rank = -1 };
    }
    struct flex_parameter *known = &cutting->parameters[parameter];
    bool is_scalar = is_state && is_scalar_state(tensor->key);
    if (known->tensor == CATALOG_NONE && !is_scalar)
        known->tensor = number;
    known->has_state |= is_state && !is_scalar;
    known->has_master |= is_state && str_ends_with(tensor->key, master_suffix);
    cutting->parts[number] = (struct flex_member){ parameter, is_state, !is_scalar };
    return RESHARD_OK;
}

static reshard_status flex_cut_find_parameters(struct flex_cutting *cutting, reshard_error *err)
{
    const struct catalog *wanted = cutting->wanted;
    struct key_index index = { .tensor_of = array_new(wanted->tensor_count, sizeof(uint32_t)) };
    struct buffer scratch = { 0 };
    reshard_status status = index.tensor_of ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        bool was_new;
        uint32_t number = flex_is_stored(&wanted->tensors[i]) ? name_map_intern(&index.tensors, wanted->tensors[i].key, &was_new) : 0;
        if (number == NAME_NONE)
            status = error_set_memory(err);
        else if (flex_is_stored(&wanted->tensors[i]))
            index.tensor_of[number] = i;
    }
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++)
        if (flex_is_stored(&wanted->tensors[i]))
            status = cut_add_tensor(cutting, &index, &scratch, i, err);
    /* State of another shape is whole on every rank. */
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        struct flex_member *part = &cutting->parts[i];
        if (!flex_is_stored(&wanted->tensors[i]))
            continue;
        uint32_t like = cutting->parameters[part->parameter].tensor;
        part->is_shaped =
            part->is_shaped && like != CATALOG_NONE && catalog_same_shape(wanted, &wanted->tensors[i], wanted, &wanted->tensors[like]);
    }
    name_map_release(&index.tensors);
    name_map_release(&index.parameters);
    free(index.tensor_of);
    buffer_release(&scratch);
    return status;
}

/* ---- rules ---- */

static reshard_status fail_division(const struct flex_parameter *parameter, int axis, int64_t extent, uint32_t tp, reshard_error *err)
{
    char divisors[DIVISORS_TEXT_MAX];
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': axis %d has %" PRId64 " elements, which tp=%" PRIu32 " does not divide",
              STR_ARG(parameter->key), axis, extent, tp);
    error_hint(err, "tp may be %s here; uneven parts are taken from a reference: reshard_convert_options.like",
               divisors_text(extent, divisors));
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status apply_rule(const struct flex_cutting *cutting, const struct partition_rules *rules, struct flex_parameter *parameter,
                                 reshard_error *err)
{
    struct partition_key key;
    parameter->axis = parameter->layer = parameter->expert = -1;
    if (!partition_key_read(rules, parameter->key, &key))
        return RESHARD_OK;
    parameter->layer = key.layer;
    parameter->expert = key.expert;
    parameter->is_own_stack = key.stack && key.stack->is_own;
    if (!key.stack || parameter->is_own_stack)
        parameter->stage = partition_key_place(rules, parameter->key) == PLACE_LAST ? cutting->degrees.pp - 1 : 0;
    if (parameter->tensor == CATALOG_NONE || !key.rule->is_cut || cutting->degrees.tp == 1)
        return RESHARD_OK;
    const struct catalog_tensor *tensor = &cutting->wanted->tensors[parameter->tensor];
    const int64_t *shape = catalog_vector_at(cutting->wanted, tensor->shape);
    int axis = key.rule->axis;
    /* The head of a model is stored either way; the vocabulary is the longer axis. */
    if (key.rule->is_vocabulary && tensor->rank == 2)
        axis = shape[0] > shape[1] ? 0 : 1;
    if (axis >= tensor->rank)
        return RESHARD_OK;
    if (shape[axis] % cutting->degrees.tp)
        return fail_division(parameter, axis, shape[axis], cutting->degrees.tp, err);
    parameter->axis = axis;
    return RESHARD_OK;
}

/* Layers to stages, after their number in the model. */
static reshard_status place_layers(struct flex_cutting *cutting, reshard_error *err)
{
    struct training_args args;
    struct pipeline_split split;
    int64_t layers = 0;
    training_args_read(NULL, &args);
    for (uint32_t i = 0; i < cutting->parameter_count; i++) {
        const struct flex_parameter *parameter = &cutting->parameters[i];
        if (!parameter->is_own_stack && parameter->layer >= layers)
            layers = parameter->layer + 1;
    }
    args.pp = cutting->degrees.pp;
    args.vp = cutting->degrees.vp;
    args.num_layers = layers;
    reshard_status status = pipeline_split_make(&args, &cutting->arena, &split, err);
    for (uint32_t i = 0; i < cutting->parameter_count && !status; i++) {
        struct flex_parameter *parameter = &cutting->parameters[i];
        if (!parameter->is_own_stack && parameter->layer >= 0)
            parameter->stage = (uint32_t)(pipeline_stage_of(&split, parameter->layer) % split.pp);
    }
    return status;
}

/* Experts to the ranks of expert parallelism: equally many to each, in order. */
static reshard_status place_experts(struct flex_cutting *cutting, reshard_error *err)
{
    int64_t experts = 0, each = 1;
    uint32_t ep = cutting->degrees.ep;
    for (uint32_t i = 0; i < cutting->parameter_count; i++)
        if (cutting->parameters[i].expert >= experts)
            experts = cutting->parameters[i].expert + 1;
    if (ep == 1 || experts == 0)
        return RESHARD_OK;
    if (experts % ep) {
        char divisors[DIVISORS_TEXT_MAX];
        error_set(err, RESHARD_ERR_UNSUPPORTED, "%" PRId64 " experts do not divide evenly over ep=%" PRIu32, experts, ep);
        error_hint(err, "ep may be %s", divisors_text(experts, divisors));
        return RESHARD_ERR_UNSUPPORTED;
    }
    each = experts / ep;
    for (uint32_t i = 0; i < cutting->parameter_count; i++)
        if (cutting->parameters[i].expert >= 0) {
            cutting->parameters[i].expert_rank = (int32_t)(cutting->parameters[i].expert / each);
            if (cutting->degrees.is_ep_over_tp)
                cutting->parameters[i].axis = -1;
        }
    return RESHARD_OK;
}

/* ---- shared state ---- */

/* Which of the ranks of expert parallelism a rank is: the ranks of a stage take these places in turn, the tensor-parallel ones first. */
static uint32_t expert_rank_of(const struct flex_degrees *degrees, const struct flex_place *place)
{
    return ((place->data * degrees->sharding + place->shard) * degrees->tp + place->part) % degrees->ep;
}

/* How many ranks share the state of a parameter. Those that hold an expert are those of its place, tensor-parallel ones among them. */
static uint32_t sharing_ranks(const struct flex_degrees *degrees, const struct flex_parameter *parameter)
{
    const uint32_t ranks = degrees->sharding * degrees->tp;
    if (degrees->stage == SHARDING_NONE)
        return 1;
    if (parameter->expert_rank < 0)
        return degrees->sharding;
    return ranks % degrees->ep == 0 ? ranks / degrees->ep : 1;
}

static uint32_t sharing_position(const struct flex_degrees *degrees, const struct flex_parameter *parameter, const struct flex_place *place)
{
    if (parameter->expert_rank < 0)
        return degrees->stage == SHARDING_NONE ? 0 : place->shard;
    return sharing_ranks(degrees, parameter) > 1 ? (place->shard * degrees->tp + place->part) / degrees->ep : 0;
}

static bool in_group(const struct flex_parameter *parameter, uint32_t stage, int32_t expert_rank)
{
    return parameter->has_state && parameter->tensor != CATALOG_NONE && parameter->stage == stage && parameter->expert_rank == expert_rank;
}

/* Shares the state of the parameters of one stage and expert rank (-1: what is no expert's) out. */
static reshard_status share_group(struct flex_cutting *cutting, uint32_t stage, int32_t expert_rank, reshard_error *err)
{
    struct sharded_parameter *shares = array_new(cutting->parameter_count, sizeof(*shares));
    uint32_t count = 0, ranks = 1;
    if (!shares)
        return error_set_memory(err);
    for (uint32_t i = 0; i < cutting->parameter_count; i++) {
        const struct flex_parameter *parameter = &cutting->parameters[i];
        if (!in_group(parameter, stage, expert_rank))
            continue;
        const struct catalog_tensor *tensor = &cutting->wanted->tensors[parameter->tensor];
        int64_t elements = box_volume(tensor->rank, catalog_vector_at(cutting->wanted, tensor->shape));
        bool is_own = str_equal(tensor->key, parameter->key);
        enum dtype dtype = !is_own && parameter->has_master ? DTYPE_BF16 : tensor->dtype;
        shares[count++] =
            (struct sharded_parameter){ .elements = parameter->axis >= 0 ? elements / cutting->degrees.tp : elements, .dtype = dtype };
        ranks = sharing_ranks(&cutting->degrees, parameter);
    }
    reshard_status status = sharding_assign(cutting->degrees.stage, ranks, cutting->degrees.segment, shares, count, err);
    count = 0;
    for (uint32_t i = 0; i < cutting->parameter_count && !status; i++)
        if (in_group(&cutting->parameters[i], stage, expert_rank))
            cutting->parameters[i].share = shares[count++];
    free(shares);
    return status;
}

static reshard_status share_state(struct flex_cutting *cutting, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (cutting->degrees.stage == SHARDING_NONE)
        return RESHARD_OK;
    for (uint32_t stage = 0; stage < cutting->degrees.pp && !status; stage++) {
        status = share_group(cutting, stage, -1, err);
        for (uint32_t rank = 0; cutting->degrees.ep > 1 && rank < cutting->degrees.ep && !status; rank++)
            status = share_group(cutting, stage, (int32_t)rank, err);
    }
    return status;
}

/* ---- all of it ---- */

reshard_status flex_cutting_make(const struct layout_request *request, const struct flex_degrees *degrees, struct flex_cutting *out,
                                 reshard_error *err)
{
    const struct model_data *data = model_data_find(STR("paddle.rules"));
    struct partition_rules rules;
    *out = (struct flex_cutting){ .wanted = request->wanted, .degrees = *degrees };
    if (!data)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/paddle.rules");
    out->parts = array_zeroed(request->wanted->tensor_count, sizeof(*out->parts));
    if (!out->parts)
        return error_set_memory(err);
    reshard_status status = partition_rules_parse(data->text, &out->arena, &rules, err);
    if (!status)
        status = flex_cut_find_parameters(out, err);
    if (!status)
        status = flex_order_parameters(out, err);
    for (uint32_t i = 0; i < out->parameter_count && !status; i++)
        status = apply_rule(out, &rules, &out->parameters[i], err);
    if (!status && degrees->pp > 1)
        status = place_layers(out, err);
    if (!status)
        status = place_experts(out, err);
    if (!status)
        status = share_state(out, err);
    return status ? status : flex_order_tensors(out, err);
}

void flex_cutting_release(struct flex_cutting *cutting)
{
    free(cutting->parts);
    free(cutting->parameters);
    free(cutting->order);
    arena_release(&cutting->arena);
    *cutting = (struct flex_cutting){ 0 };
}

/* ---- what a rank holds ---- */

bool flex_held_of(const struct flex_cutting *cutting, uint32_t tensor, const struct flex_place *place, struct flex_held *out)
{
    const struct flex_degrees *degrees = &cutting->degrees;
    const struct flex_member *part = &cutting->parts[tensor];
    const struct flex_parameter *parameter = &cutting->parameters[part->parameter];
    const struct catalog_tensor *info = &cutting->wanted->tensors[tensor];
    if (parameter->stage != place->stage ||
        (parameter->expert_rank >= 0 && expert_rank_of(degrees, place) != (uint32_t)parameter->expert_rank))
        return false;
    memset(out->start, 0, sizeof(out->start));
    if (info->rank)
        memcpy(out->extent, catalog_vector_at(cutting->wanted, info->shape), (size_t)info->rank * sizeof(*out->extent));
    out->number = 0;
    if (part->is_shaped && parameter->axis >= 0) {
        out->extent[parameter->axis] /= degrees->tp;
        out->start[parameter->axis] = out->extent[parameter->axis] * place->part;
        out->number = place->part;
    }
    out->begin = 0;
    out->count = -1;
    if (!part->is_state || degrees->stage == SHARDING_NONE || !parameter->has_state || !parameter->share.elements)
        return true;
    uint32_t position = sharing_position(degrees, parameter, place);
    int64_t end;
    sharding_range(&parameter->share, position, &out->begin, &end);
    if (end == out->begin)
        return false;
    if (part->is_shaped && parameter->share.part) {
        out->count = end - out->begin;
        out->number = out->number * sharing_ranks(degrees, parameter) + position;
    } else {
        out->begin = 0;
    }
    return true;
}

uint32_t flex_piece_numbers(const struct flex_cutting *cutting, uint32_t tensor)
{
    const struct flex_member *part = &cutting->parts[tensor];
    const struct flex_parameter *parameter = &cutting->parameters[part->parameter];
    uint32_t numbers = part->is_shaped && parameter->axis >= 0 ? cutting->degrees.tp : 1;
    bool is_flat = part->is_state && part->is_shaped && parameter->share.part;
    return is_flat ? numbers * sharing_ranks(&cutting->degrees, parameter) : numbers;
}
