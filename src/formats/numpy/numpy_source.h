/* SPDX-License-Identifier: Apache-2.0 */
/* What reading keeps of NumPy's files, and what the files of this folder share. */
#ifndef FORMATS_NUMPY_NUMPY_SOURCE_H
#define FORMATS_NUMPY_NUMPY_SOURCE_H

#include "encoding/npy.h"
#include "encoding/zip.h"
#include "formats/driver.h"

#define NUMPY_SUFFIX ".npy"
#define NUMPY_SUFFIX_BYTES 4

struct numpy_source {
    struct zip_archive zip; /* npz: its members, for checking; else empty */
    uint32_t object;        /* npz: the archive */
    bool is_cut_off;        /* npz: its directory could not be read, and names stand in it once only */
    bool *is_lost;          /* npz, by member: it could not be read, and the damage in it was told as that */
};

/* The value of an array that is no tensor, as the graph's root, from all bytes of its file or member; header NULL: they are no array.
 * Release the graph in any case. */
reshard_status numpy_value_decode(const struct npy_header *header, const struct buffer *bytes, const struct limits *limits,
                                  struct value_graph *graph, reshard_error *err);

/* Whether so many bytes, all of a file, are what numpy.savez writes without arrays: nothing but the end of an archive. */
bool numpy_is_without_arrays(const void *bytes, size_t size);

/* The drivers' functions. */
reshard_status numpy_read_npz(struct source *source, reshard_error *err);
reshard_status numpy_read_npy(struct source *source, reshard_error *err);
reshard_status numpy_lay_out_npz(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status numpy_lay_out_npy(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status numpy_publish_npz(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status numpy_publish_npy(const struct publish_job *job, uint32_t object, reshard_error *err);
void numpy_close_target(struct target *target);

#endif
