/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the chunks of each tensor tile it: every element exactly once, apart from whole replicas.
 *
 * Chunks become pieces (boxes; a flat run is several). Pieces that hold the same elements as an earlier chunk mark a replica and are
 * left out. The others are sorted on the axis that separates them best and cut into groups that do not touch on it, each group again
 * on another axis: a regular grid takes one sort per axis. What no axis separates is swept. Without overlap, equal volume is coverage.
 */
#ifndef CATALOG_CATALOG_COVER_H
#define CATALOG_CATALOG_COVER_H

#include "catalog/catalog.h"

#define BOX_TEXT_MAX 256

/* "[0:4, 2:9]" for messages, cut with "…" if there are many axes; returns out. */
const char *box_text(int rank, const int64_t *start, const int64_t *extent, char out[BOX_TEXT_MAX]);

/* Checks all tensors, marks replicas. Chunks are grouped by tensor. */
reshard_status catalog_check_cover(struct catalog *catalog, bool allow_holes, reshard_error *err);

#endif
