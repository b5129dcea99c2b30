/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of modules (…._extra_state) as ShardedObjects. Where the source has none of torch_dist's, every module that models/megatron.objects
 * names gets one for each layer and expert: with what a source of layers by number says under that layer's key, else None.
 */
#include "formats/mcore/mcore_items.h"

#include "base/checked.h"
#include "base/model_data.h"
#include "formats/mcore/mcore_target.h"
#include "parallel/state_keys.h"

#include <inttypes.h>
#include <stdlib.h>

#define DATA_FILE "megatron.objects"
#define SUFFIX "._extra_state"
#define WEIGHT ".weight"
#define AXES_MAX 2 /* layers, experts */

struct adding {
    const struct layout_request *request;
    struct target *target;
    struct name_map names;     /* of the source's items of this kind -> wanted item */
    uint32_t *items;
    bool *is_used;             /* by names */
    uint32_t capacity;
    const struct value *none;
    struct buffer name;
};

bool mcore_is_module_state(struct str key)
{
    return str_ends_with(key, SUFFIX);
}

/* ---- what the source has ---- */

static reshard_status note_item(struct adding *adding, uint32_t item, reshard_error *err)
{
    bool was_new;
    uint32_t index = name_map_intern(&adding->names, adding->request->wanted->items[item].key, &was_new);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (index >= adding->capacity) {
        uint32_t capacity = adding->capacity ? adding->capacity * 2 : 64;
        uint32_t *items = reallocarray(adding->items, capacity, sizeof(*items));
        if (items)
            adding->items = items;
        bool *is_used = items ? reallocarray(adding->is_used, capacity, sizeof(*is_used)) : NULL;
        if (!is_used)
            return error_set_memory(err);
        memset(is_used + adding->capacity, 0, (size_t)(capacity - adding->capacity) * sizeof(*is_used));
        adding->is_used = is_used;
        adding->capacity = capacity;
    }
    if (was_new)
        adding->items[index] = item;
    return RESHARD_OK;
}

static reshard_status mcore_objects_note_items(struct adding *adding, bool *has_objects, reshard_error *err)
{
    const struct catalog *wanted = adding->request->wanted;
    reshard_status status = RESHARD_OK;
    *has_objects = false;
    for (uint32_t i = 0; i < wanted->item_count && !status; i++) {
        struct str key;
        if (mcore_object_key(wanted->items[i].key, &key))
            *has_objects = true;
        else if (mcore_is_module_state(wanted->items[i].key))
            status = note_item(adding, i, err);
    }
    return status;
}

/* ---- modules ---- */

/* Whether one of the patterns names the weight. */
static bool mcore_objects_is_named(struct str key)
{
    const struct model_data *data = model_data_find(STR(DATA_FILE));
    struct str rest = data ? data->text : (struct str){ 0 };
    while (rest.size) {
        struct str line = str_take(&rest, '\n');
        if (line.size && line.data[0] != '#' && str_matches_glob(key, line))
            return true;
    }
    return false;
}

/* The module's name with the numbers that a source of single layers has in it: layers.3, experts.local_experts.1. */
static bool numbered_name(struct buffer *out, struct str module, const int64_t *index, int axes)
{
    struct str rest = module, previous = { 0 };
    int axis = 0;
    buffer_clear(out);
    while (rest.size) {
        struct str part = str_take(&rest, '.'), after = rest, following = str_take(&after, '.');
        bool is_second_experts = str_is(part, "experts") && str_is(previous, "experts");
        bool is_stacked =
            (str_is(part, "layers") || is_second_experts) && following.size && (following.data[0] < '0' || following.data[0] > '9');
        buffer_printf(out, "%s", previous.data ? "." : "");
        if (is_second_experts)
            buffer_append_text(out, "local_experts");
        else
            buffer_append_str(out, part);
        if (is_stacked && axis < axes)
            buffer_printf(out, ".%" PRId64, index[axis++]);
        previous = part;
    }
    return buffer_append_text(out, SUFFIX);
}

