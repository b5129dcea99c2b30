/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/lockstep.h"

#include "base/array.h"

#include <pthread.h>
#include <stdlib.h>

#define RING_BYTES ((size_t)8 << 20)
#define MEMORY_DEFAULT ((uint64_t)128 << 20) /* what a stream has where the caller names nothing */

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

/* What all couples share. */
struct lockstep_job {
    const struct engine_source *a, *b;
    const struct engine_made *made;
    const struct lockstep_pair *pairs;
    const struct engine_options *options;
    lockstep_compare compare;
    void *context;
    unsigned worker_count;
    struct engine_progress *progress; /* by worker */
    pthread_mutex_t lock;             /* of progress */
    bool is_cancelled;
};

/* A couple: the thread that fills the ring, and the one that compares. */
struct lockstep {
    struct lockstep_job *job;
    unsigned worker;
    struct engine_options options;
    uint32_t *tensors_a, *tensors_b;
    uint32_t first, count, pair; /* of the job's pairs */
    struct ring ring;
    pthread_t thread; /* of the whole couple, where there are several */
    reshard_status status, status_a;
    bool is_a_echo; /* a stopped because b had */
    reshard_error error, error_a;
};

static reshard_status fill_ring(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    struct lockstep *run = context;
    (void)tensor, (void)offset, (void)is_last;
    if (size && !ring_write(&run->ring, bytes, size)) {
        run->is_a_echo = true;
        return error_set(err, RESHARD_ERR_CANCELLED, "the other side stopped");
    }
    return RESHARD_OK;
}

static void *run_side_a(void *context)
{
    struct lockstep *run = context;
    const struct lockstep_job *job = run->job;
    struct engine_options options = run->options;
    options.progress = NULL;
    if (job->made)
        run->status_a = engine_stream_made(job->a, job->made, run->tensors_a, run->count, &options, fill_ring, run, &run->error_a);
    else
        run->status_a = engine_stream(job->a, run->tensors_a, run->count, NULL, NULL, &options, fill_ring, run, &run->error_a);
    ring_close(&run->ring, &run->ring.writer_closed);
    return NULL;
}

/* Windows of b pass here; a's bytes come from the ring in pieces that may end anywhere, also inside an element: compare sees what is there.
 */
static reshard_status compare_window(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                     reshard_error *err)
{
    struct lockstep *run = context;
    const struct lockstep_job *job = run->job;
    const uint8_t *b = bytes;
    (void)tensor;
    do {
        size_t got = 0;
        const uint8_t *a = size ? ring_peek(&run->ring, &got) : NULL;
        if (size && !a)
            return error_set(err, RESHARD_ERR_CANCELLED, "the other side stopped");
        if (got > size)
            got = size;
        reshard_status status =
            job->compare(job->context, run->worker, run->first + run->pair, offset, a, b, got, is_last && got == size, err);
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

/* How far all couples are, as one run. */
static bool tell_progress(const struct engine_progress *progress, void *context)
{
    struct lockstep *run = context;
    struct lockstep_job *job = run->job;
    struct engine_progress all = { 0 };
    pthread_mutex_lock(&job->lock);
    job->progress[run->worker] = *progress;
    for (unsigned i = 0; i < job->worker_count; i++) {
        all.bytes_done += job->progress[i].bytes_done;
        all.bytes_total += job->progress[i].bytes_total;
        all.bytes_read += job->progress[i].bytes_read;
        all.memory_bytes += job->progress[i].memory_bytes;
    }
    job->is_cancelled = job->is_cancelled || !job->options->progress(&all, job->options->context);
    bool go_on = !job->is_cancelled;
    pthread_mutex_unlock(&job->lock);
    return go_on;
}

static reshard_status run_both(struct lockstep *run, reshard_error *err)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_side_a, run))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot start a thread");
    reshard_status status = engine_stream(run->job->b, run->tensors_b, run->count, NULL, NULL, &run->options, compare_window, run, err);
    ring_close(&run->ring, &run->ring.reader_closed);
    pthread_join(thread, NULL);
    /* A side that failed on its own is the cause; "the other side stopped" is only an echo. */
    if (run->status_a && !run->is_a_echo) {
        if (err)
            *err = run->error_a;
        return run->status_a;
    }
    return status;
}

