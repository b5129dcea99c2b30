/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/flat_keys.h"

#define FLAT_KEY "_flat_param"

bool flat_key_is(struct str key)
{
    return str_is(key, FLAT_KEY) || str_ends_with(key, "." FLAT_KEY);
}

void flat_keys_warn(struct catalog *catalog)
{
    uint32_t count = 0, first = 0;
    for (uint32_t i = catalog->tensor_count; i-- > 0;) {
        if (!flat_key_is(catalog->tensors[i].key))
            continue;
        first = i;
        count++;
    }
    if (count)
        catalog_warn(catalog, false,
                     "'%.*s'%s: FSDP1 saved flat parameters (LOCAL_STATE_DICT), and no file says which parameters lie in them, in which "
                     "order and shapes: they are read whole, with their padding; SHARDED_STATE_DICT or FULL_STATE_DICT keeps the names",
                     STR_ARG(catalog->tensors[first].key), count > 1 ? " and others" : "");
}
