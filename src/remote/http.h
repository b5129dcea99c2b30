/* SPDX-License-Identifier: Apache-2.0 */
/* Requests by libcurl, which is loaded when the first URL is opened: it brings thirty libraries with it. */
#ifndef REMOTE_HTTP_H
#define REMOTE_HTTP_H

#include "base/buffer.h"
#include "base/error.h"

/* Connections of a store, each of one thread at a time, and who asks. */
struct http;

struct http_identity {
    const char *bearer;            /* a token for the server itself, not for others that it sends on to; or NULL */
    enum http_protocol { HTTP_S3, HTTP_AZURE } protocol; /* by which it is signed */
    const char *key, *secret, *session; /* for signatures; key is Azure's account. NULL: nothing is signed */
    const char *token;             /* a query, without '?', that goes with every URL; or NULL */
    const char *region;            /* of a store that has such, or NULL */
    const char *variables;         /* for messages: where the environment would say who asks; of static lifetime */
};

/* identity is copied. UNSUPPORTED where there is no libcurl. */
reshard_status http_new(const struct http_identity *identity, struct http **out, reshard_error *err);
void http_free(struct http *http);

#define HTTP_ETAG_MAX 200
#define HTTP_NEXT_MAX 2000

/* What a server said. */
struct http_answer {
    long code;
    uint64_t bytes;             /* of the whole object */
    bool has_bytes, is_folder;  /* is_folder: the server sends on to the same name with '/' at its end */
    bool is_next_cut;           /* there is such a URL, and it is too long */
    char etag[HTTP_ETAG_MAX];   /* "" without a strong one */
    char next[HTTP_NEXT_MAX];   /* the URL of what comes next of a list, or "" */
};

/*
 * Gets [offset, offset + size) of an object of `whole` bytes into memory: all of it, or a failure. etag: of the version that is wanted,
 * or "". Trouble on the way and servers that are busy are tried again. err->sys_errno is ENOENT where nothing is there, EACCES where it
 * may not be read. Any thread.
 */
reshard_status http_get_range(struct http *http, const char *url, const char *etag, uint64_t offset, void *out, size_t size, uint64_t whole,
                              struct http_answer *answer, reshard_error *err);

/* How many bytes an object has, and its version. */
reshard_status http_look(struct http *http, const char *url, struct http_answer *answer, reshard_error *err);

/* Gets all of a small answer, at most bytes_max. */
reshard_status http_get(struct http *http, const char *url, size_t bytes_max, struct buffer *out, struct http_answer *answer,
                        reshard_error *err);

#endif
