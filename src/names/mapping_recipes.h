/* SPDX-License-Identifier: Apache-2.0 */
/* What a mapping text did, as recipes of the plan, and recipes of two texts made into one step. */
#ifndef NAMES_MAPPING_RECIPES_H
#define NAMES_MAPPING_RECIPES_H

#include "mapping/map_engine.h"
#include "plan/plan.h"

/* Recipes by target tensor, ascending: those of tensor t are [first[t], first[t + 1]). */
struct recipe_table {
    struct recipe *recipes;
    uint32_t *first;
    uint32_t count, capacity, target_count;
};
void recipe_table_release(struct recipe_table *table);

/* Appends. Recipes come by target tensor. */
reshard_status recipe_table_append(struct recipe_table *table, const struct recipe *recipe, reshard_error *err);

/* Fills table->first once all recipes are there, in any order of their targets. */
reshard_status recipe_table_close(struct recipe_table *table, uint32_t target_count, reshard_error *err);

/*
 * The recipes of a text that ran: from tensors of its source space to tensors of result->target. What the text keeps (`_ -> x`), and what
 * was to come from a removed tensor, is made of zeros. Vectors lie in the result or in arena.
 */
reshard_status recipes_of_result(const struct map_result *result, const struct map_space *source, struct arena *arena,
                                 struct recipe_table *out, reshard_error *err);

/* A tensor of either end or of the middle, as far as composing needs it. */
struct recipe_side {
    enum dtype dtype;
    int rank;
};

struct recipe_chain {
    const struct recipe_side *source, *middle, *target; /* by tensor */
    const struct recipe_table *before, *after;          /* source -> middle, middle -> target */
    uint64_t box_checks;
};

/* Recipes source -> target that do what both do, cast by cast. Vectors lie in the given ones or in arena. */
reshard_status recipes_compose(const struct recipe_chain *chain, struct arena *arena, struct recipe_table *out, reshard_error *err);

/* The tensors that recipes read, each once, ascending; free *out. */
reshard_status recipes_read(const struct recipe *recipes, uint32_t count, uint32_t source_count, uint32_t **out, uint32_t *out_count,
                            reshard_error *err);

/* Puts one more cast behind a recipe that ended with `last` and is to end with `target`; the list lies in arena. */
reshard_status recipe_add_cast(struct recipe *recipe, enum dtype source, enum dtype last, enum dtype target, struct arena *arena,
                               reshard_error *err);

#endif
