/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between two checkpoints, as the data of a page: a grid of layers by modules, and tiles of tensors. */
#ifndef CLI_DIFF_MAP_H
#define CLI_DIFF_MAP_H

#include "mapping_input.h"

/* Compares, and writes the page's JSON. Returns an exit status: 0 same, 1 not; above, what is wrong was printed. */
int diff_map_json(FILE *out, const struct options *options, const struct mapping_input *mapping, reshard_checkpoint *a,
                  reshard_checkpoint *b);

#endif
