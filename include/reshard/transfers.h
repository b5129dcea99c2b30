/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of resharding in memory, to be kept: who sends which bytes of which shard to whom. A plan is made once, collectively or by one
 * process for all ranks, run as often as the values change, looked at, handed to a transport of the caller's own, written down and read
 * back. Equal layouts give equal plans, on every rank and every machine.
 *
 * Threads. Any number may look at a plan; one at a time runs it.
 *
 * Failures. A plan whose run has failed is as it was, and can be run again while its group is in step (comm.h); targets may hold some of
 * the new values.
 */
#ifndef RESHARD_TRANSFERS_H
#define RESHARD_TRANSFERS_H

#include "reshard/comm.h"
#include "reshard/reshard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_transfers reshard_transfers;

/* Collective: the plan of reshard_redistribute for these lists, which are copied; values may be elsewhere later. What cannot be is an error
 * as it is there. options may be NULL. */
reshard_status reshard_transfers_new(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                                     const reshard_redistribute_options *options, reshard_transfers **out, reshard_error *err);

/* The same of the lists of all ranks at once, in one process: lists by rank, of which any may be NULL. Shards need no values. */
reshard_status reshard_transfers_plan(const reshard_shards *const *sources, const reshard_shards *const *targets, int64_t ranks,
                                      const reshard_redistribute_options *options, reshard_transfers **out, reshard_error *err);

/* NULL is fine. */
void reshard_transfers_free(reshard_transfers *transfers);

/*
 * Collective: does what reshard_redistribute does, without exchanging descriptions and without planning. Every rank has the same plan, and
 * gives the lists that the plan knows of it: the same shards in the same order, whose values may lie elsewhere by now. RESHARD_ERR_USAGE,
 * on all ranks, names the rank and the shard if a layout has changed, or a rank whose plan is another one; nothing is written then, and the
 * plan stays good. report may be NULL.
 */
reshard_status reshard_transfers_run(reshard_transfers *transfers, reshard_comm *comm, const reshard_shards *source,
                                     const reshard_shards *target, reshard_redistribute_report *report, reshard_error *err);

/* Of the layouts of all ranks, and of what goes where; not of values. 0 if transfers is NULL. */
uint64_t reshard_transfers_hash(const reshard_transfers *transfers);
int64_t reshard_transfers_ranks(const reshard_transfers *transfers);

/* Bytes of the targets that `from` makes for `to`, from == to: that it keeps. 0 for ranks that there are not. */
uint64_t reshard_transfers_pair_bytes(const reshard_transfers *transfers, int64_t from, int64_t to);

/* A block of elements that goes from the memory of a shard to that of another one. */
typedef struct reshard_transfer {
    size_t struct_size;
    int64_t from, to;                    /* ranks; equal: it stays */
    reshard_str key;                     /* of the target's tensor */
    uint64_t source_shard, target_shard; /* which of the lists of their ranks */
    const char *source_dtype, *target_dtype;
    uint64_t source_offset, target_offset; /* bytes from the shard's first value to the block's first element */
    size_t rank;                           /* axes of the block, as few as describe it; 0: one element */
    const int64_t *extent;                 /* elements */
    const int64_t *source_strides, *target_strides; /* bytes */
    uint64_t bytes;                                 /* of the target's type */
    reshard_str source_key;                         /* of the source's tensor: another one where a mapping changes names */
    const char *const *via; /* types that elements are cast to on the way, one after the other: what a mapping says */
    size_t via_count;
} reshard_transfer;
#define RESHARD_TRANSFER_INIT                                                                                                              \
    {                                                                                                                                      \
        sizeof(reshard_transfer), 0, 0, { NULL, 0 }, 0, 0, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, 0, { NULL, 0 }, NULL, 0                  \
    }

/* Each element of each target is in one transfer, but for what a mapping keeps as it is. They are in the order of target ranks and shards;
 * those from one rank to another are in the same order for both. Vectors are good until the next call of the thread. */
size_t reshard_transfers_count(const reshard_transfers *transfers);
reshard_status reshard_transfers_at(const reshard_transfers *transfers, size_t index, reshard_transfer *out, reshard_error *err);

/* One JSON object: {"schema": "reshard-transfers/1", "hash" (16 hexadecimal digits), "ranks", "bytes_moved", "pairs": [{"from", "to",
 * "bytes"}, …], "transfers": [{"from", "to", "key", "source_shard", "source_dtype", "source_offset", "source_strides", "target_shard",
 * "target_dtype", "target_offset", "target_strides", "extent", "bytes"}, …]}. A transfer whose source has another key has "source_key";
 * one that casts on the way "via", a list of types. */
reshard_status reshard_transfers_print(const reshard_transfers *transfers, reshard_sink sink, void *context, reshard_error *err);

/*
 * As bytes, to be kept in a file or sent; free *bytes with reshard_free. All numbers are little-endian: the 8 bytes "RSHTRANS", version
 * u32 (1), ranks u32, scratch u64; the mapping's size u64 and its bytes; the descriptions of each rank's sources and targets; the number of
 * transfers u64, and of each from u32, to u32, source_shard u32, target_shard u32, source_offset u64, target_offset u64, bytes u64, axes
 * u32, extent, source_strides and target_strides i64 each, and the number of types on the way u32 with each one's name (size u32, text);
 * the hash u64. Addresses are not in it.
 */
reshard_status reshard_transfers_export(const reshard_transfers *transfers, void **bytes, size_t *size, reshard_error *err);

/* Reads them back, and makes the plan again of the descriptions: what is not byte for byte the plan of them is RESHARD_ERR_FORMAT, another
 * version RESHARD_ERR_UNSUPPORTED. */
reshard_status reshard_transfers_import(const void *bytes, size_t size, reshard_transfers **out, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
