/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checked ranges: the bytes of which a driver's verify has compared a stored checksum. Marking them in the catalog tells the tensors and
 * items whose damage nobody would notice from the others.
 */
#ifndef FORMATS_SHARED_CHECKED_RANGES_H
#define FORMATS_SHARED_CHECKED_RANGES_H

#include "catalog/catalog.h"

struct checked_ranges {
    struct checked_range { uint64_t offset, bytes; uint32_t object; } *items;
    size_t count, capacity;
};

/* false without memory. */
bool checked_ranges_add(struct checked_ranges *ranges, uint32_t object, uint64_t offset, uint64_t bytes);

/* Sets CHUNK_CHECKED of chunks, and is_checked of items, whose stored bytes begin in one of the ranges. Ranges do not overlap. */
void checked_ranges_mark(struct checked_ranges *ranges, struct catalog *catalog);
void checked_ranges_release(struct checked_ranges *ranges);

#endif
