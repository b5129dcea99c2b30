/* SPDX-License-Identifier: Apache-2.0 */
#include "base/reader.h"

#include "base/checked.h"
#include "base/limits.h"

#include <inttypes.h>
#include <string.h>

static reshard_status ends_inside(const struct reader *reader, uint64_t offset, uint64_t size, reshard_error *err)
{
    error_set_at(err, RESHARD_ERR_FORMAT, offset, "ends inside %" PRIu64 " bytes at offset %" PRIu64 ": it has %" PRIu64 " bytes", size,
                 offset, reader->size);
    if (reader->name)
        error_object(err, "%s", reader->name);
    return RESHARD_ERR_FORMAT;
}

static reshard_status memory_read_at(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    if (!range_fits(offset, size, reader->size))
        return ends_inside(reader, offset, size, err);
    if (size)
        memcpy(out, (const uint8_t *)reader->context + reader->base + offset, size);
    return RESHARD_OK;
}

struct reader reader_over_memory(const void *bytes, size_t size, const char *name)
{
    return (struct reader){ .read_at = memory_read_at, .size = size, .context = bytes, .name = name };
}

/* A window keeps inner's function: every implementation adds base itself, and checks against size. */
reshard_status reader_window(const struct reader *inner, uint64_t offset, uint64_t length, struct reader *out, reshard_error *err)
{
    uint64_t base;
    if (!range_fits(offset, length, inner->size) || !checked_add_u64(inner->base, offset, &base))
        return ends_inside(inner, offset, length, err);
    struct reader window = *inner;
    window.base = base;
    window.size = length;
    *out = window;
    return RESHARD_OK;
}

reshard_status reader_append(const struct reader *reader, uint64_t offset, uint64_t size, struct buffer *out, reshard_error *err)
{
    if (!range_fits(offset, size, reader->size))
        return ends_inside(reader, offset, size, err);
    if (out->limit && (out->size > out->limit || size > out->limit - out->size)) {
        uint64_t wanted = size < UINT64_MAX - out->size ? out->size + size : UINT64_MAX;
        return limit_error_bytes(err, (struct named_limit){ out->limit_name, out->limit, NULL }, "content", wanted);
    }
    uint8_t *room = size > SIZE_MAX ? NULL : buffer_extend(out, (size_t)size);
    if (!room)
        return error_set_memory(err);
    reshard_status status = reader_read(reader, offset, room, (size_t)size, err);
    if (status)
        out->size -= (size_t)size;
    return status;
}
