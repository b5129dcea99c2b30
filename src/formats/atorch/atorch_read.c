/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_source.h"

#include "base/checked.h"
#include "parallel/flat_run.h"

#include <inttypes.h>
#include <stdlib.h>

#define EXPERT_PREFIX "ckpt_meta.expert_"

void atorch_put_key(const struct atorch_unit *unit, struct str name, uint32_t expert, struct buffer *out)
{
    if (unit->has_experts)
        buffer_printf(out, EXPERT_PREFIX "%" PRIu32 ".", expert);
    buffer_append_str(out, name);
}

/* ---- files ---- */

int atorch_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    uint64_t rank, world;
    int score = 0;
    if (!store_is_directory(store, name) || store_list(store, name, &arena, &entries, &count, err)) {
        arena_release(&arena);
        return 0;
    }
    for (size_t i = 0; i < count && !score; i++) {
        struct str base = str_base_name(entries[i].name);
        if (!entries[i].is_directory && atorch_file_of(base, &rank, &world) < ATORCH_RANK_FILES)
            score = 95;
    }
    arena_release(&arena);
    return score;
}

reshard_status atorch_open_header(struct source *source, const struct store_entry *entry, struct st_header *out, uint32_t *object,
                                  reshard_error *err)
{
    struct store_object *file = NULL;
    *out = (struct st_header){ 0 };
    char *name = arena_copy(&source->catalog->arena, entry->name.data, entry->name.size);
    reshard_status status = name ? store_open_object(source->store, name, &file, err) : error_set_memory(err);
    if (status)
        return status;
    struct reader reader = store_object_reader(file);
    status = st_header_read(&reader, &source->limits, source->is_salvage ? ST_CUT_OFF : source->lenient, out, err);
    if (!status)
        status = catalog_add_object(source->catalog, entry->name, reader.size, object, err);
    if (status) {
        error_object(err, "%.*s", STR_ARG(str_base_name(entry->name)));
        error_prefix(err, "%.*s", STR_ARG(str_base_name(entry->name)));
    }
    store_object_close(file);
    return status;
}

/* ---- flat parameters ---- */

struct flat_reading {
    struct source *source;
    const struct atorch_folder *folder;
    struct atorch_building *building;
    struct atorch_flat *flats;
    uint32_t flat_capacity;
    struct buffer bytes; /* of a flat_meta */
};

static bool read_take_flats(struct flat_reading *reading, const struct st_header *header)
{
    struct atorch_flat *flats = reallocarray(reading->flats, (size_t)header->count + 1, sizeof(*flats));
    if (!flats)
        return false;
    reading->flats = flats;
    for (uint32_t i = 0; i < header->count; i++) {
        const struct st_entry *entry = &header->entries[i];
        flats[i] = (struct atorch_flat){ .unit = name_map_at(&header->names, i),
                                         .dtype = entry->dtype,
                                         .rank = entry->rank,
                                         .count = entry->rank ? st_entry_shape(header, entry)[0] : 1 };
    }
    return true;
}

static reshard_status read_meta(struct flat_reading *reading, uint32_t rank, struct arena *arena, struct atorch_meta *meta,
                                reshard_error *err)
{
    struct source *source = reading->source;
    const struct store_entry *entry = reading->folder->ranked[ATORCH_META][rank];
    char *name = arena_copy(arena, entry->name.data, entry->name.size);
    if (!name)
        return error_set_memory(err);
    buffer_clear(&reading->bytes);
    reshard_status status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, metadata_bytes), &reading->bytes, err);
    if (!status)
        status = atorch_meta_read(buffer_str(&reading->bytes), &source->limits, arena, meta, err);
    return status;
}

/* Where the pieces of all units lie in the rank's file. */
static reshard_status read_keep_offsets(struct flat_reading *reading, uint32_t rank, const struct st_header *header, reshard_error *err)
{
    struct atorch_source *state = atorch_source_of(reading->source);
    uint32_t ranks = reading->folder->ranks;
    uint64_t count;
    if (!state->offsets) { /* every file has the same units */
        if (!checked_mul_u64(header->count, ranks, &count) ||
            !(state->offsets = arena_array(&state->model.arena, count, sizeof(*state->offsets))))
            return error_set_memory(err);
    }
    for (uint32_t i = 0; i < header->count; i++) {
        uint32_t unit = name_map_find(&state->model.unit_names, name_map_at(&header->names, i));
        state->offsets[(size_t)unit * ranks + rank] = header->data_start + header->entries[i].begin;
    }
    return RESHARD_OK;
}

