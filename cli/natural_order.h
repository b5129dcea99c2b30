/* SPDX-License-Identifier: Apache-2.0 */
/* The order that people expect of names: numbers in them count as numbers, layers.9 before layers.10. */
#ifndef CLI_NATURAL_ORDER_H
#define CLI_NATURAL_ORDER_H

#include "reshard/reshard.h"

/* Below, equal to or above 0. */
int natural_order(reshard_str a, reshard_str b);

#endif
