/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_target.h"

#include "base/array.h"
#include "formats/atorch/atorch_padding.h"
#include "formats/shared/object_copy.h"
#include "parallel/flat_run.h"

#include <inttypes.h>
#include <stdlib.h>

#define FILL_BYTES 4096

static struct atorch_target *atorch_state_of(const struct target *target)
{
    return target->driver_state;
}

/* ---- objects ---- */

static reshard_status layout_add_object(struct target *target, struct str name, uint64_t bytes, struct atorch_object what, uint32_t *out,
                                        reshard_error *err)
{
    struct atorch_target *state = atorch_state_of(target);
    uint32_t count = target->catalog->object_count, object;
    reshard_status status = catalog_add_object(target->catalog, name, bytes, &object, err);
    if (!status && object < count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "two files would be called '%.*s'", STR_ARG(name));
    if (!status && !ARRAY_ROOM(state->objects, object, state->object_capacity))
        return error_set_memory(err);
    if (status)
        return status;
    state->objects[object] = what;
    state->object_count = object + 1;
    if (out)
        *out = object;
    return RESHARD_OK;
}

/* ---- chunks ---- */

/* Where an entry's data lie, and whose file that is. */
struct entry_place {
    struct target *target;
    const struct atorch_plan *plan;
    uint32_t rank, object;
    uint64_t offset;
};

static reshard_status layout_add_run(const struct entry_place *place, uint32_t tensor, const struct atorch_parameter *parameter,
                                     const struct flat_unit_part *part, int64_t at, bool is_strided, reshard_error *err)
{
    uint64_t size = dtype_element_bytes(place->target->catalog->tensors[tensor].dtype);
    const struct flat_run run = { .begin = part->begin,
                                  .count = part->count,
                                  .strides = is_strided ? parameter->strides : NULL,
                                  .object = place->object,
                                  .offset = place->offset + (uint64_t)at * size,
                                  .writer = catalog_writer(place->rank) };
    return flat_run_add(place->target->catalog, tensor, &run, err);
}

static reshard_status layout_add_whole(const struct entry_place *place, uint32_t tensor, uint64_t bytes, reshard_error *err)
{
    struct catalog_chunk *chunk;
    reshard_status status = catalog_add_chunk(place->target->catalog, tensor, NULL, NULL, place->object, place->offset, bytes, &chunk, err);
    if (!status)
        chunk->writer = catalog_writer(place->rank);
    return status;
}

/* The parts of a unit's parameters, or of their state, in one piece. state: of the first parameter, or NULL. */
static reshard_status layout_unit(const struct entry_place *place, uint32_t number, const struct atorch_state *state, reshard_error *err)
{
    const struct atorch_plan *plan = place->plan;
    const struct atorch_unit *unit = &plan->model.units[number];
    uint32_t expert, shard;
    reshard_status status = RESHARD_OK;
    atorch_place_of(unit, place->rank, &expert, &shard);
    for (uint32_t i = unit->first; i < unit->first + unit->count && !status; i++) {
        const struct atorch_parameter *parameter = &plan->model.parameters[i];
        struct flat_unit_part part;
        if (!plan->tensors[i] || !atorch_part_of(unit, parameter, shard, &part))
            continue;
        uint32_t tensor = plan->tensors[i][expert];
        if (state) {
            uint32_t own = plan->first_state[i];
            while (own < plan->first_state[i + 1] && plan->states[own].name != state->name)
                own++;
            if (own == plan->first_state[i + 1])
                return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has no state %.*s, which others of unit '%.*s' have",
                                 STR_ARG(parameter->name), STR_ARG(name_map_at(&plan->state_names, state->name)), STR_ARG(unit->name));
            tensor = plan->states[own].tensors[expert];
        }
        status = layout_add_run(place, tensor, parameter, &part, part.place, true, err);
    }
    return status;
}

static reshard_status layout_state(const struct entry_place *place, const struct atorch_entry *entry, reshard_error *err)
{
    const struct atorch_plan *plan = place->plan;
    const struct atorch_state *state = &plan->states[entry->state];
    const struct atorch_parameter *parameter = &plan->model.parameters[state->parameter];
    const struct atorch_unit *unit = &plan->model.units[parameter->unit];
    struct flat_unit_part part;
    uint32_t expert, shard;
    atorch_place_of(unit, place->rank, &expert, &shard);
    if (entry->is_unit_state && !state->is_scalar)
        return layout_unit(place, entry->owner, state, err);
    if (state->is_scalar || entry->shape)
        return layout_add_whole(place, state->tensors[expert], entry->bytes, err);
    atorch_part_of(unit, parameter, shard, &part);
    return layout_add_run(place, state->tensors[expert], parameter, &part, 0, true, err);
}

/* ---- files ---- */

