/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a model has, and their shapes, by its config.json: models/hf.shapes says so for the families that are known. */
#ifndef NAMES_MODEL_SHAPES_H
#define NAMES_MODEL_SHAPES_H

#include "catalog/catalog.h"
#include "names/map_session.h"

struct model_shapes {
    struct catalog *catalog;  /* sealed, tensors without data; their types count only if dtype is known */
    uint8_t *is_optional;     /* by tensor */
    uint32_t optional_capacity;
    struct str *ignored;      /* globs on keys that are neither expected nor unexpected; in the catalog's arena */
    uint32_t ignored_count, ignored_capacity;
    char *family;             /* the model_type */
    enum dtype dtype;         /* of weights, by torch_dtype; DTYPE_COUNT: not said */
};

/* config: the text of a config.json; constants: numbers that go before its own. out->catalog stays NULL where the model's family is not
 * known, or not all of it follows from the configuration; out->family is set all the same if there is one. Release *out on failure too. */
reshard_status model_shapes_make(struct str config, const struct mapping_constant *constants, size_t constant_count,
                                 const struct limits *limits, struct model_shapes *out, reshard_error *err);
void model_shapes_release(struct model_shapes *shapes);

/* What a config.json says of a number, or its family means by not saying it. */
reshard_status model_shapes_number(struct str config, struct str name, const struct limits *limits, int64_t *out, bool *is_known,
                                   reshard_error *err);

#endif
