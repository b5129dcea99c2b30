/* SPDX-License-Identifier: Apache-2.0 */
/* Keeping the paths of tensors and items in a catalog under construction. */
#ifndef CATALOG_CATALOG_PATH_H
#define CATALOG_CATALOG_PATH_H

#include "catalog/catalog.h"

/* Copies the parts; key, which must live as long as the catalog, lends its bytes to the parts that it spells. No parts: CATALOG_NONE. */
reshard_status path_add(struct catalog *catalog, struct str key, const struct path_part *parts, size_t count, uint32_t *out,
                        uint16_t *out_count, reshard_error *err);

#endif
