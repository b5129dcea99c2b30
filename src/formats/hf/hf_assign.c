/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_assign.h"

#include "base/array.h"
#include "formats/hf/hf.h"
#include "formats/hf/hf_folder.h"

#include <inttypes.h>
#include <stdlib.h>

#define STEM_BYTES_MAX 200

void hf_assignment_release(struct hf_assignment *assignment)
{
    free(assignment->files);
    *assignment = (struct hf_assignment){ 0 };
}

static reshard_status hf_assign_add_file(struct hf_assignment *out, struct str name, reshard_error *err)
{
    if (!name.data)
        return error_set_memory(err);
    if (!ARRAY_ROOM(out->files, out->file_count, out->file_capacity))
        return error_set_memory(err);
    out->files[out->file_count++] = name;
    return RESHARD_OK;
}

static struct str printed(char *text)
{
    return text ? str_of(text) : (struct str){ 0 };
}

/* Adapters and parts of pipelines are looked for under names of their own: PEFT's and diffusers' weights keep them. */
static const char *stem_of_source(const struct catalog *source)
{
    static const char *const stems[] = { "adapter_model", "diffusion_pytorch_model" };
    for (uint32_t i = 0; i < source->object_count; i++) {
        struct str base = str_base_name(source->objects[i].name);
        for (size_t s = 0; s < sizeof(stems) / sizeof(stems[0]); s++) {
            const size_t size = strlen(stems[s]);
            if (str_starts_with(base, stems[s]) && base.size > size && (base.data[size] == '.' || base.data[size] == '-'))
                return stems[s];
        }
    }
    return "model";
}

static reshard_status read_stem(const struct layout_request *request, const char **out, reshard_error *err)
{
    const char *stem = layout_option(request, "stem");
    *out = stem ? stem : stem_of_source(request->source_catalog);
    if (!stem)
        return RESHARD_OK;
    if (strlen(stem) > STEM_BYTES_MAX || strchr(stem, '/') || stem[0] == '.' || store_name_check(str_of(stem), NULL))
        return error_set(err, RESHARD_ERR_USAGE, "stem '%s' is no beginning of a file name", stem);
    return RESHARD_OK;
}

/* ---- by size ---- */

/* Gives the pieces of the open file its number, at last. */
static void close_file(struct st_pieces *pieces, uint32_t begin, uint32_t end, uint32_t number)
{
    for (uint32_t i = begin; i < end; i++) {
        if (pieces->items[i].file == UINT32_MAX)
            pieces->items[i].file = number;
    }
}

/* A tensor that is too large gets a file of its own, which is numbered before the one that is still open. */
uint32_t hf_split(struct st_pieces *pieces, uint64_t bytes_max)
{
    uint32_t files = 0, begin = 0;
    uint64_t open_bytes = 0;
    bool is_open = false;
    for (uint32_t i = 0; i < pieces->count; i++) {
        struct st_piece *piece = &pieces->items[i];
        if (bytes_max && piece->bytes > bytes_max) {
            piece->file = files++;
            continue;
        }
        if (bytes_max && open_bytes + piece->bytes > bytes_max) {
            close_file(pieces, begin, i, files++);
            begin = i;
            open_bytes = 0;
        }
        piece->file = UINT32_MAX;
        open_bytes += piece->bytes;
        is_open = true;
    }
    if (is_open)
        close_file(pieces, begin, pieces->count, files++);
    return files;
}

static reshard_status assign_by_size(const struct layout_request *request, struct arena *arena, struct st_pieces *pieces,
                                     struct hf_assignment *out, reshard_error *err)
{
    const char *stem;
    reshard_status status = read_stem(request, &stem, err);
    if (status)
        return status;
    uint32_t files = hf_split(pieces, (uint64_t)(request->max_shard_bytes < 0 ? HF_SHARD_BYTES : request->max_shard_bytes));
    if (files <= 1)
        return hf_assign_add_file(out, printed(arena_printf(arena, "%s.safetensors", stem)), err);
    for (uint32_t i = 0; i < files && !status; i++)
        status =
            hf_assign_add_file(out, printed(arena_printf(arena, "%s-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", stem, i + 1, files)), err);
    if (status)
        return status;
    out->index_name = printed(arena_printf(arena, "%s.safetensors.index.json", stem));
    return out->index_name.data ? RESHARD_OK : error_set_memory(err);
}

/* ---- over ranks ---- */

