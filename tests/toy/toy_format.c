/* SPDX-License-Identifier: Apache-2.0 */
#include "toy_format.h"

#include <inttypes.h>
#include <stdlib.h>

#include "encoding/json.h"

#define INDEX_NAME "toy.json"

/* ---- reading ---- */

static int toy_probe(struct store *store, const char *name, reshard_error *err)
{
    bool is_directory = true;
    uint64_t bytes;
    (void)err;
    return !name[0] && store_exists(store, INDEX_NAME, &is_directory, &bytes) && !is_directory ? 90 : 0;
}

/* Rows of the tensor from *row on that rank_<rank>.bin holds. */
static reshard_status toy_read_part(struct source *source, uint32_t tensor, size_t rank, const struct value *said, int64_t *row,
                                    reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct catalog_tensor owner = catalog->tensors[tensor];
    int64_t part[2], start[RANK_MAX] = { *row }, extent[RANK_MAX], elements;
    uint64_t file_bytes = 0, bytes;
    uint32_t object;
    size_t count;
    bool is_directory;
    memcpy(extent, catalog_vector_at(catalog, owner.shape), (size_t)owner.rank * sizeof(*extent));
    if (!value_as_ints(said, part, 2, &count) || count != 2 || part[0] < 0 || part[1] < 0 || __builtin_add_overflow(*row, part[1], row) ||
        (!owner.rank && *row > 1))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s': part %zu is not [offset, rows]", STR_ARG(owner.key), rank);
    extent[0] = part[1];
    char *name = arena_printf(&catalog->arena, "rank_%zu.bin", rank);
    if (!name || !part[1])
        return name ? RESHARD_OK : error_set_memory(err);
    if (!store_exists(source->store, name, &is_directory, &file_bytes) || !shape_volume(owner.rank, extent, &elements) ||
        !dtype_bytes(owner.dtype, (uint64_t)elements, &bytes) || bytes > file_bytes || (uint64_t)part[0] > file_bytes - bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "'%s' has %" PRIu64 " bytes: '%.*s' ends beyond", name, file_bytes, STR_ARG(owner.key));
    reshard_status status = catalog_add_object(catalog, str_of(name), file_bytes, &object, err);
    if (!status) /* refuses rows that the tensor does not have; catalog_seal finds those that are missing or there twice */
        status = catalog_add_chunk(catalog, tensor, start, extent, object, (uint64_t)part[0], bytes, NULL, err);
    return status;
}

