/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of modules (…._extra_state) as ShardedObjects. Where the source has none of torch_dist's, every module that models/megatron.objects
 * names gets one for each layer and expert: with what a source of layers by number says under that layer's key, else None. So does every
 * module of which such a source has state.
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
#define FIRST_WITHOUT_ATTENTION 15 /* N of the release 0.N whose attention has state no more */
#define AXES_MAX 2 /* layers, experts */

/* Who asks for a module's state, as the data calls it. */
enum who { WHO_ANY, WHO_ENGINE, WHO_OLD_ENGINE, WHO_NOBODY, WHO_COUNT };
static const char *const who_words[WHO_COUNT] = { "any", "engine", "old-engine", "nobody" };

/* The cells of a module that layers, and experts, share: of each there is an object. */
struct cells {
    int64_t extent[AXES_MAX], index[AXES_MAX];
    int axes;
    uint64_t count;
};

struct adding {
    const struct layout_request *request;
    struct target *target;
    struct name_map names;     /* of the source's items of this kind -> wanted item */
    uint32_t *items;
    bool *is_used;             /* by names */
    uint32_t capacity;
    struct name_map held;      /* modules of which some of these items are, with and without the numbers of layers */
    struct name_map made;      /* modules whose objects are there */
    bool is_asked[WHO_COUNT];  /* whose modules get objects though the source has none */
    const struct value *none;
    struct buffer name;
};

bool mcore_is_module_state(struct str key)
{
    return str_ends_with(key, SUFFIX);
}

/* ---- what the source has ---- */

/* Notes the module of an item, also as it is called where layers lie along an axis. */
static bool note_module(struct adding *adding, struct str module)
{
    struct str rest = module, previous = { 0 };
    buffer_clear(&adding->name);
    while (rest.size) {
        struct str part = str_take(&rest, '.');
        bool is_number = part.size && part.data[0] >= '0' && part.data[0] <= '9';
        if (!(is_number && str_is(previous, "layers"))) {
            buffer_printf(&adding->name, "%s", previous.data ? "." : "");
            buffer_append_str(&adding->name, part);
        }
        previous = part;
    }
    return !adding->name.failed && name_map_intern(&adding->held, module, NULL) != NAME_NONE &&
           name_map_intern(&adding->held, buffer_str(&adding->name), NULL) != NAME_NONE;
}

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
    struct str key = adding->request->wanted->items[item].key;
    return note_module(adding, (struct str){ key.data, key.size - (sizeof(SUFFIX) - 1) }) ? RESHARD_OK : error_set_memory(err);
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

/* The module's name with the numbers that a source of single layers has in it: layers.3, experts.local_experts.1. */
static bool numbered_name(struct buffer *out, struct str module, const struct cells *cells)
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
        if (is_stacked && axis < cells->axes)
            buffer_printf(out, ".%" PRId64, cells->index[axis++]);
        previous = part;
    }
    return buffer_append_text(out, SUFFIX);
}

/* The object's own name: MODULE._extra_state/shard_1.0_2.4. */
static bool object_name(struct arena *arena, struct buffer *scratch, struct str module, const struct cells *cells, struct str *out)
{
    buffer_clear(scratch);
    buffer_append_str(scratch, module);
    buffer_append_text(scratch, SUFFIX "/shard_");
    for (int i = 0; i < cells->axes; i++)
        buffer_printf(scratch, "%s%" PRId64, i ? "." : "", cells->index[i]);
    buffer_append_text(scratch, cells->axes ? "_" : "0_1");
    for (int i = 0; i < cells->axes; i++)
        buffer_printf(scratch, "%s%" PRId64, i ? "." : "", cells->extent[i]);
    return !scratch->failed && arena_str(arena, buffer_str(scratch), out);
}

static struct cells cells_of(const struct adding *adding, const struct catalog_tensor *tensor)
{
    struct cells cells = { .axes = mcore_prepended_axes(tensor->key, tensor->rank), .count = 1 };
    if (cells.axes > AXES_MAX)
        return (struct cells){ 0 };
    for (int axis = 0; axis < cells.axes; axis++) {
        cells.extent[axis] = catalog_vector_at(adding->request->wanted, tensor->shape)[axis];
        if (!checked_mul_u64(cells.count, (uint64_t)cells.extent[axis], &cells.count))
            cells.count = UINT64_MAX;
    }
    return cells;
}

static bool cells_next(struct cells *cells)
{
    int axis;
    for (axis = cells->axes - 1; axis >= 0 && ++cells->index[axis] == cells->extent[axis]; axis--)
        cells->index[axis] = 0;
    return axis >= 0;
}

/* Which of the source's items is the state of the module's cell, or NAME_NONE. */
static reshard_status find_module_state(struct adding *adding, struct str module, const struct cells *cells, uint32_t *known,
                                        reshard_error *err)
{
    *known = NAME_NONE;
    if (!adding->names.count)
        return RESHARD_OK;
    if (!numbered_name(&adding->name, module, cells))
        return error_set_memory(err);
    *known = name_map_find(&adding->names, buffer_str(&adding->name));
    return RESHARD_OK;
}

