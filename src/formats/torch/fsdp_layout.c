/* SPDX-License-Identifier: Apache-2.0 */
/* Which files a target of ranks has, what they are called, and where each rank's pieces lie in them. */
#include "formats/torch/fsdp_flat_cut.h"
#include "formats/torch/torch.h"

#include "base/array.h"
#include "base/crc32.h"
#include "formats/shared/rank_item.h"

#include <inttypes.h>
#include <stdlib.h>

#define FRAME_ALIGNMENT 64
#define COPY_BYTES (1u << 20)

/* ---- names ---- */

/* The names of the reference, else of a source of ranks; NULL: there are none to follow. */
static const struct torch_ranks *names_of(const struct layout_request *request)
{
    if (request->like && request->like->driver == &format_fsdp_ranks)
        return torch_source_of(request->like)->ranks;
    if (request->source && request->source->driver == &format_fsdp_ranks)
        return torch_source_of(request->source)->ranks;
    return NULL;
}

/* Whether files are called as accelerate does: no number of ranks in them, and no file for extra state. */
static bool is_accelerate(const struct layout_request *request)
{
    const struct torch_ranks *ranks = names_of(request);
    return ranks && str_starts_with(ranks->names[FSDP_MODEL].prefix, "pytorch_model_fsdp");
}

/* Base name of a rank's file, in the target's arena; NULL without memory. */
static char *name_file(const struct layout_request *request, struct arena *arena, enum fsdp_kind kind, uint32_t rank, uint32_t world)
{
    static const char *const verl[] = { [FSDP_MODEL] = "model", [FSDP_OPTIMIZER] = "optim", [FSDP_EXTRA] = "extra_state" };
    static const char *const accelerate[] = { [FSDP_MODEL] = "pytorch_model_fsdp", [FSDP_OPTIMIZER] = "optimizer", [FSDP_EXTRA] = "extra" };
    if (is_accelerate(request))
        return arena_printf(arena, "%s_0_rank%" PRIu32 ".bin", accelerate[kind], rank);
    return arena_printf(arena, "%s_world_size_%" PRIu32 "_rank_%" PRIu32 ".pt", verl[kind], world, rank);
}

/* ---- items that are left out ---- */

static reshard_status leave_out(struct target *target, uint32_t item, struct str key, enum note_kind kind, const char *why,
                                reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    state->is_left_out[item] = true;
    return why ? target_note_dropped(target, kind, key, err, "%s", why) : RESHARD_OK;
}

/* What plain items are said once more: by the optimizer's and the extra state, which a source of ranks lists beside their entries. */
struct said {
    bool has_optimizer;
    struct name_map extra; /* names below the extra state */
};

