/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state on its way to torch's own formats, where set_optimizer_state_dict asks for optimizer.state.NAME.exp_avg: atorch's is
 * NAME-exp_avg, Megatron's optimizer.state.exp_avg.NAME where its names become those of a model. Megatron's one step becomes that of each
 * parameter, and its groups, which have no lists of parameters, get those that belong to them.
 */
#include "convert/conversion.h"
#include "convert/optimizer_said.h"

#include "base/array.h"
#include "convert/state_view.h"
#include "convert/torch_groups.h"
#include "formats/shared/step_number.h"
#include "names/mapping_relate.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

#define HALF_END "_v"
#define MOMENT_WORD "exp_avg"
#define STEP_WORD "step"

/* ---- of atorch ---- */

/* What state is called of a weight in the target: without the prefix of weights alone, unless that is the name of another. */
static struct str torch_state_name(const struct conversion *conversion, struct str weight)
{
    const struct str name = conversion_state_name(conversion, weight), prefix = conversion->torch_prefix;
    const struct str rest = { name.data + prefix.size, name.size - prefix.size };
    bool has_it = prefix.size && name.size > prefix.size && str_begins(name, prefix);
    return has_it && catalog_find(conversion->source->source->catalog, rest) == CATALOG_NONE ? rest : name;
}

/* NAME-exp_avg is seen as optimizer.state.NAME.exp_avg. */
static reshard_status view_atorch(struct conversion *conversion, reshard_error *err)
{
    struct source *source = conversion->source->source;
    const struct selection_options *selection = &conversion->options->selection;
    const struct catalog *from = source->catalog;
    struct state_owners owners;
    struct state_view view;
    struct key_filter filter = { 0 };
    bool is_wanted = false;
    state_owners_begin(&owners, from);
    reshard_status status = state_view_begin(&view, from, err);
    if (!status)
        status = key_filter_begin(&filter, selection->include, selection->exclude, err);
    for (uint32_t i = 0; i < from->tensor_count && !status; i++) {
        struct owned_state state;
        bool is_one = false;
        if (from->tensors[i].flags & TENSOR_HIDDEN || !state_owners_read(&owners, from->tensors[i].key, &state) ||
            state.words != STATE_WORDS_FLAT)
            continue;
        status = key_filter_wants(&filter, from->tensors[i].key, &is_one, err);
        is_wanted |= is_one;
        const struct str name = torch_state_name(conversion, from->tensors[state.weight].key);
        view.keys[i] = ARENA_JOIN(&conversion->notes, STR(STATE_KEY_PREFIX), name, STR("."), state.state);
        if (!view.keys[i].data && !status)
            status = error_set_memory(err);
    }
    for (uint32_t i = 0; i < from->item_count && !status; i++)
        view.skips_item[i] = str_is(from->items[i].key, ATORCH_GROUPS) || str_is(from->items[i].key, ATORCH_LAYOUT);
    if (!status && is_wanted && catalog_find_item(from, STR(ATORCH_LAYOUT)) != CATALOG_NONE)
        status = conversion_note_layout(conversion, STR(ATORCH_LAYOUT), err);
    if (!status && is_wanted)
        status = state_view_make(conversion->source, &view, &conversion->respelled, err);
    if (!status && is_wanted) {
        conversion->source = conversion->respelled;
        conversion->spells_as_torch = true;
    }
    key_filter_release(&filter);
    state_view_release(&view);
    return status;
}

/* ---- of Megatron ---- */

/* Whether it is what Megatron has of the groups of an optimizer. */
static bool says_groups(const struct catalog_item *item)
{
    struct state_key key;
    bool is_object = state_key_read(item->key, &key) && (key.kind == STATE_KEY_GROUPS || key.kind == STATE_KEY_GROUP_META);
    return item->kind != ITEM_FILE && (is_object || str_is(item->key, "optimizer") || torch_groups_key(item->key, NULL));
}

/* What an item says of the first optimizer; NULL: nothing. */
const struct value *optimizer_said_by(const struct catalog_item *item)
{
    const struct value *value = item->value;
    if (!value || !item->graph || !says_groups(item) || torch_groups_key(item->key, NULL))
        return NULL;
    if (value->kind == VALUE_LIST && value->list.count)
        value = value->list.items[0];
    if (value->kind == VALUE_DICT && value->list.count >= 2 && value->list.items[0]->kind == VALUE_INT)
        value = value->list.items[1];
    return value->kind == VALUE_DICT ? value : NULL;
}

