/* SPDX-License-Identifier: Apache-2.0 */
#include "base/crc32.h"

#include <isa-l/crc.h>

/* Polynomials over GF(2) are reflected: bit 31 is the coefficient of x^0. */
#define ZIP_POLYNOMIAL UINT32_C(0xEDB88320)
#define X_TO_0 UINT32_C(0x80000000)
#define X_TO_8 UINT32_C(0x00800000)

/* isa-l takes the size of a CRC-32C as an int. */
#define CRC32C_STEP_MAX ((size_t)1 << 30)

uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t size)
{
    return size ? crc32_gzip_refl(crc, bytes, size) : crc;
}

uint32_t crc32c(uint32_t crc, const void *bytes, size_t size)
{
    const unsigned char *next = bytes;
    while (size) {
        size_t step = size < CRC32C_STEP_MAX ? size : CRC32C_STEP_MAX;
        /* isa-l's parameter lacks const; it only reads. */
        crc = ~crc32_iscsi((unsigned char *)(uintptr_t)next, (int)step, ~crc);
        next += step;
        size -= step;
    }
    return crc;
}

/* a * b modulo zip's polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = X_TO_0; bit && a; bit >>= 1) {
        if (a & bit) {
            product ^= b;
            a ^= bit;
        }
        b = (b >> 1) ^ (b & 1 ? ZIP_POLYNOMIAL : 0);
    }
    return product;
}

/* Appending B multiplies A's remainder by x^(8 * size_b); the pre- and post-inversions of the two CRCs cancel out. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    uint32_t shift = X_TO_0;
    for (uint32_t power = X_TO_8; size_b; size_b >>= 1) {
        if (size_b & 1)
            shift = multiply(shift, power);
        power = multiply(power, power);
    }
    return multiply(shift, crc_a) ^ crc_b;
}

uint32_t crc32_zip_zeros(uint64_t size)
{
    /* By squaring: combining two equal runs doubles the length. */
    uint32_t crc = 0, power = crc32_zip(0, "", 1);
    uint64_t run = 1;
    for (; size > 0; size >>= 1) {
        if (size & 1)
            crc = crc32_zip_combine(crc, power, run);
        power = crc32_zip_combine(power, power, run);
        run *= 2;
    }
    return crc;
}

uint32_t crc32_zip_extend(uint32_t crc_a, uint64_t size_a, uint64_t end)
{
    return size_a < end ? crc32_zip_combine(crc_a, crc32_zip_zeros(end - size_a), end - size_a) : crc_a;
}

/* Remainders are linear: that of two strings xored is that of both xored. The inversions, which all CRCs of one size share, are those of
 * the zeros. */
uint32_t crc32_zip_overlay(uint32_t crc_a, uint64_t size_a, uint32_t crc_b, uint64_t size_b, uint64_t offset_b, uint64_t *size)
{
    uint64_t end_b = offset_b + size_b, end = size_a > end_b ? size_a : end_b;
    *size = end;
    if (size_a <= offset_b)
        return crc32_zip_combine(crc32_zip_extend(crc_a, size_a, offset_b), crc_b, size_b);
    uint32_t b = crc32_zip_combine(crc32_zip_zeros(offset_b), crc_b, size_b);
    return crc32_zip_extend(crc_a, size_a, end) ^ crc32_zip_extend(b, end_b, end) ^ crc32_zip_zeros(end);
}
