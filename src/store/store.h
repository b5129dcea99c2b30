/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Store: where bytes live. A store holds named objects; names are relative paths with '/' between parts. Kinds: a
 * directory (posix), memory (tests and fuzzing), null (swallows writes, for measuring), fault (wraps another and fails).
 *
 * Reading: objects are opened once and read by pread from any thread. Writing happens in a transaction: everything goes beside the
 * target and store_commit makes it visible in one rename. store_open_object, store_exists and all functions on objects may be called from
 * any thread; the rest from one at a time.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/arena.h"
#include "base/limits.h"
#include "base/reader.h"

struct store;
struct store_object;

enum store_flags {
    STORE_FOLLOW_LINKS = 1, /* symbolic links may lead out of the directory (hub caches) */
    STORE_DIRECT = 2,       /* O_DIRECT where alignment allows */
    STORE_MMAP = 4          /* objects are mapped; store_object_map works */
};

/* What the functions behind a store are; implementations fill one each. Names have passed store_name_check. */
struct store_entry {
    struct str name;  /* relative to the store's root, with directories */
    uint64_t bytes;
    bool is_directory;
    bool leads_out; /* a link that is not followed: neither size nor kind are known */
};

/* Directory at path. If path is a file, the store is its directory and *file_name (may be NULL) gets its name, else "". */
reshard_status store_open_path(const char *path, unsigned flags, struct store **out, char **file_name, reshard_error *err);
struct store *store_new_memory(void);
struct store *store_new_null(void);

/* A store of `count` pieces of memory of the caller's, which are read where they lie, or by a function of the caller's, which any thread
 * may call; regions is copied. Names of objects are those that store_region_name gives. What has neither cannot be opened. */
struct store_region {
    const void *memory;
    uint64_t bytes;
    reshard_status (*read)(void *context, uint64_t offset, void *out, size_t size, reshard_error *err);
    int (*give)(void *out, uint64_t offset, size_t size, void *context); /* the same as callers have it; what is not 0 ends the call */
    void *context;
};
#define STORE_REGION_NAME_MAX 24
void store_region_name(uint32_t number, char out[STORE_REGION_NAME_MAX]);
reshard_status store_new_over(const struct store_region *regions, size_t count, struct store **out, reshard_error *err);

/* The same bytes of a region of such a store lie elsewhere now, and are given by its functions. No object of it is open. */
void store_region_move(struct store *store, size_t number, const struct store_region *region);

/* Adds or replaces an object of a memory store without a transaction. */
reshard_status store_memory_put(struct store *store, const char *name, const void *bytes, size_t size, reshard_error *err);

/*
 * Wraps inner (not owned). The nth call of those that the kind can hit, counted from 1, fails; 0 never. FAULT_IO hits every call that
 * touches bytes or names (listing, opening, reading, beginning, creating, writing, the journal, commit), FAULT_SHORT_READ
 * reads, FAULT_DISK_FULL what needs room. store_exists cannot say that it failed and is left alone. Objects of a fault
 * store have neither a map nor a descriptor, so that nothing goes past it.
 */
enum fault_kind { FAULT_IO, FAULT_SHORT_READ, FAULT_DISK_FULL };
struct store *store_new_fault(struct store *inner, enum fault_kind kind, uint64_t nth);
bool store_fault_was_hit(const struct store *store);

/* Reads below, and above's files that below lacks where is_taken says so of a name. Takes over both; NULL without memory: then not. */
struct store *store_new_overlay(struct store *below, struct store *above, bool (*is_taken)(void *context, struct str name), void *context);

/* Reads two stores that outlive it: names that begin with prefix are the second's, without it; listings are the first's. NULL without
 * memory. */
struct store *store_new_joined(struct store *first, struct store *second, const char *prefix);
void store_free(struct store *store);

/* Path of the store for messages ("" for memory). */
const char *store_path(const struct store *store);

/* Whether symbolic links in it may lead out of it. */
bool store_follows_links(const struct store *store);

/* Relative, no empty, "." or ".." part, no NUL or backslash, no leading '/', at most 4096 bytes. The message says what is wrong. */
reshard_status store_name_check(struct str name, reshard_error *err);

/* Entries directly in directory ("" is the root), sorted bytewise; names are relative to the root. Symlinks are resolved; special
 * files are left out. A link that leads out and may not is a file of 0 bytes, in store_exists too: opening it says what is wrong. */
