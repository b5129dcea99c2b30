/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handle behind reshard_checkpoint. Public tensor indices count the listed tensors. What is made on first use (order, values of items,
 * texts of values) is made under the lock, and stays: any number of threads may look.
 */
#ifndef API_HANDLE_H
#define API_HANDLE_H

#include "reshard/geometry.h"

#include "api/versioned.h"
#include "base/name_map.h"
#include "convert/checkpoint_view.h"
#include "parallel/shard_list.h"

#include <pthread.h>

struct reshard_checkpoint {
    struct checkpoint *opened;
    uint32_t *public_index; /* by catalog index; CATALOG_NONE for hidden tensors */
    pthread_mutex_t lock;   /* recursive: callbacks may look */
    pthread_rwlock_t places; /* where payload lies: held to be read by those who read payload, to be written by those who look for it */
    struct engine_files *files; /* what reading has opened; made on first use */
    size_t *order;          /* public indices by key; made on first use */
    size_t json_item, members_item; /* 1 + the last one shown: going back begins another run, with a full budget of work */
    struct name_map classes;        /* names of classes */
    struct name_map text_values;    /* values whose text is made, by address; */
    struct str *texts;              /* and their texts, in text_arena */
    uint32_t text_capacity;
    struct arena text_arena;
};

struct reshard_shards {
    struct shard_list list;
};

/* The handle of an open checkpoint, which it takes over, also on failure. */
reshard_status handle_make(struct checkpoint *opened, reshard_checkpoint **out, reshard_error *err);

/*
 * Begins a reading of these tensors (catalog indices): finds where their payload lies, which only one thread can do, and holds it so until
 * reading_end. What was found once stays.
 */
reshard_status reading_begin(const reshard_checkpoint *checkpoint, const uint32_t *tensors, uint32_t count, struct engine_source *out,
                             reshard_error *err);
void reading_end(const reshard_checkpoint *checkpoint);

/* For those who look at chunks while others may find out where their payload lies. A thread may hold it several times. */
static inline void places_hold(const reshard_checkpoint *checkpoint)
{
    pthread_rwlock_rdlock((pthread_rwlock_t *)(uintptr_t)&checkpoint->places);
}

static inline void places_leave(const reshard_checkpoint *checkpoint)
{
    pthread_rwlock_unlock((pthread_rwlock_t *)(uintptr_t)&checkpoint->places);
}

static inline struct source *checkpoint_source(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->source;
}

static inline const struct catalog *checkpoint_catalog(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->source->catalog;
}

/* Catalog index of the listed tensor with a public index. */
static inline uint32_t checkpoint_listed(const reshard_checkpoint *checkpoint, size_t index)
{
    return checkpoint->opened->listed[index];
}

/* The handle for those who fill in what is made on first use, locked. */
reshard_checkpoint *checkpoint_lock(const reshard_checkpoint *checkpoint);
void checkpoint_unlock(reshard_checkpoint *checkpoint);

static inline reshard_str public_str(struct str s)
{
    return (reshard_str){ s.data ? s.data : "", s.size };
}

#endif
