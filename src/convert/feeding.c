/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/feeding.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/crc32.h"
#include "catalog/catalog_cover.h"
#include "convert/part_record.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"

#include <inttypes.h>
#include <stdlib.h>

#define FEEDING_MEMORY (UINT64_C(32) << 20)    /* for each piece that is on its way, if nobody says how much */
#define FEEDING_MEMORY_MIN (UINT64_C(1) << 20) /* small pieces need no more than a few times their size */

/* ---- beginning ---- */

/* Conversions may read their source twice, this one cannot. */
static reshard_status options_check(const struct conversion_options *options, reshard_error *err)
{
    if (options->verify) {
        error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.verify: what was fed is not there to be compared with");
        error_hint(err, "reshard_convert_options.checksum keeps digests of what was written");
        return RESHARD_ERR_USAGE;
    }
    if (options->resume)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.resume: what is fed is written in one go");
    if (selection_missing_is_path(options->selection.missing))
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.missing: what is fed comes from its caller alone, not from '%s'",
                         options->selection.missing);
    return RESHARD_OK;
}

static reshard_status tensors_check(const struct catalog *catalog, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        if (catalog->tensors[i].chunk_count > 1)
            return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' is declared twice", STR_ARG(catalog->tensors[i].key));
    return RESHARD_OK;
}

static reshard_status there_make(struct feeding *feeding, reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    feeding->there = array_zeroed(catalog->tensor_count, sizeof(*feeding->there));
    if (!feeding->there)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        if (!box_set_init(&feeding->there[i], catalog->tensors[i].rank, catalog_vector_at(catalog, catalog->tensors[i].shape)))
            return error_set_memory(err);
    return RESHARD_OK;
}

static void there_release(struct feeding *feeding)
{
    uint32_t count = feeding->source ? feeding->source->source->catalog->tensor_count : 0;
    for (uint32_t i = 0; feeding->there && i < count; i++)
        box_set_release(&feeding->there[i]);
    free(feeding->there);
    feeding->there = NULL;
}

reshard_status feeding_turn_to(struct feeding *feeding, const char *target_path, const struct conversion_options *options,
                               const struct engine_options *engine, bool *out, reshard_error *err)
{
    char *path = str_copy(str_of(target_path));
    *out = false;
    if (!path)
        return error_set_memory(err);
    run_release(&feeding->run);
    feeding->run = (struct run){ .conversion = &feeding->conversion };
    free(feeding->path);
    feeding->path = path;
    feeding->options = *options;
    feeding->is_broken = false;
    there_release(feeding);
    reshard_status status = options_check(options, err);
    if (!status)
        status = there_make(feeding, err);
    if (!status)
        status = target_check_source(feeding->source, target_path, options->overwrite, err);
    return status ? status : conversion_turn_to(&feeding->conversion, target_path, &feeding->options, engine, out, err);
}

reshard_status feeding_prepare_pieces(struct feeding *feeding, struct checkpoint *source, const char *target_path,
                                      const struct conversion_options *options, const struct engine_options *engine, reshard_error *err)
{
    *feeding = (struct feeding){ .source = source, .options = *options, .path = str_copy(str_of(target_path)) };
    if (pthread_mutex_init(&feeding->lock, NULL) || !feeding->path) {
        free(feeding->path);
        checkpoint_close(source);
        return error_set_memory(err);
    }
    reshard_status status = options_check(options, err);
    if (!status)
        status = there_make(feeding, err);
    if (!status && !options->store)
        status = target_check_source(source, target_path, options->overwrite, err);
    if (!status)
        status = conversion_prepare(source, target_path, &feeding->options, engine, CONVERSION_TO_RUN, &feeding->conversion, err);
    feeding->run.conversion = &feeding->conversion;
    if (status)
        feeding_release(feeding);
    return status;
}

reshard_status feeding_prepare(struct feeding *feeding, struct checkpoint *source, const char *target_path,
                               const struct conversion_options *options, const struct engine_options *engine, reshard_error *err)
{
    reshard_status status = feeding_prepare_pieces(feeding, source, target_path, options, engine, err);
    if (status)
        return status;
    status = tensors_check(source->source->catalog, err);
    if (!status)
        status = plan_feeds_new(feeding->conversion.plan, &feeding->feeds, err);
    if (status)
        feeding_release(feeding);
    return status;
}

