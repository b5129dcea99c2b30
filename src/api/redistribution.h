/* SPDX-License-Identifier: Apache-2.0 */
/* What the calls that reshard in memory, at once or by a kept plan, have in common. */
#ifndef API_REDISTRIBUTION_H
#define API_REDISTRIBUTION_H

#include "api/handle.h"
#include "convert/redistribute.h"
#include "reshard/comm.h"

/* The list behind a handle; of NULL an empty one. */
const struct shard_list *redistribution_list(const reshard_shards *shards);

/* Fills in the caller's report, which may be NULL. */
void redistribution_give(const struct redistribution *redistribution, reshard_redistribute_report *report);

#endif
