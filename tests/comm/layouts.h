/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random layouts of a few tensors over ranks, and the naive model that they are held against: whole tensors, whose every element says what
 * it is. Sources tile each tensor with boxes or flat ranges, some of them on several ranks; targets are any boxes and ranges, with strides
 * or without, of the same type or another.
 */
#ifndef TESTS_COMM_LAYOUTS_H
#define TESTS_COMM_LAYOUTS_H

#include "check.h"

#include "reshard/comm.h"

#define LAYOUT_RANKS_MAX 8
#define LAYOUT_TENSORS_MAX 4
#define LAYOUT_AXES_MAX 4
#define LAYOUT_SHARDS_MAX 48

struct layout_tensor {
    char key[16];
    size_t rank;
    int64_t shape[LAYOUT_AXES_MAX], volume;
};

struct layout_shard {
    int tensor, owner, is_wide; /* wide: F32 in place of BF16 */
    int64_t start[LAYOUT_AXES_MAX], extent[LAYOUT_AXES_MAX], strides[LAYOUT_AXES_MAX];
    int is_flat, is_strided;
    int64_t begin, end;
};

struct layouts {
    uint64_t seed;
    int ranks, tensor_count, source_count, target_count;
    struct layout_tensor tensors[LAYOUT_TENSORS_MAX];
    struct layout_shard sources[LAYOUT_SHARDS_MAX * 3], targets[LAYOUT_SHARDS_MAX];
};

static inline int64_t layout_choose(struct layouts *layouts, int64_t count)
{
    return (int64_t)(test_random(&layouts->seed) % (uint64_t)count);
}

static inline int64_t layout_volume(const struct layout_tensor *tensor, const int64_t *extent)
{
    int64_t volume = 1;
    for (size_t i = 0; i < tensor->rank; i++)
        volume *= extent[i];
    return volume;
}

/* The BF16 bits of an element: never a NaN. */
static inline uint16_t layout_value(int tensor, int64_t element)
{
    uint64_t seed = (uint64_t)tensor << 40 | (uint64_t)element;
    return (uint16_t)(test_random(&seed) & 0x3FFF);
}

static inline void layout_strides(struct layouts *layouts, struct layout_shard *shard)
{
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    int64_t stride = 1 + layout_choose(layouts, 2);
    shard->is_strided = !shard->is_flat && tensor->rank && layout_choose(layouts, 3) == 0;
    for (size_t i = tensor->rank; i-- > 0;) {
        shard->strides[i] = stride;
        stride *= shard->extent[i] + layout_choose(layouts, 2);
    }
}

/* Adds the shard on one to three ranks. */
static inline void layout_add_source(struct layouts *layouts, const struct layout_shard *piece)
{
    uint32_t owners = 0;
    for (int64_t copies = layout_choose(layouts, 3) ? 1 : 1 + layout_choose(layouts, 3); copies > 0; copies--) {
        int owner = (int)layout_choose(layouts, layouts->ranks);
        if (owners >> owner & 1 || layouts->source_count == LAYOUT_SHARDS_MAX * 3)
            continue;
        owners |= 1u << owner;
        struct layout_shard *shard = &layouts->sources[layouts->source_count++];
        *shard = *piece;
        shard->owner = owner;
        layout_strides(layouts, shard);
    }
}

static inline void layout_tile(struct layouts *layouts, const struct layout_shard *box, int depth)
{
    const struct layout_tensor *tensor = &layouts->tensors[box->tensor];
    size_t axis = tensor->rank ? (size_t)layout_choose(layouts, (int64_t)tensor->rank) : 0;
    if (!tensor->rank || depth == 0 || box->extent[axis] < 2 || layout_choose(layouts, 4) == 0) {
        layout_add_source(layouts, box);
        return;
    }
    struct layout_shard parts[2] = { *box, *box };
    parts[0].extent[axis] = 1 + layout_choose(layouts, box->extent[axis] - 1);
    parts[1].start[axis] += parts[0].extent[axis];
    parts[1].extent[axis] -= parts[0].extent[axis];
    layout_tile(layouts, &parts[0], depth - 1);
    layout_tile(layouts, &parts[1], depth - 1);
}

static inline void layout_tile_flat(struct layouts *layouts, const struct layout_shard *whole)
{
    struct layout_shard piece = *whole;
    int64_t volume = layouts->tensors[whole->tensor].volume;
    piece.is_flat = 1;
    for (piece.begin = 0; piece.begin < volume; piece.begin = piece.end) {
        piece.end = piece.begin + 1 + layout_choose(layouts, volume - piece.begin);
        layout_add_source(layouts, &piece);
    }
}

