/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch Distributed Checkpoint (DCP).
 *
 *   checkpoint/
 *     .metadata         pickle of one Metadata object: every chunk's box, file, offset and length; written last
 *     __P_N.distcp      blobs, one after the other: each a torch.save zip of one tensor (a chunk) or of one item
 *     __R.metadata      instead of .metadata: what rank R wrote (saves without collectives)
 *
 *   blob: [data.pkl][.format_version][.storage_alignment][byteorder][data/0 = payload][version][.data/serialization_id][directory]
 *
 * Opening reads .metadata only; data files are looked at when a chunk is resolved. Formats that keep their state in this container stand on
 * this driver (dcp_flavour.h). Spec: docs/formats/torch-dcp.md.
 */
#ifndef FORMATS_DCP_DCP_H
#define FORMATS_DCP_DCP_H

#include "formats/driver.h"

extern const struct format_driver format_torch_dcp; /* "torch-dcp": plain DCP, read and written */

#endif