static reshard_status said_collect(const struct catalog *wanted, struct said *said, reshard_error *err)
{
    said->has_optimizer = catalog_find_item(wanted, STR(FSDP_OPTIMIZER_KEY)) != CATALOG_NONE;
    for (uint32_t i = 0; i < wanted->item_count; i++) {
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_item_path(wanted, &wanted->items[i], &single, &parts);
        bool is_extra = count > 1 && parts[0].kind == PATH_KEY && str_is(parts[0].key, FSDP_EXTRA_KEY) && parts[1].kind == PATH_KEY;
        if (is_extra && name_map_intern(&said->extra, parts[1].key, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static bool is_said_elsewhere(const struct said *said, struct str key)
{
    return (said->has_optimizer && (str_is(key, "param_groups") || str_is(key, "state"))) || name_map_find(&said->extra, key) != NAME_NONE;
}

/* On how many ranks an optimizer of flat pieces was saved, one more than the last that has an item of its own; 0: it is none. */
static uint32_t flat_ranks(const struct layout_request *request)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < request->wanted->item_count; i++) {
        uint32_t rank;
        struct str base;
        if (rank_item_read(request->wanted->items[i].key, &rank, &base) && str_is(base, FSDP_OPTIMIZER_KEY) && rank >= ranks)
            ranks = rank + 1;
    }
    return ranks;
}

static bool is_optimizer(struct str key)
{
    uint32_t rank;
    struct str base;
    return str_is(key, FSDP_OPTIMIZER_KEY) || (rank_item_read(key, &rank, &base) && str_is(base, FSDP_OPTIMIZER_KEY));
}

/* Ranks then get all of the model, and the source's had a part of it. */
static bool has_stages(const struct layout_request *request)
{
    const bool is_ranks = request->source && request->source->driver == &format_fsdp_ranks;
    return is_ranks && torch_source_of(request->source)->ranks->is_staged;
}

static reshard_status holds_tensor(const struct layout_request *request, uint32_t index, bool *out, reshard_error *err)
{
    const struct catalog_item *item;
    struct work *work = request->limits.budget;
    reshard_status status = layout_item(request, index, &item, err);
    *out = false;
    if (status == RESHARD_ERR_UNSUPPORTED)
        return RESHARD_OK; /* it has no value, which is told where it would be written */
    if (!status && item->value && item->graph && !rank_item_has_storage(item->value, item->graph->count, work, out))
        status = work_error(work, err);
    return status;
}

static reshard_status choose_item(const struct layout_request *request, struct target *target, uint32_t index, uint32_t flat,
                                  const struct said *said, reshard_error *err)
{
    const struct fsdp_target *state = target->driver_state;
    struct str key = request->wanted->items[index].key, base = key;
    uint32_t rank = 0;
    bool is_own = rank_item_read(key, &rank, &base);
    if (is_optimizer(key) && state->flat->dropped)
        return leave_out(target, index, key, NOTE_RANKS, state->flat->dropped, err);
    if (is_optimizer(key) && flat && flat != state->spread.world)
        return leave_out(target, index, key, NOTE_RANKS, "flat pieces of FSDP1, which only the ranks that saved them can take", err);
    if (is_optimizer(key) && has_stages(request))
        return leave_out(target, index, key, NOTE_RANKS,
                         "the optimizers of pipeline stages, which number other parameters than a rank has here", err);
    if (is_accelerate(request) && (str_is(base, FSDP_EXTRA_KEY) || str_starts_with(base, FSDP_EXTRA_KEY ".")))
        return leave_out(target, index, key, NOTE_NO_PLACE, "accelerate keeps no extra state in files of ranks", err);
    if (is_own && rank >= state->spread.world)
        return leave_out(target, index, key, NOTE_RANKS, "there is no such rank any more", err);
    if (!is_own && is_said_elsewhere(said, key))
        return leave_out(target, index, key, NOTE_NO_PLACE, NULL, err);
    bool has_tensor = false;
    if (is_own && !is_optimizer(key) && !request->wanted->items[index].is_beside) {
        reshard_status status = holds_tensor(request, index, &has_tensor, err);
        if (status)
            return status;
    }
    if (has_tensor)
        return leave_out(target, index, key, NOTE_RANKS, "a tensor of this rank alone, which would be read as a part of the model's", err);
    uint32_t ranks = request->source_catalog->ranks;
    if (is_own && ranks > 0 && rank == 1 && state->spread.world > ranks)
        return target_note_changed(target, NOTE_RANKS, base, err, "ranks from %" PRIu32 " on get what rank 0 has", ranks);
    return RESHARD_OK;
}

static reshard_status index_item_keys(const struct layout_request *request, struct fsdp_target *state, reshard_error *err)
{
    state->items = array_zeroed(request->wanted->item_count, sizeof(*state->items));
    if (!state->items)
        return error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->item_count; i++) {
        bool was_new;
        uint32_t number = name_map_intern(&state->item_keys, request->wanted->items[i].key, &was_new);
        if (number == NAME_NONE)
            return error_set_memory(err);
        if (was_new)
            state->items[number] = i;
    }
    return RESHARD_OK;
}

static reshard_status choose_items(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    struct said said = { 0 };
    uint32_t flat = flat_ranks(request);
    state->is_left_out = array_zeroed(request->wanted->item_count, sizeof(*state->is_left_out));
    reshard_status status = state->is_left_out ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = index_item_keys(request, state, err);
    if (!status)
        status = said_collect(request->wanted, &said, err);
    for (uint32_t i = 0; !status && i < request->wanted->item_count; i++)
        if (request->wanted->items[i].kind != ITEM_FILE)
            status = choose_item(request, target, i, flat, &said, err);
    name_map_release(&said.extra);
    return status;
}

/* ---- files of ranks ---- */

static reshard_status plan_frame(struct fsdp_target_file *file, const char *name, struct buffer *pickle, reshard_error *err)
{
    const char *dot = strrchr(name, '.');
    char *top = strndup(name, dot ? (size_t)(dot - name) : strlen(name));
    uint64_t *bytes = array_zeroed(file->record_count, sizeof(*bytes));
    reshard_status status = top && bytes ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < file->record_count; i++)
        bytes[i] = file->records[i].bytes;
    file->pickle_bytes = pickle->size;
    if (!status)
        status = torch_frame_plan(top, pickle, bytes, file->record_count, FRAME_ALIGNMENT, &file->frame, err);
    if (!status)
        buffer_release(&file->frame.pickle);
    free(top);
    free(bytes);
    return status;
}

