/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/zip_parts.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"

#include <inttypes.h>
#include <stdlib.h>

#define WINDOW_BYTES ((size_t)64 << 10)
#define NEAR_BYTES ((size_t)16 << 10) /* headers that lie closer share a read, with the payload between them */
#define EXTRA_BYTES_GUESS 256 /* what is read behind a name when no other header is near */
#define LOCAL_BYTES_MAX (ZIP_LOCAL_BYTES + 2 * 65535)

/* Where local headers are read through: headers that lie close together share a read. */
struct window {
    const struct reader *reader;
    const struct zip_archive *archive;
    uint8_t *bytes;
    uint64_t offset;
    size_t size, capacity;
};

static reshard_status window_fill(struct window *window, uint64_t offset, size_t size, reshard_error *err)
{
    if (size > window->capacity) {
        size_t capacity = size > WINDOW_BYTES ? LOCAL_BYTES_MAX : WINDOW_BYTES;
        uint8_t *bytes = realloc(window->bytes, capacity);
        if (!bytes)
            return error_set_memory(err);
        window->bytes = bytes;
        window->capacity = capacity;
    }
    window->size = 0;
    reshard_status status = reader_read(window->reader, offset, window->bytes, size, err);
    if (status)
        return status;
    window->offset = offset;
    window->size = size;
    return RESHARD_OK;
}

/* The archive's bytes [offset, offset + size), which lie before the directory; when they must be read, up to `most` bytes are. */
static reshard_status window_view(struct window *window, uint64_t offset, size_t size, size_t most, const uint8_t **out, reshard_error *err)
{
    *out = zip_cached(window->archive, offset, size);
    if (*out)
        return RESHARD_OK;
    uint64_t left = window->archive->directory_offset > offset ? window->archive->directory_offset - offset : 0;
    if (size > left)
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes reach into the directory at byte %" PRIu64, size,
                         window->archive->directory_offset);
    if (offset < window->offset || !range_fits(offset - window->offset, size, window->size)) {
        size_t step = most > size ? most : size;
        reshard_status status = window_fill(window, offset, step < left ? step : (size_t)left, err);
        if (status)
            return status;
    }
    *out = window->bytes + (offset - window->offset);
    return RESHARD_OK;
}

struct local {
    uint16_t flags, method, name_bytes, extra_bytes;
    uint32_t stored_bytes, bytes;
};

static bool read_local(struct cursor *c, struct local *out)
{
    uint32_t signature;
    return cursor_u32le(c, &signature) && signature == ZIP_LOCAL_SIGNATURE && cursor_skip(c, 2) && cursor_u16le(c, &out->flags) &&
           cursor_u16le(c, &out->method) && cursor_skip(c, 8) && cursor_u32le(c, &out->stored_bytes) && cursor_u32le(c, &out->bytes) &&
           cursor_u16le(c, &out->name_bytes) && cursor_u16le(c, &out->extra_bytes);
}

/* Local extra fields may end in padding that is no field: the search ends where they stop making sense. */
bool zip_local_sizes64(const uint8_t *extra, size_t size, uint64_t *bytes, uint64_t *stored_bytes)
{
    struct cursor c = cursor_over(extra, size);
    uint16_t id, field_bytes;
    struct str field;
    while (cursor_u16le(&c, &id) && cursor_u16le(&c, &field_bytes) && cursor_bytes(&c, field_bytes, &field)) {
        struct cursor inner = cursor_over(field.data, field.size);
        if (id == ZIP_EXTRA_ZIP64)
            return cursor_u64le(&inner, bytes) && cursor_u64le(&inner, stored_bytes);
    }
    return false;
}

/* With a data descriptor the local header may leave a size at 0. */
static bool size_agrees(uint64_t local, uint64_t central, bool has_descriptor)
{
    return local == central || (local == 0 && has_descriptor);
}

static reshard_status check_sizes(const struct local *local, const uint8_t *extra, const struct zip_member *member, reshard_error *err)
{
    uint64_t bytes = local->bytes, stored_bytes = local->stored_bytes, bytes64 = 0, stored_bytes64 = 0;
    bool has_descriptor = (local->flags & ZIP_FLAG_DESCRIPTOR) != 0;
    bool has_zip64 = zip_local_sizes64(extra, local->extra_bytes, &bytes64, &stored_bytes64);
    if (local->bytes == ZIP_BIG32 && has_zip64)
        bytes = bytes64;
    if (local->stored_bytes == ZIP_BIG32 && has_zip64)
        stored_bytes = stored_bytes64;
    if (!size_agrees(bytes, member->bytes, has_descriptor) || !size_agrees(stored_bytes, member->stored_bytes, has_descriptor))
        return error_set(err, RESHARD_ERR_FORMAT, "sizes %" PRIu64 " and %" PRIu64 ", the directory says %" PRIu64 " and %" PRIu64,
                         stored_bytes, bytes, member->stored_bytes, member->bytes);
    return RESHARD_OK;
}

static reshard_status check_local(const struct local *local, const uint8_t *name, const struct zip_member *member, reshard_error *err)
{
    if (local->method != member->method)
        return error_set(err, RESHARD_ERR_FORMAT, "method %u, the directory says %u", local->method, member->method);
    if ((local->flags ^ member->flags) & ZIP_FLAGS_ENCRYPTED)
        return error_set(err, RESHARD_ERR_FORMAT, "encryption flags 0x%04x, the directory says 0x%04x", local->flags, member->flags);
    struct str local_name = { (const char *)name, local->name_bytes };
    if (!str_equal(local_name, member->name))
        return error_set(err, RESHARD_ERR_FORMAT, "name '%.*s' differs from the directory's", STR_ARG(local_name));
    return RESHARD_OK;
}

