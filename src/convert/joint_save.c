/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/joint_save.h"

#include "base/array.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/cursor.h"
#include "base/hash.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define JOINT_RECORD_MAX 48
#define JOINT_ASK_NS 50000000 /* as often as the engine asks */

/* ---- preparing ---- */

/* A step's rank: whose its source is; fills are rank 0's. */
static uint32_t step_writer(const struct plan *plan, uint32_t step)
{
    uint32_t chunk = plan->steps[step].source_chunk;
    return chunk == CATALOG_NONE ? 0 : plan->source->chunks[chunk].writer;
}

/* Steps into one target chunk follow each other. */
static void steps_sort_out(const struct joint_save *save, uint8_t *alone, uint8_t *mixed, uint8_t *own)
{
    const struct plan *plan = save->feeding.conversion.plan;
    for (uint32_t first = 0, end; first < plan->step_count; first = end) {
        uint32_t chunk = plan->steps[first].target_chunk, here = 0;
        for (end = first; end < plan->step_count && plan->steps[end].target_chunk == chunk; end++)
            here += step_writer(plan, end) == save->rank;
        for (uint32_t i = first; i < end; i++) {
            own[i] = step_writer(plan, i) == save->rank;
            alone[i] = here == end - first;
            mixed[i] = here && here < end - first;
        }
    }
}

static reshard_status joint_plans_make(struct joint_save *save, reshard_error *err)
{
    const struct plan *plan = save->feeding.conversion.plan;
    uint8_t *flags = array_zeroed(plan->step_count, 3);
    if (!flags)
        return error_set_memory(err);
    uint8_t *mixed = flags + plan->step_count, *own = mixed + plan->step_count;
    steps_sort_out(save, flags, mixed, own);
    reshard_status status = plan_select(plan, flags, &save->alone, err);
    if (!status)
        status = plan_select(plan, mixed, &save->mixed, err);
    if (!status)
        status = plan_select(plan, own, &save->own, err);
    if (!status)
        status = plan_feeds_new(save->mixed, &save->feeding.feeds, err);
    free(flags);
    return status;
}

reshard_status joint_prepare(struct joint_save *save, const struct joint_input *input, const char *target_path,
                             const struct conversion_options *options, const struct engine_options *engine, reshard_error *err)
{
    const struct open_options open = { .limits = options->open.open.limits, .iteration = -1 };
    const struct live_state live = { input->shards, input->shard_count, input->items, input->item_count };
    struct checkpoint *source = NULL;
    *save = (struct joint_save){ .rank = input->rank, .shard_count = input->shard_count };
    reshard_status status = checkpoint_open_live(&live, &open, input->name, &source, err);
    if (!status)
        status = feeding_prepare_pieces(&save->feeding, source, target_path, options, engine, err);
    if (status)
        return status;
    if (run_is_packed(&save->feeding.conversion))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "what is compressed file by file cannot be written by several ranks");
    if (!status)
        status = joint_plans_make(save, err);
    if (status)
        joint_release(save);
    else
        save->identity = save->target = run_identity(&save->feeding.conversion);
    return status;
}

/* A shard's number is its region's. */
reshard_status joint_turn_to(struct joint_save *save, const struct shard *shards, const char *target_path,
                             const struct conversion_options *options, const struct engine_options *engine, bool *out, reshard_error *err)
{
    const struct source *source = save->feeding.source->source;
    for (size_t i = 0; i < save->shard_count; i++) {
        const struct shard *shard = &shards[i];
        const struct store_region region = { .memory = shard->data, .give = shard->read, .context = shard->context };
        if (shard->writer == save->rank)
            store_region_move(source->store, i, &region);
    }
    save->identity = save->target;
    return feeding_turn_to(&save->feeding, target_path, options, engine, out, err);
}

void joint_set_turn(struct joint_save *save, uint64_t turn)
{
    save->identity = hash64(&turn, sizeof(turn), save->target);
}

void joint_release(struct joint_save *save)
{
    plan_free(save->alone);
    plan_free(save->mixed);
    plan_free(save->own);
    if (save->feeding.path)
        feeding_release(&save->feeding);
    *save = (struct joint_save){ 0 };
}

/* ---- writing ---- */

static struct store_txn_options joint_txn_options(const struct joint_save *save, enum store_txn_share share)
{
    const struct conversion_options *options = &save->feeding.options;
    return (struct store_txn_options){ .is_directory = run_is_directory(&save->feeding.conversion),
                                       .overwrite = options->overwrite,
                                       .no_sync = options->no_sync,
                                       .no_space_check = options->no_space_check,
                                       .identity = save->identity,
                                       .share = share };
}

/* Who is told how far a rank is, which writes its share in several runs. */
struct joint_asking {
    const struct engine_options *asked; /* by the caller */
    struct engine_progress ended, last; /* of runs that have ended, and of the one that goes on */
    uint64_t bytes_total;               /* of this rank */
    int64_t asked_ns;
};

