/* SPDX-License-Identifier: Apache-2.0 */
/* numcodecs' filters: small transformations of the elements, undone. They work on integers and on float32 and float64. ggml's blocks become
 * the latter. */
#include "encoding/chain_parts.h"

#include <inttypes.h>

#include "base/cursor.h"

reshard_status chain_unshuffle(struct chain_call *call, reshard_error *err)
{
    size_t width = call->step->element_bytes ? call->step->element_bytes : 1, count = call->in_size / width;
    if (call->in_size != call->room)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu shuffled bytes, expected %zu", call->in_size, call->room);
    for (size_t byte = 0; byte < width; byte++) {
        const uint8_t *plane = call->in + byte * count;
        uint8_t *out = call->out + byte;
        for (size_t i = 0; i < count; i++)
            out[i * width] = plane[i];
    }
    for (size_t i = count * width; i < call->in_size; i++)
        call->out[i] = call->in[i];
    call->made = call->in_size;
    return RESHARD_OK;
}

reshard_status chain_unpackbits(struct chain_call *call, reshard_error *err)
{
    size_t bytes = (call->room + 7) / 8, unused = bytes * 8 - call->room;
    if (call->in_size != bytes + 1)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu packed bytes for %zu elements, expected %zu", call->in_size, call->room, bytes + 1);
    if (call->in[0] != unused)
        return error_set(err, RESHARD_ERR_FORMAT, "%u unused bits in the last packed byte, expected %zu", call->in[0], unused);
    for (size_t i = 0; i < call->room; i++)
        call->out[i] = call->in[1 + i / 8] >> (7 - i % 8) & 1;
    call->made = call->room;
    return RESHARD_OK;
}

#define BLOCK_ELEMENTS_MAX 256

reshard_status chain_unblock(struct chain_call *call, reshard_error *err)
{
    const struct ggml_block_info *block = ggml_block_info(call->step->block);
    size_t shown = block->elements * sizeof(float), count = call->room / shown;
    if (call->in_size != count * block->bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes of %s, expected %zu blocks of %u", call->in_size, block->name, count,
                         block->bytes);
    if ((uintptr_t)call->out % _Alignof(float) == 0) {
        ggml_blocks_decode(call->step->block, call->step->is_swapped, call->in, count, (float *)(void *)call->out);
    } else {
        float one[BLOCK_ELEMENTS_MAX];
        for (size_t i = 0; i < count; i++) {
            ggml_blocks_decode(call->step->block, call->step->is_swapped, call->in + i * block->bytes, 1, one);
            memcpy(call->out + i * shown, one, shown);
        }
    }
    call->made = call->room;
    return RESHARD_OK;
}

/* ---- numbers ---- */

/* An element on its way: integers stay exact. */
struct number {
    bool is_float, is_unsigned;
    int64_t integer;
    double real;
};

static uint64_t bits_load(const struct chain_number *type, const uint8_t *at)
{
    int width = (int)dtype_element_bytes(type->dtype);
    uint64_t bits = load_le(at, width);
    return type->is_swapped ? __builtin_bswap64(bits) >> (64 - 8 * width) : bits;
}

static void bits_store(const struct chain_number *type, uint64_t bits, uint8_t *at)
{
    int width = (int)dtype_element_bytes(type->dtype);
    bits = type->is_swapped ? __builtin_bswap64(bits) >> (64 - 8 * width) : bits;
    for (int i = 0; i < width; i++)
        at[i] = (uint8_t)(bits >> (8 * i));
}

static struct number number_load(const struct chain_number *type, const uint8_t *at)
{
    uint64_t bits = bits_load(type, at);
    int width = 8 * (int)dtype_element_bytes(type->dtype);
    uint32_t half = (uint32_t)bits;
    float single;
    double real;
    switch (type->dtype) {
    case DTYPE_F32:
        memcpy(&single, &half, sizeof(single));
        return (struct number){ .is_float = true, .real = (double)single };
    case DTYPE_F64:
        memcpy(&real, &bits, sizeof(real));
        return (struct number){ .is_float = true, .real = real };
    default:
        break;
    }
    bool is_unsigned = dtype_info(type->dtype)->class_ != DTYPE_CLASS_INT;
    int64_t integer = is_unsigned || width == 64 ? (int64_t)bits : (int64_t)(bits << (64 - width)) >> (64 - width);
    return (struct number){ .is_unsigned = is_unsigned, .integer = integer };
}

