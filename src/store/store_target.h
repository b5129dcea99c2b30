/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a target would come to lie, and what is there: for those who must know before they replace it. Links and other spellings of a path
 * are seen through; two names are the same file if device and inode are.
 */
#ifndef STORE_STORE_TARGET_H
#define STORE_STORE_TARGET_H

#include "base/arena.h"
#include "base/error.h"

enum target_kind { TARGET_ABSENT, TARGET_FILE, TARGET_DIRECTORY, TARGET_LINK, TARGET_SPECIAL };

struct store_target {
    char *path; /* without links and dots but for the last part, which may be a link */
    enum target_kind kind;
    uint64_t bytes; /* of a file */
    bool is_known;  /* the last part, seen through links, exists: */
    uint64_t device, inode;
};

/* RESHARD_ERR_IO if there is no folder that could hold it. */
reshard_status store_target_look(const char *path, struct store_target *out, reshard_error *err);
void store_target_release(struct store_target *target);

/* What the file system that holds the target, or is to hold it, has left for this process. False: it does not say. */
bool store_target_free_bytes(const struct store_target *target, uint64_t *out);

enum target_relation { TARGET_BESIDE, TARGET_IS, TARGET_WITHIN, TARGET_AROUND };

/* How the target lies to the file or folder at path. Nothing there: beside. */
enum target_relation store_target_relation(const struct store_target *target, const char *path);

/* Whether the target exists and is the very file at path. */
bool store_target_is(const struct store_target *target, const char *path);

/* Everything that lies in a folder, whatever it is, in no order; names alone. */
struct target_entry {
    const char *name;
    bool is_directory;
};
reshard_status store_target_entries(const char *folder, struct arena *arena, struct target_entry **entries, size_t *count,
                                    reshard_error *err);

#endif
