/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state that a distributed checkpoint, torch_dist or zarr, stores otherwise than by parameter: objects and buckets of
 * data-parallel groups, flattened tensors, names with the number of the optimizer. The catalog lists it as it is stored; the view by
 * parameter (driver.h) is made of that catalog and of what is kept here.
 */
#ifndef FORMATS_MCORE_MCORE_STORED_H
#define FORMATS_MCORE_MCORE_STORED_H

#include "formats/mcore/mcore_data.h"
#include "formats/mcore/mcore_relate.h"
#include "formats/mcore/mcore_source.h"

/* A stored piece of a tensor that is listed as one flat vector, from which its place in the tensor's own shape cannot be told. */
struct mcore_piece {
    uint32_t tensor;            /* of the stored catalog */
    int rank;                   /* of what is stored */
    const int64_t *form;        /* size, start and extent of it, rank numbers each */
    struct catalog_chunk like;  /* object, offset and bytes of its blob, flags and writer */
};

/* Kept with an open source: the flavour_state of a dcp_source. */
struct mcore_stored {
    struct arena arena;
    struct mcore_data data;
    struct mcore_piece *pieces; /* by tensor */
    uint32_t count, capacity;
    bool is_flattened;          /* some of the state was flattened, so that fp32_param is the distributed optimizer's */
};

/* Makes what is kept; the source owns it. */
reshard_status mcore_stored_new(struct source *source, struct mcore_stored **out, reshard_error *err);
reshard_status mcore_stored_keep(struct mcore_stored *stored, uint32_t tensor, const struct dcp_form *form,
                                 const struct catalog_chunk *like, reshard_error *err);

/* Whether a key is of an object that goes into the state of parameters, and is no item of the view. */
bool mcore_stored_is_object(struct str key);

/* After tensors and items: notes what is stored otherwise than by parameter, and warns of what Megatron may have written wrongly. */
reshard_status mcore_stored_note(struct source *source, const struct mcore_stored *stored, reshard_error *err);

/* view_by_parameter of the drivers. */
reshard_status mcore_view_by_parameter(struct source *view, reshard_error *err);

/* The value of an item; NULL if there is none. */
const struct value *mcore_item_value(const struct catalog *catalog, const char *key);

#endif
