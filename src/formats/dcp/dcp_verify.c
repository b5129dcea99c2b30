/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what opening leaves alone: every blob's zip checksums, and files that nothing refers to. Findings become warnings of the catalog.
 */
#include "formats/dcp/dcp_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "encoding/zip.h"
#include "formats/shared/checked_ranges.h"
#include "formats/shared/integrity_file.h"

#include <inttypes.h>
#include <stdlib.h>

#define SMALL_BYTES 65536 /* a blob or a member up to this size is read at once */

struct verifying {
    struct buffer blob, member;
    struct source *source;
    const struct dcp_metadata *metadata;
    struct store_object *file; /* of the range looked at last */
    uint32_t path;
    struct reader reader;
    uint32_t *order;           /* ranges by file and offset */
    uint32_t object;           /* of that file in the catalog, or CATALOG_NONE */
    uint32_t *chunks;          /* catalog chunks by object and offset */
    struct checked_ranges checked; /* blobs with checksums */
};

static int dcp_verify_by_place(const void *a, const void *b, void *context)
{
    const struct dcp_metadata *metadata = context;
    const struct dcp_range *x = &metadata->ranges[*(const uint32_t *)a], *y = &metadata->ranges[*(const uint32_t *)b];
    if (x->path != y->path)
        return x->path < y->path ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_payload(const void *a, const void *b, void *context)
{
    const struct catalog *catalog = context;
    const struct catalog_chunk *x = &catalog->chunks[*(const uint32_t *)a], *y = &catalog->chunks[*(const uint32_t *)b];
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The chunk whose payload starts at offset of the file in hand, or NULL. */
static struct catalog_chunk *chunk_at(const struct verifying *verifying, uint64_t offset)
{
    struct catalog *catalog = verifying->source->catalog;
    uint32_t low = 0, high = catalog->chunk_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct catalog_chunk *chunk = &catalog->chunks[verifying->chunks[middle]];
        if (chunk->object < verifying->object || (chunk->object == verifying->object && chunk->offset < offset))
            low = middle + 1;
        else
            high = middle;
    }
    struct catalog_chunk *found = low < catalog->chunk_count ? &catalog->chunks[verifying->chunks[low]] : NULL;
    return found && found->object == verifying->object && found->offset == offset ? found : NULL;
}

/*
 * Leaves the checksum of a big payload to whoever reads the payload anyway: each byte is read once. False if it has to be
 * checked here.
 */
static bool leave_to_reader(struct verifying *verifying, const struct zip_archive *zip, const struct zip_member *member,
                            uint64_t blob_offset)
{
    uint64_t offset = blob_offset + member->payload_offset;
    struct catalog_chunk *chunk = member->method == 0 && !zip->crc_is_off && member->crc32 ? chunk_at(verifying, offset) : NULL;
    const struct chunk_layout *known = chunk ? catalog_layout_of(verifying->source->catalog, chunk) : NULL;
    if (!chunk || (known && known->codec != CODEC_NONE) || chunk->bytes > member->bytes)
        return false;
    struct chunk_layout *layout = catalog_chunk_layout(verifying->source->catalog, chunk);
    if (!layout)
        return false;
    layout->crc32 = member->crc32;
    layout->crc_offset = offset;
    layout->crc_bytes = member->bytes;
    chunk->flags |= CHUNK_HAS_CRC;
    return true;
}

/* Checks all members of the zip. Unlike torch, a checksum that does not match is damage. */
static reshard_status dcp_verify_check_members(struct verifying *verifying, const struct reader *blob, bool is_plain,
                                               const struct dcp_range *range, reshard_error *err)
{
    const struct limits *limits = &verifying->source->limits;
    struct zip_archive zip = { 0 };
    reshard_status status = zip_open(blob, limits, &zip, err);
    if (!status && verifying->object != CATALOG_NONE && zip_has_all_crcs(&zip) &&
        !checked_ranges_add(&verifying->checked, verifying->object, range->offset, range->length))
        status = error_set_memory(err);
    for (uint32_t i = 0; i < zip.member_count && !status; i++) {
        const struct zip_member *member = &zip.members[i];
        buffer_clear(&verifying->member);
        if (member->is_directory)
            continue;
        if (member->bytes <= SMALL_BYTES)
            status = zip_read_member(blob, &zip, member, limits, &verifying->member, err);
        else if (!is_plain || !leave_to_reader(verifying, &zip, member, range->offset))
            status = zip_check_member(blob, &zip, member, limits, err);
    }
    zip_release(&zip);
    return status;
}

/* A reader over a blob that is not compressed. */
static reshard_status plain_blob(struct verifying *verifying, const struct dcp_range *range, struct reader *out, reshard_error *err)
{
    struct buffer *bytes = &verifying->blob;
    if (range->length > SMALL_BYTES)
        return reader_window(&verifying->reader, range->offset, range->length, out, err);
    buffer_clear(bytes);
    reshard_status status = reader_append(&verifying->reader, range->offset, range->length, bytes, err);
    *out = reader_over_memory(bytes->size ? bytes->data : (const uint8_t *)"", bytes->size, verifying->reader.name);
    return status;
}

static reshard_status check_blob(struct verifying *verifying, const struct dcp_range *range, enum codec codec, reshard_error *err)
{
    const struct limits *limits = &verifying->source->limits;
    enum torch_container container;
    struct dcp_decoded *decoded = NULL;
    struct reader blob;
    reshard_status status = codec == CODEC_NONE
                                ? plain_blob(verifying, range, &blob, err)
                                : dcp_decoded_open(codec, &verifying->reader, range->offset, range->length, limits, &decoded, &blob, err);
    /* Byte items may be anything, and safetensors files have no blobs; only zips have checksums. */
    if (!status)
        status = torch_save_probe(&blob, &container, err);
    if (!status && container == TORCH_ZIP)
        status = dcp_verify_check_members(verifying, &blob, codec == CODEC_NONE, range, err);
    else if (!status && container == TORCH_NO_CONTAINER)
        status = torch_save_check_raw(&blob, err);
    dcp_decoded_free(decoded);
    return status;
}

/* Whether the file ends before the range does, or is gone: reading the catalog has told so. */
static bool range_is_lost(const struct verifying *verifying, const struct dcp_range *range)
{
    const struct catalog *catalog = verifying->source->catalog;
    return verifying->object != CATALOG_NONE && !range_fits(range->offset, range->length, catalog->objects[verifying->object].bytes);
}

static reshard_status open_range_file(struct verifying *verifying, const struct dcp_range *range, reshard_error *err)
{
    char *name = NULL;
    if (verifying->file && verifying->path == range->path)
        return RESHARD_OK;
    store_object_close(verifying->file);
    verifying->file = NULL;
    reshard_status status = dcp_name_join(dcp_state(verifying->source)->directory, dcp_text(verifying->metadata, range->path), &name, err);
    if (status)
        return status;
    verifying->path = range->path;
    verifying->object = name_map_find(&verifying->source->catalog->object_names, str_of(name));
    if (!source_bears_loss(verifying->source) || !range_is_lost(verifying, range))
        status = store_open_object(verifying->source->store, name, &verifying->file, err);
    free(name);
    if (!status && verifying->file)
        verifying->reader = store_object_reader(verifying->file);
    return status;
}

/* A damaged byte may also look like something that nobody reads: who wants what is left asks no further. */
static bool is_damage(const struct source *source, reshard_status status)
{
    return status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_LIMIT || (source->is_salvage && status == RESHARD_ERR_UNSUPPORTED);
}

static reshard_status dcp_verify_check_range(struct verifying *verifying, uint32_t index, reshard_error *err)
{
    const struct dcp_metadata *metadata = verifying->metadata;
    const struct dcp_range *range = &metadata->ranges[index];
    enum codec codec;
    reshard_error found = { 0 };
    reshard_status status = open_range_file(verifying, range, err);
    if (!status && source_bears_loss(verifying->source) && range_is_lost(verifying, range))
        return RESHARD_OK;
    if (!status)
        status = dcp_transform_codec(metadata, range->transforms, &codec, err);
    if (status)
        return status;
    status = check_blob(verifying, range, codec, &found);
    if (is_damage(verifying->source, status)) {
        catalog_warn_place(verifying->source->catalog, verifying->object, range->offset, range->length,
                           "'%.*s': blob of '%.*s' at %" PRIu64 ": %s", STR_ARG(dcp_text(metadata, range->path)),
                           STR_ARG(name_map_at(&metadata->names, metadata->indexes[index].name)), range->offset, found.message);
        return RESHARD_OK;
    }
    if (status && err)
        *err = found;
    return status;
}

/* Any number of indexes may name one blob. */
static bool is_same_blob(const struct dcp_range *a, const struct dcp_range *b)
{
    return a->path == b->path && a->offset == b->offset && a->length == b->length && a->transforms == b->transforms;
}

/* Whether the i-th of the sorted ranges is to be looked at: once, and not if it is a bare storage, which may look like anything. */
static bool is_due(const struct dcp_metadata *metadata, const uint32_t *order, uint32_t i)
{
    return !(metadata->raws && metadata->raws[order[i]].is_there) &&
           (!i || !is_same_blob(&metadata->ranges[order[i - 1]], &metadata->ranges[order[i]]));
}

static reshard_status check_metadata(struct source *source, const char *name, reshard_error *err)
{
    struct dcp_metadata metadata = { 0 };
    struct verifying verifying = { .source = source, .metadata = &metadata };
    reshard_status status = dcp_metadata_read(source, name, NULL, &metadata, err);
    if (status)
        return status;
    uint32_t chunk_count = source->catalog->chunk_count;
    verifying.order = array_new(metadata.storage_count, sizeof(*verifying.order));
    verifying.chunks = array_new(chunk_count, sizeof(*verifying.chunks));
    if (!verifying.order || !verifying.chunks)
        status = error_set_memory(err);
    for (uint32_t i = 0; i < chunk_count && !status; i++)
        verifying.chunks[i] = i;
    if (!status)
        qsort_r(verifying.chunks, chunk_count, sizeof(*verifying.chunks), by_payload, source->catalog);
    for (uint32_t i = 0; i < metadata.storage_count && !status; i++)
        verifying.order[i] = i;
    if (!status)
        qsort_r(verifying.order, metadata.storage_count, sizeof(*verifying.order), dcp_verify_by_place, &metadata);
    for (uint32_t i = 0; i < metadata.storage_count && !status; i++)
        if (is_due(&metadata, verifying.order, i))
            status = dcp_verify_check_range(&verifying, verifying.order[i], err);
    if (!status)
        checked_ranges_mark(&verifying.checked, source->catalog);
    checked_ranges_release(&verifying.checked);
    store_object_close(verifying.file);
    buffer_release(&verifying.blob);
    buffer_release(&verifying.member);
    free(verifying.order);
    free(verifying.chunks);
    dcp_metadata_release(&metadata);
    return status;
}

/* ---- files that nothing refers to ---- */

static bool is_referenced(const struct catalog *catalog, struct str name)
{
    uint32_t index = name_map_find(&catalog->object_names, name);
    return index != NAME_NONE;
}

static void warn_unreferenced(const struct source *source, const struct store_entry *entries, size_t count, bool has_metadata)
{
    for (size_t i = 0; i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        bool is_data = str_ends_with(base, ".distcp") && entries[i].bytes > 0;
        bool is_remnant = str_ends_with(base, ".metadata.tmp") || str_is(base, ".metadata.bck") ||
                          (has_metadata && str_starts_with(base, "__") && str_ends_with(base, ".metadata"));
        if (entries[i].is_directory || !(is_data || is_remnant) || is_referenced(source->catalog, entries[i].name))
            continue;
        catalog_warn(source->catalog, false, "'%.*s': nothing refers to it, it may be left from an earlier save", STR_ARG(base));
    }
}

static reshard_status check_files(struct source *source, bool has_metadata, struct arena *arena, reshard_error *err)
{
    const char *directory = dcp_state(source)->directory;
    struct store_entry *entries;
    size_t count, size = strlen(directory);
    char *plain = arena_copy(arena, directory, size);
    if (!plain)
        return error_set_memory(err);
    if (size > 0)
        plain[size - 1] = '\0';
    reshard_status status = store_list(source->store, plain, arena, &entries, &count, err);
    if (!status)
        warn_unreferenced(source, entries, count, has_metadata);
    return status;
}

/* ---- containers by themselves ---- */

reshard_status dcp_verify_container(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, bool *has_checksums,
                                    reshard_error *err)
{
    struct store_object *file = NULL;
    struct zip_archive zip = { 0 };
    struct reader all, window;
    enum torch_container container = TORCH_NO_CONTAINER;
    reshard_error found = { 0 };
    reshard_status status = dcp_open_object(source, object, &file, err);
    *has_checksums = false;
    if (status)
        return status;
    all = store_object_reader(file);
    status = reader_window(&all, offset, bytes, &window, &found);
    if (!status)
        status = torch_save_probe(&window, &container, &found);
    if (!status && container == TORCH_NO_CONTAINER)
        status = torch_save_check_raw(&window, &found);
    if (!status && container == TORCH_ZIP)
        status = zip_open(&window, &source->limits, &zip, &found);
    for (uint32_t i = 0; i < zip.member_count && !status; i++) {
        if (!zip.members[i].is_directory)
            status = zip_check_member(&window, &zip, &zip.members[i], &source->limits, &found);
    }
    *has_checksums = !status && zip.member_count && zip_has_all_crcs(&zip);
    zip_release(&zip);
    store_object_close(file);
    if (is_damage(source, status)) {
        catalog_warn_place(source->catalog, object, offset, bytes, "'%.*s': %s", STR_ARG(source->catalog->objects[object].name),
                           found.message);
        return RESHARD_OK;
    }
    if (status && err)
        *err = found;
    return status;
}

reshard_status dcp_verify_archives(struct source *source, bool deep, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    bool has_checksums;
    (void)deep;
    for (const struct dcp_archive *archive = dcp_state(source)->archives; archive && !status; archive = archive->next) {
        if (archive->codec == CODEC_NONE && archive->archive.container == TORCH_ZIP)
            status = dcp_verify_container(source, archive->object, archive->offset, archive->bytes, &has_checksums, err);
    }
    return status;
}

reshard_status dcp_verify(struct source *source, bool deep, reshard_error *err)
{
    struct arena arena = { 0 };
    struct dcp_metadata_file *files;
    uint32_t count = 0;
    bool is_per_rank;
    reshard_status status = integrity_verify(source, dcp_state(source)->directory, err);
    if (!status)
        status = dcp_verify_archives(source, deep, err);
    if (!status)
        status = dcp_metadata_files(source, &arena, &files, &count, &is_per_rank, err);
    if (!status)
        status = check_files(source, !is_per_rank, &arena, err);
    for (uint32_t i = 0; i < count && !status; i++)
        status = check_metadata(source, files[i].name, err);
    arena_release(&arena);
    return status;
}
