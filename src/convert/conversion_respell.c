/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in the spelling of torch, optim.state.NAME.exp_avg, or of atorch, NAME-exp_avg, on its way to a format of Megatron's,
 * which looks for optimizer.state.exp_avg.NAME: the source is seen so. The steps of all parameters become the one that Megatron knows,
 * weights of float32 are masters too, as Megatron-FSDP's are, and groups of parameters become those of Megatron's optimizers where they
 * are such.
 */
#include "convert/conversion.h"

#include "base/array.h"
#include "convert/small_numbers.h"
#include "convert/state_view.h"
#include "convert/torch_groups.h"
#include "formats/shared/step_number.h"
#include "formats/shared/value_edit.h"
#include "names/mapping_relate.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

#define STEP_WORD "step"
#define HINT "reshard_convert_options.exclude '%.*s*' leaves the state out"

struct respelling {
    struct conversion *conversion;
    const struct catalog *from;
    struct state_owners owners;
    struct key_filter filter;  /* of the source's own names */
    struct state_view view;
    struct torch_groups groups;
    struct value_graph graph;  /* of what is said about the optimizer */
    struct arena *arena;       /* of new keys */
    uint8_t *has_state;        /* by tensor: it is a weight with state of its shape */
    struct small_numbers numbers; /* steps, and behind them options of groups, as learning rates may be */
    uint32_t step_count;
    struct value *step;
    struct str before;         /* of some key of state */
    struct name_map befores;   /* of all keys of state in torch's spelling */
    struct name_map without;   /* those of optimizers that patterns leave out as a whole, which keep their keys for that */
    struct key_filter excluded; /* by patterns on the source's own names alone */
    uint32_t count;            /* of states that get another key */
    bool has_masters, are_f32; /* there are masters; all weights with state are float32 */
};

/* ---- what is there ---- */

static bool is_torch_state(const struct respelling *run, uint32_t tensor, struct owned_state *out)
{
    const struct catalog_tensor *entry = &run->from->tensors[tensor];
    return !(entry->flags & TENSOR_HIDDEN) && state_owners_read(&run->owners, entry->key, out) && out->words != STATE_WORDS_MEGATRON;
}

static bool is_without(const struct respelling *run, struct str before)
{
    return name_map_find(&run->without, before) != NAME_NONE;
}

/* Keeps in mind which optimizer the key is of, and whether it is left out: `exclude 'optim2.*'` is said of the source's names. */
static reshard_status note_optimizer_key(struct respelling *run, const struct owned_state *state, reshard_error *err)
{
    bool is_new, is_wanted = true;
    if (state->words != STATE_WORDS_TORCH)
        return RESHARD_OK;
    if (name_map_intern(&run->befores, state->before, &is_new) == NAME_NONE)
        return error_set_memory(err);
    if (!is_new)
        return RESHARD_OK;
    const struct str family = ARENA_JOIN(run->arena, state->before, STR("state."));
    reshard_status status = family.data ? key_filter_wants(&run->excluded, family, &is_wanted, err) : error_set_memory(err);
    if (!status && !is_wanted && name_map_intern(&run->without, state->before, NULL) == NAME_NONE)
        status = error_set_memory(err);
    return status;
}

/* Whether there is state in other spellings than Megatron's that the patterns do not leave out, and the reference has not as it is. */
static reshard_status respell_is_wanted(struct respelling *run, bool *out, reshard_error *err)
{
    const struct selection_options *selection = &run->conversion->options->selection;
    const struct checkpoint *like = run->conversion->like;
    struct owned_state state;
    *out = false;
    reshard_status status = key_filter_begin(&run->filter, selection->include, selection->exclude, err);
    if (!status)
        status = key_filter_begin(&run->excluded, NULL, selection->exclude, err);
    for (uint32_t i = 0; i < run->from->tensor_count && !status && !*out; i++) {
        struct str key = run->from->tensors[i].key;
        if (!is_torch_state(run, i, &state) || (like && catalog_find(like->source->catalog, key) != CATALOG_NONE))
            continue;
        status = key_filter_wants(&run->filter, key, out, err);
    }
    return status;
}

/* ---- numbers ---- */

/* Megatron knows one step for all parameters of an optimizer. */
static reshard_status take_common_step(struct respelling *run, struct str key, struct value *step, reshard_error *err)
{
    if (run->step && step_as_real(run->step) != step_as_real(step)) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is %g, and the step of another parameter %g; Megatron knows one for all",
                  STR_ARG(key), step_as_real(step), step_as_real(run->step));
        error_object(err, "%.*s", STR_ARG(key));
        error_hint(err, HINT, STR_ARG(run->before));
        return RESHARD_ERR_UNSUPPORTED;
    }
    run->step = run->step ? run->step : step;
    return RESHARD_OK;
}

