/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of parameters in the model, and that in which a rank hands its tensors to the saver. Greedy assignment, flat buffers and the
 * choice among replicas all go by it, so that it may not depend on the layout that the source has.
 *
 * A checkpoint names the parts of each rank one after the other, so that layers and experts come mixed. Modules are a tree, though, whose
 * names are first met in its order on whatever rank, and numbered ones lie by number: that gives the order back.
 */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "base/name_map.h"

#include <stdlib.h>

/* One step from a module to a part of it: when it was first met, and its number. Numbered parts are met with the first of them. */
struct module_step {
    uint32_t met;
    uint64_t number;
};

struct module_path {
    uint32_t parameter;
    uint32_t first_step, step_count;
};

struct module_order {
    struct name_map names; /* of steps from the root on, a number as '#' */
    struct buffer name;
    struct module_step *steps;
    struct module_path *paths;
};

static uint32_t step_count_of(struct str key)
{
    uint32_t count = 1;
    for (size_t i = 0; i < key.size; i++)
        count += key.data[i] == '.';
    return count;
}

static bool path_read(struct module_order *order, struct str key, struct module_path *path)
{
    struct str rest = key;
    buffer_clear(&order->name);
    for (uint32_t i = 0; i < path->step_count; i++) {
        struct str part = str_take(&rest, '.');
        uint64_t number = 0;
        bool is_number = str_to_u64(part, &number);
        size_t before = order->name.size;
        buffer_append_text(&order->name, is_number ? ".#" : ".");
        buffer_append_str(&order->name, is_number ? (struct str){ 0 } : part);
        uint32_t met = order->name.failed ? NAME_NONE : name_map_intern(&order->names, buffer_str(&order->name), NULL);
        if (met == NAME_NONE)
            return false;
        order->steps[path->first_step + i] = (struct module_step){ met, number };
        if (!is_number)
            continue;
        order->name.size = before; /* what is below each number has an order of its own */
        buffer_append_byte(&order->name, '.');
        buffer_append_str(&order->name, part);
    }
    return !order->name.failed;
}

static int by_module(const void *a, const void *b, void *context)
{
    const struct module_path *x = a, *y = b;
    const struct module_order *order = context;
    for (uint32_t i = 0; i < x->step_count && i < y->step_count; i++) {
        const struct module_step *s = &order->steps[x->first_step + i], *t = &order->steps[y->first_step + i];
        if (s->met != t->met)
            return s->met < t->met ? -1 : 1;
        if (s->number != t->number)
            return s->number < t->number ? -1 : 1;
    }
    return (x->step_count > y->step_count) - (x->step_count < y->step_count);
}

static reshard_status paths_read(struct module_order *order, const struct flex_cutting *cutting, reshard_error *err)
{
    size_t steps = 0;
    for (uint32_t i = 0; i < cutting->parameter_count; i++)
        steps += step_count_of(cutting->parameters[i].key);
    order->steps = array_zeroed(steps, sizeof(*order->steps));
    order->paths = array_zeroed(cutting->parameter_count, sizeof(*order->paths));
    bool is_done = order->steps && order->paths && steps < UINT32_MAX;
    steps = 0;
    for (uint32_t i = 0; i < cutting->parameter_count && is_done; i++) {
        struct module_path *path = &order->paths[i];
        *path = (struct module_path){ i, (uint32_t)steps, step_count_of(cutting->parameters[i].key) };
        steps += path->step_count;
        is_done = path_read(order, cutting->parameters[i].key, path);
    }
    return is_done ? RESHARD_OK : error_set_memory(err);
}

/* Puts the parameters in the order of the paths; tensors refer to them by number. */
static reshard_status parameters_permute(struct flex_cutting *cutting, const struct module_path *paths, reshard_error *err)
{
    struct flex_parameter *sorted = array_zeroed(cutting->parameter_count, sizeof(*sorted));
    uint32_t *place = array_zeroed(cutting->parameter_count, sizeof(*place));
    if (!sorted || !place) {
        free(sorted);
        free(place);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < cutting->parameter_count; i++) {
        sorted[i] = cutting->parameters[paths[i].parameter];
        place[paths[i].parameter] = i;
    }
    for (uint32_t t = 0; t < cutting->wanted->tensor_count; t++) {
        if (flex_is_stored(&cutting->wanted->tensors[t]))
            cutting->parts[t].parameter = place[cutting->parts[t].parameter];
    }
    free(place);
    free(cutting->parameters);
    cutting->parameters = sorted;
    cutting->parameter_capacity = cutting->parameter_count;
    return RESHARD_OK;
}

reshard_status flex_order_parameters(struct flex_cutting *cutting, reshard_error *err)
{
    struct module_order order = { 0 };
    reshard_status status = paths_read(&order, cutting, err);
    if (!status) {
        qsort_r(order.paths, cutting->parameter_count, sizeof(*order.paths), by_module, &order);
        status = parameters_permute(cutting, order.paths, err);
    }
    name_map_release(&order.names);
    buffer_release(&order.name);
    free(order.steps);
    free(order.paths);
    return status;
}

/* ---- tensors ---- */

/* Weights, then the optimizer's accumulators kind by kind, master weights last. */
static int state_kind(const struct flex_cutting *cutting, uint32_t tensor)
{
    static const char *const kinds[] = { ".moment1_0",  ".moment2_0",       ".moment2_max_0",
                                         ".velocity_0", ".beta1_pow_acc_0", ".beta2_pow_acc_0", NULL };
    struct str key = cutting->wanted->tensors[tensor].key;
    int kind = 0;
    if (!cutting->parts[tensor].is_state)
        return 0;
    while (kinds[kind] && !str_ends_with(key, kinds[kind]))
        kind++;
    return 1 + kind + (str_ends_with(key, ".w_0") ? 1 : 0);
}

static int by_number(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

/* Assigned states lie in the order in which they were dealt: experts that are shared out apart behind the others, V1's largest first. */
static int by_handing_in(const void *a, const void *b, void *context)
{
    const struct flex_cutting *cutting = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    const struct flex_parameter *p = &cutting->parameters[cutting->parts[x].parameter];
    const struct flex_parameter *q = &cutting->parameters[cutting->parts[y].parameter];
    int x_kind = state_kind(cutting, x), result = by_number(x_kind, state_kind(cutting, y));
    bool is_dealt = x_kind && (cutting->degrees.stage == SHARDING_1_V1 || cutting->degrees.stage == SHARDING_2);
    if (!result && is_dealt)
        result = by_number(p->expert_rank >= 0, q->expert_rank >= 0);
    if (!result && is_dealt && cutting->degrees.stage == SHARDING_1_V1)
        result = by_number(q->share.elements, p->share.elements);
    if (!result)
        result = by_number(cutting->parts[x].parameter, cutting->parts[y].parameter);
    return result ? result : by_number(x, y);
}

reshard_status flex_order_tensors(struct flex_cutting *cutting, reshard_error *err)
{
    cutting->order = array_zeroed(cutting->wanted->tensor_count, sizeof(*cutting->order));
    if (!cutting->order)
        return error_set_memory(err);
    for (uint32_t t = 0; t < cutting->wanted->tensor_count; t++) {
        if (flex_is_stored(&cutting->wanted->tensors[t]))
            cutting->order[cutting->order_count++] = t;
    }
    qsort_r(cutting->order, cutting->order_count, sizeof(*cutting->order), by_handing_in, cutting);
    return RESHARD_OK;
}
