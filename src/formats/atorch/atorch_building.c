/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model out of the files of its ranks. Nothing is believed because one file says it: pieces must follow one another through the ranks,
 * parameters must not overlap, and the runs that version 1 tells must be exactly these parameters with padding between them.
 */
#include "formats/atorch/atorch_model.h"

#include "base/array.h"
#include "base/checked.h"
#include "catalog/catalog.h"

#include <inttypes.h>
#include <stdlib.h>

#define FILE_NAME(what) what ".%05" PRIu32 "-%05" PRIu32

/* What a rank holds of a parameter. */
struct building_piece {
    uint32_t parameter, expert, shard, rank;
    int64_t begin, end;
};

struct atorch_building {
    struct atorch_model *model;
    struct building_piece *pieces;
    uint32_t piece_count, piece_capacity;
    uint32_t first, added; /* the first rank whose files are there, how many have been taken */
    bool has_pads;
};

struct atorch_building *atorch_building_new(struct atorch_model *model, uint32_t ranks)
{
    struct atorch_building *building = calloc(1, sizeof(*building));
    if (!building)
        return NULL;
    building->model = model;
    model->ranks = ranks;
    model->is_original = true;
    return building;
}

void atorch_building_free(struct atorch_building *building)
{
    if (!building)
        return;
    free(building->pieces);
    free(building);
}

/* ---- units ---- */

static bool copy_numbers(struct arena *arena, struct atorch_numbers *numbers)
{
    int64_t *items = arena_array(arena, numbers->count, sizeof(*items));
    if (items && numbers->count)
        memcpy(items, numbers->items, numbers->count * sizeof(*items));
    numbers->items = items;
    return items != NULL;
}

/* Keeps what the first file tells of a unit, to compare with what the others do. */
static bool keep_unit(struct arena *arena, struct atorch_unit *unit, const struct atorch_meta_unit *said)
{
    unit->said = *said;
    bool *mask = arena_array(arena, said->runs.count, sizeof(*mask));
    if (mask && said->runs.count)
        memcpy(mask, said->is_padding, said->runs.count * sizeof(*mask));
    unit->said.is_padding = mask;
    return mask && copy_numbers(arena, &unit->said.numels) && copy_numbers(arena, &unit->said.runs);
}

static bool numbers_equal(struct atorch_numbers a, struct atorch_numbers b)
{
    return a.count == b.count && (!a.count || memcmp(a.items, b.items, a.count * sizeof(*a.items)) == 0);
}

static reshard_status building_unit(struct atorch_building *building, uint32_t rank, struct str name, struct atorch_unit **out,
                                    bool *is_new, reshard_error *err)
{
    struct atorch_model *model = building->model;
    uint32_t number = name_map_intern(&model->unit_names, name, is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(model->units, number, model->unit_capacity))
        return error_set_memory(err);
    *out = &model->units[number];
    if (!*is_new)
        return RESHARD_OK;
    model->unit_count++;
    **out = (struct atorch_unit){ .name = name_map_at(&model->unit_names, number),
                                  .dtype = DTYPE_COUNT,
                                  .shard = -1,
                                  .experts = 1,
                                  .shards = model->ranks,
                                  .alignment = 1,
                                  .meta_file = rank };
    return RESHARD_OK;
}

/* Where each rank stands: told by every file for its own rank. */
static reshard_status building_place(struct atorch_building *building, uint32_t rank, struct atorch_unit *unit,
                                     const struct atorch_meta_unit *said, reshard_error *err)
{
    struct atorch_model *model = building->model;
    uint64_t experts = said->place.ranks.count, shards = said->place.fsdp_ranks.count, product;
    if (!checked_mul_u64(experts, shards, &product) || product != model->ranks)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "unit '%.*s' has %" PRIu64 " expert ranks times %" PRIu64 " ranks, but there are %" PRIu32, STR_ARG(unit->name),
                         experts, shards, model->ranks);
    if ((uint64_t)said->place.rank >= experts || (uint64_t)said->place.fsdp_rank >= shards)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "unit '%.*s': expert_rank %" PRId64 " or expert_fsdp_rank %" PRId64 " lies outside of its group",
                         STR_ARG(unit->name), said->place.rank, said->place.fsdp_rank);
    if (!unit->places) {
        unit->places = arena_zalloc(&model->arena, model->ranks * sizeof(*unit->places));
        unit->holders = arena_zalloc(&model->arena, model->ranks * sizeof(*unit->holders));
        if (!unit->places || !unit->holders)
            return error_set_memory(err);
        unit->experts = (uint32_t)experts;
        unit->shards = (uint32_t)shards;
    }
    unit->places[rank] = said->place;
    if (!copy_numbers(&model->arena, &unit->places[rank].ranks) || !copy_numbers(&model->arena, &unit->places[rank].fsdp_ranks))
        return error_set_memory(err);
    uint32_t *holder = &unit->holders[said->place.rank * (int64_t)shards + said->place.fsdp_rank];
    if (*holder)
        return error_set(err, RESHARD_ERR_FORMAT, "unit '%.*s': ranks %" PRIu32 " and %" PRIu32 " say that they hold the same piece",
                         STR_ARG(unit->name), *holder - 1, rank);
    *holder = rank + 1;
    return RESHARD_OK;
}

