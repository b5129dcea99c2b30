/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api_comm.h"

#include "api/versioned.h"
#include "base/array.h"
#include "comm/comm_transport.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static reshard_status options_of_comm(const reshard_comm_options *options, struct comm_patience *out, reshard_error *err)
{
    reshard_comm_options taken;
    reshard_status status = struct_take(&taken, sizeof(taken), options, "reshard_comm_options", err);
    if (status)
        return status;
    if (!isfinite(taken.timeout_seconds) || taken.timeout_seconds < 0)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_comm_options.timeout_seconds is %g", taken.timeout_seconds);
    *out = (struct comm_patience){ taken.timeout_seconds, taken.waiting, taken.context };
    return RESHARD_OK;
}

reshard_status comm_handle(struct comm *inner, reshard_comm **out, reshard_error *err)
{
    *out = calloc(1, sizeof(**out));
    if (*out) {
        (*out)->inner = inner;
        return RESHARD_OK;
    }
    comm_free(inner);
    return error_set_memory(err);
}

static reshard_status place_check(int64_t rank, int64_t size, reshard_error *err)
{
    if (size < 1 || size > COMM_SIZE_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "a group of %" PRId64 " ranks: there are 1 to %d", size, COMM_SIZE_MAX);
    if (rank < 0 || rank >= size)
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRId64 " of a group of %" PRId64, rank, size);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_comm_new(const reshard_comm_callbacks *callbacks, const reshard_comm_options *options,
                                           reshard_comm **out, reshard_error *err)
{
    reshard_comm_callbacks taken;
    struct comm_patience patience = { .timeout_seconds = 0 };
    struct comm *inner = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(callbacks, err);
    reshard_status status = struct_take(&taken, sizeof(taken), callbacks, "reshard_comm_callbacks", err);
    if (!status && !(taken.all_gather && taken.submit_send && taken.submit_recv && taken.run))
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_comm_callbacks: all_gather, submit_send, submit_recv or run is NULL");
    if (!status)
        status = place_check(taken.rank, taken.size, err);
    if (!status)
        status = options_of_comm(options, &patience, err);
    *out = status ? NULL : calloc(1, sizeof(**out));
    if (!status && !*out)
        status = error_set_memory(err);
    if (!status) {
        const struct comm_callbacks given = { taken.all_gather, taken.submit_send, taken.submit_recv, taken.run,
                                              taken.abort,      taken.release,     taken.why,
                                              taken.context };
        status = comm_callbacks_new(&given, (uint32_t)taken.rank, (uint32_t)taken.size, patience.timeout_seconds, &inner, err);
    }
    if (status) {
        free(*out);
        *out = NULL;
        return status;
    }
    (*out)->inner = inner;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_comm_threads(int64_t count, const reshard_comm_options *options, reshard_comm **out,
                                               reshard_error *err)
{
    struct comm_patience patience = { .timeout_seconds = 0 };
    ERROR_SCOPE(err);
    NEEDS(out, err);
    reshard_status status = place_check(0, count, err);
    if (status)
        return status;
    memset(out, 0, (size_t)count * sizeof(reshard_comm *));
    status = options_of_comm(options, &patience, err);
    if (status)
        return status;
    struct comm **inner = array_zeroed(count, sizeof(struct comm *));
    status = inner ? comm_threads_new((uint32_t)count, &patience, inner, err) : error_set_memory(err);
    for (int64_t rank = 0; rank < count && !status; rank++) {
        status = comm_handle(inner[rank], &out[rank], err);
        inner[rank] = NULL;
    }
    for (int64_t rank = 0; rank < count && status; rank++) {
        comm_free(inner ? inner[rank] : NULL);
        reshard_comm_free(out[rank]);
        out[rank] = NULL;
    }
    free(inner);
    return status;
}

API_EXPORT reshard_status reshard_comm_processes(const char *name, int64_t rank, int64_t size, const reshard_comm_options *options,
                                                 reshard_comm **out, reshard_error *err)
{
    struct comm_patience patience = { .timeout_seconds = 0 };
    struct comm *inner = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(name, err);
    reshard_status status = place_check(rank, size, err);
    if (!status)
        status = options_of_comm(options, &patience, err);
    if (!status)
        status = comm_processes_new(name, (uint32_t)rank, (uint32_t)size, &patience, &inner, err);
    return status ? status : comm_handle(inner, out, err);
}

API_EXPORT int64_t reshard_comm_rank(const reshard_comm *comm)
{
    return comm ? comm_rank(comm->inner) : 0;
}

API_EXPORT int64_t reshard_comm_size(const reshard_comm *comm)
{
    return comm ? comm_size(comm->inner) : 0;
}

API_EXPORT reshard_status reshard_comm_agree(reshard_comm *comm, reshard_status status, reshard_error *err)
{
    reshard_error said = RESHARD_ERROR_INIT;
    if (status && err)
        error_take(&said, err);
    if (status)
        said.code = status;
    ERROR_SCOPE(err);
    NEEDS(comm, err);
    status = comm_agree(comm->inner, __func__, status, &said);
    return status ? error_pass(err, status, &said) : RESHARD_OK;
}

API_EXPORT reshard_status reshard_comm_barrier(reshard_comm *comm, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(comm, err);
    return comm_agree(comm->inner, __func__, RESHARD_OK, err);
}

API_EXPORT reshard_status reshard_comm_all_gather(reshard_comm *comm, const void *bytes, size_t size, const void **parts, size_t *sizes,
                                                  void **all, reshard_error *err)
{
    struct comm_gathered gathered;
    ERROR_SCOPE(err);
    NEEDS(all, err);
    *all = NULL;
    NEEDS(comm, err);
    NEEDS(parts, err);
    NEEDS(sizes, err);
    if (size)
        NEEDS(bytes, err);
    reshard_status status = comm_all_gather(comm->inner, __func__, bytes, size, &gathered, err);
    for (uint32_t rank = 0; rank < comm_size(comm->inner); rank++) {
        parts[rank] = status ? NULL : gathered.parts[rank].data;
        sizes[rank] = status ? 0 : gathered.parts[rank].size;
    }
    if (!status) {
        *all = gathered.memory;
        gathered.memory = NULL;
    }
    comm_gathered_release(&gathered);
    return status;
}

API_EXPORT reshard_status reshard_comm_memory_new(reshard_comm *comm, size_t size, void **out, reshard_error *err)
{
    uint8_t *memory = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(comm, err);
    reshard_status status = comm_memory_new(comm->inner, size, &memory, err);
    *out = memory;
    return status;
}

API_EXPORT void reshard_comm_memory_free(reshard_comm *comm, void *memory)
{
    if (comm)
        comm_memory_free(comm->inner, memory);
}

API_EXPORT void reshard_comm_abort(reshard_comm *comm, const char *reason)
{
    char text[COMM_REASON_MAX];
    if (!comm)
        return;
    snprintf(text, sizeof(text), "rank %u: %s", comm_rank(comm->inner), reason ? reason : "aborted");
    comm_abort(comm->inner, text);
}

API_EXPORT void reshard_comm_free(reshard_comm *comm)
{
    if (comm)
        comm_free(comm->inner);
    free(comm);
}
