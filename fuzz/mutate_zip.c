/* SPDX-License-Identifier: Apache-2.0 */
#include "mutate.h"

#include "base/buffer.h"
#include "base/crc32.h"
#include "zip_repair.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define MEMBERS_MAX 128
#define NAME_MAX_BYTES 128
#define CONTENT_BYTES_MAX (256 << 10)
#define ALIGNMENT 64
#define EXTRA_HEAD 4

struct member {
    char name[NAME_MAX_BYTES];
    size_t name_size;
    uint8_t *content; /* malloc'd; as it is stored unless is_deflated */
    size_t size;
    bool is_deflated;
};

struct archive {
    struct member members[MEMBERS_MAX];
    size_t count;
};

static uint32_t get(const uint8_t *at, int size)
{
    uint32_t value = 0;
    for (int i = 0; i < size; i++)
        value |= (uint32_t)at[i] << 8 * i;
    return value;
}

/* ---- reading ---- */

static bool inflate_raw(const uint8_t *bytes, size_t size, struct member *member)
{
    z_stream stream = {
        .next_in = (Bytef *)(uintptr_t)bytes, .avail_in = (uInt)size, .next_out = member->content, .avail_out = (uInt)member->size
    };
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK)
        return false;
    bool whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
    inflateEnd(&stream);
    return whole;
}

static bool read_member(const uint8_t *bytes, size_t size, const uint8_t *central, struct member *out)
{
    size_t header = get(central + 42, 4), stored = get(central + 20, 4);
    unsigned method = get(central + 10, 2);
    *out = (struct member){ .size = get(central + 24, 4), .name_size = get(central + 28, 2), .is_deflated = method == 8 };
    if (header > size || size - header < 30 || out->name_size > NAME_MAX_BYTES || out->size > CONTENT_BYTES_MAX ||
        (method != 0 && method != 8))
        return false;
    memcpy(out->name, central + 46, out->name_size);
    size_t payload = header + 30 + get(bytes + header + 26, 2) + get(bytes + header + 28, 2);
    if (payload > size || size - payload < stored || (method == 0 && stored != out->size))
        return false;
    out->content = malloc(out->size + 1);
    if (!out->content)
        return false;
    if (method == 0)
        memcpy(out->content, bytes + payload, out->size);
    return method == 0 || inflate_raw(bytes + payload, stored, out);
}

static void release(struct archive *archive)
{
    for (size_t i = 0; i < archive->count; i++)
        free(archive->members[i].content);
    archive->count = 0;
}

/* An archive that fills the bytes, of members without zip64; false: some other one. */
static bool read_archive(const uint8_t *bytes, size_t size, struct archive *out)
{
    out->count = 0;
    if (size < 22 || memcmp(bytes + size - 22, "PK\5\6", 4) != 0)
        return false;
    size_t left = get(bytes + size - 10, 4), at = get(bytes + size - 6, 4);
    if (at > size || left > size - at)
        return false;
    while (left >= 46 && out->count < MEMBERS_MAX) {
        size_t entry = 46 + get(bytes + at + 28, 2) + get(bytes + at + 30, 2) + get(bytes + at + 32, 2);
        struct member *member = &out->members[out->count++];
        member->content = NULL;
        if (entry > left || memcmp(bytes + at, "PK\1\2", 4) != 0 || !read_member(bytes, size, bytes + at, member)) {
            release(out);
            return false;
        }
        at += entry;
        left -= entry;
    }
    return out->count > 0;
}

/* ---- writing ---- */

