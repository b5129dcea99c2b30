/* SPDX-License-Identifier: Apache-2.0 */
/*
 * OCDBT, tensorstore's key-value store in a few files, which Orbax puts arrays into: a manifest that names the root of the newest version,
 * and nodes of a B+ tree in data files (docs/formats/orbax.md). This decodes one manifest or node from its bytes; whoever walks the tree
 * reads files and relates paths.
 *
 * All of them are: magic (4 bytes) | length u64 | version | compression | body | CRC-32C. A body may be one zstd frame.
 */
#ifndef ENCODING_OCDBT_H
#define ENCODING_OCDBT_H

#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/str.h"
#include "encoding/chain.h"

/* A data file, as a path relative to the base of the file that names it; the first base_size bytes of it are its own base. */
struct ocdbt_file {
    struct str path;
    size_t base_size;
};

/* Bytes of a data file, by its number in the table beside. */
struct ocdbt_place {
    uint32_t file;
    uint64_t offset, bytes;
};

struct ocdbt_manifest {
    struct ocdbt_file *files;
    uint32_t file_count;
    bool is_numbered;        /* versions are in manifest.GENERATION, of which the highest counts: nothing below is set */
    bool is_empty;           /* no version, or one without keys */
    uint8_t height;          /* of the root */
    struct ocdbt_place root; /* of the newest version */
    uint64_t generation;
};

struct ocdbt_entry {
    struct str key;    /* behind what its parents say of the beginning */
    bool is_inline;
    struct str value;  /* of a leaf, inline: points into the node's arena */
    struct ocdbt_place place; /* of a leaf's value, or of a child */
    size_t common;     /* of a child: so many bytes of the key begin every key below */
};

struct ocdbt_node {
    uint8_t height; /* 0: a leaf */
    struct ocdbt_file *files;
    uint32_t file_count;
    struct ocdbt_entry *entries; /* ascending by key, which is checked */
    uint32_t count;
};

/* Both decode size bytes; what they give lies in arena. is_of_version: it is manifest.GENERATION, which has versions although it is
 * numbered. scratch is for decompressing. Errors say at which byte of the body. */
reshard_status ocdbt_manifest_decode(const void *bytes, size_t size, bool is_of_version, const struct limits *limits,
                                     struct chain_scratch *scratch, struct arena *arena, struct ocdbt_manifest *out, reshard_error *err);
reshard_status ocdbt_node_decode(const void *bytes, size_t size, const struct limits *limits, struct chain_scratch *scratch,
                                 struct arena *arena, struct ocdbt_node *out, reshard_error *err);

#endif
