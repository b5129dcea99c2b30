/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs pad the vocabulary to a multiple of a unit and TP, so a run with another TP may have other padding, and refuses files with other
 * rows. How many tokens there are is said by few tokenizers only. But the rows of the source are padded from at least so many and at most
 * so many, and often all of them are padded alike.
 */
#ifndef PARALLEL_VOCABULARY_H
#define PARALLEL_VOCABULARY_H

#include "parallel/training_args.h"

/* The rows that a run with another TP pads the vocabulary to: at least and at most so many. False if it cannot be told, or the source is
 * not padded so. */
bool padded_vocabulary_rows(const struct training_args *args, int64_t tp, int64_t *least, int64_t *most);

#endif
