/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm over MPI. Nothing here blocks: requests are tested until they are done, the time is over, or another rank says that it gives up.
 * The sizes of a gather go from each rank to each, so that a late one is known by its number; the bytes follow collectively.
 *
 * A request that is open when a call gives up may still be served, so that what it reads and writes stays where it is: memory of our own is
 * not freed then. The group is over, and the job ends.
 */
#include "reshard/mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define TAG_SIZE 1
#define TAG_BYTES 2
#define TAG_ABORT 3
#define REASON_MAX 1024
#define MESSAGE_MAX (1 << 30) /* bytes: MPI counts in int */
#define DROP_SECONDS 1.0 /* at most: how long a rank that gives up has its requests brought to an end */

struct mpi_end {
    MPI_Comm communicator;
    int rank, size;
    double timeout_seconds;
    MPI_Request *requests; /* submitted */
    int *peers;            /* of the requests */
    size_t count, capacity;
    int is_over;
    char why[REASON_MAX];
};

static int mpi_fail(struct mpi_end *end, const char *what, int peer)
{
    end->is_over = 1;
    if (!end->why[0])
        snprintf(end->why, sizeof(end->why), "rank %d %s", peer, what);
    return 1;
}

/* Whether another rank has given up: its reason is kept. */
static int mpi_is_aborted(struct mpi_end *end)
{
    int is_there = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_ABORT, end->communicator, &is_there, &status) || !is_there)
        return 0;
    char reason[REASON_MAX] = "";
    MPI_Recv(reason, REASON_MAX - 1, MPI_CHAR, status.MPI_SOURCE, TAG_ABORT, end->communicator, &status);
    if (!end->why[0])
        snprintf(end->why, sizeof(end->why), "%s", reason);
    end->is_over = 1;
    return 1;
}

static double mpi_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* Receives that nothing has come for end at once. What does not end stays open: freed, it would be served all the same. */
static void requests_drop(MPI_Request *requests, size_t count)
{
    const double begin = mpi_now();
    for (size_t i = 0; i < count; i++)
        if (requests[i] != MPI_REQUEST_NULL)
            MPI_Cancel(&requests[i]);
    for (size_t i = 0; i < count; i++) {
        for (int flag = requests[i] == MPI_REQUEST_NULL; !flag && mpi_now() - begin < DROP_SECONDS;) {
            if (MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE))
                break;
            if (!flag)
                nanosleep(&(struct timespec){ 0, 20000 }, NULL);
        }
    }
}

/* Waits for all requests; peers (NULL: unknown) says with whom each is. Time without progress is what counts. */
static int requests_wait(struct mpi_end *end, MPI_Request *requests, const int *peers, size_t count)
{
    double last = mpi_now();
    size_t done = 0;
    unsigned idle = 0;
    while (done < count) {
        int flag = 0;
        if (MPI_Test(&requests[done], &flag, MPI_STATUS_IGNORE)) {
            requests_drop(requests, count);
            return mpi_fail(end, "cannot be reached: MPI failed", peers ? peers[done] : end->rank);
        }
        if (flag) {
            done++;
            last = mpi_now();
            idle = 0;
            continue;
        }
        if (mpi_is_aborted(end) || mpi_now() - last > end->timeout_seconds) {
            int peer = peers ? peers[done] : end->rank;
            requests_drop(requests, count);
            return mpi_fail(end, "did not come in time", peer);
        }
        if (++idle > 1000) /* ranks may share a core */
            nanosleep(&(struct timespec){ 0, idle > 20000 ? 1000000 : 20000 }, NULL);
    }
    return 0;
}

/* ---- gathering ---- */

/* sizes has this rank's, and gets those of the others. */
static int sizes_exchange(struct mpi_end *end, uint64_t *sizes)
{
    size_t count = 0, most = 2 * (size_t)end->size;
    MPI_Request *requests = malloc(most * sizeof(MPI_Request));
    int *peers = malloc(most * sizeof(*peers)), failed = !requests || !peers;
    for (int distance = 1; distance < end->size && !failed; distance++) {
        peers[count] = (end->rank + distance) % end->size;
        failed |= MPI_Irecv(&sizes[peers[count]], 1, MPI_UINT64_T, peers[count], TAG_SIZE, end->communicator, &requests[count]);
        count++;
        peers[count] = (end->rank + distance) % end->size;
        failed |= MPI_Isend(&sizes[end->rank], 1, MPI_UINT64_T, peers[count], TAG_SIZE, end->communicator, &requests[count]);
        count++;
    }
    failed = failed || requests_wait(end, requests, peers, count);
    free(requests);
    free(peers);
    return failed;
}

