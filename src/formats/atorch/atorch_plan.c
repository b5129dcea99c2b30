/* SPDX-License-Identifier: Apache-2.0 */
/*
 * First every wanted tensor gets its part: a parameter, state of one, or a buffer. Then units take the parameters in their order, as the
 * reference or the source has them, or as a rule wraps them.
 */
#include "formats/atorch/atorch_plan.h"

#include "base/array.h"
#include "formats/atorch/atorch_order.h"
#include "formats/shared/flat_keys.h"
#include "parallel/wrap_rule.h"

#include <inttypes.h>
#include <stdlib.h>

#define EXPERT_PREFIX "ckpt_meta.expert_"

enum plan_role { PLAN_NOTHING, PLAN_PARAMETER, PLAN_STATE, PLAN_BUFFER, PLAN_OPTION };

/* A name without its expert: all tensors of it. */
struct plan_name {
    enum plan_role role;
    uint32_t owner; /* PLAN_STATE: name of the parameter */
    struct str state;
    uint32_t first;     /* wanted tensor */
    uint32_t experts;   /* 0: it is no expert's */
    uint32_t *tensors;  /* by expert */
    uint32_t parameter; /* of the model; CATALOG_NONE */
    bool has_state, is_spelled; /* is_spelled: the source spells the state otherwise */
};

struct planning {
    const struct layout_request *request;
    struct target *target;
    struct atorch_plan *plan;
    const struct atorch_source *reference; /* whose units are taken; NULL: a rule */
    bool is_template;                      /* the reference is request->like */
    struct plan_name *known;               /* by name of the plan */
    uint32_t known_capacity;
    uint32_t *by_source; /* name by tensor of the source's catalog, or NAME_NONE */
    uint32_t *renamed;   /* by_source, if the reference is the source; else NULL */
    bool has_states;   /* of parameters: what has none is a buffer, where nothing else tells */
    int64_t alignment; /* the option compute says so; 0: it does not */
    reshard_error *err;
};

/* ---- names ---- */

/* The expert of a key, and the name without it; false if it is no expert's. */
static bool plan_expert_key(struct str key, uint32_t *expert, struct str *name)
{
    size_t prefix = strlen(EXPERT_PREFIX), dot;
    uint64_t number;
    if (!str_starts_with(key, EXPERT_PREFIX))
        return false;
    struct str rest = { key.data + prefix, key.size - prefix };
    if (!str_find_char(rest, '.', &dot) || !str_to_u64((struct str){ rest.data, dot }, &number) || number >= UINT16_MAX)
        return false;
    *expert = (uint32_t)number;
    *name = (struct str){ rest.data + dot + 1, rest.size - dot - 1 };
    return true;
}

/* A unit is made of parameters: of a flat one nothing tells them. */
static reshard_status plan_refuse_flat(struct planning *planning, struct str key)
{
    error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
              "'%.*s' is a flat parameter of FSDP1's LOCAL_STATE_DICT: which parameters lie in it, in which order and shapes, is "
              "stored nowhere",
              STR_ARG(key));
    error_hint(planning->err, "save it with SHARDED_STATE_DICT or FULL_STATE_DICT; as plain tensors hf, torch and torch-dcp take it, "
                              "reshard_convert_options.exclude leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status plan_note_name(struct planning *planning, uint32_t tensor)
{
    struct str name = planning->request->wanted->tensors[tensor].key;
    uint32_t expert = 0;
    if (flat_key_is(name))
        return plan_refuse_flat(planning, name);
    bool is_expert = plan_expert_key(name, &expert, &name), is_new;
    uint32_t number = name_map_intern(&planning->plan->names, name, &is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(planning->known, number, planning->known_capacity))
        return error_set_memory(planning->err);
    struct plan_name *known = &planning->known[number];
    if (is_new)
        *known = (struct plan_name){ .first = tensor, .parameter = CATALOG_NONE };
    if (!is_new && (!is_expert || !known->experts))
        return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "two tensors are called '%.*s'", STR_ARG(name));
    if (expert >= known->experts && is_expert) {
        uint32_t *tensors = arena_array(&planning->plan->arena, (size_t)expert + 1, sizeof(*tensors));
        if (!tensors)
            return error_set_memory(planning->err);
        for (uint32_t i = 0; i <= expert; i++)
            tensors[i] = i < known->experts ? known->tensors[i] : CATALOG_NONE;
        known->tensors = tensors;
        known->experts = expert + 1;
    }
    if (is_expert)
        known->tensors[expert] = tensor;
    return RESHARD_OK;
}

/* The wanted tensor of an expert, or of all. */
static uint32_t plan_tensor(const struct plan_name *known, uint32_t expert)
{
    return known->experts ? (expert < known->experts ? known->tensors[expert] : CATALOG_NONE) : known->first;
}

/* ---- roles ---- */

