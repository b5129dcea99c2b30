/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the writing half share. */
#ifndef FORMATS_ZARR_ZARR_WRITE_H
#define FORMATS_ZARR_ZARR_WRITE_H

#include "encoding/chain.h"
#include "formats/driver.h"

/* How extents of chunks are chosen. */
enum zarr_cut {
    ZARR_CUT_AUTO,   /* the first axis, so that a chunk has at most chunk_bytes */
    ZARR_CUT_WHOLE,  /* a chunk an array */
    ZARR_CUT_SOURCE, /* the largest extents of the source's own pieces */
    ZARR_CUT_LIST    /* given: the leading axes */
};

/* How arrays are laid out that are part of another's checkpoint. All zero: plain zarr. */
struct zarr_flavour {
    enum zarr_cut cut;      /* how chunks are cut where no option says it */
    bool arrays_only;       /* there are no documents of groups, no attributes of nodes and no fill values */
    const char *no_codec;   /* why chunks are never compressed; NULL: they may be */
    const char *no_slash;   /* why '/' never stands between the numbers of a chunk; NULL: it may */
    struct str (*array_name)(const struct target *target, struct str key); /* "" without memory; NULL: the key */
};

struct zarr_style {
    const struct zarr_flavour *flavour;
    const char *folder;     /* in which all of it lies: "" or ends with '/' */
    int format;             /* 2 or 3 */
    char separator;
    enum zarr_cut cut;
    int64_t list[RANK_MAX];
    int list_count;
    uint64_t chunk_bytes;
    bool is_packed;
    struct chain_packing packing; /* element_bytes is the array's */
};

/* Reads the options and the reference: the version of the format alone, and all of the style. */
reshard_status zarr_format_choose(const struct layout_request *request, int *format, reshard_error *err);
reshard_status zarr_style_choose(const struct layout_request *request, const struct zarr_flavour *flavour, struct zarr_style *out,
                                 reshard_error *err);
reshard_status zarr_wrong_option(const char *name, const char *value, reshard_error *err);

/* Extents of the chunks of wanted tensor `tensor`: each at least 1. */
void zarr_chunk_choose(const struct layout_request *request, const struct zarr_style *style, uint32_t tensor, int64_t *out);

/* Lays out the chunk files of an array whose keys start with prefix ("" or with a '/' behind). */
reshard_status zarr_chunks_lay_out(const struct layout_request *request, const struct zarr_style *style, struct target *target,
                                   uint32_t tensor, struct str prefix, const int64_t *chunk, reshard_error *err);

/* ---- zarr_document.c: appends the documents of nodes. attributes and dimension_names are JSON texts, empty: none ---- */
reshard_status zarr_document_array(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, const int64_t *chunk,
                                   struct str attributes, struct str dimension_names, struct buffer *out, reshard_error *err);
reshard_status zarr_document_group(const struct zarr_style *style, struct str attributes, struct buffer *out, reshard_error *err);

/* The options that zarr_style_choose reads; for format_driver.options. */
#define ZARR_OPTIONS                                                                                                                 \
    { "zarr-format", "2|3", "2", "version of the format" },                                                                          \
    { "chunks", "auto|whole|source|N,N,…", "auto",                                                                                   \
      "extents of the chunks: whole arrays cut on their first axis to 256 MiB, whole arrays, as the source is cut, or those of the " \
      "leading axes" },                                                                                                              \
    { "codec", "none|zstd|gzip|zlib|lz4|blosc[:CNAME]", "none", "compression of chunks" },                                           \
    { "level", "number", "", "of the compression; without it the codec's usual one" },                                               \
    { "shuffle", "none|byte|bit", "byte", "blosc: how bytes are grouped" },                                                          \
    { "separator", ".|/", "", "between the numbers in names of chunks; without it '.', in format 3 '/'" }

#endif
