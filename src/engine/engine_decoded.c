/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_decoded.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/array.h"
#include "base/checked.h"

#define SLOTS_MAX 1024u
#define LARGE_PAGE ((size_t)2 << 20)

enum slot_state { SLOT_FREE, SLOT_LOADING, SLOT_READY };

struct decoded_slot {
    uint8_t *bytes;
    uint64_t capacity, last_used;
    uint32_t chunk, users;
    uint32_t next; /* in the bucket, slot + 1 */
    uint8_t state; /* enum slot_state */
    bool is_spent;
};

reshard_status decoded_init(struct decoded_chunks *decoded, struct origins *origins, const struct engine_budget *budget, reshard_error *err)
{
    *decoded = (struct decoded_chunks){ .bytes_max = budget->decoded_bytes, .chunk_max = budget->chunk_bytes };
    if (pthread_mutex_init(&decoded->lock, NULL))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    if (pthread_cond_init(&decoded->changed, NULL)) {
        pthread_mutex_destroy(&decoded->lock);
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    }
    decoded->origins = origins;
    decoded->slots = array_zeroed(SLOTS_MAX, sizeof(*decoded->slots));
    decoded->buckets = array_zeroed(SLOTS_MAX, sizeof(*decoded->buckets));
    decoded->scratch_count = budget->decodes_max ? budget->decodes_max : 1;
    decoded->scratches = array_zeroed(decoded->scratch_count, sizeof(*decoded->scratches));
    if (!decoded->slots || !decoded->buckets || !decoded->scratches) {
        decoded_release(decoded);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < decoded->scratch_count; i++) {
        decoded->scratches[i].next = decoded->scratch_free;
        decoded->scratch_free = &decoded->scratches[i];
    }
    return RESHARD_OK;
}

void decoded_release(struct decoded_chunks *decoded)
{
    if (!decoded->origins)
        return;
    assert(!decoded->bytes_held);
    for (uint32_t i = 0; i < decoded->slot_count; i++) {
        assert(!decoded->slots[i].users);
        free(decoded->slots[i].bytes);
    }
    for (uint32_t i = 0; decoded->scratches && i < decoded->scratch_count; i++) {
        chain_scratch_release(&decoded->scratches[i].chain);
        buffer_release(&decoded->scratches[i].stored);
    }
    free(decoded->slots);
    free(decoded->buckets);
    free(decoded->scratches);
    pthread_cond_destroy(&decoded->changed);
    pthread_mutex_destroy(&decoded->lock);
    *decoded = (struct decoded_chunks){ 0 };
}

/* ---- decoding ---- */

/* The stored bytes: where the object is mapped, else read into the scratch. */
static reshard_status stored_read(const struct decoded_chunks *decoded, struct decoded_scratch *scratch, const struct chunk_layout *layout,
                                  const struct store_object *object, const uint8_t **out, reshard_error *err)
{
    const uint8_t *map = decoded->origins->use_maps ? store_object_map(object) : NULL;
    if (!range_fits(layout->coded_offset, layout->coded_bytes, store_object_size(object)))
        return error_set_at(err, RESHARD_ERR_FORMAT, layout->coded_offset,
                            "file of %" PRIu64 " bytes ends inside the %" PRIu64 " bytes at %" PRIu64, store_object_size(object),
                            layout->coded_bytes, layout->coded_offset);
    if (map) {
        *out = map + layout->coded_offset;
        return RESHARD_OK;
    }
    buffer_clear(&scratch->stored);
    uint8_t *room = buffer_extend(&scratch->stored, layout->coded_bytes ? (size_t)layout->coded_bytes : 1);
    if (!room)
        return error_set_memory(err);
    *out = room;
    return layout->coded_bytes ? store_read_at(object, layout->coded_offset, room, (size_t)layout->coded_bytes, err) : RESHARD_OK;
}

