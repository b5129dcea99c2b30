/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and objects taken out of a checkpoint where it lies. */
#ifndef CONVERT_REMOVAL_H
#define CONVERT_REMOVAL_H

#include "convert/checkpoint.h"

struct removal_counts {
    uint64_t tensors, items, files, file_bytes;
};

/* Takes out what is stored under keys that begin with prefix. USAGE if nothing is; UNSUPPORTED for formats that cannot. */
reshard_status removal_run(const char *path, struct str prefix, const struct checkpoint_options *options, bool no_sync,
                           struct removal_counts *out, reshard_error *err);

#endif
