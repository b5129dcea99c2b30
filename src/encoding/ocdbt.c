/* SPDX-License-Identifier: Apache-2.0 */
/* Tables are stored by column: all of one member, then all of the next. Numbers are LEB128 unless said otherwise. */
#include "encoding/ocdbt.h"

#include "base/crc32.h"
#include "base/cursor.h"

#include <inttypes.h>

#define HEADER_BYTES 12 /* magic, length */
#define CRC_BYTES 4
#define UUID_BYTES 16
#define EXPANDED_FREELY ((uint64_t)1 << 20) /* inflate_ratio counts above that */
#define MANIFEST_MAGIC "\x0c\xdb\x3a\x2a"
#define NODE_MAGIC "\x0c\xdb\x20\xde"

enum ocdbt_kind { OCDBT_SINGLE, OCDBT_NUMBERED };

/* Where decoding stands. The first failure is kept, so that a run of reads needs one look. */
struct ocdbt_decoding {
    struct cursor cursor;
    struct arena *arena;
    struct work *work;
    const char *problem; /* NULL: none */
    bool no_memory;
};

static bool decoding_fail(struct ocdbt_decoding *d, const char *problem)
{
    if (!d->problem)
        d->problem = problem;
    return false;
}

static uint64_t take_leb128(struct ocdbt_decoding *d)
{
    uint64_t value = 0;
    uint8_t byte = 0x80;
    for (unsigned shift = 0; byte & 0x80; shift += 7) {
        if (!cursor_u8(&d->cursor, &byte) || shift > 63 || (shift == 63 && byte > 1)) {
            decoding_fail(d, "a number is cut off or has more than 64 bits");
            return 0;
        }
        value |= (uint64_t)(byte & 0x7f) << shift;
    }
    return value;
}

static uint8_t take_byte(struct ocdbt_decoding *d)
{
    uint8_t byte = 0;
    if (!cursor_u8(&d->cursor, &byte))
        decoding_fail(d, "it is cut off");
    return byte;
}

/* A count of things of which each takes a byte at least. */
static uint32_t take_count(struct ocdbt_decoding *d)
{
    uint64_t count = take_leb128(d);
    if (!d->problem && (count > cursor_left(&d->cursor) || count >= UINT32_MAX))
        decoding_fail(d, "a table is longer than what is left");
    return d->problem ? 0 : (uint32_t)count;
}

static void *take_room(struct ocdbt_decoding *d, uint32_t count, size_t bytes)
{
    void *room = d->problem || !count ? NULL : arena_zalloc(d->arena, (size_t)count * bytes);
    if (!d->problem && count && !room) {
        d->no_memory = true;
        decoding_fail(d, "out of memory");
    }
    return room;
}

/* ---- texts that begin as the one before ---- */

struct ocdbt_texts {
    uint64_t *shared, *own; /* how much of the one before, and how much behind that */
    uint32_t count;
};

/* The columns of lengths; the bytes come later. */
static void take_lengths(struct ocdbt_decoding *d, uint32_t count, struct ocdbt_texts *out)
{
    out->count = count;
    out->shared = take_room(d, count, sizeof(*out->shared));
    out->own = take_room(d, count, sizeof(*out->own));
    for (uint32_t i = 1; !d->problem && i < count; i++)
        out->shared[i] = take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < count; i++)
        out->own[i] = take_leb128(d);
}

/* The i-th text, whose bytes are next; those before must have been taken. */
static struct str take_text(struct ocdbt_decoding *d, const struct ocdbt_texts *texts, uint32_t i, struct str before)
{
    struct str own = { 0 };
    if (d->problem)
        return own;
    if (texts->shared[i] > before.size)
        decoding_fail(d, "a text shares more with the one before than that has");
    else if (!cursor_bytes(&d->cursor, texts->own[i], &own))
        decoding_fail(d, "a text is cut off");
    else if (!work_take(d->work, texts->shared[i]))
        decoding_fail(d, "texts are too long in all");
    if (d->problem || !texts->shared[i])
        return d->problem ? (struct str){ 0 } : own;
    char *made = arena_alloc(d->arena, (size_t)texts->shared[i] + own.size);
    if (!made) {
        d->no_memory = true;
        decoding_fail(d, "out of memory");
        return (struct str){ 0 };
    }
    memcpy(made, before.data, (size_t)texts->shared[i]);
    if (own.size)
        memcpy(made + texts->shared[i], own.data, own.size);
    return (struct str){ made, (size_t)texts->shared[i] + own.size };
}

static void take_files(struct ocdbt_decoding *d, struct ocdbt_file **files, uint32_t *count)
{
    struct ocdbt_texts texts;
    struct str before = { 0 };
    *count = take_count(d);
    take_lengths(d, *count, &texts);
    *files = take_room(d, *count, sizeof(**files));
    for (uint32_t i = 0; !d->problem && i < *count; i++)
        (*files)[i].base_size = (size_t)take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < *count; i++) {
        before = (*files)[i].path = take_text(d, &texts, i, before);
        if (!d->problem && (*files)[i].base_size > before.size)
            decoding_fail(d, "the base of a path is longer than the path");
    }
}

