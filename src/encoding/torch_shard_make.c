/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of a DTensor and a ShardedTensor as values that a pickle is written from, as torch itself would have made them. */
#include "encoding/torch_shard.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- values; without memory maker->failed, and NULL goes on ---- */

static struct value *shard_made(struct torch_shard_maker *maker, struct value *value)
{
    maker->failed = maker->failed || !value;
    return value;
}

static struct value *shard_make_list(struct torch_shard_maker *maker, enum value_kind kind, struct value *const *items, size_t count)
{
    struct value **kept = arena_array(&maker->graph->arena, count, sizeof(*kept));
    for (size_t i = 0; i < count; i++)
        maker->failed = maker->failed || !items[i];
    if (!kept || maker->failed)
        return shard_made(maker, NULL);
    if (count)
        memcpy(kept, items, count * sizeof(*kept));
    return shard_made(maker, value_new_list(maker->graph, kind, kept, count));
}

static struct value *make_int(struct torch_shard_maker *maker, int64_t number)
{
    return shard_made(maker, value_new_int(maker->graph, number));
}

static struct value *make_text(struct torch_shard_maker *maker, const char *text)
{
    return shard_made(maker, value_new_str(maker->graph, str_of(text)));
}

static struct value *make_none(struct torch_shard_maker *maker)
{
    return shard_made(maker, value_new(maker->graph, VALUE_NONE));
}

static struct value *make_bool(struct torch_shard_maker *maker, bool boolean)
{
    struct value *value = shard_made(maker, value_new(maker->graph, VALUE_BOOL));
    if (value)
        value->boolean = boolean;
    return value;
}

static struct value *make_global(struct torch_shard_maker *maker, const char *module, const char *name)
{
    return shard_made(maker, value_new_global(maker->graph, module, name));
}

static struct value *make_ints(struct torch_shard_maker *maker, enum value_kind kind, const int64_t *numbers, size_t count)
{
    struct value *items[RANK_MAX > TORCH_MESH_RANK_MAX ? RANK_MAX : TORCH_MESH_RANK_MAX];
    for (size_t i = 0; i < count; i++)
        items[i] = make_int(maker, numbers[i]);
    return shard_make_list(maker, kind, items, count);
}

static struct value *make_call(struct torch_shard_maker *maker, struct value *callable, struct value *const *items, size_t count)
{
    struct value *args = shard_make_list(maker, VALUE_TUPLE, items, count);
    struct value *call = args && callable ? shard_made(maker, value_new(maker->graph, VALUE_CALL)) : shard_made(maker, NULL);
    if (call) {
        call->object->callable = callable;
        call->object->args = args;
    }
    return call;
}

/* An object of a class without arguments; state may be NULL: none. */
static struct value *make_object_of(struct torch_shard_maker *maker, struct value *class_, struct value *state)
{
    struct value *none = shard_make_list(maker, VALUE_TUPLE, NULL, 0), *object = class_ && none ? value_new(maker->graph, VALUE_NEW) : NULL;
    struct value **states = arena_array(&maker->graph->arena, 1, sizeof(*states));
    if (!shard_made(maker, object) || !shard_made(maker, states ? object : NULL))
        return NULL;
    states[0] = state;
    object->object->callable = class_;
    object->object->args = none;
    object->object->states = states;
    object->object->state_count = state ? 1 : 0;
    return object;
}

static struct value *make_object(struct torch_shard_maker *maker, const char *module, const char *name, struct value *state)
{
    return make_object_of(maker, make_global(maker, module, name), state);
}

/* A dict of names and values in turn, as many as there are. */
struct member {
    const char *name;
    struct value *value;
};

static struct value *shard_make_dict(struct torch_shard_maker *maker, const struct member *members, size_t count)
{
    struct value *items[32];
    for (size_t i = 0; i < count; i++) {
        items[2 * i] = make_text(maker, members[i].name);
        items[2 * i + 1] = members[i].value;
    }
    return shard_make_list(maker, VALUE_DICT, items, 2 * count);
}

#define MEMBERS(maker, ...)                                                                              \
    shard_make_dict(maker, (const struct member[]){ __VA_ARGS__ }, sizeof((const struct member[]){ __VA_ARGS__ }) / sizeof(struct member))

/* ---- what both kinds say ---- */