/* Piece number `piece` of every rank's bytes, each at most `most`. The caller's memory is not MPI's: it is not there for longer than the
 * call. */
static int bytes_gather(struct mpi_end *end, const char *bytes, const size_t *sizes, size_t most, size_t piece, char *all)
{
    int *counts = calloc((size_t)end->size, sizeof(*counts)), *places = calloc((size_t)end->size, sizeof(*places));
    char *packed = malloc(most * (size_t)end->size + 1);
    int failed = !counts || !places || !packed;
    size_t total = 0, begin = piece * most;
    for (int rank = 0; rank < end->size && !failed; rank++) {
        size_t left = sizes[rank] > begin ? sizes[rank] - begin : 0;
        counts[rank] = (int)(left < most ? left : most);
        places[rank] = (int)total;
        total += (size_t)counts[rank];
    }
    MPI_Request request = MPI_REQUEST_NULL;
    if (!failed && counts[end->rank])
        memcpy(packed + places[end->rank], bytes + begin, (size_t)counts[end->rank]);
    failed = failed || MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, packed, counts, places, MPI_BYTE, end->communicator, &request);
    double last = mpi_now();
    for (int flag = 0; !failed && !flag;) {
        failed = MPI_Test(&request, &flag, MPI_STATUS_IGNORE) || mpi_is_aborted(end) || mpi_now() - last > end->timeout_seconds;
        if (!flag && mpi_now() - last > 0.001)
            nanosleep(&(struct timespec){ 0, 20000 }, NULL);
    }
    size_t at = 0;
    for (int rank = 0; rank < end->size && !failed; rank++) {
        if (counts[rank])
            memcpy(all + at + begin, packed + places[rank], (size_t)counts[rank]);
        at += sizes[rank];
    }
    if (request != MPI_REQUEST_NULL) /* it is open */
        return failed;
    free(counts);
    free(places);
    free(packed);
    return failed;
}

static int mpi_all_gather(const void *bytes, size_t bytes_size, void **all, size_t *sizes, void *context)
{
    struct mpi_end *end = context;
    uint64_t *given = calloc((size_t)end->size, sizeof(*given));
    size_t total = 0, longest = 0, most = MESSAGE_MAX / (size_t)end->size;
    *all = NULL;
    if (end->is_over || !given) {
        free(given);
        return 1;
    }
    given[end->rank] = bytes_size;
    if (sizes_exchange(end, given))
        return 1; /* requests may be open */
    int failed = 0;
    for (int rank = 0; rank < end->size && !failed; rank++) {
        sizes[rank] = (size_t)given[rank];
        longest = sizes[rank] > longest ? sizes[rank] : longest;
        failed = __builtin_add_overflow(total, sizes[rank], &total) || total > SIZE_MAX / 4;
    }
    free(given);
    most = longest < most ? longest : most;
    *all = failed ? NULL : malloc(total + 1);
    failed = failed || !*all;
    for (size_t piece = 0; !failed && most && piece * most < longest; piece++)
        failed = bytes_gather(end, bytes, sizes, most, piece, *all);
    if (failed) {
        free(*all);
        *all = NULL;
    }
    return failed;
}

/* ---- messages ---- */

static int request_room(struct mpi_end *end)
{
    if (end->count < end->capacity)
        return 0;
    size_t capacity = end->capacity ? end->capacity * 2 : 64;
    MPI_Request *requests = realloc(end->requests, capacity * sizeof(MPI_Request));
    end->requests = requests ? requests : end->requests;
    int *peers = requests ? realloc(end->peers, capacity * sizeof(*peers)) : NULL;
    end->peers = peers ? peers : end->peers;
    end->capacity = peers ? capacity : end->capacity;
    return !peers;
}

static int mpi_submit(struct mpi_end *end, int is_send, int64_t peer, void *bytes, size_t bytes_size)
{
    char *at = bytes;
    int failed = end->is_over;
    do {
        int count = bytes_size < MESSAGE_MAX ? (int)bytes_size : MESSAGE_MAX;
        failed = failed || request_room(end);
        if (!failed) {
            end->peers[end->count] = (int)peer;
            failed = is_send ? MPI_Isend(at, count, MPI_BYTE, (int)peer, TAG_BYTES, end->communicator, &end->requests[end->count])
                             : MPI_Irecv(at, count, MPI_BYTE, (int)peer, TAG_BYTES, end->communicator, &end->requests[end->count]);
        }
        end->count += !failed;
        at += count;
        bytes_size -= (size_t)count;
    } while (bytes_size && !failed);
    return failed;
}