/* The part of a piece that a rank gets when dimension 0 is cut as torch.chunk cuts it: all equal but the last ones. */
static reshard_status hf_assign_cut_piece(const struct st_piece *piece, uint32_t ranks, struct arena *arena, struct st_pieces *out,
                                reshard_error *err)
{
    int64_t rows = piece->extent[0], step = rows / ranks + (rows % ranks != 0);
    uint64_t row_bytes = piece->bytes / (uint64_t)rows;
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; (int64_t)rank * step < rows && !status; rank++) {
        int64_t *start = arena_array(arena, (size_t)piece->rank, sizeof(*start)),
                *extent = arena_array(arena, (size_t)piece->rank, sizeof(*extent));
        if (!start || !extent)
            return error_set_memory(err);
        memset(start, 0, (size_t)piece->rank * sizeof(*start));
        memcpy(extent, piece->extent, (size_t)piece->rank * sizeof(*extent));
        start[0] = (int64_t)rank * step;
        extent[0] = rows - start[0] < step ? rows - start[0] : step;
        struct st_piece part = *piece;
        part.start = start;
        part.extent = extent;
        part.bytes = row_bytes * (uint64_t)extent[0];
        part.file = rank;
        status = st_pieces_add(out, &part, err);
    }
    return status;
}

/* Rows of packed types may end inside a byte; such tensors, scalars and empty ones stay whole, on the first rank. */
static bool can_be_cut(const struct st_piece *piece)
{
    return piece->rank > 0 && piece->bytes > 0 && dtype_element_bytes(piece->dtype) > 0;
}

static reshard_status assign_over_ranks(const struct layout_request *request, struct arena *arena, struct st_pieces *pieces,
                                        struct hf_assignment *out, reshard_error *err)
{
    struct st_pieces parts = { 0 };
    uint32_t files = 1;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < pieces->count && !status; i++) {
        pieces->items[i].file = 0;
        if (can_be_cut(&pieces->items[i]))
            status = hf_assign_cut_piece(&pieces->items[i], request->ranks, arena, &parts, err);
        else
            status = st_pieces_add(&parts, &pieces->items[i], err);
    }
    st_pieces_release(pieces);
    *pieces = parts;
    for (uint32_t i = 0; i < parts.count; i++)
        files = parts.items[i].file + 1 > files ? parts.items[i].file + 1 : files;
    for (uint32_t i = 0; i < files && !status; i++)
        status = hf_assign_add_file(out, printed(arena_printf(arena, "shard-%05" PRIu32 "-model-00001-of-00001.safetensors", i + 1)), err);
    out->is_dcp = true;
    return status;
}

/* ---- as a reference has it ---- */

struct hf_reference {
    const struct catalog *catalog;
    const struct hf_state *state;
    struct name_map names; /* of the files that hold its tensors, sorted */
};

static int hf_assign_name_order(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    return str_compare(*x, *y);
}

/* Name of an object without the folder; empty if it holds none of the model's own tensors (a consolidated folder's shards). */
static struct str reference_file(const struct hf_reference *reference, uint32_t object)
{
    struct str name = reference->catalog->objects[object].name;
    uint64_t plan, file, total;
    size_t prefix = reference->state->directory.size;
    struct str base = { name.data + prefix, name.size - prefix };
    bool is_shard = hf_parse_shard_name(str_base_name(base), &plan, &file, &total);
    return is_shard == reference->state->is_dcp ? base : (struct str){ 0 };
}

static reshard_status list_reference(struct hf_reference *reference, reshard_error *err)
{
    const struct catalog *catalog = reference->catalog;
    uint32_t count = 0;
    struct str *names = array_new(catalog->object_count, sizeof(*names));
    if (!names)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->object_count; i++) {
        struct str name = reference_file(reference, i);
        if (name.size && str_ends_with(name, ".safetensors"))
            names[count++] = name;
    }
    qsort(names, count, sizeof(*names), hf_assign_name_order);
    bool fits = true;
    for (uint32_t i = 0; i < count && fits; i++)
        fits = name_map_intern(&reference->names, names[i], NULL) != NAME_NONE;
    free(names);
    return fits ? RESHARD_OK : error_set_memory(err);
}

/* The reference's tensor that a piece should be stored like, or NULL. */
static const struct catalog_tensor *reference_tensor(const struct hf_reference *reference, const struct st_piece *piece)
{
    uint32_t index = catalog_find(reference->catalog, piece->name);
    if (index == CATALOG_NONE)
        return NULL;
    const struct catalog_tensor *tensor = &reference->catalog->tensors[index];
    const int64_t *shape = catalog_vector_at(reference->catalog, tensor->shape);
    return tensor->rank == piece->rank && memcmp(shape, piece->extent, (size_t)piece->rank * sizeof(*shape)) == 0 ? tensor : NULL;
}