static reshard_status building_compare(const struct atorch_building *building, const struct atorch_unit *unit,
                                       const struct atorch_meta_unit *said, reshard_error *err)
{
    const struct atorch_meta_unit *first = &unit->said;
    bool is_same = numbers_equal(first->numels, said->numels) && numbers_equal(first->runs, said->runs) &&
                   first->has_experts == said->has_experts &&
                   (!said->runs.count || memcmp(first->is_padding, said->is_padding, said->runs.count * sizeof(bool)) == 0);
    if (!is_same)
        return error_set(err, RESHARD_ERR_FORMAT, "numels_with_padding of unit '%.*s' is another than in " FILE_NAME("flat_meta"),
                         STR_ARG(unit->name), unit->meta_file, building->model->ranks);
    return RESHARD_OK;
}

static reshard_status building_add_units(struct atorch_building *building, uint32_t rank, const struct atorch_meta *meta,
                                         reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < meta->unit_count && !status; i++) {
        struct atorch_unit *unit;
        bool is_new;
        status = building_unit(building, rank, meta->units[i].name, &unit, &is_new, err);
        if (status)
            return status;
        if (is_new) {
            unit->has_experts = meta->units[i].has_experts;
            if (!keep_unit(&building->model->arena, unit, &meta->units[i]))
                return error_set_memory(err);
        }
        status = building_compare(building, unit, &meta->units[i], err);
        if (!status && unit->has_experts)
            status = building_place(building, rank, unit, &meta->units[i], err);
    }
    return status;
}

/* ---- the pieces of units ---- */

/* The stored tensor of a unit: one axis, on all ranks of one type and length. */
static reshard_status building_add_flat(struct atorch_building *building, uint32_t rank, const struct atorch_flat *flat, reshard_error *err)
{
    uint32_t ranks = building->model->ranks;
    struct atorch_unit *unit;
    bool is_new;
    if (flat->rank != 1)
        return error_set(err, RESHARD_ERR_FORMAT, FILE_NAME("flat_param") ": unit '%.*s' has %d axes, expected 1", rank, ranks,
                         STR_ARG(flat->unit), flat->rank);
    reshard_status status = building_unit(building, rank, flat->unit, &unit, &is_new, err);
    if (status)
        return status;
    if (unit->shard < 0) {
        unit->shard = flat->count;
        unit->dtype = flat->dtype;
    }
    if (unit->dtype != flat->dtype || unit->shard != flat->count)
        return error_set(err, RESHARD_ERR_FORMAT,
                         FILE_NAME("flat_param") ": unit '%.*s' has %" PRId64 " elements of %s, on other ranks %" PRId64 " of %s", rank,
                         ranks, STR_ARG(flat->unit), flat->count, dtype_info(flat->dtype)->name, unit->shard,
                         dtype_info(unit->dtype)->name);
    unit->file_count++;
    return RESHARD_OK;
}

