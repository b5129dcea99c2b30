/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_model.h"

#include <stdlib.h>

void atorch_model_release(struct atorch_model *model)
{
    name_map_release(&model->unit_names);
    name_map_release(&model->parameter_names);
    free(model->units);
    free(model->parameters);
    free(model->by_name);
    arena_release(&model->arena);
    *model = (struct atorch_model){ 0 };
}

/*
 * FSDP says that a parameter is in a shard if [start, start + numel - 1] meets it. Without elements that is so where the shard has
 * elements on both sides of it; at a shard's first element it would be nowhere, and is put there.
 */
const struct atorch_parameter *atorch_parameter_find(const struct atorch_model *model, struct str name)
{
    uint32_t number = name_map_find(&model->parameter_names, name);
    if (number == NAME_NONE || model->by_name[number] == NAME_NONE)
        return NULL;
    return &model->parameters[model->by_name[number]];
}
