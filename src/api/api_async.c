/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in the background: the queue, its thread, and what callers are told of it. */
#include "reshard/async.h"

#include "api/handle.h"
#include "api/saver_process.h"
#include "api/saver_staging.h"
#include "api/sharded_handle.h"
#include "base/array.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define SAVER_DEPTH_MAX 64
#define ASK_MILLISECONDS 100 /* how often a caller that waits is asked whether it goes on */

/* A save that is under way. */
struct saver_job {
    struct saver_staging staging;
    char *path;
    bool is_done;
    reshard_error error; /* its code is how it ended */
    int (*finished)(int64_t number, reshard_status status, void *context);
    void *context;
};

/* Save n has place n % depth; those from `reported` to `next` are under way, or nobody has heard how they ended. */
struct reshard_saver {
    reshard_saver_options options;
    char *program; /* NULL: a thread writes */
    struct saver_job *jobs;
    int64_t depth, next, reported;
    struct saver_process process;
    /* The thread's; `next`, and is_done of jobs, are under the lock. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t written; /* by the thread: saves before this one are done */
    bool has_thread, is_closing;
};

static struct saver_job *job_at(reshard_saver *saver, int64_t number)
{
    return &saver->jobs[number % saver->depth];
}

/* ---- the thread ---- */

static void *saver_thread(void *context)
{
    reshard_saver *saver = context;
    pthread_mutex_lock(&saver->lock);
    for (;;) {
        while (saver->written == saver->next && !saver->is_closing)
            pthread_cond_wait(&saver->changed, &saver->lock);
        if (saver->written == saver->next)
            break;
        struct saver_job *job = job_at(saver, saver->written);
        pthread_mutex_unlock(&saver->lock);
        job->error = (reshard_error)RESHARD_ERROR_INIT;
        job->error.code = saver_staging_run(&job->staging, saver->options.comm, &job->error);
        pthread_mutex_lock(&saver->lock);
        job->is_done = true;
        saver->written++;
        pthread_cond_broadcast(&saver->changed);
    }
    pthread_mutex_unlock(&saver->lock);
    return NULL;
}

/* Signals are for the job's own threads. */
static reshard_status saver_thread_start(reshard_saver *saver, reshard_error *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&saver->thread, NULL, saver_thread, saver);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    saver->has_thread = !failed;
    return failed ? error_set(err, RESHARD_ERR_IO, "no thread could be started") : RESHARD_OK;
}

/* ---- finding out ---- */

/* The program is gone: so are the saves that it was given. */
static void jobs_lost(reshard_saver *saver)
{
    char how[64];
    saver_process_end(&saver->process, how);
    for (int64_t number = saver->reported; number < saver->next; number++) {
        struct saver_job *job = job_at(saver, number);
        if (job->is_done)
            continue;
        job->is_done = true;
        job->error = (reshard_error)RESHARD_ERROR_INIT;
        error_set(&job->error, RESHARD_ERR_IO, "the program that writes %s before the save was done", how);
    }
}

/* These wait for so many milliseconds at most; -1: until the save is done. */
static void process_look(reshard_saver *saver, int64_t number, int milliseconds)
{
    struct saver_job *job = job_at(saver, number);
    struct saver_reply reply;
    bool is_there = true;
    while (!job->is_done && is_there) {
        if (saver_process_receive(&saver->process, milliseconds, &reply, &is_there, NULL)) {
            jobs_lost(saver);
        } else if (is_there && reply.number >= saver->reported && reply.number < saver->next) {
            job_at(saver, reply.number)->error = reply.error;
            job_at(saver, reply.number)->is_done = true;
        }
    }
}

static void thread_look(reshard_saver *saver, int64_t number, int milliseconds)
{
    struct timespec until;
    bool is_late = milliseconds == 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!job_at(saver, number)->is_done && !is_late) {
        if (milliseconds < 0)
            pthread_cond_wait(&saver->changed, &saver->lock);
        else
            is_late = pthread_cond_timedwait(&saver->changed, &saver->lock, &until) != 0;
    }
}

static bool job_is_done(reshard_saver *saver, int64_t number, int milliseconds)
{
    if (saver->program) {
        process_look(saver, number, milliseconds);
        return job_at(saver, number)->is_done;
    }
    pthread_mutex_lock(&saver->lock);
    thread_look(saver, number, milliseconds);
    const bool is_done = job_at(saver, number)->is_done;
    pthread_mutex_unlock(&saver->lock);
    return is_done;
}

enum saver_wait { WAIT_NOT, WAIT_AS_ASKED, WAIT_ON };

/* Waits for a save; as asked, as long as the caller says so. */
static reshard_status job_wait(reshard_saver *saver, int64_t number, enum saver_wait wait, bool *is_done, reshard_error *err)
{
    const bool asks = wait == WAIT_AS_ASKED && saver->options.waiting;
    const int milliseconds = wait == WAIT_NOT ? 0 : asks ? ASK_MILLISECONDS : -1;
    *is_done = job_is_done(saver, number, milliseconds);
    while (!*is_done && asks) {
        if (saver->options.waiting(saver->options.context))
            return error_set(err, RESHARD_ERR_CANCELLED, "the caller waits no longer for save %" PRId64 ", which goes on", number);
        *is_done = job_is_done(saver, number, milliseconds);
    }
    return RESHARD_OK;
}