static bool joint_goes_on(const struct engine_progress *progress, void *context)
{
    struct joint_asking *asking = context;
    const struct engine_progress *ended = &asking->ended;
    const struct engine_progress told = { .bytes_done = ended->bytes_done + progress->bytes_done,
                                          .bytes_total = asking->bytes_total,
                                          .bytes_read = ended->bytes_read + progress->bytes_read,
                                          .bytes_written = ended->bytes_written + progress->bytes_written,
                                          .memory_bytes = progress->memory_bytes };
    const int64_t now = clock_ns();
    asking->last = *progress;
    if (now - asking->asked_ns < JOINT_ASK_NS && told.bytes_done < told.bytes_total)
        return true; /* small pieces end often */
    asking->asked_ns = now;
    return asking->asked->progress(&told, asking->asked->context);
}

/* The next run counts from where the last one has ended. */
static void joint_run_ended(struct joint_asking *asking)
{
    asking->ended.bytes_done += asking->last.bytes_done;
    asking->ended.bytes_read += asking->last.bytes_read;
    asking->ended.bytes_written += asking->last.bytes_written;
    asking->last = (struct engine_progress){ 0 };
}

/* CRCs of what several write grow by what each has, and are those of zeros until then. */
static void mixed_crcs_begin(struct joint_save *save)
{
    const struct catalog *target = save->feeding.conversion.target.catalog;
    for (uint32_t i = 0; i < save->mixed->step_count; i++) {
        uint32_t chunk = save->mixed->steps[i].target_chunk;
        if (target->chunks[chunk].flags & CHUNK_WANT_CRC)
            save->feeding.run.crcs[chunk] = crc32_zip_zeros(target->chunks[chunk].bytes);
    }
}

static reshard_status own_object_read(void *context, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    return store_read_at(context, offset, out, size, err);
}

/* The values of a chunk of the source, as a piece. */
static reshard_status own_chunk_feed(struct joint_save *save, uint32_t index, reshard_error *err)
{
    const struct source *source = save->feeding.source->source;
    const struct catalog *catalog = source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    struct store_object *object;
    reshard_status status = store_open_object(source->store, catalog->objects[chunk->object].name.data, &object, err);
    if (status)
        return status;
    const bool is_given = chunk->bytes && !store_object_map(object);
    const struct feeding_piece piece = {
        .box = { .tensor = chunk->tensor,
                 .start = catalog_vector_at(catalog, chunk->start),
                 .extent = catalog_vector_at(catalog, chunk->extent),
                 .dtype = catalog->tensors[chunk->tensor].dtype,
                 .strides = layout && layout->strides != CATALOG_NONE ? catalog_vector_at(catalog, layout->strides) : NULL,
                 .flat_begin = layout && layout->flat_count >= 0 ? layout->flat_begin : 0,
                 .flat_count = layout && layout->flat_count >= 0 ? layout->flat_count : 0,
                 .out = (void *)(uintptr_t)store_object_map(object),
                 .bytes = chunk->bytes },
        .read = is_given ? own_object_read : NULL,
        .context = object,
    };
    status = feeding_put(&save->feeding, &piece, err);
    store_object_close(object);
    return status;
}

static reshard_status mixed_write(struct joint_save *save, struct joint_asking *asking, reshard_error *err)
{
    const struct catalog *catalog = save->feeding.source->source->catalog;
    const struct plan *mixed = save->mixed;
    uint8_t *is_fed = array_zeroed(catalog->chunk_count, 1);
    reshard_status status = is_fed ? RESHARD_OK : error_set_memory(err);
    if (!status)
        mixed_crcs_begin(save);
    for (uint32_t i = 0; i < mixed->step_count && !status; i++) {
        uint32_t chunk = mixed->steps[i].source_chunk;
        if (chunk == CATALOG_NONE || is_fed[chunk] || catalog->chunks[chunk].writer != save->rank)
            continue;
        is_fed[chunk] = 1;
        status = own_chunk_feed(save, chunk, err);
        joint_run_ended(asking);
    }
    free(is_fed);
    if (!status && save->rank == 0)
        status = feeding_fill(&save->feeding, err);
    return status;
}

/* What its chunks' CRCs are beyond those of zeros, which add up over ranks: chunk u32 and difference u32. */
static reshard_status part_record(const struct joint_save *save, struct buffer *part, reshard_error *err)
{
    const struct catalog *target = save->feeding.conversion.target.catalog;
    uint32_t last = CATALOG_NONE;
    for (uint32_t i = 0; i < save->own->step_count; i++) {
        uint32_t chunk = save->own->steps[i].target_chunk;
        if (chunk == last || !(target->chunks[chunk].flags & CHUNK_WANT_CRC))
            continue;
        last = chunk;
        buffer_append_u32le(part, chunk);
        buffer_append_u32le(part, save->feeding.run.crcs[chunk] ^ crc32_zip_zeros(target->chunks[chunk].bytes));
    }
    return part->failed ? error_set_memory(err) : RESHARD_OK;
}

