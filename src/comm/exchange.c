/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/exchange.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "comm/comm_transport.h"

/*
 * Messages have one order on all ranks: the k-th ones of all pairs before the k + 1st, and among those a pair's distance around the ring of
 * ranks. A rank takes those of a few (k, distance) at a time, as many as its scratch holds. So the first message that is not done has both
 * of its ends at work on it, whatever the others do: nobody waits in a circle.
 */
#define TURNS_AT_ONCE 4 /* (k, distance) a run: each at most one piece sent and one received */

#define PLACE_NONE UINT64_MAX

#define STREAM_BYTES_MIN (UINT64_C(4) << 20) /* blocks that are larger leave nothing in caches that could be of use */

/* The steps from this rank to another, or from that to this, and how far they are. */
struct stream {
    uint32_t first, count; /* in exchange_state.order */
    uint32_t step;         /* at hand, counted from first */
    uint64_t element;      /* of that step: in row-major order of its simplified block */
};

struct turn {
    struct stream *stream;
    uint32_t peer;
    bool is_send;
    struct stream begin; /* of the message */
    uint64_t bytes;
    uint8_t *scratch;    /* NULL: sent from, or received at, its place */
};

struct exchange_state {
    struct comm *comm;
    const char *call;
    const struct exchange *exchange;
    struct exchange_totals *totals;
    uint32_t *order;              /* steps, by stream */
    uint64_t *places;             /* as order, or NULL: where the other ranks find a block that is copied from where it lies; PLACE_NONE */
    struct stream *sends, *receives; /* by rank */
    uint64_t piece_bytes;
    bool has_windows;             /* of the transport's, and messages are made there */
    uint8_t *scratch;             /* TURNS_AT_ONCE * 2 pieces */
    struct turn turns[TURNS_AT_ONCE * 2];
    unsigned turn_count;
};

/* ---- pieces ---- */

/* A block between one side and the wire, or both. */
struct piece {
    struct exchange_copy copy;
    uint64_t elements;
    unsigned wire_bytes; /* of an element */
    bool is_cast_first;  /* on the sender's side */
};

static uint64_t spec_elements(const struct copy_spec *spec)
{
    uint64_t elements = 1;
    for (int axis = 0; axis < spec->rank; axis++)
        elements *= (uint64_t)spec->extent[axis];
    return elements;
}

static reshard_status step_describe(const struct exchange_state *state, uint32_t step, struct piece *out, reshard_error *err)
{
    reshard_status status = state->exchange->describe(step, &out->copy, state->exchange->context, err);
    if (status)
        return status;
    copy_simplify(&out->copy.spec);
    unsigned source_bytes = dtype_element_bytes(out->copy.spec.source_dtype);
    unsigned target_bytes = dtype_element_bytes(out->copy.spec.target_dtype);
    out->is_cast_first = target_bytes < source_bytes;
    out->wire_bytes = out->is_cast_first ? target_bytes : source_bytes;
    out->elements = spec_elements(&out->copy.spec);
    if (out->elements * target_bytes >= STREAM_BYTES_MIN)
        out->copy.spec.flags |= COPY_STREAM;
    return RESHARD_OK;
}

/* Cuts a step's block to a sub-block that begins at element `begin` of its row-major order and is the next as far as room goes. */
static void piece_cut(struct piece *piece, uint64_t begin, uint64_t room_elements)
{
    struct copy_spec *spec = &piece->copy.spec;
    uint64_t inner = spec_elements(spec), left = begin;
    int axis = 0;
    piece->elements = 1;
    for (; axis < spec->rank; axis++) {
        inner /= (uint64_t)spec->extent[axis];
        uint64_t at = left / inner, rows = (uint64_t)spec->extent[axis] - at;
        left %= inner;
        piece->copy.source += (int64_t)at * spec->source_stride[axis];
        if (piece->copy.target)
            piece->copy.target += (int64_t)at * spec->target_stride[axis];
        spec->extent[axis] = 1;
        if (left == 0 && inner <= room_elements) {
            spec->extent[axis] = (int64_t)(rows < room_elements / inner ? rows : room_elements / inner);
            piece->elements = (uint64_t)spec->extent[axis] * inner;
            break;
        }
    }
}

