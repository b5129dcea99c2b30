/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/rank_parameters.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/model_data.h"
#include "parallel/state_keys.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

/* One weight of the catalog while its layers and experts are taken apart. */
struct taking {
    struct parallel_model *model;
    const struct catalog *catalog;
    uint32_t tensor;
    struct parameter_name name;
    struct cut *cut;
    int64_t expert_count;
    int64_t matrix_experts, *matrix_shape;
};

static reshard_status rank_read_data(struct parallel_model *model, reshard_error *err)
{
    const struct model_data *rules = model_data_find(STR("megatron.rules")), *names = model_data_find(STR("megatron.names"));
    if (!rules || !names)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/megatron.rules or models/megatron.names");
    reshard_status status = partition_rules_parse(rules->text, &model->arena, &model->rules, err);
    return status ? status : parameter_names_parse(names->text, &model->arena, &model->names, err);
}

static int64_t at_least_one(int64_t number)
{
    return number < 1 ? 1 : number;
}

static reshard_status rank_read_run(struct parallel_model *model, const struct value *namespace, reshard_error *err)
{
    struct training_args *args = &model->args;
    training_args_read(namespace, args);
    if (!args->members)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "without the arguments of the run ('args') the parameters of its ranks are not known");
    args->pp = at_least_one(args->pp);
    args->vp = at_least_one(args->vp);
    int64_t tp = at_least_one(args->tp);
    model->context = (struct cut_context){ .rules = &model->rules, .args = args, .is_gated = training_args_are_gated(args),
                                           .is_split_down = args->is_local_spec, .version_order = 2 };
    model->context.layout = (struct parallel_layout){ tp, args->pp, args->vp, at_least_one(args->ep), args->etp < 1 ? tp : args->etp };
    model->experts_are_apart = experts_are_apart(args->parts_by_etp, tp, model->context.layout.ep, model->context.layout.etp);
    return pipeline_split_make(args, &model->arena, &model->pipeline, err);
}

/* ---- parameters ---- */

static struct model_parameter *rank_add_parameter(struct parallel_model *model, uint64_t most)
{
    if (model->count >= most || !ARRAY_ROOM(model->parameters, model->count, model->capacity))
        return NULL;
    return &model->parameters[model->count++];
}

/* Pipeline rank and chunk of a parameter. */
static bool place_parameter(const struct parallel_model *model, const struct partition_key *key, struct str name,
                            struct model_parameter *out)
{
    int64_t pp = model->pipeline.pp, stage = pipeline_stage_of_key(&model->pipeline, &model->rules, name, key);
    out->stage = stage % pp;
    out->chunk = stage / pp;
    return stage < pp * model->pipeline.vp;
}

/* A copy on another stage has a place in that stage's buffers. */
static reshard_status rank_add_copy(struct taking *taking, struct model_parameter made, struct str name, int64_t stage, reshard_error *err)
{
    struct parallel_model *model = taking->model;
    if (!parameter_name_read(&model->names, name_conditions_of(&model->args), name, &made.name))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the order of '%.*s' among the parameters is not known", STR_ARG(name));
    struct model_parameter *added = rank_add_parameter(model, UINT32_MAX);
    if (!added)
        return error_set_memory(err);
    made.text = name;
    made.stage = stage % model->pipeline.pp;
    made.chunk = stage / model->pipeline.pp;
    made.is_copy = true;
    *added = made;
    return RESHARD_OK;
}

/* Of a word embedding: where it is tied, the last stage has it as its output layer too; where further tokens are predicted, their stage
 * has it under its own name. */
static reshard_status rank_add_copies(struct taking *taking, uint32_t original, struct str output, reshard_error *err)
{
    struct parallel_model *model = taking->model;
    const struct pipeline_split *pipeline = &model->pipeline;
    const bool is_tied = model->args.is_untied == 0, predicts = model->args.mtp_layers > 0;
    reshard_status status = RESHARD_OK;
    if (pipeline->pp == 1 || !(is_tied || predicts))
        return RESHARD_OK;
    if (is_tied && !pipeline_shares_output(pipeline, &model->args))
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "'%.*s' is tied, and further tokens are predicted on the last of several stages: what Megatron Core has there as "
                         "output layer is in no file of this kind", STR_ARG(model->parameters[original].text));
    model->parameters[original].is_shared_embedding = true;
    struct model_parameter copy = model->parameters[original];
    if (is_tied)
        status = rank_add_copy(taking, copy, output, pipeline->pp * pipeline->vp - 1, err);
    copy.is_embedding = false; /* which says which rate of learning it has, and is not said of this one */
    if (!status && predicts && pipeline->mtp_stage > 0)
        status = rank_add_copy(taking, copy, copy.text, pipeline->mtp_stage, err);
    return status;
}

