/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name space: the tensors of one side of a mapping, as a mapping sees them. It comes from a checkpoint's catalog or from a description.
 *
 * Statements speak of weights only. A tensor `w.moment1_0` is a state of the weight `w` (which need not exist itself), so keys are grouped:
 * a weight has up to STATE_COUNT tensors, one a state. A key in the spelling of another framework (map_state.h) is a state where the weight
 * that it names exists, and has its shape; else it is a tensor like others.
 */
#ifndef MAPPING_MAP_SPACE_H
#define MAPPING_MAP_SPACE_H

#include "catalog/catalog.h"
#include "mapping/map_pattern.h"
#include "mapping/map_state.h"

#define MAP_NONE UINT32_MAX

struct map_shard {
    const int64_t *start, *extent;
};

struct map_tensor {
    struct str key;
    enum dtype dtype;
    int rank;
    const int64_t *shape;
    const struct map_shard *shards; /* at least one */
    uint32_t shard_count;
    uint32_t weight;                /* number of the weight it belongs to */
    enum map_state state;
    uint32_t name_at, name_size;    /* where the key has the weight's name; it may lack the beginning of it, such as "model." */
};

struct map_weight {
    struct str name;
    uint32_t tensors[MAP_STATE_COUNT]; /* tensor index, or MAP_NONE */
    bool is_state;                     /* no weight: its tensor turned out to be the state of another one */
};

struct map_space {
    struct arena arena;
    struct name_map keys, names; /* of tensors and of weights; their numbers index the arrays */
    struct map_tensor *tensors;
    struct map_weight *weights;
    uint32_t *sorted;            /* weights in bytewise order of their names, after map_space_seal */
    uint32_t sorted_count;       /* of weights that are no states */
    struct name_map outlines; /* names with '#' for numbers; of each the weights are outline_weights[outline_first[n] …) in sorted order */
    uint32_t *outline_first, *outline_weights;
    uint32_t tensor_capacity, weight_capacity;
};

static inline uint32_t map_space_tensor_count(const struct map_space *space)
{
    return space->keys.count;
}

static inline uint32_t map_space_weight_count(const struct map_space *space)
{
    return space->names.count;
}

/* Adds a tensor; everything is copied. shards NULL: one that is whole. Fails without memory, on a second tensor of that key, on a shape
 * that overflows and on a shard outside it. */
reshard_status map_space_add(struct map_space *space, struct str key, enum dtype dtype, int rank, const int64_t *shape,
                             const struct map_shard *shards, uint32_t shard_count, reshard_error *err);

/* To be called once behind the last add. */
reshard_status map_space_seal(struct map_space *space, reshard_error *err);

/* The listed tensors of a sealed catalog. Chunks of whole tensors are shards; a flat run counts as the box that it lies in. */
reshard_status map_space_from_catalog(const struct catalog *catalog, struct map_space *out, reshard_error *err);

/* Weight by name, or MAP_NONE. */
uint32_t map_space_find(const struct map_space *space, struct str name);

/* First of weight, master, moments that exists: what gives the weight its shape; NULL if there are only beta powers. */
const struct map_tensor *map_space_shaped(const struct map_space *space, uint32_t weight);

/* The key that a state has if its weight is called by another name, spelled like that of `tensor`. false without memory. */
bool map_space_state_key(const struct map_space *space, const struct map_tensor *tensor, struct str name, struct buffer *out);

/* The weight whose state a written name is, or an empty string. */
struct str map_space_weight_of(const struct map_space *space, struct str name);

/* Positions in `sorted` of the first weight whose name has the prefix, and behind the last. */
void map_space_prefix(const struct map_space *space, struct str prefix, uint32_t *first, uint32_t *end);

/* Groups the weights of a space by outline; part of sealing it. */
reshard_status map_space_outline(struct map_space *space, reshard_error *err);

/* Weights that a pattern may match, in sorted order; none else can. false without memory. */
bool map_space_candidates(const struct map_space *space, const struct map_pattern *pattern, const uint32_t **weights, uint32_t *count);

/* The name of the space that is most like the given one, or an empty string if none is near. */
struct str map_space_nearest(const struct map_space *space, struct str name);

void map_space_release(struct map_space *space);

#endif
