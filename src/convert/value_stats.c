/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/value_stats.h"

#include <string.h>

/*
 * Without its sign a float orders as an integer: beyond the code of infinity lie the NaN. One maximum over a block tells whether it
 * holds anything special or anything but zero, at memory speed; only blocks with something special are looked at twice. Elements may
 * lie anywhere, hence the unaligned type.
 */
#define BLOCK_ELEMENTS 2048

#define COUNT_SPECIALS(name, type, sign_mask, infinity)                                                \
    typedef type name##_element __attribute__((aligned(1), may_alias));                                \
    static void count_##name(struct value_stats *stats, const void *elements, size_t count)            \
    {                                                                                                  \
        const name##_element *block = elements;                                                        \
        while (count) {                                                                                \
            size_t part = count < BLOCK_ELEMENTS ? count : BLOCK_ELEMENTS;                             \
            type largest = 0;                                                                          \
            for (size_t i = 0; i < part; i++) {                                                        \
                type magnitude = (type)(block[i] & (sign_mask));                                       \
                largest = magnitude > largest ? magnitude : largest;                                   \
            }                                                                                          \
            for (size_t i = 0; largest >= (infinity) && i < part; i++) {                               \
                stats->nan_count += (type)(block[i] & (sign_mask)) > (infinity);                       \
                stats->inf_count += (type)(block[i] & (sign_mask)) == (infinity);                      \
            }                                                                                          \
            stats->has_nonzero = stats->has_nonzero || largest;                                        \
            block += part;                                                                             \
            count -= part;                                                                             \
        }                                                                                              \
    }

COUNT_SPECIALS(f16, int16_t, 0x7FFF, 0x7C00)
COUNT_SPECIALS(bf16, int16_t, 0x7FFF, 0x7F80)
COUNT_SPECIALS(f32, int32_t, 0x7FFFFFFF, 0x7F800000)
COUNT_SPECIALS(f64, int64_t, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000)

/* Eight-bit floats: by a histogram of the few codes that count. */
static void count_bytes(struct value_stats *stats, enum dtype dtype, const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint8_t code = bytes[i], magnitude = code & 0x7F;
        bool is_nan = false, is_inf = false;
        switch (dtype) {
        case DTYPE_F8_E4M3: is_nan = magnitude == 0x7F; break;
        case DTYPE_F8_E5M2: is_nan = magnitude > 0x7C; is_inf = magnitude == 0x7C; break;
        case DTYPE_F8_E4M3FNUZ:
        case DTYPE_F8_E5M2FNUZ: is_nan = code == 0x80; break;
        case DTYPE_F8_E8M0: is_nan = code == 0xFF; magnitude = 1; break; /* a power of two is never zero */
        default: magnitude = code; break;
        }
        stats->nan_count += is_nan;
        stats->inf_count += is_inf;
        stats->has_nonzero = stats->has_nonzero || magnitude;
    }
}

static bool any_nonzero(const uint8_t *bytes, size_t size)
{
    while (size) {
        uint64_t block[64] = { 0 }, any = 0;
        size_t part = size < sizeof(block) ? size : sizeof(block);
        memcpy(block, bytes, part);
        for (size_t i = 0; i < 64; i++)
            any |= block[i];
        if (any)
            return true;
        bytes += part;
        size -= part;
    }
    return false;
}

void value_stats_add(struct value_stats *stats, enum dtype dtype, const void *elements, size_t count)
{
    const struct dtype_info *info = dtype_info(dtype);
    size_t bytes = count * info->bits / 8;
    switch (dtype) {
    case DTYPE_F16: count_f16(stats, elements, count); break;
    case DTYPE_BF16: count_bf16(stats, elements, count); break;
    case DTYPE_COMPLEX32: count_f16(stats, elements, count * 2); break;
    case DTYPE_F32: count_f32(stats, elements, count); break;
    case DTYPE_C64: count_f32(stats, elements, count * 2); break;
    case DTYPE_F64: count_f64(stats, elements, count); break;
    case DTYPE_C128: count_f64(stats, elements, count * 2); break;
    default:
        if (info->bits == 8 && info->class_ == DTYPE_CLASS_FLOAT)
            count_bytes(stats, dtype, elements, count);
        else if (!stats->has_nonzero)
            stats->has_nonzero = any_nonzero(elements, bytes);
        break;
    }
}
