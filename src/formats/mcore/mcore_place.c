/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks of a torch_dist tensor. Megatron Core stacks the same parameter of all layers into one tensor with a leading axis, and the
 * experts of a layer into another; every rank stores its layers and experts one by one. So do we: a reader that wants one layer reads no
 * other. Where the target is for tensor-parallel ranks, every rank's part is a chunk too (models/megatron.rules says which axis is cut;
 * gated halves are cut one by one). A larger chunk than is wanted is cut along its first axis, and along the next where that is not enough.
 */
#include "formats/mcore/mcore_buckets.h"
#include "formats/mcore/mcore_model_space.h"

#include "base/checked.h"
#include "base/model_data.h"
#include "parallel/partition_rules.h"

#include <inttypes.h>
#include <stdlib.h>

#define CHUNK_BYTES_DEFAULT (UINT64_C(256) << 20)

/* The name parts that stand for a stacked axis where no index follows them. */
static const char *const stacked_parts[] = { "layers", "experts" };

static bool mcore_place_is_number(struct str part)
{
    uint64_t number;
    return part.size > 0 && (str_to_u64(part, &number) || part.data[0] == '0');
}

/* decoder.layers.mlp…: layers; ….experts.experts.…: a list of experts within the layer's experts, whose own name comes once more. */
int mcore_prepended_axes(struct str key, int rank)
{
    struct str rest = key, previous = { 0 };
    int axes = 0;
    while (rest.size) {
        struct str part = str_take(&rest, '.'), after = rest, following = str_take(&after, '.');
        bool is_list = str_is(part, stacked_parts[0]) || (str_is(part, stacked_parts[1]) && str_is(previous, stacked_parts[1]));
        axes += is_list && following.size && !mcore_place_is_number(following);
        previous = part;
    }
    return axes < rank ? axes : rank;
}

reshard_status mcore_chunk_bytes(const struct layout_request *request, uint64_t *out, reshard_error *err)
{
    const char *text = layout_option(request, "chunk-bytes");
    *out = CHUNK_BYTES_DEFAULT;
    if (text && (!str_to_u64(str_of(text), out) || *out == 0))
        return error_set(err, RESHARD_ERR_USAGE, "option chunk-bytes='%s': expected a number of bytes above 0", text);
    return RESHARD_OK;
}

/* Makes the block small enough, cutting axis after axis. */
static void mcore_place_shrink(enum dtype dtype, int rank, int first_axis, uint64_t bytes_max, int64_t *block)
{
    for (int axis = first_axis; axis < rank; axis++) {
        uint64_t bytes = 0;
        (void)dtype_bytes(dtype, (uint64_t)box_volume(rank, block), &bytes);
        if (bytes <= bytes_max || block[axis] <= 1)
            continue;
        uint64_t parts = bytes / bytes_max + (bytes % bytes_max != 0);
        if (parts > (uint64_t)block[axis])
            parts = (uint64_t)block[axis];
        block[axis] = (block[axis] + (int64_t)parts - 1) / (int64_t)parts;
    }
}

/* The partition rules, read once. */
struct mcore_cuts {
    struct arena arena;
    struct partition_rules rules;
};

static reshard_status read_rules(struct mcore_target *state, reshard_error *err)
{
    const struct model_data *data = model_data_find(STR("megatron.rules"));
    if (state->cuts || !data)
        return RESHARD_OK;
    state->cuts = calloc(1, sizeof(*state->cuts));
    return state->cuts ? partition_rules_parse(data->text, &state->cuts->arena, &state->cuts->rules, err) : error_set_memory(err);
}

reshard_status mcore_is_expert(struct mcore_target *state, struct str key, bool *out, reshard_error *err)
{
    struct partition_key found;
    reshard_status status = read_rules(state, err);
    *out = !status && state->cuts && partition_key_read(&state->cuts->rules, key, &found) &&
           partition_rule_has_experts(found.rule);
    return status;
}

void mcore_cuts_free(struct mcore_cuts *cuts)
{
    if (cuts)
        arena_release(&cuts->arena);
    free(cuts);
}