static reshard_status respell_take_number(struct respelling *run, uint32_t number, reshard_error *err)
{
    const struct str key = run->from->tensors[run->numbers.tensors[number]].key;
    bool is_option = number >= run->step_count;
    struct value *value;
    reshard_status status = small_number_value(&run->numbers, number, &run->graph, &value, is_option ? NULL : err);
    if (is_option)
        return status == RESHARD_ERR_MEMORY ? error_set_memory(err) : torch_groups_take_number(&run->groups, &run->owners, key, value, err);
    return status ? status : take_common_step(run, key, value, err);
}

static reshard_status respell_read_numbers(struct respelling *run, reshard_error *err)
{
    reshard_status status = small_numbers_read(&run->numbers, run->conversion->source, &run->conversion->engine, err);
    for (uint32_t i = 0; i < run->numbers.count && !status; i++)
        status = respell_take_number(run, i, err);
    return status;
}

/* State among the items: steps that are numbers, and what is no tensor, of which Megatron has none. */
static reshard_status respell_item(struct respelling *run, uint32_t index, const struct owned_state *state, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct catalog_item *item = &run->from->items[index];
    bool is_wanted = false;
    reshard_status status = key_filter_wants(&run->filter, item->key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    status = source_load_item(conversion->source->source, index, err);
    if (status)
        return status;
    run->view.skips_item[index] = 1;
    bool is_number = item->value && item->graph && (item->value->kind == VALUE_INT || item->value->kind == VALUE_FLOAT);
    if (!is_number || !str_is(state->state, STEP_WORD))
        return conversion->options->selection.drop_items
                   ? RESHARD_OK
                   : note_add(&conversion->losses, &conversion->notes, NOTE_OPTIMIZER, item->key, err,
                              "is state of the optimizer and no tensor: Megatron has none such");
    struct value *step = value_copy(&run->graph, item->value, item->graph->count);
    return step ? take_common_step(run, item->key, step, err) : error_set_memory(err);
}

static reshard_status respell_items(struct respelling *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < run->from->item_count && !status; i++) {
        const struct catalog_item *item = &run->from->items[i];
        struct owned_state state;
        if (item->kind != ITEM_FILE && state_owners_read(&run->owners, item->key, &state) && state.words != STATE_WORDS_MEGATRON &&
            !is_without(run, state.before))
            status = respell_item(run, i, &state, err);
    }
    return status;
}

/* ---- keys ---- */

struct str conversion_state_name(const struct conversion *conversion, struct str weight)
{
    const char *prefix = conversion->options->selection.naming.strip_prefix;
    size_t size = prefix ? strlen(prefix) : 0;
    bool has_it = size && weight.size > size && str_starts_with(weight, prefix);
    return has_it ? (struct str){ weight.data + size, weight.size - size } : weight;
}

/* A tensor of one number, which is read and not written; not where a pattern is on its name, which it keeps for that. */
static reshard_status respell_number(struct respelling *run, uint32_t tensor, reshard_error *err)
{
    bool is_wanted;
    reshard_status status = key_filter_wants(&run->filter, run->from->tensors[tensor].key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    run->view.is_left_out[tensor] = 1;
    if (!small_number_is(run->from, tensor)) /* an option: steps are such */
        return torch_groups_take_number(&run->groups, &run->owners, run->from->tensors[tensor].key, NULL, err);
    small_numbers_note(&run->numbers, tensor);
    return RESHARD_OK;
}

static reshard_status respell_key(struct respelling *run, uint32_t tensor, const struct owned_state *state, reshard_error *err)
{
    const struct catalog_tensor *entry = &run->from->tensors[tensor], *weight = &run->from->tensors[state->weight];
    reshard_status status = note_optimizer_key(run, state, err);
    if (status || is_without(run, state->before))
        return status;
    run->before = state->before;
    if (str_is(state->state, STEP_WORD) && small_number_is(run->from, tensor))
        return respell_number(run, tensor, err);
    if (!catalog_same_shape(run->from, entry, run->from, weight))
        return note_add(&run->conversion->warnings, &run->conversion->notes, NOTE_OPTIMIZER, entry->key, err,
                        "is state in torch's spelling, for which Megatron does not look, and has not the shape of its weight: "
                        "reshard_convert_options.exclude leaves it out");
    const struct str name = conversion_state_name(run->conversion, weight->key);
    run->view.keys[tensor] = ARENA_JOIN(run->arena, STR(STATE_KEY_PREFIX), state->state, STR("."), name);
    run->has_masters |= str_is(state->state, STATE_MASTER) || str_is(state->state, STATE_PLAIN_MASTER);
    run->are_f32 &= weight->dtype == DTYPE_F32;
    run->has_state[state->weight] = 1;
    run->count++;
    return run->view.keys[tensor].data ? RESHARD_OK : error_set_memory(err);
}

/* Options of groups that are tensors, of optimizers that have state: modules may have names like these. */
static reshard_status take_options(struct respelling *run, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < run->from->tensor_count && run->befores.count && !status; i++) {
        const struct catalog_tensor *tensor = &run->from->tensors[i];
        struct str before;
        bool is_one = !(tensor->flags & TENSOR_HIDDEN) && !run->has_state[i] && torch_groups_key(tensor->key, &before);
        if (is_one && name_map_find(&run->befores, before) != NAME_NONE && !is_without(run, before))
            status = respell_number(run, i, err);
    }
    return status;
}

