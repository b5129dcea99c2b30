/* SPDX-License-Identifier: Apache-2.0 */
/* Laying out and publishing in the container of DCP, and how each of Megatron's formats differs there. */
#include "formats/mcore/mcore_target.h"

#include "formats/mcore/mcore_buckets.h"
#include "formats/mcore/mcore_items.h"
#include "formats/mcore/mcore_model_space.h"
#include "formats/mcore/mcore_source.h"
#include "formats/shared/integrity_file.h"
#include "formats/shared/parallel_words.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

/* ---- paths ---- */

/* Megatron's state dicts have the model as a dict of whole names. */
static size_t model_path(struct str key, struct path_part made[DCP_PATH_MADE_MAX])
{
    static const char model[] = "model.";
    if (!str_starts_with(key, model))
        return 0;
    made[0] = (struct path_part){ .kind = PATH_KEY, .key = { key.data, sizeof(model) - 2 } };
    made[1] = (struct path_part){ .kind = PATH_KEY, .key = { key.data + sizeof(model) - 1, key.size - (sizeof(model) - 1) } };
    return 2;
}

/* Those of its FSDP have the state of each parameter so, too. */
static size_t fsdp_path(struct str key, struct path_part made[DCP_PATH_MADE_MAX])
{
    static const char state[] = STATE_KEY_PREFIX;
    size_t count = model_path(key, made), end = key.size;
    while (end > 0 && key.data[end - 1] != '.')
        end--;
    if (count || !str_starts_with(key, state) || end <= sizeof(state))
        return count;
    made[0] = (struct path_part){ .kind = PATH_KEY, .key = STR("optimizer") };
    made[1] = (struct path_part){ .kind = PATH_KEY, .key = STR("state") };
    made[2] = (struct path_part){ .kind = PATH_KEY, .key = { key.data + sizeof(state) - 1, end - sizeof(state) } };
    made[3] = (struct path_part){ .kind = PATH_KEY, .key = { key.data + end, key.size - end } };
    return 4;
}

/* ---- flavours ---- */

const char *const mcore_own_files[] = { MCORE_CONFIG_FILE, MCORE_COMMON_FILE, INTEGRITY_FILE, MCORE_TRACKER, NULL };

static const struct mcore_flavour flavour_torch_dist = {
    .dcp = { .own_files = mcore_own_files,
             .has_no_paths = true,
             .store_items = mcore_items_make,
             .place_tensor = mcore_place_tensor,
             .add_vector_chunks = mcore_add_run_chunks,
             .stored_key = mcore_stored_key,
             .stored_form = mcore_stored_form,
             .attribute = mcore_shapes_attribute,
             .put_attribute = mcore_put_shape },
    .format = "torch_dist",
    .has_common = true,
};

/* The tensors of a job are pieces of Megatron's own, and what is in its common state is no concern of ours. */
static const struct mcore_flavour flavour_as_is = {
    .dcp = { .own_files = mcore_own_files,
             .has_no_paths = true,
             .store_items = mcore_items_keep,
             .attribute = mcore_shapes_attribute,
             .put_attribute = mcore_put_shape },
    .format = "torch_dist",
    .has_common = true,
};

static const struct mcore_flavour flavour_torch_dcp = {
    .dcp = { .own_files = mcore_own_files, .store_items = mcore_items_make, .tensor_path = model_path },
    .format = "torch_dcp",
};

static const struct mcore_flavour flavour_fsdp_dtensor = {
    .dcp = { .own_files = mcore_own_files, .store_items = mcore_items_make, .tensor_path = fsdp_path },
    .format = "fsdp_dtensor",
    .has_group_meta = true,
};

/* ---- targets ---- */

reshard_status mcore_target_init(const struct layout_request *request, struct target *target, struct mcore_target *state,
                                 const struct mcore_flavour *flavour, reshard_error *err)
{
    const struct parallel_sizes words = parallel_sizes_of(request);
    state->flavour = flavour;
    reshard_status status = dcp_target_init(request, target, &state->dcp, &flavour->dcp, err);
    if (words.tp || words.pp) {
        uint64_t ranks = (uint64_t)(words.tp ? words.tp : 1) * (words.pp ? words.pp : 1);
        state->dcp.spread = ranks < UINT32_MAX ? (uint32_t)ranks : UINT32_MAX;
    }
    if (!status)
        status = mcore_root_choose(request, target, err);
    return status ? status : mcore_optimizer_choose(request, target, err);
}

static reshard_status mcore_target_lay_out(const struct layout_request *request, struct target *target, const struct mcore_flavour *flavour,
                              reshard_error *err)
{
    struct mcore_target *state = calloc(1, sizeof(*state));
    reshard_status status = state ? mcore_target_init(request, target, state, flavour, err) : error_set_memory(err);
    if (!status)
        status = dcp_container_lay_out(request, target, err);
    if (!status)
        status = mcore_masters_read_as(target, err);
    /* The items are loaded by now. */
    if (!status && flavour->has_common)
        status = mcore_classes_note(request, target, err);
    return status ? status : mcore_root_lay_out(target, err);
}

reshard_status mcore_lay_out_torch_dist(const struct layout_request *request, struct target *target, reshard_error *err)
{
    static const char *const states[] = { "adapt", "as-is", NULL };
    int is_kept = 0;
    reshard_status status = mcore_option_word(request, "state", states, &is_kept, err);
    return status ? status : mcore_target_lay_out(request, target, is_kept ? &flavour_as_is : &flavour_torch_dist, err);
}

reshard_status mcore_lay_out_torch_dcp(const struct layout_request *request, struct target *target, reshard_error *err)
{
    return mcore_target_lay_out(request, target, &flavour_torch_dcp, err);
}

reshard_status mcore_lay_out_fsdp_dtensor(const struct layout_request *request, struct target *target, reshard_error *err)
{
    return mcore_target_lay_out(request, target, &flavour_fsdp_dtensor, err);
}

reshard_status mcore_commit(const struct publish_job *job, reshard_error *err)
{
    reshard_status status = dcp_commit(job, err);
    return status ? status : mcore_root_commit(job, err);
}

void mcore_close_target(struct target *target)
{
    struct mcore_target *state = mcore_target_state(target);
    if (!state)
        return;
    mcore_buckets_free(state->buckets);
    mcore_cuts_free(state->cuts);
    for (uint32_t i = 0; i < state->text_count; i++)
        free(state->texts[i].text);
    dcp_close_target(target); /* frees the state, whose first member is its own */
}
