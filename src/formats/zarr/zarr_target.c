/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr_target.h"

#include <stdlib.h>

#include "base/array.h"

static const struct mcore_flavour megatron_flavour = {
    .dcp = { .store_items = mcore_items_make }, .format = "zarr", .has_common = true, .items_are_files = true
};

static struct zarr_target *state_of(const struct target *target)
{
    return target->driver_state;
}

reshard_status zarr_target_new(const struct layout_request *request, struct target *target, bool is_megatron, reshard_error *err)
{
    struct zarr_target *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    return is_megatron ? mcore_target_init(request, target, &state->dist, &megatron_flavour, err) : RESHARD_OK;
}

void zarr_close_target(struct target *target)
{
    struct zarr_target *state = state_of(target);
    if (!state)
        return;
    for (uint32_t i = 0; i < state->text_count; i++)
        buffer_release(&state->texts[i].bytes);
    free(state->texts);
    mcore_close_target(target); /* frees the state, whose first member is its own */
}

reshard_status zarr_target_add_text(struct target *target, struct str name, struct buffer *text, reshard_error *err)
{
    struct zarr_target *state = state_of(target);
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
reshard_status zarr_publish(const struct publish_job *job, reshard_error *err)
{
    const struct zarr_target *state = state_of(job->target);
    reshard_status status = state->dist.flavour ? mcore_publish(job, err) : RESHARD_OK;
    for (uint32_t i = 0; i < state->text_count && !status; i++)
        status = store_write_at(job->objects[state->texts[i].object], 0, state->texts[i].bytes.data, state->texts[i].bytes.size, err);
    return status;
}
