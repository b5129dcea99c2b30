/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_state.h"

#include "base/array.h"
#include "base/clock.h"

#include <stdlib.h>

#define DIRECT_ALIGN 4096
#define DIRECT_SHARE_MIN ((size_t)1 << 20)

static reshard_status locks_init(struct engine *engine, reshard_error *err)
{
    if (pthread_mutex_init(&engine->lock, NULL))
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    if (pthread_mutex_init(&engine->progress_lock, NULL)) {
        pthread_mutex_destroy(&engine->lock);
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    }
    if (pthread_cond_init(&engine->changed, NULL)) {
        pthread_mutex_destroy(&engine->lock);
        pthread_mutex_destroy(&engine->progress_lock);
        return error_set(err, RESHARD_ERR_MEMORY, "cannot make a lock");
    }
    return RESHARD_OK;
}

/* All memory that grows with the data: one block, and the workers' shares in it. */
static reshard_status workers_init(struct engine *engine, reshard_error *err)
{
    const struct engine_budget *budget = &engine->budget;
    engine->pool = aligned_alloc(4096, budget->workers * budget->share_bytes);
    engine->workers = array_zeroed(budget->workers, sizeof(*engine->workers));
    if (!engine->pool || !engine->workers)
        return error_set_memory(err);
    for (unsigned i = 0; i < budget->workers; i++) {
        struct worker *worker = &engine->workers[i];
        worker->engine = engine;
        worker->lane = JOB_NONE;
        job_memory_init(&worker->memory, engine->pool + i * budget->share_bytes, budget->share_bytes, budget->data_bytes,
                        budget->parts_max);
        reshard_status status = streams_init(&worker->streams, engine->origins, budget->decoders_max, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

reshard_status engine_init(struct engine *engine, const struct plan *plan, const struct engine_source *source,
                           const struct engine_options *options, bool is_stream, reshard_error *err)
{
    *engine = (struct engine){ .plan = plan, .source = source, .options = options };
    engine->budget = budget_of(plan, options);
    bool is_direct = options->io == ENGINE_IO_DIRECT && engine->budget.data_bytes >= DIRECT_SHARE_MIN / 2;
    engine->mode = (struct layout_mode){ .plan = plan, .is_stream = is_stream, .source_align = is_direct ? DIRECT_ALIGN : 1 };
    engine->progress.bytes_total = plan->write_bytes;
    engine->progress.memory_bytes = (uint64_t)engine->budget.workers * engine->budget.share_bytes + engine->budget.decoded_bytes;
    atomic_init(&engine->is_stopped, false);
    reshard_status status = budget_check(&engine->budget, options, err);
    if (!status)
        status = locks_init(engine, err);
    if (status)
        return status;
    bool is_kept = source->files && options->io == ENGINE_IO_AUTO;
    engine->origins = is_kept ? &source->files->origins : &engine->own_origins;
    status = is_kept ? RESHARD_OK : origins_init(&engine->own_origins, source, options->io, err);
    if (!status)
        status = decoded_init(&engine->decoded, engine->origins, &engine->budget, err);
    if (!status)
        status = workers_init(engine, err);
    if (!status)
        status = job_list_make(&engine->mode, &engine->budget, options->io, &engine->workers[0].memory, &engine->list, err);
    if (status)
        engine_release(engine);
    return status;
}

void engine_release(struct engine *engine)
{
    for (unsigned i = 0; engine->workers && i < engine->budget.workers; i++)
        streams_release(&engine->workers[i].streams);
    free(engine->workers);
    free(engine->pool);
    free(engine->crc_parts);
    job_list_release(&engine->list);
    decoded_release(&engine->decoded);
    origins_release(&engine->own_origins);
    journal_release(&engine->journal);
    pthread_mutex_destroy(&engine->lock);
    pthread_mutex_destroy(&engine->progress_lock);
    pthread_cond_destroy(&engine->changed);
}

void engine_fail(struct engine *engine, reshard_status status, const reshard_error *error)
{
    pthread_mutex_lock(&engine->lock);
    if (!engine->status) {
        engine->status = status;
        engine->error = *error;
        atomic_store(&engine->is_stopped, true);
    }
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

reshard_status progress_note(struct engine *engine, struct worker *worker, uint64_t target_bytes, reshard_error *err)
{
    bool goes_on = true;
    pthread_mutex_lock(&engine->progress_lock);
    struct engine_progress *progress = &engine->progress;
    progress->bytes_done += target_bytes;
    progress->bytes_read += worker->bytes_read;
    progress->bytes_written += worker->bytes_written;
    worker->bytes_read = worker->bytes_written = 0;
    if (engine->options->progress) {
        int64_t now = clock_ns();
        if (now - engine->progress_ns >= PROGRESS_NS || progress->bytes_done >= progress->bytes_total) {
            engine->progress_ns = now;
            goes_on = engine->options->progress(progress, engine->options->context);
        }
    }
    pthread_mutex_unlock(&engine->progress_lock);
    return goes_on ? RESHARD_OK : error_set(err, RESHARD_ERR_CANCELLED, "cancelled");
}

static reshard_status job_run(struct worker *worker, uint32_t job_index, reshard_error *err)
{
    struct engine *engine = worker->engine;
    const struct job *job = &engine->list.jobs[job_index];
    struct job_shape shape = job_shape_of(&engine->list, engine->plan, job);
    bool fits;
    worker->job = job_index;
    if (shape.kind == JOB_COPY)
        return job_copy(worker, &shape, err);
    reshard_status status = job_layout(&engine->mode, &shape, &worker->memory, &fits, err);
    if (status)
        return status;
    if (!fits)
        return error_set(err, RESHARD_ERR_LIMIT, "a job does not fit into a worker's %zu bytes", engine->budget.share_bytes);
    status = job_read(worker, &shape, err);
    if (!status && !engine->mode.is_stream) {
        status = job_write(worker, job, &shape, err);
    } else if (!status && turn_wait(engine, job_index)) {
        status = job_sink(worker, &shape, err);
        if (!status)
            turn_end(engine, job_index);
    }
    job_unpin(worker);
    return status;
}

/* Asked while a read waits. A run without progress of its own is a part of something else. */
static bool worker_goes_on(void *context)
{
    struct worker *worker = context;
    struct engine *engine = worker->engine;
    return !atomic_load(&engine->is_stopped) && !progress_note(engine, worker, 0, NULL) &&
           (engine->options->progress || waiting_goes_on_for(engine->outer, &engine->progress_lock));
}

static void *worker_main(void *context)
{
    struct worker *worker = context;
    struct engine *engine = worker->engine;
    const struct waiting waiting = { worker_goes_on, worker }, *before = waiting_set(&waiting);
    uint32_t job;
    while ((job = queue_take(engine, worker)) != JOB_NONE) {
        reshard_error *err = &worker->error;
        reshard_status status = job_run(worker, job, err);
        if (!status)
            status = journal_note(engine, job, err);
        if (!status)
            status = progress_note(engine, worker, engine->list.jobs[job].target_bytes, err);
        if (status) {
            engine_fail(engine, status, err);
            break;
        }
    }
    waiting_set(before);
    return NULL;
}

reshard_status engine_work(struct engine *engine, reshard_error *err)
{
    unsigned wanted = engine->list.job_count < engine->budget.workers ? engine->list.job_count : engine->budget.workers;
    engine->outer = waiting_set(NULL);
    /* The caller's thread is the first worker; threads that do not start are done without. */
    for (unsigned i = 1; i < wanted; i++)
        engine->workers[i].has_thread = !pthread_create(&engine->workers[i].thread, NULL, worker_main, &engine->workers[i]);
    worker_main(&engine->workers[0]);
    for (unsigned i = 1; i < wanted; i++)
        if (engine->workers[i].has_thread)
            pthread_join(engine->workers[i].thread, NULL);
    waiting_set(engine->outer);
    if (engine->status && err)
        *err = engine->error;
    return engine->status;
}
