/* SPDX-License-Identifier: Apache-2.0 */
/* One file's leaves as tensors and items of the catalog. */
#include "formats/shared/torch_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "formats/shared/torch_views.h"

#include <inttypes.h>
#include <stdlib.h>

/* State while one file is added. */
struct adding {
    struct source *source;
    struct torch_source *state;
    uint32_t file_index;
    torch_accept accept;
    void *accept_context;
    struct torch_views views;
    uint32_t *storage_tensors;   /* by storage: how many listed tensors view it */
    uint32_t *storage_views;     /* the same without tied ones */
    uint64_t *storage_bytes;     /* by storage: what its different views take when written one by one */
    bool *is_plain;              /* by storage: no view of it needs more than a copy */
    struct value **items;
    size_t item_count, item_capacity;
    uint32_t first_tensor;
};

static uint16_t tensor_flags(unsigned flags)
{
    return (uint16_t)((flags & TORCH_TENSOR_PARAMETER ? TENSOR_PARAMETER : 0) |
                      (flags & TORCH_TENSOR_REQUIRES_GRAD ? TENSOR_REQUIRES_GRAD : 0));
}

static void count_storage(struct adding *adding, const struct torch_tensor *tensor, const struct catalog_tensor *listed)
{
    uint64_t bytes = catalog_tensor_bytes(adding->source->catalog, listed), sum;
    adding->storage_tensors[tensor->storage]++;
    if (listed->tied_to != CATALOG_NONE)
        return;
    adding->storage_views[tensor->storage]++;
    bool fits = checked_add_u64(adding->storage_bytes[tensor->storage], bytes, &sum);
    adding->storage_bytes[tensor->storage] = fits ? sum : UINT64_MAX;
    if (tensor->flags & (TORCH_TENSOR_CONJ | TORCH_TENSOR_NEG))
        adding->is_plain[tensor->storage] = false;
}

static reshard_status torch_catalog_add_tensor(struct adding *adding, struct str key, const struct torch_leaf *leaf, reshard_error *err)
{
    struct torch_file *file = &adding->state->files[adding->file_index];
    struct catalog *catalog = adding->source->catalog;
    uint32_t archive_index = leaf->value->tensor - 1, index, tied;
    const struct torch_tensor *tensor = &file->archive.tensors[archive_index];
    reshard_status status = catalog_add_tensor(catalog, key, tensor->dtype, tensor->rank, tensor->shape, &index, err);
    bool is_key_path = leaf->part_count == 1 && leaf->parts[0].kind == PATH_KEY;
    if (!status && !is_key_path)
        status = catalog_set_tensor_path(catalog, index, leaf->parts, leaf->part_count, err);
    if (!status)
        status = torch_source_note_origin(adding->state, index, (struct torch_origin){ adding->file_index, archive_index, tensor->storage },
                                          err);
    if (status)
        return status;
    struct catalog_tensor *listed = &catalog->tensors[index];
    listed->flags |= tensor_flags(tensor->flags);
    if (!box_is_empty(tensor->rank, tensor->shape)) {
        status = torch_views_find(&adding->views, tensor, index, &tied, err);
        listed->tied_to = tied;
        if (status)
            return status;
        count_storage(adding, tensor, listed);
    }
    if (file->listed[archive_index] == 0)
        file->listed[archive_index] = index + 1;
    return RESHARD_OK;
}

static reshard_status torch_catalog_add_item(struct adding *adding, struct str key, const struct torch_leaf *leaf, reshard_error *err)
{
    if (!ARRAY_ROOM(adding->items, adding->item_count, adding->item_capacity))
        return error_set_memory(err);
    adding->items[adding->item_count++] = leaf->value;
    bool is_key_path = leaf->part_count == 1 && leaf->parts[0].kind == PATH_KEY;
    return torch_source_add_item(adding->source, adding->file_index, key, leaf->parts, is_key_path ? 0 : leaf->part_count, leaf->value,
                                 err);
}