/* Passes over steps whose blocks are copied from where they lie. */
static void stream_pass_placed(const struct exchange_state *state, struct stream *stream)
{
    while (state->places && stream->step < stream->count && state->places[stream->first + stream->step] != PLACE_NONE)
        stream->step++;
}

/* The next piece of a stream, at most `room` bytes on the wire; false if there is none that fits behind what the message has already. */
static reshard_status stream_next(const struct exchange_state *state, struct stream *stream, uint64_t room, bool is_first,
                                  struct piece *out, bool *is_there, reshard_error *err)
{
    *is_there = false;
    if (stream->step == stream->count)
        return RESHARD_OK;
    reshard_status status = step_describe(state, state->order[stream->first + stream->step], out, err);
    if (status)
        return status;
    uint64_t elements = out->elements, room_elements = room / out->wire_bytes;
    if (!is_first && (stream->element || elements > room_elements)) /* a message is whole steps, or a piece of one */
        return RESHARD_OK;
    *is_there = true;
    if (stream->element || elements > room_elements)
        piece_cut(out, stream->element, room_elements);
    stream->element += out->elements;
    if (stream->element == elements) {
        stream->step++;
        stream->element = 0;
        stream_pass_placed(state, stream);
    }
    return RESHARD_OK;
}

/* Strides of the block as it lies on the wire. */
static void wire_strides(const struct piece *piece, int64_t *strides)
{
    int64_t stride = piece->wire_bytes;
    for (int axis = piece->copy.spec.rank - 1; axis >= 0; axis--) {
        strides[axis] = stride;
        stride *= piece->copy.spec.extent[axis];
    }
}

/* What a side has to do between its memory and the wire. */
static struct copy_spec side_spec(const struct piece *piece, bool is_send)
{
    struct copy_spec spec = piece->copy.spec;
    wire_strides(piece, is_send ? spec.target_stride : spec.source_stride);
    spec.flags &= is_send ? ~(unsigned)COPY_STREAM : ~0u; /* scratch memory is read at once */
    if (is_send == piece->is_cast_first)
        return spec;
    spec.via_count = 0; /* the other side casts */
    spec.flags &= COPY_STREAM;
    if (is_send)
        spec.target_dtype = spec.source_dtype;
    else
        spec.source_dtype = spec.target_dtype;
    return spec;
}

static bool piece_is_in_place(const struct piece *piece, bool is_send)
{
    uint64_t bytes;
    const struct copy_spec spec = side_spec(piece, is_send);
    return copy_is_plain_run(&spec, &bytes);
}

/* ---- messages ---- */

/* Measures the next message of the turn's stream, and whether it needs scratch; its place if it does not. */
static reshard_status turn_measure(const struct exchange_state *state, struct turn *turn, uint8_t **place, reshard_error *err)
{
    struct piece piece;
    bool is_there = true, is_in_place = false;
    unsigned pieces = 0;
    turn->begin = *turn->stream;
    turn->bytes = 0;
    for (; is_there; pieces++) {
        reshard_status status =
            stream_next(state, turn->stream, state->piece_bytes - turn->bytes, pieces == 0, &piece, &is_there, err);
        if (status)
            return status;
        if (!is_there)
            break;
        turn->bytes += piece.elements * piece.wire_bytes;
        is_in_place = pieces == 0 && piece_is_in_place(&piece, turn->is_send);
        *place = turn->is_send ? (uint8_t *)(uintptr_t)piece.copy.source : piece.copy.target;
    }
    if (!is_in_place)
        *place = NULL;
    return RESHARD_OK;
}