/* CRCs grow by what pieces have of their chunks. Until then these are zeros. */
static void feeding_begin_crcs(struct run *run)
{
    const struct catalog *target = run->conversion->target.catalog;
    for (uint32_t i = 0; i < target->chunk_count; i++)
        if (target->chunks[i].flags & CHUNK_WANT_CRC)
            run->crcs[i] = crc32_zip_zeros(target->chunks[i].bytes);
}

static void feeding_take_crcs(struct feeding *feeding, const struct plan_feed *feed, const uint32_t *crcs)
{
    const struct catalog *target = feeding->conversion.target.catalog;
    pthread_mutex_lock(&feeding->lock);
    for (uint32_t i = 0; i < feed->target->chunk_count; i++) {
        const struct catalog_chunk *part = &feed->target->chunks[i], *chunk = &target->chunks[feed->chunks[i]];
        uint32_t *sum = &feeding->run.crcs[feed->chunks[i]];
        uint64_t size;
        if (part->flags & CHUNK_WANT_CRC)
            *sum = crc32_zip_overlay(*sum, chunk->bytes, crcs[i], part->bytes, part->offset - chunk->offset, &size);
    }
    pthread_mutex_unlock(&feeding->lock);
}

static uint64_t feeding_memory(const struct plan *plan)
{
    uint64_t wanted = capped_add_u64(FEEDING_MEMORY_MIN, capped_mul_u64(plan->write_bytes, 4));
    return wanted < FEEDING_MEMORY ? wanted : FEEDING_MEMORY;
}

/* Moves what a feed has, out of a source of its own. */
static reshard_status feed_run(struct feeding *feeding, const struct plan_feed *feed, const struct engine_source *source,
                               reshard_error *err)
{
    struct engine_options options = feeding->conversion.engine;
    uint32_t count = feed->target->object_count;
    struct store_object **objects = array_zeroed(count, sizeof(struct store_object *));
    uint32_t *crcs = array_zeroed(feed->target->chunk_count, sizeof(*crcs));
    reshard_status status = objects && crcs ? RESHARD_OK : error_set_memory(err);
    options.progress = feeding->progress;
    options.context = feeding->progress_context;
    options.memory_bytes = options.memory_bytes ? options.memory_bytes : feeding_memory(feed->plan);
    for (uint32_t i = 0; i < count && objects; i++)
        objects[i] = feeding->run.objects[feed->objects[i]];
    if (!status)
        status = engine_run(feed->plan, source, objects, crcs, NULL, &options, err);
    if (!status)
        feeding_take_crcs(feeding, feed, crcs);
    free(objects);
    free(crcs);
    return status;
}

reshard_status feeding_fill(struct feeding *feeding, reshard_error *err)
{
    const struct engine_source source = checkpoint_engine_source(feeding->conversion.source);
    struct plan_feed feed;
    reshard_status status = plan_feed_fills(&feeding->feeds, &feed, err);
    if (status)
        return status;
    if (feed.plan)
        status = feed_run(feeding, &feed, &source, err);
    plan_feed_release(&feed);
    return status;
}

/* Begins to write a part, or takes up what all parts have left. */
static reshard_status feeding_share(struct feeding *feeding, enum store_txn_share share, reshard_error *err)
{
    struct run *run = &feeding->run;
    const struct store_txn_options options = part_txn_options(&feeding->conversion, share);
    feeding->identity = options.identity;
    reshard_status status = run_announce(&feeding->conversion, err);
    if (!status)
        status = store_txn_begin(feeding->path, &options, &run->txn, err);
    if (!status && share == STORE_TXN_PART)
        status = part_records_check_number(run, err);
    return status ? status : run_create_objects(run, NULL, err);
}

