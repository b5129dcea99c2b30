/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/torch_save.h"

#include "base/cursor.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#define PROBE_BYTES 512       /* a tar header block */
#define SMALL_MEMBER_BYTES 64 /* version, byteorder … */
#define VERSION_MIN 1
#define VERSION_MAX 10

/* The first pickle holds one integer and nothing else: in binary, or as text in protocols 0 and 1. Whether it is exactly that is
 * found out when it is parsed. */
static bool starts_legacy(const uint8_t *bytes, size_t size)
{
    static const uint8_t magic[] = { 0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A, 0xA8, 0x50, 0x19 };
    static const char text[] = "L119547037146038801333356";
    if (size > 64)
        size = 64;
    return memmem(bytes, size, magic, sizeof(magic)) || memmem(bytes, size, text, sizeof(text) - 1);
}

static bool starts_tar(const uint8_t *bytes, size_t size)
{
    static const char *const first_members[] = { "sys_info", "storages", "tensors", "pickle", "PaxHeader", "./" };
    if (size < PROBE_BYTES || memcmp(bytes + 257, "ustar", 5) != 0)
        return false;
    for (size_t i = 0; i < sizeof(first_members) / sizeof(*first_members); i++)
        if (strncmp((const char *)bytes, first_members[i], strlen(first_members[i])) == 0)
            return true;
    return bytes[156] == 'x' || bytes[156] == 'g' || memcmp(bytes, "..", 2) == 0;
}

reshard_status torch_save_probe(const struct reader *reader, enum torch_container *out, reshard_error *err)
{
    uint8_t bytes[PROBE_BYTES];
    size_t size = reader->size < PROBE_BYTES ? (size_t)reader->size : PROBE_BYTES;
    *out = TORCH_NO_CONTAINER;
    if (size < 4)
        return RESHARD_OK;
    reshard_status status = reader_read(reader, 0, bytes, size, err);
    if (status)
        return status;
    if (memcmp(bytes, "PK\3\4", 4) == 0)
        *out = TORCH_ZIP;
    else if (starts_legacy(bytes, size))
        *out = TORCH_LEGACY;
    else if (starts_tar(bytes, size))
        *out = TORCH_TAR;
    return RESHARD_OK;
}

/* ---- what was a container ---- */

#define ZIP_TAIL_BYTES 22       /* the end record, without a comment as torch writes it */
#define DAMAGED_BITS_MAX 8

static reshard_status ends_as_zip(const struct reader *reader, bool *out, reshard_error *err)
{
    static const uint8_t signature[] = { 'P', 'K', 5, 6, 0, 0, 0, 0 };
    uint8_t tail[ZIP_TAIL_BYTES];
    *out = false;
    if (reader->size < sizeof(tail))
        return RESHARD_OK;
    reshard_status status = reader_read(reader, reader->size - sizeof(tail), tail, sizeof(tail), err);
    *out = !status && memcmp(tail, signature, sizeof(signature)) == 0 && tail[20] == 0 && tail[21] == 0;
    return status;
}

/* The pickles of the magic number and of version 1001, as protocol 2 writes them. */
static bool begins_nearly_legacy(const uint8_t *bytes, size_t size)
{
    static const uint8_t wanted[] = { 0x80, 2,    0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46, 0xF9, 0x20, 0x6A,
                                      0xA8, 0x50, 0x19, '.',  0x80, 2,    'M',  0xE9, 3,    '.' };
    int bits = 0;
    for (size_t i = 0; i < sizeof(wanted) && size >= sizeof(wanted); i++)
        bits += __builtin_popcount((unsigned)(bytes[i] ^ wanted[i]));
    return size >= sizeof(wanted) && bits <= DAMAGED_BITS_MAX;
}

reshard_status torch_save_check_raw(const struct reader *reader, reshard_error *err)
{
    uint8_t head[32] = { 0 };
    size_t size = reader->size < sizeof(head) ? (size_t)reader->size : sizeof(head);
    bool was_zip;
    reshard_status status = ends_as_zip(reader, &was_zip, err);
    if (!status)
        status = reader_read(reader, 0, head, size, err);
    if (status)
        return status;
    if (was_zip)
        return error_set_at(err, RESHARD_ERR_FORMAT, 0,
                            "ends as a zip archive and begins with %02x %02x %02x %02x, not with 50 4b 03 04: it is damaged", head[0],
                            head[1], head[2], head[3]);
    if (begins_nearly_legacy(head, size))
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "begins as a legacy stream of torch but for a few bits: it is damaged");
    return RESHARD_OK;
}

/* ---- zip ---- */

