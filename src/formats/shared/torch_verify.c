/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that opening leaves out because they read data: CRCs of records that no chunk carries, and indices of sparse tensors. */
#include "formats/shared/torch_source.h"

#include "base/array.h"
#include "base/cursor.h"
#include "formats/shared/checked_ranges.h"

#include <inttypes.h>
#include <stdlib.h>

#define WINDOW_BYTES 65536

/* Payload offsets of storages whose CRC the check of their chunk finds out anyway. */
struct checked_set {
    uint64_t *offsets;
    size_t count;
};

static int offset_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static bool checked_set_make(const struct torch_file *file, struct checked_set *out)
{
    out->count = 0;
    out->offsets = array_new(file->archive.storage_count, sizeof(*out->offsets));
    if (!out->offsets)
        return false;
    for (uint32_t i = 0; i < file->archive.storage_count; i++)
        if (file->has_crc_in_chunk[i])
            out->offsets[out->count++] = file->archive.storages[i].offset;
    qsort(out->offsets, out->count, sizeof(*out->offsets), offset_order);
    return true;
}

/* What has a CRC: records, but for the holes of torch's skip_data. */
static bool torch_verify_note_checked(const struct zip_archive *zip, uint32_t object, struct checked_ranges *checked)
{
    for (uint32_t i = 0; i < zip->member_count; i++) {
        const struct zip_member *member = &zip->members[i];
        if (member->crc32 && !checked_ranges_add(checked, object, member->payload_offset, member->stored_bytes))
            return false;
    }
    return true;
}

static reshard_status check_zip(struct source *source, const struct torch_file *file, const struct reader *reader,
                                struct checked_ranges *checked, reshard_error *err)
{
    struct zip_archive zip = { 0 };
    struct checked_set skip = { 0 };
    reshard_status status = zip_open(reader, &source->limits, &zip, err);
    if (!status && (!checked_set_make(file, &skip) || !torch_verify_note_checked(&zip, file->object, checked)))
        status = error_set_memory(err);
    for (uint32_t i = 0; !status && !zip.crc_is_off && i < zip.member_count; i++) {
        const struct zip_member *member = &zip.members[i];
        if (member->is_directory ||
            (member->bytes > 0 && bsearch(&member->payload_offset, skip.offsets, skip.count, sizeof(uint64_t), offset_order)))
            continue;
        reshard_error found = { 0 };
        reshard_status result = zip_check_member(reader, &zip, member, &source->limits, &found);
        if (result == RESHARD_ERR_FORMAT || result == RESHARD_ERR_LIMIT)
            catalog_warn_place(source->catalog, file->object, member->payload_offset, member->stored_bytes, "%s: %s", reader->name,
                               found.message);
        else if (result) {
            if (err)
                *err = found;
            status = result;
        }
    }
    free(skip.offsets);
    zip_release(&zip);
    return status;
}

/* ---- sparse tensors ---- */

/* The archive tensor that a node is, by the node of its call; NULL if it is none. */
static const struct torch_tensor *tensor_at(const struct torch_archive *archive, const struct value *node)
{
    if (node->kind == VALUE_CALL && value_is_call(node, "torch._utils", "_rebuild_parameter") && node->object->args->list.count > 0)
        node = node->object->args->list.items[0];
    for (uint32_t i = 0; i < archive->tensor_count; i++)
        if (archive->tensors[i].node == node)
            return &archive->tensors[i];
    return NULL;
}

/* An integer tensor that is one run of its storage. */
struct index_run {
    uint64_t offset;
    int64_t count;
    unsigned width;
    bool is_swapped;
};

static bool index_run_of(const struct torch_archive *archive, const struct torch_tensor *tensor, struct index_run *out)
{
    const struct torch_storage *storage = &archive->storages[tensor->storage];
    if ((tensor->dtype != DTYPE_I64 && tensor->dtype != DTYPE_I32) || storage->codec != CODEC_NONE ||
        !strides_are_row_major(tensor->rank, tensor->shape, tensor->strides))
        return false;
    *out = (struct index_run){ storage->offset + tensor->offset_bytes, box_volume(tensor->rank, tensor->shape),
                               dtype_element_bytes(tensor->dtype), tensor->flags & TORCH_TENSOR_SWAP };
    return true;
}

