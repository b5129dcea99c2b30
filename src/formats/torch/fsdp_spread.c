/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the tensors of a target lie on its ranks: as the reference or the source has them where the number of ranks is the same, else cut
 * along one dimension over a mesh of one axis, "fsdp". What the source has as a plain tensor stays one. Where nothing says how tensors
 * lie, those of floats are cut along their first dimension, as FSDP does with parameters.
 */
#include "formats/torch/fsdp_target.h"
#include "formats/torch/torch.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define RANKS_LIMIT 65536

struct spreading {
    const struct layout_request *request;
    struct fsdp_spread *out;
    struct name_map like_keys; /* of the reference's tensors, hidden ones too */
    uint32_t *like_tensors;    /* by number in like_keys */
    uint32_t like_capacity;
};

static bool is_ours(const struct source *source)
{
    return source && source->driver == &format_fsdp_ranks;
}

static uint32_t choose_world(const struct layout_request *request)
{
    uint32_t said = request->ranks;
    if (!said && is_ours(request->like))
        said = request->like->catalog->ranks;
    if (!said)
        said = request->source_catalog->ranks;
    return said ? said : 1;
}

static reshard_status index_like(struct spreading *spreading, reshard_error *err)
{
    const struct catalog *catalog = spreading->request->like->catalog;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        uint32_t number = name_map_intern(&spreading->like_keys, catalog->tensors[i].key, NULL);
        if (number == NAME_NONE || !ARRAY_ROOM(spreading->like_tensors, number, spreading->like_capacity))
            return error_set_memory(err);
        spreading->like_tensors[number] = i;
    }
    return RESHARD_OK;
}

/* The tensor of that key in the reference; CATALOG_NONE: there is none of that shape. */
static uint32_t find_like(const struct spreading *spreading, const struct catalog_tensor *tensor)
{
    const struct catalog *wanted = spreading->request->wanted;
    uint32_t number = is_ours(spreading->request->like) ? name_map_find(&spreading->like_keys, tensor->key) : NAME_NONE;
    if (number == NAME_NONE)
        return CATALOG_NONE;
    const struct catalog *catalog = spreading->request->like->catalog;
    const struct catalog_tensor *found = &catalog->tensors[spreading->like_tensors[number]];
    return catalog_same_shape(catalog, found, wanted, tensor) ? spreading->like_tensors[number] : CATALOG_NONE;
}

/* One axis of all ranks; kind, style and the dimension that is cut come from another layout. A scalar has none: each rank has it. */
static struct torch_shard_layout flat_layout(const struct torch_shard_layout *from, int rank, uint32_t world)
{
    struct torch_shard_layout out = { .kind = from->kind, .style = from->style, .dim = from->dim };
    const int64_t ranks = world;
    torch_mesh_row_major(&out.root, 1, &ranks);
    out.root.names[0] = STR("fsdp");
    out.mesh = out.root;
    if (rank == 0)
        return out.kind == TORCH_DTENSOR ? out : (struct torch_shard_layout){ .kind = TORCH_PLAIN };
    out.placements[0] = (struct torch_placement){ .kind = PLACE_SHARD, .dim = from->dim, .split_factor = 1 };
    for (size_t i = 0; i < from->mesh.rank; i++) {
        if (from->placements[i].kind == PLACE_SHARD || from->placements[i].kind == PLACE_STRIDED) {
            out.placements[0].dim = from->placements[i].dim;
            break;
        }
    }
    return out;
}

/* As the node lies in an opened checkpoint. is_reference: what cannot be followed is an error. */
static reshard_status follow_node(const struct source *source, const struct value *node, int rank, uint32_t world, bool is_reference,
                             struct torch_shard_layout *out, reshard_error *err)
{
    reshard_error seen = { 0 };
    uint32_t ranks = source->catalog->ranks;
    reshard_status status = torch_shard_describe(node, rank, ranks, out, is_reference && ranks == world ? err : &seen);
    if (status == RESHARD_ERR_MEMORY || (status && is_reference && ranks == world))
        return status;
    if (status) /* how it is spelled is all that counts */
        *out = (struct torch_shard_layout){ .kind = out->kind == TORCH_SHARDED ? TORCH_SHARDED : TORCH_DTENSOR, .style = out->style };
    if (status || ranks != world)
        *out = flat_layout(out, rank, world);
    return RESHARD_OK;
}

