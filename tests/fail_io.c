/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long left; /* calls until the failure; 0: off */
static atomic_ulong calls;
static atomic_bool was_hit, sticky;
static int error_number;

void fail_io_at(unsigned long nth, int error, bool is_sticky)
{
    was_hit = false;
    sticky = is_sticky;
    error_number = error;
    calls = 0;
    left = (long)nth;
}

bool fail_io_was_hit(void)
{
    left = 0;
    return was_hit;
}

unsigned long fail_io_calls(void)
{
    return calls;
}

static bool must_fail(void)
{
    calls++;
    if (left <= 0 && !(sticky && was_hit && left < 0))
        return false;
    if (--left > 0)
        return false;
    if (left == 0)
        left = sticky ? -1 : 0;
    was_hit = true;
    errno = error_number;
    return true;
}

/* The linker gives the wrapped functions these names; with 64-bit file offsets glibc's have a suffix. */
#define WRAP(type, name, parameters, arguments)  \
    type __real_##name parameters;               \
    type __wrap_##name parameters;               \
    type __wrap_##name parameters                \
    {                                            \
        return must_fail() ? (type)-1 : __real_##name arguments; \
    }

WRAP(ssize_t, pread64, (int fd, void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))
WRAP(ssize_t, pwrite64, (int fd, const void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))
WRAP(int, ftruncate64, (int fd, off_t size), (fd, size))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
WRAP(ssize_t, copy_file_range, (int in, off_t *in_offset, int out, off_t *out_offset, size_t size, unsigned flags),
     (in, in_offset, out, out_offset, size, flags))

int __real_openat64(int fd, const char *path, int flags, ...);
int __wrap_openat64(int fd, const char *path, int flags, ...);
int __wrap_openat64(int fd, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    return must_fail() ? -1 : __real_openat64(fd, path, flags, mode);
}
