/* SPDX-License-Identifier: Apache-2.0 */
/* Padding of the vocabulary, which only some frameworks have among their weights, is left behind. */
#ifndef NAMES_MAPPING_TRIM_H
#define NAMES_MAPPING_TRIM_H

#include "names/model_settings.h"

/* The weights that have a row for each token, and states with as many rows that belong to them, keep the first `rows` of them. */
reshard_status mapping_trim(struct mapping_stage **stage, const struct model_settings *settings, int64_t rows, reshard_error *err);

#endif
