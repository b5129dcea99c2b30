/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/lockstep.h"

#include <pthread.h>
#include <stdlib.h>

#define RING_BYTES ((size_t)8 << 20)

/*
 * A ring of bytes with one writer and one reader. Either side may close it: a closed writer ends the data, a closed reader makes
 * the writer stop.
 */
struct ring {
    uint8_t *data;
    size_t start, used;
    bool writer_closed, reader_closed;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

static bool ring_write(struct ring *ring, const uint8_t *bytes, size_t size)
{
    pthread_mutex_lock(&ring->lock);
    while (size && !ring->reader_closed) {
        if (ring->used == RING_BYTES) {
            pthread_cond_wait(&ring->changed, &ring->lock);
            continue;
        }
        size_t at = (ring->start + ring->used) % RING_BYTES, room = RING_BYTES - ring->used;
        size_t part = RING_BYTES - at < room ? RING_BYTES - at : room;
        if (part > size)
            part = size;
        /* Only this thread writes to free space, so the copy needs no lock. */
        pthread_mutex_unlock(&ring->lock);
        memcpy(ring->data + at, bytes, part);
        pthread_mutex_lock(&ring->lock);
        ring->used += part;
        bytes += part;
        size -= part;
        pthread_cond_broadcast(&ring->changed);
    }
    bool open = !ring->reader_closed;
    pthread_mutex_unlock(&ring->lock);
    return open;
}

/* The longest run that lies contiguous, at least 1 byte; NULL at the end of the data. Stays valid until ring_skip. */
static const uint8_t *ring_peek(struct ring *ring, size_t *size)
{
    pthread_mutex_lock(&ring->lock);
    while (!ring->used && !ring->writer_closed)
        pthread_cond_wait(&ring->changed, &ring->lock);
    size_t contiguous = RING_BYTES - ring->start;
    *size = ring->used < contiguous ? ring->used : contiguous;
    const uint8_t *bytes = ring->used ? ring->data + ring->start : NULL;
    pthread_mutex_unlock(&ring->lock);
    return bytes;
}

static void ring_skip(struct ring *ring, size_t size)
{
    pthread_mutex_lock(&ring->lock);
    ring->start = (ring->start + size) % RING_BYTES;
    ring->used -= size;
    pthread_cond_broadcast(&ring->changed);
    pthread_mutex_unlock(&ring->lock);
}

static void ring_close(struct ring *ring, bool *side)
{
    pthread_mutex_lock(&ring->lock);
    *side = true;
    pthread_cond_broadcast(&ring->changed);
    pthread_mutex_unlock(&ring->lock);
}

struct lockstep {
    const struct engine_source *a;
    const struct engine_made *made;
    struct engine_options options_a;
    uint32_t *tensors_a, *tensors_b;
    uint32_t count, pair;
    struct ring ring;
    reshard_status status_a;
    reshard_error error_a;
    lockstep_compare compare;
    void *context;
};

static reshard_status fill_ring(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    struct lockstep *run = context;
    (void)tensor, (void)offset, (void)is_last;
    if (size && !ring_write(&run->ring, bytes, size))
        return error_set(err, RESHARD_ERR_CANCELLED, "the other side stopped");
    return RESHARD_OK;
}

static void *run_side_a(void *context)
{
    struct lockstep *run = context;
    if (run->made)
        run->status_a = engine_stream_made(run->a, run->made, run->tensors_a, run->count, &run->options_a, fill_ring, run, &run->error_a);
    else
        run->status_a = engine_stream(run->a, run->tensors_a, run->count, NULL, NULL, &run->options_a, fill_ring, run, &run->error_a);
    ring_close(&run->ring, &run->ring.writer_closed);
    return NULL;
}

/* Windows of b pass here; a's bytes come from the ring in pieces that may end anywhere, also inside an element: compare sees what is there.
 */
static reshard_status compare_window(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                     reshard_error *err)
{
    struct lockstep *run = context;
    const uint8_t *b = bytes;
    (void)tensor;
    do {
        size_t got = 0;
        const uint8_t *a = size ? ring_peek(&run->ring, &got) : NULL;
        if (size && !a)
            return error_set(err, RESHARD_ERR_CANCELLED, "the other side stopped");
        if (got > size)
            got = size;
        reshard_status status = run->compare(run->context, run->pair, offset, a, b, got, is_last && got == size, err);
        if (status)
            return status;
        if (got)
            ring_skip(&run->ring, got);
        b += got;
        offset += got;
        size -= got;
    } while (size);
    if (is_last)
        run->pair++;
    return RESHARD_OK;
}

static reshard_status run_both(struct lockstep *run, const struct engine_source *b, const struct engine_options *options,
                               reshard_error *err)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_side_a, run))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot start a thread");
    struct engine_options options_b = *options;
    options_b.threads = 1;
    reshard_status status = engine_stream(b, run->tensors_b, run->count, NULL, NULL, &options_b, compare_window, run, err);
    ring_close(&run->ring, &run->ring.reader_closed);
    pthread_join(thread, NULL);
    /* A side that failed on its own is the cause; "the other side stopped" is only an echo. */
    if (run->status_a && run->status_a != RESHARD_ERR_CANCELLED) {
        if (err)
            *err = run->error_a;
        return run->status_a;
    }
    return status;
}

reshard_status lockstep_run(const struct engine_source *a, const struct engine_made *made, const struct engine_source *b,
                            const struct lockstep_pair *pairs, uint32_t count, const struct engine_options *options,
                            lockstep_compare compare, void *context, reshard_error *err)
{
    struct lockstep run = { .a = a, .made = made, .options_a = *options, .count = count, .compare = compare, .context = context };
    run.options_a.threads = 1;
    run.options_a.progress = NULL;
    pthread_mutex_init(&run.ring.lock, NULL);
    pthread_cond_init(&run.ring.changed, NULL);
    run.ring.data = malloc(RING_BYTES);
    run.tensors_a = malloc(((size_t)count + 1) * sizeof(uint32_t));
    run.tensors_b = malloc(((size_t)count + 1) * sizeof(uint32_t));
    reshard_status status = RESHARD_OK;
    if (!run.ring.data || !run.tensors_a || !run.tensors_b) {
        status = error_set_memory(err);
    } else {
        for (uint32_t i = 0; i < count; i++) {
            run.tensors_a[i] = pairs[i].a;
            run.tensors_b[i] = pairs[i].b;
        }
        status = run_both(&run, b, options, err);
    }
    free(run.ring.data);
    free(run.tensors_a);
    free(run.tensors_b);
    pthread_mutex_destroy(&run.ring.lock);
    pthread_cond_destroy(&run.ring.changed);
    return status;
}