static reshard_status chunk_decode(const struct decoded_chunks *decoded, struct decoded_scratch *scratch, uint32_t chunk_index, void *out,
                                   uint64_t *read, reshard_error *err)
{
    const struct catalog *catalog = decoded->origins->source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[chunk_index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    struct store_object *object;
    const uint8_t *stored = NULL;
    *read = layout->coded_bytes;
    reshard_status status = origin_take(decoded->origins, chunk->object, &object, err);
    if (status)
        return status;
    status = stored_read(decoded, scratch, layout, object, &stored, err);
    if (!status) {
        status = chain_decode(layout->chain, stored, (size_t)layout->coded_bytes, out, &scratch->chain, err);
        if (status == RESHARD_ERR_FORMAT && err)
            error_prefix(err, "chunk at byte %" PRIu64, layout->coded_offset);
    }
    origin_give(decoded->origins, chunk->object);
    return status;
}

static const struct chain *chain_of(const struct decoded_chunks *decoded, uint32_t chunk)
{
    const struct catalog *catalog = decoded->origins->source->catalog;
    return catalog_layout_of(catalog, &catalog->chunks[chunk])->chain;
}

/* ---- slots; the lock is held ---- */

static uint32_t *bucket_of(struct decoded_chunks *decoded, uint32_t chunk)
{
    return &decoded->buckets[chunk % SLOTS_MAX];
}

static struct decoded_slot *slot_find(struct decoded_chunks *decoded, uint32_t chunk)
{
    for (uint32_t i = *bucket_of(decoded, chunk); i; i = decoded->slots[i - 1].next)
        if (decoded->slots[i - 1].chunk == chunk)
            return &decoded->slots[i - 1];
    return NULL;
}

static void slot_unlink(struct decoded_chunks *decoded, struct decoded_slot *slot)
{
    uint32_t *link = bucket_of(decoded, slot->chunk);
    while (*link && &decoded->slots[*link - 1] != slot)
        link = &decoded->slots[*link - 1].next;
    if (*link)
        *link = slot->next;
    slot->state = SLOT_FREE;
    slot->is_spent = false;
    slot->users = 0;
}

static bool slot_suits(const struct decoded_slot *slot, uint64_t size)
{
    return slot->capacity >= size && slot->capacity / 2 <= size;
}

/* The spent slot with the right memory that was used last; NULL: none. */
static struct decoded_slot *slot_spent(struct decoded_chunks *decoded, uint64_t size)
{
    struct decoded_slot *newest = NULL;
    for (uint32_t i = 0; i < decoded->slot_count; i++) {
        struct decoded_slot *slot = &decoded->slots[i];
        if (slot->is_spent && slot->users == 0 && slot_suits(slot, size) && (!newest || slot->last_used > newest->last_used))
            newest = slot;
    }
    return newest;
}

/* The slot with memory that was not used for the longest time and that nobody uses; NULL: none. */
static struct decoded_slot *slot_oldest(struct decoded_chunks *decoded)
{
    struct decoded_slot *oldest = NULL;
    for (uint32_t i = 0; i < decoded->slot_count; i++) {
        struct decoded_slot *slot = &decoded->slots[i];
        if (slot->state != SLOT_LOADING && slot->users == 0 && slot->capacity && (!oldest || slot->last_used < oldest->last_used))
            oldest = slot;
    }
    return oldest;
}

static void slot_empty(struct decoded_chunks *decoded, struct decoded_slot *slot)
{
    free(slot->bytes);
    decoded->bytes -= slot->capacity;
    slot->bytes = NULL;
    slot->capacity = 0;
}

/* A slot without memory, or NULL. */
static struct decoded_slot *slot_vacant(struct decoded_chunks *decoded)
{
    for (uint32_t i = 0; i < decoded->slot_count; i++)
        if (decoded->slots[i].state == SLOT_FREE && !decoded->slots[i].capacity)
            return &decoded->slots[i];
    return decoded->slot_count < SLOTS_MAX ? &decoded->slots[decoded->slot_count++] : NULL;
}

/* Memory of a chunk is written and read from end to end: large pages save the system most of the work of handing it out. */
static uint8_t *slot_memory(uint64_t size)
{
    void *bytes;
    if (size < LARGE_PAGE)
        return malloc(size ? (size_t)size : 1);
    if (posix_memalign(&bytes, LARGE_PAGE, (size_t)size))
        return NULL;
    madvise(bytes, (size_t)size / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
    return bytes;
}

/* A free slot with room for so many bytes, which may be an old chunk's. NULL without memory, or, if *must_wait, as long as what is
 * there is in use. */
static struct decoded_slot *slot_with_room(struct decoded_chunks *decoded, uint64_t size, bool *must_wait)
{
    struct decoded_slot *slot = slot_spent(decoded, size), *oldest;
    bool is_full = decoded->slot_count == SLOTS_MAX;
    *must_wait = false;
    if (slot) {
        slot_unlink(decoded, slot);
        return slot;
    }
    while ((decoded->bytes + size > decoded->bytes_max || (is_full && !slot)) && (oldest = slot_oldest(decoded))) {
        slot = oldest;
        if (slot->state == SLOT_READY)
            slot_unlink(decoded, slot);
        if (slot_suits(slot, size))
            return slot;
        slot_empty(decoded, slot);
    }
    if (!slot)
        slot = slot_vacant(decoded);
    *must_wait = !slot || (decoded->bytes && decoded->bytes + size > decoded->bytes_max);
    if (*must_wait)
        return NULL;
    slot->bytes = slot_memory(size);
    if (!slot->bytes)
        return NULL;
    slot->capacity = size ? size : 1;
    decoded->bytes += slot->capacity;
    return slot;
}

static struct decoded_slot *slot_make(struct decoded_chunks *decoded, uint32_t chunk, uint64_t size, bool *must_wait)
{
    struct decoded_slot *slot = slot_with_room(decoded, size, must_wait);
    if (!slot)
        return NULL;
    slot->chunk = chunk;
    slot->users = 0;
    slot->state = SLOT_LOADING;
    slot->next = *bucket_of(decoded, chunk);
    *bucket_of(decoded, chunk) = (uint32_t)(slot - decoded->slots) + 1;
    return slot;
}

/* ---- taking ---- */

static void scratch_give(struct decoded_chunks *decoded, struct decoded_scratch *scratch)
{
    scratch->next = decoded->scratch_free;
    decoded->scratch_free = scratch;
}

static struct decoded_scratch *scratch_take(struct decoded_chunks *decoded)
{
    struct decoded_scratch *scratch = decoded->scratch_free;
    if (scratch)
        decoded->scratch_free = scratch->next;
    return scratch;
}

/* The chunk's slot once it is ready, with the caller as a user; NULL if nobody has it. */
static struct decoded_slot *slot_wait(struct decoded_chunks *decoded, uint32_t chunk)
{
    struct decoded_slot *slot = slot_find(decoded, chunk);
    while (slot && slot->state == SLOT_LOADING) {
        pthread_cond_wait(&decoded->changed, &decoded->lock);
        slot = slot_find(decoded, chunk);
    }
    if (slot) {
        slot->users++;
        slot->last_used = ++decoded->clock;
    }
    return slot;
}

/*
 * The chunk's slot: ready, or new, and then with a scratch to decode it with, once there is room. With into_slot false only the scratch
 * is wanted. NULL for both: no memory.
 */
static struct decoded_slot *slot_or_scratch(struct decoded_chunks *decoded, uint32_t chunk, bool into_slot,
                                            struct decoded_scratch **scratch)
{
    for (;;) {
        bool must_wait = false;
        struct decoded_slot *slot = slot_wait(decoded, chunk);
        *scratch = slot ? NULL : scratch_take(decoded);
        if (slot || (*scratch && !into_slot))
            return slot;
        if (*scratch) {
            slot = slot_make(decoded, chunk, chain_of(decoded, chunk)->decoded_bytes, &must_wait);
            if (slot)
                return slot;
            scratch_give(decoded, *scratch);
            *scratch = NULL;
            if (!must_wait)
                return NULL;
        }
        pthread_cond_wait(&decoded->changed, &decoded->lock);
    }
}

/* Decodes into a new slot, which ends its loading: it is ready, or without bytes again. */
static reshard_status slot_load(struct decoded_chunks *decoded, struct decoded_slot *slot, struct decoded_scratch *scratch, uint32_t users,
                                uint64_t *read, reshard_error *err)
{
    reshard_status status = chunk_decode(decoded, scratch, slot->chunk, slot->bytes, read, err);
    pthread_mutex_lock(&decoded->lock);
    scratch_give(decoded, scratch);
    if (status) {
        slot_unlink(decoded, slot);
    } else {
        slot->state = SLOT_READY;
        slot->users = users;
        slot->last_used = ++decoded->clock;
    }
    pthread_cond_broadcast(&decoded->changed);
    pthread_mutex_unlock(&decoded->lock);
    return status;
}

reshard_status decoded_take(struct decoded_chunks *decoded, uint32_t chunk, const uint8_t **out, uint64_t *read, reshard_error *err)
{
    const struct chain *chain = chain_of(decoded, chunk);
    struct decoded_scratch *scratch;
    *read = 0;
    *out = chain->literal;
    if (chain->literal)
        return RESHARD_OK;
    pthread_mutex_lock(&decoded->lock);
    struct decoded_slot *slot = slot_or_scratch(decoded, chunk, true, &scratch);
    pthread_mutex_unlock(&decoded->lock);
    if (!slot)
        return error_set_memory(err);
    *out = slot->bytes;
    return scratch ? slot_load(decoded, slot, scratch, 1, read, err) : RESHARD_OK;
}

void decoded_give(struct decoded_chunks *decoded, uint32_t chunk, bool is_spent)
{
    if (chain_of(decoded, chunk)->literal)
        return;
    pthread_mutex_lock(&decoded->lock);
    struct decoded_slot *slot = slot_find(decoded, chunk);
    if (slot) {
        slot->users--;
        slot->is_spent |= is_spent;
        if (slot->users == 0)
            pthread_cond_broadcast(&decoded->changed);
    }
    pthread_mutex_unlock(&decoded->lock);
}

bool decoded_hold(struct decoded_chunks *decoded, uint32_t chunk)
{
    if (chain_of(decoded, chunk)->literal)
        return true;
    pthread_mutex_lock(&decoded->lock);
    const struct decoded_slot *slot = slot_find(decoded, chunk);
    bool may_hold = slot && decoded->bytes_held + slot->capacity + decoded->chunk_max <= decoded->bytes_max;
    if (may_hold)
        decoded->bytes_held += slot->capacity;
    pthread_mutex_unlock(&decoded->lock);
    return may_hold;
}

void decoded_unhold(struct decoded_chunks *decoded, uint32_t chunk)
{
    if (chain_of(decoded, chunk)->literal)
        return;
    pthread_mutex_lock(&decoded->lock);
    decoded->bytes_held -= slot_find(decoded, chunk)->capacity;
    pthread_mutex_unlock(&decoded->lock);
}

bool decoded_is_loading(struct decoded_chunks *decoded, uint32_t chunk)
{
    if (chain_of(decoded, chunk)->literal)
        return false;
    pthread_mutex_lock(&decoded->lock);
    const struct decoded_slot *slot = slot_find(decoded, chunk);
    bool is_loading = slot && slot->state == SLOT_LOADING;
    pthread_mutex_unlock(&decoded->lock);
    return is_loading;
}

bool decoded_load_ahead(struct decoded_chunks *decoded, uint32_t chunk, uint64_t *read)
{
    const struct chain *chain = chain_of(decoded, chunk);
    struct decoded_slot *slot = NULL;
    bool must_wait;
    *read = 0;
    if (chain->literal)
        return false;
    pthread_mutex_lock(&decoded->lock);
    bool has_room = decoded->bytes + chain->decoded_bytes <= decoded->bytes_max || slot_spent(decoded, chain->decoded_bytes);
    struct decoded_scratch *scratch = has_room && !slot_find(decoded, chunk) ? scratch_take(decoded) : NULL;
    if (scratch)
        slot = slot_make(decoded, chunk, chain->decoded_bytes, &must_wait);
    if (scratch && !slot)
        scratch_give(decoded, scratch);
    pthread_mutex_unlock(&decoded->lock);
    return slot && !slot_load(decoded, slot, scratch, 0, read, NULL);
}

reshard_status decoded_copy(struct decoded_chunks *decoded, uint32_t chunk, void *out, uint64_t *read, reshard_error *err)
{
    const struct chain *chain = chain_of(decoded, chunk);
    struct decoded_scratch *scratch;
    *read = 0;
    if (chain->literal) {
        memcpy(out, chain->literal, (size_t)chain->decoded_bytes);
        return RESHARD_OK;
    }
    pthread_mutex_lock(&decoded->lock);
    struct decoded_slot *slot = slot_or_scratch(decoded, chunk, false, &scratch);
    pthread_mutex_unlock(&decoded->lock);
    if (slot) {
        memcpy(out, slot->bytes, (size_t)chain->decoded_bytes);
        decoded_give(decoded, chunk, true);
        return RESHARD_OK;
    }
    reshard_status status = chunk_decode(decoded, scratch, chunk, out, read, err);
    pthread_mutex_lock(&decoded->lock);
    scratch_give(decoded, scratch);
    pthread_cond_broadcast(&decoded->changed);
    pthread_mutex_unlock(&decoded->lock);
    return status;
}
