/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/step_number.h"

#include "base/cursor.h"
#include "encoding/torch_save.h"
#include "tensor/dtype.h"

#include <math.h>
#include <string.h>

#define STEPS_END 9007199254740992.0 /* 2^53: doubles count no further */
#define ARGUMENTS_MIN 4              /* of _rebuild_tensor_v2: storage, offset, size, strides */

reshard_status step_of_element(struct value_graph *graph, enum dtype dtype, const uint8_t *bytes, bool is_swapped, struct value **out,
                               reshard_error *err)
{
    unsigned size = dtype_element_bytes(dtype);
    uint64_t bits = 0;
    float single;
    *out = NULL;
    if (dtype != DTYPE_F32 && dtype != DTYPE_F64 && dtype != DTYPE_I32 && dtype != DTYPE_I64)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a step of dtype %s", dtype_info(dtype)->name);
    for (unsigned i = 0; i < size; i++)
        bits |= (uint64_t)bytes[is_swapped ? size - 1 - i : i] << 8 * i;
    *out = value_new(graph, dtype == DTYPE_F32 || dtype == DTYPE_F64 ? VALUE_FLOAT : VALUE_INT);
    if (!*out)
        return error_set_memory(err);
    if (dtype == DTYPE_F32) {
        uint32_t word = (uint32_t)bits;
        memcpy(&single, &word, sizeof(single));
        (*out)->real = (double)single;
    } else if (dtype == DTYPE_F64) {
        memcpy(&(*out)->real, &bits, sizeof(bits));
    } else {
        (*out)->integer = dtype == DTYPE_I32 ? (int32_t)(uint32_t)bits : (int64_t)bits;
    }
    return RESHARD_OK;
}

/* The storage behind a call that makes a dense tensor of one element, and where in it that is. */
static const struct value *element_storage(const struct value *value, enum dtype *dtype, int64_t *offset)
{
    const struct value *args = value_is_call(value, "torch._utils", "_rebuild_tensor_v2") ? value->object->args : NULL;
    const struct value *persid = args && args->kind == VALUE_TUPLE && args->list.count >= ARGUMENTS_MIN ? args->list.items[0] : NULL;
    const struct value *class_;
    struct value **sizes;
    size_t count;
    int64_t numel, size = 1;
    bool is_known, is_untyped;
    if (!persid || persid->kind != VALUE_PERSID || persid->storage == 0 || !value_as_int(args->list.items[1], offset) ||
        !value_as_sequence(args->list.items[2], &sizes, &count))
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if (!value_as_int(sizes[i], &size) || size != 1)
            return NULL;
    }
    bool is_one = torch_save_storage_id(persid, &class_, &is_known, dtype, &is_untyped, &numel) && is_known && !is_untyped;
    return is_one && *offset >= 0 && *offset < numel ? persid : NULL;
}

reshard_status step_of_item(const struct layout_request *request, uint32_t wanted, const struct value *value, struct value_graph *graph,
                            struct value **out, reshard_error *err)
{
    enum dtype dtype;
    int64_t offset;
    *out = (struct value *)value;
    if (value->kind == VALUE_INT || value->kind == VALUE_FLOAT)
        return RESHARD_OK;
    *out = NULL;
    const struct value *persid = element_storage(value, &dtype, &offset);
    if (!persid || !request->items.read_storage)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the step of an optimizer is neither a number nor a tensor of one element");
    struct buffer bytes = { .limit = (size_t)request->limits.item_bytes, .limit_name = "item_bytes" };
    reshard_status status = layout_item_storage(request, wanted, persid->storage - 1, &bytes, err);
    size_t size = dtype_element_bytes(dtype), begin = (size_t)offset * size;
    if (!status && (bytes.size < size || begin > bytes.size - size))
        status = error_set(err, RESHARD_ERR_FORMAT, "the step of an optimizer lies behind the end of its storage");
    if (!status)
        status = step_of_element(graph, dtype, bytes.data + begin, false, out, err);
    buffer_release(&bytes);
    return status;
}

double step_as_real(const struct value *step)
{
    return step->kind == VALUE_FLOAT ? step->real : (double)step->integer;
}

/* An INT, which the kernels of optimizers want that count it by group. */
static reshard_status step_as_int(struct value_graph *graph, const struct value *step, struct value **out, reshard_error *err)
{
    double real = step_as_real(step);
    if (!(real >= 0 && real < STEPS_END && real == floor(real)))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the step of an optimizer is %g, expected a count", real);
    *out = value_new_int(graph, step->kind == VALUE_FLOAT ? (int64_t)real : step->integer);
    return *out ? RESHARD_OK : error_set_memory(err);
}

reshard_status step_to_groups(struct value_graph *graph, struct value *groups, const struct value *step, reshard_error *err)
{
    struct value *count;
    reshard_status status = step_as_int(graph, step, &count, err);
    for (size_t i = 0; i < groups->list.count && !status; i++) {
        struct value *group = groups->list.items[i];
        bool is_open = group->kind == VALUE_DICT && !value_dict_get(group, "step");
        if (is_open && !value_dict_set(graph, group, "step", count, true))
            status = error_set_memory(err);
    }
    return status;
}

struct value *step_find_common(const struct value *optimizer)
{
    const struct value *inner = value_dict_get(optimizer, "optimizer");
    const struct value *state = value_dict_get(inner && inner->kind == VALUE_DICT ? inner : optimizer, "state");
    struct value *step = state && state->kind == VALUE_DICT ? value_dict_get(state, "common_step") : NULL;
    return step;
}
