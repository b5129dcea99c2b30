/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_sharding.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>

#define ALIGNMENT_BYTES 256

/* ---- whole parameters ---- */

static int by_elements(const void *a, const void *b, void *context)
{
    const struct sharded_parameter *parameters = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (parameters[i].elements != parameters[j].elements)
        return parameters[i].elements > parameters[j].elements ? -1 : 1;
    return i < j ? -1 : i > j;
}

static uint32_t least_loaded(const int64_t *loads, uint32_t ranks)
{
    uint32_t least = 0;
    for (uint32_t rank = 1; rank < ranks; rank++)
        if (loads[rank] < loads[least])
            least = rank;
    return least;
}

static reshard_status assign_whole(bool is_sorted, uint32_t ranks, struct sharded_parameter *parameters, uint32_t count, reshard_error *err)
{
    uint32_t *order = array_new(count, sizeof(*order));
    int64_t *loads = array_zeroed(ranks, sizeof(*loads));
    reshard_status status = order && loads ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < count; i++)
        order[i] = i;
    if (!status && is_sorted)
        qsort_r(order, count, sizeof(*order), by_elements, parameters);
    for (uint32_t i = 0; !status && i < count; i++) {
        struct sharded_parameter *parameter = &parameters[order[i]];
        parameter->owner = least_loaded(loads, ranks);
        parameter->part = 0;
        if (!checked_add_i64(loads[parameter->owner], parameter->elements, &loads[parameter->owner]))
            status = error_set(err, RESHARD_ERR_LIMIT, "a rank's parameters have more than 2^63 elements");
    }
    free(order);
    free(loads);
    return status;
}

/* ---- parts ---- */

/* Rounds up to a multiple. */
static bool state_sharding_round_up(int64_t value, int64_t unit, int64_t *out)
{
    int64_t more = (unit - value % unit) % unit;
    return checked_add_i64(value, more, out);
}

static int64_t aligned_elements(enum dtype dtype)
{
    unsigned bytes = dtype_element_bytes(dtype);
    return bytes && ALIGNMENT_BYTES % bytes == 0 ? ALIGNMENT_BYTES / bytes : 1;
}

/* Packs the parameters of one type, from `first` on, up to the end of a buffer; gives the index behind the last one of it. */
static reshard_status pack_buffer(uint32_t ranks, struct sharded_parameter *parameters, uint32_t count, uint32_t first, uint32_t *end,
                                  reshard_error *err)
{
    enum dtype dtype = parameters[first].dtype;
    int64_t unit = aligned_elements(dtype) * ranks, at = 0, bytes = 0;
    uint32_t i = first;
    for (; i < count && bytes < SHARDING_BUFFER_BYTES; i++) {
        struct sharded_parameter *parameter = &parameters[i];
        int64_t size;
        if (parameter->dtype != dtype)
            continue;
        parameter->start = at;
        if (!state_sharding_round_up(parameter->elements, unit, &parameter->padded) || !checked_add_i64(at, parameter->padded, &at) ||
            !checked_mul_i64(parameter->elements, dtype_element_bytes(dtype), &size) || !checked_add_i64(bytes, size, &bytes))
            return error_set(err, RESHARD_ERR_LIMIT, "a buffer of parameters has more than 2^63 bytes");
    }
    *end = i;
    for (i = first; i < *end; i++)
        if (parameters[i].dtype == dtype)
            parameters[i].part = at / ranks;
    return RESHARD_OK;
}

/* Each type has buffers of its own. part is -1 for what is in none yet. */
static reshard_status assign_buffers(uint32_t ranks, struct sharded_parameter *parameters, uint32_t count, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    bool is_done[DTYPE_COUNT] = { false };
    for (uint32_t first = 0; first < count && !status; first++) {
        enum dtype dtype = parameters[first].dtype;
        if (is_done[dtype])
            continue;
        is_done[dtype] = true;
        for (uint32_t i = first, end; i < count && !status; i = end) {
            end = i + 1;
            if (parameters[i].dtype == dtype)
                status = pack_buffer(ranks, parameters, count, i, &end, err);
        }
    }
    return status;
}

static reshard_status assign_parts(uint32_t ranks, int64_t segment, struct sharded_parameter *parameters, uint32_t count,
                                   reshard_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        struct sharded_parameter *parameter = &parameters[i];
        if (parameter->elements <= segment)
            continue;
        if (!state_sharding_round_up(parameter->elements, aligned_elements(parameter->dtype), &parameter->padded) ||
            !state_sharding_round_up(parameter->padded, ranks, &parameter->padded))
            return error_set(err, RESHARD_ERR_LIMIT, "a parameter has more than 2^63 elements");
        parameter->part = parameter->padded / ranks;
    }
    return RESHARD_OK;
}

reshard_status sharding_assign(enum sharding_stage stage, uint32_t ranks, int64_t segment, struct sharded_parameter *parameters,
                               uint32_t count, reshard_error *err)
{
    for (uint32_t i = 0; i < count; i++) {
        parameters[i].owner = SHARDING_ALL;
        parameters[i].part = parameters[i].start = parameters[i].padded = 0;
    }
    switch (stage) {
    case SHARDING_1_V1:
    case SHARDING_2:
        return assign_whole(stage == SHARDING_1_V1, ranks, parameters, count, err);
    case SHARDING_1_V2:
        return assign_buffers(ranks, parameters, count, err);
    case SHARDING_3:
        return assign_parts(ranks, segment, parameters, count, err);
    case SHARDING_NONE:
        break;
    }
    return RESHARD_OK;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

void sharding_range(const struct sharded_parameter *parameter, uint32_t rank, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = parameter->elements;
    if (parameter->part) {
        *begin = clamp(parameter->part * rank - parameter->start, 0, parameter->elements);
        *end = clamp(parameter->part * (rank + 1) - parameter->start, *begin, parameter->elements);
    } else if (parameter->owner != SHARDING_ALL && parameter->owner != rank) {
        *end = 0;
    }
}