reshard_status feeding_begin(struct feeding *feeding, reshard_error *err)
{
    bool is_part = feeding->options.part_count > 0;
    reshard_status status = target_check_replaced(&feeding->conversion, feeding->path, err);
    if (!status && is_part)
        status = part_check(&feeding->conversion, err);
    if (!status)
        status = is_part ? feeding_share(feeding, STORE_TXN_PART, err) : run_begin(&feeding->run, feeding->path, err);
    if (status)
        return status;
    feeding_begin_crcs(&feeding->run);
    return feeding->options.part ? RESHARD_OK : feeding_fill(feeding, err);
}

/* ---- pieces ---- */

/* Its box as it is in the tensor: all of it where none is given. */
static void piece_box_of(const struct catalog *catalog, const struct feeding_piece *piece, const int64_t **start, const int64_t **extent)
{
    static const int64_t origin[RANK_MAX];
    *start = piece->box.start ? piece->box.start : origin;
    *extent = piece->box.start ? piece->box.extent : catalog_vector_at(catalog, catalog->tensors[piece->box.tensor].shape);
}

static reshard_status piece_check(const struct catalog *catalog, const struct feeding_piece *piece, uint64_t *span, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[piece->box.tensor];
    const struct engine_box *box = &piece->box;
    const int64_t *start, *extent;
    char text[BOX_TEXT_MAX];
    uint64_t payload;
    int bad_axis;
    piece_box_of(catalog, piece, &start, &extent);
    if (!box_check(tensor->rank, start, extent, catalog_vector_at(catalog, tensor->shape), &bad_axis))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': %s leaves it on axis %d", STR_ARG(tensor->key),
                         box_text(tensor->rank, start, extent, text), bad_axis);
    int64_t volume = box_volume(tensor->rank, extent);
    if (box->flat_count < 0 || box->flat_begin < 0 || box->flat_begin > volume || box->flat_count > volume - box->flat_begin)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a run of %" PRId64 " elements from %" PRId64 " leaves a box of %" PRId64,
                         STR_ARG(tensor->key), box->flat_count, box->flat_begin, volume);
    if (box->strides && (box->flat_count || piece->read))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a %s has no strides", STR_ARG(tensor->key),
                         piece->read ? "piece from a callback" : "run");
    reshard_status status = engine_box_measure(box, tensor->key, tensor->rank, extent, span, &payload, err);
    if (!status && *span && !box->out && !piece->read)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a piece has no values", STR_ARG(tensor->key));
    return status;
}

/* A piece as the plan reads it: where the target has F4 in pairs (source_pairs.h), its last axis counts pairs. */
struct piece_form {
    enum dtype dtype;
    bool is_paired;
    int64_t shape[RANK_MAX], start[RANK_MAX], extent[RANK_MAX];
};

static reshard_status piece_form_of(const struct feeding *feeding, const struct feeding_piece *piece, struct piece_form *out,
                                    reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog, *read = feeding->conversion.source->source->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[piece->box.tensor];
    const size_t bytes = (size_t)tensor->rank * sizeof(int64_t);
    const int64_t *start, *extent;
    const int last = tensor->rank - 1;
    piece_box_of(catalog, piece, &start, &extent);
    *out = (struct piece_form){ .dtype = tensor->dtype };
    memcpy(out->shape, catalog_vector_at(catalog, tensor->shape), bytes);
    memcpy(out->start, start, bytes);
    memcpy(out->extent, extent, bytes);
    out->is_paired = tensor->dtype == DTYPE_F4 && read->tensors[piece->box.tensor].dtype == DTYPE_F4_X2;
    if (!out->is_paired)
        return RESHARD_OK;
    if (start[last] % 2 || extent[last] % 2 || piece->box.strides || piece->box.flat_count || piece->box.dtype != DTYPE_F4)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "tensor '%.*s': this format has F4 in pairs along the last axis: pieces have whole pairs, of F4, without strides",
                         STR_ARG(tensor->key));
    out->dtype = DTYPE_F4_X2;
    out->shape[last] /= 2;
    out->start[last] /= 2;
    out->extent[last] /= 2;
    return RESHARD_OK;
}