/* A file of the table. */
static uint32_t take_file(struct ocdbt_decoding *d, uint32_t file_count)
{
    uint64_t file = take_leb128(d);
    if (!d->problem && file >= file_count)
        decoding_fail(d, "a place is in a file that the table lacks");
    return d->problem ? 0 : (uint32_t)file;
}

/* ---- what lies around ---- */

/* Of a frame that does not say its size so much memory is taken at once: no more than what its bytes may expand to. */
static uint64_t body_bytes_max(uint64_t stored, const struct limits *limits)
{
    uint64_t ratio = limits->inflate_ratio < UINT32_MAX ? limits->inflate_ratio : UINT32_MAX, bytes = stored * ratio;
    bytes = bytes < EXPANDED_FREELY ? EXPANDED_FREELY : bytes;
    return bytes < limits->metadata_bytes ? bytes : limits->metadata_bytes;
}

/* The body, decompressed if need be, in the arena. */
static reshard_status ocdbt_open(const void *bytes, size_t size, const char *magic, const char *what, const struct limits *limits,
                                 struct chain_scratch *scratch, struct arena *arena, struct ocdbt_decoding *out, reshard_error *err)
{
    const uint8_t *data = bytes;
    *out = (struct ocdbt_decoding){ .arena = arena, .work = limits->budget };
    if (size < HEADER_BYTES + 2 + CRC_BYTES || memcmp(data, magic, 4) != 0)
        return error_set(err, RESHARD_ERR_FORMAT, "it does not begin as %s of OCDBT does", what);
    if (load_le(data + 4, 8) != size)
        return error_set(err, RESHARD_ERR_FORMAT, "it says that it has %" PRIu64 " bytes, and there are %zu", load_le(data + 4, 8), size);
    uint32_t stored = (uint32_t)load_le(data + size - CRC_BYTES, 4), found = crc32c(0, data, size - CRC_BYTES);
    if (stored != found)
        return error_set(err, RESHARD_ERR_FORMAT, "its CRC-32C is %08" PRIx32 ", and %08" PRIx32 " of what is there", stored, found);
    out->cursor = cursor_over(data + HEADER_BYTES, size - HEADER_BYTES - CRC_BYTES);
    uint64_t version = take_leb128(out), compression = take_leb128(out);
    if (out->problem || version != 0 || compression > 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "version %" PRIu64 " with compression %" PRIu64 " of OCDBT is not known", version,
                         compression);
    const struct chain_step step = { .kind = CHAIN_ZSTD };
    struct str body = { (const char *)out->cursor.data + out->cursor.pos, cursor_left(&out->cursor) };
    struct buffer expanded = { 0 };
    reshard_status status = !compression ? RESHARD_OK
                                         : chain_decode_bounded(&step, 1, body.data, body.size, body_bytes_max(body.size, limits), scratch,
                                                                &expanded, err);
    if (!status && !arena_str(arena, compression ? buffer_str(&expanded) : body, &body))
        status = error_set_memory(err);
    if (!status)
        out->cursor = cursor_over(body.data, body.size);
    buffer_release(&expanded);
    return status;
}

static reshard_status ocdbt_end(const struct ocdbt_decoding *d, reshard_error *err)
{
    if (d->no_memory)
        return error_set_memory(err);
    if (d->problem)
        return error_set(err, RESHARD_ERR_FORMAT, "%s, at byte %zu of its body", d->problem, d->cursor.pos);
    if (cursor_left(&d->cursor))
        return error_set(err, RESHARD_ERR_FORMAT, "%zu bytes are left behind its body", cursor_left(&d->cursor));
    return RESHARD_OK;
}

/* ---- the manifest ---- */

static void skip_numbers(struct ocdbt_decoding *d, uint32_t count)
{
    for (uint32_t i = 0; !d->problem && i < count; i++)
        take_leb128(d);
}

/* The last of a column of numbers. */
static uint64_t take_last(struct ocdbt_decoding *d, uint32_t count)
{
    uint64_t last = 0;
    for (uint32_t i = 0; !d->problem && i < count; i++)
        last = take_leb128(d);
    return last;
}

static void take_versions(struct ocdbt_decoding *d, struct ocdbt_manifest *out)
{
    struct ocdbt_place *root = &out->root;
    uint32_t count = take_count(d);
    uint64_t keys;
    out->generation = take_last(d, count);
    for (uint32_t i = 0; !d->problem && i < count; i++)
        out->height = take_byte(d);
    uint64_t file = take_last(d, count);
    root->offset = take_last(d, count);
    root->bytes = take_last(d, count);
    keys = take_last(d, count);
    skip_numbers(d, count);
    skip_numbers(d, count);
    if (!d->problem && !cursor_skip(&d->cursor, (uint64_t)count * 8))
        decoding_fail(d, "times of versions are cut off");
    out->is_empty = !count || !keys || root->offset == UINT64_MAX;
    if (!d->problem && !out->is_empty && file >= out->file_count)
        decoding_fail(d, "the root is in a file that the table lacks");
    root->file = (uint32_t)file;
}

