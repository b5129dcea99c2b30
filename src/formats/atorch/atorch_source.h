/* SPDX-License-Identifier: Apache-2.0 */
/* An opened atorch folder: what lies in it, and what the driver keeps of it. */
#ifndef FORMATS_ATORCH_SOURCE_H
#define FORMATS_ATORCH_SOURCE_H

#include "encoding/safetensors_header.h"
#include "formats/atorch/atorch_model.h"
#include "formats/driver.h"

enum atorch_file_kind { ATORCH_PARAM, ATORCH_META, ATORCH_OPTIM, ATORCH_RANK_FILES, ATORCH_BUFFERS = ATORCH_RANK_FILES, ATORCH_CKPT_META,
                        ATORCH_OPTIM_META, ATORCH_BESIDE };

/* "flat_param", "flat_meta", "optim_param"; then "buffers", "ckpt_meta", "optim_meta". */
const char *atorch_file_stem(enum atorch_file_kind kind);

/* What a name in the folder is. rank and world of a rank's file: of others they are untouched. */
enum atorch_file_kind atorch_file_of(struct str name, uint64_t *rank, uint64_t *world);

/* The folder's files, proved to be of one number of ranks and, unless source_bears_loss, all there. Names are
 * relative to the store's root. */
struct atorch_folder {
    struct arena arena;
    uint32_t ranks;                               /* 0: there are no ranks' files */
    const struct store_entry **ranked[ATORCH_RANK_FILES]; /* by rank, NULL: it is missing; NULL: none of this kind */
    bool *is_lost;                                /* by rank: its flat_param or flat_meta is missing; NULL: all ranks' files are there */
    const struct store_entry *single[ATORCH_BESIDE]; /* ATORCH_BUFFERS … ATORCH_OPTIM_META; NULL: there is none */
    const struct store_entry **beside;            /* other files */
    uint32_t beside_count;
};
reshard_status atorch_folder_read(const struct source *source, struct atorch_folder *out, reshard_error *err);
void atorch_folder_release(struct atorch_folder *folder);

/* driver_state of a source. */
struct atorch_source {
    struct atorch_model model;
    uint64_t *offsets;        /* of unit u's piece in rank R's flat_param: [u * ranks + R] */
    uint32_t *flat_objects;   /* by rank: catalog object of flat_param; NULL: there are none */
    uint32_t buffer_first, buffer_count; /* catalog tensors that are buffers */
    bool is_global_known;
    int64_t global_ranks;     /* ckpt_meta's world_size */
    bool is_optimizer_flat;   /* the optimizer's state is by unit */
};

static inline struct atorch_source *atorch_source_of(const struct source *source)
{
    return source->driver_state;
}

/* Reads the header of a safetensors file of the folder and adds the object. */
reshard_status atorch_open_header(struct source *source, const struct store_entry *entry, struct st_header *out, uint32_t *object,
                                  reshard_error *err);

/* Appends the name by which expert `expert` of a unit's parameter is listed. */
void atorch_put_key(const struct atorch_unit *unit, struct str name, uint32_t expert, struct buffer *out);

/* Adds what the optimizer's files hold (atorch_optimizer.c), and the items (atorch_items.c). */
reshard_status atorch_read_optimizer(struct source *source, const struct atorch_folder *folder, reshard_error *err);
reshard_status atorch_read_items(struct source *source, const struct atorch_folder *folder, reshard_error *err);

/* driver functions */
int atorch_probe(struct store *store, const char *name, reshard_error *err);
reshard_status atorch_read_catalog(struct source *source, reshard_error *err);
reshard_status atorch_verify(struct source *source, bool is_deep, reshard_error *err);
void atorch_close_source(struct source *source);

#endif