static int mpi_submit_send(int64_t to, const void *bytes, size_t bytes_size, void *context)
{
    return mpi_submit(context, 1, to, (void *)(uintptr_t)bytes, bytes_size);
}

static int mpi_submit_recv(int64_t from, void *bytes, size_t bytes_size, void *context)
{
    return mpi_submit(context, 0, from, bytes, bytes_size);
}

static int mpi_run(void *context)
{
    struct mpi_end *end = context;
    int failed = end->is_over || requests_wait(end, end->requests, end->peers, end->count);
    end->count = 0;
    return failed;
}

/* ---- ends ---- */

static const char *mpi_why(void *context)
{
    return ((struct mpi_end *)context)->why;
}

/* The others look for this while they wait. What cannot be sent at once is left to MPI. */
static void mpi_tell_abort(const char *reason, void *context)
{
    struct mpi_end *end = context;
    if (!end->why[0])
        snprintf(end->why, sizeof(end->why), "%s", reason);
    end->is_over = 1;
    for (int rank = 0; rank < end->size; rank++) {
        MPI_Request request;
        if (rank != end->rank && !MPI_Isend(end->why, (int)strlen(end->why) + 1, MPI_CHAR, rank, TAG_ABORT, end->communicator, &request))
            MPI_Request_free(&request);
    }
}

static void mpi_release(void *context)
{
    struct mpi_end *end = context;
    free(end->requests);
    free(end->peers);
    if (end->is_over) /* messages may still be under way in its memory */
        return;
    MPI_Comm_free(&end->communicator);
    free(end);
}

/* What is wrong with the arguments; of a record of any version its message is filled in if there is one. */
static reshard_status mpi_refuse(reshard_status status, const char *what, reshard_error *err)
{
    if (err && err->struct_size >= sizeof(*err)) {
        const size_t size = err->struct_size;
        *err = (reshard_error)RESHARD_ERROR_INIT;
        err->struct_size = size;
        err->code = status;
        snprintf(err->message, sizeof(err->message), "reshard_comm_mpi: %s", what);
    }
    return status;
}

/* How long a rank waits: of options of any version, which reshard_comm_new checks. */
static double mpi_timeout(const reshard_comm_options *options)
{
    const size_t end = offsetof(reshard_comm_options, timeout_seconds) + sizeof(options->timeout_seconds);
    const double given = options && options->struct_size >= end ? options->timeout_seconds : 0;
    return given > 0 ? given : 1800; /* as the library */
}

EXPORT reshard_status reshard_comm_mpi(MPI_Comm communicator, const reshard_comm_options *options, reshard_comm **out, reshard_error *err)
{
    reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    if (!out)
        return mpi_refuse(RESHARD_ERR_USAGE, "out is NULL", err);
    *out = NULL;
    if (communicator == MPI_COMM_NULL)
        return mpi_refuse(RESHARD_ERR_USAGE, "the communicator is MPI_COMM_NULL", err);
    struct mpi_end *end = calloc(1, sizeof(*end));
    if (!end)
        return mpi_refuse(RESHARD_ERR_MEMORY, "out of memory", err);
    if (MPI_Comm_dup(communicator, &end->communicator)) {
        free(end);
        return mpi_refuse(RESHARD_ERR_IO, "MPI_Comm_dup has failed", err);
    }
    MPI_Comm_set_errhandler(end->communicator, MPI_ERRORS_RETURN);
    MPI_Comm_rank(end->communicator, &end->rank);
    MPI_Comm_size(end->communicator, &end->size);
    end->timeout_seconds = mpi_timeout(options);
    callbacks.rank = end->rank;
    callbacks.size = end->size;
    callbacks.all_gather = mpi_all_gather;
    callbacks.submit_send = mpi_submit_send;
    callbacks.submit_recv = mpi_submit_recv;
    callbacks.run = mpi_run;
    callbacks.abort = mpi_tell_abort;
    callbacks.release = mpi_release;
    callbacks.why = mpi_why;
    callbacks.context = end;
    reshard_status status = reshard_comm_new(&callbacks, options, out, err);
    if (status)
        mpi_release(end);
    return status;
}
