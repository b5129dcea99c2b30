/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte strings with a length. Names come from files and may hold anything: NUL, control characters, lone surrogates
 * (kept as three WTF-8 bytes). They are never NUL-terminated by promise, never used as paths without store_name_check.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include "base/sanitizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct str {
    const char *data; /* may be NULL only if size is 0 */
    size_t size;
};

#define STR(literal) ((struct str){ (literal), sizeof(literal) - 1 })

/* The bytes that are printed. Behind the first "%.*s" of a format AddressSanitizer looks at no argument: it does so here. */
static inline const char *str_printed(const void *data, size_t size)
{
#ifdef HAS_ASAN
    const volatile char *forbidden = size ? __asan_region_is_poisoned((void *)(uintptr_t)data, size) : NULL;
    if (forbidden)
        (void)*forbidden;
#endif
    (void)size;
    return data ? data : "";
}

/* For printf: "%.*s", STR_ARG(name). error_* escape what they print; others must escape first. */
#define STR_ARG_MAX(s, max) (int)((s).size > (max) ? (max) : (s).size), str_printed((s).data, (s).size > (max) ? (max) : (s).size)
#define STR_ARG(s) STR_ARG_MAX(s, 2000)

/* The same for a value that may be long beyond sense and must not push the rest out of the message: "%.*s%s". */
#define STR_ARG_BRIEF(s) STR_ARG_MAX(s, 40), ((s).size > 40 ? "..." : "")

static inline struct str str_of(const char *text)
{
    return (struct str){ text, strlen(text) };
}

static inline bool str_equal(struct str a, struct str b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

static inline bool str_is(struct str a, const char *text)
{
    return str_equal(a, str_of(text));
}

/* Bytewise order, shorter first on a tie. */
int str_compare(struct str a, struct str b);
bool str_starts_with(struct str s, const char *prefix);
bool str_begins(struct str s, struct str prefix);
bool str_ends_with(struct str s, const char *suffix);
bool str_find_char(struct str s, char c, size_t *index);

/* What comes before the next separator, which goes too; *rest keeps what is behind it. All of it if there is no separator. */
struct str str_take(struct str *rest, char separator);

/* The next word between spaces, tabs and carriage returns, taken off *rest; empty at its end. */
struct str str_take_word(struct str *rest);

/* A malloc'd copy that ends with NUL; NULL without memory. */
char *str_copy(struct str s);

/* The two parts of a path: up to its last '/', which stays at the end, and what is behind it. */
struct str str_folder(struct str path);
struct str str_base_name(struct str path);

/* The path of a folder without '/' at its end. */
struct str str_without_slashes(struct str path);

/* Whole string as a decimal number without sign or leading zeros ("0" is fine); false on anything else or overflow. */
bool str_to_u64(struct str s, uint64_t *out);

/* The value of count hexadecimal digits of either case, 16 at most, at s.data[at]; false, *out as it was, if there are fewer. */
bool str_hex_at(struct str s, size_t at, size_t count, uint64_t *out);

/* Valid UTF-8; with allow_surrogates also the WTF-8 form of lone surrogates. On failure *bad_index is the first bad byte. */
bool str_is_utf8(struct str s, bool allow_surrogates, size_t *bad_index);

/* Size of the UTF-8 character that starts at s.data[at], at < s.size; 0 if the bytes there are none. */
size_t str_utf8_char(struct str s, size_t at, bool allow_surrogates);

/* The code point of a character of that size, as str_utf8_char found it. */
uint32_t str_code_point(struct str s, size_t at, size_t size);

/* Writes a code point up to U+10FFFF, a surrogate too, as up to 4 bytes of UTF-8; returns how many. */
size_t str_put_utf8(uint32_t point, char *out);

/* As str_utf8_char, but 0 too for what is not seen as itself: control characters (some terminals obey U+0080-9F as well), bidirectional and
 * other invisible ones, line separators. */
size_t str_printable_char(struct str s, size_t at);

/* Shell-like match with * ? [..] over the whole string; '*' also matches '.', '/' and nothing. */
bool str_matches_glob(struct str s, struct str pattern);

#endif
