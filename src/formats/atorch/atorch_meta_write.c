/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flat_meta of one rank, byte for byte as Python writes it: also what is one object there is one here. These are the texts of members,
 * names of units, names without a dot (Python keeps one object for each identifier), and the lists of expert ranks.
 */
#include "formats/atorch/atorch_target.h"

#include "base/array.h"
#include "encoding/pickle_stream.h"

#include <stdlib.h>

struct meta_writing {
    struct pickle_stream pickle;
    struct pickle_words words;
    const struct atorch_model *model;
    uint32_t rank;
    uint32_t *unit_memo;
    uint32_t size_memo;      /* torch.Size; PICKLE_NO_MEMO: not yet written */
    uint32_t places_memo[2]; /* expert_ranks, expert_fsdp_ranks of the unit before */
    const struct atorch_expert_place *places;
};

static void meta_put_member(struct meta_writing *writing, const char *name)
{
    pickle_stream_word(&writing->pickle, &writing->words, str_of(name));
}

/* ---- units ---- */

/* Calls for each run of the unit's flat parameter, as numels_with_padding has them. */
struct run_walk {
    const struct atorch_model *model;
    const struct atorch_unit *unit;
    uint32_t next;
    int64_t at;
};

static bool next_run(struct run_walk *walk, int64_t *count, bool *is_padding)
{
    const struct atorch_unit *unit = walk->unit;
    int64_t end = unit->shard * unit->shards;
    if (walk->next == unit->count) {
        *count = walk->model->is_original ? end - walk->at : 0;
        *is_padding = true;
        walk->at = end;
        return *count > 0;
    }
    const struct atorch_parameter *parameter = &walk->model->parameters[unit->first + walk->next];
    *is_padding = parameter->start > walk->at;
    *count = *is_padding ? parameter->start - walk->at : parameter->numel;
    walk->at += *count;
    walk->next += !*is_padding;
    return true;
}

static size_t count_runs(const struct atorch_model *model, const struct atorch_unit *unit)
{
    struct run_walk walk = { .model = model, .unit = unit };
    int64_t count;
    bool is_padding;
    size_t runs = 0;
    while (next_run(&walk, &count, &is_padding))
        runs++;
    return runs;
}

static void put_numels(struct meta_writing *writing, const struct atorch_unit *unit)
{
    struct pickle_stream *pickle = &writing->pickle;
    pickle_stream_tuple_begin(pickle, unit->count);
    for (uint32_t i = 0; i < unit->count; i++)
        pickle_stream_int(pickle, writing->model->parameters[unit->first + i].numel);
    pickle_stream_tuple_end(pickle, unit->count);
}

static void put_runs(struct meta_writing *writing, const struct atorch_unit *unit)
{
    struct pickle_stream *pickle = &writing->pickle;
    struct run_walk walk = { .model = writing->model, .unit = unit };
    size_t runs = count_runs(writing->model, unit);
    int64_t count;
    bool is_padding;
    pickle_stream_tuple_begin(pickle, runs);
    while (next_run(&walk, &count, &is_padding))
        pickle_stream_int(pickle, count);
    pickle_stream_tuple_end(pickle, runs);
}

static void put_mask(struct meta_writing *writing, const struct atorch_unit *unit)
{
    struct pickle_stream *pickle = &writing->pickle;
    struct run_walk walk = { .model = writing->model, .unit = unit };
    size_t runs = count_runs(writing->model, unit);
    int64_t count;
    bool is_padding;
    pickle_stream_container(pickle, PICKLE_EMPTY_LIST);
    struct pickle_items items = pickle_stream_items_begin(pickle, runs, PICKLE_ITEMS_LIST);
    while (next_run(&walk, &count, &is_padding)) {
        pickle_stream_item(pickle, &items);
        pickle_stream_bool(pickle, is_padding);
    }
    pickle_stream_items_end(pickle, &items);
}

static bool same_numbers(const struct atorch_numbers *a, const struct atorch_numbers *b)
{
    return a->count == b->count && (!a->count || memcmp(a->items, b->items, a->count * sizeof(*a->items)) == 0);
}

