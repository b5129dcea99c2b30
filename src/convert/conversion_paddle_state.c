/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state of Megatron or torch on its way to Paddle's formats, where names become Paddle's: the source is seen with
 * NAME.moment1_0, as Paddle's trainer asks for it, which the mapping then takes along with NAME. Paddle has no steps: its Adam keeps for
 * each parameter the powers of both betas by which it corrects the moments next, beta^(step + 1), which are made of the step and the betas.
 */
#include "convert/conversion.h"

#include "base/array.h"
#include "convert/optimizer_said.h"
#include "convert/small_numbers.h"
#include "convert/state_view.h"
#include "convert/torch_groups.h"
#include "formats/shared/step_number.h"
#include "mapping/map_state.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

#define MOMENT_WORD "exp_avg"
#define STEP_WORD "step"
#define BETA_COUNT 2

static const enum map_state powers[BETA_COUNT] = { MAP_STATE_BETA1, MAP_STATE_BETA2 };

struct paddle_spelling {
    struct conversion *conversion;
    const struct catalog *from;
    struct state_owners owners;
    struct key_filter filter; /* of the source's own names */
    struct state_view view;
    struct value_graph graph;
    struct small_numbers steps;
    uint32_t *step_of;        /* by weight: number in steps + 1, or 0 */
    uint32_t *weights, weight_count; /* those with a first moment */
    const struct value *step; /* of all parameters; NULL: they have steps of their own, or none */
    double betas[BETA_COUNT];
    bool has_betas, are_betas_equal;
};

/* ---- keys ---- */

/* Megatron-FSDP has the weights of a module that is wrapped once, model.module.NAME, and state of one that is wrapped more often. */
static bool read_wrapped(const struct paddle_spelling *run, struct str key, struct owned_state *out)
{
    static const char wrapped[] = "module.module.module.", stored[] = "model.module.";
    struct state_key read;
    if (!state_key_read(key, &read) || read.kind != STATE_KEY_PARAMETER || !str_starts_with(read.parameter, wrapped))
        return false;
    const size_t skipped = sizeof(wrapped) - 1;
    const struct str name = { read.parameter.data + skipped, read.parameter.size - skipped };
    const struct str weight = ARENA_JOIN(&run->conversion->notes, str_of(stored), name);
    *out = (struct owned_state){ STATE_WORDS_TORCH, weight.data ? catalog_find(run->from, weight) : CATALOG_NONE, read.state, { 0 } };
    return out->weight != CATALOG_NONE;
}

static reshard_status paddle_respell_key(struct paddle_spelling *run, uint32_t tensor, reshard_error *err)
{
    const struct catalog_tensor *entry = &run->from->tensors[tensor];
    struct owned_state state;
    bool is_wanted = false;
    if (entry->flags & TENSOR_HIDDEN ||
        (!state_owners_read(&run->owners, entry->key, &state) && !read_wrapped(run, entry->key, &state)))
        return RESHARD_OK;
    reshard_status status = key_filter_wants(&run->filter, entry->key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    const struct catalog_tensor *weight = &run->from->tensors[state.weight];
    if (str_is(state.state, STEP_WORD) && small_number_is(run->from, tensor)) {
        small_numbers_note(&run->steps, tensor);
        run->step_of[state.weight] = run->steps.count;
        return RESHARD_OK;
    }
    const char *word = map_state_paddle_word_of(state.state);
    if (!word || !catalog_same_shape(run->from, entry, run->from, weight))
        return RESHARD_OK;
    if (entry->dtype == DTYPE_I16)
        return state_refuse_remainders(entry->key, err);
    run->view.keys[tensor] = ARENA_JOIN(&run->conversion->notes, weight->key, STR("."), str_of(word));
    if (str_is(state.state, MOMENT_WORD))
        run->weights[run->weight_count++] = state.weight;
    return run->view.keys[tensor].data ? RESHARD_OK : error_set_memory(err);
}

/* ---- betas ---- */

static void take_betas(struct paddle_spelling *run, const struct value *group)
{
    const struct value *betas = group && group->kind == VALUE_DICT ? value_dict_get(group, "betas") : NULL;
    if (!betas || (betas->kind != VALUE_LIST && betas->kind != VALUE_TUPLE) || betas->list.count != BETA_COUNT)
        return;
    for (int i = 0; i < BETA_COUNT; i++) {
        const struct value *beta = betas->list.items[i];
        if (beta->kind != VALUE_FLOAT || beta->real < 0 || beta->real > 1)
            return;
        run->are_betas_equal &= !run->has_betas || run->betas[i] == beta->real;
    }
    for (int i = 0; i < BETA_COUNT; i++)
        run->betas[i] = betas->list.items[i]->real;
    run->has_betas = true;
}

static reshard_status find_betas(struct paddle_spelling *run, reshard_error *err)
{
    struct source *source = run->conversion->source->source;
    struct torch_groups groups = { .graph = &run->graph };
    reshard_status status = torch_groups_read(source, &run->owners, &groups, err);
    for (uint32_t i = 0; i < groups.count && !status; i++)
        take_betas(run, groups.groups[i].members);
    for (uint32_t i = 0; i < run->from->item_count && !status; i++) {
        const struct value *said = optimizer_said_by(&run->from->items[i]), *list = said ? parameter_group_list(said) : NULL;
        for (size_t g = 0; list && g < list->list.count; g++)
            take_betas(run, list->list.items[g]);
    }
    torch_groups_release(&groups);
    return status;
}

/* ---- steps, and the powers ---- */

static double power_of(double base, uint64_t exponent)
{
    double power = 1;
    for (; exponent; exponent >>= 1, base *= base)
        power *= exponent & 1 ? base : 1;
    return power;
}

/* The step of a weight; *out NULL: nothing says it. */
static reshard_status step_of_weight(struct paddle_spelling *run, uint32_t weight, const struct value **out, reshard_error *err)
{
    const uint32_t number = run->step_of[weight];
    struct value *step = NULL;
    *out = run->step;
    if (!number)
        return RESHARD_OK;
    reshard_status status = small_number_value(&run->steps, number - 1, &run->graph, &step, err);
    *out = step;
    return status;
}

static reshard_status add_powers(struct paddle_spelling *run, uint32_t weight, bool *is_known, reshard_error *err)
{
    const struct value *step;
    struct state_view *view = &run->view;
    reshard_status status = step_of_weight(run, weight, &step, err);
    const double count = !status && step ? step_as_real(step) : -1;
    *is_known = count >= 0 && count < 1e15;
    for (int i = 0; i < BETA_COUNT && !status && *is_known; i++) {
        const struct str key = ARENA_JOIN(&run->conversion->notes, run->from->tensors[weight].key, STR("."),
                                          str_of(map_state_paddle_word(powers[i])));
        if (!key.data || !ARRAY_ROOM(view->numbers, view->number_count, view->number_capacity))
            return error_set_memory(err);
        if (catalog_find(run->from, key) == CATALOG_NONE)
            view->numbers[view->number_count++] =
                (struct state_number){ .key = key, .number = (float)power_of(run->betas[i], (uint64_t)count + 1), .rank = 1 };
    }
    if (!status && *is_known && run->step_of[weight])
        view->is_left_out[run->steps.tensors[run->step_of[weight] - 1]] = 1;
    return status;
}

static reshard_status add_all_powers(struct paddle_spelling *run, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    uint32_t unknown = 0;
    reshard_status status = optimizer_find_step(conversion->source->source, &run->step, err);
    if (!status)
        status = small_numbers_read(&run->steps, conversion->source, &conversion->engine, err);
    if (!status)
        status = find_betas(run, err);
    for (uint32_t i = 0; i < run->weight_count && !status; i++) {
        bool is_known = false;
        if (run->has_betas && run->are_betas_equal)
            status = add_powers(run, run->weights[i], &is_known, err);
        unknown += !is_known;
    }
    if (status || !unknown)
        return status;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                    "beta powers of %u weights (beta1_pow_acc_0, beta2_pow_acc_0), which Paddle's Adam asks for, are not made: %s", unknown,
                    !run->has_betas         ? "the source does not say its betas"
                    : !run->are_betas_equal ? "the source's groups have different betas"
                                            : "the source does not say its step");
}

