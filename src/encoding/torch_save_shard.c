/* SPDX-License-Identifier: Apache-2.0 */
/* DTensor and ShardedTensor as torch.save writes them: one file a rank, each with its local part and enough about the whole. */
#include "base/checked.h"
#include "base/array.h"
#include "encoding/torch_save_parts.h"
#include "encoding/torch_shard.h"

#include <inttypes.h>
#include <stdlib.h>

struct device_mesh {
    size_t rank;
    int64_t shape[TORCH_MESH_RANK_MAX], coordinate[TORCH_MESH_RANK_MAX];
    bool has_coordinate;
};

const struct value *torch_state_dict(const struct value *state)
{
    struct value **items, **pairs;
    size_t count, pair_count;
    if (value_as_mapping(state, &pairs, &pair_count))
        return state;
    if (value_as_sequence(state, &items, &count) && count == 2 && value_as_mapping(items[1], &pairs, &pair_count))
        return items[1];
    return NULL;
}

const struct value *torch_attribute(const struct value *object, const char *name)
{
    if (object->kind != VALUE_NEW && object->kind != VALUE_CALL)
        return NULL;
    for (uint32_t i = 0; i < object->object->state_count; i++) {
        const struct value *dict = torch_state_dict(object->object->states[i]);
        const struct value *found = dict ? value_dict_get(dict, name) : NULL;
        if (found)
            return found;
    }
    return NULL;
}

static bool class_is(const struct value *object, const char *name)
{
    return (object->kind == VALUE_NEW || object->kind == VALUE_CALL) && object->object->callable->kind == VALUE_GLOBAL &&
           str_is(object->object->callable->global.name, name);
}

/* ---- mesh ---- */

/* A number, or a tuple whose product it is: axes of a layout are written either way, and one of a single rank as (). */
static bool as_extent(const struct value *value, int64_t *out)
{
    int64_t parts[TORCH_MESH_RANK_MAX];
    size_t count;
    if (value_as_int(value, out))
        return true;
    if (!value_as_ints(value, parts, TORCH_MESH_RANK_MAX, &count))
        return false;
    *out = 1;
    for (size_t i = 0; i < count; i++)
        if (parts[i] <= 0 || !checked_mul_i64(*out, parts[i], out))
            return false;
    return true;
}

static bool parse_mesh_shape(const struct torch_archive *archive, const struct value *mesh, struct device_mesh *out)
{
    struct value **items;
    const struct value *layout = torch_attribute(mesh, "_layout"), *tensor = torch_attribute(mesh, "mesh");
    if (tensor && tensor->tensor > 0) {
        const struct torch_tensor *found = &archive->tensors[tensor->tensor - 1];
        if (found->rank > TORCH_MESH_RANK_MAX)
            return false;
        out->rank = (size_t)found->rank;
        memcpy(out->shape, found->shape, out->rank * sizeof(*out->shape));
        return true;
    }
    const struct value *axes = layout ? torch_attribute(layout, "axes") : NULL, *shape = layout ? torch_attribute(layout, "shape") : NULL;
    if (axes && value_as_sequence(axes, &items, &out->rank) && out->rank <= TORCH_MESH_RANK_MAX) {
        for (size_t i = 0; i < out->rank; i++) {
            const struct value *extent = torch_attribute(items[i], "shape");
            if (!extent || !as_extent(extent, &out->shape[i]))
                return false;
        }
        return true;
    }
    if (!shape || !value_as_sequence(shape, &items, &out->rank) || out->rank > TORCH_MESH_RANK_MAX) {
        out->rank = 1;
        return shape && value_as_int(shape, &out->shape[0]);
    }
    for (size_t i = 0; i < out->rank; i++)
        if (!as_extent(items[i], &out->shape[i]))
            return false;
    return true;
}

