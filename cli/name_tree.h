/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a checkpoint as a tree of their names. What repeats is one line: children with numbers for names that have the same
 * tensors below them (names, types and shapes) are folded, model.layers.{0..31}.mlp.up_proj.weight. Levels with one child are joined
 * with it.
 */
#ifndef CLI_NAME_TREE_H
#define CLI_NAME_TREE_H

#include "reshard/reshard.h"

enum name_order { NAME_BY_KEY, NAME_BY_SIZE, NAME_BY_DTYPE }; /* of what lies on one level; size: the largest first */

struct name_line {
    const char *name; /* the whole pattern */
    size_t size, tail; /* of the name; where the part begins that its parent's does not have */
    unsigned depth;
    uint64_t tensors, bytes; /* below it, and in all that is folded into it */
    int64_t tensor;          /* the first of the tensors that the line is for; -1: a level, whose parts may follow */
};
typedef int (*name_line_sink)(const struct name_line *line, void *context);

/* Tells the sink a line for each level and each tensor, levels before their parts, none deeper than `depth` (0: all). The line is valid
 * during the call. RESHARD_ERR_CANCELLED: the sink returned other than 0. */
reshard_status name_tree_walk(const reshard_checkpoint *checkpoint, enum name_order order, unsigned depth, name_line_sink sink,
                              void *context, reshard_error *err);

#endif