/* The piece as a source of its own. */
static reshard_status piece_catalog(const struct feeding *feeding, const struct feeding_piece *piece, uint64_t span, struct catalog *out,
                                    reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    const struct catalog_tensor *like = &catalog->tensors[piece->box.tensor];
    struct piece_form form;
    char name[STORE_REGION_NAME_MAX];
    struct catalog_chunk *chunk;
    uint32_t tensor, object;
    out->limits = catalog->limits;
    out->limits.budget = NULL;
    store_region_name(0, name);
    reshard_status status = piece_form_of(feeding, piece, &form, err);
    if (!status)
        status = catalog_add_tensor(out, like->key, form.dtype, like->rank, form.shape, &tensor, err);
    if (!status)
        status = catalog_add_object(out, str_of(name), span, &object, err);
    if (!status)
        status = catalog_add_chunk(out, tensor, form.start, form.extent, object, 0, span, &chunk, err);
    if (status)
        return status;
    if (!form.is_paired && piece->box.dtype != like->dtype)
        out->tensors[tensor].stored_as = 1 + piece->box.dtype;
    if (piece->box.strides)
        status = catalog_chunk_set_strides(out, chunk, like->rank, piece->box.strides, err);
    if (!status && piece->box.flat_count)
        status = catalog_chunk_set_run(out, chunk, piece->box.flat_begin, piece->box.flat_count, err);
    return status ? status : catalog_seal(out, true, err);
}

struct there_walk {
    struct box_set *there;
    const int64_t *start; /* of the piece's box */
    bool adds;
    int64_t met_start[RANK_MAX], met_extent[RANK_MAX];
};

static bool there_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct there_walk *walk = context;
    int64_t moved[RANK_MAX];
    (void)flat_index;
    for (int axis = 0; axis < walk->there->rank; axis++)
        moved[axis] = walk->start[axis] + start[axis];
    if (walk->adds)
        return box_set_add(walk->there, moved, extent);
    return !box_set_meets(walk->there, moved, extent, walk->met_start, walk->met_extent);
}

static bool there_boxes(struct there_walk *walk, const struct feeding_piece *piece, const int64_t *extent)
{
    static const int64_t origin[RANK_MAX];
    int rank = walk->there->rank;
    if (piece->box.flat_count)
        return flat_run_boxes(rank, extent, piece->box.flat_begin, piece->box.flat_count, there_box, walk);
    return there_box(origin, extent, 0, walk);
}

/* Notes that the piece is there, before it is: of two that have the same elements, the second is refused. */
static reshard_status piece_enter(struct feeding *feeding, const struct feeding_piece *piece, reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[piece->box.tensor];
    struct there_walk walk = { .there = &feeding->there[piece->box.tensor] };
    reshard_status status = RESHARD_OK;
    const int64_t *extent;
    char text[BOX_TEXT_MAX];
    piece_box_of(catalog, piece, &walk.start, &extent);
    pthread_mutex_lock(&feeding->lock);
    if (feeding->is_broken || !feeding->run.txn) {
        status = error_set(err, RESHARD_ERR_USAGE, "the writer has %s", feeding->is_broken ? "failed" : "ended");
    } else if (!there_boxes(&walk, piece, extent)) {
        status = error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': %s was written already", STR_ARG(tensor->key),
                           box_text(tensor->rank, walk.met_start, walk.met_extent, text));
        error_object(err, "%.*s", STR_ARG(tensor->key));
    } else {
        walk.adds = true;
        feeding->is_broken = !there_boxes(&walk, piece, extent);
        status = feeding->is_broken ? error_set_memory(err) : RESHARD_OK;
    }
    pthread_mutex_unlock(&feeding->lock);
    return status;
}

static reshard_status piece_run(struct feeding *feeding, const struct feeding_piece *piece, const struct catalog *catalog, uint64_t span,
                                reshard_error *err)
{
    const struct store_region region = { .memory = piece->box.out, .bytes = span, .read = piece->read, .context = piece->context };
    struct engine_source source = { .catalog = catalog, .limits = &feeding->source->source->limits };
    struct plan_feed feed;
    reshard_status status = plan_feed_new(&feeding->feeds, piece->box.tensor, catalog, &feed, err);
    if (status || !feed.plan) {
        plan_feed_release(&feed);
        return status;
    }
    status = store_new_over(&region, 1, &source.store, err);
    if (!status)
        status = feed_run(feeding, &feed, &source, err);
    store_free(source.store);
    plan_feed_release(&feed);
    return status;
}

