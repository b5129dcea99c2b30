/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr_array.h"

#include <inttypes.h>

static reshard_status zarr_array_take_member(const struct value *document, const char *name, const struct value **out, reshard_error *err)
{
    *out = value_dict_get(document, name);
    return *out ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "member '%s' is missing", name);
}

static reshard_status take_format(const struct value *document, int64_t wanted, reshard_error *err)
{
    const struct value *value;
    if (document->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "the document is no object");
    reshard_status status = zarr_array_take_member(document, "zarr_format", &value, err);
    int64_t format;
    if (status)
        return status;
    if (!value_as_int(value, &format))
        return error_set(err, RESHARD_ERR_FORMAT, "zarr_format is no integer");
    return format == wanted ? RESHARD_OK
                            : error_set(err, RESHARD_ERR_UNSUPPORTED, "zarr_format %" PRId64 ", expected %" PRId64, format, wanted);
}

static reshard_status take_extents(const struct value *value, const char *name, int64_t minimum, int64_t *out, int *rank,
                                   reshard_error *err)
{
    size_t count;
    if (value->kind == VALUE_LIST && value->list.count > RANK_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s has %zu axes, at most %d are supported", name, value->list.count, RANK_MAX);
    if (value->kind != VALUE_LIST || !value_as_ints(value, out, RANK_MAX, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "%s is no list of integers", name);
    for (size_t i = 0; i < count; i++)
        if (out[i] < minimum)
            return error_set(err, RESHARD_ERR_FORMAT, "%s: extent %" PRId64 " of axis %zu, at least %" PRId64 " is expected", name, out[i],
                             i, minimum);
    *rank = (int)count;
    return RESHARD_OK;
}

/* Shape and chunks: same rank, and sizes that can be counted. */
static reshard_status take_grid(const struct value *shape, const struct value *chunk, const char *chunk_name, struct zarr_array *out,
                                reshard_error *err)
{
    int chunk_rank;
    int64_t volume;
    reshard_status status = take_extents(shape, "shape", 0, out->shape, &out->rank, err);
    if (!status)
        status = take_extents(chunk, chunk_name, 1, out->chunk, &chunk_rank, err);
    if (status)
        return status;
    if (chunk_rank != out->rank)
        return error_set(err, RESHARD_ERR_FORMAT, "%s has %d axes, shape has %d", chunk_name, chunk_rank, out->rank);
    if (!shape_volume(out->rank, out->shape, &volume))
        return error_set(err, RESHARD_ERR_FORMAT, "the shape has more than 2^63 elements");
    if (!shape_volume(out->rank, out->chunk, &volume) || volume > INT64_MAX / ZARR_ITEM_BYTES_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "a chunk has more than 2^63 bytes");
    return RESHARD_OK;
}

static reshard_status take_separator(const struct value *value, char or_else, char *out, reshard_error *err)
{
    *out = or_else;
    if (!value)
        return RESHARD_OK;
    if (value->kind != VALUE_STR || (!str_is(value->text, ".") && !str_is(value->text, "/")))
        return error_set(err, RESHARD_ERR_FORMAT, "the separator is neither \".\" nor \"/\"");
    *out = value->text.data[0];
    return RESHARD_OK;
}

/* ---- format 2 ---- */

static reshard_status take_order(const struct value *order, struct zarr_array *out, reshard_error *err)
{
    struct zarr_level *level = &out->levels[0];
    if (order->kind != VALUE_STR || (!str_is(order->text, "C") && !str_is(order->text, "F")))
        return error_set(err, RESHARD_ERR_FORMAT, "order is neither \"C\" nor \"F\"");
    bool is_f = str_is(order->text, "F");
    for (int i = 0; i < out->rank; i++)
        level->order[i] = (uint8_t)(is_f ? out->rank - 1 - i : i);
    out->level_count = 1;
    return RESHARD_OK;
}

static reshard_status take_dtype_v2(const struct value *dtype, const struct zarr_hints *hints, struct zarr_array *out, reshard_error *err)
{
    if (dtype->kind == VALUE_LIST)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "elements are records of several fields; arrays of one number an element are supported");
    if (dtype->kind != VALUE_STR)
        return error_set(err, RESHARD_ERR_FORMAT, "dtype is no string");
    return zarr_dtype_v2(dtype->text, hints, &out->dtype, &out->is_swapped, err);
}

reshard_status zarr_array_parse_v2(const struct value *document, const struct zarr_hints *hints, struct zarr_array *out, reshard_error *err)
{
    enum { SHAPE, CHUNKS, DTYPE, COMPRESSOR, FILTERS, FILL, ORDER, MEMBERS };
    static const char *const members[MEMBERS] = { "shape", "chunks", "dtype", "compressor", "filters", "fill_value", "order" };
    const struct value *values[MEMBERS];
    *out = (struct zarr_array){ .format = 2, .key_form = ZARR_KEY_V2 };
    reshard_status status = take_format(document, 2, err);
    for (int i = 0; i < MEMBERS && !status; i++)
        status = zarr_array_take_member(document, members[i], &values[i], err);
    if (!status)
        status = take_grid(values[SHAPE], values[CHUNKS], "chunks", out, err);
    if (!status)
        status = take_separator(value_dict_get(document, "dimension_separator"), '.', &out->separator, err);
    out->names_separator = !status && value_dict_get(document, "dimension_separator") != NULL;
    if (!status)
        status = take_order(values[ORDER], out, err);
    if (!status) /* before dtype: of an object array the filter says more */
        status = zarr_codecs_v2(values[COMPRESSOR], values[FILTERS], &out->levels[0], err);
    if (!status)
        status = take_dtype_v2(values[DTYPE], hints, out, err);
    out->fill_is_null = !status && values[FILL]->kind == VALUE_NONE;
    out->has_fill = !status && (!out->fill_is_null || hints->null_is_zero);
    if (!status && !out->fill_is_null)
        status = zarr_fill_parse(values[FILL], out->dtype, 2, out->fill, err);
    return status;
}

/* ---- format 3 ---- */

static reshard_status zarr_array_check_members(const struct value *document, reshard_error *err)
{
    static const char *const known[] = { "zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value",
                                         "codecs", "attributes", "storage_transformers", "dimension_names" };
    for (size_t i = 0; i + 1 < document->list.count; i += 2) {
        const struct value *name = document->list.items[i], *value = document->list.items[i + 1];
        bool is_known = false;
        for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
            is_known |= str_is(name->text, known[k]);
        if (is_known)
            continue;
        const struct value *must = value->kind == VALUE_DICT ? value_dict_get(value, "must_understand") : NULL;
        if (!must || must->kind != VALUE_BOOL || must->boolean)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "member '%.*s' is unknown and must be understood", STR_ARG(name->text));
    }
    return RESHARD_OK;
}

