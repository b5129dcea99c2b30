/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing side of torch shares: which storage holds which tensor, and the pickle that says so. */
#ifndef FORMATS_TORCH_TORCH_TARGET_H
#define FORMATS_TORCH_TORCH_TARGET_H

#include "encoding/torch_save.h"
#include "formats/driver.h"
#include "formats/shared/torch_source.h"

/* One record data/N of the file to be written. */
struct torch_record {
    uint32_t tensor;      /* wanted tensor whose chunk it is, or TORCH_NONE: the bytes are in memory */
    uint64_t bytes;
    struct buffer memory; /* storages inside items of other formats */
};

/* Where a wanted tensor lies: its record, offset in elements, and strides (NULL: row-major). */
struct torch_place {
    uint32_t record; /* TORCH_NONE: not written */
    uint64_t offset;
    const int64_t *strides;
};

/* driver_state of a target. */
struct torch_target {
    struct torch_frame frame;
    struct torch_record *records;
    uint32_t record_count, record_capacity;
    struct torch_place *places;  /* by wanted tensor */
    uint32_t *wanted_of;         /* by source tensor: wanted tensor or TORCH_NONE */
    struct torch_item_storage {
        uint32_t item, storage, record;
    } *item_storages;
    uint32_t item_storage_count, item_storage_capacity;
};

reshard_status torch_record_add(struct torch_target *state, uint32_t tensor, uint64_t bytes, uint32_t *out, reshard_error *err);

/* The record for a hidden tensor, or for a storage that the source reads for an item; made on first use. */
reshard_status torch_record_for_hidden(const struct layout_request *request, struct torch_target *state, uint32_t source_tensor,
                                       uint32_t *out, reshard_error *err);
reshard_status torch_record_for_item(const struct layout_request *request, struct torch_target *state, uint32_t item, uint32_t storage,
                                     uint32_t *out, reshard_error *err);

/* Decides which record holds which tensor (torch_place.c). */
reshard_status torch_place_tensors(const struct layout_request *request, struct torch_target *state, reshard_error *err);

/* The pickle of the whole object (torch_emit.c); adds records for what is inside items. */
reshard_status torch_emit_pickle(const struct layout_request *request, struct target *target, struct torch_target *state,
                                 struct buffer *out, reshard_error *err);

/* A nested object from the paths of tensors and items (torch_nest.c): a NONE node with tensor = 1 + wanted tensor stands for each tensor.
 * Nodes [item_ids[i], item_ids[i + 1]) belong to wanted item i; the caller frees item_ids. */
reshard_status torch_nest(const struct layout_request *request, struct target *target, struct value_graph *graph, uint32_t **item_ids,
                          reshard_error *err);

reshard_status torch_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status torch_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
void torch_close_target(struct target *target);

#endif
