/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes a manifest or a node of OCDBT. The first byte: bit 0: a manifest, bit 1: of a version, bit 2: the rest is all of it, and not a
 * body around which length and checksum are made.
 */
#include "base/crc32.h"
#include "encoding/ocdbt.h"
#include "outcome.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define BODY_BYTES_MAX ((uint64_t)1 << 20)

enum ocdbt_flags { IS_MANIFEST = 1, IS_OF_VERSION = 2, IS_WHOLE = 4 };

static void frame(const uint8_t *body, size_t size, bool is_manifest, struct buffer *out)
{
    static const uint8_t manifest[] = { 0x0c, 0xdb, 0x3a, 0x2a }, node[] = { 0x0c, 0xdb, 0x20, 0xde };
    buffer_append(out, is_manifest ? manifest : node, sizeof(node));
    buffer_append_u64le(out, size + 18);
    buffer_append_byte(out, 0);
    buffer_append_byte(out, 0);
    buffer_append(out, body, size);
    buffer_append_u32le(out, out->failed ? 0 : crc32c(0, out->data, out->size));
}

static void note_files(const struct ocdbt_file *files, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        outcome_text(files[i].path);
        outcome_number(files[i].base_size);
    }
}

static void note_place(const struct ocdbt_place *place)
{
    outcome_number(place->file);
    outcome_number(place->offset);
    outcome_number(place->bytes);
}

static void decode_manifest(const struct buffer *whole, bool is_of_version, const struct limits *limits, struct chain_scratch *scratch,
                            struct arena *arena)
{
    struct ocdbt_manifest manifest;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(ocdbt_manifest_decode(whole->data, whole->size, is_of_version, limits, scratch, arena, &manifest, &err), &err))
        return;
    outcome_number(manifest.is_numbered);
    outcome_number(manifest.is_empty);
    note_files(manifest.files, manifest.file_count);
    if (!manifest.is_empty)
        note_place(&manifest.root);
    outcome_number(manifest.height);
    outcome_number(manifest.generation);
}

static void decode_node(const struct buffer *whole, const struct limits *limits, struct chain_scratch *scratch, struct arena *arena)
{
    struct ocdbt_node node;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(ocdbt_node_decode(whole->data, whole->size, limits, scratch, arena, &node, &err), &err))
        return;
    outcome_number(node.height);
    note_files(node.files, node.file_count);
    for (uint32_t i = 0; i < node.count; i++) {
        const struct ocdbt_entry *entry = &node.entries[i];
        outcome_text(entry->key);
        outcome_text(entry->value);
        outcome_number(entry->common);
        if (!entry->is_inline)
            note_place(&entry->place);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct work work;
    struct limits limits = limits_default;
    struct arena arena = { .work = &work };
    struct chain_scratch scratch = { 0 };
    struct buffer whole = { 0 };
    if (!size)
        return 0;
    unsigned flags = bytes[0];
    limits.metadata_bytes = BODY_BYTES_MAX;
    limits.budget = &work;
    work_begin(&work, BODY_BYTES_MAX * 16);
    if (flags & IS_WHOLE)
        buffer_append(&whole, bytes + 1, size - 1);
    else
        frame(bytes + 1, size - 1, flags & IS_MANIFEST, &whole);
    if (!whole.failed && flags & IS_MANIFEST)
        decode_manifest(&whole, flags & IS_OF_VERSION, &limits, &scratch, &arena);
    else if (!whole.failed)
        decode_node(&whole, &limits, &scratch, &arena);
    buffer_release(&whole);
    chain_scratch_release(&scratch);
    arena_release(&arena);
    return 0;
}
