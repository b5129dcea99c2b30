/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/wanted_states.h"

#include "base/name_map.h"

#include <inttypes.h>
#include <stdio.h>


/* What is being found. */
struct finding {
    const struct catalog *wanted;
    struct arena *arena;
    struct name_map weights;
    struct wanted_state *states;
    uint32_t count;
};

static struct wanted_state *find_state(struct finding *finding, struct str name)
{
    for (uint32_t i = 0; i < finding->count; i++) {
        if (str_equal(finding->states[i].name, name))
            return &finding->states[i];
    }
    return NULL;
}

static reshard_status note_state(struct finding *finding, uint32_t tensor, reshard_error *err)
{
    const struct catalog *wanted = finding->wanted;
    struct state_key key;
    if (!state_key_read(wanted->tensors[tensor].key, &key) || key.kind != STATE_KEY_PARAMETER)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is optimizer state, but not of one parameter",
                         STR_ARG(wanted->tensors[tensor].key));
    uint32_t index = name_map_find(&finding->weights, key.parameter);
    if (index == NAME_NONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is state of '%.*s', which is not to be written",
                         STR_ARG(wanted->tensors[tensor].key), STR_ARG(key.parameter));
    const struct catalog_tensor *own = &wanted->tensors[tensor], *of = &wanted->tensors[index];
    if (!catalog_same_shape(wanted, own, wanted, of))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is not of its parameter's shape", STR_ARG(own->key));
    struct wanted_state *found = find_state(finding, key.state);
    if (!found) {
        if (finding->count == WANTED_STATES_MAX)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "an optimizer with more than %d kinds of state", WANTED_STATES_MAX);
        found = &finding->states[finding->count++];
        *found =
            (struct wanted_state){ .name = key.state,
                                   .is_master = key.is_master,
                                   .tensors = arena_zalloc(finding->arena, ((size_t)wanted->tensor_count + 1) * sizeof(*found->tensors)) };
        if (!found->tensors)
            return error_set_memory(err);
    }
    found->tensors[index] = tensor + 1;
    return RESHARD_OK;
}

/* Keys of weights; their numbers are tensor indices because every tensor gets one. */
static reshard_status wanted_list_weights(const struct catalog *wanted, struct name_map *out, reshard_error *err)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        char place[32];
        bool is_weight = !(wanted->tensors[i].flags & TENSOR_HIDDEN) && !state_key_is_any(wanted->tensors[i].key), is_new;
        /* A name that no weight has keeps the numbers in step. */
        int size = snprintf(place, sizeof(place), "\n%" PRIu32, i);
        struct str name = is_weight ? wanted->tensors[i].key : (struct str){ place, (size_t)size };
        if (name_map_intern(out, name, &is_new) == NAME_NONE)
            return error_set_memory(err);
        if (!is_new)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is there twice", STR_ARG(name));
    }
    return RESHARD_OK;
}

static bool is_wanted_state(const struct catalog *wanted, uint32_t tensor)
{
    return !(wanted->tensors[tensor].flags & TENSOR_HIDDEN) && state_key_is_any(wanted->tensors[tensor].key);
}

reshard_status wanted_states_find(const struct catalog *wanted, struct arena *arena, struct wanted_state states[WANTED_STATES_MAX],
                                     uint32_t *count, reshard_error *err)
{
    struct finding finding = { .wanted = wanted, .arena = arena, .states = states };
    uint32_t state_count = 0;
    *count = 0;
    for (uint32_t i = 0; i < wanted->tensor_count; i++)
        state_count += is_wanted_state(wanted, i);
    if (state_count == 0)
        return RESHARD_OK;
    reshard_status status = wanted_list_weights(wanted, &finding.weights, err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        if (is_wanted_state(wanted, i))
            status = note_state(&finding, i, err);
    }
    name_map_release(&finding.weights);
    *count = finding.count;
    return status;
}
