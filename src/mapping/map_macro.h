/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Macros: each rewrites a list of statements into another. map_expand runs them all in upstream's order.
 *
 * A statement that a macro cannot rewrite is diagnosed and left out, so that the others are still looked at; a status other than RESHARD_OK
 * means no memory, or a limit.
 */
#ifndef MAPPING_MAP_MACRO_H
#define MAPPING_MAP_MACRO_H

#include "mapping/map_space.h"
#include "mapping/map_syntax.h"

struct map_macro_context {
    const struct map_space *source, *target; /* target may be NULL: the outputs of the mapping are wanted, whatever they are */
    bool strict, reverse;
    const struct limits *limits;
    struct map_diagnoses *diagnoses;
    struct arena *arena; /* of the texts and names that macros make */
    uint64_t *work;      /* names looked at while numbers were searched among made names */
};

/* The name space that names left and right of the arrow belong to in the end; NULL: unknown. */
static inline const struct map_space *map_left_space(const struct map_macro_context *context)
{
    return context->reverse ? context->target : context->source;
}

static inline const struct map_space *map_right_space(const struct map_macro_context *context)
{
    return context->reverse ? context->source : context->target;
}

/* RESHARD_ERR_MEMORY of something that came out of an arena may be the limit map_bytes, which the arena has. */
reshard_status map_memory_error(const struct arena *arena, reshard_error *err);

/* Appends to the list within the limit. */
reshard_status map_emit(const struct map_macro_context *context, struct map_program *list, const struct map_statement *statement,
                        reshard_error *err);

/* $LAYER_ID_OFFSET (is_offset), or $LAYER_ID and $EXPERT_ID. */
reshard_status map_macro_ids(const struct map_macro_context *context, bool is_offset, const struct map_program *in, struct map_program *out,
                             reshard_error *err);
reshard_status map_macro_arrays(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                                reshard_error *err);
reshard_status map_macro_stars(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                               reshard_error *err);

/* The extent of the axis along which a statement stacks or unstacks, if the tensor that has the axis is a key of its side; else -1. Where
 * no keys say which there are, a star on the other side counts below it. */
int64_t map_stack_extent(const struct map_macro_context *context, const struct map_statement *statement);

/* Refuses several -> several, and ^T on the right. */
void map_macro_check_sides(const struct map_macro_context *context, struct map_program *list);
reshard_status map_macro_transposes(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                                    reshard_error *err);

struct map_chain;
reshard_status map_macro_fused(const struct map_macro_context *context, const struct map_chain *chain, const struct map_program *in,
                               struct map_program *out, reshard_error *err);

/* "a.b^T" without its "^T"; false if there is none. */
bool map_strip_transpose(struct str name, struct str *out);

#endif
