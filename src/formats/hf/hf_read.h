/* SPDX-License-Identifier: Apache-2.0 */
/* What the reading side of the hf driver shares while a catalog is filled. */
#ifndef FORMATS_HF_READ_H
#define FORMATS_HF_READ_H

#include "formats/hf/hf.h"
#include "formats/hf/hf_folder.h"
#include "formats/shared/safetensors_set.h"

struct hf_read {
    struct source *source;
    struct arena arena;
    struct hf_folder folder;
    struct st_set set;
    struct st_files sharded; /* DCP shards that a consolidated folder keeps beside, see hf_scalar.c */
    bool looked_for_sharded;
};

/* Fills the catalog with the pieces of read->set.files, DCP shards. */
reshard_status hf_read_shards(struct hf_read *read, reshard_error *err);

/* Where a shard's piece of its entry i starts, RANK_MAX numbers at most; from the file's DCP_SHARDING_INFO (without one: at the origin). */
struct hf_offsets {
    int64_t *values;
    uint64_t *at; /* by entry */
};
reshard_status hf_offsets_read(const struct st_file *file, const struct limits *limits, struct arena *arena, struct hf_offsets *out,
                               reshard_error *err);

/* For a 0-d tensor of a consolidated folder: where its right value is. *file and *entry are changed if that is another file. */
reshard_status hf_scalar_find(struct hf_read *read, const struct st_file **file, const struct st_entry **entry, struct str key,
                              reshard_error *err);

/* Items: metadata on which all files agree, the index's own, and side files. */
reshard_status hf_read_items(struct hf_read *read, reshard_error *err);

/* Side files in folders beside the weights. */
reshard_status hf_beside_add(const struct hf_read *read, reshard_error *err);

/* Which folders beside the weights are not read at all, for who copies the rest; in the catalog's arena. */
reshard_status hf_beside_left(const struct hf_read *read, struct hf_state *state, reshard_error *err);

/* A warning where a training run's state lies beside the weights: it is not read with them. */
void hf_beside_warn(const struct hf_read *read);

#endif
