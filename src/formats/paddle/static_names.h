/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the framework itself calls the tensors of a checkpoint (linear_3.w_0), out of the tables StructuredToParameterName@@ of its files.
 * Each process numbers its own modules, so that two ranks may give one name to different tensors. Such a name tells nothing, and is none;
 * within one file it means that the tensors are one parameter of the model.
 */
#ifndef FORMATS_PADDLE_STATIC_NAMES_H
#define FORMATS_PADDLE_STATIC_NAMES_H

#include "base/error.h"
#include "base/name_map.h"

struct static_names {
    struct name_map keys, names;
    uint32_t *name_of; /* by key */
    uint32_t *file_of; /* by name: STATIC_FILES where several files have it for different keys */
    uint32_t key_capacity, name_capacity;
};

/* A key's name in a file. Of several files' names of one key the first counts. */
reshard_status static_names_add(struct static_names *names, struct str key, struct str name, uint32_t file, reshard_error *err);

/* By number of the key, which count from 0 to keys.count; and by key. { 0 }: there is none. The text lives as long as names. */
struct str static_names_at(const struct static_names *names, uint32_t key);
struct str static_names_find(const struct static_names *names, struct str key);
void static_names_release(struct static_names *names);

#endif
