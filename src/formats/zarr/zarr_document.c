/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "formats/zarr/zarr_array.h"
#include "formats/zarr/zarr_write.h"

/* Format 2 as zarr-python 2 prints it: sorted, four spaces deeper at each level. Format 3 as zarr-python 3: two spaces. */
struct printing {
    struct buffer *out;
    int step, depth;
};

static void line_break(const struct printing *printing)
{
    buffer_append_byte(printing->out, '\n');
    buffer_append_fill(printing->out, ' ', (size_t)(printing->depth * printing->step));
}

static void put_name(const struct printing *printing, bool is_first, const char *name)
{
    if (!is_first)
        buffer_append_byte(printing->out, ',');
    line_break(printing);
    buffer_printf(printing->out, "\"%s\": ", name);
}

static void put_extents(struct printing *printing, int rank, const int64_t *extents)
{
    buffer_append_byte(printing->out, '[');
    printing->depth++;
    for (int i = 0; i < rank; i++) {
        if (i)
            buffer_append_byte(printing->out, ',');
        line_break(printing);
        buffer_printf(printing->out, "%" PRId64, extents[i]);
    }
    printing->depth--;
    if (rank)
        line_break(printing);
    buffer_append_byte(printing->out, ']');
}

static const char *fill_text(enum dtype dtype)
{
    switch (dtype_info(dtype)->class_) {
    case DTYPE_CLASS_BOOL:
        return "false";
    case DTYPE_CLASS_FLOAT:
        return "0.0";
    case DTYPE_CLASS_COMPLEX:
        return "[0.0, 0.0]";
    case DTYPE_CLASS_OPAQUE:
        return dtype_element_bytes(dtype) == 2 ? "[0, 0]" : "[0]";
    default:
        return "0";
    }
}

/* ---- format 2 ---- */

static void put_compressor(const struct zarr_style *style, struct buffer *out)
{
    const struct chain_packing *packing = &style->packing;
    const char *name = chain_kind_name(packing->kind);
    if (!style->is_packed)
        buffer_append_text(out, "null");
    else if (packing->kind == CHAIN_BLOSC)
        buffer_printf(out, "{\"blocksize\": 0, \"clevel\": %d, \"cname\": \"%s\", \"id\": \"blosc\", \"shuffle\": %d}", packing->level,
                      packing->inner, packing->shuffle);
    else if (packing->kind == CHAIN_LZ4)
        buffer_printf(out, "{\"acceleration\": %d, \"id\": \"lz4\"}", packing->level);
    else
        buffer_printf(out, "{\"id\": \"%s\", \"level\": %d}", name, packing->level);
}

static void put_array_v2(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, const int64_t *chunk,
                         struct buffer *out)
{
    struct printing printing = { out, 4, 1 };
    buffer_append_byte(out, '{');
    put_name(&printing, true, "chunks");
    put_extents(&printing, rank, chunk);
    put_name(&printing, false, "compressor");
    put_compressor(style, out);
    put_name(&printing, false, "dimension_separator"); /* also the usual one: its absence is how Megatron's own arrays are known */
    buffer_printf(out, "\"%c\"", style->separator);
    put_name(&printing, false, "dtype");
    buffer_printf(out, "\"%s\"", zarr_dtype_name_v2(dtype));
    put_name(&printing, false, "fill_value");
    buffer_append_text(out, style->flavour->arrays_only ? "null" : fill_text(dtype));
    put_name(&printing, false, "filters");
    buffer_append_text(out, "null");
    put_name(&printing, false, "order");
    buffer_append_text(out, "\"C\"");
    put_name(&printing, false, "shape");
    put_extents(&printing, rank, shape);
    put_name(&printing, false, "zarr_format");
    buffer_append_text(out, "2\n}");
}

/* ---- format 3 ---- */