static reshard_status add_like_chunk(const struct hf_reference *reference, const struct st_piece *piece, const struct catalog_chunk *chunk,
                                     struct st_pieces *out, bool *is_added, reshard_error *err)
{
    struct str name = reference_file(reference, chunk->object);
    uint64_t bytes;
    struct st_piece part = *piece;
    *is_added = false;
    if ((chunk->flags & CHUNK_REPLICA) || !name.size)
        return RESHARD_OK;
    part.file = name_map_find(&reference->names, name);
    if (reference->state->is_dcp) {
        part.start = catalog_vector_at(reference->catalog, chunk->start);
        part.extent = catalog_vector_at(reference->catalog, chunk->extent);
        int64_t volume = box_volume(piece->rank, part.extent);
        if (!dtype_bytes(piece->dtype, (uint64_t)volume, &bytes))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %" PRId64 " elements of %s are no whole number of bytes",
                             STR_ARG(piece->name), volume, dtype_info(piece->dtype)->name);
        part.bytes = bytes;
    }
    *is_added = true;
    return st_pieces_add(out, &part, err);
}

/* The reference's chunks of a tensor; what it does not have, or has in another shape, goes whole to the last file. */
static reshard_status add_like(const struct hf_reference *reference, const struct st_piece *piece, struct st_pieces *out,
                               reshard_error *err)
{
    const struct catalog_tensor *tensor = reference_tensor(reference, piece);
    uint32_t added = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; tensor && i < tensor->chunk_count && !status; i++) {
        bool is_added;
        status = add_like_chunk(reference, piece, &reference->catalog->chunks[tensor->first_chunk + i], out, &is_added, err);
        added += is_added;
    }
    if (status || added)
        return status;
    struct st_piece whole = *piece;
    whole.file = reference->names.count - 1;
    return st_pieces_add(out, &whole, err);
}

/* Names the files that are used, and renumbers the pieces' files to count only those. */
static reshard_status name_like_files(const struct hf_reference *reference, struct arena *arena, struct st_pieces *pieces,
                                      struct hf_assignment *out, reshard_error *err)
{
    uint32_t count = reference->names.count;
    uint32_t *number = array_new(count, sizeof(*number));
    reshard_status status = number ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++)
        number[i] = UINT32_MAX;
    for (uint32_t i = 0; i < pieces->count && !status; i++)
        number[pieces->items[i].file] = 0;
    if (!status && pieces->count == 0)
        number[count - 1] = 0;
    for (uint32_t i = 0; i < count && !status; i++) {
        struct str name = name_map_at(&reference->names, i);
        if (number[i] == UINT32_MAX)
            continue;
        number[i] = out->file_count;
        status = hf_assign_add_file(out, printed(arena_copy(arena, name.data, name.size)), err);
    }
    for (uint32_t i = 0; i < pieces->count && !status; i++)
        pieces->items[i].file = number[pieces->items[i].file];
    free(number);
    return status;
}

static reshard_status assign_like(struct hf_reference *reference, struct arena *arena, struct st_pieces *pieces, struct hf_assignment *out,
                                  reshard_error *err)
{
    struct st_pieces parts = { 0 };
    reshard_status status = list_reference(reference, err);
    if (!status && !reference->names.count && name_map_intern(&reference->names, STR("model.safetensors"), NULL) == NAME_NONE)
        status = error_set_memory(err);
    for (uint32_t i = 0; i < pieces->count && !status; i++)
        status = add_like(reference, &pieces->items[i], &parts, err);
    st_pieces_release(pieces);
    *pieces = parts;
    if (!status)
        status = name_like_files(reference, arena, pieces, out, err);
    if (status)
        return status;
    out->is_dcp = reference->state->is_dcp;
    struct str index_name = reference->state->index_name;
    if (index_name.size)
        out->index_name = printed(arena_copy(arena, index_name.data, index_name.size));
    else if (out->file_count > 1 && !out->is_dcp)
        out->index_name = STR("model.safetensors.index.json");
    return index_name.size && !out->index_name.data ? error_set_memory(err) : RESHARD_OK;
}

reshard_status hf_assign(const struct layout_request *request, struct arena *arena, struct st_pieces *pieces, struct hf_assignment *out,
                         reshard_error *err)
{
    if (!request->like || !request->like->driver_state || layout_has_words(request))
        return request->ranks > 1 ? assign_over_ranks(request, arena, pieces, out, err) : assign_by_size(request, arena, pieces, out, err);
    struct hf_reference reference = { .catalog = request->like->catalog, .state = request->like->driver_state };
    reshard_status status = assign_like(&reference, arena, pieces, out, err);
    name_map_release(&reference.names);
    return status;
}