static reshard_status torch_catalog_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct adding *adding = context;
    struct buffer text = { 0 };
    if (!path_join(leaf->parts, leaf->part_count, &text)) {
        buffer_release(&text);
        return error_set_memory(err);
    }
    struct str key = buffer_str(&text);
    reshard_status status = RESHARD_OK;
    if (leaf->value->tensor > 0 && (!adding->accept || adding->accept(key, adding->accept_context)))
        status = torch_catalog_add_tensor(adding, key, leaf, err);
    else if (leaf->value->tensor == 0)
        status = torch_catalog_add_item(adding, key, leaf, err);
    buffer_release(&text);
    return status;
}

/* Chunks come last, when it is known how many tensors share a storage. */
static reshard_status torch_catalog_add_chunks(struct adding *adding, reshard_error *err)
{
    struct catalog *catalog = adding->source->catalog;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = adding->first_tensor; !status && i < catalog->tensor_count; i++) {
        struct torch_origin origin = adding->state->origins[i];
        struct catalog_chunk *chunk;
        bool is_only = adding->storage_tensors[origin.storage] == 1;
        status = torch_source_add_chunk(adding->source, i, NULL, adding->file_index, origin.tensor, is_only, &chunk, err);
        if (!status && adding->storage_tensors[origin.storage] > 1)
            catalog->tensors[i].storage_group = adding->state->group_count + origin.storage;
    }
    adding->state->group_count += adding->state->files[adding->file_index].archive.storage_count;
    return status;
}

/* A storage that is kept as a tensor of its own is of the group of those that view it. */
static void torch_catalog_group_hidden(const struct adding *adding, uint32_t listed_end)
{
    const struct torch_file *file = &adding->state->files[adding->file_index];
    struct catalog *catalog = adding->source->catalog;
    for (uint32_t i = adding->first_tensor; i < listed_end; i++) {
        uint32_t storage = adding->state->origins[i].storage;
        if (file->hidden[storage])
            catalog->tensors[i].storage_group = catalog->tensors[file->hidden[storage] - 1].storage_group =
                adding->state->group_count - file->archive.storage_count + storage;
    }
}

/* Storages that are more than the one tensor on them: writing may keep them whole, which needs their bytes. */
static void want_shared_storages(const struct adding *adding, bool *wanted)
{
    const struct torch_archive *archive = &adding->state->files[adding->file_index].archive;
    for (uint32_t i = 0; i < archive->storage_count; i++)
        wanted[i] = adding->is_plain[i] && (adding->storage_views[i] > 1 ||
                                            (adding->storage_views[i] == 1 && adding->storage_bytes[i] != archive->storages[i].bytes));
}

static bool adding_prepare(struct adding *adding)
{
    size_t count = (size_t)adding->state->files[adding->file_index].archive.storage_count + 1;
    adding->storage_tensors = array_zeroed(count, sizeof(*adding->storage_tensors));
    adding->storage_views = array_zeroed(count, sizeof(*adding->storage_views));
    adding->storage_bytes = array_zeroed(count, sizeof(*adding->storage_bytes));
    adding->is_plain = array_new(count, sizeof(*adding->is_plain));
    if (!adding->storage_tensors || !adding->storage_views || !adding->storage_bytes || !adding->is_plain)
        return false;
    memset(adding->is_plain, true, count * sizeof(*adding->is_plain));
    return true;
}

static void adding_release(struct adding *adding)
{
    torch_views_release(&adding->views);
    free(adding->storage_tensors);
    free(adding->storage_views);
    free(adding->storage_bytes);
    free(adding->is_plain);
    free(adding->items);
}

reshard_status torch_source_add_file(struct source *source, uint32_t file_index, torch_accept accept, void *context, reshard_error *err)
{
    struct torch_source *state = torch_source_of(source);
    struct adding adding = { .source = source, .state = state, .file_index = file_index, .accept = accept, .accept_context = context };
    adding.first_tensor = source->catalog->tensor_count;
    bool *wanted = array_zeroed(state->files[file_index].archive.storage_count, sizeof(*wanted));
    reshard_status status = wanted && adding_prepare(&adding) ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = torch_flatten_closed(state->files[file_index].graph, &source->limits, state->closed_members, torch_catalog_add_leaf,
                                      &adding, err);
    if (!status)
        status = torch_catalog_add_chunks(&adding, err);
    const uint32_t listed_end = source->catalog->tensor_count;
    if (!status) {
        want_shared_storages(&adding, wanted);
        status = torch_source_hide_storages(source, file_index, adding.items, adding.item_count, wanted, err);
    }
    if (!status)
        torch_catalog_group_hidden(&adding, listed_end);
    adding_release(&adding);
    free(wanted);
    return status;
}

