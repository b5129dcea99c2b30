/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores of the caller's: checkpoints that lie in object storage, in an archive, encrypted, behind a cache. The library asks for objects by
 * name, and reads and writes ranges of them; what is behind the names is the caller's.
 *
 * Threads. Any thread opens a checkpoint in a store, which is then used as any other is (reshard.h). From which threads the functions of a
 * store are called is said at them; none of them may call into the library with the handle that it serves.
 *
 * Failures. After a call that fails, and after reshard_close, nothing is held: every object that was opened or created has been closed. A
 * target that failed is not visible, and what was at its path is there, or under the name that reshard_open_in tells of.
 */
#ifndef RESHARD_STORE_H
#define RESHARD_STORE_H

#include "reshard/reshard.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Told of what lies in a folder: its name in the folder, and a file's size. What it returns is to be returned if it is not 0. */
typedef int (*reshard_store_sink)(const char *name, size_t name_size, int is_folder, uint64_t bytes, void *sink_context);

/*
 * The functions of a store. Paths are relative, with '/' between parts, none of which is empty, "." or ".."; "" is the root. Folders need
 * not exist by themselves: one is there if something lies in it, and create and rename make what they need.
 *
 * All return 0, or an errno number: ENOENT where nothing is there, ECANCELED makes the call RESHARD_ERR_CANCELLED, ENOMEM
 * RESHARD_ERR_MEMORY, others RESHARD_ERR_IO, with a message that names the path; so does what is no errno. Sizes are not believed: a short
 * read is RESHARD_ERR_FORMAT and names the object. look, open, and the functions on objects are called from any thread, several at once,
 * also on one object; the others from one at a time.
 */
struct reshard_store {
    size_t struct_size;
    const char *name;   /* for messages: "s3://bucket"; NULL: "store" */
    void *context;      /* of all */
    /* What is at the path: *is_folder, or the size of a file; *version changes when a file does, 0 where that is not known. */
    int (*look)(const char *path, int *is_folder, uint64_t *bytes, uint64_t *version, void *context);
    /* Tells sink what lies right in the folder, in any order. */
    int (*list)(const char *folder, reshard_store_sink sink, void *sink_context, void *context);
    /* A file for reading: *object is the caller's, *bytes its size. */
    int (*open)(const char *path, void **object, uint64_t *bytes, void *context);
    /* Reads up to size bytes, at least one: *done of them. */
    int (*read_at)(void *object, uint64_t offset, void *out, size_t size, size_t *done, void *context);
    /* Ends what open or create began; of what was written, a failure here fails the target. */
    int (*close)(void *object, void *context);

    /* For targets: NULL where the store is only read, resize also where it cannot be done, sync where close or rename does it. */

    /* A new file of that size, whose content is zeros until it is written: in any order, each byte once, read back now and then. */
    int (*create)(const char *path, uint64_t bytes, void **object, void *context);
    int (*write_at)(void *object, uint64_t offset, const void *bytes, size_t size, void *context);
    int (*resize)(void *object, uint64_t bytes, void *context); /* for files that are compressed once they are written */
    int (*sync)(void *object, void *context);                   /* brings to storage what was written; not with no_sync */
    /* A file, or a folder with all that lies in it: the target appears by this, once, so that it should be atomic. Nothing is at `to`. */
    int (*rename)(const char *from, const char *to, void *context);
    /* A file, or a folder with all that lies in it. */
    int (*remove)(const char *path, void *context);
};
#define RESHARD_STORE_INIT                                                                                                                 \
    {                                                                                                                                      \
        sizeof(reshard_store), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL                                \
    }

/*
 * Opens a file or folder of a store, as reshard_open does one of the file system; "" is its root. The struct is copied; name, context and
 * what is behind the functions must be there until *out is closed.
 *
 * Targets go to a store by reshard_convert_options.store, for reshard_convert, plans and writers: target_path is a path of the store then.
 * It is written below ".NAME.reshard-partial" in the same folder, renamed, and that is removed; what a killed run left there is removed by
 * the next, and that no other writes the same target is the caller's care. Nothing is resumed, or written in parts or by several ranks.
 *
 * With overwrite a checkpoint that is there is renamed to ".NAME.reshard-old" just before the new one gets its name, and removed then: a
 * store has no exchange. Killed between the two renames, a run leaves it under that name, from where the next one that writes the target
 * puts it back first. If the second rename fails, the first is undone. What is no checkpoint, and what the source has, is not replaced.
 */
reshard_status reshard_open_in(const reshard_store *store, const char *path, const reshard_open_options *options,
                               reshard_checkpoint **out, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
