/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/source_pairs.h"

#include <stdlib.h>

static bool box_is_in_pairs(const struct catalog *catalog, const struct catalog_chunk *chunk, int last)
{
    return catalog_vector_at(catalog, chunk->start)[last] % 2 == 0 && catalog_vector_at(catalog, chunk->extent)[last] % 2 == 0;
}

bool tensor_is_in_pairs(const struct catalog *catalog, const struct catalog_tensor *tensor)
{
    const int last = tensor->rank - 1;
    if (tensor->dtype != DTYPE_F4 || last < 0)
        return false;
    for (uint32_t c = 0; c < tensor->chunk_count; c++) {
        const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + c];
        if (!box_is_in_pairs(catalog, chunk, last) || catalog_layout_of(catalog, chunk))
            return false;
    }
    return true;
}

bool source_has_pairs(const struct source *source)
{
    for (uint32_t i = 0; i < source->catalog->tensor_count; i++)
        if (tensor_is_in_pairs(source->catalog, &source->catalog->tensors[i]))
            return true;
    return false;
}

static void halve_last(const struct catalog *catalog, uint32_t vector, int rank, int64_t *out)
{
    memcpy(out, catalog_vector_at(catalog, vector), (size_t)rank * sizeof(*out));
    out[rank - 1] /= 2;
}

struct pairing {
    struct source *view;
    struct catalog_copying copying;
};

static reshard_status pairs_replace_tensor(void *context, uint32_t index, bool *is_replaced, reshard_error *err)
{
    const struct pairing *pairing = context;
    const struct catalog *from = pairing->copying.from;
    const struct catalog_tensor *tensor = &from->tensors[index];
    struct catalog *into = pairing->view->catalog;
    int64_t shape[RANK_MAX];
    uint32_t made;
    *is_replaced = tensor_is_in_pairs(from, tensor);
    if (!*is_replaced)
        return RESHARD_OK;
    halve_last(from, tensor->shape, tensor->rank, shape);
    reshard_status status = catalog_add_tensor(into, tensor->key, DTYPE_F4_X2, tensor->rank, shape, &made, err);
    if (!status && tensor->path != CATALOG_NONE)
        status = catalog_set_tensor_path(into, made, from->paths + tensor->path, tensor->path_count, err);
    if (status)
        return status;
    into->tensors[made].flags = tensor->flags;
    into->tensors[made].storage_group = tensor->storage_group;
    return RESHARD_OK;
}

/* The chunks of a tensor that was replaced, and what it is tied to. */
static reshard_status pairs_add_chunks(const struct pairing *pairing, uint32_t index, reshard_error *err)
{
    const struct catalog *from = pairing->copying.from;
    const struct catalog_tensor *tensor = &from->tensors[index];
    struct catalog *into = pairing->view->catalog;
    reshard_status status = RESHARD_OK;
    if (tensor->tied_to != CATALOG_NONE)
        into->tensors[pairing->copying.tensors[index]].tied_to = pairing->copying.tensors[tensor->tied_to];
    for (uint32_t c = 0; c < tensor->chunk_count && !status; c++) {
        const struct catalog_chunk *chunk = &from->chunks[tensor->first_chunk + c];
        int64_t start[RANK_MAX], extent[RANK_MAX];
        struct catalog_chunk *made;
        halve_last(from, chunk->start, tensor->rank, start);
        halve_last(from, chunk->extent, tensor->rank, extent);
        status = catalog_add_chunk(into, pairing->copying.tensors[index], start, extent, chunk->object, chunk->offset, chunk->bytes, &made,
                                   err);
        if (status)
            break;
        made->flags = chunk->flags & (uint16_t)~CHUNK_REPLICA;
        made->writer = chunk->writer;
        made->driver_data = chunk->driver_data;
    }
    return status;
}

static reshard_status make_pairs(struct source *view, reshard_error *err)
{
    struct pairing pairing = { .view = view };
    pairing.copying = (struct catalog_copying){ .from = view->stored->catalog,
                                                .warning_count = view->stored->read_warnings,
                                                .context = &pairing,
                                                .replace_tensor = pairs_replace_tensor };
    reshard_status status = catalog_copy(view->catalog, &pairing.copying, err);
    view->stored_items = pairing.copying.items;
    for (uint32_t i = 0; i < view->stored->catalog->tensor_count && !status; i++)
        if (tensor_is_in_pairs(view->stored->catalog, &view->stored->catalog->tensors[i]))
            status = pairs_add_chunks(&pairing, i, err);
    free(pairing.copying.tensors);
    return status;
}

reshard_status source_in_pairs(struct source *stored, struct source **out, reshard_error *err)
{
    return source_view(stored, make_pairs, out, err);
}
