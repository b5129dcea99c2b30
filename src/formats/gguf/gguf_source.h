/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the driver share. Nobody else includes this. */
#ifndef FORMATS_GGUF_GGUF_SOURCE_H
#define FORMATS_GGUF_GGUF_SOURCE_H

#include "encoding/gguf.h"
#include "formats/driver.h"
#include "formats/gguf/gguf_folder.h"

/* Lives in the catalog's arena. */
struct gguf_state {
    bool is_swapped; /* big-endian: one file and its parts are alike */
};

/* While a catalog is read. */
struct gguf_reading {
    struct source *source;
    struct arena arena;
    struct gguf_folder folder;
    struct name_map keys, names;           /* of all parts so far */
    const struct chain *chains[2];         /* the last ones: of whole pieces, and of those at the end of an axis */
    uint64_t block_counts[GGML_BLOCK_COUNT]; /* tensors of each kind */
    uint64_t tensor_count;                 /* that the headers name */
    int64_t tensors_wanted;                /* that the first part says all of them name; -1: it does not */
    bool has_lost;                         /* parts, as damage */
    uint32_t version;                      /* of the first part that is there */
};

/* A file that is being read. */
struct gguf_part {
    const char *name;
    struct reader reader;
    struct gguf_header header;
    uint32_t object;
};

reshard_status gguf_add_tensor(struct gguf_reading *reading, const struct gguf_part *part, uint32_t index,
                               reshard_error *err); /* gguf_chunks.c */
reshard_status gguf_add_items(struct gguf_reading *reading, struct gguf_part *part, reshard_error *err); /* gguf_items.c */
reshard_status gguf_load_item(struct source *source, uint32_t item, reshard_error *err);                 /* gguf_items.c */
reshard_status gguf_read_catalog(struct source *source, reshard_error *err);                             /* gguf_read.c */

#endif
