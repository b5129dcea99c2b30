/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/zip.h"

#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/zip_parts.h"

#include <inttypes.h>

/* One central header before its zip64 values are resolved. */
struct central {
    uint16_t flags, method, name_bytes, extra_bytes, comment_bytes, disk;
    uint32_t crc32, stored_bytes, bytes, header_offset;
    struct str name, extra;
};

static bool read_central(struct cursor *c, struct central *out)
{
    struct str comment;
    return cursor_skip(c, 4) && cursor_u16le(c, &out->flags) && cursor_u16le(c, &out->method) && cursor_skip(c, 4) &&
           cursor_u32le(c, &out->crc32) && cursor_u32le(c, &out->stored_bytes) && cursor_u32le(c, &out->bytes) &&
           cursor_u16le(c, &out->name_bytes) && cursor_u16le(c, &out->extra_bytes) && cursor_u16le(c, &out->comment_bytes) &&
           cursor_u16le(c, &out->disk) && cursor_skip(c, 6) && cursor_u32le(c, &out->header_offset) &&
           cursor_bytes(c, out->name_bytes, &out->name) && cursor_bytes(c, out->extra_bytes, &out->extra) &&
           cursor_bytes(c, out->comment_bytes, &comment);
}

/* The zip64 field of a central header; *found false if there is none. */
static reshard_status find_zip64(struct str extra, struct cursor *out, bool *found, reshard_error *err)
{
    struct cursor c = cursor_over(extra.data, extra.size);
    *found = false;
    while (cursor_left(&c)) {
        uint16_t id, size;
        struct str field;
        if (!cursor_u16le(&c, &id) || !cursor_u16le(&c, &size) || !cursor_bytes(&c, size, &field))
            return error_set(err, RESHARD_ERR_FORMAT, "extra field is longer than its room of %zu bytes", extra.size);
        if (id != ZIP_EXTRA_ZIP64)
            continue;
        if (*found)
            return error_set(err, RESHARD_ERR_FORMAT, "two zip64 fields");
        *found = true;
        *out = cursor_over(field.data, field.size);
    }
    return RESHARD_OK;
}

/* A value that did not fit 32 bits comes from the zip64 field, in the field's fixed order. */
static bool resolve_big(uint32_t small, struct cursor *field, uint64_t *out)
{
    if (small != ZIP_BIG32) {
        *out = small;
        return true;
    }
    return cursor_u64le(field, out);
}

static reshard_status resolve_values(const struct central *central, struct zip_member *out, reshard_error *err)
{
    struct cursor field = { 0 };
    bool found;
    reshard_status status = find_zip64(central->extra, &field, &found, err);
    if (status)
        return status;
    if (!resolve_big(central->bytes, &field, &out->bytes) || !resolve_big(central->stored_bytes, &field, &out->stored_bytes) ||
        !resolve_big(central->header_offset, &field, &out->header_offset))
        return error_set(err, RESHARD_ERR_FORMAT, found ? "zip64 field is too short for the values that are 0xFFFFFFFF"
                                                        : "a size or offset is 0xFFFFFFFF, and there is no zip64 field");
    uint32_t disk = central->disk;
    if (central->disk == ZIP_BIG16 && !cursor_u32le(&field, &disk))
        return error_set(err, RESHARD_ERR_FORMAT, "zip64 field is too short for the disk number");
    if (disk)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "lies on disk %" PRIu32 " of an archive of several disks", disk);
    return RESHARD_OK;
}

static reshard_status check_member(const struct zip_member *member, uint64_t directory_offset, reshard_error *err)
{
    uint64_t size;
    if (member->flags & ZIP_FLAGS_ENCRYPTED)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "is encrypted (flags 0x%04x)", member->flags);
    if (member->method != ZIP_METHOD_STORED && member->method != ZIP_METHOD_DEFLATED)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "compression method %u; 0 (stored) and 8 (deflated) are known", member->method);
    if (member->method == ZIP_METHOD_STORED && member->stored_bytes != member->bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "is stored, but of sizes %" PRIu64 " and %" PRIu64, member->stored_bytes, member->bytes);
    if (member->is_directory && member->bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "is a directory with %" PRIu64 " bytes of content", member->bytes);
    if (!checked_add_u64(member->stored_bytes, ZIP_LOCAL_BYTES + (uint64_t)member->name.size, &size) ||
        !range_fits(member->header_offset, size, directory_offset))
        return error_set(err, RESHARD_ERR_FORMAT, "%" PRIu64 " bytes from byte %" PRIu64 " on reach beyond the directory at byte %" PRIu64,
                         member->stored_bytes, member->header_offset, directory_offset);
    return RESHARD_OK;
}

