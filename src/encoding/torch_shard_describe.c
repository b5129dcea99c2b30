/* SPDX-License-Identifier: Apache-2.0 */
/* How a DTensor or ShardedTensor of a file lies on all ranks, so that another checkpoint can be laid out the same. */
#include "encoding/torch_save_parts.h"
#include "encoding/torch_shard.h"

#include "base/checked.h"

#include <inttypes.h>

/* Numbers of an axis or a whole layout: 2, (2,) or (2, 2). */
static bool as_numbers(const struct value *value, int64_t *out, size_t *count)
{
    *count = 1;
    return value && (value_as_int(value, out) || value_as_ints(value, out, TORCH_MESH_RANK_MAX, count));
}

/* A layout of 2.9 and later: axes of one number each, or one shape and one stride for all. */
static bool describe_axes(const struct value *layout, struct torch_mesh *out)
{
    struct value **axes;
    size_t strides;
    const struct value *list = torch_attribute(layout, "axes");
    if (!list)
        return as_numbers(torch_attribute(layout, "shape"), out->shape, &out->rank) &&
               as_numbers(torch_attribute(layout, "stride"), out->stride, &strides) && strides == out->rank;
    if (!value_as_sequence(list, &axes, &out->rank) || out->rank > TORCH_MESH_RANK_MAX)
        return false;
    for (size_t i = 0; i < out->rank; i++) {
        int64_t shape[TORCH_MESH_RANK_MAX], stride[TORCH_MESH_RANK_MAX];
        size_t count;
        if (!as_numbers(torch_attribute(axes[i], "shape"), shape, &count) || count > 1 ||
            !as_numbers(torch_attribute(axes[i], "stride"), stride, &strides) || strides != count)
            return false;
        out->shape[i] = count ? shape[0] : 1; /* an axis of one rank is written as () */
        out->stride[i] = count ? stride[0] : 1;
    }
    return true;
}

/* A mesh up to 2.6: its ranks in a row, and the tensor of them, of which the call that rebuilds it says the shape. */
static bool describe_ranks(const struct value *tensor, const struct value *list, struct torch_mesh *out)
{
    struct value **ranks;
    size_t count;
    int64_t first, member, inner = 1;
    if (tensor->kind != VALUE_CALL || tensor->object->args->list.count < 3 ||
        !value_as_ints(tensor->object->args->list.items[2], out->shape, TORCH_MESH_RANK_MAX, &out->rank) ||
        !value_as_sequence(list, &ranks, &count) || count == 0 || !value_as_int(ranks[0], &first))
        return false;
    for (size_t i = out->rank; i-- > 0;) {
        if (out->shape[i] <= 0 || (out->shape[i] > 1 && ((size_t)inner >= count || !value_as_int(ranks[inner], &member))))
            return false;
        out->stride[i] = out->shape[i] > 1 ? member - first : 1;
        if (!checked_mul_i64(inner, out->shape[i], &inner))
            return false;
    }
    return (size_t)inner == count;
}

static void describe_names(const struct value *names, struct torch_mesh *out)
{
    struct value **items;
    size_t count;
    if (!names || !value_as_sequence(names, &items, &count) || count != out->rank)
        return;
    for (size_t i = 0; i < count; i++)
        if (!value_as_str(items[i], &out->names[i]))
            out->names[i] = (struct str){ 0 };
}

static bool describe_mesh(const struct value *mesh, enum torch_shard_style *style, struct torch_mesh *out)
{
    const struct value *layout = torch_attribute(mesh, "_layout"), *tensor = torch_attribute(mesh, "mesh");
    const struct value *list = torch_attribute(mesh, "_flatten_mesh_list");
    *style = layout ? TORCH_STYLE_2_13 : TORCH_STYLE_2_6;
    if (layout ? !describe_axes(layout, out) : !tensor || !list || !describe_ranks(tensor, list, out))
        return false;
    describe_names(torch_attribute(mesh, layout ? "_mesh_dim_names" : "mesh_dim_names"), out);
    for (size_t i = 0; i < out->rank; i++)
        if (out->shape[i] <= 0 || out->shape[i] > INT32_MAX || out->stride[i] <= 0 || out->stride[i] > INT32_MAX)
            return false;
    return true;
}

