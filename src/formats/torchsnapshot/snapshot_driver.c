/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torchsnapshot/torchsnapshot.h"

#include "formats/shared/checked_ranges.h"
#include "formats/shared/file_tree.h"
#include "formats/source_root.h"
#include "formats/torchsnapshot/snapshot_source.h"

/* The manifest is written last, so that a folder without it is no snapshot yet. */
static int snapshot_probe(struct store *store, const char *name, reshard_error *err)
{
    if (store_is_file(store, name))
        return str_ends_with(str_of(name), SNAPSHOT_METADATA) ? 95 : 0;
    return store_has_file(store, name, SNAPSHOT_METADATA, err) ? 95 : 0;
}

/* ---- verifying ---- */

static reshard_status check_saved(struct source *source, reshard_error *err)
{
    const struct snapshot_state *state = snapshot_state_of(source);
    struct checked_ranges checked = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < state->saved_count; i++) {
        const struct snapshot_saved *saved = &state->saved[i];
        bool has_checksums;
        status = dcp_verify_container(source, saved->object, saved->offset, saved->bytes, &has_checksums, err);
        if (!status && has_checksums && !checked_ranges_add(&checked, saved->object, saved->offset, saved->bytes))
            status = error_set_memory(err);
    }
    if (!status)
        checked_ranges_mark(&checked, source->catalog);
    checked_ranges_release(&checked);
    return status;
}

/* Whether the manifest may name it, or it is ours. */
static reshard_status note_unreferenced(void *context, const struct store_entry *file, struct str below, reshard_error *err)
{
    struct source *source = context;
    (void)err;
    if (!str_is(below, SNAPSHOT_METADATA) && !str_is(below, SIDECAR_NAME) &&
        name_map_find(&source->catalog->object_names, file->name) == NAME_NONE)
        catalog_warn(source->catalog, false, "'%.*s': nothing refers to it, it may be left from an earlier save", STR_ARG(below));
    return RESHARD_OK;
}

static reshard_status snapshot_verify(struct source *source, bool deep, reshard_error *err)
{
    struct str directory = str_of(dcp_state(source)->directory);
    struct arena arena = { .work = source->limits.budget };
    (void)deep;
    reshard_status status = check_saved(source, err);
    char *plain = arena_copy(&arena, directory.data, directory.size ? directory.size - 1 : 0);
    if (!status && !plain)
        status = error_set_memory(err);
    if (!status)
        status = file_tree_walk(source->store, plain, SIZE_MAX, &arena, note_unreferenced, source, err);
    arena_release(&arena);
    return status;
}

/* ---- the driver ---- */

static const char *const snapshot_entries[] = { SNAPSHOT_METADATA, "batched/", "replicated/", "sharded/", "replicated_sharded/", "[0-9]*/",
                                               NULL };

static const char *const snapshot_layout_files[] = { SNAPSHOT_METADATA, NULL };

const struct format_driver format_torchsnapshot = {
    .name = "torchsnapshot",
    .summary = "torchsnapshot directory: .snapshot_metadata and the files that it names",
    .abilities = FORMAT_READS,
    .folder_entries = snapshot_entries,
    .layout_files = snapshot_layout_files,
    .probe = snapshot_probe,
    .read_catalog = snapshot_read_catalog,
    .resolve = dcp_resolve,
    .load_item = snapshot_load_item,
    .read_item_storage = snapshot_read_item_storage,
    .verify = snapshot_verify,
    .close_source = dcp_close_source,
};
