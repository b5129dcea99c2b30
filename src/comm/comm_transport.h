/* SPDX-License-Identifier: Apache-2.0 */
/* What carries a comm's bytes. Transports trust their caller's arguments, and nothing that other ranks say. */
#ifndef COMM_COMM_TRANSPORT_H
#define COMM_COMM_TRANSPORT_H

#include "comm/comm.h"

#include <stdatomic.h>

#define COMM_TIMEOUT_SECONDS 1800.0 /* ranks of a joint save wait for the one whose storage is slowest; as long as torch waits */
#define COMM_ASK_SECONDS 0.1
#define COMM_REASON_MAX 1024
#define COMM_THREADS_MAX 4096
#define COMM_PROCESSES_MAX 256
#define COMM_NAME_MAX 100

/* Memory between each two ranks in which one makes a message and the other reads it: no copy of it is made on either side. Messages of a
 * pair come in order, in runs of windows between gathers that both ranks know of. */
struct comm_windows {
    uint64_t (*bytes)(const struct comm *comm); /* of a message, at most */
    /* Where the next message to a rank can be made; *place NULL: there is no room now. */
    reshard_status (*open)(struct comm *comm, uint32_t to, uint8_t **place, reshard_error *err);
    void (*send)(struct comm *comm, uint32_t to, uint64_t size);
    /* The next message from a rank; *place NULL: it has not come yet. */
    reshard_status (*look)(struct comm *comm, uint32_t from, const uint8_t **place, uint64_t *size, reshard_error *err);
    void (*take)(struct comm *comm, uint32_t from);
    /* Nothing has moved, and `late` is one that is waited for. *idle is zeroed by who begins to wait. */
    reshard_status (*wait)(struct comm *comm, uint32_t late, struct comm_idle *idle, reshard_error *err);
};

/* A piece of a rank's memory that the others can read; place is what they know it by. */
struct comm_block {
    uint8_t *memory;
    uint64_t bytes; /* whole pages */
    uint64_t place;
};

/* How ranks that have addresses of their own read each other's memory. */
struct comm_memory {
    reshard_status (*make)(struct comm *comm, struct comm_block *block, reshard_error *err); /* of block->bytes, zeroed */
    void (*unmake)(struct comm *comm, const struct comm_block *block);
    bool (*is_made)(const struct comm *comm); /* by any rank; the same on all behind a gather */
    reshard_status (*look)(struct comm *comm, uint32_t from, uint64_t place, uint64_t size, const uint8_t **out, reshard_error *err);
};

struct comm_transport {
    /* *all is malloc'd; sizes has room for every rank. A total above COMM_GATHER_BYTES_MAX is refused. */
    reshard_status (*all_gather)(struct comm *comm, const void *bytes, size_t size, void **all, uint64_t *sizes, reshard_error *err);
    reshard_status (*submit_send)(struct comm *comm, uint32_t to, const void *bytes, size_t size, reshard_error *err);
    reshard_status (*submit_recv)(struct comm *comm, uint32_t from, void *bytes, size_t size, reshard_error *err);
    reshard_status (*run)(struct comm *comm, reshard_error *err);
    void (*abort)(struct comm *comm, const char *reason); /* any thread; twice is fine */
    void (*release)(struct comm *comm);
    const struct comm_windows *windows; /* or NULL */
    const struct comm_memory *memory;   /* or NULL */
    bool shares_memory; /* an address of one rank is good on all */
};

/* How long a rank waits for another. */
struct comm_patience {
    double timeout_seconds; /* 0: COMM_TIMEOUT_SECONDS */
    int (*waiting)(void *context); /* asked now and then while it does; not 0: no longer. Or NULL */
    void *context;
};

struct comm {
    const struct comm_transport *transport;
    void *state; /* of the transport */
    struct comm_block *blocks;
    size_t block_count, block_capacity;
    uint32_t rank, size;
    double timeout_seconds;
    int (*waiting)(void *context);
    void *waiting_context;
    double asked;           /* when it was last called */
    const char *call;       /* being made, for messages */
    uint64_t sequence;      /* gathers so far */
    bool is_broken;
    reshard_status broken_status;
    char reason[COMM_REASON_MAX]; /* why it is broken */
    _Atomic int abort_state; /* by any thread. 0: no; 1: reason is being written; 2: yes */
    char abort_reason[COMM_REASON_MAX];
};

/* A comm of a transport, zeroed otherwise; NULL without memory. */
struct comm *comm_new(const struct comm_transport *transport, uint32_t rank, uint32_t size, const struct comm_patience *patience);

/* Whether a transport that waits has to ask: COMM_ASK_SECONDS have gone by. comm_ask fails if the rank is not to wait any longer; no lock
 * is held meanwhile, as what is asked may need one that another thread has which calls this transport. */
bool comm_asks_now(struct comm *comm);
reshard_status comm_ask(struct comm *comm, reshard_error *err);
reshard_status comm_ask_in_time(struct comm *comm, reshard_error *err); /* both, where there is no lock */

/* ---- comm_memory.c ---- */

void comm_memory_free_all(struct comm *comm);

/* ---- comm_threads.c ---- */

/* All ends of a group of threads. */
reshard_status comm_threads_new(uint32_t count, const struct comm_patience *patience, struct comm **out, reshard_error *err);

/* ---- comm_processes.c ---- */

/* This process's end, when all ranks are there. */
reshard_status comm_processes_new(const char *name, uint32_t rank, uint32_t size, const struct comm_patience *patience,
                                  struct comm **out, reshard_error *err);

/* ---- comm_callbacks.c ---- */

struct comm_callbacks {
    int (*all_gather)(const void *bytes, size_t size, void **all, size_t *sizes, void *context);
    int (*submit_send)(int64_t to, const void *bytes, size_t size, void *context);
    int (*submit_recv)(int64_t from, void *bytes, size_t size, void *context);
    int (*run)(void *context);
    void (*abort)(const char *reason, void *context);
    void (*release)(void *context);
    const char *(*why)(void *context);
    void *context;
};
reshard_status comm_callbacks_new(const struct comm_callbacks *callbacks, uint32_t rank, uint32_t size, double timeout_seconds,
                                  struct comm **out, reshard_error *err);

#endif
