/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_read.h"

#include <stdlib.h>

/* How much of .metadata is looked at to tell whose it is. */
#define FIRST_BYTES ((size_t)1 << 20)

/* Files that belong to the checkpoint itself, or to us. */
static bool is_own_file(const struct source *source, struct str base)
{
    bool is_plain = base.size == 0 || base.data[0] == '.' || str_ends_with(base, ".distcp") || str_ends_with(base, ".metadata") ||
                    str_is(base, SIDECAR_NAME);
    if (is_plain || strcmp(source->driver->name, "torch_dist") != 0)
        return is_plain;
    return str_is(base, "metadata.json") || str_is(base, "common.pt") || str_is(base, "integrity.json") ||
           str_is(base, "latest_checkpointed_iteration.txt");
}

reshard_status dcp_add_side_files(struct source *source, const char *sub_directory, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count, prefix = strlen(dcp_state(source)->directory);
    char *plain = arena_printf(&arena, "%s%s", dcp_state(source)->directory, sub_directory);
    reshard_status status = RESHARD_OK;
    if (!plain) {
        status = error_set_memory(err);
        goto out;
    }
    size_t size = strlen(plain);
    if (size > 0)
        plain[size - 1] = '\0';
    status = store_list(source->store, plain, &arena, &entries, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        struct str base = { entries[i].name.data + prefix, entries[i].name.size - prefix };
        struct catalog_item item = { .key = base, .path = CATALOG_NONE, .kind = ITEM_FILE, .bytes = entries[i].bytes };
        if (entries[i].is_directory || entries[i].leads_out || (!sub_directory[0] && is_own_file(source, base)))
            continue;
        status = catalog_add_object(source->catalog, entries[i].name, entries[i].bytes, &item.object, err);
        if (!status)
            status = catalog_add_item(source->catalog, &item, NULL, 0, NULL, err);
    }

out:
    arena_release(&arena);
    return status;
}

reshard_status dcp_read_open(struct source *source, reshard_error *err)
{
    char *directory = NULL;
    reshard_status status = dcp_directory_find(source->store, source->name, &directory, err);
    if (!status)
        status = dcp_source_new(source, directory, err);
    free(directory);
    return status;
}

/* Megatron's plain DCP is told by its keys: it saves checkpoint_version, and its FSDP wraps the module once more. */
static reshard_status note_megatron(struct source *source, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    bool has_version = false, is_wrapped = false;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        has_version = has_version || str_is(catalog->items[i].key, "checkpoint_version");
        is_wrapped = is_wrapped || str_starts_with(catalog->items[i].key, "optimizer.param_to_group_meta.");
    }
    for (uint32_t i = 0; i < catalog->tensor_count && has_version && !is_wrapped; i++)
        is_wrapped = str_starts_with(catalog->tensors[i].key, "model.module.");
    if (!has_version && !is_wrapped)
        return RESHARD_OK;
    return catalog_add_fact(source->catalog, "flavour", err, "Megatron %s", is_wrapped ? "fsdp_dtensor" : "torch_dcp");
}

static reshard_status read_plain(struct source *source, bool with_files, reshard_error *err)
{
    reshard_status status = dcp_read_open(source, err);
    if (!status)
        status = dcp_read_tensors(source, NULL, err);
    if (!status)
        status = note_megatron(source, err);
    if (!status && with_files)
        status = dcp_add_side_files(source, "", err);
    return status;
}

reshard_status dcp_read_catalog(struct source *source, reshard_error *err)
{
    return read_plain(source, true, err);
}

reshard_status dcp_megatron_read_catalog(struct source *source, reshard_error *err)
{
    return read_plain(source, false, err);
}

/* ---- probes ---- */

enum { HAS_METADATA = 1, HAS_RANK_METADATA = 2, HAS_DATA = 4, HAS_TEMPORARY = 8, HAS_CONFIG = 16, HAS_COMMON = 32 };

static unsigned look(struct store *store, const char *directory, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count, size = strlen(directory);
    unsigned seen = 0;
    char *plain = arena_copy(&arena, directory, size);
    if (plain && size > 0)
        plain[size - 1] = '\0';
    if (!plain)
        error_set_memory(err);
    if (!plain || store_list(store, plain, &arena, &entries, &count, err))
        count = 0;
    for (size_t i = 0; i < count; i++) {
        struct str base = { entries[i].name.data + size, entries[i].name.size - size };
        uint64_t rank;
        if (entries[i].is_directory)
            continue;
        if (str_is(base, DCP_METADATA))
            seen |= HAS_METADATA;
        else if (str_starts_with(base, "__") && str_ends_with(base, ".metadata"))
            seen |= HAS_RANK_METADATA;
        else if (str_is(base, ".metadata.tmp"))
            seen |= HAS_TEMPORARY;
        else if (str_is(base, "metadata.json"))
            seen |= HAS_CONFIG;
        else if (str_is(base, "common.pt"))
            seen |= HAS_COMMON;
        else if (dcp_file_rank(base, &rank))
            seen |= HAS_DATA;
    }
    arena_release(&arena);
    return seen;
}

