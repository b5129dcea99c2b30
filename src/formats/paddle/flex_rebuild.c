/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A folder whose metadata is gone, for salvage. Data files name their arrays, and say no more: what one file alone has is the whole tensor,
 * what several have are its parts, or copies, and nobody can say which. Such tensors have a key and no chunk: they are lost.
 */
#include "formats/paddle/flex.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

/* What the files say of a key; the shape is that of the first array. */
struct rebuilt_key {
    uint32_t files, first_file;
    enum dtype dtype;
    int rank;
    int64_t shape[RANK_MAX];
    uint32_t tensor;
};

struct rebuilding {
    struct source *source;
    const struct flex_listing *listing;
    struct name_map names;
    struct rebuilt_key *keys; /* by number of the name */
    uint32_t key_capacity, file, file_count, whole_count;
    uint64_t uid;
};

static bool rebuild_is_data(const struct rebuilding *rebuilding, uint32_t file)
{
    const struct flex_file *entry = &rebuilding->listing->files[file];
    return (entry->kind == FLEX_DISTCP || entry->kind == FLEX_SAFETENSORS) && entry->uid == rebuilding->uid;
}

static reshard_status rebuild_note_key(void *context, struct str key, const struct flex_array *array, reshard_error *err)
{
    struct rebuilding *rebuilding = context;
    bool was_new;
    if (!array)
        return RESHARD_OK;
    uint32_t number = name_map_intern(&rebuilding->names, key, &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(rebuilding->keys, number, rebuilding->key_capacity))
        return error_set_memory(err);
    struct rebuilt_key *found = &rebuilding->keys[number];
    if (was_new) {
        *found = (struct rebuilt_key){ .first_file = rebuilding->file, .rank = array->rank, .tensor = CATALOG_NONE };
        found->dtype = array->dtype == DTYPE_U16 ? DTYPE_BF16 : array->dtype;
        if (array->rank)
            memcpy(found->shape, array->shape, (size_t)array->rank * sizeof(*array->shape));
    }
    found->files++;
    return RESHARD_OK;
}

/* Calls work for every data file that can be read; the others are damage. */
static reshard_status rebuild_each_file(struct rebuilding *rebuilding,
                                        reshard_status (*work)(struct rebuilding *rebuilding, struct flex_data *data, reshard_error *err),
                                        bool tells, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < rebuilding->listing->count && !status; i++) {
        struct flex_data *data = NULL;
        reshard_error seen = { 0 };
        if (!rebuild_is_data(rebuilding, i))
            continue;
        rebuilding->file = i;
        status = flex_data_open(rebuilding->source, rebuilding->listing->files[i].name, &data, &seen);
        if (failure_ends_run(status, &seen, err))
            return status;
        if (status && tells)
            catalog_warn(rebuilding->source->catalog, true, "%s", seen.message);
        status = status ? RESHARD_OK : work(rebuilding, data, err);
        flex_data_close(data);
    }
    return status;
}

static reshard_status rebuild_read_names(struct rebuilding *rebuilding, struct flex_data *data, reshard_error *err)
{
    rebuilding->file_count++;
    return flex_data_walk(data, rebuild_note_key, rebuilding, err);
}

/* A vector of several elements behind the key of a tensor of another rank may be a run of that tensor's state: its shape is not known. */
static bool rebuild_may_be_run(const struct rebuilding *rebuilding, uint32_t number)
{
    const struct rebuilt_key *found = &rebuilding->keys[number];
    struct str key = name_map_at(&rebuilding->names, number);
    if (rebuilding->file_count < 2 || found->rank != 1 || found->shape[0] == 1)
        return false;
    for (size_t dot = key.size; dot-- > 0;) {
        uint32_t base = key.data[dot] == '.' ? name_map_find(&rebuilding->names, (struct str){ key.data, dot }) : NAME_NONE;
        if (base != NAME_NONE)
            return rebuilding->keys[base].rank != 1;
    }
    return false;
}

