/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FileSystemWriter(serialization_format=SAFETENSORS) makes each .distcp file one safetensors file, and writes offsets into .metadata that
 * mean nothing. The tensors are found by name in the file's header: {"NAME": {"dtype": "F32", "shape": […], "data_offsets": [a, b]}, …}.
 */
#include "formats/dcp/dcp_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdlib.h>

#define PREFIX_BYTES 8

/* 0 bytes: it is no safetensors file. */
static reshard_status read_header_size(const struct reader *file, uint64_t *out, reshard_error *err)
{
    uint8_t head[PREFIX_BYTES + 1];
    *out = 0;
    if (file->size < sizeof(head))
        return RESHARD_OK;
    reshard_status status = reader_read(file, 0, head, sizeof(head), err);
    if (status)
        return status;
    uint64_t bytes = load_le(head, PREFIX_BYTES);
    if (head[PREFIX_BYTES] == '{' && bytes >= 2 && bytes <= file->size - PREFIX_BYTES)
        *out = bytes;
    return RESHARD_OK;
}

reshard_status dcp_safetensors_probe(const struct reader *file, bool *is_safetensors, reshard_error *err)
{
    uint64_t header_bytes;
    reshard_status status = read_header_size(file, &header_bytes, err);
    *is_safetensors = header_bytes > 0;
    return status;
}

static reshard_status dcp_safetensors_take_shape(struct dcp_safetensors *state, const struct value *shape,
                                                 struct dcp_safetensors_entry *entry, reshard_error *err)
{
    int64_t numbers[RANK_MAX];
    size_t count;
    if (!shape || !value_as_ints(shape, numbers, RANK_MAX, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "'shape' is no list of at most %d integers", RANK_MAX);
    int64_t *kept = arena_array(&state->arena, count, sizeof(*kept));
    if (!kept)
        return error_set_memory(err);
    memcpy(kept, numbers, count * sizeof(*kept));
    entry->rank = (int)count;
    entry->shape = kept;
    return RESHARD_OK;
}

static reshard_status take_entry(struct dcp_safetensors *state, const struct value *info, uint64_t data_start, uint64_t file_bytes,
                                 struct dcp_safetensors_entry *entry, reshard_error *err)
{
    const struct value *dtype = value_dict_get(info, "dtype"), *offsets = value_dict_get(info, "data_offsets");
    struct str dtype_name;
    int64_t range[2];
    size_t count;
    if (!dtype || !value_as_str(dtype, &dtype_name))
        return error_set(err, RESHARD_ERR_FORMAT, "no 'dtype'");
    if (!dtype_from_safetensors(dtype_name, &entry->dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "dtype '%.*s' is not known", STR_ARG(dtype_name));
    if (!offsets || !value_as_ints(offsets, range, 2, &count) || count != 2 || range[0] < 0 || range[1] < range[0])
        return error_set(err, RESHARD_ERR_FORMAT, "'data_offsets' is no pair of ascending integers");
    reshard_status status = dcp_safetensors_take_shape(state, value_dict_get(info, "shape"), entry, err);
    if (status)
        return status;
    uint64_t bytes;
    int64_t volume;
    if (!shape_volume(entry->rank, entry->shape, &volume) || !dtype_bytes(entry->dtype, (uint64_t)volume, &bytes) ||
        bytes != (uint64_t)(range[1] - range[0]))
        return error_set(err, RESHARD_ERR_FORMAT, "its %" PRId64 " bytes do not fit its shape", range[1] - range[0]);
    if (!range_fits((uint64_t)range[0], bytes, file_bytes - data_start))
        return error_set(err, RESHARD_ERR_FORMAT, "its data reach beyond the file of %" PRIu64 " bytes", file_bytes);
    entry->offset = data_start + (uint64_t)range[0];
    entry->bytes = bytes;
    return RESHARD_OK;
}

static reshard_status take_header(struct dcp_safetensors *state, const struct value *root, uint64_t data_start, uint64_t file_bytes,
                                  reshard_error *err)
{
    if (root->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "the safetensors header is no object");
    state->entries = array_zeroed(root->list.count / 2, sizeof(*state->entries));
    if (!state->entries)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < root->list.count; i += 2) {
        struct str name;
        if (!value_as_str(root->list.items[i], &name) || str_is(name, "__metadata__"))
            continue;
        uint32_t index = name_map_intern(&state->names, name, NULL);
        if (index == NAME_NONE)
            return error_set_memory(err);
        struct dcp_safetensors_entry *entry = &state->entries[index];
        entry->name = name_map_at(&state->names, index);
        reshard_status status = take_entry(state, root->list.items[i + 1], data_start, file_bytes, entry, err);
        if (status) {
            error_prefix(err, "tensor '%.*s'", STR_ARG(name));
            return status;
        }
    }
    return RESHARD_OK;
}

reshard_status dcp_safetensors_load(struct dcp_safetensors *state, const struct reader *file, uint32_t object, const struct limits *limits,
                                    reshard_error *err)
{
    if (state->object == object)
        return RESHARD_OK;
    dcp_safetensors_release(state);
    struct buffer header = { .limit = limits->json_bytes, .limit_name = "json_bytes" };
    struct value_graph graph = { 0 };
    uint64_t header_bytes;
    reshard_status status = read_header_size(file, &header_bytes, err);
    if (!status && !header_bytes)
        status = error_set(err, RESHARD_ERR_FORMAT, "neither torch.save blobs nor a safetensors file");
    if (!status && header_bytes > limits->json_bytes)
        status = error_set_limit(err, "json_bytes", header_bytes, limits->json_bytes);
    if (!status)
        status = reader_append(file, PREFIX_BYTES, header_bytes, &header, err);
    if (!status)
        status = json_parse(header.data, header.size, limits, &graph, err);
    if (!status)
        status = take_header(state, graph.root, PREFIX_BYTES + header_bytes, file->size, err);
    value_graph_release(&graph);
    buffer_release(&header);
    if (status)
        dcp_safetensors_release(state);
    else
        state->object = object;
    return status;
}

const struct dcp_safetensors_entry *dcp_safetensors_find(const struct dcp_safetensors *state, struct str name)
{
    uint32_t index = name_map_find(&state->names, name);
    return index == NAME_NONE ? NULL : &state->entries[index];
}

void dcp_safetensors_release(struct dcp_safetensors *state)
{
    free(state->entries);
    name_map_release(&state->names);
    arena_release(&state->arena);
    *state = (struct dcp_safetensors){ .object = CATALOG_NONE };
}
