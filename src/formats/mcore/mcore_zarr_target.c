/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_zarr.h"

#include "formats/mcore/mcore.h"
#include "formats/mcore/mcore_model_space.h"
#include "formats/mcore/mcore_source.h"
#include "formats/shared/release_classes.h"
#include "formats/zarr/zarr_target.h"

#include <stdlib.h>

const struct format_option mcore_zarr_options[] = {
    ZARR_OPTIONS,
    { "flavour", "plain|megatron", "", "megatron: as Megatron Core up to 0.15; without it as the reference or the source is, else plain" },
    MCORE_ROOT_OPTIONS("megatron: "),
    MCORE_MODULE_STATE_OPTION("megatron: "),
    MEGATRON_RELEASE_OPTION,
    { 0 },
};

/* The state begins with Megatron's, whose flavour is NULL in plain zarr. */
struct mcore_zarr_target {
    struct mcore_target mcore;
    struct zarr_target zarr;
};

static struct mcore_zarr_target *zarr_state(const struct target *target)
{
    return target->driver_state;
}

/* ---- which of the two ---- */

static bool is_megatron_source(const struct source *source)
{
    return source && (source->driver == &format_torch_dist || mcore_zarr_is_megatron(source));
}

static reshard_status choose_flavour(const struct layout_request *request, bool *is_megatron, reshard_error *err)
{
    const char *flavour = layout_option(request, "flavour");
    int format = 2;
    flavour = flavour && flavour[0] ? flavour : NULL;
    if (flavour && strcmp(flavour, "plain") != 0 && strcmp(flavour, "megatron") != 0)
        return zarr_wrong_option("flavour", flavour, err);
    reshard_status status = zarr_format_choose(request, &format, err);
    *is_megatron = flavour ? strcmp(flavour, "megatron") == 0 : is_megatron_source(request->like ? request->like : request->source);
    if (status || !*is_megatron || format == 2)
        return status;
    if (flavour)
        return error_set(err, RESHARD_ERR_USAGE, "Megatron's checkpoints are of zarr format 2");
    *is_megatron = false; /* format 3 was asked for, Megatron was not */
    return RESHARD_OK;
}

const char *mcore_zarr_target_names(const struct layout_request *request)
{
    bool is_megatron;
    return !choose_flavour(request, &is_megatron, NULL) && is_megatron ? "torch_dist" : NULL;
}

/* ---- laying out ---- */

static const struct mcore_flavour megatron_items = {
    .dcp = { .own_files = mcore_own_files, .store_items = mcore_items_make },
    .format = "zarr",
    .has_common = true,
    .items_are_files = true,
};

/* Releases that read Megatron's zarr call the distributed optimizer's copies fp32_param. */
static struct str array_name(const struct target *target, struct str key)
{
    return mcore_stored_key(&mcore_target_state(target)->dcp, &target->catalog->arena, key);
}

static const struct zarr_flavour plain_arrays = { 0 }, megatron_arrays = {
    .cut = ZARR_CUT_SOURCE,
    .arrays_only = true,
    .no_codec = "Megatron's zarr checkpoints are not compressed; flavour=plain can be",
    .no_slash = "chunks of Megatron's checkpoints are called 0.1, not 0/1",
    .array_name = array_name,
};

/* Everything that is no array: the items, each a file, and what lies in the root. */
static reshard_status mcore_zarr_target_lay_out_items(const struct layout_request *request, struct target *target, reshard_error *err)
{
    reshard_status status = dcp_item_files_lay_out(request, target, err);
    return status ? status : mcore_root_lay_out(target, err);
}

reshard_status mcore_zarr_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct zarr_style style;
    bool is_megatron;
    reshard_status status = choose_flavour(request, &is_megatron, err);
    if (!status)
        status = zarr_style_choose(request, is_megatron ? &megatron_arrays : &plain_arrays, &style, err);
    if (status)
        return status;
    struct mcore_zarr_target *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    if (is_megatron)
        status = mcore_target_init(request, target, &state->mcore, &megatron_items, err);
    if (!status)
        status = target_add_tensors(request, target, err);
    if (!status && is_megatron)
        status = mcore_zarr_target_lay_out_items(request, target, err);
    style.folder = state->mcore.dcp.folder;
    return status ? status : zarr_lay_out(request, target, &style, &state->zarr, err);
}

reshard_status mcore_zarr_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    return zarr_state(job->target)->mcore.flavour ? dcp_publish_object(job, object, err) : RESHARD_OK;
}

/* Documents of arrays come last. */
reshard_status mcore_zarr_commit(const struct publish_job *job, reshard_error *err)
{
    const struct mcore_zarr_target *state = zarr_state(job->target);
    reshard_status status = state->mcore.flavour ? mcore_commit(job, err) : RESHARD_OK;
    return status ? status : zarr_commit(job, &state->zarr, err);
}

void mcore_zarr_close_target(struct target *target)
{
    if (!zarr_state(target))
        return;
    zarr_target_release(&zarr_state(target)->zarr);
    mcore_close_target(target);
}
