/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/pickle_objects.h"

const struct value *pickle_object_class(const struct value *value)
{
    if (value->kind != VALUE_CALL && value->kind != VALUE_NEW)
        return NULL;
    const struct value *class = value->object->callable;
    if (value_is_global(class, "copyreg", "_reconstructor") && value->object->args->list.count)
        class = value->object->args->list.items[0];
    return class->kind == VALUE_GLOBAL ? class : NULL;
}

const struct value *pickle_object_attribute(const struct value *object, const char *name)
{
    for (uint32_t i = object->object->state_count; i > 0; i--) {
        const struct value *state = object->object->states[i - 1], *found = NULL;
        if (state->kind == VALUE_DICT)
            found = value_dict_get(state, name);
        for (size_t j = state->kind == VALUE_TUPLE && state->list.count == 2 ? 2 : 0; j > 0 && !found; j--)
            if (state->list.items[j - 1]->kind == VALUE_DICT)
                found = value_dict_get(state->list.items[j - 1], name);
        if (found)
            return found;
    }
    return NULL;
}

reshard_status pickle_object_spend(const struct value *object, struct work *work, reshard_error *err)
{
    uint64_t steps = 1;
    for (uint32_t i = 0; (object->kind == VALUE_CALL || object->kind == VALUE_NEW) && i < object->object->state_count; i++) {
        const struct value *state = object->object->states[i];
        for (size_t j = 0; state->kind == VALUE_TUPLE && state->list.count == 2 && j < 2; j++)
            steps += state->list.items[j]->kind == VALUE_DICT ? state->list.items[j]->list.count : 0;
        steps += state->kind == VALUE_DICT ? state->list.count : 1;
    }
    return work_spend_steps(work, steps, err);
}
