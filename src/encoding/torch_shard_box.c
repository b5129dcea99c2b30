/* SPDX-License-Identifier: Apache-2.0 */
/* Which box of a tensor lies where in a mesh. A local part is in general a list of intervals; those that occur end as one. */
#include "encoding/torch_save_parts.h"
#include "base/array.h"
#include "encoding/torch_shard.h"

#include <stdlib.h>

#define INTERVALS_MAX TORCH_SPLIT_MAX

struct interval {
    int64_t start, length;
};

struct intervals {
    struct interval *items;
    size_t count;
};

static int64_t total_length(const struct intervals *list)
{
    int64_t total = 0;
    for (size_t i = 0; i < list->count; i++)
        total += list->items[i].length;
    return total;
}

/* Appends what of list lies in [begin, begin + length) of its own order. */
static bool append_range(struct intervals *out, const struct intervals *list, int64_t begin, int64_t length)
{
    int64_t position = 0;
    for (size_t i = 0; i < list->count && length > 0; i++) {
        struct interval piece = list->items[i];
        int64_t skip = begin > position ? begin - position : 0;
        position += piece.length;
        if (skip >= piece.length)
            continue;
        int64_t take = piece.length - skip < length ? piece.length - skip : length;
        struct interval *last = out->count ? &out->items[out->count - 1] : NULL;
        if (last && last->start + last->length == piece.start + skip) {
            last->length += take;
        } else {
            if (out->count >= INTERVALS_MAX)
                return false;
            out->items[out->count++] = (struct interval){ piece.start + skip, take };
        }
        begin += take;
        length -= take;
    }
    return true;
}

/* torch.chunk: part index of count parts of total elements. */
static void chunk_range(int64_t total, int64_t count, int64_t index, int64_t *begin, int64_t *length)
{
    int64_t size = total / count + (total % count != 0);
    *begin = index > 0 && size > total / index ? total : size * index;
    if (*begin > total)
        *begin = total;
    *length = total - *begin < size ? total - *begin : size;
}

/* Replaces list by the part of it that coordinate `index` of `count` gets. */
static bool cut(struct intervals *list, struct intervals *spare, const struct torch_placement *placement, int64_t count, int64_t index)
{
    int64_t total = total_length(list);
    spare->count = 0;
    for (int64_t piece = 0; piece < placement->split_factor; piece++) {
        int64_t piece_begin, piece_length, begin, length;
        chunk_range(total, placement->split_factor, piece, &piece_begin, &piece_length);
        chunk_range(piece_length, count, index, &begin, &length);
        if (!append_range(spare, list, piece_begin + begin, length))
            return false;
    }
    struct intervals swap = *list;
    *list = *spare;
    *spare = swap;
    return true;
}

/* Start and extent of the local part along one dimension. */
static reshard_status place_dimension(size_t mesh_rank, const int64_t *mesh_shape, const int64_t *coordinate,
                                      const struct torch_placement *placements, int64_t dim, int64_t size, uint64_t at, int64_t *start,
                                      int64_t *extent, reshard_error *err)
{
    struct interval *memory = array_zeroed(2 * INTERVALS_MAX, sizeof(*memory));
    if (!memory)
        return error_set_memory(err);
    struct intervals list = { memory, 0 }, spare = { memory + INTERVALS_MAX, 0 };
    bool good = true;
    if (size > 0)
        list.items[list.count++] = (struct interval){ 0, size };
    for (size_t i = 0; good && i < mesh_rank; i++)
        if ((placements[i].kind == PLACE_SHARD || placements[i].kind == PLACE_STRIDED) && placements[i].dim == dim)
            good = cut(&list, &spare, &placements[i], mesh_shape[i], coordinate[i]);
    good = good && list.count <= 1;
    *start = good && list.count ? list.items[0].start : 0;
    *extent = good && list.count ? list.items[0].length : 0;
    free(memory);
    if (good)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "local part of a DTensor is no single box");
}

reshard_status torch_shard_box(size_t mesh_rank, const int64_t *mesh_shape, const int64_t *coordinate,
                               const struct torch_placement *placements, int rank, const int64_t *shape, uint64_t at, int64_t *start,
                               int64_t *extent, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (int dim = 0; !status && dim < rank; dim++)
        status = place_dimension(mesh_rank, mesh_shape, coordinate, placements, dim, shape[dim], at, &start[dim], &extent[dim], err);
    return status;
}

void torch_mesh_row_major(struct torch_mesh *out, size_t rank, const int64_t *shape)
{
    int64_t stride = 1;
    *out = (struct torch_mesh){ .rank = rank };
    for (size_t i = rank; i-- > 0;) {
        out->shape[i] = shape[i];
        out->stride[i] = stride;
        stride *= shape[i];
    }
}

reshard_status torch_layout_box(const struct torch_shard_layout *layout, uint32_t number, uint32_t world, int rank, const int64_t *shape,
                                int64_t *start, int64_t *extent, reshard_error *err)
{
    int64_t coordinate[TORCH_MESH_RANK_MAX];
    if (layout->kind == TORCH_SHARDED) {
        struct torch_placement placement = { .kind = PLACE_SHARD, .dim = layout->dim, .split_factor = 1 };
        int64_t ranks = world;
        coordinate[0] = number;
        return torch_shard_box(1, &ranks, coordinate, &placement, rank, shape, 0, start, extent, err);
    }
    for (size_t i = 0; i < layout->mesh.rank; i++)
        coordinate[i] = number / layout->mesh.stride[i] % layout->mesh.shape[i];
    return torch_shard_box(layout->mesh.rank, layout->mesh.shape, coordinate, layout->placements, rank, shape, 0, start, extent, err);
}
