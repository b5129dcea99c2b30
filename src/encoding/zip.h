/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zip as checkpoints use it: stored members whose payload offset matters, read without trust; and torch's own layout,
 * written so that every payload starts on a multiple of 64 relative to the archive.
 *
 * Ambiguity is refused: names equal under ASCII case folding (where the caller does not know better), local against central headers,
 * overlapping members, several directories or disks, names that leave the archive.
 */
#ifndef ENCODING_ZIP_H
#define ENCODING_ZIP_H

#include "base/arena.h"
#include "base/limits.h"
#include "base/reader.h"

struct zip_member {
    struct str name;         /* full name, "archive/data/0" */
    uint64_t header_offset;  /* of the local header */
    uint64_t payload_offset;
    uint64_t stored_bytes, bytes;
    uint32_t crc32;
    uint16_t method;         /* 0 stored, 8 deflated */
    uint16_t flags;          /* as the directory has them */
    bool is_directory;
    bool is_superseded;      /* a later member has the same name */
};

/* What names of members may have in common. */
enum zip_naming {
    ZIP_NAMES_FOLDED,    /* nothing, case apart: fit to be unpacked anywhere */
    ZIP_NAMES_CASED,     /* all but case */
    ZIP_NAMES_REWRITTEN, /* all: of one name the last member counts */
};

/* Bytes that opening has read anyway; small members are served from here. */
struct zip_cache {
    uint64_t offset;
    struct str bytes;
};

struct zip_archive {
    struct arena arena;
    struct zip_member *members; /* in the order of the central directory */
    uint32_t member_count;
    struct str top;             /* "archive": the one top directory, or "" */
    enum zip_naming naming;
    uint32_t superseded_count;  /* members */
    bool crc_is_off;            /* every CRC is 0: the writer had checksums switched off */
    uint64_t directory_offset;
    uint64_t trailing_bytes;    /* after the end record */
    struct zip_cache head, tail;
    uint32_t *slots;            /* hash table over the members, for more than a handful */
    uint32_t slot_count;
    uint64_t seed;
};

/*
 * Reads and checks the directory and every local header. reader's offset 0 is the archive's. An archive of up to 32 KiB costs
 * one read, a larger one two small reads (of its end and its start) plus what its directory and headers need beyond them.
 */
reshard_status zip_open(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err);
void zip_release(struct zip_archive *archive);

/* The same of an archive that nobody unpacks onto a file system that knows no case: 'W' and 'w' are two members. */
reshard_status zip_open_cased(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err);

/* The same of an archive that was appended to: what is written anew gets a member of the same name, and the last one counts. */
reshard_status zip_open_rewritten(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err);

/* The members of an archive without its end, as far as they are whole: stored ones, from local headers and descriptors. */
reshard_status zip_open_cut_off(const struct reader *reader, const struct limits *limits, struct zip_archive *out, reshard_error *err);

/* Member by the name below the top directory ("data.pkl"), or NULL. */
const struct zip_member *zip_find(const struct zip_archive *archive, struct str name_below_top);

/* Whether every member with content has a CRC that counts. */
bool zip_has_all_crcs(const struct zip_archive *archive);

/* The whole uncompressed content, CRC checked (unless crc_is_off), appended to out. Inflates within limits; no more than
 * limits->metadata_bytes. A payload of zeros whose CRC is 0 passes: torch's skip_data leaves such holes. */
reshard_status zip_read_member(const struct reader *reader, const struct zip_archive *archive, const struct zip_member *member,
                               const struct limits *limits, struct buffer *out, reshard_error *err);

/* Streams the stored or inflated content through a window and checks length and CRC-32 by the same rules; for `verify`. */
reshard_status zip_check_member(const struct reader *reader, const struct zip_archive *archive, const struct zip_member *member,
                                const struct limits *limits, reshard_error *err);

/* ---- writing ---- */

/* One member of an archive to be written. Offsets are relative to the archive. */
struct zip_plan_member {
    struct str name;          /* full, with the top directory */
    uint64_t bytes;
    uint64_t header_offset, payload_offset, descriptor_offset; /* set by zip_plan */
    uint32_t crc32;           /* must be set before zip_write_* */
};

/* Computes the offsets of all members in order and returns the archive's size. alignment: 64 as torch, any power of two. */
reshard_status zip_plan(struct zip_plan_member *members, uint32_t count, uint32_t alignment, uint64_t *directory_offset,
                        uint64_t *archive_bytes, reshard_error *err);

/* Appends the bytes of [header_offset, payload_offset): local header, zip64 field, padding field. */
void zip_write_header(const struct zip_plan_member *member, uint32_t alignment, struct buffer *out);

/* Appends the data descriptor (nothing for an empty member). */
void zip_write_descriptor(const struct zip_plan_member *member, struct buffer *out);

/* Appends central directory, zip64 end record, locator and end record. */
void zip_write_directory(const struct zip_plan_member *members, uint32_t count, uint64_t directory_offset, struct buffer *out);

#endif
