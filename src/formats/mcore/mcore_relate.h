/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state of distributed checkpoints that is stored by bucket or flattened, turned into tensors of parameters:
 *
 *   optimizer.distributed.dp_group_idx_<i>.gbuf_idx_<g>.dtype_(<p>, <g>).bucket_idx_<b>.<state>   dp_reshardable: vectors
 *                                                        fully_sharded_bucket_space: the same with the padding at the ends of buckets
 *   optimizer.distributed.dp_group_idx_<i>.param_state/shard_0_1                                   dp_zero_gather_scatter: an object
 *   optimizer.state.fp32_param.<key>                                                               fully_sharded_model_space: flattened
 *
 * become optimizer.state.{param,exp_avg,exp_avg_sq}.<key>, what fully_reshardable calls them. With several optimizers the names have
 * chained_<k>. in front.
 */
#ifndef FORMATS_MCORE_MCORE_RELATE_H
#define FORMATS_MCORE_MCORE_RELATE_H

#include "catalog/catalog.h"
#include "encoding/torch_save.h"

/* An object param_state or per_bucket_numel_unpadded. The archive lives as long as the catalog is being filled. */
struct optimizer_object {
    struct str name;
    const struct torch_archive *archive;
    const struct value *root;  /* what it holds, with the numbers of the archive's tensors */
    uint32_t object;           /* of the catalog */
    uint64_t offset;           /* of the archive in it */
};

/*
 * Replaces buckets and objects in a catalog that is not sealed. Chunks that are unresolved stay so: driver_data is 1 + the element of the
 * blob where they begin. namespace: the item `args`, NULL if there is none.
 */
reshard_status optimizer_dist_relate(struct catalog *catalog, const struct value *namespace, const struct optimizer_object *objects,
                                     uint32_t object_count, reshard_error *err);

/* The key under which fully_reshardable has a tensor of optimizer.state; is_flattened: fp32_param is the distributed optimizer's. In arena.
 */
bool optimizer_state_key(struct arena *arena, struct str key, bool is_flattened, struct str *out);

/* Warns where a run's fully_reshardable state may be wrong as stored: Megatron Core 0.15 to 0.19 shifts it if there is padding between the
 * buckets of a buffer. */
reshard_status optimizer_dist_check(struct catalog *catalog, const struct value *namespace, reshard_error *err);

#endif