/* Packs the next message of a stream into `wire`, or unpacks it from there; *bytes is its size. */
static reshard_status message_copy(const struct exchange_state *state, struct stream *stream, bool is_send, uint8_t *wire,
                                   uint64_t *bytes, reshard_error *err)
{
    bool is_there = true;
    *bytes = 0;
    while (is_there) {
        struct piece piece;
        reshard_status status = stream_next(state, stream, state->piece_bytes - *bytes, *bytes == 0, &piece, &is_there, err);
        if (status)
            return status;
        if (!is_there)
            break;
        struct copy_spec spec = side_spec(&piece, is_send);
        if (is_send && state->has_windows) /* another core reads it: one that has the lines in its caches would have to give them up */
            spec.flags |= COPY_STREAM;
        if (is_send)
            copy_run(&spec, piece.copy.source, wire + *bytes);
        else
            copy_run(&spec, wire + *bytes, piece.copy.target);
        *bytes += piece.elements * piece.wire_bytes;
    }
    return RESHARD_OK;
}

static reshard_status turn_copy(const struct exchange_state *state, const struct turn *turn, reshard_error *err)
{
    struct stream stream = turn->begin;
    uint64_t bytes;
    return message_copy(state, &stream, turn->is_send, turn->scratch, &bytes, err);
}

static reshard_status turn_submit(struct exchange_state *state, struct turn *turn, reshard_error *err)
{
    uint8_t *place = NULL;
    reshard_status status = turn_measure(state, turn, &place, err);
    turn->scratch = place ? NULL : state->scratch + (size_t)(turn - state->turns) * state->piece_bytes;
    if (!status && turn->is_send && turn->scratch)
        status = turn_copy(state, turn, err);
    if (status)
        return status;
    *(turn->is_send ? &state->totals->sent : &state->totals->received) += turn->bytes;
    if (turn->is_send)
        return comm_send(state->comm, turn->peer, place ? place : turn->scratch, turn->bytes, err);
    return comm_recv(state->comm, turn->peer, place ? place : turn->scratch, turn->bytes, err);
}

static reshard_status turns_run(struct exchange_state *state, reshard_error *err)
{
    reshard_status status = state->turn_count ? comm_run(state->comm, state->call, err) : RESHARD_OK;
    for (unsigned i = 0; i < state->turn_count && !status; i++)
        if (!state->turns[i].is_send && state->turns[i].scratch)
            status = turn_copy(state, &state->turns[i], err);
    state->turn_count = 0;
    return status;
}

static reshard_status turn_add(struct exchange_state *state, struct stream *stream, uint32_t peer, bool is_send, reshard_error *err)
{
    if (stream->step == stream->count)
        return RESHARD_OK;
    struct turn *turn = &state->turns[state->turn_count++];
    *turn = (struct turn){ .stream = stream, .peer = peer, .is_send = is_send };
    return turn_submit(state, turn, err);
}

static bool streams_are_done(const struct exchange_state *state)
{
    for (uint32_t rank = 0; rank < comm_size(state->comm); rank++) /* what a rank keeps is not sent */
        if (rank != comm_rank(state->comm) &&
            (state->sends[rank].step < state->sends[rank].count || state->receives[rank].step < state->receives[rank].count))
            return false;
    return true;
}

static reshard_status messages_run(struct exchange_state *state, reshard_error *err)
{
    const uint32_t size = comm_size(state->comm), rank = comm_rank(state->comm);
    while (!streams_are_done(state)) {
        for (uint32_t distance = 1; distance < size; distance++) {
            uint32_t to = (rank + distance) % size, from = (rank + size - distance) % size;
            reshard_status status = turn_add(state, &state->sends[to], to, true, err);
            if (!status)
                status = turn_add(state, &state->receives[from], from, false, err);
            if (!status && state->turn_count > (TURNS_AT_ONCE - 1) * 2)
                status = turns_run(state, err);
            if (status)
                return status;
        }
    }
    return turns_run(state, err);
}

/* ---- windows ---- */