static const struct value *step_of_optimizer(const struct value *optimizer)
{
    const struct value *groups = parameter_group_list(optimizer), *step = step_find_common(optimizer);
    for (size_t i = 0; !step && groups && i < groups->list.count; i++)
        step = groups->list.items[i]->kind == VALUE_DICT ? value_dict_get(groups->list.items[i], STEP_WORD) : NULL;
    return step;
}

/* What a checkpoint of Megatron's says of its step; *out NULL: nothing that is a number. */
reshard_status optimizer_find_step(struct source *source, const struct value **out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    reshard_status status = RESHARD_OK;
    *out = NULL;
    for (uint32_t i = 0; i < catalog->item_count && !status && !*out; i++) {
        const struct catalog_item *item = &catalog->items[i];
        struct state_key key;
        bool is_meta = state_key_read(item->key, &key) && key.kind == STATE_KEY_GROUP_META && str_is(key.state, STEP_WORD);
        if (!says_groups(item))
            continue;
        status = source_load_item(source, i, err);
        const struct value *optimizer = status ? NULL : optimizer_said_by(item);
        const struct value *step = is_meta ? item->value : optimizer ? step_of_optimizer(optimizer) : NULL;
        *out = step && (step->kind == VALUE_INT || step->kind == VALUE_FLOAT) ? step : NULL;
    }
    return status;
}

/* The key of the first moment's parameter with another word for the state. */
static struct str torch_step_key(struct arena *arena, struct str key)
{
    struct state_key read;
    if (!state_key_read(key, &read) || read.kind != STATE_KEY_PARAMETER || read.chain >= 0 || !str_is(read.state, MOMENT_WORD))
        return (struct str){ 0 };
    if (str_ends_with(read.parameter, HALF_END)) /* Megatron-FSDP's two halves are one weight, with the step of the first */
        return (struct str){ 0 };
    const struct str before = { key.data, (size_t)(read.state.data - key.data) };
    const char *behind = read.state.data + read.state.size;
    return ARENA_JOIN(arena, before, STR(STEP_WORD), { behind, (size_t)(key.data + key.size - behind) });
}

static reshard_status view_megatron(struct conversion *conversion, reshard_error *err)
{
    struct source *source = conversion->source->source;
    const struct value *step;
    struct state_view view;
    reshard_status status = state_view_begin(&view, source->catalog, err);
    if (!status)
        status = optimizer_find_step(source, &step, err);
    for (uint32_t i = 0; i < source->catalog->tensor_count && !status && step; i++) {
        const struct str key = torch_step_key(&conversion->notes, source->catalog->tensors[i].key);
        if (!key.data || source->catalog->tensors[i].flags & TENSOR_HIDDEN || catalog_find(source->catalog, key) != CATALOG_NONE)
            continue;
        if (!ARRAY_ROOM(view.numbers, view.number_count, view.number_capacity))
            status = error_set_memory(err);
        else
            view.numbers[view.number_count++] = (struct state_number){ key, (float)step_as_real(step) };
    }
    for (uint32_t i = 0; i < source->catalog->item_count && !status; i++)
        view.skips_item[i] = says_groups(&source->catalog->items[i]);
    if (!status)
        status = state_view_make(conversion->source, &view, &conversion->respelled, err);
    if (!status) {
        conversion->source = conversion->respelled;
        conversion->spells_as_torch = conversion->has_megatrons_words = true;
    }
    state_view_release(&view);
    return status;
}

/* ---- which of them ---- */

/* NAME of optimizer.state.NAME.STATE */
static bool torch_name(struct str key, struct str *name, struct str *state)
{
    static const char prefix[] = STATE_KEY_PREFIX;
    const size_t size = sizeof(prefix) - 1;
    const char *last = key.size > size ? memrchr(key.data + size, '.', key.size - size) : NULL;
    if (!last || !str_starts_with(key, prefix) || last == key.data + size)
        return false;
    *name = (struct str){ key.data + size, (size_t)(last - key.data) - size };
    *state = (struct str){ last + 1, (size_t)(key.data + key.size - last) - 1 };
    return state->size > 0;
}

