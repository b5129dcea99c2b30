/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD that stands between the command and libc: it logs calls, fails them, kills the process at one of them, refuses
 * what some kernels lack, shortens transfers and flips bits that are written. Tests set (tests/crash/shim.py does it for them):
 *
 *   SHIM_CALLS=NAME,…      the calls that SHIM_ACT is about: names of CALLS in interpose.h, or a group of interpose_rules.c (disk, look, …)
 *   SHIM_ACT=WORD[:ERRNO]  fail, fail-on (that and all later ones), kill-before, kill-after, flip (one bit in the middle of what
 *                          is written)
 *   SHIM_NTH=N             the Nth of these calls, counted from 1
 *   SHIM_PATH=TEXT         only calls about a file whose path contains this
 *   SHIM_REFUSE=NAME=ERRNO,…  always: calls, or O_DIRECT, RENAME_EXCHANGE, RENAME_NOREPLACE
 *   SHIM_SILLY=1           a file that is removed while it is open stays in its folder until it is closed, as on NFS
 *   SHIM_SHORT=BYTES       no read, write or copy moves more than this at once
 *   SHIM_HURRY=SECONDS     each look at the monotonic clock finds it so much later
 *   SHIM_LOG=FILE          every call that changes files, in order, and with FILE.data the bytes; disk_model.py reads it
 *   SHIM_RUNS=A-B SHIM_DIRECTORY=DIR SHIM_REPORT=FILE  main runs once for each N in A..B, in directory DIR/N, with DIR/N.out and DIR/N.err
 *                          as output; a line for each is appended to FILE (interpose_serve.c)
 *
 * One corrupted byte:  LD_PRELOAD=build/tests/crash/libinterpose.so SHIM_CALLS=pwrite,copy_file_range SHIM_ACT=flip
 *                      SHIM_NTH=1 reshard convert …
 * Allocations are counted when libreshard or the command ask for them ("alloc"), or when any other library but libc does ("library_alloc").
 */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(type, name, of, parameters) EXPORT type name parameters __attribute__((alias(#of)))

/* The function that the caller would have got without us. */
#define NEXT(name, type, ...)                                \
    static type (*next)(__VA_ARGS__);                        \
    if (!next)                                               \
        next = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* ---- calls on an open file ---- */

#define ON_FILE(name, parameters, arguments, types, length)                 \
    EXPORT int name parameters                                              \
    {                                                                       \
        NEXT(name, int, types);                                             \
        log_begin();                                                        \
        struct entry entry = NO_ENTRY;                                      \
        entry.call = CALL_##name;                                           \
        entry.fd = fd;                                                      \
        entry.offset = (int64_t)(length);                                   \
        entry.result = rules_before(CALL_##name, fd, NULL) ? -1 : next arguments;    \
        log_end(&entry);                                                    \
        rules_after(CALL_##name);                                           \
        return (int)entry.result;                                           \
    }
#define TYPES(...) __VA_ARGS__

ON_FILE(fsync, (int fd), (fd), int, 0)
ON_FILE(fdatasync, (int fd), (fd), int, 0)
ON_FILE(sync_file_range, (int fd, off_t offset, off_t size, unsigned flags), (fd, offset, size, flags), TYPES(int, off_t, off_t, unsigned),
        0)
ON_FILE(flock, (int fd, int how), (fd, how), TYPES(int, int), 0)
ON_FILE(fallocate, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size), TYPES(int, int, off_t, off_t), offset + size)
ON_FILE(ftruncate, (int fd, off_t size), (fd, size), TYPES(int, off_t), size)
ON_FILE(fchmod, (int fd, mode_t mode), (fd, mode), TYPES(int, mode_t), 0)
ON_FILE(fchown, (int fd, uid_t owner, gid_t group), (fd, owner, group), TYPES(int, uid_t, gid_t), 0)
ALIAS(int, fallocate64, fallocate, (int fd, int mode, off64_t offset, off64_t size));
ALIAS(int, ftruncate64, ftruncate, (int fd, off64_t size));

/* A close that fails has closed all the same. */
EXPORT int close(int fd)
{
    NEXT(close, int, int);
    bool fails = rules_before(CALL_close, fd, NULL) == MUST_FAIL;
    int number = errno, result = next(fd);
    removal_closed();
    rules_after(CALL_close);
    if (fails)
        errno = number;
    return fails ? -1 : result;
}

/* ---- transfers ---- */

static void flip_bit(int fd, off_t offset)
{
    unsigned char byte;
    if (syscall(SYS_pread64, fd, &byte, (size_t)1, offset) == 1) {
        byte ^= 0x10;
        syscall(SYS_pwrite64, fd, &byte, (size_t)1, offset);
    }
}

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    enum verdict verdict = rules_before(CALL_pwrite, fd, NULL);
    ssize_t result = verdict == MUST_FAIL ? -1 : syscall(SYS_pwrite64, fd, bytes, rules_shorten(size), offset);
    if (verdict == MUST_FLIP && result > 0)
        flip_bit(fd, offset + result / 2);
    entry.call = CALL_pwrite;
    entry.fd = fd;
    entry.offset = offset;
    entry.result = result;
    entry.data = bytes;
    log_end(&entry);
    rules_after(CALL_pwrite);
    return result;
}
ALIAS(ssize_t, pwrite64, pwrite, (int fd, const void *bytes, size_t size, off64_t offset));

EXPORT ssize_t write(int fd, const void *bytes, size_t size)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    enum verdict verdict = rules_before(CALL_write, fd, NULL);
    entry.offset = lseek(fd, 0, SEEK_CUR);
    entry.result = verdict == MUST_FAIL ? -1 : syscall(SYS_write, fd, bytes, rules_shorten(size));
    entry.call = CALL_write;
    entry.fd = fd;
    entry.data = bytes;
    log_end(&entry);
    rules_after(CALL_write);
    return (ssize_t)entry.result;
}

EXPORT ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    return rules_before(CALL_pread, fd, NULL) ? -1 : syscall(SYS_pread64, fd, bytes, rules_shorten(size), offset);
}
ALIAS(ssize_t, pread64, pread, (int fd, void *bytes, size_t size, off64_t offset));

EXPORT ssize_t read(int fd, void *bytes, size_t size)
{
    return rules_before(CALL_read, fd, NULL) ? -1 : syscall(SYS_read, fd, bytes, rules_shorten(size));
}

EXPORT ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size, unsigned flags)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    enum verdict verdict = rules_before(CALL_copy_file_range, to, NULL);
    entry.call = CALL_copy_file_range;
    entry.fd = to;
    entry.offset = to_offset ? *to_offset : lseek(to, 0, SEEK_CUR);
    entry.result = verdict == MUST_FAIL || rules_refuse("copy_file_range")
                       ? -1 : syscall(SYS_copy_file_range, from, from_offset, to, to_offset, rules_shorten(size), flags);
    if (verdict == MUST_FLIP && entry.result > 0)
        flip_bit(to, entry.offset + entry.result / 2);
    log_end(&entry);
    rules_after(CALL_copy_file_range);
    return (ssize_t)entry.result;
}

