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

struct zarr_style {
    int format;             /* 2 or 3 */
    bool is_megatron;
    char separator;
    enum zarr_cut cut;
    int64_t list[RANK_MAX];
    int list_count;
    uint64_t chunk_bytes;
    bool is_packed;
    struct chain_packing packing; /* element_bytes is the array's */
};

/* Reads the options and the reference. */
reshard_status zarr_style_choose(const struct layout_request *request, struct target *target, struct zarr_style *out, reshard_error *err);

/* Extents of the chunks of wanted tensor `tensor`: each at least 1. */
void zarr_chunk_choose(const struct layout_request *request, const struct zarr_style *style, uint32_t tensor, int64_t *out);

/* Lays out the chunk files of an array whose keys start with prefix ("" or with a '/' behind). */
reshard_status zarr_chunks_lay_out(const struct layout_request *request, const struct zarr_style *style, struct target *target,
                                   uint32_t tensor, struct str prefix, const int64_t *chunk, reshard_error *err);

/* ---- zarr_document.c: appends the documents of nodes. attributes and dimension_names are JSON texts, empty: none ---- */
reshard_status zarr_document_array(const struct zarr_style *style, enum dtype dtype, int rank, const int64_t *shape, const int64_t *chunk,
                                   struct str attributes, struct str dimension_names, struct buffer *out, reshard_error *err);
reshard_status zarr_document_group(const struct zarr_style *style, struct str attributes, struct buffer *out, reshard_error *err);

reshard_status zarr_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

extern const struct format_option zarr_options[];

/* The names of Megatron Core where the target is one of its checkpoints; NULL: any. */
const char *zarr_target_names(const struct layout_request *request);

#endif
