/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/fused_names.h"

#include <string.h>

bool fused_name_is(struct str name)
{
    static const char *const words[] = { "qkv", "query_key_value", "gate_up", "up_gate", "gate_and_up" };
    if (name.size && memmem(name.data, name.size, "norm", 4)) /* the norm before it, which Megatron names so */
        return false;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (name.size && memmem(name.data, name.size, words[i], strlen(words[i])))
            return true;
    }
    return false;
}
