/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <nettle/hmac.h>
#include <nettle/md5.h>
#include <nettle/sha2.h>

#include "base/hash.h"

struct digest {
    enum digest_kind kind;
    struct sha256_ctx sha256;
    struct md5_ctx md5;
    struct hash64_stream *xxh3;
    uint32_t crc;
};

static const char *const digest_names[] = { [DIGEST_SHA256] = "sha256", [DIGEST_XXH3] = "xxh3", [DIGEST_CRC32C] = "crc32c",
                                            [DIGEST_MD5] = "md5" };
#define DIGEST_COUNT (sizeof(digest_names) / sizeof(digest_names[0]))

bool digest_from_name(struct str name, enum digest_kind *out)
{
    for (size_t i = 0; i < DIGEST_COUNT; i++) {
        if (str_is(name, digest_names[i])) {
            *out = (enum digest_kind)i;
            return true;
        }
    }
    return false;
}

const char *digest_name(enum digest_kind kind)
{
    return digest_names[kind];
}

struct digest *digest_new(enum digest_kind kind)
{
    struct digest *digest = calloc(1, sizeof(*digest));
    if (!digest)
        return NULL;
    digest->kind = kind;
    if (kind == DIGEST_XXH3 && !(digest->xxh3 = hash64_stream_new())) {
        free(digest);
        return NULL;
    }
    digest_reset(digest);
    return digest;
}

void digest_reset(struct digest *digest)
{
    switch (digest->kind) {
    case DIGEST_SHA256: sha256_init(&digest->sha256); break;
    case DIGEST_MD5: md5_init(&digest->md5); break;
    case DIGEST_XXH3: hash64_stream_reset(digest->xxh3); break;
    case DIGEST_CRC32C: digest->crc = 0; break;
    }
}

void digest_update(struct digest *digest, const void *bytes, size_t size)
{
    switch (digest->kind) {
    case DIGEST_SHA256: sha256_update(&digest->sha256, size, bytes); break;
    case DIGEST_MD5: md5_update(&digest->md5, size, bytes); break;
    case DIGEST_XXH3: hash64_stream_update(digest->xxh3, bytes, size); break;
    case DIGEST_CRC32C: digest->crc = crc32c(digest->crc, bytes, size); break;
    }
}

static void hex_of(const uint8_t *raw, size_t size, char *out)
{
    for (size_t i = 0; i < size; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}

void digest_hex(struct digest *digest, char out[DIGEST_HEX_MAX])
{
    uint8_t raw[SHA256_DIGEST_SIZE];
    switch (digest->kind) {
    case DIGEST_SHA256:
        sha256_digest(&digest->sha256, SHA256_DIGEST_SIZE, raw);
        hex_of(raw, SHA256_DIGEST_SIZE, out);
        break;
    case DIGEST_MD5:
        md5_digest(&digest->md5, MD5_DIGEST_SIZE, raw);
        hex_of(raw, MD5_DIGEST_SIZE, out);
        break;
    case DIGEST_XXH3: snprintf(out, DIGEST_HEX_MAX, "%016" PRIx64, hash64_stream_digest(digest->xxh3)); break;
    case DIGEST_CRC32C: snprintf(out, DIGEST_HEX_MAX, "%08" PRIx32, digest->crc); break;
    }
}

void digest_free(struct digest *digest)
{
    if (!digest)
        return;
    hash64_stream_free(digest->xxh3);
    free(digest);
}

void hmac_sha256(struct str key, struct str text, uint8_t out[HMAC_SHA256_BYTES])
{
    struct hmac_sha256_ctx context;
    hmac_sha256_set_key(&context, key.size, (const uint8_t *)(key.size ? key.data : ""));
    hmac_sha256_update(&context, text.size, (const uint8_t *)(text.size ? text.data : ""));
    hmac_sha256_digest(&context, HMAC_SHA256_BYTES, out);
}
