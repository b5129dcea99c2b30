/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A .pdparams file to be written: the members of its pickle, in order. Where the source is one file of Python objects, its containers come
 * back as what they were: lists, tuples, dicts, OrderedDicts, keys of any kind, empty ones, all in their order.
 *
 * How an array is written says what paddle.load makes of it. In a file with a table of names, arrays under names of the table become
 * tensors, others stay with NumPy. In a file without one, pairs (name, array) become tensors, and arrays do only if there are no pairs.
 */
#ifndef FORMATS_PADDLE_PARAMS_TARGET_H
#define FORMATS_PADDLE_PARAMS_TARGET_H

#include "encoding/paddle_save_write.h"
#include "formats/driver.h"
#include "formats/shared/path_form.h"

struct params_step {
    uint32_t node;
    enum paddle_step step;
    bool has_key;    /* false in a list or tuple */
    bool is_plain_key; /* a key that is no text and no number, and cannot be written: its text stands for it */
    bool is_stateless; /* PADDLE_OPEN_OBJECT: attributes are left out */
};

/* What stands for a tensor. */
enum params_array { PARAMS_NAMED, PARAMS_PAIR, PARAMS_BARE };

/* A table of the source: key -> the framework's name. Of several files it is of the keys that begin with one's name. */
struct params_names {
    const struct value *table;
    struct str file; /* empty: of all */
};

/* driver_state of a target. What it points to of the request's lives as long as the target does. */
struct params_target {
    struct path_tree tree;
    const struct catalog *wanted;
    struct params_step *steps;
    uint32_t step_count, step_capacity;
    struct params_names *tables; /* where none knows a key, it is its own name */
    uint32_t table_count, table_capacity;
    struct name_map name_index;
    struct str *name_of; /* by number in name_index */
    uint32_t name_capacity;
    bool is_own;       /* the object is one that paddle.save made: its arrays stay what they were */
    bool has_no_table; /* of names */
    bool is_one;       /* there is no container, but one tensor or value */
    enum params_array array; /* of a tensor of which nothing else is known */
    uint32_t form_count; /* nodes of the graph that forms and keys of the tree belong to */
    struct paddle_member root;
    struct paddle_content content;
};

/* The steps of a finished tree (params_steps.c). Notes what cannot stay as it was. */
reshard_status params_make_steps(struct target *target, struct work *work, reshard_error *err);

/* What stands for the tensor of a leaf, and the framework's name for it. */
reshard_status params_array_of(const struct params_target *state, const struct path_tree_node *node, enum params_array *out,
                               struct str *name, reshard_error *err);

reshard_status params_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status params_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
void params_close_target(struct target *target);

#endif
