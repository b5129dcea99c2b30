/* SPDX-License-Identifier: Apache-2.0 */
/* The files of models/: mapping texts and partition rules of model families, compiled into the library so that it needs no data folder. */
#ifndef BASE_MODEL_DATA_H
#define BASE_MODEL_DATA_H

#include "base/str.h"

struct model_data {
    const char *name; /* of the file, such as "llama.map" */
    struct str text;  /* ends with a NUL that size does not count */
};

/* By index, sorted by name; NULL past the end. */
const struct model_data *model_data_at(uint32_t index);

/* By name of the file; NULL if there is none. */
const struct model_data *model_data_find(struct str name);

#endif