static reshard_status layout_entries(struct target *target, const struct layout_request *request, enum atorch_file_kind kind, uint32_t rank,
                                     struct str name, reshard_error *err)
{
    const struct atorch_plan *plan = &atorch_state_of(target)->plan;
    struct entry_place place = { .target = target, .plan = plan, .rank = rank };
    struct atorch_entries entries;
    struct buffer head = { 0 };
    reshard_status status = atorch_entries_make(request, plan, kind, rank, &entries, err);
    if (!status)
        status = atorch_entries_head(&entries, &request->limits, &head, err);
    if (!status)
        status = layout_add_object(target, name, head.size + entries.bytes, (struct atorch_object){ .kind = kind, .rank = rank },
                                   &place.object, err);
    for (uint32_t i = 0; i < entries.count && !status; i++) {
        const struct atorch_entry *entry = &entries.items[i];
        place.offset = head.size + entry->begin;
        status = kind == ATORCH_PARAM   ? layout_unit(&place, entry->owner, NULL, err)
                 : kind == ATORCH_OPTIM ? layout_state(&place, entry, err)
                                        : layout_add_whole(&place, entry->owner, entry->bytes, err);
    }
    buffer_release(&head);
    atorch_entries_release(&entries);
    return status;
}

static reshard_status layout_meta(struct target *target, uint32_t rank, struct str name, reshard_error *err)
{
    struct buffer bytes = { 0 };
    reshard_status status = atorch_meta_write(&atorch_state_of(target)->plan.model, rank, &bytes, err);
    if (!status)
        status = layout_add_object(target, name, bytes.size, (struct atorch_object){ .kind = ATORCH_META, .rank = rank }, NULL, err);
    buffer_release(&bytes);
    return status;
}

static reshard_status layout_ranks(const struct layout_request *request, struct target *target, enum atorch_file_kind kind,
                                   reshard_error *err)
{
    uint32_t ranks = atorch_state_of(target)->plan.model.ranks;
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < ranks && !status; rank++) {
        char *name = arena_printf(&target->catalog->arena, "%s.%05" PRIu32 "-%05" PRIu32, atorch_file_stem(kind), rank, ranks);
        if (!name)
            return error_set_memory(err);
        status = kind == ATORCH_META ? layout_meta(target, rank, str_of(name), err)
                                     : layout_entries(target, request, kind, rank, str_of(name), err);
    }
    return status;
}

/* A small file that is known whole. */
static reshard_status layout_text(struct target *target, enum atorch_file_kind kind, struct buffer *bytes, reshard_error *err)
{
    struct atorch_object object = { .kind = kind };
    reshard_status status = RESHARD_OK;
    if (bytes->size && !arena_str(&target->catalog->arena, buffer_str(bytes), &object.text))
        status = error_set_memory(err);
    if (!status && bytes->size)
        status = layout_add_object(target, str_of(atorch_file_stem(kind)), bytes->size, object, NULL, err);
    buffer_release(bytes);
    return status;
}

static reshard_status layout_items(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct atorch_target *state = atorch_state_of(target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < request->wanted->item_count && !status; i++) {
        const struct catalog_item *item = layout_item_stored(request, i);
        struct str key = request->wanted->items[i].key;
        uint64_t rank, world;
        bool is_own = str_is(key, atorch_file_stem(ATORCH_OPTIM_META)) || str_is(key, atorch_file_stem(ATORCH_CKPT_META));
        bool is_file = item->kind == ITEM_FILE && request->source && atorch_file_of(key, &rank, &world) == ATORCH_BESIDE;
        if (is_own || (state->has_torch_groups && atorch_is_torch_group(item->key, &state->groups_before)))
            continue;
        if (!is_file)
            status = target_note_dropped(target, NOTE_NO_PLACE, key, err, "atorch's folders have no place for it");
        else
            status = layout_add_object(target, key, request->source_catalog->objects[item->object].bytes,
                                       (struct atorch_object){ .kind = ATORCH_BESIDE, .source_object = item->object }, NULL, err);
    }
    return status;
}

/* Where FSDP has no original parameters, the optimizer counts steps by unit. */
static reshard_status layout_note_scalars(struct target *target, reshard_error *err)
{
    const struct atorch_plan *plan = &atorch_state_of(target)->plan;
    for (uint32_t i = 0; i < plan->state_count && !plan->model.is_original; i++) {
        if (plan->states[i].is_scalar)
            return target_note_changed(target, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                                       "a unit has one number of each kind, such as step: that of its first parameter is written");
    }
    return RESHARD_OK;
}

