/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls that reshard in memory, at once or by a kept plan, have in common. */
#ifndef API_REDISTRIBUTION_H
#define API_REDISTRIBUTION_H

#include "api/handle.h"
#include "api/public_options.h"
#include "convert/kept_transfers.h"
#include "reshard/comm.h"

/* The list behind a handle; of NULL an empty one. */
const struct shard_list *redistribution_list(const reshard_shards *shards);

/* The options of a call, which may be NULL. Release it on failure too. */
struct redistribute_call {
    struct kept_transfers_options asked;
    struct map_call map;
};
reshard_status redistribute_call_read(const reshard_redistribute_options *options, struct redistribute_call *out, reshard_error *err);
void redistribute_call_release(struct redistribute_call *call);

/* Fills in the caller's report, which may be NULL. */
void redistribution_give(const struct redistribution *redistribution, reshard_redistribute_report *report);

#endif
