/* SPDX-License-Identifier: Apache-2.0 */
#include "api/saver_request.h"

#include <stdlib.h>

#include "api/handle.h"
#include "api/options_pack.h"
#include "api/sharded_handle.h"
#include "base/checked.h"
#include "convert/sidecar.h"
#include "parallel/shard_pack.h"

#define REQUEST_MAGIC UINT64_C(0x3445564153485352) /* RSHSAVE4 */

reshard_status saver_request_check(const struct saver_request *request, reshard_error *err)
{
    const reshard_convert_options *options = request->options;
    const char *excluded = options_pack_excluded(options);
    const char *what = excluded                   ? excluded
                       : options->resume          ? "resume"
                       : options->part_count      ? "part_count"
                       : options->part_words.size ? "part_words"
                                                  : NULL;
    if (what)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.%s is not for saves in the background", what);
    if (request->run->progress)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_run_options.progress is not for saves in the background");
    return options->checksum ? sidecar_digest_check(options->checksum, err) : RESHARD_OK;
}

size_t saver_request_count(const struct saver_request *request)
{
    return request->sharded ? request->sharded->tensor_count : request->shards->count;
}

const struct shard *saver_request_shard(const struct saver_request *request, size_t index)
{
    return request->sharded ? &request->sharded->tensors[index].shard : &request->shards->shards[index];
}

/* ---- writing ---- */

static reshard_status request_put_options(const struct saver_request *request, struct buffer *out, reshard_error *err)
{
    reshard_status status = packed_put_path(out, request->path, err);
    packed_put_text(out, request->name);
    if (!status)
        status = options_pack(request->options, out, err);
    packed_put_text(out, request->run->io);
    buffer_append_u64le(out, request->run->memory_bytes);
    buffer_append_u64le(out, request->run->threads);
    return status;
}

static bool request_put_sharded(struct buffer *out, const struct sharded_dict *sharded, const uint64_t *offsets)
{
    struct buffer packed = { 0 };
    const bool is_packed = sharded_pack(sharded, true, &packed);
    packed_put_block(out, packed.data, packed.size);
    for (size_t i = 0; i < sharded->tensor_count; i++)
        buffer_append_u64le(out, offsets[i]);
    out->failed |= !is_packed;
    buffer_release(&packed);
    return !out->failed;
}

reshard_status saver_request_write(const struct saver_request *request, const uint64_t *offsets, struct buffer *out, reshard_error *err)
{
    buffer_append_u64le(out, REQUEST_MAGIC);
    reshard_status status = request_put_options(request, out, err);
    if (status)
        return status;
    buffer_append_byte(out, request->sharded != NULL);
    if (request->sharded && !request_put_sharded(out, request->sharded, offsets))
        return buffer_error(out, err);
    buffer_append_u64le(out, request->shards ? request->shards->count : 0);
    for (size_t i = 0; request->shards && i < request->shards->count; i++) {
        shard_pack(&request->shards->shards[i], false, out);
        buffer_append_u64le(out, offsets[i]);
    }
    status = items_pack(request->items, request->item_count, request->values, out, err);
    return status || !out->failed ? status : buffer_error(out, err);
}

/* ---- reading ---- */

struct request_reading {
    struct cursor cursor;
    const uint8_t *values;
    uint64_t values_size;
    struct saver_work *work;
};

static reshard_status request_damaged(const struct request_reading *reading, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "a save's request is damaged at byte %zu", reading->cursor.pos);
}

static reshard_status request_take_options(struct request_reading *reading, reshard_error *err)
{
    struct cursor *cursor = &reading->cursor;
    struct saver_work *work = reading->work;
    uint64_t magic;
    if (!cursor_u64le(cursor, &magic) || magic != REQUEST_MAGIC || !packed_take_text(cursor, &work->path) || !work->path ||
        !packed_take_text(cursor, &work->name))
        return request_damaged(reading, err);
    reshard_status status = options_unpack(cursor, &work->arena, &work->options, err);
    if (status)
        return status;
    bool is_good = packed_take_text(cursor, &work->run.io) && cursor_u64le(cursor, &work->run.memory_bytes) &&
                   cursor_u64le(cursor, &work->run.threads);
    return is_good ? RESHARD_OK : request_damaged(reading, err);
}

/* The copy of a shard's values is row-major. */
static reshard_status request_place_values(const struct request_reading *reading, struct shard *shard, uint64_t offset, reshard_error *err)
{
    uint64_t bytes;
    shard->strides = NULL;
    if (!shard_bytes(shard, &bytes) || offset > reading->values_size || bytes > reading->values_size - offset)
        return error_set(err, RESHARD_ERR_FORMAT, "a save's request: the values of '%.*s' lie outside of their memory",
                         STR_ARG(shard->key));
    shard->data = (uint8_t *)(uintptr_t)reading->values + offset;
    return RESHARD_OK;
}

