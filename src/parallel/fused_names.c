/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/fused_names.h"

#include <string.h>

bool fused_name_is(struct str name)
{
    static const char *const words[] = { "qkv", "query_key_value", "gate_up", "up_gate", "gate_and_up" };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (name.size && memmem(name.data, name.size, words[i], strlen(words[i])))
            return true;
    }
    return false;
}
