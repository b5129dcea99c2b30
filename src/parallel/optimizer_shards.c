/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/optimizer_shards.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/name_map.h"

#include <inttypes.h>
#include <stdlib.h>

#define SHARD_NONE SIZE_MAX

/* The model's shards by key, and in the order of their addresses. */
struct optimizer_lookup {
    const struct optimizer_model *model;
    struct name_map keys;
    size_t *first;      /* by key: its first shard */
    size_t *by_address; /* shards, the lowest address first; those of one address as in the list */
};

static int by_shard_address(const void *a, const void *b, void *context)
{
    const struct shard *shards = context;
    const size_t i = *(const size_t *)a, j = *(const size_t *)b;
    const uintptr_t x = (uintptr_t)shards[i].data, y = (uintptr_t)shards[j].data;
    return x != y ? (x < y ? -1 : 1) : i < j ? -1 : i > j;
}

static reshard_status lookup_make(const struct optimizer_model *model, struct optimizer_lookup *out, reshard_error *err)
{
    const struct shard_list *list = model->model;
    *out = (struct optimizer_lookup){ .model = model };
    out->first = array_zeroed(list->count, sizeof(*out->first));
    out->by_address = array_zeroed(list->count, sizeof(*out->by_address));
    if (!out->first || !out->by_address)
        return error_set_memory(err);
    for (size_t i = 0; i < list->count; i++) {
        bool is_new;
        const uint32_t key = name_map_intern(&out->keys, list->shards[i].key, &is_new);
        if (key == NAME_NONE)
            return error_set_memory(err);
        if (is_new)
            out->first[key] = i;
        out->by_address[i] = i;
    }
    qsort_r(out->by_address, list->count, sizeof(*out->by_address), by_shard_address, list->shards);
    return RESHARD_OK;
}

static void lookup_release(struct optimizer_lookup *lookup)
{
    name_map_release(&lookup->keys);
    free(lookup->first);
    free(lookup->by_address);
}