static inline void layout_add_target(struct layouts *layouts)
{
    struct layout_shard *shard = &layouts->targets[layouts->target_count++];
    *shard = (struct layout_shard){ .tensor = (int)layout_choose(layouts, layouts->tensor_count),
                                    .owner = (int)layout_choose(layouts, layouts->ranks),
                                    .is_wide = layout_choose(layouts, 4) == 0 };
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    for (size_t i = 0; i < tensor->rank; i++) {
        shard->start[i] = layout_choose(layouts, tensor->shape[i]);
        shard->extent[i] = 1 + layout_choose(layouts, tensor->shape[i] - shard->start[i]);
    }
    shard->is_flat = layout_choose(layouts, 4) == 0;
    shard->begin = shard->is_flat ? layout_choose(layouts, layout_volume(tensor, shard->extent)) : 0;
    if (shard->is_flat)
        shard->end = shard->begin + 1 + layout_choose(layouts, layout_volume(tensor, shard->extent) - shard->begin);
    layout_strides(layouts, shard);
}

static inline void layouts_make(struct layouts *layouts, uint64_t seed, int ranks)
{
    memset(layouts, 0, sizeof(*layouts));
    layouts->seed = seed;
    layouts->ranks = ranks;
    layouts->tensor_count = 1 + (int)layout_choose(layouts, LAYOUT_TENSORS_MAX);
    for (int t = 0; t < layouts->tensor_count; t++) {
        struct layout_tensor *tensor = &layouts->tensors[t];
        struct layout_shard whole = { .tensor = t };
        snprintf(tensor->key, sizeof(tensor->key), "tensor.%d", t);
        tensor->rank = (size_t)layout_choose(layouts, LAYOUT_AXES_MAX + 1);
        for (size_t i = 0; i < tensor->rank; i++)
            whole.extent[i] = tensor->shape[i] = 1 + layout_choose(layouts, 7);
        tensor->volume = layout_volume(tensor, tensor->shape);
        if (layout_choose(layouts, 3) == 0)
            layout_tile_flat(layouts, &whole);
        else
            layout_tile(layouts, &whole, 3);
    }
    for (int64_t count = layout_choose(layouts, 20); count > 0; count--)
        layout_add_target(layouts);
}

static inline size_t layout_bytes(const struct layout_shard *shard)
{
    return shard->is_wide ? 4 : 2;
}

/* Elements of memory that the shard spans. */
static inline int64_t layout_span(const struct layouts *layouts, const struct layout_shard *shard)
{
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    int64_t span = 1;
    if (shard->is_flat)
        return shard->end - shard->begin;
    if (!shard->is_strided)
        return layout_volume(tensor, shard->extent);
    for (size_t i = 0; i < tensor->rank; i++)
        span += (shard->extent[i] - 1) * shard->strides[i];
    return span;
}

/* Element number `local` of the shard's box: which of the whole it is, and its place in memory; -1 if it is not in the shard's range. */
static inline int64_t layout_element(const struct layouts *layouts, const struct layout_shard *shard, int64_t local, int64_t *place)
{
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    int64_t whole = 0, left = local, stride = 1;
    *place = shard->is_strided ? 0 : local - shard->begin;
    for (size_t i = tensor->rank; i-- > 0;) {
        int64_t index = left % shard->extent[i];
        left /= shard->extent[i];
        whole += (shard->start[i] + index) * stride;
        stride *= tensor->shape[i];
        *place += shard->is_strided ? index * shard->strides[i] : 0;
    }
    return shard->is_flat && (local < shard->begin || local >= shard->end) ? -1 : whole;
}

static inline reshard_shard layout_public(const struct layouts *layouts, const struct layout_shard *shard, void *data)
{
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    reshard_shard made = RESHARD_SHARD_INIT;
    made.key = (reshard_str){ tensor->key, strlen(tensor->key) };
    made.dtype = shard->is_wide ? "F32" : "BF16";
    made.rank = tensor->rank;
    made.global_shape = tensor->shape;
    made.start = shard->start;
    made.extent = shard->extent;
    made.is_flattened = shard->is_flat;
    made.flat_begin = shard->begin;
    made.flat_end = shard->end;
    made.data = data;
    made.strides = shard->is_strided ? shard->strides : NULL;
    return made;
}

/* Writes the values that a shard should have over what is in memory. */
static inline void layout_fill(const struct layouts *layouts, const struct layout_shard *shard, uint8_t *memory)
{
    const struct layout_tensor *tensor = &layouts->tensors[shard->tensor];
    for (int64_t i = 0; i < layout_volume(tensor, shard->extent); i++) {
        int64_t place, whole = layout_element(layouts, shard, i, &place);
        if (whole < 0)
            continue;
        uint16_t value = layout_value(shard->tensor, whole);
        uint32_t wide = (uint32_t)value << 16;
        memcpy(memory + (size_t)place * layout_bytes(shard), shard->is_wide ? (void *)&wide : (void *)&value, layout_bytes(shard));
    }
}