/* Which of the names before a hyphen is a parameter that is wanted. */
static bool plan_is_state(const struct planning *planning, struct str name, uint32_t *owner, struct str *state)
{
    for (size_t i = name.size; i-- > 0;) {
        if (name.data[i] != '-')
            continue;
        *owner = name_map_find(&planning->plan->names, (struct str){ name.data, i });
        *state = (struct str){ name.data + i + 1, name.size - i - 1 };
        if (*owner != NAME_NONE && state->size)
            return true;
    }
    return false;
}

/* The same of optim.state.w.exp_avg in the source: whatever w is called in the target. What is not of w's shape is not cut with it. */
static bool plan_is_spelled_state(const struct planning *planning, uint32_t tensor, uint32_t *owner, struct str *state)
{
    const struct layout_request *request = planning->request;
    const struct catalog *source = request->source_catalog, *wanted = request->wanted;
    uint32_t from = request->wanted_source[tensor], weight;
    if (from == CATALOG_NONE || !state_owners_find(&planning->plan->owners, source->tensors[from].key, &weight, state))
        return false;
    *owner = planning->by_source[weight];
    const struct catalog_tensor *of = *owner == NAME_NONE ? NULL : &wanted->tensors[planning->known[*owner].first];
    return of && (wanted->tensors[tensor].rank == 0 || catalog_same_shape(wanted, &wanted->tensors[tensor], wanted, of));
}

/* Buffers that modules of torch have under these names; what is not of floats is never trained. */
static bool plan_is_buffer(struct str name, enum dtype dtype)
{
    static const char *const known[] = { "running_mean", "running_var", "num_batches_tracked", "inv_freq" };
    size_t start = name.size;
    while (start > 0 && name.data[start - 1] != '.')
        start--;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (str_is((struct str){ name.data + start, name.size - start }, known[i]))
            return true;
    }
    return dtype_info(dtype)->class_ != DTYPE_CLASS_FLOAT;
}

/* What the checkpoint, if it is one of atorch's, says of its tensor: a parameter or a buffer. */
static enum plan_role plan_known_role(const struct source *source, uint32_t tensor)
{
    const struct atorch_source *known = atorch_known(source);
    if (!known || tensor == CATALOG_NONE)
        return PLAN_NOTHING;
    if (tensor >= known->buffer_first && tensor - known->buffer_first < known->buffer_count)
        return PLAN_BUFFER;
    return source->catalog->tensors[tensor].flags & TENSOR_PARAMETER ? PLAN_PARAMETER : PLAN_NOTHING;
}

/* Whether a list of globs, separated by commas, has one that fits. */
static bool plan_is_listed(const char *globs, struct str name)
{
    struct str rest = globs ? str_of(globs) : (struct str){ 0 };
    bool is_listed = false;
    while (rest.size)
        is_listed |= str_matches_glob(name, str_take(&rest, ','));
    return is_listed;
}

/* A number of a group of parameters, such as a learning rate that is a tensor; modules may be called as groups are, and have state. */
static bool plan_is_option(const struct planning *planning, uint32_t wanted)
{
    const struct layout_request *request = planning->request;
    uint32_t weight;
    struct str state;
    uint32_t from = request->wanted_source[wanted];
    const struct catalog_tensor *tensor = from == CATALOG_NONE || !request->source ? NULL : &request->source_catalog->tensors[from];
    bool is_number = tensor && tensor->rank == 0 && (tensor->dtype == DTYPE_F32 || tensor->dtype == DTYPE_F64 ||
                                                     tensor->dtype == DTYPE_I32 || tensor->dtype == DTYPE_I64);
    return is_number && atorch_is_torch_group(tensor->key, NULL) &&
           !state_owners_find(&planning->plan->owners, tensor->key, &weight, &state);
}

/* First what is said, then what the reference and the source know, then what names and types tell. */
static void plan_choose_role(struct planning *planning, uint32_t number)
{
    const struct layout_request *request = planning->request;
    struct plan_name *known = &planning->known[number];
    struct str name = name_map_at(&planning->plan->names, number);
    enum dtype dtype = request->wanted->tensors[known->first].dtype;
    const struct catalog *like = atorch_known(request->like) ? request->like->catalog : NULL;
    enum plan_role role = plan_is_listed(layout_option(request, "buffers"), name) ? PLAN_BUFFER : PLAN_NOTHING;
    if (!role && like)
        role = plan_known_role(request->like, catalog_find(like, request->wanted->tensors[known->first].key));
    if (!role && request->source)
        role = plan_known_role(request->source, request->wanted_source[known->first]);
    if (!role && plan_is_option(planning, known->first))
        role = PLAN_OPTION;
    bool is_own = !role && plan_is_state(planning, name, &known->owner, &known->state);
    known->is_spelled = !role && !is_own && plan_is_spelled_state(planning, known->first, &known->owner, &known->state);
    if (is_own || known->is_spelled) {
        role = PLAN_STATE;
        planning->has_states = true;
        planning->known[known->owner].has_state = true;
    }
    if (!role && plan_is_buffer(name, dtype))
        role = PLAN_BUFFER;
    known->role = role;
}

