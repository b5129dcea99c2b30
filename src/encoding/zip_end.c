/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/zip_parts.h"

#include "base/checked.h"
#include "base/cursor.h"

#include <inttypes.h>

/* Up to here one read of everything is cheaper than two small ones. */
#define WHOLE_BYTES_MAX 32768
#define EDGE_BYTES 4096 /* holds the frame of a one-tensor archive, at either end */

const uint8_t *zip_cached(const struct zip_archive *archive, uint64_t offset, size_t size)
{
    const struct zip_cache *caches[] = { &archive->head, &archive->tail };
    for (int i = 0; i < 2; i++) {
        uint64_t start = caches[i]->offset;
        if (offset >= start && range_fits(offset - start, size, caches[i]->bytes.size))
            return (const uint8_t *)caches[i]->bytes.data + (offset - start);
    }
    return NULL;
}

static reshard_status fill_cache(const struct reader *reader, uint64_t offset, size_t size, struct arena *arena, struct zip_cache *cache,
                                 reshard_error *err)
{
    char *bytes = arena_alloc(arena, size);
    if (!bytes)
        return error_set_memory(err);
    reshard_status status = reader_read(reader, offset, bytes, size, err);
    if (status)
        return status;
    *cache = (struct zip_cache){ offset, { bytes, size } };
    return RESHARD_OK;
}

static reshard_status fill_caches(const struct reader *reader, struct zip_archive *archive, reshard_error *err)
{
    if (reader->size <= WHOLE_BYTES_MAX)
        return fill_cache(reader, 0, (size_t)reader->size, &archive->arena, &archive->tail, err);
    reshard_status status = fill_cache(reader, 0, EDGE_BYTES, &archive->arena, &archive->head, err);
    if (status)
        return status;
    return fill_cache(reader, reader->size - EDGE_BYTES, EDGE_BYTES, &archive->arena, &archive->tail, err);
}

static reshard_status check_start(const struct zip_archive *archive, reshard_error *err)
{
    const uint8_t *first = zip_cached(archive, 0, 4);
    if (load_le(first, 4) == ZIP_LOCAL_SIGNATURE)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_FORMAT, 0, "starts with %02x %02x %02x %02x, not with a zip signature (50 4b 03 04)", first[0],
                        first[1], first[2], first[3]);
}

/* The last end record in bytes; as every reader that matters does it. */
static bool find_last_end(struct str bytes, size_t *index)
{
    for (size_t i = bytes.size < ZIP_END_BYTES ? 0 : bytes.size - ZIP_END_BYTES + 1; i-- > 0;) {
        if (bytes.data[i] == 'P' && load_le((const uint8_t *)bytes.data + i, 4) == ZIP_END_SIGNATURE) {
            *index = i;
            return true;
        }
    }
    return false;
}

static reshard_status find_end(const struct reader *reader, struct zip_archive *archive, uint64_t *out, reshard_error *err)
{
    size_t index;
    bool found = find_last_end(archive->tail.bytes, &index);
    if (!found && archive->tail.offset > 0) {
        uint64_t wanted = reader->size < ZIP_END_SEARCH_BYTES ? reader->size : ZIP_END_SEARCH_BYTES;
        reshard_status status = fill_cache(reader, reader->size - wanted, (size_t)wanted, &archive->arena, &archive->tail, err);
        if (status)
            return status;
        found = find_last_end(archive->tail.bytes, &index);
    }
    if (!found)
        return error_set_at(err, RESHARD_ERR_FORMAT, reader->size,
                            "the zip archive of %" PRIu64 " bytes has no end record: it is cut off, or its end was overwritten",
                            reader->size);
    *out = archive->tail.offset + index;
    return RESHARD_OK;
}

