/* SPDX-License-Identifier: Apache-2.0 */
/* The folders of the ranks: what they are called, and which there must be. */
#ifndef FORMATS_MEGATRON_MEGATRON_FILES_H
#define FORMATS_MEGATRON_MEGATRON_FILES_H

#include "parallel/partition_cut.h"
#include "parallel/partition_gates.h"
#include "store/store.h"

#define MEGATRON_MODEL_FILE "model_optim_rng.pt"
#define MEGATRON_OLD_MODEL_FILE "model_rng.pt"
#define MEGATRON_OPTIMIZER_FILE "distrib_optim.pt"

/* A folder mp_rank_TT[_AAA[_BBB]]. */
struct rank_folder {
    struct str name;       /* "mp_rank_00_001" */
    int64_t numbers[3];
    int number_count;
};

/* Whether a base name is one. The name is not copied. */
bool rank_folder_parse(struct str base, struct rank_folder *out);

/* The name of a place's folder under a layout; in arena, NULL without memory. */
char *rank_folder_name(struct arena *arena, const struct parallel_layout *layout, const struct rank_place *place);

/*
 * Places whose files there are. With etp = tp that is the whole grid of TP and EP for every stage, else a part of it. A run writes those
 * that come first among the ranks with the same dense or the same expert weights; a rank that resumes opens the file of its own place, so
 * for is_for_all there are those of all ranks of the least world. Calls emit for each with its global rank, until one fails. UNSUPPORTED if
 * two ranks with different weights would share a folder.
 */
typedef reshard_status (*rank_sink)(const struct rank_place *place, int64_t global_rank, void *context, reshard_error *err);
reshard_status rank_places(const struct parallel_layout *layout, bool is_for_all, rank_sink emit, void *context, reshard_error *err);

/* Ranks that the layout needs at least. */
int64_t least_world(const struct parallel_layout *layout);

/* A place from the numbers of a folder; false if the numbers do not fit the layout. */
bool rank_folder_place(const struct rank_folder *folder, const struct parallel_layout *layout, struct rank_place *out);

#endif
