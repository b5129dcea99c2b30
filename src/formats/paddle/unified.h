/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's Unified Checkpoint: safetensors files of whole tensors in up to four families, each with an index.
 *
 *   model-00001-of-00002.safetensors …           weights                          model.safetensors.index.json
 *   peft_model-00001-of-00002.safetensors …      weights of a LoRA                peft_model.safetensors.index.json
 *   optimizer-00001-of-00002.safetensors …       states, KEY/moment1_0            optimizer.safetensors.index.json
 *   master_weights-00001-of-00002.safetensors …  float32 copies of the weights    master_weights.safetensors.index.json
 *
 * A family may be one file STEM.safetensors. The index of the optimizer also has "master_weights", "quant_ckpt_resume_times" and, where
 * states are quantised, "ckpt_quant_stage". Keys are listed with the family before them: "optimizer:KEY/moment1_0".
 *
 * Modes of the trainer: skip_save_model_weight has the master weights under the names of the model and no other weights;
 * remove_master_weight has no master weights; ignore_merge_optimizer has optimizer.tp00_shard01.safetensors, what each rank had.
 */
#ifndef FORMATS_PADDLE_UNIFIED_H
#define FORMATS_PADDLE_UNIFIED_H

#include "formats/driver.h"
#include "formats/shared/safetensors_set.h"

enum uc_family { UC_MODEL, UC_PEFT, UC_OPTIMIZER, UC_MASTERS, UC_FAMILIES };
extern const char *const uc_stems[UC_FAMILIES]; /* of files, and of keys */

/* A file that belongs to one rank: optimizer.tp00_pp00_shard00.safetensors, or a part of it, ….safetensors_shard_0001. */
struct uc_ranked {
    struct str name; /* relative to the store's root, NUL-terminated */
    uint32_t tp, pp, shard, moe; /* 0 where the name says none */
};

struct uc_members {
    struct str index, single; /* empty: there is none */
    struct str *numbered;     /* sorted */
    struct uc_ranked *ranked; /* in the order of their ranks */
    size_t numbered_count, ranked_count;
};

/* Which files of a folder are which family's, by names alone. Everything lives in the arena. */
struct uc_folder {
    struct str directory; /* with its '/', or empty */
    struct uc_members families[UC_FAMILIES];
    struct store_entry *entries;
    size_t entry_count;
};
reshard_status uc_folder_scan(struct store *store, const char *name, struct arena *arena, struct uc_folder *out, reshard_error *err);
bool uc_family_is_there(const struct uc_folder *folder, enum uc_family family);

/* Whether a file of the trainer is carried along. */
bool uc_is_side_file(struct str base);

/* What a source remembers about itself, for targets that shall look like it. Lives in the catalog's arena. */
struct uc_state {
    struct str directory;
    bool has[UC_FAMILIES], is_indexed[UC_FAMILIES];
    uint32_t files[UC_FAMILIES];
    struct str quant_stage; /* what the index of the optimizer says: ckpt_quant_stage, or empty */
    int64_t resume_times;   /* quant_ckpt_resume_times */
    bool had_masters;       /* master_weights */
};

struct uc_read {
    struct source *source;
    struct arena arena;
    struct uc_folder folder;
    struct st_set sets[UC_FAMILIES];
    uint32_t files[UC_FAMILIES]; /* as their names count them, those without a tensor too */
    struct buffer key;
    bool renumbered; /* experts of some layer have got other numbers */
};

/* The number of a file, from 0 on, as its name says it, else the given one; *count is made larger than it, and as large as the name
 * says. */
uint16_t uc_file_number(struct str name, uint32_t index, uint32_t *count);

/* Adds the tensor of an entry under the family's prefix and the given name, and its bytes. */
reshard_status uc_add_tensor(struct uc_read *read, enum uc_family family, const struct st_file *file, uint32_t file_index,
                             uint32_t entry_index, struct str name, reshard_error *err);

/*
 * The tensors of a family whose files hold whole ones. Experts are numbered by each expert-parallel rank from 0 on, so a key may be in
 * several files with different bytes: that is refused, or with `lenient` they get the numbers that they have in the model.
 */
reshard_status uc_add_whole(struct uc_read *read, enum uc_family family, reshard_error *err);

/* The tensors of a family whose files hold what each rank had: pieces of the model's tensors, which are in the catalog. */
reshard_status uc_add_ranked(struct uc_read *read, enum uc_family family, reshard_error *err);

reshard_status uc_read_catalog(struct source *source, reshard_error *err);
reshard_status uc_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

#endif
