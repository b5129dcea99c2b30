/* SPDX-License-Identifier: Apache-2.0 */
/* Lays NumPy's files out: each tensor is a header and its elements, rows first. */
#include "formats/numpy/numpy_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/crc32.h"
#include "formats/shared/file_tree.h"

#include <inttypes.h>
#include <stdlib.h>

#define ALIGNMENT 64 /* of members, and with that of elements */

struct numpy_target {
    uint32_t *tensors; /* by member, or by object: whose array it is */
    uint32_t count;
    struct zip_plan_member *members; /* npz */
    uint64_t directory_offset, archive_bytes;
};

struct numpy_laying {
    const struct layout_request *request;
    struct target *target;
    struct numpy_target *state;
    struct name_map keys;
    bool is_npz;
};

/* ---- names ---- */

static bool numpy_is_stored(const struct catalog_tensor *tensor)
{
    return !(tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

/*
 * A name of which a beginning is another tensor's file: a file cannot be a folder as well, and numpy.load gives the array of 'a' to who
 * asks an archive for 'a.npy'.
 */
static reshard_status check_apart(const struct numpy_laying *laying, struct str key, reshard_error *err)
{
    for (size_t end = NUMPY_SUFFIX_BYTES; end <= key.size; end++) {
        struct str begin = { key.data, end }, stem = { key.data, end - NUMPY_SUFFIX_BYTES };
        bool is_asked = laying->is_npz ? end == key.size : end < key.size && key.data[end] == '/';
        if (!is_asked || !str_ends_with(begin, NUMPY_SUFFIX) || name_map_find(&laying->keys, stem) == NAME_NONE)
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' cannot be told from the file of '%.*s'", STR_ARG(key), STR_ARG(stem));
        error_hint(err, "reshard_convert_options.renames gives one of them another name");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

/* The name of a tensor's file or member, in the target's arena. */
static reshard_status name_of(struct numpy_laying *laying, struct str key, struct str *out, reshard_error *err)
{
    struct arena *arena = &laying->target->catalog->arena;
    size_t bad;
    char *name = arena_alloc(arena, key.size + NUMPY_SUFFIX_BYTES);
    if (!name)
        return error_set_memory(err);
    if (key.size)
        memcpy(name, key.data, key.size);
    memcpy(name + key.size, NUMPY_SUFFIX, NUMPY_SUFFIX_BYTES);
    *out = (struct str){ name, key.size + NUMPY_SUFFIX_BYTES };
    reshard_status status = laying->is_npz ? store_name_check(*out, err) : file_name_check(*out, err);
    if (!status && laying->is_npz && !str_is_utf8(*out, false, &bad))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "it is not UTF-8");
    if (!status)
        return check_apart(laying, key, err);
    error_prefix(err, "tensor '%.*s' cannot be %s of that name", STR_ARG(key), laying->is_npz ? "a member" : "a file");
    error_hint(err, "reshard_convert_options.renames gives it another name, reshard_convert_options.exclude leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status collect_keys(struct numpy_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    struct numpy_target *state = laying->state;
    state->tensors = array_new(wanted->tensor_count, sizeof(*state->tensors));
    if (!state->tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        bool was_new;
        if (!numpy_is_stored(tensor))
            continue;
        if (name_map_intern(&laying->keys, tensor->key, &was_new) == NAME_NONE)
            return error_set_memory(err);
        if (!was_new)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "two tensors have the key '%.*s'", STR_ARG(tensor->key));
        state->tensors[state->count++] = i;
    }
    return RESHARD_OK;
}

/* ---- arrays ---- */

/* Appends the array's header; *bytes: of its elements. */
static reshard_status npy_array_head(const struct catalog *catalog, uint32_t index, struct buffer *out, uint64_t *bytes, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    bool is_substitute;
    *bytes = catalog_tensor_bytes(catalog, tensor);
    return npy_write_header(tensor->dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape), &is_substitute, out, err);
}

static reshard_status npy_check_type(const struct catalog_tensor *tensor, reshard_error *err)
{
    if (npy_can_hold(tensor->dtype))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': NumPy has no type %s", STR_ARG(tensor->key), dtype_info(tensor->dtype)->name);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    error_hint(err,
               "reshard_convert_options.dtypes 'KEY=f32' writes it as another type, reshard_convert_options.exclude KEY leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

/* What a tensor takes with its header, whose size is told too. */
static reshard_status array_size(const struct numpy_laying *laying, uint32_t tensor, uint64_t *head_bytes, uint64_t *bytes,
                                 reshard_error *err)
{
    struct buffer head = { 0 };
    reshard_status status = npy_check_type(&laying->request->wanted->tensors[tensor], err);
    if (!status)
        status = npy_array_head(laying->target->catalog, tensor, &head, bytes, err);
    *head_bytes = head.size;
    if (!status && !checked_add_u64(*bytes, head.size, bytes))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "an array of 2^64 bytes");
    buffer_release(&head);
    return status;
}

static reshard_status array_chunk(struct numpy_laying *laying, uint32_t number, uint32_t object, uint64_t offset, uint64_t bytes,
                                  reshard_error *err)
{
    struct catalog_chunk *chunk;
    const uint32_t tensor = laying->state->tensors[number];
    const struct catalog_tensor *wanted = &laying->request->wanted->tensors[tensor];
    reshard_status status = RESHARD_OK;
    if (bytes)
        status = catalog_add_chunk(laying->target->catalog, tensor, NULL, NULL, object, offset, bytes, &chunk, err);
    if (!status && bytes) {
        chunk->driver_data = number;
        chunk->flags |= laying->is_npz ? CHUNK_WANT_CRC : 0;
    }
    if (!status && wanted->tied_to != CATALOG_NONE)
        status = target_note_changed(laying->target, NOTE_TIE, wanted->key, err, "written in full, though it shares its bytes with '%.*s'",
                                     STR_ARG(laying->request->wanted->tensors[wanted->tied_to].key));
    return status;
}

/* Numbers and texts would come back as arrays: they are no part of a format that holds arrays alone. */
static reshard_status numpy_note_items(const struct numpy_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->item_count; i++)
        status = target_note_dropped(laying->target, NOTE_NO_PLACE, wanted->items[i].key, err, "NumPy's files hold arrays alone");
    return status;
}

static reshard_status laying_begin(struct numpy_laying *laying, reshard_error *err)
{
    laying->target->driver_state = laying->state = calloc(1, sizeof(*laying->state));
    if (!laying->state)
        return error_set_memory(err);
    reshard_status status = target_add_tensors(laying->request, laying->target, err);
    if (!status)
        status = collect_keys(laying, err);
    return status ? status : numpy_note_items(laying, err);
}

/* ---- npz ---- */

static reshard_status npz_plan(struct numpy_laying *laying, uint64_t *head_bytes, reshard_error *err)
{
    struct numpy_target *state = laying->state;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < state->count; i++) {
        struct zip_plan_member *member = &state->members[i];
        const struct str key = laying->request->wanted->tensors[state->tensors[i]].key;
        status = name_of(laying, key, &member->name, err);
        if (!status)
            status = array_size(laying, state->tensors[i], &head_bytes[i], &member->bytes, err);
    }
    return status ? status
                  : zip_plan(state->members, state->count, ALIGNMENT, &state->directory_offset, &state->archive_bytes, err);
}

