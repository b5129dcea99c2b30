/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_malloc.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_long left; /* allocations until the failure; 0: off */
static atomic_bool was_hit;

/* The linker gives the wrapped functions these names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_reallocarray(void *memory, size_t count, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_reallocarray(void *memory, size_t count, size_t size);

void fail_malloc_at(unsigned long nth)
{
    was_hit = false;
    left = (long)nth;
}

bool fail_malloc_was_hit(void)
{
    left = 0;
    return was_hit;
}

static bool is_the_one(void)
{
    if (left <= 0 || --left != 0)
        return false;
    was_hit = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return is_the_one() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_the_one() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size)
{
    return is_the_one() ? NULL : __real_realloc(memory, size);
}

void *__wrap_reallocarray(void *memory, size_t count, size_t size)
{
    return is_the_one() ? NULL : __real_reallocarray(memory, count, size);
}
