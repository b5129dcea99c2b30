/* SPDX-License-Identifier: Apache-2.0 */
/* Values: boxes of tensors as bytes, and digests of all of them. */
#include "api/handle.h"

#include "api/public_options.h"
#include "base/array.h"
#include "convert/tensor_digests.h"

#include "encoding/npy.h"
#include "formats/preview.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

static reshard_status tensor_number(const reshard_checkpoint *checkpoint, size_t index, reshard_error *err)
{
    size_t count = reshard_tensor_count(checkpoint);
    return index < count ? RESHARD_OK : error_set(err, RESHARD_ERR_USAGE, "tensor %zu of %zu", index, count);
}

/* The caller holds the places. */
static reshard_status box_of_places(const reshard_checkpoint *checkpoint, size_t index, const int64_t *start, const int64_t *extent,
                                    uint32_t *tensor_index, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    reshard_status status = tensor_number(checkpoint, index, err);
    if (status)
        return status;
    *tensor_index = checkpoint_listed(checkpoint, index);
    const struct catalog_tensor *tensor = &catalog->tensors[*tensor_index];
    int bad_axis;
    if (!start != !extent)
        return error_set(err, RESHARD_ERR_USAGE, "a box needs start and extent");
    if (start && !box_check(tensor->rank, start, extent, catalog_vector_at(catalog, tensor->shape), &bad_axis))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': box [%lld, +%lld) on axis %d, the tensor has %lld", STR_ARG(tensor->key),
                         (long long)start[bad_axis], (long long)extent[bad_axis], bad_axis,
                         (long long)catalog_vector_at(catalog, tensor->shape)[bad_axis]);
    return RESHARD_OK;
}

/* Checks a box, and gives the catalog's number of its tensor. */
static reshard_status box_of_request(const reshard_checkpoint *checkpoint, size_t index, const int64_t *start, const int64_t *extent,
                                     uint32_t *tensor_index, reshard_error *err)
{
    places_hold(checkpoint);
    reshard_status status = box_of_places(checkpoint, index, start, extent, tensor_index, err);
    places_leave(checkpoint);
    return status;
}

/* ---- any number of threads read at once ---- */

static bool tensors_are_placed(const struct catalog *catalog, const uint32_t *tensors, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[tensors[i]];
        for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; c++) {
            if (catalog->chunks[c].flags & CHUNK_UNRESOLVED)
                return false;
        }
    }
    return true;
}

static reshard_status reading_files(const reshard_checkpoint *checkpoint, struct engine_source *out, reshard_error *err)
{
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    *out = checkpoint_engine_source(handle->opened);
    reshard_status status = handle->files ? RESHARD_OK : engine_files_new(out, &handle->files, err);
    out->files = handle->files;
    checkpoint_unlock(handle);
    return status;
}

reshard_status reading_begin(const reshard_checkpoint *checkpoint, const uint32_t *tensors, uint32_t count, struct engine_source *out,
                             reshard_error *err)
{
    pthread_rwlock_t *places = (pthread_rwlock_t *)(uintptr_t)&checkpoint->places;
    reshard_status status = preview_refuse(checkpoint_source(checkpoint), err);
    if (!status)
        status = reading_files(checkpoint, out, err);
    if (status)
        return status;
    places_hold(checkpoint);
    if (tensors_are_placed(checkpoint_catalog(checkpoint), tensors, count))
        return RESHARD_OK;
    places_leave(checkpoint);
    pthread_rwlock_wrlock(places);
    work_renew(&checkpoint_source(checkpoint)->work);
    status = source_resolve(checkpoint_source(checkpoint), tensors, count, err);
    places_leave(checkpoint);
    if (!status)
        places_hold(checkpoint);
    return status;
}

void reading_end(const reshard_checkpoint *checkpoint)
{
    places_leave(checkpoint);
}

static reshard_status read_box(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                               const reshard_run_options *run, engine_sink sink, void *context, reshard_error *err)
{
    uint32_t tensor_index;
    struct run_call running;
    struct engine_source source;
    reshard_status status = run_options_read(run, &running, err);
    if (!status)
        status = box_of_request(checkpoint, tensor, start, extent, &tensor_index, err);
    if (!status)
        status = reading_begin(checkpoint, &tensor_index, 1, &source, err);
    if (status)
        return status;
    RUN_WAITS(&running);
    status = engine_stream(&source, &tensor_index, 1, start, extent, &running.engine, sink, context, err);
    reading_end(checkpoint);
    return status;
}

