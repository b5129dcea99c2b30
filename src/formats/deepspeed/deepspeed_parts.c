/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which part of a parameter each rank has. Files of ranks hold flat buffers without names: names, shapes and order are the model file's
 * param_shapes, and each rank's buffer must have just the length that follows, or everything behind would be read from the wrong place.
 *
 * ZeRO 1, 2: the parameters of a group lie one behind another, and the whole is cut into equal partitions, one a rank, padded at the end.
 * ZeRO 3: each parameter is cut into equal shares; a rank's buffer has its share of each, padded.
 */
#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

#define STATES_MAX 64 /* of a parameter */

/* ---- what a rank has of each group ---- */

const struct value *deepspeed_base_state(const struct deepspeed_reading *reading, uint32_t rank)
{
    return value_dict_get(reading->optimizers[rank], reading->folder.is_split ? "optimizer_state_dict" : "base_optimizer_state");
}

static reshard_status parts_keep_state(struct deepspeed_reading *reading, uint32_t rank, int64_t group, struct value *state,
                                       reshard_error *err)
{
    struct value **pairs;
    size_t count;
    if (group < 0 || group >= reading->group_count)
        return RESHARD_OK;
    if (value_as_mapping(state, &pairs, &count) && count > 2 * STATES_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "the optimizer's state of group %" PRId64 " has more than %d members", group, STATES_MAX);
    reading->states[(size_t)group * reading->ranks + rank] = state;
    return RESHARD_OK;
}

static reshard_status find_states(struct deepspeed_reading *reading, uint32_t rank, reshard_error *err)
{
    const struct value *base = deepspeed_base_state(reading, rank), *dict = base ? value_dict_get(base, "state") : NULL;
    struct value **items;
    size_t count = 0;
    int64_t number;
    reshard_status status = RESHARD_OK;
    if (base && value_as_sequence(base, &items, &count)) { /* elastic_checkpoint */
        for (size_t i = 0; !status && i < count; i++)
            status = parts_keep_state(reading, rank, (int64_t)i, items[i], err);
        return status;
    }
    if (!dict || !value_as_mapping(dict, &items, &count))
        return RESHARD_OK;
    for (size_t i = 0; !status && i + 1 < count; i += 2)
        if (value_as_int(items[i], &number))
            status = parts_keep_state(reading, rank, number, items[i + 1], err);
    return status;
}

static reshard_status parts_find_buffers(struct deepspeed_reading *reading, reshard_error *err)
{
    const char *name = reading->folder.is_split ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    size_t count = (size_t)reading->group_count * reading->ranks;
    reshard_status status = RESHARD_OK;
    reading->masters = array_zeroed(count, sizeof(*reading->masters));
    reading->states = array_zeroed(count, sizeof(*reading->states));
    if (!reading->masters || !reading->states)
        return error_set_memory(err);
    for (uint32_t rank = 0; !status && rank < reading->ranks; rank++) {
        const struct value *masters = value_dict_get(reading->optimizers[rank], name);
        for (uint32_t group = 0; group < reading->group_count; group++)
            reading->masters[(size_t)group * reading->ranks + rank] = deepspeed_member(masters, group);
        status = find_states(reading, rank, err);
        if (status)
            deepspeed_name_file(reading, reading->optimizer_files[rank], err);
    }
    return status;
}

reshard_status deepspeed_flat_tensor(const struct deepspeed_reading *reading, uint32_t file, const struct value *node, const char *what,
                                     const struct torch_tensor **out, reshard_error *err)
{
    const struct torch_archive *archive = &torch_source_of(reading->source)->files[file].archive;
    const struct torch_tensor *tensor = node && node->tensor ? &archive->tensors[node->tensor - 1] : NULL;
    unsigned odd = TORCH_TENSOR_CONJ | TORCH_TENSOR_NEG | TORCH_TENSOR_META;
    bool is_flat = tensor && tensor->rank == 1 && (tensor->strides[0] == 1 || tensor->shape[0] <= 1) && !(tensor->flags & odd);
    *out = tensor;
    if (is_flat)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "%s is no tensor of one dimension, as a rank's part of flattened parameters is", what);
    deepspeed_name_file(reading, file, err);
    return RESHARD_ERR_FORMAT;
}

