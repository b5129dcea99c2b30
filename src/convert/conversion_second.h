/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the source lacks, out of another checkpoint (reshard_convert_options.missing as a path). Layouts and items are of the source
 * alone; what is read is the catalog of both: the source's tensors under their numbers, then those that were borrowed, and a store in which
 * the second one's files have a prefix.
 */
#ifndef CONVERT_CONVERSION_SECOND_H
#define CONVERT_CONVERSION_SECOND_H

#include "convert/conversion.h"

/* Opens the second checkpoint, if the options name one, in the view in which the source is. */
reshard_status second_open(struct conversion *conversion, reshard_error *err);

/* Makes the catalog and the store of both, where tensors were borrowed. is_run: also finds all their payload. */
reshard_status second_join(struct conversion *conversion, bool is_run, reshard_error *err);
void second_release(struct conversion *conversion);

/* What the recipes' tensors are counted in, and what the engine reads. */
const struct catalog *conversion_read_catalog(const struct conversion *conversion);
struct engine_source conversion_engine_source(const struct conversion *conversion);

#endif