static reshard_status payload_write(struct joint_save *save, reshard_error *err)
{
    struct feeding *feeding = &save->feeding;
    struct run *run = &feeding->run;
    struct engine_source source = checkpoint_engine_source(feeding->conversion.source);
    struct joint_asking asking = { .asked = &feeding->conversion.engine, .bytes_total = save->own->write_bytes };
    struct engine_options engine = feeding->conversion.engine;
    struct store_txn_options options = joint_txn_options(save, STORE_TXN_PART);
    options.is_begun = true;
    engine.progress = engine.progress ? joint_goes_on : NULL;
    engine.context = &asking;
    if (engine.progress && !joint_goes_on(&(struct engine_progress){ 0 }, &asking))
        return error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
    reshard_status status = store_txn_begin(feeding->path, &options, &run->txn, err);
    if (!status)
        status = run_create_objects(run, save->own, err);
    if (!status)
        status = engine_run(save->alone, &source, run->objects, run->crcs, NULL, &engine, err);
    joint_run_ended(&asking);
    feeding->progress = engine.progress;
    feeding->progress_context = &asking;
    if (!status && save->mixed->step_count)
        status = mixed_write(save, &asking, err);
    feeding->progress = NULL;
    run_close_objects(run);
    return status;
}

reshard_status joint_write(struct joint_save *save, struct buffer *part, reshard_error *err)
{
    char name[JOINT_RECORD_MAX];
    struct run *run = &save->feeding.run;
    reshard_status status = payload_write(save, err);
    if (!status)
        status = part_record(save, part, err);
    snprintf(name, sizeof(name), ".rank-%" PRIu32, save->rank);
    if (!status) {
        struct store_txn *txn = run->txn;
        run->txn = NULL;
        return store_txn_leave(txn, name, part->data, part->size, err);
    }
    store_txn_abort(run->txn, true);
    run->txn = NULL;
    return status;
}

/* ---- the end ---- */

static reshard_status crcs_add(struct joint_save *save, const struct str *parts, uint32_t count, reshard_error *err)
{
    const struct catalog *target = save->feeding.conversion.target.catalog;
    uint32_t *crcs = save->feeding.run.crcs, chunk, difference;
    for (uint32_t i = 0; i < target->chunk_count; i++)
        crcs[i] = target->chunks[i].flags & CHUNK_WANT_CRC ? crc32_zip_zeros(target->chunks[i].bytes) : 0;
    for (uint32_t r = 0; r < count; r++) {
        struct cursor cursor = cursor_over(parts[r].data, parts[r].size);
        while (cursor_u32le(&cursor, &chunk) && cursor_u32le(&cursor, &difference)) {
            if (chunk >= target->chunk_count)
                return error_set(err, RESHARD_ERR_FORMAT, "rank %" PRIu32 " has written chunk %" PRIu32 " of %" PRIu32, r, chunk,
                                 target->chunk_count);
            crcs[chunk] ^= difference;
        }
    }
    return RESHARD_OK;
}

static reshard_status commit_begin(struct joint_save *save, reshard_error *err)
{
    struct run *run = &save->feeding.run;
    const struct store_txn_options options = joint_txn_options(save, STORE_TXN_REST);
    reshard_status status = target_check_replaced(run->conversion, save->feeding.path, err);
    if (!status)
        status = sidecar_check_beside(save->feeding.path, options.is_directory, options.overwrite, err);
    free(run->crcs);
    run->crcs = NULL;
    if (!status)
        status = store_txn_begin(save->feeding.path, &options, &run->txn, err);
    return status ? status : run_create_objects(run, NULL, err);
}

reshard_status joint_commit(struct joint_save *save, const struct str *parts, uint32_t count, reshard_error *err)
{
    struct run *run = &save->feeding.run;
    reshard_status status = commit_begin(save, err);
    if (!status)
        status = crcs_add(save, parts, count, err);
    if (!status)
        status = run_publish(run, err);
    run_close_objects(run);
    if (!status)
        status = run_check(run, err);
    return status ? status : run_commit(run, save->feeding.path, err);
}

/* What lies beside the target goes; keeps: an empty beginning stays. */
static reshard_status joint_clear(struct joint_save *save, bool keeps, reshard_error *err)
{
    const struct store_txn_options options = joint_txn_options(save, STORE_TXN_ALONE);
    struct store_txn *txn;
    reshard_status status = store_txn_begin(save->feeding.path, &options, &txn, err);
    if (!status)
        store_txn_abort(txn, keeps);
    return status;
}

reshard_status joint_begin(struct joint_save *save, reshard_error *err)
{
    return joint_clear(save, true, err);
}

void joint_abandon(struct joint_save *save)
{
    store_txn_abort(save->feeding.run.txn, true);
    save->feeding.run.txn = NULL;
    joint_clear(save, false, NULL);
}
