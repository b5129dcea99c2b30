/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An archive whose end is gone: its members are found from their local headers, one after the other. A writer that streams, as torch does,
 * leaves sizes and CRC to a descriptor behind the payload; that is where its own size says so.
 */
#include "encoding/zip_parts.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"

#include <inttypes.h>
#include <stdlib.h>

#define SCAN_BYTES ((size_t)1 << 20)
#define DESCRIPTOR_BYTES 16
#define DESCRIPTOR64_BYTES 24

struct scan {
    const struct reader *reader;
    const struct limits *limits;
    struct zip_archive *archive;
    uint32_t capacity;
    uint8_t *window;
};

/* Sizes and CRC of a descriptor at an offset, if they are those of a payload that ends there. */
static bool parse_descriptor(const uint8_t *bytes, size_t size, uint64_t payload_bytes, struct zip_member *out, uint64_t *after)
{
    struct cursor c = cursor_over(bytes, size), wide;
    uint32_t signature, crc, stored, whole;
    uint64_t stored64, whole64;
    if (!cursor_u32le(&c, &signature) || signature != ZIP_DESCRIPTOR_SIGNATURE || !cursor_u32le(&c, &crc))
        return false;
    wide = c;
    out->crc32 = crc;
    out->stored_bytes = out->bytes = payload_bytes;
    *after = DESCRIPTOR64_BYTES;
    if (cursor_u64le(&wide, &stored64) && cursor_u64le(&wide, &whole64) && stored64 == payload_bytes && whole64 == payload_bytes)
        return true;
    *after = DESCRIPTOR_BYTES;
    return cursor_u32le(&c, &stored) && cursor_u32le(&c, &whole) && stored == payload_bytes && whole == payload_bytes;
}

/* Finds the descriptor of a stored member; *found false: the file ends before it. */
static reshard_status find_descriptor(struct scan *scan, struct zip_member *member, uint64_t *end, bool *found, reshard_error *err)
{
    static const uint8_t signature[] = { 'P', 'K', 7, 8 };
    uint64_t at = member->payload_offset, size = scan->reader->size;
    *found = false;
    while (size - at >= DESCRIPTOR_BYTES) {
        size_t step = size - at < SCAN_BYTES ? (size_t)(size - at) : SCAN_BYTES;
        reshard_status status = work_spend_steps(scan->limits->budget, step / 64 + 1, err);
        if (!status)
            status = reader_read(scan->reader, at, scan->window, step, err);
        if (status)
            return status;
        for (const uint8_t *hit = scan->window; (hit = memmem(hit, step - (size_t)(hit - scan->window), signature, 4)) != NULL; hit++) {
            uint64_t place = at + (uint64_t)(hit - scan->window), after;
            if (!parse_descriptor(hit, step - (size_t)(hit - scan->window), place - member->payload_offset, member, &after))
                continue;
            *found = true;
            *end = place + after;
            return RESHARD_OK;
        }
        at += step > DESCRIPTOR64_BYTES ? step - DESCRIPTOR64_BYTES : step; /* one may lie across two windows */
    }
    return RESHARD_OK;
}

/* What a local header leaves to its zip64 field, as numpy.savez does for all members. */
static reshard_status scan_sizes64(struct scan *scan, uint64_t at, uint16_t extra_bytes, struct zip_member *out, reshard_error *err)
{
    uint8_t *extra = malloc((size_t)extra_bytes + 1);
    reshard_status status = extra ? reader_read(scan->reader, at, extra, extra_bytes, err) : error_set_memory(err);
    if (!status)
        zip_local_sizes64(extra, extra_bytes, &out->bytes, &out->stored_bytes);
    free(extra);
    return status;
}