/* Runs of flattened tensors, each a chunk. */
static reshard_status add_run_chunks(struct target *target, const struct fsdp_target_file *file, uint32_t number, reshard_error *err)
{
    const struct fsdp_record *record = &file->records[number];
    uint64_t offset = file->frame.members[file->frame.first_storage + number].payload_offset, element = dtype_element_bytes(record->dtype);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < record->run_count; i++) {
        const struct fsdp_run *run = &record->runs[i];
        const struct catalog_tensor *tensor = &target->catalog->tensors[run->tensor];
        int64_t elements = box_volume(tensor->rank, catalog_vector_at(target->catalog, tensor->shape));
        struct catalog_chunk *chunk;
        if (run->count == 0)
            continue;
        status = catalog_add_chunk(target->catalog, run->tensor, NULL, NULL, file->object, offset + (uint64_t)run->place * element,
                                   (uint64_t)run->count * element, &chunk, err);
        if (status)
            break;
        chunk->flags |= CHUNK_WANT_CRC;
        chunk->driver_data = number;
        chunk->writer = catalog_writer(file->rank);
        if (run->count < elements)
            status = catalog_chunk_set_run(target->catalog, chunk, run->begin, run->count, err);
    }
    return status;
}

static reshard_status add_record_chunks(struct target *target, const struct fsdp_target_file *file, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < file->record_count; i++) {
        const struct fsdp_record *record = &file->records[i];
        const struct zip_plan_member *member = &file->frame.members[file->frame.first_storage + i];
        struct catalog_chunk *chunk;
        if (record->tensor == TORCH_NONE || record->bytes == 0)
            continue;
        if (record->runs) {
            status = add_run_chunks(target, file, i, err);
            continue;
        }
        status = catalog_add_chunk(target->catalog, record->tensor, record->start, record->extent, file->object, member->payload_offset,
                                   record->bytes, &chunk, err);
        if (status)
            break;
        chunk->flags |= CHUNK_WANT_CRC;
        chunk->driver_data = i;
        chunk->writer = catalog_writer(file->rank);
    }
    return status;
}