/* ---- names ---- */

static int rename_logged(enum call call, int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    bool refused =
        (flags & RENAME_EXCHANGE && rules_refuse("RENAME_EXCHANGE")) || (flags & RENAME_NOREPLACE && rules_refuse("RENAME_NOREPLACE"));
    entry.call = call;
    entry.directory_fd = from_fd;
    entry.name = from;
    entry.other_directory_fd = to_fd;
    entry.other_name = to;
    entry.flags = flags;
    entry.result = rules_before(call, -1, to) || refused ? -1 : syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    log_end(&entry);
    rules_after(call);
    return (int)entry.result;
}

EXPORT int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return rename_logged(CALL_renameat2, from_fd, from, to_fd, to, flags);
}

EXPORT int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return rename_logged(CALL_renameat, from_fd, from, to_fd, to, 0);
}

EXPORT int rename(const char *from, const char *to)
{
    return rename_logged(CALL_renameat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

EXPORT int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    entry.call = CALL_linkat;
    entry.directory_fd = from_fd;
    entry.name = from;
    entry.other_directory_fd = to_fd;
    entry.other_name = to;
    entry.result = rules_before(CALL_linkat, -1, to) || rules_refuse("linkat") ? -1 : syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
    log_end(&entry);
    rules_after(CALL_linkat);
    return (int)entry.result;
}

EXPORT int unlinkat(int directory_fd, const char *name, int flags)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    entry.call = CALL_unlinkat;
    entry.directory_fd = directory_fd;
    entry.name = name;
    entry.flags = flags;
    const bool is_refused = rules_before(CALL_unlinkat, -1, name) != LET_PASS;
    if (is_refused || flags || !removal_renames(directory_fd, name))
        entry.result = is_refused ? -1 : syscall(SYS_unlinkat, directory_fd, name, flags);
    log_end(&entry);
    rules_after(CALL_unlinkat);
    return (int)entry.result;
}

