/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Origins: where source bytes come from. The objects of the source store, opened when first needed and closed again when too many
 * are open; and the decoded streams of encoded chunks, of which each worker keeps a few.
 */
#ifndef ENGINE_ENGINE_ORIGIN_H
#define ENGINE_ENGINE_ORIGIN_H

#include <pthread.h>

#include "engine/engine.h"

/* ---- objects: shared by all workers ---- */

struct origin_slot {
    struct store_object *object;
    uint32_t users;
};

struct origins {
    const struct engine_source *source;
    struct origin_slot *slots; /* by source object */
    uint32_t *open;            /* numbers of the open ones */
    uint32_t open_count, open_capacity, hand;
    unsigned access; /* how they are opened: flags of the store */
    bool use_maps;
    pthread_mutex_t lock;
};

reshard_status origins_init(struct origins *origins, const struct engine_source *source, enum engine_io io, reshard_error *err);
void origins_release(struct origins *origins);

/* The open object, which stays open until it is given back. */
reshard_status origin_take(struct origins *origins, uint32_t number, struct store_object **out, reshard_error *err);
void origin_give(struct origins *origins, uint32_t number);

/* What a caller keeps between runs. */
struct engine_files {
    struct engine_source source;
    struct origins origins;
};

/* ---- streams: each worker has its own ---- */

struct origin_stream;

struct streams {
    struct origins *origins;
    struct origin_stream *slots;
    uint32_t slot_count;
    uint64_t clock;
};

reshard_status streams_init(struct streams *streams, struct origins *origins, uint32_t slot_count, reshard_error *err);
void streams_release(struct streams *streams);

/* Decoded bytes [begin, begin + size) of a source chunk. Cheap in ascending order; going back decodes from the start again. */
reshard_status stream_read(struct streams *streams, uint32_t chunk, uint64_t begin, void *out, size_t size, reshard_error *err);

#endif