/* Bytes that have to move: of target elements that their rank does not have. */
static inline uint64_t layouts_minimum(const struct layouts *layouts)
{
    static uint8_t has[LAYOUT_AXES_MAX * 7 * 7 * 7 * 7];
    uint64_t bytes = 0;
    for (int t = 0; t < layouts->target_count; t++) {
        const struct layout_shard *target = &layouts->targets[t];
        int64_t place;
        memset(has, 0, sizeof(has));
        for (int s = 0; s < layouts->source_count; s++) {
            const struct layout_shard *source = &layouts->sources[s];
            if (source->owner != target->owner || source->tensor != target->tensor)
                continue;
            for (int64_t i = 0; i < layout_volume(&layouts->tensors[source->tensor], source->extent); i++) {
                int64_t whole = layout_element(layouts, source, i, &place);
                if (whole >= 0)
                    has[whole] = 1;
            }
        }
        for (int64_t i = 0; i < layout_volume(&layouts->tensors[target->tensor], target->extent); i++) {
            int64_t whole = layout_element(layouts, target, i, &place);
            bytes += whole >= 0 && !has[whole] ? layout_bytes(target) : 0;
        }
    }
    return bytes;
}

/* What one rank holds of the layouts, in memory. */
struct layout_rank {
    reshard_shards *source, *target;
    reshard_comm *comm; /* two of three shards lie in memory of it; NULL: none does */
    uint8_t *memory[LAYOUT_SHARDS_MAX * 4];
    const struct layout_shard *of[LAYOUT_SHARDS_MAX * 4];
    int count, first_target;
};

static inline reshard_status layout_rank_add(const struct layouts *layouts, const struct layout_shard *shard, struct layout_rank *rank,
                                             reshard_shards *list, reshard_error *err)
{
    size_t bytes = (size_t)layout_span(layouts, shard) * layout_bytes(shard);
    const int is_shared = rank->comm && rank->count % 3;
    void *shared = NULL;
    reshard_status status = is_shared ? reshard_comm_memory_new(rank->comm, bytes, &shared, err) : RESHARD_OK;
    uint8_t *memory = is_shared ? shared : malloc(bytes);
    if (status || !memory)
        return status ? status : RESHARD_ERR_MEMORY;
    memset(memory, 0xA5, bytes);
    rank->memory[rank->count] = memory;
    rank->of[rank->count++] = shard;
    const reshard_shard made = layout_public(layouts, shard, memory);
    return reshard_shards_add(list, &made, err);
}

static inline reshard_status layout_rank_make_in(const struct layouts *layouts, int owner, reshard_comm *comm, struct layout_rank *rank,
                                                 reshard_error *err)
{
    memset(rank, 0, sizeof(*rank));
    rank->comm = comm;
    reshard_status status = reshard_shards_new(&rank->source, err);
    if (!status)
        status = reshard_shards_new(&rank->target, err);
    for (int i = 0; i < layouts->source_count && !status; i++) {
        if (layouts->sources[i].owner != owner)
            continue;
        status = layout_rank_add(layouts, &layouts->sources[i], rank, rank->source, err);
        if (!status)
            layout_fill(layouts, &layouts->sources[i], rank->memory[rank->count - 1]);
    }
    rank->first_target = rank->count;
    for (int i = 0; i < layouts->target_count && !status; i++)
        if (layouts->targets[i].owner == owner)
            status = layout_rank_add(layouts, &layouts->targets[i], rank, rank->target, err);
    return status;
}

static inline reshard_status layout_rank_make(const struct layouts *layouts, int owner, struct layout_rank *rank, reshard_error *err)
{
    return layout_rank_make_in(layouts, owner, NULL, rank, err);
}

/* Whether all memory is as it should be: targets filled, what lies between their elements untouched, sources as they were. */
static inline int layout_rank_is_good(const struct layouts *layouts, const struct layout_rank *rank)
{
    int is_good = 1;
    for (int i = 0; i < rank->count && is_good; i++) {
        size_t bytes = (size_t)layout_span(layouts, rank->of[i]) * layout_bytes(rank->of[i]);
        uint8_t *expected = malloc(bytes);
        memset(expected, 0xA5, bytes);
        layout_fill(layouts, rank->of[i], expected);
        is_good = memcmp(expected, rank->memory[i], bytes) == 0;
        free(expected);
    }
    return is_good;
}

static inline void layout_rank_release(struct layout_rank *rank)
{
    reshard_shards_free(rank->source);
    reshard_shards_free(rank->target);
    for (int i = 0; i < rank->count; i++) {
        if (rank->comm && i % 3)
            reshard_comm_memory_free(rank->comm, rank->memory[i]);
        else
            free(rank->memory[i]);
    }
}

#endif
