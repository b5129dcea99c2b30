/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's end of a group that makes the same collective calls in the same order. Transports (comm_transport.h) move bytes; here they
 * become calls that check what comes in: every gather says which call it belongs to, so that ranks that do different things find out.
 *
 * A failure of a transport, or of that check, breaks the group: it is aborted, so that no rank waits for another in vain, and every later
 * call fails with the first message. A failure that ranks agree about (comm_agree) does not: they are still in step.
 */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define COMM_SIZE_MAX 1048576                       /* ranks */
#define COMM_GATHER_BYTES_MAX (UINT64_C(8) << 30)   /* of all ranks together in one gather */
#define COMM_CALL_MAX 31                            /* bytes of a call's name */

struct comm;

uint32_t comm_rank(const struct comm *comm);
uint32_t comm_size(const struct comm *comm);
void comm_free(struct comm *comm); /* NULL is fine */

/* What every rank passed, by rank; all lie in memory. { 0 } is empty. */
struct comm_gathered {
    struct str *parts;
    void *memory;
};
void comm_gathered_release(struct comm_gathered *gathered);

/* Every rank's bytes to all. call names the collective call, the same on all ranks. Release *out, also on failure. */
reshard_status comm_all_gather(struct comm *comm, const char *call, const void *bytes, size_t size, struct comm_gathered *out,
                               reshard_error *err);

/* Tells all ranks how this one fared, err with what it says if status is none; all return the same: RESHARD_OK, or the status of the first
 * rank that failed with "rank N: " before its message. err must not be NULL where status is a failure that has a message. */
reshard_status comm_agree(struct comm *comm, const char *call, reshard_status status, reshard_error *err);

/* Bytes from rank to rank: submitted, then done by comm_run. Between two ranks messages match in order. Memory must stay until then. Order
 * them so that all ranks have one order of all messages of a call: then groups of any size can be run one after the other. */
reshard_status comm_send(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err);
reshard_status comm_recv(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err);
reshard_status comm_run(struct comm *comm, const char *call, reshard_error *err);

/*
 * The same through memory between two ranks, where the transport has it: a message is made there, and read there. Largest message: 0 if it
 * has none. All ranks know whose messages come when; between the first and the last of them they make no other calls.
 */
uint64_t comm_window_bytes(const struct comm *comm);
reshard_status comm_window_open(struct comm *comm, uint32_t to, uint8_t **place, reshard_error *err); /* NULL: no room now */
void comm_window_send(struct comm *comm, uint32_t to, uint64_t size);
reshard_status comm_window_look(struct comm *comm, uint32_t from, const uint8_t **place, uint64_t *size, reshard_error *err);
void comm_window_take(struct comm *comm, uint32_t from); /* what was looked at, which is not NULL, has been read */

/* How long a rank has waited; zeroed whenever something has moved. */
struct comm_idle {
    double begin, looked;
    unsigned passes;
    bool is_gone; /* the other was, at the last look */
};
reshard_status comm_window_wait(struct comm *comm, const char *call, uint32_t late, struct comm_idle *idle, reshard_error *err);

/* Whether ranks may read each other's memory at the addresses that its owner knows it by. */
bool comm_shares_memory(const struct comm *comm);

/*
 * Memory of this rank's that all ranks can read, zeroed and of whole pages, until it is freed or the comm is. Where ranks have addresses of
 * their own and the transport can, a place names bytes of it to another rank; elsewhere it is memory like any other.
 */
reshard_status comm_memory_new(struct comm *comm, uint64_t bytes, uint8_t **out, reshard_error *err);
void comm_memory_free(struct comm *comm, const uint8_t *memory); /* of this comm; NULL is fine */
bool comm_has_memory(const struct comm *comm);                   /* the transport can */
bool comm_memory_is_made(const struct comm *comm);               /* by any rank; the same on all behind a gather */
/* False: other ranks cannot read these bytes of this rank's. */
bool comm_memory_find(const struct comm *comm, const uint8_t *bytes, uint64_t size, uint64_t *place);
/* What another rank's place is here, until the next look. Anything may be asked: no place leads out of what ranks have made so. */
reshard_status comm_memory_look(struct comm *comm, const char *call, uint32_t from, uint64_t place, uint64_t size, const uint8_t **out,
                                reshard_error *err);

/* Breaks the group for a reason of this rank's. Any thread. */
void comm_abort(struct comm *comm, const char *reason);

/* Copies a record that a call of this layer made into the caller's, which may be NULL, and returns the status. */
reshard_status error_pass(reshard_error *err, reshard_status status, const reshard_error *why);

#endif
