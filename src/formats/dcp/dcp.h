/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch Distributed Checkpoint (DCP), and Megatron Core's checkpoints that use its container.
 *
 *   checkpoint/
 *     .metadata         pickle of one Metadata object: every chunk's box, file, offset and length; written last
 *     __P_N.distcp      blobs, one after the other: each a torch.save zip of one tensor (a chunk) or of one item
 *     __R.metadata      instead of .metadata: what rank R wrote (saves without collectives)
 *   and for torch_dist
 *     metadata.json     {"sharded_backend": "torch_dist", …}, written last
 *     common.pt         what is not sharded (since 0.19 a blob named common_state/shard_0_1)
 *
 *   blob: [data.pkl][.format_version][.storage_alignment][byteorder][data/0 = payload][version][.data/serialization_id][directory]
 *
 * Opening reads .metadata only (and common.pt); data files are looked at when a chunk is resolved. Spec: docs/formats/torch-dcp.md.
 */
#ifndef FORMATS_DCP_DCP_H
#define FORMATS_DCP_DCP_H

#include "formats/driver.h"

extern const struct format_driver format_torch_dcp;          /* "torch-dcp": plain DCP, read and written */
extern const struct format_driver format_torch_dist;         /* "torch_dist": Megatron Core distributed checkpoint */
extern const struct format_driver format_torch_dcp_megatron; /* "torch_dcp": Megatron's plain DCP below a checkpoint root */
extern const struct format_driver format_fsdp_dtensor;       /* "fsdp_dtensor": Megatron-FSDP's plain DCP */

#endif
