/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of paddle.save as a checkpoint: one .pdparams, .pdopt or tensor, a folder of them, or what the ranks of a training run wrote.
 *
 *   model_state.pdparams   optimizer.pdopt   master_weights.pdparams         one rank, or ranks that all hold the same
 *   model_state.tp00_pp01.pdparams   optimizer.tp00_pp01_shard00.pdopt …     a file a rank; '_' may stand for the '.' before them
 *
 * A folder of such rank files is one logical checkpoint (params_family.c): parameters under their structured names, states as
 * NAME.moment1_0, master weights as NAME.w_0. In any other folder each file's name stands before the keys.
 */
#ifndef FORMATS_PADDLE_PARAMS_H
#define FORMATS_PADDLE_PARAMS_H

#include "encoding/paddle_save.h"
#include "formats/driver.h"

/* One opened file. Its graph belongs to the catalog; the bytes that the graph points into stay here. */
struct params_file {
    struct paddle_archive archive;
    struct value_graph *graph; /* NULL: a binary tensor */
    uint32_t object;
    uint32_t *listed;          /* by archive tensor: 1 + the first catalog tensor that is it */
};

/* driver_state of a source. */
struct params_source {
    struct params_file *files;
    uint32_t file_count, file_capacity;
    uint64_t bfloat16_count; /* uint16 arrays that are listed as BF16 */
};

struct params_source *params_source_of(const struct source *source);
void params_close_source(struct source *source);

/* Opens the file `name` of the store as the next file and gives its graph to the catalog. */
reshard_status params_open_file(struct source *source, const char *name, uint32_t *out, reshard_error *err);

/* All that a file holds: tensors and plain values by their paths, which begin with prefix (NULL: nothing). */
reshard_status params_add_file(struct source *source, uint32_t file, const char *prefix, reshard_error *err);

/* Arrays that stand inside of the items from first_item on (in objects, sets), all of one file, become parts of these items. */
reshard_status params_load_values(struct source *source, uint32_t file, uint32_t first_item, reshard_error *err);

/* Paddle has no tensors of more axes: such arrays stay with NumPy. */
#define PARAMS_RANK_MAX 9

/* What paddle.load makes of the elements. */
enum dtype params_dtype(const struct paddle_tensor *tensor);

/* Where the elements of an archive tensor belong in a catalog tensor. */
struct params_place {
    uint32_t tensor, file, archive_tensor;
    const int64_t *start, *extent; /* a box; start NULL: the whole */
    int64_t flat_begin, flat_count; /* a run of the box, of which the first elements are stored; flat_count -1: all of it */
};
reshard_status params_add_chunks(struct source *source, const struct params_place *place, reshard_error *err);

/* Facts about the files that are open, and what is odd about them. */
reshard_status params_add_facts(struct source *source, reshard_error *err);

/* A folder that ranks wrote; *is_family false: it is none. */
reshard_status params_read_family(struct source *source, bool *is_family, reshard_error *err);

/* What the names in a folder say. */
enum params_folder_kind { PARAMS_NO_FOLDER, PARAMS_FOLDER_OF_FILES, PARAMS_FOLDER_OF_RANKS };
reshard_status params_look_at_folder(struct store *store, const char *name, enum params_folder_kind *out, reshard_error *err);

/* .pdparams, .pdopt, .pdtensor, .pdstates … */
bool params_is_name(struct str name);

/* Whether a file of a folder is read: one of these, or a .pdmodel that is a state dict (save_group_sharded_model), where others of that
 * name are programs for inference. *is_left_out: it is such a one, to be warned of. */
bool params_is_taken(struct store *store, const struct store_entry *entry, bool *is_left_out);
void params_warn_left_out(struct source *source, struct str name);

reshard_status params_verify(struct source *source, bool is_deep, reshard_error *err);

#endif
