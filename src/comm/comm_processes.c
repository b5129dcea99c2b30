/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of one machine, over a segment of shared memory with a ring of bytes from each rank to each. Who writes a ring is one process,
 * and who reads it another, so that there is no lock that a dead one could hold. Every byte goes through a ring, in frames of a kind, a
 * size and that many bytes. They follow each other, or lie in slots, where they are made and read. Memory that sizes ask for is bounded,
 * and positions in a ring are checked: a rank may go astray. Rank 0 takes the pages of all rings before it says that they are there, for
 * later there would be no error to return, but a signal; where /dev/shm is small it makes shorter rings. Their length follows from that
 * of the file.
 *
 * Memory that ranks make for the others to read lies behind the rings, in pages of the same file that are there before they are used. Every
 * rank has all of it mapped to read, and a place in it is an offset in the file: whatever a rank says, no other memory is read.
 *
 * A process holds a lock of the kernel's on byte number `rank` of the segment (open file description locks): it goes when the process does,
 * however it ends, so that the others see it. Rank 0 makes the segment (mode 0600, of this user or refused) and takes its name away as soon
 * as all ranks have it: nothing is left of it when the last process ends. A name whose rank 0 is no more is what a crash left, and removed.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/clock.h"
#include "comm/comm_transport.h"

#define REASON_SECONDS 1.0 /* at most: how long a rank has to write why it gives up */
#define SEGMENT_MAGIC UINT64_C(0x31304d4853524853)
#define SEGMENT_BYTES (UINT64_C(64) << 20) /* of all rings, about */
#define RING_BYTES_MAX (UINT64_C(1) << 20)
#define RING_BYTES_MIN (UINT64_C(4) << 10)
#define RESERVE_STEP (UINT64_C(4) << 20) /* done between two ticks of a profiler: a signal has a step begun again */
#define FLOW_ROOM_FIRST (UINT64_C(64) << 10) /* of what comes in a size that the sender says */
#define LOOK_SECONDS 0.05 /* how often an idle rank looks whether the others live */

enum frame_kind { FRAME_GATHER = 1, FRAME_MESSAGE = 2, FRAME_WINDOW = 3 };

/* One writes `written`, the other `read`: bytes since the beginning. */
struct ring {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
};

struct segment_rank {
    _Alignas(64) _Atomic uint32_t is_there, has_left;
    _Atomic uint32_t waits_for; /* 1 + a rank; 0: it is at work */
};

struct segment {
    _Atomic uint64_t magic; /* set last */
    uint32_t size;
    _Atomic uint32_t over;  /* 1: a reason is being written, 2: it is there, 3: it did not come */
    char reason[COMM_REASON_MAX];
    _Atomic uint64_t made_bytes; /* of memory for others to read, since the beginning */
};

struct frame {
    uint32_t kind, reserved;
    uint64_t size;
};

/* A frame on its way to a peer or from one. */
struct flow {
    uint32_t peer;
    bool is_send, is_done, is_open; /* open: its size is what the other says, and memory grows with what comes */
    struct frame frame;
    uint64_t done;                  /* bytes, of the frame's header too */
    uint8_t *bytes;
    uint64_t room;                  /* of an open one */
};

struct process_end {
    int fd;
    uint8_t *memory;
    uint64_t bytes, ring_bytes;
    double reason_seconds;
    struct flow *flows;
    size_t flow_count, flow_capacity;
    uint8_t *is_busy; /* by peer and direction, in a pass */
    uint8_t *made;    /* what ranks have made for others to read, as far as it was looked at */
    uint64_t made_bytes;
    char name[160];   /* of what this process has made; "" once it is taken away */
};

static struct process_end *process_of(struct comm *comm)
{
    return comm->state;
}

/* ---- the segment ---- */

static struct segment *segment_of(const struct process_end *end)
{
    return (struct segment *)(void *)end->memory;
}

static struct segment_rank *segment_rank_of(const struct process_end *end, uint32_t rank)
{
    return (struct segment_rank *)(void *)(end->memory + 4096) + rank;
}

static uint64_t rings_begin(uint32_t size)
{
    return 4096 + ((uint64_t)size * sizeof(struct segment_rank) + 4095) / 4096 * 4096;
}

static struct ring *ring_between(const struct process_end *end, uint32_t size, uint32_t from, uint32_t to)
{
    uint64_t number = (uint64_t)from * size + to;
    return (struct ring *)(void *)(end->memory + rings_begin(size) + number * (sizeof(struct ring) + end->ring_bytes));
}