static reshard_status take_chunk_grid(const struct value *grid, const struct value *shape, struct zarr_array *out, reshard_error *err)
{
    struct str name;
    const struct value *configuration;
    reshard_status status = zarr_extension(grid, "chunk_grid", &name, &configuration, err);
    if (status)
        return status;
    if (!str_is(name, "regular"))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "chunk_grid '%.*s', only 'regular' is supported", STR_ARG(name));
    const struct value *chunk = configuration ? value_dict_get(configuration, "chunk_shape") : NULL;
    if (!chunk)
        return error_set(err, RESHARD_ERR_FORMAT, "chunk_grid has no chunk_shape");
    return take_grid(shape, chunk, "chunk_shape", out, err);
}

static reshard_status take_key_encoding(const struct value *encoding, struct zarr_array *out, reshard_error *err)
{
    struct str name;
    const struct value *configuration;
    reshard_status status = zarr_extension(encoding, "chunk_key_encoding", &name, &configuration, err);
    if (status)
        return status;
    if (!str_is(name, "default") && !str_is(name, "v2"))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "chunk_key_encoding '%.*s', supported are 'default' and 'v2'", STR_ARG(name));
    out->key_form = str_is(name, "v2") ? ZARR_KEY_V2 : ZARR_KEY_DEFAULT;
    return take_separator(configuration ? value_dict_get(configuration, "separator") : NULL, out->key_form == ZARR_KEY_V2 ? '.' : '/',
                          &out->separator, err);
}

static reshard_status take_data_type(const struct value *data_type, struct zarr_array *out, reshard_error *err)
{
    struct str name;
    const struct value *configuration;
    reshard_status status = zarr_extension(data_type, "data_type", &name, &configuration, err);
    return status ? status : zarr_dtype_v3(name, &out->dtype, err);
}

static reshard_status take_optional(const struct value *document, struct zarr_array *out, reshard_error *err)
{
    const struct value *transformers = value_dict_get(document, "storage_transformers");
    const struct value *names = value_dict_get(document, "dimension_names");
    const struct value *attributes = value_dict_get(document, "attributes");
    if (transformers && (transformers->kind != VALUE_LIST || transformers->list.count))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "storage_transformers, none is supported");
    if (attributes && attributes->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "attributes is no object");
    out->attributes = attributes;
    if (!names || names->kind == VALUE_NONE)
        return RESHARD_OK;
    if (names->kind != VALUE_LIST || names->list.count != (size_t)out->rank)
        return error_set(err, RESHARD_ERR_FORMAT, "dimension_names is no list of %d names", out->rank);
    for (int i = 0; i < out->rank; i++) {
        unsigned kind = names->list.items[i]->kind;
        if (kind != VALUE_STR && kind != VALUE_NONE)
            return error_set(err, RESHARD_ERR_FORMAT, "dimension_names: name %d is no string", i);
        if (kind == VALUE_STR)
            out->dimension_names = names;
    }
    return RESHARD_OK;
}

reshard_status zarr_array_parse_v3(const struct value *document, struct zarr_array *out, reshard_error *err)
{
    enum { SHAPE, DATA_TYPE, GRID, ENCODING, FILL, CODECS, MEMBERS };
    static const char *const members[MEMBERS] = { "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs" };
    const struct value *values[MEMBERS];
    *out = (struct zarr_array){ .format = 3, .has_fill = true };
    reshard_status status = take_format(document, 3, err);
    for (int i = 0; i < MEMBERS && !status; i++)
        status = zarr_array_take_member(document, members[i], &values[i], err);
    if (!status)
        status = zarr_array_check_members(document, err);
    if (!status)
        status = take_chunk_grid(values[GRID], values[SHAPE], out, err);
    if (!status)
        status = take_key_encoding(values[ENCODING], out, err);
    if (!status)
        status = take_data_type(values[DATA_TYPE], out, err);
    if (!status)
        status = zarr_codecs_v3(values[CODECS], out, err);
    if (!status)
        status = zarr_fill_parse(values[FILL], out->dtype, 3, out->fill, err);
    if (!status)
        status = take_optional(document, out, err);
    return status;
}
