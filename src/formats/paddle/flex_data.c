/* SPDX-License-Identifier: Apache-2.0 */
/* A data file, whatever it is called: a pickle that paddle.save wrote, or a safetensors file. */
#include "formats/paddle/flex.h"

#include "base/array.h"
#include "base/cursor.h"
#include "encoding/paddle_save.h"
#include "encoding/paddle_save_write.h"
#include "encoding/safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>

#define SNIFFED_BYTES 9

struct flex_data {
    struct store_object *file;
    struct reader reader;
    bool is_safetensors;
    struct paddle_archive archive;
    struct st_header header;
    struct paddle_part *parts; /* one for each entry of the header */
};

/* ---- opening ---- */

/* A header's length and its first byte, where a pickle has PROTO. */
static reshard_status data_sniff(struct flex_data *data, reshard_error *err)
{
    uint8_t head[SNIFFED_BYTES] = { 0 };
    uint64_t size = data->reader.size;
    if (size == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "the data file is empty (0 bytes)");
    reshard_status status = reader_read(&data->reader, 0, head, size < sizeof(head) ? (size_t)size : sizeof(head), err);
    if (status)
        return status;
    uint64_t header_bytes = load_le(head, 8);
    bool is_pickle = head[0] == 0x80 && head[1] >= 2 && head[1] <= 5;
    data->is_safetensors = !is_pickle && size >= sizeof(head) && head[8] == '{' && header_bytes >= 2 && header_bytes <= size - 8;
    if (is_pickle || data->is_safetensors)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_FORMAT, 0, "byte 0: neither a pickle of protocol 2 to 5 nor a safetensors file");
}

static reshard_status data_read_header(struct flex_data *data, const struct limits *limits, reshard_error *err)
{
    reshard_status status = st_header_read(&data->reader, limits, false, &data->header, err);
    if (status)
        return status;
    data->parts = array_zeroed(data->header.count, sizeof(*data->parts));
    if (!data->parts)
        return error_set_memory(err);
    for (uint32_t i = 0; i < data->header.count; i++) {
        const struct st_entry *entry = &data->header.entries[i];
        uint64_t bytes = entry->end - entry->begin;
        data->parts[i] = (struct paddle_part){ .offset = data->header.data_start + entry->begin, .stored_bytes = bytes, .bytes = bytes };
    }
    return RESHARD_OK;
}

reshard_status flex_data_open(const struct source *source, struct str name, struct flex_data **out, reshard_error *err)
{
    struct flex_data *data = calloc(1, sizeof(*data));
    if (!data)
        return error_set_memory(err);
    const struct paddle_open_options options = { .limits = &source->limits, .lenient = source->lenient };
    reshard_status status = store_open_object(source->store, name.data, &data->file, err);
    if (!status) {
        data->reader = store_object_reader(data->file);
        status = data_sniff(data, err);
    }
    if (!status)
        status = data->is_safetensors ? data_read_header(data, &source->limits, err)
                                      : paddle_save_open(&data->reader, &options, &data->archive, err);
    if (!status) {
        *out = data;
        return RESHARD_OK;
    }
    error_prefix(err, "'%.*s'", STR_ARG(name));
    error_object(err, "%.*s", STR_ARG(name));
    flex_data_close(data);
    return status;
}

bool flex_data_is_answer(const struct source *source, reshard_status status, const reshard_error *err)
{
    return (status == RESHARD_ERR_IO && source->lenient) || store_status_is_answer(status, err);
}

reshard_status flex_data_protocol(const struct source *source, struct str name, int *out, reshard_error *err)
{
    struct store_object *file = NULL;
    uint8_t head[2] = { 0 };
    reshard_error unsaid = { 0 };
    reshard_status status = store_open_object(source->store, name.data, &file, &unsaid);
    *out = 0;
    if (!status && store_object_size(file) >= sizeof(head))
        status = store_read_at(file, 0, head, sizeof(head), &unsaid);
    store_object_close(file);
    if (status && !flex_data_is_answer(source, status, &unsaid)) {
        *err = unsaid;
        return status;
    }
    if (!status && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5)
        *out = head[1];
    return RESHARD_OK;
}

void flex_data_close(struct flex_data *data)
{
    if (!data)
        return;
    if (data->is_safetensors)
        st_header_release(&data->header);
    else
        paddle_save_release(&data->archive);
    store_object_close(data->file);
    free(data->parts);
    free(data);
}

/* ---- what is in it ---- */

