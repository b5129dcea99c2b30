/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind the posix store share. Nobody outside this folder includes this. */
#ifndef STORE_STORE_POSIX_H
#define STORE_STORE_POSIX_H

#include "store/store_parts.h"

#include <pthread.h>
#include <stdatomic.h>

/* For store_open_path, beside the public flags: resolve links without openat2. Tests use it. */
#define STORE_LINKS_BY_HAND (1u << 16)

/* ---- objects ---- */

/* A file opened for reading; takes over both descriptors, also on failure. direct_fd may be -1. */
reshard_status posix_object_new(const char *name, int fd, int direct_fd, unsigned flags, struct store_object **out, reshard_error *err);

/* What the files of one transaction have in common. Outlives it until the last of its objects is closed. */
struct sync_group {
    pthread_mutex_t lock; /* over everything here and in the files but is_dirty */
    size_t refs;
    size_t kept;          /* descriptors that are open only for the sync at the end */
    size_t open_count, open_max; /* written files that keep a descriptor, and how many may */
    int directory_fd;     /* that the names are relative to; -1: not set */
    bool no_sync;
};

/* A file written in a transaction: shared by the transaction and the open object. */
struct written_file {
    struct sync_group *group;
    char *name;
    uint64_t size;
    int fd;                /* -1: closed, after it was synced */
    int refs;
    bool is_parked;        /* it was one too many: opened for each access */
    int sync_errno;        /* of a sync that failed */
    atomic_bool is_dirty;  /* written to since the last sync */
};

struct sync_group *sync_group_new(bool no_sync);
void sync_group_unref(struct sync_group *group);

/* Takes over fd, also on failure. The caller holds one reference. */
struct written_file *written_file_new(struct sync_group *group, const char *name, int fd, uint64_t size);
void written_file_unref(struct written_file *file);

/* A descriptor of the file for one access, -1 with errno if it cannot be opened; ends with written_file_give, which is false with errno if
 * what was written did not arrive. */
int written_file_take(const struct written_file *file);
bool written_file_give(const struct written_file *file, int fd);
reshard_status posix_object_for_writing(struct written_file *file, struct store_object **out, reshard_error *err);

/* Syncs every file that is dirty, several at a time; data_only leaves times and the like behind. */
reshard_status written_files_sync(struct written_file **files, size_t count, bool data_only, reshard_error *err);

/*
 * What closing the files has to say: network file systems report there that a disk is full. Each is closed once by another descriptor,
 * because objects may still be open.
 */
reshard_status written_files_flush(struct written_file **files, size_t count, reshard_error *err);

/* ---- transactions ---- */

/* Begins in the directory parent_fd (taken over, also on failure), whose path is for messages. */
reshard_status posix_txn_begin(int parent_fd, const char *parent_path, const char *name, const struct store_txn_options *options,
                               struct store_txn **out, reshard_error *err);

/* As store_partial_record; takes over parent_fd. */
reshard_status posix_partial_record(int parent_fd, const char *parent_path, const char *name, bool *found, struct buffer *out,
                                    reshard_error *err);

/* store_records.c: -1 with errno */
int part_record_write(int directory_fd, const char *name, const void *bytes, size_t size, bool no_sync);
reshard_status records_list(int directory_fd, struct arena *arena, char ***names, size_t *count, reshard_error *err);
reshard_status part_record_read(int directory_fd, const char *name, struct buffer *out, reshard_error *err);

/* Renames directory_fd's `name` to the same name in parent_fd; fails with errno EEXIST if something is there. */
int publish_new(int directory_fd, int parent_fd, const char *name, bool is_directory);

/* Puts directory_fd's `name` in place of parent_fd's, which ends up in directory_fd. After a failure, or a crash, publish_undo is due. */
int publish_over(int directory_fd, int parent_fd, const char *name, bool no_sync);

/* Gives the old target its name back, if it lost that and nothing took it: without an exchange the two take turns. */
int publish_undo(int directory_fd, int parent_fd, const char *name);

/* Writes a directory's entries to the disk. */
bool sync_directory(int directory_fd, const char *name);

/* What was written, for access_keep. */
struct name_map;
struct replacement {
    int new_fd;        /* the directory that the names of files are relative to */
    bool is_directory; /* the target is */
    struct written_file **files;
    size_t file_count;
    const struct name_map *directories;
};

/* Gives the unpublished target the owners and permissions of parent_fd's `name`, which it is to replace, if there is one. -1: errno. */
int access_keep(const struct replacement *job, int parent_fd, const char *name);

/* Removes everything in the directory but the entry keep (may be NULL). The first errno, or 0. */
int remove_contents(int directory_fd, const char *keep);

/* Removes the regular files below directory_fd whose relative names the map lacks. The first errno, or 0. */
int remove_strays(int directory_fd, const struct name_map *names);

/* The journal: a header that says whose it is, then records. */
#define JOURNAL_NAME ".journal"

/* Whether the open file is the journal of such a transaction; *end is where its last whole record ends. */
bool journal_matches(int fd, uint64_t identity, bool is_directory, uint64_t *end);
int journal_start(int fd, uint64_t identity, bool is_directory, uint64_t *end);
int journal_append(int fd, const void *bytes, size_t size, uint64_t *end);
reshard_status journal_read(int fd, uint64_t end, struct buffer *out, reshard_error *err);

/* A retired journal is nobody's, whatever lies beside it, until it is revived; then it says what it said. -1: errno. */
int journal_retire(int fd);
int journal_revive(int fd);

/* Nothing was begun there, or it is retired. */
bool journal_is_free(int fd);

/* Advice for an error number that says that there is no room: of the disk, a quota, or a limit on the size of files. */
void hint_room(int number, reshard_error *err);

/* Whole transfers: loops over short counts and interruptions. false with errno; end of file is errno 0. */
bool pread_whole(int fd, uint64_t offset, void *out, size_t size, size_t *done);
bool pwrite_whole(int fd, uint64_t offset, const void *bytes, size_t size, size_t *done);

#endif
