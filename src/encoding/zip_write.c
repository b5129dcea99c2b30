/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "encoding/zip_parts.h"

#include <inttypes.h>

#define EXTRA_HEADER_BYTES 4
#define DESCRIPTOR_BYTES 16
#define DESCRIPTOR64_BYTES 24
#define END64_MADE_BY 0x031E
#define END64_NEEDED 0x002D

/* The limit itself counts as big, as in torch's writer. */
static bool is_big(uint64_t value)
{
    return value >= ZIP_BIG32;
}

static bool needs_zip64(const struct zip_plan_member *member)
{
    return is_big(member->bytes) || is_big(member->header_offset);
}

/* Content of the local zip64 field: sizes and, which is torch's own habit, the header's offset. */
static uint32_t local_zip64_bytes(const struct zip_plan_member *member)
{
    return (is_big(member->bytes) ? 16 : 0) + (is_big(member->header_offset) ? 8 : 0);
}

static uint32_t central_zip64_bytes(const struct zip_plan_member *member)
{
    return local_zip64_bytes(member); /* the same values, in full */
}

static uint32_t descriptor_bytes(const struct zip_plan_member *member)
{
    if (member->bytes == 0)
        return 0;
    return needs_zip64(member) ? DESCRIPTOR64_BYTES : DESCRIPTOR_BYTES;
}

static uint64_t unpadded_header_bytes(const struct zip_plan_member *member)
{
    uint64_t bytes = ZIP_LOCAL_BYTES + (uint64_t)member->name.size + EXTRA_HEADER_BYTES;
    return needs_zip64(member) ? bytes + EXTRA_HEADER_BYTES + local_zip64_bytes(member) : bytes;
}

static uint64_t central_bytes(const struct zip_plan_member *member)
{
    uint64_t bytes = ZIP_CENTRAL_BYTES + (uint64_t)member->name.size;
    return needs_zip64(member) ? bytes + EXTRA_HEADER_BYTES + central_zip64_bytes(member) : bytes;
}

static reshard_status too_large(const struct zip_plan_member *member, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "zip member '%.*s' of %" PRIu64 " bytes: the archive would pass 2^63 bytes",
                     STR_ARG(member->name), member->bytes);
}

static reshard_status check_plan(const struct zip_plan_member *members, uint32_t count, uint32_t alignment, reshard_error *err)
{
    if (alignment == 0 || (alignment & (alignment - 1)) || alignment > 32768)
        return error_set(err, RESHARD_ERR_USAGE, "alignment %" PRIu32 " is no power of two up to 32768", alignment);
    for (uint32_t i = 0; i < count; i++) {
        if (members[i].name.size == 0 || members[i].name.size > UINT16_MAX)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "zip member's name of %zu bytes, the format holds 1 to 65535",
                             members[i].name.size);
    }
    return RESHARD_OK;
}

reshard_status zip_plan(struct zip_plan_member *members, uint32_t count, uint32_t alignment, uint64_t *directory_offset,
                        uint64_t *archive_bytes, reshard_error *err)
{
    reshard_status status = check_plan(members, count, alignment, err);
    if (status)
        return status;
    uint64_t at = 0, directory_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct zip_plan_member *member = &members[i];
        member->header_offset = at;
        at += unpadded_header_bytes(member);
        at = (at + alignment - 1) & ~(uint64_t)(alignment - 1);
        member->payload_offset = at;
        if (!checked_add_u64(at, member->bytes, &at) || at > INT64_MAX - (1 << 20))
            return too_large(member, err);
        member->descriptor_offset = at;
        at += descriptor_bytes(member);
        directory_bytes += central_bytes(member);
    }
    *directory_offset = at;
    *archive_bytes = at + directory_bytes + ZIP_END_BYTES + (count ? ZIP_END64_BYTES + ZIP_LOCATOR_BYTES : 0);
    return RESHARD_OK;
}

static uint16_t zip_write_flags_of(const struct zip_plan_member *member)
{
    return member->bytes ? ZIP_FLAG_UTF8 | ZIP_FLAG_DESCRIPTOR : ZIP_FLAG_UTF8;
}