/* What is still open is a parameter; but beside trained ones, one that has no state is not trained: a buffer, or frozen. */
static reshard_status plan_choose_rest(struct planning *planning)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < planning->plan->names.count && !status; i++) {
        struct plan_name *known = &planning->known[i];
        if (known->role)
            continue;
        known->role = planning->has_states && !known->has_state ? PLAN_BUFFER : PLAN_PARAMETER;
        if (known->role == PLAN_BUFFER)
            status = target_note_changed(planning->target, NOTE_NO_PLACE, name_map_at(&planning->plan->names, i), planning->err,
                                         "has no optimizer state, as trained parameters have: written as a buffer; a reference that has "
                                         "it in a unit keeps it there");
    }
    return status;
}

/* Names under which the source's tensors are written. */
static reshard_status plan_find_renamed(struct planning *planning)
{
    const struct layout_request *request = planning->request;
    uint32_t count = request->source_catalog->tensor_count;
    planning->by_source = arena_array(&planning->plan->arena, count, sizeof(*planning->by_source));
    if (!planning->by_source)
        return error_set_memory(planning->err);
    memset(planning->by_source, 0xFF, (size_t)count * sizeof(*planning->by_source));
    for (uint32_t i = 0; i < planning->plan->names.count; i++) {
        uint32_t first = plan_tensor(&planning->known[i], 0), tensor = first == CATALOG_NONE ? first : request->wanted_source[first];
        if (tensor != CATALOG_NONE)
            planning->by_source[tensor] = i;
    }
    if (planning->reference && !planning->is_template)
        planning->renamed = planning->by_source;
    state_owners_begin(&planning->plan->owners, request->source_catalog);
    return RESHARD_OK;
}

/* No module of torch's has a parameter of that name. */
static reshard_status plan_refuse_nameless(struct planning *planning)
{
    error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "a tensor's key is empty: parameters of modules have names");
    error_hint(planning->err, "reshard_convert_options.add_prefix gives it one, reshard_convert_options.exclude leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status plan_read_names(struct planning *planning)
{
    const struct catalog *wanted = planning->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        if (tensor->key.size == 0)
            status = plan_refuse_nameless(planning);
        else if (tensor->flags & TENSOR_NO_DATA)
            status = target_note_dropped(planning->target, NOTE_NO_DATA, tensor->key, planning->err, "a tensor without data (meta)");
        else
            status = plan_note_name(planning, i);
    }
    if (!status)
        status = plan_find_renamed(planning);
    for (uint32_t i = 0; i < planning->plan->names.count && !status; i++)
        plan_choose_role(planning, i);
    return status ? status : plan_choose_rest(planning);
}

/* ---- units ---- */

static reshard_status plan_add_unit(struct planning *planning, struct str name, uint32_t *out)
{
    struct atorch_model *model = &planning->plan->model;
    bool is_new;
    *out = name_map_intern(&model->unit_names, name, &is_new);
    if (*out == NAME_NONE || !ARRAY_ROOM(model->units, *out, model->unit_capacity))
        return error_set_memory(planning->err);
    if (!is_new)
        return RESHARD_OK;
    model->unit_count++;
    model->units[*out] =
        (struct atorch_unit){ .name = name_map_at(&model->unit_names, *out), .dtype = DTYPE_COUNT, .experts = 1, .shards = model->ranks };
    return RESHARD_OK;
}

static reshard_status plan_check_type(struct planning *planning, struct atorch_unit *unit, uint32_t tensor)
{
    const struct catalog_tensor *owner = &planning->request->wanted->tensors[tensor];
    if (unit->dtype == DTYPE_COUNT)
        unit->dtype = owner->dtype;
    if (unit->dtype == owner->dtype)
        return RESHARD_OK;
    error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is %s, but the unit '%.*s' that it belongs to is %s: FSDP flattens one type",
              STR_ARG(owner->key), dtype_info(owner->dtype)->name, STR_ARG(unit->name), dtype_info(unit->dtype)->name);
    error_hint(planning->err, "reshard_convert_options.dtypes makes them alike, reshard_convert_options.wrap puts them into other units, "
                              "reshard_convert_options.format_options buffers=GLOB says which are no parameters");
    return RESHARD_ERR_UNSUPPORTED;
}