static bool has_megatron_state(const struct catalog *catalog)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct state_key key;
        bool is_read = !(catalog->tensors[i].flags & TENSOR_HIDDEN) && state_key_read(catalog->tensors[i].key, &key);
        if (is_read && key.kind == STATE_KEY_PARAMETER)
            return true;
    }
    return false;
}

/* Names of the caller's own are looked for in the names that the source has. */
static bool names_are_given(const struct conversion *conversion)
{
    const struct mapping_options *map = conversion->options->map;
    const struct naming_options *naming = &conversion->options->selection.naming;
    return (naming->renames && *naming->renames) || naming->rename || naming->add_prefix || (map && map->text_count);
}

/* A reference says how state is spelled, and what weights have in front. */
static bool reference_allows(struct conversion *conversion)
{
    const struct catalog *reference = conversion->like ? conversion->like->source->catalog : NULL;
    struct state_owners owners;
    if (!reference)
        return true;
    state_owners_begin(&owners, reference);
    for (uint32_t i = 0; i < reference->tensor_count; i++) {
        const struct str key = reference->tensors[i].key;
        struct owned_state state;
        struct str name, word;
        bool is_one = !(reference->tensors[i].flags & TENSOR_HIDDEN) && state_owners_read(&owners, key, &state);
        if (!is_one || state.words != STATE_WORDS_TORCH || !str_is(state.before, "optimizer.") || !torch_name(key, &name, &word))
            continue;
        const struct str weight = reference->tensors[state.weight].key;
        conversion->torch_prefix = (struct str){ weight.data, weight.size - (name.size < weight.size ? name.size : weight.size) };
        return true;
    }
    return false;
}

reshard_status conversion_torch_state(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct format_driver *from = conversion->source->source->driver;
    const struct mapping_options *map = conversion->options->map;
    bool is_asked = map && (map->rules_text || (map->rules && strcmp(map->rules, "none") != 0));
    if (!(driver->abilities & FORMAT_TORCH_STATE) || names_are_given(conversion) || !reference_allows(conversion))
        return RESHARD_OK;
    is_asked = is_asked || conversion->like;
    if (mapping_is_container(from->name_space))
        return is_asked || driver->abilities & FORMAT_OPTIMIZER_APART ? view_atorch(conversion, err) : RESHARD_OK;
    bool is_megatrons = from->name_space && from->abilities & FORMAT_STATE_BY_PARAMETER;
    return is_megatrons && is_asked && has_megatron_state(conversion->source->source->catalog) ? view_megatron(conversion, err)
                                                                                                 : RESHARD_OK;
}

/* ---- groups ---- */

/* Weights with state in the target, in their order. */
struct torch_names {
    struct name_map names;     /* as the target's keys of state have them */
    struct str *from;          /* by number: as the source's have them; empty: they are made of several */
    bool *is_vector, *is_taken; /* by number */
    struct name_map sources;   /* the names in `from`, once each */
    uint32_t *first, *next;    /* by number in sources: the first with that name, 1 + number; by number: the next with the same; 0: none */
};

struct group_making {
    struct conversion *conversion;
    struct catalog *wanted;
    struct torch_names weights;
    struct value_graph graph;
    const struct value_graph *kept;
    struct name_map left_out;  /* options that are no plain values */
    bool has_taken[2];         /* by weight decay: a group of Megatron's had all that it has */
    uint32_t room;             /* of wanted_items */
};

static reshard_status note_torch_name(struct group_making *making, uint32_t tensor, struct str name, reshard_error *err)
{
    const struct catalog *source = making->conversion->source->source->catalog;
    uint32_t from = making->conversion->selection.wanted_source[tensor];
    struct torch_names *weights = &making->weights;
    struct str state;
    uint32_t number = name_map_intern(&weights->names, name, NULL);
    if (number == NAME_NONE)
        return error_set_memory(err);
    weights->is_vector[number] |= !parameter_decays(name, making->wanted->tensors[tensor].rank);
    if (from != CATALOG_NONE && !weights->from[number].size && !torch_name(source->tensors[from].key, &weights->from[number], &state))
        weights->from[number] = (struct str){ 0 };
    return RESHARD_OK;
}

