/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/cursor.h"
#include "comm/comm_transport.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What stands before the bytes of every gather: magic, sequence, call, bytes behind it. */
#define GATHER_MAGIC 0x47435352u /* "RSCG" */
#define GATHER_HEADER_BYTES (4 + 8 + 8 + COMM_CALL_MAX + 1)

struct comm *comm_new(const struct comm_transport *transport, uint32_t rank, uint32_t size, const struct comm_patience *patience)
{
    struct comm *comm = calloc(1, sizeof(*comm));
    if (!comm)
        return NULL;
    comm->transport = transport;
    comm->rank = rank;
    comm->size = size;
    comm->timeout_seconds = patience->timeout_seconds > 0 ? patience->timeout_seconds : COMM_TIMEOUT_SECONDS;
    comm->waiting = patience->waiting;
    comm->waiting_context = patience->context;
    comm->call = "";
    return comm;
}

uint32_t comm_rank(const struct comm *comm)
{
    return comm->rank;
}

uint32_t comm_size(const struct comm *comm)
{
    return comm->size;
}

void comm_free(struct comm *comm)
{
    if (!comm)
        return;
    comm_memory_free_all(comm);
    comm->transport->release(comm);
    free(comm);
}

void comm_abort(struct comm *comm, const char *reason)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&comm->abort_state, &none, 1)) {
        snprintf(comm->abort_reason, sizeof(comm->abort_reason), "%s", reason);
        atomic_store(&comm->abort_state, 2);
    }
    comm->transport->abort(comm, reason);
}

bool comm_shares_memory(const struct comm *comm)
{
    return comm->transport->shares_memory;
}

reshard_status error_pass(reshard_error *err, reshard_status status, const reshard_error *why)
{
    if (err) {
        size_t size = err->struct_size;
        *err = *why;
        err->struct_size = size;
    }
    return status;
}

/* ---- a broken group ---- */

static reshard_status comm_check(const struct comm *comm, reshard_error *err)
{
    if (!comm->is_broken && atomic_load(&comm->abort_state) == 2)
        return error_set(err, RESHARD_ERR_IO, "%s", comm->abort_reason);
    return comm->is_broken ? error_set(err, comm->broken_status, "%s", comm->reason) : RESHARD_OK;
}

/* Keeps a failure of the transport's or of what came through it, tells the others, and hands it on. */
static reshard_status comm_break(struct comm *comm, reshard_status status, const reshard_error *why, reshard_error *err)
{
    if (!comm->is_broken) {
        comm->is_broken = true;
        comm->broken_status = status;
        snprintf(comm->reason, sizeof(comm->reason), "%s", why->message[0] ? why->message : reshard_status_name(status));
        comm->transport->abort(comm, comm->reason);
    }
    return error_pass(err, status, why);
}

/* ---- gathering ---- */

static reshard_status gather_pack(const struct comm *comm, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    char call[COMM_CALL_MAX + 1] = "";
    snprintf(call, sizeof(call), "%s", comm->call);
    buffer_append_u32le(out, GATHER_MAGIC);
    buffer_append_u64le(out, comm->sequence);
    buffer_append_u64le(out, size);
    buffer_append(out, call, sizeof(call));
    buffer_append(out, bytes, size);
    return out->failed ? buffer_error(out, err) : RESHARD_OK;
}

static reshard_status part_disagrees(const struct comm *comm, uint32_t rank, struct str call, uint64_t sequence, reshard_error *err)
{
    call.size = strnlen(call.data, call.size);
    return error_set(err, RESHARD_ERR_USAGE, "the ranks do not make the same calls: call %" PRIu64 " of rank %u is %s, call %" PRIu64
                     " of rank %u is %.*s", comm->sequence, comm->rank, comm->call, sequence, rank, STR_ARG(call));
}

/* Takes the header off what a rank passed. */
static reshard_status part_unpack(const struct comm *comm, uint32_t rank, struct str *part, reshard_error *err)
{
    struct cursor cursor = cursor_over(part->data, part->size);
    uint32_t magic;
    uint64_t sequence, size;
    struct str call;
    if (!cursor_u32le(&cursor, &magic) || !cursor_u64le(&cursor, &sequence) || !cursor_u64le(&cursor, &size) ||
        !cursor_bytes(&cursor, COMM_CALL_MAX + 1, &call) || magic != GATHER_MAGIC || size != cursor_left(&cursor))
        return error_set(err, RESHARD_ERR_IO, "%s: what came from rank %u, %zu bytes, is no message of a rank: the transport lost or "
                         "mixed up bytes", comm->call, rank, part->size);
    if (sequence != comm->sequence || strncmp(call.data, comm->call, COMM_CALL_MAX) != 0)
        return part_disagrees(comm, rank, call, sequence, err);
    *part = (struct str){ part->data + GATHER_HEADER_BYTES, (size_t)size };
    return RESHARD_OK;
}

