/* SPDX-License-Identifier: Apache-2.0 */
/* What the target looks like, as options, the reference and the source say, in this order. */
#include <stdlib.h>

#include "formats/zarr/zarr_write.h"

#define CHUNK_BYTES_DEFAULT ((uint64_t)256 << 20)
#define LEVEL_MAX 22

static const char *option_of(const struct layout_request *request, const char *name)
{
    const char *value = layout_option(request, name);
    return value && value[0] ? value : NULL;
}

static const char *fact_of(const struct catalog *catalog, const char *name)
{
    for (uint32_t i = 0; i < catalog->fact_count; i++)
        if (str_is(catalog->facts[i].name, name))
            return catalog->facts[i].value.data;
    return NULL;
}

reshard_status zarr_wrong_option(const char *name, const char *value, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "option %s=%s is not valid", name, value);
    error_hint(err, "reshard_format_option_at(zarr) lists the options");
    return RESHARD_ERR_USAGE;
}

reshard_status zarr_format_choose(const struct layout_request *request, int *out, reshard_error *err)
{
    const char *format = option_of(request, "zarr-format");
    const char *like = request->like ? fact_of(request->like->catalog, "zarr format") : NULL;
    if (format && strcmp(format, "2") != 0 && strcmp(format, "3") != 0)
        return zarr_wrong_option("zarr-format", format, err);
    *out = format ? format[0] - '0' : like && strcmp(like, "3") == 0 ? 3 : 2;
    return RESHARD_OK;
}

/* ---- chunks ---- */

static bool parse_list(const char *text, struct zarr_style *out)
{
    struct str rest = str_of(text);
    while (out->list_count < RANK_MAX) {
        size_t comma;
        uint64_t number;
        struct str word = rest;
        bool is_last = !str_find_char(rest, ',', &comma);
        if (!is_last) {
            word.size = comma;
            rest = (struct str){ rest.data + comma + 1, rest.size - comma - 1 };
        }
        if (!str_to_u64(word, &number) || number == 0 || number > INT64_MAX)
            return false;
        out->list[out->list_count++] = (int64_t)number;
        if (is_last)
            return true;
    }
    return false;
}

static reshard_status choose_cut(const struct layout_request *request, struct zarr_style *out, reshard_error *err)
{
    const char *chunks = option_of(request, "chunks");
    out->cut = out->flavour->cut;
    out->chunk_bytes = request->max_shard_bytes > 0 ? (uint64_t)request->max_shard_bytes : CHUNK_BYTES_DEFAULT;
    if (request->max_shard_bytes == 0)
        out->cut = ZARR_CUT_WHOLE;
    if (!chunks)
        return RESHARD_OK;
    if (strcmp(chunks, "auto") == 0)
        out->cut = ZARR_CUT_AUTO;
    else if (strcmp(chunks, "whole") == 0)
        out->cut = ZARR_CUT_WHOLE;
    else if (strcmp(chunks, "source") == 0)
        out->cut = ZARR_CUT_SOURCE;
    else if (parse_list(chunks, out))
        out->cut = ZARR_CUT_LIST;
    else
        return zarr_wrong_option("chunks", chunks, err);
    return RESHARD_OK;
}

/* The largest extents among a tensor's pieces, which may be cut in any way. */
static bool extents_of_pieces(const struct catalog *catalog, uint32_t tensor_index, int64_t *out)
{
    const struct catalog_tensor *tensor = &catalog->tensors[tensor_index];
    for (int axis = 0; axis < tensor->rank; axis++)
        out[axis] = 1;
    for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; c++) {
        const int64_t *extent = catalog_vector_at(catalog, catalog->chunks[c].extent);
        for (int axis = 0; axis < tensor->rank; axis++)
            out[axis] = extent[axis] > out[axis] ? extent[axis] : out[axis];
    }
    return tensor->chunk_count > 0;
}

