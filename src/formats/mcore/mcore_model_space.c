/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_model_space.h"

#include "encoding/pickle_write.h"
#include "formats/mcore/mcore_stored.h"
#include "parallel/state_keys.h"
#include "parallel/training_args.h"

#define EXPERTS ".mlp.experts." /* in keys of weights that belong to the experts' optimizer */
#define MASTER_PREFIX STATE_KEY_PREFIX STATE_MASTER "."
#define FLAT_MASTER_PREFIX STATE_KEY_PREFIX STATE_PLAIN_MASTER "."

bool mcore_is_flattened(const struct mcore_target *state, const struct catalog *catalog, uint32_t tensor)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    return state->optimizer_layout == MCORE_MODEL_SPACE && str_starts_with(info->key, STATE_KEY_PREFIX) && info->rank < RANK_MAX &&
           !(state->keeps_vectors && info->rank <= 1);
}

static const struct mcore_target *state_of(const struct dcp_target *state)
{
    return (const struct mcore_target *)state; /* whose first member it is */
}

/* The key of a master as the run of the reference calls it, if the source's does otherwise; else as it is. "" without memory. */
static struct str with_masters_name(const struct mcore_target *state, struct arena *arena, struct str key)
{
    struct str from = state->masters == MCORE_MASTERS_PARAM ? STR(FLAT_MASTER_PREFIX) : STR(MASTER_PREFIX),
               to = state->masters == MCORE_MASTERS_PARAM ? STR(MASTER_PREFIX) : STR(FLAT_MASTER_PREFIX);
    if (state->masters == MCORE_MASTERS_KEPT || !str_starts_with(key, from.data))
        return key;
    const struct str text = ARENA_JOIN(arena, to, { key.data + from.size, key.size - from.size });
    return text.data ? text : STR("");
}

reshard_status mcore_masters_read_as(struct target *target, reshard_error *err)
{
    const struct mcore_target *state = mcore_target_state(target);
    struct catalog *catalog = target->catalog;
    reshard_status status = RESHARD_OK;
    bool is_renamed = state->masters != MCORE_MASTERS_KEPT && state->flavour->dcp.stored_key;
    for (uint32_t i = 0; i < catalog->tensor_count && is_renamed && !status; i++) {
        struct str key = catalog->tensors[i].key, named = with_masters_name(state, &catalog->arena, key);
        if (!named.size && key.size)
            status = error_set_memory(err);
        else if (named.data != key.data)
            status = target_read_as(target, i, named, err);
    }
    return status;
}

struct str mcore_stored_key(const struct dcp_target *dcp, struct arena *arena, struct str key)
{
    const struct mcore_target *state = state_of(dcp);
    key = with_masters_name(state, arena, key);
    bool is_master = str_starts_with(key, MASTER_PREFIX), is_expert = memmem(key.data, key.size, EXPERTS, sizeof(EXPERTS) - 1) != NULL;
    size_t prefix = is_master ? sizeof(MASTER_PREFIX) - 1 : 0;
    if (state->optimizer_layout != MCORE_MODEL_SPACE || !str_starts_with(key, STATE_KEY_PREFIX) || (!is_master && !state->has_chained_keys))
        return key;
    const char *chain = !state->has_chained_keys ? "" : is_expert ? STATE_KEY_EXPERTS : STATE_KEY_DENSE;
    const struct str text = ARENA_JOIN(arena, str_of(chain), is_master ? STR(FLAT_MASTER_PREFIX) : STR(""),
                                       { key.data + prefix, key.size - prefix });
    return text.data ? text : STR("");
}

bool mcore_stored_form(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                       const int64_t *extent, struct dcp_form *out)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    const int64_t *shape = catalog_vector_at(catalog, info->shape);
    int rank = info->rank;
    if (!mcore_is_flattened(state_of(state), catalog, tensor))
        return false;
    out->rank = rank + 1;
    for (int i = 0; i < rank; i++) {
        out->size[i] = shape[i] / extent[i];
        out->start[i] = start[i] / extent[i];
        out->extent[i] = 1;
    }
    out->start[rank] = 0;
    out->size[rank] = out->extent[rank] = box_volume(rank, extent);
    return true;
}

const char *mcore_shapes_attribute(const struct dcp_target *state)
{
    return state_of(state)->optimizer_layout == MCORE_MODEL_SPACE ? "mcore_data" : NULL;
}

/* {"nd_reformulated_orig_global_shape": shape}, {} if it is stored as it is. */
void mcore_put_shape(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, struct buffer *out)
{
    const struct catalog_tensor *info = &catalog->tensors[tensor];
    pickle_put_opcode(out, PICKLE_EMPTY_DICT);
    if (!mcore_is_flattened(state_of(state), catalog, tensor))
        return;
    pickle_put_opcode(out, PICKLE_MARK);
    pickle_put_str(out, STR("nd_reformulated_orig_global_shape"));
    pickle_put_int_tuple(out, catalog_vector_at(catalog, info->shape), (size_t)info->rank);
    pickle_put_opcode(out, PICKLE_SETITEMS);
}

/* Where experts are one matrix, Megatron stores their flattened state as the matrix has it, in another order than the weights. */
static reshard_status check_experts(struct dcp_placing *placing, struct str key, reshard_error *err)
{
    struct training_args args;
    bool is_expert;
    reshard_status status = mcore_is_expert(mcore_target_state(placing->target), key, &is_expert, err);
    if (status || !is_expert)
        return status;
    const struct catalog_item *item;
    status = layout_item_named(placing->request, "args", &item, err);
    if (status)
        return status;
    training_args_read(item ? item->value : NULL, &args);
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
    int axes = mcore_prepended_axes(info->key, info->rank), rank = info->rank;
    if (rank)
        memcpy(shape, catalog_vector_at(catalog, info->shape), (size_t)rank * sizeof(*shape));
    if (box_is_empty(rank, shape))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "an empty tensor has no cells; optimizer=fully_reshardable stores it");
    for (int i = 0; i < rank; i++)
        cell[i] = i < axes ? 1 : shape[i];
    reshard_status status = check_experts(placing, info->key, err);
    if (!status)
        status = mcore_cut_block(mcore_target_state(placing->target), info, axes, true, cell, err);
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
