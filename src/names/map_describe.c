/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of name spaces: JSON instead of a checkpoint. */
#include "names/map_values.h"

#include "base/array.h"
#include "encoding/json.h"
#include "kernels/cast.h"

#include <stdlib.h>

static reshard_status map_describe_fail(reshard_error *err, struct str key, const char *what)
{
    return error_set(err, RESHARD_ERR_FORMAT, "description: tensor '%.*s': %s", STR_ARG(key), what);
}

static bool map_describe_read_vector(const struct value *value, int64_t out[RANK_MAX], size_t *count)
{
    return value && value_as_ints(value, out, RANK_MAX, count);
}

struct shard_vectors {
    int64_t start[RANK_MAX], extent[RANK_MAX];
};

static reshard_status map_describe_read_shards(struct str key, const struct value *list, size_t rank, struct map_shard **out,
                                               uint32_t *count, reshard_error *err)
{
    struct value **items;
    size_t shard_count = 0;
    *out = NULL;
    *count = 0;
    if (!list)
        return RESHARD_OK;
    if (!value_as_sequence(list, &items, &shard_count) || shard_count == 0 || shard_count > UINT32_MAX)
        return map_describe_fail(err, key, "'shards' is no list of [offset, shape]");
    char *memory = array_zeroed(shard_count, sizeof(struct map_shard) + sizeof(struct shard_vectors));
    if (!memory)
        return error_set_memory(err);
    struct shard_vectors *vectors = (struct shard_vectors *)(void *)memory;
    struct map_shard *shards = (struct map_shard *)(void *)(vectors + shard_count);
    for (size_t i = 0; i < shard_count; i++) {
        struct value **pair;
        size_t size, starts, extents;
        if (!value_as_sequence(items[i], &pair, &size) || size != 2 || !map_describe_read_vector(pair[0], vectors[i].start, &starts) ||
            !map_describe_read_vector(pair[1], vectors[i].extent, &extents) || starts != rank || extents != rank) {
            free(memory);
            return map_describe_fail(err, key, "a shard is no [offset, shape] of as many numbers as the shape has");
        }
        shards[i] = (struct map_shard){ vectors[i].start, vectors[i].extent };
    }
    *out = shards;
    *count = (uint32_t)shard_count;
    return RESHARD_OK;
}

/* The block that read_shards made begins with the vectors. */
static void free_shards(struct map_shard *shards, uint32_t count)
{
    if (shards)
        free((struct shard_vectors *)(void *)shards - count);
}

static bool read_double(const struct value *value, double *out)
{
    static const struct {
        const char *text;
        double value;
    } words[] = { { "nan", __builtin_nan("") }, { "inf", __builtin_inf() }, { "-inf", -__builtin_inf() } };
    if (value->kind == VALUE_INT)
        *out = (double)value->integer;
    else if (value->kind == VALUE_FLOAT)
        *out = value->real;
    else if (value->kind == VALUE_BOOL)
        *out = value->boolean;
    else if (value->kind != VALUE_STR)
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && value->kind == VALUE_STR; i++) {
        if (str_is(value->text, words[i].text)) {
            *out = words[i].value;
            return true;
        }
    }
    return value->kind != VALUE_STR;
}

/* One number as an element: integers directly, everything else through a double. */
static bool store_number(const struct value *value, enum dtype dtype, void *out)
{
    struct cast cast;
    double real;
    bool is_integer = value->kind == VALUE_INT && dtype_info(dtype)->class_ != DTYPE_CLASS_FLOAT;
    if (!is_integer && !read_double(value, &real))
        return false;
    if (!cast_find(is_integer ? DTYPE_I64 : DTYPE_F64, dtype, &cast))
        return false;
    cast_run(&cast, is_integer ? (const void *)&value->integer : (const void *)&real, out, 1);
    return true;
}

static reshard_status read_data(struct str key, const struct value *list, enum dtype dtype, int64_t elements, void **out,
                                reshard_error *err)
{
    struct value **items;
    size_t count;
    unsigned element_bytes = dtype_element_bytes(dtype);
    if (!value_as_sequence(list, &items, &count) || (int64_t)count != elements)
        return map_describe_fail(err, key, "'data' is no flat list of as many numbers as the shape has elements");
    uint8_t *bytes = array_zeroed(count, element_bytes ? element_bytes : 1);
    if (!bytes)
        return error_set_memory(err);
    *out = bytes;
    for (size_t i = 0; i < count; i++) {
        if (!element_bytes || !store_number(items[i], dtype, bytes + i * element_bytes))
            return map_describe_fail(err, key, "'data' holds what is no number of this type");
    }
    return RESHARD_OK;
}

