/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised optimizer states of a Unified Checkpoint (ckpt_quant_stage). Beside a state in its file lie float32 scales, which no index
 * names:
 *
 *   O1   W/moment1_0 int8, W/moment1_0@scales; W/moment2_0 uint8, W/moment2_0@min_scales, W/moment2_0@max_scales
 *   O2   W/moment2_0 int8, which is both moments of a matrix, with the same scales; the index says W/moment1_0 all the same.
 *        Vectors are float32.
 *
 * They are listed as they are stored; the view by parameter (formats/driver.h) has float32 moments.
 */
#ifndef FORMATS_PADDLE_UNIFIED_QUANTISED_H
#define FORMATS_PADDLE_UNIFIED_QUANTISED_H

#include "formats/paddle/unified.h"

#define UC_NO_SCALE UINT64_MAX

enum uc_quantised_kind { UC_MOMENT1_8, UC_MOMENT2_8, UC_MOMENT1_4, UC_MOMENT2_4 };

/* A state as a matrix of rows and columns, in which `group` rows share their scales. */
struct uc_quantised {
    struct store *store;
    const char *file;
    enum uc_quantised_kind kind;
    uint64_t rows, columns, group; /* none is 0 where there are elements */
    uint64_t offset;               /* of the stored bytes, one an element */
    uint64_t scale_offsets[2];     /* scales; or minima and maxima. [(rows + group - 1) / group][columns]; UC_NO_SCALE: there is none */
};

/* Reads a range of the bytes of the float32 values; context is a struct uc_quantised. As struct store_region wants it: any thread. */
reshard_status uc_quantised_read(void *context, uint64_t offset, void *out, size_t size, reshard_error *err);

/* Whether stages of quantisation are those that are known. */
bool uc_stage_is_known(struct str stage);

/* For sets whose index says such a stage (safetensors_set.h): which keys of the files no map has, and which of the map no file. */
bool uc_quantised_is_scale(const struct st_set *set, struct str key);
reshard_status uc_quantised_is_merged(const struct st_set *set, struct str key, bool *out, reshard_error *err);

/* The state whose scales a key is, or empty; and the first moment that a tensor of a second one holds too: its end, NULL: none. */
struct str uc_quantised_state(struct str key);
const char *uc_quantised_within(struct str key, enum dtype dtype);

/* Whether a tensor of such a set is a quantised state; and which entry of a file is the state that a scale belongs to, or NAME_NONE. */
bool uc_quantised_is_state(const struct st_set *set, struct str key, enum dtype dtype);
reshard_status uc_quantised_owner(const struct st_header *header, struct str scale, uint32_t *out, reshard_error *err);

/* What a weight's states have in common: the part of a key before its '/'. */
struct str uc_weight_of(struct str key);

reshard_status uc_view_by_parameter(struct source *view, reshard_error *err);
void uc_close(struct source *source);

#endif
