/* SPDX-License-Identifier: Apache-2.0 */
/* The index file that a Hugging Face folder gets. */
#ifndef FORMATS_HF_INDEX_H
#define FORMATS_HF_INDEX_H

#include "base/limits.h"
#include "base/error.h"
#include "base/value.h"

/* The index of a target: keys sorted, indent 2, a newline at its end, as transformers writes it. metadata (may be NULL) is a DICT whose
 * pairs go beside total_size; extra pairs follow. */
struct hf_mapped {
    struct str key, file;
};
struct st_metadata;
reshard_status hf_index_write(struct hf_mapped *mapped, size_t count, uint64_t total_size, const struct value *metadata, bool is_whole,
                              const struct st_metadata *ties, const struct limits *limits, struct buffer *out, reshard_error *err);

#endif
