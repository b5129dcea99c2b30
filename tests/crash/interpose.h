/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the interposer share; the head comment of interpose.c says how it is used. */
#ifndef TESTS_CRASH_INTERPOSE_H
#define TESTS_CRASH_INTERPOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Every call that can be failed, in the words of the environment; interpose_rules.c has their groups. */
#define CALLS(X)                                                                                                                     \
    X(fsync) X(fdatasync) X(sync_file_range) X(renameat) X(renameat2) X(linkat) X(unlinkat) X(flock) X(fallocate) X(ftruncate)       \
    X(copy_file_range) X(pwrite) X(write) X(mkdirat) X(openat) X(openat2) X(close) X(fchmod) X(fchown)                               \
    X(pread) X(read) X(stat) X(fstat) X(fstatat) X(readlinkat) X(fdopendir) X(readdir) X(mmap) X(fcntl) X(fopen) X(realpath)         \
    X(pthread_create) X(pthread_mutex_init) X(pthread_cond_init) X(alloc) X(library_alloc)

enum call {
#define X(name) CALL_##name,
    CALLS(X)
#undef X
    CALL_COUNT
};

enum verdict {
    LET_PASS,
    MUST_FAIL, /* errno is set */
    MUST_FLIP, /* the call lies about one of the bytes that it writes */
};

/* Decides on the call that is about to happen, on a name or else on an open file; kills the process where that was asked for. */
enum verdict rules_before(enum call call, int fd, const char *name);
void rules_after(enum call call);
/* Whether the call is always refused, with errno set: the kernel or the file system does not offer it. */
bool rules_refuse(const char *feature);
/* SHIM_SILLY: a file that is open gets another name where it was to be removed, and loses that when it is closed. */
bool removal_renames(int directory_fd, const char *name);
void removal_closed(void);
/* How much of a transfer happens at once. */
size_t rules_shorten(size_t size);
/* Which calls, and what becomes of which of them: the nth, unless the environment says another for all runs. */
void rules_load(uint64_t nth);
/* Nothing is counted any more. */
void rules_stop(void);

/* One line of the log of calls; -1 and NULL where a call has no such thing. Bytes are those written, if data is not NULL. */
struct entry {
    enum call call;
    int64_t result;
    int directory_fd, other_directory_fd, fd;
    const char *name, *other_name;
    int64_t flags, offset;
    const void *data;
};
#define NO_ENTRY { .directory_fd = -1, .other_directory_fd = -1, .fd = -1, .offset = -1 }

void log_open(void);
void log_close(void);
void log_begin(void);
void log_end(const struct entry *entry);

/* What one run reports to the process that forks the runs. */
struct outcome {
    uint64_t calls;      /* that the rule applied to */
    bool is_begun, was_hit, is_finished, has_status;
    int status; /* exit status, or minus the signal */
    char what[256];      /* the call that was hit, and its file */
    uint64_t live_blocks, open_files;
    uintptr_t leak_from; /* who allocated one of the live blocks, relative to its library */
};
extern struct outcome *outcome;

/* libc, its loader, the kernel's own and this library, by the path of a loaded object. */
bool is_of_system(const char *path);

/* Blocks that were allocated for the command since the beginning and not given back; *from is where one of them was asked for. */
void allocations_begin(void);
uint64_t allocations_live(uintptr_t *from);

/* Runs the real main once for each number in SHIM_RUNS, as if each were a process of its own. */
int serve(int (*run)(int, char **, char **), int argc, char **argv, char **environment);

#endif