static struct value *make_dtype(struct torch_shard_maker *maker, enum dtype dtype)
{
    return make_global(maker, "torch", dtype_info(dtype)->torch_name);
}

static struct value *make_layout(struct torch_shard_maker *maker)
{
    struct value *name = make_text(maker, "torch.strided");
    return make_call(maker, make_global(maker, "torch.serialization", "_get_layout"), &name, 1);
}

static struct value *make_device(struct torch_shard_maker *maker)
{
    struct value *name = make_text(maker, "cpu");
    return make_call(maker, make_global(maker, "torch", "device"), &name, 1);
}

static struct value *make_size(struct torch_shard_maker *maker, int rank, const int64_t *shape)
{
    struct value *tuple = make_ints(maker, VALUE_TUPLE, shape, (size_t)rank);
    return make_call(maker, make_global(maker, "torch", "Size"), &tuple, 1);
}

/* torch._tensor._rebuild_from_type_v2(_rebuild_wrapper_subclass, class, (class, type, size, strides, …), state) */
static struct value *make_wrapper(struct torch_shard_maker *maker, struct value *class_, enum dtype dtype, int rank, const int64_t *shape,
                                  struct value *state)
{
    int64_t strides[RANK_MAX];
    strides_row_major(rank, shape, strides);
    struct value *inner[] = { class_,
                              make_dtype(maker, dtype),
                              make_ints(maker, VALUE_TUPLE, shape, (size_t)rank),
                              make_ints(maker, VALUE_TUPLE, strides, (size_t)rank),
                              make_int(maker, 0),
                              make_layout(maker),
                              make_device(maker),
                              make_bool(maker, false) };
    struct value *args[] = { make_global(maker, "torch._utils", "_rebuild_wrapper_subclass"), class_,
                             shard_make_list(maker, VALUE_TUPLE, inner, 8), state };
    return make_call(maker, make_global(maker, "torch._tensor", "_rebuild_from_type_v2"), args, 4);
}

/* ---- meshes ---- */

static struct value *make_names(struct torch_shard_maker *maker, const struct torch_mesh *mesh)
{
    struct value *items[TORCH_MESH_RANK_MAX];
    if (mesh->rank == 0 || !mesh->names[0].data)
        return make_none(maker);
    for (size_t i = 0; i < mesh->rank; i++)
        items[i] = shard_made(maker, value_new_str(maker->graph, mesh->names[i]));
    return shard_make_list(maker, VALUE_TUPLE, items, mesh->rank);
}

static struct value *make_coordinate(struct torch_shard_maker *maker, const struct torch_mesh *mesh, enum value_kind kind)
{
    int64_t coordinate[TORCH_MESH_RANK_MAX];
    for (size_t i = 0; i < mesh->rank; i++)
        coordinate[i] = maker->number / mesh->stride[i] % mesh->shape[i];
    return make_ints(maker, kind, coordinate, mesh->rank);
}

/* The ranks of the mesh that this rank is in, in its order. NULL without memory; the caller frees it. */
static int32_t *list_ranks(struct torch_shard_maker *maker, const struct torch_mesh *mesh, size_t *out)
{
    int64_t base = maker->number;
    size_t total = 1;
    for (size_t i = 0; i < mesh->rank; i++) {
        base -= maker->number / mesh->stride[i] % mesh->shape[i] * mesh->stride[i];
        total *= (size_t)mesh->shape[i];
    }
    int32_t *ranks = array_zeroed(total, sizeof(*ranks));
    for (size_t i = 0; ranks && i < total; i++) {
        size_t rest = i;
        int64_t rank = base;
        for (size_t axis = mesh->rank; axis-- > 0; rest /= (size_t)mesh->shape[axis])
            rank += (int64_t)(rest % (size_t)mesh->shape[axis]) * mesh->stride[axis];
        ranks[i] = (int32_t)rank;
    }
    *out = total;
    maker->failed = maker->failed || !ranks;
    return ranks;
}

static struct value *make_ranks(struct torch_shard_maker *maker, const int32_t *ranks, size_t count, enum value_kind kind)
{
    struct value **items = arena_array(&maker->graph->arena, count, sizeof(*items));
    for (size_t i = 0; items && i < count; i++)
        items[i] = make_int(maker, ranks[i]);
    return items && !maker->failed ? shard_made(maker, value_new_list(maker->graph, kind, items, count)) : shard_made(maker, NULL);
}

