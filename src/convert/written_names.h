/* SPDX-License-Identifier: Apache-2.0 */
/* Where a written checkpoint, opened again, has the tensors that were to be written. */
#ifndef CONVERT_WRITTEN_NAMES_H
#define CONVERT_WRITTEN_NAMES_H

#include "base/name_map.h"
#include "convert/conversion.h"

struct written_names {
    const struct conversion *conversion;
    const struct catalog *catalog;    /* of the written checkpoint */
    struct name_map hidden;           /* keys of its hidden tensors: those of an optimizer that lies within an item */
    uint32_t *hidden_tensors;         /* by number in hidden */
    struct name_map stored;           /* names in the files, where the catalog has others */
    struct stored_name *stored_names; /* by number in stored */
    uint32_t stored_capacity;
};

/* A tensor, or the part of one at a place along its first axes. */
struct written_tensor {
    uint32_t tensor;                  /* CATALOG_NONE: there is none */
    const int64_t *lead;              /* of the names */
    int lead_count;
};

/* Release *out on failure too. */
reshard_status written_names_make(const struct conversion *conversion, const struct source *written, struct written_names *out,
                                  reshard_error *err);
void written_names_release(struct written_names *names);

/* Whether a wanted tensor can be found by a name: what is stored inside items can, where the target says its name. */
bool written_is_named(const struct conversion *conversion, uint32_t wanted);

reshard_status written_find(const struct written_names *names, uint32_t wanted, struct written_tensor *out, reshard_error *err);

#endif