/* The process groups' lists of ranks are the same objects for all units. */
static void put_place(struct meta_writing *writing, const struct atorch_unit *unit)
{
    const struct atorch_expert_place *place = &unit->places[writing->rank];
    const struct atorch_numbers *lists[2] = { &place->ranks, &place->fsdp_ranks };
    const char *const names[2][2] = { { "expert_ranks", "expert_rank" }, { "expert_fsdp_ranks", "expert_fsdp_rank" } };
    const int64_t own[2] = { place->rank, place->fsdp_rank };
    bool is_known = writing->places && same_numbers(&writing->places->ranks, &place->ranks) &&
                    same_numbers(&writing->places->fsdp_ranks, &place->fsdp_ranks);
    for (int i = 0; i < 2; i++) {
        meta_put_member(writing, names[i][0]);
        if (is_known)
            pickle_stream_get(&writing->pickle, writing->places_memo[i]);
        else
            writing->places_memo[i] = pickle_stream_int_list(&writing->pickle, lists[i]->items, lists[i]->count);
        meta_put_member(writing, names[i][1]);
        pickle_stream_int(&writing->pickle, own[i]);
    }
    writing->places = place;
}

static void put_unit(struct meta_writing *writing, uint32_t number)
{
    const struct atorch_unit *unit = &writing->model->units[number];
    struct pickle_stream *pickle = &writing->pickle;
    writing->unit_memo[number] = pickle_stream_str(pickle, unit->name);
    pickle_stream_container(pickle, PICKLE_EMPTY_DICT);
    pickle_stream_opcode(pickle, PICKLE_MARK);
    meta_put_member(writing, "numels");
    put_numels(writing, unit);
    meta_put_member(writing, "flat_numel");
    pickle_stream_int(pickle, unit->shard);
    meta_put_member(writing, "numels_with_padding");
    put_runs(writing, unit);
    meta_put_member(writing, "is_padding_mask");
    put_mask(writing, unit);
    if (unit->has_experts)
        put_place(writing, unit);
    pickle_stream_opcode(pickle, PICKLE_SETITEMS);
}

/* ---- parameters ---- */

static void put_shape(struct meta_writing *writing, const struct atorch_parameter *parameter)
{
    struct pickle_stream *pickle = &writing->pickle;
    pickle_stream_object(pickle);
    if (writing->size_memo == PICKLE_NO_MEMO) {
        pickle_stream_object(pickle);
        meta_put_member(writing, "torch");
        meta_put_member(writing, "Size");
        pickle_stream_opcode(pickle, PICKLE_STACK_GLOBAL);
        writing->size_memo = pickle_stream_memoize(pickle);
    } else {
        pickle_stream_get(pickle, writing->size_memo);
    }
    pickle_stream_object(pickle);
    pickle_stream_int_tuple(pickle, parameter->shape, (size_t)parameter->rank);
    pickle_stream_opcode(pickle, PICKLE_TUPLE1);
    pickle_stream_memoize(pickle);
    pickle_stream_opcode(pickle, PICKLE_REDUCE);
    pickle_stream_memoize(pickle);
}

/* A name: one object for all that are written as one identifier. */
static uint32_t meta_put_name(struct meta_writing *writing, struct str name)
{
    size_t dot;
    if (str_find_char(name, '.', &dot))
        return pickle_stream_str(&writing->pickle, name);
    return pickle_stream_word(&writing->pickle, &writing->words, name);
}

/* Torch's strides of a contiguous tensor: an axis of no elements counts as one. */
static void put_strides(struct meta_writing *writing, const struct atorch_parameter *parameter)
{
    int64_t strides[RANK_MAX];
    if (!writing->model->has_strides)
        return;
    if (parameter->strides)
        memcpy(strides, parameter->strides, (size_t)parameter->rank * sizeof(*strides));
    else
        strides_row_major(parameter->rank, parameter->shape, strides);
    meta_put_member(writing, "param_strides");
    pickle_stream_int_tuple(&writing->pickle, strides, (size_t)parameter->rank);
    meta_put_member(writing, "param_contiguities");
    pickle_stream_bool(&writing->pickle, strides_are_row_major(parameter->rank, parameter->shape, strides));
}

/* Elements that the rank's piece has beyond the flat parameter, where FSDP has no original parameters. */
static int64_t pad_of(const struct atorch_model *model, const struct atorch_unit *unit, uint32_t shard)
{
    int64_t missing = unit->shard * ((int64_t)shard + 1) - unit->unpadded;
    if (model->is_original || missing <= 0)
        return 0;
    return missing < unit->shard ? missing : unit->shard;
}