static reshard_status mcore_objects_add_object(struct adding *adding, struct str module, const struct cells *cells, reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(adding->target);
    struct dcp_stored stored = { .wanted = CATALOG_NONE, .node = CATALOG_NONE, .value = adding->none, .graph_count = state->dcp.extra.count,
                                 .is_in_list = true };
    uint32_t known;
    reshard_status status = find_module_state(adding, module, cells, &known, err);
    if (!status && known != NAME_NONE) {
        stored.value = NULL;
        stored.wanted = adding->items[known];
        adding->is_used[known] = true;
    }
    if (!status && !object_name(&adding->target->catalog->arena, &adding->name, module, cells, &stored.key))
        status = error_set_memory(err);
    return status ? status : dcp_stored_add(&state->dcp, &stored, err);
}

/* All objects of a module, once, if it is asked for or the source has one of them. */
static reshard_status add_module(struct adding *adding, struct str module, struct cells cells, bool is_asked, reshard_error *err)
{
    bool was_new = false;
    reshard_status status = RESHARD_OK;
    if (!is_asked && name_map_find(&adding->held, module) == NAME_NONE)
        return RESHARD_OK;
    if (cells.count > adding->request->limits.objects)
        return error_set_limit(err, "objects", cells.count, adding->request->limits.objects);
    if (name_map_intern(&adding->made, module, &was_new) == NAME_NONE)
        return error_set_memory(err);
    bool goes_on = was_new;
    while (goes_on) {
        status = mcore_objects_add_object(adding, module, &cells, err);
        goes_on = !status && cells_next(&cells);
    }
    return status;
}

/* ---- which modules ---- */

static struct str without_last_name(struct str key)
{
    while (key.size && key.data[key.size - 1] != '.')
        key.size--;
    return (struct str){ key.data, key.size ? key.size - 1 : 0 };
}

/* The module of a tensor, which may be a part of its weight: in_proj.weight.z. */
static struct str module_of(struct str key)
{
    struct str module = without_last_name(key);
    return str_ends_with(module, WEIGHT) ? without_last_name(module) : module;
}

/* The module that a line of the data means for a tensor of the given module. */
static bool named_module(struct adding *adding, struct str own, struct str word, struct str *out)
{
    *out = word.size ? word : own;
    if (!word.size || word.data[0] != '.')
        return true;
    buffer_clear(&adding->name);
    buffer_append_str(&adding->name, without_last_name(own));
    buffer_append_str(&adding->name, word);
    return !adding->name.failed && arena_str(&adding->target->catalog->arena, buffer_str(&adding->name), out);
}

static enum who who_of(struct str word)
{
    enum who who = WHO_ANY;
    while (who < WHO_NOBODY && !str_is(word, who_words[who]))
        who++;
    return who;
}

static reshard_status add_modules_of(struct adding *adding, const struct catalog_tensor *tensor, reshard_error *err)
{
    const struct model_data *data = model_data_find(STR(DATA_FILE));
    struct str own = module_of(tensor->key), module, rest = data ? data->text : (struct str){ 0 };
    struct cells cells = cells_of(adding, tensor);
    bool is_nobodys = false;
    reshard_status status = RESHARD_OK;
    if (!own.size || !cells.count)
        return RESHARD_OK;
    while (rest.size && !status) {
        struct str line = str_take(&rest, '\n'), word = str_take_word(&line), pattern = str_take_word(&line);
        enum who who = who_of(word);
        if (str_is(word, "#") || !str_matches_glob(tensor->key, pattern))
            continue;
        is_nobodys |= who == WHO_NOBODY;
        if (!named_module(adding, own, str_take_word(&line), &module))
            status = error_set_memory(err);
        else if (who != WHO_NOBODY)
            status = add_module(adding, module, cells, adding->is_asked[who], err);
    }
    return status || is_nobodys ? status : add_module(adding, own, cells, false, err);
}

static reshard_status choose_who_asks(struct adding *adding, reshard_error *err)
{
    const struct mcore_target *state = mcore_target_state(adding->target);
    bool is_engine = state->module_state == MODULE_STATE_OF_RUN && !state->sizes.is_local_spec;
    uint32_t minor;
    reshard_status status = mcore_release_choose(adding->request, adding->target, &minor, err);
    adding->is_asked[WHO_ANY] = true;
    adding->is_asked[WHO_ENGINE] = is_engine;
    adding->is_asked[WHO_OLD_ENGINE] = is_engine && minor < FIRST_WITHOUT_ATTENTION; /* 0: any release */
    return status;
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

reshard_status mcore_module_states_add(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct adding adding = { .request = request, .target = target };
    const struct catalog *wanted = request->wanted;
    bool is_wanted = mcore_target_state(target)->module_state != MODULE_STATE_NONE, has_objects;
    reshard_status status = mcore_objects_note_items(&adding, &has_objects, err);
    if (!status && !(adding.none = value_new(&mcore_target_state(target)->dcp.extra, VALUE_NONE)))
        status = error_set_memory(err);
    if (!status)
        status = choose_who_asks(&adding, err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status && is_wanted && !has_objects; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        if (!(tensor->flags & TENSOR_HIDDEN) && !state_key_is_any(tensor->key))
            status = add_modules_of(&adding, tensor, err);
    }
    if (!status)
        status = mcore_objects_note_unused(&adding, err);
    name_map_release(&adding.names);
    name_map_release(&adding.held);
    name_map_release(&adding.made);
    buffer_release(&adding.name);
    free(adding.items);
    free(adding.is_used);
    return status;
}
