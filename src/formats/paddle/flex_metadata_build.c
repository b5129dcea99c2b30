/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/flex_metadata_build.h"

#include "base/array.h"
#include "base/cursor.h"
#include "encoding/pickle_records.h"

#include <stdlib.h>

/* ---- names with a meaning ---- */

static enum flex_class own_class(struct str name)
{
    if (str_is(name, "Metadata"))
        return FLEX_CLASS_METADATA;
    if (str_is(name, "LocalTensorMetadata"))
        return FLEX_CLASS_SHARD;
    return str_is(name, "LocalTensorIndex") ? FLEX_CLASS_INDEX : FLEX_CLASS_UNKNOWN;
}

enum flex_class flex_class_of(struct str module, struct str name)
{
    if (str_is(module, FLEX_MODULE) || str_is(module, FLEX_OLD_MODULE))
        return own_class(name);
    if (str_is(module, "numpy._core.multiarray") || str_is(module, "numpy.core.multiarray"))
        return str_is(name, "scalar") ? FLEX_CLASS_SCALAR : FLEX_CLASS_UNKNOWN;
    if (str_is(module, "numpy") && str_is(name, "dtype"))
        return FLEX_CLASS_DTYPE;
    return str_is(module, "_codecs") && str_is(name, "encode") ? FLEX_CLASS_ENCODE : FLEX_CLASS_UNKNOWN;
}

static const struct str flex_attribute_names[FLEX_ATTR_COUNT] = { { "", 0 },
#define X(id, name) { name, sizeof(name) - 1 },
                                                                  FLEX_ATTRIBUTES(X)
#undef X
};

enum flex_attribute flex_attribute_of(struct str name)
{
    return (enum flex_attribute)records_attribute_find(flex_attribute_names, FLEX_ATTR_COUNT, name);
}

const char *flex_attribute_name(enum flex_attribute attribute)
{
    return flex_attribute_names[attribute].data;
}

bool flex_integer_type(struct str name, bool *is_signed, size_t *bytes)
{
    if (name.size == 3 && (name.data[0] == '<' || name.data[0] == '|' || name.data[0] == '='))
        name = (struct str){ name.data + 1, 2 };
    if (name.size != 2 || (name.data[0] != 'i' && name.data[0] != 'u'))
        return false;
    *is_signed = name.data[0] == 'i';
    *bytes = (size_t)(name.data[1] - '0');
    return *bytes == 1 || *bytes == 2 || *bytes == 4 || *bytes == 8;
}

bool flex_integer_of(struct str bytes, bool is_signed, int64_t *out)
{
    if (bytes.size == 0 || bytes.size > 8)
        return false;
    uint64_t number = load_le((const uint8_t *)bytes.data, bytes.size);
    bool has_top_bit = (uint8_t)bytes.data[bytes.size - 1] & 0x80;
    if (has_top_bit && is_signed && bytes.size < 8)
        number |= UINT64_MAX << (8 * bytes.size);
    *out = (int64_t)number;
    return is_signed || bytes.size < 8 || !has_top_bit;
}

/* ---- arrays ---- */

/* Room for one element more. array: the address of a pointer of any type. */
static reshard_status build_room(struct flex_build *build, void *array, uint32_t count, uint32_t *capacity, size_t element_size)
{
    if (count < *capacity)
        return RESHARD_OK;
    reshard_status status = work_spend(build->limits->budget, ((uint64_t)count + 16) * element_size, build->err);
    if (status)
        return status;
    return array_reserve_u32(array, (uint64_t)count + 1, capacity, element_size) ? RESHARD_OK : error_set_memory(build->err);
}

reshard_status flex_build_vector(struct flex_build *build, const int64_t *values, size_t rank, uint32_t *out)
{
    return vector_pool_keep(&build->out->vectors, values, rank, out, build->err);
}

reshard_status flex_build_name(struct flex_build *build, struct str name, uint32_t *out)
{
    *out = name_map_intern(&build->out->names, name, NULL);
    return *out == NAME_NONE ? error_set_memory(build->err) : RESHARD_OK;
}

reshard_status flex_build_text(struct flex_build *build, struct str text, uint32_t *out)
{
    *out = name_map_intern(&build->out->texts, text, NULL);
    return *out == NAME_NONE ? error_set_memory(build->err) : RESHARD_OK;
}

reshard_status flex_build_shard(struct flex_build *build, struct flex_shard shard, uint32_t *out)
{
    struct flex_metadata *metadata = build->out;
    if (metadata->shard_count >= build->limits->chunks)
        return error_set_limit(build->err, "chunks", (uint64_t)metadata->shard_count + 1, build->limits->chunks);
    reshard_status status = build_room(build, &metadata->shards, metadata->shard_count, &build->shard_capacity, sizeof(*metadata->shards));
    if (status)
        return status;
    if (shard.dtype != FLEX_NONE && metadata->generation.shard < 0)
        metadata->generation.shard = 0;
    *out = metadata->shard_count++;
    metadata->shards[*out] = shard;
    return RESHARD_OK;
}