static void *run_couple(void *context)
{
    struct lockstep *run = context;
    struct lockstep_job *job = run->job;
    pthread_mutex_init(&run->ring.lock, NULL);
    pthread_cond_init(&run->ring.changed, NULL);
    run->ring.data = malloc(RING_BYTES);
    run->tensors_a = array_new(run->count, sizeof(uint32_t));
    run->tensors_b = array_new(run->count, sizeof(uint32_t));
    if (!run->ring.data || !run->tensors_a || !run->tensors_b) {
        run->status = error_set_memory(&run->error);
    } else {
        for (uint32_t i = 0; i < run->count; i++) {
            run->tensors_a[i] = job->pairs[run->first + i].a;
            run->tensors_b[i] = job->pairs[run->first + i].b;
        }
        run->status = run_both(run, &run->error);
    }
    free(run->ring.data);
    free(run->tensors_a);
    free(run->tensors_b);
    pthread_mutex_destroy(&run->ring.lock);
    pthread_cond_destroy(&run->ring.changed);
    return NULL;
}

/* Shares the pairs out, in runs of about as many bytes. */
static void share_out(struct lockstep *runs, unsigned workers, const struct lockstep_job *job, uint32_t count)
{
    uint64_t total = 0, done = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; i++)
        total += catalog_tensor_bytes(job->b->catalog, &job->b->catalog->tensors[job->pairs[i].b]) + 1;
    for (unsigned w = 0; w < workers; w++) {
        runs[w].first = next;
        while (next < count && (w + 1 == workers || done < total / workers * (w + 1)))
            done += catalog_tensor_bytes(job->b->catalog, &job->b->catalog->tensors[job->pairs[next++].b]) + 1;
        runs[w].count = next - runs[w].first;
    }
}

unsigned lockstep_workers(const struct engine_options *options, bool is_far, uint32_t pair_count)
{
    unsigned workers = engine_threads(options, is_far) / 2;
    return workers > pair_count ? (pair_count ? pair_count : 1) : workers ? workers : 1;
}

/* Each stream has one thread and its share of the memory; one chunk may take what it could alone. */
static struct engine_options couple_options(const struct engine_options *options, unsigned workers)
{
    struct engine_options out = *options;
    out.threads = 1;
    if (workers > 1) {
        out.chunk_memory = engine_chunk_memory_max(options);
        out.memory_bytes = (options->memory_bytes ? options->memory_bytes : MEMORY_DEFAULT) / workers;
    }
    return out;
}

/* The first couple that failed on its own tells why. */
static reshard_status couples_status(const struct lockstep *runs, unsigned workers, reshard_error *err)
{
    const struct lockstep *cause = NULL;
    for (unsigned w = 0; w < workers; w++) {
        if (runs[w].status && (!cause || cause->status == RESHARD_ERR_CANCELLED))
            cause = &runs[w];
    }
    if (cause && err)
        *err = cause->error;
    return cause ? cause->status : RESHARD_OK;
}

reshard_status lockstep_run(const struct engine_source *a, const struct engine_made *made, const struct engine_source *b,
                            const struct lockstep_pair *pairs, uint32_t count, const struct engine_options *options,
                            lockstep_compare compare, void *context, reshard_error *err)
{
    const unsigned workers = lockstep_workers(options, a->catalog->is_far || b->catalog->is_far, count);
    struct lockstep_job job = { .a = a, .b = b, .made = made, .pairs = pairs, .options = options, .compare = compare, .context = context,
                                .worker_count = workers, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct lockstep *runs = array_zeroed(workers, sizeof(*runs));
    reshard_status status = RESHARD_OK;
    job.progress = array_zeroed(workers, sizeof(*job.progress));
    if (!runs || !job.progress) {
        status = error_set_memory(err);
    } else {
        share_out(runs, workers, &job, count);
        for (unsigned w = 0; w < workers; w++) {
            runs[w].job = &job;
            runs[w].worker = w;
            runs[w].options = couple_options(options, workers);
            runs[w].options.progress = options->progress ? tell_progress : NULL;
            runs[w].options.context = &runs[w];
        }
        unsigned started = 1;
        while (started < workers && !pthread_create(&runs[started].thread, NULL, run_couple, &runs[started]))
            started++;
        for (unsigned w = started; w < workers; w++)
            run_couple(&runs[w]);
        run_couple(&runs[0]);
        for (unsigned w = 1; w < started; w++)
            pthread_join(runs[w].thread, NULL);
        status = couples_status(runs, workers, err);
    }
    free(job.progress);
    free(runs);
    return status;
}
