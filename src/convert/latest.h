/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the newest checkpoint below a root that opens and verifies. */
#ifndef CONVERT_LATEST_H
#define CONVERT_LATEST_H

#include "convert/verify.h"

/* *path is malloc'd. RESHARD_DIFFERS if none verifies: findings say why each was rejected. */
reshard_status latest_good(const char *root, const struct checkpoint_options *options, const struct verify_options *verify,
                           const struct engine_options *engine, struct finding_sink *findings, char **path, reshard_error *err);

#endif