/* A parameter of a unit, at its end. known NULL: one of no name and no elements. */
static reshard_status plan_add_parameter(struct planning *planning, uint32_t unit, struct plan_name *known, struct str name,
                                         struct str inner, const int64_t *strides, int64_t start)
{
    static const int64_t none[1] = { 0 };
    struct atorch_model *model = &planning->plan->model;
    if (!ARRAY_ROOM(model->parameters, model->parameter_count, model->parameter_capacity))
        return error_set_memory(planning->err);
    struct atorch_parameter *parameter = &model->parameters[model->parameter_count];
    *parameter = (struct atorch_parameter){
        .unit = unit, .name = name, .inner = inner, .strides = strides, .start = start, .rank = 1, .shape = none, .tensor = CATALOG_NONE
    };
    model->parameter_count++;
    if (!known)
        return RESHARD_OK;
    const struct catalog *wanted = planning->request->wanted;
    if (model->units[unit].experts > 1 && known->experts != model->units[unit].experts)
        return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is not there for each of %" PRIu32 " expert ranks", STR_ARG(name),
                         model->units[unit].experts);
    known->parameter = model->parameter_count - 1;
    parameter->tensor = (uint32_t)(known - planning->known);
    reshard_status status = RESHARD_OK;
    for (uint32_t expert = 0; expert < model->units[unit].experts && !status; expert++) {
        uint32_t tensor = plan_tensor(known, expert);
        if (tensor == CATALOG_NONE)
            return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is not there for expert rank %" PRIu32, STR_ARG(name), expert);
        status = plan_check_type(planning, &model->units[unit], tensor);
        parameter->rank = wanted->tensors[tensor].rank;
        parameter->shape = catalog_vector_at(wanted, wanted->tensors[tensor].shape);
        parameter->numel = box_volume(parameter->rank, parameter->shape);
    }
    return status;
}

/* ---- from a reference ---- */

static bool str_ends_with_str(struct str s, struct str end)
{
    return s.size >= end.size && (!end.size || memcmp(s.data + s.size - end.size, end.data, end.size) == 0);
}

/* What ranks of an expert unit there are: experts follow one another, as atorch makes the groups. */
static reshard_status plan_place_experts(struct planning *planning, struct atorch_unit *unit, const struct atorch_unit *said)
{
    struct atorch_model *model = &planning->plan->model;
    unit->has_experts = said->has_experts;
    if (!said->has_experts)
        return RESHARD_OK;
    unit->experts = said->experts;
    unit->shards = model->ranks / said->experts;
    if (model->ranks % said->experts != 0)
        return error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
                         "%" PRIu32 " ranks cannot be shared by the %" PRIu32 " experts of unit '%.*s'", model->ranks, said->experts,
                         STR_ARG(unit->name));
    unit->places = arena_zalloc(&model->arena, model->ranks * sizeof(*unit->places));
    int64_t *experts = arena_array(&model->arena, model->ranks, sizeof(*experts));
    int64_t *shards = arena_array(&model->arena, (size_t)model->ranks, sizeof(*shards));
    if (!unit->places || !experts || !shards)
        return error_set_memory(planning->err);
    for (uint32_t rank = 0; rank < model->ranks; rank++) {
        uint32_t expert = rank % unit->experts, shard = rank / unit->experts;
        experts[rank] = rank;
        shards[expert * unit->shards + shard] = rank;
        unit->places[rank] = (struct atorch_expert_place){ .ranks = { experts + shard * unit->experts, unit->experts },
                                                           .fsdp_ranks = { shards + expert * unit->shards, unit->shards },
                                                           .rank = expert,
                                                           .fsdp_rank = shard };
    }
    if (model->ranks == planning->reference->model.ranks)
        unit->places = said->places;
    return RESHARD_OK;
}

static reshard_status plan_lacks(const struct planning *planning, const struct atorch_unit *unit, const struct atorch_parameter *wanted)
{
    error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "the reference's unit '%.*s' has a parameter '%.*s' that is not in the source",
              STR_ARG(unit->name), STR_ARG(wanted->name));
    error_object(planning->err, "%.*s", STR_ARG(wanted->name));
    error_hint(planning->err, "reshard_convert_options.missing makes it: zeros, a number, or the values of another checkpoint");
    return RESHARD_ERR_UNSUPPORTED;
}

static bool plan_same_shape(const struct planning *planning, const struct plan_name *known, const struct atorch_parameter *said)
{
    const struct catalog *wanted = planning->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[known->first];
    return shape_equal(tensor->rank, catalog_vector_at(wanted, tensor->shape), said->rank, said->shape);
}

/* One parameter of the reference's unit. *is_changed: the unit is not as it was. */
static reshard_status plan_take_parameter(struct planning *planning, uint32_t unit, const struct atorch_parameter *said, bool *is_changed)
{
    const struct atorch_unit *owner = &planning->plan->model.units[unit];
    bool is_lost = !said->name.size && !said->numel;
    if (is_lost)
        return plan_add_parameter(planning, unit, NULL, said->name, said->inner, NULL, said->start);
    uint32_t number = planning->renamed ? planning->renamed[said->tensor] : name_map_find(&planning->plan->names, said->name);
    if (number == NAME_NONE && planning->is_template)
        return plan_lacks(planning, owner, said);
    if (number == NAME_NONE) {
        *is_changed = true;
        return RESHARD_OK;
    }
    bool is_same = plan_same_shape(planning, &planning->known[number], said);
    if (!is_same && planning->is_template)
        return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has another shape than in the reference", STR_ARG(said->name));
    *is_changed |= !is_same;
    struct str name = name_map_at(&planning->plan->names, number);
    size_t skip = owner->name.size ? owner->name.size + 1 : 0;
    return plan_add_parameter(planning, unit, &planning->known[number], name, (struct str){ name.data + skip, name.size - skip },
                              is_same ? said->strides : NULL, said->start);
}

