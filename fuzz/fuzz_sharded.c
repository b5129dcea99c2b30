/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank says that it has, as other ranks read it: what is read is packed again, and that reads the same; then it is checked, and
 * spread as if two ranks had said it.
 */
#include "outcome.h"
#include "parallel/sharded_dict.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void spread(const struct sharded_dict *dict)
{
    const struct sharded_dict *const ranks[] = { dict, dict };
    struct spread_owner **owners;
    reshard_error err = RESHARD_ERROR_INIT;
    if (!outcome_status(sharded_owners_new(ranks, 2, &owners, &err), &err) &&
        !outcome_status(sharded_spread(ranks, 2, SPREAD_TO_LOAD, owners, &err), &err)) {
        for (size_t i = 0; i < dict->tensor_count; i++)
            outcome_number((uint64_t)owners[0][i].rank << 32 | owners[0][i].index);
        for (size_t i = 0; i < dict->tensor_count; i++)
            if (owners[0][i].rank > 1 || owners[0][i].index >= dict->tensor_count)
                abort();
    }
    sharded_owners_free(owners, 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct sharded_dict dict, again;
    struct buffer packed = { 0 }, twice = { 0 };
    const struct sharded_dict *const alone[] = { &dict };
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(sharded_unpack(bytes, size, &dict, &err), &err))
        return 0;
    if (!sharded_pack(&dict, true, &packed) || sharded_unpack(packed.data, packed.size, &again, NULL))
        abort();
    if (!sharded_pack(&again, true, &twice) || twice.size != packed.size)
        abort();
    outcome_text(buffer_str(&packed));
    outcome_status(sharded_check(alone, 1, &err), &err);
    spread(&dict);
    sharded_dict_release(&dict);
    sharded_dict_release(&again);
    buffer_release(&packed);
    buffer_release(&twice);
    return 0;
}