static reshard_status building_check_flats(const struct atorch_building *building, uint32_t rank, const struct atorch_meta *meta,
                                           reshard_error *err)
{
    const struct atorch_model *model = building->model;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        const struct atorch_unit *unit = &model->units[i];
        if (unit->file_count != building->added + 1)
            return error_set(err, RESHARD_ERR_FORMAT,
                             FILE_NAME("flat_param") " has no tensor of unit '%.*s', which " FILE_NAME("flat_meta") " tells of", rank,
                             model->ranks, STR_ARG(unit->name), unit->meta_file, model->ranks);
    }
    for (uint32_t i = 0; i < meta->unit_count; i++) {
        const struct atorch_unit *unit = &model->units[name_map_find(&model->unit_names, meta->units[i].name)];
        if (meta->units[i].shard != unit->shard)
            return error_set(err, RESHARD_ERR_FORMAT,
                             "flat_numel of unit '%.*s' is %" PRId64 ", but " FILE_NAME("flat_param") " holds %" PRId64 " elements of it",
                             STR_ARG(unit->name), meta->units[i].shard, rank, model->ranks, unit->shard);
    }
    if (meta->version && meta->unit_count != model->unit_count)
        return error_set(err, RESHARD_ERR_FORMAT, "flat_param_meta tells of %" PRIu32 " units, " FILE_NAME("flat_param") " of %" PRIu32,
                         meta->unit_count, rank, model->ranks, model->unit_count);
    return RESHARD_OK;
}

/* ---- parameters ---- */

static bool building_same_axes(int rank, const int64_t *a, const int64_t *b)
{
    return (!a && !b) || (a && b && (!rank || memcmp(a, b, (size_t)rank * sizeof(*a)) == 0));
}

static const int64_t *copy_axes(struct arena *arena, int rank, const int64_t *axes)
{
    int64_t *copy = arena_array(arena, rank, sizeof(*copy));
    if (copy && rank)
        memcpy(copy, axes, (size_t)rank * sizeof(*copy));
    return copy;
}

static bool building_new_parameter(struct atorch_model *model, struct str name, uint32_t unit, const struct atorch_meta_entry *entry)
{
    if (!ARRAY_ROOM(model->parameters, model->parameter_count, model->parameter_capacity))
        return false;
    struct atorch_parameter *parameter = &model->parameters[model->parameter_count];
    *parameter = (struct atorch_parameter){
        .name = name, .unit = unit, .rank = entry->rank, .numel = entry->numel, .tensor = model->parameter_count++
    };
    parameter->shape = copy_axes(&model->arena, entry->rank, entry->shape);
    if (entry->strides)
        parameter->strides = copy_axes(&model->arena, entry->rank, entry->strides);
    return parameter->shape && (parameter->strides || !entry->strides) && arena_str(&model->arena, entry->inner, &parameter->inner);
}

static reshard_status building_parameter(struct atorch_building *building, uint32_t unit, const struct atorch_meta_entry *entry,
                                         uint32_t *out, reshard_error *err)
{
    struct atorch_model *model = building->model;
    bool is_new;
    uint32_t number = name_map_intern(&model->parameter_names, entry->name, &is_new);
    if (number == NAME_NONE || (is_new && !building_new_parameter(model, name_map_at(&model->parameter_names, number), unit, entry)))
        return error_set_memory(err);
    const struct atorch_parameter *parameter = &model->parameters[number];
    *out = number;
    if (parameter->unit != unit || parameter->rank != entry->rank || parameter->numel != entry->numel ||
        !building_same_axes(entry->rank, parameter->shape, entry->shape) ||
        !building_same_axes(entry->rank, parameter->strides, entry->strides))
        return error_set(err, RESHARD_ERR_FORMAT, "parameter '%.*s' has another unit, shape or strides on rank %" PRIu32 " than before",
                         STR_ARG(entry->name), (uint32_t)entry->data_rank);
    return RESHARD_OK;
}

static reshard_status building_check_entry(const struct atorch_building *building, uint32_t rank, const struct atorch_unit *unit,
                                           const struct atorch_meta_entry *entry, reshard_error *err)
{
    if (entry->data_rank != rank)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "parameter '%.*s' says rank %" PRId64 ": the file is not the one that rank %" PRIu32 " wrote",
                         STR_ARG(entry->name), entry->data_rank, rank);
    if (entry->shard >= 0 && entry->shard != unit->shard)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "flat_numel of parameter '%.*s' is %" PRId64 ", but " FILE_NAME("flat_param") " holds %" PRId64
                                                                                                       " elements of its unit",
                         STR_ARG(entry->name), entry->shard, rank, building->model->ranks, unit->shard);
    if (entry->end > unit->shard)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "param_offsets of parameter '%.*s' are %" PRId64 " to %" PRId64 ", past the end of the shard of %" PRId64
                         " elements",
                         STR_ARG(entry->name), entry->begin, entry->end, unit->shard);
    return RESHARD_OK;
}

