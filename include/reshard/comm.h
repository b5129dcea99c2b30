/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks: how the processes or threads of a running job talk to each other while they save, load or reshard together.
 *
 * A reshard_comm is one rank's end of a group. The ranks of a group make the same collective calls in the same order, each with its own
 * handle; what they pass may differ. There are transports for threads of one process, processes of one
 * machine, MPI (mpi.h), and what a host program has (callbacks).
 *
 * Threads. One thread at a time uses a handle; reshard_comm_rank, _size and _abort may be called by any thread meanwhile.
 *
 * Errors. Ranks agree: a collective call succeeds on all ranks or fails on all, and the message names the first rank that failed and what
 * it said ("rank 2: tensor 'w': ..."). Such a failure leaves the group in step: it can be used on. A rank that dies, leaves or does not
 * come within the timeout, a call that is another than that of the other ranks, and a transport that fails break the group: every rank in a
 * call returns RESHARD_ERR_IO, or RESHARD_ERR_USAGE for another call, with the rank named, and later calls fail at once with the same
 * message. All that is left to do then is reshard_comm_free.
 */
#ifndef RESHARD_COMM_H
#define RESHARD_COMM_H

#include "reshard/geometry.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_comm reshard_comm;

#define RESHARD_COMM_SIZE_MAX 1048576

typedef struct reshard_comm_options {
    size_t struct_size;
    /* How long to wait in a call for a rank that does not come, whatever it does meanwhile: a joint save waits for the one that writes
     * longest. A rank that dies or leaves is noticed at once. 0: 1800 */
    double timeout_seconds;
    /* Called now and then, at most ten times a second, by a thread that waits for another rank: to look for signals, say. Anything but 0
     * breaks the group, and the call fails with RESHARD_ERR_CANCELLED. May be NULL. Not of callbacks, which wait themselves. Since 0.3 */
    int (*waiting)(void *context);
    void *context;
} reshard_comm_options;
#define RESHARD_COMM_OPTIONS_INIT { sizeof(reshard_comm_options), 0, NULL, NULL }

/*
 * A transport of the host program's: torch.distributed, NCCL, UCX, sockets. Calls come from the thread that makes the collective call. Each
 * returns 0, or anything else if it failed, which breaks the group. Waiting with a timeout is the transport's own matter; a callback that
 * never returns keeps the rank waiting.
 */
typedef struct reshard_comm_callbacks {
    size_t struct_size;
    int64_t rank, size;
    /* Every rank's bytes to all, behind each other in rank order: *all is from malloc, and the library frees it; sizes has room for `size`
     * numbers. Ranks pass different sizes. No rank returns before all have called. */
    int (*all_gather)(const void *bytes, size_t bytes_size, void **all, size_t *sizes, void *context);
    /* Memory stays as it is until run returns. Between two ranks, messages match in the order in which they are submitted, and sizes are
     * equal on both sides. A rank never sends to itself. */
    int (*submit_send)(int64_t to, const void *bytes, size_t bytes_size, void *context);
    int (*submit_recv)(int64_t from, void *bytes, size_t bytes_size, void *context);
    int (*run)(void *context);                           /* returns when all that was submitted is done */
    void (*abort)(const char *reason, void *context);    /* wakes the other ranks out of their calls, which fail; may be NULL */
    void (*release)(void *context);                      /* the handle is freed; may be NULL */
    const char *(*why)(void *context);                   /* what the last failure was; may be NULL, or return it */
    void *context;
} reshard_comm_callbacks;
#define RESHARD_COMM_CALLBACKS_INIT { sizeof(reshard_comm_callbacks), 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* Makes this rank's end of a group over callbacks, of which the first four functions are needed. The struct is copied; context must be
 * there until release is called. options may be NULL. After a failure nothing was called, release neither. */
reshard_status reshard_comm_new(const reshard_comm_callbacks *callbacks, const reshard_comm_options *options, reshard_comm **out,
                                reshard_error *err);

/* Makes all ends of a group of threads: out has room for count handles, one for each thread. Free each. */
reshard_status reshard_comm_threads(int64_t count, const reshard_comm_options *options, reshard_comm **out, reshard_error *err);

/*
 * Makes this process's end of a group of at most 256 processes of one machine and one user, over shared memory. Each calls it with the
 * group's name (1 to 100 letters, digits, '.', '_', '-'), its rank and how many there are; it returns when all have come. From then on the
 * name is free for another group, and when the last process ends, however it does, nothing is left. What an earlier group that crashed
 * while it came together has left is removed by rank 0; memory of another user, or that others may open, is RESHARD_ERR_USAGE.
 *
 * The group takes its memory at once: at most some 66 MiB of /dev/shm for 128 ranks and 264 MiB for 256, or less, down to some 4 KiB for
 * each two ranks, where more than half of what is free would go. RESHARD_ERR_IO if there is not even that.
 */