/* The object's own name: MODULE._extra_state/shard_1.0_2.4. */
static bool object_name(struct arena *arena, struct buffer *scratch, struct str module, const int64_t *index, const int64_t *extent,
                        int axes, struct str *out)
{
    buffer_clear(scratch);
    buffer_append_str(scratch, module);
    buffer_append_text(scratch, SUFFIX "/shard_");
    for (int i = 0; i < axes; i++)
        buffer_printf(scratch, "%s%" PRId64, i ? "." : "", index[i]);
    buffer_append_text(scratch, "_");
    for (int i = 0; i < axes; i++)
        buffer_printf(scratch, "%s%" PRId64, i ? "." : "", extent[i]);
    return !scratch->failed && arena_str(arena, buffer_str(scratch), out);
}

static reshard_status mcore_objects_add_object(struct adding *adding, struct str module, const int64_t *index, const int64_t *extent,
                                               int prepended, reshard_error *err)
{
    static const int64_t zero[] = { 0 }, one[] = { 1 };
    struct mcore_target *state = mcore_target_state(adding->target);
    struct dcp_stored stored = { .wanted = CATALOG_NONE, .node = CATALOG_NONE, .value = adding->none, .graph_count = state->dcp.extra.count,
                                 .is_in_list = true };
    if (!numbered_name(&adding->name, module, index, prepended))
        return error_set_memory(err);
    uint32_t known = adding->names.count ? name_map_find(&adding->names, buffer_str(&adding->name)) : NAME_NONE;
    if (known != NAME_NONE) {
        stored.value = NULL;
        stored.wanted = adding->items[known];
        adding->is_used[known] = true;
    }
    bool done = object_name(&adding->target->catalog->arena, &adding->name, module, prepended ? index : zero, prepended ? extent : one,
                            prepended ? prepended : 1, &stored.key);
    return done ? dcp_stored_add(&state->dcp, &stored, err) : error_set_memory(err);
}

static reshard_status add_module(struct adding *adding, const struct catalog_tensor *tensor, reshard_error *err)
{
    struct str module = { tensor->key.data, tensor->key.size - (sizeof(WEIGHT) - 1) };
    int64_t extent[AXES_MAX] = { 0 }, index[AXES_MAX] = { 0 };
    uint64_t cells = 1;
    int axis, axes = mcore_prepended_axes(tensor->key, tensor->rank);
    if (axes > AXES_MAX)
        return RESHARD_OK;
    for (axis = 0; axis < axes; axis++) {
        extent[axis] = catalog_vector_at(adding->request->wanted, tensor->shape)[axis];
        if (!checked_mul_u64(cells, (uint64_t)extent[axis], &cells) || cells > adding->request->limits.objects)
            return error_set_limit(err, "objects", cells, adding->request->limits.objects);
    }
    if (cells == 0)
        return RESHARD_OK;
    do {
        reshard_status status = mcore_objects_add_object(adding, module, index, extent, axes, err);
        if (status)
            return status;
        for (axis = axes - 1; axis >= 0 && ++index[axis] == extent[axis]; axis--)
            index[axis] = 0;
    } while (axis >= 0);
    return RESHARD_OK;
}

static reshard_status mcore_objects_note_unused(struct adding *adding, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < adding->names.count && !status; i++) {
        if (!adding->is_used[i])
            status = target_note_dropped(adding->target, NOTE_NO_PLACE, name_map_at(&adding->names, i), err,
                                         "torch_dist has no such object of a module");
    }
    return status;
}

reshard_status mcore_module_states_add(const struct layout_request *request, struct target *target, bool is_wanted, reshard_error *err)
{
    struct adding adding = { .request = request, .target = target };
    const struct catalog *wanted = request->wanted;
    bool has_objects;
    reshard_status status = mcore_objects_note_items(&adding, &has_objects, err);
    if (!status && !(adding.none = value_new(&mcore_target_state(target)->dcp.extra, VALUE_NONE)))
        status = error_set_memory(err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status && is_wanted && !has_objects; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        bool is_weight = !(tensor->flags & TENSOR_HIDDEN) && str_ends_with(tensor->key, WEIGHT) && !state_key_is_any(tensor->key);
        if (is_weight && mcore_objects_is_named(tensor->key))
            status = add_module(&adding, tensor, err);
    }
    if (!status)
        status = mcore_objects_note_unused(&adding, err);
    name_map_release(&adding.names);
    buffer_release(&adding.name);
    free(adding.items);
    free(adding.is_used);
    return status;
}