static reshard_status add_master_copies(struct respelling *run, reshard_error *err)
{
    struct state_view *view = &run->view;
    for (uint32_t i = 0; i < run->from->tensor_count; i++) {
        if (!run->has_state[i])
            continue;
        const struct str name = conversion_state_name(run->conversion, run->from->tensors[i].key);
        const struct str key = ARENA_JOIN(run->arena, STR(STATE_KEY_PREFIX STATE_MASTER "."), name);
        if (!key.data || !ARRAY_ROOM(view->again, view->again_count, view->again_capacity))
            return error_set_memory(err);
        view->again[view->again_count++] = (struct state_again){ i, key };
    }
    return RESHARD_OK;
}

/* ---- what is said about the optimizer ---- */

reshard_status conversion_note_options(struct conversion *conversion, const struct name_map *options, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < options->count && !status; i++)
        status = note_add(&conversion->losses, &conversion->notes, NOTE_GROUPS, name_map_at(options, i), err,
                          "this option of param_groups is a tensor or an object, and numbers, texts and lists are kept");
    return status;
}

reshard_status conversion_note_layout(struct conversion *conversion, struct str item, reshard_error *err)
{
    return note_add(&conversion->losses, &conversion->notes, NOTE_LAYOUT, item, err, "it belongs to the layout that it was saved under");
}

static reshard_status note_groups(struct respelling *run, bool is_said, bool is_cut, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    reshard_status status = conversion_note_options(conversion, &run->groups.left_out, err);
    if (status)
        return status;
    if (!is_said)
        return note_add(&conversion->losses, &conversion->notes, NOTE_GROUPS, STR("param_groups"), err,
                        "Megatron has one group with weight decay and one without, of vectors and biases, and these are others");
    if (is_cut)
        return note_add(&conversion->warnings, &conversion->notes, NOTE_GROUPS, STR("param_groups"), err,
                        "vectors and biases get a group without weight decay, as Megatron has it: the source has one of all parameters");
    return RESHARD_OK;
}

/* {"optimizer": {"param_groups": […], "state": {"common_step": N}}}, whose groups have the step where the optimizer is distributed. */
static reshard_status say_optimizer(struct respelling *run, bool has_step_in_groups, reshard_error *err)
{
    struct value_graph *graph = &run->graph;
    struct value *groups = NULL;
    bool is_cut = false;
    reshard_status status = torch_groups_to_megatron(&run->groups, &groups, &is_cut, err);
    if (!status && run->groups.is_found)
        status = note_groups(run, groups, is_cut, err);
    if (!status && groups && run->step && has_step_in_groups)
        status = step_to_groups(graph, groups, run->step, err);
    if (status || catalog_find_item(run->from, STR("optimizer")) != CATALOG_NONE)
        return status;
    struct value_edit outer = { .graph = graph, .members = value_new_list(graph, VALUE_DICT, NULL, 0) },
                      inner = { .graph = graph, .members = value_new_list(graph, VALUE_DICT, NULL, 0) },
                      state = { .graph = graph, .members = value_new_list(graph, VALUE_DICT, NULL, 0) };
    if (!outer.members || !inner.members || !state.members)
        return error_set_memory(err);
    if (groups)
        value_edit_set(&inner, "param_groups", groups, true);
    if (run->step && !(groups && has_step_in_groups)) {
        value_edit_set(&state, "common_step", run->step, true);
        value_edit_set(&inner, "state", state.members, true);
    }
    value_edit_set(&outer, "optimizer", inner.members, true);
    if (outer.failed || inner.failed || state.failed)
        return error_set_memory(err);
    graph->root = outer.members;
    run->view.item = inner.members->list.count ? "optimizer" : NULL;
    run->view.graph = graph;
    return RESHARD_OK;
}

