/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state as it is stored: by parameter, cut at the very places of the parameter, or by unit where FSDP has no original
 * parameters. Either becomes one tensor for each parameter and kind of state. Files say no shapes: they are the parameters'.
 */
#include "formats/atorch/atorch_source.h"

#include "base/array.h"
#include "parallel/flat_run.h"

#include <inttypes.h>
#include <stdlib.h>

/* What a rank's file holds of a state. */
struct state_record {
    uint32_t owner; /* parameter of the model; unit, if is_unit; stray name otherwise */
    uint32_t state; /* number of its name */
    uint32_t rank, object;
    uint64_t offset, bytes;
    int64_t count; /* elements */
    uint8_t kind, dtype;
    int8_t axes;     /* at most 2 tell enough; more are 2 */
    bool is_natural; /* its shape is the parameter's */
};

enum record_kind { STATE_OF_PARAMETER, STATE_OF_UNIT, STATE_OF_NOBODY };

struct state_reading {
    struct source *source;
    const struct atorch_folder *folder;
    struct state_record *records;
    size_t count, capacity;
    struct name_map states; /* kinds of state, in the order of first sight */
    struct name_map strays; /* whole keys of state of nobody */
    struct buffer key;
};

static const struct atorch_model *state_model(const struct state_reading *reading)
{
    return &atorch_source_of(reading->source)->model;
}

/* ---- keys ---- */

/* The unit of a name UNIT._flat_param, or NAME_NONE. */
static uint32_t unit_of(const struct atorch_model *model, struct str name)
{
    if (str_is(name, ATORCH_FLAT_NAME))
        return name_map_find(&model->unit_names, STR(""));
    if (!str_ends_with(name, "." ATORCH_FLAT_NAME))
        return NAME_NONE;
    name.size -= strlen("." ATORCH_FLAT_NAME);
    return name_map_find(&model->unit_names, name);
}

/* PARAMETER-STATE, where either may have hyphens: the longest parameter that there is. */
static bool state_read_key(struct state_reading *reading, struct str key, struct state_record *record)
{
    const struct atorch_model *model = state_model(reading);
    struct str state = { 0 };
    record->kind = STATE_OF_NOBODY;
    for (size_t i = key.size; i-- > 0 && record->kind == STATE_OF_NOBODY;) {
        struct str name = { key.data, i };
        if (key.data[i] != '-')
            continue;
        uint32_t unit = unit_of(model, name);
        const struct atorch_parameter *parameter = atorch_parameter_find(model, name);
        if (parameter) {
            record->kind = STATE_OF_PARAMETER;
            record->owner = (uint32_t)(parameter - model->parameters);
        } else if (unit != NAME_NONE) {
            record->kind = STATE_OF_UNIT;
            record->owner = unit;
        }
        state = (struct str){ key.data + i + 1, key.size - i - 1 };
    }
    if (record->kind == STATE_OF_NOBODY)
        record->owner = name_map_intern(&reading->strays, key, NULL);
    record->state = record->kind == STATE_OF_NOBODY ? 0 : name_map_intern(&reading->states, state, NULL);
    return record->owner != NAME_NONE && record->state != NAME_NONE;
}

static bool state_has_shape(const struct atorch_parameter *parameter, int rank, const int64_t *shape)
{
    return parameter->rank == rank && (!rank || memcmp(parameter->shape, shape, (size_t)rank * sizeof(*shape)) == 0);
}

static reshard_status state_read_file(struct state_reading *reading, uint32_t rank, reshard_error *err)
{
    struct st_header header;
    uint32_t object;
    if (!reading->folder->ranked[ATORCH_OPTIM][rank])
        return RESHARD_OK; /* that is told */
    reshard_status status = atorch_open_header(reading->source, reading->folder->ranked[ATORCH_OPTIM][rank], &header, &object, err);
    for (uint32_t i = 0; !status && i < header.count; i++) {
        const struct st_entry *entry = &header.entries[i];
        const int64_t *shape = st_entry_shape(&header, entry);
        struct state_record record = { .rank = rank,
                                       .object = object,
                                       .offset = header.data_start + entry->begin,
                                       .bytes = entry->end - entry->begin,
                                       .dtype = entry->dtype,
                                       .axes = entry->rank < 2 ? (int8_t)entry->rank : 2 };
        if (!state_read_key(reading, name_map_at(&header.names, i), &record) ||
            !ARRAY_ROOM(reading->records, reading->count, reading->capacity)) {
            status = error_set_memory(err);
            break;
        }
        if (!shape_volume(entry->rank, shape, &record.count))
            status = error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has more than 2^63 elements", STR_ARG(name_map_at(&header.names, i)));
        if (record.kind == STATE_OF_PARAMETER)
            record.is_natural = state_has_shape(&state_model(reading)->parameters[record.owner], entry->rank, shape);
        reading->records[reading->count++] = record;
    }
    st_header_release(&header);
    return status;
}

