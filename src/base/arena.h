/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arena: memory that lives and dies together. Blocks grow geometrically up to 1 MiB; nothing is freed one by one.
 * { 0 } is a valid empty arena. bytes_max 0 means no limit; is_full says that something was refused on account of it. NULL from an
 * arena whose work is spent is no lack of memory: work_error tells.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/str.h"
#include "base/work.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena_block;

struct arena {
    struct arena_block *blocks;
    char *next, *end;
    size_t bytes_used; /* sum of what the blocks take from the heap */
    size_t bytes_max;
    struct work *work; /* spends what the blocks take; may be NULL */
    bool is_full;
};

/* Uninitialised memory aligned to 16 (arena_alloc) or zeroed (arena_zalloc), or NULL. size 0 gives a valid pointer. */
void *arena_alloc(struct arena *arena, size_t size);
void *arena_zalloc(struct arena *arena, size_t size);

/* Array of count elements; NULL also if count * element_size overflows. */
void *arena_array(struct arena *arena, size_t count, size_t element_size);

/* Unaligned copy of bytes, NUL-terminated for convenience; NULL on failure. */
char *arena_copy(struct arena *arena, const void *bytes, size_t size);

/* As arena_copy; *out is written on success. */
bool arena_str(struct arena *arena, struct str s, struct str *out);

/* The parts one behind the other, whatever bytes they hold, NUL-terminated for convenience; .data is NULL on failure. For names: printf
 * ends a part at a NUL, and STR_ARG after 2000 bytes. */
struct str arena_join(struct arena *arena, const struct str *parts, size_t count);
#define ARENA_JOIN(arena, ...) \
    arena_join(arena, (const struct str[]){ __VA_ARGS__ }, sizeof((const struct str[]){ __VA_ARGS__ }) / sizeof(struct str))

char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(struct arena *arena, const char *format, va_list args);

/* Whether count more elements can be within bytes_max: asked before they are made one by one. False: the arena is full. */
bool arena_fits(struct arena *arena, size_t count, size_t element_size);

/* Counts bytes that lie elsewhere, but live as long, against bytes_max; false if they do not fit. */
bool arena_charge(struct arena *arena, size_t bytes);

void arena_release(struct arena *arena);

#endif
