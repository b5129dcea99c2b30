/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns where what is written is not the model that the config.json beside it speaks of: exports that are silently incomplete are found by
 * whoever loads them. Nothing is said where the model's family is not known.
 */
#ifndef CONVERT_MODEL_CHECK_H
#define CONVERT_MODEL_CHECK_H

#include "convert/conversion.h"

/* Adds at most one warning of each kind to conversion->warnings. The target is laid out. */
reshard_status model_check(struct conversion *conversion, reshard_error *err);

#endif