static reshard_status building_add_entry(struct atorch_building *building, uint32_t rank, const struct atorch_meta_entry *entry,
                                         reshard_error *err)
{
    struct atorch_model *model = building->model;
    struct building_piece piece = { .rank = rank, .begin = entry->begin, .end = entry->end };
    uint32_t number = name_map_find(&model->unit_names, entry->unit);
    if (number == NAME_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "parameter '%.*s' lies in unit '%.*s', which " FILE_NAME("flat_param") " does not hold",
                         STR_ARG(entry->name), STR_ARG(entry->unit), rank, model->ranks);
    const struct atorch_unit *unit = &model->units[number];
    reshard_status status = building_check_entry(building, rank, unit, entry, err);
    if (!status)
        status = building_parameter(building, number, entry, &piece.parameter, err);
    if (status)
        return status;
    atorch_place_of(unit, rank, &piece.expert, &piece.shard);
    building->has_pads |= entry->pad > 0;
    model->has_strides |= entry->strides != NULL;
    if (!ARRAY_ROOM(building->pieces, building->piece_count, building->piece_capacity))
        return error_set_memory(err);
    building->pieces[building->piece_count++] = piece;
    return RESHARD_OK;
}

/* Units in the order in which metadata names them; version 0 does so by its parameters. */
static reshard_status building_order_units(struct atorch_building *building, uint32_t rank, const struct atorch_meta *meta,
                                           reshard_error *err)
{
    reshard_status status = building_add_units(building, rank, meta, err);
    for (uint32_t i = 0; i < meta->entry_count && !status && !meta->version; i++) {
        struct atorch_unit *unit;
        bool is_new;
        status = building_unit(building, rank, meta->entries[i].unit, &unit, &is_new, err);
    }
    return status;
}

reshard_status atorch_building_add(struct atorch_building *building, uint32_t rank, const struct atorch_meta *meta,
                                   const struct atorch_flat *flats, uint32_t flat_count, reshard_error *err)
{
    struct atorch_model *model = building->model;
    if (building->added && meta->version != model->version)
        return error_set(err, RESHARD_ERR_FORMAT, "it is of version %d, " FILE_NAME("flat_meta") " of version %d", meta->version,
                         building->first, model->ranks, model->version);
    building->first = building->added ? building->first : rank;
    model->version = meta->version;
    reshard_status status = building_order_units(building, rank, meta, err);
    for (uint32_t i = 0; i < flat_count && !status; i++)
        status = building_add_flat(building, rank, &flats[i], err);
    if (!status)
        status = building_check_flats(building, rank, meta, err);
    for (uint32_t i = 0; i < meta->entry_count && !status; i++)
        status = building_add_entry(building, rank, &meta->entries[i], err);
    building->added++;
    return status;
}

/* ---- putting together ---- */

static int building_piece_order(const void *a, const void *b)
{
    const struct building_piece *x = a, *y = b;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return x->shard < y->shard ? -1 : x->shard > y->shard;
}

/* Whether the file with that piece of the unit is missing. */
static bool shard_is_lost(const struct atorch_model *model, const struct atorch_unit *unit, uint32_t expert, uint32_t shard)
{
    if (unit->has_experts)
        return model->is_lost && !unit->holders[(size_t)expert * unit->shards + shard];
    return atorch_rank_is_lost(model, shard);
}

/* The second piece goes on where the first ends, or behind pieces that are lost. */
static bool piece_follows(const struct atorch_model *model, const struct atorch_unit *unit, const struct building_piece *first,
                          const struct building_piece *second)
{
    uint32_t shard = first->shard + 1;
    while (shard < second->shard && shard_is_lost(model, unit, first->expert, shard))
        shard++;
    return second->shard == shard && second->begin == 0 && first->end == unit->shard;
}

