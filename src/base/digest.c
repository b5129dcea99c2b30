/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <openssl/evp.h>

#include "base/hash.h"

struct digest {
    enum digest_kind kind;
    EVP_MD_CTX *evp; /* sha256, md5 */
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
    bool is_made = true;
    if (kind == DIGEST_SHA256 || kind == DIGEST_MD5)
        is_made = (digest->evp = EVP_MD_CTX_new()) &&
                  EVP_DigestInit_ex(digest->evp, kind == DIGEST_MD5 ? EVP_md5() : EVP_sha256(), NULL) == 1;
    else if (kind == DIGEST_XXH3)
        is_made = (digest->xxh3 = hash64_stream_new()) != NULL;
    if (!is_made) {
        digest_free(digest);
        return NULL;
    }
    return digest;
}

/* Initialising a context again with the type it has allocates nothing, so it cannot fail. */
void digest_reset(struct digest *digest)
{
    digest->crc = 0;
    if (digest->evp)
        EVP_DigestInit_ex(digest->evp, NULL, NULL);
    if (digest->xxh3)
        hash64_stream_reset(digest->xxh3);
}

void digest_update(struct digest *digest, const void *bytes, size_t size)
{
    if (digest->evp)
        EVP_DigestUpdate(digest->evp, bytes, size);
    else if (digest->xxh3)
        hash64_stream_update(digest->xxh3, bytes, size);
    else
        digest->crc = crc32c(digest->crc, bytes, size);
}

void digest_hex(struct digest *digest, char out[DIGEST_HEX_MAX])
{
    unsigned char raw[EVP_MAX_MD_SIZE] = { 0 };
    unsigned int size = 0;
    if (digest->evp) {
        EVP_DigestFinal_ex(digest->evp, raw, &size);
        for (unsigned int i = 0; i < size && 2 * i + 2 < DIGEST_HEX_MAX; i++)
            snprintf(out + 2 * i, 3, "%02x", raw[i]);
    } else if (digest->xxh3) {
        snprintf(out, DIGEST_HEX_MAX, "%016" PRIx64, hash64_stream_digest(digest->xxh3));
    } else {
        snprintf(out, DIGEST_HEX_MAX, "%08" PRIx32, digest->crc);
    }
}

void digest_free(struct digest *digest)
{
    if (!digest)
        return;
    EVP_MD_CTX_free(digest->evp);
    hash64_stream_free(digest->xxh3);
    free(digest);
}