/* Rings of about that many bytes. */
static void segment_measure(struct process_end *end, uint32_t size, uint64_t share)
{
    share = share / RING_BYTES_MIN * RING_BYTES_MIN;
    end->ring_bytes = share < RING_BYTES_MIN ? RING_BYTES_MIN : share > RING_BYTES_MAX ? RING_BYTES_MAX : share;
    end->bytes = rings_begin(size) + (uint64_t)size * size * (sizeof(struct ring) + end->ring_bytes);
}

/* What a file of that length has; false: it has no such rings. */
static bool segment_measure_found(struct process_end *end, uint32_t size, uint64_t bytes)
{
    const uint64_t rings = bytes < rings_begin(size) ? 0 : (bytes - rings_begin(size)) / size / size;
    segment_measure(end, size, rings < sizeof(struct ring) ? 0 : rings - sizeof(struct ring));
    const bool is_so_long = end->bytes == bytes;
    end->bytes = bytes; /* as it is mapped */
    return is_so_long;
}

static bool rank_lock(int fd, uint32_t rank)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1 };
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

static bool rank_is_alive(int fd, uint32_t rank)
{
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1 };
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* ---- the end of it all ---- */

static void segment_end(struct process_end *end, const char *reason)
{
    struct segment *segment = segment_of(end);
    uint32_t not_over = 0;
    if (!atomic_compare_exchange_strong(&segment->over, &not_over, 1))
        return;
    snprintf(segment->reason, sizeof(segment->reason), "%s", reason);
    atomic_store(&segment->over, 2);
}

static reshard_status segment_error(const struct process_end *end, reshard_error *err)
{
    struct segment *segment = segment_of(end);
    uint32_t writing = 1;
    const double until = clock_seconds() + end->reason_seconds;
    while (atomic_load(&segment->over) == 1 && clock_seconds() < until)
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);       /* another rank is about to write why */
    atomic_compare_exchange_strong(&segment->over, &writing, 3); /* nobody waits for it again */
    if (atomic_load(&segment->over) != 2)                        /* it may have died */
        return error_set(err, RESHARD_ERR_IO, "another rank has given up");
    return error_set(err, RESHARD_ERR_IO, "%.*s", (int)strnlen(segment->reason, COMM_REASON_MAX), segment->reason);
}

static reshard_status segment_fail(struct process_end *end, reshard_error *err)
{
    segment_end(end, err->message);
    return err->code == RESHARD_ERR_CANCELLED ? RESHARD_ERR_CANCELLED : segment_error(end, err);
}

/* A rank that waits is not late: who is, is at the end of the chain. What others say is believed where it makes sense. */
static uint32_t idle_culprit(struct comm *comm, uint32_t late)
{
    uint32_t culprit = late;
    for (uint32_t hops = 0; hops < comm->size; hops++) {
        uint32_t next = atomic_load(&segment_rank_of(process_of(comm), culprit)->waits_for);
        if (!next || next > comm->size)
            return culprit;
        culprit = next - 1;
    }
    return late; /* they wait for each other */
}

/* Lets others run; an error if the group is over, `late` is dead or has left, or the time is. */
static reshard_status idle(struct comm *comm, uint32_t late, struct comm_idle *idling, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    if (atomic_load(&segment_of(end)->over))
        return segment_error(end, err);
    if (++idling->passes < 200) {
        sched_yield();
        return RESHARD_OK;
    }
    reshard_status status = comm_ask_in_time(comm, err);
    if (status)
        return status;
    double now = clock_seconds();
    if (idling->begin == 0)
        idling->begin = idling->looked = now;
    if (now - idling->looked > LOOK_SECONDS) {
        idling->looked = now;
        const struct segment_rank *other = segment_rank_of(end, late);
        bool has_left = atomic_load(&other->has_left), is_there = atomic_load(&other->is_there);
        bool is_gone = has_left || (is_there && !rank_is_alive(end->fd, late));
        if (is_gone && idling->is_gone) /* what it wrote before it went has been looked for since */
            return error_set(err, RESHARD_ERR_IO, "%s: rank %u %s", comm->call, late, has_left ? "has left" : "has died");
        idling->is_gone = is_gone;
    }
    if (now - idling->begin > comm->timeout_seconds)
        return error_set(err, RESHARD_ERR_IO, "%s: rank %u did not come within %g s", comm->call, idle_culprit(comm, late),
                         comm->timeout_seconds);
    nanosleep(&(struct timespec){ 0, idling->passes < 2000 ? 20000 : 500000 }, NULL);
    return RESHARD_OK;
}