/* The pieces of one expert's parameter follow one another without a gap. *start is where the first lies, -1: that is lost. */
static reshard_status check_pieces(const struct atorch_building *building, const struct building_piece *pieces, uint32_t count,
                                   int64_t *start, reshard_error *err)
{
    const struct atorch_model *model = building->model;
    const struct atorch_parameter *parameter = &model->parameters[pieces->parameter];
    const struct atorch_unit *unit = &model->units[parameter->unit];
    const struct building_piece *first = &pieces[0], *last = &pieces[count - 1];
    bool has_head = first->begin || !first->shard || !shard_is_lost(model, unit, first->expert, first->shard - 1);
    bool has_tail =
        last->end < unit->shard || last->shard + 1 >= unit->shards || !shard_is_lost(model, unit, last->expert, last->shard + 1);
    int64_t total;
    if (!checked_mul_i64(unit->shard, unit->shards, &total))
        return error_set(err, RESHARD_ERR_FORMAT, FILE_NAME("flat_meta") ": unit '%.*s' has more than 2^63 elements", unit->meta_file,
                         model->ranks, STR_ARG(unit->name));
    for (uint32_t i = 1; i < count; i++) {
        if (!piece_follows(model, unit, &pieces[i - 1], &pieces[i]))
            return error_set(err, RESHARD_ERR_FORMAT,
                             FILE_NAME("flat_meta") ": param_offsets of parameter '%.*s' do not go on where those of rank %" PRIu32 " end",
                             pieces[i].rank, model->ranks, STR_ARG(parameter->name), pieces[i - 1].rank);
    }
    int64_t begin = unit->shard * first->shard + first->begin, end = unit->shard * last->shard + last->end, held = end - begin;
    bool is_whole = has_head && has_tail;
    *start = has_head ? begin : has_tail ? end - parameter->numel : -1;
    if (held > parameter->numel || (is_whole && held != parameter->numel) || (has_tail && *start < 0))
        return error_set(err, RESHARD_ERR_FORMAT,
                         "param_offsets of parameter '%.*s' hold %" PRId64 " elements on all ranks, param_numels says %" PRId64,
                         STR_ARG(parameter->name), held, parameter->numel);
    return RESHARD_OK;
}

/* Where the parameter lies, as the pieces from *next on say for each expert; *next is moved behind them. -1: only lost files told. */
static reshard_status building_find_start(struct atorch_building *building, uint32_t number, uint32_t *next, reshard_error *err)
{
    struct atorch_model *model = building->model;
    struct atorch_parameter *parameter = &model->parameters[number];
    parameter->start = -1;
    for (uint32_t expert = 0; expert < model->units[parameter->unit].experts; expert++) {
        uint32_t first = *next;
        int64_t start = -1;
        while (*next < building->piece_count && building->pieces[*next].parameter == number && building->pieces[*next].expert == expert)
            ++*next;
        if (*next == first && !model->is_lost)
            return error_set(err, RESHARD_ERR_FORMAT, "parameter '%.*s': no rank holds it for expert %" PRIu32, STR_ARG(parameter->name),
                             expert);
        reshard_status status = *next == first ? RESHARD_OK : check_pieces(building, building->pieces + first, *next - first, &start, err);
        if (status)
            return status;
        if (start >= 0 && parameter->start >= 0 && start != parameter->start)
            return error_set(err, RESHARD_ERR_FORMAT, "parameter '%.*s' lies elsewhere for expert %" PRIu32 " than for expert 0",
                             STR_ARG(parameter->name), expert);
        parameter->start = start >= 0 ? start : parameter->start;
    }
    return RESHARD_OK;
}

static reshard_status building_find_starts(struct atorch_building *building, reshard_error *err)
{
    struct atorch_model *model = building->model;
    if (building->piece_count)
        qsort(building->pieces, building->piece_count, sizeof(*building->pieces), building_piece_order);
    uint32_t next = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < model->parameter_count && !status; i++)
        status = building_find_start(building, i, &next, err);
    return status;
}

/* Parameters whose place is lost are none that others are compared with. */
static reshard_status building_set_aside(struct atorch_model *model, reshard_error *err)
{
    uint32_t kept = 0;
    if (!model->is_lost)
        return RESHARD_OK;
    model->unplaced = arena_array(&model->arena, model->parameter_count, sizeof(*model->unplaced));
    if (!model->unplaced)
        return error_set_memory(err);
    for (uint32_t i = 0; i < model->parameter_count; i++) {
        if (model->parameters[i].start < 0)
            model->unplaced[model->unplaced_count++] = model->parameters[i];
        else
            model->parameters[kept++] = model->parameters[i];
    }
    model->parameter_count = kept;
    return RESHARD_OK;
}

static int building_parameter_order(const void *a, const void *b)
{
    const struct atorch_parameter *x = a, *y = b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (!x->numel != !y->numel)
        return x->numel ? 1 : -1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor; /* the order of first sight */
}