/* A file of a kind that nothing belongs in is not written. */
static reshard_status lay_out_rank_file(const struct layout_request *request, struct target *target, enum fsdp_kind kind, uint32_t rank,
                                   reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    struct buffer pickle = { 0 };
    bool is_empty = true;
    char *name = name_file(request, &target->catalog->arena, kind, rank, state->spread.world);
    if (!name || !ARRAY_ROOM(state->files, state->file_count, state->file_capacity))
        return error_set_memory(err);
    struct fsdp_target_file *file = &state->files[state->file_count];
    *file = (struct fsdp_target_file){ .kind = kind, .rank = rank, .object = CATALOG_NONE };
    state->file_count++;
    reshard_status status = fsdp_emit_file(request, target, file, &pickle, &is_empty, err);
    if (!status && (!is_empty || kind == FSDP_MODEL)) {
        status = plan_frame(file, name, &pickle, err);
        if (!status)
            status = catalog_add_object(target->catalog, str_of(name), file->frame.bytes, &file->object, err);
        if (!status)
            status = add_record_chunks(target, file, err);
    }
    buffer_release(&pickle);
    return status;
}

/* ---- what is read again ---- */

/* The number of a state's parameter in the target's optimizer; CATALOG_NONE: it has none there, or it is not known which. */
static uint32_t number_in_target(const struct layout_request *request, const struct fsdp_target *state, uint32_t number)
{
    const struct fsdp_flat_plan *plan = state->flat;
    if (!plan->source)
        return number;
    /* State by unit: one rank's is read as it lies, and other units count their parameters in another way. */
    bool is_by_unit = !plan->is_original && (request->like || request->wrap || state->spread.world == 1);
    if (number >= plan->number_count || is_by_unit)
        return CATALOG_NONE;
    return plan->target_number[number];
}

/* The hidden tensor `state.NUMBER.NAME` of the source's optimizer is one in the target's, whose number may be another. */
static reshard_status name_state(const struct layout_request *request, struct target *target, uint32_t tensor, reshard_error *err)
{
    struct str key = request->wanted->tensors[tensor].key, name;
    struct buffer made = { 0 };
    uint32_t number;
    if (!fsdp_state_key_read(key, &number, &name))
        return target_read_as_hidden(target, tensor, key, err);
    number = number_in_target(request, target->driver_state, number);
    if (number == CATALOG_NONE)
        return RESHARD_OK;
    bool is_made = fsdp_state_key_of_number(number, name, &made);
    reshard_status status = is_made ? target_read_as_hidden(target, tensor, buffer_str(&made), err) : error_set_memory(err);
    buffer_release(&made);
    return status;
}

/* Says what the states in the optimizer's item are read as, of those that are stored. */
static reshard_status name_states(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *catalog = target->catalog;
    bool *is_stored = array_zeroed(catalog->tensor_count, sizeof(*is_stored));
    reshard_status status = is_stored ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < catalog->chunk_count; i++)
        is_stored[catalog->chunks[i].tensor] = true;
    for (uint32_t i = 0; !status && i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &request->wanted->tensors[i];
        if (is_stored[i] && tensor->flags & TENSOR_HIDDEN && fsdp_is_state(tensor->key))
            status = name_state(request, target, i, err);
    }
    free(is_stored);
    return status;
}

/* ---- what lies beside ---- */

static reshard_status lay_out_config(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    const struct torch_ranks *ranks = names_of(request);
    bool is_sharded = state->spread.layout_count > 0 && state->spread.layouts[0].kind == TORCH_SHARDED;
    int64_t version = ranks && ranks->fsdp_version > 0 ? ranks->fsdp_version : is_sharded ? 1 : 2;
    state->config_object = CATALOG_NONE;
    if (is_accelerate(request))
        return RESHARD_OK;
    char *text = arena_printf(&target->catalog->arena, "{\n    \"FSDP_version\": %" PRId64 ",\n    \"world_size\": %" PRIu32 "\n}", version,
                              state->spread.world);
    if (!text || !buffer_append_text(&state->config, text))
        return error_set_memory(err);
    return catalog_add_object(target->catalog, STR("fsdp_config.json"), state->config.size, &state->config_object, err);
}

