/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards: blocks whose inner blocks lie one after the other in any order, with an index of (offset, bytes) for each inner block in
 * row-major order of the encoded axes, at the end of the shard or at its start. Both numbers all ones: the inner block holds the fill
 * value.
 */
#include <inttypes.h>

#include "base/checked.h"
#include "base/crc32.h"
#include "base/cursor.h"
#include "base/work.h"
#include "formats/zarr/zarr_read.h"

#define ENTRY_BYTES 16
#define CRC_BYTES 4
#define INNER_WORK 256 /* what a chunk of the catalog takes, and finding its place */

struct shard {
    const struct zarr_level *level;
    int64_t counts[RANK_MAX]; /* inner blocks along the encoded axes */
    int64_t count;
    uint64_t bytes;           /* of the shard, decoded if it is coded */
    uint64_t index_offset, index_bytes;
    struct buffer index;
    struct chain_step prefix[CHAIN_STEPS_MAX]; /* what decodes the whole shard */
    uint32_t prefix_count;
};

static reshard_status shard_measure(struct zarr_adding *adding, const struct zarr_block *block, struct shard *shard, reshard_error *err)
{
    uint64_t entries;
    shard->count = 1;
    for (int i = 0; i < adding->array->rank; i++) {
        shard->counts[i] = block->extent[block->axis[shard->level->order[i]]] / shard->level->inner[i];
        shard->count *= shard->counts[i]; /* no more than the shard has elements */
    }
    if (!checked_mul_u64((uint64_t)shard->count, ENTRY_BYTES, &entries) || entries > adding->reading->source->limits.metadata_bytes)
        return error_set_limit(err, "metadata_bytes", entries, adding->reading->source->limits.metadata_bytes);
    shard->index_bytes = entries + (shard->level->index_has_crc ? CRC_BYTES : 0);
    return RESHARD_OK;
}

/* Decodes a shard that is coded as a whole, to see its index. Its blocks will decode it again. */
static reshard_status shard_decode(struct zarr_adding *adding, const struct zarr_block *block, struct shard *shard, struct buffer *out,
                                   reshard_error *err)
{
    struct source *source = adding->reading->source;
    struct store_object *object = NULL;
    struct buffer coded = { 0 };
    uint64_t limit = source->limits.chunk_bytes, most;
    if (!checked_mul_u64((uint64_t)box_volume(adding->array->rank, block->extent), 2 * (uint64_t)dtype_element_bytes(adding->array->dtype),
                         &most) ||
        !checked_add_u64(most, (uint64_t)shard->count * 1024 + ((uint64_t)1 << 20), &most) || most > limit)
        most = limit;
    if (block->bytes > limit)
        return error_set_limit(err, "chunk_bytes", block->bytes, limit);
    reshard_status status = store_open_object(source->store, source->catalog->objects[block->object].name.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = reader_append(&reader, block->offset, block->bytes, &coded, err);
    work_add_input(source->limits.budget, coded.size);
    uint64_t left = work_left(source->limits.budget, most);
    if (!status)
        status = chain_decode_bounded(shard->prefix, shard->prefix_count, coded.data ? (const void *)coded.data : "", coded.size, left,
                                      &adding->reading->scratch, out, err);
    if (!status || (status == RESHARD_ERR_FORMAT && left < most)) {
        reshard_status spent = work_spend(source->limits.budget, status ? most : out->size, err);
        status = spent ? spent : status;
    }
    buffer_release(&coded);
    store_object_close(object);
    return status;
}

static reshard_status index_from_file(struct zarr_adding *adding, const struct zarr_block *block, struct shard *shard, reshard_error *err)
{
    struct source *source = adding->reading->source;
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, source->catalog->objects[block->object].name.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = reader_append(&reader, block->offset + shard->index_offset, shard->index_bytes, &shard->index, err);
    store_object_close(object);
    return status;
}

static reshard_status index_read(struct zarr_adding *adding, const struct zarr_block *block, struct shard *shard, reshard_error *err)
{
    struct buffer decoded = { 0 };
    reshard_status status = RESHARD_OK;
    shard->bytes = block->bytes;
    if (shard->prefix_count) {
        status = shard_decode(adding, block, shard, &decoded, err);
        shard->bytes = decoded.size;
    }
    if (!status && shard->bytes < shard->index_bytes)
        status = error_set(err, RESHARD_ERR_FORMAT, "shard of %" PRIu64 " bytes, its index alone has %" PRIu64, shard->bytes,
                           shard->index_bytes);
    shard->index_offset = shard->level->index_at_start ? 0 : shard->bytes - shard->index_bytes;
    if (!status && shard->prefix_count)
        status = buffer_append(&shard->index, decoded.data + shard->index_offset, (size_t)shard->index_bytes) ? RESHARD_OK
                                                                                                              : error_set_memory(err);
    else if (!status)
        status = index_from_file(adding, block, shard, err);
    buffer_release(&decoded);
    if (status || !shard->level->index_has_crc)
        return status;
    size_t size = shard->index.size - CRC_BYTES;
    uint32_t found = crc32c(0, shard->index.data, size), stored = (uint32_t)load_le(shard->index.data + size, CRC_BYTES);
    if (found == stored)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_FORMAT, block->offset + shard->index_offset,
                        "shard index: crc32c is %08" PRIx32 ", stored %08" PRIx32, found, stored);
}

