/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of tensors by name: the layer they are in (everything up to the first number: model.layers.3), and the module they are of (the
 * same name in all layers, with a star in the place of each number: model.layers.*.mlp.up_proj.weight).
 */
#ifndef CLI_ROLL_UP_H
#define CLI_ROLL_UP_H

#include "reshard/reshard.h"

/* Names in the order in which they were first met, each with a number from 0 on. Starts zeroed. */
struct roll_up {
    char **names;
    size_t count, room;
    size_t *slots; /* by hash of the name: 1 + number, or 0 */
    size_t slot_count;
};

/* The number of the name, which is added if it is new; (size_t)-1: out of memory. */
size_t roll_up_number(struct roll_up *groups, const char *name);
void roll_up_release(struct roll_up *groups);

/* The groups' numbers in order of their names, in which numbers count as numbers (layers.2 before layers.10). Free it; NULL: out of
 * memory. */
size_t *roll_up_order(const struct roll_up *groups);

/* malloc'd; NULL: out of memory. What lies in no layer is of the layer "". */
char *layer_name(reshard_str key);
char *module_name(reshard_str key);

#endif