static int64_t plan_default_alignment(enum dtype dtype)
{
    int64_t bytes = dtype_element_bytes(dtype);
    return bytes && bytes < 16 ? 16 / bytes : 1;
}

/* Gives parameters their places, one behind the other. */
static void plan_lay_unit(struct atorch_model *model, struct atorch_unit *unit)
{
    int64_t end = 0;
    for (uint32_t i = 0; i < unit->count; i++) {
        struct atorch_parameter *parameter = &model->parameters[unit->first + i];
        parameter->start = flat_unit_next(end, unit->alignment);
        end = parameter->start + parameter->numel;
    }
}

static reshard_status plan_finish_unit(struct planning *planning, struct atorch_unit *unit)
{
    struct atorch_model *model = &planning->plan->model;
    int64_t end = 0;
    for (uint32_t i = 0; i < unit->count; i++) {
        const struct atorch_parameter *parameter = &model->parameters[unit->first + i];
        if (__builtin_add_overflow(parameter->start, parameter->numel, &end) || end > INT64_MAX / 2 - model->ranks)
            return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "unit '%.*s' would have more than 2^62 elements", STR_ARG(unit->name));
    }
    unit->unpadded = end;
    unit->shard = flat_unit_piece(end, unit->shards);
    return dtype_element_bytes(unit->dtype) || !end ? RESHARD_OK
                                                    : error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "unit '%.*s' of %s cannot be cut",
                                                                STR_ARG(unit->name), dtype_info(unit->dtype)->name);
}

/* The module that all its parameters are in, where their names have changed: as deep as before if they still are in one. */
static struct str plan_unit_name(const struct planning *planning, const struct atorch_unit *said)
{
    const struct atorch_model *other = &planning->reference->model;
    struct str common = said->name;
    bool is_known = false;
    for (uint32_t i = 0; i < said->count && planning->renamed && said->name.size; i++) {
        const struct atorch_parameter *parameter = &other->parameters[said->first + i];
        uint32_t number = parameter->name.size ? planning->renamed[parameter->tensor] : NAME_NONE;
        struct str name = number == NAME_NONE ? (struct str){ 0 } : name_map_at(&planning->plan->names, number);
        if (number == NAME_NONE)
            continue;
        bool is_inside = str_ends_with_str(name, parameter->inner) && name.size > parameter->inner.size + 1;
        struct str module = { name.data, is_inside ? name.size - parameter->inner.size - 1 : 0 };
        if (!is_known)
            common = module;
        while (common.size && !(module.size >= common.size && memcmp(module.data, common.data, common.size) == 0))
            common.size--;
        is_known = true;
    }
    return common;
}

static reshard_status plan_take_unit(struct planning *planning, const struct atorch_unit *said)
{
    struct atorch_model *model = &planning->plan->model;
    const struct atorch_model *other = &planning->reference->model;
    uint32_t number;
    bool is_changed = false;
    reshard_status status = plan_add_unit(planning, plan_unit_name(planning, said), &number);
    if (status)
        return status;
    struct atorch_unit *unit = &model->units[number];
    if (unit->count) {
        error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "two units would be called '%.*s'", STR_ARG(unit->name));
        error_hint(planning->err, "the new names of a unit's parameters are in no module of their own: reshard_convert_options.wrap says "
                                  "which modules are flattened together");
        return RESHARD_ERR_UNSUPPORTED;
    }
    unit->first = model->parameter_count;
    status = plan_place_experts(planning, unit, said);
    for (uint32_t i = 0; i < said->count && !status; i++)
        status = plan_take_parameter(planning, number, &other->parameters[said->first + i], &is_changed);
    if (status)
        return status;
    unit->count = model->parameter_count - unit->first;
    if (unit->dtype == DTYPE_COUNT)
        unit->dtype = said->dtype;
    bool is_own = said->alignment == plan_default_alignment(said->dtype);
    unit->alignment = planning->alignment ? planning->alignment : is_own ? plan_default_alignment(unit->dtype) : said->alignment;
    if (!model->is_original)
        unit->alignment = 1;
    if (is_changed || unit->alignment != said->alignment)
        plan_lay_unit(model, unit);
    return RESHARD_OK;
}

/* ---- by a rule ---- */

