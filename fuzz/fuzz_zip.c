/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens arbitrary bytes as a zip archive, as they are and with the checksums set right, and reads every member in both ways, which must
 * agree. What opens is planned and written again from its members, and must then open with the same content. The same bytes are read as an
 * archive without its end.
 */
#include "outcome.h"
#include "zip_repair.h"

#include "base/crc32.h"
#include "encoding/zip.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const struct limits *small_limits(struct limits *limits)
{
    *limits = limits_default;
    limits->metadata_bytes = 4 << 20;
    limits->inflate_bytes = 4 << 20;
    limits->zip_entries = 1000;
    return limits;
}

/* Writes the archive again; false without memory. */
static bool write_again(const struct zip_archive *archive, const struct buffer *contents, struct buffer *out)
{
    struct zip_plan_member *members = calloc(archive->member_count, sizeof(*members));
    uint64_t directory_offset, archive_bytes;
    if (!members)
        return false;
    for (uint32_t i = 0; i < archive->member_count; i++) {
        members[i].name = archive->members[i].name;
        members[i].bytes = contents[i].size;
        members[i].crc32 = crc32_zip(0, contents[i].data, contents[i].size);
    }
    if (zip_plan(members, archive->member_count, 64, &directory_offset, &archive_bytes, NULL))
        abort();
    for (uint32_t i = 0; i < archive->member_count; i++) {
        zip_write_header(&members[i], 64, out);
        buffer_append(out, contents[i].data, contents[i].size);
        zip_write_descriptor(&members[i], out);
    }
    zip_write_directory(members, archive->member_count, directory_offset, out);
    if (!out->failed && out->size != archive_bytes)
        abort();
    free(members);
    return !out->failed;
}

/* Members that are found without the directory lie in the file, one behind the other. */
static void read_cut_off(const struct reader *reader, const struct limits *limits)
{
    struct zip_archive archive = { 0 };
    uint64_t end = 0;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(zip_open_cut_off(reader, limits, &archive, &err), &err))
        return;
    for (uint32_t i = 0; i < archive.member_count; i++) {
        const struct zip_member *member = &archive.members[i];
        if (member->header_offset < end || member->payload_offset > reader->size || member->bytes > reader->size - member->payload_offset)
            abort();
        end = member->payload_offset + member->bytes;
        outcome_text(member->name);
        outcome_number(end);
    }
    zip_release(&archive);
}

static void check_same(const struct buffer *written, const struct zip_archive *archive, const struct buffer *contents,
                       const struct limits *limits)
{
    struct reader reader = reader_over_memory(written->data, written->size, "written");
    struct zip_archive again = { 0 };
    if (zip_open(&reader, limits, &again, NULL) || again.member_count != archive->member_count)
        abort();
    for (uint32_t i = 0; i < again.member_count; i++) {
        struct buffer content = { 0 };
        if (again.members[i].payload_offset % 64 || !str_equal(again.members[i].name, archive->members[i].name) ||
            zip_read_member(&reader, &again, &again.members[i], limits, &content, NULL) ||
            !str_equal(buffer_str(&content), buffer_str(&contents[i])))
            abort();
        buffer_release(&content);
    }
    zip_release(&again);
}

static void read_archive(const uint8_t *bytes, size_t size)
{
    struct limits limits;
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct zip_archive archive = { 0 };
    struct buffer written = { 0 };
    read_cut_off(&reader, small_limits(&limits));
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(zip_open(&reader, &limits, &archive, &err), &err))
        return;
    bool is_good = true, has_directories = false;
    struct buffer *contents = calloc(archive.member_count, sizeof(*contents));
    for (uint32_t i = 0; contents && i < archive.member_count; i++) {
        const struct zip_member *member = &archive.members[i];
        reshard_status whole = outcome_status(zip_read_member(&reader, &archive, member, &limits, &contents[i], &err), &err);
        reshard_status streamed = outcome_status(zip_check_member(&reader, &archive, member, &limits, &err), &err);
        outcome_text(member->name);
        outcome_text(buffer_str(&contents[i]));
        if (whole != streamed && whole != RESHARD_ERR_LIMIT)
            abort();
        is_good = is_good && !whole;
        has_directories = has_directories || member->is_directory;
    }
    if (contents && is_good && !has_directories && write_again(&archive, contents, &written))
        check_same(&written, &archive, contents, &limits);
    for (uint32_t i = 0; contents && i < archive.member_count; i++)
        buffer_release(&contents[i]);
    free(contents);
    buffer_release(&written);
    zip_release(&archive);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    read_archive(bytes, size);
    uint8_t *copy = malloc(size + 1);
    if (copy) {
        memcpy(copy, bytes, size);
        zip_repair(copy, size);
        if (memcmp(copy, bytes, size) != 0)
            read_archive(copy, size);
    }
    free(copy);
    return 0;
}
