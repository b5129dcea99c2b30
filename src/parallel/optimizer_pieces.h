/* SPDX-License-Identifier: Apache-2.0 */
/* The growing list of pieces, for those that read optimizer state. */
#ifndef PARALLEL_OPTIMIZER_PIECES_H
#define PARALLEL_OPTIMIZER_PIECES_H

#include "parallel/state_by_number.h"

reshard_status state_pieces_add(struct state_pieces *pieces, const struct state_piece *piece, reshard_error *err);

#endif
