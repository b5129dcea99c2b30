/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_target.h"

#include "base/array.h"
#include "base/checked.h"
#include "formats/shared/object_copy.h"

#include <inttypes.h>
#include <stdlib.h>

struct st_text {
    struct buffer bytes; /* written at the start of the object */
    uint32_t object;
    bool is_all; /* of the object */
};

struct st_copy {
    uint32_t object, source_object;
};

struct st_target {
    struct st_text *texts;
    struct st_copy *copies;
    uint32_t text_count, text_capacity, copy_count, copy_capacity;
};

struct st_target *st_target_new(void)
{
    return calloc(1, sizeof(struct st_target));
}

void st_target_free(struct st_target *state)
{
    if (!state)
        return;
    for (uint32_t i = 0; i < state->text_count; i++)
        buffer_release(&state->texts[i].bytes);
    free(state->texts);
    free(state->copies);
    free(state);
}

void st_target_close(struct target *target)
{
    st_target_free(target->driver_state);
    target->driver_state = NULL;
}

/* Takes the text over, also on failure. */
static reshard_status add_text(struct st_target *state, uint32_t object, bool is_all, struct buffer *text, reshard_error *err)
{
    if (!ARRAY_ROOM(state->texts, state->text_count, state->text_capacity)) {
        buffer_release(text);
        return error_set_memory(err);
    }
    state->texts[state->text_count++] = (struct st_text){ *text, object, is_all };
    *text = (struct buffer){ 0 };
    return RESHARD_OK;
}

static reshard_status safetensors_target_add_object(struct target *target, struct str name, uint64_t bytes, uint32_t *out,
                                                    reshard_error *err)
{
    uint32_t count = target->catalog->object_count;
    reshard_status status = catalog_add_object(target->catalog, name, bytes, out, err);
    if (!status && *out < count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "two files of the target would be called '%.*s'", STR_ARG(name));
    return status;
}

reshard_status st_target_add_file(struct target *target, struct str name, struct st_piece *pieces, uint32_t count,
                                  const struct st_metadata *metadata, const struct limits *limits, reshard_error *err)
{
    struct buffer head = { 0 };
    uint64_t data_bytes, total;
    uint32_t object;
    reshard_status status = st_head_write(pieces, count, metadata, limits, &head, &data_bytes, err);
    if (status)
        goto out;
    if (!checked_add_u64(head.size, data_bytes, &total)) {
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "file '%.*s' would be larger than 2^64 bytes", STR_ARG(name));
        goto out;
    }
    status = safetensors_target_add_object(target, name, total, &object, err);
    if (status)
        goto out;
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct st_piece *piece = &pieces[i];
        status = catalog_add_chunk(target->catalog, piece->tensor, piece->start, piece->start ? piece->extent : NULL, object,
                                   head.size + piece->begin, piece->bytes, NULL, err);
    }
    if (status)
        goto out;
    status = add_text(target->driver_state, object, false, &head, err);

out:
    buffer_release(&head);
    return status;
}

reshard_status st_target_add_text(struct target *target, struct str name, struct buffer *text, reshard_error *err)
{
    uint32_t object;
    reshard_status status = safetensors_target_add_object(target, name, text->size, &object, err);
    if (status) {
        buffer_release(text);
        return status;
    }
    return add_text(target->driver_state, object, true, text, err);
}

reshard_status st_target_add_copy(struct target *target, struct str name, const struct source *source, uint32_t source_object,
                                  reshard_error *err)
{
    struct st_target *state = target->driver_state;
    uint32_t object;
    if (!ARRAY_ROOM(state->copies, state->copy_count, state->copy_capacity))
        return error_set_memory(err);
    reshard_status status = safetensors_target_add_object(target, name, source->catalog->objects[source_object].bytes, &object, err);
    if (!status)
        state->copies[state->copy_count++] = (struct st_copy){ object, source_object };
    return status;
}

/* ---- publishing ---- */

/* Writes the texts of an object; of all objects that are nothing but texts, if it is CATALOG_NONE. */
static reshard_status publish_texts(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct st_target *state = job->target->driver_state;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->text_count && !status; i++) {
        const struct st_text *text = &state->texts[i];
        if (object == CATALOG_NONE ? text->is_all : !text->is_all && text->object == object)
            status = store_write_at(job->objects[text->object], 0, text->bytes.data, text->bytes.size, err);
    }
    return status;
}

reshard_status st_target_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct st_target *state = job->target->driver_state;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->copy_count && !status; i++)
        if (state->copies[i].object == object)
            status = object_copy(job, object, state->copies[i].source_object, err);
    return status ? status : publish_texts(job, object, err);
}

reshard_status st_target_commit(const struct publish_job *job, reshard_error *err)
{
    return publish_texts(job, CATALOG_NONE, err);
}
