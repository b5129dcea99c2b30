/* SPDX-License-Identifier: Apache-2.0 */
/* Which files of a folder are the model: decided by names alone. */
#ifndef FORMATS_HF_FOLDER_H
#define FORMATS_HF_FOLDER_H

#include "base/arena.h"
#include "base/error.h"
#include "store/store.h"

enum hf_kind {
    HF_NOTHING,
    HF_INDEXED,  /* index says which files */
    HF_SINGLE,   /* files has one name */
    HF_NUMBERED, /* files are a set -0000i-of-0000N whose index is missing; some of it may be too */
    HF_LOOSE,    /* files are all safetensors files there are */
    HF_DCP       /* files are shard-*-model-*-of-* */
};

/* Names are relative to the store's root, NUL-terminated. Everything lives in the arena. */
struct hf_folder {
    enum hf_kind kind;
    struct str directory; /* with its '/', or empty */
    struct str index;     /* HF_INDEXED */
    struct str *files;    /* the others */
    size_t file_count;
    struct str other_index; /* another index file that is left alone, or empty */
    struct str incomplete;  /* HF_LOOSE: a file of a set -0000i-of-0000N that lacks others; empty if none does */
    uint64_t numbered_total, missing_first, missing_count; /* HF_NUMBERED: N, the first number that no file has, and how many none has */
    struct store_entry *entries;
    size_t entry_count;
};

/* name is a directory, "" for the root, or an index file. A folder without safetensors is HF_NOTHING. Fails if it cannot be listed, or if
 * several sets of files could be meant. */
reshard_status hf_folder_scan(struct store *store, const char *name, struct arena *arena, struct hf_folder *out, reshard_error *err);

/* shard-PPPPP-model-IIIII-of-NNNNN.safetensors; false if the base name is none. */
bool hf_parse_shard_name(struct str base, uint64_t *plan, uint64_t *file, uint64_t *file_count);

#endif
