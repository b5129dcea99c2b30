/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writing half of the driver shares. Laying out decides every blob's file, offset and length; nothing but two numbers a blob is
 * kept until publishing, which makes each frame again.
 */
#ifndef FORMATS_DCP_DCP_TARGET_H
#define FORMATS_DCP_DCP_TARGET_H

#include "encoding/torch_save.h"
#include "formats/dcp/dcp_lists.h"
#include "formats/driver.h"

#define DCP_ALIGNMENT 64

/* driver_data of a target chunk: 1 + number of its blob, or this bit and the wanted item in whose blob a hidden tensor lies. */
#define DCP_IN_ITEM UINT32_C(0x80000000)

struct dcp_blob {
    uint64_t offset, bytes; /* in its file */
};

enum dcp_item_form { DCP_ITEM_DROPPED, DCP_ITEM_VERBATIM, DCP_ITEM_PICKLED, DCP_ITEM_FILE };

struct dcp_item_blob {
    enum dcp_item_form form;
    uint32_t object;        /* of the target catalog */
    uint64_t offset, bytes;
};

struct dcp_target {
    struct dcp_blob *blobs;       /* of tensors, in the order of their chunks */
    struct dcp_item_blob *items;  /* by wanted item */
    uint32_t *wanted_of;          /* source tensor -> wanted tensor, or CATALOG_NONE */
    struct dcp_lists lists;       /* on the paths of all that is stored */
    uint32_t blob_count, item_count;
    uint32_t metadata_object;
};

static inline struct dcp_target *dcp_target_state(const struct target *target)
{
    return target->driver_state;
}

/* ---- dcp_item_write.c ---- */

/* A storage inside an item's blob: the payload of a hidden tensor, or bytes that the source driver reads. */
struct dcp_item_storage {
    bool is_tensor;
    uint32_t index;         /* wanted tensor, or the source item's storage */
    uint64_t bytes;
};
struct dcp_item_pickle {
    struct torch_frame frame;
    struct dcp_item_storage *storages;
    uint32_t storage_count, storage_capacity;
};

/* Pickles wanted item `item` and lays its archive out. UNSUPPORTED says why the item cannot be written. */
reshard_status dcp_item_pickle_make(const struct layout_request *request, const struct dcp_target *state, uint32_t item,
                                    struct dcp_item_pickle *out, reshard_error *err);
void dcp_item_pickle_release(struct dcp_item_pickle *pickle);

/* ---- dcp_layout.c ---- */

/* The archive around one chunk's payload. */
reshard_status dcp_tensor_frame(enum dtype dtype, int rank, const int64_t *shape, struct torch_frame *out, reshard_error *err);

reshard_status dcp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
void dcp_close_target(struct target *target);

/* ---- dcp_place.c ---- */

/* A blob on its way to a place. */
struct dcp_piece {
    bool is_item;
    uint32_t index;          /* wanted tensor or item */
    uint32_t start, extent;  /* tensors: vectors of the target catalog */
    uint32_t file;           /* in files */
    uint32_t payload_offset; /* tensors: in the blob */
    uint64_t order;          /* in the file */
    uint64_t offset, bytes;
};
struct dcp_out_file {
    struct str name;         /* arena of the target catalog */
    uint32_t rank, number;   /* of __R_N.distcp; CATALOG_NONE: the name is given */
    uint32_t object;
    uint64_t bytes;
};
struct dcp_placing {
    const struct layout_request *request;
    struct target *target;
    struct dcp_piece *pieces;
    uint32_t piece_count, piece_capacity;
    struct dcp_out_file *files;
    uint32_t file_count, file_capacity;
    struct name_map like_items; /* keys of the reference's items -> like_item */
    uint32_t *like_item;
};

/* Makes pieces of all wanted tensors and of one wanted item. */
reshard_status dcp_place_tensors(struct dcp_placing *placing, reshard_error *err);
reshard_status dcp_place_item(struct dcp_placing *placing, uint32_t item, uint64_t bytes, reshard_error *err);

/* Reads what the reference says about items, and notes what cannot be taken over. */
reshard_status dcp_place_begin(struct dcp_placing *placing, reshard_error *err);

/* Gives every piece its file and offset, and makes the files objects of the target. Pieces keep their order in the array. */
reshard_status dcp_place_finish(struct dcp_placing *placing, reshard_error *err);
void dcp_placing_release(struct dcp_placing *placing);

/* ---- dcp_metadata_write.c ---- */

typedef reshard_status (*dcp_sink)(void *context, const void *bytes, size_t size, reshard_error *err);

/* The whole .metadata of a laid-out target, in order. The same bytes every time. */
reshard_status dcp_metadata_write(const struct layout_request *request, const struct target *target, dcp_sink sink, void *context, reshard_error *err);

/* ---- dcp_publish.c ---- */

reshard_status dcp_publish(const struct publish_job *job, reshard_error *err);

/* Decoded bytes of a source item's extent, given to sink in parts. */
reshard_status dcp_item_copy(struct source *source, const struct catalog_item *item, dcp_sink sink, void *context, reshard_error *err);

#endif
