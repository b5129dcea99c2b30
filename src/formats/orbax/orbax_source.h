/* SPDX-License-Identifier: Apache-2.0 */
/* What reading an Orbax checkpoint goes through. */
#ifndef FORMATS_ORBAX_ORBAX_SOURCE_H
#define FORMATS_ORBAX_ORBAX_SOURCE_H

#include "formats/zarr/zarr_read.h"

#define OCDBT_MANIFEST "manifest.ocdbt"

/* driver_state: values that lie in nodes of the tree are an object of a store of their own, beside the files. */
struct orbax_state {
    struct buffer inline_values;
    struct store *files, *computed, *joined; /* files: the source's own store, which joined stands for */
};

/* orbax_keys.c: the keys of the newest version of the OCDBT store in the source's folder, as keys of zarr. Values of nodes are appended to
 * inline_values, and their object is called ORBAX_INLINE and what store_region_name gives of 0. */
#define ORBAX_INLINE "ocdbt-inline/"
reshard_status orbax_keys_read(struct source *source, struct buffer *inline_values, struct zarr_keys *out, uint64_t *generation,
                               reshard_error *err);

/* orbax_metadata.c: what _METADATA and _strings.json say of the tree, once its arrays are in the catalog: numbers and texts become
 * items. */
reshard_status orbax_metadata_read(struct zarr_reading *reading, reshard_error *err);

#endif
