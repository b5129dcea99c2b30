/* SPDX-License-Identifier: Apache-2.0 */
/* What a mapping makes of small values: slow and plain on purpose. */
#include "names/map_values.h"

#include "base/array.h"
#include "base/decimal_text.h"
#include "kernels/cast.h"

#include <stdlib.h>

struct evaluation {
    const struct map_result *result;
    const struct map_description *source;
    double initial;
    const uint32_t *order; /* first copy of each target tensor; copies are grouped */
    struct buffer *out;
    reshard_error *err;
};

static bool fill_initial(double initial, enum dtype dtype, void *elements, int64_t count)
{
    struct cast cast;
    unsigned size = dtype_element_bytes(dtype);
    if (!size || !cast_find(DTYPE_F64, dtype, &cast))
        return false;
    for (int64_t i = 0; i < count; i++)
        cast_run(&cast, &initial, (char *)elements + i * size, 1);
    return true;
}

/* Applies the casts, first one first, to one element; both buffers hold 16 bytes. */
static bool apply_casts(const struct map_cast *casts, enum dtype dtype, char element[16])
{
    const struct map_cast *steps[64];
    int count = 0;
    for (const struct map_cast *step = casts; step; step = step->before) {
        if (count == 64)
            return false;
        steps[count++] = step;
    }
    while (count--) {
        char result[16];
        struct cast cast;
        if (!cast_find(dtype, steps[count]->dtype, &cast))
            return false;
        cast_run(&cast, element, result, 1);
        memcpy(element, result, 16);
        dtype = steps[count]->dtype;
    }
    return true;
}

/* Next index inside extent, row-major; false behind the last. */
static bool map_evaluate_advance(int rank, const int64_t *extent, int64_t *index)
{
    for (int axis = rank - 1; axis >= 0; axis--) {
        if (++index[axis] < extent[axis])
            return true;
        index[axis] = 0;
    }
    return false;
}

static bool run_copy(const struct map_copy *copy, const struct map_tensor *source, const struct map_tensor *target, const char *from,
                     char *to)
{
    static const int64_t zeros[RANK_MAX];
    const struct map_piece whole = { .source_rank = target->rank, .source_start = zeros, .start = zeros, .extent = target->shape };
    const struct map_piece *piece = copy->piece ? copy->piece : &whole;
    int64_t index[RANK_MAX] = { 0 }, source_stride[RANK_MAX], target_stride[RANK_MAX];
    unsigned source_bytes = dtype_element_bytes(source->dtype), target_bytes = dtype_element_bytes(target->dtype);
    if (box_is_empty(target->rank, piece->extent))
        return true;
    strides_row_major(source->rank, source->shape, source_stride);
    strides_row_major(target->rank, target->shape, target_stride);
    do {
        int64_t source_at = 0, target_at = 0;
        char element[16] = { 0 };
        for (int axis = 0; axis < piece->source_rank; axis++)
            source_at += piece->source_start[axis] * source_stride[axis];
        for (int axis = 0; axis < target->rank; axis++) {
            int source_axis = piece->axes ? piece->axes[axis] : axis;
            source_at += source_axis == MAP_AXIS_NEW ? 0 : index[axis] * source_stride[source_axis];
            target_at += (piece->start[axis] + index[axis]) * target_stride[axis];
        }
        memcpy(element, from + source_at * source_bytes, source_bytes);
        if (!apply_casts(copy->casts, source->dtype, element))
            return false;
        memcpy(to + target_at * target_bytes, element, target_bytes);
    } while (map_evaluate_advance(target->rank, piece->extent, index));
    return true;
}

static void append_element(struct buffer *out, enum dtype dtype, const void *element)
{
    struct cast cast;
    double real[2] = { 0, 0 };
    int64_t integer = 0;
    if (dtype_info(dtype)->class_ == DTYPE_CLASS_INT || dtype_info(dtype)->class_ == DTYPE_CLASS_UINT || dtype == DTYPE_BOOL) {
        if (cast_find(dtype, DTYPE_I64, &cast))
            cast_run(&cast, element, &integer, 1);
        buffer_printf(out, "%lld", (long long)integer);
        return;
    }
    to_double_function convert = cast_to_double_find(dtype);
    if (convert)
        convert(element, real, 1);
    bool is_finite = __builtin_isfinite(real[0]);
    buffer_append_text(out, is_finite ? "" : "\"");
    buffer_append_double(out, real[0]);
    buffer_append_text(out, is_finite ? "" : "\"");
}

