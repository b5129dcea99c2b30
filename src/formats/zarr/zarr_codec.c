/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs of both formats as steps of a chain. */
#include "formats/zarr/zarr_array.h"

#include <inttypes.h>

#define NUMCODECS "numcodecs."

reshard_status zarr_extension(const struct value *value, const char *what, struct str *name, const struct value **configuration,
                              reshard_error *err)
{
    *configuration = NULL;
    if (value->kind == VALUE_STR) {
        *name = value->text;
        return RESHARD_OK;
    }
    const struct value *named = value->kind == VALUE_DICT ? value_dict_get(value, "name") : NULL;
    if (!named || named->kind != VALUE_STR)
        return error_set(err, RESHARD_ERR_FORMAT, "%s is neither a name nor an object with one", what);
    *name = named->text;
    const struct value *found = value_dict_get(value, "configuration");
    if (found && found->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "%s '%.*s': configuration is no object", what, STR_ARG(*name));
    *configuration = found;
    return RESHARD_OK;
}

/* ---- single codecs ---- */

static const struct value *zarr_codec_member(const struct value *configuration, const char *name)
{
    const struct value *value = configuration ? value_dict_get(configuration, name) : NULL;
    return value && value->kind != VALUE_NONE ? value : NULL;
}

static reshard_status zarr_codec_take_number(const struct value *configuration, const char *name, const struct chain_number *or_else,
                                  struct chain_number *out, reshard_error *err)
{
    static const struct zarr_hints no_hints;
    const struct value *value = zarr_codec_member(configuration, name);
    if (!value && or_else) {
        *out = *or_else;
        return RESHARD_OK;
    }
    if (!value || value->kind != VALUE_STR)
        return error_set(err, RESHARD_ERR_FORMAT, "%s is no dtype", name);
    return zarr_dtype_v2(value->text, &no_hints, &out->dtype, &out->is_swapped, err);
}

static bool take_real(const struct value *configuration, const char *name, double *out)
{
    const struct value *value = zarr_codec_member(configuration, name);
    if (!value || (value->kind != VALUE_INT && value->kind != VALUE_FLOAT))
        return false;
    *out = value->kind == VALUE_INT ? (double)value->integer : value->real;
    return true;
}

static reshard_status zarr_codec_take_checksum(const struct value *configuration, struct chain_step *step, reshard_error *err)
{
    const struct value *location = zarr_codec_member(configuration, "location");
    step->at_start = step->kind != CHAIN_CRC32C;
    if (!location)
        return RESHARD_OK;
    if (location->kind != VALUE_STR || (!str_is(location->text, "start") && !str_is(location->text, "end")))
        return error_set(err, RESHARD_ERR_FORMAT, "location is neither \"start\" nor \"end\"");
    step->at_start = str_is(location->text, "start");
    return RESHARD_OK;
}

static reshard_status take_lzma(const struct value *configuration, reshard_error *err)
{
    enum { LZMA_XZ = 1, LZMA_ALONE = 2 }; /* Python's numbers */
    const struct value *format = zarr_codec_member(configuration, "format");
    if (format && (format->kind != VALUE_INT || (format->integer != LZMA_XZ && format->integer != LZMA_ALONE)))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "lzma without a header; the formats xz (1) and alone (2) are supported");
    return RESHARD_OK;
}

static reshard_status configure(const struct value *configuration, struct chain_step *step, reshard_error *err)
{
    int64_t width;
    reshard_status status = RESHARD_OK;
    switch (step->kind) {
    case CHAIN_CRC32C:
    case CHAIN_CRC32:
    case CHAIN_ADLER32:
        return zarr_codec_take_checksum(configuration, step, err);
    case CHAIN_LZMA:
        return take_lzma(configuration, err);
    case CHAIN_SHUFFLE:
        step->element_bytes = 4;
        if (!zarr_codec_member(configuration, "elementsize"))
            return RESHARD_OK;
        if (!value_as_int(zarr_codec_member(configuration, "elementsize"), &width) || width < 1 || width > UINT16_MAX)
            return error_set(err, RESHARD_ERR_FORMAT, "elementsize is no size");
        step->element_bytes = (uint32_t)width;
        return RESHARD_OK;
    case CHAIN_DELTA:
        status = zarr_codec_take_number(configuration, "dtype", NULL, &step->shown, err);
        return status ? status : zarr_codec_take_number(configuration, "astype", &step->shown, &step->stored, err);
    case CHAIN_ASTYPE:
        status = zarr_codec_take_number(configuration, "decode_dtype", NULL, &step->shown, err);
        return status ? status : zarr_codec_take_number(configuration, "encode_dtype", NULL, &step->stored, err);
    case CHAIN_SCALE:
        if (!take_real(configuration, "scale", &step->scale) || !take_real(configuration, "offset", &step->offset))
            return error_set(err, RESHARD_ERR_FORMAT, "scale or offset is no number");
        status = zarr_codec_take_number(configuration, "dtype", NULL, &step->shown, err);
        return status ? status : zarr_codec_take_number(configuration, "astype", &step->shown, &step->stored, err);
    default:
        return RESHARD_OK;
    }
}

