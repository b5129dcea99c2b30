/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"

#include <stdlib.h>

/* R of "__R.metadata". */
static bool rank_of_metadata(struct str name, uint64_t *rank)
{
    static const char suffix[] = ".metadata";
    if (!str_starts_with(name, "__") || !str_ends_with(name, suffix))
        return false;
    return str_to_u64((struct str){ name.data + 2, name.size - 2 - (sizeof(suffix) - 1) }, rank);
}

static int by_rank(const void *a, const void *b)
{
    const struct dcp_metadata_file *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static reshard_status no_metadata(const struct store_entry *entries, size_t count, reshard_error *err)
{
    bool has_temporary = false;
    size_t data_files = 0;
    for (size_t i = 0; i < count; i++) {
        has_temporary = has_temporary || str_is(str_base_name(entries[i].name), ".metadata.tmp");
        data_files += str_ends_with(entries[i].name, ".distcp");
    }
    error_set(err, RESHARD_ERR_FORMAT, "no .metadata beside %zu data files%s: the save was never finished", data_files,
              has_temporary ? ", only .metadata.tmp" : "");
    error_hint(err, "reshard_salvage() with reshard_salvage_options.like SIBLING takes it from a checkpoint of the same run");
    return RESHARD_ERR_FORMAT;
}

reshard_status dcp_metadata_files(const struct source *source, struct arena *arena, struct dcp_metadata_file **out, uint32_t *out_count,
                                  bool *is_per_rank, reshard_error *err)
{
    const char *directory = ((const struct dcp_source *)source->driver_state)->directory;
    size_t directory_size = strlen(directory), count, found = 0;
    struct store_entry *entries;
    char *plain = arena_printf(arena, "%s", directory);
    if (!plain)
        return error_set_memory(err);
    if (directory_size > 0)
        plain[directory_size - 1] = '\0';
    reshard_status status = store_list(source->store, plain, arena, &entries, &count, err);
    if (status)
        return status;
    struct dcp_metadata_file *files = arena_array(arena, count, sizeof(*files));
    if (!files)
        return error_set_memory(err);
    *is_per_rank = true;
    for (size_t i = 0; i < count && *is_per_rank; i++) {
        uint64_t rank;
        struct str base = str_base_name(entries[i].name);
        if (entries[i].is_directory)
            continue;
        if (str_is(base, DCP_METADATA)) {
            *is_per_rank = false;
            found = 0;
            rank = 0;
        } else if (!rank_of_metadata(base, &rank)) {
            continue;
        }
        files[found].rank = rank;
        files[found].name = arena_copy(arena, entries[i].name.data, entries[i].name.size);
        if (!files[found++].name)
            return error_set_memory(err);
    }
    if (found == 0)
        return no_metadata(entries, count, err);
    qsort(files, found, sizeof(*files), by_rank);
    *out = files;
    *out_count = (uint32_t)found;
    return RESHARD_OK;
}

reshard_status dcp_metadata_read(const struct source *source, const char *name, struct buffer *raw, struct dcp_metadata *out,
                                 reshard_error *err)
{
    struct buffer own = { 0 }, *bytes = raw ? raw : &own;
    reshard_status status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, metadata_bytes), bytes, err);
    if (!status)
        status = dcp_metadata_decode(bytes->data, bytes->size, &source->limits, DCP_DECODE_BEST, out, err);
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    buffer_release(&own);
    return status;
}