/* ---- rings ---- */

/* Moves what fits between memory and the ring, and says how much; false: the ring's positions cannot be. */
static bool ring_move(const struct process_end *end, struct ring *ring, bool is_send, uint8_t *bytes, uint64_t size, uint64_t *moved)
{
    uint64_t written = atomic_load_explicit(&ring->written, is_send ? memory_order_relaxed : memory_order_acquire);
    uint64_t read = atomic_load_explicit(&ring->read, is_send ? memory_order_acquire : memory_order_relaxed);
    uint64_t used = written - read, room = is_send ? end->ring_bytes - used : used;
    uint64_t at = (is_send ? written : read) % end->ring_bytes;
    uint8_t *data = (uint8_t *)(ring + 1);
    if (used > end->ring_bytes)
        return false;
    *moved = size < room ? size : room;
    uint64_t first = *moved < end->ring_bytes - at ? *moved : end->ring_bytes - at;
    if (is_send) {
        memcpy(data + at, bytes, first);
        memcpy(data, bytes + first, *moved - first);
        atomic_store_explicit(&ring->written, written + *moved, memory_order_release);
    } else {
        memcpy(bytes, data + at, first);
        memcpy(bytes + first, data, *moved - first);
        atomic_store_explicit(&ring->read, read + *moved, memory_order_release);
    }
    return true;
}

static reshard_status ring_damaged(const struct comm *comm, uint32_t peer, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_IO, "%s: the shared memory between rank %u and rank %u is damaged", comm->call, comm->rank, peer);
}

