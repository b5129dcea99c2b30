/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/target_names.h"

#include "base/array.h"
#include "parallel/state_keys.h"
#include "parallel/state_owner.h"

#include <stdlib.h>
#include <string.h>

struct naming_targets {
    const struct selection *selection;
    const struct catalog *source;
    const struct selection_options *options;
    struct state_owners owners;
    uint32_t *wanted_of; /* by source tensor: what is made of it, or CATALOG_NONE */
    struct buffer text;
    struct name_map *out;
};

/* NAME-STATE, where NAME is that of the weight in the target. What has neither its shape nor is a number keeps its key. */
static bool flat_name(struct naming_targets *naming, uint32_t wanted)
{
    const struct catalog *catalog = naming->selection->wanted;
    uint32_t from = naming->selection->wanted_source[wanted], weight;
    struct str state;
    if (from >= naming->source->tensor_count || !state_owners_find(&naming->owners, naming->source->tensors[from].key, &weight, &state) ||
        naming->wanted_of[weight] == CATALOG_NONE)
        return false;
    const struct catalog_tensor *tensor = &catalog->tensors[wanted], *of = &catalog->tensors[naming->wanted_of[weight]];
    if (tensor->rank && !catalog_same_shape(catalog, tensor, catalog, of))
        return false;
    buffer_clear(&naming->text);
    buffer_append_str(&naming->text, of->key);
    buffer_append_byte(&naming->text, '-');
    buffer_append_str(&naming->text, state);
    return true;
}

static bool names_add(struct naming_targets *naming, uint32_t wanted)
{
    struct str key = naming->selection->wanted->tensors[wanted].key;
    bool is_good = name_map_intern(naming->out, key, NULL) != NAME_NONE;
    bool has_other = (naming->options->has_one_master && state_key_other_master(key, &naming->text)) ||
                     (naming->wanted_of && flat_name(naming, wanted));
    if (is_good && has_other && !naming->text.failed)
        is_good = name_map_intern(naming->out, buffer_str(&naming->text), NULL) != NAME_NONE;
    return is_good && !naming->text.failed;
}

static bool find_wanted(struct naming_targets *naming)
{
    const struct selection *selection = naming->selection;
    naming->wanted_of = array_new((size_t)naming->source->tensor_count + 1, sizeof(*naming->wanted_of));
    if (!naming->wanted_of)
        return false;
    memset(naming->wanted_of, 0xFF, ((size_t)naming->source->tensor_count + 1) * sizeof(*naming->wanted_of));
    for (uint32_t i = selection->wanted->tensor_count; i-- > 0;) {
        if (selection->wanted_source[i] < naming->source->tensor_count)
            naming->wanted_of[selection->wanted_source[i]] = i;
    }
    state_owners_begin(&naming->owners, naming->source);
    return true;
}

reshard_status target_names_add(const struct selection *selection, const struct catalog *source, const struct selection_options *options,
                                struct name_map *out, reshard_error *err)
{
    struct naming_targets naming = { .selection = selection, .source = source, .options = options, .out = out };
    bool is_good = !options->has_flat_state || find_wanted(&naming);
    for (uint32_t i = 0; i < selection->wanted->tensor_count && is_good; i++)
        is_good = names_add(&naming, i);
    free(naming.wanted_of);
    buffer_release(&naming.text);
    return is_good ? RESHARD_OK : error_set_memory(err);
}