reshard_status atorch_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct atorch_target *state = calloc(1, sizeof(*state));
    struct buffer groups = { 0 }, checkpoint = { 0 };
    target->driver_state = state;
    if (!state)
        return error_set_memory(err);
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = atorch_plan_make(request, target, &state->plan, err);
    /* Buffers alone are no checkpoint to those who look for the files of ranks, which hold nothing then. */
    bool has_ranks = state->plan.model.unit_count || !state->plan.state_count;
    if (!status && has_ranks)
        status = layout_ranks(request, target, ATORCH_PARAM, err);
    if (!status && has_ranks)
        status = layout_ranks(request, target, ATORCH_META, err);
    if (!status)
        status = layout_entries(target, request, ATORCH_BUFFERS, 0, str_of(atorch_file_stem(ATORCH_BUFFERS)), err);
    if (!status)
        status = atorch_checkpoint_write(request, &state->plan, &checkpoint, err);
    if (!status)
        status = layout_text(target, ATORCH_CKPT_META, &checkpoint, err);
    if (!status && state->plan.state_count)
        status = layout_ranks(request, target, ATORCH_OPTIM, err);
    if (!status)
        status = atorch_groups_write(request, target, &state->plan, &groups, err);
    if (!status)
        status = layout_text(target, ATORCH_OPTIM_META, &groups, err);
    if (!status)
        status = layout_items(request, target, err);
    if (!status)
        status = atorch_torch_groups_note(request, target, err);
    target->catalog->ranks = state->plan.model.ranks;
    buffer_release(&groups);
    buffer_release(&checkpoint);
    return status ? status : layout_note_scalars(target, err);
}

void atorch_close_target(struct target *target)
{
    struct atorch_target *state = atorch_state_of(target);
    if (state) {
        atorch_plan_release(&state->plan);
        free(state->objects);
    }
    free(state);
    target->driver_state = NULL;
}

/* ---- publishing ---- */

static reshard_status publish_fill(const struct atorch_model *model, enum dtype dtype, uint64_t offset, int64_t count,
                                   struct store_object *object, reshard_error *err)
{
    uint8_t bytes[FILL_BYTES];
    int64_t size = dtype_element_bytes(dtype), room = FILL_BYTES / size;
    if (!atorch_padding_fill(dtype, model->is_original, bytes, (size_t)(count < room ? count : room)))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "padding of a flat parameter of %s", dtype_info(dtype)->name);
    reshard_status status = RESHARD_OK;
    for (int64_t done = 0; done < count && !status; done += room) {
        int64_t part = count - done < room ? count - done : room;
        status = store_write_at(object, offset + (uint64_t)(done * size), bytes, (size_t)(part * size), err);
    }
    return status;
}

/* The gaps of a unit's piece: in flat_param, or in its state, which has zeros there. */
static reshard_status publish_gaps(const struct atorch_plan *plan, const struct atorch_entry *entry, uint32_t rank, uint64_t offset,
                                   struct store_object *object, reshard_error *err)
{
    const struct atorch_unit *unit = &plan->model.units[entry->owner];
    struct atorch_gaps gaps;
    struct atorch_gap gap;
    reshard_status status = RESHARD_OK;
    atorch_gaps_begin(&plan->model, unit, rank, &gaps);
    while (!status && atorch_gaps_next(&gaps, &gap))
        status = publish_fill(&plan->model, entry->dtype, offset + (uint64_t)gap.place * dtype_element_bytes(entry->dtype), gap.count,
                              object, err);
    return status;
}

static reshard_status publish_entries(const struct publish_job *job, uint32_t number, reshard_error *err)
{
    const struct atorch_target *state = atorch_state_of(job->target);
    const struct atorch_object *object = &state->objects[number];
    struct atorch_entries entries;
    struct buffer head = { 0 };
    reshard_status status = atorch_entries_make(job->request, &state->plan, object->kind, object->rank, &entries, err);
    if (!status)
        status = atorch_entries_head(&entries, &job->request->limits, &head, err);
    if (!status)
        status = store_write_at(job->objects[number], 0, head.data, head.size, err);
    for (uint32_t i = 0; i < entries.count && !status; i++) {
        const struct atorch_entry *entry = &entries.items[i];
        if (object->kind == ATORCH_PARAM || (entry->is_unit_state && entry->rank))
            status = publish_gaps(&state->plan, entry, object->rank, head.size + entry->begin, job->objects[number], err);
    }
    buffer_release(&head);
    atorch_entries_release(&entries);
    return status;
}

reshard_status atorch_publish_object(const struct publish_job *job, uint32_t number, reshard_error *err)
{
    const struct atorch_target *state = atorch_state_of(job->target);
    const struct atorch_object *object = &state->objects[number];
    struct buffer bytes = { 0 };
    reshard_status status;
    switch (object->kind) {
    case ATORCH_META:
        status = atorch_meta_write(&state->plan.model, object->rank, &bytes, err);
        if (!status)
            status = store_write_at(job->objects[number], 0, bytes.data, bytes.size, err);
        buffer_release(&bytes);
        return status;
    case ATORCH_OPTIM_META:
    case ATORCH_CKPT_META:
        return store_write_at(job->objects[number], 0, object->text.data, object->text.size, err);
    case ATORCH_BESIDE:
        return object_copy(job, number, object->source_object, err);
    default:
        return publish_entries(job, number, err);
    }
}
