/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a config.json, whose model's tensors are to be told: there are some, and each has a key and a size. */
#include "names/model_shapes.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct limits limits = limits_default;
    limits.tensors = 20000; /* a million takes seconds, and they are all alike */
    struct model_shapes shapes = { 0 };
    int64_t tied = 0;
    bool is_known = false;
    reshard_error err = RESHARD_ERROR_INIT;
    const struct str config = { (const char *)bytes, size };
    reshard_status status = outcome_status(model_shapes_make(config, NULL, 0, &limits, &shapes, &err), &err);
    const struct catalog *catalog = status ? NULL : shapes.catalog;
    if (catalog && (!catalog->tensor_count || !shapes.family))
        abort();
    if (catalog)
        outcome_catalog(catalog);
    for (uint32_t i = 0; catalog && i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        const int64_t *shape = catalog_vector_at(catalog, tensor->shape);
        for (int32_t axis = 0; axis < tensor->rank; axis++)
            if (!tensor->key.size || shape[axis] < 0)
                abort();
    }
    model_shapes_release(&shapes);
    outcome_status(model_shapes_number(config, STR("tie_word_embeddings"), &limits, &tied, &is_known, &err), &err);
    outcome_number(is_known ? (uint64_t)tied : UINT64_MAX);
    return 0;
}
