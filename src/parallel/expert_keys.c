/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/expert_keys.h"

bool expert_number_find(struct str key, size_t *begin, size_t *end, uint64_t *number)
{
    static const char word[] = "experts.";
    for (size_t i = 0; i + sizeof(word) - 1 < key.size; i++) {
        if (memcmp(key.data + i, word, sizeof(word) - 1) != 0)
            continue;
        size_t digits = *begin = i + sizeof(word) - 1;
        while (digits < key.size && key.data[digits] >= '0' && key.data[digits] <= '9')
            digits++;
        *end = digits;
        if (digits > *begin && str_to_u64((struct str){ key.data + *begin, digits - *begin }, number))
            return true;
    }
    return false;
}
