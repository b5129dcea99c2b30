/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind the memory store share. Nobody outside this folder includes this. */
#ifndef STORE_STORE_MEMORY_H
#define STORE_STORE_MEMORY_H

#include "store/store_parts.h"

#include <pthread.h>

/* Bytes that a store, transactions and open objects share; refs under the store's lock. */
struct memory_data {
    size_t refs;
    uint64_t size;
    uint8_t *bytes;
};

struct memory_file {
    char *name;
    struct memory_data *data;
    bool is_current; /* in a transaction: created in this run */
};

/* Files sorted by name, each once. */
struct memory_set {
    struct memory_file *files;
    size_t count, capacity;
};

/* What an unfinished transaction has; kept by the store when it is to be resumed. */
struct memory_partial {
    struct memory_partial *next;
    char *target;
    uint64_t identity;
    bool is_directory, in_use;
    struct memory_set set; /* under the names that they will have */
    struct buffer journal;
};

struct memory_store {
    struct store base;
    pthread_mutex_t lock; /* over everything here */
    struct memory_set set;
    struct memory_partial *partials;
};

struct memory_store *memory_store_of(struct store *store);

struct memory_data *memory_data_new(uint64_t size); /* zeroed */
void memory_data_unref(struct memory_data *data);

/* First file whose name is not below name; *found says whether it is that name. */
size_t memory_set_find(const struct memory_set *set, const char *name, bool *found);

/* Takes over name and data on success. Nothing of that name may be there. */
bool memory_set_insert(struct memory_set *set, char *name, struct memory_data *data);
void memory_set_release(struct memory_set *set);

/* Whether name is target or lies below it. */
bool memory_name_is_in(const char *name, const char *target);

void memory_partial_free(struct memory_partial *partial);

/* A handle on data, which gets a reference; call with the lock held. */
reshard_status memory_object_new(struct memory_store *store, const char *name, struct memory_data *data, bool is_writable,
                                 struct store_object **out, reshard_error *err);

reshard_status memory_txn_begin(struct store *store, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                reshard_error *err);

#endif