/* The names as the model has them: those that the source's units and groups tell the order of stand in it, in their own places. */
static reshard_status plan_order_names(struct planning *planning, uint32_t *names)
{
    const struct atorch_source *own = atorch_known(planning->request->source);
    struct atorch_order order = { 0 };
    for (uint32_t i = 0; i < planning->plan->names.count; i++)
        names[i] = i;
    reshard_status status = own ? atorch_order_find(planning->request->source, &planning->plan->arena, &order, planning->err) : RESHARD_OK;
    uint32_t *told = status ? NULL : arena_array(&planning->plan->arena, order.count, sizeof(*told)), count = 0, next = 0;
    bool *is_told = told ? arena_array(&planning->plan->arena, planning->plan->names.count, sizeof(*is_told)) : NULL;
    if (!is_told)
        return status ? status : error_set_memory(planning->err);
    memset(is_told, 0, planning->plan->names.count * sizeof(*is_told));
    for (uint32_t i = 0; i < order.count; i++) {
        uint32_t tensor = own->model.parameters[order.parameters[i]].tensor;
        uint32_t name = tensor == CATALOG_NONE ? NAME_NONE : planning->by_source[tensor];
        if (name == NAME_NONE || is_told[name])
            continue;
        is_told[name] = true;
        told[count++] = name;
    }
    for (uint32_t i = 0; next < count; i++)
        if (is_told[i])
            names[i] = told[next++];
    if (!order.before.size)
        return RESHARD_OK;
    return target_note_changed(planning->target, NOTE_REFERENCE, order.after, planning->err,
                               "nothing in the source tells whether the model has it behind '%.*s', where it is put; a reference "
                               "does, which loading by flat shards may need",
                               STR_ARG(order.before));
}

/* A rule that names what the model does not have is a mistake. Modules may have buffers alone. */
static reshard_status plan_check_rule(const struct planning *planning, struct wrap_rule *rule)
{
    struct str module;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; rule && i < planning->plan->names.count && !status; i++)
        if (planning->known[i].role == PLAN_PARAMETER || planning->known[i].role == PLAN_BUFFER)
            status = wrap_rule_module(rule, name_map_at(&planning->plan->names, i), &module, planning->err);
    return status || !rule ? status : wrap_rule_check(rule, planning->err);
}

/* Parameters by unit, in the order of the model; units in the order of their first parameter, the root first. */
static reshard_status plan_wrap(struct planning *planning, struct wrap_rule *rule)
{
    struct atorch_model *model = &planning->plan->model;
    uint32_t count = planning->plan->names.count, unit;
    uint32_t *of = arena_array(&planning->plan->arena, count, sizeof(*of));
    uint32_t *names = arena_array(&planning->plan->arena, count, sizeof(*names));
    reshard_status status = of && names ? plan_order_names(planning, names) : error_set_memory(planning->err);
    for (int pass = 0; pass < 2 && !status; pass++) { /* the root's first */
        for (uint32_t place = 0; place < count && !status; place++) {
            uint32_t i = names[place];
            struct str module = { 0 }, name = name_map_at(&planning->plan->names, i);
            if (planning->known[i].role != PLAN_PARAMETER || planning->known[i].parameter != CATALOG_NONE)
                continue;
            status = rule ? wrap_rule_module(rule, name, &module, planning->err) : RESHARD_OK;
            if (!status && !module.size == !pass)
                status = plan_add_unit(planning, module, &of[i]);
            if (!status && planning->known[i].experts && !module.size == !pass)
                return error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
                                 "'%.*s' is of experts: only a reference that has them tells their ranks", STR_ARG(name));
        }
    }
    for (unit = 0; unit < model->unit_count && !status; unit++) {
        struct str module = model->units[unit].name;
        size_t skip = module.size ? module.size + 1 : 0;
        model->units[unit].first = model->parameter_count;
        for (uint32_t place = 0; place < count && !status; place++) {
            uint32_t i = names[place];
            struct str name = name_map_at(&planning->plan->names, i);
            if (planning->known[i].role != PLAN_PARAMETER || of[i] != unit)
                continue;
            status =
                plan_add_parameter(planning, unit, &planning->known[i], name, (struct str){ name.data + skip, name.size - skip }, NULL, 0);
        }
        if (status)
            break; /* a unit that lacks its parameters has no type yet */
        model->units[unit].count = model->parameter_count - model->units[unit].first;
        model->units[unit].alignment = !model->is_original   ? 1
                                       : planning->alignment ? planning->alignment
                                                             : plan_default_alignment(model->units[unit].dtype);
        plan_lay_unit(model, &model->units[unit]);
    }
    return status;
}

/* What the reference does not know: buffers, because no flat parameter of the run has a place for it. */
static reshard_status plan_take_rest(struct planning *planning)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < planning->plan->names.count && !status; i++) {
        struct plan_name *known = &planning->known[i];
        if (known->role != PLAN_PARAMETER || known->parameter != CATALOG_NONE)
            continue;
        known->role = PLAN_BUFFER;
        status = target_note_changed(planning->target, NOTE_REFERENCE, name_map_at(&planning->plan->names, i), planning->err,
                                     "is in no unit of the reference: written as a buffer");
    }
    return status;
}

static reshard_status plan_take_units(struct planning *planning)
{
    const char *text = planning->request->wrap;
    struct wrap_rule *rule = NULL;
    reshard_status status = RESHARD_OK;
    if (planning->reference) {
        for (uint32_t i = 0; i < planning->reference->model.unit_count && !status; i++)
            status = plan_take_unit(planning, &planning->reference->model.units[i]);
        if (!status)
            status = plan_take_rest(planning);
    } else {
        status = text ? wrap_rule_parse(text, &rule, planning->err) : RESHARD_OK;
        if (!status)
            status = plan_check_rule(planning, rule);
        if (!status)
            status = plan_wrap(planning, rule);
        wrap_rule_free(rule);
    }
    for (uint32_t i = 0; i < planning->plan->model.unit_count && !status; i++)
        status = plan_finish_unit(planning, &planning->plan->model.units[i]);
    return status;
}