static bool stream_is_done(const struct stream *stream)
{
    return stream->step == stream->count;
}

/* Sends as many messages as there is room for. */
static reshard_status outgoing_fill(struct exchange_state *state, uint32_t to, bool *has_moved, reshard_error *err)
{
    struct stream *stream = &state->sends[to];
    while (!stream_is_done(stream)) {
        uint64_t bytes;
        uint8_t *place;
        reshard_status status = comm_window_open(state->comm, to, &place, err);
        if (!status && place)
            status = message_copy(state, stream, true, place, &bytes, err);
        if (status || !place)
            return status;
        comm_window_send(state->comm, to, bytes);
        state->totals->sent += bytes;
        *has_moved = true;
    }
    return RESHARD_OK;
}

static reshard_status incoming_empty(struct exchange_state *state, uint32_t from, bool *has_moved, reshard_error *err)
{
    struct stream *stream = &state->receives[from];
    while (!stream_is_done(stream)) {
        uint64_t bytes, size = 0;
        const uint8_t *place;
        reshard_status status = comm_window_look(state->comm, from, &place, &size, err);
        if (!status && place)
            status = message_copy(state, stream, false, (uint8_t *)(uintptr_t)place, &bytes, err);
        if (status || !place)
            return status;
        if (bytes != size)
            return error_set(err, RESHARD_ERR_IO, "%s: rank %u sends %" PRIu64 " bytes, rank %u expects %" PRIu64, state->call, from, size,
                             comm_rank(state->comm), bytes);
        comm_window_take(state->comm, from);
        state->totals->received += bytes;
        *has_moved = true;
    }
    return RESHARD_OK;
}

/* One pass over all other ranks; *late is one that something is waited for from. */
static reshard_status windows_pass(struct exchange_state *state, bool *has_moved, bool *is_done, uint32_t *late, reshard_error *err)
{
    const uint32_t size = comm_size(state->comm), rank = comm_rank(state->comm);
    *has_moved = false;
    *is_done = true;
    for (uint32_t distance = 1; distance < size; distance++) {
        const uint32_t to = (rank + distance) % size, from = (rank + size - distance) % size;
        reshard_status status = outgoing_fill(state, to, has_moved, err);
        if (!status)
            status = incoming_empty(state, from, has_moved, err);
        if (status)
            return status;
        if (stream_is_done(&state->sends[to]) && stream_is_done(&state->receives[from]))
            continue;
        *is_done = false;
        *late = stream_is_done(&state->receives[from]) ? to : from;
    }
    return RESHARD_OK;
}

