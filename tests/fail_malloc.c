/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_malloc.h"

#include "base/arena.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static atomic_long left, left_in_arenas; /* allocations until the failure; 0: off */
static atomic_long begun;                 /* with how many */
static atomic_bool was_hit, refuses_less; /* the next malloc after the failure fails as well */
static atomic_size_t refused;             /* bytes */

/* The linker gives the wrapped functions these names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_reallocarray(void *memory, size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t count, size_t size);

unsigned long fail_step_max(void)
{
    const char *said = getenv("RESHARD_FAULT_STEP");
    unsigned long step = said ? strtoul(said, NULL, 10) : 0;
    return step ? step : FAIL_STEP;
}

unsigned long fail_stride(void)
{
    unsigned long stride = fail_step_max() / FAIL_STEP;
    return stride ? stride : 1;
}

unsigned long fail_next(unsigned long nth)
{
    static unsigned long drawn;
    if (getenv("RESHARD_EVERY_FAULT") || nth < 10)
        return nth + 1;
    if (!drawn) {
        const char *seed = getenv("RESHARD_FAULT_SEED");
        drawn = seed ? strtoul(seed, NULL, 10) : 1;
    }
    drawn = drawn * 6364136223846793005UL + 1442695040888963407UL;
    return nth + 1 + (drawn >> 33) % fail_step_max();
}

void fail_malloc_once_at(unsigned long nth)
{
    was_hit = refuses_less = false;
    refused = 0;
    left = begun = (long)nth;
    left_in_arenas = 0;
}

void fail_malloc_at(unsigned long nth)
{
    fail_malloc_once_at(nth);
    refuses_less = true;
}

void fail_arena_at(unsigned long nth)
{
    fail_malloc_once_at(0);
    left_in_arenas = begun = (long)nth;
}

unsigned long fail_malloc_calls(void)
{
    return (unsigned long)(begun - left - left_in_arenas);
}

bool fail_malloc_was_hit(void)
{
    left = left_in_arenas = 0;
    refused = 0;
    return was_hit;
}

static bool count_down(atomic_long *until)
{
    if (*until <= 0 || --*until != 0)
        return false;
    was_hit = true;
    errno = ENOMEM;
    return true;
}

static bool is_the_one(void)
{
    return count_down(&left);
}

/*
 * Behind every block lie a few bytes that are no sensible number or pointer: what reads one element too far gets these, and not by luck
 * the zeros of fresh memory. AddressSanitizer has its own, which also stop who writes there.
 */
#ifdef __SANITIZE_ADDRESS__
#define GUARD_BYTES 0
#else
#define GUARD_BYTES 16
#endif

static void *guarded(char *memory, size_t size)
{
    for (size_t i = 0; memory && i != GUARD_BYTES; i++)
        memory[size + i] = (char)0xa5;
    return memory;
}

/* Room for the guard; what overflows is left to the allocator to refuse. */
static size_t guarded_size(size_t size)
{
    return size > SIZE_MAX - GUARD_BYTES ? size : size + GUARD_BYTES;
}

void *__wrap_malloc(size_t size)
{
    const size_t before = atomic_exchange(&refused, 0);
    if (size < before) {
        errno = ENOMEM;
        return NULL;
    }
    if (!is_the_one())
        return guarded(__real_malloc(guarded_size(size)), size);
    refused = refuses_less ? size : 0;
    return NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (is_the_one())
        return NULL;
    if (__builtin_mul_overflow(count, size, &bytes))
        return __real_calloc(count, size);
    return guarded(__real_calloc(1, guarded_size(bytes)), bytes);
}

void *__wrap_realloc(void *memory, size_t size)
{
    if (is_the_one())
        return NULL;
    return size ? guarded(__real_realloc(memory, guarded_size(size)), size) : __real_realloc(memory, size);
}

void *__wrap_reallocarray(void *memory, size_t count, size_t size)
{
    size_t bytes;
    if (is_the_one())
        return NULL;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes == 0)
        return __real_reallocarray(memory, count, size);
    return guarded(__real_realloc(memory, guarded_size(bytes)), bytes);
}

/* ---- what allocates by itself ---- */

char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
int __real_vasprintf(char **out, const char *format, va_list args);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
int __wrap_asprintf(char **out, const char *format, ...);
int __wrap_vasprintf(char **out, const char *format, va_list args);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

char *__wrap_strdup(const char *text)
{
    return is_the_one() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return is_the_one() ? NULL : __real_strndup(text, size);
}

/* What a failure leaves in *out is not said: here nothing that can be used. */
int __wrap_vasprintf(char **out, const char *format, va_list args)
{
    if (!is_the_one())
        return __real_vasprintf(out, format, args);
    *out = (char *)(uintptr_t)0xa5a5a5;
    return -1;
}

int __wrap_asprintf(char **out, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = __wrap_vasprintf(out, format, args);
    va_end(args);
    return size;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    return is_the_one() ? ENOMEM : __real_posix_memalign(out, alignment, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_the_one() ? NULL : __real_aligned_alloc(alignment, size);
}

/* ---- arenas ---- */

void *__real_arena_alloc(struct arena *arena, size_t size);
void *__real_arena_zalloc(struct arena *arena, size_t size);
void *__real_arena_array(struct arena *arena, size_t count, size_t element_size);
char *__real_arena_copy(struct arena *arena, const void *bytes, size_t size);
bool __real_arena_str(struct arena *arena, struct str s, struct str *out);
void *__wrap_arena_alloc(struct arena *arena, size_t size);
void *__wrap_arena_zalloc(struct arena *arena, size_t size);
void *__wrap_arena_array(struct arena *arena, size_t count, size_t element_size);
char *__wrap_arena_copy(struct arena *arena, const void *bytes, size_t size);
bool __wrap_arena_str(struct arena *arena, struct str s, struct str *out);
char *__wrap_arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

void *__wrap_arena_alloc(struct arena *arena, size_t size)
{
    return count_down(&left_in_arenas) ? NULL : __real_arena_alloc(arena, size);
}

void *__wrap_arena_zalloc(struct arena *arena, size_t size)
{
    return count_down(&left_in_arenas) ? NULL : __real_arena_zalloc(arena, size);
}

void *__wrap_arena_array(struct arena *arena, size_t count, size_t element_size)
{
    return count_down(&left_in_arenas) ? NULL : __real_arena_array(arena, count, element_size);
}

char *__wrap_arena_copy(struct arena *arena, const void *bytes, size_t size)
{
    return count_down(&left_in_arenas) ? NULL : __real_arena_copy(arena, bytes, size);
}

bool __wrap_arena_str(struct arena *arena, struct str s, struct str *out)
{
    return !count_down(&left_in_arenas) && __real_arena_str(arena, s, out);
}

char *__wrap_arena_printf(struct arena *arena, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = count_down(&left_in_arenas) ? NULL : arena_vprintf(arena, format, arguments);
    va_end(arguments);
    return text;
}