/* Bytes near the end: from the cache, or read into scratch. */
static reshard_status end_bytes(const struct reader *reader, const struct zip_archive *archive, uint64_t offset, size_t size,
                                uint8_t *scratch, struct cursor *out, reshard_error *err)
{
    const uint8_t *bytes = zip_cached(archive, offset, size);
    if (!bytes) {
        reshard_status status = reader_read(reader, offset, scratch, size, err);
        if (status)
            return status;
        bytes = scratch;
    }
    *out = cursor_over(bytes, size);
    return RESHARD_OK;
}

struct classic_end {
    uint16_t disk, directory_disk, disk_count, count, comment_bytes;
    uint32_t bytes, offset;
};

static reshard_status read_classic_end(const struct zip_archive *archive, uint64_t at, struct classic_end *out, reshard_error *err)
{
    struct cursor c = cursor_over(zip_cached(archive, at, ZIP_END_BYTES), ZIP_END_BYTES);
    bool complete = cursor_skip(&c, 4) && cursor_u16le(&c, &out->disk) && cursor_u16le(&c, &out->directory_disk) &&
                    cursor_u16le(&c, &out->disk_count) && cursor_u16le(&c, &out->count) && cursor_u32le(&c, &out->bytes) &&
                    cursor_u32le(&c, &out->offset) && cursor_u16le(&c, &out->comment_bytes);
    uint64_t left = archive->tail.offset + archive->tail.bytes.size - at - ZIP_END_BYTES;
    if (!complete || out->comment_bytes > left)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "end record: comment of %" PRIu16 " bytes, %" PRIu64 " are left",
                            out->comment_bytes, left);
    return RESHARD_OK;
}

static reshard_status disagree(uint64_t at, const char *what, uint64_t classic, uint64_t zip64, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, at, "end records disagree on the %s: %" PRIu64 ", zip64 says %" PRIu64, what, classic,
                        zip64);
}

/* The zip64 end record at `at`, which must end where its locator starts. */
static reshard_status read_end64(const struct reader *reader, const struct zip_archive *archive, uint64_t at, uint64_t locator,
                                 const struct classic_end *classic, struct zip_directory *out, reshard_error *err)
{
    uint8_t scratch[ZIP_END64_BYTES];
    struct cursor c;
    if (at > locator || locator - at < ZIP_END64_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, locator,
                            "zip64 locator points at byte %" PRIu64 ", where no zip64 end record has room", at);
    reshard_status status = end_bytes(reader, archive, at, ZIP_END64_BYTES, scratch, &c, err);
    if (status)
        return status;
    uint32_t signature = 0, disk = 0, directory_disk = 0;
    uint64_t record_bytes = 0, disk_count = 0;
    bool complete = cursor_u32le(&c, &signature) && cursor_u64le(&c, &record_bytes) && cursor_skip(&c, 4) && cursor_u32le(&c, &disk) &&
                    cursor_u32le(&c, &directory_disk) && cursor_u64le(&c, &disk_count) && cursor_u64le(&c, &out->count) &&
                    cursor_u64le(&c, &out->bytes) && cursor_u64le(&c, &out->offset);
    if (!complete || signature != ZIP_END64_SIGNATURE)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "zip64 locator points at something else than a zip64 end record");
    if (record_bytes != locator - at - 12)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "zip64 end record says %" PRIu64 " bytes, its locator follows after %" PRIu64,
                            record_bytes, locator - at - 12);
    if (disk || directory_disk || disk_count != out->count)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "zip archive of several disks");
    if (classic->count != ZIP_BIG16 && classic->count != out->count)
        return disagree(at, "number of members", classic->count, out->count, err);
    if (classic->bytes != ZIP_BIG32 && classic->bytes != out->bytes)
        return disagree(at, "directory's size", classic->bytes, out->bytes, err);
    if (classic->offset != ZIP_BIG32 && classic->offset != out->offset)
        return disagree(at, "directory's offset", classic->offset, out->offset, err);
    return RESHARD_OK;
}