static const struct partition_copy *rank_copy_rule(const struct parallel_model *model, struct str name)
{
    for (uint32_t i = 0; i < model->rules.copy_count; i++)
        if (str_equal(model->rules.copies[i].original, name))
            return &model->rules.copies[i];
    return NULL;
}

static reshard_status add_one(struct taking *taking, const int64_t *lead, int lead_count, reshard_error *err)
{
    struct parallel_model *model = taking->model;
    const struct catalog *catalog = taking->catalog;
    struct buffer text = { 0 };
    struct partition_key key;
    const uint32_t number = model->count;
    struct model_parameter *made = rank_add_parameter(model, catalog->limits.tensors);
    if (!made)
        return error_set(err, RESHARD_ERR_MEMORY, "no memory for the parameters of the model, or more than the limit tensors=%" PRIu64,
                         catalog->limits.tensors);
    *made = (struct model_parameter){ .tensor = taking->tensor, .lead_count = lead_count, .name = taking->name, .cut = taking->cut };
    for (int i = 0, used = 0; i < made->name.number_count; i++) {
        if (made->name.numbers[i] < 0)
            made->name.numbers[i] = made->lead[used] = lead[used], used++;
    }
    parameter_name_write(&model->names, &made->name, &text);
    bool kept = !text.failed && arena_str(&model->arena, (struct str){ (char *)text.data, text.size }, &made->text);
    buffer_release(&text);
    if (!kept)
        return error_set_memory(err);
    partition_key_read(&model->rules, made->text, &key);
    if (!place_parameter(model, &key, made->text, made))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is of a layer beyond those that the arguments place on stages",
                         STR_ARG(made->text));
    made->expert = key.expert;
    made->matrix_experts = taking->matrix_experts;
    made->matrix_shape = taking->matrix_shape;
    made->is_expert = key.expert >= 0 && model->experts_are_apart;
    if (made->is_expert)
        made->expert_rank = key.expert / (taking->expert_count / model->context.layout.ep);
    made->is_embedding = key.rule && key.rule->is_vocabulary && taking->cut->rank == 2;
    const struct partition_copy *copy = rank_copy_rule(model, made->text);
    return copy ? rank_add_copies(taking, number, copy->copy, err) : RESHARD_OK;
}

/* ---- weights ---- */

/* Number of experts: the extent of the axis that stands for the last number, or the argument. */
static int64_t rank_count_experts(const struct taking *taking, const int64_t *shape, int lead_count)
{
    const struct parameter_name *name = &taking->name;
    if (name->number_count > 1 && name->numbers[name->number_count - 1] < 0)
        return shape[lead_count - 1];
    return taking->model->args.experts;
}

/* The key is that of a known parameter; its axes in front are counted off. */
static reshard_status rank_take_name(struct taking *taking, struct str key, int rank, int *lead_count, bool *is_parameter,
                                     reshard_error *err)
{
    struct parallel_model *model = taking->model;
    bool is_known = parameter_key_read(&model->names, name_conditions_of(&model->args), key, &taking->name);
    const struct name_line *line = is_known ? &model->names.lines[taking->name.line] : NULL;
    *is_parameter = !line || !line->is_buffer;
    *lead_count = 0;
    if (line && (line->wanted & NAME_GROUPED) && training_args_int(&model->args, "moe_use_legacy_grouped_gemm") == TRAINING_ARG_UNKNOWN)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "whether the experts of '%.*s' were one matrix or a matrix each is not in the arguments of the run "
                         "(moe_use_legacy_grouped_gemm), and their state lies differently",
                         STR_ARG(key));
    if (!is_known || line->has_rest)
        return error_set(
            err, RESHARD_ERR_UNSUPPORTED,
            "the order of '%.*s' among the parameters of a rank is not known, so that the optimizer's buffers cannot be taken apart",
            STR_ARG(key));
    for (int i = 0; i < taking->name.number_count; i++)
        *lead_count += taking->name.numbers[i] < 0;
    if (*lead_count > rank)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has %d axes, fewer than the %d for layers and experts", STR_ARG(key), rank,
                         *lead_count);
    return RESHARD_OK;
}