static void put_codecs(const struct zarr_style *style, enum dtype dtype, struct printing *printing)
{
    static const char *const shuffles[] = { "noshuffle", "shuffle", "bitshuffle" };
    struct buffer *out = printing->out;
    const struct chain_packing *packing = &style->packing;
    buffer_append_byte(out, '[');
    printing->depth++;
    line_break(printing);
    buffer_append_text(out, dtype_info(dtype)->swap_bytes > 1 ? "{\"name\": \"bytes\", \"configuration\": {\"endian\": \"little\"}}"
                                                              : "{\"name\": \"bytes\"}");
    if (style->is_packed) {
        buffer_append_byte(out, ',');
        line_break(printing);
    }
    if (style->is_packed && packing->kind == CHAIN_BLOSC)
        buffer_printf(out,
                      "{\"name\": \"blosc\", \"configuration\": {\"typesize\": %u, \"cname\": \"%s\", \"clevel\": %d, \"shuffle\": \"%s\", "
                      "\"blocksize\": 0}}",
                      dtype_element_bytes(dtype), packing->inner, packing->level, shuffles[packing->shuffle]);
    else if (style->is_packed && packing->kind == CHAIN_ZSTD)
        buffer_printf(out, "{\"name\": \"zstd\", \"configuration\": {\"level\": %d, \"checksum\": true}}", packing->level);
    else if (style->is_packed)
        buffer_printf(out, "{\"name\": \"%s\", \"configuration\": {\"level\": %d}}", chain_kind_name(packing->kind), packing->level);
    printing->depth--;
    line_break(printing);
    buffer_append_byte(out, ']');
}

static void put_array_v3(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, const int64_t *chunk,
                         struct str attributes, struct str dimension_names, struct buffer *out)
{
    struct printing printing = { out, 2, 1 };
    buffer_append_byte(out, '{');
    put_name(&printing, true, "shape");
    put_extents(&printing, rank, shape);
    put_name(&printing, false, "data_type");
    buffer_printf(out, "\"%s\"", zarr_dtype_name_v3(dtype));
    put_name(&printing, false, "chunk_grid");
    buffer_append_text(out, "{\"name\": \"regular\", \"configuration\": {\"chunk_shape\": ");
    put_extents(&printing, rank, chunk);
    buffer_append_text(out, "}}");
    put_name(&printing, false, "chunk_key_encoding");
    buffer_printf(out, "{\"name\": \"default\", \"configuration\": {\"separator\": \"%c\"}}", style->separator);
    put_name(&printing, false, "fill_value");
    buffer_append_text(out, fill_text(dtype));
    put_name(&printing, false, "codecs");
    put_codecs(style, dtype, &printing);
    put_name(&printing, false, "attributes");
    buffer_append_str(out, attributes.size ? attributes : STR("{}"));
    if (dimension_names.size) {
        put_name(&printing, false, "dimension_names");
        buffer_append_str(out, dimension_names);
    }
    put_name(&printing, false, "zarr_format");
    buffer_append_text(out, "3");
    put_name(&printing, false, "node_type");
    buffer_append_text(out, "\"array\"");
    put_name(&printing, false, "storage_transformers");
    buffer_append_text(out, "[]\n}");
}

reshard_status zarr_document_array(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, const int64_t *chunk,
                                   struct str attributes, struct str dimension_names, struct buffer *out, reshard_error *err)
{
    if (style->format == 2)
        put_array_v2(style, dtype, rank, shape, chunk, out);
    else
        put_array_v3(style, dtype, rank, shape, chunk, attributes, dimension_names, out);
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}

reshard_status zarr_document_group(const struct zarr_style *style, struct str attributes, struct buffer *out, reshard_error *err)
{
    if (style->format == 2) {
        buffer_append_text(out, "{\n    \"zarr_format\": 2\n}");
    } else {
        buffer_append_text(out, "{\n  \"attributes\": ");
        buffer_append_str(out, attributes.size ? attributes : STR("{}"));
        buffer_append_text(out, ",\n  \"zarr_format\": 3,\n  \"node_type\": \"group\"\n}");
    }
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}
