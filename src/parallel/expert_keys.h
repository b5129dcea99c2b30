/* SPDX-License-Identifier: Apache-2.0 */
/* Experts in keys: frameworks number those of each rank from 0 on, checkpoints those of all ranks. */
#ifndef PARALLEL_EXPERT_KEYS_H
#define PARALLEL_EXPERT_KEYS_H

#include "base/str.h"

/* The place of the number behind the first "experts." of a key; false if there is none. */
bool expert_number_find(struct str key, size_t *begin, size_t *end, uint64_t *number);

#endif
