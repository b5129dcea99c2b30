/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state that a run does not find, on its way to a format of Megatron's. Some names no weight: torch.optim's own state dict,
 * optimizer.state.0.exp_avg, goes by the numbers that an optimizer of torch gives its parameters, and files of ranks have all of it in one
 * item; no run of Megatron looks for either, or it has other numbers. And some has a word that no text of names knows (`sum`): where names
 * change, its weight is called otherwise then. Nothing of it is lost, but nobody loads it, and that is told.
 */
#include "convert/conversion.h"

#include "convert/torch_groups.h"
#include "parallel/state_keys.h"

#include <inttypes.h>

#define ANY_WORD "optim" /* what the last part of an item's key begins with: optimizer, optim, optimizer_0 */
#define BY_NAME \
    "state by the names of weights, which get_optimizer_state_dict of torch gives, becomes Megatron's"

static bool is_a_state(struct str word)
{
    return word.size > 0;
}

/* Where the lists of groups of torch's optimizers lie. */
static reshard_status find_optimizers(const struct catalog *from, struct name_map *befores, reshard_error *err)
{
    for (uint32_t i = 0; i < from->item_count; i++) {
        struct str before;
        bool is_one = from->items[i].kind != ITEM_FILE && torch_groups_key(from->items[i].key, &before);
        if (is_one && name_map_intern(befores, before, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* BEFOREstate.NUMBER.STATE of an optimizer that has groups there. */
static bool is_numbered(const struct name_map *befores, struct str key, struct state_spelling *read)
{
    uint64_t number;
    for (int index = 0; state_spelling_read(key, index, is_a_state, read); index++) {
        if (read->state.data > read->name.data && str_to_u64(read->name, &number) && name_map_find(befores, read->before) != NAME_NONE)
            return true;
    }
    return false;
}

static reshard_status tell_numbered(struct conversion *conversion, const struct str before, bool is_by_number, reshard_error *err)
{
    return note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, (struct str){ 0 }, err,
                    "the optimizer's state goes by torch's numbers of parameters and is kept so; %s: "
                    "reshard_convert_options.exclude '%.*s*' leaves it out, " BY_NAME,
                    is_by_number ? "a run of Megatron numbers its own in another way" : "a run of Megatron does not look for it",
                    STR_ARG(before.size ? before : STR("state.")));
}

static reshard_status note_numbered_keys(struct conversion *conversion, const struct state_owners *owners, struct key_filter *filter,
                                         bool is_by_number, reshard_error *err)
{
    const struct catalog *from = owners->catalog, *like = conversion->like ? conversion->like->source->catalog : NULL;
    struct name_map befores = { 0 };
    bool is_wanted = false;
    reshard_status status = find_optimizers(from, &befores, err);
    for (uint32_t i = 0; i < from->tensor_count && befores.count && !status && !is_wanted; i++) {
        const struct catalog_tensor *tensor = &from->tensors[i];
        struct state_spelling read;
        struct owned_state state;
        if (tensor->flags & TENSOR_HIDDEN || !is_numbered(&befores, tensor->key, &read) ||
            state_owners_read(owners, tensor->key, &state) || (like && catalog_find(like, tensor->key) != CATALOG_NONE))
            continue;
        status = key_filter_wants(filter, tensor->key, &is_wanted, err);
        if (!status && is_wanted)
            status = tell_numbered(conversion, read.before, is_by_number, err);
    }
    name_map_release(&befores);
    return status;
}

/* {"state": {0: {…}}, "param_groups": […]} */
static bool is_optimizer_state(const struct value *value)
{
    const struct value *state = value && value->kind == VALUE_DICT ? value_dict_get(value, "state") : NULL;
    return state && state->kind == VALUE_DICT && state->list.count > 1 && state->list.items[1]->kind == VALUE_DICT &&
           value_dict_get(value, "param_groups");
}

static bool may_be_optimizer(const struct catalog_item *item)
{
    const char *dot = item->key.size ? memrchr(item->key.data, '.', item->key.size) : NULL;
    const size_t before = dot ? (size_t)(dot + 1 - item->key.data) : 0;
    const struct str last = { item->key.data + before, item->key.size - before };
    return item->kind != ITEM_FILE && item->kind != ITEM_RAW && str_starts_with(last, ANY_WORD);
}

static reshard_status note_state_items(struct conversion *conversion, const struct state_owners *owners, struct key_filter *filter,
                                       reshard_error *err)
{
    struct source *source = conversion->source->source;
    reshard_status status = RESHARD_OK;
    bool is_told = conversion->options->selection.drop_items;
    for (uint32_t i = 0; i < owners->catalog->item_count && !status && !is_told; i++) {
        const struct catalog_item *item = &owners->catalog->items[i];
        bool is_wanted = false;
        if (!may_be_optimizer(item))
            continue;
        status = key_filter_wants(filter, item->key, &is_wanted, err);
        if (status || !is_wanted)
            continue;
        status = source_load_item(source, i, err);
        is_told = !status && is_optimizer_state(item->value);
        if (is_told)
            status = note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, item->key, err,
                              "the optimizer's state lies in this item and is kept so; a run of Megatron does not look for it: "
                              "reshard_convert_options.exclude '%.*s' leaves it out, " BY_NAME " where each is a tensor of its own",
                              STR_ARG(item->key));
    }
    return status;
}

reshard_status conversion_note_numbered(struct conversion *conversion, const struct state_owners *owners, struct key_filter *filter,
                                        bool is_by_number, reshard_error *err)
{
    reshard_status status = note_numbered_keys(conversion, owners, filter, is_by_number, err);
    return status ? status : note_state_items(conversion, owners, filter, err);
}

/* The source's weight of that name, which no tensor of the target has; Megatron-FSDP's states have the wrappers in front. */
static bool is_of_old_name(const struct conversion *conversion, const struct map_space *space, struct str name)
{
    static const char wrapper[] = "module.";
    const struct catalog *source = conversion->source->source->catalog;
    bool is_one = false;
    for (bool is_wrapped = true; is_wrapped && !is_one;) {
        is_one = catalog_find(source, name) != CATALOG_NONE && name_map_find(&space->keys, name) == NAME_NONE;
        is_wrapped = str_starts_with(name, wrapper);
        name = is_wrapped ? (struct str){ name.data + sizeof(wrapper) - 1, name.size - (sizeof(wrapper) - 1) } : name;
    }
    return is_one;
}

reshard_status conversion_note_unmapped(struct conversion *conversion, reshard_error *err)
{
    const struct map_space *space = conversion->mapping.stage ? conversion->mapping.stage->space : NULL;
    uint64_t count = 0;
    struct state_key read, first = { 0 };
    struct str key = { 0 };
    for (uint32_t i = 0; conversion->respelled && space && i < map_space_tensor_count(space); i++) {
        bool is_one = state_key_read(space->tensors[i].key, &read) && read.kind == STATE_KEY_PARAMETER && read.chain < 0 &&
                      is_of_old_name(conversion, space, read.parameter);
        key = is_one && !count ? space->tensors[i].key : key;
        first = is_one && !count ? read : first;
        count += is_one;
    }
    if (!count)
        return RESHARD_OK;
    bool is_last = first.state.data > first.parameter.data;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_OPTIMIZER, key, err,
                    "%" PRIu64 " states of the optimizer keep the names that weights had, and a run does not look for them there: texts of "
                    "names do not know states that are called so; reshard_convert_options.exclude '" STATE_KEY_PREFIX "%s%.*s%s' leaves "
                    "these out",
                    count, is_last ? "*." : "", STR_ARG(first.state), is_last ? "" : ".*");
}
