/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tied_states.h"

#include "base/array.h"
#include "convert/weight_copies.h"
#include "mapping/map_state.h"

#include <stdlib.h>

struct tied_search {
    struct weight_copies source;
    struct tied_state *found;
    uint32_t count, capacity;
};

static bool tied_same_kind(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b, const struct catalog_tensor *y)
{
    return x->dtype == y->dtype && catalog_same_shape(a, x, b, y);
}

static reshard_status tied_add(struct tied_search *search, const struct tied_state *state, reshard_error *err)
{
    if (!ARRAY_ROOM(search->found, search->count, search->capacity))
        return error_set_memory(err);
    search->found[search->count++] = *state;
    return RESHARD_OK;
}

/* A tensor of the reference that the source may have under another name. */
static reshard_status tied_look(struct tied_search *search, const struct catalog *reference, const struct catalog_tensor *wanted,
                                reshard_error *err)
{
    const struct catalog *catalog = search->source.catalog;
    struct weight_walk walk;
    struct str name;
    uint32_t owner = CATALOG_NONE;
    if (wanted->flags & TENSOR_HIDDEN || map_state_of(wanted->key, &name) == MAP_STATE_WEIGHT ||
        weight_copies_at(&search->source, wanted->key) != CATALOG_NONE)
        return RESHARD_OK;
    const struct str rest = { wanted->key.data + name.size, wanted->key.size - name.size };
    uint32_t weight = weight_copies_at(&search->source, name);
    if (weight == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = weight_walk_begin(&search->source, weight, &walk, err);
    if (!status)
        status = weight_walk_next(&search->source, &walk, &owner, err);
    while (owner != CATALOG_NONE && !status) {
        uint32_t state = weight_copies_find(&search->source, weight_copies_key(&search->source, owner), rest);
        if (state != CATALOG_NONE && tied_same_kind(reference, wanted, catalog, &catalog->tensors[state]))
            return tied_add(search, &(struct tied_state){ wanted->key, state, CATALOG_NONE, CATALOG_NONE }, err);
        status = weight_walk_next(&search->source, &walk, &owner, err);
    }
    return status;
}

/* Hands over what was found, if all is well. */
static reshard_status tied_close(struct tied_search *search, reshard_status status, struct tied_state **out, uint32_t *count,
                                 reshard_error *err)
{
    if (!status && search->source.key.failed)
        status = error_set_memory(err);
    weight_copies_release(&search->source);
    if (status) {
        free(search->found);
        *search = (struct tied_search){ 0 };
    }
    *out = search->found;
    *count = search->count;
    return status;
}

reshard_status tied_states_find(struct checkpoint *source, const struct selected_names *names, const struct catalog *reference,
                                const struct engine_options *engine, struct tied_state **out, uint32_t *count, reshard_error *err)
{
    struct tied_search search = { 0 };
    reshard_status status = weight_copies_open(source, names, engine, &search.source, err);
    for (uint32_t i = 0; i < reference->tensor_count && search.source.owner_count && !status; i++)
        status = tied_look(&search, reference, &reference->tensors[i], err);
    return tied_close(&search, status, out, count, err);
}

/* ---- without a reference ---- */

/* Matrices without states, each with the owner of the same bytes: by owner, a list of numbers of matrices. */
struct tied_lists {
    uint32_t *first, *next; /* by tensor; CATALOG_NONE ends */
    uint32_t count;
};

static reshard_status tied_list(struct tied_search *search, uint32_t tensor, struct tied_lists *lists, reshard_error *err)
{
    const struct catalog_tensor *weight = &search->source.catalog->tensors[tensor];
    struct weight_walk walk;
    struct str name;
    uint32_t owner = CATALOG_NONE;
    if (weight->rank < 2 || search->source.is_owner[tensor] || map_state_of(weight->key, &name) != MAP_STATE_WEIGHT)
        return RESHARD_OK;
    reshard_status status = weight_walk_begin(&search->source, tensor, &walk, err);
    if (!status)
        status = weight_walk_next(&search->source, &walk, &owner, err);
    if (status || owner == CATALOG_NONE)
        return status;
    lists->next[tensor] = lists->first[owner];
    lists->first[owner] = tensor;
    lists->count++;
    return RESHARD_OK;
}

static reshard_status tied_add_listed(struct tied_search *search, uint32_t state, const struct tied_lists *lists, reshard_error *err)
{
    struct str name;
    reshard_status status = RESHARD_OK;
    if (map_state_of(search->source.catalog->tensors[state].key, &name) == MAP_STATE_WEIGHT)
        return RESHARD_OK;
    uint32_t owner = catalog_find(search->source.catalog, name);
    uint32_t weight = owner == CATALOG_NONE ? CATALOG_NONE : lists->first[owner];
    for (; weight != CATALOG_NONE && !status; weight = lists->next[weight])
        status = tied_add(search, &(struct tied_state){ { 0 }, state, weight, owner }, err);
    return status;
}

reshard_status tied_states_of_each(struct checkpoint *source, const struct engine_options *engine, struct tied_state **out,
                                   uint32_t *count, reshard_error *err)
{
    struct tied_search search = { 0 };
    size_t tensors = (size_t)source->source->catalog->tensor_count + 1;
    struct tied_lists lists = { .first = array_new(tensors, sizeof(uint32_t)), .next = array_new(tensors, sizeof(uint32_t)) };
    bool is_ready = lists.first && lists.next;
    reshard_status status = is_ready ? weight_copies_open(source, NULL, engine, &search.source, err) : error_set_memory(err);
    if (is_ready)
        memset(lists.first, 0xFF, tensors * sizeof(uint32_t));
    for (uint32_t i = 0; i < source->listed_count && search.source.owner_count && !status; i++)
        status = tied_list(&search, source->listed[i], &lists, err);
    for (uint32_t i = 0; i < source->listed_count && lists.count && !status; i++)
        status = tied_add_listed(&search, source->listed[i], &lists, err);
    free(lists.first);
    free(lists.next);
    return tied_close(&search, status, out, count, err);
}
