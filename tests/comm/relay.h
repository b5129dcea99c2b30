/* SPDX-License-Identifier: Apache-2.0 */
/* A transport of callbacks, over a group of threads: what shares memory becomes messages. */
#ifndef TESTS_COMM_RELAY_H
#define TESTS_COMM_RELAY_H

#include "check.h"

#include "api/api_comm.h"

#define RELAY_RANKS_MAX 8

static inline int relay_all_gather(const void *bytes, size_t size, void **all, size_t *sizes, void *context)
{
    reshard_comm *under = context;
    const void *parts[RELAY_RANKS_MAX];
    uint8_t *packed, *at;
    void *memory;
    if (reshard_comm_all_gather(under, bytes, size, parts, sizes, &memory, NULL))
        return 1;
    size_t total = 0;
    for (int64_t i = 0; i < reshard_comm_size(under); i++)
        total += sizes[i];
    packed = at = malloc(total + 1);
    for (int64_t i = 0; i < reshard_comm_size(under); i++) {
        memcpy(at, parts[i], sizes[i]);
        at += sizes[i];
    }
    reshard_free(memory);
    *all = packed;
    return 0;
}

static inline int relay_send(int64_t to, const void *bytes, size_t size, void *context)
{
    return comm_send(((reshard_comm *)context)->inner, (uint32_t)to, bytes, size, NULL) != RESHARD_OK;
}

static inline int relay_recv(int64_t from, void *bytes, size_t size, void *context)
{
    return comm_recv(((reshard_comm *)context)->inner, (uint32_t)from, bytes, size, NULL) != RESHARD_OK;
}

static inline int relay_run(void *context)
{
    return comm_run(((reshard_comm *)context)->inner, "relay", NULL) != RESHARD_OK;
}

static inline void relay_abort(const char *reason, void *context)
{
    comm_abort(((reshard_comm *)context)->inner, reason);
}

static inline reshard_comm *relay_new(reshard_comm *under, reshard_error *err)
{
    reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    reshard_comm *comm;
    callbacks.rank = reshard_comm_rank(under);
    callbacks.size = reshard_comm_size(under);
    callbacks.all_gather = relay_all_gather;
    callbacks.submit_send = relay_send;
    callbacks.submit_recv = relay_recv;
    callbacks.run = relay_run;
    callbacks.abort = relay_abort;
    callbacks.context = under;
    return reshard_comm_new(&callbacks, NULL, &comm, err) ? NULL : comm;
}

#endif