/* What lies at name, and the backend that its metadata.json gives. */
static unsigned look_at(struct store *store, const char *name, enum mcore_backend *backend, reshard_error *err)
{
    char *directory = NULL;
    struct mcore_config config = { .backend = MCORE_ABSENT };
    unsigned seen = 0;
    if (dcp_directory_find(store, name, &directory, err) == RESHARD_OK) {
        seen = look(store, directory, err);
        if (seen & HAS_CONFIG)
            (void)mcore_config_read(store, directory, &config, err);
    }
    *backend = config.backend;
    free(directory);
    return seen;
}

int dcp_probe(struct store *store, const char *name, reshard_error *err)
{
    enum mcore_backend backend;
    unsigned seen = look_at(store, name, &backend, err);
    if (backend == MCORE_TORCH_DIST || backend == MCORE_FSDP_DTENSOR)
        return 0;
    if (seen & HAS_METADATA)
        return 90;
    if (seen & HAS_RANK_METADATA)
        return 85;
    return seen & HAS_DATA ? 40 : seen & HAS_TEMPORARY ? 30 : 0;
}

/* What the keys of Megatron-FSDP hold, and no others. */
static const char *const fsdp_marks[] = { "optimizer.param_to_group_meta.", "model.module." };

/* Whether one of the first marks stands in the beginning of .metadata. */
static bool begins_with_mark(struct store *store, const char *name, size_t mark_count, reshard_error *err)
{
    struct store_object *object = NULL;
    char *directory = NULL, *path = NULL;
    bool found = false;
    uint8_t *bytes = NULL;
    if (dcp_directory_find(store, name, &directory, err) || dcp_name_join(directory, STR(DCP_METADATA), &path, err) ||
        store_open_object(store, path, &object, err))
        goto out;
    size_t size = store_object_size(object) < FIRST_BYTES ? (size_t)store_object_size(object) : FIRST_BYTES;
    bytes = malloc(size + 1);
    if (!bytes)
        error_set_memory(err);
    if (!bytes || store_read_at(object, 0, bytes, size, err))
        goto out;
    for (size_t i = 0; i < mark_count; i++)
        found = found || memmem(bytes, size, fsdp_marks[i], strlen(fsdp_marks[i]));

out:
    store_object_close(object);
    free(bytes);
    free(path);
    free(directory);
    return found;
}

/* A directory with .metadata that is no torch_dist checkpoint. */
static bool is_plain(struct store *store, const char *name, reshard_error *err)
{
    enum mcore_backend backend;
    unsigned seen = look_at(store, name, &backend, err);
    return backend == MCORE_ABSENT && (seen & HAS_METADATA) && !(seen & HAS_COMMON);
}

int dcp_megatron_probe(struct store *store, const char *name, reshard_error *err)
{
    return dcp_is_iteration(store, name) && is_plain(store, name, err) ? 92 : 0;
}

/* In an iteration's folder either mark is enough; elsewhere others wrap modules in 'model.module.' too. */
int fsdp_dtensor_probe(struct store *store, const char *name, reshard_error *err)
{
    enum mcore_backend backend;
    (void)look_at(store, name, &backend, err);
    if (backend == MCORE_FSDP_DTENSOR)
        return 100;
    return is_plain(store, name, err) && begins_with_mark(store, name, dcp_is_iteration(store, name) ? 2 : 1, err) ? 94 : 0;
}

int torch_dist_probe(struct store *store, const char *name, reshard_error *err)
{
    enum mcore_backend backend;
    unsigned seen = look_at(store, name, &backend, err);
    if (backend == MCORE_TORCH_DIST)
        return 100;
    /* metadata.json is written last: without it, or with a torn one, this is a save that was not finished, which the reader says. */
    bool is_beside = seen & (HAS_METADATA | HAS_COMMON | HAS_DATA);
    if (backend == MCORE_UNREADABLE || backend == MCORE_OTHER)
        return is_beside ? 95 : 0;
    return backend == MCORE_ABSENT && (seen & HAS_COMMON) && (seen & (HAS_METADATA | HAS_DATA)) ? 95 : 0;
}
