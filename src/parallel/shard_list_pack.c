/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of shards as bytes, for other ranks: magic u32, count u32, then each shard (shard_pack.h). */
#include "parallel/shard_list.h"

#include "parallel/shard_pack.h"

#include <inttypes.h>

#define SHARDS_MAGIC UINT32_C(0x31534852)

bool shard_list_pack(const struct shard_list *list, bool says_where, struct buffer *out)
{
    buffer_append_u32le(out, SHARDS_MAGIC);
    buffer_append_u32le(out, (uint32_t)list->count);
    for (size_t i = 0; i < list->count; i++)
        shard_pack(&list->shards[i], says_where, out);
    return !out->failed;
}

reshard_status shard_list_unpack(struct cursor *cursor, uint32_t writer, struct shard_list *out, reshard_error *err)
{
    uint32_t magic, count;
    struct shard_room room;
    if (!cursor_u32le(cursor, &magic) || magic != SHARDS_MAGIC || !cursor_u32le(cursor, &count))
        return error_set_at(err, RESHARD_ERR_FORMAT, cursor->pos, "no list of shards");
    for (uint32_t i = 0; i < count; i++) {
        struct shard shard;
        size_t at = cursor->pos;
        if (!shard_unpack(cursor, &room, &shard))
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "shard %" PRIu32 " of %" PRIu32 " is malformed or cut off", i, count);
        shard.writer = writer;
        reshard_status status = shard_list_add(out, &shard, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}