/* As C converts, but for what does not fit, which C leaves open: the nearest there is. */
static int64_t integer_of(double real)
{
    if (!(real > -9.3e18))
        return INT64_MIN;
    return real >= 9.223372036854775807e18 ? INT64_MAX : (int64_t)real;
}

static double real_of(const struct number *number)
{
    if (number->is_float)
        return number->real;
    return number->is_unsigned ? (double)(uint64_t)number->integer : (double)number->integer;
}

static void number_store(const struct chain_number *type, const struct number *number, uint8_t *at)
{
    double real = real_of(number);
    float single = (float)real;
    uint32_t half;
    uint64_t bits;
    switch (type->dtype) {
    case DTYPE_F32:
        memcpy(&half, &single, sizeof(half));
        bits = half;
        break;
    case DTYPE_F64:
        memcpy(&bits, &real, sizeof(bits));
        break;
    case DTYPE_BOOL:
        bits = number->is_float ? number->real != 0 : number->integer != 0;
        break;
    default:
        bits = (uint64_t)(number->is_float ? integer_of(number->real) : number->integer);
    }
    bits_store(type, bits, at);
}

static bool chain_filter_is_number(enum dtype dtype)
{
    unsigned class_ = dtype_info(dtype)->class_;
    return dtype == DTYPE_F32 || dtype == DTYPE_F64 || class_ == DTYPE_CLASS_INT || class_ == DTYPE_CLASS_UINT ||
           class_ == DTYPE_CLASS_BOOL;
}

/* Elements of the call; fails if sizes or types are none that the step can have. */
static reshard_status elements_count(const struct chain_call *call, size_t *count, reshard_error *err)
{
    const struct chain_step *step = call->step;
    if (!chain_filter_is_number(step->stored.dtype) || !chain_filter_is_number(step->shown.dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "filter '%s' between %s and %s; integers, F32 and F64 are supported",
                         chain_kind_name(step->kind), dtype_info(step->shown.dtype)->name, dtype_info(step->stored.dtype)->name);
    *count = call->room / dtype_element_bytes(step->shown.dtype);
    if (call->in_size != *count * dtype_element_bytes(step->stored.dtype))
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes of %s, expected %zu elements", call->in_size,
                         dtype_info(step->stored.dtype)->name, *count);
    return RESHARD_OK;
}

reshard_status chain_undelta(struct chain_call *call, reshard_error *err)
{
    const struct chain_step *step = call->step;
    size_t count, in_bytes = dtype_element_bytes(step->stored.dtype), out_bytes = dtype_element_bytes(step->shown.dtype);
    struct number sum = { 0 };
    float single = 0;
    reshard_status status = elements_count(call, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        struct number next = number_load(&step->stored, call->in + i * in_bytes);
        if (next.is_float && step->stored.dtype == DTYPE_F32) {
            single = i ? single + (float)next.real : (float)next.real;
            next.real = (double)single;
        } else if (next.is_float) {
            next.real = i ? sum.real + next.real : next.real;
        } else {
            next.integer = (int64_t)((uint64_t)sum.integer + (uint64_t)next.integer);
        }
        sum = next;
        number_store(&step->shown, &sum, call->out + i * out_bytes);
    }
    call->made = call->room;
    return status;
}

reshard_status chain_unastype(struct chain_call *call, reshard_error *err)
{
    const struct chain_step *step = call->step;
    size_t count, in_bytes = dtype_element_bytes(step->stored.dtype), out_bytes = dtype_element_bytes(step->shown.dtype);
    reshard_status status = elements_count(call, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        struct number number = number_load(&step->stored, call->in + i * in_bytes);
        number_store(&step->shown, &number, call->out + i * out_bytes);
    }
    call->made = call->room;
    return status;
}

reshard_status chain_unscale(struct chain_call *call, reshard_error *err)
{
    const struct chain_step *step = call->step;
    size_t count, in_bytes = dtype_element_bytes(step->stored.dtype), out_bytes = dtype_element_bytes(step->shown.dtype);
    reshard_status status = elements_count(call, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        struct number number = number_load(&step->stored, call->in + i * in_bytes);
        double real = real_of(&number) / step->scale + step->offset;
        if (step->stored.dtype == DTYPE_F32) /* numpy stays in the stored type's precision */
            real = (double)((float)real_of(&number) / (float)step->scale + (float)step->offset);
        number = (struct number){ .is_float = true, .real = real };
        number_store(&step->shown, &number, call->out + i * out_bytes);
    }
    call->made = call->room;
    return status;
}