/* ---- places ---- */

/* Elements behind parameter i of a group that align the next one. */
static reshard_status gap_behind(const struct deepspeed_reading *reading, uint32_t group, uint32_t i, int64_t *out, reshard_error *err)
{
    const struct value *gaps = deepspeed_member(value_dict_get(reading->optimizers[0], "param_alignment_paddings"), group);
    const struct value *gap = gaps ? deepspeed_member(gaps, i) : NULL;
    *out = 0;
    if (gaps && (!gap || !value_as_int(gap, out) || *out < 0 || *out > DEEPSPEED_ELEMENTS_MAX))
        return error_set(err, RESHARD_ERR_FORMAT, "param_alignment_paddings[%" PRIu32 "] has no number for parameter %" PRIu32, group, i);
    return RESHARD_OK;
}

static reshard_status place_parameters(struct deepspeed_reading *reading, uint32_t number, reshard_error *err)
{
    struct deepspeed_group *group = &reading->groups[number];
    int64_t end = 0, gap = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < group->count; i++) {
        struct deepspeed_parameter *parameter = &reading->parameters[group->first + i];
        parameter->start = end;
        if (reading->folder.is_split)
            end += flat_unit_piece(parameter->elements, reading->ranks);
        else if (!(status = gap_behind(reading, number, i, &gap, err)))
            end += parameter->elements + gap;
        if (!status && end > DEEPSPEED_ELEMENTS_MAX)
            status = error_set(err, RESHARD_ERR_FORMAT, "param_shapes[%" PRIu32 "] has more than 2^61 elements", number);
    }
    group->elements = end;
    return status;
}

/* Of [0, elements), what lies in a rank's partition. */
static int64_t elements_of_rank(const struct deepspeed_group *group, uint32_t rank)
{
    int64_t begin;
    if (!checked_mul_i64(group->partition, rank, &begin) || begin >= group->elements)
        return 0;
    return group->elements - begin < group->partition ? group->elements - begin : group->partition;
}

/* What group_paddings says of a rank's partition, -1: nothing. false: what cannot be. */
static bool padding_of(const struct deepspeed_reading *reading, uint32_t rank, uint32_t group, int64_t *out)
{
    const struct value *padding = deepspeed_member(value_dict_get(reading->optimizers[rank], "group_paddings"), group);
    *out = -1;
    return !padding || (value_as_int(padding, out) && *out >= 0 && *out <= DEEPSPEED_ELEMENTS_MAX);
}

/* How long the rank's partition is with its padding, and without. */
static reshard_status check_length(const struct deepspeed_reading *reading, uint32_t rank, uint32_t number, reshard_error *err)
{
    struct deepspeed_group *group = &reading->groups[number];
    const struct torch_tensor *master;
    uint32_t file = reading->optimizer_files[rank];
    const struct value *node = reading->masters[(size_t)number * reading->ranks + rank];
    reshard_status status = deepspeed_flat_tensor(reading, file, node, "an fp32 group", &master, err);
    if (status)
        return status;
    int64_t length = master->shape[0], padding;
    bool is_good = padding_of(reading, rank, number, &padding);
    if (reading->folder.is_split)
        group->partition = group->elements;
    else if (rank == 0)
        group->partition = length + (reading->is_padded || padding < 0 || !is_good ? 0 : padding);
    int64_t wanted = reading->folder.is_split ? group->elements : elements_of_rank(group, rank);
    is_good = is_good && (length == wanted || (reading->is_padded && length == group->partition));
    bool is_padding_right = padding < 0 || reading->folder.is_split || padding == group->partition - wanted;
    if (is_good && is_padding_right)
        return RESHARD_OK;
    if (is_good)
        error_set(err, RESHARD_ERR_FORMAT, "group_paddings[%" PRIu32 "] is %" PRId64 ", and by param_shapes %" PRId64
                  " of the %" PRId64 " elements of the partition of rank %" PRIu32 " are none of parameters", number, padding,
                  group->partition - wanted, group->partition, rank);
    else
        error_set(err, RESHARD_ERR_FORMAT, "fp32 group %" PRIu32 " has %" PRId64 " elements, and by param_shapes %" PRId64
                  " lie in the partition of rank %" PRIu32, number, length, wanted, rank);
    deepspeed_name_file(reading, file, err);
    return RESHARD_ERR_FORMAT;
}

