/* SPDX-License-Identifier: Apache-2.0 */
/* ls --tree: levels of names with their sums, and what repeats in one line. */
#ifndef CLI_LS_TREE_H
#define CLI_LS_TREE_H

#include "options.h"

/* Both return the exit status; what is wrong is printed. */
int ls_tree_text(const struct options *options, reshard_checkpoint *checkpoint);

/* ,"tree":[…] */
int ls_tree_json(const struct options *options, reshard_checkpoint *checkpoint);

#endif
