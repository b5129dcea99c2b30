/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one process. A team is what their ends share: one lock, one condition. Messages are posts: a receiver copies straight from the
 * sender's memory, outside of the lock. Whoever fails, leaves or waits too long ends the team, with a reason that all waiters return.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/array.h"
#include "base/checked.h"
#include "comm/comm_transport.h"

enum post_state { POST_PENDING, POST_TAKEN, POST_DONE };

/* Bytes on their way; the memory and the post are the sender's. */
struct post {
    const void *bytes;
    size_t size;
    uint32_t to;
    enum post_state state;
    struct post *next; /* between the same two ranks */
};

struct post_queue {
    struct post *first, *last;
};

struct team_rank {
    const void *bytes; /* of the gather that it has come to */
    size_t size;
    uint64_t arrived;  /* gathers that it has come to */
    bool has_left;
};

struct team {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t size, ends; /* ends: not yet freed */
    struct team_rank *ranks;
    struct post_queue *queues; /* [from * size + to] */
    uint64_t gathered;         /* gathers that are complete; the last one's bytes: */
    uint8_t *all;
    bool is_over;
    char reason[COMM_REASON_MAX];
};

struct receipt {
    void *bytes;
    size_t size;
    uint32_t from;
};

/* An end's own: what is submitted and not yet run. */
struct thread_end {
    struct team *team;
    struct post **posts;
    struct receipt *receipts;
    size_t post_count, post_capacity, receipt_count, receipt_capacity;
};

static struct thread_end *end_of(struct comm *comm)
{
    return comm->state;
}

/* ---- waiting; the lock is held ---- */

static void team_end(struct team *team, const char *reason)
{
    if (!team->is_over) {
        team->is_over = true;
        snprintf(team->reason, sizeof(team->reason), "%s", reason);
    }
    pthread_cond_broadcast(&team->changed);
}

static reshard_status team_fail(struct team *team, reshard_status status, reshard_error *why, reshard_error *err)
{
    team_end(team, why->message);
    return error_set(err, status, "%s", team->reason);
}

static struct timespec deadline_in(double seconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double whole = seconds < 1e9 ? seconds : 1e9;
    at.tv_sec += (time_t)whole;
    at.tv_nsec += (long)((whole - (double)(time_t)whole) * 1e9);
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

static bool is_before(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec < b->tv_sec || (a->tv_sec == b->tv_sec && a->tv_nsec < b->tv_nsec);
}

static reshard_status team_ask(struct comm *comm, reshard_error *err)
{
    struct team *team = end_of(comm)->team;
    reshard_error why = RESHARD_ERROR_INIT;
    pthread_mutex_unlock(&team->lock);
    reshard_status status = comm_ask(comm, &why);
    pthread_mutex_lock(&team->lock);
    return status ? team_fail(team, status, &why, err) : RESHARD_OK;
}

/* Waits for a change of the team, or a while; the culprit would be `late` if there is none in time. */
static reshard_status team_wait(struct comm *comm, uint32_t late, const struct timespec *deadline, reshard_error *err)
{
    struct team *team = end_of(comm)->team;
    reshard_error why = RESHARD_ERROR_INIT;
    if (team->is_over)
        return error_set(err, RESHARD_ERR_IO, "%s", team->reason);
    if (team->ranks[late].has_left) {
        error_set(&why, RESHARD_ERR_IO, "%s: rank %u has left", comm->call, late);
        return team_fail(team, RESHARD_ERR_IO, &why, err);
    }
    const struct timespec slice = deadline_in(COMM_ASK_SECONDS);
    const bool is_slice = comm->waiting && is_before(&slice, deadline);
    const int timed_out = pthread_cond_timedwait(&team->changed, &team->lock, is_slice ? &slice : deadline);
    if (comm_asks_now(comm))
        return team_ask(comm, err);
    if (!timed_out || is_slice)
        return RESHARD_OK;
    if (team->is_over)
        return error_set(err, RESHARD_ERR_IO, "%s", team->reason);
    error_set(&why, RESHARD_ERR_IO, "%s: rank %u did not come within %g s", comm->call, late, comm->timeout_seconds);
    return team_fail(team, RESHARD_ERR_IO, &why, err);
}

/* ---- gathering ---- */

/* The first rank that has not come to the gather; the team's size if all have. */
static uint32_t team_missing(const struct team *team, uint64_t gather)
{
    uint32_t rank = 0;
    while (rank < team->size && team->ranks[rank].arrived >= gather)
        rank++;
    return rank;
}

/* The last to come puts all bytes together, while their owners wait. */
static reshard_status team_gather(struct team *team, reshard_error *err)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < team->size; rank++)
        total = capped_add_u64(total, team->ranks[rank].size);
    if (total > COMM_GATHER_BYTES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "the ranks gather %" PRIu64 " bytes, more than %" PRIu64, total, COMM_GATHER_BYTES_MAX);
    free(team->all);
    team->all = malloc(total + 1);
    if (!team->all)
        return error_set_memory(err);
    uint8_t *at = team->all;
    for (uint32_t rank = 0; rank < team->size; rank++) {
        if (team->ranks[rank].size)
            memcpy(at, team->ranks[rank].bytes, team->ranks[rank].size);
        at += team->ranks[rank].size;
    }
    team->gathered++;
    pthread_cond_broadcast(&team->changed);
    return RESHARD_OK;
}

