/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CATALOG_CATALOG_EXPANSION_H
#define CATALOG_CATALOG_EXPANSION_H

#include "catalog/catalog.h"

/* Refuses tensors that show more than limits.tensor_expansion bytes beyond what the files hold, all together. Chunks are grouped by tensor.
 */
reshard_status catalog_check_expansion(const struct catalog *catalog, reshard_error *err);

#endif
