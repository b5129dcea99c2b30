/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FSDP2 over tensor parallelism cuts axis 0 twice: first into tp pieces, then each piece into dp chunks; rank P = r * tp + t holds chunk r
 * of piece t. torch computes the boxes of uneven cuts with another formula, and .metadata then contradicts the blobs. The blobs are right.
 * They say how many rows each rank has, the rank says which rows: a mesh is accepted only if it explains every blob, and only if it is
 * the only one that does.
 */
#include "formats/dcp/dcp_source.h"

#include <inttypes.h>

struct rows {
    int64_t start, count;
};

/* Part `index` of `parts` equal ones, rounded up, of `count` rows: what torch.chunk gives. */
static struct rows dcp_repair_part_of(int64_t count, int64_t parts, int64_t index)
{
    int64_t each = count / parts + (count % parts != 0);
    int64_t start = each * index < count ? each * index : count;
    int64_t end = each * (index + 1) < count ? each * (index + 1) : count;
    return (struct rows){ start, end - start };
}

static struct rows rows_of_rank(int64_t count, int64_t dp, int64_t tp, int64_t rank)
{
    struct rows piece = dcp_repair_part_of(count, tp, rank % tp), chunk = dcp_repair_part_of(piece.count, dp, rank / tp);
    return (struct rows){ piece.start + chunk.start, chunk.count };
}

/* Whether the mesh gives every blob its rows and loses none: together they are all of the tensor. */
static bool mesh_explains(const struct catalog *catalog, const struct catalog_tensor *tensor, const int64_t *blob_rows, int64_t dp,
                          int64_t tp)
{
    int64_t all = catalog_vector_at(catalog, tensor->shape)[0], sum = 0, previous_rank = -1;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
        if (chunk->writer >= dp * tp || rows_of_rank(all, dp, tp, chunk->writer).count != blob_rows[i])
            return false;
        /* Two chunks of one rank are no DTensor. Chunks lie in order of ranks. */
        if ((int64_t)chunk->writer <= previous_rank)
            return false;
        previous_rank = chunk->writer;
        sum += blob_rows[i];
    }
    return sum == all;
}

static reshard_status apply_mesh(struct catalog *catalog, uint32_t tensor_index, int64_t dp, int64_t tp, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[tensor_index];
    int64_t start[RANK_MAX] = { 0 }, extent[RANK_MAX];
    memcpy(extent, catalog_vector_at(catalog, tensor->shape), (size_t)tensor->rank * sizeof(*extent));
    int64_t all = extent[0];
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
        struct rows rows = rows_of_rank(all, dp, tp, chunk->writer);
        start[0] = rows.start;
        extent[0] = rows.count;
        uint32_t start_vector = catalog_vector(catalog, start, tensor->rank), extent_vector = catalog_vector(catalog, extent, tensor->rank);
        if (start_vector == CATALOG_NONE || extent_vector == CATALOG_NONE)
            return error_set_memory(err);
        chunk->start = start_vector;
        chunk->extent = extent_vector;
    }
    return RESHARD_OK;
}

reshard_status dcp_repair_rows(struct source *source, uint32_t tensor_index, const int64_t *blob_rows, bool *repaired, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[tensor_index];
    int64_t world = catalog->ranks, found_tp = 0;
    *repaired = false;
    for (int64_t tp = 2; tp * 2 <= world; tp++) {
        if (world % tp != 0 || !mesh_explains(catalog, tensor, blob_rows, world / tp, tp))
            continue;
        if (found_tp)
            return RESHARD_OK;
        found_tp = tp;
    }
    if (!found_tp)
        return RESHARD_OK;
    reshard_status status = apply_mesh(catalog, tensor_index, world / found_tp, found_tp, err);
    if (status)
        return status;
    catalog_warn(catalog, true, "tensor '%.*s': the boxes in .metadata contradict the blobs, as torch writes them for uneven FSDP over TP; "
                 "repaired as a mesh of dp %" PRId64 ", tp %" PRId64, STR_ARG(tensor->key), world / found_tp, found_tp);
    *repaired = true;
    return RESHARD_OK;
}