/* Each pair goes on as far as it can: nobody waits for a third rank. */
static reshard_status windows_run(struct exchange_state *state, reshard_error *err)
{
    struct comm_idle idle = { 0 };
    bool has_moved, is_done = false;
    uint32_t late = 0;
    while (!is_done) {
        reshard_status status = windows_pass(state, &has_moved, &is_done, &late, err);
        if (!status && has_moved)
            idle = (struct comm_idle){ 0 };
        else if (!status && !is_done)
            status = comm_window_wait(state->comm, state->call, late, &idle, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* ---- ranks that share memory, and the rank itself ---- */

/* Adds the bytes of blocks, and copies them if the rank is the one that does. */
static reshard_status blocks_pass(struct exchange_state *state, const struct stream *stream, bool copies, uint64_t *bytes,
                                  reshard_error *err)
{
    for (uint32_t i = 0; i < stream->count; i++) {
        struct piece piece;
        reshard_status status = step_describe(state, state->order[stream->first + i], &piece, err);
        if (status)
            return status;
        *bytes += piece.elements * dtype_element_bytes(piece.copy.spec.target_dtype);
        if (copies)
            copy_run(&piece.copy.spec, piece.copy.source, piece.copy.target);
    }
    return RESHARD_OK;
}

static reshard_status shared_run(struct exchange_state *state, reshard_error *err)
{
    const uint32_t size = comm_size(state->comm), rank = comm_rank(state->comm);
    reshard_status status = RESHARD_OK;
    for (uint32_t distance = 1; distance < size && !status; distance++)
        status = blocks_pass(state, &state->receives[(rank + size - distance) % size], true, &state->totals->received, err);
    for (uint32_t to = 0; to < size && !status; to++) /* which copies it itself */
        status = to == rank ? RESHARD_OK : blocks_pass(state, &state->sends[to], false, &state->totals->sent, err);
    return status;
}

/* ---- memory that the other rank reads ---- */

/* Bytes from a block's first element to the end of its last one; UINT64_MAX if it has an element before the first. */
static uint64_t source_span(const struct copy_spec *spec)
{
    uint64_t span = dtype_element_bytes(spec->source_dtype);
    for (int axis = 0; axis < spec->rank; axis++) {
        if (spec->source_stride[axis] < 0)
            return UINT64_MAX;
        span = capped_add_u64(span, capped_mul_u64((uint64_t)spec->extent[axis] - 1, (uint64_t)spec->source_stride[axis]));
    }
    return span;
}

static reshard_status places_find(const struct exchange_state *state, const struct stream *stream, reshard_error *err)
{
    for (uint32_t i = stream->first; i < stream->first + stream->count; i++) {
        struct piece piece;
        reshard_status status = step_describe(state, state->order[i], &piece, err);
        if (status)
            return status;
        if (comm_memory_find(state->comm, piece.copy.source, source_span(&piece.copy.spec), &state->places[i]))
            state->totals->sent += piece.elements * piece.wire_bytes;
        else
            state->places[i] = PLACE_NONE;
    }
    return RESHARD_OK;
}

/* Tells the other ranks where they find what this one has for them, and hears it from them. */
static reshard_status places_tell(struct exchange_state *state, reshard_error *err)
{
    const uint32_t size = comm_size(state->comm), rank = comm_rank(state->comm);
    reshard_status status = RESHARD_OK;
    for (uint32_t distance = 1; distance < size && !status; distance++) {
        const uint32_t to = (rank + distance) % size, from = (rank + size - distance) % size;
        const struct stream *send = &state->sends[to], *receive = &state->receives[from];
        status = places_find(state, send, err);
        if (!status && send->count)
            status = comm_send(state->comm, to, state->places + send->first, send->count * sizeof(*state->places), err);
        if (!status && receive->count)
            status = comm_recv(state->comm, from, state->places + receive->first, receive->count * sizeof(*state->places), err);
    }
    if (!status)
        status = comm_run(state->comm, state->call, err);
    for (uint32_t other = 0; other < size && !status; other++) {
        if (other == rank)
            continue;
        stream_pass_placed(state, &state->sends[other]);
        stream_pass_placed(state, &state->receives[other]);
    }
    return status;
}

/* Copies what another rank has from where it lies there. */
static reshard_status places_read(struct exchange_state *state, uint32_t from, reshard_error *err)
{
    const struct stream *stream = &state->receives[from];
    for (uint32_t i = stream->first; i < stream->first + stream->count; i++) {
        struct piece piece;
        const uint8_t *source = NULL;
        if (state->places[i] == PLACE_NONE)
            continue;
        reshard_status status = step_describe(state, state->order[i], &piece, err);
        if (!status)
            status = comm_memory_look(state->comm, state->call, from, state->places[i], source_span(&piece.copy.spec), &source, err);
        if (status)
            return status;
        copy_run(&piece.copy.spec, source, piece.copy.target);
        state->totals->received += piece.elements * piece.wire_bytes;
    }
    return RESHARD_OK;
}

static reshard_status places_run(struct exchange_state *state, reshard_error *err)
{
    const uint32_t size = comm_size(state->comm), rank = comm_rank(state->comm);
    if (!comm_memory_is_made(state->comm)) {
        free(state->places);
        state->places = NULL;
        return RESHARD_OK;
    }
    reshard_status status = places_tell(state, err);
    for (uint32_t distance = 1; distance < size && !status; distance++)
        status = places_read(state, (rank + size - distance) % size, err);
    return status;
}

/* ---- the whole ---- */

static struct stream *stream_of(struct exchange_state *state, uint32_t step)
{
    const struct exchange_step *given = &state->exchange->steps[step];
    uint32_t rank = comm_rank(state->comm);
    return given->to == rank ? &state->receives[given->from] : given->from == rank ? &state->sends[given->to] : NULL;
}

/* Puts this rank's steps in order of their streams. A rank receives from itself what it keeps. */
static void streams_fill(struct exchange_state *state)
{
    const uint32_t size = comm_size(state->comm);
    uint32_t next = 0;
    for (uint32_t i = 0; i < state->exchange->count; i++) {
        struct stream *stream = stream_of(state, i);
        if (stream)
            stream->count++;
    }
    for (uint32_t rank = 0; rank < 2 * size; rank++) {
        struct stream *stream = rank < size ? &state->sends[rank] : &state->receives[rank - size];
        stream->first = next;
        next += stream->count;
        stream->count = 0;
    }
    for (uint32_t i = 0; i < state->exchange->count; i++) {
        struct stream *stream = stream_of(state, i);
        if (stream)
            state->order[stream->first + stream->count++] = i;
    }
}

static reshard_status exchange_begin(struct exchange_state *state, reshard_error *err)
{
    const uint64_t given = state->exchange->scratch_bytes ? state->exchange->scratch_bytes : EXCHANGE_SCRATCH_BYTES;
    const uint64_t window = comm_window_bytes(state->comm);
    const bool needs_scratch = !window && !comm_shares_memory(state->comm);
    state->piece_bytes = given / (TURNS_AT_ONCE * 2) < 64 ? 64 : given / (TURNS_AT_ONCE * 2) / 64 * 64;
    state->has_windows = window > 0;
    if (window && window < state->piece_bytes)
        state->piece_bytes = window;
    state->order = array_zeroed(state->exchange->count, sizeof(*state->order));
    state->sends = array_zeroed(comm_size(state->comm), sizeof(*state->sends));
    state->receives = array_zeroed(comm_size(state->comm), sizeof(*state->receives));
    if (comm_has_memory(state->comm))
        state->places = array_zeroed(state->exchange->count, sizeof(*state->places));
    if (needs_scratch)
        state->scratch = malloc(state->piece_bytes * TURNS_AT_ONCE * 2);
    if (!state->order || !state->sends || !state->receives || (!state->scratch && needs_scratch) ||
        (!state->places && comm_has_memory(state->comm)))
        return error_set_memory(err);
    streams_fill(state);
    return RESHARD_OK;
}

reshard_status exchange_run(struct comm *comm, const char *call, const struct exchange *exchange, struct exchange_totals *totals,
                            reshard_error *err)
{
    struct exchange_state state = { .comm = comm, .call = call, .exchange = exchange, .totals = totals };
    reshard_error why = RESHARD_ERROR_INIT;
    *totals = (struct exchange_totals){ 0 };
    reshard_status status = comm_agree(comm, call, exchange_begin(&state, &why), &why);
    if (!status) {
        status = blocks_pass(&state, &state.receives[comm_rank(comm)], true, &totals->kept, &why);
        if (!status && state.places)
            status = places_run(&state, &why);
        if (!status)
            status = comm_shares_memory(comm)    ? shared_run(&state, &why)
                     : comm_window_bytes(comm) ? windows_run(&state, &why)
                                               : messages_run(&state, &why);
        if (status && !comm_shares_memory(comm))
            comm_abort(comm, why.message); /* others wait for messages that will not come */
        status = comm_agree(comm, call, status, &why);
    }
    free(state.order);
    free(state.places);
    free(state.sends);
    free(state.receives);
    free(state.scratch);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}