reshard_status flex_build_index(struct flex_build *build, struct flex_index index, uint32_t *out)
{
    struct flex_metadata *metadata = build->out;
    if (metadata->index_count >= build->limits->chunks)
        return error_set_limit(build->err, "chunks", (uint64_t)metadata->index_count + 1, build->limits->chunks);
    reshard_status status =
        build_room(build, &metadata->indexes, metadata->index_count, &build->index_capacity, sizeof(*metadata->indexes));
    if (status)
        return status;
    if (index.shape != FLEX_NONE || index.replica >= 0)
        metadata->generation.index = 2;
    *out = metadata->index_count++;
    metadata->indexes[*out] = index;
    return RESHARD_OK;
}

reshard_status flex_build_key(struct flex_build *build, struct flex_key key)
{
    struct flex_metadata *metadata = build->out;
    if (metadata->key_count >= build->limits->tensors)
        return error_set_limit(build->err, "tensors", (uint64_t)metadata->key_count + 1, build->limits->tensors);
    reshard_status status = build_room(build, &metadata->keys, metadata->key_count, &build->key_capacity, sizeof(*metadata->keys));
    if (status)
        return status;
    metadata->keys[metadata->key_count++] = key;
    for (uint32_t i = 0; i < key.shard_count; i++)
        metadata->shards[key.first_shard + i].name = key.name;
    return RESHARD_OK;
}

reshard_status flex_build_path_part(struct flex_build *build, struct str part)
{
    struct flex_metadata *metadata = build->out;
    reshard_status status =
        build_room(build, &metadata->path_texts, metadata->path_text_count, &build->path_text_capacity, sizeof(*metadata->path_texts));
    if (!status)
        status = flex_build_text(build, part, &metadata->path_texts[metadata->path_text_count]);
    if (!status)
        metadata->path_text_count++;
    return status;
}

reshard_status flex_build_path(struct flex_build *build, uint32_t name, uint32_t count)
{
    struct flex_metadata *metadata = build->out;
    reshard_status status = build_room(build, &metadata->paths, metadata->path_count, &build->path_capacity, sizeof(*metadata->paths));
    if (!status)
        metadata->paths[metadata->path_count++] = (struct flex_path){ name, metadata->path_text_count - count, count };
    return status;
}

/* A hostile file may have millions. */
#define EXTRA_MAX 100

reshard_status flex_build_extra(struct flex_build *build, struct str attribute)
{
    struct flex_metadata *metadata = build->out;
    uint32_t text;
    reshard_status status = flex_build_text(build, attribute, &text);
    for (uint32_t i = 0; !status && i < metadata->extra_attribute_count; i++)
        if (metadata->extra_attributes[i] == text)
            return RESHARD_OK;
    if (status || metadata->extra_attribute_count == EXTRA_MAX)
        return status;
    status = build_room(build, &metadata->extra_attributes, metadata->extra_attribute_count, &build->extra_attribute_capacity,
                        sizeof(*metadata->extra_attributes));
    if (!status)
        metadata->extra_attributes[metadata->extra_attribute_count++] = text;
    return status;
}

/* ---- both ways ---- */

void flex_metadata_release(struct flex_metadata *metadata)
{
    name_map_release(&metadata->names);
    name_map_release(&metadata->texts);
    vector_pool_release(&metadata->vectors);
    free(metadata->keys);
    free(metadata->shards);
    free(metadata->indexes);
    free(metadata->paths);
    free(metadata->path_texts);
    free(metadata->extra_attributes);
    *metadata = (struct flex_metadata){ 0 };
}

static reshard_status decode_by(const void *bytes, size_t size, const struct limits *limits, bool is_fast, struct flex_metadata *out,
                                bool *is_done, reshard_error *err)
{
    struct flex_build build = { .out = out, .limits = limits, .err = err };
    *out = (struct flex_metadata){ .generation = { .shard = -1 } };
    memset(out->labels, 0xFF, sizeof(out->labels));
    *is_done = true;
    reshard_status status = vector_pool_init(&out->vectors, err);
    if (!status && is_fast)
        status = flex_decode_fast(bytes, size, &build, is_done);
    else if (!status)
        status = flex_decode_general(bytes, size, &build);
    out->is_fast = is_fast;
    if (status || !*is_done)
        flex_metadata_release(out);
    else
        vector_pool_finish(&out->vectors);
    return status;
}

reshard_status flex_metadata_decode(const void *bytes, size_t size, const struct limits *limits, enum flex_decode_way way,
                                    struct flex_metadata *out, reshard_error *err)
{
    bool is_done = false;
    *out = (struct flex_metadata){ 0 };
    if (size > limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", size, limits->metadata_bytes);
    if (way == FLEX_DECODE_BEST) {
        reshard_status status = decode_by(bytes, size, limits, true, out, &is_done, err);
        if (status || is_done)
            return status;
    }
    return decode_by(bytes, size, limits, false, out, &is_done, err);
}