static void append_tensor(struct buffer *out, const struct map_tensor *tensor, const char *elements, int64_t count)
{
    const struct dtype_info *info = dtype_info(tensor->dtype);
    buffer_append_json_visible(out, tensor->key);
    buffer_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", info->torch_name[0] ? info->torch_name : info->name);
    for (int axis = 0; axis < tensor->rank; axis++)
        buffer_printf(out, "%s%lld", axis ? "," : "", (long long)tensor->shape[axis]);
    buffer_append_text(out, "],\"data\":[");
    for (int64_t i = 0; i < count && !out->failed; i++) {
        if (i)
            buffer_append_byte(out, ',');
        append_element(out, tensor->dtype, elements + i * dtype_element_bytes(tensor->dtype));
    }
    buffer_append_text(out, "]}");
}

static reshard_status run_copies(struct evaluation *evaluation, uint32_t target_index, char *elements)
{
    const struct map_tensor *target = &evaluation->result->target->tensors[target_index];
    for (uint32_t i = evaluation->order[target_index]; i < evaluation->result->copy_count; i++) {
        const struct map_copy *copy = &evaluation->result->copies[i];
        if (copy->target_tensor != target_index)
            break;
        const struct map_tensor *source = &evaluation->source->space.tensors[copy->source_tensor];
        const void *values = evaluation->source->values ? evaluation->source->values[copy->source_tensor] : NULL;
        if (!values)
            return error_set(evaluation->err, RESHARD_ERR_USAGE, "source tensor '%.*s' has no data", STR_ARG(source->key));
        if (!run_copy(copy, source, target, values, elements))
            return error_set(evaluation->err, RESHARD_ERR_UNSUPPORTED, "'%.*s' cannot be cast", STR_ARG(source->key));
    }
    return RESHARD_OK;
}

static reshard_status evaluate_tensor(struct evaluation *evaluation, uint32_t index, const struct limits *limits)
{
    const struct map_tensor *tensor = &evaluation->result->target->tensors[index];
    int64_t count;
    uint64_t bytes;
    if (!shape_volume(tensor->rank, tensor->shape, &count) || !dtype_bytes(tensor->dtype, (uint64_t)count, &bytes) ||
        bytes > limits->item_bytes)
        return error_set_limit(evaluation->err, "item_bytes", UINT64_MAX, limits->item_bytes);
    char *elements = array_zeroed(bytes, 1);
    if (!elements)
        return error_set_memory(evaluation->err);
    reshard_status status = RESHARD_OK;
    if (!fill_initial(evaluation->initial, tensor->dtype, elements, count))
        status = error_set(evaluation->err, RESHARD_ERR_UNSUPPORTED, "'%.*s': no values of type %s", STR_ARG(tensor->key),
                           dtype_info(tensor->dtype)->name);
    if (!status)
        status = run_copies(evaluation, index, elements);
    if (!status) {
        append_tensor(evaluation->out, tensor, elements, count);
        status = evaluation->out->failed ? error_set_memory(evaluation->err) : RESHARD_OK;
    }
    free(elements);
    return status;
}

static int map_evaluate_compare_keys(const void *a, const void *b, void *context)
{
    const struct map_space *space = context;
    return str_compare(space->tensors[*(const uint32_t *)a].key, space->tensors[*(const uint32_t *)b].key);
}

reshard_status map_values_evaluate(const struct map_result *result, const struct map_description *source, double initial,
                                   const struct limits *limits, struct buffer *out, reshard_error *err)
{
    uint32_t count = map_space_tensor_count(result->target);
    uint32_t *first = array_zeroed(count, sizeof(*first)), *sorted = array_zeroed(count, sizeof(*sorted));
    struct evaluation evaluation = { .result = result, .source = source, .initial = initial, .order = first, .out = out, .err = err };
    reshard_status status = first && sorted ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < count; i++) {
        sorted[i] = i;
        first[i] = result->copy_count;
    }
    for (uint32_t i = result->copy_count; !status && i-- > 0;)
        first[result->copies[i].target_tensor] = i;
    if (!status && count)
        qsort_r(sorted, count, sizeof(*sorted), map_evaluate_compare_keys, (void *)(uintptr_t)result->target);
    buffer_append_text(out, "{");
    for (uint32_t i = 0; !status && i < count; i++) {
        if (i)
            buffer_append_byte(out, ',');
        status = evaluate_tensor(&evaluation, sorted[i], limits);
    }
    buffer_append_text(out, "}");
    free(first);
    free(sorted);
    return status ? status : out->failed ? error_set_memory(err) : RESHARD_OK;
}
