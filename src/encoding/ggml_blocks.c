/* SPDX-License-Identifier: Apache-2.0 */
/* Multiplications and additions stay in the order of gguf.quants, and are not fused: the build says -ffp-contract=off. */
#include "encoding/ggml_blocks.h"

#include "base/cursor.h"
#include "base/float_bits.h"

/* gcc vectorises these loops only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define SUPER 256 /* elements of a block of the kinds with scales of their own inside (K, TQ, IQ) */

static float half_at(const uint8_t *at)
{
    return half_decode((uint32_t)load_le(at, 2), 10);
}

/* ---- 32 elements under one scale: low halves of all bytes first, then the high ones ---- */

#define HALF 16

static void decode_q4_0(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 18, out += 2 * HALF) {
        float d = half_at(in);
        const uint8_t *qs = in + 2;
        for (int i = 0; i < HALF; i++) {
            out[i] = d * (float)((qs[i] & 15) - 8);
            out[i + HALF] = d * (float)((qs[i] >> 4) - 8);
        }
    }
}

static void decode_q4_1(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 20, out += 2 * HALF) {
        float d = half_at(in), m = half_at(in + 2);
        const uint8_t *qs = in + 4;
        for (int i = 0; i < HALF; i++) {
            out[i] = d * (float)(qs[i] & 15) + m;
            out[i + HALF] = d * (float)(qs[i] >> 4) + m;
        }
    }
}

static void decode_q5_0(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 22, out += 2 * HALF) {
        float d = half_at(in);
        uint32_t high = (uint32_t)load_le(in + 2, 4);
        const uint8_t *qs = in + 6;
        for (int i = 0; i < HALF; i++) {
            out[i] = d * (float)((int)((qs[i] & 15u) | (high >> i & 1) << 4) - 16);
            out[i + HALF] = d * (float)((int)((uint32_t)(qs[i] >> 4) | (high >> (i + HALF) & 1) << 4) - 16);
        }
    }
}

static void decode_q5_1(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 24, out += 2 * HALF) {
        float d = half_at(in), m = half_at(in + 2);
        uint32_t high = (uint32_t)load_le(in + 4, 4);
        const uint8_t *qs = in + 8;
        for (int i = 0; i < HALF; i++) {
            out[i] = d * (float)(int)((qs[i] & 15u) | (high >> i & 1) << 4) + m;
            out[i + HALF] = d * (float)(int)((uint32_t)(qs[i] >> 4) | (high >> (i + HALF) & 1) << 4) + m;
        }
    }
}

static void decode_q8_0(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 34, out += 2 * HALF) {
        float d = half_at(in);
        for (int i = 0; i < 2 * HALF; i++)
            out[i] = (float)(int8_t)in[2 + i] * d;
    }
}

/* ---- 256 elements, scaled in parts of 16 or 32 ---- */

static void decode_q2_k(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 84, out += SUPER) {
        const uint8_t *scales = in, *qs = in + 16;
        float d = half_at(in + 80), least = half_at(in + 82);
        for (int part = 0; part < 16; part++) {
            float dl = d * (float)(scales[part] & 15), ml = least * (float)(scales[part] >> 4);
            const uint8_t *from = qs + part / 8 * 32 + part % 2 * 16;
            for (int i = 0; i < 16; i++)
                out[part * 16 + i] = dl * (float)(from[i] >> part / 2 % 4 * 2 & 3) - ml;
        }
    }
}

/* The six bits of scale `part` of Q3_K: four of them in two parts a byte, two in four parts a byte behind. */
static int q3_scale(const uint8_t *scales, int part)
{
    int low = scales[part % 8] >> part / 8 * 4 & 15, high = scales[8 + part % 4] >> part / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

static void decode_q3_k(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 110, out += SUPER) {
        const uint8_t *mask = in, *qs = in + 32, *scales = in + 96;
        float d = half_at(in + 108);
        for (int part = 0; part < 16; part++) {
            float dl = d * (float)q3_scale(scales, part);
            const uint8_t *from = qs + part / 8 * 32 + part % 2 * 16, *bits = mask + part % 2 * 16;
            for (int i = 0; i < 16; i++) { /* a bit that is set takes nothing off */
                int q = (from[i] >> part / 2 % 4 * 2 & 3) - (bits[i] >> part / 2 & 1 ? 0 : 4);
                out[part * 16 + i] = dl * (float)q;
            }
        }
    }
}