/* Where a rank's experts are one matrix: how many they are, and as many elements. */
static reshard_status make_matrix(struct taking *taking, struct str name, const struct partition_key *key, const int64_t *shape,
                                  int lead_count, reshard_error *err)
{
    const struct parameter_name *read = &taking->name;
    struct parallel_model *model = taking->model;
    struct cut *cut = taking->cut;
    size_t prefix;
    if (!experts_are_matrices(&model->args) || !partition_grouping_of(&model->rules, name, key, &prefix))
        return RESHARD_OK;
    if (cut->rank != 2 || read->numbers[read->number_count - 1] >= 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "'%.*s' is no part of a matrix of experts, which the arguments of the run say there are", STR_ARG(name));
    taking->matrix_experts = shape[lead_count - 1] / model->context.layout.ep;
    taking->matrix_shape = arena_array(&model->arena, 2, sizeof(*taking->matrix_shape));
    if (!taking->matrix_shape)
        return error_set_memory(err);
    taking->matrix_shape[1] = cut->local[1];
    if (!checked_mul_i64(cut->local[0], taking->matrix_experts, &taking->matrix_shape[0]))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s': its size times the number of experts is too large", STR_ARG(name));
    return RESHARD_OK;
}

static reshard_status make_cut(struct taking *taking, const int64_t *shape, int rank, int lead_count, reshard_error *err)
{
    struct parallel_model *model = taking->model;
    struct parameter_name first = taking->name;
    struct partition_key key;
    struct buffer text = { 0 };
    for (int i = 0; i < first.number_count; i++)
        first.numbers[i] = first.numbers[i] < 0 ? 0 : first.numbers[i];
    parameter_name_write(&model->names, &first, &text);
    taking->cut = arena_zalloc(&model->arena, sizeof(*taking->cut));
    if (text.failed || !taking->cut) {
        buffer_release(&text);
        return error_set_memory(err);
    }
    bool is_known = partition_key_read(&model->rules, (struct str){ (char *)text.data, text.size }, &key) && key.rule;
    reshard_status status = is_known ? cut_from_whole(&model->context, key.rule, rank - lead_count, shape + lead_count, taking->cut, err)
                                     : error_set(err, RESHARD_ERR_UNSUPPORTED, "no partition rule fits");
    if (!status && key.expert >= 0 && model->experts_are_apart) {
        taking->expert_count = rank_count_experts(taking, shape, lead_count);
        if (taking->expert_count < 1 || taking->expert_count % model->context.layout.ep)
            status = error_set(err, RESHARD_ERR_FORMAT, "%" PRId64 " experts are not divided by EP=%" PRId64, taking->expert_count,
                               model->context.layout.ep);
    }
    if (!status)
        status = make_matrix(taking, (struct str){ (char *)text.data, text.size }, &key, shape, lead_count, err);
    buffer_release(&text);
    return status;
}

static reshard_status take_weight(struct parallel_model *model, const struct catalog *catalog, uint32_t tensor, reshard_error *err)
{
    const struct catalog_tensor *weight = &catalog->tensors[tensor];
    const int64_t *shape = catalog_vector_at(catalog, weight->shape);
    struct taking taking = { .model = model, .catalog = catalog, .tensor = tensor };
    int64_t lead[NAME_NUMBERS_MAX] = { 0 };
    int lead_count;
    bool is_parameter;
    reshard_status status = rank_take_name(&taking, weight->key, weight->rank, &lead_count, &is_parameter, err);
    if (status || !is_parameter)
        return status;
    status = make_cut(&taking, shape, weight->rank, lead_count, err);
    if (status || box_is_empty(lead_count, shape))
        return status;
    for (;;) {
        status = add_one(&taking, lead, lead_count, err);
        int axis = lead_count - 1;
        while (axis >= 0 && ++lead[axis] == shape[axis])
            lead[axis--] = 0;
        if (status || axis < 0)
            return status;
    }
}

static int by_order(const void *a, const void *b, void *context)
{
    const struct parameter_names *names = context;
    const struct model_parameter *x = a, *y = b;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->chunk != y->chunk)
        return x->chunk < y->chunk ? -1 : 1;
    return parameter_name_compare(names, &x->name, &y->name);
}

