/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer state: arguments are checked here; src/parallel/optimizer_shards, state_sharding and flat_unit do the work. */
#include "reshard/layers.h"

#include "api/handle.h"
#include "api/public_shards.h"
#include "base/array.h"
#include "base/checked.h"
#include "parallel/flat_unit.h"
#include "parallel/optimizer_shards.h"
#include "parallel/state_sharding.h"

#include <inttypes.h>
#include <stdlib.h>

_Static_assert(RESHARD_SHARDING_1_V2 == (int)SHARDING_1_V2 && RESHARD_SHARDING_3 == (int)SHARDING_3,
               "stages have the numbers of the header");

#define STATE_KEYS_DEFAULT "optimizer.state.{state}.{parameter}"

static int by_pointer(const void *a, const void *b, void *context)
{
    const void *const *parameters = context;
    const size_t i = *(const size_t *)a, j = *(const size_t *)b;
    const uintptr_t x = (uintptr_t)parameters[i], y = (uintptr_t)parameters[j];
    return x != y ? (x < y ? -1 : 1) : i < j ? -1 : i > j;
}

API_EXPORT reshard_status reshard_optimizer_ids(const void *const *parameters, size_t count, int64_t *ids, reshard_error *err)
{
    ERROR_SCOPE(err);
    if (count) {
        NEEDS(parameters, err);
        NEEDS(ids, err);
    }
    size_t *order = array_zeroed(count, sizeof(*order));
    if (!order)
        return error_set_memory(err);
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof(*order), by_pointer, (void *)parameters);
    for (size_t i = 0; i < count; i++) {
        const bool is_again = i > 0 && parameters[order[i]] == parameters[order[i - 1]];
        ids[order[i]] = is_again ? ids[order[i - 1]] : (int64_t)order[i];
    }
    free(order);
    return RESHARD_OK;
}

/* ---- shards ---- */

struct optimizer_call {
    reshard_optimizer given;
    reshard_str *excluded;
    reshard_optimizer_tensor *tensors;
    struct optimizer_tensor *taken;
    size_t count;
};

static void optimizer_call_release(struct optimizer_call *call)
{
    free(call->excluded);
    free(call->tensors);
    free(call->taken);
}

static bool is_excluded(const struct optimizer_call *call, struct str state)
{
    for (size_t i = 0; i < call->given.excluded_count; i++) {
        if (str_equal((struct str){ call->excluded[i].data, call->excluded[i].size }, state))
            return true;
    }
    return false;
}

static reshard_status optimizer_tensor_take(const reshard_optimizer_tensor *given, struct optimizer_tensor *out, reshard_error *err)
{
    const struct str state = { given->state.data, given->state.size };
    *out = (struct optimizer_tensor){
        .id = given->id,
        .parameter = { given->parameter.data, given->parameter.size },
        .state = state,
        .rank = (int)given->rank,
        .shape = given->shape,
        .data = given->data,
        .is_flattened = given->is_flattened != 0,
        .flat_begin = given->flat_begin,
        .flat_end = given->flat_end,
    };
    reshard_status status = vectors_check(given->rank, &given->shape, 1, state, err);
    return status ? status : dtype_take(given->dtype, state, &out->dtype, err);
}

static reshard_status optimizer_call_begin(const reshard_optimizer *optimizer, struct optimizer_call *out, reshard_error *err)
{
    *out = (struct optimizer_call){ .count = 0 };
    reshard_status status = struct_take(&out->given, sizeof(out->given), optimizer, "reshard_optimizer", err);
    if (status)
        return status;
    const reshard_optimizer *given = &out->given;
    NEEDS_MEMBER(reshard_optimizer, *given, model, err);
    if (given->parameter_count)
        NEEDS_MEMBER(reshard_optimizer, *given, parameters, err);
    status = array_take(given->excluded, given->excluded_count, given->excluded_stride, sizeof(*out->excluded), "reshard_str",
                        (void **)&out->excluded, err);
    if (!status)
        status = array_take(given->tensors, given->tensor_count, given->tensor_stride, sizeof(*out->tensors), "reshard_optimizer_tensor",
                            (void **)&out->tensors, err);
    if (status)
        return status;
    out->taken = array_zeroed(given->tensor_count, sizeof(*out->taken));
    status = out->taken ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < given->tensor_count && !status; i++) {
        const reshard_optimizer_tensor *tensor = &out->tensors[i];
        if (!is_excluded(out, (struct str){ tensor->state.data, tensor->state.size }))
            status = optimizer_tensor_take(tensor, &out->taken[out->count++], err);
    }
    return status;
}

