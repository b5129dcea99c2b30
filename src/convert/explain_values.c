/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes that change values, or turn axes round. */
#include "convert/explain.h"

#include <math.h>

#include "base/decimal_text.h"
#include "kernels/cast.h"

#define BLOCK_ELEMENTS 1024

/* Also of minus zeros. */
static bool is_all_zero(const struct held_tensor *tensor)
{
    const unsigned width = dtype_element_bytes(tensor->dtype);
    to_double_function to_double = cast_to_double_find(tensor->dtype);
    double values[2 * BLOCK_ELEMENTS] = { 0 };
    for (uint64_t done = 0; done < tensor->elements; done += BLOCK_ELEMENTS) {
        size_t part = tensor->elements - done < BLOCK_ELEMENTS ? (size_t)(tensor->elements - done) : BLOCK_ELEMENTS;
        to_double(tensor->bytes + done * width, values, part);
        for (size_t i = 0; i < 2 * BLOCK_ELEMENTS; i++)
            if (values[i] != 0)
                return false;
    }
    return tensor->elements > 0;
}

/* Whether b's bits are a's, cast to `through` and on to b's type. */
static bool is_cast(const struct held_tensor *a, const struct held_tensor *b, enum dtype through)
{
    struct cast there, back;
    uint8_t between[BLOCK_ELEMENTS * 16], made[BLOCK_ELEMENTS * 16];
    const unsigned width_a = dtype_element_bytes(a->dtype), width_b = dtype_element_bytes(b->dtype);
    if (!cast_find(a->dtype, through, &there) || !cast_find(through, b->dtype, &back))
        return false;
    for (uint64_t done = 0; done < a->elements; done += BLOCK_ELEMENTS) {
        size_t part = a->elements - done < BLOCK_ELEMENTS ? (size_t)(a->elements - done) : BLOCK_ELEMENTS;
        cast_run(&there, a->bytes + done * width_a, between, part);
        cast_run(&back, between, made, part);
        if (memcmp(made, b->bytes + done * width_b, part * width_b) != 0)
            return false;
    }
    return true;
}

static bool explain_cast(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    static const enum dtype narrower[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_F8_E5M2 };
    if (a->dtype != b->dtype) {
        if (is_cast(a, b, b->dtype))
            buffer_printf(out, "the second is the first, cast to %s", dtype_info(b->dtype)->name);
        else if (is_cast(b, a, a->dtype))
            buffer_printf(out, "the first is the second, cast to %s", dtype_info(a->dtype)->name);
        return out->size > 0;
    }
    for (size_t i = 0; i < sizeof(narrower) / sizeof(narrower[0]) && !out->size; i++) {
        if (narrower[i] == a->dtype || dtype_info(narrower[i])->bits > dtype_info(a->dtype)->bits)
            continue;
        if (is_cast(a, b, narrower[i]))
            buffer_printf(out, "the second was cast to %s, a narrower type, and back", dtype_info(narrower[i])->name);
        else if (is_cast(b, a, narrower[i]))
            buffer_printf(out, "the first was cast to %s, a narrower type, and back", dtype_info(narrower[i])->name);
    }
    return out->size > 0;
}

/* Whether b has the upper halves of a's float32, as they are or as bfloat16. */
static bool is_cut_to_bf16(const struct held_tensor *a, const struct held_tensor *b)
{
    if (a->dtype != DTYPE_F32 || (b->dtype != DTYPE_F32 && b->dtype != DTYPE_BF16))
        return false;
    for (uint64_t i = 0; i < a->elements; i++) {
        uint32_t whole, half;
        uint16_t code;
        memcpy(&whole, a->bytes + i * sizeof(whole), sizeof(whole));
        if (b->dtype == DTYPE_F32) {
            memcpy(&half, b->bytes + i * sizeof(half), sizeof(half));
        } else {
            memcpy(&code, b->bytes + i * sizeof(code), sizeof(code));
            half = (uint32_t)code << 16;
        }
        if (half != (whole & 0xffff0000))
            return false;
    }
    return true;
}

static bool explain_cut(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    const bool is_second = is_cut_to_bf16(a, b);
    if (is_second || is_cut_to_bf16(b, a))
        buffer_printf(out, "the %s was cast to BF16 by cutting digits off, not by rounding%s", is_second ? "second" : "first",
                      a->dtype == b->dtype ? ", and back" : "");
    return out->size > 0;
}

