/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reading half share. */
#ifndef FORMATS_ZARR_ZARR_READ_H
#define FORMATS_ZARR_ZARR_READ_H

#include "formats/zarr/zarr_array.h"
#include "formats/zarr/zarr_keys.h"

struct zarr_reading {
    struct source *source;
    struct zarr_keys keys;
    struct zarr_hints hints;
    struct value_graph *kept; /* attributes; belongs to the catalog */
    struct chain_scratch scratch;
    bool has_plain_nans;      /* bfloat16 without a named separator went by way of float32: NaNs have no bits of their own */
    const char *flavour;      /* whose checkpoint it is, where arrays are not all of it; NULL: plain zarr */
    uint32_t array_count, group_count, format_counts[4];
};

/* Adds the chunks of an array: those that are there, and its fill value for those that are not. document: the index of the entry that
 * describes it. prefix: the array's name with a '/' behind, or "". */
reshard_status zarr_chunks_add(struct zarr_reading *reading, const struct zarr_array *array, uint32_t tensor, uint32_t document,
                               struct str prefix, reshard_error *err);

/* A block of the array on its way to chunks of the catalog. */
struct zarr_block {
    int64_t start[RANK_MAX], extent[RANK_MAX]; /* along the array's axes; it may reach beyond the array */
    uint8_t axis[RANK_MAX];                    /* array axis of each of the block's axes */
    int level;
    uint32_t object;
    uint64_t offset, bytes;                    /* in the object */
    struct chain_step prefix[CHAIN_STEPS_MAX]; /* steps before the level's own: of what lies around it */
    uint32_t prefix_count;
};

/* State while one array's chunks are added. */
struct zarr_adding {
    struct zarr_reading *reading;
    const struct zarr_array *array;
    uint32_t tensor, document_object;
    const struct chain *chain; /* of blocks without a prefix, made on first use */
    const struct chain *fill;
    uint64_t missing, beyond;
};

reshard_status zarr_block_add(struct zarr_adding *adding, const struct zarr_block *block, reshard_error *err);

/* Adds a box that holds the fill value; the parts beyond the array are left out. */
reshard_status zarr_fill_add(struct zarr_adding *adding, const int64_t *start, const int64_t *extent, reshard_error *err);

/* ---- zarr_shard.c ---- */
reshard_status zarr_shard_add(struct zarr_adding *adding, const struct zarr_block *block, reshard_error *err);

/* ---- zarr_read.c: the steps of reading a store, in this order. Whoever stands on this sets hints and flavour after the first ---- */

/* Lists the store's keys. */
reshard_status zarr_read_begin(struct zarr_reading *reading, reshard_error *err);

/* The same over keys that the caller has of a container of another kind; they are taken over. */
reshard_status zarr_read_over(struct zarr_reading *reading, struct zarr_keys *keys, reshard_error *err);

/* Adds what documents describe: arrays, and attributes of nodes as items. */
reshard_status zarr_read_documents(struct zarr_reading *reading, reshard_error *err);

/* Warns of files that nothing has used, and adds the facts. A plain store without a document is none. */
reshard_status zarr_read_end(struct zarr_reading *reading, reshard_error *err);
void zarr_reading_release(struct zarr_reading *reading);

#endif
