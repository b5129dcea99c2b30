/* SPDX-License-Identifier: Apache-2.0 */
/* Stable radix sort of (key, number) pairs, for planning, joining boxes and ordering reads: it takes its spare memory from the caller. */
#ifndef BASE_SORT_H
#define BASE_SORT_H

#include <stddef.h>
#include <stdint.h>

struct sort_entry {
    int64_t key;
    uint32_t value;
};

/* Sorts by key, ascending. spare has room for count entries; its contents are lost. */
void entries_sort(struct sort_entry *entries, struct sort_entry *spare, size_t count);

/* The first of the sorted entries [low, high) whose key is not below the given one; high if there is none. */
size_t entries_first(const struct sort_entry *entries, size_t low, size_t high, int64_t key);

#endif