/* The other's header is there: is it what this rank waits for? */
static reshard_status frame_check(const struct comm *comm, struct flow *flow, const struct frame *wanted, reshard_error *err)
{
    if (flow->frame.kind != wanted->kind)
        return error_set(err, RESHARD_ERR_USAGE, "%s: rank %u is in another call than rank %u", comm->call, flow->peer, comm->rank);
    if (!flow->is_open && flow->frame.size != wanted->size)
        return error_set(err, RESHARD_ERR_IO, "%s: rank %u sends %" PRIu64 " bytes, rank %u expects %" PRIu64, comm->call, flow->peer,
                         flow->frame.size, comm->rank, wanted->size);
    if (!flow->is_open)
        return RESHARD_OK;
    if (flow->frame.size > COMM_GATHER_BYTES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%s: rank %u gathers %" PRIu64 " bytes", comm->call, flow->peer, flow->frame.size);
    return RESHARD_OK;
}

/* What a header says is believed as the bytes come: a size alone takes no memory. */
static reshard_status flow_make_room(struct flow *flow, uint64_t come, reshard_error *err)
{
    if (!flow->is_open || come < flow->room || come == flow->frame.size)
        return RESHARD_OK;
    const uint64_t twice = flow->room ? 2 * flow->room : FLOW_ROOM_FIRST;
    const uint64_t room = twice < flow->frame.size ? twice : flow->frame.size;
    uint8_t *bytes = realloc(flow->bytes, room);
    if (!bytes)
        return error_set_memory(err);
    flow->bytes = bytes;
    flow->room = room;
    return RESHARD_OK;
}

static reshard_status flow_move(struct comm *comm, struct flow *flow, bool *has_moved, reshard_error *err)
{
    const struct process_end *end = process_of(comm);
    struct ring *ring = flow->is_send ? ring_between(end, comm->size, comm->rank, flow->peer)
                                      : ring_between(end, comm->size, flow->peer, comm->rank);
    const uint64_t head = sizeof(flow->frame);
    for (uint64_t moved = 1; moved && !flow->is_done;) {
        const struct frame wanted = flow->frame;
        bool is_head = flow->done < head;
        reshard_status status = is_head ? RESHARD_OK : flow_make_room(flow, flow->done - head, err);
        if (status)
            return status;
        const uint64_t end_of_room = flow->is_open ? flow->room : flow->frame.size;
        uint8_t *at = is_head ? (uint8_t *)&flow->frame + flow->done : flow->bytes + (flow->done - head);
        uint64_t size = is_head ? head - flow->done : end_of_room - (flow->done - head);
        if (is_head && !flow->is_send && flow->done == 0) { /* a header comes as a whole */
            uint64_t there = atomic_load_explicit(&ring->written, memory_order_acquire) - atomic_load(&ring->read);
            if (there < head)
                return RESHARD_OK;
        }
        if (!ring_move(end, ring, flow->is_send, at, size, &moved))
            return ring_damaged(comm, flow->peer, err);
        flow->done += moved;
        *has_moved |= moved > 0;
        if (is_head && !flow->is_send && flow->done == head)
            status = frame_check(comm, flow, &wanted, err);
        if (status)
            return status;
        flow->is_done = flow->done >= head && flow->done - head == flow->frame.size;
    }
    return RESHARD_OK;
}

/* One pass over what is not done: between two ranks in order. *late is one that something is waited for from. */
static reshard_status flows_pass(struct comm *comm, bool *has_moved, bool *is_done, uint32_t *late, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    *has_moved = false;
    *is_done = true;
    memset(end->is_busy, 0, (size_t)comm->size * 2);
    for (size_t i = 0; i < end->flow_count; i++) {
        struct flow *flow = &end->flows[i];
        uint8_t *is_busy = &end->is_busy[flow->peer * 2 + flow->is_send];
        if (flow->is_done || *is_busy)
            continue;
        reshard_status status = flow_move(comm, flow, has_moved, err);
        if (status)
            return status;
        if (flow->is_done)
            continue;
        *is_busy = 1;
        *late = flow->peer;
        *is_done = false;
    }
    return RESHARD_OK;
}

static reshard_status flows_run(struct comm *comm, reshard_error *err)
{
    struct comm_idle idling = { 0 };
    bool has_moved, is_done = false;
    uint32_t late = comm->rank;
    _Atomic uint32_t *waits_for = &segment_rank_of(process_of(comm), comm->rank)->waits_for;
    if (atomic_load(&segment_of(process_of(comm))->over)) /* also where all that is waited for is there */
        return segment_error(process_of(comm), err);
    while (!is_done) {
        reshard_status status = flows_pass(comm, &has_moved, &is_done, &late, err);
        if (!status && has_moved)
            idling = (struct comm_idle){ 0 };
        atomic_store(waits_for, status || is_done || has_moved ? 0 : late + 1);
        if (!status && !is_done)
            status = has_moved ? comm_ask_in_time(comm, err) : idle(comm, late, &idling, err);
        if (status)
            return segment_fail(process_of(comm), err);
    }
    return RESHARD_OK;
}

static reshard_status flow_add(struct comm *comm, const struct flow *flow, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    if (!ARRAY_ROOM(end->flows, end->flow_count, end->flow_capacity))
        return error_set_memory(err);
    end->flows[end->flow_count++] = *flow;
    return RESHARD_OK;
}

/* ---- windows: a ring as slots, each a frame of its own ---- */

#define SLOTS 4
#define SLOT_HEAD_BYTES 64

static uint64_t slot_bytes(const struct process_end *end)
{
    return end->ring_bytes / SLOTS;
}

/* How far it is from a position of the ring to the end of the slot that begins there, or next. */
static uint64_t slot_advance(const struct process_end *end, uint64_t position)
{
    uint64_t slot = slot_bytes(end), behind = position % end->ring_bytes % slot;
    return (behind ? slot - behind : 0) + slot;
}

static struct frame *slot_frame(const struct process_end *end, struct ring *ring, uint64_t position)
{
    uint64_t begin = (position % end->ring_bytes + slot_advance(end, position) - slot_bytes(end)) % end->ring_bytes;
    return (struct frame *)(void *)((uint8_t *)(ring + 1) + begin);
}

static uint64_t window_bytes(const struct comm *comm)
{
    const struct process_end *end = comm->state;
    return slot_bytes(end) - SLOT_HEAD_BYTES;
}

static reshard_status window_open(struct comm *comm, uint32_t to, uint8_t **place, reshard_error *err)
{
    const struct process_end *end = process_of(comm);
    struct ring *ring = ring_between(end, comm->size, comm->rank, to);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    uint64_t used = written - atomic_load_explicit(&ring->read, memory_order_acquire);
    if (used > end->ring_bytes)
        return ring_damaged(comm, to, err);
    bool has_room = slot_advance(end, written) <= end->ring_bytes - used;
    *place = has_room ? (uint8_t *)slot_frame(end, ring, written) + SLOT_HEAD_BYTES : NULL;
    return RESHARD_OK;
}

static void window_send(struct comm *comm, uint32_t to, uint64_t size)
{
    const struct process_end *end = process_of(comm);
    struct ring *ring = ring_between(end, comm->size, comm->rank, to);
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    *slot_frame(end, ring, written) = (struct frame){ FRAME_WINDOW, 0, size };
    atomic_store_explicit(&ring->written, written + slot_advance(end, written), memory_order_release);
}

static reshard_status window_look(struct comm *comm, uint32_t from, const uint8_t **place, uint64_t *size, reshard_error *err)
{
    const struct process_end *end = process_of(comm);
    struct ring *ring = ring_between(end, comm->size, from, comm->rank);
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&ring->written, memory_order_acquire) - read;
    *place = NULL;
    if (there > end->ring_bytes)
        return ring_damaged(comm, from, err);
    if (there < slot_advance(end, read))
        return RESHARD_OK;
    const struct frame frame = *slot_frame(end, ring, read);
    if (frame.kind != FRAME_WINDOW)
        return error_set(err, RESHARD_ERR_USAGE, "%s: rank %u is in another call than rank %u", comm->call, from, comm->rank);
    *place = (const uint8_t *)slot_frame(end, ring, read) + SLOT_HEAD_BYTES;
    *size = frame.size;
    return RESHARD_OK;
}

