/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/sanitizer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * For AddressSanitizer nothing of a block may be touched but what has been given out, and there is a guard behind each allocation. It
 * keeps account of 8 bytes at a time, so that allocations begin at a multiple of that.
 */
#ifdef HAS_ASAN
#define GUARD_BYTES 8
#define ALIGN_MIN 8
#define FORBID(start, size) ASAN_POISON_MEMORY_REGION(start, size)
#define PERMIT(start, size) ASAN_UNPOISON_MEMORY_REGION(start, size)
#else
#define GUARD_BYTES 0
#define ALIGN_MIN 1
#define FORBID(start, size) ((void)0)
#define PERMIT(start, size) ((void)0)
#endif

#define ARENA_ALIGN 16
#define BLOCK_BYTES_MIN 1024
#define BLOCK_BYTES_MAX ((size_t)1 << 20)

/* The header is as large as the alignment, so that what follows it is aligned. */
struct arena_block {
    struct arena_block *below;
    size_t bytes;
};
_Static_assert(sizeof(struct arena_block) <= ARENA_ALIGN, "the block's payload starts aligned");

static bool bytes_fit(const struct arena *arena, size_t bytes)
{
    return arena->bytes_max == 0 || (arena->bytes_used <= arena->bytes_max && bytes <= arena->bytes_max - arena->bytes_used);
}

static struct arena_block *block_new(struct arena *arena, size_t bytes)
{
    if (!bytes_fit(arena, bytes) || !work_take(arena->work, bytes))
        return NULL;
    struct arena_block *block = malloc(bytes);
    if (!block)
        return NULL;
    block->bytes = bytes;
    FORBID((char *)block + ARENA_ALIGN, bytes - ARENA_ALIGN);
    arena->bytes_used += bytes;
    return block;
}

/*
 * What is large next to a block gets one of its own, below the current one, whose rest stays in use. A block that the
 * limit no longer allows is tried once more at the size that is asked for.
 */
static void *take_from_new_block(struct arena *arena, size_t size)
{
    if (size > SIZE_MAX - ARENA_ALIGN - GUARD_BYTES)
        return NULL;
    size_t needed = size + ARENA_ALIGN + GUARD_BYTES;
    size_t bytes = arena->blocks && arena->bytes_used > BLOCK_BYTES_MIN ? arena->bytes_used : BLOCK_BYTES_MIN;
    if (bytes > BLOCK_BYTES_MAX)
        bytes = BLOCK_BYTES_MAX;

    bool is_own = needed > bytes / 4;
    struct arena_block *block = block_new(arena, is_own ? needed : bytes);
    if (!block && !is_own) {
        is_own = true;
        block = block_new(arena, needed);
    }
    if (!block) {
        arena->is_full |= !bytes_fit(arena, needed);
        return NULL;
    }
    char *start = (char *)block + ARENA_ALIGN;
    if (is_own && arena->blocks) {
        block->below = arena->blocks->below;
        arena->blocks->below = block;
        return start;
    }
    block->below = arena->blocks;
    arena->blocks = block;
    arena->next = start + size + GUARD_BYTES;
    arena->end = (char *)block + block->bytes;
    return start;
}

static void *arena_take(struct arena *arena, size_t size, size_t align)
{
    size_t left = (size_t)(arena->end - arena->next);
    size_t pad = arena->next ? (size_t)(-(uintptr_t)arena->next & (align - 1)) : 0;
    char *start;
    if (arena->next && pad + GUARD_BYTES <= left && size <= left - pad - GUARD_BYTES) {
        start = arena->next + pad;
        arena->next = start + size + GUARD_BYTES;
    } else {
        start = take_from_new_block(arena, size);
    }
    if (start)
        PERMIT(start, size);
    return start;
}

void *arena_alloc(struct arena *arena, size_t size)
{
    return arena_take(arena, size, ARENA_ALIGN);
}

void *arena_zalloc(struct arena *arena, size_t size)
{
    void *memory = arena_alloc(arena, size);
    if (memory)
        memset(memory, 0, size);
    return memory;
}

void *arena_array(struct arena *arena, size_t count, size_t element_size)
{
    size_t size;
    if (__builtin_mul_overflow(count, element_size, &size))
        return NULL;
    return arena_alloc(arena, size);
}

bool arena_fits(struct arena *arena, size_t count, size_t element_size)
{
    size_t left = (size_t)(arena->end - arena->next), size;
    bool fits = !__builtin_mul_overflow(count, element_size, &size) && (size <= left || bytes_fit(arena, size - left));
    arena->is_full |= !fits;
    return fits;
}

char *arena_copy(struct arena *arena, const void *bytes, size_t size)
{
    if (size == SIZE_MAX)
        return NULL;
    char *copy = arena_take(arena, size + 1, ALIGN_MIN);
    if (!copy)
        return NULL;
    if (size)
        memcpy(copy, bytes, size);
    copy[size] = '\0';
    return copy;
}

bool arena_str(struct arena *arena, struct str s, struct str *out)
{
    char *copy = arena_copy(arena, s.data, s.size);
    if (!copy)
        return false;
    *out = (struct str){ copy, s.size };
    return true;
}

char *arena_vprintf(struct arena *arena, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, args);
    char *text = size < 0 ? NULL : arena_take(arena, (size_t)size + 1, ALIGN_MIN);
    if (text)
        vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    return text;
}

struct str arena_join(struct arena *arena, const struct str *parts, size_t count)
{
    size_t size = 0;
    for (size_t i = 0; i < count; i++)
        if (__builtin_add_overflow(size, parts[i].size, &size))
            return (struct str){ 0 };
    char *joined = size < SIZE_MAX ? arena_take(arena, size + 1, ALIGN_MIN) : NULL;
    if (!joined)
        return (struct str){ 0 };
    char *end = joined;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].size)
            memcpy(end, parts[i].data, parts[i].size);
        end += parts[i].size;
    }
    *end = '\0';
    return (struct str){ joined, size };
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = arena_vprintf(arena, format, args);
    va_end(args);
    return text;
}

bool arena_charge(struct arena *arena, size_t bytes)
{
    if (!bytes_fit(arena, bytes)) {
        arena->is_full = true;
        return false;
    }
    arena->bytes_used += bytes;
    return true;
}

void arena_release(struct arena *arena)
{
    struct arena_block *block = arena->blocks;
    while (block) {
        struct arena_block *below = block->below;
        free(block);
        block = below;
    }
    *arena = (struct arena){ .bytes_max = arena->bytes_max, .work = arena->work };
}
