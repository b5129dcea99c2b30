/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a zarr store: the files of a directory and all below it, the members of a zip file, or what another container has, sorted. */
#ifndef FORMATS_ZARR_ZARR_KEYS_H
#define FORMATS_ZARR_ZARR_KEYS_H

#include "encoding/zip.h"
#include "formats/driver.h"

struct zarr_entry {
    struct str name;       /* below the checkpoint: "a/b/.zarray" */
    struct str object;     /* in the store */
    uint64_t offset, bytes; /* of what is stored */
    uint64_t object_bytes;  /* of the object that it lies in */
    bool is_deflated;
    bool is_used;          /* it belongs to something that is known */
    uint32_t member;       /* of the zip file */
};

struct zarr_keys {
    struct arena arena;
    struct zarr_entry *entries;
    uint32_t count, capacity;
    bool is_zip;
    struct zip_archive zip;
    struct store_object *zip_object;
};

/* Adds an entry, whose texts outlive keys; when all are there they are sorted. For whoever has a container of another kind. */
reshard_status zarr_keys_add(struct zarr_keys *keys, const struct limits *limits, const struct zarr_entry *entry, reshard_error *err);
void zarr_keys_sort(struct zarr_keys *keys);

/* Lists everything below name ("" is the root), or in the zip file that it is. Release in any case. */
reshard_status zarr_keys_list(struct store *store, const char *name, const struct limits *limits, struct zarr_keys *out,
                              reshard_error *err);
void zarr_keys_release(struct zarr_keys *keys);

/* Index of the first entry whose name is not before `name`. */
uint32_t zarr_keys_lower(const struct zarr_keys *keys, struct str name);

/* The entry of that name, or NULL. */
struct zarr_entry *zarr_keys_find(const struct zarr_keys *keys, struct str name);

/* Appends the entry's content; at most bytes_max. */
reshard_status zarr_keys_read(struct store *store, const struct zarr_keys *keys, const struct zarr_entry *entry,
                              const struct limits *limits, struct named_limit most, struct buffer *out, reshard_error *err);

/* Whether the file is a zip file with documents of zarr. Never fails. */
bool zarr_zip_probe(struct store *store, const char *name, reshard_error *err);

#endif