static reshard_status parts_check_group(const struct deepspeed_reading *reading, uint32_t number, reshard_error *err)
{
    const struct deepspeed_group *group = &reading->groups[number];
    reshard_status status = RESHARD_OK;
    int64_t all = 0;
    for (uint32_t rank = 0; !status && rank < reading->ranks; rank++)
        status = check_length(reading, rank, number, err);
    if (!status && !reading->folder.is_split && (!checked_mul_i64(group->partition, reading->ranks, &all) || all > DEEPSPEED_ELEMENTS_MAX))
        return error_set(err, RESHARD_ERR_FORMAT, "group_paddings[%" PRIu32 "] makes partitions of %" PRId64 " elements", number,
                         group->partition);
    if (!status && !reading->folder.is_split && all < group->elements)
        status = error_set(err, RESHARD_ERR_FORMAT, "param_shapes[%" PRIu32 "] has %" PRId64 " elements, the %" PRIu32
                           " ranks' files %" PRId64, number, group->elements, reading->ranks, all);
    return status;
}

/* ---- what the files say of each other ---- */

/* partition_count: a number, or one for each group. */
static reshard_status check_count(const struct deepspeed_reading *reading, uint32_t rank, reshard_error *err)
{
    const struct value *said = value_dict_get(reading->optimizers[rank], "partition_count");
    struct value **counts, *single = (struct value *)said;
    size_t count = 1;
    int64_t ranks, most = -1;
    if (!said)
        return RESHARD_OK;
    if (!value_as_sequence(said, &counts, &count))
        counts = &single;
    for (size_t i = 0; i < count; i++)
        if (value_as_int(counts[i], &ranks) && ranks > most)
            most = ranks;
    if (count == 0 || most == reading->ranks)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "partition_count says %" PRId64 " ranks, there are *_optim_states.pt of %" PRIu32, most,
              reading->ranks);
    deepspeed_name_file(reading, reading->optimizer_files[rank], err);
    error_hint(err, "a rank's file is missing, or files of another run lie in the folder");
    return RESHARD_ERR_FORMAT;
}

/* fragment_address: { numel, start }. */
static bool fragment_read(const struct value *address, int64_t *numel, int64_t *start)
{
    bool is_object = address->kind == VALUE_NEW || address->kind == VALUE_CALL;
    const struct value *state = is_object && address->object->state_count ? address->object->states[0] : NULL;
    const struct value *count = state ? value_dict_get(state, "numel") : NULL, *begin = state ? value_dict_get(state, "start") : NULL;
    return count && begin && value_as_int(count, numel) && value_as_int(begin, start);
}