static reshard_status step_make(enum chain_kind kind, const struct value *configuration, struct chain_step *out, reshard_error *err)
{
    const char *library;
    *out = (struct chain_step){ .kind = kind };
    reshard_status status = configure(configuration, out, err);
    if (status)
        error_prefix(err, "codec '%s'", chain_kind_name(kind));
    if (!status && !chain_kind_is_built_in(kind, &library))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%s' needs %s, and this reshard was built without it", chain_kind_name(kind),
                         library);
    return status;
}

/* Codecs by name: what numcodecs calls them. What may stand where only bytes become bytes is marked. */
static const struct {
    enum chain_kind kind;
    bool is_bytes;
} numcodecs[] = {
    { CHAIN_ZLIB, true },   { CHAIN_GZIP, true },    { CHAIN_ZSTD, true },   { CHAIN_LZ4, true },    { CHAIN_BLOSC, true },
    { CHAIN_BZ2, true },    { CHAIN_LZMA, true },    { CHAIN_CRC32C, true }, { CHAIN_CRC32, true },  { CHAIN_ADLER32, true },
    { CHAIN_SHUFFLE, true }, { CHAIN_DELTA, false }, { CHAIN_ASTYPE, false }, { CHAIN_SCALE, false }, { CHAIN_PACKBITS, false },
};

static reshard_status step_find(struct str name, const struct value *configuration, bool bytes_only, struct chain_step *out,
                                reshard_error *err)
{
    for (size_t i = 0; i < sizeof(numcodecs) / sizeof(numcodecs[0]); i++)
        if (str_is(name, chain_kind_name(numcodecs[i].kind)) && (numcodecs[i].is_bytes || !bytes_only))
            return step_make(numcodecs[i].kind, configuration, out, err);
    error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%.*s'; supported are zlib, gzip, zstd, lz4, blosc, bz2, lzma, checksums%s",
              STR_ARG(name), bytes_only ? "" : ", and the filters shuffle, delta, astype, fixedscaleoffset and packbits");
    if (str_starts_with(name, "pickle"))
        error_hint(err, "pickled elements are never loaded: they would be programs");
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- format 2 ---- */

