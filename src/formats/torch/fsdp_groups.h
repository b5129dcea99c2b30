/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which files of a directory belong together: names that differ in their rank only ("model_world_size_4_rank_0.pt",
 * "pytorch_model_fsdp_0_rank1.bin") are one group, with a file for every rank. One group is the model; optimizer and extra state come
 * beside it. accelerate's full state dicts ("pytorch_model_fsdp.bin", "optimizer.bin") are groups of one file.
 */
#ifndef FORMATS_TORCH_FSDP_GROUPS_H
#define FORMATS_TORCH_FSDP_GROUPS_H

#include "store/store.h"

enum fsdp_kind { FSDP_MODEL, FSDP_OTHER, FSDP_OPTIMIZER, FSDP_EXTRA };

struct fsdp_file {
    struct str name;   /* in the store */
    struct str prefix; /* base name up to "rank"; all of it before the extension where no rank is said */
    struct str extension;
    uint32_t rank;
};

struct fsdp_group {
    const struct fsdp_file *files; /* by rank, 0 … count - 1 */
    uint32_t count;
    uint32_t world; /* ranks that there are files of, or should be */
};

struct fsdp_groups {
    struct arena arena;
    struct fsdp_group *groups; /* the model first, then by name */
    uint32_t count;
};

/* Whether a base name is one rank's. The parts point into name. */
bool fsdp_file_parse(struct str name, struct fsdp_file *out);

/* Whether it is ITEM_RANK.pt, as torch_checkpointing names files; the prefix is ITEM. */
bool fsdp_item_file_parse(struct str name, struct fsdp_file *out);

/* Whether it is one of accelerate's models, and which of those that the run prepared. */
bool fsdp_model_number(const struct fsdp_file *file, uint32_t *out);

/* What a file's name says it holds. */
enum fsdp_kind fsdp_file_kind(const struct fsdp_file *file);

/* The folder with the files of ranks that a name means: itself, a file as it is, or in the folder of a verl step the one of its model
 * ("actor"; of others there, "critic", *other says one). In the arena; NULL without memory. */
char *fsdp_folder_find(struct store *store, const char *name, struct arena *arena, const char **other, reshard_error *err);

/* The groups of a directory, of accelerate's models those of the first; with a file name, only its group. *model_count is 0 if there is
 * none: no error. Missing and surplus ranks, and a left-over file of another world size, are errors. may_lack: files of ranks may be
 * missing. */
reshard_status fsdp_groups_find(struct store *store, const char *name, bool may_lack, struct fsdp_groups *out, reshard_error *err);

/* The same of files ITEM_RANK.pt in a directory, a group for each item, for so many ranks. */
reshard_status fsdp_item_groups_find(struct store *store, const char *directory, uint32_t world, bool may_lack, struct fsdp_groups *out,
                                     reshard_error *err);
void fsdp_groups_release(struct fsdp_groups *groups);

#endif
