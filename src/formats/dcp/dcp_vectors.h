/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors: what a flavour of DCP stores in place of tensors. Tensors of the target that lie in vectors have chunks all the same, which lie
 * in runs: a run is a part of a vector in one place of a file. What no chunk fills is zero. Runs are blobs of their own, under the vector's
 * key in .metadata, or storages inside an item.
 */
#ifndef FORMATS_DCP_DCP_VECTORS_H
#define FORMATS_DCP_DCP_VECTORS_H

#include "encoding/torch_save.h"
#include "formats/driver.h"

struct dcp_run {
    int64_t start, count;             /* elements of its vector */
    uint32_t vector;
    uint32_t rank;                    /* of all ranks: the one that owns it */
    uint32_t object;                  /* of the target's catalog */
    uint64_t blob_offset, blob_bytes; /* of the archive around it, if it is a blob */
    uint64_t payload;                 /* of its first element, in the object */
};

struct dcp_vector {
    struct str key;                   /* in .metadata */
    enum dtype dtype;
    int64_t count;
    uint32_t first_run, run_count;
};

struct dcp_vectors {
    struct dcp_vector *vectors;
    struct dcp_run *runs;
    uint32_t count, run_count, capacity, run_capacity;
    bool are_blobs;                   /* else runs are storages of items (dcp_stored.has_runs) */
};

/* The key is not copied. */
reshard_status dcp_vectors_add(struct dcp_vectors *vectors, struct str key, enum dtype dtype, int64_t count, reshard_error *err);

/* Adds a run to the vector that was added last. */
reshard_status dcp_vectors_add_run(struct dcp_vectors *vectors, const struct dcp_run *run, uint64_t runs_max, reshard_error *err);
void dcp_vectors_release(struct dcp_vectors *vectors);

uint64_t dcp_run_bytes(const struct dcp_vectors *vectors, uint32_t run);

/* The archive around a run that is a blob. */
reshard_status dcp_run_frame(const struct dcp_vectors *vectors, uint32_t run, struct torch_frame *out, reshard_error *err);

/* CRC-32s of the runs in an object, from those of its chunks, by number of all runs; free() them. */
reshard_status dcp_run_crcs(const struct publish_job *job, uint32_t object, uint32_t **out, reshard_error *err);

#endif
