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

struct placed_chunk {
    uint32_t run, chunk;
    uint64_t offset;
};

static int by_place_in_run(const void *a, const void *b)
{
    const struct placed_chunk *x = a, *y = b;
    if (x->run != y->run)
        return x->run < y->run ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Takes the zeros into the sum that lie between what it knows and the given end. */
static uint32_t crc_of_gap(uint32_t crc, uint64_t *known, uint64_t upto)
{
    uint64_t gap = upto - *known;
    *known = upto;
    return gap ? crc32_zip_combine(crc, crc32_zip_zeros(gap), gap) : crc;
}

reshard_status dcp_run_crcs(const struct publish_job *job, uint32_t **out, reshard_error *err)
{
    const struct catalog *catalog = job->target->catalog;
    const struct dcp_vectors *vectors = &dcp_target_state(job->target)->vectors;
    struct placed_chunk *placed = malloc(((size_t)catalog->chunk_count + 1) * sizeof(*placed));
    uint32_t count = 0, next = 0;
    *out = calloc((size_t)vectors->run_count + 1, sizeof(**out));
    if (!placed || !*out) {
        free(placed);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (chunk->driver_data & DCP_IN_RUN && !(chunk->driver_data & DCP_IN_ITEM))
            placed[count++] = (struct placed_chunk){ chunk->driver_data & ~DCP_IN_RUN, i, chunk->offset };
    }
    qsort(placed, count, sizeof(*placed), by_place_in_run);
    for (uint32_t run = 0; run < vectors->run_count; run++) {
        uint64_t known = 0;
        uint32_t crc = 0;
        for (; next < count && placed[next].run == run; next++) {
            const struct catalog_chunk *chunk = &catalog->chunks[placed[next].chunk];
            crc = crc_of_gap(crc, &known, chunk->offset - vectors->runs[run].payload);
            crc = crc32_zip_combine(crc, job->chunk_crcs[placed[next].chunk], chunk->bytes);
            known += chunk->bytes;
        }
        (*out)[run] = crc_of_gap(crc, &known, dcp_run_bytes(vectors, run));
    }
    free(placed);
    return RESHARD_OK;
}