API_EXPORT reshard_status reshard_optimizer_shards(const reshard_optimizer *optimizer, reshard_shards *shards, reshard_error *err)
{
    struct optimizer_call call;
    ERROR_SCOPE(err);
    NEEDS(optimizer, err);
    NEEDS(shards, err);
    const size_t before = shards->list.count;
    reshard_status status = optimizer_call_begin(optimizer, &call, err);
    const char *keys = !status && call.given.keys ? call.given.keys : STATE_KEYS_DEFAULT;
    if (!status && (!strstr(keys, "{state}") || !strstr(keys, "{parameter}")))
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_optimizer.keys: '%s' lacks {state} or {parameter}", keys);
    if (!status && call.given.model == shards)
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_optimizer.model is the list that is added to");
    if (!status) {
        const struct optimizer_model model = { &call.given.model->list, call.given.parameters, call.given.parameter_count, str_of(keys) };
        status = optimizer_shards_add(&model, call.taken, call.count, &shards->list, err);
    }
    if (status)
        shards->list.count = before;
    optimizer_call_release(&call);
    return status;
}

/* ---- sharing out ---- */

/* An array whose members are filled in too, as ours: `first` is where what is filled in begins, which is zeroed. */
static reshard_status filled_take(const void *array, size_t stride, size_t count, size_t size, size_t first, const char *name, void **out,
                                  reshard_error *err)
{
    *out = NULL;
    if (count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu parameters", count);
    reshard_status status = array_take(array, count, stride, size, name, out, err);
    for (size_t i = 0; i < count && !status; i++)
        memset((uint8_t *)*out + i * size + first, 0, size - first);
    return status;
}

static reshard_status sharding_take(const reshard_sharding_parameter *given, size_t count, struct sharded_parameter *out,
                                    reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < count && !status; i++) {
        out[i].elements = given[i].elements;
        status = dtype_take(given[i].dtype, STR("a parameter"), &out[i].dtype, err);
        if (!status && given[i].elements < 0)
            status = error_set(err, RESHARD_ERR_USAGE, "parameter %zu has %" PRId64 " elements", i, given[i].elements);
    }
    return status;
}

static reshard_status sharding_fill(enum sharding_stage sharding, uint32_t ranks, reshard_sharding_parameter *parameters, size_t count,
                                    reshard_error *err)
{
    struct sharded_parameter *made = array_zeroed(count, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    reshard_status status = sharding_take(parameters, count, made, err);
    if (!status)
        status = sharding_assign(sharding, ranks, SHARDING_SEGMENT, made, (uint32_t)count, err);
    for (size_t i = 0; i < count && !status; i++) {
        parameters[i].start = made[i].start;
        parameters[i].padded = made[i].padded;
        parameters[i].part = made[i].part;
        parameters[i].owner = made[i].part || made[i].owner == SHARDING_ALL ? -1 : (int64_t)made[i].owner;
    }
    free(made);
    return status;
}

API_EXPORT reshard_status reshard_sharding_assign(int64_t sharding, int64_t ranks, reshard_sharding_parameter *parameters, size_t stride,
                                                  size_t count, reshard_error *err)
{
    void *taken;
    ERROR_SCOPE(err);
    reshard_status status = filled_take(parameters, stride, count, sizeof(*parameters), offsetof(reshard_sharding_parameter, start),
                                        "reshard_sharding_parameter", &taken, err);
    if (status)
        return status;
    if (sharding < 0 || sharding > SHARDING_3 || ranks < 1 || ranks >= SHARDING_ALL)
        status = error_set(err, RESHARD_ERR_USAGE, "sharding %" PRId64 " over %" PRId64 " ranks", sharding, ranks);
    else
        status = sharding_fill((enum sharding_stage)sharding, (uint32_t)ranks, taken, count, err);
    array_give(parameters, count, stride, taken, sizeof(*parameters));
    free(taken);
    return status;
}

API_EXPORT reshard_status reshard_sharding_range(const reshard_sharding_parameter *parameter, size_t stride, int64_t rank, int64_t *begin,
                                                 int64_t *end, reshard_error *err)
{
    void *copy;
    int64_t last;
    ERROR_SCOPE(err);
    NEEDS(begin, err);
    NEEDS(end, err);
    *begin = *end = 0;
    NEEDS(parameter, err);
    reshard_status status = array_take(parameter, 1, stride, sizeof(*parameter), "reshard_sharding_parameter", &copy, err);
    if (status)
        return status;
    const reshard_sharding_parameter given = *(const reshard_sharding_parameter *)copy;
    free(copy);
    if (rank < 0 || rank >= SHARDING_ALL - 1 || given.elements < 0 || given.part < 0 || given.start < 0 ||
        given.owner < -1 || given.owner >= SHARDING_ALL || !checked_mul_i64(given.part, rank + 1, &last))
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRId64 ": the parameter is not as reshard_sharding_assign leaves it", rank);
    const struct sharded_parameter taken = { .elements = given.elements,
                                             .start = given.start,
                                             .part = given.part,
                                             .owner = given.owner < 0 ? SHARDING_ALL : (uint32_t)given.owner };
    sharding_range(&taken, (uint32_t)rank, begin, end);
    return RESHARD_OK;
}

