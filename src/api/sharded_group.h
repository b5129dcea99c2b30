/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks of a group have described to each other. */
#ifndef API_SHARDED_GROUP_H
#define API_SHARDED_GROUP_H

#include "api/api_comm.h"
#include "api/sharded_handle.h"

struct sharded_group {
    struct comm *comm;              /* NULL: this rank is all */
    const char *call;               /* the collective call's name */
    uint32_t rank, size;
    struct sharded_dict *dicts;     /* by rank; this one's have their data */
    const struct sharded_dict **ranks; /* the same, as pointers */
};

/* The group without dicts. */
void group_of(struct sharded_group *group, const reshard_comm *comm, const char *call);

/* The same status for all ranks; err must not be NULL. */
reshard_status group_agree(const struct sharded_group *group, reshard_status status, reshard_error *err);

/* Every rank's bytes to all. Release *out on failure too; parts are by rank. */
reshard_status group_gather(const struct sharded_group *group, const void *bytes, size_t size, struct comm_gathered *out,
                            reshard_error *err);

void group_gathered_release(const struct sharded_group *group, struct comm_gathered *gathered);

/* Begins a collective call: status is how this rank fared so far. Fills in dicts. Release it on failure too. */
reshard_status group_begin(struct sharded_group *group, reshard_comm *comm, const char *call, reshard_sharded *sharded, bool with_values,
                           reshard_status status, reshard_error *err);
void group_release(struct sharded_group *group);

#endif
