/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/paddle_keys.h"

#include "mapping/map_state.h"

bool paddle_key_is_state(const struct catalog *catalog, struct str key)
{
    struct map_state_key family;
    struct str name;
    const enum map_state state = map_state_of(key, &name);
    if (state == MAP_STATE_MASTER) /* a weight may be called so, as the framework calls its own */
        return catalog_find(catalog, name) != CATALOG_NONE;
    return state != MAP_STATE_WEIGHT || (map_state_of_family(key, &family) && family.state != MAP_STATE_WEIGHT);
}