void zip_write_header(const struct zip_plan_member *member, uint32_t alignment, struct buffer *out)
{
    uint64_t end = member->header_offset + unpadded_header_bytes(member);
    uint16_t padding = (uint16_t)(-end & (alignment - 1));
    uint32_t zip64 = local_zip64_bytes(member), extra = EXTRA_HEADER_BYTES + padding + (zip64 ? EXTRA_HEADER_BYTES + zip64 : 0);

    buffer_append_u32le(out, ZIP_LOCAL_SIGNATURE);
    buffer_append_u16le(out, 0);
    buffer_append_u16le(out, zip_write_flags_of(member));
    buffer_append_fill(out, 0, 2 + 4 + 12); /* method, time, CRC and sizes: the descriptor has them */
    buffer_append_u16le(out, (uint16_t)member->name.size);
    buffer_append_u16le(out, (uint16_t)extra);
    buffer_append_str(out, member->name);
    if (zip64) {
        buffer_append_u16le(out, ZIP_EXTRA_ZIP64);
        buffer_append_u16le(out, (uint16_t)zip64);
        if (is_big(member->bytes)) {
            buffer_append_u64le(out, member->bytes);
            buffer_append_u64le(out, 0);
        }
        if (is_big(member->header_offset))
            buffer_append_u64le(out, member->header_offset);
    }
    buffer_append_u16le(out, ZIP_EXTRA_PADDING);
    buffer_append_u16le(out, padding);
    buffer_append_fill(out, 'Z', padding);
}

void zip_write_descriptor(const struct zip_plan_member *member, struct buffer *out)
{
    if (descriptor_bytes(member) == 0)
        return;
    buffer_append_u32le(out, ZIP_DESCRIPTOR_SIGNATURE);
    buffer_append_u32le(out, member->crc32);
    for (int i = 0; i < 2; i++) { /* stored and full size are the same */
        if (needs_zip64(member))
            buffer_append_u64le(out, member->bytes);
        else
            buffer_append_u32le(out, (uint32_t)member->bytes);
    }
}

static uint32_t cut32(uint64_t value)
{
    return is_big(value) ? ZIP_BIG32 : (uint32_t)value;
}

static void write_central(const struct zip_plan_member *member, struct buffer *out)
{
    uint32_t zip64 = central_zip64_bytes(member);
    buffer_append_u32le(out, ZIP_CENTRAL_SIGNATURE);
    buffer_append_u32le(out, 0);
    buffer_append_u16le(out, zip_write_flags_of(member));
    buffer_append_fill(out, 0, 6); /* method, time */
    buffer_append_u32le(out, member->crc32);
    buffer_append_u32le(out, cut32(member->bytes));
    buffer_append_u32le(out, cut32(member->bytes));
    buffer_append_u16le(out, (uint16_t)member->name.size);
    buffer_append_u16le(out, (uint16_t)(zip64 ? EXTRA_HEADER_BYTES + zip64 : 0));
    buffer_append_fill(out, 0, 10); /* comment, disk, attributes */
    buffer_append_u32le(out, cut32(member->header_offset));
    buffer_append_str(out, member->name);
    if (!zip64)
        return;
    buffer_append_u16le(out, ZIP_EXTRA_ZIP64);
    buffer_append_u16le(out, (uint16_t)zip64);
    if (is_big(member->bytes)) {
        buffer_append_u64le(out, member->bytes);
        buffer_append_u64le(out, member->bytes);
    }
    if (is_big(member->header_offset))
        buffer_append_u64le(out, member->header_offset);
}

static void write_end64(uint32_t count, uint64_t directory_offset, uint64_t directory_bytes, struct buffer *out)
{
    buffer_append_u32le(out, ZIP_END64_SIGNATURE);
    buffer_append_u64le(out, ZIP_END64_BYTES - 12);
    buffer_append_u16le(out, END64_MADE_BY);
    buffer_append_u16le(out, END64_NEEDED);
    buffer_append_u64le(out, 0); /* two disk numbers */
    buffer_append_u64le(out, count);
    buffer_append_u64le(out, count);
    buffer_append_u64le(out, directory_bytes);
    buffer_append_u64le(out, directory_offset);

    buffer_append_u32le(out, ZIP_LOCATOR_SIGNATURE);
    buffer_append_u32le(out, 0);
    buffer_append_u64le(out, directory_offset + directory_bytes);
    buffer_append_u32le(out, 1);
}

/* An archive without members is known by beginning with its end record. */
static void write_end(uint32_t count, uint64_t directory_offset, uint64_t directory_bytes, struct buffer *out)
{
    uint16_t small_count = count >= ZIP_BIG16 ? ZIP_BIG16 : (uint16_t)count;
    if (count)
        write_end64(count, directory_offset, directory_bytes, out);
    buffer_append_u32le(out, ZIP_END_SIGNATURE);
    buffer_append_u32le(out, 0);
    buffer_append_u16le(out, small_count);
    buffer_append_u16le(out, small_count);
    buffer_append_u32le(out, cut32(directory_bytes));
    buffer_append_u32le(out, cut32(directory_offset));
    buffer_append_u16le(out, 0);
}

void zip_write_directory(const struct zip_plan_member *members, uint32_t count, uint64_t directory_offset, struct buffer *out)
{
    uint64_t directory_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        write_central(&members[i], out);
        directory_bytes += central_bytes(&members[i]);
    }
    write_end(count, directory_offset, directory_bytes, out);
}
