/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a conversion may not destroy: its source, and what is no checkpoint. Without overwrite nothing is replaced. With it only an empty
 * folder or file, a file of a known format, and a folder that is a checkpoint and holds nothing else.
 */
#ifndef CONVERT_TARGET_CHECK_H
#define CONVERT_TARGET_CHECK_H

#include "convert/conversion.h"

/* That the target is not the source, nor in it, nor around it, and that nothing is there unless overwrite is asked for. */
reshard_status target_check_source(const struct checkpoint *source, const char *target_path, bool overwrite, reshard_error *err);

/* That what is there may be replaced by what the conversion is about to write. Stores of callers look for themselves. */
reshard_status target_check_replaced(const struct conversion *conversion, const char *target_path, reshard_error *err);

/* That what is there is nothing, empty, or a checkpoint: what can be said before there is a conversion. */
reshard_status target_check_known(const char *target_path, reshard_error *err);

/* That parts of another conversion are not there, which are work that a run of its own would remove, unless overwrite is asked for. */
reshard_status target_check_parts(const struct conversion *conversion, const char *target_path, reshard_error *err);

/* That the file system has room for all that is to be written; where a run goes on, or is one part of several, that is not asked. */
reshard_status target_check_space(const struct conversion *conversion, const char *target_path, reshard_error *err);

/* For who only asks: a warning of what a run would refuse before it writes, in the order in which it looks. */
reshard_status target_note(const struct checkpoint *source, struct conversion *conversion, const char *target_path, reshard_error *err);

#endif