/* Scale and least value of part 0 to 7, six bits each, of Q4_K and Q5_K: the last four have their low bits behind, and the high ones where
 * the first four leave room. */
static void k_scale(const uint8_t *scales, int part, int *scale, int *least)
{
    if (part < 4) {
        *scale = scales[part] & 63;
        *least = scales[part + 4] & 63;
    } else {
        *scale = (scales[part + 4] & 15) | (scales[part - 4] >> 2 & 48);
        *least = scales[part + 4] >> 4 | (scales[part] >> 2 & 48);
    }
}

static void decode_q4_k(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 144, out += SUPER) {
        float d = half_at(in), d_least = half_at(in + 2);
        for (int part = 0; part < 8; part++) {
            int scale, least;
            k_scale(in + 4, part, &scale, &least);
            float dl = d * (float)scale, ml = d_least * (float)least;
            const uint8_t *from = in + 16 + part / 2 * 32;
            for (int i = 0; i < 32; i++)
                out[part * 32 + i] = dl * (float)(from[i] >> part % 2 * 4 & 15) - ml;
        }
    }
}

static void decode_q5_k(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 176, out += SUPER) {
        float d = half_at(in), d_least = half_at(in + 2);
        const uint8_t *bits = in + 16;
        for (int part = 0; part < 8; part++) {
            int scale, least;
            k_scale(in + 4, part, &scale, &least);
            float dl = d * (float)scale, ml = d_least * (float)least;
            const uint8_t *from = in + 48 + part / 2 * 32;
            for (int i = 0; i < 32; i++)
                out[part * 32 + i] = dl * (float)((from[i] >> part % 2 * 4 & 15) | (bits[i] >> part & 1) << 4) - ml;
        }
    }
}

static void decode_q6_k(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 210, out += SUPER) {
        const uint8_t *low = in, *high = in + 128, *scales = in + 192;
        float d = half_at(in + 208);
        for (int part = 0; part < 16; part++) {
            float dl = d * (float)(int8_t)scales[part];
            const uint8_t *from = low + part / 8 * 64 + part % 4 * 16, *bits = high + part / 8 * 32 + part % 2 * 16;
            int shift = part / 4 % 2 * 4, high_shift = part / 2 % 4 * 2;
            for (int i = 0; i < 16; i++)
                out[part * 16 + i] = dl * (float)(((from[i] >> shift & 15) | (bits[i] >> high_shift & 3) << 4) - 32);
        }
    }
}

/* ---- three values an element ---- */

/* Elements of `width` bytes, a power of three after the other: the highest digit of a byte that is a fraction in base three. */
static float *ternary_decode(const uint8_t *in, int width, int powers, float d, float *out)
{
    static const uint8_t power[] = { 1, 3, 9, 27, 81 };
    for (int p = 0; p < powers; p++)
        for (int i = 0; i < width; i++)
            *out++ = d * (float)(((uint8_t)(in[i] * power[p]) * 3 >> 8) - 1);
    return out;
}

static void decode_tq1_0(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 54) {
        float d = half_at(in + 52);
        out = ternary_decode(in, 32, 5, d, out);
        out = ternary_decode(in + 32, 16, 5, d, out);
        out = ternary_decode(in + 48, 4, 4, d, out);
    }
}

static void decode_tq2_0(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 66, out += SUPER) {
        float d = half_at(in + 64);
        for (int part = 0; part < 8; part++)
            for (int i = 0; i < 32; i++)
                out[part * 32 + i] = d * (float)((in[part / 4 * 32 + i] >> part % 4 * 2 & 3) - 1);
    }
}

/* ---- four bits that choose a value ---- */

static const int8_t non_linear[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

/* What the four bits of a small float (e2m1) mean, doubled. */
static const int8_t small_floats[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* Low halves of `width` bytes, then the high ones. */
static void chosen_decode(const int8_t *values, const uint8_t *in, int width, float d, float *out)
{
    for (int i = 0; i < width; i++) {
        out[i] = d * (float)values[in[i] & 15];
        out[i + width] = d * (float)values[in[i] >> 4];
    }
}

static void decode_iq4_nl(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 18, out += 2 * HALF)
        chosen_decode(non_linear, in + 2, HALF, half_at(in), out);
}

static void decode_iq4_xs(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 136, out += SUPER) {
        float d = half_at(in);
        unsigned high = (unsigned)load_le(in + 2, 2);
        for (int part = 0; part < 8; part++) {
            int scale = (int)((in[4 + part / 2] >> part % 2 * 4 & 15u) | (high >> 2 * part & 3) << 4) - 32;
            chosen_decode(non_linear, in + 8 + part * HALF, HALF, d * (float)scale, out + part * 32);
        }
    }
}