static bool extents_of_reference(const struct layout_request *request, uint32_t tensor_index, int64_t *out)
{
    const struct catalog_tensor *wanted = &request->wanted->tensors[tensor_index];
    if (!request->like)
        return false;
    const struct catalog *catalog = request->like->catalog;
    uint32_t found = catalog_find(catalog, wanted->key);
    if (found == CATALOG_NONE || catalog->tensors[found].rank != wanted->rank)
        return false;
    return extents_of_pieces(catalog, found, out);
}

static void extents_auto(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, int64_t *out)
{
    uint64_t row = dtype_element_bytes(dtype);
    for (int axis = 1; axis < rank; axis++)
        row = shape[axis] > 0 && row < UINT64_MAX / (uint64_t)shape[axis] ? row * (uint64_t)shape[axis] : row;
    int64_t rows = row > style->chunk_bytes ? 1 : (int64_t)(style->chunk_bytes / row);
    for (int axis = 0; axis < rank; axis++)
        out[axis] = axis == 0 && rows < shape[0] ? rows : shape[axis];
}

void zarr_chunk_choose(const struct layout_request *request, const struct zarr_style *style, uint32_t tensor_index, int64_t *out)
{
    const struct catalog_tensor *tensor = &request->wanted->tensors[tensor_index];
    const int64_t *shape = catalog_vector_at(request->wanted, tensor->shape);
    uint32_t source = request->wanted_source[tensor_index];
    const struct catalog *catalog = request->source_catalog;
    bool is_found = style->cut != ZARR_CUT_LIST && !option_of(request, "chunks") && extents_of_reference(request, tensor_index, out);
    if (!is_found && style->cut == ZARR_CUT_SOURCE && source != CATALOG_NONE && catalog->tensors[source].rank == tensor->rank)
        is_found = extents_of_pieces(catalog, source, out);
    if (!is_found) {
        extents_auto(style, tensor->dtype, tensor->rank, shape, out);
        for (int axis = 0; axis < tensor->rank && style->cut == ZARR_CUT_WHOLE; axis++)
            out[axis] = shape[axis];
        for (int axis = 0; axis < tensor->rank && style->cut == ZARR_CUT_LIST; axis++)
            out[axis] = axis < style->list_count ? style->list[axis] : shape[axis];
    }
    for (int axis = 0; axis < tensor->rank; axis++) {
        out[axis] = out[axis] > shape[axis] ? shape[axis] : out[axis];
        out[axis] = out[axis] < 1 ? 1 : out[axis];
    }
}

/* ---- codecs ---- */

static const struct {
    enum chain_kind kind;
    int level;
    bool is_v3;
} codecs[] = {
    { CHAIN_ZSTD, 1, true }, { CHAIN_GZIP, 1, true }, { CHAIN_ZLIB, 1, false }, { CHAIN_LZ4, 1, false }, { CHAIN_BLOSC, 5, true }
};

static reshard_status choose_inner(const char *colon, const char *shuffle, struct zarr_style *out, reshard_error *err)
{
    static const char *const inner[] = { "lz4", "zstd", "zlib", "blosclz", "lz4hc" };
    static const char *const shuffles[] = { "none", "byte", "bit" };
    out->packing.inner = inner[0];
    out->packing.shuffle = 1;
    bool is_known = !colon;
    for (size_t i = 0; i < sizeof(inner) / sizeof(inner[0]) && colon; i++) {
        if (strcmp(colon + 1, inner[i]) == 0) {
            out->packing.inner = inner[i];
            is_known = true;
        }
    }
    if (!is_known)
        return zarr_wrong_option("codec", colon + 1, err);
    is_known = !shuffle;
    for (int i = 0; i < 3 && shuffle; i++) {
        if (strcmp(shuffle, shuffles[i]) == 0) {
            out->packing.shuffle = i;
            is_known = true;
        }
    }
    return is_known ? RESHARD_OK : zarr_wrong_option("shuffle", shuffle, err);
}

