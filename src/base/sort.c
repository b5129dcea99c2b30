/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sort.h"

#include <stdbool.h>
#include <string.h>

#define INSERTION_MAX 24
#define WIDE_MIN 16384 /* entries from which clearing 2048 counters a pass pays for fewer passes */
#define WIDE_BITS 11
#define NARROW_BITS 8

static void sort_insertion(struct sort_entry *entries, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct sort_entry entry = entries[i];
        size_t j = i;
        for (; j > 0 && entries[j - 1].key > entry.key; j--)
            entries[j] = entries[j - 1];
        entries[j] = entry;
    }
}

/* One stable pass on `bits` bits of key - low from shift on. */
static void sort_pass(const struct sort_entry *from, struct sort_entry *to, size_t count, int64_t low, unsigned shift, unsigned bits)
{
    size_t positions[1 << WIDE_BITS], sum = 0;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    memset(positions, 0, sizeof(*positions) << bits);
    for (size_t i = 0; i < count; i++)
        positions[((uint64_t)from[i].key - (uint64_t)low) >> shift & mask]++;
    for (size_t digit = 0; digit <= mask; digit++) {
        size_t of_digit = positions[digit];
        positions[digit] = sum;
        sum += of_digit;
    }
    for (size_t i = 0; i < count; i++)
        to[positions[((uint64_t)from[i].key - (uint64_t)low) >> shift & mask]++] = from[i];
}

void entries_sort(struct sort_entry *entries, struct sort_entry *spare, size_t count)
{
    if (count < 2)
        return;
    int64_t low = entries[0].key, high = entries[0].key;
    bool is_sorted = true;
    for (size_t i = 1; i < count; i++) {
        is_sorted &= entries[i - 1].key <= entries[i].key;
        low = entries[i].key < low ? entries[i].key : low;
        high = entries[i].key > high ? entries[i].key : high;
    }
    if (is_sorted)
        return;
    if (count <= INSERTION_MAX) {
        sort_insertion(entries, count);
        return;
    }
    unsigned bits = count >= WIDE_MIN ? WIDE_BITS : NARROW_BITS;
    uint64_t range = (uint64_t)high - (uint64_t)low;
    struct sort_entry *from = entries, *to = spare;
    for (unsigned shift = 0; shift < 64 && range >> shift; shift += bits) {
        sort_pass(from, to, count, low, shift, bits);
        struct sort_entry *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != entries)
        memcpy(entries, from, count * sizeof(*entries));
}

size_t entries_first(const struct sort_entry *entries, size_t low, size_t high, int64_t key)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (entries[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