reshard_status reshard_comm_processes(const char *name, int64_t rank, int64_t size, const reshard_comm_options *options,
                                      reshard_comm **out, reshard_error *err);

int64_t reshard_comm_rank(const reshard_comm *comm);
int64_t reshard_comm_size(const reshard_comm *comm);

/*
 * Tells all ranks how each has fared with something of its own, status being that of this rank and err what it says. All return the same:
 * RESHARD_OK, or the status of the first rank that failed, with "rank N: " before its message. err may be NULL.
 */
reshard_status reshard_comm_agree(reshard_comm *comm, reshard_status status, reshard_error *err);

/* Returns when all ranks have called it. */
reshard_status reshard_comm_barrier(reshard_comm *comm, reshard_error *err);

/*
 * Every rank's bytes to all. parts and sizes have room for as many as there are ranks: parts[r] points to the sizes[r] bytes of rank r in
 * *all, which is freed with reshard_free. For what a program itself has to tell: names, a step's number.
 */
reshard_status reshard_comm_all_gather(reshard_comm *comm, const void *bytes, size_t size, const void **parts, size_t *sizes, void **all,
                                       reshard_error *err);

/*
 * Memory of this rank's that the other ranks can read: zeroed, of whole pages, not collective. Between processes of a machine
 * reshard_redistribute copies a source that lies in it once, and any other source twice, wherever the target is. Of threads and of the
 * other transports it is memory like any other. It is there until it is freed, or the handle is. Between processes it counts as shared
 * memory (/dev/shm): where that is full the call fails with RESHARD_ERR_IO, and nothing has changed.
 */
reshard_status reshard_comm_memory_new(reshard_comm *comm, size_t size, void **out, reshard_error *err);

/* No call of another rank's may still need it: reshard_redistribute has returned. NULL, or what is no such memory, is left alone. */
void reshard_comm_memory_free(reshard_comm *comm, void *memory);

/* Breaks the group: for a rank that cannot go on. reason goes into the message of all ranks ("rank 2: reason"). */
void reshard_comm_abort(reshard_comm *comm, const char *reason);

/* Not collective; a rank that frees its handle has left, and the others find the group broken in their next call. NULL is fine. */
void reshard_comm_free(reshard_comm *comm);

/* ------------------------------------------------------------------------------------------------ resharding in memory */

typedef struct reshard_redistribute_options {
    size_t struct_size;
    uint64_t scratch_bytes; /* memory beyond the shards' own, at most; 0: 16 MiB. The least that any rank gives counts */
    const reshard_map_options *map; /* names, shapes and types under which sources come; the same on all ranks. NULL: their own */
} reshard_redistribute_options;
#define RESHARD_REDISTRIBUTE_OPTIONS_INIT { sizeof(reshard_redistribute_options), 0, NULL }

typedef struct reshard_redistribute_report {
    size_t struct_size;
    uint64_t bytes_kept;     /* copied from this rank to itself */
    uint64_t bytes_sent, bytes_received; /* by this rank, to and from others */
    uint64_t bytes_moved;    /* from rank to rank, all ranks together: of the target's types */
} reshard_redistribute_report;
#define RESHARD_REDISTRIBUTE_REPORT_INIT { sizeof(reshard_redistribute_report), 0, 0, 0, 0 }

/*
 * Collective: fills the values of every rank's target shards from all ranks' source shards, whatever the two layouts. A rank may have no
 * source, or no target: groups that are disjoint are a group of both. source and target may be NULL for that. Values are cast where types
 * differ, and read and written where they lie, with strides or without.
 *
 * Values go from memory to memory: shards with functions in place of it are RESHARD_ERR_USAGE.
 *
 * Source shards of a key have one type and one global shape; two that overlap hold the same box or range, and are replicas with the same
 * values. Each element of a target is written exactly once, and comes from the same rank if that has it, so that no more bytes move than
 * have to. Targets may be replicas, and may overlap, in different memory; memory of sources and targets must not.
 *
 * With a mapping (options->map, docs/mapping.md) targets are what it makes of the sources: renamed, split, joined, transposed, cast. If it
 * has no texts, names that are recognised become those of the targets, as in a conversion. What it makes and no rank wants is left out;
 * what it keeps of a target (`_ -> key`) is not written. diagnose is called on every rank, and what it returns does not count. Such a text
 * is the aoa_config of Paddle's reshard_sharded_state_dict.
 *
 * RESHARD_ERR_FORMAT names the key, the region and the ranks of shards that overlap, or a region that a target needs and no rank has;
 * RESHARD_ERR_USAGE a key, type or shape that does not fit, or a rank with another mapping. Nothing is written then. What fails later
 * leaves targets half filled. options and report may be NULL.
 */
reshard_status reshard_redistribute(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                                    const reshard_redistribute_options *options, reshard_redistribute_report *report, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