reshard_status feeding_put(struct feeding *feeding, const struct feeding_piece *piece, reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    uint64_t span;
    reshard_status status = piece_check(catalog, piece, &span, err);
    if (status)
        return status;
    struct catalog *made = catalog_new(catalog->format);
    status = made ? piece_catalog(feeding, piece, span, made, err) : error_set_memory(err);
    if (!status)
        status = piece_enter(feeding, piece, err);
    if (!status) {
        status = piece_run(feeding, piece, made, span, err);
        if (status) {
            pthread_mutex_lock(&feeding->lock);
            feeding->is_broken = true;
            pthread_mutex_unlock(&feeding->lock);
        }
    }
    catalog_free(made);
    return status;
}

/* ---- the end ---- */

static reshard_status missing_check(const struct feeding *feeding, reshard_status found, reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    int64_t start[RANK_MAX], extent[RANK_MAX];
    char text[BOX_TEXT_MAX];
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        bool is_read = feeding->feeds.first[i] < feeding->feeds.first[i + 1];
        if (!is_read || !box_set_hole(&feeding->there[i], start, extent))
            continue;
        error_set(err, found, "tensor '%.*s': %s was not written (%" PRId64 " elements are missing)", STR_ARG(tensor->key),
                  box_text(tensor->rank, start, extent, text), feeding->there[i].missing);
        error_object(err, "%.*s", STR_ARG(tensor->key));
        return found;
    }
    return RESHARD_OK;
}

/* What was fed, as a record keeps it: number of the tensor u32, start and extent of a box, rank numbers i64 each. */
static void fed_write(const struct feeding *feeding, struct buffer *out)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct box_set *there = &feeding->there[i];
        for (size_t slab = 0; slab < there->slab_count; slab++) {
            for (size_t box = 0; box < there->slabs[slab].count; box++) {
                const int64_t *numbers = there->slabs[slab].boxes + box * 2 * (size_t)there->rank;
                buffer_append_u32le(out, i);
                for (int axis = 0; axis < 2 * there->rank; axis++)
                    buffer_append_u64le(out, (uint64_t)numbers[axis]);
            }
        }
    }
}

/* A box of a record, in indices of the tensor; false: it is none. */
static bool fed_read(const struct catalog *catalog, struct cursor *fed, uint32_t *tensor, int64_t *box)
{
    int bad_axis;
    if (!cursor_u32le(fed, tensor) || *tensor >= catalog->tensor_count)
        return false;
    const struct catalog_tensor *whole = &catalog->tensors[*tensor];
    for (int axis = 0; axis < 2 * whole->rank; axis++) {
        uint64_t number;
        if (!cursor_u64le(fed, &number))
            return false;
        box[axis] = (int64_t)number;
    }
    return box_check(whole->rank, box, box + whole->rank, catalog_vector_at(catalog, whole->shape), &bad_axis);
}

/* CRCs are of zeros where a part wrote nothing: what is left without those of all zeros is what the part adds. */
static void crcs_turn(const struct feeding *feeding)
{
    const struct catalog *target = feeding->conversion.target.catalog;
    for (uint32_t i = 0; i < target->chunk_count; i++)
        if (target->chunks[i].flags & CHUNK_WANT_CRC)
            feeding->run.crcs[i] ^= crc32_zip_zeros(target->chunks[i].bytes);
}

static reshard_status finish_part(struct feeding *feeding, reshard_error *err)
{
    const struct conversion_options *options = &feeding->options;
    struct buffer fed = { 0 }, record = { 0 };
    char name[PART_RECORD_NAME_MAX];
    run_close_objects(&feeding->run);
    crcs_turn(feeding);
    fed_write(feeding, &fed);
    reshard_status status = fed.failed ? error_set_memory(err) : RESHARD_OK;
    if (!status)
        status = part_record_make(&feeding->run, feeding->identity, buffer_str(&fed), &record, err);
    if (!status) {
        part_record_name(options->part, options->part_count, name);
        status = store_txn_leave(feeding->run.txn, name, record.data, record.size, err);
        feeding->run.txn = NULL;
    }
    buffer_release(&fed);
    buffer_release(&record);
    return status;
}

