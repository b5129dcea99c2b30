/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of a damaged checkpoint: which of its tensors and items are there, which are proved, and where its bad bytes lie. What has
 * been found of the checkpoint as it is stored is carried over, by place, to the view of it that is written.
 */
#ifndef CONVERT_SALVAGE_REMAINS_H
#define CONVERT_SALVAGE_REMAINS_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/salvage_replicas.h"
#include "convert/sidecar.h"

enum { IS_THERE, IS_LOST, IS_LEFT_OUT /* nobody asked for it */ };

/* Arrays are by number in the checkpoint's catalog. Reasons are kept in the arena. */
struct remains {
    struct checkpoint *checkpoint;
    struct arena arena;
    uint8_t *tensors, *items;               /* IS_THERE … */
    const char **tensor_reasons, **item_reasons; /* why it is lost, or why a copy stands in for a piece of it; else NULL */
    bool *is_proved_tensor, *is_proved_item;  /* a checksum covers all of it and agrees */
    struct catalog_span *spans;             /* by chunk: where it lies, also when it is lost */
    struct bad_chunks bad;
    struct sidecar_cover cover;
    bool has_view;                          /* it is written as a view of it, whose tensors may have other pieces of what is lost here */
};

reshard_status remains_begin(struct remains *remains, struct checkpoint *checkpoint, reshard_error *err);
void remains_release(struct remains *remains);

/* Nobody reads the tensor's bytes any more. */
void remains_close(struct remains *remains, uint32_t tensor);

/* It is lost: for lack of pieces, or with all that it has. Of several reasons the first counts. */
reshard_status remains_lose(struct remains *remains, uint32_t tensor, const char *why, reshard_error *err);
reshard_status remains_lose_all(struct remains *remains, uint32_t tensor, const char *why, reshard_error *err);
reshard_status remains_lose_item(struct remains *remains, uint32_t item, const char *why, reshard_error *err);

/* Copies stand in for bad chunks, or the tensor is lost. */
reshard_status remains_settle(struct remains *remains, uint32_t tensor, reshard_error *err);

/* The same where nobody has a piece of it. */
reshard_status remains_settle_holes(struct remains *remains, uint32_t tensor, reshard_error *err);

/* Fills view, begun with a view by parameter of stored's checkpoint that was made before anything was found: what has bytes where stored's
 * are bad is lost unless a copy stands in; proved is what has none where they are unproved. */
reshard_status remains_carry(const struct remains *stored, struct remains *view, reshard_error *err);

/* "lost" and "replaced" of each tensor that people see. */
void remains_tell(const struct remains *remains, struct finding_sink *findings);

#endif