reshard_status mcore_cut_block(struct mcore_target *state, const struct catalog_tensor *tensor, int prepended, bool is_cell,
                                    int64_t *block, reshard_error *err)
{
    const struct mcore_sizes *sizes = &state->sizes;
    struct partition_key key;
    if (sizes->tp <= 1 && sizes->etp <= 1 && !is_cell)
        return RESHARD_OK;
    reshard_status status = read_rules(state, err);
    if (status || !state->cuts || !partition_key_read(&state->cuts->rules, tensor->key, &key) || !key.rule->is_cut ||
        key.rule->is_grouped)
        return status;
    /* The rule counts an axis of experts, which is among those in front. */
    int axis = key.rule->axis + prepended - (key.rule->expert_axis == 0 && prepended > 0);
    int64_t parts = key.rule->group == PARTITION_ETP ? sizes->etp : sizes->tp;
    if (axis < prepended || axis >= tensor->rank || (parts <= 1 && !(is_cell && key.rule->is_gated)))
        return RESHARD_OK;
    parts = parts < 1 ? 1 : parts;
    if (key.rule->is_gated && block[axis] % parts == 0 && block[axis] / parts % 2 == 0)
        parts *= 2;
    if (block[axis] % parts == 0)
        block[axis] /= parts;
    return RESHARD_OK;
}

/* How many blocks cover the shape; 0 if that is more than can be counted. */
static uint64_t block_count(int rank, const int64_t *shape, const int64_t *block)
{
    uint64_t count = 1;
    for (int axis = 0; axis < rank; axis++) {
        uint64_t here = block[axis] ? ((uint64_t)shape[axis] + (uint64_t)block[axis] - 1) / (uint64_t)block[axis] : 1;
        if (here && !checked_mul_u64(count, here, &count))
            return 0;
    }
    return count;
}

/* A tensor that the reference does not place. */
static reshard_status place_blocks(struct dcp_placing *placing, uint32_t index, reshard_error *err)
{
    const struct catalog *wanted = placing->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[index];
    int rank = tensor->rank, axis;
    int64_t shape[RANK_MAX], block[RANK_MAX], start[RANK_MAX] = { 0 }, extent[RANK_MAX];
    uint64_t bytes_max;
    reshard_status status = mcore_chunk_bytes(placing->request, &bytes_max, err);
    if (status)
        return status;
    if (rank)
        memcpy(shape, catalog_vector_at(wanted, tensor->shape), (size_t)rank * sizeof(*shape));
    /* An empty tensor has one chunk. */
    if (box_is_empty(rank, shape))
        return dcp_place_piece(placing, index, start, shape, err);
    int prepended = mcore_prepended_axes(tensor->key, rank);
    for (axis = 0; axis < rank; axis++)
        block[axis] = axis < prepended ? 1 : shape[axis];
    status = mcore_cut_block(mcore_target_state(placing->target), tensor, prepended, false, block, err);
    if (status)
        return status;
    mcore_place_shrink(tensor->dtype, rank, prepended, bytes_max, block);
    uint64_t count = block_count(rank, shape, block);
    if (count == 0 || count > placing->request->limits.chunks)
        return error_set_limit(err, "chunks", count, placing->request->limits.chunks);
    do {
        for (axis = 0; axis < rank; axis++)
            extent[axis] = shape[axis] - start[axis] < block[axis] ? shape[axis] - start[axis] : block[axis];
        status = dcp_place_piece(placing, index, start, extent, err);
        for (axis = rank - 1; axis >= 0 && (start[axis] += block[axis]) >= shape[axis]; axis--)
            start[axis] = 0;
    } while (axis >= 0 && !status);
    return status;
}

reshard_status mcore_place_tensor(struct dcp_placing *placing, uint32_t index, reshard_error *err)
{
    const struct mcore_target *state = mcore_target_state(placing->target);
    bool done;
    if (mcore_is_in_buffers(state, placing->target->catalog, index))
        return RESHARD_OK;
    if (mcore_is_flattened(state, placing->target->catalog, index))
        return mcore_place_flattened(placing, index, err);
    reshard_status status = dcp_place_like(placing, index, &done, err);
    return status || done ? status : place_blocks(placing, index, err);
}
