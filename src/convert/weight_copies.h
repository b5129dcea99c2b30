/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a checkpoint that are the same bytes, among those that have optimizer states. They are found by type and shape, then by a
 * digest of their first rows, then by one of all their bytes, each made when it is asked for: of very many weights few are read whole.
 */
#ifndef CONVERT_WEIGHT_COPIES_H
#define CONVERT_WEIGHT_COPIES_H

#include "base/buffer.h"
#include "base/digest.h"
#include "base/sort.h"
#include "convert/checkpoint.h"
#include "convert/selected_names.h"

struct weight_copies {
    struct checkpoint *checkpoint;
    const struct catalog *catalog;
    const struct selected_names *names; /* that count in place of the catalog's; or NULL */
    const struct engine_options *engine;
    char (*hex)[DIGEST_HEX_MAX];
    uint64_t *samples;         /* of first rows; 0: not looked at */
    struct sort_entry *owners; /* weights with states, by type and shape */
    struct sort_entry *sampled; /* the same, those of one type and shape by their samples where has_samples says so for the first of them */
    uint8_t *has_samples, *is_owner; /* the latter by tensor */
    uint32_t owner_count;
    struct buffer key;
};

/* names: of its tensors, or NULL; they must outlive it. Release it whatever comes back. */
reshard_status weight_copies_open(struct checkpoint *checkpoint, const struct selected_names *names, const struct engine_options *engine,
                                  struct weight_copies *out, reshard_error *err);
void weight_copies_release(struct weight_copies *copies);

/* What a tensor is called, and the tensor that is called so, or CATALOG_NONE. */
struct str weight_copies_key(const struct weight_copies *copies, uint32_t tensor);
uint32_t weight_copies_at(const struct weight_copies *copies, struct str key);

/* The tensor whose key is that of a weight and this rest; CATALOG_NONE: there is none, or no memory (copies->key.failed). */
uint32_t weight_copies_find(struct weight_copies *copies, struct str weight, struct str rest);

/* Whether two tensors are of one type and shape, and the same bytes. */
reshard_status weight_copies_same(struct weight_copies *copies, uint32_t a, uint32_t b, bool *out, reshard_error *err);

/* Walks over the owners that are the same bytes as a weight, and not that weight. */
struct weight_walk {
    uint32_t weight, at, end;
};
reshard_status weight_walk_begin(struct weight_copies *copies, uint32_t weight, struct weight_walk *out, reshard_error *err);
/* *owner is CATALOG_NONE behind the last one. */
reshard_status weight_walk_next(struct weight_copies *copies, struct weight_walk *walk, uint32_t *owner, reshard_error *err);

#endif
