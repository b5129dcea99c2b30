/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested containers put together from paths: the common state of a torch_dist checkpoint out of items that lie apart. Leaves say where
 * their value is found; the tree is written as a pickle without ever being built as one.
 */
#ifndef FORMATS_SHARED_PATH_TREE_H
#define FORMATS_SHARED_PATH_TREE_H

#include "catalog/catalog.h"

struct path_tree_node {
    struct path_part part;           /* its name in the container */
    uint32_t first, last, next;      /* children in order, next sibling; CATALOG_NONE */
    uint32_t child_count;
    bool is_leaf, is_list;           /* is_list: after path_tree_finish */
    bool is_left_out;                /* written elsewhere, or not at all */
    uint32_t wanted;                 /* leaf: wanted item whose value it is, or CATALOG_NONE */
    uint32_t tensor;                 /* leaf: 1 + wanted tensor that it is, 0: none */
    const struct value *value;       /* leaf: a value of its own, or a part of that item's; NULL: the item's whole value */
    uint32_t graph_count;            /* of the graph that value belongs to */
    const struct value *key;         /* after path_form_take: a key that is neither text nor a number, as which part tells it; else NULL */
    const struct value *form;        /* the same: what stood at this place of the object; NULL: nothing is known */
    bool is_form_open;               /* that was a container, taken apart */
};

struct path_tree {
    struct path_tree_node *nodes;     /* [0] is the root */
    uint32_t node_count, node_capacity;
    struct name_map children;        /* (parent, part) -> node - 1 */
    struct buffer key;
};

/* Where a path leads. */
enum path_place { PATH_PLACED, PATH_TAKEN, PATH_THROUGH_LEAF };

/*
 * The node at the end of a path; it and the containers on the way are made. TAKEN: it was there; THROUGH_LEAF: *out is a leaf on the way,
 * *depth how many parts lead there. Texts of parts must outlive the tree. false: no memory.
 */
bool path_tree_place(struct path_tree *tree, const struct path_part *parts, size_t count, uint32_t *out, size_t *depth,
                     enum path_place *place);

/* Adds a leaf; the containers on its path are made. Texts of parts must outlive the tree. Two values of one path are an error that names
 * it. */
reshard_status path_tree_add(struct path_tree *tree, const struct path_part *parts, size_t count, struct path_tree_node leaf,
                            reshard_error *err);

/* The node at the end of a path, or CATALOG_NONE. */
uint32_t path_tree_find(struct path_tree *tree, const struct path_part *parts, size_t count);

/* The child of that name, or CATALOG_NONE. */
uint32_t path_tree_child(struct path_tree *tree, uint32_t parent, struct str name);

/*
 * Tells lists from dicts: positions 0, 1, … without a hole are a list. Other positions become integer keys; *has_hole says that there were
 * some. The outermost is a list only if its form is a sequence.
 */
reshard_status path_tree_finish(struct path_tree *tree, bool *has_hole, reshard_error *err);

/* Appends the pickle of a node, without frame. put_leaf appends that of a leaf; it may leave anything in the reader's memo. */
typedef reshard_status (*path_tree_put_leaf)(void *context, uint32_t node, struct buffer *out, reshard_error *err);
reshard_status path_tree_write(const struct path_tree *tree, uint32_t node, path_tree_put_leaf put_leaf, void *context, struct buffer *out,
                              reshard_error *err);

void path_tree_release(struct path_tree *tree);

#endif