/* Where the rank stands in the mesh: said outright, or found in the flat list of ranks. */
static void parse_mesh_coordinate(const struct value *mesh, int rank, struct device_mesh *out)
{
    size_t count;
    const struct value *coordinate = torch_attribute(mesh, "_coordinate_on_dim"), *flat = torch_attribute(mesh, "_flatten_rank_map");
    struct value **ranks;
    if (!flat)
        flat = torch_attribute(mesh, "_flatten_mesh_list");
    out->has_coordinate = coordinate && value_as_ints(coordinate, out->coordinate, TORCH_MESH_RANK_MAX, &count) && count == out->rank;
    if (out->has_coordinate || rank < 0 || !flat || !value_as_sequence(flat, &ranks, &count))
        return;
    for (size_t i = 0; i < count; i++) {
        int64_t member;
        if (!value_as_int(ranks[i], &member) || member != rank)
            continue;
        int64_t position = (int64_t)i;
        for (size_t axis = out->rank; axis-- > 0;) {
            out->coordinate[axis] = position % out->shape[axis];
            position /= out->shape[axis];
        }
        out->has_coordinate = position == 0;
        return;
    }
}

static reshard_status parse_mesh(const struct torch_reading *reading, const struct value *mesh, uint64_t at, struct device_mesh *out,
                                 reshard_error *err)
{
    if (!mesh || !parse_mesh_shape(reading->archive, mesh, out))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "device mesh of a DTensor in a form that is not known");
    for (size_t i = 0; i < out->rank; i++)
        if (out->shape[i] <= 0 || out->shape[i] > INT32_MAX)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "device mesh with a dimension of %" PRId64, out->shape[i]);
    const struct value *writer = torch_attribute(mesh, "_rank");
    int64_t rank;
    if (reading->rank >= 0 && writer && value_as_int(writer, &rank) && rank != reading->rank)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "a file of rank %" PRId64 ", whose name says rank %d", rank, reading->rank);
    parse_mesh_coordinate(mesh, reading->rank, out);
    for (size_t i = 0; out->has_coordinate && i < out->rank; i++)
        if (out->coordinate[i] < 0 || out->coordinate[i] >= out->shape[i])
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "coordinate %" PRId64 " in a mesh dimension of %" PRId64, out->coordinate[i],
                                out->shape[i]);
    return RESHARD_OK;
}

/* ---- placements ---- */

reshard_status torch_parse_placement(const struct value *value, int tensor_rank, uint64_t at, struct torch_placement *out,
                                     reshard_error *err)
{
    *out = (struct torch_placement){ .kind = PLACE_REPLICATE, .split_factor = 1 };
    if (class_is(value, "Replicate"))
        return RESHARD_OK;
    if (class_is(value, "Partial") || class_is(value, "_Partial")) {
        out->kind = PLACE_PARTIAL;
        return RESHARD_OK;
    }
    bool is_strided = class_is(value, "_StridedShard");
    if (!is_strided && !class_is(value, "Shard"))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "placement of a DTensor that is not Shard, Replicate or Partial");
    const struct value *dim = torch_attribute(value, "dim"), *factor = torch_attribute(value, "split_factor");
    out->kind = is_strided ? PLACE_STRIDED : PLACE_SHARD;
    if (!dim || !value_as_int(dim, &out->dim) || out->dim < 0 || out->dim >= tensor_rank)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "Shard placement without a dimension of the tensor");
    bool has_factor = factor && value_as_int(factor, &out->split_factor) && out->split_factor >= 1 && out->split_factor <= TORCH_SPLIT_MAX;
    if (is_strided && !has_factor)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "strided placement without a usable split factor");
    return RESHARD_OK;
}

/* ---- DTensor ---- */

static reshard_status add_shard(struct torch_reading *reading, const struct torch_shard *shard, const int64_t *global_shape,
                                const int64_t *start, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    size_t bytes = (size_t)shard->rank * sizeof(int64_t);
    int64_t *kept = arena_alloc(&archive->arena, 2 * bytes);
    if (!kept || !ARRAY_ROOM(archive->shards, archive->shard_count, reading->shard_capacity))
        return error_set_memory(err);
    memcpy(kept, global_shape, bytes);
    memcpy(kept + shard->rank, start, bytes);
    struct torch_shard *added = &archive->shards[archive->shard_count++];
    *added = *shard;
    added->global_shape = kept;
    added->start = kept + shard->rank;
    return RESHARD_OK;
}

