/* SPDX-License-Identifier: Apache-2.0 */
/* Names of weights that are several matrices in one, whose parts ranks cut one by one: q, k and v; gate and up. */
#ifndef PARALLEL_FUSED_NAMES_H
#define PARALLEL_FUSED_NAMES_H

#include "base/str.h"

/* Whether the name of a weight, or of a state of it, looks so. */
bool fused_name_is(struct str name);

#endif