reshard_status numpy_lay_out_npz(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct numpy_laying laying = { .request = request, .target = target, .is_npz = true };
    uint64_t *head_bytes = NULL;
    uint32_t object = 0;
    reshard_status status = laying_begin(&laying, err);
    struct numpy_target *state = laying.state;
    if (!status) {
        state->members = array_zeroed(state->count, sizeof(*state->members));
        head_bytes = array_zeroed(state->count, sizeof(*head_bytes));
        status = state->members && head_bytes ? npz_plan(&laying, head_bytes, err) : error_set_memory(err);
    }
    if (!status) /* a target of one file has no name of its own */
        status = catalog_add_object(target->catalog, STR(""), state->archive_bytes, &object, err);
    for (uint32_t i = 0; !status && i < state->count; i++) {
        const struct zip_plan_member *member = &state->members[i];
        status = array_chunk(&laying, i, object, member->payload_offset + head_bytes[i], member->bytes - head_bytes[i], err);
    }
    free(head_bytes);
    name_map_release(&laying.keys);
    return status;
}

/* A member but for its elements: the zip's header and the array's in front, the descriptor behind. */
static reshard_status publish_member(const struct publish_job *job, uint32_t number, uint32_t data_crc, struct buffer *bytes,
                                     reshard_error *err)
{
    struct numpy_target *state = job->target->driver_state;
    struct zip_plan_member *member = &state->members[number];
    struct store_object *object = job->objects[0];
    uint64_t data_bytes;
    buffer_clear(bytes);
    zip_write_header(member, ALIGNMENT, bytes);
    const size_t before = bytes->size;
    reshard_status status = npy_array_head(job->target->catalog, state->tensors[number], bytes, &data_bytes, err);
    if (status || bytes->failed)
        return status ? status : error_set_memory(err);
    member->crc32 = crc32_zip_combine(crc32_zip(0, bytes->data + before, bytes->size - before), data_crc, data_bytes);
    status = store_write_at(object, member->header_offset, bytes->data, bytes->size, err);
    buffer_clear(bytes);
    zip_write_descriptor(member, bytes);
    if (!status && bytes->failed)
        status = error_set_memory(err);
    return status || !bytes->size ? status : store_write_at(object, member->descriptor_offset, bytes->data, bytes->size, err);
}

