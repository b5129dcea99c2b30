/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#define CAPACITY_MIN 16u

void *array_new(size_t count, size_t element_bytes)
{
    return reallocarray(NULL, count ? count : 1, element_bytes);
}

void *array_zeroed(size_t count, size_t element_bytes)
{
    return calloc(count ? count : 1, element_bytes);
}

bool array_reserve_size(void *array, uint64_t needed, size_t *capacity, size_t element_bytes)
{
    void *elements;
    uint64_t wanted = *capacity > SIZE_MAX / 2 ? SIZE_MAX : (uint64_t)*capacity * 2;
    if (needed <= *capacity)
        return true;
    wanted = wanted < CAPACITY_MIN ? CAPACITY_MIN : wanted;
    wanted = wanted < needed ? needed : wanted;
    /* The pointer is of a type that is not known here: its bytes are copied. */
    memcpy(&elements, array, sizeof(elements));
    elements = reallocarray(elements, (size_t)wanted, element_bytes);
    if (!elements)
        return false;
    memcpy(array, &elements, sizeof(elements));
    *capacity = (size_t)wanted;
    return true;
}

bool array_reserve_u32(void *array, uint64_t needed, uint32_t *capacity, size_t element_bytes)
{
    size_t reserved = *capacity;
    if (needed >= UINT32_MAX)
        return false;
    if (!array_reserve_size(array, needed, &reserved, element_bytes))
        return false;
    *capacity = reserved < UINT32_MAX ? (uint32_t)reserved : UINT32_MAX - 1;
    return true;
}