static reshard_status atorch_read_rank(struct flat_reading *reading, uint32_t rank, reshard_error *err)
{
    struct atorch_source *state = atorch_source_of(reading->source);
    const struct store_entry *entry = reading->folder->ranked[ATORCH_META][rank];
    struct arena arena = { .work = reading->source->limits.budget };
    struct atorch_meta meta;
    struct st_header header;
    reshard_status status =
        atorch_open_header(reading->source, reading->folder->ranked[ATORCH_PARAM][rank], &header, &state->flat_objects[rank], err);
    if (status)
        goto out;
    status = read_take_flats(reading, &header) ? read_meta(reading, rank, &arena, &meta, err) : error_set_memory(err);
    if (!status)
        status = atorch_building_add(reading->building, rank, &meta, reading->flats, header.count, err);
    if (status) {
        error_object(err, "%.*s", STR_ARG(str_base_name(entry->name)));
        error_prefix(err, "%.*s", STR_ARG(str_base_name(entry->name)));
        goto out;
    }
    status = read_keep_offsets(reading, rank, &header, err);

out:
    st_header_release(&header);
    arena_release(&arena);
    return status;
}

static reshard_status atorch_read_model(struct source *source, const struct atorch_folder *folder, reshard_error *err)
{
    struct atorch_source *state = atorch_source_of(source);
    struct flat_reading reading = { .source = source, .folder = folder };
    reshard_status status = RESHARD_OK;
    struct atorch_nameless nameless = { 0 };
    reading.building = atorch_building_new(&state->model, folder->ranks);
    state->flat_objects = arena_zalloc(&state->model.arena, ((size_t)folder->ranks + 1) * sizeof(*state->flat_objects));
    if (!reading.building || !state->flat_objects)
        status = error_set_memory(err);
    if (!status && folder->is_lost) {
        state->model.is_lost = (bool *)arena_copy(&state->model.arena, (const char *)folder->is_lost, folder->ranks);
        status = state->model.is_lost ? RESHARD_OK : error_set_memory(err);
    }
    for (uint32_t rank = 0; rank < folder->ranks && !status; rank++) {
        if (!atorch_rank_is_lost(&state->model, rank))
            status = atorch_read_rank(&reading, rank, err);
    }
    if (!status)
        status = atorch_building_finish(reading.building, &nameless, err);
    if (nameless.empty)
        catalog_warn(source->catalog, false, "%" PRIu32 " parameters without elements lie between two shards: no file has their names",
                     nameless.empty);
    if (nameless.lost)
        catalog_warn_lost(source->catalog, (struct str){ 0 },
                          "%" PRIu32 " parameters are lost with their names: no file that is left has them", nameless.lost);
    atorch_building_free(reading.building);
    buffer_release(&reading.bytes);
    free(reading.flats);
    return status;
}

/* ---- tensors ---- */

static reshard_status atorch_add_parts(struct source *source, const struct atorch_unit *unit, const struct atorch_parameter *parameter,
                                       uint32_t tensor, uint32_t expert, reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(source);
    uint64_t size = dtype_element_bytes(unit->dtype);
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < state->model.ranks && !status; rank++) {
        uint32_t own, shard;
        struct flat_unit_part part;
        if (atorch_rank_is_lost(&state->model, rank))
            continue;
        atorch_place_of(unit, rank, &own, &shard);
        if (own != expert || !atorch_part_of(unit, parameter, shard, &part))
            continue;
        struct flat_run run = { .begin = part.begin,
                                .count = part.count,
                                .strides = parameter->strides,
                                .object = state->flat_objects[rank],
                                .writer = catalog_writer(rank) };
        run.offset = state->offsets[(size_t)(unit - state->model.units) * state->model.ranks + rank] + (uint64_t)part.place * size;
        status = flat_run_add(source->catalog, tensor, &run, err);
    }
    return status;
}

