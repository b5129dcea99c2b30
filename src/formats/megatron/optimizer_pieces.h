/* SPDX-License-Identifier: Apache-2.0 */
/* The growing list of pieces, for those that read optimizer state. */
#ifndef FORMATS_MEGATRON_OPTIMIZER_PIECES_H
#define FORMATS_MEGATRON_OPTIMIZER_PIECES_H

#include "formats/megatron/optimizer_legacy.h"

reshard_status optimizer_pieces_add(struct optimizer_pieces *pieces, const struct optimizer_piece *piece, reshard_error *err);

#endif
