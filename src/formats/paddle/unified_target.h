/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing half of paddle-uc shares. */
#ifndef FORMATS_PADDLE_UNIFIED_TARGET_H
#define FORMATS_PADDLE_UNIFIED_TARGET_H

#include "formats/paddle/flex_target.h"
#include "formats/paddle/unified.h"
#include "formats/shared/safetensors_pieces.h"

/* Weights and their float32 copies are written; the copies alone, under the names of the weights; the weights alone. */
enum uc_mode { UC_MODE_WHOLE, UC_MODE_SKIP, UC_MODE_REMOVE };

/* Pieces that are left out since the trainer makes them of others. */
struct uc_leaving {
    struct target *target;
    const struct catalog *wanted;
    const struct name_map *others;
    const char *mode, *what;
    bool may_stay; /* a float32 one that no other is for */
};

extern const struct format_option uc_options[];
reshard_status uc_mode_read(const struct layout_request *request, enum uc_mode *out, reshard_error *err);

/* Takes out of the families (by uc_family) what the mode leaves out, noted as dropped, and gives the master weights their place. */
reshard_status uc_mode_apply(enum uc_mode mode, const struct layout_request *request, struct target *target, struct st_pieces *families,
                             reshard_error *err);

/* ---- unified_place.c ---- */

extern const struct layout_word uc_words[];

/* Where the words of a layout put tensors; is_asked: there are some beyond the number of files. */
struct uc_placing {
    bool is_asked;
    struct catalog *renamed;    /* the tensors under the keys of a Flex Checkpoint */
    struct name_map names;      /* of them */
    uint32_t *renamed_of;       /* by wanted tensor */
    uint32_t *positions;        /* by renamed tensor: in the order in which the trainer has them */
    struct flex_cutting cutting; /* its tp is 1 where that does not matter */
    uint32_t tp;
    struct arena arena;
};

/* families: by uc_family, before any mode is applied. Release it whatever comes back. */
reshard_status uc_placing_make(const struct layout_request *request, const struct st_pieces *families, struct uc_placing *out,
                               reshard_error *err);
void uc_placing_release(struct uc_placing *placing);

/* Sets the files of a family's pieces; is_state: states, or master weights. Returns how many files there are. */
uint32_t uc_placing_assign(struct uc_placing *placing, struct st_pieces *pieces, bool is_state);

/* Puts pieces in the order of their files, and in each in that of the trainer. */
void uc_placing_sort(struct uc_placing *placing, struct st_pieces *pieces);

/* Deals pieces over some files, first, first + 1, …, by their bytes, as the trainer does over the ranks of tensor parallelism. */
void uc_deal(struct st_piece *pieces, uint32_t count, uint32_t files, uint32_t first);

#endif