struct read_context {
    reshard_sink sink;
    void *context;
};

static reshard_status read_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    const struct read_context *read = context;
    (void)tensor, (void)offset, (void)is_last;
    reshard_status status = size ? callback_status(read->sink(bytes, size, read->context)) : RESHARD_OK;
    return status ? error_set(err, status, "stopped by the receiver") : RESHARD_OK;
}

API_EXPORT reshard_status reshard_read(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                                       const reshard_run_options *run, reshard_sink sink, void *context, reshard_error *err)
{
    struct read_context read = { sink, context };
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    NEEDS(sink, err);
    return read_box(checkpoint, tensor, start, extent, run, read_sink, &read, err);
}

struct into_context {
    uint8_t *out;
    size_t size, used;
};

static reshard_status refuse_room(const struct into_context *into, uint64_t bytes, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_USAGE, "room for %zu bytes, the box has %s%llu", into->size, bytes > into->size ? "at least " : "",
                     (unsigned long long)bytes);
}

static reshard_status into_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    struct into_context *into = context;
    (void)tensor, (void)offset, (void)is_last;
    if (size > into->size - into->used)
        return refuse_room(into, (uint64_t)into->used + size, err);
    if (size)
        memcpy(into->out + into->used, bytes, size);
    into->used += size;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_read_into(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start,
                                            const int64_t *extent, const reshard_run_options *run, void *out, size_t size,
                                            reshard_error *err)
{
    struct into_context into = { .out = out, .size = size };
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    if (size)
        NEEDS(out, err);
    reshard_status status = read_box(checkpoint, tensor, start, extent, run, into_sink, &into, err);
    return !status && into.used != size ? refuse_room(&into, into.used, err) : status;
}

/* ---- many boxes ---- */

static reshard_status read_dtype(const struct catalog_tensor *tensor, const char *name, enum dtype *out, reshard_error *err)
{
    *out = tensor->dtype;
    if (name && !dtype_from_name(str_of(name), out))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': unknown dtype '%s'", STR_ARG(tensor->key), name);
    return RESHARD_OK;
}

static reshard_status boxes_of_list(const reshard_checkpoint *checkpoint, const reshard_box *given, uint32_t count,
                                    struct engine_box *boxes, uint32_t *tensors, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        const reshard_box *box = &given[i];
        boxes[i] = (struct engine_box){
            .start = box->start, .extent = box->extent, .strides = box->strides, .out = box->out, .bytes = box->size
        };
        status = box_of_request(checkpoint, box->tensor, box->start, box->extent, &tensors[i], err);
        boxes[i].tensor = tensors[i];
        if (!status)
            status = read_dtype(&checkpoint_catalog(checkpoint)->tensors[tensors[i]], box->dtype, &boxes[i].dtype, err);
        if (!status && box->size && !box->out)
            status = error_set(err, RESHARD_ERR_USAGE, "%zu bytes of memory at NULL", box->size);
        if (status)
            error_prefix(err, "box %" PRIu32, i);
    }
    return status;
}

static reshard_status list_read(const reshard_checkpoint *checkpoint, const reshard_box_list *list, const reshard_box *given,
                                const struct engine_options *options, reshard_error *err)
{
    struct engine_source source;
    uint32_t count = (uint32_t)list->box_count;
    struct engine_box *boxes = array_zeroed(count, sizeof(*boxes));
    uint32_t *tensors = array_zeroed(count, sizeof(*tensors));
    reshard_status status =
        boxes && tensors ? boxes_of_list(checkpoint, given, count, boxes, tensors, err) : error_set_memory(err);
    if (!status)
        status = reading_begin(checkpoint, tensors, count, &source, err);
    if (!status) {
        status = engine_read_boxes(&source, boxes, count, options, err);
        reading_end(checkpoint);
    }
    for (uint32_t i = 0; boxes && list->is_done && i < count; i++)
        list->is_done[i] = boxes[i].is_done;
    free(boxes);
    free(tensors);
    return status;
}

