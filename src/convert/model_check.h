/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns where what is written, or what gets other names, is not the model that the config.json beside it speaks of: conversions that are
 * silently incomplete are found by whoever loads them. Nothing is said where the model's family is not known.
 */
#ifndef CONVERT_MODEL_CHECK_H
#define CONVERT_MODEL_CHECK_H

#include "convert/conversion.h"

/* Adds at most one warning of each kind to conversion->warnings. The target is laid out. */
reshard_status model_check(struct conversion *conversion, reshard_error *err);

/* The same of a model whose names are to change; context: the conversion. Other shapes than config.json says are an error: with its numbers
 * of heads the weights would be put together wrongly. */
reshard_status model_check_source(void *context, const struct map_space *model, const struct mapping_options *numbers, reshard_error *err);

/* Warns of an output layer that config.json ties to the embedding, so that it stays behind, though the two are not the same. */
reshard_status model_check_tied(struct conversion *conversion, reshard_error *err);

#endif
