/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the payload of chunks in their blobs and checks that a blob holds what .metadata says. Blobs are looked at in the order in which
 * they lie on disk; neighbouring small ones come in with one read.
 */
#include "formats/dcp/dcp_source.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define SMALL_BLOB_BYTES 8192
#define SPAN_BYTES 262144

struct resolving {
    struct source *source;
    struct catalog *catalog;
    const uint32_t *order;       /* unresolved chunks by object and offset */
    uint32_t count;
    struct store_object *file;   /* of object */
    struct reader reader;
    uint32_t object;
    struct buffer span;          /* bytes of the file from span_offset on */
    uint64_t span_offset;
    struct buffer scratch;
    bool is_safetensors;
};

/* What a blob turned out to hold. */
struct found {
    struct torch_blob_tensor tensor;
    uint64_t blob_offset;        /* in the file */
    enum codec codec;            /* of the blob */
    uint64_t coded_bytes;
};

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int dcp_resolve_by_place(const void *a, const void *b, void *context)
{
    const struct catalog *catalog = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const struct catalog_chunk *x = &catalog->chunks[i], *y = &catalog->chunks[j];
    if (x->object != y->object)
        return compare_u64(x->object, y->object);
    int order = compare_u64(catalog_chunk_span(catalog, x).offset, catalog_chunk_span(catalog, y).offset);
    return order ? order : compare_u64(i, j);
}

/* ---- reading ---- */

static reshard_status dcp_resolve_open_file(struct resolving *resolving, uint32_t object, reshard_error *err)
{
    if (resolving->file && resolving->object == object)
        return RESHARD_OK;
    store_object_close(resolving->file);
    resolving->file = NULL;
    reshard_status status = dcp_open_object(resolving->source, object, &resolving->file, err);
    if (status)
        return status;
    resolving->object = object;
    resolving->reader = store_object_reader(resolving->file);
    buffer_clear(&resolving->span);
    resolving->is_safetensors = false;
    return RESHARD_OK;
}

/* Reads from the blob of order[index] on as far as small blobs follow closely. */
static reshard_status read_span(struct resolving *resolving, uint32_t index, reshard_error *err)
{
    const struct catalog *catalog = resolving->catalog;
    const struct catalog_chunk *first = &catalog->chunks[resolving->order[index]];
    uint64_t end = first->offset + first->bytes;
    for (uint32_t i = index + 1; i < resolving->count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[resolving->order[i]];
        if (chunk->object != first->object || chunk->bytes > SMALL_BLOB_BYTES || chunk->offset < first->offset || chunk->layout ||
            chunk->offset + chunk->bytes - first->offset > SPAN_BYTES)
            break;
        if (chunk->offset + chunk->bytes > end)
            end = chunk->offset + chunk->bytes;
    }
    buffer_clear(&resolving->span);
    resolving->span.failed = false;
    resolving->span_offset = first->offset;
    return reader_append(&resolving->reader, first->offset, end - first->offset, &resolving->span, err);
}

/* A reader over the blob of order[index], which is not compressed. */
static reshard_status blob_reader(struct resolving *resolving, uint32_t index, struct reader *out, reshard_error *err)
{
    const struct catalog_chunk *chunk = &resolving->catalog->chunks[resolving->order[index]];
    if (chunk->bytes > SMALL_BLOB_BYTES)
        return reader_window(&resolving->reader, chunk->offset, chunk->bytes, out, err);
    bool is_inside = chunk->offset >= resolving->span_offset && chunk->offset - resolving->span_offset <= resolving->span.size &&
                     chunk->bytes <= resolving->span.size - (chunk->offset - resolving->span_offset);
    if (!is_inside) {
        reshard_status status = read_span(resolving, index, err);
        if (status)
            return status;
    }
    const uint8_t *bytes = chunk->bytes ? resolving->span.data + (chunk->offset - resolving->span_offset) : (const uint8_t *)"";
    *out = reader_over_memory(bytes, (size_t)chunk->bytes, resolving->reader.name);
    return RESHARD_OK;
}

/* Whether what begins there is no zip, in a file that is safetensors from its first byte on. */
static reshard_status is_of_safetensors(const struct reader *blob, const struct reader *file, bool *out, reshard_error *err)
{
    static const uint8_t signature[4] = { 'P', 'K', 3, 4 };
    uint8_t head[4];
    *out = false;
    if (blob->size >= sizeof(head)) {
        reshard_status status = reader_read(blob, 0, head, sizeof(head), err);
        if (status || memcmp(head, signature, sizeof(head)) == 0)
            return status;
    }
    return dcp_safetensors_probe(file, out, err);
}

