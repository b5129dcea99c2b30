/* SPDX-License-Identifier: Apache-2.0 */
#include "api/save_kept.h"

#include "base/hash.h"

#include <stdlib.h>

void save_plan_release(struct save_plan *plan)
{
    for (uint32_t r = 0; plan->said && r < plan->group.size; r++)
        sharded_dict_release(&plan->said[r]);
    free(plan->said);
    group_release(&plan->group);
    joint_release(&plan->joint);
    free(plan->shards);
    free(plan->items);
    value_graph_release(&plan->bytes);
    arena_release(&plan->keys);
    *plan = (struct save_plan){ .said = NULL };
}

const struct sharded_dict *save_plan_values(const struct save_plan *plan, uint32_t rank)
{
    return plan->said ? &plan->said[rank] : plan->group.ranks[rank];
}

void kept_clear(struct reshard_kept *kept)
{
    save_plan_release(&kept->plan);
    free(kept->values);
    arena_release(&kept->texts);
    *kept = (struct reshard_kept){ .uses = kept->uses };
}

/* ---- options ---- */

static bool naming_is_none(const struct naming_options *naming)
{
    return !naming->strip_prefix && !naming->renames && !naming->add_prefix && !naming->rename;
}

bool kept_can(const struct convert_call *call)
{
    const reshard_convert_options *given = &call->given;
    const struct selection_options *selection = &call->options.selection;
    return call->options.to && !given->like && !given->include && !given->exclude && !given->dtypes && !given->open && !given->map &&
           !given->missing && !given->choose_missing && !given->store && naming_is_none(&selection->naming);
}

static bool texts_are_equal(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static bool lists_are_equal(const char *const *a, const char *const *b)
{
    size_t i = 0;
    while (a && b && a[i] && texts_are_equal(a[i], b[i]))
        i++;
    return (a ? a[i] : NULL) == (b ? b[i] : NULL);
}

static bool text_keep(struct arena *arena, const char **text)
{
    if (*text)
        *text = arena_copy(arena, *text, strlen(*text));
    return *text != NULL;
}

static bool options_copy(struct reshard_kept *kept)
{
    struct conversion_options *options = &kept->convert;
    size_t count = 0;
    while (options->format_options && options->format_options[count])
        count++;
    const char **words = arena_array(&kept->texts, count + 1, sizeof(*words));
    bool is_good = words && text_keep(&kept->texts, &options->to);
    is_good = is_good && (!options->layout || text_keep(&kept->texts, &options->layout));
    is_good = is_good && (!options->wrap || text_keep(&kept->texts, &options->wrap));
    is_good = is_good && (!options->checksum || text_keep(&kept->texts, &options->checksum));
    is_good = is_good && (!kept->options.name || text_keep(&kept->texts, &kept->options.name));
    for (size_t i = 0; is_good && i < count; i++) {
        words[i] = options->format_options[i];
        is_good = text_keep(&kept->texts, &words[i]);
    }
    if (is_good)
        words[count] = NULL;
    if (is_good && options->format_options)
        options->format_options = words;
    return is_good;
}

void kept_use_options(const struct reshard_kept *kept, struct convert_call *call)
{
    call->options.to = kept->convert.to;
    call->options.layout = kept->convert.layout;
    call->options.wrap = kept->convert.wrap;
    call->options.checksum = kept->convert.checksum;
    call->options.format_options = kept->convert.format_options;
}

bool kept_take_options(struct reshard_kept *kept, const reshard_save_options *options, const struct convert_call *call)
{
    kept->options = *options;
    kept->convert = call->options;
    return options_copy(kept);
}

bool kept_match_options(const struct reshard_kept *kept, const reshard_save_options *options, const struct convert_call *call)
{
    const struct conversion_options *a = &kept->convert, *b = &call->options;
    return texts_are_equal(a->to, b->to) && texts_are_equal(a->layout, b->layout) && texts_are_equal(a->wrap, b->wrap) &&
           texts_are_equal(a->checksum, b->checksum) && lists_are_equal(a->format_options, b->format_options) &&
           a->max_shard_bytes == b->max_shard_bytes && a->selection.drop_items == b->selection.drop_items && a->verify == b->verify &&
           a->resume == b->resume && a->part_count == b->part_count && texts_are_equal(kept->options.name, options->name) &&
           kept->options.no_check == options->no_check && kept->options.no_spread == options->no_spread;
}

/* ---- descriptions ---- */

uint64_t kept_description(const struct sharded_dict *dict)
{
    struct buffer packed = { 0 };
    uint64_t hash = sharded_pack(dict, false, &packed) ? hash64(packed.data, packed.size, 0) : 0;
    buffer_release(&packed);
    return hash;
}

bool kept_values_pack(const struct sharded_dict *dict, struct buffer *out)
{
    struct sharded_dict values = *dict;
    values.tensor_count = 0;
    return sharded_pack(&values, true, out);
}