static bool append_content(const struct member *member, struct buffer *out, size_t *stored)
{
    size_t start = out->size;
    if (!member->is_deflated) {
        *stored = member->size;
        return buffer_append(out, member->content, member->size);
    }
    z_stream stream = { 0 };
    if (deflateInit2(&stream, 1, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return false;
    size_t bound = deflateBound(&stream, member->size);
    uint8_t *room = buffer_extend(out, bound);
    stream.next_in = member->content, stream.avail_in = (uInt)member->size;
    stream.next_out = room, stream.avail_out = (uInt)bound;
    bool done = room && deflate(&stream, Z_FINISH) == Z_STREAM_END;
    deflateEnd(&stream);
    *stored = bound - stream.avail_out;
    out->size = start + (done ? *stored : 0);
    return done;
}

/* What local header and directory entry have in common. */
static void append_fields(const struct member *member, struct buffer *out, uint32_t crc, size_t stored, size_t extra)
{
    buffer_append_u16le(out, 0);
    buffer_append_u16le(out, member->is_deflated ? 8 : 0);
    buffer_append_u32le(out, 0);
    buffer_append_u32le(out, crc);
    buffer_append_u32le(out, (uint32_t)stored);
    buffer_append_u32le(out, (uint32_t)member->size);
    buffer_append_u16le(out, (uint16_t)member->name_size);
    buffer_append_u16le(out, (uint16_t)extra);
}

static bool append_member(const struct member *member, struct buffer *out, struct buffer *directory)
{
    struct buffer content = { 0 };
    size_t header = out->size, stored = 0, end = header + 30 + member->name_size + EXTRA_HEAD;
    size_t pad = (ALIGNMENT - end % ALIGNMENT) % ALIGNMENT;
    uint32_t crc = crc32_zip(0, member->content, member->size);
    bool done = append_content(member, &content, &stored);
    buffer_append_text(out, "PK\3\4");
    buffer_append_u16le(out, 20);
    append_fields(member, out, crc, stored, EXTRA_HEAD + pad);
    buffer_append(out, member->name, member->name_size);
    buffer_append_text(out, "FB");
    buffer_append_u16le(out, (uint16_t)pad);
    buffer_append_fill(out, 'Z', pad);
    buffer_append(out, content.data, content.size);
    buffer_append_text(directory, "PK\1\2");
    buffer_append_u32le(directory, 20 << 16);
    append_fields(member, directory, crc, stored, 0);
    buffer_append_fill(directory, 0, 10);
    buffer_append_u32le(directory, (uint32_t)header);
    buffer_append(directory, member->name, member->name_size);
    buffer_release(&content);
    return done;
}

static size_t write_archive(const struct archive *archive, uint8_t *bytes, size_t size, size_t size_max)
{
    struct buffer out = { 0 }, directory = { 0 };
    bool done = true;
    for (size_t i = 0; i < archive->count; i++)
        done = append_member(&archive->members[i], &out, &directory) && done;
    size_t directory_at = out.size;
    buffer_append(&out, directory.data, directory.size);
    buffer_append_text(&out, "PK\5\6");
    buffer_append_u32le(&out, 0);
    buffer_append_u16le(&out, (uint16_t)archive->count);
    buffer_append_u16le(&out, (uint16_t)archive->count);
    buffer_append_u32le(&out, (uint32_t)directory.size);
    buffer_append_u32le(&out, (uint32_t)directory_at);
    buffer_append_u16le(&out, 0);
    if (done && !out.failed && !directory.failed && out.size <= size_max) {
        memcpy(bytes, out.data, out.size);
        size = out.size;
    }
    buffer_release(&out);
    buffer_release(&directory);
    return size;
}

/* ---- changing ---- */

static void mutate_content(struct member *member, unsigned seed)
{
    size_t room = member->size + member->size / 2 + 64;
    uint8_t *grown = realloc(member->content, room + 1);
    if (!grown)
        return;
    member->content = grown;
    bool is_pickle = member->size > 1 && grown[0] == 0x80;
    member->size = is_pickle ? mutate_pickle(grown, member->size, room, seed) : LLVMFuzzerMutate(grown, member->size, room);
}

static void repeat_member(struct archive *archive, size_t from)
{
    struct member *copy = &archive->members[archive->count];
    if (archive->count == MEMBERS_MAX)
        return;
    *copy = archive->members[from];
    copy->content = malloc(copy->size + 1);
    if (!copy->content)
        return;
    memcpy(copy->content, archive->members[from].content, copy->size);
    archive->count++;
}

static void swap_contents(struct member *a, struct member *b)
{
    struct member old = *a;
    a->content = b->content, a->size = b->size;
    b->content = old.content, b->size = old.size;
}

/* The pickle decides most. */
static size_t pick_member(const struct archive *archive, unsigned *seed)
{
    for (size_t i = 0; i < archive->count && mutate_next(seed) % 4; i++) {
        const struct member *member = &archive->members[i];
        if (member->name_size > 4 && memcmp(member->name + member->name_size - 4, ".pkl", 4) == 0)
            return i;
    }
    return mutate_next(seed) % archive->count;
}

static void mutate_members(struct archive *archive, unsigned seed)
{
    size_t at = pick_member(archive, &seed), other = mutate_next(&seed) % archive->count;
    struct member *member = &archive->members[at];
    switch (mutate_next(&seed) % 16) {
    case 0:
        free(archive->members[other].content);
        archive->members[other] = archive->members[--archive->count];
        break;
    case 1:
        repeat_member(archive, other);
        break;
    case 2:
        swap_contents(&archive->members[other], member);
        break;
    case 3:
        archive->members[other].name_size =
            LLVMFuzzerMutate((uint8_t *)archive->members[other].name, archive->members[other].name_size, NAME_MAX_BYTES);
        break;
    case 4:
        archive->members[other].is_deflated = !archive->members[other].is_deflated;
        break;
    default:
        mutate_content(member, mutate_next(&seed) << 16 | mutate_next(&seed));
    }
}

size_t mutate_zip(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    static struct archive archive;
    if (mutate_next(&seed) % 8 && read_archive(bytes, size, &archive)) {
        mutate_members(&archive, seed);
        size = write_archive(&archive, bytes, size, size_max);
        release(&archive);
        return size;
    }
    size = LLVMFuzzerMutate(bytes, size, size_max);
    if (mutate_next(&seed) % 2)
        zip_repair(bytes, size);
    return size;
}