static reshard_status zip_read_take_member(const struct central *central, uint64_t directory_offset, struct zip_member *out,
                                           reshard_error *err)
{
    *out = (struct zip_member){
        .name = central->name,
        .crc32 = central->crc32,
        .method = central->method,
        .flags = central->flags,
        .is_directory = central->name.size && central->name.data[central->name.size - 1] == '/',
    };
    reshard_status status = resolve_values(central, out, err);
    if (!status)
        status = check_member(out, directory_offset, err);
    if (status)
        error_prefix(err, "zip member '%.*s'", STR_ARG(central->name));
    return status;
}

static reshard_status place_error(reshard_status status, uint64_t at, reshard_error *err)
{
    if (err && err->offset < 0)
        err->offset = (int64_t)at;
    return status;
}

static reshard_status walk_directory(struct str bytes, const struct zip_directory *directory, struct zip_archive *archive,
                                     reshard_error *err)
{
    struct cursor c = cursor_over(bytes.data, bytes.size);
    for (uint32_t i = 0; i < archive->member_count; i++) {
        uint64_t at = directory->offset + c.pos;
        uint32_t signature;
        if (!cursor_u32le(&c, &signature) || signature != ZIP_CENTRAL_SIGNATURE)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "zip directory: no header of member %" PRIu32 " of %" PRIu32 " here", i + 1,
                                archive->member_count);
        struct central central;
        if (!read_central(&c, &central))
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "zip directory: header of member %" PRIu32 " reaches beyond the directory",
                                i + 1);
        reshard_status status = zip_read_take_member(&central, directory->offset, &archive->members[i], err);
        if (status)
            return place_error(status, at, err);
    }
    if (cursor_left(&c))
        return error_set_at(err, RESHARD_ERR_FORMAT, directory->offset + c.pos,
                            "zip directory: %zu bytes follow the %" PRIu32 " members that the end record counts", cursor_left(&c),
                            archive->member_count);
    return RESHARD_OK;
}

static reshard_status load_directory(const struct reader *reader, const struct zip_directory *directory, const struct limits *limits,
                                     struct zip_archive *archive, reshard_error *err)
{
    if (directory->count > limits->zip_entries)
        return error_set_limit(err, "zip_entries", directory->count, limits->zip_entries);
    if (directory->bytes > limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", directory->bytes, limits->metadata_bytes);
    if (directory->count >= UINT32_MAX || directory->bytes > SIZE_MAX)
        return error_set_memory(err);

    work_add_input(limits->budget, directory->bytes);
    struct str bytes = { (const char *)zip_cached(archive, directory->offset, (size_t)directory->bytes), (size_t)directory->bytes };
    if (!bytes.data) {
        char *copy = arena_alloc(&archive->arena, bytes.size);
        if (!copy)
            return error_set_memory(err);
        reshard_status status = reader_read(reader, directory->offset, copy, bytes.size, err);
        if (status)
            return status;
        bytes.data = copy;
    }
    archive->directory_offset = directory->offset;
    archive->member_count = (uint32_t)directory->count;
    archive->members = arena_array(&archive->arena, archive->member_count, sizeof(*archive->members));
    if (!archive->members)
        return error_set_memory(err);
    return walk_directory(bytes, directory, archive, err);
}

/* Checksums are off if no member that has content has one. */
static bool checksums_are_off(const struct zip_archive *archive)
{
    for (uint32_t i = 0; i < archive->member_count; i++) {
        if (archive->members[i].crc32)
            return false;
    }
    return true;
}

bool zip_has_all_crcs(const struct zip_archive *archive)
{
    for (uint32_t i = 0; i < archive->member_count; i++) {
        if (archive->members[i].bytes && archive->members[i].crc32 == 0)
            return false;
    }
    return true;
}

static reshard_status zip_read_archive(const struct reader *reader, const struct limits *limits, enum zip_naming naming,
                                       struct zip_archive *out, reshard_error *err)
{
    struct zip_archive archive = { .naming = naming };
    struct zip_directory directory = { 0 };
    uint64_t members_end = 0;
    reshard_status status = zip_find_directory(reader, &archive, &directory, err);
    if (!status)
        status = load_directory(reader, &directory, limits, &archive, err);
    if (!status)
        status = zip_index_names(&archive, err);
    if (!status)
        status = zip_locate_members(reader, &archive, &members_end, err);
    if (!status)
        status = zip_check_gap(reader, &archive, members_end, err);
    if (status) {
        zip_release(&archive);
        return status;
    }
    archive.crc_is_off = checksums_are_off(&archive);
    *out = archive;
    return RESHARD_OK;
}

reshard_status zip_open(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err)
{
    return zip_read_archive(reader, limits, ZIP_NAMES_FOLDED, out, err);
}

reshard_status zip_open_cased(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err)
{
    return zip_read_archive(reader, limits, ZIP_NAMES_CASED, out, err);
}

reshard_status zip_open_rewritten(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err)
{
    return zip_read_archive(reader, limits, ZIP_NAMES_REWRITTEN, out, err);
}

void zip_release(struct zip_archive *archive)
{
    arena_release(&archive->arena);
    *archive = (struct zip_archive){ 0 };
}
