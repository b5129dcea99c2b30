/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/array.h"
#include "plan/plan_steps.h"

/* Row-major number of the first element of the step's box: the order of boxes. */
static int64_t step_key(const struct plan *plan, const struct plan_step *step)
{
    const struct catalog_tensor *tensor = &plan->target->tensors[plan->recipes[step->recipe].target_tensor];
    const int64_t *shape = catalog_vector_at(plan->target, tensor->shape), *start = plan->vectors + step->start;
    int64_t key = 0;
    for (int axis = 0; axis < tensor->rank; axis++)
        key = key * shape[axis] + start[axis];
    return key;
}

static int compare_chunks(const struct catalog *catalog, uint32_t a, uint32_t b)
{
    const struct catalog_chunk *left = &catalog->chunks[a], *right = &catalog->chunks[b];
    if (left->object != right->object)
        return left->object < right->object ? -1 : 1;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return (a > b) - (a < b);
}

static bool steps_are_ordered(const struct plan *plan)
{
    int64_t previous_key = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        int order = i ? compare_chunks(plan->target, step[-1].target_chunk, step->target_chunk) : -1;
        int64_t key = step_key(plan, step);
        if (order > 0 || (order == 0 && key < previous_key))
            return false;
        previous_key = key;
    }
    return true;
}

/* place[chunk] becomes the number of steps of the chunks before it, in order of (object, offset). */
static void chunks_place(const struct plan *plan, struct sort_entry *order, struct sort_entry *spare, uint32_t *place)
{
    const struct catalog *target = plan->target;
    uint32_t count = target->chunk_count, sum = 0;
    for (uint32_t c = 0; c < count; c++)
        order[c] = (struct sort_entry){ (int64_t)(target->chunks[c].offset & INT64_MAX), c };
    entries_sort(order, spare, count);
    for (uint32_t c = 0; c < count; c++)
        order[c].key = target->chunks[order[c].value].object;
    entries_sort(order, spare, count);
    for (uint32_t i = 0; i < plan->step_count; i++)
        place[plan->steps[i].target_chunk]++;
    for (uint32_t c = 0; c < count; c++) {
        uint32_t of_chunk = place[order[c].value];
        place[order[c].value] = sum;
        sum += of_chunk;
    }
}

/* Spreads the steps over their chunks' places, sorts each chunk's by key, and puts them in that order. */
static void steps_arrange(struct plan *plan, struct sort_entry *order, struct sort_entry *spare, uint32_t *place,
                          struct plan_step *arranged)
{
    uint32_t count = plan->step_count;
    for (uint32_t i = 0; i < count; i++)
        order[place[plan->steps[i].target_chunk]++] = (struct sort_entry){ step_key(plan, &plan->steps[i]), i };
    for (uint32_t begin = 0, end; begin < count; begin = end) {
        uint32_t chunk = plan->steps[order[begin].value].target_chunk;
        end = place[chunk];
        entries_sort(order + begin, spare, end - begin);
        for (uint32_t i = begin; i < end; i++)
            arranged[i] = plan->steps[order[i].value];
    }
}

reshard_status steps_order(struct plan *plan, reshard_error *err)
{
    if (steps_are_ordered(plan))
        return RESHARD_OK;
    size_t count = plan->step_count > plan->target->chunk_count ? plan->step_count : plan->target->chunk_count;
    struct sort_entry *order = array_new(count, sizeof(*order));
    struct sort_entry *spare = array_new(count, sizeof(*spare));
    uint32_t *place = array_zeroed(plan->target->chunk_count, sizeof(*place));
    struct plan_step *arranged = array_new(plan->step_count, sizeof(*arranged));
    reshard_status status = RESHARD_OK;
    if (order && spare && place && arranged) {
        chunks_place(plan, order, spare, place);
        steps_arrange(plan, order, spare, place, arranged);
        struct plan_step *old = plan->steps;
        plan->steps = arranged;
        plan->step_capacity = plan->step_count;
        arranged = old;
    } else {
        status = error_set_memory(err);
    }
    free(order);
    free(spare);
    free(place);
    free(arranged);
    return status;
}

reshard_status steps_sum(struct plan *plan, reshard_error *err)
{
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        const struct catalog_tensor *target = &plan->target->tensors[plan->recipes[step->recipe].target_tensor];
        const struct recipe *recipe = &plan->recipes[step->recipe];
        const struct catalog_tensor *source = recipe->source_tensor == RECIPE_FILL ? NULL : &plan->source->tensors[recipe->source_tensor];
        uint64_t elements = (uint64_t)box_volume(target->rank, plan->vectors + step->extent), write_bytes = 0, read_bytes = 0;
        if (!dtype_bytes(target->dtype, elements, &write_bytes) ||
            (source && !dtype_bytes(catalog_stored_dtype(source), elements, &read_bytes)) ||
            !checked_add_u64(plan->write_bytes, write_bytes, &plan->write_bytes) ||
            !checked_add_u64(plan->read_bytes, read_bytes, &plan->read_bytes))
            return error_set(err, RESHARD_ERR_UNSUPPORTED,
                             "tensor '%.*s': %" PRIu64 " elements of %s that are copied together are no number of bytes",
                             STR_ARG(target->key), elements, dtype_info(target->dtype)->name);
        if (source && (catalog_stored_dtype(source) != target->dtype || recipe->via_count))
            plan->cast_bytes += write_bytes;
        /* Packed elements can be cut only where a byte ends: better to say so before anything is written. */
        struct plan_copy copy;
        reshard_status status = dtype_element_bytes(target->dtype) ? RESHARD_OK : plan_step_copy(plan, step, &copy, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}
