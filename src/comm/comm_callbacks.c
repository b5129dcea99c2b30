/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport of the host program's. What it hands over is checked as far as it can be: sizes must add up, and comm.c looks at each part.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/array.h"
#include "comm/comm_transport.h"

static const struct comm_callbacks *callbacks_of(const struct comm *comm)
{
    return comm->state;
}

static reshard_status callback_failed(const struct comm *comm, const char *name, int returned, reshard_error *err)
{
    const struct comm_callbacks *callbacks = callbacks_of(comm);
    const char *why = callbacks->why ? callbacks->why(callbacks->context) : NULL;
    if (why && why[0])
        return error_set(err, RESHARD_ERR_IO, "%s: %s", comm->call, why);
    return error_set(err, RESHARD_ERR_IO, "%s: %s of the transport failed on rank %u with %d", comm->call, name, comm->rank, returned);
}

static reshard_status sizes_take(const struct comm *comm, const size_t *given, uint64_t *sizes, reshard_error *err)
{
    uint64_t total = 0;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        sizes[rank] = given[rank];
        total = capped_add_u64(total, given[rank]);
    }
    return total <= COMM_GATHER_BYTES_MAX ? RESHARD_OK
                                          : error_set(err, RESHARD_ERR_LIMIT, "%s: the ranks gather %" PRIu64 " bytes, more than %" PRIu64,
                                                      comm->call, total, COMM_GATHER_BYTES_MAX);
}

static reshard_status callbacks_all_gather(struct comm *comm, const void *bytes, size_t size, void **all, uint64_t *sizes,
                                           reshard_error *err)
{
    size_t *given = array_zeroed(comm->size, sizeof(*given));
    if (!given)
        return error_set_memory(err);
    *all = NULL;
    int returned = callbacks_of(comm)->all_gather(bytes, size, all, given, callbacks_of(comm)->context);
    reshard_status status = returned ? callback_failed(comm, "all_gather", returned, err) : sizes_take(comm, given, sizes, err);
    if (!status && !*all)
        status = error_set(err, RESHARD_ERR_IO, "%s: all_gather of the transport gave no memory on rank %u", comm->call, comm->rank);
    if (!status && given[comm->rank] != size)
        status = error_set(err, RESHARD_ERR_IO, "%s: all_gather of the transport gave rank %u %zu of its own %zu bytes", comm->call,
                           comm->rank, given[comm->rank], size);
    free(given);
    return status;
}

static reshard_status callbacks_submit_send(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err)
{
    int returned = callbacks_of(comm)->submit_send(to, bytes, size, callbacks_of(comm)->context);
    return returned ? callback_failed(comm, "submit_send", returned, err) : RESHARD_OK;
}

static reshard_status callbacks_submit_recv(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err)
{
    int returned = callbacks_of(comm)->submit_recv(from, bytes, size, callbacks_of(comm)->context);
    return returned ? callback_failed(comm, "submit_recv", returned, err) : RESHARD_OK;
}

static reshard_status callbacks_run(struct comm *comm, reshard_error *err)
{
    int returned = callbacks_of(comm)->run(callbacks_of(comm)->context);
    return returned ? callback_failed(comm, "run", returned, err) : RESHARD_OK;
}

static void callbacks_abort(struct comm *comm, const char *reason)
{
    if (callbacks_of(comm)->abort)
        callbacks_of(comm)->abort(reason, callbacks_of(comm)->context);
}

static void callbacks_release(struct comm *comm)
{
    if (callbacks_of(comm)->release)
        callbacks_of(comm)->release(callbacks_of(comm)->context);
    free(comm->state);
}

static const struct comm_transport transport_callbacks = {
    .all_gather = callbacks_all_gather,
    .submit_send = callbacks_submit_send,
    .submit_recv = callbacks_submit_recv,
    .run = callbacks_run,
    .abort = callbacks_abort,
    .release = callbacks_release,
};

reshard_status comm_callbacks_new(const struct comm_callbacks *callbacks, uint32_t rank, uint32_t size, double timeout_seconds,
                                  struct comm **out, reshard_error *err)
{
    const struct comm_patience patience = { .timeout_seconds = timeout_seconds };
    struct comm *comm = comm_new(&transport_callbacks, rank, size, &patience);
    struct comm_callbacks *kept = malloc(sizeof(*kept));
    *out = NULL;
    if (!comm || !kept) {
        free(comm);
        free(kept);
        return error_set_memory(err);
    }
    *kept = *callbacks;
    comm->state = kept;
    *out = comm;
    return RESHARD_OK;
}
