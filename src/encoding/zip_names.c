/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/zip_parts.h"

#include "base/hash.h"

#include <inttypes.h>

#define PAIRWISE_MAX 16 /* up to here comparing all pairs beats a table */
#define FOLD_STEP_BYTES 256

static uint8_t fold(char c)
{
    return (uint8_t)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

static bool equal_folded(struct str a, struct str b)
{
    if (a.size != b.size)
        return false;
    for (size_t i = 0; i < a.size; i++) {
        if (fold(a.data[i]) != fold(b.data[i]))
            return false;
    }
    return true;
}

static bool equal_names(const struct zip_archive *archive, struct str a, struct str b)
{
    return archive->naming == ZIP_NAMES_FOLDED ? equal_folded(a, b) : str_equal(a, b);
}

static uint64_t hash_folded(struct str name, uint64_t seed)
{
    uint8_t step[FOLD_STEP_BYTES];
    uint64_t hash = seed;
    for (size_t i = 0; i < name.size;) {
        size_t used = 0;
        while (used < sizeof(step) && i < name.size)
            step[used++] = fold(name.data[i++]);
        hash = hash64(step, used, hash);
    }
    return hash;
}

/* A part of a path between slashes. */
static const char *zip_names_part_complaint(struct str part)
{
    if (part.size == 0)
        return "has an empty part";
    if (str_is(part, ".") || str_is(part, ".."))
        return "leaves the archive";
    return NULL;
}

static const char *name_complaint(const struct zip_member *member)
{
    struct str name = member->name;
    if (name.size == 0)
        return "is empty";
    for (size_t i = 0; i < name.size; i++) {
        if (name.data[i] == '\0')
            return "holds a NUL";
        if (name.data[i] == '\\')
            return "holds a backslash";
    }
    size_t bad;
    if (!str_is_utf8(name, false, &bad))
        return "is not UTF-8";
    size_t end = name.size - member->is_directory, start = 0;
    for (size_t i = 0; i <= end; i++) {
        if (i < end && name.data[i] != '/')
            continue;
        const char *complaint = zip_names_part_complaint((struct str){ name.data + start, i - start });
        if (complaint)
            return complaint;
        start = i + 1;
    }
    return NULL;
}

/* Two members of one name, b behind a. */
static reshard_status twice(struct zip_archive *archive, struct zip_member *a, const struct zip_member *b, reshard_error *err)
{
    if (archive->naming == ZIP_NAMES_REWRITTEN) {
        a->is_superseded = true;
        archive->superseded_count++;
        return RESHARD_OK;
    }
    return error_set_at(err, RESHARD_ERR_FORMAT, b->header_offset,
                        "zip members '%.*s' at byte %" PRIu64 " and '%.*s' at byte %" PRIu64 "%s", STR_ARG(a->name), a->header_offset,
                        STR_ARG(b->name), b->header_offset,
                        str_equal(a->name, b->name) ? ": the name occurs twice" : " differ only in case");
}

static reshard_status zip_names_check_pairs(struct zip_archive *archive, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 1; i < archive->member_count && !status; i++) {
        for (uint32_t j = 0; j < i && !status; j++) {
            struct zip_member *before = &archive->members[j];
            if (!before->is_superseded && equal_names(archive, archive->members[i].name, before->name))
                status = twice(archive, before, &archive->members[i], err);
        }
    }
    return status;
}

/* Linear probing; a slot holds member index + 1. Returns the slot of the member of that name, or a free one. */
static uint32_t *probe(const struct zip_archive *archive, struct str name)
{
    uint32_t mask = archive->slot_count - 1, at = (uint32_t)hash_folded(name, archive->seed) & mask;
    while (archive->slots[at] && !equal_names(archive, archive->members[archive->slots[at] - 1].name, name))
        at = (at + 1) & mask;
    return &archive->slots[at];
}

static reshard_status fill_table(struct zip_archive *archive, reshard_error *err)
{
    uint32_t slot_count = 64;
    while (slot_count / 2 < archive->member_count && slot_count < UINT32_C(1) << 31)
        slot_count *= 2;
    if (slot_count / 2 < archive->member_count)
        return error_set_memory(err);
    archive->slots = arena_zalloc(&archive->arena, (size_t)slot_count * sizeof(*archive->slots));
    if (!archive->slots)
        return error_set_memory(err);
    archive->slot_count = slot_count;
    archive->seed = hash_table_seed();
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < archive->member_count && !status; i++) {
        uint32_t *slot = probe(archive, archive->members[i].name);
        if (*slot)
            status = twice(archive, &archive->members[*slot - 1], &archive->members[i], err);
        *slot = i + 1;
    }
    return status;
}

/* The directory that all members lie in, "" if there is no such one. */
static struct str common_top(const struct zip_archive *archive)
{
    struct str top = { NULL, 0 };
    for (uint32_t i = 0; i < archive->member_count; i++) {
        struct str name = archive->members[i].name;
        size_t slash;
        if (!str_find_char(name, '/', &slash))
            return (struct str){ "", 0 };
        struct str first = { name.data, slash };
        if (i && !str_equal(first, top))
            return (struct str){ "", 0 };
        top = first;
    }
    return top;
}

reshard_status zip_index_names(struct zip_archive *archive, reshard_error *err)
{
    for (uint32_t i = 0; i < archive->member_count; i++) {
        const char *complaint = name_complaint(&archive->members[i]);
        if (complaint)
            return error_set_at(err, RESHARD_ERR_FORMAT, archive->members[i].header_offset, "zip member's name '%.*s' %s",
                                STR_ARG(archive->members[i].name), complaint);
    }
    archive->top = common_top(archive);
    return archive->member_count <= PAIRWISE_MAX ? zip_names_check_pairs(archive, err) : fill_table(archive, err);
}

static bool is_below_top(const struct zip_archive *archive, struct str full, struct str name)
{
    struct str top = archive->top;
    if (top.size == 0)
        return str_equal(full, name);
    return full.size == top.size + 1 + name.size && memcmp(full.data, top.data, top.size) == 0 && full.data[top.size] == '/' &&
           str_equal((struct str){ full.data + top.size + 1, name.size }, name);
}

/* As hash_folded of top, '/' and name together: the steps fall in the same places. */
static bool join_name(const struct zip_archive *archive, struct str name, char *room, size_t room_size, struct str *out)
{
    size_t top = archive->top.size, size = top ? top + 1 + name.size : name.size;
    if (size > room_size)
        return false;
    if (top) {
        memcpy(room, archive->top.data, top);
        room[top++] = '/';
    }
    if (name.size)
        memcpy(room + top, name.data, name.size);
    *out = (struct str){ room, size };
    return true;
}

const struct zip_member *zip_find(const struct zip_archive *archive, struct str name_below_top)
{
    char room[1024];
    struct str full;
    if (archive->slots && join_name(archive, name_below_top, room, sizeof(room), &full)) {
        uint32_t slot = *probe(archive, full);
        const struct zip_member *member = slot ? &archive->members[slot - 1] : NULL;
        return member && str_equal(member->name, full) ? member : NULL;
    }
    for (uint32_t i = 0; i < archive->member_count; i++) {
        if (!archive->members[i].is_superseded && is_below_top(archive, archive->members[i].name, name_below_top))
            return &archive->members[i];
    }
    return NULL;
}
