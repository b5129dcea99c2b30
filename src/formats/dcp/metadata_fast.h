/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fast way share: the words of encoding/pickle_records that are DCP's own, and what is put together beside the build.
 */
#ifndef FORMATS_DCP_METADATA_FAST_H
#define FORMATS_DCP_METADATA_FAST_H

#include "encoding/pickle_records.h"
#include "formats/dcp/metadata_build.h"

enum dcp_word {
    DCP_WORD_PATH = RECORDS_OWN,                                     /* pathlib path: text */
    DCP_WORD_PROPERTIES,                                             /* text of its dtype */
    DCP_WORD_CHUNK, DCP_WORD_TENSOR, DCP_WORD_INDEX, DCP_WORD_RANGE, /* number of each */
    DCP_WORD_STORAGE_META,
    DCP_WORD_ROOT                                                    /* its attributes: container */
};

/* Spaces of strings. */
enum { DCP_NAMES, DCP_TEXTS };

/* A tensor whose place is not yet known. */
struct dcp_fast_tensor {
    uint32_t dtype;         /* text */
    uint32_t size, first_chunk, chunk_count;
};

struct dcp_fast {
    struct dcp_build *build;
    struct dcp_fast_tensor *tensors;
    size_t tensor_count, tensor_capacity;
    records_word ids[3];    /* of STORAGE_META: checkpoint, save, load */
};

/* Puts the root's attributes into the build. */
enum records_step dcp_fast_finish(struct records *m, records_word root);

#endif
