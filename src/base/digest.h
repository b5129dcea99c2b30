/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming digests: sha256, xxh3 (64 bit), CRC-32C and md5, which others compare by; it protects nothing. Signatures by a key. */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include "base/crc32.h" /* the CRCs, for callers of digests */
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

enum digest_kind { DIGEST_SHA256, DIGEST_XXH3, DIGEST_CRC32C, DIGEST_MD5 };

#define DIGEST_HEX_MAX 65 /* with the final NUL */

struct digest;

/* "sha256", "xxh3", "crc32c", "md5". */
bool digest_from_name(struct str name, enum digest_kind *out);
const char *digest_name(enum digest_kind kind);

struct digest *digest_new(enum digest_kind kind); /* NULL: no memory */
void digest_reset(struct digest *digest);
void digest_update(struct digest *digest, const void *bytes, size_t size);
void digest_hex(struct digest *digest, char out[DIGEST_HEX_MAX]); /* lower case; ends the stream */
void digest_free(struct digest *digest);

#define HMAC_SHA256_BYTES 32

/* What a key makes of a text (RFC 2104). */
void hmac_sha256(struct str key, struct str text, uint8_t out[HMAC_SHA256_BYTES]);

#endif
