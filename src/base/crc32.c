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
    for (; a; a <<= 1) {
        product ^= b & (0u - (a >> 31));
        b = (b >> 1) ^ (ZIP_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* x^(8 * bytes): what appending so many bytes multiplies a remainder by. */
static uint32_t shift_by(uint64_t bytes)
{
    uint32_t shift = X_TO_0;
    for (uint32_t power = X_TO_8; bytes; power = multiply(power, power)) {
        if (bytes & 1)
            shift = multiply(shift, power);
        bytes >>= 1;
    }
    return shift;
}

/* The pre- and post-inversions of the two CRCs cancel out. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
    return multiply(shift_by(size_b), crc_a) ^ crc_b;
}

uint32_t crc32_zip_extend(uint32_t crc_a, uint64_t size_a, uint64_t end)
{
    return size_a < end ? ~multiply(shift_by(end - size_a), ~crc_a) : crc_a;
}

uint32_t crc32_zip_zeros(uint64_t size)
{
    return crc32_zip_extend(0, 0, size);
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