/* The first place in by_address whose shard begins at the address or behind. */
static size_t lookup_address(const struct optimizer_lookup *lookup, const void *address)
{
    size_t low = 0, high = lookup->model->model->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct shard *shard = &lookup->model->model->shards[lookup->by_address[middle]];
        if ((uintptr_t)shard->data < (uintptr_t)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static size_t shard_of_tensor(const struct optimizer_lookup *lookup, const struct optimizer_tensor *tensor)
{
    const struct shard_list *list = lookup->model->model;
    if (tensor->id < 0) {
        const uint32_t key = name_map_find(&lookup->keys, tensor->parameter);
        return key == NAME_NONE ? SHARD_NONE : lookup->first[key];
    }
    if ((uint64_t)tensor->id >= lookup->model->parameter_count || !lookup->model->parameters[tensor->id])
        return SHARD_NONE;
    const size_t at = lookup_address(lookup, lookup->model->parameters[tensor->id]);
    if (at == list->count || list->shards[lookup->by_address[at]].data != lookup->model->parameters[tensor->id])
        return SHARD_NONE;
    return lookup->by_address[at];
}

/* Elements up to where the shard behind it begins: of a strided one those that lie side by side, for its rows alternate with the other's.
 */
static int64_t run_of_shard(const struct shard *shard)
{
    int64_t run = 1;
    for (int axis = shard->rank - 1; axis >= 0; axis--) {
        if (shard->strides && shard->extent[axis] != 1 && shard->strides[axis] != run)
            break;
        run *= shard->extent[axis];
    }
    return run;
}

/* The shard of the same parameter that follows: the next one of its key in memory, or without values in the list. */
static size_t shard_behind(const struct optimizer_lookup *lookup, size_t number)
{
    const struct shard_list *list = lookup->model->model;
    const struct shard *shard = &list->shards[number];
    if (!shard->data) {
        for (number++; number < list->count && !str_equal(list->shards[number].key, shard->key); number++)
            ;
        return number < list->count ? number : SHARD_NONE;
    }
    const void *end = shard->data + (uint64_t)run_of_shard(shard) * dtype_element_bytes(shard->dtype);
    for (size_t at = lookup_address(lookup, end); at < list->count; at++) {
        const struct shard *next = &list->shards[lookup->by_address[at]];
        if (next->data != end)
            break;
        if (str_equal(next->key, shard->key))
            return lookup->by_address[at];
    }
    return SHARD_NONE;
}

/* ---- adding ---- */

struct state_adding {
    const struct optimizer_lookup *lookup;
    const struct optimizer_tensor *tensor;
    struct shard_list *list;
    struct buffer key;
};

static bool state_key_write(struct buffer *out, struct str pattern, struct str state, struct str parameter)
{
    out->size = 0;
    for (size_t i = 0; i < pattern.size;) {
        const struct str rest = { pattern.data + i, pattern.size - i };
        const bool is_state = str_starts_with(rest, "{state}"), is_parameter = str_starts_with(rest, "{parameter}");
        if (is_state || is_parameter)
            buffer_append_str(out, is_state ? state : parameter);
        else
            buffer_append_byte(out, (uint8_t)pattern.data[i]);
        i += is_state ? strlen("{state}") : is_parameter ? strlen("{parameter}") : 1;
    }
    return !out->failed;
}

static reshard_status shape_differs(const struct state_adding *adding, const struct shard *shard, reshard_error *err)
{
    char own[SHAPE_TEXT_MAX], model[SHAPE_TEXT_MAX];
    return error_set(err, RESHARD_ERR_USAGE, "'%.*s': Optimizer shape %s does not match model shape %s", STR_ARG(buffer_str(&adding->key)),
                     shape_text(adding->tensor->rank, adding->tensor->shape, ", ", own),
                     shape_text(shard->rank, shard->extent, ", ", model));
}

/* Whether the tensor has the shape of the box; axes in front of it, of one element each, do not count. */
static bool is_shape_of(const struct optimizer_tensor *tensor, const struct shard *shard)
{
    const int front = shard->rank - tensor->rank;
    for (int i = 0; i < front; i++)
        if (shard->extent[i] != 1)
            return false;
    return front >= 0 &&
           (tensor->rank == 0 || memcmp(tensor->shape, shard->extent + front, (size_t)tensor->rank * sizeof(*tensor->shape)) == 0);
}

/* A number of the parameter's: whole, whatever the parameter's box is. */
static reshard_status state_number_add(const struct state_adding *adding, reshard_error *err)
{
    static const int64_t zeros[RANK_MAX];
    const struct optimizer_tensor *tensor = adding->tensor;
    const struct shard shard = { .key = buffer_str(&adding->key),
                                 .dtype = tensor->dtype,
                                 .rank = tensor->rank,
                                 .shape = tensor->shape,
                                 .start = zeros,
                                 .extent = tensor->shape,
                                 .data = tensor->data };
    return shard_list_add(adding->list, &shard, err);
}

/* Elements [begin, begin + count) of the parameter, whose values begin at `whole`, are the piece's; the tensor has [from, to) of the
 * parameter. */
static reshard_status parameter_piece_add(const struct state_adding *adding, const struct shard *piece, const uint8_t *whole, int64_t begin,
                                          int64_t count, int64_t from, int64_t to, reshard_error *err)
{
    const struct optimizer_tensor *tensor = adding->tensor;
    struct shard shard = *piece;
    shard.strides = tensor->data ? piece->strides : NULL;
    const int64_t first = begin > from ? begin : from, last = begin + count < to ? begin + count : to;
    if (first >= last && count)
        return RESHARD_OK;
    shard.key = buffer_str(&adding->key);
    shard.dtype = tensor->dtype;
    shard.data = tensor->data ? tensor->data + (uint64_t)(first - from) * dtype_element_bytes(tensor->dtype) : NULL;
    if (piece->strides && tensor->is_flattened)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': a range of a parameter whose shards have strides", STR_ARG(shard.key));
    if (piece->strides && tensor->data)
        shard.data =
            tensor->data + (uint64_t)(piece->data - whole) / dtype_element_bytes(piece->dtype) * dtype_element_bytes(tensor->dtype);
    shard.is_flattened = last - first < count;
    shard.flat_begin = shard.is_flattened ? first - begin : 0;
    shard.flat_end = shard.is_flattened ? last - begin : 0;
    return shard_list_add(adding->list, &shard, err);
}

static reshard_status parameter_state_add(const struct state_adding *adding, size_t number, int64_t from, int64_t to, reshard_error *err)
{
    const struct shard_list *model = adding->lookup->model->model;
    const struct shard *first = &model->shards[number];
    int64_t begin = 0;
    reshard_status status = RESHARD_OK;
    do {
        const struct shard *piece = &model->shards[number];
        const int64_t count = box_volume(piece->rank, piece->extent);
        status = parameter_piece_add(adding, piece, first->data, begin, count, from, to, err);
        begin += count;
        number = begin < to ? shard_behind(adding->lookup, number) : SHARD_NONE;
    } while (!status && number != SHARD_NONE);
    if (!status && (begin < to || (!adding->tensor->is_flattened && begin != to)))
        status = shape_differs(adding, first, err);
    return status;
}

static reshard_status tensor_range(const struct optimizer_tensor *tensor, struct str key, int64_t *from, int64_t *to, reshard_error *err)
{
    *from = tensor->is_flattened ? tensor->flat_begin : 0;
    if (!shape_volume(tensor->rank, tensor->shape, to))
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': the shape has a negative extent or too many elements", STR_ARG(key));
    if (!tensor->is_flattened)
        return RESHARD_OK;
    if (*from < 0 || tensor->flat_end < *from || tensor->flat_end - *from != *to)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': elements [%" PRId64 ", %" PRId64 ") are given as %" PRId64, STR_ARG(key), *from,
                         tensor->flat_end, *to);
    *to = tensor->flat_end;
    return RESHARD_OK;
}

static reshard_status state_tensor_add(struct state_adding *adding, reshard_error *err)
{
    const struct optimizer_tensor *tensor = adding->tensor;
    const struct shard_list *model = adding->lookup->model->model;
    const size_t number = shard_of_tensor(adding->lookup, tensor);
    int64_t from, to;
    if (number == SHARD_NONE && tensor->id >= 0)
        return error_set(err, RESHARD_ERR_USAGE, "Param id %" PRId64 " does not match any model sharded param", tensor->id);
    if (number == SHARD_NONE)
        return error_set(err, RESHARD_ERR_USAGE, "the model has no parameter '%.*s'", STR_ARG(tensor->parameter));
    const struct shard *shard = &model->shards[number];
    if (!state_key_write(&adding->key, adding->lookup->model->keys, tensor->state, shard->key))
        return buffer_error(&adding->key, err);
    if (shard->is_flattened)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': the parameter's own shard is flattened", STR_ARG(shard->key));
    reshard_status status = tensor_range(tensor, buffer_str(&adding->key), &from, &to, err);
    if (status)
        return status;
    const bool is_shape = is_shape_of(tensor, shard);
    if (!tensor->is_flattened && !is_shape && to == 1)
        return state_number_add(adding, err);
    if (!tensor->is_flattened && !is_shape && box_volume(shard->rank, shard->extent) >= to)
        return shape_differs(adding, shard, err);
    if (from == to && tensor->is_flattened)
        return RESHARD_OK;
    if (tensor->data && !dtype_element_bytes(tensor->dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': state of less than a byte an element", STR_ARG(buffer_str(&adding->key)));
    return parameter_state_add(adding, number, from, to, err);
}

reshard_status optimizer_shards_add(const struct optimizer_model *model, const struct optimizer_tensor *tensors, size_t count,
                                    struct shard_list *list, reshard_error *err)
{
    struct optimizer_lookup lookup;
    struct state_adding adding = { .lookup = &lookup, .list = list };
    reshard_status status = lookup_make(model, &lookup, err);
    for (size_t i = 0; i < count && !status; i++) {
        adding.tensor = &tensors[i];
        status = state_tensor_add(&adding, err);
    }
    buffer_release(&adding.key);
    lookup_release(&lookup);
    return status;
}