/* Parameters by unit and place. */
static void building_sort(struct atorch_model *model)
{
    if (model->parameter_count)
        qsort(model->parameters, model->parameter_count, sizeof(*model->parameters), building_parameter_order);
    uint32_t next = 0;
    for (uint32_t i = 0; i < model->unit_count; i++) {
        model->units[i].first = next;
        while (next < model->parameter_count && model->parameters[next].unit == i)
            next++;
        model->units[i].count = next - model->units[i].first;
    }
}

/* ---- units made up of parameters ---- */

static reshard_status check_overlaps(const struct atorch_model *model, struct atorch_unit *unit, reshard_error *err)
{
    int64_t end = 0, total;
    for (uint32_t i = 0; i < unit->count; i++) {
        const struct atorch_parameter *parameter = &model->parameters[unit->first + i];
        if (parameter->start < end)
            return error_set(err, RESHARD_ERR_FORMAT,
                             FILE_NAME("flat_meta") ": parameter '%.*s' begins at element %" PRId64 " of unit '%.*s', inside '%.*s'",
                             unit->meta_file, model->ranks, STR_ARG(parameter->name), parameter->start, STR_ARG(unit->name),
                             STR_ARG(parameter[-1].name));
        end = parameter->start + parameter->numel;
    }
    unit->unpadded = end;
    if (!checked_mul_i64(unit->shard, unit->shards, &total))
        return error_set(err, RESHARD_ERR_FORMAT, FILE_NAME("flat_meta") ": unit '%.*s' has more than 2^63 elements", unit->meta_file,
                         model->ranks, STR_ARG(unit->name));
    return RESHARD_OK;
}

/* A parameter without elements that lies between two shards is in no file: its run alone tells of it. */
static bool building_add_lost(struct atorch_model *model, uint32_t unit, int64_t start)
{
    static const int64_t none[1] = { 0 };
    if (!ARRAY_ROOM(model->parameters, model->parameter_count, model->parameter_capacity))
        return false;
    model->parameters[model->parameter_count++] =
        (struct atorch_parameter){ .unit = unit, .rank = 1, .shape = none, .start = start, .tensor = CATALOG_NONE };
    return true;
}

static reshard_status wrong_run(const struct atorch_model *model, const struct atorch_unit *unit, size_t run,
                                const struct atorch_parameter *parameter, reshard_error *err)
{
    if (!parameter)
        return error_set(err, RESHARD_ERR_FORMAT,
                         FILE_NAME("flat_meta") ": unit '%.*s': run %zu of numels_with_padding is no parameter that a flat_meta tells of",
                         unit->meta_file, model->ranks, STR_ARG(unit->name), run);
    return error_set(err, RESHARD_ERR_FORMAT,
                     FILE_NAME("flat_meta") ": param_offsets put parameter '%.*s' at elements %" PRId64 " to %" PRId64
                     " of unit '%.*s', numels_with_padding does not",
                     unit->meta_file, model->ranks, STR_ARG(parameter->name), parameter->start, parameter->start + parameter->numel,
                     STR_ARG(unit->name));
}

/* Runs against parameters; those of parameters that no file names are counted, and kept where that tells all of them. */
static reshard_status check_runs(struct atorch_model *model, uint32_t number, struct atorch_nameless *nameless, reshard_error *err)
{
    struct atorch_unit *unit = &model->units[number];
    const struct atorch_numbers *runs = &unit->said.runs;
    int64_t at = 0, total = unit->shard * unit->shards;
    uint32_t next = unit->first, end = unit->first + unit->count;
    for (size_t i = 0; i < runs->count; i++) {
        const struct atorch_parameter *parameter = next < end ? &model->parameters[next] : NULL;
        bool fits = parameter && parameter->start == at && parameter->numel == runs->items[i];
        bool may_be_lost = model->is_lost && (!parameter || parameter->start > at);
        if (!unit->said.is_padding[i] && !fits && runs->items[i]) {
            if (!may_be_lost)
                return wrong_run(model, unit, i, parameter, err);
            nameless->lost++;
        } else if (!unit->said.is_padding[i] && !fits) {
            nameless->empty++;
            if (!building_add_lost(model, number, at))
                return error_set_memory(err);
            unit = &model->units[number];
        }
        next += !unit->said.is_padding[i] && fits;
        if (!checked_add_i64(at, runs->items[i], &at) || at > total)
            return error_set(err, RESHARD_ERR_FORMAT,
                             "numels_with_padding of unit '%.*s' has more elements than the %" PRIu32 " shards of %" PRId64,
                             STR_ARG(unit->name), unit->shards, unit->shard);
    }
    if (next != end)
        return wrong_run(model, unit, runs->count, &model->parameters[next], err);
    if (total - at >= unit->shards && total != at)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "numels_with_padding of unit '%.*s' has %" PRId64 " elements, the %" PRIu32 " shards of %" PRId64
                         " do not fit that",
                         STR_ARG(unit->name), at, unit->shards, unit->shard);
    model->is_original &= at == total;
    return RESHARD_OK;
}

