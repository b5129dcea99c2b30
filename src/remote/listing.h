/* SPDX-License-Identifier: Apache-2.0 */
/* What a server says lies in a folder: XML of S3 (ListObjectsV2) and of Azure (List Blobs), JSON of a hub's tree, links of a page. */
#ifndef REMOTE_LISTING_H
#define REMOTE_LISTING_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#define LISTING_BYTES_MAX ((size_t)64 << 20) /* of one answer */
#define LISTING_ENTRIES_MAX 1000000
#define LISTING_PAGES_MAX 10000

struct listing_entry {
    struct str name;  /* the whole path; of a page's link, in its folder */
    struct str etag;  /* or empty */
    uint64_t bytes;
    size_t number;    /* in the order in which they were said */
    bool is_folder, has_bytes;
};

/* { 0 } is empty. Texts lie in the arena. */
struct listing {
    struct arena arena;
    struct listing_entry *entries;
    size_t count, capacity;
};

void listing_release(struct listing *listing);

/* Each appends entries. *next: what asks for more of them (a token, in the arena), or empty. FORMAT for what is no such answer, LIMIT. */
reshard_status listing_take_s3(struct str answer, struct listing *listing, struct str *next, reshard_error *err);
reshard_status listing_take_azure(struct str answer, struct listing *listing, struct str *next, reshard_error *err);
reshard_status listing_take_hub(struct str answer, struct listing *listing, reshard_error *err);
reshard_status listing_take_page(struct str answer, struct listing *listing, reshard_error *err);

/* What a hub says of a revision: the name of its commit, in out, which is empty. FORMAT. */
reshard_status listing_take_commit(struct str answer, struct buffer *out, reshard_error *err);

/* Whether it is the whole name of a commit, which is never another one's. */
bool listing_is_commit(struct str name);

/* Sorts by name; of a name that is there twice the first stays that is no empty object, or the first. */
void listing_sort(struct listing *listing);

/* The entry of that name in a sorted listing, or NULL. */
const struct listing_entry *listing_find(const struct listing *listing, struct str name);

/* The text of the first <NAME> in XML; empty if there is none. */
struct str element_text(struct str xml, const char *name);

#endif