EXPORT int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

EXPORT int rmdir(const char *name)
{
    return unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

EXPORT int mkdirat(int directory_fd, const char *name, mode_t mode)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    entry.call = CALL_mkdirat;
    entry.directory_fd = directory_fd;
    entry.name = name;
    entry.result = rules_before(CALL_mkdirat, -1, name) ? -1 : syscall(SYS_mkdirat, directory_fd, name, mode);
    log_end(&entry);
    rules_after(CALL_mkdirat);
    return (int)entry.result;
}

EXPORT int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}

static int open_logged(int directory_fd, const char *name, int flags, mode_t mode)
{
    log_begin();
    struct entry entry = NO_ENTRY;
    bool refused = rules_before(CALL_openat, -1, name) || (flags & O_DIRECT && rules_refuse("O_DIRECT"));
    entry.call = CALL_openat;
    entry.directory_fd = directory_fd;
    entry.name = name;
    entry.flags = flags;
    entry.result = refused ? -1 : syscall(SYS_openat, directory_fd, name, flags, mode);
    entry.fd = (int)entry.result;
    log_end(&entry);
    rules_after(CALL_openat);
    return (int)entry.result;
}

#define TAKE_MODE                                                           \
    mode_t mode = 0;                                                        \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {              \
        va_list args;                                                       \
        va_start(args, flags);                                              \
        mode = va_arg(args, mode_t);                                        \
        va_end(args);                                                       \
    }

EXPORT int openat(int directory_fd, const char *name, int flags, ...)
{
    TAKE_MODE
    return open_logged(directory_fd, name, flags, mode);
}
ALIAS(int, openat64, openat, (int directory_fd, const char *name, int flags, ...));

EXPORT int open(const char *name, int flags, ...)
{
    TAKE_MODE
    return open_logged(AT_FDCWD, name, flags, mode);
}
ALIAS(int, open64, open, (const char *name, int flags, ...));

/* openat2 has no function of its own in libc. */
EXPORT long syscall(long number, ...)
{
    NEXT(syscall, long, long, ...);
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_openat2 && (rules_before(CALL_openat2, -1, (const char *)a[1]) || rules_refuse("openat2")))
        return -1;
    long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_openat2)
        rules_after(CALL_openat2);
    return result;
}

/* ---- calls that only look ---- */

#define LOOK(type, name, call, parameters, arguments, types, about, failure) \
    EXPORT type name parameters                                              \
    {                                                                        \
        NEXT(name, type, types);                                             \
        return about ? failure : next arguments;                             \
    }

LOOK(int, stat, stat, (const char *path, struct stat *out), (path, out), TYPES(const char *, struct stat *),
     rules_before(CALL_stat, -1, path), -1)
LOOK(int, lstat, stat, (const char *path, struct stat *out), (path, out), TYPES(const char *, struct stat *),
     rules_before(CALL_stat, -1, path), -1)
LOOK(int, fstat, fstat, (int fd, struct stat *out), (fd, out), TYPES(int, struct stat *), rules_before(CALL_fstat, fd, NULL), -1)
LOOK(int, fstatat, fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags),
     TYPES(int, const char *, struct stat *, int), rules_before(CALL_fstatat, -1, path), -1)
LOOK(int, stat64, stat, (const char *path, struct stat64 *out), (path, out), TYPES(const char *, struct stat64 *),
     rules_before(CALL_stat, -1, path), -1)
LOOK(int, lstat64, stat, (const char *path, struct stat64 *out), (path, out), TYPES(const char *, struct stat64 *),
     rules_before(CALL_stat, -1, path), -1)
LOOK(int, fstat64, fstat, (int fd, struct stat64 *out), (fd, out), TYPES(int, struct stat64 *), rules_before(CALL_fstat, fd, NULL), -1)
LOOK(int, fstatat64, fstatat, (int fd, const char *path, struct stat64 *out, int flags), (fd, path, out, flags),
     TYPES(int, const char *, struct stat64 *, int), rules_before(CALL_fstatat, -1, path), -1)
