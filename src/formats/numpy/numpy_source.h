/* SPDX-License-Identifier: Apache-2.0 */
/* What reading keeps of NumPy's files: where items lie, and the archive's members for checking. */
#ifndef FORMATS_NUMPY_NUMPY_SOURCE_H
#define FORMATS_NUMPY_NUMPY_SOURCE_H

#include "encoding/npy.h"
#include "encoding/zip.h"
#include "formats/driver.h"

#define NUMPY_SUFFIX ".npy"
#define NUMPY_SUFFIX_BYTES 4

/* An array that is no tensor, or a member of an archive that is no array. */
struct numpy_item {
    uint32_t member;  /* of the archive; CATALOG_NONE: the item's object is its file */
    bool is_raw;      /* bytes without a header */
    struct npy_header header;
};

struct numpy_source {
    struct zip_archive zip; /* npz: its members; else empty */
    uint32_t object;        /* npz: the archive */
    struct numpy_item *items; /* by item of the catalog */
    uint32_t item_capacity;
};

/* The drivers' functions. */
reshard_status numpy_read_npz(struct source *source, reshard_error *err);
reshard_status numpy_read_npy(struct source *source, reshard_error *err);
reshard_status numpy_load_item(struct source *source, uint32_t index, reshard_error *err);
reshard_status numpy_lay_out_npz(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status numpy_lay_out_npy(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status numpy_publish_npz(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status numpy_publish_npy(const struct publish_job *job, uint32_t object, reshard_error *err);
void numpy_close_target(struct target *target);

#endif
