/* SPDX-License-Identifier: Apache-2.0 */
/* An array as its document describes it, formats 2 and 3 alike. */
#ifndef FORMATS_ZARR_ZARR_ARRAY_H
#define FORMATS_ZARR_ZARR_ARRAY_H

#include "base/limits.h"
#include "base/value.h"
#include "encoding/chain.h"
#include "tensor/box.h"

#define ZARR_LEVELS_MAX 4 /* shards inside shards inside shards, and their chunks */
#define ZARR_ITEM_BYTES_MAX 16

/*
 * How a block of the array is coded. Axis i of what is encoded is axis order[i] of the block. A leaf's elements follow in row-major order
 * of these axes; a shard's inner blocks of `inner` elements are coded by the next level, and an index says where.
 */
struct zarr_level {
    uint8_t order[RANK_MAX];
    struct chain_step steps[CHAIN_STEPS_MAX]; /* bytes to bytes, in the order of decoding */
    uint32_t step_count;
    bool is_shard;
    int64_t inner[RANK_MAX]; /* along the encoded axes */
    bool index_at_start, index_has_crc, index_is_big;
};

enum zarr_key_form { ZARR_KEY_V2, ZARR_KEY_DEFAULT }; /* 0.1 and c/0/1 */

struct zarr_array {
    int format; /* 2 or 3 */
    int rank;
    int64_t shape[RANK_MAX], chunk[RANK_MAX];
    enum dtype dtype;
    bool is_swapped; /* stored in the other byte order */
    enum zarr_key_form key_form;
    char separator;
    bool names_separator; /* format 2: the document has one; zarr-python 2 leaves the usual one out, as Megatron's documents do */
    bool has_fill, fill_is_null; /* what is null counts as zero, or as no fill value at all */
    uint8_t fill[ZARR_ITEM_BYTES_MAX]; /* an element, little-endian */
    struct zarr_level levels[ZARR_LEVELS_MAX];
    int level_count;
    const struct value *attributes;      /* format 3; NULL: none */
    const struct value *dimension_names; /* format 3; NULL: none */
};

/* What is known beyond the document. */
struct zarr_hints {
    bool void_is_bf16; /* Megatron: "V2" is bfloat16 that numpy could not name */
    bool null_is_zero; /* zarr-python 3 does not store chunks of zeros, and reads them so; a chunk that was lost looks the same */
};

/* Fills *out from a .zarray document, or the zarr.json of an array. The message says which member is wrong. */
reshard_status zarr_array_parse_v2(const struct value *document, const struct zarr_hints *hints, struct zarr_array *out,
                                   reshard_error *err);
reshard_status zarr_array_parse_v3(const struct value *document, struct zarr_array *out, reshard_error *err);

/* ---- zarr_dtype.c ---- */

/* Type by format 2's name ("<f4", "bfloat16") or format 3's ("float32"). */
reshard_status zarr_dtype_v2(struct str name, const struct zarr_hints *hints, enum dtype *dtype, bool *is_swapped, reshard_error *err);
reshard_status zarr_dtype_v3(struct str name, enum dtype *dtype, reshard_error *err);

/* The names; NULL if zarr has none. */
const char *zarr_dtype_name_v2(enum dtype dtype);
const char *zarr_dtype_name_v3(enum dtype dtype);

/* A fill value of a document as an element. Format 3 is strict, and knows bit patterns. */
reshard_status zarr_fill_parse(const struct value *value, enum dtype dtype, int format, uint8_t *out, reshard_error *err);

/* ---- zarr_codec.c ---- */

/* Compressor and filters of format 2 (NULL or None: none) into the level's steps. */
reshard_status zarr_codecs_v2(const struct value *compressor, const struct value *filters, struct zarr_level *level, reshard_error *err);

/* The codecs of format 3 into array->levels, is_swapped included. */
reshard_status zarr_codecs_v3(const struct value *codecs, struct zarr_array *array, reshard_error *err);

/* name and configuration of an extension point: "name", or {"name", "configuration"}. configuration is NULL if there is none. */
reshard_status zarr_extension(const struct value *value, const char *what, struct str *name, const struct value **configuration,
                              reshard_error *err);

#endif