/* DeviceMesh as 2.6 and earlier have it: the tensor of its own ranks. */
static struct value *make_old_mesh(struct torch_shard_maker *maker, const struct torch_mesh *mesh)
{
    size_t count;
    int32_t *ranks = list_ranks(maker, mesh, &count);
    struct value *tensor = ranks ? maker->put_integers(maker->context, (int)mesh->rank, mesh->shape, ranks) : NULL;
    struct value *list = ranks ? make_ranks(maker, ranks, count, VALUE_TUPLE) : NULL;
    free(ranks);
    struct value *state = MEMBERS(maker, { "device_type", make_text(maker, "cpu") }, { "mesh", shard_made(maker, tensor) },
                                  { "mesh_dim_names", make_names(maker, mesh) }, { "_flatten_mesh_list", shard_made(maker, list) },
                                  { "_thread_id", make_none(maker) }, { "_dim_group_infos", shard_make_list(maker, VALUE_LIST, NULL, 0) },
                                  { "_coordinate_on_dim", make_coordinate(maker, mesh, VALUE_LIST) }, { "_hash", make_none(maker) });
    return make_object(maker, "torch.distributed.device_mesh", "DeviceMesh", state);
}

/* An axis of one rank has no numbers. */
static struct value *make_axes(struct torch_shard_maker *maker, const struct torch_mesh *mesh)
{
    struct value *axes[TORCH_MESH_RANK_MAX];
    for (size_t i = 0; i < mesh->rank; i++)
        axes[i] = make_object(maker, "torch.distributed._mesh_layout", "_FlatLayout",
                              MEMBERS(maker, { "shape", make_ints(maker, VALUE_TUPLE, &mesh->shape[i], mesh->shape[i] > 1) },
                                      { "stride", make_ints(maker, VALUE_TUPLE, &mesh->stride[i], mesh->shape[i] > 1) }));
    return make_object(maker, "torch.distributed._mesh_layout", "_MeshLayout",
                       MEMBERS(maker, { "axes", shard_make_list(maker, VALUE_TUPLE, axes, mesh->rank) }));
}

/* The tensor 0, 1, … of all ranks, and the same as a tuple. */
static struct value *make_rank_map(struct torch_shard_maker *maker, struct value **as_tuple)
{
    const int64_t shape = maker->world;
    struct torch_mesh all;
    size_t count;
    torch_mesh_row_major(&all, 1, &shape);
    int32_t *ranks = list_ranks(maker, &all, &count);
    *as_tuple = ranks ? make_ranks(maker, ranks, count, VALUE_TUPLE) : NULL;
    if (ranks && !maker->rank_map)
        maker->rank_map = shard_made(maker, maker->put_integers(maker->context, 1, &shape, ranks));
    free(ranks);
    return maker->rank_map;
}

/*
 * A job names its process groups in the order that it makes them: "0" is that of all ranks, then come those of the root's axes, one after
 * the other. What loads the file makes the same mesh first, so that its groups have the same names.
 */
static int64_t group_number(const struct torch_shard_maker *maker, const struct torch_mesh *root, size_t axis)
{
    int64_t before = 1, index = 0;
    if (root->shape[axis] == maker->world)
        return 0;
    for (size_t i = 0; i < axis; i++)
        before += root->shape[i] == maker->world ? 0 : maker->world / root->shape[i];
    for (size_t i = 0; i < root->rank; i++) { /* the axis changes places with the last, which the groups then run along */
        size_t swapped = i == axis ? root->rank - 1 : i;
        if (i < root->rank - 1)
            index = index * root->shape[swapped] + maker->number / root->stride[swapped] % root->shape[swapped];
    }
    return before + index;
}

static struct value *make_group_names(struct torch_shard_maker *maker, const struct torch_mesh *mesh, const struct torch_mesh *root)
{
    struct value *names[TORCH_MESH_RANK_MAX];
    for (size_t i = 0; i < mesh->rank; i++) {
        char text[24];
        size_t axis = 0;
        while (axis + 1 < root->rank && (root->stride[axis] != mesh->stride[i] || root->shape[axis] != mesh->shape[i]))
            axis++;
        snprintf(text, sizeof(text), "%" PRId64, group_number(maker, root, axis));
        names[i] = make_text(maker, text);
    }
    return shard_make_list(maker, VALUE_LIST, names, mesh->rank);
}

