/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: executes expanded statements and says, for every tensor of the target, which boxes of which source tensors it is made of.
 * Everything that cannot be right is found here, before a byte moves.
 *
 * Statements are executed in their order (backwards, with their sides exchanged, in reverse mode); a name means what was assigned to it
 * last, else the weight of the source. Statements name weights; the optimizer states of a weight follow it, without its casts.
 */
#ifndef MAPPING_MAP_ENGINE_H
#define MAPPING_MAP_ENGINE_H

#include "mapping/map_variable.h"

struct map_engine_input {
    const struct map_program *program; /* expanded */
    const struct map_space *source, *target; /* target NULL: everything that is assigned or left over, and not used, is put out */
    bool strict, reverse;
    const struct limits *limits;
    struct map_diagnoses *diagnoses;
    uint32_t text_size;                /* where "the end of the text" is, for what no statement says */
};

/* One box of a target tensor. A whole beta power has piece NULL. */
struct map_copy {
    uint32_t source_tensor, target_tensor;
    const struct map_piece *piece;
    const struct map_cast *casts;      /* to apply: those of the piece, or none for a state */
};

enum map_origin {
    MAP_ORIGIN_ASSIGNED, /* by a statement */
    MAP_ORIGIN_IDENTITY, /* no statement names it: the source's weight of the same name */
    MAP_ORIGIN_KEPT      /* `_ -> name`: it keeps its initial value */
};

/* What a weight of the target is made of. */
struct map_outcome {
    const struct map_variable *variable; /* NULL if kept */
    enum map_origin origin;
};

/* What the text does not say, but its inverse must. */
struct map_trace {
    enum dtype dtype;   /* casts: the type before, of the first piece */
    int64_t *extents;   /* joins: of each part, on the axis */
    uint32_t count;     /* of them; 0: the statement is no join */
};

struct map_result {
    struct arena arena;
    struct map_trace *traces;          /* by statement of the program; empty in reverse mode */
    struct map_space made;             /* the target, if none was given */
    const struct map_space *target;    /* that one, or the given one */
    struct map_outcome *outcomes;      /* by weight of the target */
    struct map_copy *copies;           /* by target tensor */
    uint32_t copy_count, copy_capacity;
    bool *removed;                     /* by weight of the source: `name -> _` */
    bool *used;                        /* by weight of the source: a statement, or identity, reads it */
};

/* Executes. Release *out on failure too. RESHARD_OK means that it ran: whether the mapping fits is what the diagnoses say; copies are
 * complete only if there is no error among them. */
reshard_status map_execute(const struct map_engine_input *input, struct map_result *out, reshard_error *err);
void map_result_release(struct map_result *result);

#endif
