/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two CRCs that checkpoints use. Both are continued by passing the CRC so far, and start with 0. On CPUs with carry-less
 * multiplication or a CRC instruction they run at memory speed.
 */
#ifndef BASE_CRC32_H
#define BASE_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Zip's CRC-32 (the one of gzip and PNG). */
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t size);

/* Castagnoli's CRC-32C (the one of iSCSI). */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t size);

/* Zip's CRC-32 of A followed by B, from the CRCs of both and the size of B. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/* Zip's CRC-32 of A and B lying over each other, B from offset_b on. Where neither is, and where both
 * are and one has zeros, the other counts. *size is that of the whole. */
uint32_t crc32_zip_overlay(uint32_t crc_a, uint64_t size_a, uint32_t crc_b, uint64_t size_b, uint64_t offset_b, uint64_t *size);

/* Zip's CRC-32 of A followed by zeros, up to `end` bytes. */
uint32_t crc32_zip_extend(uint32_t crc_a, uint64_t size_a, uint64_t end);

/* Zip's CRC-32 of a run of zeros. */
uint32_t crc32_zip_zeros(uint64_t size);

#endif