static int64_t load_index(const uint8_t *bytes, const struct index_run *run)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < run->width; i++)
        value = value << 8 | bytes[run->is_swapped ? i : run->width - 1 - i];
    return run->width == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value;
}

/* All of [begin, begin + count) of the run must lie in [0, limit). */
static reshard_status torch_verify_check_range(const struct reader *reader, const struct index_run *run, int64_t begin, int64_t count,
                                               int64_t limit, bool *is_good, int64_t *bad, reshard_error *err)
{
    uint8_t window[WINDOW_BYTES];
    int64_t at = 0, per_window = WINDOW_BYTES / (int64_t)run->width;
    while (at < count && *is_good) {
        int64_t part = count - at < per_window ? count - at : per_window;
        uint64_t offset = run->offset + (uint64_t)(begin + at) * run->width;
        reshard_status status = reader_read(reader, offset, window, (size_t)part * run->width, err);
        if (status)
            return status;
        for (int64_t i = 0; i < part && *is_good; i++) {
            *bad = load_index(window + (size_t)i * run->width, run);
            *is_good = *bad >= 0 && *bad < limit;
        }
        at += part;
    }
    return RESHARD_OK;
}

/* (indices [dims, count], values, size, …): row i of the indices lies in dimension i. */
static reshard_status check_coo(struct source *source, const struct torch_archive *archive, const struct reader *reader,
                                struct value *const *data, size_t count, reshard_error *err)
{
    const struct torch_tensor *indices = count >= 3 ? tensor_at(archive, data[0]) : NULL;
    struct index_run run;
    int64_t size[RANK_MAX], bad = 0;
    size_t rank;
    bool is_good = true;
    if (!indices || indices->rank != 2 || !index_run_of(archive, indices, &run) || !value_as_ints(data[2], size, RANK_MAX, &rank))
        return RESHARD_OK;
    reshard_status status = RESHARD_OK;
    int64_t dimension = 0;
    for (; !status && is_good && dimension < indices->shape[0]; dimension++) {
        int64_t limit = (size_t)dimension < rank ? size[dimension] : 0;
        status = torch_verify_check_range(reader, &run, dimension * indices->shape[1], indices->shape[1], limit, &is_good, &bad, err);
        if (!status && !is_good)
            catalog_warn(source->catalog, true, "%s: sparse index %" PRId64 " in a dimension of %" PRId64, reader->name, bad, limit);
    }
    return status;
}

/* (compressed, plain, values, size): plain indices lie in the dimension that is not compressed. */
static reshard_status check_compressed(struct source *source, const struct torch_archive *archive, const struct reader *reader, bool by_row,
                                       struct value *const *data, size_t count, reshard_error *err)
{
    const struct torch_tensor *pointers = count >= 4 ? tensor_at(archive, data[0]) : NULL,
                              *plain = count >= 4 ? tensor_at(archive, data[1]) : NULL;
    struct index_run run, pointer_run;
    int64_t size[RANK_MAX], bad = 0;
    size_t rank;
    bool is_good = true;
    if (!plain || !pointers || !index_run_of(archive, plain, &run) || !index_run_of(archive, pointers, &pointer_run) ||
        !value_as_ints(data[3], size, RANK_MAX, &rank) || rank < 2)
        return RESHARD_OK;
    int64_t limit = by_row ? size[rank - 1] : size[rank - 2];
    reshard_status status = torch_verify_check_range(reader, &run, 0, run.count, limit, &is_good, &bad, err);
    if (!status && is_good)
        status = torch_verify_check_range(reader, &pointer_run, 0, pointer_run.count, limit = plain->shape[plain->rank - 1] + 1, &is_good,
                                          &bad, err);
    if (!status && !is_good)
        catalog_warn(source->catalog, true, "%s: sparse index %" PRId64 " where less than %" PRId64 " is allowed", reader->name, bad,
                     limit);
    return status;
}

