/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/flat_state.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define SIZE_KEY "numel_unpadded"

/* One buffer as the file has it. */
struct stored_buffer {
    enum dtype param_dtype, grad_dtype;
    const struct value *states; /* DICT: name -> vector */
    int64_t count;
    bool is_merged; /* before February 2024: parameters of all dtypes lie in one buffer, whose key is the gradients' dtype alone */
};

/* A state's tensor: then also as a list of one tensor a bucket. */
static const struct value *tensor_of(const struct value *state)
{
    return state->kind == VALUE_LIST && state->list.count == 1 ? state->list.items[0] : state;
}

static bool as_dtype(const struct value *value, enum dtype *out)
{
    return value->kind == VALUE_GLOBAL && str_is(value->global.module, "torch") && dtype_from_torch(value->global.name, out);
}

/* The vector of a state; false if it is none. */
static const struct torch_tensor *vector_of(const struct torch_archive *archive, const struct value *value)
{
    if (!value->tensor || value->tensor > archive->tensor_count)
        return NULL;
    const struct torch_tensor *tensor = &archive->tensors[value->tensor - 1];
    bool is_vector = tensor->rank == 1 && (tensor->shape[0] <= 1 || tensor->strides[0] == 1);
    return is_vector ? tensor : NULL;
}

/* All states of a buffer have one length; numel_unpadded says how much of it counts. */
static reshard_status flat_state_measure(const struct torch_archive *archive, struct stored_buffer *buffer, bool *may_be_padded,
                                         reshard_error *err)
{
    int64_t said = -1, length = -1;
    for (size_t i = 0; i + 1 < buffer->states->list.count; i += 2) {
        const struct value *value = tensor_of(buffer->states->list.items[i + 1]);
        struct str name;
        if (!value_as_str(buffer->states->list.items[i], &name))
            return error_set(err, RESHARD_ERR_FORMAT, "a key is not a string, expected the name of a state");
        if (str_is(name, SIZE_KEY)) {
            if (!value_as_int(value, &said) || said < 0)
                return error_set(err, RESHARD_ERR_FORMAT, "'" SIZE_KEY "' is not a number of elements");
            continue;
        }
        if (value->kind == VALUE_LIST)
            return error_set(err, RESHARD_ERR_UNSUPPORTED,
                             "state '%.*s' is a list of %zu buckets, as Megatron wrote before February 2024; load and save it with a later "
                             "version",
                             STR_ARG(name), value->list.count);
        const struct torch_tensor *tensor = vector_of(archive, value);
        if (!tensor)
            return error_set(err, RESHARD_ERR_FORMAT, "state '%.*s' is not a vector", STR_ARG(name));
        if (length >= 0 && tensor->shape[0] != length)
            return error_set(err, RESHARD_ERR_FORMAT, "state '%.*s' has %" PRId64 " elements, others of its buffer %" PRId64, STR_ARG(name),
                             tensor->shape[0], length);
        length = tensor->shape[0];
    }
    if (length < 0)
        return error_set(err, RESHARD_ERR_FORMAT, "a buffer without any state");
    if (said > length)
        return error_set(err, RESHARD_ERR_FORMAT, "'" SIZE_KEY "' is %" PRId64 ", but the vectors have %" PRId64 " elements", said, length);
    if (said < 0)
        *may_be_padded = true;
    buffer->count = said >= 0 ? said : length;
    return RESHARD_OK;
}

static reshard_status take_buffer(const struct torch_archive *archive, const struct value *value, struct stored_buffer *out,
                                  bool *may_be_padded, reshard_error *err)
{
    struct value **pair;
    size_t pair_count;
    if (value->kind != VALUE_DICT || value->list.count != 2)
        return error_set(err, RESHARD_ERR_FORMAT, "expected a dict of one pair of dtypes");
    const struct value *key = value->list.items[0];
    out->is_merged = as_dtype(key, &out->grad_dtype);
    if (out->is_merged)
        out->param_dtype = out->grad_dtype;
    else if (!value_as_sequence(key, &pair, &pair_count) || pair_count != 2 || !as_dtype(pair[0], &out->param_dtype) ||
             !as_dtype(pair[1], &out->grad_dtype))
        return error_set(err, RESHARD_ERR_FORMAT, "its key is not a pair of torch dtypes");
    out->states = value->list.items[1];
    if (out->states->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "expected a dict of states");
    return flat_state_measure(archive, out, may_be_padded, err);
}