/* Fragments lie in the partition. *differs is set where one is another than param_shapes gives. */
static reshard_status check_fragments(const struct deepspeed_reading *reading, uint32_t rank, uint32_t group, bool *differs,
                                      reshard_error *err)
{
    const struct value *fragments = deepspeed_member(value_dict_get(reading->optimizers[rank], "param_slice_mappings"), group);
    struct value **pairs;
    size_t count;
    if (!fragments || !value_as_mapping(fragments, &pairs, &count))
        return RESHARD_OK;
    reshard_status status = work_spend_steps(reading->source->limits.budget, count, err); /* groups may share one dict */
    if (status)
        return status;
    for (size_t i = 0; i + 1 < count; i += 2) {
        struct str name = { 0 };
        int64_t numel = -1, start = -1, partition = reading->groups[group].partition;
        struct flat_unit_part part;
        bool is_read = value_as_str(pairs[i], &name) && fragment_read(pairs[i + 1], &numel, &start);
        if (!is_read || numel < 0 || start < 0 || start > partition || numel > partition - start) {
            error_set(err, RESHARD_ERR_FORMAT, "param_slice_mappings: '%.*s' is %" PRId64 " elements from %" PRId64
                      " of a partition of %" PRId64, STR_ARG(name), numel, start, partition);
            deepspeed_name_file(reading, reading->optimizer_files[rank], err);
            return RESHARD_ERR_FORMAT;
        }
        uint32_t number = name_map_find(&reading->names, name);
        *differs = *differs || number == NAME_NONE || !deepspeed_part_of(reading, &reading->parameters[number], rank, &part) ||
                   part.count != numel || part.place != start;
    }
    return RESHARD_OK;
}

static reshard_status check_mappings(const struct deepspeed_reading *reading, reshard_error *err)
{
    bool differs = false;
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; !status && rank < reading->ranks; rank++)
        for (uint32_t group = 0; !status && group < reading->group_count; group++)
            status = check_fragments(reading, rank, group, &differs, err);
    if (!status && differs)
        catalog_warn(reading->source->catalog, false,
                     "param_slice_mappings are of another order than param_shapes, as DeepSpeed writes them with round_robin_gradients: "
                     "param_shapes are right, and ds_to_universal.py would mix the parameters up");
    return status;
}

reshard_status deepspeed_read_groups(struct deepspeed_reading *reading, reshard_error *err)
{
    reading->is_padded = !reading->folder.is_split && !value_dict_get(reading->optimizers[0], "zero_stage");
    const struct value *shapes = value_dict_get(reading->model, "param_shapes");
    struct value **groups;
    size_t count;
    bool is_list = shapes && value_as_sequence(shapes, &groups, &count);
    reshard_status status = is_list ? deepspeed_read_shapes(reading, err)
                                    : error_set(err, RESHARD_ERR_FORMAT,
                                                "param_shapes is no list: what the ranks' flat buffers hold is not known");
    if (!is_list)
        deepspeed_name_file(reading, reading->model_files[0], err);
    for (uint32_t rank = 0; !status && rank < reading->ranks; rank++)
        status = check_count(reading, rank, err);
    if (!status)
        status = parts_find_buffers(reading, err);
    for (uint32_t group = 0; !status && group < reading->group_count; group++) {
        status = place_parameters(reading, group, err);
        if (!status)
            status = parts_check_group(reading, group, err);
    }
    return status ? status : check_mappings(reading, err);
}

/* ---- chunks ---- */

bool deepspeed_part_of(const struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter, uint32_t rank,
                       struct flat_unit_part *out)
{
    bool is_split = reading->folder.is_split, is_there;
    int64_t piece = is_split ? flat_unit_piece(parameter->elements, reading->ranks) : reading->groups[parameter->group].partition;
    is_there = flat_unit_part_of(piece, reading->ranks, rank, is_split ? 0 : parameter->start, parameter->elements, out);
    if (is_split)
        out->place += parameter->start;
    return is_there && out->count > 0;
}

