/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other ranks say: rank 0 of two reshards, and all that comes from rank 1 is the input: whether it agrees, its shards, its values.
 * A rank that is believed gets its frames made right, so that what lies in them is reached; else the frames are the input's too.
 */
#include "comm/comm_transport.h"
#include "convert/redistribute.h"
#include "outcome.h"

#include <stdlib.h>

#define FRAME_BYTES_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

struct other_rank {
    struct cursor says;
    bool is_believed;
};

/* The next piece of the input: a size of two bytes, and as many as there are of it. */
static struct str other_piece(struct other_rank *other)
{
    uint16_t size = 0;
    struct str piece = { "", 0 };
    cursor_u16le(&other->says, &size);
    size_t left = cursor_left(&other->says), take = size % FRAME_BYTES_MAX;
    cursor_bytes(&other->says, take < left ? take : left, &piece);
    return piece;
}

static int other_gather(const void *bytes, size_t size, void **all, size_t *sizes, void *context)
{
    struct other_rank *other = context;
    const struct str piece = other_piece(other);
    const size_t head = other->is_believed ? 4 + 8 + 8 + COMM_CALL_MAX + 1 : 0; /* magic, number, size, name of the call */
    uint8_t *made = malloc(size + head + piece.size + 1);
    if (!made)
        return 1;
    memcpy(made, bytes, size);
    if (head) {
        memcpy(made + size, bytes, head);
        for (int i = 0; i < 8; i++)
            made[size + 12 + (size_t)i] = (uint8_t)(piece.size >> 8 * i);
    }
    memcpy(made + size + head, piece.data, piece.size);
    sizes[0] = size;
    sizes[1] = head + piece.size;
    *all = made;
    return 0;
}

static int other_send(int64_t to, const void *bytes, size_t size, void *context)
{
    (void)to, (void)bytes, (void)size, (void)context;
    return 0;
}

static int other_recv(int64_t from, void *bytes, size_t size, void *context)
{
    (void)from;
    const struct str piece = other_piece(context);
    memset(bytes, 0, size);
    memcpy(bytes, piece.data, piece.size < size ? piece.size : size);
    return 0;
}

static int other_run(void *context)
{
    (void)context;
    return 0;
}

static void shard_put(struct shard_list *list, int64_t first, uint8_t *data)
{
    const int64_t shape[] = { 4, 3 }, start[] = { first, 0 }, extent[] = { 2, 3 };
    const struct shard shard = { .key = str_of("w"), .dtype = DTYPE_F32, .rank = 2, .shape = shape, .start = start, .extent = extent,
                                 .data = data };
    shard_list_add(list, &shard, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct other_rank other = { cursor_over(bytes, size), false };
    const struct comm_callbacks callbacks = { other_gather, other_send, other_recv, other_run, NULL, NULL, NULL, &other };
    struct shard_list source = { 0 }, target = { 0 };
    struct redistribution redistribution = { .scratch_bytes = 4096 };
    struct comm *comm;
    reshard_error err = RESHARD_ERROR_INIT;
    uint8_t flags = 0, memory[2][24];
    cursor_u8(&other.says, &flags);
    other.is_believed = flags & 1;
    memset(memory, 0, sizeof(memory));
    shard_put(&source, 0, memory[0]);
    shard_put(&target, flags & 2 ? 2 : 1, memory[1]);
    if (!comm_callbacks_new(&callbacks, 0, 2, 1, &comm, NULL)) {
        outcome_status(redistribute(comm, &source, &target, &redistribution, &err), &err);
        outcome_bytes(memory, sizeof(memory));
        comm_free(comm);
    }
    shard_list_release(&source);
    shard_list_release(&target);
    return 0;
}
