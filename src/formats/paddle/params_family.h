/* SPDX-License-Identifier: Apache-2.0 */
/* The files that the ranks of a run wrote, while they are put together. */
#ifndef FORMATS_PADDLE_PARAMS_FAMILY_H
#define FORMATS_PADDLE_PARAMS_FAMILY_H

#include "formats/paddle/master_weights.h"
#include "formats/paddle/params_forms.h"
#include "parallel/partition_rules.h"

enum family_role { FAMILY_MODEL, FAMILY_OPTIMIZER, FAMILY_MASTER };

/* Numbers in a file's name; -1 where it says none. is_spread: that of expert parallelism counts all ranks of a stage, tensor-parallel ones
 * first (PaddleFormers); else it is that of data parallelism. */
struct family_ranks {
    int32_t tp, pp, ep, shard;
    bool is_spread;
};

/* Whether a text is the numbers of a rank, as tp00_pp01. */
bool family_read_ranks(struct str text, struct family_ranks *out);

/* Numbers of the experts that a rank has in a module. */
struct family_experts {
    uint64_t first, end;
};

struct family_file {
    struct str name;           /* relative to the store's root, NUL-terminated */
    enum family_role role;
    struct family_ranks ranks;
    int32_t part, part_count;  /* its number, from 1 on, in a set of numbered files; 0: it is whole */
    uint32_t file;             /* of the source */
    uint32_t table;            /* FAMILY_MODEL: of its rank's experts */
    bool has_slices_alone;     /* states of one rank of sharding stage 3, without those of the others */
    bool has_own_items;        /* other values than an earlier file has: they stand under this one's name */
};

/* Whether a file of this name belongs to a family, and what the name says. is_group: the folder is one of save_group_sharded_model, whose
 * files are model.pdmodel and model.pdopt. */
bool family_read_name(struct str base, bool is_group, struct family_file *out);

/* Which parameters a rank means by the framework's names. */
struct family_table {
    struct family_ranks ranks;
    const struct family_file *file; /* of weights; NULL: model_meta.json says it */
    const struct value *names; /* "structure_name_mapping" of model_meta.json; else NULL */
    struct name_map facts;     /* keys of its "param_meta" */
    const struct value **fact_of; /* by number in facts */
    struct name_map statics;   /* the framework's names */
    struct str *keys;          /* by number in statics: the structured name, with the rank's own numbers of experts */
    struct name_map modules;   /* of experts, where a rank has its own: the key up to the number */
    struct family_experts *experts_of; /* by number in modules */
};

/* What one file holds of a logical tensor. */
struct family_piece {
    uint32_t file;   /* in the family */
    uint32_t tensor; /* of that file's archive */
    uint32_t next;   /* of the same key; CATALOG_NONE */
};

/* What model_meta.json says of a parameter. */
struct family_told {
    struct paddle_tensor local; /* what a rank has of it: rank and shape alone */
    bool is_cut;                /* by tensor parallelism */
};

/* Whether tensor-parallel ranks have parts of a parameter that models/paddle.rules would cut. */
enum family_held { FAMILY_HELD_UNASKED, FAMILY_HELD_CUT, FAMILY_HELD_WHOLE };

struct family_key {
    enum family_held held;
    uint32_t first, last; /* pieces, in the order of the files */
    const struct family_told *told; /* NULL: nothing */
    uint32_t parameter;   /* key of the parameter that it is a state of; CATALOG_NONE: it is none */
    bool is_scalar;       /* a state with one number for the whole parameter */
    bool is_stray;        /* a state that has the framework's name */
    bool is_sliced;       /* a parameter whose states are slices of it when flattened, whatever their shapes: sharding stage 3 says so */
};

struct family {
    struct source *source;
    struct arena arena;
    struct family_file *files; /* by role, then ranks */
    uint32_t file_count;
    uint32_t tp;               /* ranks */
    uint32_t told_tp;          /* as config.json says; 0: it does not */
    bool spreads_experts;      /* over all ranks of a stage, which have whole ones */
    uint32_t whole_count, first_whole; /* parameters that are the same on all tensor-parallel ranks, against the rules; one's key */
    struct family_table *tables; /* those of model_meta.json, then one for each file of weights */
    uint32_t table_count, table_capacity;
    struct value_graph meta;   /* model_meta.json */
    struct master_alias *aliases; /* of tied weights that are there as master weights */
    uint32_t alias_count, alias_capacity;
    bool has_stages, has_experts; /* files of several pipeline stages, or of several ranks of expert parallelism */
    bool is_group;             /* of save_group_sharded_model */
    bool has_slices;           /* sharding stage 3 has cut some parameter */
    struct str *indexes;       /* names of files that say which weights there are */
    uint32_t index_count;
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

/* ---- params_parts.c ---- */

/* Whether a file beside those of the family is an index of its weights. */
bool family_is_index(struct str base);

/* How many tensor-parallel ranks there were, as a config.json beside the files says. */
bool family_is_config(struct str base);
reshard_status family_read_config(struct family *family, struct str name, reshard_error *err);

/* That no numbered file is missing, and, once all files are read, no tensor that an index names: what is missing is damage where losses
 * are borne. */
reshard_status family_check_parts(const struct family *family, reshard_error *err);
reshard_status family_check_indexes(const struct family *family, reshard_error *err);

/* ---- params_tables.c ---- */

/* Whether a file beside those of the family has tables of names, and reads them: what cannot be read says none, with a warning. */
bool family_is_meta(struct str base);
reshard_status family_read_meta(struct family *family, struct str name, reshard_error *err);

/* The table of an open file of weights. */
reshard_status family_note_names(struct family *family, struct family_file *file, reshard_error *err);
void family_release_tables(struct family *family);

/* Beside sharding the trainer's files of weights say whose experts they have, those of states do not, and where the weights are shared like
 * the states no file does: the ranks take the places of expert parallelism in turn, the tensor-parallel ones of a sharding rank first. */
void family_find_expert_ranks(struct family *family);

/* Appends the structured name of a weight of the file, with the expert's number in the model. */
bool family_append_key(const struct family *family, const struct family_file *file, struct str key, struct buffer *out);

/* Appends the structured name that the framework's name has on this rank; false if no table of the rank has it. */
bool family_append_structured(const struct family *family, const struct family_file *file, struct str name, struct buffer *out);

/* Whether it is the name of a parameter that stage 3 cuts, and whether a file has states of one. */
bool family_is_slice(struct str name);
bool family_has_slices(const struct family *family, const struct family_file *file);

static inline const struct paddle_archive *family_archive(const struct family *family, const struct family_file *file)
{
    return &params_source_of(family->source)->files[file->file].archive;
}

/* The number of a key, which is new unless it is known. */
reshard_status family_intern(struct family *family, struct str text, uint32_t *out, reshard_error *err);

/* Makes keys of all parameters that model_meta.json tells of, and notes which of them are one. */
reshard_status family_note_told(struct family *family, reshard_error *err);

/* ---- params_merge.c ---- */

/* The tensor behind a piece. */
const struct paddle_tensor *family_tensor(const struct family *family, uint32_t piece);

/* Tensors of the catalog out of the pieces of all keys of a kind. */
enum family_kind { FAMILY_WEIGHTS, FAMILY_STATES, FAMILY_STRAYS };
reshard_status family_merge(struct family *family, enum family_kind kind, reshard_error *err);

#endif
