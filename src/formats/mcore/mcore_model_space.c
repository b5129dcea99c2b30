/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_model_space.h"

#include "formats/mcore/mcore_stored.h"
#include "parallel/training_args.h"

#define STATE_PREFIX "optimizer.state."
#define EXPERTS ".mlp.experts." /* in keys of weights that belong to the experts' optimizer */
#define MASTER_PREFIX STATE_PREFIX "param."
#define FLAT_MASTER_PREFIX STATE_PREFIX "fp32_param."

bool mcore_is_flattened(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    return state->optimizer_layout == MCORE_MODEL_SPACE && str_starts_with(info->key, STATE_PREFIX) && info->rank < RANK_MAX &&
           !(state->keeps_vectors && info->rank <= 1);
}

struct str mcore_flattened_key(const struct dcp_target *state, struct arena *arena, struct str key)
{
    bool is_master = str_starts_with(key, MASTER_PREFIX), is_expert = memmem(key.data, key.size, EXPERTS, sizeof(EXPERTS) - 1) != NULL;
    size_t prefix = is_master ? sizeof(MASTER_PREFIX) - 1 : 0;
    if (!str_starts_with(key, STATE_PREFIX) || (!is_master && !state->has_chained_keys))
        return key;
    char *text = arena_printf(arena, "%s%s%.*s",
                              !state->has_chained_keys ? ""
                              : is_expert              ? "chained_1."
                                                       : "chained_0.",
                              is_master ? FLAT_MASTER_PREFIX : "", (int)(key.size - prefix), key.data + prefix);
    return text ? str_of(text) : (struct str){ "", 0 };
}

void mcore_flattened_size(const struct catalog *catalog, uint32_t tensor, const int64_t *cell, int64_t *size)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    const int64_t *shape = catalog_vector_at(catalog, info->shape);
    for (int i = 0; i < info->rank; i++)
        size[i] = shape[i] / cell[i];
    size[info->rank] = box_volume(info->rank, cell);
}

void mcore_flattened_box(const struct catalog *catalog, uint32_t tensor, const int64_t *start, const int64_t *extent, int64_t *stored_start,
                        int64_t *stored_extent)
{
    int rank = catalog->tensors[tensor].rank;
    for (int i = 0; i < rank; i++) {
        stored_start[i] = start[i] / extent[i];
        stored_extent[i] = 1;
    }
    stored_start[rank] = 0;
    stored_extent[rank] = box_volume(rank, extent);
}

/* Where experts are one matrix, Megatron stores their flattened state as the matrix has it, in another order than the weights. */
static reshard_status check_experts(struct dcp_placing *placing, struct str key, reshard_error *err)
{
    struct training_args args;
    bool is_expert;
    reshard_status status = torch_dist_is_expert(placing, key, &is_expert, err);
    if (status || !is_expert)
        return status;
    training_args_read(mcore_item_value(placing->request->source->catalog, "args"), &args);
    if (!experts_are_matrices(&args))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "flattened state of experts in one matrix is not written");
    error_hint(err, "optimizer=fully_reshardable stores it");
    return RESHARD_ERR_UNSUPPORTED;
}

reshard_status mcore_place_flattened(struct dcp_placing *placing, uint32_t tensor, reshard_error *err)
{
    const struct catalog *catalog = placing->target->catalog;
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    int64_t shape[RANK_MAX], start[RANK_MAX] = { 0 }, cell[RANK_MAX];
    int axes = torch_dist_prepended_axes(info->key, info->rank), rank = info->rank;
    if (rank)
        memcpy(shape, catalog_vector_at(catalog, info->shape), (size_t)rank * sizeof(*shape));
    if (box_is_empty(rank, shape))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "an empty tensor has no cells; optimizer=fully_reshardable stores it");
    for (int i = 0; i < rank; i++)
        cell[i] = i < axes ? 1 : shape[i];
    reshard_status status = check_experts(placing, info->key, err);
    if (!status)
        status = torch_dist_cut_block(placing, info, axes, true, cell, err);
    while (!status) {
        status = dcp_place_piece(placing, tensor, start, cell, err);
        int axis = rank - 1;
        while (axis >= 0 && (start[axis] += cell[axis]) == shape[axis])
            start[axis--] = 0;
        if (axis < 0)
            break;
    }
    return status;
}
