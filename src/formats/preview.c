/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/preview.h"

static reshard_status preview_add_chunk(struct catalog *into, const struct catalog *from, const struct catalog_chunk *chunk,
                                        uint32_t tensor, reshard_error *err)
{
    struct catalog_chunk *added;
    const struct chunk_layout *given = catalog_layout_of(from, chunk);
    reshard_status status = catalog_add_chunk(into, tensor, catalog_vector_at(from, chunk->start), catalog_vector_at(from, chunk->extent),
                                              chunk->object, chunk->offset, chunk->bytes, &added, err);
    if (status)
        return status;
    added->writer = chunk->writer;
    if (!given || given->flat_count < 0)
        return RESHARD_OK;
    return catalog_chunk_set_run(into, added, given->flat_begin, given->flat_count, err);
}

/* A tensor without chunks of its own is not stored: it is dropped, or tied to another. */
static reshard_status preview_add_tensor(struct catalog *into, const struct target *target, uint32_t index, reshard_error *err)
{
    const struct catalog *from = target->catalog;
    const struct catalog_tensor *tensor = &from->tensors[index];
    uint32_t added;
    if (!tensor->chunk_count)
        return RESHARD_OK;
    reshard_status status = catalog_add_tensor(into, target_read_key(target, index), tensor->dtype, tensor->rank,
                                               catalog_vector_at(from, tensor->shape), &added, err);
    if (status)
        return status;
    into->tensors[added].flags = tensor->flags & TENSOR_HIDDEN;
    into->tensors[added].tied_to = into->tensors[added].storage_group = CATALOG_NONE;
    for (uint32_t i = 0; i < tensor->chunk_count && !status; i++)
        status = preview_add_chunk(into, from, &from->chunks[tensor->first_chunk + i], added, err);
    return status;
}

static reshard_status preview_read_catalog(struct source *source, reshard_error *err)
{
    const struct target *target = source->driver_state;
    const struct catalog *from = target->catalog;
    reshard_status status = RESHARD_OK;
    source->driver_state = NULL; /* all of it is in the catalog after this */
    source->catalog->format = from->format;
    source->catalog->ranks = from->ranks;
    for (uint32_t i = 0; i < from->object_count && !status; i++) {
        uint32_t same;
        status = catalog_add_object(source->catalog, from->objects[i].name, from->objects[i].bytes, &same, err);
    }
    for (uint32_t i = 0; i < from->tensor_count && !status; i++)
        status = preview_add_tensor(source->catalog, target, i, err);
    return status;
}

/* Tensors may be stored in part only: what was selected of them. */
static const struct format_driver format_preview = {
    .name = "preview",
    .summary = "what a conversion would write",
    .abilities = FORMAT_READS | FORMAT_ALLOWS_HOLES,
    .read_catalog = preview_read_catalog,
};

reshard_status preview_source_open(const struct target *target, const struct open_options *options, struct source **out,
                                   reshard_error *err)
{
    struct store *store;
    *out = NULL;
    reshard_status status = store_new_over(NULL, 0, &store, err);
    return status ? status : source_open_made(&format_preview, store, (void *)(uintptr_t)target, options, out, err);
}

reshard_status preview_refuse(const struct source *source, reshard_error *err)
{
    if (source->driver != &format_preview)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "a preview of what a conversion would write has no values");
    error_hint(err, "reshard_convert() writes them");
    return RESHARD_ERR_UNSUPPORTED;
}