static struct value *make_new_mesh(struct torch_shard_maker *maker, const struct torch_mesh *mesh, const struct torch_mesh *root,
                                   struct value *above)
{
    struct value *ranks, *map = make_rank_map(maker, &ranks);
    struct value *state = MEMBERS(maker, { "_device_type", make_text(maker, "cpu") }, { "_layout", make_axes(maker, mesh) },
                                  { "_rank_map", map }, { "_mesh_dim_names", make_names(maker, mesh) },
                                  { "_root_mesh", above ? above : make_none(maker) }, { "_flatten_rank_map", ranks },
                                  { "_thread_id", make_none(maker) }, { "_flatten_mapping", shard_make_list(maker, VALUE_DICT, NULL, 0) },
                                  { "_dim_group_names", make_group_names(maker, mesh, root) }, { "_rank", make_int(maker, maker->number) },
                                  { "_coordinate_on_dim", make_coordinate(maker, mesh, VALUE_TUPLE) }, { "_hash", make_none(maker) });
    return make_object(maker, "torch.distributed.device_mesh", "DeviceMesh", state);
}

static bool mesh_equal(const struct torch_mesh *a, const struct torch_mesh *b)
{
    bool is_equal = a->rank == b->rank;
    for (size_t i = 0; is_equal && i < a->rank; i++)
        is_equal = a->shape[i] == b->shape[i] && a->stride[i] == b->stride[i] && str_equal(a->names[i], b->names[i]);
    return is_equal;
}

static struct value *mesh_node(struct torch_shard_maker *maker, const struct torch_mesh *mesh, const struct torch_mesh *root,
                               enum torch_shard_style style)
{
    for (uint32_t i = 0; i < maker->mesh_count; i++)
        if (maker->meshes[i].style == style && mesh_equal(&maker->meshes[i].mesh, mesh))
            return maker->meshes[i].node;
    struct value *above = style == TORCH_STYLE_2_13 && !mesh_equal(mesh, root) ? mesh_node(maker, root, root, style) : NULL;
    struct value *node = style == TORCH_STYLE_2_6 ? make_old_mesh(maker, mesh) : make_new_mesh(maker, mesh, root, above);
    if (!ARRAY_ROOM(maker->meshes, maker->mesh_count, maker->mesh_capacity))
        return shard_made(maker, NULL);
    maker->meshes[maker->mesh_count++] = (struct torch_made_mesh){ *mesh, style, node };
    return node;
}

/* ---- DTensor ---- */

static struct value *make_placement(struct torch_shard_maker *maker, const struct torch_placement *placement)
{
    static const char module[] = "torch.distributed.tensor.placement_types";
    if (placement->kind == PLACE_REPLICATE)
        return make_object(maker, module, "Replicate", shard_make_dict(maker, NULL, 0)); /* made in C++: without a state it is not set up */
    struct value *dim = make_int(maker, placement->dim);
    if (placement->kind == PLACE_SHARD)
        return make_object(maker, module, "Shard", MEMBERS(maker, { "dim", dim }));
    return make_object(maker, module, "_StridedShard",
                       MEMBERS(maker, { "dim", dim }, { "split_factor", make_int(maker, placement->split_factor) }));
}

/* Which axes of the mesh cut which dimension, in order; None where a strided one says it otherwise. */
static struct value *shard_make_order(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, int rank)
{
    struct value *entries[RANK_MAX];
    size_t count = 0;
    for (int dim = 0; dim < rank; dim++) {
        int64_t axes[TORCH_MESH_RANK_MAX];
        size_t axis_count = 0;
        for (size_t i = 0; i < layout->mesh.rank; i++) {
            if (layout->placements[i].kind == PLACE_STRIDED)
                return make_none(maker);
            if (layout->placements[i].kind == PLACE_SHARD && layout->placements[i].dim == dim)
                axes[axis_count++] = (int64_t)i;
        }
        if (axis_count == 0)
            continue;
        struct value *args[] = { make_int(maker, dim), make_ints(maker, VALUE_TUPLE, axes, axis_count) };
        struct value *entry = make_object(maker, "torch.distributed.tensor._dtensor_spec", "ShardOrderEntry", NULL);
        struct value *tuple = shard_make_list(maker, VALUE_TUPLE, args, 2);
        if (entry && tuple)
            entry->object->args = tuple;
        entries[count++] = entry;
    }
    return shard_make_list(maker, VALUE_TUPLE, entries, count);
}

