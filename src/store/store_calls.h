/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store behind functions of the caller's: object storage, encryption, a cache. They return 0 or an errno number, and are trusted for
 * nothing: sizes, names and short reads are checked. The functions on objects, open and look are called from any thread; the rest from one
 * at a time.
 *
 * A transaction writes below ".NAME.reshard-partial" beside the target, and publishes by one rename. With overwrite the old target goes to
 * ".NAME.reshard-old" just before, and is removed after; what a killed run left there goes back where it was before anything else. Objects
 * are synced and closed as they are given back: a failure of that is one of the commit.
 */
#ifndef STORE_STORE_CALLS_H
#define STORE_STORE_CALLS_H

#include "store/store.h"

typedef int (*store_calls_sink)(const char *name, size_t name_size, int is_folder, uint64_t bytes, void *sink_context);

/* What is NULL from create on: the store is only read. The public struct has the same members but for the last two. */
struct store_calls {
    const char *name; /* for messages; kept */
    void *context;
    int (*look)(const char *path, int *is_folder, uint64_t *bytes, uint64_t *version, void *context);
    int (*list)(const char *folder, store_calls_sink sink, void *sink_context, void *context);
    int (*open)(const char *path, void **object, uint64_t *bytes, void *context);
    int (*read_at)(void *object, uint64_t offset, void *out, size_t size, size_t *done, void *context);
    int (*close)(void *object, void *context);
    int (*create)(const char *path, uint64_t bytes, void **object, void *context);
    int (*write_at)(void *object, uint64_t offset, const void *bytes, size_t size, void *context);
    int (*resize)(void *object, uint64_t bytes, void *context);
    int (*sync)(void *object, void *context);
    int (*rename)(const char *from, const char *to, void *context);
    int (*remove)(const char *path, void *context);
    reshard_status (*tell)(reshard_error *err, void *context); /* what went wrong in this thread's last call; NULL: the number says it */
    void (*release)(void *context);                            /* called as the store is freed, not where it was not made; or NULL */
};

/* The folder of the store; "" is its root. calls is copied. */
reshard_status store_new_calls(const struct store_calls *calls, const char *folder, struct store **out, reshard_error *err);

/* As store_open_path: what lies at a path of the store; *file_name, malloc'd, is "" if that is a folder. */
reshard_status store_open_calls(const struct store_calls *calls, const char *path, struct store **out, char **file_name,
                                reshard_error *err);

/* Whether the store is behind these very functions. */
bool store_calls_are_of(const struct store *store, const struct store_calls *calls);

#endif
