/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays on the heap: of a known size, and such as grow by doubling. */
#ifndef BASE_ARRAY_H
#define BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * count elements, zeroed or not, to be freed by the caller. NULL without memory or where the bytes overflow, and never else: an array of no
 * elements is not NULL. There is no slack: AddressSanitizer sees who goes one too far.
 */
void *array_new(size_t count, size_t element_bytes) __attribute__((malloc, alloc_size(1, 2), warn_unused_result));
void *array_zeroed(size_t count, size_t element_bytes) __attribute__((malloc, alloc_size(1, 2), warn_unused_result));

/*
 * Arrays that grow: a pointer, how many elements are in use, and how many there is room for.
 * Makes room for one element behind the first `count`, moving the array if need be: array is a pointer to the elements (NULL at first, to
 * be freed by its owner), capacity a uint32_t or size_t. false without memory, or at 2^32 - 1 elements of a uint32_t: then all is as
 * before.
 */
#define ARRAY_ROOM(array, count, capacity) ((count) < (capacity) || ARRAY_RESERVE(array, (uint64_t)(count) + 1, capacity))

/* The same for `needed` elements in all. */
#define ARRAY_RESERVE(array, needed, capacity) \
    _Generic((capacity), uint32_t : array_reserve_u32, size_t : array_reserve_size)(&(array), needed, &(capacity), sizeof(*(array)))

/* What the macros call; array is the address of the pointer. */
bool array_reserve_u32(void *array, uint64_t needed, uint32_t *capacity, size_t element_bytes);
bool array_reserve_size(void *array, uint64_t needed, size_t *capacity, size_t element_bytes);

#endif
