/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/layer_rules.h"

#include <inttypes.h>

/* "mlp.linear_fc1.weight3" is a weight: what stands behind the last dot, digits left away. */
static struct str layer_role(struct str name)
{
    size_t begin = name.size;
    while (begin > 0 && name.data[begin - 1] != '.')
        begin--;
    while (name.size > begin && name.data[name.size - 1] >= '0' && name.data[name.size - 1] <= '9')
        name.size--;
    return (struct str){ name.data + begin, name.size - begin };
}

/* The axis of the weight that is cut; without the experts' axis. */
static int weight_axis(const struct layer_rule *layer)
{
    switch (layer->kind) {
    case LAYER_COLUMN:
        return layer->is_in_out ? 1 : 0;
    case LAYER_ROW:
        return layer->is_in_out ? 0 : 1;
    case LAYER_HEAD:
        return layer->is_in_out && !layer->is_transposed ? 1 : 0;
    default:
        return 0;
    }
}

reshard_status layer_tensor_rule(const struct layer_rule *layer, struct str name, struct partition_rule *out, reshard_error *err)
{
    const struct str role = layer_role(name);
    const bool is_bias = str_is(role, "bias"), is_weight = str_is(role, "weight");
    const int first = layer->has_expert_axis ? 1 : 0;
    *out =
        (struct partition_rule){ .expert_axis = layer->has_expert_axis ? 0 : -1, .group = layer->is_expert ? PARTITION_ETP : PARTITION_TP };
    if (is_bias && layer->kind == LAYER_VOCABULARY)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': an embedding has no bias", STR_ARG(name));
    out->is_cut = layer->kind != LAYER_WHOLE && (is_weight || (is_bias && layer->kind != LAYER_ROW));
    out->axis = first + (is_weight ? weight_axis(layer) : 0);
    out->is_gated = layer->is_gated && layer->kind == LAYER_COLUMN;
    return RESHARD_OK;
}

/* ---- pieces ---- */

struct layer_adding {
    struct shard_list *list;
    const struct shard *local;
    const struct layer_place *place;
    const struct cut *cut;
};

/* Values of a piece begin at a place of the tensor's, and have its strides where they do not lie in one run. */
static reshard_status piece_values(const struct shard *local, const struct cut_piece *piece, int front, struct shard *out, int64_t *strides,
                                   reshard_error *err)
{
    const uint64_t bytes = dtype_element_bytes(local->dtype);
    const bool is_all = box_volume(local->rank, piece->extent) >= box_volume(local->rank, local->extent);
    int64_t step = 1;
    if (!local->data || is_all)
        return RESHARD_OK;
    if (!bytes)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': halves of elements of less than a byte", STR_ARG(local->key));
    out->data += (uint64_t)shape_ravel(local->rank, local->extent, piece->local_start) * bytes;
    if (box_is_flat_run(local->rank, local->extent, piece->extent))
        return RESHARD_OK;
    for (int i = 0; i < front; i++)
        strides[i] = 0;
    for (int i = local->rank - 1; i >= 0; i--) {
        strides[front + i] = step;
        step *= local->extent[i];
    }
    out->strides = strides;
    return RESHARD_OK;
}

static reshard_status layer_piece_add(const struct cut_piece *piece, void *context, reshard_error *err)
{
    const struct layer_adding *adding = context;
    const struct layer_place *place = adding->place;
    int64_t shape[RANK_MAX], start[RANK_MAX], extent[RANK_MAX], strides[RANK_MAX];
    struct shard shard = *adding->local;
    int axes = place->front_count;
    for (int i = 0; i < axes; i++) {
        shape[i] = place->front[i].count;
        start[i] = place->front[i].index;
        extent[i] = 1;
    }
    for (int i = 0; i < shard.rank; i++, axes++) {
        shape[axes] = adding->cut->shape[i];
        start[axes] = piece->start[i];
        extent[axes] = piece->extent[i];
    }
    reshard_status status = piece_values(adding->local, piece, place->front_count, &shard, strides, err);
    shard.rank = axes;
    shard.shape = shape;
    shard.start = start;
    shard.extent = extent;
    return status ? status : shard_list_add(adding->list, &shard, err);
}

/* A tensor without elements is in no rank's part of a cut: all ranks have all of it. */
static reshard_status layer_empty_add(const struct layer_adding *adding, reshard_error *err)
{
    struct cut_piece piece = { 0 };
    memcpy(piece.extent, adding->cut->shape, (size_t)adding->cut->rank * sizeof(*piece.extent));
    return layer_piece_add(&piece, (void *)adding, err);
}

/* What is malformed in a file is misuse in a call. */
static reshard_status layer_does_not_fit(struct str key, reshard_error *err)
{
    error_prefix(err, "'%.*s'", STR_ARG(key));
    if (err)
        err->code = RESHARD_ERR_USAGE;
    return RESHARD_ERR_USAGE;
}

reshard_status layer_add_shards(struct shard_list *list, const struct layer_rule *layer, struct str name, const struct shard *local,
                                const struct layer_place *place, reshard_error *err)
{
    struct partition_rule rule;
    struct cut cut;
    static const struct training_args no_args;
    const struct cut_context context = { .args = &no_args, .layout = place->layout, .is_gated = true };
    const struct layer_adding adding = { list, local, place, &cut };
    reshard_status status = layer_tensor_rule(layer, name, &rule, err);
    if (!status && rule.is_cut && rule.axis >= local->rank)
        status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': the layer is cut on axis %d of a tensor with %d axes", STR_ARG(local->key),
                           rule.axis, local->rank);
    if (!status && (place->front_count + local->rank > RANK_MAX || (rule.expert_axis >= 0 && local->rank < 1)))
        status =
            error_set(err, RESHARD_ERR_USAGE, "'%.*s': %d axes, and %d in front", STR_ARG(local->key), local->rank, place->front_count);
    if (status)
        return status;
    status = cut_from_local(&context, &rule, local->rank, local->extent, &cut, err);
    if (status)
        return layer_does_not_fit(local->key, err);
    return box_is_empty(cut.rank, cut.shape) ? layer_empty_add(&adding, err)
                                             : cut_pieces(&cut, &place->rank, layer_piece_add, (void *)&adding, err);
}