static reshard_status map_describe_read_tensor(struct map_description *space, struct str key, const struct value *value, void **data,
                                  reshard_error *err)
{
    int64_t shape[RANK_MAX], volume;
    size_t rank;
    enum dtype dtype;
    struct str name;
    struct map_shard *shards;
    uint32_t shard_count;
    *data = NULL;
    if (value->kind != VALUE_DICT)
        return map_describe_fail(err, key, "expected an object with dtype and shape");
    const struct value *type = value_dict_get(value, "dtype"), *list = value_dict_get(value, "data");
    if (!type || !value_as_str(type, &name) || (!dtype_from_torch(name, &dtype) && !dtype_from_name(name, &dtype)))
        return map_describe_fail(err, key, "'dtype' is no known type, such as float32 or BF16");
    if (!map_describe_read_vector(value_dict_get(value, "shape"), shape, &rank))
        return map_describe_fail(err, key, "'shape' is no list of integers");
    reshard_status status = map_describe_read_shards(key, value_dict_get(value, "shards"), rank, &shards, &shard_count, err);
    if (status)
        return status;
    status = map_space_add(&space->space, key, dtype, (int)rank, shape, shards, shard_count, err);
    free_shards(shards, shard_count);
    if (!status && list && shape_volume((int)rank, shape, &volume))
        status = read_data(key, list, dtype, volume, data, err);
    return status;
}

static reshard_status map_describe_read_root(const struct value *root, struct map_description *out, reshard_error *err)
{
    const struct value *tensors = root->kind == VALUE_DICT ? value_dict_get(root, "tensors") : NULL;
    const struct value *initial = root->kind == VALUE_DICT ? value_dict_get(root, "initial") : NULL;
    reshard_status status = RESHARD_OK;
    if (!tensors || tensors->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "description: expected {\"tensors\": {key: {\"dtype\", \"shape\"}}}");
    if (initial && !read_double(initial, &out->initial))
        return error_set(err, RESHARD_ERR_FORMAT, "description: 'initial' is no number");
    out->values = array_zeroed(tensors->list.count / 2, sizeof(*out->values));
    if (!out->values)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < tensors->list.count && !status; i += 2)
        status = map_describe_read_tensor(out, tensors->list.items[i]->text, tensors->list.items[i + 1], &out->values[i / 2], err);
    return status ? status : map_space_seal(&out->space, err);
}

reshard_status map_description_read(struct str json, const struct limits *limits, struct map_description *out, reshard_error *err)
{
    struct value_graph graph = { 0 };
    reshard_status status = json_parse(json.data, json.size, limits, &graph, err);
    if (!status)
        status = map_describe_read_root(graph.root, out, err);
    value_graph_release(&graph);
    return status;
}

reshard_status map_config_constants(struct str json, const struct limits *limits, struct map_constants *out, reshard_error *err)
{
    struct value_graph graph = { 0 };
    reshard_status status = json_parse_python(json.data, json.size, limits, &graph, err);
    if (!status && graph.root->kind != VALUE_DICT)
        status = error_set(err, RESHARD_ERR_FORMAT, "expected a JSON object");
    for (size_t i = 0; !status && i + 1 < graph.root->list.count; i += 2) {
        const struct value *member = graph.root->list.items[i + 1];
        bool is_number = member->kind == VALUE_INT || member->kind == VALUE_BOOL;
        int64_t number = member->kind == VALUE_BOOL ? member->boolean : is_number ? member->integer : 0;
        if (is_number && !map_constants_set(out, graph.root->list.items[i]->text, number, true))
            status = error_set_memory(err);
    }
    if (status)
        error_prefix(err, "config");
    value_graph_release(&graph);
    return status;
}

void map_description_release(struct map_description *description)
{
    for (uint32_t i = 0; description->values && i < map_space_tensor_count(&description->space); i++)
        free(description->values[i]);
    free(description->values);
    map_space_release(&description->space);
}