/* Where torch's state dict has the state, and whose it is. */
static reshard_status set_torch_paths(struct group_making *making, reshard_error *err)
{
    struct catalog *wanted = making->wanted;
    size_t room = (size_t)wanted->tensor_count + 1;
    making->weights.from = array_zeroed(room, sizeof(*making->weights.from));
    making->weights.is_vector = array_zeroed(room, sizeof(bool));
    making->weights.is_taken = array_zeroed(room, sizeof(bool));
    if (!making->weights.from || !making->weights.is_vector || !making->weights.is_taken)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        struct str name, state;
        if (wanted->tensors[i].flags & TENSOR_HIDDEN || !torch_name(wanted->tensors[i].key, &name, &state))
            continue;
        const struct path_part parts[] = { { .kind = PATH_KEY, .key = STR("optimizer") },
                                           { .kind = PATH_KEY, .key = STR("state") },
                                           { .kind = PATH_KEY, .key = name },
                                           { .kind = PATH_KEY, .key = state } };
        status = catalog_set_tensor_path(wanted, i, parts, sizeof(parts) / sizeof(parts[0]), err);
        if (!status)
            status = note_torch_name(making, i, name, err);
    }
    return status;
}

/* An item optimizer.param_groups.N.MEMBER whose value lies in the kept graph. */
static reshard_status add_option(struct group_making *making, uint32_t number, struct str member, const struct value *value,
                                 reshard_error *err)
{
    struct selection *selection = &making->conversion->selection;
    const struct path_part parts[] = { { .kind = PATH_KEY, .key = STR("optimizer") },
                                       { .kind = PATH_KEY, .key = STR("param_groups") },
                                       { .kind = PATH_INDEX, .index = number },
                                       { .kind = PATH_KEY, .key = member } };
    const char *digits = arena_printf(&making->wanted->arena, "%u", (unsigned)number);
    const struct str key = digits ? ARENA_JOIN(&making->wanted->arena, STR("optimizer.param_groups."), str_of(digits), STR("."), member)
                                  : (struct str){ 0 };
    if (!key.data)
        return error_set_memory(err);
    struct catalog_item item = { .key = key, .kind = ITEM_VALUE, .value = value, .graph = making->kept };
    uint32_t index;
    if (!ARRAY_ROOM(selection->wanted_items, making->wanted->item_count, making->room))
        return error_set_memory(err);
    reshard_status status = catalog_add_item(making->wanted, &item, parts, sizeof(parts) / sizeof(parts[0]), &index, err);
    if (!status)
        selection->wanted_items[index] = CATALOG_NONE;
    return status;
}

static struct value *names_list(struct group_making *making, const uint32_t *numbers, uint32_t count)
{
    struct value **items = arena_array(&making->graph.arena, (size_t)count + 1, sizeof(*items));
    for (uint32_t i = 0; items && i < count; i++) {
        items[i] = value_new_str(&making->graph, name_map_at(&making->weights.names, numbers[i]));
        if (!items[i])
            return NULL;
    }
    return items ? value_new_list(&making->graph, VALUE_LIST, items, count) : NULL;
}

/* What Megatron's groups have, and torch's optimizers do not know. */
static bool is_megatrons_option(struct str member)
{
    static const char *const members[] = { "wd_mult",    "lr_mult",   "pre_wd_mult",     "pre_lr_mult",    "is_expert_parallel",
                                           "is_decoupled_lr", "step", "bias_correction", "default_config", "max_lr",
                                           "min_lr",     "start_wd",  "end_wd",          "optimizer" };
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        if (str_is(member, members[i]))
            return true;
    }
    return false;
}

