/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a source under the names, shapes and types that a mapping gives them, for those who fill memory. */
#ifndef CONVERT_MEMORY_NAMES_H
#define CONVERT_MEMORY_NAMES_H

#include "names/mapping_make.h"
#include "parallel/shard_list.h"

/* { 0 } with a source: names are its own. */
struct memory_names {
    const struct catalog *source;
    struct mapping_made made;  /* stage NULL: names are the source's */
    struct catalog *wanted;    /* what is asked for; NULL without a mapping */
    struct map_space space;    /* the same, where the mapping keeps anything */
    struct arena arena;        /* of casts */
};

/*
 * wanted: the shards that anybody asks for, which tell where names are to lead. What the mapping makes besides is there too. The source
 * must outlive *out, which is to be released on failure too. Every rank that gives the same gets the same.
 */
reshard_status memory_names_make(struct source *source, const struct shard_list *wanted, const struct mapping_options *options,
                                 struct memory_names *out, reshard_error *err);
void memory_names_release(struct memory_names *names);

/* A tensor by key; false: there is none. */
struct memory_tensor {
    uint32_t number;
    int rank;
    const int64_t *shape;
};
bool memory_names_find(const struct memory_names *names, struct str key, struct memory_tensor *out);

/* Whether the mapping says that the tensor of the key stays as it is (`_ -> key`). */
bool memory_names_keep(const struct memory_names *names, struct str key);

/* Whether the mapping makes only a part of the tensor of the key: the rest stays as it is, on every rank for itself. */
bool memory_names_leave(const struct memory_names *names, struct str key);

/* Whether a shard can be filled so: one whose values a function takes needs one that gives what stays. USAGE names it. */
reshard_status memory_names_check(const struct memory_names *names, const struct shard *shard, reshard_error *err);

/* Appends the recipes that make a target's tensor, which has this type and the shape of the found one, of the source's. They are good until
 * release. */
reshard_status memory_names_recipes(struct memory_names *names, const struct memory_tensor *found, uint32_t target, enum dtype dtype,
                                    struct recipe_table *out, reshard_error *err);

#endif