static void decode_mxfp4(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 17, out += 2 * HALF) { /* half of two to the power of the byte less 127: the values are doubled */
        uint32_t exponent = in[0];
        float d = float_from_bits(exponent < 2 ? UINT32_C(0x200000) << exponent : (exponent - 1) << 23);
        chosen_decode(small_floats, in + 1, HALF, d, out);
    }
}

/* Half of what eight bits without a sign mean (e4m3); the highest bit counts for nothing but in telling the NaN. */
static float unsigned_e4m3_half(uint8_t bits)
{
    int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 0x7F)
        return 0;
    if (!exponent)
        return (float)mantissa / 1024;
    return float_from_bits((uint32_t)(exponent - 8 + 127) << 23) * (1 + (float)mantissa / 8);
}

static void decode_nvfp4(const uint8_t *in, size_t count, float *out)
{
    for (; count; count--, in += 36, out += 64)
        for (int part = 0; part < 4; part++)
            chosen_decode(small_floats, in + 4 + part * 8, 8, unsigned_e4m3_half(in[part]), out + part * 16);
}

/* ---- the table ---- */

#define HALVES_MAX 2

static const struct ggml_block_info infos[GGML_BLOCK_COUNT] = {
#define X(name, number, elements, bytes) { #name, number, elements, bytes },
    GGML_BLOCKS(X)
#undef X
};

/* halves: where a block has numbers of two bytes, which are swapped in big-endian files; of the others nothing says how they lie there. */
static const struct block_row {
    void (*decode)(const uint8_t *in, size_t count, float *out);
    bool may_be_swapped;
    uint8_t half_count, halves[HALVES_MAX];
} block_rows[GGML_BLOCK_COUNT] = {
    [GGML_Q4_0] = { decode_q4_0, true, 1, { 0 } },
    [GGML_Q4_1] = { .decode = decode_q4_1 },
    [GGML_Q5_0] = { .decode = decode_q5_0 },
    [GGML_Q5_1] = { .decode = decode_q5_1 },
    [GGML_Q8_0] = { decode_q8_0, true, 1, { 0 } },
    [GGML_Q2_K] = { .decode = decode_q2_k },
    [GGML_Q3_K] = { .decode = decode_q3_k },
    [GGML_Q4_K] = { decode_q4_k, true, 2, { 0, 2 } },
    [GGML_Q5_K] = { .decode = decode_q5_k },
    [GGML_Q6_K] = { decode_q6_k, true, 1, { 208 } },
    [GGML_TQ1_0] = { .decode = decode_tq1_0 },
    [GGML_TQ2_0] = { .decode = decode_tq2_0 },
    [GGML_IQ4_NL] = { .decode = decode_iq4_nl },
    [GGML_IQ4_XS] = { .decode = decode_iq4_xs },
    [GGML_MXFP4] = { .decode = decode_mxfp4, .may_be_swapped = true },
    [GGML_NVFP4] = { .decode = decode_nvfp4, .may_be_swapped = true },
};

const struct ggml_block_info *ggml_block_info(enum ggml_block block)
{
    return &infos[block];
}

bool ggml_block_find(uint32_t number, enum ggml_block *out)
{
    for (int i = 0; i < GGML_BLOCK_COUNT; i++) {
        if (infos[i].number == number) {
            *out = (enum ggml_block)i;
            return true;
        }
    }
    return false;
}

bool ggml_block_is_read(enum ggml_block block, bool is_swapped)
{
    return block_rows[block].decode && (!is_swapped || block_rows[block].may_be_swapped);
}

void ggml_blocks_decode(enum ggml_block block, bool is_swapped, const uint8_t *in, size_t count, float *out)
{
    const struct block_row *row = &block_rows[block];
    uint8_t turned[GGML_BLOCK_BYTES_MAX];
    if (!is_swapped || !row->half_count) {
        row->decode(in, count, out);
        return;
    }
    for (; count; count--, in += infos[block].bytes, out += infos[block].elements) {
        memcpy(turned, in, infos[block].bytes);
        for (int i = 0; i < row->half_count; i++) {
            turned[row->halves[i]] = in[row->halves[i] + 1];
            turned[row->halves[i] + 1] = in[row->halves[i]];
        }
        row->decode(turned, 1, out);
    }
}