static int record_order(const void *a, const void *b)
{
    const struct state_record *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->owner != y->owner)
        return x->owner < y->owner ? -1 : 1;
    if (x->state != y->state)
        return x->state < y->state ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* ---- state of one parameter ---- */

/* All records of a parameter and kind, or of a unit and kind. */
struct state_group {
    const struct state_record *records;
    size_t count;
    struct str name; /* of the state */
};

static reshard_status state_wrong(const struct state_reading *reading, const struct state_group *group, const struct state_record *record,
                                  struct str owner, const char *why, reshard_error *err)
{
    const char *stem = atorch_file_stem(ATORCH_OPTIM);
    error_set(err, RESHARD_ERR_FORMAT, "%s.%05" PRIu32 "-%05" PRIu32 ": '%.*s-%.*s' of %" PRId64 " elements at byte %" PRIu64 ": %s", stem,
              record->rank, reading->folder->ranks, STR_ARG(owner), STR_ARG(group->name), record->count, record->offset, why);
    error_object(err, "%s.%05" PRIu32 "-%05" PRIu32, stem, record->rank, reading->folder->ranks);
    return RESHARD_ERR_FORMAT;
}

/* The record of the rank, or NULL. */
static const struct state_record *state_at(const struct state_group *group, uint32_t rank)
{
    size_t low = 0, high = group->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (group->records[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < group->count && group->records[low].rank == rank ? &group->records[low] : NULL;
}

static reshard_status state_add_tensor(struct state_reading *reading, const struct atorch_parameter *parameter, uint32_t expert,
                                       const struct state_group *group, bool is_scalar, uint32_t *out, reshard_error *err)
{
    const struct atorch_unit *unit = &state_model(reading)->units[parameter->unit];
    buffer_clear(&reading->key);
    atorch_put_key(unit, parameter->name, expert, &reading->key);
    buffer_append_byte(&reading->key, '-');
    buffer_append_str(&reading->key, group->name);
    if (reading->key.failed)
        return buffer_error(&reading->key, err);
    return catalog_add_tensor(reading->source->catalog, buffer_str(&reading->key), group->records[0].dtype, is_scalar ? 0 : parameter->rank,
                              parameter->shape, out, err);
}

/* A whole stored tensor: a number, or what one rank keeps in its own shape. */
static reshard_status state_add_whole(struct state_reading *reading, uint32_t tensor, const struct state_record *record, reshard_error *err)
{
    struct catalog_chunk *chunk;
    reshard_status status =
        catalog_add_chunk(reading->source->catalog, tensor, NULL, NULL, record->object, record->offset, record->bytes, &chunk, err);
    if (!status)
        chunk->writer = catalog_writer(record->rank);
    return status;
}

static reshard_status state_add_part(struct state_reading *reading, const struct atorch_parameter *parameter, uint32_t tensor,
                                     const struct state_record *record, const struct flat_unit_part *part, int64_t place,
                                     reshard_error *err)
{
    const struct flat_run run = { .begin = part->begin,
                                  .count = part->count,
                                  .strides = parameter->strides,
                                  .object = record->object,
                                  .offset = record->offset + (uint64_t)place * dtype_element_bytes(record->dtype),
                                  .writer = catalog_writer(record->rank) };
    return flat_run_add(reading->source->catalog, tensor, &run, err);
}

static reshard_status state_missing(const struct state_reading *reading, const struct atorch_parameter *parameter,
                                    const struct state_group *group, uint32_t rank, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT,
                     "%s.%05" PRIu32 "-%05" PRIu32 " has no '%.*s-%.*s', though the rank holds elements of the parameter",
                     atorch_file_stem(ATORCH_OPTIM), rank, reading->folder->ranks, STR_ARG(parameter->name), STR_ARG(group->name));
}

/* Whether it is known what of the unit the rank's file holds. */
static bool state_is_placed(const struct state_reading *reading, const struct atorch_unit *unit, uint32_t rank)
{
    return !unit->has_experts || !atorch_rank_is_lost(state_model(reading), rank);
}

/* The chunks of one expert's state, rank by rank. */
static reshard_status state_add_pieces(struct state_reading *reading, const struct atorch_parameter *parameter, uint32_t expert,
                                       uint32_t tensor, const struct state_group *group, reshard_error *err)
{
    const struct atorch_unit *unit = &state_model(reading)->units[parameter->unit];
    bool is_scalar = reading->source->catalog->tensors[tensor].rank == 0 && group->records[0].axes == 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < reading->folder->ranks && !status; rank++) {
        const struct state_record *record = state_at(group, rank);
        struct flat_unit_part part;
        uint32_t own, shard;
        if (!state_is_placed(reading, unit, rank) || !reading->folder->ranked[ATORCH_OPTIM][rank])
            continue;
        atorch_place_of(unit, rank, &own, &shard);
        if (own != expert)
            continue;
        bool is_there = atorch_part_of(unit, parameter, shard, &part);
        if (is_there && !record && parameter->numel)
            return state_missing(reading, parameter, group, rank, err);
        if (!record)
            continue;
        if (is_scalar || (unit->shards == 1 && record->is_natural && record->axes != 1)) {
            status = state_add_whole(reading, tensor, record, err);
            continue;
        }
        if (record->axes != 1 && !(record->count == 0 && parameter->numel == 0))
            return state_wrong(reading, group, record, parameter->name, "expected a piece of one axis", err);
        if (record->count != (is_there ? part.count : 0))
            return state_wrong(reading, group, record, parameter->name, "another length than the parameter's piece in param_offsets", err);
        if (is_there || !parameter->numel)
            status = is_there ? state_add_part(reading, parameter, tensor, record, &part, 0, err)
                              : state_add_whole(reading, tensor, record, err);
    }
    return status;
}

