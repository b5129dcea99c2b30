/* SPDX-License-Identifier: Apache-2.0 */
/* Value graphs in protocol 4, byte for byte as CPython's pickle.dump writes them: for files that are to be the same. */
#ifndef ENCODING_PICKLE_GRAPH_H
#define ENCODING_PICKLE_GRAPH_H

#include "base/buffer.h"
#include "base/value.h"

/*
 * Appends the whole pickle of a graph's node. UNSUPPORTED for what pickle.dump would write in ways that are not known here: objects with a
 * class of their own, persistent ids, tuples inside themselves. Spends work (may be NULL).
 */
reshard_status pickle_graph_write(const struct value *root, uint32_t graph_count, struct work *work, struct buffer *out,
                                  reshard_error *err);

#endif