static struct value *make_spec(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, enum dtype dtype, int rank,
                               const int64_t *shape)
{
    static const char module[] = "torch.distributed.tensor._dtensor_spec";
    struct value *placements[TORCH_MESH_RANK_MAX];
    int64_t strides[RANK_MAX];
    bool is_strided = false;
    strides_row_major(rank, shape, strides);
    for (size_t i = 0; i < layout->mesh.rank; i++) {
        placements[i] = make_placement(maker, &layout->placements[i]);
        is_strided = is_strided || layout->placements[i].kind == PLACE_STRIDED;
    }
    struct value *meta = make_object(maker, module, "TensorMeta", NULL);
    struct value *facts[] = { make_size(maker, rank, shape), make_ints(maker, VALUE_TUPLE, strides, (size_t)rank),
                              make_dtype(maker, dtype) };
    struct value *tuple = shard_make_list(maker, VALUE_TUPLE, facts, 3);
    if (meta && tuple)
        meta->object->args = tuple;
    const struct member members[] = { { "mesh", mesh_node(maker, &layout->mesh, &layout->root, layout->style) },
                                      { "placements", shard_make_list(maker, VALUE_TUPLE, placements, layout->mesh.rank) },
                                      { "tensor_meta", meta },
                                      { "_hash", make_none(maker) },
                                      { "shard_order", shard_make_order(maker, layout, rank) },
                                      { "use_strided_shard_as_shard_order", make_bool(maker, is_strided) } };
    return make_object(maker, module, "DTensorSpec", shard_make_dict(maker, members, layout->style == TORCH_STYLE_2_6 ? 4 : 6));
}

static struct value *make_dtensor(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, enum dtype dtype, int rank,
                                  const int64_t *shape, struct value *local)
{
    struct value *spec = make_spec(maker, layout, dtype, rank, shape);
    struct value *state[] = { make_none(maker), MEMBERS(maker, { "_local_tensor", local }, { "_spec", spec }) };
    return make_wrapper(maker, make_global(maker, "torch.distributed.tensor", "DTensor"), dtype, rank, shape,
                        shard_make_list(maker, VALUE_TUPLE, state, 2));
}

/* ---- ShardedTensor ---- */

static struct value *make_remote_device(struct torch_shard_maker *maker, uint32_t number)
{
    return make_object(maker, "torch.distributed.remote_device", "_remote_device",
                       MEMBERS(maker, { "_worker_name", make_none(maker) }, { "_rank", make_int(maker, number) },
                               { "_device", make_device(maker) }));
}

/* Classes with slots have a pair as state. */
static struct value *make_slots(struct torch_shard_maker *maker, const char *module, const char *name, struct value *members)
{
    struct value *pair[] = { make_none(maker), members };
    return make_object(maker, module, name, shard_make_list(maker, VALUE_TUPLE, pair, 2));
}

static struct value *make_shard_metadata(struct torch_shard_maker *maker, int rank, const int64_t *start, const int64_t *extent,
                                         struct value *device)
{
    return make_slots(maker, "torch.distributed._shard.metadata", "ShardMetadata",
                      MEMBERS(maker, { "shard_offsets", make_ints(maker, VALUE_LIST, start, (size_t)rank) },
                              { "shard_sizes", make_ints(maker, VALUE_LIST, extent, (size_t)rank) }, { "placement", device }));
}

static struct value *make_properties(struct torch_shard_maker *maker, enum dtype dtype)
{
    static const char module[] = "torch.distributed._shard.sharded_tensor.metadata";
    struct value *zero = make_int(maker, 0);
    struct value *state[] = { make_dtype(maker, dtype), make_layout(maker), make_bool(maker, false),
                              make_call(maker, make_global(maker, module, "MEM_FORMAT_ENCODING"), &zero, 1), make_bool(maker, false) };
    return make_object(maker, module, "TensorProperties", shard_make_list(maker, VALUE_TUPLE, state, 5));
}

static struct value *make_group_state(struct torch_shard_maker *maker, struct value *class_)
{
    struct value *args[] = { class_, make_text(maker, "ProcessGroupState") };
    struct value *state_class = make_call(maker, make_global(maker, "builtins", "getattr"), args, 2);
    struct value *number = make_int(maker, maker->number);
    return make_object_of(maker, state_class,
                          MEMBERS(maker, { "local_rank", number }, { "global_rank", number },
                                  { "local_world_size", make_int(maker, maker->world) },
                                  { "global_world_size", make_int(maker, maker->world) }));
}