/* The buffers in order of their numbers, which must be 0, 1, …; released by the caller also on failure. */
static reshard_status take_buffers(const struct torch_archive *archive, const struct value *state, struct stored_buffer **out,
                                   uint32_t *count, bool *may_be_padded, reshard_error *err)
{
    size_t pairs = state->list.count / 2;
    *count = 0;
    *out = array_zeroed(pairs, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    for (size_t i = 0; i < pairs; i++) {
        int64_t number;
        if (!value_as_int(state->list.items[2 * i], &number))
            continue;
        if (number < 0 || (uint64_t)number >= pairs || (*out)[number].states)
            return error_set(err, RESHARD_ERR_FORMAT, "buffer %" PRId64 " of %zu: out of range or there twice", number, pairs);
        reshard_status status = take_buffer(archive, state->list.items[2 * i + 1], &(*out)[number], may_be_padded, err);
        if (status) {
            error_prefix(err, "buffer %" PRId64, number);
            return status;
        }
        ++*count;
    }
    for (uint32_t i = 0; i < *count; i++) {
        if (!(*out)[i].states)
            return error_set(err, RESHARD_ERR_FORMAT, "buffer %" PRIu32 " is missing", i);
    }
    return RESHARD_OK;
}

/* The parameters with the dtypes of gradients that the file says. */
static struct rank_parameter *with_gradients(const struct rank_parameter *parameters, uint32_t count, const struct stored_buffer *buffers,
                                             uint32_t buffer_count)
{
    enum dtype gradient[DTYPE_COUNT];
    struct rank_parameter *made = array_zeroed(count, sizeof(*made));
    if (!made)
        return NULL;
    for (int i = 0; i < DTYPE_COUNT; i++)
        gradient[i] = DTYPE_COUNT;
    for (uint32_t i = 0; i < buffer_count; i++)
        gradient[buffers[i].param_dtype] = buffers[i].grad_dtype;
    for (uint32_t i = 0; i < count; i++) {
        made[i] = parameters[i];
        if (buffer_count && buffers[0].is_merged) {
            made[i].param_dtype = made[i].grad_dtype = buffers[0].grad_dtype;
            made[i].is_shared_embedding = false;
        } else if (gradient[made[i].param_dtype] != DTYPE_COUNT) {
            made[i].grad_dtype = gradient[made[i].param_dtype];
        }
    }
    return made;
}

static reshard_status check_dtypes(const struct flat_buffers *made, const struct stored_buffer *stored, reshard_error *err)
{
    for (uint32_t i = 0; i < made->buffer_count; i++) {
        if (made->buffers[i].param_dtype != stored[i].param_dtype)
            return error_set(err, RESHARD_ERR_UNSUPPORTED,
                             "optimizer buffer %" PRIu32 " is of parameters of dtype %s, in the model they have %s", i,
                             dtype_info(stored[i].param_dtype)->name, dtype_info(made->buffers[i].param_dtype)->name);
    }
    return RESHARD_OK;
}

/* A piece for every place and state. */
static reshard_status flat_state_emit(const struct flat_buffers *made, const struct stored_buffer *stored, struct state_pieces *out,
                                      reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t b = 0; b < made->buffer_count && !status; b++) {
        const struct flat_buffer *buffer = &made->buffers[b];
        if (buffer->bucket_count > out->bucket_count)
            out->bucket_count = buffer->bucket_count;
        const struct value *states = stored[b].states;
        for (size_t s = 0; s + 1 < states->list.count && !status; s += 2) {
            const struct value *tensor = tensor_of(states->list.items[s + 1]);
            struct state_piece piece = { .tensor = tensor->tensor - 1 };
            if (!tensor->tensor || !value_as_str(states->list.items[s], &piece.state))
                continue;
            for (uint32_t p = 0; p < buffer->place_count && !status; p++) {
                const struct flat_place *place = &made->places[buffer->first_place + p];
                piece.parameter = place->parameter;
                piece.offset = flat_packed_start(made, place);
                status = state_pieces_add(out, &piece, err);
            }
        }
    }
    return status;
}