static reshard_status flat_places(int64_t alignment, int64_t ranks, reshard_flat_parameter *parameters, size_t count, int64_t *out,
                                  reshard_error *err)
{
    int64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        reshard_flat_parameter *parameter = &parameters[i];
        parameter->start = flat_unit_next(end, alignment);
        if (parameter->elements < 0 || !checked_add_i64(parameter->start, parameter->elements, &end) ||
            end > INT64_MAX / 2 - ranks - alignment)
            return error_set(err, RESHARD_ERR_USAGE, "parameter %zu: %" PRId64 " elements behind %" PRId64, i, parameter->elements,
                             parameter->start);
    }
    *out = flat_unit_piece(end, ranks);
    return RESHARD_OK;
}

static void flat_parts(int64_t piece, int64_t ranks, int64_t rank, reshard_flat_parameter *parameters, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        reshard_flat_parameter *parameter = &parameters[i];
        struct flat_unit_part part;
        const bool is_there = flat_unit_part_of(piece, ranks, rank, parameter->start, parameter->elements, &part);
        parameter->is_there = is_there;
        parameter->begin = is_there ? part.begin : 0;
        parameter->end = is_there ? part.begin + part.count : 0;
        parameter->place = is_there ? part.place : 0;
    }
}

API_EXPORT reshard_status reshard_flat_assign(int64_t alignment, int64_t ranks, int64_t rank, reshard_flat_parameter *parameters,
                                              size_t stride, size_t count, int64_t *piece, reshard_error *err)
{
    const size_t first = offsetof(reshard_flat_parameter, start);
    void *taken;
    ERROR_SCOPE(err);
    NEEDS(piece, err);
    *piece = 0;
    reshard_status status = filled_take(parameters, stride, count, sizeof(*parameters), first, "reshard_flat_parameter", &taken, err);
    if (status)
        return status;
    if (alignment < 1 || alignment > 4096 || ranks < 1 || ranks > INT32_MAX || rank < 0 || rank >= ranks)
        status = error_set(err, RESHARD_ERR_USAGE, "alignment %" PRId64 ", rank %" PRId64 " of %" PRId64, alignment, rank, ranks);
    if (!status)
        status = flat_places(alignment, ranks, taken, count, piece, err);
    if (!status)
        flat_parts(*piece, ranks, rank, taken, count);
    for (size_t i = 0; i < count && status; i++)
        memset((uint8_t *)taken + i * sizeof(*parameters) + first, 0, sizeof(*parameters) - first);
    array_give(parameters, count, stride, taken, sizeof(*parameters));
    free(taken);
    return status;
}