static reshard_status lay_out_side_file(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err)
{
    struct fsdp_target *state = target->driver_state;
    struct str key = request->wanted->items[item].key;
    if (store_name_check(key, NULL))
        return target_note_dropped(target, NOTE_NO_PLACE, key, err, "a file of that name does not fit beside the checkpoint");
    const struct catalog_item *stored = layout_item_stored(request, item);
    const struct str name = ARENA_JOIN(&target->catalog->arena, is_accelerate(request) ? STR("") : STR("huggingface/"), key);
    if (!name.data || !ARRAY_ROOM(state->side_files, state->side_count, state->side_capacity))
        return error_set_memory(err);
    struct fsdp_side_file *file = &state->side_files[state->side_count++];
    file->item = item;
    return catalog_add_object(target->catalog, name, request->source_catalog->objects[stored->object].bytes, &file->object, err);
}

reshard_status fsdp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    static const enum fsdp_kind kinds[] = { FSDP_MODEL, FSDP_OPTIMIZER, FSDP_EXTRA };
    struct fsdp_target *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    state->flat = calloc(1, sizeof(*state->flat));
    reshard_status status = state->flat ? target_add_tensors(request, target, err) : error_set_memory(err);
    if (!status)
        status = fsdp_spread_tensors(request, &state->spread, err);
    if (!status)
        status = fsdp_flat_plan_make(request, &state->spread, state->flat, err);
    if (!status)
        status = choose_items(request, target, err);
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++)
        for (uint32_t rank = 0; !status && rank < state->spread.world; rank++)
            status = lay_out_rank_file(request, target, kinds[kind], rank, err);
    if (!status)
        status = name_states(request, target, err);
    if (!status)
        status = lay_out_config(request, target, err);
    for (uint32_t i = 0; !status && i < request->wanted->item_count; i++)
        if (request->wanted->items[i].kind == ITEM_FILE)
            status = lay_out_side_file(request, target, i, err);
    target->catalog->ranks = state->spread.world;
    return status;
}

void fsdp_close_target(struct target *target)
{
    struct fsdp_target *state = target->driver_state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->file_count; i++) {
        for (uint32_t j = 0; j < state->files[i].record_count; j++) {
            buffer_release(&state->files[i].records[j].memory);
            free(state->files[i].records[j].runs);
        }
        torch_frame_release(&state->files[i].frame);
        free(state->files[i].records);
    }
    fsdp_spread_release(&state->spread);
    if (state->flat)
        fsdp_flat_plan_release(state->flat);
    free(state->flat);
    buffer_release(&state->config);
    free(state->is_left_out);
    name_map_release(&state->item_keys);
    free(state->items);
    free(state->files);
    free(state->side_files);
    free(state);
    target->driver_state = NULL;
}

/* ---- publishing ---- */

static reshard_status fsdp_write_frame(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    return store_write_at(context, offset, bytes, size, err);
}

static reshard_status make_pickle_again(const struct publish_job *job, struct fsdp_target_file *file, reshard_error *err)
{
    bool is_empty;
    struct target again = { .driver_state = job->target->driver_state };
    file->is_planned = true;
    file->record_again = 0;
    reshard_status status = fsdp_emit_file(job->request, &again, file, &file->frame.pickle, &is_empty, err);
    if (!status && file->frame.pickle.size != file->pickle_bytes)
        status = error_set(err, RESHARD_ERR_IO, "the source changed while it was read: an item has another value now");
    return status;
}

/* Zeros of a record, from byte `from` on to `end`. */
static reshard_status write_zeros(struct store_object *object, uint64_t record, uint64_t from, uint64_t end, reshard_error *err)
{
    static const uint8_t zeros[4096];
    reshard_status status = RESHARD_OK;
    for (; !status && from < end; from += sizeof(zeros))
        status = store_write_at(object, record + from, zeros, end - from < sizeof(zeros) ? (size_t)(end - from) : sizeof(zeros), err);
    return status;
}

