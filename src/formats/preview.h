/* SPDX-License-Identifier: Apache-2.0 */
/* A laid-out target as a source to look at: tensors, chunks and files, before any of them is written. Nothing can be read from it. */
#ifndef FORMATS_PREVIEW_H
#define FORMATS_PREVIEW_H

#include "formats/driver.h"

/* target is sealed; all that is kept of it is copied. */
reshard_status preview_source_open(const struct target *target, const struct open_options *options, struct source **out,
                                   reshard_error *err);

/* RESHARD_ERR_UNSUPPORTED: the source is one of these, and has no values to read. */
reshard_status preview_refuse(const struct source *source, reshard_error *err);

#endif