/* The options of a group of the source, and the parameters that it has in the target. */
static struct value *torch_group(struct group_making *making, const struct value *group, uint32_t graph_count, bool is_megatrons,
                                 const uint32_t *numbers, uint32_t count)
{
    struct value *names = names_list(making, numbers, count);
    struct value **items = arena_array(&making->graph.arena, group->list.count + 2, sizeof(*items));
    size_t made = 0;
    bool good = items && names, has_names = false;
    for (size_t i = 0; good && i + 1 < group->list.count; i += 2) {
        struct str member;
        if (!value_as_str(group->list.items[i], &member) || str_is(member, "params_names") || (is_megatrons && is_megatrons_option(member)))
            continue;
        bool is_params = str_is(member, "params");
        if (!is_params && !torch_option_is_plain(group->list.items[i + 1])) {
            good = name_map_intern(&making->left_out, member, NULL) != NAME_NONE;
            continue;
        }
        items[made] = value_new_str(&making->graph, member);
        items[made + 1] = is_params ? names : value_copy(&making->graph, group->list.items[i + 1], graph_count);
        has_names |= is_params;
        good = items[made] && items[made + 1];
        made += 2;
    }
    if (good && !has_names) {
        items[made] = value_new_str(&making->graph, STR("params"));
        items[made + 1] = names;
        good = items[made] != NULL;
        made += 2;
    }
    return good ? value_new_list(&making->graph, VALUE_DICT, items, made) : NULL;
}

/* Names are looked for by those of the source, of which several may be made. */
static reshard_status index_torch_names(struct torch_names *weights, reshard_error *err)
{
    const size_t room = (size_t)weights->names.count + 1;
    weights->first = array_zeroed(room, sizeof(*weights->first));
    weights->next = array_zeroed(room, sizeof(*weights->next));
    if (!weights->first || !weights->next)
        return error_set_memory(err);
    for (uint32_t n = weights->names.count; n-- > 0;) {
        uint32_t source = name_map_intern(&weights->sources, weights->from[n], NULL);
        if (source == NAME_NONE)
            return error_set_memory(err);
        weights->next[n] = weights->first[source];
        weights->first[source] = n + 1;
    }
    return RESHARD_OK;
}

/* Numbers of the names that belong to a group: atorch's lists them, of Megatron's is known which have weight decay. */
static uint32_t members_of_group(struct group_making *making, const struct value *group, bool is_megatrons, bool is_only, uint32_t *out)
{
    struct torch_names *weights = &making->weights;
    const struct value *params = is_megatrons ? NULL : value_dict_get(group, "params");
    uint32_t count = 0;
    bool has_decay = parameter_group_has_decay(group);
    for (size_t i = 0; params && params->kind == VALUE_LIST && i < params->list.count; i++) {
        struct str name;
        if (!value_as_str(params->list.items[i], &name))
            continue;
        uint32_t source = name_map_find(&weights->sources, torch_state_name(making->conversion, name));
        uint32_t n = source == NAME_NONE ? 0 : weights->first[source];
        while (n && weights->is_taken[n - 1])
            n = weights->next[n - 1];
        if (!n)
            continue;
        weights->first[source] = weights->next[n - 1];
        weights->is_taken[n - 1] = true;
        out[count++] = n - 1;
    }
    bool takes_rest = is_only || (is_megatrons && !making->has_taken[has_decay]);
    making->has_taken[has_decay] |= is_megatrons;
    for (uint32_t n = 0; n < weights->names.count && takes_rest; n++) {
        if ((!is_only && has_decay == weights->is_vector[n]) || weights->is_taken[n])
            continue;
        weights->is_taken[n] = true;
        out[count++] = n;
    }
    return count;
}

static bool are_all_taken(const struct torch_names *weights)
{
    for (uint32_t n = 0; n < weights->names.count; n++) {
        if (!weights->is_taken[n])
            return false;
    }
    return true;
}

static reshard_status make_torch_groups(struct group_making *making, const struct value *groups, uint32_t graph_count, bool is_megatrons,
                                        reshard_error *err)
{
    struct conversion *conversion = making->conversion;
    uint32_t *numbers = array_new((size_t)making->weights.names.count + 1, sizeof(*numbers)), made = 0;
    struct value **list = arena_array(&making->graph.arena, groups->list.count + 1, sizeof(*list));
    reshard_status status = numbers && list ? index_torch_names(&making->weights, err) : error_set_memory(err);
    for (size_t g = 0; g < groups->list.count && !status; g++) {
        const struct value *group = groups->list.items[g];
        if (group->kind != VALUE_DICT)
            continue;
        uint32_t count = members_of_group(making, group, is_megatrons, groups->list.count == 1, numbers);
        if (count && !(list[made++] = torch_group(making, group, graph_count, is_megatrons, numbers, count)))
            status = error_set_memory(err);
    }
    free(numbers);
    if (status)
        return status;
    if (!made || !are_all_taken(&making->weights))
        return note_add(&conversion->losses, &conversion->notes, NOTE_GROUPS, STR("param_groups"), err,
                        "which parameters are in the source's groups is not said under the names of the target");
    making->kept = catalog_adopt_graph(making->wanted, making->graph);
    making->graph = (struct value_graph){ 0 };
    if (!making->kept)
        return error_set_memory(err);
    for (uint32_t g = 0; g < made && !status; g++) {
        for (size_t i = 0; i + 1 < list[g]->list.count && !status; i += 2)
            status = add_option(making, g, list[g]->list.items[i]->text, list[g]->list.items[i + 1], err);
    }
    return status ? status : conversion_note_options(conversion, &making->left_out, err);
}