static reshard_status add_v2(const struct value *codec, struct zarr_level *level, reshard_error *err)
{
    const struct value *id = codec->kind == VALUE_DICT ? value_dict_get(codec, "id") : NULL;
    if (!id || id->kind != VALUE_STR)
        return error_set(err, RESHARD_ERR_FORMAT, "a codec is no object with an id");
    if (level->step_count >= CHAIN_STEPS_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d codecs", CHAIN_STEPS_MAX);
    reshard_status status = step_find(id->text, codec, false, &level->steps[level->step_count], err);
    level->step_count += !status;
    return status;
}

reshard_status zarr_codecs_v2(const struct value *compressor, const struct value *filters, struct zarr_level *level, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (compressor->kind != VALUE_NONE)
        status = add_v2(compressor, level, err);
    if (status) {
        error_prefix(err, "compressor");
        return status;
    }
    if (filters->kind == VALUE_NONE)
        return RESHARD_OK;
    if (filters->kind != VALUE_LIST)
        return error_set(err, RESHARD_ERR_FORMAT, "filters is no list");
    /* The last one was applied last, and is the first to be undone. */
    for (size_t i = filters->list.count; i > 0 && !status; i--)
        status = add_v2(filters->list.items[i - 1], level, err);
    if (status)
        error_prefix(err, "filters");
    return status;
}

/* ---- format 3 ---- */

static reshard_status take_endian(const struct value *configuration, unsigned item_bytes, bool *is_big, reshard_error *err)
{
    const struct value *endian = zarr_codec_member(configuration, "endian");
    *is_big = false;
    if (!endian && item_bytes == 1)
        return RESHARD_OK;
    if (!endian || endian->kind != VALUE_STR || (!str_is(endian->text, "little") && !str_is(endian->text, "big")))
        return error_set(err, RESHARD_ERR_FORMAT, "codec 'bytes': endian is neither \"little\" nor \"big\"");
    *is_big = str_is(endian->text, "big");
    return RESHARD_OK;
}

/* Applies another transposition to the level's axes. */
static reshard_status add_transpose(const struct value *configuration, int rank, struct zarr_level *level, reshard_error *err)
{
    const struct value *order = zarr_codec_member(configuration, "order");
    uint8_t combined[RANK_MAX];
    bool is_taken[RANK_MAX] = { false };
    int64_t axes[RANK_MAX];
    size_t count;
    if (!order || !value_as_ints(order, axes, RANK_MAX, &count) || count != (size_t)rank)
        return error_set(err, RESHARD_ERR_FORMAT, "codec 'transpose': order is no list of %d axes", rank);
    for (int i = 0; i < rank; i++) {
        if (axes[i] < 0 || axes[i] >= rank || is_taken[axes[i]])
            return error_set(err, RESHARD_ERR_FORMAT, "codec 'transpose': order is no permutation of 0 to %d", rank - 1);
        is_taken[axes[i]] = true;
        combined[i] = level->order[axes[i]];
    }
    memcpy(level->order, combined, (size_t)rank);
    return RESHARD_OK;
}

static reshard_status take_index_codecs(const struct value *codecs, struct zarr_level *level, reshard_error *err)
{
    if (!codecs || codecs->kind != VALUE_LIST || codecs->list.count == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "index_codecs is no list of codecs");
    for (size_t i = 0; i < codecs->list.count; i++) {
        struct str name;
        const struct value *configuration;
        reshard_status status = zarr_extension(codecs->list.items[i], "an index codec", &name, &configuration, err);
        if (status)
            return status;
        if (i == 0 && str_is(name, "bytes")) {
            status = take_endian(configuration, 8, &level->index_is_big, err);
            if (status)
                return status;
        } else if (i == 1 && str_is(name, "crc32c")) {
            level->index_has_crc = true;
        } else {
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "index codec '%.*s'; supported are bytes, or bytes and crc32c", STR_ARG(name));
        }
    }
    return RESHARD_OK;
}

/* extent: of the shard, along its encoded axes; becomes that of the inner blocks. */
static reshard_status take_sharding(const struct value *configuration, int rank, int64_t *extent, struct zarr_level *level,
                                    const struct value **inner_codecs, reshard_error *err)
{
    const struct value *shape = zarr_codec_member(configuration, "chunk_shape"),
                       *location = zarr_codec_member(configuration, "index_location");
    size_t count;
    level->is_shard = true;
    if (!shape || !value_as_ints(shape, level->inner, RANK_MAX, &count) || count != (size_t)rank)
        return error_set(err, RESHARD_ERR_FORMAT, "sharding_indexed: chunk_shape is no list of %d integers", rank);
    for (int i = 0; i < rank; i++) {
        if (level->inner[i] < 1 || extent[i] % level->inner[i])
            return error_set(err, RESHARD_ERR_FORMAT, "sharding_indexed: inner chunks of %" PRId64 " do not divide shards of %" PRId64
                             " on axis %d", level->inner[i], extent[i], i);
        extent[i] = level->inner[i];
    }
    if (location && (location->kind != VALUE_STR || (!str_is(location->text, "start") && !str_is(location->text, "end"))))
        return error_set(err, RESHARD_ERR_FORMAT, "sharding_indexed: index_location is neither \"start\" nor \"end\"");
    level->index_at_start = location && str_is(location->text, "start");
    *inner_codecs = zarr_codec_member(configuration, "codecs");
    return take_index_codecs(zarr_codec_member(configuration, "index_codecs"), level, err);
}