/* The same for a file that holds safetensors. */
static reshard_status find_by_name(struct resolving *resolving, const struct catalog_chunk *chunk, struct found *out, reshard_error *err)
{
    struct dcp_safetensors *state = &dcp_state(resolving->source)->safetensors;
    reshard_status status = dcp_safetensors_load(state, &resolving->reader, chunk->object, &resolving->source->limits, err);
    if (status)
        return status;
    struct str key = resolving->catalog->tensors[chunk->tensor].key;
    const struct dcp_safetensors_entry *entry = dcp_safetensors_find(state, key);
    if (!entry)
        return error_set(err, RESHARD_ERR_FORMAT, "the safetensors header does not have it");
    struct torch_blob_tensor *tensor = &out->tensor;
    *out = (struct found){ .blob_offset = entry->offset };
    *tensor = (struct torch_blob_tensor){ .is_tensor = true, .dtype = entry->dtype, .rank = entry->rank, .payload_bytes = entry->bytes,
                                          .stored_bytes = entry->bytes };
    if (entry->rank)
        memcpy(tensor->shape, entry->shape, (size_t)entry->rank * sizeof(*tensor->shape));
    strides_row_major(tensor->rank, tensor->shape, tensor->strides);
    return RESHARD_OK;
}

static reshard_status find_plain(struct resolving *resolving, uint32_t index, struct found *out, reshard_error *err)
{
    const struct catalog_chunk *chunk = &resolving->catalog->chunks[resolving->order[index]];
    struct reader blob;
    if (resolving->is_safetensors)
        return find_by_name(resolving, chunk, out, err);
    reshard_status status = blob_reader(resolving, index, &blob, err);
    if (!status)
        status = is_of_safetensors(&blob, &resolving->reader, &resolving->is_safetensors, err);
    if (status)
        return status;
    if (resolving->is_safetensors)
        return find_by_name(resolving, chunk, out, err);
    out->blob_offset = chunk->offset;
    out->codec = CODEC_NONE;
    return torch_save_open_tensor(&blob, &resolving->source->limits, &resolving->scratch, &out->tensor, err);
}

static reshard_status find_coded(struct resolving *resolving, const struct chunk_layout *layout, struct found *out, reshard_error *err)
{
    struct dcp_decoded *decoded = NULL;
    struct reader blob;
    out->blob_offset = layout->coded_offset;
    out->coded_bytes = layout->coded_bytes;
    out->codec = layout->codec;
    reshard_status status = dcp_decoded_open(layout->codec, &resolving->reader, layout->coded_offset, layout->coded_bytes,
                                             &resolving->source->limits, &decoded, &blob, err);
    if (!status)
        status = torch_save_open_tensor(&blob, &resolving->source->limits, &resolving->scratch, &out->tensor, err);
    dcp_decoded_free(decoded);
    return status;
}

/* ---- checking ---- */

/* A piece of a flattened tensor: the blob has ones and the length of the run. */
static bool is_flattened(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    return chunk->driver_data != 0 || (layout && layout->flat_count >= 0);
}

static bool shape_fits(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct torch_blob_tensor *blob)
{
    int rank = catalog->tensors[chunk->tensor].rank;
    const int64_t *extent = catalog_vector_at(catalog, chunk->extent);
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int64_t volume = 0, wanted = layout && layout->flat_count >= 0 ? layout->flat_count : box_volume(rank, extent);
    if (!is_flattened(catalog, chunk) && blob->rank == rank)
        return rank == 0 || memcmp(blob->shape, extent, (size_t)rank * sizeof(*extent)) == 0;
    /* A whole cell of a flattened tensor is a plain box, stored with one more axis: ones, then the length. */
    bool is_run = blob->rank > 0;
    for (int axis = 0; axis + 1 < blob->rank; axis++)
        is_run = is_run && blob->shape[axis] == 1;
    if (!is_run || !shape_volume(blob->rank, blob->shape, &volume) || !strides_are_row_major(blob->rank, blob->shape, blob->strides))
        return false;
    if (chunk->driver_data)
        return (int64_t)chunk->driver_data - 1 + wanted <= volume;
    return volume == wanted && (is_flattened(catalog, chunk) || blob->rank == rank + 1);
}