struct sparse_list {
    const struct value **nodes;
    size_t count, capacity;
};

static bool note_sparse(const struct value *value, void *context)
{
    struct sparse_list *list = context;
    if (value->kind != VALUE_CALL || !value_is_call(value, "torch._utils", "_rebuild_sparse_tensor"))
        return true;
    if (!ARRAY_ROOM(list->nodes, list->count, list->capacity))
        return false;
    list->nodes[list->count++] = value;
    return true;
}

/* Name of a layout: an argument of torch.serialization._get_layout, or a global of torch. */
static struct str layout_name(const struct value *layout)
{
    struct str name = { 0 };
    if (layout->kind == VALUE_GLOBAL)
        return layout->global.name;
    if (value_is_call(layout, "torch.serialization", "_get_layout") && layout->object->args->list.count == 1 &&
        value_as_str(layout->object->args->list.items[0], &name) && str_starts_with(name, "torch."))
        name = (struct str){ name.data + 6, name.size - 6 };
    return name;
}

static reshard_status check_sparse(struct source *source, const struct torch_file *file, const struct reader *reader, reshard_error *err)
{
    struct sparse_list list = { 0 };
    reshard_status status = RESHARD_OK;
    if (!value_walk(file->graph->root, file->graph->count, source->limits.budget, note_sparse, &list, NULL))
        status = error_set_memory(err);
    for (size_t i = 0; !status && i < list.count; i++) {
        const struct value *args = list.nodes[i]->object->args;
        struct value **data;
        size_t count;
        if (args->list.count < 2 || !value_as_sequence(args->list.items[1], &data, &count))
            continue;
        struct str layout = layout_name(args->list.items[0]);
        if (str_is(layout, "sparse_coo"))
            status = check_coo(source, &file->archive, reader, data, count, err);
        else if (str_is(layout, "sparse_csr") || str_is(layout, "sparse_csc"))
            status = check_compressed(source, &file->archive, reader, str_is(layout, "sparse_csr"), data, count, err);
    }
    free(list.nodes);
    return status;
}

/* The pickles hold the names and all values that are no tensors; their CRCs were compared when they were read. */
static void note_pickles_checked(struct catalog *catalog)
{
    catalog->names_are_checked = true;
    for (uint32_t i = 0; i < catalog->item_count; i++)
        catalog->items[i].is_checked |= catalog->items[i].kind == ITEM_VALUE;
}

reshard_status torch_source_verify(struct source *source, bool deep, reshard_error *err)
{
    (void)deep;
    struct torch_source *state = torch_source_of(source);
    struct checked_ranges checked = { 0 };
    reshard_status status = RESHARD_OK;
    bool has_crcs = state->file_count > 0;
    for (uint32_t i = 0; !status && i < state->file_count; i++) {
        const struct torch_file *file = &state->files[i];
        struct str name = source->catalog->objects[file->object].name;
        char *plain = strndup(name.data, name.size);
        struct store_object *object = NULL;
        status = plain ? store_open_object(source->store, plain, &object, err) : error_set_memory(err);
        free(plain);
        if (status)
            break;
        struct reader reader = store_object_reader(object);
        if (file->archive.container == TORCH_ZIP)
            status = check_zip(source, file, &reader, &checked, err);
        has_crcs = has_crcs && file->archive.container == TORCH_ZIP && !file->archive.checksums_are_off;
        if (!status)
            status = check_sparse(source, file, &reader, err);
        store_object_close(object);
    }
    if (!status)
        checked_ranges_mark(&checked, source->catalog);
    checked_ranges_release(&checked);
    if (!status && has_crcs)
        note_pickles_checked(source->catalog);
    return status;
}