/* Size and dtype of the whole, from the arguments of _rebuild_wrapper_subclass. */
static reshard_status parse_whole(const struct value *node, struct value *const *args, size_t count, struct torch_shard *shard,
                                  int64_t *shape, reshard_error *err)
{
    size_t rank;
    int64_t elements;
    if (count < 8 || !torch_dtype_of(args[1], &shard->dtype) || !value_as_ints(args[2], shape, RANK_MAX, &rank))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "_rebuild_wrapper_subclass without a type and a size");
    shard->rank = (int)rank;
    shard->node = node;
    for (size_t i = 0; i < rank; i++)
        if (shape[i] < 0)
            return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "negative size %" PRId64 " of a tensor", shape[i]);
    if (!shape_volume((int)rank, shape, &elements))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "number of elements of a tensor overflows 64 bits");
    return RESHARD_OK;
}

/* By shard_order, of 2.13, a later dimension of the mesh may cut a dimension first. Without one, or with None, they cut in order. */
static reshard_status check_shard_order(const struct value *spec, uint64_t at, reshard_error *err)
{
    const struct value *order = torch_attribute(spec, "shard_order");
    struct value **entries, **parts;
    size_t count, part_count;
    if (!order || order->kind == VALUE_NONE)
        return RESHARD_OK;
    bool is_known = value_as_sequence(order, &entries, &count), is_ascending = true;
    for (size_t i = 0; is_known && i < count; i++) {
        int64_t dims[TORCH_MESH_RANK_MAX];
        size_t dim_count;
        const struct value *entry = entries[i]->kind == VALUE_CALL || entries[i]->kind == VALUE_NEW ? entries[i]->object->args : entries[i];
        is_known = entry && value_as_sequence(entry, &parts, &part_count) && part_count == 2 &&
                   value_as_ints(parts[1], dims, TORCH_MESH_RANK_MAX, &dim_count);
        for (size_t d = 1; is_known && d < dim_count; d++)
            is_ascending = is_ascending && dims[d - 1] < dims[d];
    }
    if (!is_known)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "shard_order of a DTensor in a form that is not known");
    if (is_ascending)
        return RESHARD_OK;
    error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "DTensor whose dimensions are cut by those of its mesh in another order (shard_order)");
    error_hint(err, "DTensor.full_tensor makes tensors that are read, whole");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status place_local(struct torch_reading *reading, const struct value *spec, struct torch_shard *shard, const int64_t *shape,
                                  int64_t *start, reshard_error *err)
{
    struct device_mesh mesh = { 0 };
    struct torch_placement placements[TORCH_MESH_RANK_MAX];
    struct value **items;
    size_t count;
    uint64_t at = shard->node->offset;
    reshard_status status = parse_mesh(reading, torch_attribute(spec, "mesh"), at, &mesh, err);
    if (status)
        return status;
    const struct value *list = torch_attribute(spec, "placements");
    if (!list || !value_as_sequence(list, &items, &count) || count != mesh.rank)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "DTensor whose placements are not one for each dimension of its mesh");
    for (size_t i = 0; !status && i < count; i++) {
        status = torch_parse_placement(items[i], shard->rank, at, &placements[i], err);
        shard->is_partial = shard->is_partial || (!status && placements[i].kind == PLACE_PARTIAL && mesh.shape[i] > 1);
    }
    if (!status)
        status = check_shard_order(spec, at, err);
    shard->mesh_coordinate_count = (uint32_t)mesh.rank;
    shard->is_unknown_place = !mesh.has_coordinate;
    if (status || !mesh.has_coordinate)
        return status;
    const struct torch_tensor *local = &reading->archive->tensors[shard->tensor];
    int64_t extent[RANK_MAX];
    status = torch_shard_box(mesh.rank, mesh.shape, mesh.coordinate, placements, shard->rank, shape, at, start, extent, err);
    for (int dim = 0; !status && dim < shard->rank; dim++)
        if (local->shape[dim] != extent[dim])
            return error_set_at(err, RESHARD_ERR_FORMAT, at,
                                "local part of a DTensor has %" PRId64 " elements along dimension %d, its mesh gives it %" PRId64,
                                local->shape[dim], dim, extent[dim]);
    return status;
}