/* Bytes to bytes codecs as they stand in the document; the level has them the other way round. */
static reshard_status add_bytes_codec(struct str name, const struct value *configuration, struct zarr_level *level, reshard_error *err)
{
    static const char *const plain[] = { "gzip", "zstd", "blosc", "crc32c" };
    bool is_plain = false;
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        is_plain |= str_is(name, plain[i]);
    if (str_starts_with(name, NUMCODECS))
        name = (struct str){ name.data + strlen(NUMCODECS), name.size - strlen(NUMCODECS) };
    else if (!is_plain)
        return error_set(
            err, RESHARD_ERR_UNSUPPORTED,
            "codec '%.*s'; supported are transpose, bytes, sharding_indexed, gzip, zstd, blosc, crc32c and numcodecs' compressors",
            STR_ARG(name));
    if (level->step_count >= CHAIN_STEPS_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d codecs", CHAIN_STEPS_MAX);
    memmove(level->steps + 1, level->steps, level->step_count * sizeof(*level->steps));
    reshard_status status = step_find(name, configuration, true, &level->steps[0], err);
    level->step_count += !status;
    return status;
}

/* One list of codecs. *inner is the list inside a shard, or NULL. */
static reshard_status take_level(const struct value *codecs, struct zarr_array *array, struct zarr_level *level, int64_t *extent,
                                 const struct value **inner, reshard_error *err)
{
    bool has_serializer = false;
    int64_t encoded[RANK_MAX];
    *inner = NULL;
    if (!codecs || codecs->kind != VALUE_LIST)
        return error_set(err, RESHARD_ERR_FORMAT, "codecs is no list");
    for (int i = 0; i < array->rank; i++)
        level->order[i] = (uint8_t)i;
    for (size_t i = 0; i < codecs->list.count; i++) {
        struct str name;
        const struct value *configuration;
        reshard_status status = zarr_extension(codecs->list.items[i], "a codec", &name, &configuration, err);
        if (status)
            return status;
        bool is_serializer = str_is(name, "bytes") || str_is(name, "sharding_indexed"), is_transpose = str_is(name, "transpose");
        if (has_serializer && (is_serializer || is_transpose))
            return error_set(err, RESHARD_ERR_FORMAT, "codec '%.*s' behind the one that makes bytes of the array", STR_ARG(name));
        if (!has_serializer && !is_serializer && !is_transpose &&
            (str_is(name, "gzip") || str_is(name, "zstd") || str_is(name, "blosc") || str_is(name, "crc32c")))
            return error_set(err, RESHARD_ERR_FORMAT, "codec '%.*s' before the one that makes bytes of the array", STR_ARG(name));
        if (is_transpose) {
            status = add_transpose(configuration, array->rank, level, err);
        } else if (is_serializer) {
            has_serializer = true;
            for (int axis = 0; axis < array->rank; axis++)
                encoded[axis] = extent[level->order[axis]];
            memcpy(extent, encoded, (size_t)array->rank * sizeof(*extent));
            status = str_is(name, "bytes") ? take_endian(configuration, dtype_info(array->dtype)->swap_bytes, &array->is_swapped, err)
                                           : take_sharding(configuration, array->rank, extent, level, inner, err);
        } else {
            status = add_bytes_codec(name, configuration, level, err);
        }
        if (status)
            return status;
    }
    return has_serializer ? RESHARD_OK
                          : error_set(err, RESHARD_ERR_FORMAT, "no codec makes bytes of the array ('bytes' or 'sharding_indexed')");
}

reshard_status zarr_codecs_v3(const struct value *codecs, struct zarr_array *array, reshard_error *err)
{
    int64_t extent[RANK_MAX];
    memcpy(extent, array->chunk, sizeof(extent));
    for (array->level_count = 0; array->level_count < ZARR_LEVELS_MAX;) {
        struct zarr_level *level = &array->levels[array->level_count++];
        const struct value *inner;
        reshard_status status = take_level(codecs, array, level, extent, &inner, err);
        if (status || !level->is_shard)
            return status;
        codecs = inner;
    }
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "shards nested more than %d deep", ZARR_LEVELS_MAX - 1);
}