/* The item that says the groups, which is not written itself. */
static reshard_status find_groups_item(struct group_making *making, const struct value **out, uint32_t *graph_count, bool *is_megatrons,
                                       reshard_error *err)
{
    struct source *source = making->conversion->source->source->stored; /* the view has no such items */
    reshard_status status = RESHARD_OK;
    *out = NULL;
    for (uint32_t i = 0; i < source->catalog->item_count && !status && !*out; i++) {
        const struct catalog_item *item = &source->catalog->items[i];
        bool is_atorch = str_is(item->key, ATORCH_GROUPS);
        if (item->kind == ITEM_FILE || !(is_atorch || says_groups(item)))
            continue;
        status = source_load_item(source, i, err);
        const struct value *optimizer = status || is_atorch ? NULL : optimizer_said_by(item);
        *is_megatrons = !is_atorch;
        *out = optimizer ? parameter_group_list(optimizer) : NULL;
        if (is_atorch && item->value && item->value->kind == VALUE_LIST)
            *out = item->value;
        *graph_count = item->graph ? item->graph->count : 0;
    }
    return status;
}

/* Megatron-FSDP's groups, whose options are items of their own. */
static reshard_status find_groups_leaves(struct group_making *making, const struct value **out, uint32_t *graph_count, bool *is_megatrons,
                                         reshard_error *err)
{
    struct source *source = making->conversion->source->source->stored;
    struct torch_groups groups = { .graph = &making->graph };
    struct state_owners owners;
    state_owners_begin(&owners, source->catalog);
    reshard_status status = torch_groups_read(source, &owners, &groups, err);
    struct value **items = arena_array(&making->graph.arena, (size_t)groups.count + 1, sizeof(*items));
    for (uint32_t i = 0; items && i < groups.count; i++)
        items[i] = groups.groups[i].members;
    if (!status && !items)
        status = error_set_memory(err);
    if (!status && groups.count && !(*out = value_new_list(&making->graph, VALUE_LIST, items, groups.count)))
        status = error_set_memory(err);
    *is_megatrons = true;
    making->left_out = groups.left_out;
    groups.left_out = (struct name_map){ 0 };
    *graph_count = making->graph.count;
    torch_groups_release(&groups);
    return status;
}

static void group_making_release(struct group_making *making)
{
    name_map_release(&making->weights.names);
    name_map_release(&making->weights.sources);
    name_map_release(&making->left_out);
    free(making->weights.first);
    free(making->weights.next);
    free(making->weights.from);
    free(making->weights.is_vector);
    free(making->weights.is_taken);
    value_graph_release(&making->graph);
}

reshard_status conversion_add_torch_state(struct conversion *conversion, reshard_error *err)
{
    struct selection *selection = &conversion->selection;
    struct group_making making = { .conversion = conversion, .wanted = selection->wanted, .room = selection->wanted->item_count };
    const struct value *groups = NULL;
    uint32_t graph_count = 0;
    bool is_megatrons = false;
    if (!conversion->spells_as_torch)
        return RESHARD_OK;
    reshard_status status = set_torch_paths(&making, err);
    bool is_wanted = making.weights.names.count && !conversion->options->selection.drop_items;
    if (!status && is_wanted)
        status = find_groups_item(&making, &groups, &graph_count, &is_megatrons, err);
    if (!status && is_wanted && !groups)
        status = find_groups_leaves(&making, &groups, &graph_count, &is_megatrons, err);
    if (!status && groups)
        status = make_torch_groups(&making, groups, graph_count, is_megatrons, err);
    group_making_release(&making);
    conversion->request.wanted_items = selection->wanted_items;
    return status;
}