static reshard_status note_dtensor(struct torch_reading *reading, const struct value *node, struct value *const *args, size_t count,
                                   const struct value *state, reshard_error *err)
{
    struct torch_shard shard = { 0 };
    int64_t shape[RANK_MAX], start[RANK_MAX] = { 0 };
    const struct value *dict = torch_state_dict(state);
    const struct value *local = dict ? value_dict_get(dict, "_local_tensor") : NULL, *spec = dict ? value_dict_get(dict, "_spec") : NULL;
    if (!local || !spec)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "DTensor without local tensor or spec");
    reshard_status status = parse_whole(node, args, count, &shard, shape, err);
    if (status || local->tensor == 0)
        return status;
    shard.tensor = local->tensor - 1;
    const struct torch_tensor *tensor = &reading->archive->tensors[shard.tensor];
    if (tensor->rank != shard.rank || tensor->dtype != shard.dtype)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "local part of a DTensor has another type or rank than the whole");
    status = place_local(reading, spec, &shard, shape, start, err);
    return status ? status : add_shard(reading, &shard, shape, start, err);
}

/* ---- ShardedTensor ---- */

static reshard_status note_local_shard(struct torch_reading *reading, const struct value *part, struct torch_shard *shard,
                                       const int64_t *shape, reshard_error *err)
{
    uint64_t at = shard->node->offset;
    const struct value *tensor = torch_attribute(part, "tensor"), *metadata = torch_attribute(part, "metadata");
    const struct value *offsets = metadata ? torch_attribute(metadata, "shard_offsets") : NULL;
    const struct value *sizes = metadata ? torch_attribute(metadata, "shard_sizes") : NULL;
    int64_t start[RANK_MAX], extent[RANK_MAX];
    size_t start_count, extent_count;
    int bad_axis;
    if (!tensor || tensor->tensor == 0 || !offsets || !sizes || !value_as_ints(offsets, start, RANK_MAX, &start_count) ||
        !value_as_ints(sizes, extent, RANK_MAX, &extent_count) || (int)start_count != shard->rank || (int)extent_count != shard->rank)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "shard of a ShardedTensor without tensor, offsets and sizes");
    if (!box_check(shard->rank, start, extent, shape, &bad_axis))
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "shard of a ShardedTensor lies outside of it on axis %d", bad_axis);
    shard->tensor = tensor->tensor - 1;
    const struct torch_tensor *local = &reading->archive->tensors[shard->tensor];
    if (local->rank != shard->rank || local->dtype != shard->dtype ||
        memcmp(local->shape, extent, (size_t)shard->rank * sizeof(*extent)) != 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "shard of a ShardedTensor has another type or size than its metadata says");
    return add_shard(reading, shard, shape, start, err);
}

static reshard_status note_sharded_tensor(struct torch_reading *reading, const struct value *node, struct value *const *args, size_t count,
                                          const struct value *state, reshard_error *err)
{
    struct torch_shard shard = { .tensor = UINT32_MAX };
    int64_t shape[RANK_MAX];
    struct value **members, **parts;
    size_t member_count, part_count;
    reshard_status status = parse_whole(node, args, count, &shard, shape, err);
    if (status)
        return status;
    if (!value_as_sequence(state, &members, &member_count) || member_count < 2 || !value_as_sequence(members[0], &parts, &part_count))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "ShardedTensor without a list of shards");
    int64_t zero[RANK_MAX] = { 0 };
    if (part_count == 0)
        return add_shard(reading, &shard, shape, zero, err);
    for (size_t i = 0; !status && i < part_count; i++)
        status = note_local_shard(reading, parts[i], &shard, shape, err);
    return status;
}

static bool is_shard_class(const struct value *class_)
{
    return class_->kind == VALUE_GLOBAL && str_starts_with(class_->global.module, "torch.distributed.") &&
           (str_is(class_->global.name, "DTensor") || str_is(class_->global.name, "ShardedTensor"));
}

bool torch_is_shard(const struct value *node)
{
    if (node->kind != VALUE_CALL || !value_is_global(node->object->callable, "torch._tensor", "_rebuild_from_type_v2"))
        return false;
    const struct value *args = node->object->args;
    return args->list.count == 4 && is_shard_class(args->list.items[1]);
}

reshard_status torch_interpret_shard(struct torch_reading *reading, struct value *node, bool *is_shard, reshard_error *err)
{
    struct value **args = node->object->args->list.items, **inner;
    size_t count;
    *is_shard = is_shard_class(args[1]) && value_as_sequence(args[2], &inner, &count);
    if (!*is_shard)
        return RESHARD_OK;
    if (str_is(args[1]->global.name, "DTensor"))
        return note_dtensor(reading, node, inner, count, args[3], err);
    return note_sharded_tensor(reading, node, inner, count, args[3], err);
}
