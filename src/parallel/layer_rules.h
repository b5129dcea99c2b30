/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of parallel layers: how a rank's tensors of one are cut, as a partition rule, and the shards that are its part of the whole. Rules
 * of whole models, by name, are in partition_rules; this is for those who know what their layer is.
 */
#ifndef PARALLEL_LAYER_RULES_H
#define PARALLEL_LAYER_RULES_H

#include "parallel/partition_cut.h"
#include "parallel/shard_list.h"

enum layer_kind { LAYER_WHOLE, LAYER_COLUMN, LAYER_ROW, LAYER_VOCABULARY, LAYER_HEAD, LAYER_KIND_COUNT };

struct layer_rule {
    enum layer_kind kind;
    bool is_in_out;       /* weights are (in, out) */
    bool is_transposed;   /* a head with (in, out): its weight is (vocabulary, hidden) all the same */
    bool is_gated;        /* two halves on the axis of outputs, each cut */
    bool is_expert;       /* cut by etp, not tp */
    bool has_expert_axis; /* axis 0 is that of the rank's experts */
};

/* An axis that the rank's tensor lacks: its place on it. */
struct front_axis {
    int64_t index, count;
};

struct layer_place {
    struct parallel_layout layout;
    struct rank_place rank;
    const struct front_axis *front;
    int front_count;
};

/* How the layer's tensor of this name is cut: the end of the name says whether it is a weight or a bias. USAGE for an embedding's bias. */
reshard_status layer_tensor_rule(const struct layer_rule *layer, struct str name, struct partition_rule *out, reshard_error *err);

/* Appends the shards of a rank's tensor: local has key, dtype, rank, extent and values, row-major. */
reshard_status layer_add_shards(struct shard_list *list, const struct layer_rule *layer, struct str name, const struct shard *local,
                                const struct layer_place *place, reshard_error *err);

#endif