/* *directory_end: where the directory has to end, because the end records start there. */
static reshard_status read_ends(const struct reader *reader, const struct zip_archive *archive, const struct classic_end *classic,
                                struct zip_directory *out, uint64_t *directory_end, reshard_error *err)
{
    *directory_end = out->end_record;
    out->count = classic->count;
    out->bytes = classic->bytes;
    out->offset = classic->offset;
    if (out->end_record < ZIP_LOCATOR_BYTES)
        return RESHARD_OK;

    uint8_t scratch[ZIP_LOCATOR_BYTES];
    struct cursor c;
    uint64_t locator = out->end_record - ZIP_LOCATOR_BYTES, at = 0;
    reshard_status status = end_bytes(reader, archive, locator, ZIP_LOCATOR_BYTES, scratch, &c, err);
    if (status)
        return status;
    uint32_t signature = 0, disk = 0, disk_count = 0;
    bool complete = cursor_u32le(&c, &signature) && cursor_u32le(&c, &disk) && cursor_u64le(&c, &at) && cursor_u32le(&c, &disk_count);
    if (!complete || signature != ZIP_LOCATOR_SIGNATURE)
        return RESHARD_OK;
    if (disk || disk_count > 1)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, locator, "zip archive of several disks");
    *directory_end = at;
    return read_end64(reader, archive, at, locator, classic, out, err);
}

static reshard_status check_directory_range(const struct zip_directory *directory, uint64_t wanted_end, reshard_error *err)
{
    uint64_t end;
    if (!checked_add_u64(directory->offset, directory->bytes, &end) || end != wanted_end)
        return error_set_at(err, RESHARD_ERR_FORMAT, directory->end_record,
                            "end record places the directory at byte %" PRIu64 ", %" PRIu64 " bytes; it has to end at byte %" PRIu64,
                            directory->offset, directory->bytes, wanted_end);
    if (directory->count > directory->bytes / ZIP_CENTRAL_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, directory->end_record,
                            "end record counts %" PRIu64 " members, the directory of %" PRIu64 " bytes cannot hold them", directory->count,
                            directory->bytes);
    return RESHARD_OK;
}

reshard_status zip_find_directory(const struct reader *reader, struct zip_archive *archive, struct zip_directory *out, reshard_error *err)
{
    if (reader->size < ZIP_END_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "%" PRIu64 " bytes are too few for a zip archive", reader->size);
    reshard_status status = fill_caches(reader, archive, err);
    if (!status)
        status = check_start(archive, err);
    if (!status)
        status = find_end(reader, archive, &out->end_record, err);
    if (status)
        return status;

    struct classic_end classic;
    uint64_t directory_end;
    status = read_classic_end(archive, out->end_record, &classic, err);
    if (status)
        return status;
    if ((classic.disk && classic.disk != ZIP_BIG16) || (classic.directory_disk && classic.directory_disk != ZIP_BIG16) ||
        classic.disk_count != classic.count)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, out->end_record, "zip archive of several disks");
    archive->trailing_bytes = reader->size - out->end_record - ZIP_END_BYTES - classic.comment_bytes;
    status = read_ends(reader, archive, &classic, out, &directory_end, err);
    return status ? status : check_directory_range(out, directory_end, err);
}

reshard_status zip_check_gap(const struct reader *reader, const struct zip_archive *archive, uint64_t members_end, reshard_error *err)
{
    uint64_t gap = archive->directory_offset - members_end;
    if (gap < ZIP_END_BYTES)
        return RESHARD_OK;
    struct buffer bytes = { 0 };
    uint64_t wanted = gap < ZIP_END_SEARCH_BYTES ? gap : ZIP_END_SEARCH_BYTES, start = archive->directory_offset - wanted;
    reshard_status status = reader_append(reader, start, wanted, &bytes, err);
    size_t index;
    if (!status && find_last_end(buffer_str(&bytes), &index))
        status =
            error_set_at(err, RESHARD_ERR_FORMAT, start + index, "a second zip end record hides between the last member and the directory");
    buffer_release(&bytes);
    return status;
}
