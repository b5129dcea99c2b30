/* SPDX-License-Identifier: Apache-2.0 */
/* The mutator of a target: MUTATE is one of mutate.h. Targets whose first bytes are options (MUTATE_AFTER) keep those apart. */
#include "mutate.h"

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t size, size_t size_max, unsigned seed)
{
    if (size <= MUTATE_AFTER || size_max <= MUTATE_AFTER || (MUTATE_AFTER && seed % 64 == 0))
        return LLVMFuzzerMutate(bytes, size, size_max);
    return MUTATE_AFTER + MUTATE(bytes + MUTATE_AFTER, size - MUTATE_AFTER, size_max - MUTATE_AFTER, seed);
}
