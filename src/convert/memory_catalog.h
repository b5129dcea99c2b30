/* SPDX-License-Identifier: Apache-2.0 */
/* Shards in memory as one side of a plan: a catalog whose objects are the shards' memory. */
#ifndef CONVERT_MEMORY_CATALOG_H
#define CONVERT_MEMORY_CATALOG_H

#include "convert/memory_names.h"
#include "parallel/shard_list.h"

/*
 * Object number i is shard i. is_apart: each shard is a tensor of its own, which nobody finds by its key: they may overlap, and differ in
 * type. names, which may be NULL, tells shards that stay as they are (memory_names_keep): they have an object, but no tensor. USAGE for
 * shards of a key whose types or global shapes differ, and for one without values, that names the rank; FORMAT for those that overlap.
 */
reshard_status memory_catalog_new(const struct shard_list *list, bool is_apart, const struct memory_names *names, struct catalog **out,
                                  reshard_error *err);

/* The steps of a plan that read something: what a mapping gives no values stays as it is in memory. *out is NULL if all do; else
 * the plan must outlive it. */
reshard_status memory_plan_read(const struct plan *plan, struct plan **out, reshard_error *err);

#endif
