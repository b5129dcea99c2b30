/* SPDX-License-Identifier: Apache-2.0 */
/* Where a written checkpoint, opened again, has the tensors that were to be written. */
#ifndef CONVERT_WRITTEN_NAMES_H
#define CONVERT_WRITTEN_NAMES_H

#include "base/name_map.h"
#include "convert/conversion.h"

struct written_names {
    const struct conversion *conversion;
    const struct catalog *catalog; /* of the written checkpoint */
    struct name_map map;           /* what its listing lacks: keys of hidden tensors, and names in the files */
    struct stored_name *tensors;   /* by number in map */
    uint32_t capacity;
};

/* Release *out on failure too. */
reshard_status written_names_make(const struct conversion *conversion, const struct source *written, struct written_names *out,
                                  reshard_error *err);
void written_names_release(struct written_names *names);

/* out->tensor CATALOG_NONE: there is none. What is stored inside an item is found where the target says its name. */
reshard_status written_find(const struct written_names *names, uint32_t wanted, struct stored_name *out, reshard_error *err);

/* A tensor that is several when the target is read: these, one behind the other (target_read_in_parts). */
struct written_parts {
    uint32_t *tensors; /* malloc'd; NULL: it is none of those, or not all of them are there */
    uint32_t count;
};
reshard_status written_find_parts(const struct written_names *names, uint32_t wanted, struct written_parts *out, reshard_error *err);

#endif
