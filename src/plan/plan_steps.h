/* SPDX-License-Identifier: Apache-2.0 */
/* The parts that building a plan consists of, in the order in which plan_new runs them. */
#ifndef PLAN_PLAN_STEPS_H
#define PLAN_PLAN_STEPS_H

#include "plan/plan.h"
#include "tensor/box_join.h"

/* Steps are numbered in 31 bits, which leaves the engine one for a mark. */
#define PLAN_STEPS_MAX ((uint32_t)INT32_MAX)

#define VECTOR_CACHE_SLOTS 4096

/* A list of boxes; those that are not a chunk's own vectors live in the arena until the list is cleared. */
struct box_list {
    struct join_box *boxes;
    uint32_t count, capacity;
    struct arena arena;
};

struct recent_vector {
    uint32_t place; /* in the pool */
    uint32_t tag;   /* of its hash; 0: none */
};

struct plan_build {
    struct plan *plan;
    uint32_t recipe;     /* being joined */
    uint32_t only_chunk; /* CATALOG_NONE, or the one source chunk to take */
    struct box_list sources, targets;
    struct box_joiner joiner;
    uint64_t *covered;            /* by target chunk: elements that steps write */
    struct recent_vector *recent; /* by hash; a miss only costs a second copy */
};

/* ---- plan_recipe.c ---- */

/* Copies the recipes, with all fields filled in, and checks that they fit the tensors and do not write an element twice. */
reshard_status recipes_take(struct plan_build *build, const struct recipe *recipes, uint32_t count, reshard_error *err);

/* ---- plan_boxes.c ---- */

/* The boxes that the tensor's chunks fill, in target coordinates of the recipe and cut to its box. Source replicas are left out. */
reshard_status boxes_of_sources(struct plan_build *build, reshard_error *err);
reshard_status boxes_of_targets(struct plan_build *build, reshard_error *err);
void box_list_release(struct box_list *list);

/* ---- plan_append.c ---- */
bool step_append(void *build, uint32_t source_chunk, uint32_t target_chunk, const int64_t *start, const int64_t *extent);

/* ---- plan_cover.c: proves that every target chunk is covered ---- */
reshard_status steps_check_cover(const struct plan_build *build, reshard_error *err);

/* ---- plan_replica.c: picks the source of each replicated chunk ---- */
reshard_status replicas_pick(struct plan *plan, reshard_error *err);

/* ---- plan_order.c: puts the steps in order, and sums up ---- */
reshard_status steps_order(struct plan *plan, reshard_error *err);
reshard_status steps_sum(struct plan *plan, reshard_error *err);

#endif