static reshard_status state_check_alike(const struct state_reading *reading, const struct state_group *group, struct str owner,
                                        reshard_error *err)
{
    for (size_t i = 1; i < group->count; i++) {
        if (group->records[i].dtype != group->records[0].dtype || !group->records[i].axes != !group->records[0].axes)
            return state_wrong(reading, group, &group->records[i], owner, "another type or kind of shape than on other ranks", err);
    }
    return RESHARD_OK;
}

static reshard_status state_of_parameter(struct state_reading *reading, const struct state_group *group, reshard_error *err)
{
    const struct atorch_parameter *parameter = &state_model(reading)->parameters[group->records[0].owner];
    uint32_t experts = state_model(reading)->units[parameter->unit].experts, tensor;
    reshard_status status = state_check_alike(reading, group, parameter->name, err);
    for (uint32_t expert = 0; expert < experts && !status; expert++) {
        status = state_add_tensor(reading, parameter, expert, group, group->records[0].axes == 0, &tensor, err);
        if (!status)
            status = state_add_pieces(reading, parameter, expert, tensor, group, err);
    }
    return status;
}

/* ---- state of a unit ---- */

static reshard_status state_cut_unit(struct state_reading *reading, const struct atorch_parameter *parameter, uint32_t expert,
                                     const struct state_group *group, reshard_error *err)
{
    const struct atorch_unit *unit = &state_model(reading)->units[parameter->unit];
    bool is_scalar = group->records[0].axes == 0;
    uint32_t tensor;
    reshard_status status = state_add_tensor(reading, parameter, expert, group, is_scalar, &tensor, err);
    for (size_t i = 0; i < group->count && !status; i++) {
        const struct state_record *record = &group->records[i];
        struct flat_unit_part part;
        uint32_t own, shard;
        if (!state_is_placed(reading, unit, record->rank))
            continue;
        atorch_place_of(unit, record->rank, &own, &shard);
        if (own == expert && is_scalar)
            status = state_add_whole(reading, tensor, record, err);
        else if (own == expert && atorch_part_of(unit, parameter, shard, &part))
            status = state_add_part(reading, parameter, tensor, record, &part, part.place, err);
    }
    return status;
}

