/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns of small floats that become wider ones while scales lie beside them: KEY_scale_inv or KEY_scale, by which each block of the stored
 * values is to be multiplied. A cast knows of one tensor, so the values are those that are stored, not those of the model.
 */
#ifndef CONVERT_SCALE_CHECK_H
#define CONVERT_SCALE_CHECK_H

#include "convert/conversion.h"

/* Adds one warning to conversion->warnings for all such tensors, of which it names the first. */
reshard_status scale_check(struct conversion *conversion, reshard_error *err);

#endif