/* ---- which ---- */

/* A reference that has state in another spelling than Paddle's gets it so. */
static bool reference_is_paddles(const struct catalog *reference)
{
    struct state_owners owners;
    if (!reference)
        return true;
    state_owners_begin(&owners, reference);
    for (uint32_t i = 0; i < reference->tensor_count; i++) {
        struct owned_state state;
        if (!(reference->tensors[i].flags & TENSOR_HIDDEN) && state_owners_read(&owners, reference->tensors[i].key, &state))
            return false;
    }
    return true;
}

/* With names of the caller's own, keys are those that he sees. */
static bool paddle_spelling_is_asked(const struct conversion *conversion, const struct format_driver *driver)
{
    const struct mapping_options *map = conversion->options->map;
    const struct selection_options *selection = &conversion->options->selection;
    const struct naming_options *naming = &selection->naming;
    const bool is_given = (naming->renames && *naming->renames) || naming->rename || naming->add_prefix || (map && map->text_count);
    const bool is_asked = map && (map->rules_text || (map->rules && strcmp(map->rules, "none") != 0));
    return driver->abilities & FORMAT_PADDLE_STATE && (is_asked || conversion->like) && !is_given &&
           conversion->source->source->driver->probe && !selection->lost_tensors && !selection->lost_items &&
           reference_is_paddles(conversion->like ? conversion->like->source->catalog : NULL);
}

static reshard_status paddle_view(struct paddle_spelling *run, reshard_error *err)
{
    struct conversion *conversion = run->conversion;
    const struct selection_options *selection = &conversion->options->selection;
    const uint32_t count = run->from->tensor_count;
    reshard_status status = state_view_begin(&run->view, run->from, err);
    run->step_of = array_zeroed(count, sizeof(*run->step_of));
    run->weights = array_zeroed(count, sizeof(*run->weights));
    if (!status)
        status = run->step_of && run->weights ? small_numbers_begin(&run->steps, run->from, err) : error_set_memory(err);
    if (!status)
        status = key_filter_begin(&run->filter, selection->include, selection->exclude, err);
    for (uint32_t i = 0; i < count && !status; i++)
        status = paddle_respell_key(run, i, err);
    if (!status && run->weight_count)
        status = add_all_powers(run, err);
    bool is_any = run->weight_count > 0;
    for (uint32_t i = 0; i < count && !status && !is_any; i++)
        is_any = run->view.keys[i].data != NULL;
    if (!status && is_any)
        status = state_view_make(conversion->source, &run->view, &conversion->respelled, err);
    return status;
}

reshard_status conversion_paddle_state(struct conversion *conversion, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = conversion_driver(conversion, &driver, err);
    if (status || !paddle_spelling_is_asked(conversion, driver))
        return status;
    struct paddle_spelling run = { .conversion = conversion, .from = conversion->source->source->catalog, .are_betas_equal = true };
    state_owners_begin(&run.owners, run.from);
    status = paddle_view(&run, err);
    if (!status && conversion->respelled)
        conversion->source = conversion->respelled;
    key_filter_release(&run.filter);
    state_view_release(&run.view);
    value_graph_release(&run.graph);
    small_numbers_release(&run.steps);
    free(run.step_of);
    free(run.weights);
    return status;
}
