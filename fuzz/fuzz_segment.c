/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another process writes into the shared memory of a group: rank 1 of two gathers, receives, sends and passes windows, and the input
 * says what rank 0 writes before each call: positions of rings, frames, whatever lies in them, the reason why the group is over, and how
 * much memory ranks have made for each other to read.
 */
#include "stray.h"

#include "base/cursor.h"

#include <stdlib.h>

#define TIMEOUT_SECONDS 0.0002 /* nobody answers: what waits waits in vain */

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Writes one thing; false: a call's turn. */
static bool stray_writes(const struct stray *stray, struct cursor *input)
{
    uint8_t what = 0, where = 0, length = 0;
    uint64_t value = 0;
    struct str piece = { "", 0 };
    if (!cursor_u8(input, &what) || what % 5 == 0 || !cursor_u8(input, &where) || !cursor_u64le(input, &value))
        return false;
    const enum stray_place ring = where & 1 ? STRAY_RECEIVED : STRAY_SENT;
    switch (what % 5) {
    case 1:
        stray_written(stray, ring, value);
        return true;
    case 2:
        stray_read(stray, ring, value);
        return true;
    case 3:
        cursor_u8(input, &length);
        cursor_bytes(input, length < cursor_left(input) ? length : cursor_left(input), &piece);
        stray_data(stray, ring, value % STRAY_RING_BYTES, piece.data, piece.size);
        return true;
    default:
        stray_put(stray, STRAY_OVER + value % 1040, &where, 1);
        return true;
    }
}

static void windows_pass(struct comm *comm)
{
    const uint8_t *place;
    uint8_t *own;
    uint64_t size, sum = 0;
    for (int i = 0; i < 6; i++) {
        if (comm_window_open(comm, 0, &own, NULL))
            return;
        if (own) {
            memset(own, i, comm_window_bytes(comm));
            comm_window_send(comm, 0, comm_window_bytes(comm));
        }
        if (comm_window_look(comm, 0, &place, &size, NULL) || !place)
            return;
        for (uint64_t k = 0, end = comm_window_bytes(comm); k < end; k++)
            sum += place[k];
        comm_window_take(comm, 0);
    }
    if (sum == UINT64_MAX)
        abort();
}

/* Makes memory for others to read, and looks where others may say that they have some. */
static void memory_pass(struct comm *comm)
{
    uint8_t *memory;
    const uint8_t *found;
    uint64_t place = 0, sum = 0;
    if (!comm_memory_new(comm, 100, &memory, NULL)) {
        memset(memory, 1, 100);
        if (!comm_memory_find(comm, memory, 100, &place))
            abort();
        /* behind what another rank says to have made there may be too much to map */
        if (!comm_memory_look(comm, "call", 0, place, 100, &found, NULL) && memcmp(found, memory, 100) != 0)
            abort();
    }
    for (unsigned shift = 0; shift < 64; shift++) {
        if (!comm_memory_look(comm, "call", 0, place + (UINT64_C(1) << shift), 100, &found, NULL))
            sum += found[99];
    }
    if (sum == UINT64_MAX)
        abort();
    comm_memory_free(comm, memory);
}

static void call_make(struct comm *comm, uint8_t which)
{
    uint8_t memory[2][300] = { { 0 } };
    struct comm_gathered all = { 0 };
    struct comm_idle idle = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    switch (which % 5) {
    case 0:
        comm_all_gather(comm, "call", memory, 20, &all, &err);
        comm_gathered_release(&all);
        return;
    case 1:
        if (!comm_recv(comm, 0, memory[0], sizeof(memory[0]), &err) && !comm_send(comm, 0, memory[1], sizeof(memory[1]), &err))
            comm_run(comm, "call", &err);
        return;
    case 2:
        windows_pass(comm);
        return;
    case 4:
        memory_pass(comm);
        return;
    default:
        comm_window_wait(comm, "call", 0, &idle, &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct cursor input = cursor_over(bytes, size);
    reshard_error err = RESHARD_ERROR_INIT;
    struct stray stray;
    uint8_t which = 0;
    if (!stray_open(&stray, TIMEOUT_SECONDS, &err)) {
        fprintf(stderr, "the segment is not what stray.h makes: %s\n", err.message);
        abort();
    }
    for (int calls = 0; calls < 8 && cursor_u8(&input, &which); calls++) {
        while (stray_writes(&stray, &input))
            ;
        call_make(stray.comm, which);
    }
    stray_close(&stray);
    return 0;
}