API_EXPORT reshard_status reshard_read_many(const reshard_checkpoint *checkpoint, const reshard_box_list *list,
                                            const reshard_run_options *run, reshard_error *err)
{
    struct run_call running;
    reshard_box_list taken;
    void *boxes = NULL;
    ERROR_SCOPE(err);
    NEEDS(list, err);
    reshard_status status = struct_take(&taken, sizeof(taken), list, "reshard_box_list", err);
    if (!status && taken.box_count >= UINT32_MAX)
        status = error_set(err, RESHARD_ERR_LIMIT, "%zu boxes in one list", taken.box_count);
    if (status)
        return status;
    if (taken.is_done)
        memset(taken.is_done, 0, taken.box_count);
    NEEDS(checkpoint, err);
    status = run_options_read(run, &running, err);
    if (status)
        return status;
    RUN_WAITS(&running);
    status = array_take(taken.boxes, taken.box_count, taken.box_stride, sizeof(reshard_box), "reshard_box", &boxes, err);
    if (!status)
        status = list_read(checkpoint, &taken, boxes, &running.engine, err);
    free(boxes);
    return status;
}

API_EXPORT reshard_status reshard_npy_header(const reshard_checkpoint *checkpoint, size_t tensor_index, const int64_t *extent,
                                             void **header, size_t *size, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(header, err);
    *header = NULL;
    NEEDS(size, err);
    *size = 0;
    NEEDS(checkpoint, err);
    reshard_status status = tensor_number(checkpoint, tensor_index, err);
    if (status)
        return status;
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, tensor_index)];
    struct buffer out = { 0 };
    bool is_substitute;
    places_hold(checkpoint);
    const int64_t *shape = extent ? extent : catalog_vector_at(catalog, tensor->shape);
    places_leave(checkpoint); /* numbers stay where they are */
    static const int64_t origin[RANK_MAX];
    int bad_axis;
    if (!box_check(tensor->rank, origin, shape, catalog_vector_at(catalog, tensor->shape), &bad_axis))
        return error_set(err, RESHARD_ERR_USAGE, "the extent %" PRId64 " leaves tensor '%.*s' on axis %d", shape[bad_axis],
                         STR_ARG(tensor->key), bad_axis);
    status = npy_write_header(tensor->dtype, tensor->rank, shape, &is_substitute, &out, err);
    if (status) {
        buffer_release(&out);
        return status;
    }
    *header = out.data;
    *size = out.size;
    return RESHARD_OK;
}

/* ---- digests ---- */

static reshard_status hash_run(reshard_checkpoint *checkpoint, enum digest_kind kind, struct team *team,
                               const struct engine_options *engine, reshard_hash_sink sink, void *context, reshard_error *err)
{
    const size_t *order;
    const struct checkpoint *opened = checkpoint->opened;
    reshard_status status = reshard_tensor_order(checkpoint, &order, err);
    if (status)
        return team_finish(team, status, err);
    char(*hex)[DIGEST_HEX_MAX] = array_zeroed((size_t)checkpoint_catalog(checkpoint)->tensor_count, sizeof(*hex));
    status = hex ? tensor_digests_shared(team, checkpoint->opened, kind, opened->listed, opened->listed_count, engine, hex, err)
                 : error_set_memory(err);
    status = team_finish(team, status, err);
    for (uint32_t i = 0; !status && i < opened->listed_count; i++) {
        status = callback_status(sink(order[i], hex[checkpoint_listed(checkpoint, order[i])], context));
        if (status)
            error_set(err, status, "stopped by the receiver");
    }
    free(hex);
    return status;
}

API_EXPORT reshard_status reshard_hash(reshard_checkpoint *checkpoint, const char *digest, const reshard_run_options *run,
                                       reshard_hash_sink sink, void *context, reshard_error *err)
{
    enum digest_kind kind;
    struct run_call running;
    struct team *team;
    ERROR_SCOPE(err);
    reshard_status status = run_options_read_team(run, __func__, &running, &team, err);
    if (!status && (!checkpoint || !digest || !sink))
        status = argument_missing(__func__, !checkpoint ? "checkpoint" : !digest ? "digest" : "sink", err);
    if (!status && !digest_from_name(str_of(digest), &kind))
        status = error_set(err, RESHARD_ERR_USAGE, "unknown digest '%s': sha256, xxh3, crc32c or md5", digest);
    if (status)
        return team_finish(team, status, err);
    RUN_WAITS(&running);
    work_renew(&checkpoint_source(checkpoint)->work);
    return hash_run(checkpoint, kind, team, &running.engine, sink, context, err);
}