static const struct zip_member *torch_save_open_find_member(const struct torch_reading *reading, const char *name)
{
    uint32_t index = name_map_find(&reading->members, str_of(name));
    return index == NAME_NONE ? NULL : &reading->zip->members[index];
}

/* Names below the top directory, numbered as the members are. */
static reshard_status index_members(struct torch_reading *reading, reshard_error *err)
{
    const struct zip_archive *zip = reading->zip;
    for (uint32_t i = 0; i < zip->member_count; i++) {
        struct str name = zip->members[i].name;
        size_t skip = zip->top.size + 1;
        struct str below = name.size > skip ? (struct str){ name.data + skip, name.size - skip } : name;
        bool was_new;
        if (name_map_intern(&reading->members, below, &was_new) == NAME_NONE)
            return error_set_memory(err);
        if (!was_new)
            return error_set_at(err, RESHARD_ERR_FORMAT, zip->members[i].header_offset, "duplicate zip entry %.*s", STR_ARG(name));
    }
    return RESHARD_OK;
}

static reshard_status read_small(struct torch_reading *reading, const struct zip_member *member, struct buffer *out, reshard_error *err)
{
    buffer_clear(out);
    if (member->bytes > SMALL_MEMBER_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, "record %.*s of %" PRIu64 " bytes, at most %d are expected",
                            STR_ARG(member->name), member->bytes, SMALL_MEMBER_BYTES);
    return zip_read_member(reading->reader, reading->zip, member, reading->limits, out, err);
}

/* A decimal prefix, as torch reads it: "3\n", "3x". */
static reshard_status check_version(struct torch_reading *reading, struct buffer *text, reshard_error *err)
{
    const struct zip_member *member = torch_save_open_find_member(reading, ".data/version");
    if (!member)
        member = torch_save_open_find_member(reading, "version");
    if (!member && reading->is_cut_off)
        return RESHARD_OK;
    if (!member)
        return error_set(err, RESHARD_ERR_FORMAT, "no record version");
    reshard_status status = read_small(reading, member, text, err);
    if (status)
        return status;
    uint64_t version = 0;
    size_t digits = 0;
    for (; digits < text->size && text->data[digits] >= '0' && text->data[digits] <= '9' && version <= VERSION_MAX; digits++)
        version = version * 10 + (text->data[digits] - '0');
    if (digits == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, "version is not a number");
    if (version < VERSION_MIN || version > VERSION_MAX)
        return error_set_at(err, version > VERSION_MAX ? RESHARD_ERR_UNSUPPORTED : RESHARD_ERR_FORMAT, member->payload_offset,
                            "version %" PRIu64 " is not known, %d to %d are", version, VERSION_MIN, VERSION_MAX);
    return RESHARD_OK;
}

static reshard_status check_byteorder(struct torch_reading *reading, struct buffer *text, reshard_error *err)
{
    const struct zip_member *member = torch_save_open_find_member(reading, "byteorder");
    if (!member)
        return RESHARD_OK;
    reshard_status status = read_small(reading, member, text, err);
    if (status)
        return status;
    reading->archive->is_big_endian = str_is(buffer_str(text), "big");
    if (!reading->archive->is_big_endian && !str_is(buffer_str(text), "little"))
        return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, "byteorder is '%.*s', neither little nor big",
                            STR_ARG(buffer_str(text)));
    return RESHARD_OK;
}

static reshard_status check_alignment(struct torch_reading *reading, struct buffer *text, reshard_error *err)
{
    const struct zip_member *member = torch_save_open_find_member(reading, ".storage_alignment");
    if (!member)
        return RESHARD_OK;
    reshard_status status = read_small(reading, member, text, err);
    if (status)
        return status;
    uint64_t alignment;
    if (!str_to_u64(buffer_str(text), &alignment) || alignment > UINT32_MAX)
        return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, ".storage_alignment '%.*s' is not a number",
                            STR_ARG(buffer_str(text)));
    reading->archive->alignment = (uint32_t)alignment;
    return RESHARD_OK;
}

/* torch.serialization.skip_data() leaves holes: CRC 0 for every storage, while the other records have theirs. */
static void forget_skipped_checksums(struct torch_archive *archive)
{
    for (uint32_t i = 0; i < archive->storage_count; i++)
        if (archive->storages[i].bytes > 0 && archive->storages[i].crc32 != 0)
            return;
    for (uint32_t i = 0; i < archive->storage_count; i++)
        archive->storages[i].has_crc = archive->storages[i].has_crc && archive->storages[i].bytes == 0;
}

