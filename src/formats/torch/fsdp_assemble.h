/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts the files of all ranks together into one catalog.
 *
 *   model        a DTensor or shard is a chunk of the whole that it says it belongs to, a plain tensor is the same on all ranks
 *   optimizer    one item "optimizer", the nested state dict as rank 0 has it. Where its moments are DTensors or ShardedTensors, or
 *                there is but one file, their wholes are hidden tensors that the item's storages name. Flat local pieces (FSDP1) do not
 *                say what part of the whole they are: their lengths do (fsdp_flat.h). Where those leave it open, or pipeline stages number
 *                their own parameters, the item of each further rank is "rank_N.optimizer", with that rank's storages
 *   extra state  items "extra_state.KEY", those of further ranks "rank_N.extra_state.KEY" where they differ from rank 0's
 *
 * Entries of files beside the model that hold no tensor are listed under their own name too, once.
 */
#ifndef FORMATS_TORCH_FSDP_ASSEMBLE_H
#define FORMATS_TORCH_FSDP_ASSEMBLE_H

#include "formats/torch/fsdp_groups.h"
#include "formats/shared/torch_source.h"
#include "formats/shared/torch_whole.h"

#define FSDP_OPTIMIZER_KEY "optimizer"
#define FSDP_EXTRA_KEY "extra_state"

/* What the keys of an optimizer's hidden tensors begin with; the NUL keeps them apart from every key that a path can give. */
#define FSDP_HIDDEN_PREFIX STR("\0" FSDP_OPTIMIZER_KEY ":")
static inline bool fsdp_is_state(struct str key)
{
    return key.size > FSDP_HIDDEN_PREFIX.size && memcmp(key.data, FSDP_HIDDEN_PREFIX.data, FSDP_HIDDEN_PREFIX.size) == 0;
}

/* Appends the key of the hidden tensor at a path in the optimizer's file; false without memory. */
bool fsdp_state_key_of_path(const struct path_part *parts, size_t count, struct buffer *out);

/* The key of a state of a number, `state.NUMBER.NAME`: appends it (false without memory); reads it (false: it is none). */
bool fsdp_state_key_of_number(uint32_t number, struct str name, struct buffer *out);
bool fsdp_state_key_read(struct str key, uint32_t *number, struct str *name);

/* What an opened checkpoint of ranks says of itself, for who writes one like it. */
struct torch_ranks {
    struct fsdp_file names[FSDP_EXTRA + 1]; /* by kind: how the file of rank 0 is called; name.data NULL: there is none */
    bool is_one_file;             /* of the model: nothing says how it lies on ranks */
    int64_t fsdp_version;         /* 0: not said */
    const struct value **shards;  /* by tensor of the catalog: DTensor or ShardedTensor in the first file that has it; NULL: a plain one */
    uint32_t shard_count, shard_capacity;
    struct fsdp_flat *flat;       /* what the optimizer's flat pieces are (fsdp_flat.h); NULL: it has none, or that is not known */
    bool is_staged;               /* ranks hold other parameters than rank 0 does, and number them anew in their optimizers */
};

/* The DTensor or ShardedTensor that a tensor of an opened fsdp-ranks is; NULL: none. */
const struct value *fsdp_shard_of(const struct source *source, uint32_t tensor);

/* A tensor by its key, and the CRC of the plain tensor that rank 0 or a later one has for it. */
struct known_tensor {
    uint32_t tensor;
    bool has_crc, is_cut; /* is_cut: some rank says what part of the whole it has */
    uint32_t crc32;
};

struct assembling {
    struct source *source;
    struct torch_source *state;
    uint32_t file, rank;
    struct str item;            /* files are those of one item of several, whose key comes before theirs; empty: of the model */
    struct path_part *parts;    /* of a leaf in such a file */
    uint32_t part_capacity;
    struct name_map keys;       /* of tensors: number -> tensors[number] */
    struct known_tensor *tensors;
    uint32_t tensor_capacity;
    uint64_t keys_sum, first_keys_sum; /* of the model's keys in this file, and in the first one */
    bool has_keys_sum;
    bool is_staged;             /* these differ */
    struct name_map item_keys;  /* of items, whichever rank's */
    struct name_map item_paths; /* of rank 0's items, with what their parts are: number -> items[number], of the catalog */
    uint32_t *items;
    uint32_t item_capacity;
    struct name_map partials;   /* keys of tensors that would have to be added up */
    struct value **item_values; /* of this file: their storages are kept as they are */
    size_t item_count, item_value_capacity;
    bool is_one_file;           /* the group has one file, which holds the whole */
    bool is_beside;             /* items lie in files of their own beside the model */
    bool is_hidden;             /* tensors are the optimizer's: they are in its item, not in the listing */
    bool is_merged;             /* the optimizer's tensors say what part of the whole they are */
    bool is_replicated;         /* all ranks have the same plain tensors in the optimizer */
    bool is_joined;             /* it was found out what part they are (fsdp_flat.h): rank 0's file has all of them */
    struct torch_whole *merged; /* of rank 0's optimizer */
    size_t merged_count, merged_capacity, merged_seen;
    struct buffer key;
};

reshard_status fsdp_read_catalog(struct source *source, reshard_error *err);
void fsdp_close_source(struct source *source);

/* The same of groups of files ITEM_RANK.pt. */
reshard_status fsdp_read_items(struct source *source, const struct fsdp_groups *groups, uint32_t ranks, reshard_error *err);

/* fsdp_assemble.c: adds what a leaf of a file is, a piece of a tensor; *out CATALOG_NONE: it is none. The key is assembling->key. */
reshard_status fsdp_add_tensor(struct assembling *assembling, const struct torch_leaf *leaf, uint32_t *out, reshard_error *err);

/* fsdp_copies.c: once all files are in, what several ranks hold of one place must agree. */
reshard_status fsdp_copies_check(const struct assembling *assembling, reshard_error *err);

/* fsdp_ties.c: notes which of the model's tensors are tied. */
reshard_status fsdp_ties_find(struct catalog *catalog, reshard_error *err);

/* fsdp_items.c */
reshard_status fsdp_add_item(struct assembling *assembling, const struct path_part *parts, size_t part_count, struct value *value,
                             reshard_error *err);

/* Another rank's item of a key that is taken: "rank_N.KEY", whose path begins with that word too. */
reshard_status fsdp_add_own_item(struct assembling *assembling, struct str key, const struct path_part *parts, size_t part_count,
                                 struct value *value, reshard_error *err);
reshard_status fsdp_add_beside(struct assembling *assembling, enum fsdp_kind kind, const struct fsdp_file *file, reshard_error *err);

/* Whether a storage lies somewhere inside the value of this file. */
reshard_status fsdp_has_storage(const struct assembling *assembling, const struct value *value, bool *out, reshard_error *err);

/* After the file's storages were hidden: rank 0's optimizer names the whole tensors as storages. */
reshard_status fsdp_name_wholes(struct assembling *assembling, reshard_error *err);

#endif