/* Nodes of older versions, of which nothing is wanted. */
static void skip_version_nodes(struct ocdbt_decoding *d)
{
    uint32_t count = take_count(d);
    for (int column = 0; column < 5; column++) /* generations, files, offsets, lengths, how many versions */
        skip_numbers(d, count);
    if (!d->problem && !cursor_skip(&d->cursor, (uint64_t)count * (8 + 1))) /* times, heights */
        decoding_fail(d, "nodes of older versions are cut off");
}

reshard_status ocdbt_manifest_decode(const void *bytes, size_t size, bool is_of_version, const struct limits *limits,
                                     struct chain_scratch *scratch, struct arena *arena, struct ocdbt_manifest *out, reshard_error *err)
{
    struct ocdbt_decoding d;
    *out = (struct ocdbt_manifest){ 0 };
    reshard_status status = ocdbt_open(bytes, size, MANIFEST_MAGIC, "a manifest", limits, scratch, arena, &d, err);
    if (status)
        return status;
    if (!cursor_skip(&d.cursor, UUID_BYTES))
        decoding_fail(&d, "its identifier is cut off");
    uint64_t kind = take_leb128(&d);
    take_leb128(&d); /* inline values at most */
    take_leb128(&d); /* decoded nodes at most */
    take_byte(&d);   /* arity of the version tree */
    if (take_leb128(&d) == 1 && !cursor_skip(&d.cursor, 4))
        decoding_fail(&d, "its compression level is cut off");
    if (!d.problem && kind > OCDBT_NUMBERED)
        decoding_fail(&d, "it is neither a single manifest nor a numbered one");
    out->is_numbered = kind == OCDBT_NUMBERED;
    if (out->is_numbered && !is_of_version && !d.problem)
        return RESHARD_OK;
    take_files(&d, &out->files, &out->file_count);
    take_versions(&d, out);
    skip_version_nodes(&d);
    return ocdbt_end(&d, err);
}

/* ---- nodes ---- */

static void take_children(struct ocdbt_decoding *d, struct ocdbt_node *node)
{
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        node->entries[i].place.file = take_file(d, node->file_count);
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        node->entries[i].place.offset = take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        node->entries[i].place.bytes = take_leb128(d);
    skip_numbers(d, node->count); /* keys, bytes of nodes, bytes of values below */
    skip_numbers(d, node->count);
    skip_numbers(d, node->count);
}

static void take_values(struct ocdbt_decoding *d, struct ocdbt_node *node)
{
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        node->entries[i].place.bytes = take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < node->count; i++) {
        uint8_t kind = take_byte(d);
        node->entries[i].is_inline = kind == 0;
        if (!d->problem && kind > 1)
            decoding_fail(d, "a value is neither inline nor in a file");
    }
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        if (!node->entries[i].is_inline)
            node->entries[i].place.file = take_file(d, node->file_count);
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        if (!node->entries[i].is_inline)
            node->entries[i].place.offset = take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < node->count; i++)
        if (node->entries[i].is_inline && !cursor_bytes(&d->cursor, node->entries[i].place.bytes, &node->entries[i].value))
            decoding_fail(d, "a value is cut off");
}

static void take_keys(struct ocdbt_decoding *d, struct ocdbt_node *node)
{
    struct ocdbt_texts texts;
    struct str before = { 0 };
    node->count = take_count(d);
    take_lengths(d, node->count, &texts);
    node->entries = take_room(d, node->count, sizeof(*node->entries));
    for (uint32_t i = 0; !d->problem && node->height && i < node->count; i++)
        node->entries[i].common = (size_t)take_leb128(d);
    for (uint32_t i = 0; !d->problem && i < node->count; i++) {
        struct str key = take_text(d, &texts, i, before);
        if (!d->problem && i && str_compare(before, key) >= 0)
            decoding_fail(d, "keys do not ascend");
        if (!d->problem && node->entries[i].common > key.size)
            decoding_fail(d, "keys below begin with more than their key");
        before = node->entries[i].key = key;
    }
}

reshard_status ocdbt_node_decode(const void *bytes, size_t size, const struct limits *limits, struct chain_scratch *scratch,
                                 struct arena *arena, struct ocdbt_node *out, reshard_error *err)
{
    struct ocdbt_decoding d;
    *out = (struct ocdbt_node){ 0 };
    reshard_status status = ocdbt_open(bytes, size, NODE_MAGIC, "a node", limits, scratch, arena, &d, err);
    if (status)
        return status;
    out->height = take_byte(&d);
    take_files(&d, &out->files, &out->file_count);
    take_keys(&d, out);
    if (!d.problem && !out->count)
        decoding_fail(&d, "a node has no keys");
    if (out->height)
        take_children(&d, out);
    else
        take_values(&d, out);
    return ocdbt_end(&d, err);
}