reshard_status numpy_publish_npz(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    struct numpy_target *state = job->target->driver_state;
    const struct catalog *catalog = job->target->catalog;
    uint32_t *crcs = array_zeroed(state->count, sizeof(*crcs));
    struct buffer bytes = { 0 };
    reshard_status status = crcs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < catalog->chunk_count; i++)
        crcs[catalog->chunks[i].driver_data] = job->chunk_crcs[i];
    for (uint32_t i = 0; !status && i < state->count; i++)
        status = publish_member(job, i, crcs[i], &bytes, err);
    buffer_clear(&bytes);
    if (!status) {
        zip_write_directory(state->members, state->count, state->directory_offset, &bytes);
        status = bytes.failed ? error_set_memory(err)
                              : store_write_at(job->objects[object], state->directory_offset, bytes.data, bytes.size, err);
    }
    buffer_release(&bytes);
    free(crcs);
    return status;
}

/* ---- npy ---- */

reshard_status numpy_lay_out_npy(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct numpy_laying laying = { .request = request, .target = target };
    reshard_status status = laying_begin(&laying, err);
    struct numpy_target *state = laying.state;
    if (!status && !state->count)
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "there is no tensor, and a folder without arrays is no checkpoint");
    for (uint32_t i = 0; !status && i < state->count; i++) {
        uint64_t head_bytes = 0, bytes = 0;
        uint32_t object;
        struct str name;
        status = name_of(&laying, request->wanted->tensors[state->tensors[i]].key, &name, err);
        if (!status)
            status = array_size(&laying, state->tensors[i], &head_bytes, &bytes, err);
        if (!status)
            status = catalog_add_object(target->catalog, name, bytes, &object, err);
        if (!status)
            status = array_chunk(&laying, i, object, head_bytes, bytes - head_bytes, err);
    }
    name_map_release(&laying.keys);
    return status;
}

/* Objects were added in the order of state->tensors. */
reshard_status numpy_publish_npy(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct numpy_target *state = job->target->driver_state;
    struct buffer head = { 0 };
    uint64_t bytes;
    reshard_status status = npy_array_head(job->target->catalog, state->tensors[object], &head, &bytes, err);
    if (!status)
        status = store_write_at(job->objects[object], 0, head.data, head.size, err);
    buffer_release(&head);
    return status;
}

void numpy_close_target(struct target *target)
{
    struct numpy_target *state = target->driver_state;
    if (!state)
        return;
    free(state->tensors);
    free(state->members);
    free(state);
    target->driver_state = NULL;
}
