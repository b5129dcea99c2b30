/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plan: a pure function of (source catalog, recipes, target catalog). It relates every target chunk to the source chunks that hold its
 * elements, and nothing else: no file is touched, so a plan can be printed, hashed, estimated and tested without any.
 *
 * Cost: per tensor the chunks of both sides are sorted on the axis that separates them best and swept; near linear.
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "catalog/catalog.h"
#include "kernels/copy.h"

/* In a recipe's permutation: a target axis that the source does not have. The box has extent 1 on it. */
#define RECIPE_UNIT_AXIS UINT8_MAX

/* As a recipe's source tensor: there is none, every element of the box is the recipe's `fill`. Its steps have no source chunk
 * (CATALOG_NONE). */
#define RECIPE_FILL CATALOG_NONE

/* Which box of a target tensor comes from which box of a source tensor. The ranks may differ: where the target has a unit axis, and on
 * source axes that the permutation does not name, the box has extent 1. */
struct recipe {
    uint32_t source_tensor, target_tensor;
    bool is_whole;                 /* whole to whole, same shape: rank, boxes and permutation do not count */
    int rank;                      /* of the target */
    const int64_t *source_start;   /* [rank of the source] */
    const int64_t *target_start;   /* [rank] */
    const int64_t *extent;         /* [rank], in target axes */
    const uint8_t *permutation;    /* target axis i is source axis permutation[i], or RECIPE_UNIT_AXIS; NULL: identity, of equal ranks */
    const enum dtype *via;         /* casts on the way to the target's type, in order: every one rounds */
    unsigned via_count;            /* at most COPY_VIA_MAX */
    const void *fill;              /* RECIPE_FILL: the bytes of one element of the target; NULL: zero, the only one for F4 and F6 */
};

/* The source axis that a target axis of a recipe is, or -1: one of extent 1 that the source does not have. */
static inline int recipe_source_axis(const struct recipe *recipe, int axis)
{
    if (!recipe->permutation)
        return axis;
    return recipe->permutation[axis] == RECIPE_UNIT_AXIS ? -1 : recipe->permutation[axis];
}

/* The extents of a recipe's box in the source's axes. */
void recipe_source_extent(const struct recipe *recipe, int source_rank, int64_t *extent);

/* One strided copy between a source chunk and a target chunk. Boxes lie in the plan's vector pool. */
struct plan_step {
    uint32_t source_chunk, target_chunk; /* source_chunk CATALOG_NONE: the recipe's fill */
    uint32_t recipe;
    uint32_t start, extent; /* vectors: the box in target tensor coordinates */
};

struct plan {
    struct plan_step *steps;  /* sorted by (target object, target offset) of their chunks, then box start */
    uint32_t step_count, step_capacity;
    struct recipe *recipes;
    uint32_t recipe_count;
    int64_t *vectors;
    uint32_t vector_count, vector_capacity;
    const struct catalog *source, *target;
    struct arena arena;
    uint64_t read_bytes, write_bytes, cast_bytes;
    uint32_t replicas_skipped;
    const struct plan *whole; /* what this is a part of, and owns the arrays; NULL: nothing */
};

/*
 * A plan is a value: nothing changes it once it is made, so that any number of runs and threads may use one at a time.
 *
 * Plans all recipes. Of replicas one is read (the one in the most used object, so that reads stay together). Fails if a part of a
 * target chunk has no source. The catalogs must outlive the plan; source chunks may still be unresolved.
 */
reshard_status plan_new(const struct catalog *source, const struct catalog *target, const struct recipe *recipes, uint32_t recipe_count,
                        struct plan **out, reshard_error *err);
void plan_free(struct plan *plan);

/* Plans the copy of one source chunk alone, whether or not it is a replica, to the only tensor of target, which has the same shape and
 * the same chunk. */
reshard_status plan_new_chunk(const struct catalog *source, uint32_t source_chunk, const struct catalog *target, struct plan **out,
                              reshard_error *err);

/*
 * Part number `part` of `count`: a plan of some of the steps, which the whole plan must outlive. Together the parts are the plan; they
 * are near equal in bytes and objects, and may run in any order, in any process: no target chunk is in two of them. Parts may be empty.
 * RESHARD_ERR_USAGE if there is no such part.
 */
reshard_status plan_split(const struct plan *plan, uint32_t part, uint32_t count, struct plan **out, reshard_error *err);

/* A plan of the steps that is_taken (by step) says, which the whole plan must outlive. */
reshard_status plan_select(const struct plan *plan, const uint8_t *is_taken, struct plan **out, reshard_error *err);

/* The copy of a step, for resolved chunks: offsets of its first element in the source's (decoded) extent object and in the target
 * object, and the strided block between them (kernels/copy.h). Elements of F4 and F6 come as a run of U8. Fails if the source's strides
 * lead out of the chunk's extent. */
struct plan_copy {
    struct copy_spec spec;
    uint64_t source_offset, target_offset; /* bytes, in the objects */
};
reshard_status plan_step_copy(const struct plan *plan, const struct plan_step *step, struct plan_copy *out, reshard_error *err);

/* The same for a part of the step's box (start and extent in target tensor coordinates, inside the step's). */
reshard_status plan_part_copy(const struct plan *plan, const struct plan_step *step, const int64_t *start, const int64_t *extent,
                              struct plan_copy *out, reshard_error *err);

/* Content hash: same inputs, same number; the identity of a resumable run. */
uint64_t plan_hash(const struct plan *plan);

#endif