static reshard_status flat_state_relate(const struct training_run *run, const struct rank_parameter *parameters, uint32_t count,
                                        bool is_expert, const struct stored_buffer *stored, uint32_t stored_count, bool may_be_padded,
                                        struct state_pieces *out, reshard_error *err)
{
    struct flat_buffers made = { 0 };
    struct flat_buffer_rules rules;
    bool changed = false;
    int64_t *sizes = array_zeroed(stored_count, sizeof(*sizes));
    if (!sizes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < stored_count; i++)
        sizes[i] = stored[i].count;
    const struct flat_sizes wanted = { .unpadded = sizes, .buffer_count = stored_count, .may_be_padded = may_be_padded };
    reshard_status status = flat_buffer_rules_of(run, parameters, count, is_expert, &rules, err);
    if (!status && stored_count && stored[0].is_merged)
        rules = (struct flat_buffer_rules){ .dp = rules.dp, .alignment = 1, .bucket_multiple = 1 };
    if (!status)
        status = flat_buffers_match(parameters, count, is_expert, &rules, &wanted, &made, &changed, err);
    if (!status)
        status = check_dtypes(&made, stored, err);
    if (!status)
        status = flat_state_emit(&made, stored, out, err);
    out->is_guessed |= changed;
    flat_buffers_release(&made);
    free(sizes);
    return status;
}

reshard_status flat_state_read_one(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                                   const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct state_pieces *out,
                                   reshard_error *err)
{
    struct stored_buffer *stored = NULL;
    struct rank_parameter *adapted = NULL;
    uint32_t stored_count = 0;
    bool may_be_padded = false;
    if (state->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "the distributed optimizer's state is %s, expected a dict of buffers",
                         value_kind_name(state));
    reshard_status status = take_buffers(archive, state, &stored, &stored_count, &may_be_padded, err);
    if (!status) {
        adapted = with_gradients(parameters, count, stored, stored_count);
        status = adapted ? flat_state_relate(run, adapted, count, is_expert, stored, stored_count, may_be_padded, out, err)
                         : error_set_memory(err);
    }
    free(adapted);
    free(stored);
    return status;
}

static bool has_members(const struct rank_parameter *parameters, uint32_t count, bool is_expert)
{
    for (uint32_t i = 0; i < count; i++) {
        if (parameters[i].is_expert == is_expert)
            return true;
    }
    return false;
}

/* Whether the state is that of no parameter: there are no buffers, or another rank writes them. */
static bool flat_state_is_empty(const struct value *state)
{
    int64_t number;
    for (size_t i = 0; state->kind == VALUE_DICT && i + 1 < state->list.count; i += 2) {
        if (value_as_int(state->list.items[i], &number))
            return false;
    }
    return state->kind == VALUE_DICT || state->kind == VALUE_NONE;
}

reshard_status flat_state_read(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                               const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err)
{
    bool has_dense = has_members(parameters, count, false), has_experts = has_members(parameters, count, true);
    struct value *alone[1] = { (struct value *)state };
    struct value **optimizers = alone;
    size_t optimizer_count = 1, wanted = (size_t)has_dense + (size_t)has_experts;
    if (state->kind == VALUE_LIST) {
        optimizers = state->list.items;
        optimizer_count = state->list.count;
    }
    /* A run with experts has two optimizers on every rank; that of experts is empty on stages that have none. */
    bool has_empty = optimizer_count == 2 && wanted < 2 && flat_state_is_empty(optimizers[has_dense]);
    if (!has_empty && optimizer_count != wanted)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the file holds the state of %zu optimizers, the parameters belong to %zu (%s)",
                         optimizer_count, wanted, has_experts ? "experts have their own" : "no experts of an expert-parallel run");
    for (size_t i = 0; i < optimizer_count; i++) {
        bool is_expert = !has_dense || i > 0;
        if (optimizers[i]->kind == VALUE_NONE || (has_empty && i == has_dense))
            continue;
        reshard_status status = flat_state_read_one(archive, optimizers[i], run, parameters, count, is_expert, out, err);
        if (status) {
            if (optimizer_count > 1)
                error_prefix(err, "optimizer %zu", i);
            return status;
        }
    }
    return RESHARD_OK;
}
