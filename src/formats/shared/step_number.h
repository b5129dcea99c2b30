/* SPDX-License-Identifier: Apache-2.0 */
/* The step of an optimizer: a number, or a tensor of one element, as torch's own optimizers have it. */
#ifndef FORMATS_SHARED_STEP_NUMBER_H
#define FORMATS_SHARED_STEP_NUMBER_H

#include "formats/driver.h"

/* The element as INT or FLOAT of the graph. UNSUPPORTED: of a type that no step has. */
reshard_status step_of_element(struct value_graph *graph, enum dtype dtype, const uint8_t *bytes, bool is_swapped, struct value **out,
                               reshard_error *err);

/* The step that a wanted item's value says somewhere, as INT or FLOAT of the graph. */
reshard_status step_of_item(const struct layout_request *request, uint32_t wanted, const struct value *value, struct value_graph *graph,
                            struct value **out, reshard_error *err);

/* Of INT or FLOAT. */
double step_as_real(const struct value *step);

/* Gives it to each of the groups that has none. */
reshard_status step_to_groups(struct value_graph *graph, struct value *groups, const struct value *step, reshard_error *err);

/* What an optimizer's dict with `state` says of the step of all its parameters; NULL: nothing. */
struct value *step_find_common(const struct value *optimizer);

#endif
