/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a rank that waits is to wait on: its program is asked from time to time. */
#include "comm/comm_transport.h"

#include "base/clock.h"

bool comm_asks_now(struct comm *comm)
{
    const double now = comm->waiting ? clock_seconds() : 0;
    if (!comm->waiting || now - comm->asked < COMM_ASK_SECONDS)
        return false;
    comm->asked = now;
    return true;
}

reshard_status comm_ask(struct comm *comm, reshard_error *err)
{
    if (!comm->waiting(comm->waiting_context))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_CANCELLED, "%s: rank %u waits no longer", comm->call, comm->rank);
}

reshard_status comm_ask_in_time(struct comm *comm, reshard_error *err)
{
    return comm_asks_now(comm) ? comm_ask(comm, err) : RESHARD_OK;
}
