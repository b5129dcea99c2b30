/* SPDX-License-Identifier: Apache-2.0 */
/* A target's units, parameters, states and buffers: as the reference has them, as the source does, or as a rule wraps them. */
#ifndef FORMATS_ATORCH_PLAN_H
#define FORMATS_ATORCH_PLAN_H

#include "formats/atorch/atorch.h"
#include "formats/atorch/atorch_source.h"
#include "parallel/state_owner.h"

/* State of a planned parameter. */
struct atorch_state {
    uint32_t parameter, name;   /* name: of the plan's state_names */
    const uint32_t *tensors;    /* wanted tensor of each expert */
    bool is_scalar;
    bool is_spelled;            /* the source spells it otherwise: optim.state.w.exp_avg */
};

struct atorch_plan {
    struct atorch_model model;  /* to be written */
    const uint32_t **tensors;   /* by parameter: wanted tensor of each expert; NULL for those of no name */
    struct atorch_state *states; /* by parameter */
    uint32_t *first_state;      /* by parameter, and one past the last */
    uint32_t state_count, state_capacity;
    struct name_map state_names, names; /* names: of all wanted tensors, without their expert */
    uint32_t *buffers;          /* wanted tensors */
    uint32_t buffer_count, buffer_capacity;
    uint32_t *options;          /* wanted tensors that are numbers of torch's groups of parameters: no file of tensors has them */
    uint32_t option_count, option_capacity;
    struct state_owners owners; /* in the source's names */
    struct arena arena;
};

reshard_status atorch_plan_make(const struct layout_request *request, struct target *target, struct atorch_plan *out, reshard_error *err);
void atorch_plan_release(struct atorch_plan *plan);

/* atorch_torch_groups.c: whether the key is of an item of torch's groups of parameters (of any optimizer, if before is NULL). */
bool atorch_is_torch_group(struct str key, const struct str *before);

/* The source or reference, if it is one of atorch's; else NULL. */
static inline const struct atorch_source *atorch_known(const struct source *source)
{
    return source && source->driver == &format_atorch ? atorch_source_of(source) : NULL;
}

#endif