/* All shards of the whole that are not empty, with the devices of their ranks. */
struct all_shards {
    struct value **metadata, **devices;
    size_t count;
};

static bool list_shards(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, int rank, const int64_t *shape,
                        struct all_shards *out)
{
    int64_t start[RANK_MAX], extent[RANK_MAX];
    out->metadata = arena_array(&maker->graph->arena, maker->world, sizeof(*out->metadata));
    out->devices = arena_array(&maker->graph->arena, maker->world, sizeof(*out->devices));
    maker->failed = maker->failed || !out->metadata || !out->devices;
    for (uint32_t i = 0; !maker->failed && i < maker->world; i++) {
        maker->failed = torch_layout_box(layout, i, maker->world, rank, shape, start, extent, NULL) != RESHARD_OK;
        if (maker->failed || box_is_empty(rank, extent))
            continue;
        out->devices[out->count] = make_remote_device(maker, i);
        out->metadata[out->count] = make_shard_metadata(maker, rank, start, extent, out->devices[out->count]);
        out->count++;
    }
    return !maker->failed;
}

/* As torch finds it from the shards: in chunks if every rank has one, else a list. */
static struct value *make_sharding(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, const struct all_shards *all)
{
    if (all->count == maker->world)
        return make_object(maker, "torch.distributed._shard.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec",
                           MEMBERS(maker, { "dim", make_int(maker, layout->dim) },
                                   { "placements", shard_make_list(maker, VALUE_LIST, all->devices, all->count) }));
    return make_object(maker, "torch.distributed._shard.sharding_spec.api", "EnumerableShardingSpec",
                       MEMBERS(maker, { "shards", shard_make_list(maker, VALUE_LIST, all->metadata, all->count) }));
}

static struct value *make_sharded_tensor(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, enum dtype dtype,
                                         int rank, const int64_t *shape, struct value *local)
{
    int64_t start[RANK_MAX], extent[RANK_MAX];
    struct all_shards all = { 0 };
    struct value *class_ = make_global(maker, "torch.distributed._shard.sharded_tensor.api", "ShardedTensor"), *own = NULL;
    if (!list_shards(maker, layout, rank, shape, &all))
        return NULL;
    maker->failed = torch_layout_box(layout, maker->number, maker->world, rank, shape, start, extent, NULL) != RESHARD_OK;
    bool has_own = !maker->failed && !box_is_empty(rank, extent);
    if (has_own) {
        struct value *place = make_shard_metadata(maker, rank, start, extent, make_remote_device(maker, maker->number));
        own = make_slots(maker, "torch.distributed._shard.sharded_tensor.shard", "Shard",
                         MEMBERS(maker, { "tensor", local }, { "metadata", place }));
    }
    struct value *metadata = make_object(maker, "torch.distributed._shard.sharded_tensor.metadata", "ShardedTensorMetadata",
                                         MEMBERS(maker, { "shards_metadata", shard_make_list(maker, VALUE_LIST, all.metadata, all.count) },
                                                 { "size", make_size(maker, rank, shape) },
                                                 { "tensor_properties", make_properties(maker, dtype) }));
    struct value *state[] = { shard_make_list(maker, VALUE_LIST, &own, has_own), metadata, make_group_state(maker, class_),
                              make_sharding(maker, layout, &all), make_bool(maker, false) };
    return make_wrapper(maker, class_, dtype, rank, shape, shard_make_list(maker, VALUE_TUPLE, state, 5));
}

struct value *torch_make_shard(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, enum dtype dtype, int rank,
                               const int64_t *shape, struct value *local)
{
    struct value *node = layout->kind == TORCH_SHARDED ? make_sharded_tensor(maker, layout, dtype, rank, shape, local)
                                                       : make_dtensor(maker, layout, dtype, rank, shape, local);
    return maker->failed ? NULL : node;
}

void torch_shard_maker_release(struct torch_shard_maker *maker)
{
    free(maker->meshes);
    maker->meshes = NULL;
    maker->mesh_count = maker->mesh_capacity = 0;
    maker->rank_map = NULL;
}