/* Tells of a save that is done, and frees its place. */
static reshard_status job_report(reshard_saver *saver, reshard_error *err)
{
    const int64_t number = saver->reported++;
    struct saver_job *job = job_at(saver, number);
    const reshard_status status = job->error.code;
    const int stopped = job->finished ? job->finished(number, status, job->context) : 0;
    if (status && err) {
        const size_t size = err->struct_size;
        *err = job->error;
        err->struct_size = size;
        error_prefix(err, "save %" PRId64 " to '%s'", number, job->path);
    }
    free(job->path);
    job->path = NULL;
    if (status)
        return status;
    return stopped ? error_set(err, RESHARD_ERR_CANCELLED, "reshard_save_request.finished stopped the call") : RESHARD_OK;
}

/* Reports saves before `end` in their order, up to the first that has failed or, without waiting, that is not done. */
static reshard_status saver_collect(reshard_saver *saver, int64_t end, enum saver_wait wait, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    bool is_done = true;
    while (!status && is_done && saver->reported < end) {
        status = job_wait(saver, saver->reported, wait, &is_done, err);
        if (!status && is_done)
            status = job_report(saver, err);
    }
    return status;
}

/* ---- opening and closing ---- */

static void saver_free(reshard_saver *saver)
{
    char how[64];
    if (saver->has_thread) {
        pthread_mutex_lock(&saver->lock);
        saver->is_closing = true;
        pthread_cond_broadcast(&saver->changed);
        pthread_mutex_unlock(&saver->lock);
        pthread_join(saver->thread, NULL);
    }
    if (saver->process.pid)
        saver_process_end(&saver->process, how);
    for (int64_t i = 0; i < saver->depth && saver->jobs; i++) {
        saver_staging_release(&saver->jobs[i].staging);
        free(saver->jobs[i].path);
    }
    pthread_mutex_destroy(&saver->lock);
    pthread_cond_destroy(&saver->changed);
    free(saver->jobs);
    free(saver->program);
    free(saver);
}

static reshard_status saver_begin(reshard_saver *saver, reshard_error *err)
{
    saver->depth = saver->options.depth ? saver->options.depth : 1;
    saver->jobs = array_zeroed(saver->depth, sizeof(*saver->jobs));
    if (!saver->jobs)
        return error_set_memory(err);
    for (int64_t i = 0; i < saver->depth; i++)
        saver->jobs[i].staging = (struct saver_staging)SAVER_STAGING_NONE;
    if (saver->options.kind == RESHARD_SAVER_THREAD)
        return saver_thread_start(saver, err);
    saver->program = str_copy(str_of(saver_program(saver->options.program)));
    return saver->program ? saver_process_start(saver->program, &saver->process, err) : error_set_memory(err);
}

