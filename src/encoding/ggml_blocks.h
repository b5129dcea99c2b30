/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that ggml quantises weights in: so many elements in so many bytes, each block by itself. A block is shown as the float32
 * numbers that it means, computed in the order in which the package `gguf` (gguf.quants.dequantize) does, so that the bits are the same.
 */
#ifndef ENCODING_GGML_BLOCKS_H
#define ENCODING_GGML_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, number in files, elements, bytes */
#define GGML_BLOCKS(X)      \
    X(Q4_0, 2, 32, 18)      \
    X(Q4_1, 3, 32, 20)      \
    X(Q5_0, 6, 32, 22)      \
    X(Q5_1, 7, 32, 24)      \
    X(Q8_0, 8, 32, 34)      \
    X(Q8_1, 9, 32, 36)      \
    X(Q2_K, 10, 256, 84)    \
    X(Q3_K, 11, 256, 110)   \
    X(Q4_K, 12, 256, 144)   \
    X(Q5_K, 13, 256, 176)   \
    X(Q6_K, 14, 256, 210)   \
    X(Q8_K, 15, 256, 292)   \
    X(IQ2_XXS, 16, 256, 66) \
    X(IQ2_XS, 17, 256, 74)  \
    X(IQ3_XXS, 18, 256, 98) \
    X(IQ1_S, 19, 256, 50)   \
    X(IQ4_NL, 20, 32, 18)   \
    X(IQ3_S, 21, 256, 110)  \
    X(IQ2_S, 22, 256, 82)   \
    X(IQ4_XS, 23, 256, 136) \
    X(IQ1_M, 29, 256, 56)   \
    X(TQ1_0, 34, 256, 54)   \
    X(TQ2_0, 35, 256, 66)   \
    X(MXFP4, 39, 32, 17)    \
    X(NVFP4, 40, 64, 36)    \
    X(Q1_0, 41, 128, 18)    \
    X(Q2_0, 42, 64, 18)

enum ggml_block {
#define X(name, number, elements, bytes) GGML_##name,
    GGML_BLOCKS(X)
#undef X
    GGML_BLOCK_COUNT
};

struct ggml_block_info {
    const char *name;
    uint32_t number;
    uint16_t elements, bytes;
};

#define GGML_BLOCK_BYTES_MAX 292

const struct ggml_block_info *ggml_block_info(enum ggml_block block);

/* By the number that files have; false if there is none. */
bool ggml_block_find(uint32_t number, enum ggml_block *out);

/* Whether ggml_blocks_decode knows it; in big-endian files only such are whose fields the package's converter of byte orders knows. */
bool ggml_block_is_read(enum ggml_block block, bool is_swapped);

/* Decodes `count` blocks of a kind that is read into elements * count numbers. */
void ggml_blocks_decode(enum ggml_block block, bool is_swapped, const uint8_t *in, size_t count, float *out);

#endif
