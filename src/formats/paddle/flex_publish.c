/* SPDX-License-Identifier: Apache-2.0 */
/* The data files: dicts of arrays, and one of the items that are no tensors. */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "formats/paddle/flex.h"
#include "formats/shared/object_copy.h"
#include "formats/shared/safetensors_pieces.h"

#include <stdlib.h>

/* ---- items ---- */

struct plainness {
    const char *why;
};

static bool visit_plain(const struct value *value, void *context)
{
    struct plainness *plainness = context;
    if (value->kind == VALUE_PERSID || value->tensor || value->storage)
        plainness->why = "it has tensors in it";
    else if (value->kind == VALUE_CALL || value->kind == VALUE_NEW || value->kind == VALUE_GLOBAL)
        plainness->why = "it is an object of a class, not plain data";
    return !plainness->why;
}

reshard_status flex_item_check_plain(const struct catalog_item *item, const char **why, reshard_error *err)
{
    struct plainness plainness = { .why = item->value ? NULL : "its value is not known" };
    bool no_memory = false;
    if (item->value)
        value_walk(item->value, item->graph->count, NULL, visit_plain, &plainness, &no_memory);
    *why = plainness.why;
    return no_memory ? error_set_memory(err) : RESHARD_OK;
}

/* ---- files ---- */

struct flex_writing {
    const struct layout_request *request;
    const struct target *target;
    const struct flex_out_file *file;
    int64_t length; /* of the run that was asked for last */
};

static reshard_status member_of_piece(struct flex_writing *file, const struct flex_piece *piece, struct paddle_member *out)
{
    const struct catalog *catalog = file->target->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[piece->tensor];
    struct str folder = flex_target_state(file->target)->folders[file->file->folder].prefix;
    *out = (struct paddle_member){ .key = flex_key_in(folder, tensor->key), .dtype = tensor->dtype, .rank = tensor->rank };
    out->shape = catalog_vector_at(catalog, piece->extent);
    if (flex_target_state(file->target)->names)
        out->name = flex_target_state(file->target)->names[piece->tensor];
    if (piece->count >= 0) {
        file->length = piece->count;
        out->rank = 1;
        out->shape = &file->length;
    }
    return RESHARD_OK;
}

static reshard_status file_member(void *context, uint64_t index, struct paddle_member *out, reshard_error *err)
{
    struct flex_writing *file = context;
    const struct flex_target *state = flex_target_state(file->target);
    const struct catalog_item *item;
    if (index < file->file->piece_count)
        return member_of_piece(file, &state->pieces[file->file->first_piece + index], out);
    const struct flex_out_item *member = &state->items[index - file->file->piece_count];
    reshard_status status = layout_item(file->request, member->wanted, &item, err);
    if (!status)
        *out = (struct paddle_member){ .key = member->key, .value = item->value, .value_graph_count = item->graph->count };
    return status;
}

static struct paddle_content content_of(struct flex_writing *file, const struct layout_request *request, const struct target *target,
                                        uint32_t number)
{
    const struct flex_target *state = flex_target_state(target);
    *file = (struct flex_writing){ .request = request, .target = target, .file = &state->files[number] };
    return (struct paddle_content){ .count = file->file->piece_count + (number == state->item_file ? state->item_count : 0),
                                    .member = file_member,
                                    .context = file,
                                    .protocol = state->protocol };
}

/* Pieces of a safetensors file, in their order; what st_head_write calls a file is the number of the piece. */
static reshard_status list_pieces(struct flex_writing *writing, struct st_piece *pieces, int64_t *lengths, reshard_error *err)
{
    const struct flex_target *state = flex_target_state(writing->target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < writing->file->piece_count && !status; i++) {
        struct paddle_member member;
        int64_t elements;
        status = member_of_piece(writing, &state->pieces[writing->file->first_piece + i], &member);
        if (dtype_info(member.dtype)->safetensors_rank < 0)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': safetensors, which the reference has, has no dtype %s",
                             STR_ARG(member.key), dtype_info(member.dtype)->name);
        lengths[i] = writing->length;
        pieces[i] = (struct st_piece){ .name = member.key, .rank = member.rank, .dtype = member.dtype, .file = i };
        pieces[i].extent = member.shape == &writing->length ? &lengths[i] : member.shape;
        if (!shape_volume(member.rank, pieces[i].extent, &elements) || !dtype_bytes(member.dtype, (uint64_t)elements, &pieces[i].bytes))
            return error_set(err, RESHARD_ERR_LIMIT, "'%.*s': a piece is too large", STR_ARG(member.key));
    }
    return status;
}

static reshard_status plan_safetensors(const struct layout_request *request, const struct target *target, uint32_t file, uint64_t *offsets,
                                       uint64_t *bytes, reshard_error *err)
{
    struct flex_out_file *out = &flex_target_state(target)->files[file];
    struct flex_writing writing = { .request = request, .target = target, .file = out };
    const struct st_metadata none = { 0 };
    struct st_piece *pieces = array_zeroed(out->piece_count, sizeof(*pieces));
    int64_t *lengths = array_zeroed(out->piece_count, sizeof(*lengths));
    uint64_t data = 0;
    reshard_status status = pieces && lengths ? list_pieces(&writing, pieces, lengths, err) : error_set_memory(err);
    if (!status)
        status = st_head_write(pieces, out->piece_count, &none, &request->limits, &out->head, &data, err);
    for (uint32_t i = 0; i < out->piece_count && !status; i++)
        offsets[pieces[i].file] = out->head.size + pieces[i].begin;
    *bytes = out->head.size + data;
    free(pieces);
    free(lengths);
    return status;
}

reshard_status flex_file_plan(const struct layout_request *request, const struct target *target, uint32_t file, uint64_t *offsets,
                              uint64_t *bytes, reshard_error *err)
{
    struct flex_writing state;
    if (flex_target_state(target)->files[file].is_safetensors)
        return plan_safetensors(request, target, file, offsets, bytes, err);
    struct paddle_content content = content_of(&state, request, target, file);
    return paddle_save_plan(&content, offsets, bytes, err);
}

/* ---- publishing ---- */

static reshard_status write_bytes(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    return store_write_at(context, offset, bytes, size, err);
}

reshard_status flex_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct flex_target *state = flex_target_state(job->target);
    struct flex_writing file;
    for (uint32_t i = 0; i < state->file_count; i++) {
        if (state->files[i].object != object)
            continue;
        if (state->files[i].is_safetensors)
            return store_write_at(job->objects[object], 0, state->files[i].head.data, state->files[i].head.size, err);
        struct paddle_content content = content_of(&file, job->request, job->target, i);
        return paddle_save_write(&content, write_bytes, job->objects[object], err);
    }
    for (uint32_t i = 0; i < state->copy_count; i++)
        if (state->copies[i].object == object)
            return object_copy(job, object, state->copies[i].source_object, err);
    return RESHARD_OK;
}

reshard_status flex_commit(const struct publish_job *job, reshard_error *err)
{
    const struct flex_target *state = flex_target_state(job->target);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->folder_count && !status; i++)
        status = flex_metadata_write(job->target, job->request->wanted, i, write_bytes, job->objects[state->folders[i].object], NULL, err);
    return status;
}
