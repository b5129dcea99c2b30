/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"
#include "formats/shared/flat_keys.h"
#include "formats/shared/megatron_keys.h"
#include "formats/shared/side_files.h"

#include <stdio.h>
#include <stdlib.h>

bool dcp_is_listed(const char *const *names, struct str name)
{
    for (size_t i = 0; names && names[i]; i++) {
        if (str_is(name, names[i]))
            return true;
    }
    return false;
}

/* Others belong to the checkpoint itself, or to us. */
static bool is_dcp_side_file(const void *own_files, const struct store_entry *entry, struct str base)
{
    (void)entry;
    return base.size > 0 && base.data[0] != '.' && !str_ends_with(base, ".distcp") && !str_ends_with(base, ".metadata") &&
           !str_is(base, SIDECAR_NAME) && !dcp_is_listed(own_files, base);
}

reshard_status dcp_add_side_files(struct source *source, const char *sub_directory, const char *const *own_files, reshard_error *err)
{
    char *plain = NULL;
    const int size = asprintf(&plain, "%s%s", dcp_state(source)->directory, sub_directory);
    if (size < 0)
        return error_set_memory(err);
    if (size > 0)
        plain[size - 1] = '\0';
    reshard_status status = side_files_add(source, plain, sub_directory, sub_directory[0] ? NULL : is_dcp_side_file, own_files, err);
    free(plain);
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

reshard_status dcp_read_catalog(struct source *source, reshard_error *err)
{
    reshard_status status = dcp_read_open(source, err);
    if (!status)
        status = dcp_read_tensors(source, NULL, err);
    if (!status)
        status = megatron_keys_note(source->catalog, err);
    if (!status)
        status = dcp_read_parts(source, err);
    if (!status)
        flat_keys_warn(source->catalog);
    return status ? status : dcp_add_side_files(source, "", NULL, err);
}

/* ---- probes ---- */

static unsigned dcp_read_look(struct store *store, const char *directory, reshard_error *err)
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
        struct str base = str_base_name(entries[i].name);
        uint64_t rank;
        if (entries[i].is_directory)
            continue;
        if (str_is(base, DCP_METADATA))
            seen |= DCP_HAS_METADATA;
        else if (str_starts_with(base, "__") && str_ends_with(base, ".metadata"))
            seen |= DCP_HAS_RANK_METADATA;
        else if (str_is(base, ".metadata.tmp"))
            seen |= DCP_HAS_TEMPORARY;
        else if (dcp_file_rank(base, &rank))
            seen |= DCP_HAS_DATA;
    }
    arena_release(&arena);
    return seen;
}

unsigned dcp_look(struct store *store, const char *name, reshard_error *err)
{
    char *directory = NULL;
    unsigned seen = dcp_directory_find(store, name, &directory, err) ? 0 : dcp_read_look(store, directory, err);
    free(directory);
    return seen;
}

int dcp_probe(struct store *store, const char *name, reshard_error *err)
{
    unsigned seen = dcp_look(store, name, err);
    if (seen & DCP_HAS_METADATA)
        return 90;
    if (seen & DCP_HAS_RANK_METADATA)
        return 85;
    return seen & DCP_HAS_DATA ? 40 : seen & DCP_HAS_TEMPORARY ? 30 : 0;
}