/* A copy of the last gather. Nobody can complete another before this rank comes to it. */
static reshard_status gathered_copy(const struct team *team, void **all, uint64_t *sizes, reshard_error *err)
{
    size_t total = 0;
    for (uint32_t rank = 0; rank < team->size; rank++) {
        sizes[rank] = team->ranks[rank].size;
        total += team->ranks[rank].size;
    }
    *all = malloc(total + 1);
    if (!*all)
        return error_set_memory(err);
    memcpy(*all, team->all, total);
    return RESHARD_OK;
}

static reshard_status gather_wait(struct comm *comm, uint64_t gather, reshard_error *err)
{
    struct team *team = end_of(comm)->team;
    const struct timespec deadline = deadline_in(comm->timeout_seconds);
    while (team->gathered < gather) {
        if (team->is_over) /* those who have given up took their bytes with them */
            return error_set(err, RESHARD_ERR_IO, "%s", team->reason);
        uint32_t missing = team_missing(team, gather);
        reshard_error why = RESHARD_ERROR_INIT;
        reshard_status status = missing < team->size ? team_wait(comm, missing, &deadline, err) : team_gather(team, &why);
        if (status)
            return missing < team->size ? status : team_fail(team, status, &why, err);
    }
    return RESHARD_OK;
}

/* Sizes are those of this gather until all have copied them: who comes to the next one early may not change them. */
static reshard_status threads_all_gather(struct comm *comm, const void *bytes, size_t size, void **all, uint64_t *sizes,
                                         reshard_error *err)
{
    struct team *team = end_of(comm)->team;
    pthread_mutex_lock(&team->lock);
    struct team_rank *own = &team->ranks[comm->rank];
    const uint64_t first = own->arrived + 1;
    own->bytes = bytes;
    own->size = size;
    own->arrived = first;
    pthread_cond_broadcast(&team->changed); /* who waits looks again who is missing */
    reshard_status status = gather_wait(comm, first, err);
    if (!status)
        status = gathered_copy(team, all, sizes, err);
    if (!status) { /* a gather of nothing: all have their copies behind it */
        own->arrived++;
        team->gathered += team_missing(team, first + 1) == team->size;
        pthread_cond_broadcast(&team->changed);
        const struct timespec deadline = deadline_in(comm->timeout_seconds);
        while (!status && team->gathered < first + 1)
            status = team_wait(comm, team_missing(team, first + 1), &deadline, err);
    }
    pthread_mutex_unlock(&team->lock);
    return status;
}

/* ---- messages ---- */

static reshard_status threads_submit_send(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err)
{
    struct thread_end *end = end_of(comm);
    struct post *post = ARRAY_ROOM(end->posts, end->post_count, end->post_capacity) ? calloc(1, sizeof(*post)) : NULL;
    if (!post)
        return error_set_memory(err);
    *post = (struct post){ .bytes = bytes, .size = size, .to = to };
    end->posts[end->post_count++] = post;
    return RESHARD_OK;
}

static reshard_status threads_submit_recv(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err)
{
    struct thread_end *end = end_of(comm);
    if (!ARRAY_ROOM(end->receipts, end->receipt_count, end->receipt_capacity))
        return error_set_memory(err);
    end->receipts[end->receipt_count++] = (struct receipt){ bytes, size, from };
    return RESHARD_OK;
}

static struct post_queue *queue_between(const struct team *team, uint32_t from, uint32_t to)
{
    return &team->queues[(size_t)from * team->size + to];
}

static void posts_offer(struct comm *comm)
{
    struct thread_end *end = end_of(comm);
    for (size_t i = 0; i < end->post_count; i++) {
        struct post_queue *queue = queue_between(end->team, comm->rank, end->posts[i]->to);
        *(queue->first ? &queue->last->next : &queue->first) = end->posts[i];
        queue->last = end->posts[i];
    }
    if (end->post_count)
        pthread_cond_broadcast(&end->team->changed);
}

static reshard_status receipt_take(struct comm *comm, const struct receipt *receipt, reshard_error *err)
{
    struct team *team = end_of(comm)->team;
    struct post_queue *queue = queue_between(team, receipt->from, comm->rank);
    const struct timespec deadline = deadline_in(comm->timeout_seconds);
    reshard_error why = RESHARD_ERROR_INIT;
    while (!queue->first || team->is_over) {
        reshard_status status = team_wait(comm, receipt->from, &deadline, err);
        if (status)
            return status;
    }
    struct post *post = queue->first;
    if (post->size != receipt->size) {
        error_set(&why, RESHARD_ERR_IO, "%s: rank %u sends %zu bytes, rank %u expects %zu", comm->call, receipt->from, post->size,
                  comm->rank, receipt->size);
        return team_fail(team, RESHARD_ERR_IO, &why, err);
    }
    queue->first = post->next;
    post->state = POST_TAKEN;
    pthread_mutex_unlock(&team->lock);
    if (receipt->size)
        memcpy(receipt->bytes, post->bytes, receipt->size);
    pthread_mutex_lock(&team->lock);
    post->state = POST_DONE;
    pthread_cond_broadcast(&team->changed);
    return RESHARD_OK;
}

