/* SPDX-License-Identifier: Apache-2.0 */
/* Whose checkpoint a directory holds: metadata.json says so, or the folder's name and the keys in .metadata do. */
#include "formats/mcore/mcore_source.h"

#include "formats/shared/megatron_keys.h"

#include <stdlib.h>

/* How much of .metadata is looked at to tell whose it is. */
#define FIRST_BYTES ((size_t)1 << 20)

/* What lies in a directory. */
struct mcore_look {
    unsigned seen;              /* files of DCP */
    bool has_common;
    enum mcore_backend backend; /* that metadata.json gives */
};

static struct mcore_look mcore_probe_look_at(struct store *store, const char *name, reshard_error *err)
{
    struct mcore_look look = { .seen = dcp_look(store, name, err) };
    struct mcore_config config = { .backend = MCORE_ABSENT };
    char *directory = NULL;
    if (dcp_directory_find(store, name, &directory, err) == RESHARD_OK) {
        look.has_common = store_has_file(store, directory, MCORE_COMMON_FILE, err);
        (void)mcore_config_read(store, directory, &config, err);
    }
    look.backend = config.backend;
    free(directory);
    return look;
}

/* What the keys of Megatron-FSDP hold. */
static const char *const fsdp_marks[] = { MEGATRON_FSDP_GROUPS, MEGATRON_FSDP_MODEL };

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
static bool mcore_probe_is_plain(const struct mcore_look *look)
{
    return look->backend == MCORE_ABSENT && (look->seen & DCP_HAS_METADATA) && !look->has_common;
}

int mcore_probe_torch_dcp(struct store *store, const char *name, reshard_error *err)
{
    if (!mcore_is_iteration(store, name))
        return 0;
    struct mcore_look look = mcore_probe_look_at(store, name, err);
    return mcore_probe_is_plain(&look) ? 92 : 0;
}

/* In an iteration's folder either mark is enough; elsewhere others wrap modules in 'model.module.' too. */
int mcore_probe_fsdp_dtensor(struct store *store, const char *name, reshard_error *err)
{
    struct mcore_look look = mcore_probe_look_at(store, name, err);
    if (look.backend == MCORE_FSDP_DTENSOR)
        return 100;
    return mcore_probe_is_plain(&look) && begins_with_mark(store, name, mcore_is_iteration(store, name) ? 2 : 1, err) ? 94 : 0;
}

int mcore_probe_torch_dist(struct store *store, const char *name, reshard_error *err)
{
    struct mcore_look look = mcore_probe_look_at(store, name, err);
    if (look.backend == MCORE_TORCH_DIST)
        return 100;
    /* metadata.json is written last: without it, or with a torn one, this is a save that was not finished, which the reader says. */
    bool has_data = look.seen & (DCP_HAS_METADATA | DCP_HAS_DATA), is_beside = look.has_common || has_data;
    if (look.backend == MCORE_UNREADABLE || look.backend == MCORE_OTHER)
        return is_beside ? 95 : 0;
    return look.backend == MCORE_ABSENT && look.has_common && has_data ? 95 : 0;
}