LOOK(ssize_t, readlinkat, readlinkat, (int fd, const char *path, char *out, size_t size), (fd, path, out, size),
     TYPES(int, const char *, char *, size_t), rules_before(CALL_readlinkat, -1, path), -1)
LOOK(DIR *, fdopendir, fdopendir, (int fd), (fd), int, rules_before(CALL_fdopendir, fd, NULL), NULL)
LOOK(struct dirent *, readdir, readdir, (DIR *stream), (stream), DIR *, rules_before(CALL_readdir, dirfd(stream), NULL), NULL)
LOOK(struct dirent64 *, readdir64, readdir, (DIR *stream), (stream), DIR *, rules_before(CALL_readdir, dirfd(stream), NULL), NULL)
LOOK(char *, realpath, realpath, (const char *path, char *out), (path, out), TYPES(const char *, char *),
     rules_before(CALL_realpath, -1, path), NULL)
LOOK(FILE *, fopen, fopen, (const char *path, const char *mode), (path, mode), TYPES(const char *, const char *),
     rules_before(CALL_fopen, -1, path), NULL)
LOOK(FILE *, fopen64, fopen, (const char *path, const char *mode), (path, mode), TYPES(const char *, const char *),
     rules_before(CALL_fopen, -1, path), NULL)

/* Mappings without a file are memory of the allocator's kind. */
LOOK(void *, mmap, mmap, (void *address, size_t size, int protection, int flags, int fd, off_t offset),
     (address, size, protection, flags, fd, offset), TYPES(void *, size_t, int, int, int, off_t), rules_before(CALL_mmap, -1, "memory"),
     MAP_FAILED)
LOOK(void *, mmap64, mmap, (void *address, size_t size, int protection, int flags, int fd, off64_t offset),
     (address, size, protection, flags, fd, offset), TYPES(void *, size_t, int, int, int, off64_t), rules_before(CALL_mmap, -1, "memory"),
     MAP_FAILED)

/* Those of pthreads return their error. */
LOOK(int, pthread_create, pthread_create, (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *with),
     (thread, how, run, with), TYPES(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *),
     rules_before(CALL_pthread_create, -1, ""), EAGAIN)
LOOK(int, pthread_mutex_init, pthread_mutex_init, (pthread_mutex_t *lock, const pthread_mutexattr_t *how), (lock, how),
     TYPES(pthread_mutex_t *, const pthread_mutexattr_t *), rules_before(CALL_pthread_mutex_init, -1, ""), ENOMEM)
LOOK(int, pthread_cond_init, pthread_cond_init, (pthread_cond_t *cond, const pthread_condattr_t *how), (cond, how),
     TYPES(pthread_cond_t *, const pthread_condattr_t *), rules_before(CALL_pthread_cond_init, -1, ""), ENOMEM)

EXPORT int fcntl(int fd, int command, ...)
{
    va_list args;
    va_start(args, command);
    long argument = va_arg(args, long);
    va_end(args);
    return rules_before(CALL_fcntl, fd, NULL) ? -1 : (int)syscall(SYS_fcntl, fd, command, argument);
}
ALIAS(int, fcntl64, fcntl, (int fd, int command, ...));

EXPORT int clock_gettime(clockid_t clock, struct timespec *out)
{
    static long seconds_ahead;
    NEXT(clock_gettime, int, clockid_t, struct timespec *);
    const char *hurry = getenv("SHIM_HURRY");
    int result = next(clock, out);
    if (hurry && clock == CLOCK_MONOTONIC)
        out->tv_sec += __atomic_add_fetch(&seconds_ahead, atol(hurry), __ATOMIC_RELAXED);
    return result;
}

/* ---- main ---- */

static int (*real_main)(int, char **, char **);

static int shim_main(int argc, char **argv, char **environment)
{
    return serve(real_main, argc, argv, environment);
}

int __libc_start_main(int (*run)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void), void (*end)(void),
                      void *stack);

/* All libraries are ready by then. */
EXPORT int __libc_start_main(int (*run)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                             void (*end)(void), void *stack)
{
    NEXT(__libc_start_main, int, int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    real_main = run;
    return next(shim_main, argc, argv, init, fini, end, stack);
}
