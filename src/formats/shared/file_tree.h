/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a folder and of all folders below it, and what file systems take as names of them. */
#ifndef FORMATS_SHARED_FILE_TREE_H
#define FORMATS_SHARED_FILE_TREE_H

#include "store/store.h"

/* A file: below is its name below the folder. What is not RESHARD_OK ends the walk. */
typedef reshard_status (*file_tree_sink)(void *context, const struct store_entry *file, struct str below, reshard_error *err);

/* Looks into folders_max folders at most, the first among them. Names lie in arena. */
reshard_status file_tree_walk(struct store *store, const char *name, size_t folders_max, struct arena *arena, file_tree_sink sink,
                              void *context, reshard_error *err);

/* File systems take no longer part of a path. */
#define FILE_PART_BYTES_MAX 255

/* Whether a file or a folder can have the name below a checkpoint's folder; the message says what is wrong with it. */
reshard_status file_name_check(struct str name, reshard_error *err);

#endif
