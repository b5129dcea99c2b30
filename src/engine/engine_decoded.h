/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoded chunks: source chunks that are coded as a whole (encoding/chain.h), decoded once and shared by all workers, as long as there is
 * room. Who decodes a chunk waits for nobody meanwhile, so that all may wait for it, whatever they hold.
 *
 * Decoding takes one of a few scratches, and a slot's memory out of bytes_max; who finds none waits. That ends: those who decode, and those
 * who only copy out of a chunk, wait for nobody; chunks that are held for longer leave room for the largest one.
 */
#ifndef ENGINE_ENGINE_DECODED_H
#define ENGINE_ENGINE_DECODED_H

#include "engine/engine_budget.h"
#include "engine/engine_origin.h"

struct decoded_slot;

/* What a chunk is decoded with. */
struct decoded_scratch {
    struct chain_scratch chain;
    struct buffer stored;
    struct decoded_scratch *next; /* of those that nobody uses */
};

struct decoded_chunks {
    struct origins *origins;
    struct decoded_slot *slots;
    uint32_t slot_count;
    uint32_t *buckets; /* by chunk number, slot + 1 */
    struct decoded_scratch *scratches, *scratch_free;
    uint32_t scratch_count;
    uint64_t bytes, bytes_max, bytes_held, chunk_max, clock;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

reshard_status decoded_init(struct decoded_chunks *decoded, struct origins *origins, const struct engine_budget *budget,
                            reshard_error *err);
void decoded_release(struct decoded_chunks *decoded);

/* The decoded bytes of the chunk, good until they are given back, which the caller does without waiting for anybody unless decoded_hold
 * says yes. *read are the stored bytes that had to be read. */
reshard_status decoded_take(struct decoded_chunks *decoded, uint32_t chunk, const uint8_t **out, uint64_t *read, reshard_error *err);

/* Whether a chunk that was taken may be kept for long; if so, decoded_unhold ends it, before decoded_give. */
bool decoded_hold(struct decoded_chunks *decoded, uint32_t chunk);
void decoded_unhold(struct decoded_chunks *decoded, uint32_t chunk);

/* is_spent: most likely nobody wants the chunk any more, and its memory, which the CPU still has in its cache, is the next to be used. */
void decoded_give(struct decoded_chunks *decoded, uint32_t chunk, bool is_spent);

/* Whether another worker is decoding the chunk, which decoded_take would wait for. */
bool decoded_is_loading(struct decoded_chunks *decoded, uint32_t chunk);

/*
 * Decodes a chunk that will be wanted, if there is room for it and nobody has it; returns whether it did anything. A chunk that cannot be
 * decoded is left to those that want it. *read as in decoded_take.
 */
bool decoded_load_ahead(struct decoded_chunks *decoded, uint32_t chunk, uint64_t *read);

/* All decoded bytes of the chunk into out: decoded right there unless they are at hand. */
reshard_status decoded_copy(struct decoded_chunks *decoded, uint32_t chunk, void *out, uint64_t *read, reshard_error *err);

#endif