/* ---- tensors of parameters, states, buffers ---- */

static const uint32_t *plan_tensors(struct planning *planning, const struct plan_name *known, uint32_t experts)
{
    uint32_t *tensors = arena_array(&planning->plan->arena, experts, sizeof(*tensors));
    for (uint32_t i = 0; tensors && i < experts; i++)
        tensors[i] = plan_tensor(known, i);
    return tensors;
}

/* All tensors of the name: those of a part of the experts have no place in a unit. */
static reshard_status plan_add_buffer(struct planning *planning, const struct plan_name *known)
{
    struct atorch_plan *plan = planning->plan;
    for (uint32_t i = 0; i < (known->experts ? known->experts : 1); i++) {
        uint32_t tensor = plan_tensor(known, i);
        if (tensor == CATALOG_NONE)
            continue;
        if (!ARRAY_ROOM(plan->buffers, plan->buffer_count, plan->buffer_capacity))
            return error_set_memory(planning->err);
        plan->buffers[plan->buffer_count++] = tensor;
    }
    return RESHARD_OK;
}

static reshard_status plan_add_option(struct planning *planning, const struct plan_name *known)
{
    struct atorch_plan *plan = planning->plan;
    if (!ARRAY_ROOM(plan->options, plan->option_count, plan->option_capacity))
        return error_set_memory(planning->err);
    plan->options[plan->option_count++] = known->first;
    return RESHARD_OK;
}

static reshard_status plan_add_state(struct planning *planning, const struct plan_name *known)
{
    struct atorch_plan *plan = planning->plan;
    const struct catalog *wanted = planning->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[known->first];
    uint32_t number = planning->known[known->owner].parameter;
    const struct atorch_parameter *parameter = number == CATALOG_NONE ? NULL : &plan->model.parameters[number];
    if (!parameter) {
        reshard_status status = target_note_changed(planning->target, NOTE_NO_PLACE, tensor->key, planning->err,
                                                    "state of what is no parameter: written as a buffer");
        return status ? status : plan_add_buffer(planning, known);
    }
    struct atorch_state state = { .parameter = number, .is_scalar = tensor->rank == 0 && parameter->rank > 0 };
    bool fits = shape_equal(tensor->rank, catalog_vector_at(wanted, tensor->shape), parameter->rank, parameter->shape);
    if (!state.is_scalar && !fits)
        return target_note_dropped(planning->target, NOTE_NO_PLACE, tensor->key, planning->err,
                                   "state of another shape than its parameter, which cannot be cut with it");
    uint32_t experts = plan->model.units[parameter->unit].experts;
    state.name = name_map_intern(&plan->state_names, known->state, NULL);
    state.tensors = plan_tensors(planning, known, experts);
    if (state.name == NAME_NONE || !state.tensors || !ARRAY_ROOM(plan->states, plan->state_count, plan->state_capacity))
        return error_set_memory(planning->err);
    for (uint32_t i = 0; i < experts; i++) {
        if (state.tensors[i] == CATALOG_NONE)
            return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is not there for expert rank %" PRIu32, STR_ARG(tensor->key),
                             i);
    }
    state.is_spelled = known->is_spelled;
    plan->states[plan->state_count++] = state;
    return RESHARD_OK;
}

