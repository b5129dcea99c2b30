/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks that cannot be used, each with its reason, and the copies that stand in for them: a tensor is lost with a chunk that has none. */
#ifndef CONVERT_SALVAGE_REPLICAS_H
#define CONVERT_SALVAGE_REPLICAS_H

#include "catalog/catalog.h"

struct bad_chunks {
    struct arena arena;
    const char **why;   /* by chunk; NULL: nothing is known against it */
    const char **first; /* the same, also where a copy has taken its place since */
    uint32_t count;     /* of chunks */
};

reshard_status bad_chunks_init(struct bad_chunks *bad, const struct catalog *catalog, reshard_error *err);
void bad_chunks_release(struct bad_chunks *bad);

/* Of several reasons the first counts. */
reshard_status bad_chunks_add(struct bad_chunks *bad, uint32_t chunk, const char *why, reshard_error *err);

/* The same for all chunks that have bytes under the checksum of this one. */
reshard_status bad_chunks_add_checked(struct bad_chunks *bad, const struct catalog *catalog, uint32_t chunk, const char *why,
                                      reshard_error *err);

/* Gives bad chunks of the tensor the place of a good copy: *replaced are as many, *first the reason of the first. false: one has none, and
 * *first is its reason. Then none may be used. */
bool bad_chunks_replace(struct bad_chunks *bad, struct catalog *catalog, uint32_t tensor, uint32_t *replaced, const char **first);

#endif