/* The CRC-32 of each record from those of its chunks, which come by their places; writes what is between and behind runs. */
static reshard_status join_record_crcs(const struct publish_job *job, const struct fsdp_target_file *file, uint32_t *crcs,
                                       reshard_error *err)
{
    const struct target *target = job->target;
    struct store_object *object = job->objects[file->object];
    uint64_t *done = array_zeroed(file->record_count, sizeof(*done));
    reshard_status status = done ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = target->first_chunk[file->object]; !status && i < target->first_chunk[file->object + 1]; i++) {
        const struct catalog_chunk *chunk = &target->catalog->chunks[target->chunks[i]];
        uint32_t record = chunk->driver_data;
        uint64_t begin = file->frame.members[file->frame.first_storage + record].payload_offset, at = chunk->offset - begin;
        status = write_zeros(object, begin, done[record], at, err);
        uint32_t before = crc32_zip_extend(crcs[record], done[record], at);
        crcs[record] = crc32_zip_combine(before, job->chunk_crcs[target->chunks[i]], chunk->bytes);
        done[record] = at + chunk->bytes;
    }
    for (uint32_t i = 0; !status && i < file->record_count; i++) {
        const struct fsdp_record *record = &file->records[i];
        if (!record->runs || record->tensor == TORCH_NONE)
            continue;
        status = write_zeros(object, file->frame.members[file->frame.first_storage + i].payload_offset, done[i], record->bytes, err);
        crcs[i] = crc32_zip_extend(crcs[i], done[i], record->bytes);
    }
    free(done);
    return status;
}

static reshard_status publish_file(const struct publish_job *job, struct fsdp_target_file *file, reshard_error *err)
{
    struct store_object *object = job->objects[file->object];
    uint32_t *crcs = array_zeroed(file->record_count, sizeof(*crcs));
    reshard_status status = crcs ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = join_record_crcs(job, file, crcs, err);
    for (uint32_t i = 0; !status && i < file->record_count; i++) {
        const struct fsdp_record *record = &file->records[i];
        if (record->tensor != TORCH_NONE || record->bytes == 0)
            continue;
        crcs[i] = crc32_zip(0, record->memory.data, record->memory.size);
        status = store_write_at(object, file->frame.members[file->frame.first_storage + i].payload_offset, record->memory.data,
                                record->memory.size, err);
    }
    if (!status)
        status = make_pickle_again(job, file, err);
    if (!status)
        status = torch_frame_write(&file->frame, crcs, fsdp_write_frame, object, err);
    buffer_release(&file->frame.pickle);
    free(crcs);
    return status;
}

static reshard_status publish_side_file(const struct publish_job *job, const struct fsdp_side_file *file, reshard_error *err)
{
    const struct catalog_item *stored = layout_item_stored(job->request, file->item);
    const struct catalog_object *from = &job->source->catalog->objects[stored->object];
    struct store_object *object = NULL;
    char *name = strndup(from->name.data, from->name.size);
    uint8_t *pass = malloc(COPY_BYTES);
    reshard_status status = name && pass ? store_open_object(job->source->store, name, &object, err) : error_set_memory(err);
    for (uint64_t done = 0; !status && done < from->bytes;) {
        size_t size = from->bytes - done < COPY_BYTES ? (size_t)(from->bytes - done) : COPY_BYTES;
        status = store_read_at(object, done, pass, size, err);
        if (!status)
            status = store_write_at(job->objects[file->object], done, pass, size, err);
        done += size;
    }
    store_object_close(object);
    free(pass);
    free(name);
    return status;
}

reshard_status fsdp_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    struct fsdp_target *state = job->target->driver_state;
    if (object == state->config_object)
        return store_write_at(job->objects[object], 0, state->config.data, state->config.size, err);
    for (uint32_t i = 0; i < state->file_count; i++)
        if (state->files[i].object == object)
            return publish_file(job, &state->files[i], err);
    for (uint32_t i = 0; i < state->side_count; i++)
        if (state->side_files[i].object == object)
            return publish_side_file(job, &state->side_files[i], err);
    return RESHARD_OK;
}