/* The member whose local header is at an offset; *found false: there is none that is whole. */
static reshard_status scan_member(struct scan *scan, uint64_t at, struct zip_member *out, uint64_t *end, bool *found, reshard_error *err)
{
    uint8_t header[ZIP_LOCAL_BYTES];
    uint32_t signature, crc, stored, whole;
    uint16_t name_bytes, extra_bytes;
    *found = false;
    if (!range_fits(at, sizeof(header), scan->reader->size))
        return RESHARD_OK;
    reshard_status status = reader_read(scan->reader, at, header, sizeof(header), err);
    struct cursor c = cursor_over(header, sizeof(header));
    *out = (struct zip_member){ .header_offset = at };
    bool is_header = cursor_u32le(&c, &signature) && signature == ZIP_LOCAL_SIGNATURE && cursor_skip(&c, 2) &&
                     cursor_u16le(&c, &out->flags) && cursor_u16le(&c, &out->method) && cursor_skip(&c, 4) && cursor_u32le(&c, &crc) &&
                     cursor_u32le(&c, &stored) && cursor_u32le(&c, &whole) && cursor_u16le(&c, &name_bytes) &&
                     cursor_u16le(&c, &extra_bytes);
    uint64_t payload = at + ZIP_LOCAL_BYTES + (is_header ? (uint64_t)name_bytes + extra_bytes : 0);
    if (status || !is_header || out->method != ZIP_METHOD_STORED || out->flags & ZIP_FLAGS_ENCRYPTED || payload > scan->reader->size)
        return status;
    char *name = arena_alloc(&scan->archive->arena, (size_t)name_bytes + 1);
    if (!name)
        return error_set_memory(err);
    status = reader_read(scan->reader, at + ZIP_LOCAL_BYTES, name, name_bytes, err);
    out->name = (struct str){ name, name_bytes };
    out->payload_offset = payload;
    if (status || out->flags & ZIP_FLAG_DESCRIPTOR)
        return status ? status : find_descriptor(scan, out, end, found, err);
    out->crc32 = crc;
    out->stored_bytes = stored;
    out->bytes = whole;
    if (stored == ZIP_BIG32 && whole == ZIP_BIG32)
        status = scan_sizes64(scan, payload - extra_bytes, extra_bytes, out, err);
    *found = !status && out->stored_bytes == out->bytes && range_fits(payload, out->bytes, scan->reader->size);
    *end = payload + out->bytes;
    return status;
}

static reshard_status scan_members(struct scan *scan, reshard_error *err)
{
    struct zip_member *members = NULL, member;
    uint64_t at = 0;
    bool found = true;
    reshard_status status = RESHARD_OK;
    while (found) {
        status = scan_member(scan, at, &member, &at, &found, err);
        if (status || !found)
            break;
        if (scan->archive->member_count >= scan->limits->zip_entries) {
            status = error_set_limit(err, "zip_entries", (uint64_t)scan->archive->member_count + 1, scan->limits->zip_entries);
            break;
        }
        if (!ARRAY_ROOM(members, scan->archive->member_count, scan->capacity)) {
            status = error_set_memory(err);
            break;
        }
        members[scan->archive->member_count++] = member;
    }
    size_t bytes = (size_t)scan->archive->member_count * sizeof(*members);
    scan->archive->members = arena_alloc(&scan->archive->arena, bytes + 1);
    if (!status && !scan->archive->members)
        status = error_set_memory(err);
    if (!status && bytes)
        memcpy(scan->archive->members, members, bytes);
    free(members);
    return status;
}

reshard_status zip_open_cut_off(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err)
{
    struct zip_archive archive = { .directory_offset = reader->size };
    struct scan scan = { .reader = reader, .limits = limits, .archive = &archive, .window = malloc(SCAN_BYTES) };
    reshard_status status = scan.window ? scan_members(&scan, err) : error_set_memory(err);
    if (!status && archive.member_count == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "no member of the zip archive is whole");
    if (!status)
        status = zip_index_names(&archive, err);
    free(scan.window);
    if (status) {
        zip_release(&archive);
        return status;
    }
    *out = archive;
    return RESHARD_OK;
}
