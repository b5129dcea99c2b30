/* SPDX-License-Identifier: Apache-2.0 */
/* Which GGUF files are the model: decided by names alone. */
#ifndef FORMATS_GGUF_GGUF_FOLDER_H
#define FORMATS_GGUF_GGUF_FOLDER_H

#include "base/arena.h"
#include "base/error.h"
#include "store/store.h"

#define GGUF_SUFFIX ".gguf"

/* Names are relative to the store's root, NUL-terminated. Everything lives in the arena. */
struct gguf_folder {
    const char **files;
    size_t file_count;
    uint64_t total;             /* of the parts that the names tell of; 0: one file that is no part */
    const char *missing;        /* the first part that is not there; NULL: all are */
    uint64_t missing_count;
    const char *left_alone;     /* a file that is another model's, as the encoder of images beside a language model; NULL: none */
};

/* name is a folder ("" for the root) or a file. file_count is 0 if there is none. Fails if several models could be meant. */
reshard_status gguf_folder_scan(struct store *store, const char *name, struct arena *arena, struct gguf_folder *out, reshard_error *err);

#endif