static reshard_status check_found(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct torch_blob_tensor *blob,
                                  bool *shape_differs, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    char start[SHAPE_TEXT_MAX], wanted[SHAPE_TEXT_MAX], stored[SHAPE_TEXT_MAX];
    if (!blob->is_tensor)
        return error_set(err, RESHARD_ERR_FORMAT, "its blob holds no tensor");
    if (blob->flags & TORCH_TENSOR_META)
        return error_set(err, RESHARD_ERR_FORMAT, "its blob holds a tensor without data");
    if (blob->dtype != tensor->dtype)
        return error_set(err, RESHARD_ERR_FORMAT, ".metadata says %s, its blob holds %s", dtype_info(tensor->dtype)->name,
                         dtype_info(blob->dtype)->name);
    *shape_differs = !shape_fits(catalog, chunk, blob);
    if (*shape_differs)
        return error_set(err, RESHARD_ERR_FORMAT, "chunk at %s has shape %s in .metadata, its blob has shape %s",
                         shape_text(tensor->rank, catalog_vector_at(catalog, chunk->start), ", ", start),
                         shape_text(tensor->rank, catalog_vector_at(catalog, chunk->extent), ", ", wanted),
                         shape_text(blob->rank, blob->shape, ", ", stored));
    return RESHARD_OK;
}

/* ---- applying ---- */

/* The blob's extent goes into the chunk. Plain row-major blobs need no layout. */
static reshard_status apply_found(struct catalog *catalog, struct catalog_chunk *chunk, const struct found *found, reshard_error *err)
{
    const struct torch_blob_tensor *blob = &found->tensor;
    uint64_t skip = chunk->driver_data ? (uint64_t)(chunk->driver_data - 1) * dtype_element_bytes(blob->dtype) : 0;
    uint64_t payload = blob->payload_offset;
    reshard_status status = RESHARD_OK;
    if (!strides_are_row_major(blob->rank, blob->shape, blob->strides))
        status = catalog_chunk_set_strides(catalog, chunk, blob->rank, blob->strides, err);
    if (status)
        return status;
    if (blob->codec != CODEC_NONE) {
        const bool has_outer = found->codec != CODEC_NONE;
        const uint64_t coded = payload + (has_outer ? 0 : found->blob_offset);
        status = catalog_chunk_set_codec(catalog, chunk, blob->codec, coded, blob->stored_bytes, err);
        if (status)
            return status;
        if (has_outer) {
            struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
            layout->outer_codec = found->codec;
            layout->outer_offset = found->blob_offset;
            layout->outer_bytes = found->coded_bytes;
        }
        payload = 0;
    } else if (found->codec == CODEC_NONE) {
        payload += found->blob_offset;
    }
    chunk->offset = payload + blob->offset_bytes + skip;
    chunk->bytes = blob->payload_bytes - blob->offset_bytes - skip;
    chunk->flags &= (uint16_t)~CHUNK_UNRESOLVED;
    if (blob->flags & TORCH_TENSOR_SWAP)
        chunk->flags |= CHUNK_SWAP;
    if (blob->flags & TORCH_TENSOR_CONJ)
        chunk->flags |= CHUNK_CONJUGATE;
    if (blob->flags & TORCH_TENSOR_NEG)
        chunk->flags |= CHUNK_NEGATE;
    return RESHARD_OK;
}

reshard_status dcp_resolve_chunk(struct source *source, struct catalog_chunk *chunk, const struct torch_blob_tensor *tensor,
                                 uint64_t blob_offset, reshard_error *err)
{
    const struct found found = { .tensor = *tensor, .blob_offset = blob_offset, .codec = CODEC_NONE };
    bool shape_differs;
    reshard_status status = check_found(source->catalog, chunk, tensor, &shape_differs, err);
    return status ? status : apply_found(source->catalog, chunk, &found, err);
}

static reshard_status find_blob(struct resolving *resolving, uint32_t index, struct found *out, reshard_error *err)
{
    const struct catalog_chunk *chunk = &resolving->catalog->chunks[resolving->order[index]];
    const struct chunk_layout *layout = catalog_layout_of(resolving->catalog, chunk);
    reshard_status status = dcp_resolve_open_file(resolving, chunk->object, err);
    if (status)
        return status;
    status = layout && layout->codec != CODEC_NONE ? find_coded(resolving, layout, out, err) : find_plain(resolving, index, out, err);
    if (status)
        error_shift(err, catalog_chunk_span(resolving->catalog, chunk).offset);
    return status;
}

