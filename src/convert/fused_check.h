/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warns of fused weights that change the number of their parts. Ranks that share one hold [Q | K | V] or [gate | up] each, so that the
 * whole is those one after the other: cut in another number of parts it is another weight, unless a mapping takes it apart.
 */
#ifndef CONVERT_FUSED_CHECK_H
#define CONVERT_FUSED_CHECK_H

#include "convert/conversion.h"

/* Adds a warning to conversion->warnings for each name of a fused weight, whatever layers it is in. */
reshard_status fused_check(struct conversion *conversion, reshard_error *err);

#endif