static reshard_status atorch_add_parameter(struct source *source, const struct atorch_unit *unit, struct atorch_parameter *parameter,
                                           bool is_placed, reshard_error *err)
{
    struct buffer key = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t expert = 0; expert < unit->experts && !status; expert++) {
        uint32_t tensor;
        buffer_clear(&key);
        atorch_put_key(unit, parameter->name, expert, &key);
        status = key.failed
                     ? buffer_error(&key, err)
                     : catalog_add_tensor(source->catalog, buffer_str(&key), unit->dtype, parameter->rank, parameter->shape, &tensor, err);
        if (status)
            break;
        source->catalog->tensors[tensor].flags |= TENSOR_PARAMETER;
        if (expert == 0)
            parameter->tensor = tensor;
        if (is_placed)
            status = atorch_add_parts(source, unit, parameter, tensor, expert, err);
    }
    buffer_release(&key);
    return status;
}

static reshard_status atorch_add_parameters(struct source *source, reshard_error *err)
{
    struct atorch_model *model = &atorch_source_of(source)->model;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < model->parameter_count && !status; i++) {
        struct atorch_parameter *parameter = &model->parameters[i];
        if (parameter->name.size || parameter->numel)
            status = atorch_add_parameter(source, &model->units[parameter->unit], parameter, true, err);
    }
    for (uint32_t i = 0; i < model->unplaced_count && !status; i++)
        status = atorch_add_parameter(source, &model->units[model->unplaced[i].unit], &model->unplaced[i], false, err);
    return status;
}

static reshard_status atorch_add_buffers(struct source *source, const struct store_entry *entry, reshard_error *err)
{
    struct atorch_source *state = atorch_source_of(source);
    struct catalog *catalog = source->catalog;
    struct st_header header;
    uint32_t object;
    state->buffer_first = catalog->tensor_count;
    if (!entry)
        return RESHARD_OK;
    reshard_status status = atorch_open_header(source, entry, &header, &object, err);
    for (uint32_t i = 0; !status && i < header.count; i++) {
        const struct st_entry *stored = &header.entries[i];
        uint32_t tensor;
        status = catalog_add_tensor(catalog, name_map_at(&header.names, i), stored->dtype, stored->rank, st_entry_shape(&header, stored),
                                    &tensor, err);
        if (!status)
            status = catalog_add_chunk(catalog, tensor, NULL, NULL, object, header.data_start + stored->begin, stored->end - stored->begin,
                                       NULL, err);
        state->buffer_count++;
    }
    st_header_release(&header);
    return status;
}

/* ---- the checkpoint ---- */

static reshard_status atorch_add_facts(struct source *source, reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(source);
    const struct atorch_model *model = &state->model;
    uint32_t experts = 1;
    for (uint32_t i = 0; i < model->unit_count; i++)
        experts = model->units[i].experts > experts ? model->units[i].experts : experts;
    reshard_status status = RESHARD_OK;
    if (model->ranks)
        status = catalog_add_fact(source->catalog, "version", err, "%d", model->version);
    if (!status && model->unit_count)
        status = catalog_add_fact(source->catalog, "units", err, "%" PRIu32 "%s", model->unit_count,
                                  model->is_original ? "" : ", without original parameters");
    if (!status && model->ranks)
        status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, model->ranks);
    if (!status && experts > 1)
        status = catalog_add_fact(source->catalog, "expert ranks", err, "%" PRIu32, experts);
    if (!status && state->is_global_known && state->global_ranks != model->ranks)
        status = catalog_add_fact(source->catalog, "ranks of the run", err, "%" PRId64, state->global_ranks);
    return status;
}

reshard_status atorch_read_catalog(struct source *source, reshard_error *err)
{
    struct atorch_folder folder = { 0 };
    struct atorch_source *state = calloc(1, sizeof(*state));
    source->driver_state = state;
    if (!state)
        return error_set_memory(err);
    reshard_status status = atorch_folder_read(source, &folder, err);
    if (!status && folder.ranked[ATORCH_PARAM])
        status = atorch_read_model(source, &folder, err);
    if (!status)
        status = atorch_add_parameters(source, err);
    if (!status)
        status = atorch_add_buffers(source, folder.single[ATORCH_BUFFERS], err);
    if (!status && folder.ranked[ATORCH_OPTIM])
        status = atorch_read_optimizer(source, &folder, err);
    if (!status)
        status = atorch_read_items(source, &folder, err);
    if (!status) {
        source->catalog->ranks = folder.ranks;
        status = atorch_add_facts(source, err);
    }
    atorch_folder_release(&folder);
    return status;
}

void atorch_close_source(struct source *source)
{
    struct atorch_source *state = atorch_source_of(source);
    if (state)
        atorch_model_release(&state->model);
    free(state);
    source->driver_state = NULL;
}
