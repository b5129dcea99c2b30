/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/element_ops.h"

#include <string.h>

#define SWAP_WORDS(bits)                                                                                                                   \
    for (size_t i = 0; i < word_count; i++) {                                                                                              \
        uint##bits##_t word;                                                                                                               \
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));                                                                             \
        word = __builtin_bswap##bits(word);                                                                                                \
        memcpy(bytes + i * sizeof(word), &word, sizeof(word));                                                                             \
    }

void bytes_swap(void *elements, size_t word_bytes, size_t word_count)
{
    uint8_t *bytes = elements;
    if (word_bytes == 2)
        SWAP_WORDS(16)
    else if (word_bytes == 4)
        SWAP_WORDS(32)
    else if (word_bytes == 8)
        SWAP_WORDS(64)
}

/* bcomplex32 is opaque to casts, but its halves carry signs like any float's. */
static bool dtype_is_complex(enum dtype dtype)
{
    return dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX || dtype == DTYPE_BCOMPLEX32;
}

bool dtype_has_negation(enum dtype dtype)
{
    unsigned class_ = dtype_info(dtype)->class_;
    return dtype_is_complex(dtype) || class_ == DTYPE_CLASS_FLOAT || class_ == DTYPE_CLASS_INT || class_ == DTYPE_CLASS_UINT;
}

bool dtype_has_conjugation(enum dtype dtype)
{
    return dtype_is_complex(dtype);
}

/* Flips the top bit of every step-th word of word_bytes bytes, starting with `first`. */
static void signs_flip(uint8_t *bytes, size_t word_bytes, size_t first, size_t step, size_t word_count)
{
    for (size_t i = first; i < word_count; i += step)
        bytes[i * word_bytes + word_bytes - 1] ^= 0x80;
}

#define NEGATE_WORDS(bits)                                                                                                                 \
    for (size_t i = 0; i < count; i++) {                                                                                                   \
        uint##bits##_t word;                                                                                                               \
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));                                                                             \
        word = (uint##bits##_t)(0 - word);                                                                                                 \
        memcpy(bytes + i * sizeof(word), &word, sizeof(word));                                                                             \
    }

static void integers_negate(uint8_t *bytes, unsigned bits, size_t count)
{
    if (bits == 8)
        NEGATE_WORDS(8)
    else if (bits == 16)
        NEGATE_WORDS(16)
    else if (bits == 32)
        NEGATE_WORDS(32)
    else
        NEGATE_WORDS(64)
}

static void floats_negate(enum dtype dtype, uint8_t *bytes, size_t count)
{
    if (dtype == DTYPE_F8_E8M0) /* has no sign */
        return;
    if (dtype == DTYPE_F8_E4M3FNUZ || dtype == DTYPE_F8_E5M2FNUZ) {
        for (size_t i = 0; i < count; i++)
            bytes[i] ^= bytes[i] & 0x7f ? 0x80 : 0; /* 0 has one form, and minus 0 would be NaN */
        return;
    }
    signs_flip(bytes, dtype_element_bytes(dtype), 0, 1, count);
}

void elements_negate(enum dtype dtype, bool negate, bool conjugate, void *elements, size_t count)
{
    const struct dtype_info *info = dtype_info(dtype);
    uint8_t *bytes = elements;
    if (dtype_is_complex(dtype)) {
        size_t word_bytes = info->swap_bytes;
        if (negate)
            signs_flip(bytes, word_bytes, 0, 2, 2 * count);
        if (negate != conjugate)
            signs_flip(bytes, word_bytes, 1, 2, 2 * count);
        return;
    }
    if (!negate)
        return;
    if (info->class_ == DTYPE_CLASS_FLOAT)
        floats_negate(dtype, bytes, count);
    else if (info->class_ == DTYPE_CLASS_INT || info->class_ == DTYPE_CLASS_UINT)
        integers_negate(bytes, info->bits, count);
}

void bf16_plain_nan(void *elements, size_t count)
{
    uint8_t *bytes = elements;
    for (size_t i = 0; i < count; i++) {
        uint16_t word;
        memcpy(&word, bytes + i * sizeof(word), sizeof(word));
        word = (word & 0x7fff) > 0x7f80 ? 0xffff : word;
        memcpy(bytes + i * sizeof(word), &word, sizeof(word));
    }
}