static reshard_status gather_unpack(const struct comm *comm, const uint64_t *sizes, struct comm_gathered *out, reshard_error *err)
{
    const char *at = out->memory;
    out->parts = array_zeroed(comm->size, sizeof(*out->parts));
    if (!out->parts)
        return error_set_memory(err);
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        out->parts[rank] = (struct str){ at, (size_t)sizes[rank] };
        at += sizes[rank];
        reshard_status status = part_unpack(comm, rank, &out->parts[rank], err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

reshard_status comm_all_gather(struct comm *comm, const char *call, const void *bytes, size_t size, struct comm_gathered *out,
                               reshard_error *err)
{
    struct buffer packed = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    *out = (struct comm_gathered){ 0 };
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    comm->call = call;
    comm->sequence++;
    uint64_t *sizes = array_zeroed(comm->size, sizeof(*sizes));
    status = sizes ? gather_pack(comm, bytes, size, &packed, &why) : error_set_memory(&why);
    if (!status)
        status = comm->transport->all_gather(comm, packed.data, packed.size, &out->memory, sizes, &why);
    if (!status)
        status = gather_unpack(comm, sizes, out, &why);
    buffer_release(&packed);
    free(sizes);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

void comm_gathered_release(struct comm_gathered *gathered)
{
    free(gathered->parts);
    free(gathered->memory);
    *gathered = (struct comm_gathered){ 0 };
}

/* ---- agreeing ---- */

static void text_append(struct buffer *out, const char *text)
{
    size_t size = strlen(text);
    buffer_append_u32le(out, (uint32_t)size);
    buffer_append(out, text, size);
}

static bool text_take(struct cursor *cursor, struct str *out)
{
    uint32_t size;
    return cursor_u32le(cursor, &size) && cursor_bytes(cursor, size, out);
}

static void outcome_pack(reshard_status status, const reshard_error *said, struct buffer *out)
{
    buffer_append_u32le(out, (uint32_t)status);
    if (!status)
        return;
    buffer_append_u64le(out, (uint64_t)said->offset);
    buffer_append_u32le(out, (uint32_t)said->sys_errno);
    text_append(out, said->object);
    text_append(out, said->message);
    text_append(out, said->hint);
}

static void hints_take(struct str hints, reshard_error *err)
{
    while (hints.size) {
        const char *end = memchr(hints.data, '\n', hints.size);
        const struct str line = { hints.data, end ? (size_t)(end - hints.data) : hints.size };
        error_hint(err, "%.*s", STR_ARG(line));
        hints = end ? (struct str){ end + 1, hints.size - line.size - 1 } : (struct str){ NULL, 0 };
    }
}

/* The error that a rank reports, as that of all. */
static reshard_status outcome_take(uint32_t rank, struct cursor *cursor, uint32_t status, reshard_error *err)
{
    uint64_t offset;
    uint32_t sys_errno;
    struct str object, message, hint;
    if (status > RESHARD_ERR_CANCELLED || !cursor_u64le(cursor, &offset) || !cursor_u32le(cursor, &sys_errno) ||
        !text_take(cursor, &object) || !text_take(cursor, &message) || !text_take(cursor, &hint))
        return error_set(err, RESHARD_ERR_IO, "rank %u failed, and what it says is no error record", rank);
    error_set(err, (reshard_status)status, "rank %u: %.*s", rank, STR_ARG(message));
    if (object.size)
        error_object(err, "%.*s", STR_ARG(object));
    hints_take(hint, err);
    if (err) {
        err->offset = (int64_t)offset;
        err->sys_errno = (int)sys_errno;
    }
    return (reshard_status)status;
}

static reshard_status outcomes_join(const struct comm *comm, const struct comm_gathered *gathered, reshard_error *err)
{
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        struct cursor cursor = cursor_over(gathered->parts[rank].data, gathered->parts[rank].size);
        uint32_t status;
        if (!cursor_u32le(&cursor, &status))
            return error_set(err, RESHARD_ERR_IO, "rank %u does not say how it fared", rank);
        if (status)
            return outcome_take(rank, &cursor, status, err);
    }
    return RESHARD_OK;
}

reshard_status comm_agree(struct comm *comm, const char *call, reshard_status status, reshard_error *err)
{
    static const reshard_error nothing = RESHARD_ERROR_INIT;
    struct buffer packed = { 0 };
    struct comm_gathered gathered;
    outcome_pack(status, err ? err : &nothing, &packed);
    if (packed.failed) {
        buffer_release(&packed);
        outcome_pack(RESHARD_ERR_MEMORY, &nothing, &packed);
    }
    status = comm_all_gather(comm, call, packed.data, packed.size, &gathered, err);
    buffer_release(&packed);
    if (!status)
        status = outcomes_join(comm, &gathered, err);
    comm_gathered_release(&gathered);
    return status;
}

/* ---- bytes from rank to rank ---- */

reshard_status comm_send(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    status = comm->transport->submit_send(comm, to, bytes, size, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

reshard_status comm_recv(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    status = comm->transport->submit_recv(comm, from, bytes, size, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

reshard_status comm_run(struct comm *comm, const char *call, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    comm->call = call;
    status = comm->transport->run(comm, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

/* ---- windows ---- */

uint64_t comm_window_bytes(const struct comm *comm)
{
    return comm->transport->windows ? comm->transport->windows->bytes(comm) : 0;
}

reshard_status comm_window_open(struct comm *comm, uint32_t to, uint8_t **place, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    *place = NULL;
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    status = comm->transport->windows->open(comm, to, place, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

void comm_window_send(struct comm *comm, uint32_t to, uint64_t size)
{
    comm->transport->windows->send(comm, to, size);
}

reshard_status comm_window_look(struct comm *comm, uint32_t from, const uint8_t **place, uint64_t *size, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    *place = NULL;
    reshard_status status = comm_check(comm, err);
    if (status)
        return status;
    status = comm->transport->windows->look(comm, from, place, size, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}

void comm_window_take(struct comm *comm, uint32_t from)
{
    comm->transport->windows->take(comm, from);
}

reshard_status comm_window_wait(struct comm *comm, const char *call, uint32_t late, struct comm_idle *idle, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    comm->call = call;
    reshard_status status = comm->transport->windows->wait(comm, late, idle, &why);
    return status ? comm_break(comm, status, &why, err) : RESHARD_OK;
}