static void data_take_entry(const struct flex_data *data, uint32_t index, struct flex_array *out)
{
    const struct st_entry *entry = &data->header.entries[index];
    *out = (struct flex_array){ .dtype = (enum dtype)entry->dtype,
                                .rank = entry->rank,
                                .shape = st_entry_shape(&data->header, entry),
                                .parts = &data->parts[index],
                                .part_count = 1 };
}

static void data_take_tensor(const struct flex_data *data, uint32_t index, struct flex_array *out)
{
    const struct paddle_tensor *tensor = &data->archive.tensors[index];
    *out = (struct flex_array){ .dtype = tensor->dtype,
                                .is_big_endian = tensor->is_big_endian,
                                .is_fortran = tensor->is_fortran,
                                .rank = tensor->rank,
                                .shape = tensor->shape,
                                .parts = tensor->parts,
                                .part_count = tensor->part_count };
}

bool flex_data_find(const struct flex_data *data, struct str key, struct flex_array *out)
{
    if (data->is_safetensors) {
        uint32_t index = name_map_find(&data->header.names, key);
        if (index == NAME_NONE)
            return false;
        data_take_entry(data, index, out);
        return true;
    }
    uint32_t index = paddle_save_find(&data->archive, key);
    if (index == UINT32_MAX || !data->archive.entries[index].tensor)
        return false;
    data_take_tensor(data, data->archive.entries[index].tensor - 1, out);
    return true;
}

reshard_status flex_data_walk(const struct flex_data *data,
                              reshard_status (*visit)(void *context, struct str key, const struct flex_array *array, reshard_error *err),
                              void *context, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    struct flex_array array;
    for (uint32_t i = 0; data->is_safetensors && i < data->header.count && !status; i++) {
        data_take_entry(data, i, &array);
        status = visit(context, name_map_at(&data->header.names, i), &array, err);
    }
    for (uint32_t i = 0; !data->is_safetensors && i < data->archive.entry_count && !status; i++) {
        const struct paddle_entry *entry = &data->archive.entries[i];
        if (entry->tensor)
            data_take_tensor(data, entry->tensor - 1, &array);
        status = visit(context, entry->key, entry->tensor ? &array : NULL, err);
    }
    return status;
}

reshard_status flex_data_note_names(const struct flex_data *data, uint32_t file, struct static_names *names, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !data->is_safetensors && i < data->archive.entry_count && !status; i++) {
        const struct paddle_entry *entry = &data->archive.entries[i];
        if (entry->tensor && entry->name.size && !str_equal(entry->name, entry->key))
            status = static_names_add(names, entry->key, entry->name, file, err);
    }
    return status;
}

/* ---- items ---- */

static reshard_status data_add_item(struct source *source, struct flex_data *data, const struct paddle_entry *entry,
                                    struct value_graph *graph, reshard_error *err)
{
    const struct catalog_item item = { .key = entry->key, .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = entry->value, .graph = graph };
    reshard_status status = RESHARD_OK;
    if (entry->value->kind >= VALUE_LIST)
        status = paddle_save_load_value(&data->archive, &data->reader, &source->limits, graph, entry->value, err);
    return status ? status : catalog_add_item(source->catalog, &item, NULL, 0, NULL, err);
}

reshard_status flex_data_add_items(struct source *source, struct flex_data *data, bool *is_needed, reshard_error *err)
{
    struct value_graph *graph = NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !data->is_safetensors && i < data->archive.entry_count && !status; i++) {
        const struct paddle_entry *entry = &data->archive.entries[i];
        if (entry->tensor || !entry->value)
            continue;
        if (!graph) {
            struct value_graph own = data->archive.graph;
            data->archive.graph = (struct value_graph){ 0 };
            graph = catalog_adopt_graph(source->catalog, own);
            if (!graph)
                return error_set_memory(err);
        }
        status = data_add_item(source, data, entry, graph, err);
    }
    *is_needed = graph != NULL;
    return status;
}

/* ---- types ---- */

bool flex_dtype_from(struct str name, enum dtype *out)
{
    return dtype_from_torch(name, out) && paddle_save_can_hold(*out);
}

/* bfloat16 is stored as uint16 and float8 as int8 by NumPy's lack of them. Of safetensors files a version of the library gives other
 * names than the next, so that the size is what counts. */
bool flex_dtype_fits(enum dtype dtype, enum dtype stored)
{
    return dtype_info(dtype)->bits == dtype_info(stored)->bits;
}