static reshard_status rebuild_add_tensor(struct rebuilding *rebuilding, uint32_t number, reshard_error *err)
{
    struct rebuilt_key *found = &rebuilding->keys[number];
    struct catalog *catalog = rebuilding->source->catalog;
    struct str key = name_map_at(&rebuilding->names, number);
    bool may_be_run = rebuild_may_be_run(rebuilding, number);
    reshard_status status = catalog_add_tensor(catalog, key, found->dtype, found->rank, found->shape, &found->tensor, err);
    if (found->files > 1)
        catalog_warn(catalog, true, "'%.*s' is in %" PRIu32 " files: only metadata, a sibling's for example, tells its parts from copies",
                     STR_ARG(key), found->files);
    else if (may_be_run)
        catalog_warn(catalog, true, "'%.*s' may be a run of a tensor's elements: only metadata, a sibling's for example, tells its shape",
                     STR_ARG(key));
    found->files = may_be_run ? 2 : found->files;
    rebuilding->whole_count += found->files == 1;
    return status;
}

/* Chunks are placed at once, since arrays in slices become several. */
static reshard_status rebuild_place_file(struct rebuilding *rebuilding, struct flex_data *data, reshard_error *err)
{
    struct catalog *catalog = rebuilding->source->catalog;
    const struct flex_file *file = &rebuilding->listing->files[rebuilding->file];
    uint32_t object;
    reshard_status status = catalog_add_object(catalog, file->name, file->bytes, &object, err);
    for (uint32_t i = 0; i < rebuilding->names.count && !status; i++) {
        const struct rebuilt_key *found = &rebuilding->keys[i];
        struct catalog_chunk *chunk;
        if (found->files != 1 || found->first_file != rebuilding->file)
            continue;
        status = catalog_add_chunk(catalog, found->tensor, NULL, NULL, object, 0, 0, &chunk, err);
        if (status)
            continue;
        chunk->writer = catalog_writer(file->rank);
        chunk->driver_data = flex_chunk_data(-1, false);
        status = flex_place_in(catalog, data, (uint32_t)(chunk - catalog->chunks), err);
    }
    return status;
}

static void rebuild_choose_uid(struct rebuilding *rebuilding)
{
    for (size_t i = 0; i < rebuilding->listing->count; i++) {
        const struct flex_file *file = &rebuilding->listing->files[i];
        if ((file->kind == FLEX_DISTCP || file->kind == FLEX_SAFETENSORS) && file->uid > rebuilding->uid)
            rebuilding->uid = file->uid;
    }
}

bool flex_lacks_metadata(const struct flex_listing *listing)
{
    bool has = false;
    for (size_t i = 0; i < listing->count; i++)
        has = has || listing->files[i].kind == FLEX_METADATA || listing->files[i].kind == FLEX_AUTO;
    return !has;
}

reshard_status flex_rebuild(struct source *source, const struct flex_listing *listing, reshard_error *err)
{
    struct rebuilding rebuilding = { .source = source, .listing = listing };
    rebuild_choose_uid(&rebuilding);
    reshard_status status = rebuild_each_file(&rebuilding, rebuild_read_names, true, err);
    for (uint32_t i = 0; i < rebuilding.names.count && !status; i++)
        status = rebuild_add_tensor(&rebuilding, i, err);
    if (!status && !rebuilding.whole_count)
        status = error_set(err, RESHARD_ERR_FORMAT, "there is no metadata file (<uid>.metadata), and no tensor is in one file alone");
    if (!status)
        status = rebuild_each_file(&rebuilding, rebuild_place_file, false, err);
    source->is_rebuilt = !status;
    if (!status)
        catalog_warn(source->catalog, true, "there is no metadata file: what one data file alone has is taken for the whole tensor");
    name_map_release(&rebuilding.names);
    free(rebuilding.keys);
    return status;
}
