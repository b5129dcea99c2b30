/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr_target.h"

#include <stdlib.h>

#include "base/array.h"

void zarr_target_release(struct zarr_target *state)
{
    for (uint32_t i = 0; i < state->text_count; i++)
        buffer_release(&state->texts[i].bytes);
    free(state->texts);
    *state = (struct zarr_target){ 0 };
}

reshard_status zarr_target_add_text(struct zarr_target *state, struct target *target, struct str name, struct buffer *text,
                                    reshard_error *err)
{
    uint32_t object, count = target->catalog->object_count;
    struct buffer taken = *text;
    *text = (struct buffer){ 0 };
    reshard_status status = catalog_add_object(target->catalog, name, taken.size, &object, err);
    if (!status && object < count)
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "two files of the target would be called '%.*s'", STR_ARG(name));
    if (!status && !ARRAY_ROOM(state->texts, state->text_count, state->text_capacity))
        status = error_set_memory(err);
    if (status) {
        buffer_release(&taken);
        return status;
    }
    state->texts[state->text_count++] = (struct zarr_text){ taken, object };
    return RESHARD_OK;
}

/* Documents come last: an array without one is none. */
reshard_status zarr_commit(const struct publish_job *job, const struct zarr_target *state, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->text_count && !status; i++)
        status = store_write_at(job->objects[state->texts[i].object], 0, state->texts[i].bytes.data, state->texts[i].bytes.size, err);
    return status;
}
