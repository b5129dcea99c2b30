/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/pair_values.h"

#include "base/array.h"

#include <stdlib.h>

/* Elements are compared whole: what a window cuts off waits here for the next. By worker. */
struct pair_held {
    uint8_t a[16], b[16];
    size_t size;
};

/* This rank's pairs. */
struct pairs_comparing {
    const struct pair_values *values;
    const struct lockstep_pair *pairs;
    struct difference *results;
    struct pair_held *held;
};

static reshard_status compare_part(void *context, unsigned worker, uint32_t pair, uint64_t offset, const void *a_bytes, const void *b_bytes,
                                   size_t size, bool is_last, reshard_error *err)
{
    struct pairs_comparing *comparing = context;
    const struct tolerance *tolerance = comparing->values->tolerance;
    struct difference *result = &comparing->results[pair];
    struct pair_held *held = &comparing->held[worker];
    const enum dtype dtype = comparing->values->catalog->tensors[comparing->pairs[pair].a].dtype;
    const unsigned width = dtype_element_bytes(dtype) ? dtype_element_bytes(dtype) : 1;
    const uint8_t *a = a_bytes, *b = b_bytes;
    (void)is_last;
    while (size && (held->size || size < width)) {
        held->a[held->size] = *a++;
        held->b[held->size++] = *b++;
        size--;
        offset++;
        if (held->size == width) {
            difference_add(result, dtype, tolerance, held->a, held->b, 1, (int64_t)(offset / width) - 1);
            held->size = 0;
        }
    }
    size_t whole = size / width;
    if (whole)
        difference_add(result, dtype, tolerance, a, b, whole, (int64_t)(offset / width));
    for (size_t i = whole * width; i < size; i++) {
        held->a[held->size] = a[i];
        held->b[held->size++] = b[i];
    }
    return finding_sink_status(comparing->values->findings, err);
}

/* This rank's pairs, and whose the others are. Without a team all are its own. */
static reshard_status pairs_share(const struct pair_values *values, uint32_t **owners, struct lockstep_pair **own, uint32_t *count,
                                  reshard_error *err)
{
    uint64_t *bytes = array_zeroed(values->count, sizeof(*bytes));
    *owners = array_zeroed(values->count, sizeof(**owners));
    *own = array_zeroed(values->count, sizeof(**own));
    *count = 0;
    if (!bytes || !*owners || !*own) {
        free(bytes);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < values->count; i++)
        bytes[i] = catalog_tensor_bytes(values->catalog, &values->catalog->tensors[values->pairs[i].a]);
    team_share(values->team, bytes, values->count, *owners);
    for (uint32_t i = 0; i < values->count; i++)
        if ((*owners)[i] == team_rank(values->team))
            (*own)[(*count)++] = values->pairs[i];
    free(bytes);
    return RESHARD_OK;
}

/* A rank's pairs lie together, so that the first of its own is where its results begin. */
reshard_status pair_values_compare(const struct pair_values *values, const struct engine_options *engine, struct difference *results,
                                   reshard_error *err)
{
    struct pairs_comparing comparing = { .values = values };
    struct lockstep_pair *own;
    uint32_t *owners, count, first = 0;
    for (uint32_t i = 0; i < values->count; i++)
        results[i] = (struct difference){ .first_index = -1 };
    comparing.held = array_zeroed(lockstep_workers(engine, true, values->count), sizeof(*comparing.held)); /* no fewer than there will be */
    reshard_status status = pairs_share(values, &owners, &own, &count, err);
    if (!status && !comparing.held)
        status = error_set_memory(err);
    while (!status && first < values->count && owners[first] != team_rank(values->team))
        first++;
    comparing.pairs = own;
    comparing.results = results + first;
    if (!status && count)
        status = lockstep_run(values->a, values->made, values->b, own, count, engine, compare_part, &comparing, err);
    if (!status)
        status = team_rows(values->team, status, owners, values->count, results, sizeof(*results), NULL, err);
    free(owners);
    free(own);
    free(comparing.held);
    return status;
}