/* Elements at whose multiples all parameters begin, as close behind one another as that allows; 0: there is no such number. */
static int64_t find_alignment(const struct atorch_model *model, const struct atorch_unit *unit)
{
    int64_t own = dtype_element_bytes(unit->dtype) ? 16 / (int64_t)dtype_element_bytes(unit->dtype) : 1;
    const int64_t candidates[] = { own ? own : 1, 8, 4, 2, 16, 1 };
    for (size_t c = 0; c < sizeof(candidates) / sizeof(candidates[0]); c++) {
        int64_t end = 0, a = candidates[c];
        uint32_t i = 0;
        for (; i < unit->count; i++) {
            const struct atorch_parameter *parameter = &model->parameters[unit->first + i];
            if (parameter->start != (end + a - 1) / a * a)
                break;
            end = parameter->start + parameter->numel;
        }
        if (i == unit->count)
            return a;
    }
    return 0;
}

static reshard_status building_check_alignment(struct atorch_building *building, struct atorch_unit *unit, reshard_error *err)
{
    struct atorch_model *model = building->model;
    unit->alignment = find_alignment(model, unit);
    if (!unit->alignment && (model->version || model->is_lost))
        unit->alignment = 1; /* the runs have been compared, or gaps are where lost parameters were */
    else if (!unit->alignment)
        return error_set(err, RESHARD_ERR_FORMAT, "param_offsets of unit '%.*s' leave gaps that no alignment makes", STR_ARG(unit->name));
    else if (unit->alignment == 1 && dtype_element_bytes(unit->dtype) < 16)
        model->is_original = false;
    int64_t tail = unit->shard * unit->shards - unit->unpadded;
    if (!model->version && tail >= unit->shards && tail && !model->is_lost)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "the parameters of unit '%.*s' end at element %" PRId64 ", its %" PRIu32 " shards of %" PRId64 " do not fit that",
                         STR_ARG(unit->name), unit->unpadded, unit->shards, unit->shard);
    return RESHARD_OK;
}

static bool building_index(struct atorch_model *model)
{
    uint32_t count = model->parameter_names.count;
    if (count && !ARRAY_RESERVE(model->by_name, count, model->by_name_capacity))
        return false;
    for (uint32_t i = 0; i < count; i++)
        model->by_name[i] = NAME_NONE;
    for (uint32_t i = 0; i < model->parameter_count; i++) {
        if (model->parameters[i].name.size || model->parameters[i].numel)
            model->by_name[name_map_find(&model->parameter_names, model->parameters[i].name)] = i;
    }
    return true;
}

reshard_status atorch_building_finish(struct atorch_building *building, struct atorch_nameless *nameless, reshard_error *err)
{
    struct atorch_model *model = building->model;
    *nameless = (struct atorch_nameless){ 0 };
    reshard_status status = building_find_starts(building, err);
    if (!status)
        status = building_set_aside(model, err);
    building_sort(model);
    uint32_t known = model->parameter_count;
    for (uint32_t i = 0; i < model->unit_count && !status; i++) {
        status = check_overlaps(model, &model->units[i], err);
        if (!status && model->version)
            status = check_runs(model, i, nameless, err);
        if (!status)
            status = building_check_alignment(building, &model->units[i], err);
    }
    if (status)
        return status;
    if (model->version) /* a run tells of those, too */
        nameless->lost -= model->unplaced_count < nameless->lost ? model->unplaced_count : nameless->lost;
    if (building->has_pads)
        model->is_original = false;
    if (known < model->parameter_count)
        building_sort(model);
    return building_index(model) ? RESHARD_OK : error_set_memory(err);
}