static void window_take(struct comm *comm, uint32_t from)
{
    const struct process_end *end = process_of(comm);
    struct ring *ring = ring_between(end, comm->size, from, comm->rank);
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    atomic_store_explicit(&ring->read, read + slot_advance(end, read), memory_order_release);
}

static reshard_status window_wait(struct comm *comm, uint32_t late, struct comm_idle *idling, reshard_error *err)
{
    reshard_status status = idle(comm, late, idling, err);
    return status ? segment_fail(process_of(comm), err) : RESHARD_OK;
}

static const struct comm_windows process_windows = { window_bytes, window_open, window_send, window_look, window_take, window_wait };

/* ---- memory that others read ---- */

static uint64_t made_begin(const struct process_end *end)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (end->bytes + page - 1) / page * page;
}

/* A part of the file that nobody else gets, however many make one at once. Its pages are taken now: later there would be no error to
 * return. */
static reshard_status memory_make(struct comm *comm, struct comm_block *block, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    int failure = EINTR;
    block->place = capped_add_u64(made_begin(end), atomic_fetch_add(&segment_of(end)->made_bytes, block->bytes));
    if (capped_add_u64(block->place, block->bytes) > INT64_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "shared memory of %" PRIu64 " bytes", block->bytes);
    while (failure == EINTR)
        failure = posix_fallocate(end->fd, (off_t)block->place, (off_t)block->bytes);
    errno = failure;
    void *memory = failure ? MAP_FAILED
                           : mmap(NULL, block->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, end->fd, (off_t)block->place);
    if (memory == MAP_FAILED) {
        error_set_errno(err, "shared memory of %" PRIu64 " bytes", block->bytes);
        error_hint(err, "/dev/shm has to have room for what ranks make for each other to read");
        return RESHARD_ERR_IO;
    }
    block->memory = memory;
    return RESHARD_OK;
}

/* The pages go back; their part of the file is not used again. */
static void memory_unmake(struct comm *comm, const struct comm_block *block)
{
    munmap(block->memory, block->bytes);
    fallocate(process_of(comm)->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->place, (off_t)block->bytes);
}

static bool memory_is_made(const struct comm *comm)
{
    return atomic_load(&segment_of(comm->state)->made_bytes) > 0;
}

/* Maps all that there is by now. */
static reshard_status made_map(struct process_end *end, reshard_error *err)
{
    struct stat found;
    if (fstat(end->fd, &found) != 0)
        return error_set_errno(err, "shared memory");
    if (end->made)
        munmap(end->made, end->made_bytes);
    end->made = NULL;
    end->made_bytes = (uint64_t)found.st_size > made_begin(end) ? (uint64_t)found.st_size - made_begin(end) : 0;
    void *memory = end->made_bytes ? mmap(NULL, end->made_bytes, PROT_READ, MAP_SHARED, end->fd, (off_t)made_begin(end)) : NULL;
    if (memory == MAP_FAILED) {
        const uint64_t wanted = end->made_bytes;
        end->made_bytes = 0;
        return error_set_errno(err, "shared memory of %" PRIu64 " bytes", wanted);
    }
    end->made = memory;
    return RESHARD_OK;
}

static reshard_status memory_look(struct comm *comm, uint32_t from, uint64_t place, uint64_t size, const uint8_t **out,
                                  reshard_error *err)
{
    struct process_end *end = process_of(comm);
    const uint64_t begin = made_begin(end), last = place < begin ? UINT64_MAX : capped_add_u64(place - begin, size);
    if (last != UINT64_MAX && last > end->made_bytes) {
        reshard_status status = made_map(end, err);
        if (status)
            return status;
    }
    if (last > end->made_bytes)
        return error_set(err, RESHARD_ERR_IO, "%s: rank %u names %" PRIu64 " bytes at %" PRIu64 " of the shared memory, and no rank has "
                         "made such", comm->call, from, size, place);
    *out = end->made + (place - begin);
    return RESHARD_OK;
}

