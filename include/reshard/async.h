/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving in the background: a save copies the shards into memory of its own, which takes about as long as one memcpy, and returns; the job
 * goes on while the copy is written. Memory for copies is reused from save to save.
 *
 * Who writes. A thread of this process, or another program that lives on when the job crashes: it finishes what was begun and ends. That
 * program, reshard-saver, is installed with the library; it is looked for when the saver is opened, and not finding it is an error then. It
 * gets the copies as anonymous memory, which has no name and which no other user can open.
 *
 * Order. Saves are written and become visible in the order in which they were begun, one after the other. A save is all or nothing, as
 * reshard_convert is: until it is there, what was at its path stays as it was.
 *
 * Errors of a save come out of the next call that finds it finished: reshard_saver_test, reshard_saver_wait, reshard_saver_close, or the
 * next reshard_saver_save, which has then begun nothing and may be called again. The message says which save it was. A writer that was
 * killed is such an error; the next save starts another.
 *
 * Ranks. With a group of ranks every rank has a saver and begins the same saves in the same order; each copies what it has, and their
 * threads save it together as reshard_save does. Saves become visible once all ranks have written. A rank that cannot begin a save leaves
 * the others waiting until the group's timeout, unless it calls reshard_comm_abort.
 *
 * Memory. What a request points to is copied when reshard_saver_save returns, but for contexts, which must be there until the saver is
 * closed, and sharded, which stays the caller's.
 *
 * Failures. A save that could not be begun has taken nothing, and the saver can be used on, as after every other failure. After a failed
 * reshard_saver_open nothing was started; after reshard_saver_close the saver is gone, whatever it returns.
 *
 * Threads. One thread at a time uses a saver; which one does not matter. A process that is forked between open and close, without exec,
 * neither uses the saver nor frees it; it may outlive it.
 */
#ifndef RESHARD_ASYNC_H
#define RESHARD_ASYNC_H

#include "reshard/sharded.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_saver reshard_saver;

enum { RESHARD_SAVER_THREAD = 0, RESHARD_SAVER_PROCESS = 1 };

typedef struct reshard_saver_options {
    size_t struct_size;
    int64_t kind;        /* RESHARD_SAVER_... */
    const char *program; /* PROCESS: path of reshard-saver. NULL: the environment's RESHARD_SAVER_PROGRAM, else where it was installed */
    int64_t depth;       /* saves that may be under way at once, each with memory for its copy; 0: 1. One more save waits for the oldest */
    /* Copies values instead of memcpy, for those that lie where this process cannot read (a GPU's). Shards have no strides then. */
    int (*copy)(void *to, const void *from, size_t bytes, void *context);
    void *context;
    reshard_comm *comm; /* THREAD: the group, which nobody else uses until the saver is closed; NULL: this process is all */
    /* Called about ten times a second while _save or _wait waits for a save, by the thread that waits: to look for signals, say. Anything
     * but 0 ends the call with RESHARD_ERR_CANCELLED; saves go on. May be NULL. Since 0.3 */
    int (*waiting)(void *context);
} reshard_saver_options;
#define RESHARD_SAVER_OPTIONS_INIT                                                                                                         \
    {                                                                                                                                      \
        sizeof(reshard_saver_options), 0, NULL, 0, NULL, NULL, NULL, NULL                                                                  \
    }

typedef struct reshard_save_request {
    size_t struct_size;
    const reshard_state *state;             /* as for reshard_open_shards; may go or change when the call returns. Or NULL, and: */
    const char *path;                       /* of the checkpoint */
    const reshard_convert_options *options; /* as for reshard_convert; open, map, store, resume, part and callbacks must not be set */
    const reshard_run_options *run;         /* memory_bytes, threads and io; may be NULL */
    /* Called once the save is there, or has failed, by the thread that finds out, in the order of the saves: to move a `latest` file, to
     * remove an old checkpoint. May be NULL. Not to call the saver. */
    int (*finished)(int64_t number, reshard_status status, void *context);
    void *context;
    reshard_sharded *sharded; /* as for reshard_save, with its checks and main copies; factories are expanded */
} reshard_save_request;
#define RESHARD_SAVE_REQUEST_INIT                                                                                                          \
    {                                                                                                                                      \
        sizeof(reshard_save_request), NULL, NULL, NULL, NULL, NULL, NULL, NULL                                                             \
    }

/* options may be NULL. With RESHARD_SAVER_PROCESS the program is started here: RESHARD_ERR_IO if it is not there, and
 * RESHARD_ERR_UNSUPPORTED if it is of another version. */
reshard_status reshard_saver_open(const reshard_saver_options *options, reshard_saver **out, reshard_error *err);

/*
 * Begins a save. *number, which may be NULL: 0, 1, ... What is wrong with the request's form is found here, what is wrong with the state
 * (holes, overlaps) or the target by the writer.
 */
reshard_status reshard_saver_save(reshard_saver *saver, const reshard_save_request *request, int64_t *number, reshard_error *err);

/* How many saves are still under way; does not wait. */
reshard_status reshard_saver_test(reshard_saver *saver, int64_t *unfinished, reshard_error *err);

/* Waits for save `number` and those before it; -1: all. Returns at the first that has failed; those behind it go on. */
reshard_status reshard_saver_wait(reshard_saver *saver, int64_t number, reshard_error *err);

/* Waits for all, and frees the saver; the first error of those that nobody has heard of. */
reshard_status reshard_saver_close(reshard_saver *saver, reshard_error *err);

/* What reshard-saver does with the socket that it was started with: serves until the other side closes it. For a program of one's own in
 * its place. */
reshard_status reshard_saver_serve(int socket, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
