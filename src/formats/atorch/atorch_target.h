/* SPDX-License-Identifier: Apache-2.0 */
/* A laid-out folder: which file each object is. What files hold beside payload is made when it is needed, so that little is kept. */
#ifndef FORMATS_ATORCH_TARGET_H
#define FORMATS_ATORCH_TARGET_H

#include "formats/atorch/atorch_plan.h"

/* What a safetensors file holds: the piece of a unit, a state's piece, or a buffer. */
struct atorch_entry {
    struct str name;
    uint32_t owner, state;  /* unit; state of the plan; wanted tensor */
    enum dtype dtype;
    int rank;
    const int64_t *shape;   /* NULL: one axis of `length` */
    int64_t length;
    uint64_t bytes, begin;  /* begin: in the file's data */
    bool is_unit_state;     /* state by unit: owner is the unit, state the first of its parameters' */
};

struct atorch_entries {
    struct arena arena;     /* of names */
    struct atorch_entry *items;
    uint32_t count, capacity;
    uint64_t bytes;
};

struct atorch_object {
    enum atorch_file_kind kind;
    uint32_t rank;
    uint32_t source_object; /* ATORCH_BESIDE: it is copied */
    struct str text;        /* ATORCH_OPTIM_META, ATORCH_CKPT_META: all of it */
};

/* driver_state of a target. */
struct atorch_target {
    struct atorch_plan plan;
    struct atorch_object *objects; /* by object of the target's catalog */
    uint32_t object_count, object_capacity;
    struct str groups_before;      /* what stands before param_groups in the items that optim_meta is made of */
    bool has_torch_groups;
};

/* atorch_entries.c: what the rank's file holds, in its order; and the head of the file, as atorch's own writer has it. */
reshard_status atorch_entries_make(const struct layout_request *request, const struct atorch_plan *plan, enum atorch_file_kind kind,
                                   uint32_t rank, struct atorch_entries *out, reshard_error *err);
reshard_status atorch_entries_head(const struct atorch_entries *entries, const struct limits *limits, struct buffer *out,
                                   reshard_error *err);
void atorch_entries_release(struct atorch_entries *entries);

/* atorch_meta_write.c: flat_meta of a rank. */
reshard_status atorch_meta_write(const struct atorch_model *model, uint32_t rank, struct buffer *out, reshard_error *err);

/* atorch_groups.c: optim_meta and ckpt_meta; *out stays empty where there is nothing to be written. */
reshard_status atorch_groups_write(const struct layout_request *request, struct target *target, const struct atorch_plan *plan,
                                   struct buffer *out, reshard_error *err);

/* atorch_torch_groups.c: the groups of parameters as torch has them, as one list in graph; *out NULL: there are none, or of several
 * optimizers, or their parameters have no names. *before: as groups_before, a part of an item's key. */
reshard_status atorch_torch_groups(const struct layout_request *request, const struct atorch_plan *plan, struct value_graph *graph,
                                   struct value **out, struct str *before, reshard_error *err);

/* Tells what became of the plan's options. */
reshard_status atorch_torch_groups_note(const struct layout_request *request, struct target *target, reshard_error *err);

reshard_status atorch_checkpoint_write(const struct layout_request *request, const struct atorch_plan *plan, struct buffer *out,
                                       reshard_error *err);

reshard_status atorch_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status atorch_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
void atorch_close_target(struct target *target);

#endif