static reshard_status request_take_sharded(struct request_reading *reading, reshard_error *err)
{
    struct cursor *cursor = &reading->cursor;
    struct str packed;
    uint64_t offset;
    if (!packed_take_block(cursor, &packed))
        return request_damaged(reading, err);
    reshard_status status = reshard_sharded_new(&reading->work->sharded, err);
    if (!status)
        status = sharded_unpack(packed.data, packed.size, &reading->work->sharded->dict, err);
    for (size_t i = 0; !status && i < reading->work->sharded->dict.tensor_count; i++) {
        struct shard *shard = &reading->work->sharded->dict.tensors[i].shard;
        if (!cursor_u64le(cursor, &offset))
            return request_damaged(reading, err);
        if (shard->is_elsewhere)
            status = request_place_values(reading, shard, offset, err);
        shard->is_elsewhere = false;
    }
    return status;
}

static reshard_status request_take_shard(struct request_reading *reading, reshard_error *err)
{
    struct cursor *cursor = &reading->cursor;
    struct shard_room room;
    struct shard shard;
    uint64_t offset;
    if (!shard_unpack(cursor, &room, &shard) || !cursor_u64le(cursor, &offset))
        return request_damaged(reading, err);
    shard.is_elsewhere = false;
    reshard_status status = shard_check(&shard, err);
    if (!status)
        status = request_place_values(reading, &shard, offset, err);
    return status ? status : shard_list_add(&reading->work->shards->list, &shard, err);
}

static reshard_status request_take_items(struct request_reading *reading, reshard_error *err)
{
    reshard_status status = items_unpack(&reading->cursor, &reading->work->arena, &reading->work->items, err);
    if (!status && cursor_left(&reading->cursor))
        return error_set(err, RESHARD_ERR_FORMAT, "a save's request has %zu bytes too many", cursor_left(&reading->cursor));
    return status;
}

static reshard_status request_read(struct request_reading *reading, reshard_error *err)
{
    uint64_t count = 0;
    uint8_t is_sharded = 0;
    reshard_status status = request_take_options(reading, err);
    if (!status && !cursor_u8(&reading->cursor, &is_sharded))
        status = request_damaged(reading, err);
    if (!status && is_sharded)
        status = request_take_sharded(reading, err);
    if (!status && !cursor_u64le(&reading->cursor, &count))
        status = request_damaged(reading, err);
    if (!status)
        status = reshard_shards_new(&reading->work->shards, err);
    for (uint64_t i = 0; i < count && !status; i++)
        status = request_take_shard(reading, err);
    return status ? status : request_take_items(reading, err);
}

reshard_status saver_work_read(const uint8_t *bytes, size_t size, const uint8_t *values, uint64_t values_size, struct saver_work *out,
                               reshard_error *err)
{
    struct request_reading reading = { .cursor = cursor_over(bytes, size), .values = values, .values_size = values_size, .work = out };
    reshard_state state = RESHARD_STATE_INIT;
    *out = (struct saver_work){ .options = RESHARD_CONVERT_OPTIONS_INIT, .run = RESHARD_RUN_OPTIONS_INIT };
    reshard_status status = request_read(&reading, err);
    state.shards = out->shards;
    state.items = out->items.texts;
    state.item_count = out->items.text_count;
    state.values = &out->items.values;
    state.name = out->name;
    return status || out->sharded ? status : reshard_open_shards(&state, NULL, &out->live, err);
}

void saver_work_release(struct saver_work *work)
{
    reshard_close(work->live);
    reshard_sharded_free(work->sharded);
    reshard_shards_free(work->shards);
    packed_items_release(&work->items);
    arena_release(&work->arena);
    *work = (struct saver_work){ .path = NULL };
}

reshard_status saver_request_run(const uint8_t *bytes, size_t size, const uint8_t *values, uint64_t values_size, reshard_comm *comm,
                                 reshard_error *err)
{
    struct saver_work work;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_status status = saver_work_read(bytes, size, values, values_size, &work, err);
    options.convert = &work.options;
    options.name = work.name;
    if (!status && work.sharded)
        status = reshard_save(comm, work.path, work.sharded, &options, &work.run, err);
    else if (!status)
        status = reshard_convert(work.live, work.path, &work.options, &work.run, NULL, err);
    saver_work_release(&work);
    return status;
}
