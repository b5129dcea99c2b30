/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided blocks from the memory of ranks to the memory of ranks: what resharding in memory, saving and loading together have in common.
 *
 * Every rank knows the blocks that it sends, receives or keeps, in one order that all ranks share. Where ranks share memory (threads), each
 * copies what it receives from where it lies; so it does between processes, of what lies in memory that ranks have made for that
 * (comm_memory_new). Where the transport has memory between ranks, the sender packs blocks there, and the receiver
 * unpacks them. Elsewhere blocks become messages of bounded size: those from one rank to another follow each
 * other as one stream, cut at the same places on both sides; a piece that is contiguous on a side is sent from, or received at, its place,
 * and only others pass through scratch memory. Elements are cast on the side where that leaves fewer bytes to send.
 */
#ifndef COMM_EXCHANGE_H
#define COMM_EXCHANGE_H

#include "comm/comm.h"
#include "kernels/copy.h"

#define EXCHANGE_SCRATCH_BYTES (UINT64_C(16) << 20)

struct exchange_step {
    uint32_t from, to;
};

/* The block of a step. spec is the same on both ranks. */
struct exchange_copy {
    struct copy_spec spec;
    const uint8_t *source; /* of element (0, ...): in the memory of `from` */
    uint8_t *target;       /* in that of `to`. Each is looked at by its own rank, source by both where they share memory */
};

struct exchange {
    const struct exchange_step *steps; /* at least those of this rank; those of one pair in the same order on both */
    uint32_t count;
    reshard_status (*describe)(uint32_t step, struct exchange_copy *out, void *context, reshard_error *err);
    void *context;
    uint64_t scratch_bytes; /* the same on all ranks; 0: EXCHANGE_SCRATCH_BYTES */
};

struct exchange_totals {
    uint64_t kept, sent, received; /* bytes that this rank has copied within itself, sent to others, and received from them */
};

/*
 * Collective. Every source must be as it is to be sent when the last rank has called, and stays so until the call returns on all; no rank
 * returns before. Targets are written once. On failure, on which all ranks agree, targets hold anything.
 */
reshard_status exchange_run(struct comm *comm, const char *call, const struct exchange *exchange, struct exchange_totals *totals,
                            reshard_error *err);

#endif