static reshard_status post_wait(struct comm *comm, const struct post *post, reshard_error *err)
{
    const struct timespec deadline = deadline_in(comm->timeout_seconds);
    reshard_status status = RESHARD_OK;
    while (post->state != POST_DONE && !status)
        status = team_wait(comm, post->to, &deadline, err);
    return status;
}

/* Takes back what nobody has begun to copy, and waits for those who have: the memory is the caller's again. The team is over if there are
 * any such. */
static void posts_take_back(struct comm *comm)
{
    struct thread_end *end = end_of(comm);
    for (size_t i = 0; i < end->post_count; i++) {
        struct post_queue *queue = queue_between(end->team, comm->rank, end->posts[i]->to);
        queue->first = NULL; /* all of it is this rank's */
        while (end->posts[i]->state == POST_TAKEN)
            pthread_cond_wait(&end->team->changed, &end->team->lock);
        free(end->posts[i]);
    }
    end->post_count = end->receipt_count = 0;
}

static reshard_status threads_run(struct comm *comm, reshard_error *err)
{
    struct thread_end *end = end_of(comm);
    reshard_status status = RESHARD_OK;
    pthread_mutex_lock(&end->team->lock);
    posts_offer(comm);
    for (size_t i = 0; i < end->receipt_count && !status; i++)
        status = receipt_take(comm, &end->receipts[i], err);
    for (size_t i = 0; i < end->post_count && !status; i++)
        status = post_wait(comm, end->posts[i], err);
    posts_take_back(comm);
    pthread_mutex_unlock(&end->team->lock);
    return status;
}

/* ---- ends ---- */

static void threads_abort(struct comm *comm, const char *reason)
{
    struct team *team = end_of(comm)->team;
    pthread_mutex_lock(&team->lock);
    team_end(team, reason);
    pthread_mutex_unlock(&team->lock);
}

static void team_free(struct team *team)
{
    pthread_mutex_destroy(&team->lock);
    pthread_cond_destroy(&team->changed);
    free(team->all);
    free(team->ranks);
    free(team->queues);
    free(team);
}

static void threads_release(struct comm *comm)
{
    struct thread_end *end = end_of(comm);
    struct team *team = end->team;
    pthread_mutex_lock(&team->lock);
    posts_take_back(comm);
    team->ranks[comm->rank].has_left = true;
    bool is_last = --team->ends == 0;
    pthread_cond_broadcast(&team->changed);
    pthread_mutex_unlock(&team->lock);
    if (is_last)
        team_free(team);
    free(end->posts);
    free(end->receipts);
    free(end);
}

static const struct comm_transport transport_threads = {
    .all_gather = threads_all_gather,
    .submit_send = threads_submit_send,
    .submit_recv = threads_submit_recv,
    .run = threads_run,
    .abort = threads_abort,
    .release = threads_release,
    .shares_memory = true,
};

static struct team *team_new(uint32_t count)
{
    pthread_condattr_t attributes;
    struct team *team = calloc(1, sizeof(*team));
    if (!team)
        return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&team->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    team->size = count;
    team->ranks = array_zeroed(count, sizeof(*team->ranks));
    team->queues = array_zeroed((size_t)count * count, sizeof(*team->queues));
    if (team->ranks && team->queues)
        return team;
    team_free(team);
    return NULL;
}

static struct comm *end_new(struct team *team, uint32_t rank, const struct comm_patience *patience)
{
    struct comm *comm = comm_new(&transport_threads, rank, team->size, patience);
    struct thread_end *end = calloc(1, sizeof(*end));
    if (!comm || !end) {
        free(comm);
        free(end);
        return NULL;
    }
    end->team = team;
    comm->state = end;
    team->ends++;
    return comm;
}

reshard_status comm_threads_new(uint32_t count, const struct comm_patience *patience, struct comm **out, reshard_error *err)
{
    for (uint32_t rank = 0; rank < count; rank++)
        out[rank] = NULL;
    if (count == 0 || count > COMM_THREADS_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "a group of %u threads: there are 1 to %d", count, COMM_THREADS_MAX);
    struct team *team = team_new(count);
    if (!team)
        return error_set_memory(err);
    for (uint32_t rank = 0; rank < count; rank++) {
        out[rank] = end_new(team, rank, patience);
        if (out[rank])
            continue;
        if (rank == 0)
            team_free(team);
        while (rank-- > 0) {
            comm_free(out[rank]);
            out[rank] = NULL;
        }
        return error_set_memory(err);
    }
    return RESHARD_OK;
}