reshard_status parallel_model_make(const struct catalog *catalog, const struct value *namespace, struct parallel_model *out,
                                   reshard_error *err)
{
    *out = (struct parallel_model){ 0 };
    reshard_status status = rank_read_data(out, err);
    if (!status)
        status = rank_read_run(out, namespace, err);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if ((catalog->tensors[i].flags & TENSOR_HIDDEN) || state_key_is_any(catalog->tensors[i].key))
            continue;
        status = take_weight(out, catalog, i, err);
        if (status)
            error_object(err, "%.*s", STR_ARG(catalog->tensors[i].key));
    }
    if (status)
        parallel_model_release(out);
    else
        qsort_r(out->parameters, out->count, sizeof(*out->parameters), by_order, &out->names);
    return status;
}

void parallel_model_release(struct parallel_model *model)
{
    free(model->parameters);
    arena_release(&model->arena);
    *model = (struct parallel_model){ 0 };
}

/* ---- one rank ---- */

/* First parameter of a stage. */
static uint32_t stage_begin(const struct parallel_model *model, int64_t stage)
{
    uint32_t low = 0, high = model->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (model->parameters[middle].stage < stage)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

reshard_status rank_parameters_make(const struct parallel_model *model, const struct catalog *catalog, const struct rank_place *place,
                                    bool is_expert, struct rank_parameters *out, reshard_error *err)
{
    uint32_t begin = stage_begin(model, place->pp), end = stage_begin(model, place->pp + 1);
    *out = (struct rank_parameters){ 0 };
    out->indices = array_zeroed((size_t)(end - begin), sizeof(*out->indices));
    out->parameters = array_zeroed((size_t)(end - begin), sizeof(*out->parameters));
    if (!out->indices || !out->parameters) {
        rank_parameters_release(out);
        return error_set_memory(err);
    }
    for (uint32_t i = begin; i < end; i++) {
        const struct model_parameter *parameter = &model->parameters[i];
        if (parameter->is_expert != is_expert || (is_expert && parameter->expert_rank != place->ep))
            continue;
        if (parameter->matrix_experts > 0 && parameter->expert % parameter->matrix_experts != 0)
            continue; /* the first one stands for the matrix */
        out->indices[out->count] = i;
        out->parameters[out->count++] = (struct rank_parameter){
            .name = parameter->text,
            .param_dtype = catalog->tensors[parameter->tensor].dtype,
            .grad_dtype = DTYPE_F32,
            .rank = parameter->cut->rank,
            .shape = parameter->matrix_shape ? parameter->matrix_shape : parameter->cut->local,
            .chunk = (uint32_t)parameter->chunk,
            .is_expert = is_expert,
            .is_embedding = parameter->is_embedding,
            .is_shared_embedding = parameter->is_shared_embedding,
        };
    }
    return RESHARD_OK;
}

static bool add_elements(const struct rank_parameters *rank, int64_t *sum)
{
    int64_t volume;
    for (uint32_t i = 0; i < rank->count; i++) {
        if (!shape_volume(rank->parameters[i].rank, rank->parameters[i].shape, &volume) || !checked_add_i64(*sum, volume, sum))
            return false;
    }
    return true;
}

/* Where the run says how many buckets there are, their size follows from all parameters of the rank, those of experts among them. */
reshard_status rank_training_run(const struct parallel_model *model, const struct catalog *catalog, const struct rank_place *place,
                                 struct training_run *out, reshard_error *err)
{
    const struct value *buckets = model->args.members ? value_dict_get(model->args.members, "ddp_num_buckets") : NULL;
    int64_t number;
    reshard_status status = RESHARD_OK;
    *out = (struct training_run){ .args = model->args.members, .stage = place->pp };
    for (int kind = 0; kind < 2 && !status && buckets && value_as_int(buckets, &number); kind++) {
        struct rank_parameters rank;
        status = rank_parameters_make(model, catalog, place, kind == 1, &rank, err);
        if (!status && !add_elements(&rank, &out->elements))
            status = error_set(err, RESHARD_ERR_FORMAT, "the parameters of a rank have too many elements");
        rank_parameters_release(&rank);
    }
    return status;
}

void rank_parameters_release(struct rank_parameters *rank)
{
    free(rank->indices);
    free(rank->parameters);
    *rank = (struct rank_parameters){ 0 };
}
