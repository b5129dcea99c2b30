/* SPDX-License-Identifier: Apache-2.0 */
/* Digests and checksums: streaming sha256 and xxh3 (64 bit), CRC-32 (zip) and CRC-32C with combination. */
#ifndef KERNELS_DIGEST_H
#define KERNELS_DIGEST_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

enum digest_kind { DIGEST_SHA256, DIGEST_XXH3, DIGEST_CRC32C };

#define DIGEST_HEX_MAX 65 /* with the final NUL */

struct digest;

/* "sha256", "xxh3", "crc32c". */
bool digest_from_name(struct str name, enum digest_kind *out);
const char *digest_name(enum digest_kind kind);

struct digest *digest_new(enum digest_kind kind); /* NULL: no memory */
void digest_reset(struct digest *digest);
void digest_update(struct digest *digest, const void *bytes, size_t size);
void digest_hex(struct digest *digest, char out[DIGEST_HEX_MAX]); /* lower case; ends the stream */
void digest_free(struct digest *digest);

/* Zip's CRC-32 and Castagnoli's; start with 0. */
uint32_t crc32_zip(uint32_t crc, const void *bytes, size_t size);
uint32_t crc32c(uint32_t crc, const void *bytes, size_t size);

/* CRC-32 of A then B from the CRCs of both and B's size. */
uint32_t crc32_zip_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

#endif