static reshard_status locate(struct window *window, struct zip_member *member, size_t most, reshard_error *err)
{
    uint64_t at = member->header_offset;
    size_t fixed = ZIP_LOCAL_BYTES + member->name.size;
    const uint8_t *bytes;
    struct local local = { 0 };
    reshard_status status = window_view(window, at, fixed, most, &bytes, err);
    if (status)
        return status;
    struct cursor c = cursor_over(bytes, fixed);
    if (!read_local(&c, &local))
        return error_set(err, RESHARD_ERR_FORMAT, "starts with %02x %02x %02x %02x, not with 50 4b 03 04", bytes[0], bytes[1], bytes[2],
                         bytes[3]);
    size_t whole = ZIP_LOCAL_BYTES + (size_t)local.name_bytes + local.extra_bytes;
    status = window_view(window, at, whole, most, &bytes, err);
    if (!status)
        status = check_local(&local, bytes + ZIP_LOCAL_BYTES, member, err);
    if (!status)
        status = check_sizes(&local, bytes + ZIP_LOCAL_BYTES + local.name_bytes, member, err);
    if (status)
        return status;
    member->payload_offset = at + whole;
    if (!range_fits(member->payload_offset, member->stored_bytes, window->archive->directory_offset))
        return error_set(err, RESHARD_ERR_FORMAT, "its %" PRIu64 " bytes reach beyond the directory at byte %" PRIu64, member->stored_bytes,
                         window->archive->directory_offset);
    return RESHARD_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct zip_member *x = *(struct zip_member *const *)a, *y = *(struct zip_member *const *)b;
    return (x->header_offset > y->header_offset) - (x->header_offset < y->header_offset);
}

/* Members in physical order, which nearly always is the directory's: then *order stays NULL. */
static bool sort_members(struct zip_archive *archive, struct zip_member ***order)
{
    uint32_t sorted = 1;
    while (sorted < archive->member_count && archive->members[sorted - 1].header_offset <= archive->members[sorted].header_offset)
        sorted++;
    if (sorted >= archive->member_count)
        return true;
    struct zip_member **pointers = array_new(archive->member_count, sizeof(*pointers));
    if (!pointers)
        return false;
    for (uint32_t i = 0; i < archive->member_count; i++)
        pointers[i] = &archive->members[i];
    qsort(pointers, archive->member_count, sizeof(*pointers), compare_offsets);
    *order = pointers;
    return true;
}

static struct zip_member *zip_member_at(struct zip_archive *archive, struct zip_member **order, uint32_t i)
{
    return order ? order[i] : &archive->members[i];
}

/* How much to read at the i-th header: up to the last of those behind it that each lie near the one before, and little more than that. */
static size_t window_for(const struct window *window, struct zip_archive *archive, struct zip_member **order, uint32_t i)
{
    const struct zip_member *first = zip_member_at(archive, order, i), *last = first;
    if (range_fits(first->header_offset - window->offset, ZIP_LOCAL_BYTES, window->size))
        return 0; /* it has been read with one before */
    for (uint32_t j = i + 1; j < archive->member_count; j++) {
        const struct zip_member *next = zip_member_at(archive, order, j);
        if (next->header_offset - last->header_offset >= NEAR_BYTES || next->header_offset - first->header_offset >= WINDOW_BYTES)
            break;
        last = next;
    }
    size_t most = (size_t)(last->header_offset - first->header_offset) + ZIP_LOCAL_BYTES + last->name.size + EXTRA_BYTES_GUESS;
    return most < WINDOW_BYTES ? most : WINDOW_BYTES;
}

static reshard_status locate_in_order(struct window *window, struct zip_archive *archive, struct zip_member **order, uint64_t *members_end,
                                      reshard_error *err)
{
    uint64_t end = 0;
    const struct zip_member *before = NULL;
    for (uint32_t i = 0; i < archive->member_count; i++) {
        struct zip_member *member = zip_member_at(archive, order, i);
        reshard_status status;
        if (!before && member->header_offset)
            status = error_set(err, RESHARD_ERR_FORMAT, "%" PRIu64 " bytes before the first member are not in the directory",
                               member->header_offset);
        else if (before && member->header_offset < end)
            status = error_set(err, RESHARD_ERR_FORMAT, "overlaps '%.*s', which ends at byte %" PRIu64, STR_ARG(before->name), end);
        else
            status = locate(window, member, window_for(window, archive, order, i), err);
        if (status) {
            error_prefix(err, "zip member '%.*s': local header", STR_ARG(member->name));
            if (err && err->offset < 0)
                err->offset = (int64_t)member->header_offset;
            return status;
        }
        end = member->payload_offset + member->stored_bytes + (member->flags & ZIP_FLAG_DESCRIPTOR ? ZIP_DESCRIPTOR_BYTES_MIN : 0);
        before = member;
    }
    *members_end = end;
    return RESHARD_OK;
}

reshard_status zip_locate_members(const struct reader *reader, struct zip_archive *archive, uint64_t *members_end, reshard_error *err)
{
    if (archive->member_count == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, archive->directory_offset,
                            "the zip directory is empty, but the archive starts with a member");
    struct zip_member **order = NULL;
    if (!sort_members(archive, &order))
        return error_set_memory(err);
    struct window window = { .reader = reader, .archive = archive };
    reshard_status status = locate_in_order(&window, archive, order, members_end, err);
    if (!status && *members_end > archive->directory_offset)
        status = error_set_at(err, RESHARD_ERR_FORMAT, archive->directory_offset,
                              "the zip directory overlaps the last member, which ends at byte %" PRIu64, *members_end);
    free(window.bytes);
    free(order);
    return status;
}
