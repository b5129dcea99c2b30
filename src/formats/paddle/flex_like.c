/* SPDX-License-Identifier: Apache-2.0 */
/* A layout taken from another Flex Checkpoint: its folders, files, generation and, where keys and shapes agree, boxes, runs and copies. */
#include "formats/paddle/flex.h"
#include "base/array.h"
#include "formats/paddle/flex_target.h"

#include <stdlib.h>

struct flex_liking {
    const struct layout_request *request;
    struct target *target;
    const struct source *like;
    uint32_t *file_of;               /* by object of the reference; CATALOG_NONE: no data file */
    uint32_t first_file[FLEX_ROLES]; /* by folder; CATALOG_NONE: there is none */
};

const struct source *flex_reference(const struct layout_request *request)
{
    return request->like && request->like->driver->lay_out == flex_lay_out ? request->like : NULL;
}

static enum flex_release release_of(const struct flex_generation *generation)
{
    if (generation->index >= 2)
        return FLEX_RELEASE_3_3;
    if (generation->index == 1)
        return FLEX_RELEASE_3_2;
    return generation->shard < 0 ? FLEX_RELEASE_2_6 : FLEX_RELEASE_3_0;
}

reshard_status flex_like_options(const struct source *like, struct flex_target *state, reshard_error *err)
{
    const struct flex_source *from = flex_state(like);
    reshard_status status = RESHARD_OK;
    int protocol;
    state->release = release_of(&from->parts[0].generation);
    for (uint32_t i = 0; i < like->catalog->object_count && !status; i++) {
        status = flex_data_protocol(like, like->catalog->objects[i].name, &protocol, err);
        if (!status && protocol >= 5)
            state->protocol = 5;
    }
    return status;
}

/* ---- files ---- */

static reshard_status like_add_file(struct flex_liking *liking, uint32_t folder, struct str name, reshard_error *err)
{
    const struct catalog *catalog = liking->like->catalog;
    uint32_t object = name_map_find(&catalog->object_names, name), file;
    uint64_t rank = 0, uid;
    struct str base = str_base_name(name);
    int protocol = 0;
    if (object != NAME_NONE && liking->file_of[object] != CATALOG_NONE)
        return RESHARD_OK;
    enum flex_file_kind kind = flex_file_kind_of(base, &rank, &uid);
    reshard_status status = flex_data_protocol(liking->like, name, &protocol, err);
    if (!status)
        status = flex_target_add_file(liking->target, base, folder, rank < UINT32_MAX ? (uint32_t)rank : 0, &file, err);
    if (status)
        return status;
    struct flex_out_file *added = &flex_target_state(liking->target)->files[file];
    added->is_safetensors = kind == FLEX_SAFETENSORS || protocol == 0;
    if (object != NAME_NONE)
        liking->file_of[object] = file;
    if (liking->first_file[folder] == CATALOG_NONE)
        liking->first_file[folder] = file;
    return RESHARD_OK;
}

/* The data files of a part: those of its uid, and what else its metadata names. */
static reshard_status like_add_files(struct flex_liking *liking, const struct flex_part *part, uint32_t folder, reshard_error *err)
{
    const struct catalog *catalog = liking->like->catalog;
    struct arena arena = { 0 };
    struct flex_listing listing;
    reshard_status status = flex_list(liking->like->store, part->directory, &arena, &listing, err);
    for (size_t i = 0; !status && !part->is_auto && i < listing.count; i++) {
        const struct flex_file *file = &listing.files[i];
        if ((file->kind == FLEX_DISTCP || file->kind == FLEX_SAFETENSORS) && file->uid == part->uid)
            status = like_add_file(liking, folder, file->name, err);
    }
    for (uint32_t i = 0; !status && i < catalog->object_count; i++) {
        struct str name = catalog->objects[i].name;
        if (flex_part_holds(part, name) && liking->file_of[i] == CATALOG_NONE && !str_ends_with(name, ".metadata"))
            status = like_add_file(liking, folder, name, err);
    }
    arena_release(&arena);
    return status;
}

/* Folder for folder, which are there already. */
static reshard_status like_add_parts(struct flex_liking *liking, reshard_error *err)
{
    const struct flex_source *from = flex_state(liking->like);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < from->part_count && !status; i++)
        status = like_add_files(liking, &from->parts[i], i, err);
    return status;
}

/* ---- tensors ---- */

