/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which activations are gated: the shapes of the two matrices around one tell it, since the first has two rows for each column of the
 * second then. The arguments of a run say it once, of a model that may have several parts (a vision tower is not gated where the language
 * model is), so that a pair's own shapes go before them.
 */
#ifndef PARALLEL_PARTITION_GATES_H
#define PARALLEL_PARTITION_GATES_H

#include "base/buffer.h"
#include "base/name_map.h"
#include "parallel/partition_rules.h"

struct partition_gates {
    const struct partition_rules *rules;
    struct name_map names;
    struct gate_matrix *matrices; /* by number of the name */
    uint32_t capacity;
    struct buffer wide, narrow;
};

/* Notes a tensor, whole or a rank's part of it; its last two axes are those of the matrix. */
reshard_status partition_gates_note(struct partition_gates *gates, struct str key, int rank, const int64_t *shape, reshard_error *err);

/* Of the first matrix of a pair, or of its bias. *is_told false: it is of no pair that was noted, and *is_gated stays what it is. */
reshard_status partition_gates_ask(struct partition_gates *gates, struct str key, bool *is_gated, bool *is_told, reshard_error *err);

/* Whether the first pair of all that were noted is gated; false if there is none. */
reshard_status partition_gates_ask_any(struct partition_gates *gates, bool *is_gated, reshard_error *err);

void partition_gates_release(struct partition_gates *gates);

#endif