static const struct comm_memory process_memory = { memory_make, memory_unmake, memory_is_made, memory_look };

/* ---- what the transport does ---- */

static reshard_status processes_submit_send(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err)
{
    const struct flow flow = {
        .peer = to, .is_send = true, .frame = { FRAME_MESSAGE, 0, size }, .bytes = (uint8_t *)(uintptr_t)bytes
    };
    return flow_add(comm, &flow, err);
}

static reshard_status processes_submit_recv(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err)
{
    const struct flow flow = { .peer = from, .frame = { FRAME_MESSAGE, 0, size }, .bytes = bytes };
    return flow_add(comm, &flow, err);
}

static reshard_status processes_run(struct comm *comm, reshard_error *err)
{
    reshard_status status = flows_run(comm, err);
    process_of(comm)->flow_count = 0;
    return status;
}

/* Puts together what came, and this rank's own bytes. */
static reshard_status gather_join(struct comm *comm, const void *bytes, size_t size, void **all, uint64_t *sizes, reshard_error *err)
{
    const struct process_end *end = process_of(comm);
    uint64_t total = 0;
    for (size_t i = 0; i < end->flow_count; i++)
        if (!end->flows[i].is_send)
            sizes[end->flows[i].peer] = end->flows[i].frame.size;
    sizes[comm->rank] = size;
    for (uint32_t rank = 0; rank < comm->size; rank++)
        total = capped_add_u64(total, sizes[rank]);
    if (total > COMM_GATHER_BYTES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%s: the ranks gather %" PRIu64 " bytes, more than %" PRIu64, comm->call, total,
                         COMM_GATHER_BYTES_MAX);
    *all = malloc(total + 1);
    if (!*all)
        return error_set_memory(err);
    uint8_t *at = *all;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        const void *from = bytes;
        for (size_t i = 0; i < end->flow_count && rank != comm->rank; i++)
            if (!end->flows[i].is_send && end->flows[i].peer == rank)
                from = end->flows[i].bytes;
        if (sizes[rank])
            memcpy(at, from, sizes[rank]);
        at += sizes[rank];
    }
    return RESHARD_OK;
}

static reshard_status processes_all_gather(struct comm *comm, const void *bytes, size_t size, void **all, uint64_t *sizes,
                                           reshard_error *err)
{
    struct process_end *end = process_of(comm);
    reshard_status status = RESHARD_OK;
    for (uint32_t distance = 1; distance < comm->size && !status; distance++) {
        const uint32_t peer = (comm->rank + distance) % comm->size;
        const struct flow out = {
            .peer = peer, .is_send = true, .frame = { FRAME_GATHER, 0, size }, .bytes = (uint8_t *)(uintptr_t)bytes
        };
        const struct flow in = { .peer = peer, .is_open = true, .frame = { FRAME_GATHER, 0, 0 } };
        status = flow_add(comm, &out, err);
        if (!status)
            status = flow_add(comm, &in, err);
    }
    if (!status)
        status = flows_run(comm, err);
    if (!status)
        status = gather_join(comm, bytes, size, all, sizes, err);
    for (size_t i = 0; i < end->flow_count; i++)
        if (end->flows[i].is_open)
            free(end->flows[i].bytes);
    end->flow_count = 0;
    return status;
}

static void processes_abort(struct comm *comm, const char *reason)
{
    segment_end(process_of(comm), reason);
}

static void processes_release(struct comm *comm)
{
    struct process_end *end = process_of(comm);
    if (end->memory) {
        atomic_store(&segment_rank_of(end, comm->rank)->has_left, 1);
        munmap(end->memory, end->bytes);
    }
    if (end->made)
        munmap(end->made, end->made_bytes);
    if (end->name[0])
        shm_unlink(end->name);
    if (end->fd >= 0)
        close(end->fd);
    free(end->flows);
    free(end->is_busy);
    free(end);
}

static const struct comm_transport transport_processes = {
    .all_gather = processes_all_gather,
    .submit_send = processes_submit_send,
    .submit_recv = processes_submit_recv,
    .run = processes_run,
    .abort = processes_abort,
    .release = processes_release,
    .windows = &process_windows,
    .memory = &process_memory,
};