API_EXPORT reshard_status reshard_saver_open(const reshard_saver_options *options, reshard_saver **out, reshard_error *err)
{
    reshard_saver_options taken;
    pthread_condattr_t attributes;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    reshard_status status = struct_take(&taken, sizeof(taken), options, "reshard_saver_options", err);
    if (status)
        return status;
    if (taken.kind != RESHARD_SAVER_THREAD && taken.kind != RESHARD_SAVER_PROCESS)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_saver_options.kind: %" PRId64 " is no kind of saver", taken.kind);
    if (taken.depth < 0 || taken.depth > SAVER_DEPTH_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_saver_options.depth: %" PRId64 " is not 1 to %d", taken.depth, SAVER_DEPTH_MAX);
    if (taken.comm && taken.kind != RESHARD_SAVER_THREAD)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_saver_options.comm: another program is in no group; RESHARD_SAVER_THREAD is");
    reshard_saver *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    made->options = taken;
    made->process = (struct saver_process)SAVER_PROCESS_NONE;
    pthread_mutex_init(&made->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&made->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    status = saver_begin(made, err);
    if (status)
        saver_free(made);
    else
        *out = made;
    return status;
}

API_EXPORT reshard_status reshard_saver_close(reshard_saver *saver, reshard_error *err)
{
    ERROR_SCOPE(err);
    if (!saver)
        return RESHARD_OK;
    reshard_status status = saver_collect(saver, saver->next, WAIT_ON, err);
    while (saver->reported < saver->next)
        saver_collect(saver, saver->next, WAIT_ON, NULL);
    saver_free(saver);
    return status;
}

/* ---- saving ---- */

/* A request of any version, as we know it. */
struct save_call {
    reshard_save_request given;
    reshard_state state;
    reshard_convert_options options;
    reshard_run_options run;
    void *items;
    struct saver_request request;
};

/* A state: shards and items, or a sharded state dict. */
static reshard_status save_call_state(struct save_call *call, const reshard_saver *saver, reshard_error *err)
{
    const reshard_save_request *given = &call->given;
    if (!given->state == !given->sharded)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_save_request has one of state and sharded");
    if (saver->options.comm && !given->sharded)
        return error_set(err, RESHARD_ERR_USAGE, "the ranks of a group save reshard_save_request.sharded");
    if (given->sharded) {
        call->request.sharded = &given->sharded->dict;
        return reshard_sharded_expand(given->sharded, err);
    }
    reshard_status status = struct_take(&call->state, sizeof(call->state), given->state, "reshard_state", err);
    if (status)
        return status;
    NEEDS_MEMBER(reshard_state, call->state, shards, err);
    status = array_take(call->state.items, call->state.item_count, call->state.item_stride, sizeof(reshard_state_item),
                        "reshard_state_item", &call->items, err);
    call->request.shards = &call->state.shards->list;
    call->request.items = call->items;
    call->request.item_count = call->state.item_count;
    call->request.values = call->state.values;
    call->request.name = call->state.name;
    return status;
}

static reshard_status save_call_begin(const reshard_save_request *request, const reshard_saver *saver, struct save_call *out,
                                      reshard_error *err)
{
    *out = (struct save_call){ .items = NULL };
    reshard_status status = struct_take(&out->given, sizeof(out->given), request, "reshard_save_request", err);
    if (status)
        return status;
    NEEDS_MEMBER(reshard_save_request, out->given, path, err);
    NEEDS_MEMBER(reshard_save_request, out->given, options, err);
    status = struct_take(&out->options, sizeof(out->options), out->given.options, "reshard_convert_options", err);
    if (!status)
        status = struct_take(&out->run, sizeof(out->run), out->given.run, "reshard_run_options", err);
    if (status)
        return status;
    out->request.path = out->given.path;
    out->request.options = &out->options;
    out->request.run = &out->run;
    status = save_call_state(out, saver, err);
    return status ? status : saver_request_check(&out->request, err);
}

/* Another program takes the place of one that is gone. */
static reshard_status job_submit(reshard_saver *saver, struct saver_job *job, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (!saver->program) {
        pthread_mutex_lock(&saver->lock);
        job->is_done = false;
        saver->next++;
        pthread_cond_broadcast(&saver->changed);
        pthread_mutex_unlock(&saver->lock);
        return RESHARD_OK;
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        const struct saver_staging *staging = &job->staging;
        if (!saver->process.pid)
            status = saver_process_start(saver->program, &saver->process, err);
        if (!status)
            status = saver_process_send(&saver->process, saver->next, staging->fd, staging->request_at, staging->request_size, err);
        if (!status)
            break;
        if (saver->process.pid)
            jobs_lost(saver);
        status = attempt ? status : RESHARD_OK;
    }
    job->is_done = false;
    saver->next += status ? 0 : 1;
    return status;
}

API_EXPORT reshard_status reshard_saver_save(reshard_saver *saver, const reshard_save_request *request, int64_t *number, reshard_error *err)
{
    struct save_call call;
    ERROR_SCOPE(err);
    if (number)
        *number = -1;
    NEEDS(saver, err);
    NEEDS(request, err);
    reshard_status status = save_call_begin(request, saver, &call, err);
    if (!status)
        status = saver_collect(saver, saver->next, WAIT_NOT, err);
    if (!status && saver->next - saver->reported == saver->depth)
        status = saver_collect(saver, saver->reported + 1, WAIT_AS_ASKED, err);
    if (!status) {
        struct saver_job *job = job_at(saver, saver->next);
        char *path = str_copy(str_of(call.given.path));
        status = path ? saver_stage(&job->staging, &call.request, saver->options.copy, saver->options.context, err) : error_set_memory(err);
        job->path = path;
        job->finished = call.given.finished;
        job->context = call.given.context;
        if (!status)
            status = job_submit(saver, job, err);
        if (status) {
            free(job->path);
            job->path = NULL;
        } else if (number) {
            *number = saver->next - 1;
        }
    }
    free(call.items);
    return status;
}

API_EXPORT reshard_status reshard_saver_test(reshard_saver *saver, int64_t *unfinished, reshard_error *err)
{
    ERROR_SCOPE(err);
    if (unfinished)
        *unfinished = 0;
    NEEDS(saver, err);
    reshard_status status = saver_collect(saver, saver->next, WAIT_NOT, err);
    for (int64_t i = saver->reported; unfinished && i < saver->next; i++)
        *unfinished += !job_is_done(saver, i, 0);
    return status;
}

API_EXPORT reshard_status reshard_saver_wait(reshard_saver *saver, int64_t number, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(saver, err);
    if (number < -1 || number >= saver->next)
        return error_set(err, RESHARD_ERR_USAGE, "there is no save %" PRId64 ", the last one is %" PRId64, number, saver->next - 1);
    return saver_collect(saver, number < 0 ? saver->next : number + 1, WAIT_AS_ASKED, err);
}
