/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which names become which: the record that tells how many ranks cut a name. Fused macros need the degree of tensor parallelism of a name
 * that may be an intermediate one; it is that of the key which the name comes from, or becomes, in the end.
 *
 * Upstream counts distinct offsets on any axis. Here the axis is followed through transposes and permutations, and only offsets along it
 * count.
 */
#ifndef MAPPING_MAP_CHAIN_H
#define MAPPING_MAP_CHAIN_H

#include "mapping/map_macro.h"

struct map_edge {
    uint32_t from, to;                   /* names: left and right of one statement */
    bool is_transposed;                  /* the left name had ^T */
    const struct map_attribute *permute; /* of the statement, or NULL */
    const struct map_attribute *stack;   /* stack= or unstack= of the statement, or NULL */
    bool is_stack;
};

struct map_chain {
    struct name_map names;
    struct map_edge *edges;   /* by `from` */
    uint32_t *by_target;      /* edge numbers by `to` */
    uint32_t count, capacity;
};

/* Records a list of statements before their transposes are expanded. */
reshard_status map_chain_record(const struct map_program *list, struct map_chain *out, reshard_error *err);
void map_chain_release(struct map_chain *chain);

/*
 * Into how many parts `axis` of the name is cut: 1 with a warning if no key is found. is_left says which way to look: from a left-hand name
 * back to the left space, from a right-hand name on to the right one. false: the names are ambiguous, or shards disagree; it was diagnosed.
 */
bool map_chain_degree(const struct map_macro_context *context, const struct map_chain *chain, const struct map_name *name, bool is_left,
                      int64_t axis, int64_t *degree);

#endif