/* What the reference's first coded chunk is coded with; NULL: nothing that can be written. */
static const char *codec_of_reference(const struct source *like)
{
    for (uint32_t i = 0; like && i < like->catalog->layout_count; i++) {
        const struct chain *chain = like->catalog->layouts[i].chain;
        for (size_t k = 0; chain && chain->step_count && k < sizeof(codecs) / sizeof(codecs[0]); k++)
            if (chain->steps[0].kind == codecs[k].kind)
                return chain_kind_name(codecs[k].kind);
    }
    return NULL;
}

static reshard_status choose_codec(const struct layout_request *request, struct zarr_style *out, reshard_error *err)
{
    const char *codec = option_of(request, "codec"), *level = option_of(request, "level"), *library;
    bool is_asked = codec != NULL;
    uint64_t number = 0;
    if (!codec)
        codec = codec_of_reference(request->like);
    if (!codec || strcmp(codec, "none") == 0)
        return RESHARD_OK;
    const char *colon = strchr(codec, ':');
    struct str name = { codec, colon ? (size_t)(colon - codec) : strlen(codec) };
    size_t found = 0;
    while (found < sizeof(codecs) / sizeof(codecs[0]) && !str_is(name, chain_kind_name(codecs[found].kind)))
        found++;
    if (found == sizeof(codecs) / sizeof(codecs[0]) || (colon && codecs[found].kind != CHAIN_BLOSC))
        return zarr_wrong_option("codec", codec, err);
    if (out->format == 3 && !codecs[found].is_v3)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "format 3 has no codec '%s'; it has zstd, gzip and blosc", codec);
    if (out->flavour->no_codec)
        return is_asked ? error_set(err, RESHARD_ERR_UNSUPPORTED, "%s", out->flavour->no_codec) : RESHARD_OK;
    if (level && (!str_to_u64(str_of(level), &number) || number > LEVEL_MAX || (codecs[found].kind != CHAIN_ZSTD && number > 9)))
        return zarr_wrong_option("level", level, err);
    if (!chain_kind_is_built_in(codecs[found].kind, &library))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "codec '%s' needs %s, and this reshard was built without it", codec, library);
    out->is_packed = true;
    out->packing = (struct chain_packing){ .kind = codecs[found].kind, .level = level ? (int)number : codecs[found].level };
    return codecs[found].kind == CHAIN_BLOSC ? choose_inner(colon, option_of(request, "shuffle"), out, err) : RESHARD_OK;
}

/* ---- names of chunks ---- */

/* The reference's separator: what stands between the numbers of a chunk of two axes or more; 0: not known. */
static char separator_of_reference(const struct source *like)
{
    for (uint32_t i = 0; like && i < like->catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &like->catalog->tensors[i];
        if (tensor->rank < 2 || tensor->chunk_count == 0)
            continue;
        struct str name = like->catalog->objects[like->catalog->chunks[tensor->first_chunk].object].name;
        for (size_t at = name.size; at > 1; at--) {
            char c = name.data[at - 1];
            if (c == '.' || c == '/')
                return c;
        }
    }
    return 0;
}

static reshard_status choose_separator(const struct layout_request *request, struct zarr_style *out, reshard_error *err)
{
    const char *separator = option_of(request, "separator");
    char like = out->flavour->no_slash ? 0 : separator_of_reference(request->like);
    if (separator && strcmp(separator, ".") != 0 && strcmp(separator, "/") != 0)
        return zarr_wrong_option("separator", separator, err);
    if (separator && separator[0] == '/' && out->flavour->no_slash)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s", out->flavour->no_slash);
    out->separator = separator ? separator[0] : like ? like : out->format == 3 ? '/' : '.';
    return RESHARD_OK;
}

reshard_status zarr_style_choose(const struct layout_request *request, const struct zarr_flavour *flavour, struct zarr_style *out,
                                 reshard_error *err)
{
    *out = (struct zarr_style){ .flavour = flavour, .folder = "" };
    reshard_status status = zarr_format_choose(request, &out->format, err);
    if (!status)
        status = choose_cut(request, out, err);
    if (!status)
        status = choose_codec(request, out, err);
    if (!status)
        status = choose_separator(request, out, err);
    return status;
}