reshard_status store_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                          size_t *count, reshard_error *err);

/* Between the two a folder that is listed again and again (each format looks whether it knows it) is read once: what comes or goes
 * meanwhile is not seen. They nest. */
void store_hold_listing(struct store *store);
void store_release_listing(struct store *store);

/* Whether there is anything of that name; *is_directory and *bytes are written only then. */
bool store_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes);

/* Whether there is a directory, which "" always is, or a file of that name. */
bool store_is_directory(struct store *store, const char *name);
bool store_is_file(struct store *store, const char *name);

/* Whether directory has such a file; false without memory, too, which err then says. */
bool store_has_file(struct store *store, const char *directory, const char *name, reshard_error *err);

/* The name of what lies in directory, which is "" for the root and may end with a '/'; in arena, NUL-terminated. NULL without memory. */
char *store_join(struct arena *arena, const char *directory, struct str name);

/* Names of links that lead out of the directory and were met by listing or store_exists but not followed; NULL behind the last. Of
 * many not all are kept: then store_has_more_links_out. */
const char *store_link_out(const struct store *store, size_t index);
bool store_has_more_links_out(const struct store *store);

/* store_exists says "no" as well when the disk failed: the first such failure, RESHARD_OK if there was none. */
reshard_status store_failure(const struct store *store, reshard_error *err);

/* Whether this errno says something about a name, and not that memory or the disk failed. */
bool store_errno_is_answer(int number);

/* The same of a call that ended so, or went well: it is about what is there, and not that memory lacks, a caller stops or a disk fails. */
bool store_status_is_answer(reshard_status status, const reshard_error *err);

/* A number that changes when the object is written to or replaced, as far as the store knows (files: inode, size, and the times of
 * modification and change); 0 if it does not. */
uint64_t store_version(struct store *store, const char *name);

/* "already exists", with the hint how to replace it. */
reshard_status store_error_exists(const char *name, reshard_error *err);

/* ---- paths outside of a store ---- */

/* Whether it is no path, but a URL: SCHEME://… */
bool store_path_is_url(const char *path);

/* The path as it may be shown and kept: itself, or in out a URL without user, password and query, which may be secrets. Messages, findings
 * and reports have URLs in no other way. */
#define STORE_SHOWN_MAX 8192
const char *store_path_shown(const char *path, char out[STORE_SHOWN_MAX]);

/* "nothing is written there" */
reshard_status store_error_url(const char *url, reshard_error *err);

/* What lies at the path itself: a link is something else, wherever it leads. */
enum store_path_kind { STORE_PATH_NOTHING, STORE_PATH_FILE, STORE_PATH_OTHER, STORE_PATH_UNKNOWN /* errno says why */ };
enum store_path_kind store_path_look(const char *path);

/* Removes a file, if it is there, and writes its directory to the disk unless no_sync. */
reshard_status store_path_remove(const char *path, bool no_sync, reshard_error *err);

/* ---- reading ---- */
reshard_status store_open_object(struct store *store, const char *name, struct store_object **out, reshard_error *err);
/* access: STORE_DIRECT or STORE_MMAP for this object; a store that cannot do it reads as ever. */
reshard_status store_open_object_as(struct store *store, const char *name, unsigned access, struct store_object **out, reshard_error *err);
void store_object_close(struct store_object *object);
uint64_t store_object_size(const struct store_object *object);
const char *store_object_name(const struct store_object *object);

/* A reader over the whole object; valid until it is closed. */
struct reader store_object_reader(const struct store_object *object);
reshard_status store_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err);

/* Address of the object's bytes if the store maps (memory, STORE_MMAP), else NULL. */
const void *store_object_map(const struct store_object *object);

/* Reads a whole small object, appended to out; refuses above bytes_max. */
reshard_status store_read_all(struct store *store, const char *name, struct named_limit limit, struct buffer *out, reshard_error *err);

/* File descriptor for kernel-side copying, or -1. */
int store_object_fd(const struct store_object *object);

/* ---- writing ---- */

/*
 * A transaction writes a directory or a single file at path, beside it first: in the directory ".NAME.reshard-partial" of the same
 * parent, which is locked while the run lives. begin refuses an existing target without overwrite, and a target that another
 * run is writing. With resume, what an earlier killed run of the same `identity` left is kept (store_txn_is_resumed): objects that
 * are created again keep their bytes, those that are not are removed by commit. commit syncs files, then directories, then
 * renames; with overwrite the old target is exchanged and removed after. abort removes what was written. A commit that fails before
 * the renaming keeps what was written if `resume` is set.
 */
