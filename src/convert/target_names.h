/* SPDX-License-Identifier: Apache-2.0 */
/* The names under which a target has what is wanted: the wanted ones, and those of the target's own spelling of optimizer state. */
#ifndef CONVERT_TARGET_NAMES_H
#define CONVERT_TARGET_NAMES_H

#include "base/name_map.h"
#include "convert/selection.h"

/* Adds them to *out, which the caller releases, on failure too. */
reshard_status target_names_add(const struct selection *selection, const struct catalog *source, const struct selection_options *options,
                                struct name_map *out, reshard_error *err);

#endif
