/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small float types to and from float32, on bits, without branches that keep compilers from vectorising. Decoding is exact;
 * encoding rounds to nearest even.
 */
#ifndef BASE_FLOAT_BITS_H
#define BASE_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float bf16_decode(uint16_t bits)
{
    return float_from_bits((uint32_t)bits << 16);
}

static inline uint16_t bf16_encode(float value)
{
    uint32_t bits = float_to_bits(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

/* 5 exponent bits, mantissa_bits below, in the low bits; as IEEE says. NaN is made quiet and keeps its payload. */
static inline float half_decode(uint32_t bits, int mantissa_bits)
{
    uint32_t magnitude = (bits & ((UINT32_C(1) << (5 + mantissa_bits)) - 1)) << (23 - mantissa_bits);
    uint32_t sign = bits >> (5 + mantissa_bits) << 31;
    uint32_t normal = magnitude + (UINT32_C(112) << 23);
    uint32_t subnormal = float_to_bits(float_from_bits(magnitude + (UINT32_C(113) << 23)) - float_from_bits(UINT32_C(113) << 23));
    uint32_t special = magnitude + (UINT32_C(224) << 23);
    uint32_t quiet = magnitude > UINT32_C(31) << 23 ? UINT32_C(1) << 22 : 0;
    uint32_t result = magnitude < UINT32_C(1) << 23 ? subnormal : magnitude >= UINT32_C(31) << 23 ? special | quiet : normal;
    return float_from_bits(sign | result);
}

/*
 * |value| in a format with mantissa_bits and an exponent bias, rounded to nearest even, as if exponents went on for ever: the caller
 * deals with overflow. Subnormals are rounded by adding a float whose last place is theirs. Not for NaN or infinity.
 */
static inline uint32_t magnitude_encode(uint32_t magnitude, int mantissa_bits, int bias)
{
    uint32_t shift = 23 - (uint32_t)mantissa_bits;
    uint32_t smallest_normal = (uint32_t)(128 - bias) << 23;
    uint32_t anchor = (uint32_t)(128 - bias + (int)shift) << 23;
    uint32_t subnormal = float_to_bits(float_from_bits(magnitude) + float_from_bits(anchor)) - anchor;
    uint32_t rounded = magnitude + ((UINT32_C(1) << (shift - 1)) - 1) + (magnitude >> shift & 1);
    uint32_t normal = (rounded >> shift) - ((uint32_t)(127 - bias) << mantissa_bits);
    return magnitude < smallest_normal ? subnormal : normal;
}

static inline uint16_t f16_encode(float value)
{
    uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    uint32_t finite = magnitude_encode(magnitude, 10, 15);
    uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    uint32_t result = magnitude > 0x7f800000 ? nan : finite > 0x7c00 || magnitude == 0x7f800000 ? 0x7c00 : finite;
    return (uint16_t)(sign | result);
}

static inline uint8_t f8_e5m2_encode(float value)
{
    uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t finite = magnitude_encode(magnitude, 2, 15);
    uint32_t result = magnitude > 0x7f800000 ? 0x7f : finite > 0x7c || magnitude == 0x7f800000 ? 0x7c : finite;
    return (uint8_t)(sign | result);
}

/* No infinity: what is too large, infinities too, becomes the largest number, 448. */
static inline uint8_t f8_e4m3_encode(float value)
{
    uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t finite = magnitude_encode(magnitude, 3, 7);
    uint32_t result = magnitude > 0x7f800000 ? 0x7f : finite > 0x7e || magnitude == 0x7f800000 ? 0x7e : finite;
    return (uint8_t)(sign | result);
}

/* The FNUZ types have one zero, one NaN (the code of minus zero), and no infinity: what is too large becomes NaN. */
static inline uint8_t fnuz_encode(float value, int mantissa_bits, int bias)
{
    uint32_t bits = float_to_bits(value), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    uint32_t finite = magnitude_encode(magnitude, mantissa_bits, bias);
    uint32_t result = finite == 0 ? 0 : sign | finite;
    return (uint8_t)(magnitude >= 0x7f800000 || finite > 0x7f ? 0x80 : result);
}

static inline float f8_e4m3_decode(uint8_t bits)
{
    uint32_t magnitude = (uint32_t)(bits & 0x7f) << 20, sign = (uint32_t)(bits & 0x80) << 24;
    uint32_t normal = magnitude + (UINT32_C(120) << 23);
    uint32_t subnormal = float_to_bits(float_from_bits(magnitude + (UINT32_C(121) << 23)) - float_from_bits(UINT32_C(121) << 23));
    uint32_t result = magnitude < UINT32_C(1) << 23 ? subnormal : normal;
    return float_from_bits(sign | ((bits & 0x7f) == 0x7f ? 0x7ff00000 : result));
}

static inline float fnuz_decode(uint8_t bits, int mantissa_bits, uint32_t bias)
{
    uint32_t magnitude = (uint32_t)(bits & 0x7f) << (23 - mantissa_bits), sign = (uint32_t)(bits & 0x80) << 24;
    uint32_t offset = (127 - bias) << 23, first = (128 - bias) << 23;
    uint32_t subnormal = float_to_bits(float_from_bits(magnitude + first) - float_from_bits(first));
    uint32_t result = magnitude < UINT32_C(1) << 23 ? subnormal : magnitude + offset;
    return float_from_bits(bits == 0x80 ? 0x7fc00000 : sign | result);
}

/* A power of two: an exponent without sign or zero, 0xff is NaN. The sign is lost; a tie goes up, but 2^-127, whose exponent is 0, wins
 * its tie with 2^-126. */
static inline uint8_t f8_e8m0_encode(float value)
{
    uint32_t magnitude = float_to_bits(value) & 0x7fffffff;
    uint32_t half = magnitude < UINT32_C(1) << 23 ? 0x3fffff : 0x400000;
    return (uint8_t)(magnitude >= 0x7f800000 ? 0xff : (magnitude + half) >> 23);
}

static inline float f8_e8m0_decode(uint8_t bits)
{
    uint32_t normal = (uint32_t)bits << 23;
    return float_from_bits(bits == 0xff ? 0x7fc00000 : bits == 0 ? UINT32_C(1) << 22 : normal);
}

#endif
