/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DTensor and ShardedTensor in the pickles of torch: how one lies on the ranks, which box of the whole a rank holds, and the objects
 * that say so in a file. Axes of a mesh cut a dimension one after the other, each as torch.chunk does; _StridedShard cuts as if a later
 * axis had cut before. Spec: docs/formats/torch.md.
 */
#ifndef ENCODING_TORCH_SHARD_H
#define ENCODING_TORCH_SHARD_H

#include "base/value.h"
#include "encoding/torch_save.h"

#define TORCH_MESH_RANK_MAX 16

struct torch_placement {
    enum { PLACE_REPLICATE, PLACE_SHARD, PLACE_STRIDED, PLACE_PARTIAL } kind;
    int64_t dim, split_factor;
};

/* Axes of a mesh over the ranks 0, 1, …: rank R stands at R / stride % shape of each. */
struct torch_mesh {
    size_t rank;
    int64_t shape[TORCH_MESH_RANK_MAX], stride[TORCH_MESH_RANK_MAX];
    struct str names[TORCH_MESH_RANK_MAX]; /* data NULL: no names */
};

/* How the objects are spelled: DeviceMesh changed. */
enum torch_shard_style { TORCH_STYLE_2_13, TORCH_STYLE_2_6 };

struct torch_shard_layout {
    enum { TORCH_PLAIN, TORCH_DTENSOR, TORCH_SHARDED } kind;
    enum torch_shard_style style;
    struct torch_mesh mesh, root;   /* DTENSOR; root: the mesh of all ranks that mesh is a part of */
    struct torch_placement placements[TORCH_MESH_RANK_MAX]; /* DTENSOR: one for each axis of mesh */
    int64_t dim;                    /* SHARDED: the dimension that is cut */
};

/* The row-major mesh of that shape over all ranks; names may be NULL. */
void torch_mesh_row_major(struct torch_mesh *out, size_t rank, const int64_t *shape);

/* Start and extent of the part at a coordinate of a mesh. at: for messages. UNSUPPORTED if it is no single box. */
reshard_status torch_shard_box(size_t mesh_rank, const int64_t *mesh_shape, const int64_t *coordinate,
                               const struct torch_placement *placements, int rank, const int64_t *shape, uint64_t at, int64_t *start,
                               int64_t *extent, reshard_error *err);

/* The same for a layout and a rank of world. */
reshard_status torch_layout_box(const struct torch_shard_layout *layout, uint32_t number, uint32_t world, int rank, const int64_t *shape,
                                int64_t *start, int64_t *extent, reshard_error *err);

/* How the tensor lies on world ranks, from the node of a DTensor or ShardedTensor in one rank's file. UNSUPPORTED says what is not known.
 * Names lie in the file's graph. rank: of the tensor. */
reshard_status torch_shard_describe(const struct value *node, int rank, uint32_t world, struct torch_shard_layout *out, reshard_error *err);

/* Whether a node is such a tensor of a rank's file, whole or not. */
bool torch_is_shard(const struct value *node);

/* What such a node says of its tensor: TORCH_TENSOR_PARAMETER and TORCH_TENSOR_REQUIRES_GRAD. */
unsigned torch_shard_flags(const struct value *node);

/* ---- the objects ---- */

/* Makes them in a graph, one file after the other. Meshes occur once in a file, and are shared. */
struct torch_shard_maker {
    struct value_graph *graph;
    uint32_t number, world; /* the rank that the file is of */
    bool failed;            /* no memory */
    struct torch_made_mesh {
        struct torch_mesh mesh;
        enum torch_shard_style style;
        struct value *node;
    } *meshes;
    uint32_t mesh_count, mesh_capacity;
    struct value *rank_map; /* of 2.13, once a file */

    /* The node that stands for a small tensor of 32-bit integers in this file; NULL without memory. */
    struct value *(*put_integers)(void *context, int rank, const int64_t *shape, const int32_t *numbers);
    void *context;
};

/* The whole around the local tensor's node; extent is that tensor's shape. NULL without memory. */
struct value *torch_make_shard(struct torch_shard_maker *maker, const struct torch_shard_layout *layout, enum dtype dtype, int rank,
                               const int64_t *shape, struct value *local);
void torch_shard_maker_release(struct torch_shard_maker *maker);

#endif