static reshard_status toy_read_tensor(struct source *source, struct str key, const struct value *said, reshard_error *err)
{
    const struct value *named = value_dict_get(said, "dtype"), *sizes = value_dict_get(said, "shape"),
                       *held = value_dict_get(said, "parts");
    int64_t shape[RANK_MAX], row = 0;
    struct value **parts;
    size_t rank, count;
    struct str name;
    enum dtype dtype;
    uint32_t tensor;
    if (!named || !sizes || !held || !value_as_str(named, &name) || !dtype_from_safetensors(name, &dtype) ||
        !value_as_ints(sizes, shape, RANK_MAX, &rank) || !value_as_sequence(held, &parts, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' has no dtype, shape and parts that make sense", STR_ARG(key));
    reshard_status status = catalog_add_tensor(source->catalog, key, dtype, (int)rank, shape, &tensor, err);
    for (size_t i = 0; !status && i < count; i++)
        status = toy_read_part(source, tensor, i, parts[i], &row, err);
    return status;
}

static reshard_status toy_read_catalog(struct source *source, reshard_error *err)
{
    struct value_graph parsed = { 0 };
    struct buffer text = { 0 };
    struct value **pairs, **more;
    size_t count, more_count;
    reshard_status status = store_read_all(source->store, INDEX_NAME, NAMED_LIMIT(&source->limits, metadata_bytes), &text, err);
    if (!status)
        status = json_parse(text.data, text.size, &source->limits, &parsed, err);
    buffer_release(&text);
    if (status)
        return status;
    struct value_graph *graph = catalog_adopt_graph(source->catalog, parsed);
    if (!graph)
        return error_set_memory(err);
    const struct value *tensors = value_dict_get(graph->root, "tensors"), *items = value_dict_get(graph->root, "items");
    if (!tensors || !items || !value_as_mapping(tensors, &pairs, &count) || !value_as_mapping(items, &more, &more_count))
        return error_set(err, RESHARD_ERR_FORMAT, INDEX_NAME " has no objects 'tensors' and 'items'");
    for (size_t i = 0; !status && i < count; i += 2)
        status = toy_read_tensor(source, pairs[i]->text, pairs[i + 1], err);
    for (size_t i = 0; !status && i < more_count; i += 2) {
        struct catalog_item item = { .key = more[i]->text, .kind = ITEM_VALUE, .value = more[i + 1], .graph = graph };
        status = catalog_add_item(source->catalog, &item, NULL, 0, NULL, err);
    }
    return status;
}

/* ---- writing ---- */

static void toy_put_key(struct buffer *index, struct str key)
{
    buffer_append_text(index, index->size && index->data[index->size - 1] == '{' ? "\n" : ",\n");
    buffer_append_json_string(index, key);
    buffer_append_text(index, ":");
}

/* Puts a rank's rows of a tensor at the end of its file, and says so in the index. */
static reshard_status toy_add_part(struct catalog *catalog, uint32_t tensor, uint32_t rank, uint32_t ranks, uint64_t align,
                                   struct buffer *index, reshard_error *err)
{
    const struct catalog_tensor owner = catalog->tensors[tensor];
    int64_t start[RANK_MAX] = { 0 }, extent[RANK_MAX] = { 1 }, elements;
    uint64_t *file_bytes = &catalog->objects[1 + rank].bytes, bytes;
    memcpy(extent, catalog_vector_at(catalog, owner.shape), (size_t)owner.rank * sizeof(*extent));
    start[0] = extent[0] / ranks * rank;
    extent[0] = rank + 1 < ranks ? extent[0] / ranks : extent[0] - start[0]; /* the last rank has what is left over, a scalar too */
    if (!shape_volume(owner.rank, extent, &elements) || !dtype_bytes(owner.dtype, (uint64_t)elements, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': %" PRIu32 " ranks share a byte", STR_ARG(owner.key), ranks);
    uint64_t offset = (*file_bytes + align - 1) / align * align;
    buffer_printf(index, "%s[%" PRIu64 ",%" PRId64 "]", rank ? "," : "", extent[0] ? offset : 0, extent[0]);
    if (!extent[0])
        return RESHARD_OK;
    *file_bytes = offset + bytes;
    return catalog_add_chunk(catalog, tensor, start, extent, 1 + rank, offset, bytes, NULL, err);
}

static reshard_status toy_add_tensors(struct catalog *catalog, uint32_t ranks, uint64_t align, struct buffer *index, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        if (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA))
            continue;
        toy_put_key(index, tensor->key);
        buffer_printf(index, "{\"dtype\":\"%s\",\"shape\":[", dtype_info(tensor->dtype)->name);
        for (int k = 0; k < tensor->rank; k++)
            buffer_printf(index, "%s%" PRId64, k ? "," : "", catalog_vector_at(catalog, tensor->shape)[k]);
        buffer_append_text(index, "],\"parts\":[");
        for (uint32_t rank = 0; !status && rank < ranks; rank++)
            status = toy_add_part(catalog, i, rank, ranks, align, index, err);
        buffer_append_text(index, "]}");
    }
    return status;
}

static reshard_status toy_add_items(const struct layout_request *request, struct target *target, struct buffer *index, reshard_error *err)
{
    const struct catalog_item *item;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < request->wanted->item_count; i++) {
        if ((status = layout_item(request, i, &item, err)) != RESHARD_OK)
            break;
        if (!item->value) {
            status = target_note_dropped(target, NOTE_NO_PLACE, item->key, err, "a file, which toy cannot hold");
            continue;
        }
        toy_put_key(index, request->wanted->items[i].key);
        status = value_to_json(item->value, index, NAMED_LIMIT(&request->limits, json_bytes), err);
    }
    return status;
}

/* Everything is known before a byte moves, so the index is made here and written when the rest is there. */
static reshard_status toy_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const char *option = layout_option(request, "align");
    int align = option ? atoi(option) : 64;
    uint32_t ranks = request->ranks ? request->ranks : 1, object;
    struct buffer index = { 0 };
    if (align < 1 || align > 4096)
        return error_set(err, RESHARD_ERR_USAGE, "option align is '%s', expected 1 to 4096", option);
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = catalog_add_object(target->catalog, STR(INDEX_NAME), 0, &object, err);
    for (uint32_t rank = 0; !status && rank < ranks; rank++) {
        char *name = arena_printf(&target->catalog->arena, "rank_%" PRIu32 ".bin", rank);
        status = name ? catalog_add_object(target->catalog, str_of(name), 0, &object, err) : error_set_memory(err);
    }
    buffer_append_text(&index, "{\"tensors\":{");
    if (!status)
        status = toy_add_tensors(target->catalog, ranks, (uint64_t)align, &index, err);
    buffer_append_text(&index, "\n},\"items\":{");
    if (!status)
        status = toy_add_items(request, target, &index, err);
    buffer_append_text(&index, "\n}}\n");
    if (!status && index.failed)
        status = buffer_error(&index, err);
    if (!status) {
        target->driver_state = arena_copy(&target->catalog->arena, index.data, index.size);
        target->catalog->objects[0].bytes = index.size;
        status = target->driver_state ? RESHARD_OK : error_set_memory(err);
    }
    buffer_release(&index);
    return status;
}

static reshard_status toy_commit(const struct publish_job *job, reshard_error *err)
{
    return store_write_at(job->objects[0], 0, job->target->driver_state, job->target->catalog->objects[0].bytes, err);
}

static const struct layout_word toy_words[] = { { "files", "files", "files that the rows of every tensor lie in", true, NULL }, { 0 } };
static const struct format_option toy_options[] = { { "align", "BYTES", "64", "where tensors begin in a file" }, { 0 } };
static const char *const toy_entries[] = { INDEX_NAME, "rank_*.bin", NULL };

const struct format_driver format_toy = {
    .name = "toy",
    .summary = "a folder with an index and a file for each rank",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS,
    .words = toy_words,
    .options = toy_options,
    .folder_entries = toy_entries,
    .probe = toy_probe,
    .read_catalog = toy_read_catalog,
    .lay_out = toy_lay_out,
    .commit = toy_commit,
};
