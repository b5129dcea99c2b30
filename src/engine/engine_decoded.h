/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoded chunks: source chunks that are coded as a whole (encoding/chain.h), decoded once and shared by all workers, as long as there is
 * room. A chunk is taken by one worker at a time for as long as it copies out of it, and never waited for while another one is held.
 */
#ifndef ENGINE_ENGINE_DECODED_H
#define ENGINE_ENGINE_DECODED_H

#include "engine/engine_origin.h"

struct decoded_slot;

struct decoded_chunks {
    struct origins *origins;
    struct decoded_slot *slots;
    uint32_t slot_count;
    uint32_t *buckets; /* by chunk number, slot + 1 */
    uint64_t bytes, bytes_max, clock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* What a worker decodes with. */
struct decoded_scratch {
    struct chain_scratch chain;
    struct buffer stored;
};

reshard_status decoded_init(struct decoded_chunks *decoded, struct origins *origins, uint64_t bytes_max, reshard_error *err);
void decoded_release(struct decoded_chunks *decoded);
void decoded_scratch_release(struct decoded_scratch *scratch);

/* The decoded bytes of the chunk, good until they are given back. *read are the stored bytes that had to be read. */
reshard_status decoded_take(struct decoded_chunks *decoded, struct decoded_scratch *scratch, uint32_t chunk, const uint8_t **out,
                            uint64_t *read, reshard_error *err);
void decoded_give(struct decoded_chunks *decoded, uint32_t chunk);

/* All decoded bytes of the chunk into out: decoded right there unless they are at hand. */
reshard_status decoded_copy(struct decoded_chunks *decoded, struct decoded_scratch *scratch, uint32_t chunk, void *out, uint64_t *read,
                            reshard_error *err);

#endif