/* ---- facts ---- */

static reshard_status list_unknown_globals(struct source *source, const struct torch_archive *archive, reshard_error *err)
{
    struct buffer text = { 0 };
    for (uint32_t i = 0; i < archive->unknown_global_count; i++) {
        buffer_append_text(&text, i ? ", " : "");
        buffer_append_str(&text, archive->unknown_globals[i]);
    }
    reshard_status status = text.failed ? error_set_memory(err) : RESHARD_OK;
    if (!status && archive->unknown_global_count > 0) {
        struct str list = buffer_str(&text);
        catalog_warn(source->catalog, false, "the pickle names what is not known to be harmless (nothing is called): %.*s", STR_ARG(list));
        status = catalog_add_fact(source->catalog, "calls", err, "%.*s", STR_ARG(list));
    }
    buffer_release(&text);
    return status;
}

reshard_status torch_source_add_facts(struct source *source, uint32_t file_index, reshard_error *err)
{
    static const char *const containers[] = { [TORCH_ZIP] = "zip", [TORCH_LEGACY] = "legacy stream", [TORCH_TAR] = "tar" };
    const struct torch_archive *archive = &torch_source_of(source)->files[file_index].archive;
    struct catalog *catalog = source->catalog;
    reshard_status status = RESHARD_OK;
    if (file_index == 0) {
        status = catalog_add_fact(catalog, "container", err, "%s", containers[archive->container]);
        if (!status)
            status = catalog_add_fact(catalog, "pickle protocol", err, "%d", archive->pickle_protocol);
        if (!status && archive->container == TORCH_ZIP)
            status = catalog_add_fact(catalog, "byte order", err, "%s", archive->is_big_endian ? "big" : "little");
        if (!status && archive->alignment > 0)
            status = catalog_add_fact(catalog, "storage alignment", err, "%" PRIu32, archive->alignment);
        if (!status && archive->checksums_are_off)
            status = catalog_add_fact(catalog, "checksums", err, "switched off by the writer");
        if (!status && archive->weights_only_blocker.size > 0)
            status =
                catalog_add_fact(catalog, "torch.load(weights_only=True)", err, "refused: %.*s", STR_ARG(archive->weights_only_blocker));
        else if (!status)
            status = catalog_add_fact(catalog, "torch.load(weights_only=True)", err, "accepted");
    }
    for (uint32_t i = 0; i < archive->warning_count; i++)
        catalog_warn(catalog, false, "%.*s", STR_ARG(archive->warnings[i]));
    return status ? status : list_unknown_globals(source, archive, err);
}

reshard_status torch_source_add_sizes(struct source *source, reshard_error *err)
{
    const struct torch_source *state = torch_source_of(source);
    uint64_t stored = 0, shown = 0;
    for (uint32_t i = 0; i < state->file_count; i++)
        for (uint32_t j = 0; j < state->files[i].archive.storage_count; j++)
            if (state->files[i].archive.storages[j].view_of == 0)
                stored += state->files[i].archive.storages[j].bytes;
    for (uint32_t i = 0; i < source->catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &source->catalog->tensors[i];
        if (!(tensor->flags & TENSOR_HIDDEN) && tensor->tied_to == CATALOG_NONE)
            shown += catalog_tensor_bytes(source->catalog, tensor);
    }
    reshard_status status = catalog_add_fact(source->catalog, "storage bytes", err, "%" PRIu64, stored);
    if (!status && stored > shown)
        status = catalog_add_fact(source->catalog, "storage bytes that no tensor shows", err, "%" PRIu64, stored - shown);
    return status;
}