/* A state that is spelled in another way is found again in atorch's; nothing else may have that name. */
static reshard_status plan_rename_states(struct planning *planning)
{
    const struct atorch_plan *plan = planning->plan;
    for (uint32_t i = 0; i < plan->state_count; i++) {
        const struct atorch_state *state = &plan->states[i];
        struct str owner = plan->model.parameters[state->parameter].name, kind = name_map_at(&plan->state_names, state->name);
        if (i && state[-1].parameter == state->parameter && state[-1].name == state->name)
            return error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "two tensors are the state %.*s of '%.*s'", STR_ARG(kind),
                             STR_ARG(owner));
        if (!state->is_spelled)
            continue;
        const struct path_part part = { .kind = PATH_KEY, .key = ARENA_JOIN(&planning->plan->arena, owner, STR("-"), kind) };
        if (!part.key.data)
            return error_set_memory(planning->err);
        reshard_status status = target_read_as_path(planning->target, state->tensors[0], &part, 1, planning->err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

static int plan_state_order(const void *a, const void *b)
{
    const struct atorch_state *x = a, *y = b;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    return x->name < y->name ? -1 : x->name > y->name;
}

static reshard_status plan_take_states(struct planning *planning)
{
    struct atorch_plan *plan = planning->plan;
    uint32_t count = plan->model.parameter_count;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < planning->plan->names.count && !status; i++) {
        const struct plan_name *known = &planning->known[i];
        if (known->role == PLAN_STATE)
            status = plan_add_state(planning, known);
        else if (known->role == PLAN_BUFFER)
            status = plan_add_buffer(planning, known);
        else if (known->role == PLAN_OPTION)
            status = plan_add_option(planning, known);
    }
    plan->tensors = arena_zalloc(&plan->arena, ((size_t)count + 1) * sizeof(const uint32_t *));
    plan->first_state = arena_zalloc(&plan->arena, ((size_t)count + 2) * sizeof(*plan->first_state));
    if (!status && (!plan->tensors || !plan->first_state))
        status = error_set_memory(planning->err);
    if (status)
        return status;
    if (plan->state_count)
        qsort(plan->states, plan->state_count, sizeof(*plan->states), plan_state_order);
    status = plan_rename_states(planning);
    if (status)
        return status;
    for (uint32_t i = 0; i < plan->state_count; i++)
        plan->first_state[plan->states[i].parameter + 1] = i + 1;
    for (uint32_t i = 0; i < count; i++) {
        const struct atorch_parameter *parameter = &plan->model.parameters[i];
        if (plan->first_state[i + 1] < plan->first_state[i])
            plan->first_state[i + 1] = plan->first_state[i];
        if (parameter->tensor == CATALOG_NONE)
            continue;
        plan->tensors[i] = plan_tensors(planning, &planning->known[parameter->tensor], plan->model.units[parameter->unit].experts);
        if (!plan->tensors[i])
            return error_set_memory(planning->err);
    }
    return RESHARD_OK;
}

/* ---- options ---- */

static reshard_status plan_read_options(struct planning *planning)
{
    const char *compute = layout_option(planning->request, "compute"), *version = layout_option(planning->request, "version");
    const char *original = layout_option(planning->request, "orig_params");
    struct atorch_model *model = &planning->plan->model;
    enum dtype dtype;
    if (compute && (!dtype_from_name(str_of(compute), &dtype) || dtype_info(dtype)->class_ != DTYPE_CLASS_FLOAT))
        return error_set(planning->err, RESHARD_ERR_USAGE, "option compute is '%s', expected a type of floats such as bf16", compute);
    if (compute)
        planning->alignment = plan_default_alignment(dtype);
    if (version && strcmp(version, "0") != 0 && strcmp(version, "1") != 0)
        return error_set(planning->err, RESHARD_ERR_USAGE, "option version is '%s', expected 0 or 1", version);
    if (version)
        model->version = version[0] - '0';
    if (original && strcmp(original, "true") != 0 && strcmp(original, "false") != 0)
        return error_set(planning->err, RESHARD_ERR_USAGE, "option orig_params is '%s', expected true or false", original);
    if (original)
        model->is_original = original[0] == 't';
    return RESHARD_OK;
}

/* Which ranks share an expert stands in the layout of its unit, which the first version of the files lacks. */
static reshard_status plan_check_version(const struct planning *planning)
{
    const struct atorch_model *model = &planning->plan->model;
    for (uint32_t i = 0; i < model->unit_count && model->version == 0; i++) {
        if (model->units[i].experts < 2)
            continue;
        error_set(planning->err, RESHARD_ERR_UNSUPPORTED, "unit '%.*s' has %" PRIu32 " expert ranks, which files of version 0 do not tell",
                  STR_ARG(model->units[i].name), model->units[i].experts);
        error_hint(planning->err, "option version=1");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

reshard_status atorch_plan_make(const struct layout_request *request, struct target *target, struct atorch_plan *out, reshard_error *err)
{
    const struct atorch_source *like = atorch_known(request->like), *own = atorch_known(request->source);
    const struct atorch_source *shown = like ? like : own;
    struct planning planning = { .request = request, .target = target, .plan = out, .err = err, .is_template = like && !request->wrap };
    if (!request->wrap && shown && shown->model.unit_count)
        planning.reference = shown;
    out->model.ranks = request->ranks ? request->ranks : shown && shown->model.ranks ? shown->model.ranks : 1;
    out->model.version = shown && shown->model.ranks ? shown->model.version : 1;
    out->model.has_strides = !shown || !shown->model.unit_count || shown->model.has_strides;
    out->model.is_original = !shown || !shown->model.unit_count || shown->model.is_original;
    reshard_status status = plan_read_options(&planning);
    if (!status)
        status = plan_read_names(&planning);
    if (!status)
        status = plan_take_units(&planning);
    if (!status)
        status = plan_take_states(&planning);
    if (!status)
        status = plan_check_version(&planning);
    free(planning.known);
    return status;
}

void atorch_plan_release(struct atorch_plan *plan)
{
    atorch_model_release(&plan->model);
    name_map_release(&plan->state_names);
    name_map_release(&plan->names);
    free(plan->states);
    free(plan->buffers);
    free(plan->options);
    arena_release(&plan->arena);
    *plan = (struct atorch_plan){ 0 };
}
