/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resharding in memory: shards that ranks hold become shards that ranks want. Every rank makes the same plan of the gathered descriptions;
 * no byte that a rank has is sent to it, every element of every target is written once, and of replicas that one is read which lies on the
 * rank that needs it, else the one whose rank has sent least.
 */
#ifndef CONVERT_REDISTRIBUTE_H
#define CONVERT_REDISTRIBUTE_H

#include "comm/exchange.h"
#include "convert/memory_names.h"
#include "parallel/shard_list.h"
#include "plan/plan.h"

/* Who sends what to whom: a plan between two lists of shards of all ranks, with the source of each step chosen. */
struct transfers {
    struct shard_list sources, targets; /* of all ranks, in rank order; struct shard.writer says whose */
    uint32_t rank_count;
    struct catalog *source, *target;    /* chunk -> shard by its object's number */
    struct source named;                /* source, with its names */
    struct memory_names names;          /* what the mapping makes of the sources */
    struct plan *planned, *read;        /* all steps; those that read something, NULL: all do */
    const struct plan *plan;            /* of these two the one that is run */
    uint32_t *chosen;                   /* by step: the source chunk */
};

/* Takes over the lists, also on failure. map, which may be NULL, says under which names, shapes and types sources come. FORMAT names key,
 * region and ranks of shards that overlap, or that a target needs and nobody has; USAGE a target's key or shape that the source does not
 * have. */
reshard_status transfers_make(struct transfers *out, struct shard_list *sources, struct shard_list *targets, uint32_t rank_count,
                              const struct mapping_options *map, reshard_error *err);
void transfers_release(struct transfers *transfers);

/* From which rank to which a step goes, and how many bytes of the target it makes. */
struct exchange_step transfers_step(const struct transfers *transfers, uint32_t step, uint64_t *bytes);

/* The step's block; source and target are addresses in the memory of their ranks. */
reshard_status transfers_copy(const struct transfers *transfers, uint32_t step, struct exchange_copy *out, reshard_error *err);

/* The shard that a step reads. */
const struct shard *transfers_source(const struct transfers *transfers, uint32_t step);

struct redistribution {
    uint64_t scratch_bytes;            /* 0: EXCHANGE_SCRATCH_BYTES. The smallest of all ranks counts */
    const struct mapping_options *map; /* the same on all ranks; or NULL */
    struct exchange_totals totals;     /* out */
    uint64_t moved;                    /* out: bytes that all ranks send together */
};

/* Collective: the plan of all ranks' lists. asked->scratch_bytes is what this rank gives, then the least of all. Release *out on failure
 * too. */
reshard_status transfers_make_together(struct comm *comm, const char *call, const struct shard_list *source,
                                       const struct shard_list *target, struct redistribution *asked, struct transfers *out,
                                       reshard_error *err);

/* Collective: moves the values. */
reshard_status transfers_run(struct comm *comm, const char *call, const struct transfers *transfers, uint64_t scratch_bytes,
                             struct redistribution *redistribution, reshard_error *err);

/* Collective: both, once. */
reshard_status redistribute(struct comm *comm, const struct shard_list *source, const struct shard_list *target,
                            struct redistribution *redistribution, reshard_error *err);

#endif
