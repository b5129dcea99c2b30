/* SPDX-License-Identifier: Apache-2.0 */
#include "api/value_stats.h"

#include <string.h>

/*
 * One pass over integers of the float's width: the exponent all ones means infinity (mantissa 0) or NaN. Written so that the compiler
 * makes vector code of it.
 */
#define COUNT_SPECIALS(width, sign_mask, infinity)                                \
    static void count_##width##_##infinity(struct value_stats *stats, const uint8_t *bytes, size_t count) \
    {                                                                             \
        uint64_t nan_count = 0, inf_count = 0;                                    \
        uint##width##_t any = 0;                                                  \
        while (count) {                                                           \
            uint##width##_t block[512];                                           \
            size_t part = count < 512 ? count : 512;                              \
            uint##width##_t nans = 0, infs = 0;                                   \
            memcpy(block, bytes, part * sizeof(block[0]));                        \
            for (size_t i = 0; i < part; i++) {                                   \
                uint##width##_t magnitude = block[i] & (uint##width##_t)(sign_mask); \
                any |= magnitude;                                                 \
                nans = (uint##width##_t)(nans + (magnitude > (uint##width##_t)(infinity))); \
                infs = (uint##width##_t)(infs + (magnitude == (uint##width##_t)(infinity))); \
            }                                                                     \
            nan_count += nans;                                                    \
            inf_count += infs;                                                    \
            bytes += part * sizeof(block[0]);                                     \
            count -= part;                                                        \
        }                                                                         \
        stats->nan_count += nan_count;                                            \
        stats->inf_count += inf_count;                                            \
        stats->has_nonzero = stats->has_nonzero || any;                           \
    }

COUNT_SPECIALS(16, 0x7FFF, 0x7C00)             /* F16 */
COUNT_SPECIALS(16, 0x7FFF, 0x7F80)             /* BF16 */
COUNT_SPECIALS(32, 0x7FFFFFFF, 0x7F800000)     /* F32 and the parts of C64 */
COUNT_SPECIALS(64, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000) /* F64 and the parts of C128 */

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
    case DTYPE_F16: count_16_0x7C00(stats, elements, count); break;
    case DTYPE_BF16: count_16_0x7F80(stats, elements, count); break;
    case DTYPE_COMPLEX32: count_16_0x7C00(stats, elements, count * 2); break;
    case DTYPE_F32: count_32_0x7F800000(stats, elements, count); break;
    case DTYPE_C64: count_32_0x7F800000(stats, elements, count * 2); break;
    case DTYPE_F64: count_64_0x7FF0000000000000(stats, elements, count); break;
    case DTYPE_C128: count_64_0x7FF0000000000000(stats, elements, count * 2); break;
    default:
        if (info->bits == 8 && info->class_ == DTYPE_CLASS_FLOAT)
            count_bytes(stats, dtype, elements, count);
        else if (!stats->has_nonzero)
            stats->has_nonzero = any_nonzero(elements, bytes);
        break;
    }
}