static void put_parameter(struct meta_writing *writing, const struct atorch_parameter *parameter, const struct flat_unit_part *part)
{
    const struct atorch_unit *unit = &writing->model->units[parameter->unit];
    struct pickle_stream *pickle = &writing->pickle;
    uint32_t expert, shard;
    atorch_place_of(unit, writing->rank, &expert, &shard);
    uint32_t key = unit->name.size ? pickle_stream_str(pickle, parameter->name) : meta_put_name(writing, parameter->name);
    pickle_stream_container(pickle, PICKLE_EMPTY_DICT);
    pickle_stream_opcode(pickle, PICKLE_MARK);
    meta_put_member(writing, "param_names");
    if (unit->name.size)
        meta_put_name(writing, parameter->inner);
    else
        pickle_stream_get(pickle, key);
    meta_put_member(writing, "param_shapes");
    put_shape(writing, parameter);
    put_strides(writing, parameter);
    meta_put_member(writing, "param_numels");
    pickle_stream_int(pickle, parameter->numel);
    meta_put_member(writing, "param_offsets");
    pickle_stream_int_tuple(pickle, (int64_t[]){ part->place, part->place + part->count }, 2);
    meta_put_member(writing, "pad");
    pickle_stream_int(pickle, pad_of(writing->model, unit, shard));
    meta_put_member(writing, "rank");
    pickle_stream_int(pickle, writing->rank);
    meta_put_member(writing, "striped_fsdp_name");
    if (writing->unit_memo[parameter->unit] == PICKLE_NO_MEMO)
        writing->unit_memo[parameter->unit] = pickle_stream_str(pickle, unit->name);
    else
        pickle_stream_get(pickle, writing->unit_memo[parameter->unit]);
    if (writing->model->version == 0) {
        meta_put_member(writing, "flat_numel");
        pickle_stream_int(pickle, unit->shard);
    }
    pickle_stream_opcode(pickle, PICKLE_SETITEMS);
}

static bool is_written(const struct meta_writing *writing, const struct atorch_parameter *parameter, struct flat_unit_part *part)
{
    const struct atorch_unit *unit = &writing->model->units[parameter->unit];
    uint32_t expert, shard;
    atorch_place_of(unit, writing->rank, &expert, &shard);
    return parameter->name.size && atorch_part_of(unit, parameter, shard, part);
}

static void meta_put_parameters(struct meta_writing *writing)
{
    const struct atorch_model *model = writing->model;
    struct pickle_stream *pickle = &writing->pickle;
    struct flat_unit_part part;
    size_t count = 0;
    for (uint32_t p = 0; p < model->parameter_count; p++)
        count += is_written(writing, &model->parameters[p], &part);
    pickle_stream_container(pickle, PICKLE_EMPTY_DICT);
    struct pickle_items items = pickle_stream_items_begin(pickle, count, PICKLE_ITEMS_DICT);
    for (uint32_t p = 0; p < model->parameter_count; p++) {
        if (!is_written(writing, &model->parameters[p], &part))
            continue;
        pickle_stream_item(pickle, &items);
        put_parameter(writing, &model->parameters[p], &part);
    }
    pickle_stream_items_end(pickle, &items);
}

/* ---- the file ---- */

static void put_version_1(struct meta_writing *writing)
{
    struct pickle_stream *pickle = &writing->pickle;
    uint32_t count = writing->model->unit_count;
    pickle_stream_container(pickle, PICKLE_EMPTY_DICT);
    pickle_stream_opcode(pickle, PICKLE_MARK);
    meta_put_member(writing, "flat_param_meta");
    pickle_stream_container(pickle, PICKLE_EMPTY_DICT);
    struct pickle_items items = pickle_stream_items_begin(pickle, count, PICKLE_ITEMS_DICT);
    for (uint32_t i = 0; i < count; i++) {
        pickle_stream_item(pickle, &items);
        put_unit(writing, i);
    }
    pickle_stream_items_end(pickle, &items);
    meta_put_member(writing, "param_meta");
    meta_put_parameters(writing);
    pickle_stream_opcode(pickle, PICKLE_SETITEMS);
}

reshard_status atorch_meta_write(const struct atorch_model *model, uint32_t rank, struct buffer *out, reshard_error *err)
{
    struct meta_writing writing = { .model = model, .rank = rank, .size_memo = PICKLE_NO_MEMO };
    writing.unit_memo = array_new(model->unit_count, sizeof(*writing.unit_memo));
    if (!writing.unit_memo)
        return error_set_memory(err);
    memset(writing.unit_memo, 0xFF, (size_t)model->unit_count * sizeof(*writing.unit_memo));
    pickle_stream_begin(&writing.pickle, 4, pickle_sink_buffer, out);
    if (model->version == 0)
        meta_put_parameters(&writing);
    else
        put_version_1(&writing);
    reshard_status status = pickle_stream_end(&writing.pickle, NULL, err);
    pickle_words_release(&writing.words);
    free(writing.unit_memo);
    return status;
}