/* The tensor of the reference with that key, if it has the same shape. */
static const struct catalog_tensor *like_find(const struct flex_liking *liking, uint32_t wanted)
{
    const struct catalog *catalog = liking->like->catalog, *ours = liking->request->wanted;
    const struct catalog_tensor *tensor = &ours->tensors[wanted];
    uint32_t index = catalog_find(catalog, tensor->key);
    if (index == CATALOG_NONE)
        return NULL;
    const struct catalog_tensor *found = &catalog->tensors[index];
    return catalog_same_shape(catalog, found, ours, tensor) ? found : NULL;
}

static reshard_status place_chunk(struct flex_liking *liking, uint32_t wanted, const struct catalog_chunk *chunk, reshard_error *err)
{
    const struct catalog *catalog = liking->like->catalog;
    struct catalog *ours = liking->target->catalog;
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int rank = ours->tensors[wanted].rank;
    struct flex_piece piece = { .tensor = wanted,
                                .start = catalog_vector(ours, catalog_vector_at(catalog, chunk->start), rank),
                                .extent = catalog_vector(ours, catalog_vector_at(catalog, chunk->extent), rank),
                                .count = -1,
                                .file = liking->file_of[chunk->object],
                                .replica = flex_chunk_replica(chunk) };
    if (piece.start == CATALOG_NONE || piece.extent == CATALOG_NONE)
        return error_set_memory(err);
    if (flex_target_state(liking->target)->release < FLEX_RELEASE_3_3 && piece.replica > 0)
        return RESHARD_OK; /* an older index cannot say it: one copy is enough */
    if (flex_chunk_is_flattened(chunk)) {
        bool is_run = layout && layout->flat_count >= 0;
        piece.begin = is_run ? layout->flat_begin : 0;
        piece.count = is_run ? layout->flat_count : box_volume(rank, catalog_vector_at(ours, piece.extent));
    }
    return flex_target_add_piece(liking->target, &piece, err);
}

/* A tensor that the reference does not have, whole. */
static reshard_status like_place_new(struct flex_liking *liking, uint32_t wanted, reshard_error *err)
{
    struct catalog *ours = liking->target->catalog;
    const struct catalog_tensor *tensor = &ours->tensors[wanted];
    int64_t zero[RANK_MAX] = { 0 };
    const uint32_t folder = flex_folder_of(liking->target, tensor->key);
    uint32_t file = liking->first_file[folder];
    reshard_status status = RESHARD_OK;
    if (file == CATALOG_NONE)
        status = flex_target_add_rank_file(liking->target, folder, 0, &file, err);
    if (status)
        return status;
    liking->first_file[folder] = file;
    struct flex_piece piece = { .tensor = wanted,
                                .count = -1,
                                .file = file,
                                .replica = -1,
                                .start = catalog_vector(ours, zero, tensor->rank),
                                .extent = tensor->shape };
    return piece.start == CATALOG_NONE ? error_set_memory(err) : flex_target_add_piece(liking->target, &piece, err);
}

static reshard_status like_place_tensors(struct flex_liking *liking, reshard_error *err)
{
    const struct layout_request *request = liking->request;
    reshard_status status = RESHARD_OK;
    uint32_t new_count = 0;
    for (uint32_t i = 0; i < request->wanted->tensor_count && !status; i++) {
        if (!flex_is_stored(&request->wanted->tensors[i]))
            continue;
        const struct catalog_tensor *found = like_find(liking, i);
        uint32_t count = found ? found->chunk_count : 0;
        for (uint32_t j = 0; j < count && !status; j++)
            status = place_chunk(liking, i, &liking->like->catalog->chunks[found->first_chunk + j], err);
        if (count || status)
            continue;
        status = like_place_new(liking, i, err);
        new_count++;
    }
    if (!status && new_count)
        status = target_note_changed(liking->target, NOTE_REFERENCE, (struct str){ 0 }, err,
                                     "%u tensors that the reference does not have in this shape are whole, in its first files", new_count);
    return status;
}

reshard_status flex_place_like(const struct layout_request *request, struct target *target, const struct source *like, reshard_error *err)
{
    struct flex_liking liking = { .request = request, .target = target, .like = like };
    liking.file_of = array_new(like->catalog->object_count, sizeof(*liking.file_of));
    if (!liking.file_of)
        return error_set_memory(err);
    memset(liking.file_of, 0xFF, (size_t)like->catalog->object_count * sizeof(*liking.file_of));
    for (int i = 0; i < FLEX_ROLES; i++)
        liking.first_file[i] = CATALOG_NONE;
    reshard_status status = like_add_parts(&liking, err);
    if (!status)
        status = like_place_tensors(&liking, err);
    free(liking.file_of);
    return status;
}
