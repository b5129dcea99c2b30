/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of one number each whose values a conversion needs itself: steps of optimizers, learning rates. */
#ifndef CONVERT_SMALL_NUMBERS_H
#define CONVERT_SMALL_NUMBERS_H

#include "convert/checkpoint.h"
#include "engine/engine.h"

#define SMALL_NUMBER_BYTES 8

/* Arrays are malloc'd. */
struct small_numbers {
    const struct catalog *catalog;
    uint32_t *tensors, count;             /* in the order in which they were noted */
    uint32_t *number_of;                  /* by tensor of the catalog: 1 + number in tensors, or 0 */
    uint8_t (*bytes)[SMALL_NUMBER_BYTES]; /* by number, as they are stored; NULL until they are read */
};

/* Borrows the catalog. Released by small_numbers_release, on failure too. */
reshard_status small_numbers_begin(struct small_numbers *numbers, const struct catalog *catalog, reshard_error *err);
void small_numbers_release(struct small_numbers *numbers);

/* Whether the tensor is stored, and is one number. */
bool small_number_is(const struct catalog *catalog, uint32_t tensor);

/* Notes such a tensor, if it is not noted yet. */
void small_numbers_note(struct small_numbers *numbers, uint32_t tensor);

/* Reads all that were noted, of the checkpoint whose catalog it is. */
reshard_status small_numbers_read(struct small_numbers *numbers, struct checkpoint *checkpoint, const struct engine_options *engine,
                                  reshard_error *err);

/* The value of one that was read, in the graph. */
reshard_status small_number_value(const struct small_numbers *numbers, uint32_t number, struct value_graph *graph, struct value **out,
                                  reshard_error *err);

#endif