/* Numbers of one side that are none on the other, where all else agrees. */
static bool explain_lost_numbers(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    const unsigned width = dtype_element_bytes(a->dtype);
    to_double_function to_double = cast_to_double_find(a->dtype);
    uint64_t nan[2] = { 0 }, infinite[2] = { 0 };
    if (a->dtype != b->dtype || dtype_info(a->dtype)->class_ != DTYPE_CLASS_FLOAT)
        return false;
    for (uint64_t i = 0; i < a->elements; i++) {
        double pair[2];
        if (memcmp(a->bytes + i * width, b->bytes + i * width, width) == 0)
            continue;
        to_double(a->bytes + i * width, &pair[0], 1);
        to_double(b->bytes + i * width, &pair[1], 1);
        if ((isfinite(pair[0]) != 0) == (isfinite(pair[1]) != 0))
            return false;
        const int side = isfinite(pair[0]) ? 1 : 0;
        *(isnan(pair[side]) ? &nan[side] : &infinite[side]) += 1;
    }
    for (int side = 0; side < 2; side++) {
        const char *const where = side ? "second" : "first";
        if (nan[side])
            buffer_printf(out, "%llu NaN in the %s alone, ", (unsigned long long)nan[side], where);
        if (infinite[side])
            buffer_printf(out, "%llu infinite in the %s alone, ", (unsigned long long)infinite[side], where);
    }
    buffer_printf(out, "all other values agree");
    return true;
}

/* Relative rounding of one operation in the type. */
static double explain_rounding(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F64: return 0x1p-50;
    case DTYPE_F32: return 0x1p-22;
    case DTYPE_F16: return 0x1p-10;
    case DTYPE_BF16: return 0x1p-7;
    default: return 0;
    }
}

/* One factor for all: from the largest element, then every element must agree. */
static bool explain_factor(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    const double rounding = explain_rounding(a->dtype);
    const unsigned width = dtype_element_bytes(a->dtype);
    to_double_function to_double = cast_to_double_find(a->dtype);
    double x[BLOCK_ELEMENTS], y[BLOCK_ELEMENTS], largest = 0, factor = 0;
    char text[DECIMAL_SHORT_BYTES];
    if (a->dtype != b->dtype || rounding == 0)
        return false;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t done = 0; done < a->elements; done += BLOCK_ELEMENTS) {
            size_t part = a->elements - done < BLOCK_ELEMENTS ? (size_t)(a->elements - done) : BLOCK_ELEMENTS;
            to_double(a->bytes + done * width, x, part);
            to_double(b->bytes + done * width, y, part);
            for (size_t i = 0; i < part; i++) {
                if (pass == 0 && fabs(x[i]) > largest) {
                    largest = fabs(x[i]);
                    factor = y[i] / x[i];
                }
                if (pass && !(fabs(y[i] - factor * x[i]) <= 2 * rounding * fabs(y[i]) + largest * fabs(factor) * 1e-9))
                    return false;
            }
        }
        if (!isfinite(factor) || factor == 0 || fabs(factor - 1) < 4 * rounding)
            return false;
    }
    buffer_printf(out, "the second is the first, scaled by %s", decimal_short(factor, text));
    return true;
}

/* The last two axes change places. */
static bool explain_transposed(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    const unsigned width = dtype_element_bytes(a->dtype);
    if (a->dtype != b->dtype || a->rank < 2 || a->rank != b->rank)
        return false;
    const int r = a->rank;
    const uint64_t rows = (uint64_t)a->shape[r - 2], columns = (uint64_t)a->shape[r - 1];
    for (int i = 0; i < r - 2; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    if (b->shape[r - 2] != a->shape[r - 1] || rows < 2 || columns < 2) /* of as many elements: the other axis fits, too */
        return false;
    for (uint64_t at = 0; at < a->elements; at += rows * columns)
        for (uint64_t i = 0; i < rows; i++)
            for (uint64_t j = 0; j < columns; j++)
                if (memcmp(a->bytes + (at + i * columns + j) * width, b->bytes + (at + j * rows + i) * width, width) != 0)
                    return false;
    buffer_printf(out, "the second is the first, transposed");
    return true;
}

bool explain_values(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out)
{
    if (!cast_to_double_find(a->dtype) || !cast_to_double_find(b->dtype) || a->elements != b->elements || !a->elements)
        return false;
    if (explain_transposed(a, b, out))
        return true;
    if (a->rank != b->rank || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(int64_t)) != 0)
        return false;
    if (is_all_zero(b) || is_all_zero(a)) {
        buffer_printf(out, "the %s is nothing but zeros", is_all_zero(b) ? "second" : "first");
        return true;
    }
    return explain_cast(a, b, out) || explain_cut(a, b, out) || explain_lost_numbers(a, b, out) || explain_factor(a, b, out);
}
