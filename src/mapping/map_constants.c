/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_syntax.h"

#include <stdlib.h>

static bool constants_fit(struct map_constants *constants, uint32_t count)
{
    if (count <= constants->capacity)
        return true;
    uint32_t capacity = constants->capacity ? constants->capacity * 2 : 16;
    int64_t *values = reallocarray(constants->values, capacity, sizeof(*values));
    if (!values)
        return false;
    constants->values = values;
    bool *is_fixed = reallocarray(constants->is_fixed, capacity, sizeof(*is_fixed));
    if (!is_fixed)
        return false;
    constants->is_fixed = is_fixed;
    constants->capacity = capacity;
    return true;
}

bool map_constants_set(struct map_constants *constants, struct str name, int64_t value, bool is_fixed)
{
    bool is_new;
    if (!constants_fit(constants, constants->names.count + 1))
        return false;
    uint32_t index = name_map_intern(&constants->names, name, &is_new);
    if (index == NAME_NONE)
        return false;
    if (is_new || is_fixed || !constants->is_fixed[index]) {
        constants->values[index] = value;
        constants->is_fixed[index] = is_fixed;
    }
    return true;
}

bool map_constants_find(const struct map_constants *constants, struct str name, int64_t *out)
{
    uint32_t index = name_map_find(&constants->names, name);
    if (index == NAME_NONE)
        return false;
    *out = constants->values[index];
    return true;
}

void map_constants_release(struct map_constants *constants)
{
    name_map_release(&constants->names);
    free(constants->values);
    free(constants->is_fixed);
    *constants = (struct map_constants){ 0 };
}
