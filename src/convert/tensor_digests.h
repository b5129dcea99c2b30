/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of many tensors in one pass over the source, in the order in which they are stored. */
#ifndef CONVERT_TENSOR_DIGESTS_H
#define CONVERT_TENSOR_DIGESTS_H

#include "base/digest.h"
#include "convert/checkpoint.h"
#include "convert/team.h"

/*
 * hex[i], by catalog tensor, gets the digest of the full content of each given tensor (catalog indices). as, if not NULL, gives by
 * catalog tensor the type to cast to first. Resolves chunks.
 */
reshard_status tensor_digests(struct checkpoint *checkpoint, enum digest_kind kind, const uint32_t *tensors, uint32_t count,
                              const enum dtype *as, const struct engine_options *options, char (*hex)[DIGEST_HEX_MAX], reshard_error *err);

/* The same by the ranks of a team, each of which reads some of the tensors, and gets the digests of all. */
reshard_status tensor_digests_shared(struct team *team, struct checkpoint *checkpoint, enum digest_kind kind, const uint32_t *tensors,
                                     uint32_t count, const struct engine_options *options, char (*hex)[DIGEST_HEX_MAX],
                                     reshard_error *err);

/* DIGEST_XXH3 of the first rows of a tensor, which has that many; and of a box of it, in row-major order. */
reshard_status tensor_digest_rows(struct source *source, uint32_t tensor, int64_t rows, const struct engine_options *options,
                                  char hex[DIGEST_HEX_MAX], reshard_error *err);
reshard_status tensor_digest_box(struct source *source, uint32_t tensor, const int64_t *start, const int64_t *extent,
                                 const struct engine_options *options, char hex[DIGEST_HEX_MAX], reshard_error *err);

/* The same of several tensors, one behind the other. */
reshard_status tensor_digest_joined(struct source *source, const uint32_t *tensors, uint32_t count, const struct engine_options *options,
                                    char hex[DIGEST_HEX_MAX], reshard_error *err);

#endif