/* Whether the tensor is of the kind that FSDP cuts, where nothing says so. */
static bool looks_cut(const struct catalog_tensor *tensor)
{
    return tensor->rank > 0 && dtype_info(tensor->dtype)->class_ == DTYPE_CLASS_FLOAT;
}

static reshard_status choose_layout(const struct spreading *spreading, uint32_t index, struct torch_shard_layout *out, reshard_error *err)
{
    const struct layout_request *request = spreading->request;
    const struct catalog_tensor *tensor = &request->wanted->tensors[index];
    uint32_t world = spreading->out->world, like = find_like(spreading, tensor), stored = request->wanted_source[index];
    bool is_own = is_ours(request->source) && stored != CATALOG_NONE && !torch_source_of(request->source)->ranks->is_one_file;
    const struct value *node = like != CATALOG_NONE ? fsdp_shard_of(request->like, like) : NULL;
    *out = (struct torch_shard_layout){ .kind = TORCH_PLAIN };
    if (like != CATALOG_NONE)
        return node ? follow_node(request->like, node, tensor->rank, world, true, out, err) : RESHARD_OK;
    if (is_own) {
        node = fsdp_shard_of(request->source, stored);
        return node ? follow_node(request->source, node, tensor->rank, world, false, out, err) : RESHARD_OK;
    }
    bool is_storage = tensor->flags & TENSOR_HIDDEN && !fsdp_is_state(tensor->key);
    if (!is_storage && looks_cut(tensor))
        *out = flat_layout(&(struct torch_shard_layout){ .kind = TORCH_DTENSOR }, tensor->rank, world);
    return RESHARD_OK;
}

static bool names_equal(const struct torch_mesh *a, const struct torch_mesh *b)
{
    for (size_t i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i] || a->stride[i] != b->stride[i] || !str_equal(a->names[i], b->names[i]))
            return false;
    return true;
}

static bool layout_equal(const struct torch_shard_layout *a, const struct torch_shard_layout *b)
{
    if (a->kind != b->kind || a->style != b->style || a->dim != b->dim || a->mesh.rank != b->mesh.rank || a->root.rank != b->root.rank ||
        !names_equal(&a->mesh, &b->mesh) || !names_equal(&a->root, &b->root))
        return false;
    for (size_t i = 0; i < a->mesh.rank; i++)
        if (a->placements[i].kind != b->placements[i].kind || a->placements[i].dim != b->placements[i].dim ||
            a->placements[i].split_factor != b->placements[i].split_factor)
            return false;
    return true;
}

static reshard_status keep_layout(struct fsdp_spread *spread, uint32_t tensor, const struct torch_shard_layout *layout, reshard_error *err)
{
    uint32_t i = 0;
    while (i < spread->layout_count && !layout_equal(&spread->layouts[i], layout))
        i++;
    if (i == spread->layout_count) {
        if (!ARRAY_ROOM(spread->layouts, spread->layout_count, spread->layout_capacity))
            return error_set_memory(err);
        spread->layouts[spread->layout_count++] = *layout;
    }
    spread->layout_of[tensor] = i + 1;
    return RESHARD_OK;
}

reshard_status fsdp_spread_tensors(const struct layout_request *request, struct fsdp_spread *out, reshard_error *err)
{
    struct spreading spreading = { .request = request, .out = out };
    struct torch_shard_layout layout;
    reshard_status status = RESHARD_OK;
    out->world = choose_world(request);
    out->layout_of = array_zeroed(request->wanted->tensor_count, sizeof(*out->layout_of));
    if (out->world > RANKS_LIMIT)
        status = error_set(err, RESHARD_ERR_USAGE, "ranks=%" PRIu32 " is more than %d", out->world, RANKS_LIMIT);
    else if (!out->layout_of)
        status = error_set_memory(err);
    if (!status && is_ours(request->like))
        status = index_like(&spreading, err);
    for (uint32_t i = 0; !status && i < request->wanted->tensor_count; i++) {
        status = choose_layout(&spreading, i, &layout, err);
        if (status)
            error_prefix(err, "tensor '%.*s' of the reference", STR_ARG(request->wanted->tensors[i].key));
        else if (layout.kind != TORCH_PLAIN)
            status = keep_layout(out, i, &layout, err);
    }
    name_map_release(&spreading.like_keys);
    free(spreading.like_tensors);
    return status;
}

void fsdp_spread_release(struct fsdp_spread *spread)
{
    free(spread->layout_of);
    free(spread->layouts);
    *spread = (struct fsdp_spread){ 0 };
}
