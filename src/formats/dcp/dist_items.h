/* SPDX-License-Identifier: Apache-2.0 */
/* Names and nesting of Megatron's items. */
#ifndef FORMATS_DCP_DIST_ITEMS_H
#define FORMATS_DCP_DIST_ITEMS_H

#include "formats/driver.h"

/* KEY of a ShardedObject's name KEY/shard_0.3_1.8: offsets, then as many extents. False if it is no such name. */
bool dist_object_key(struct str name, struct str *key);

/* Stores the leaves of a nested item one by one, each under its path. */
reshard_status dist_flatten_item(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err);

#endif