static uint64_t index_number(const struct shard *shard, uint64_t at)
{
    uint64_t number = load_le(shard->index.data + 8 * at, 8);
    return shard->level->index_is_big ? __builtin_bswap64(number) : number;
}

/* Makes *inner the place of inner block `number`: its box and, unless it is not stored, its bytes. */
static reshard_status inner_find(const struct shard *shard, const struct zarr_block *block, int rank, int64_t number,
                                 struct zarr_block *inner, bool *is_stored, reshard_error *err)
{
    uint64_t offset = index_number(shard, 2 * (uint64_t)number), bytes = index_number(shard, 2 * (uint64_t)number + 1);
    uint64_t begin = shard->level->index_at_start ? shard->index_bytes : 0;
    uint64_t end = shard->level->index_at_start ? shard->bytes : shard->index_offset;
    int64_t rest = number;
    for (int i = rank - 1; i >= 0; i--) {
        int axis = block->axis[shard->level->order[i]];
        inner->start[axis] = block->start[axis] + rest % shard->counts[i] * shard->level->inner[i];
        inner->extent[axis] = shard->level->inner[i];
        inner->axis[i] = (uint8_t)axis;
        rest /= shard->counts[i];
    }
    *is_stored = offset != UINT64_MAX || bytes != UINT64_MAX;
    if (!*is_stored)
        return RESHARD_OK;
    if (offset < begin || !range_fits(offset, bytes, end))
        return error_set_at(err, RESHARD_ERR_FORMAT, block->offset + shard->index_offset,
                            "shard index: inner chunk %" PRId64 " has %" PRIu64 " bytes at %" PRIu64 ", beyond the shard's [%" PRIu64
                            ", %" PRIu64 ")",
                            number, bytes, offset, begin, end);
    inner->offset = offset;
    inner->bytes = bytes;
    return RESHARD_OK;
}

/* Inner bytes lie in the file, or in what the whole shard decodes to. */
static reshard_status inner_anchor(const struct shard *shard, const struct zarr_block *block, struct zarr_block *inner, reshard_error *err)
{
    inner->object = block->object;
    if (!shard->prefix_count) {
        inner->offset += block->offset;
        return RESHARD_OK;
    }
    if (shard->prefix_count >= CHAIN_STEPS_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d codecs", CHAIN_STEPS_MAX);
    memcpy(inner->prefix, shard->prefix, shard->prefix_count * sizeof(*inner->prefix));
    inner->prefix[shard->prefix_count] = (struct chain_step){
        .kind = CHAIN_SLICE, .slice_offset = inner->offset, .slice_bytes = inner->bytes, .slice_within = shard->bytes
    };
    inner->prefix_count = shard->prefix_count + 1;
    inner->offset = block->offset;
    inner->bytes = block->bytes;
    return RESHARD_OK;
}

static bool is_beyond(const struct zarr_array *array, const struct zarr_block *block)
{
    for (int axis = 0; axis < array->rank; axis++)
        if (block->start[axis] >= array->shape[axis])
            return true;
    return false;
}

static reshard_status inners_add(struct zarr_adding *adding, const struct zarr_block *block, const struct shard *shard, reshard_error *err)
{
    for (int64_t number = 0; number < shard->count; number++) {
        struct zarr_block inner = { .level = block->level + 1 };
        bool is_stored;
        reshard_status status = inner_find(shard, block, adding->array->rank, number, &inner, &is_stored, err);
        if (!status && shard->prefix_count) /* else each has its entry in the file */
            status = work_spend(adding->reading->source->limits.budget, INNER_WORK, err);
        if (status)
            return status;
        if (is_beyond(adding->array, &inner))
            continue;
        if (is_stored) {
            status = inner_anchor(shard, block, &inner, err);
            if (!status)
                status = zarr_block_add(adding, &inner, err);
        } else {
            status = zarr_fill_add(adding, inner.start, inner.extent, err);
        }
        if (status) {
            error_prefix(err, "inner chunk %" PRId64, number);
            return status;
        }
    }
    return RESHARD_OK;
}

reshard_status zarr_shard_add(struct zarr_adding *adding, const struct zarr_block *block, reshard_error *err)
{
    struct shard shard = { .level = &adding->array->levels[block->level], .prefix_count = block->prefix_count };
    if (block->prefix_count + shard.level->step_count > CHAIN_STEPS_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d codecs", CHAIN_STEPS_MAX);
    memcpy(shard.prefix, block->prefix, block->prefix_count * sizeof(*shard.prefix));
    memcpy(shard.prefix + block->prefix_count, shard.level->steps, shard.level->step_count * sizeof(*shard.prefix));
    shard.prefix_count += shard.level->step_count;
    reshard_status status = shard_measure(adding, block, &shard, err);
    if (!status)
        status = index_read(adding, block, &shard, err);
    if (!status)
        status = inners_add(adding, block, &shard, err);
    buffer_release(&shard.index);
    return status;
}
