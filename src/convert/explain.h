/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why tensors differ: the usual mistakes of those who cut, merge and convert checkpoints are tried on what differs. Each suspect is read
 * once more, as a whole; those that are too large for that, and what comes behind many of them, stay without an explanation, and that is
 * said.
 */
#ifndef CONVERT_EXPLAIN_H
#define CONVERT_EXPLAIN_H

#include "base/buffer.h"
#include "convert/finding.h"
#include "convert/lockstep.h"

/* A tensor in memory, row-major. */
struct held_tensor {
    const uint8_t *bytes;
    uint64_t elements;
    const int64_t *shape;
    enum dtype dtype;
    int rank;
};

struct suspect {
    struct lockstep_pair pair;
    uint64_t digest_a, digest_b;
    uint64_t rows_a, rows_b; /* sums of the hashes of rows, in which their order does not count */
    char *text;   /* the cause; NULL: none was found */
    bool is_read;
    bool is_partial; /* whole shards of it differ, and others agree */
    bool is_other;   /* more than half of its elements differ */
};

struct explanation {
    const struct engine_source *a, *b;
    const struct engine_made *made;  /* how a's tensors are made; NULL: they are those of its catalog */
    const struct catalog *catalog_a; /* a's tensors as they are compared */
    const struct engine_options *engine;
    struct finding_sink *findings;
    struct suspect *suspects;
    uint32_t count, capacity;
    uint64_t bytes; /* read so far */
    uint32_t explained; /* made */
};

/* The words become the suspect's cause; they are released if that fails. */
reshard_status suspect_tell(struct suspect *suspect, struct buffer *text, reshard_error *err);

/* Lists a pair to be explained. */
reshard_status explain_add(struct explanation *explanation, struct lockstep_pair pair, reshard_error *err);

/* Reports a finding of the kind "cause" for each suspect that can be explained. */
reshard_status explain_run(struct explanation *explanation, reshard_error *err);
void explain_release(struct explanation *explanation);

/* Whether a pair can be read as a whole, and has whole bytes. */
bool explain_reaches(const struct explanation *explanation, const struct suspect *suspect);

/* Reads a tensor of either side; out->bytes is malloc'd, also on failure. */
reshard_status explain_hold(const struct explanation *explanation, bool is_a, uint32_t tensor, struct held_tensor *out, reshard_error *err);

/* Each tries some mistakes on a pair, and words in out how b came from a. false: it is none of them. */

/* explain_values.c: nothing but zeros, a cast, a factor, a transposition, what is no number. */
bool explain_values(const struct held_tensor *a, const struct held_tensor *b, struct buffer *out);

/* explain_order.c: slices along one axis come in another order. cuts[axis][i]: whether a shard of either side begins at index i of the
 * axis, NULL where that is not known. key tells whether rows of several weights are fused in it. */
bool explain_order(const struct held_tensor *a, const struct held_tensor *b, struct str key, unsigned char *const *cuts, struct buffer *out,
                   reshard_error *err);

/* explain_seams.c: whole shards differ, and others not at all. is_changed has a byte an element. side: what the catalog's checkpoint is
 * called. */
bool explain_seams(const struct catalog *catalog, uint32_t tensor, const unsigned char *is_changed, const char *side, struct buffer *out);

/* explain_fused.c: of what is not explained yet, weights that other checkpoints fuse, and that have rows of each other. */
reshard_status explain_families(struct explanation *explanation, reshard_error *err);

/* explain_files.c: for what is not explained yet, whether all that its file holds is other, while other files' tensors agree. */
reshard_status explain_files(struct explanation *explanation, bool is_a, reshard_error *err);

/* Marks where the tensor's shards begin along the axis. */
void explain_cuts(const struct catalog *catalog, uint32_t tensor, int axis, unsigned char *cuts);

#endif
