/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations: which of them are the command's own, failing them, and those that are never given back. */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define RANGES_MAX 32
#define LIVE_MAX UINT16_MAX
#define PLACES (1u << 16)
#define POISON_BYTES_MAX 4096 /* larger blocks are buffers: to fill them all would cost more than it shows */

/* The allocator itself, under the names by which glibc lets it be called from such a library. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static struct range {
    uintptr_t begin, end, base;
    enum call call;
} ranges[RANGES_MAX];
static size_t range_count;
static bool is_ready;

/* By address a hash table with open addressing; a block that was given back leaves its key behind with no origin. Each of thousands of runs
 * touches these pages anew, so that few of them are touched: blocks stand in the order in which they came, and neighbours have places that
 * are neighbours. */
static struct live {
    void *memory;
    uintptr_t from;
    uint16_t *place;
} live[LIVE_MAX];
static size_t live_count;
static uint16_t places[PLACES]; /* number in live, from 1 */
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool is_of_system(const char *path)
{
    static const char *const names[] = { "libc.", "ld-", "libinterpose", "linux-vdso" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strncmp(file_name(path), names[i], strlen(names[i])) == 0)
            return true;
    }
    return false;
}

static int add_range(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size, (void)context;
    if (is_of_system(info->dlpi_name))
        return 0;
    bool is_own = !info->dlpi_name[0] || strncmp(file_name(info->dlpi_name), "libreshard.so", 13) == 0;
    for (int i = 0; i < info->dlpi_phnum && range_count < RANGES_MAX; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X)
            ranges[range_count++] = (struct range){ info->dlpi_addr + part->p_vaddr, info->dlpi_addr + part->p_vaddr + part->p_memsz,
                                                    info->dlpi_addr, is_own ? CALL_alloc : CALL_library_alloc };
    }
    return 0;
}

void allocations_begin(void)
{
    while (live_count)
        *live[--live_count].place = 0;
    range_count = 0;
    dl_iterate_phdr(add_range, NULL);
    is_ready = true;
}

static const struct range *range_of(uintptr_t from)
{
    for (size_t i = 0; is_ready && i < range_count; i++) {
        if (from >= ranges[i].begin && from < ranges[i].end)
            return &ranges[i];
    }
    return NULL;
}

static bool fails(uintptr_t from)
{
    const struct range *range = range_of(from);
    return range && rules_before(range->call, -1, "") == MUST_FAIL;
}

/* That of a block, or where it would be; more than LIVE_MAX are not noted. */
static uint16_t *place_of(const void *memory)
{
    size_t slot = ((uintptr_t)memory >> 4) % PLACES;
    while (places[slot] && live[places[slot] - 1].memory != memory)
        slot = (slot + 1) % PLACES;
    return &places[slot];
}

static void *note(void *memory, uintptr_t from)
{
    const struct range *range = range_of(from);
    if (!memory || !range || range->call != CALL_alloc)
        return memory;
    pthread_mutex_lock(&live_lock);
    uint16_t *place = place_of(memory);
    if (!*place && live_count < LIVE_MAX)
        *place = (uint16_t)++live_count;
    if (*place)
        live[*place - 1] = (struct live){ memory, from - range->base, place };
    pthread_mutex_unlock(&live_lock);
    return memory;
}

static void forget(const void *memory)
{
    if (!memory || !is_ready)
        return;
    pthread_mutex_lock(&live_lock);
    const uint16_t *place = place_of(memory);
    if (*place)
        live[*place - 1].from = 0;
    pthread_mutex_unlock(&live_lock);
}

uint64_t allocations_live(uintptr_t *from)
{
    uint64_t count = 0;
    for (size_t i = 0; i < live_count; i++) {
        if (live[i].from) {
            *from = live[i].from;
            count++;
        }
    }
    return count;
}

/* Fresh memory is no zeros, and memory that was given back is not what it was. */
static void *poison(void *memory, int byte)
{
    size_t size = memory && is_ready ? malloc_usable_size(memory) : 0;
    if (size <= POISON_BYTES_MAX && size)
        memset(memory, byte, size);
    return memory;
}

#define CALLER (uintptr_t)__builtin_return_address(0)

EXPORT void *malloc(size_t size)
{
    uintptr_t from = CALLER;
    return fails(from) ? NULL : note(poison(__libc_malloc(size), 0xA5), from);
}

EXPORT void *calloc(size_t count, size_t size)
{
    uintptr_t from = CALLER;
    return fails(from) ? NULL : note(__libc_calloc(count, size), from);
}

static void *resize(void *memory, size_t size, uintptr_t from)
{
    if (fails(from))
        return NULL;
    forget(memory);
    void *moved = __libc_realloc(memory, size);
    return note(moved ? moved : size ? memory : NULL, from) == moved ? moved : NULL;
}

EXPORT void *realloc(void *memory, size_t size)
{
    return resize(memory, size, CALLER);
}

EXPORT void *reallocarray(void *memory, size_t count, size_t size)
{
    size_t bytes;
    if (!__builtin_mul_overflow(count, size, &bytes))
        return resize(memory, bytes, CALLER);
    errno = ENOMEM;
    return NULL;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    uintptr_t from = CALLER;
    return fails(from) ? NULL : note(poison(__libc_memalign(alignment, size), 0xA5), from);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
    uintptr_t from = CALLER;
    void *memory = fails(from) ? NULL : note(poison(__libc_memalign(alignment, size), 0xA5), from);
    if (memory)
        *out = memory;
    return memory ? 0 : ENOMEM;
}

EXPORT void free(void *memory)
{
    forget(memory);
    __libc_free(poison(memory, 0x5A));
}

static char *copy(const char *text, size_t size, uintptr_t from)
{
    char *out = fails(from) ? NULL : note(__libc_malloc(size + 1), from);
    if (out) {
        memcpy(out, text, size);
        out[size] = '\0';
    }
    return out;
}

EXPORT char *strdup(const char *text)
{
    return copy(text, strlen(text), CALLER);
}

EXPORT char *strndup(const char *text, size_t size)
{
    return copy(text, strnlen(text, size), CALLER);
}

static int print(char **out, const char *format, va_list args, uintptr_t from)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    char *text = size < 0 || fails(from) ? NULL : note(__libc_malloc((size_t)size + 1), from);
    if (text)
        vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    *out = text; /* undefined on failure, by the manual: NULL hides nothing that a caller could rely on */
    return text ? size : -1;
}

EXPORT int vasprintf(char **out, const char *format, va_list args)
{
    return print(out, format, args, CALLER);
}

EXPORT int asprintf(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = print(out, format, args, CALLER);
    va_end(args);
    return size;
}

/* What these are called in a build with _FORTIFY_SOURCE. */
int __vasprintf_chk(char **out, int flag, const char *format, va_list args);
int __asprintf_chk(char **out, int flag, const char *format, ...);

EXPORT int __vasprintf_chk(char **out, int flag, const char *format, va_list args)
{
    (void)flag;
    return print(out, format, args, CALLER);
}

EXPORT int __asprintf_chk(char **out, int flag, const char *format, ...)
{
    (void)flag;
    va_list args;
    va_start(args, format);
    int size = print(out, format, args, CALLER);
    va_end(args);
    return size;
}
