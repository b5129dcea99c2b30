/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/numpy/numpy.h"

#include "formats/numpy/numpy_source.h"
#include "formats/shared/checked_ranges.h"
#include "formats/shared/file_tree.h"
#include "formats/source_probe.h"

#include <stdlib.h>

#define FOLDERS_LOOKED_AT 64
#define FIRST_BYTES 64 /* of a file of another name: whoever opens one of another format pays for them */
#define LOCAL_NAME_OFFSET 30 /* of a zip member's local header */

/* ---- probing ---- */

/* The first bytes of a file from an offset on, fewer of a shorter one. *size 0: there is no such file. */
static void read_first(struct store *store, const char *name, uint64_t offset, uint8_t *out, size_t room, size_t *size,
                       reshard_error *err)
{
    struct store_object *object = NULL;
    uint64_t bytes;
    *size = 0;
    if (!store_is_file(store, name) || store_open_object(store, name, &object, err))
        return;
    bytes = store_object_size(object) > offset ? store_object_size(object) - offset : 0;
    size_t wanted = bytes < room ? (size_t)bytes : room;
    if (wanted && !store_read_at(object, offset, out, wanted, err))
        *size = wanted;
    store_object_close(object);
}

/* Whether a zip archive's first member has the name of an array, which may be longer than what was read. */
static bool begins_with_array(struct store *store, const char *name, const uint8_t *first, size_t size, reshard_error *err)
{
    uint8_t end[NUMPY_SUFFIX_BYTES];
    size_t got;
    if (size < LOCAL_NAME_OFFSET || memcmp(first, "PK\3\4", 4) != 0)
        return false;
    const size_t name_bytes = first[26] | (size_t)first[27] << 8;
    if (name_bytes <= size - LOCAL_NAME_OFFSET)
        return str_ends_with((struct str){ (const char *)first + LOCAL_NAME_OFFSET, name_bytes }, NUMPY_SUFFIX);
    read_first(store, name, LOCAL_NAME_OFFSET + name_bytes - sizeof(end), end, sizeof(end), &got, err);
    return got == sizeof(end) && memcmp(end, NUMPY_SUFFIX, sizeof(end)) == 0;
}

/* The name is nearly enough, so that a damaged file is refused for what it claims to be. Surer than of any zip archive. */
static int npz_probe(struct store *store, const char *name, reshard_error *err)
{
    uint8_t first[FIRST_BYTES];
    size_t size;
    if (!store_is_file(store, name))
        return 0;
    if (str_ends_with(str_of(name), ".npz"))
        return 97;
    read_first(store, name, 0, first, sizeof(first), &size, err);
    return begins_with_array(store, name, first, size, err) ? 92 : numpy_is_without_arrays(first, size) ? 60 : 0;
}

/* What may lie beside arrays that are a checkpoint: nothing that could be one of another format. */
static bool npy_is_side_file(struct str name)
{
    static const char *const globs[] = { ".*", "README*", "*.md", "*.json" };
    struct str base = name;
    for (size_t at; str_find_char(base, '/', &at);)
        base = (struct str){ base.data + at + 1, base.size - at - 1 };
    for (size_t i = 0; i < sizeof(globs) / sizeof(globs[0]); i++)
        if (str_matches_glob(base, str_of(globs[i])))
            return true;
    return false;
}

static reshard_status look_at_file(void *context, const struct store_entry *file, struct str below, reshard_error *err)
{
    bool *has_array = context, is_array = str_ends_with(below, NUMPY_SUFFIX);
    (void)file;
    *has_array |= is_array;
    return is_array || npy_is_side_file(below) ? RESHARD_OK : error_set(err, RESHARD_ERR_UNSUPPORTED, "no array");
}

/* A folder is one of arrays only if it holds nothing else: arrays lie beside checkpoints of other formats, and in roots of them. */
static int folder_probe(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    bool has_array = false;
    reshard_status status = file_tree_walk(store, name, FOLDERS_LOOKED_AT, &arena, look_at_file, &has_array, err);
    arena_release(&arena);
    return !status && has_array ? 30 : 0;
}