/* Adds, as chunks of a tensor of the parameter's shape, what the ranks have of it in flat buffers: buffers[rank] is the node of that. */
static reshard_status add_parts(struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter,
                                struct value *const *buffers, uint32_t tensor, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    enum dtype dtype = reading->source->catalog->tensors[tensor].dtype;
    for (uint32_t rank = 0; !status && rank < reading->ranks; rank++) {
        struct flat_unit_part part;
        const struct torch_tensor *found;
        uint32_t file = reading->optimizer_files[rank];
        if (!deepspeed_part_of(reading, parameter, rank, &part))
            continue;
        status = deepspeed_flat_tensor(reading, file, buffers[rank], "what a rank has of a state", &found, err);
        if (status)
            return status;
        const struct deepspeed_group *group = &reading->groups[parameter->group];
        int64_t length = reading->folder.is_split ? group->elements : elements_of_rank(group, rank);
        if (found->dtype != dtype || (found->shape[0] != length && found->shape[0] != group->partition)) {
            error_set(err, RESHARD_ERR_FORMAT,
                      "state of '%.*s' and others has %" PRId64 " elements of type %s, and not %" PRId64 " of type %s",
                      STR_ARG(parameter->name), found->shape[0], dtype_info(found->dtype)->name, length, dtype_info(dtype)->name);
            deepspeed_name_file(reading, file, err);
            return RESHARD_ERR_FORMAT;
        }
        struct torch_run run = { .tensor = tensor,
                                 .file = file,
                                 .archive_tensor = buffers[rank]->tensor - 1,
                                 .writer = rank,
                                 .offset = part.place,
                                 .begin = part.begin,
                                 .count = part.count };
        status = torch_source_add_run(reading->source, &run, err);
    }
    return status;
}

static reshard_status parts_add_master(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter, struct str key,
                                       uint32_t *out, reshard_error *err)
{
    struct value **buffers = &reading->masters[(size_t)parameter->group * reading->ranks];
    const struct torch_tensor *first = NULL;
    reshard_status status = deepspeed_flat_tensor(reading, reading->optimizer_files[0], buffers[0], "an fp32 group", &first, err);
    if (!status)
        status = deepspeed_add_tensor(reading, key, first->dtype, parameter->rank, parameter->shape, true, out, err);
    return status ? status : add_parts(reading, parameter, buffers, *out, err);
}

/* A member of the state of a parameter's group: a part of each rank's, or the same for all parameters. */
static reshard_status parts_make_member(struct deepspeed_making *making, const struct deepspeed_parameter *parameter, struct str state,
                                        struct value *value, struct value **out, reshard_error *err)
{
    struct deepspeed_reading *reading = making->reading;
    const struct torch_archive *archive = &torch_source_of(reading->source)->files[reading->optimizer_files[0]].archive;
    const struct torch_tensor *found = value->tensor ? &archive->tensors[value->tensor - 1] : NULL;
    uint32_t tensor;
    *out = value;
    if (!found || found->rank != 1)
        return RESHARD_OK;
    for (uint32_t rank = 0; rank < reading->ranks; rank++) {
        const struct value *dict = reading->states[(size_t)parameter->group * reading->ranks + rank];
        making->buffers[rank] = dict ? value_dict_find(dict, state) : NULL;
    }
    reshard_status status =
        deepspeed_add_whole(making, parameter, state, found->dtype, parameter->rank, parameter->shape, &tensor, out, err);
    return status ? status : add_parts(reading, parameter, making->buffers, tensor, err);
}

static reshard_status parts_make_state(struct deepspeed_making *making, const struct deepspeed_parameter *parameter, struct value **out,
                                       reshard_error *err)
{
    const struct value *dict = making->reading->states[(size_t)parameter->group * making->reading->ranks];
    struct value **pairs = NULL;
    size_t count = 0;
    reshard_status status = RESHARD_OK;
    if (dict && !value_as_mapping(dict, &pairs, &count))
        count = 0;
    struct value **made = arena_array(&making->graph->arena, count, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct str name;
        made[i] = pairs[i];
        status = value_as_str(pairs[i], &name) ? parts_make_member(making, parameter, name, pairs[i + 1], &made[i + 1], err)
                                               : error_set(err, RESHARD_ERR_FORMAT, "state of the optimizer has a key that is no name");
    }
    if (!status && !(*out = value_new_list(making->graph, VALUE_DICT, made, count)))
        status = error_set_memory(err);
    return status;
}

const struct deepspeed_origin deepspeed_origin_parts = { parts_add_master, parts_make_state };
