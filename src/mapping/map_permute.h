/* SPDX-License-Identifier: Apache-2.0 */
/* The text of permute="[2, 0, 1]" and reshape="[2, 3, 4]": a Python list of integers. */
#ifndef MAPPING_MAP_PERMUTE_H
#define MAPPING_MAP_PERMUTE_H

#include "base/str.h"
#include "tensor/box.h"

enum map_list_result {
    MAP_LIST_OK,
    MAP_LIST_NO_LIST,  /* something else than [integers] */
    MAP_LIST_TOO_LONG  /* more than RANK_MAX */
};

enum map_list_result map_list_parse(struct str text, int64_t values[RANK_MAX], int *count);

/* Whether the list is a permutation of `rank` axes; the empty list is their reversal. axes[i]: the input axis that becomes axis i. */
bool map_permutation_of(const int64_t *values, int count, int rank, uint8_t axes[RANK_MAX]);

#endif