static reshard_status respell_skip_items(struct respelling *run, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    bool is_atorch = catalog_find_item(run->from, STR(ATORCH_GROUPS)) != CATALOG_NONE;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < run->from->item_count && !status; i++) {
        run->view.skips_item[i] |= run->groups.is_taken[i];
        if (!is_atorch || !str_is(run->from->items[i].key, ATORCH_LAYOUT))
            continue;
        run->view.skips_item[i] = 1;
        status = conversion_note_layout(conversion, run->from->items[i].key, err);
    }
    return status;
}

/* ---- the view ---- */

static reshard_status respell_to_megatron(struct respelling *run, const struct format_driver *driver, reshard_error *err)
{
    bool are_weights = driver->abilities & FORMAT_WEIGHTS_ARE_MASTERS;
    reshard_status status = state_view_begin(&run->view, run->from, err);
    run->has_state = array_zeroed(run->from->tensor_count, 1);
    if (!status)
        status = run->has_state ? small_numbers_begin(&run->numbers, run->from, err) : error_set_memory(err);
    run->are_f32 = true;
    run->groups.graph = &run->graph;
    run->groups.without = &run->without;
    for (uint32_t i = 0; i < run->from->tensor_count && !status; i++) {
        struct owned_state state;
        if (is_torch_state(run, i, &state))
            status = respell_key(run, i, &state, err);
    }
    run->step_count = run->numbers.count;
    if (!status)
        status = take_options(run, err);
    bool adds_masters = run->count && !run->has_masters && run->are_f32 && !are_weights;
    if (!status && adds_masters)
        status = add_master_copies(run, err);
    if (!status)
        status = respell_read_numbers(run, err);
    if (!status)
        status = respell_items(run, err);
    if (!status)
        status = torch_groups_read(run->conversion->source->source, &run->owners, &run->groups, err);
    if (!status)
        status = say_optimizer(run, adds_masters || run->has_masters || are_weights, err);
    if (!status)
        status = respell_skip_items(run, err);
    if (!status)
        status = state_view_make(run->conversion->source, &run->view, &run->conversion->respelled, err);
    return status;
}

static bool respell_is_off(const struct conversion *conversion)
{
    const char *const *option = conversion->options->format_options;
    for (; option && *option; option++) {
        if (strcmp(*option, "state=as-is") == 0)
            return true;
    }
    return !mapping_is_container(conversion->source->source->driver->name_space);
}

reshard_status conversion_respell_state(struct conversion *conversion, reshard_error *err)
{
    const struct format_driver *driver;
    bool is_wanted = false;
    const struct selection_options *selection = &conversion->options->selection;
    /* What lies in memory has the names that whoever saves it gives, and may not be there yet; what is lost is told by numbers. */
    if (!conversion->source->source->driver->probe || selection->lost_tensors || selection->lost_items)
        return RESHARD_OK;
    reshard_status status = conversion_driver(conversion, &driver, err);
    bool is_by_number = !status && driver->abilities & FORMAT_STATE_BY_NUMBER;
    if (!status && !(driver->abilities & FORMAT_STATE_BY_PARAMETER) && !is_by_number)
        return conversion_torch_state(conversion, driver, err);
    if (status || respell_is_off(conversion))
        return status;
    struct respelling run = { .conversion = conversion, .from = conversion->source->source->catalog, .arena = &conversion->notes };
    state_owners_begin(&run.owners, run.from);
    status = respell_is_wanted(&run, &is_wanted, err);
    if (!status && is_wanted && is_by_number)
        status = note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                          "the optimizer's state is in torch's spelling and is kept so; a run of Megatron looks for state by number in "
                          "torch_dcp: reshard_convert_options.exclude 'optimizer*' leaves it out, torch_dist has it by name");
    else if (!status && is_wanted)
        status = respell_to_megatron(&run, driver, err);
    if (!status)
        status = conversion_note_numbered(conversion, &run.owners, &run.filter, is_by_number, err);
    if (!status && conversion->respelled)
        conversion->source = conversion->respelled;
    key_filter_release(&run.filter);
    state_view_release(&run.view);
    torch_groups_release(&run.groups);
    value_graph_release(&run.graph);
    free(run.has_state);
    key_filter_release(&run.excluded);
    name_map_release(&run.befores);
    name_map_release(&run.without);
    small_numbers_release(&run.numbers);
    return status;
}