/* ---- coming together ---- */

static reshard_status owner_check(int fd, const char *name, bool *is_gone, reshard_error *err)
{
    struct stat found;
    *is_gone = false;
    if (fstat(fd, &found) != 0)
        return error_set_errno(err, "shared memory '%s'", name);
    *is_gone = found.st_nlink == 0;
    if (found.st_uid != geteuid() || found.st_mode & 077)
        return error_set(err, RESHARD_ERR_USAGE, "shared memory '%s' is of user %u with mode %o, and has to be this user's with mode 600",
                         name, (unsigned)found.st_uid, (unsigned)found.st_mode & 0777);
    return RESHARD_OK;
}

/* Rank 0: what a crash left under the name is removed; what lives is not touched. */
static reshard_status segment_clear(const char *name, reshard_error *err)
{
    bool is_gone;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == ENOENT ? RESHARD_OK : error_set_errno(err, "shared memory '%s'", name);
    reshard_status status = owner_check(fd, name, &is_gone, err);
    if (!status && rank_is_alive(fd, 0))
        status = error_set(err, RESHARD_ERR_USAGE, "shared memory '%s' belongs to another group, which is coming together", name);
    if (!status)
        shm_unlink(name);
    close(fd);
    return status;
}

/* All pages, with the longest rings that leave as much of /dev/shm to others as they take; the shortest may take all that there is. */
static reshard_status segment_reserve(struct process_end *end, uint32_t size, reshard_error *err)
{
    struct statvfs there;
    const bool is_known = fstatvfs(end->fd, &there) == 0 && there.f_blocks > 0; /* 0: there is no limit */
    const uint64_t room = is_known ? capped_mul_u64(there.f_bavail, there.f_frsize) : UINT64_MAX;
    int failure = 0;
    segment_measure(end, size, SEGMENT_BYTES / size / size);
    while (end->bytes > room / 2 && end->ring_bytes > RING_BYTES_MIN)
        segment_measure(end, size, end->ring_bytes / 2);
    if (ftruncate(end->fd, (off_t)end->bytes) != 0) /* whoever sees it, sees all of it */
        failure = errno;
    for (uint64_t done = 0; done < end->bytes && (!failure || failure == EINTR);) {
        const uint64_t left = end->bytes - done, step = left < RESERVE_STEP ? left : RESERVE_STEP;
        failure = posix_fallocate(end->fd, (off_t)done, (off_t)step);
        done += failure ? 0 : step;
    }
    if (!failure)
        return RESHARD_OK;
    errno = failure;
    error_set_errno(err, "shared memory of %" PRIu64 " bytes for a group of %u processes", end->bytes, size);
    error_hint(err, "/dev/shm has to have room for it, which a container is given by --shm-size; groups over other transports need none "
               "(reshard_comm_new, reshard_comm_threads)");
    return RESHARD_ERR_IO;
}

static reshard_status segment_map(struct comm *comm, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    void *memory = mmap(NULL, end->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, end->fd, 0);
    if (memory == MAP_FAILED)
        return error_set_errno(err, "shared memory of %" PRIu64 " bytes", end->bytes);
    end->memory = memory;
    return RESHARD_OK;
}

static reshard_status segment_make(struct comm *comm, const char *name, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    reshard_status status = segment_clear(name, err);
    if (status)
        return status;
    end->fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (end->fd < 0)
        return error_set_errno(err, "shared memory '%s'", name);
    snprintf(end->name, sizeof(end->name), "%s", name); /* from here on it is this process's, to be taken away */
    if (!rank_lock(end->fd, 0))
        return error_set_errno(err, "shared memory '%s'", name);
    status = segment_reserve(end, comm->size, err);
    if (!status)
        status = segment_map(comm, err);
    if (status)
        return status;
    segment_of(end)->size = comm->size;
    atomic_store(&segment_of(end)->magic, SEGMENT_MAGIC);
    return RESHARD_OK;
}

