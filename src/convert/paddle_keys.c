/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/paddle_keys.h"

#include "mapping/map_state.h"

#include <string.h>

/* Whether the key ends with what Paddle's optimizers call a state, behind the weight's name: a structured one, the framework's own
 * (linear_0.w_0_moment1_0) or that of a Unified Checkpoint (KEY/moment1_0). */
static bool ends_with_word(struct str key)
{
    for (enum map_state state = MAP_STATE_MOMENT1; state < MAP_STATE_COUNT; state++) {
        const char *word = map_state_paddle_word(state);
        const size_t size = word ? strlen(word) : 0;
        if (size && key.size > size + 1 && str_ends_with(key, word) && strchr("._/", key.data[key.size - size - 1]))
            return true;
    }
    return false;
}

bool paddle_key_is_state(const struct catalog *catalog, struct str key)
{
    struct map_state_key family;
    struct str name;
    if (map_state_of(key, &name) == MAP_STATE_MASTER) /* a weight may be called so, as the framework calls its own */
        return catalog_find(catalog, name) != CATALOG_NONE;
    return ends_with_word(key) || (map_state_of_family(key, &family) && family.state != MAP_STATE_WEIGHT);
}