static reshard_status state_of_unit(struct state_reading *reading, const struct state_group *group, reshard_error *err)
{
    const struct atorch_model *model = state_model(reading);
    const struct atorch_unit *unit = &model->units[group->records[0].owner];
    atorch_source_of(reading->source)->is_optimizer_flat = true;
    reshard_status status = state_check_alike(reading, group, unit->name, err);
    uint32_t files = 0;
    for (uint32_t rank = 0; rank < model->ranks; rank++)
        files += reading->folder->ranked[ATORCH_OPTIM][rank] != NULL;
    if (!status && group->count != files)
        return error_set(err, RESHARD_ERR_FORMAT, "the state %.*s of unit '%.*s' is in %zu of %" PRIu32 " files of the optimizer",
                         STR_ARG(group->name), STR_ARG(unit->name), group->count, files);
    for (size_t i = 0; i < group->count && !status; i++) {
        const struct state_record *record = &group->records[i];
        if (record->axes && (record->axes != 1 || record->count != unit->shard))
            status = state_wrong(reading, group, record, unit->name, "another length than the unit's shard", err);
    }
    for (uint32_t i = 0; i < unit->count && !status; i++) {
        const struct atorch_parameter *parameter = &model->parameters[unit->first + i];
        for (uint32_t expert = 0; expert < unit->experts && !status && (parameter->name.size || parameter->numel); expert++)
            status = state_cut_unit(reading, parameter, expert, group, err);
    }
    return status;
}

/* ---- state of nobody ---- */

/* State whose parameter no file tells of: pieces in the order of ranks, one axis. */
static reshard_status state_of_nobody(struct state_reading *reading, const struct state_group *group, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    struct str key = name_map_at(&reading->strays, group->records[0].owner);
    int64_t total = 0, start = 0;
    uint32_t tensor;
    bool is_scalar = group->records[0].axes == 0;
    reshard_status status = state_check_alike(reading, group, key, err);
    if (status)
        return status;
    for (size_t i = 0; i < group->count; i++) {
        if (group->records[i].axes > 1 && group->count > 1)
            return state_wrong(reading, group, &group->records[i], key, "no parameter tells how it is cut", err);
        if (__builtin_add_overflow(total, group->records[i].count, &total))
            return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has more than 2^63 elements", STR_ARG(key));
    }
    status = catalog_add_tensor(catalog, key, group->records[0].dtype, is_scalar ? 0 : 1, &total, &tensor, err);
    for (size_t i = 0; i < group->count && !status; i++) {
        const struct state_record *record = &group->records[i];
        if (is_scalar)
            status = state_add_whole(reading, tensor, record, err);
        else
            status = catalog_add_chunk(catalog, tensor, &start, &record->count, record->object, record->offset, record->bytes, NULL, err);
        start += record->count;
    }
    return status;
}

/* ---- all ---- */

static reshard_status state_add_groups(struct state_reading *reading, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < reading->count && !status;) {
        const struct state_record *first = &reading->records[i];
        struct state_group group = { .records = first };
        while (i < reading->count && reading->records[i].kind == first->kind && reading->records[i].owner == first->owner &&
               reading->records[i].state == first->state)
            i++;
        group.count = (size_t)(&reading->records[i] - first);
        if (first->kind == STATE_OF_NOBODY && state_model(reading)->is_lost)
            continue; /* of a parameter that lost files told of */
        if (first->kind != STATE_OF_NOBODY)
            group.name = name_map_at(&reading->states, first->state);
        status = first->kind == STATE_OF_PARAMETER ? state_of_parameter(reading, &group, err)
                 : first->kind == STATE_OF_UNIT    ? state_of_unit(reading, &group, err)
                                                   : state_of_nobody(reading, &group, err);
    }
    return status;
}

reshard_status atorch_read_optimizer(struct source *source, const struct atorch_folder *folder, reshard_error *err)
{
    struct state_reading reading = { .source = source, .folder = folder };
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < folder->ranks && !status; rank++)
        status = state_read_file(&reading, rank, err);
    if (!status && reading.count)
        qsort(reading.records, reading.count, sizeof(*reading.records), record_order);
    if (!status)
        status = state_add_groups(&reading, err);
    if (!status && reading.strays.count && state_model(&reading)->is_lost)
        catalog_warn_lost(source->catalog, (struct str){ 0 },
                          "%" PRIu32 " optimizer states are lost: no file that is left tells the places of their parameters, such as "
                          "that of '%.*s'",
                          reading.strays.count, STR_ARG(name_map_at(&reading.strays, 0)));
    else if (!status && reading.strays.count)
        catalog_warn(source->catalog, false,
                     "%" PRIu32 " optimizer states are of no parameter that is stored, such as '%.*s': they are listed as one axis",
                     reading.strays.count, STR_ARG(name_map_at(&reading.strays, 0)));
    name_map_release(&reading.states);
    name_map_release(&reading.strays);
    buffer_release(&reading.key);
    free(reading.records);
    return status;
}
