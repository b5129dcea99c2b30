/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Box set: which elements of an index space are there, as boxes that do not overlap. Boxes that continue each other become one, so that
 * what comes in order takes no memory to speak of; what comes in any order takes as much as there are gaps.
 *
 * The space is cut into slabs along its longest axis, and a box lies in pieces in the slabs that it touches: looking for what a box meets
 * costs as much as its slabs hold.
 */
#ifndef TENSOR_BOX_SET_H
#define TENSOR_BOX_SET_H

#include "tensor/box.h"

#include <stddef.h>

struct box_slab {
    int64_t *boxes; /* start and extent, 2 * rank numbers a box */
    size_t count, capacity;
    int64_t missing; /* elements of the slab */
};

struct box_set {
    int rank, axis;
    int64_t *shape;
    int64_t slab_extent; /* on the axis */
    struct box_slab *slabs;
    size_t slab_count;
    int64_t missing;
};

/* Empty; the shape has passed shape_volume. false without memory: then nothing is to be released. */
bool box_set_init(struct box_set *set, int rank, const int64_t *shape);
void box_set_release(struct box_set *set); /* { 0 } is fine */

/* Whether some of the box, which lies in the shape, is there: then *out_start and *out_extent are a box of it. */
bool box_set_meets(const struct box_set *set, const int64_t *start, const int64_t *extent, int64_t *out_start, int64_t *out_extent);

/* Adds a box of which nothing is there. false without memory: then some of it may be there. */
bool box_set_add(struct box_set *set, const int64_t *start, const int64_t *extent);

/* A box of which nothing is there: the first such, as far as the slabs and their boxes tell. false: all is there. */
bool box_set_hole(const struct box_set *set, int64_t *start, int64_t *extent);

#endif