static int npy_probe(struct store *store, const char *name, reshard_error *err)
{
    uint8_t first[6];
    size_t size;
    if (store_is_directory(store, name))
        return folder_probe(store, name, err);
    if (!store_is_file(store, name))
        return 0;
    if (str_ends_with(str_of(name), NUMPY_SUFFIX))
        return 97;
    read_first(store, name, 0, first, sizeof(first), &size, err);
    return size == sizeof(first) && memcmp(first, "\x93NUMPY", sizeof(first)) == 0 ? 96 : 0;
}

/* ---- verifying ---- */

/* The CRCs of items were compared when they were read, and that they have one is known now. */
static void note_values_checked(struct catalog *catalog, bool has_crcs, bool has_directory)
{
    catalog->names_are_checked = has_crcs && has_directory; /* a name has no CRC, but is there twice */
    for (uint32_t i = 0; i < catalog->item_count; i++)
        catalog->items[i].is_checked |= has_crcs;
}

/* Shapes and types lie in the members as the elements do, under the same CRC. */
static reshard_status npz_verify(struct source *source, bool deep, reshard_error *err)
{
    const struct numpy_source *state = source->driver_state;
    const struct zip_archive *zip = &state->zip;
    struct checked_ranges checked = { 0 };
    struct store_object *object = NULL;
    (void)deep;
    if (!zip->member_count || zip->crc_is_off)
        return RESHARD_OK;
    reshard_status status = store_open_object(source->store, source->name, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    for (uint32_t i = 0; !status && i < zip->member_count; i++) {
        const struct zip_member *member = &zip->members[i];
        reshard_error found = { 0 };
        if (member->is_directory || state->is_lost[i])
            continue;
        reshard_status result = zip_check_member(&reader, zip, member, &source->limits, &found);
        if (!result && member->crc32 && !checked_ranges_add(&checked, state->object, member->payload_offset, member->stored_bytes))
            status = error_set_memory(err);
        else if (result == RESHARD_ERR_FORMAT || result == RESHARD_ERR_LIMIT)
            catalog_warn_place(source->catalog, state->object, member->payload_offset, member->stored_bytes, "%s: %s", reader.name,
                               found.message);
        else if (result) {
            if (err)
                *err = found;
            status = result;
        }
    }
    store_object_close(object);
    if (!status) {
        checked_ranges_mark(&checked, source->catalog);
        note_values_checked(source->catalog, zip_has_all_crcs(zip), !state->is_cut_off);
    }
    checked_ranges_release(&checked);
    return status;
}

static void numpy_close_source(struct source *source)
{
    struct numpy_source *state = source->driver_state;
    if (!state)
        return;
    zip_release(&state->zip);
    free(state->is_lost);
    free(state);
    source->driver_state = NULL;
}

/* ---- the drivers ---- */

static const char *const npz_endings[] = { ".npz", NULL };

const struct format_driver format_npz = {
    .name = "npz",
    .summary = "NumPy's npz: one zip archive of arrays",
    .abilities = FORMAT_READS | FORMAT_WRITES,
    .file_endings = npz_endings,
    .probe = npz_probe,
    .read_catalog = numpy_read_npz,
    .verify = npz_verify,
    .lay_out = numpy_lay_out_npz,
    .publish_object = numpy_publish_npz,
    .close_source = numpy_close_source,
    .close_target = numpy_close_target,
};

/* None: which files are a checkpoint's is known by reading it, and an array beside another format's files is none of those. */
static const char *const npy_entries[] = { NULL };

const struct format_driver format_npy = {
    .name = "npy",
    .summary = "NumPy's npy: one array a file, alone or in folders",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY,
    .folder_entries = npy_entries,
    .probe = npy_probe,
    .read_catalog = numpy_read_npy,
    .lay_out = numpy_lay_out_npy,
    .publish_object = numpy_publish_npy,
    .close_source = numpy_close_source,
    .close_target = numpy_close_target,
};
