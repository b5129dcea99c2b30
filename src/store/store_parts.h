/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What implementations of store.h fill in: three tables of functions, behind a store, an open object and a transaction. Each
 * implementation's struct starts with the common one. Names have passed store_name_check. Nobody outside this folder includes this.
 */
#ifndef STORE_STORE_PARTS_H
#define STORE_STORE_PARTS_H

#include "store/store.h"

#include <pthread.h>
#include <stdatomic.h>

struct store_ops {
    void (*free)(struct store *store);
    const char *(*path)(const struct store *store); /* NULL: none */
    reshard_status (*list)(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries, size_t *count,
                           reshard_error *err);
    bool (*exists)(struct store *store, const char *name, bool *is_directory, uint64_t *bytes);
    bool (*follows_links)(const struct store *store); /* NULL: it has none */
    uint64_t (*version)(struct store *store, const char *name); /* NULL: 0 for all */
    reshard_status (*open_object)(struct store *store, const char *name, unsigned access, struct store_object **out, reshard_error *err);
    const struct store *(*main)(const struct store *store); /* of stores of several: whose links and failures are its own. NULL: itself */
    reshard_status (*txn_begin)(struct store *store, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                reshard_error *err);
};

/* What stood in the way of an answer; written once. */
struct store_failure {
    atomic_int state; /* 0: none, 1: being written, 2: there */
    int sys_errno;
    char name[256];
    reshard_status status; /* RESHARD_OK: the number says it all */
    reshard_error said;
};

/* Links that were met and not looked through. Names are only ever added, under the lock. */
#define LINKS_OUT_KEPT 32
struct store_links {
    pthread_mutex_t lock;
    atomic_uint count;
    atomic_bool has_more;
    char *names[LINKS_OUT_KEPT];
};

/* The last listing, while somebody holds it. */
struct store_held {
    unsigned holders;
    char *directory; /* NULL: none is known */
    struct store_entry *entries;
    size_t count;
    struct arena arena;
};

struct store {
    const struct store_ops *ops;
    struct store_held held;
    struct store_failure failure;
    struct store_links links;
};

/* For store_failure; of several the first is kept. said, which goes with a status: in more words than the number's, or NULL. Any thread. */
void store_note_failure(struct store *store, const char *name, int number, reshard_status status, const reshard_error *said);

/* For store_link_out; the lock of `links` must have been initialised. Any thread. */
void store_note_link_out(struct store *store, const char *name);
void store_links_release(struct store *store);

/* read_at and write_at get ranges inside the object. What is NULL cannot be done. */
struct object_ops {
    void (*close)(struct store_object *object);
    reshard_status (*read_at)(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err);
    reshard_status (*write_at)(struct store_object *object, uint64_t offset, const void *bytes, size_t size, reshard_error *err);
    reshard_status (*copy_from)(struct store_object *object, uint64_t offset, const struct store_object *source, uint64_t source_offset,
                                uint64_t bytes, reshard_error *err); /* without a buffer between; NULL: through files' descriptors */
    reshard_status (*resize)(struct store_object *object, uint64_t bytes, reshard_error *err);
    const void *(*map)(const struct store_object *object);
    uint8_t *(*room)(struct store_object *object);
    int (*fd)(const struct store_object *object);
};

struct store_object {
    const struct object_ops *ops;
    char *name; /* freed by store_object_close, after ops->close */
    uint64_t size;
};

/* commit and abort free the transaction. */
struct txn_ops {
    const char *(*path)(const struct store_txn *txn); /* NULL: none */
    reshard_status (*create)(struct store_txn *txn, const char *name, uint64_t bytes, struct store_object **out, reshard_error *err);
    reshard_status (*journal_read)(struct store_txn *txn, struct buffer *out, reshard_error *err);
    reshard_status (*journal_append)(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err);
    /* NULL: targets are written by one run alone */
    reshard_status (*leave)(struct store_txn *txn, const char *record, const void *bytes, size_t size, reshard_error *err);
    reshard_status (*records)(struct store_txn *txn, struct arena *arena, char ***names, size_t *count, reshard_error *err);
    reshard_status (*record_read)(struct store_txn *txn, const char *name, struct buffer *out, reshard_error *err);
    reshard_status (*commit)(struct store_txn *txn, reshard_error *err);
    void (*abort)(struct store_txn *txn, bool keep_for_resume);
};

struct store_txn {
    const struct txn_ops *ops;
    bool is_directory, is_resumed;
};

/* Sorts entries bytewise by name, as store_list promises. */
void store_entries_sort(struct store_entry *entries, size_t count);

/* RESHARD_ERR_IO with ENOENT, as of a file system. */
reshard_status store_error_missing(const char *name, reshard_error *err);

#endif
