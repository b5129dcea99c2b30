/* SPDX-License-Identifier: Apache-2.0 */
/* The handle behind reshard_comm. */
#ifndef API_API_COMM_H
#define API_API_COMM_H

#include "reshard/comm.h"

#include "comm/comm.h"

struct reshard_comm {
    struct comm *inner;
};

/* The handle of a comm, which it takes over, also on failure. */
reshard_status comm_handle(struct comm *inner, reshard_comm **out, reshard_error *err);

#endif