/* What an archive without a pickle is. */
static reshard_status refuse_zip(const struct torch_reading *reading, reshard_error *err)
{
    const struct zip_archive *zip = reading->zip;
    if (torch_save_open_find_member(reading, "archive_format")) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "torch.export archive, a program and not a state dict");
        error_hint(err, "torch.save(torch.export.load(FILE).state_dict, …) writes its weights as a file that is read");
        return RESHARD_ERR_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < zip->member_count; i++) {
        if (!str_ends_with(zip->members[i].name, ".npy"))
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED, "arrays of NumPy (npz), not what torch.save writes");
        error_hint(err, "reshard_open_options.format npz reads them");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return error_set(err, RESHARD_ERR_FORMAT, "no record data.pkl");
}

static reshard_status read_zip(struct torch_reading *reading, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct buffer text = { 0 };
    reshard_status status = index_members(reading, err);
    if (!status && torch_save_open_find_member(reading, "constants.pkl"))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "TorchScript archive, not a state dict");
    const struct zip_member *pickle = torch_save_open_find_member(reading, "data.pkl");
    if (!status && !pickle)
        status = refuse_zip(reading, err);
    if (!status)
        status = check_version(reading, &text, err);
    if (!status)
        status = check_byteorder(reading, &text, err);
    if (!status)
        status = check_alignment(reading, &text, err);
    if (!status && pickle->bytes > reading->limits->metadata_bytes)
        status = error_set_limit(err, "metadata_bytes", pickle->bytes, reading->limits->metadata_bytes);
    if (!status)
        status = zip_read_member(reading->reader, reading->zip, pickle, reading->limits, &archive->pickle, err);
    if (!status)
        status = torch_parse_object(reading, pickle->method == 0 ? pickle->payload_offset : 0, err);
    buffer_release(&text);
    return status;
}

reshard_status torch_open_zip(struct torch_reading *reading, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct zip_archive zip = { 0 };
    reshard_status status = zip_open(reading->reader, reading->limits, &zip, err);
    if (status == RESHARD_ERR_FORMAT && reading->may_be_cut_off) {
        reading->is_cut_off = true;
        status = zip_open_cut_off(reading->reader, reading->limits, &zip, err);
    }
    if (status)
        return status;
    reading->zip = &zip;
    archive->checksums_are_off = zip.crc_is_off;
    if (!arena_str(&archive->arena, zip.top, &archive->top))
        status = error_set_memory(err);
    if (!status)
        status = read_zip(reading, err);
    if (!status)
        forget_skipped_checksums(archive);
    if (!status && zip.trailing_bytes > 0)
        status = torch_warn(reading, err, "%" PRIu64 " bytes after the end of the archive are ignored", zip.trailing_bytes);
    reading->zip = NULL;
    zip_release(&zip);
    return status;
}

/* ---- any container ---- */

static reshard_status open_container(const struct torch_reading *setting, struct torch_archive *out, reshard_error *err)
{
    struct torch_archive archive = { 0 };
    struct torch_reading reading = *setting;
    const struct reader *reader = reading.reader;
    reading.archive = &archive;
    reshard_status status = torch_save_probe(reader, &archive.container, err);
    if (status)
        return status;
    if (reader->size == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "empty file");
    else if (archive.container == TORCH_NO_CONTAINER)
        status =
            error_set_at(err, RESHARD_ERR_FORMAT, 0, "neither a zip archive, nor a legacy stream, nor a tar as torch.save writes them");
    else if (archive.container == TORCH_ZIP)
        status = torch_open_zip(&reading, err);
    else if (archive.container == TORCH_LEGACY)
        status = torch_open_legacy(&reading, err);
    else
        status = torch_open_tar(&reading, err);

    name_map_release(&reading.members);
    name_map_release(&reading.keys);
    name_map_release(&reading.tensor_ids);
    name_map_release(&reading.globals);
    if (status) {
        torch_save_release(&archive);
        return status;
    }
    *out = archive;
    return RESHARD_OK;
}

reshard_status torch_save_open(const struct reader *reader, const struct limits *limits, int rank, struct torch_archive *out,
                               reshard_error *err)
{
    struct torch_reading reading = { .limits = limits, .reader = reader, .rank = rank };
    return open_container(&reading, out, err);
}

reshard_status torch_save_open_cut_off(const struct reader *reader, const struct limits *limits, int rank, struct torch_archive *out,
                                       reshard_error *err)
{
    struct torch_reading reading = { .limits = limits, .reader = reader, .rank = rank, .may_be_cut_off = true };
    return open_container(&reading, out, err);
}

void torch_save_release(struct torch_archive *archive)
{
    value_graph_release(&archive->graph);
    free(archive->storages);
    free(archive->tensors);
    free(archive->shards);
    free(archive->unknown_globals);
    free(archive->warnings);
    arena_release(&archive->arena);
    buffer_release(&archive->pickle);
    buffer_release(&archive->extra);
    *archive = (struct torch_archive){ 0 };
}
