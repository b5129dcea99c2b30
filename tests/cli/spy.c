/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library for LD_PRELOAD that counts what options change and output does not show: threads, mapped files, reads and writes past the page
 * cache, syncs, the largest read, the bytes of all reads. At the end "name count" lines are written to the file that SPY_OUTPUT names.
 * SPY_LOCALE=NAME: the program has called setlocale before it calls the library, as a host program of it may have; the decimal comma is
 * counted. SPY_DAMAGE=1: a byte in the middle of every write of 512 bytes or more is wrong, as on a bad disk; SPY_DAMAGE=TEXT: the first
 * byte behind that text in what is written is.
 */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define DAMAGE_MIN 512

static atomic_ullong threads, maps, direct_reads, direct_writes, syncs, largest_read, reads_of_written, read_bytes;

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static int is_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) != 0;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *context)
{
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = next("pthread_create");
    threads++;
    return real(thread, attributes, start, context);
}

EXPORT void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t offset)
{
    void *(*real)(void *, size_t, int, int, int, off64_t) = next("mmap64");
    maps += fd >= 0;
    return real(address, size, protection, flags, fd, offset);
}

EXPORT ssize_t pread64(int fd, void *bytes, size_t size, off64_t offset)
{
    ssize_t (*real)(int, void *, size_t, off64_t) = next("pread64");
    ssize_t got = real(fd, bytes, size, offset);
    if (got > 0 && (unsigned long long)got > largest_read)
        largest_read = (unsigned long long)got;
    read_bytes += got > 0 ? (unsigned long long)got : 0;
    direct_reads += got > 0 && is_direct(fd);
    reads_of_written += got > 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR;
    return got;
}

/* The byte that arrives wrong; NULL: none does. */
static unsigned char *damaged_byte(const char *asked, unsigned char *bytes, size_t size)
{
    if (strcmp(asked, "1") == 0)
        return size >= DAMAGE_MIN ? bytes + size / 2 : NULL;
    unsigned char *found = memmem(bytes, size, asked, strlen(asked));
    return found && found + strlen(asked) < bytes + size ? found + strlen(asked) : NULL;
}

EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off64_t) = next("pwrite64");
    direct_writes += is_direct(fd);
    const char *asked = getenv("SPY_DAMAGE");
    unsigned char *damaged = asked ? malloc(size + 1) : NULL, *wrong;
    if (!damaged)
        return real(fd, bytes, size, offset);
    memcpy(damaged, bytes, size);
    if ((wrong = damaged_byte(asked, damaged, size)))
        *wrong ^= 1;
    ssize_t done = real(fd, damaged, size, offset);
    free(damaged);
    return done;
}

EXPORT int fsync(int fd)
{
    int (*real)(int) = next("fsync");
    syncs++;
    return real(fd);
}

EXPORT int fdatasync(int fd)
{
    int (*real)(int) = next("fdatasync");
    syncs++;
    return real(fd);
}

static unsigned commas;

__attribute__((constructor)) static void set_locale(void)
{
    const char *name = getenv("SPY_LOCALE");
    if (name && setlocale(LC_ALL, name))
        commas = localeconv()->decimal_point[0] == ',';
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("SPY_OUTPUT");
    FILE *out = path ? fopen(path, "w") : NULL;
    if (!out)
        return;
    fprintf(out,
            "threads %llu\nmaps %llu\ndirect_reads %llu\ndirect_writes %llu\nsyncs %llu\nlargest_read %llu\nreads_of_written "
            "%llu\nread_bytes %llu\n"
            "commas %u\n",
            threads, maps, direct_reads, direct_writes, syncs, largest_read, reads_of_written, read_bytes, commas);
    fclose(out);
}