struct store_txn;
struct store_txn_options {
    bool is_directory, overwrite, resume, no_sync;
    bool no_space_check; /* begins, and writes as far as it goes, whatever room there is */
    bool is_begun;       /* a part whose target another run has begun: where that cannot be seen it is an error, not the first part */
    uint64_t identity; /* hash of the plan */
    enum store_txn_share {
        STORE_TXN_ALONE,
        STORE_TXN_PART, /* several runs of one identity write at once, and end by store_txn_leave; objects that are there are opened */
        STORE_TXN_REST  /* takes over what parts have left, none of which may still run; it alone commits */
    } share;            /* the last two never remove what another run wrote: RESHARD_DIFFERS if that is of another identity */
};
reshard_status store_txn_begin(const char *path, const struct store_txn_options *options, struct store_txn **out, reshard_error *err);

/* The same in a memory, null or fault store: commit renames the object or prefix there. */
reshard_status store_txn_begin_in(struct store *store, const char *name, const struct store_txn_options *options,
                                  struct store_txn **out, reshard_error *err);
bool store_txn_is_resumed(const struct store_txn *txn);

/* Where the unpublished target lies, so that it can be read back before commit; "" for memory and null stores. */
const char *store_txn_path(const struct store_txn *txn);

/* Creates (or on resume reopens) an object with room for bytes; name "" for a single file. Not sparse-aware: the file is sized
 * (ftruncate), not filled. */
reshard_status store_txn_create(struct store_txn *txn, const char *name, uint64_t bytes, struct store_object **out, reshard_error *err);
reshard_status store_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size, reshard_error *err);

/* Gives a created object another size: what was written beyond `bytes` is gone, what is new is zero. Nobody else may use it meanwhile. */
reshard_status store_resize(struct store_object *object, uint64_t bytes, reshard_error *err);

/* Copies without a buffer of ours: in the kernel between files, or right into a caller's memory. RESHARD_ERR_UNSUPPORTED if it cannot be
 * done here: then use buffers. */
reshard_status store_copy_range(const struct store_object *source, uint64_t source_offset, struct store_object *target,
                                uint64_t target_offset, uint64_t bytes, reshard_error *err);

/* Where the object's bytes may be put at once, if it is memory; store_write_at of bytes that lie there already only takes notice. NULL: it
 * is none. */
uint8_t *store_object_room(struct store_object *object);

/*
 * An object over memory of a caller's, which is written and read where it lies. store_memory_written counts the bytes that were written so
 * far, those written again too; from any thread.
 */
reshard_status store_object_over(void *memory, uint64_t bytes, struct store_object **out, reshard_error *err);
uint64_t store_memory_written(const struct store_object *object);

/* Starts writing dirty pages of the range back without waiting, so that the final sync is short. Never fails. */
void store_write_behind(struct store_object *object, uint64_t offset, uint64_t bytes);

/* The journal of a resumable run: a small object beside the target, not published. Append syncs data objects first. Read appends what was
 * appended so far, by an earlier run too; an append that a killed run left incomplete is not part of it. */
reshard_status store_txn_journal_read(struct store_txn *txn, struct buffer *out, reshard_error *err);
reshard_status store_txn_journal_append(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err);

/*
 * Ends a part: what it has written is on the disk, and a record of that name beside the target says so. Frees txn in either case. A record
 * replaces one of the same name. STORE_TXN_REST lists and reads them; store_partial_record reads the first by name without beginning
 * anything, *found: there is one.
 */
reshard_status store_txn_leave(struct store_txn *txn, const char *record, const void *bytes, size_t size, reshard_error *err);
reshard_status store_txn_records(struct store_txn *txn, struct arena *arena, char ***names, size_t *count, reshard_error *err);
reshard_status store_txn_record_read(struct store_txn *txn, const char *name, struct buffer *out, reshard_error *err);
reshard_status store_partial_record(const char *path, bool *found, struct buffer *out, reshard_error *err);

reshard_status store_txn_commit(struct store_txn *txn, reshard_error *err);  /* frees txn in either case */
void store_txn_abort(struct store_txn *txn, bool keep_for_resume);          /* frees txn; NULL is fine */

#endif
