/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's rerun state machine checks results by running steps again. Some releases keep its state in legacy files and some do not, and
 * it belongs to the ranks of one layout. It is taken over where the target's ranks are the source's, and the reference, if there is one,
 * has it too. Where only the reference has it, its state is written if that says nothing but that nothing has happened: the file has the
 * members that the run expects.
 */
#include "formats/megatron/megatron_target.h"

#define RERUN_KEY "rerun_state_machine"

bool megatron_is_rerun(struct str name)
{
    return str_is(name, RERUN_KEY);
}

bool megatron_same_ranks(const struct layout_request *request, const struct megatron_target *state)
{
    const struct megatron_source *source = megatron_folder_state(request->source);
    const struct parallel_layout *a = &state->layout, *b = source ? &source->layout : NULL;
    return b && a->tp == b->tp && a->pp == b->pp && a->vp == b->vp && a->ep == b->ep && a->etp == b->etp;
}

/* The reference's state for a rank, NULL if it has none. */
static const struct value *reference_state(const struct layout_request *request, const struct target_rank *rank)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    if (!like)
        return NULL;
    uint32_t index = rank->like == TORCH_NONE ? 0 : rank->like;
    return value_dict_get(like->ranks[index].root, RERUN_KEY);
}

static bool source_has_state(const struct layout_request *request)
{
    const struct megatron_source *source = megatron_folder_state(request->source);
    return source && value_dict_get(source->ranks[0].root, RERUN_KEY);
}

bool megatron_keeps_rerun(const struct layout_request *request, const struct megatron_target *state)
{
    bool is_wanted = !megatron_folder_state(request->like) || (state->rank_count > 0 && reference_state(request, &state->ranks[0]));
    return is_wanted && source_has_state(request) && megatron_same_ranks(request, state);
}

static bool is_nothing(const struct value *value)
{
    struct value **pairs;
    size_t count;
    if (!value || value->kind == VALUE_NONE || (value->kind == VALUE_BOOL && !value->boolean))
        return true;
    return value_as_mapping(value, &pairs, &count) && count == 0;
}

/* No step was noticed, repeated or asked for. */
static bool is_initial(const struct value *rerun)
{
    static const char *const events[] = {
        "rerun_requested", "checkpoint_requested", "restart_again_requested", "continue_requested",        "failed_validation_call",
        "initial_result",  "suspicious_node",      "suspicious_device",       "data_iterator_checkpoints", "large_value_counts",
        "max_values"
    };
    const struct value *inner = value_dict_get(rerun, "sharded"),
                       *injector = inner ? value_dict_get(inner, "error_injector_checkpoint") : NULL;
    const struct value *reached = inner ? value_dict_get(inner, "current_iteration") : NULL;
    int64_t iteration = -1;
    if (!inner || value_dict_get(rerun, "current_iteration") || (reached && !value_as_int(reached, &iteration)))
        return false;
    bool is_good = iteration < 0 && (!injector || is_nothing(value_dict_get(injector, "injected_error_type")));
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        is_good = is_good && is_nothing(value_dict_get(inner, events[i]));
    return is_good;
}

/* The reference's state, if that is what the target's files get. */
static const struct value *taken_state(const struct layout_request *request, const struct megatron_target *state,
                                       const struct target_rank *rank)
{
    const struct value *found = reference_state(request, rank);
    return found && !megatron_keeps_rerun(request, state) && is_initial(found) ? found : NULL;
}

reshard_status megatron_like_rerun(const struct layout_request *request, const struct megatron_target *state, uint32_t rank,
                                   struct value_graph *graph, struct value **out, reshard_error *err)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct value *found = taken_state(request, state, &state->ranks[rank]);
    *out = NULL;
    if (!found)
        return RESHARD_OK;
    uint32_t index = state->ranks[rank].like == TORCH_NONE ? 0 : state->ranks[rank].like;
    *out = value_copy(graph, found, like->torch.files[like->ranks[index].file].graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

reshard_status megatron_note_rerun(const struct layout_request *request, struct target *target, bool has_item, reshard_error *err)
{
    const struct megatron_target *state = target->driver_state;
    bool is_kept = megatron_keeps_rerun(request, state), is_same = megatron_same_ranks(request, state);
    reshard_status status = RESHARD_OK;
    if (has_item && !is_kept)
        status = target_note_dropped(target, NOTE_LAYOUT, STR(RERUN_KEY), err, "%s",
                                     is_same ? "the reference's run keeps none" : "it belongs to the ranks that saved it");
    if (!status && state->rank_count > 0 && taken_state(request, state, &state->ranks[0]))
        status = target_note_changed(target, NOTE_REFERENCE, STR(RERUN_KEY), err,
                                     "the reference's, by which nothing has happened; the source has none that fits");
    return status;
}
