/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items that callers give, as bytes among others: how many have JSON texts, u64, and of each key and text as options_pack.h has texts; the
 * dict of values as a pickle of protocol 4, its size u64 before it, 0 if there are none; how many are files, u64, and of each key, size u64
 * and bytes. Integers are little-endian.
 */
#ifndef API_ITEMS_PACK_H
#define API_ITEMS_PACK_H

#include "api/items.h"
#include "base/arena.h"
#include "base/buffer.h"
#include "base/cursor.h"

/* values may be NULL. */
reshard_status items_pack(const reshard_state_item *texts, size_t text_count, const struct reshard_items *values, struct buffer *out,
                          reshard_error *err);

/* { 0 } is valid and empty. */
struct packed_items {
    const reshard_state_item *texts;
    size_t text_count;
    struct reshard_items values;
};

/* Points into the bytes and the arena. FORMAT, at the cursor's place, if they are no items. Release *out on failure too. */
reshard_status items_unpack(struct cursor *cursor, struct arena *arena, struct packed_items *out, reshard_error *err);
void packed_items_release(struct packed_items *items);

#endif
