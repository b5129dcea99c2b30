/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zarr: arrays cut into a grid of chunks, a file a chunk, described by JSON documents; formats 2 and 3.
 *
 *   group/.zgroup .zattrs            group/zarr.json           documents of a group (optional in practice)
 *   array/.zarray .zattrs            array/zarr.json           shape, chunk grid, type, codecs, fill value
 *   array/0.1 or array/0/1           array/c/0/1               chunk (0,1), all of them of the full size, the last ones padded
 *
 * This folder is the container: probing, reading and laying out of arrays. The driver "zarr" stands on it in formats/mcore, which knows the
 * checkpoints that Megatron Core keeps in such arrays, too (docs/decisions/010-containers.md).
 */
#ifndef FORMATS_ZARR_ZARR_H
#define FORMATS_ZARR_ZARR_H

#include "formats/driver.h"

/* What a folder of zarr holds; for format_driver.folder_entries. */
#define ZARR_FOLDER_ENTRIES ".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json", "c/"
/* One of them makes a folder an array or a group; for format_driver.part_marks. */
#define ZARR_PART_MARKS ".zarray", ".zgroup", ".zattrs", "zarr.json"

/* How sure it is that name is a zarr store. A folder without a document, with arrays in folders of it, is one by this much: */
#define ZARR_SCORE_OF_ARRAYS 70
int zarr_probe(struct store *store, const char *name, reshard_error *err);
bool zarr_probe_rest(struct store *store, const char *name, reshard_error *err);

#endif