/* Whether a mesh of all ranks numbers them 0, 1, …: no other order can be said of a rank by its number alone. */
static bool is_in_order(const struct torch_mesh *root, const struct value *ranks, uint32_t world)
{
    struct torch_mesh plain;
    struct value **items;
    size_t count;
    int64_t total = 1, member;
    torch_mesh_row_major(&plain, root->rank, root->shape);
    for (size_t i = 0; i < root->rank; i++) {
        if (!checked_mul_i64(total, root->shape[i], &total) || (root->shape[i] > 1 && plain.stride[i] != root->stride[i]))
            return false;
    }
    if (total != world)
        return false;
    if (!ranks || !value_as_sequence(ranks, &items, &count))
        return ranks == NULL;
    for (size_t i = 0; i < count; i++)
        if (!value_as_int(items[i], &member) || member != (int64_t)i)
            return false;
    return count == world;
}

static reshard_status describe_meshes(const struct value *mesh, uint64_t at, uint32_t world, struct torch_shard_layout *out,
                                      reshard_error *err)
{
    enum torch_shard_style style;
    if (!mesh || !describe_mesh(mesh, &out->style, &out->mesh))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "device mesh of a DTensor in a form that is not known");
    const struct value *root = torch_attribute(mesh, "_root_mesh");
    if (!root || root->kind == VALUE_NONE)
        root = mesh;
    if (!describe_mesh(root, &style, &out->root))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "device mesh of all ranks in a form that is not known");
    bool is_part = out->style == TORCH_STYLE_2_6 && out->root.rank < 2; /* it may be one: nothing tells of the others */
    if (!is_part && !is_in_order(&out->root, torch_attribute(root, "_flatten_rank_map"), world))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "device mesh that does not number all %" PRIu32 " ranks in order", world);
    return RESHARD_OK;
}

static reshard_status describe_dtensor(const struct value *node, const struct value *state, int rank, uint32_t world,
                                       struct torch_shard_layout *out, reshard_error *err)
{
    struct value **items;
    size_t count;
    const struct value *dict = torch_state_dict(state), *spec = dict ? value_dict_get(dict, "_spec") : NULL;
    const struct value *list = spec ? torch_attribute(spec, "placements") : NULL;
    reshard_status status = describe_meshes(spec ? torch_attribute(spec, "mesh") : NULL, node->offset, world, out, err);
    if (status)
        return status;
    if (!list || !value_as_sequence(list, &items, &count) || count != out->mesh.rank)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "DTensor whose placements are not one for each dimension of its mesh");
    out->kind = TORCH_DTENSOR;
    for (size_t i = 0; !status && i < count; i++) {
        status = torch_parse_placement(items[i], rank, node->offset, &out->placements[i], err);
        if (!status && out->placements[i].kind == PLACE_PARTIAL)
            return error_set_at(err, RESHARD_ERR_UNSUPPORTED, node->offset, "DTensor with a Partial placement");
    }
    return status;
}

/* FSDP cuts the first dimension; a sharding by chunks says which. */
static void describe_sharded(const struct value *state, int rank, struct torch_shard_layout *out)
{
    struct value **members;
    size_t count;
    const struct value *dim = NULL;
    out->kind = TORCH_SHARDED;
    if (value_as_sequence(state, &members, &count) && count > 3)
        dim = torch_attribute(members[3], "dim");
    if (!dim || !value_as_int(dim, &out->dim) || out->dim < 0 || out->dim >= rank)
        out->dim = 0;
}

unsigned torch_shard_flags(const struct value *node)
{
    struct value **args = node->object->args->list.items, **whole, **states;
    size_t count;
    unsigned flags = 0;
    if (value_as_sequence(args[2], &whole, &count) && count > 7 && whole[7]->kind == VALUE_BOOL && whole[7]->boolean)
        flags |= TORCH_TENSOR_REQUIRES_GRAD;
    if (value_as_sequence(args[3], &states, &count) && count == 2 && value_dict_is_true(states[0], "_is_param"))
        flags |= TORCH_TENSOR_PARAMETER;
    return flags;
}

reshard_status torch_shard_describe(const struct value *node, int rank, uint32_t world, struct torch_shard_layout *out, reshard_error *err)
{
    *out = (struct torch_shard_layout){ .kind = TORCH_PLAIN };
    struct value **args = node->object->args->list.items;
    if (str_is(args[1]->global.name, "DTensor"))
        return describe_dtensor(node, args[3], rank, world, out, err);
    describe_sharded(args[3], rank, out);
    return RESHARD_OK;
}
