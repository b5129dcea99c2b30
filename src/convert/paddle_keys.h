/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of optimizer state as Paddle spells them. */
#ifndef CONVERT_PADDLE_KEYS_H
#define CONVERT_PADDLE_KEYS_H

#include "catalog/catalog.h"

/* Whether a key of that catalog is of state as a Flex Checkpoint or a Unified one spells it. */
bool paddle_key_is_state(const struct catalog *catalog, struct str key);

#endif