static reshard_status part_take_boxes(struct feeding *feeding, const char *name, struct cursor fed, reshard_error *err)
{
    const struct catalog *catalog = feeding->source->source->catalog;
    int64_t box[2 * RANK_MAX], start[RANK_MAX], extent[RANK_MAX];
    char text[BOX_TEXT_MAX];
    uint32_t tensor;
    while (cursor_left(&fed)) {
        if (!fed_read(catalog, &fed, &tensor, box))
            return part_record_refuse(name, "names elements that there are not", err);
        const struct catalog_tensor *whole = &catalog->tensors[tensor];
        if (box_set_meets(&feeding->there[tensor], box, box + whole->rank, start, extent)) {
            error_set(err, RESHARD_DIFFERS, "tensor '%.*s': %s was written by two parts, of which one is '%s'", STR_ARG(whole->key),
                      box_text(whole->rank, start, extent, text), name);
            error_object(err, "%.*s", STR_ARG(whole->key));
            return RESHARD_DIFFERS;
        }
        if (!box_set_add(&feeding->there[tensor], box, box + whole->rank))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static reshard_status fed_part_take(void *context, const char *name, const struct part_record *record, reshard_error *err)
{
    struct feeding *feeding = context;
    const struct catalog *target = feeding->conversion.target.catalog;
    struct cursor crcs = record->crcs;
    uint32_t chunk, crc;
    while (cursor_u32le(&crcs, &chunk) && cursor_u32le(&crcs, &crc)) {
        if (chunk >= target->chunk_count || !(target->chunks[chunk].flags & CHUNK_WANT_CRC))
            return part_record_refuse(name, "has checksums of chunks that there are not", err);
        feeding->run.crcs[chunk] ^= crc;
    }
    return part_take_boxes(feeding, name, record->fed, err);
}

/* From the payload's end to a visible target. */
static reshard_status feeding_publish(struct feeding *feeding, reshard_error *err)
{
    struct run *run = &feeding->run;
    reshard_status status = run_end(run, err);
    run_close_objects(run);
    if (!status)
        status = run_check(run, err);
    return status ? status : run_commit(run, feeding->path, err);
}

reshard_status feeding_commit(struct feeding *feeding, reshard_error *err)
{
    if (feeding->options.store)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.store: parts are written to the file system");
    reshard_status status = target_check_replaced(&feeding->conversion, feeding->path, err);
    if (!status)
        status = sidecar_check_beside(feeding->path, run_is_directory(&feeding->conversion), feeding->options.overwrite, err);
    if (!status)
        status = feeding_share(feeding, STORE_TXN_REST, err);
    if (status)
        return status;
    feeding_begin_crcs(&feeding->run);
    status = part_records_take(&feeding->run, feeding->identity, fed_part_take, feeding, err);
    if (!status)
        status = missing_check(feeding, RESHARD_DIFFERS, err);
    return status ? status : feeding_publish(feeding, err);
}

reshard_status feeding_finish(struct feeding *feeding, reshard_error *err)
{
    struct run *run = &feeding->run;
    if (feeding->is_broken || !run->txn)
        return error_set(err, RESHARD_ERR_USAGE, "the writer has %s", feeding->is_broken ? "failed" : "ended");
    bool is_part = feeding->options.part_count > 0;
    reshard_status status = is_part ? RESHARD_OK : missing_check(feeding, RESHARD_ERR_USAGE, err);
    if (status)
        return status;
    feeding->is_broken = true; /* until the end is reached */
    status = is_part ? finish_part(feeding, err) : feeding_publish(feeding, err);
    feeding->is_broken = status != RESHARD_OK;
    return status;
}

void feeding_release(struct feeding *feeding)
{
    if (feeding->run.objects)
        run_close_objects(&feeding->run);
    store_txn_abort(feeding->run.txn, false);
    run_release(&feeding->run);
    plan_feeds_release(&feeding->feeds);
    conversion_release(&feeding->conversion);
    there_release(feeding);
    checkpoint_close(feeding->source);
    pthread_mutex_destroy(&feeding->lock);
    free(feeding->path);
    *feeding = (struct feeding){ 0 };
}