/* Opens what rank 0 has made; *is_there false: it is not, or not yet, or of another time. */
static reshard_status segment_try(struct comm *comm, const char *name, bool *is_there, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    struct stat found;
    bool is_gone;
    *is_there = false;
    end->fd = shm_open(name, O_RDWR | O_CLOEXEC, 0600);
    if (end->fd < 0)
        return errno == ENOENT ? RESHARD_OK : error_set_errno(err, "shared memory '%s'", name);
    reshard_status status = owner_check(end->fd, name, &is_gone, err);
    if (status || is_gone || !rank_is_alive(end->fd, 0) || fstat(end->fd, &found) != 0 || found.st_size < 4096)
        return status;
    end->bytes = (uint64_t)found.st_size;
    status = segment_map(comm, err);
    if (status || atomic_load(&segment_of(end)->magic) != SEGMENT_MAGIC)
        return status;
    if (segment_of(end)->size != comm->size)
        return error_set(err, RESHARD_ERR_USAGE, "rank 0 is of a group of %u, rank %u of %u", segment_of(end)->size, comm->rank,
                         comm->size);
    if (!segment_measure_found(end, comm->size, (uint64_t)found.st_size))
        return error_set(err, RESHARD_ERR_IO, "the shared memory of rank 0 has %" PRIu64 " bytes, which no group of %u has",
                         (uint64_t)found.st_size, comm->size);
    if (!rank_lock(end->fd, comm->rank))
        return error_set(err, RESHARD_ERR_USAGE, "rank %u is there already", comm->rank);
    *is_there = true;
    return RESHARD_OK;
}

static void segment_close(struct process_end *end)
{
    if (end->memory)
        munmap(end->memory, end->bytes);
    if (end->fd >= 0)
        close(end->fd);
    end->memory = NULL;
    end->fd = -1;
}

static reshard_status segment_join(struct comm *comm, const char *name, reshard_error *err)
{
    double begin = clock_seconds();
    bool is_there = false;
    while (!is_there) {
        reshard_status status = segment_try(comm, name, &is_there, err);
        if (status || !is_there)
            segment_close(process_of(comm));
        if (status)
            return status;
        if (!is_there)
            status = comm_ask_in_time(comm, err);
        if (status)
            return status;
        if (!is_there && clock_seconds() - begin > comm->timeout_seconds)
            return error_set(err, RESHARD_ERR_IO, "%s: rank 0 did not come within %g s", comm->call, comm->timeout_seconds);
        if (!is_there)
            nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return RESHARD_OK;
}

/* Returns when all ranks have the segment; then it needs no name. */
static reshard_status segment_await(struct comm *comm, reshard_error *err)
{
    struct process_end *end = process_of(comm);
    struct comm_idle idling = { 0 };
    atomic_store(&segment_rank_of(end, comm->rank)->is_there, 1);
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        while (!atomic_load(&segment_rank_of(end, rank)->is_there)) {
            if (idle(comm, rank, &idling, err))
                return segment_fail(end, err);
        }
    }
    if (end->name[0])
        shm_unlink(end->name);
    end->name[0] = '\0';
    return RESHARD_OK;
}

static bool process_name_is_good(const char *name)
{
    size_t size = strlen(name);
    return size > 0 && size <= COMM_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == size;
}

static struct comm *process_end_new(uint32_t rank, uint32_t size, const struct comm_patience *patience)
{
    struct comm *comm = comm_new(&transport_processes, rank, size, patience);
    struct process_end *end = calloc(1, sizeof(*end));
    uint8_t *is_busy = array_zeroed((size_t)size * 2, 1);
    if (!comm || !end || !is_busy) {
        free(comm);
        free(end);
        free(is_busy);
        return NULL;
    }
    end->fd = -1;
    end->is_busy = is_busy;
    end->reason_seconds = comm->timeout_seconds < REASON_SECONDS ? comm->timeout_seconds : REASON_SECONDS;
    comm->state = end;
    comm->call = "reshard_comm_processes";
    return comm;
}

reshard_status comm_processes_new(const char *name, uint32_t rank, uint32_t size, const struct comm_patience *patience,
                                  struct comm **out, reshard_error *err)
{
    char full[160];
    reshard_error why = RESHARD_ERROR_INIT;
    *out = NULL;
    if (!process_name_is_good(name))
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is no name of a group: 1 to %d letters, digits, '.', '_', '-'", name,
                         COMM_NAME_MAX);
    if (size > COMM_PROCESSES_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "a group of %u processes: there are 1 to %d", size, COMM_PROCESSES_MAX);
    snprintf(full, sizeof(full), "/reshard-%u-%s", (unsigned)geteuid(), name);
    struct comm *comm = process_end_new(rank, size, patience);
    if (!comm)
        return error_set_memory(err);
    reshard_status status = rank == 0 ? segment_make(comm, full, &why) : segment_join(comm, full, &why);
    if (!status)
        status = segment_await(comm, &why);
    if (status) {
        comm_free(comm);
        return error_pass(err, status, &why);
    }
    *out = comm;
    return RESHARD_OK;
}
