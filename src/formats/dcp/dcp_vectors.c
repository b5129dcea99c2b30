/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_vectors.h"

#include "base/array.h"
#include "base/crc32.h"
#include "formats/dcp/dcp_target.h"

#include <stdlib.h>

reshard_status dcp_vectors_add(struct dcp_vectors *vectors, struct str key, enum dtype dtype, int64_t count, reshard_error *err)
{
    if (!ARRAY_ROOM(vectors->vectors, vectors->count, vectors->capacity))
        return error_set_memory(err);
    vectors->vectors[vectors->count++] =
        (struct dcp_vector){ .key = key, .dtype = dtype, .count = count, .first_run = vectors->run_count };
    return RESHARD_OK;
}

reshard_status dcp_vectors_add_run(struct dcp_vectors *vectors, const struct dcp_run *run, uint64_t runs_max, reshard_error *err)
{
    if (run->count == 0)
        return RESHARD_OK;
    if (vectors->run_count >= DCP_IN_RUN - 1 || vectors->run_count >= runs_max)
        return error_set_limit(err, "chunks", vectors->run_count, runs_max < DCP_IN_RUN - 1 ? runs_max : DCP_IN_RUN - 1);
    if (!ARRAY_ROOM(vectors->runs, vectors->run_count, vectors->run_capacity))
        return error_set_memory(err);
    vectors->runs[vectors->run_count] = *run;
    vectors->runs[vectors->run_count++].vector = vectors->count - 1;
    vectors->vectors[vectors->count - 1].run_count++;
    return RESHARD_OK;
}

void dcp_vectors_release(struct dcp_vectors *vectors)
{
    free(vectors->vectors);
    free(vectors->runs);
    *vectors = (struct dcp_vectors){ 0 };
}

uint64_t dcp_run_bytes(const struct dcp_vectors *vectors, uint32_t run)
{
    return (uint64_t)vectors->runs[run].count * dtype_element_bytes(vectors->vectors[vectors->runs[run].vector].dtype);
}

reshard_status dcp_run_frame(const struct dcp_vectors *vectors, uint32_t run, struct torch_frame *out, reshard_error *err)
{
    return dcp_tensor_frame(vectors->vectors[vectors->runs[run].vector].dtype, 1, &vectors->runs[run].count, out, err);
}

/* ---- checksums ---- */

reshard_status dcp_run_crcs(const struct publish_job *job, uint32_t object, uint32_t **out, reshard_error *err)
{
    const struct target *target = job->target;
    const struct dcp_vectors *vectors = &dcp_target_state(target)->vectors;
    uint64_t *known = array_zeroed(vectors->run_count, sizeof(*known));
    uint32_t *crcs = *out = array_zeroed(vectors->run_count, sizeof(*crcs));
    if (!known || !crcs) {
        free(known);
        return error_set_memory(err);
    }
    for (uint32_t i = target->first_chunk[object]; i < target->first_chunk[object + 1]; i++) {
        const struct catalog_chunk *chunk = &target->catalog->chunks[target->chunks[i]];
        if (!(chunk->driver_data & DCP_IN_RUN) || chunk->driver_data & DCP_IN_ITEM)
            continue;
        uint32_t run = chunk->driver_data & ~DCP_IN_RUN;
        crcs[run] = crc32_zip_overlay(crcs[run], known[run], job->chunk_crcs[target->chunks[i]], chunk->bytes,
                                      chunk->offset - vectors->runs[run].payload, &known[run]);
    }
    for (uint32_t run = 0; run < vectors->run_count; run++)
        if (vectors->runs[run].object == object)
            crcs[run] = crc32_zip_extend(crcs[run], known[run], dcp_run_bytes(vectors, run));
    free(known);
    return RESHARD_OK;
}