static reshard_status name_error(const struct resolving *resolving, uint32_t index, reshard_status status, reshard_error *err)
{
    const struct catalog_chunk *chunk = &resolving->catalog->chunks[resolving->order[index]];
    struct str file = resolving->catalog->objects[chunk->object].name;
    error_prefix(err, "'%.*s': blob at %" PRIu64 ": tensor '%.*s'", STR_ARG(file), catalog_chunk_span(resolving->catalog, chunk).offset,
                 STR_ARG(resolving->catalog->tensors[chunk->tensor].key));
    error_object(err, "%.*s", STR_ARG(file));
    return status;
}

/* Reads what every blob of a tensor really holds on axis 0, and lets the repair decide. */
static reshard_status try_repair(struct source *source, uint32_t tensor, bool *repaired, reshard_error *err);

/* The status after a repair was tried: OK, the mismatch that stays (and err with it), or what stopped the try. */
static reshard_status repair_or(struct resolving *resolving, const struct catalog_chunk *chunk, const struct torch_blob_tensor *blob,
                                reshard_status mismatch, reshard_error *err)
{
    reshard_error problem = { 0 };
    bool repaired = false, shape_differs;
    reshard_status status = try_repair(resolving->source, chunk->tensor, &repaired, &problem);
    if (status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_IO) {
        if (err)
            *err = problem;
        return status;
    }
    return !status && repaired ? check_found(resolving->catalog, chunk, blob, &shape_differs, err) : mismatch;
}

#define BLOB_STEPS 64 /* work of opening a blob; any number of chunks may name the same one */

static reshard_status resolve_order(struct resolving *resolving, reshard_error *err)
{
    for (uint32_t i = 0; i < resolving->count; i++) {
        struct catalog_chunk *chunk = &resolving->catalog->chunks[resolving->order[i]];
        struct found found;
        bool shape_differs = false;
        reshard_status status = work_spend_steps(resolving->source->limits.budget, BLOB_STEPS, err);
        if (!status)
            status = find_blob(resolving, i, &found, err);
        if (!status)
            status = check_found(resolving->catalog, chunk, &found.tensor, &shape_differs, err);
        if (shape_differs)
            status = repair_or(resolving, chunk, &found.tensor, status, err);
        if (!status)
            status = apply_found(resolving->catalog, chunk, &found, err);
        if (status)
            return name_error(resolving, i, status, err);
    }
    return RESHARD_OK;
}

static void resolving_release(struct resolving *resolving)
{
    store_object_close(resolving->file);
    buffer_release(&resolving->span);
    buffer_release(&resolving->scratch);
}

static reshard_status try_repair(struct source *source, uint32_t tensor, bool *repaired, reshard_error *err)
{
    const struct catalog_tensor *wrong = &source->catalog->tensors[tensor];
    struct resolving resolving = { .source = source, .catalog = source->catalog };
    int64_t *rows = array_zeroed(wrong->chunk_count, sizeof(*rows));
    reshard_status status = rows ? RESHARD_OK : error_set_memory(err);
    resolving.count = 1;
    for (uint32_t i = 0; i < wrong->chunk_count && !status; i++) {
        uint32_t chunk = wrong->first_chunk + i;
        struct found found;
        resolving.order = &chunk;
        if (source->catalog->chunks[chunk].flags & CHUNK_UNRESOLVED)
            status = find_blob(&resolving, 0, &found, err);
        else
            rows[i] = catalog_vector_at(source->catalog, source->catalog->chunks[chunk].extent)[0];
        if (status || !(source->catalog->chunks[chunk].flags & CHUNK_UNRESOLVED))
            continue;
        const int64_t *shape = catalog_vector_at(source->catalog, wrong->shape);
        bool same_rank = found.tensor.is_tensor && found.tensor.rank == wrong->rank && wrong->rank > 0;
        if (!same_rank || memcmp(found.tensor.shape + 1, shape + 1, (size_t)(wrong->rank - 1) * sizeof(*shape)) != 0)
            status = RESHARD_ERR_FORMAT;
        else
            rows[i] = found.tensor.shape[0];
    }
    if (!status)
        status = dcp_repair_rows(source, tensor, rows, repaired, err);
    resolving_release(&resolving);
    free(rows);
    return status;
}

reshard_status dcp_resolve(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err)
{
    struct resolving resolving = { .source = source, .catalog = source->catalog };
    uint32_t *order = array_new(count, sizeof(*order));
    if (!order)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        if (source->catalog->chunks[chunks[i]].flags & CHUNK_UNRESOLVED)
            order[resolving.count++] = chunks[i];
    }
    qsort_r(order, resolving.count, sizeof(*order), dcp_resolve_by_place, source->catalog);
    resolving.order = order;
    reshard_status status = resolve_order(&resolving, err);
    resolving_release(&resolving);
    free(order);
    return status;
}
