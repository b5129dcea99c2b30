/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron Core's distributed checkpoints. They lie in the container of plain DCP, or of zarr; what is Megatron's is around it and in the
 * names:
 *
 *   latest_checkpointed_iteration.txt    "10", or "release"
 *   iter_0000010/, or release/
 *     .metadata, __P_N.distcp            as in plain DCP (formats/dcp/dcp.h)
 *     metadata.json                      {"sharded_backend": "torch_dist", …}, written last; torch_dist and zarr
 *     common.pt                          what is not sharded; torch_dist (since 0.19 a blob named common_state/shard_0_1) and zarr
 *
 * Spec: docs/formats/torch_dist.md.
 */
#ifndef FORMATS_MCORE_MCORE_H
#define FORMATS_MCORE_MCORE_H

#include "formats/driver.h"

extern const struct format_driver format_torch_dist;         /* "torch_dist": Megatron Core distributed checkpoint */
extern const struct format_driver format_torch_dcp_megatron; /* "torch_dcp": Megatron's plain DCP below a checkpoint root */
extern const struct format_driver format_fsdp_dtensor;       /* "fsdp_dtensor": Megatron-FSDP's plain DCP */
extern const struct format_driver format_zarr;               /* "zarr": zarr, plain or Megatron Core's */

#endif
