/* SPDX-License-Identifier: Apache-2.0 */
/* State of a safetensors target between lay_out and publish: the texts to be written, and the side files to be copied. */
#ifndef FORMATS_SAFETENSORS_TARGET_H
#define FORMATS_SAFETENSORS_TARGET_H

#include "formats/driver.h"
#include "formats/shared/safetensors_pieces.h"

struct st_target;

struct st_target *st_target_new(void); /* NULL: no memory */
void st_target_free(struct st_target *state);

/* Adds a file of pieces to the target's catalog, its chunks and its head. pieces are sorted. */
reshard_status st_target_add_file(struct target *target, struct str name, struct st_piece *pieces, uint32_t count,
                                  const struct st_metadata *metadata, const struct limits *limits, reshard_error *err);

/* Adds a file that is nothing but this text, which is taken over: an index, or what else is of the target as a whole. */
reshard_status st_target_add_text(struct target *target, struct str name, struct buffer *text, reshard_error *err);

/* Adds a copy of an object of the source. */
reshard_status st_target_add_copy(struct target *target, struct str name, const struct source *source, uint32_t source_object,
                                  reshard_error *err);

/* The driver's publish_object, commit and close_target. */
reshard_status st_target_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status st_target_commit(const struct publish_job *job, reshard_error *err);
void st_target_close(struct target *target);

#endif
