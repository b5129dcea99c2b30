/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state that a distributed checkpoint, torch_dist or zarr, stores otherwise than by parameter: objects and buckets of
 * data-parallel groups, flattened tensors, names with the number of the optimizer.
 */
#ifndef FORMATS_MCORE_MCORE_STORED_H
#define FORMATS_MCORE_MCORE_STORED_H

#include "formats/mcore/mcore_source.h"
#include "formats/mcore/mcore_relate.h"

/* The objects that are to be related to parameters. */
struct mcore_stored {
    struct optimizer_object *objects;
    uint32_t count, capacity;
};

/*
 * An object of that key: *taken if it goes into the state of parameters (source->is_by_parameter) and is no item. Notes in the catalog
 * that there is such state.
 */
reshard_status mcore_stored_take(struct source *source, struct mcore_stored *stored, struct str key, uint32_t object, uint64_t offset,
                                uint64_t bytes, enum codec codec, bool *taken, reshard_error *err);

/*
 * After tensors and items: notes what is stored otherwise than by parameter; relates it to parameters if that is asked for, else warns of
 * what Megatron may have written wrongly. is_flattened: some of the state was, so that fp32_param is the distributed optimizer's.
 */
reshard_status mcore_stored_read(struct source *source, const struct mcore_stored *stored, bool is_flattened, reshard_error *err);
void mcore_stored_release(struct mcore_stored *stored);

/* The value of an item; NULL if there is none. */
const struct value *mcore_item_value(const struct catalog *catalog, const char *key);

#endif
