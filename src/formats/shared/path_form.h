/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of a nested object that was taken apart into paths: whether a container was a list, a tuple, a dict or an object like one, what
 * its keys were, in which order its members stood, and which containers were empty. Paths alone do not tell.
 */
#ifndef FORMATS_SHARED_PATH_FORM_H
#define FORMATS_SHARED_PATH_FORM_H

#include "formats/shared/path_tree.h"

/*
 * Notes in the nodes of the tree what the source's object had at their paths, and orders members as they were there; what has no place
 * there comes behind. Called before path_tree_finish. Sources that kept no object: nothing happens.
 */
reshard_status path_form_take(struct path_tree *tree, const struct catalog *source, const struct limits *limits, reshard_error *err);

enum path_form { FORM_DICT, FORM_LIST, FORM_TUPLE, FORM_OBJECT };

/* What a node that is no leaf is to be, after path_tree_finish: FORM_OBJECT is an OrderedDict, defaultdict or Counter, node->form says how
 * it was made. */
enum path_form path_form_of(const struct path_tree_node *node);

/* Whether a node that is no leaf was a list or tuple, and can be none any more because members are gone. */
static inline bool path_form_is_broken(const struct path_tree *tree, const struct path_tree_node *node)
{
    return !node->is_list && node->child_count && tree->nodes[node->first].part.kind == PATH_INDEX;
}

#endif
