/* SPDX-License-Identifier: Apache-2.0 */
/* The files that the ranks of a run wrote, while they are put together. */
#ifndef FORMATS_PADDLE_PARAMS_FAMILY_H
#define FORMATS_PADDLE_PARAMS_FAMILY_H

#include "formats/paddle/params_forms.h"
#include "parallel/partition_rules.h"

enum family_role { FAMILY_MODEL, FAMILY_OPTIMIZER, FAMILY_MASTER };

/* Numbers in a file's name; -1 where it says none. */
struct family_ranks {
    int32_t tp, pp, ep, shard;
};

/* Whether a file of this name belongs to a family. */
bool family_read_name(struct str base, enum family_role *role, struct family_ranks *ranks);

/* Numbers of the experts that a rank has in a module. */
struct family_experts {
    uint64_t first, end;
};

struct family_file {
    struct str name;           /* relative to the store's root, NUL-terminated */
    enum family_role role;
    struct family_ranks ranks;
    uint32_t file;             /* of the source */
    struct name_map statics;   /* FAMILY_MODEL: the framework's names */
    uint32_t *entry_of;        /* by number in statics: the archive's entry */
    struct name_map modules;   /* of experts, where a file has one rank's: the key up to the number */
    struct family_experts *experts_of; /* by number in modules */
    bool has_own_items;        /* other values than an earlier file has: they stand under this one's name */
};

/* What one file holds of a logical tensor. */
struct family_piece {
    uint32_t file;   /* in the family */
    uint32_t tensor; /* of that file's archive */
    uint32_t next;   /* of the same key; CATALOG_NONE */
};

struct family_key {
    uint32_t first, last; /* pieces, in the order of the files */
    uint32_t parameter;   /* key of the parameter that it is a state of; CATALOG_NONE: it is none */
    bool is_scalar;       /* a state with one number for the whole parameter */
    bool is_sliced;       /* a parameter whose states are slices of it when flattened, whatever their shapes: sharding stage 3 says so */
};

struct family {
    struct source *source;
    struct arena arena;
    struct family_file *files; /* by role, then ranks */
    uint32_t file_count;
    uint32_t tp;               /* ranks */
    bool has_slices;           /* sharding stage 3 has cut some parameter */
    struct name_map keys;
    struct family_key *key_list;
    struct family_piece *pieces;
    uint32_t key_capacity, piece_count, piece_capacity, stray_count;
    struct name_map item_keys; /* of the catalog's first `indexed` items */
    uint32_t *item_of;         /* by number in item_keys: the first item of that key */
    uint32_t item_capacity, indexed;
    struct partition_rules rules;
    struct params_forms forms; /* of items */
};

/* The tensor behind a piece. */
const struct paddle_tensor *family_tensor(const struct family *family, uint32_t piece);

/* Tensors of the catalog out of all pieces (params_merge.c). */
reshard_status family_merge(struct family *family, reshard_error *err);

#endif
