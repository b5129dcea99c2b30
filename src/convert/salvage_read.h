/* SPDX-License-Identifier: Apache-2.0 */
/* What salvage reads of a checkpoint before it writes any of it: where the disk fails, pieces are lost, and not the run. */
#ifndef CONVERT_SALVAGE_READ_H
#define CONVERT_SALVAGE_READ_H

#include "convert/salvage_remains.h"
#include "engine/engine.h"

/* Reads the bytes of pieces that nothing has read so far, those that are neither coded nor under a checksum, and of items that are copied.
 * Pieces that share bytes are read once, and are bad together: each byte is read at most once, whatever names it. */
reshard_status salvage_read(struct remains *remains, const struct engine_options *engine, reshard_error *err);

#endif
