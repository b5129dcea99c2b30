/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/release_classes.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/model_data.h"

#define CLASSES "megatron.classes"
#define OPTION "release"

/* N of "0.N" or "0.N.M". */
static bool read_release(struct str text, uint32_t *minor)
{
    uint64_t number;
    struct str major = str_take(&text, '.'), second = str_take(&text, '.');
    if (!str_is(major, "0") || !str_to_u64(second, &number) || number == 0 || number > UINT32_MAX)
        return false;
    *minor = (uint32_t)number;
    return text.size == 0 || str_to_u64(text, &number);
}

reshard_status megatron_release_option(const struct layout_request *request, uint32_t *minor, reshard_error *err)
{
    const char *option = layout_option(request, OPTION);
    *minor = 0;
    if (!option || !option[0] || read_release(str_of(option), minor))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_USAGE, "option " OPTION "='%s' is no release of Megatron Core", option);
    error_hint(err, OPTION " is 0.N, such as " OPTION "=0.14");
    return RESHARD_ERR_USAGE;
}

bool megatron_release_has(uint32_t minor, struct str module, struct str name)
{
    const struct model_data *data = model_data_find(STR(CLASSES));
    struct str text = data ? data->text : (struct str){ NULL, 0 };
    if (!str_starts_with(module, "megatron."))
        return true;
    while (text.size) {
        struct str line = str_take(&text, '\n'), first = str_take_word(&line);
        uint32_t since;
        if (str_equal(str_take_word(&line), module) && str_equal(str_take_word(&line), name) && read_release(first, &since))
            return since <= minor;
    }
    return false;
}

/* ---- values ---- */

struct search {
    uint32_t minor;
    const struct value *found; /* the class, or NULL */
};

static bool find_unknown(const struct value *value, void *context)
{
    struct search *search = context;
    if (value->kind == VALUE_GLOBAL && !megatron_release_has(search->minor, value->global.module, value->global.name))
        search->found = value;
    return !search->found;
}

static reshard_status find(uint32_t minor, const struct value *value, uint32_t graph_count, const struct value **found, reshard_error *err)
{
    struct search search = { .minor = minor };
    bool no_memory = false;
    if (!value_walk(value, graph_count, NULL, find_unknown, &search, &no_memory) && no_memory)
        return error_set_memory(err);
    *found = search.found;
    return RESHARD_OK;
}

reshard_status megatron_release_lacks(uint32_t minor, const struct value *value, uint32_t graph_count, bool *lacks, reshard_error *err)
{
    const struct value *found = NULL;
    reshard_status status = find(minor, value, graph_count, &found, err);
    *lacks = found != NULL;
    return status;
}

/* The dict whose pairs are the value's members: its own, or the attributes of a namespace; NULL if it has none. */
static struct value *release_classes_members_of(struct value *value)
{
    bool is_namespace = value_is_call(value, "argparse", "Namespace") || value_is_call(value, "types", "SimpleNamespace");
    if (value->kind == VALUE_DICT)
        return value;
    if (!is_namespace || value->object->state_count == 0)
        return NULL;
    struct value *state = value->object->states[value->object->state_count - 1];
    return state->kind == VALUE_DICT ? state : NULL;
}

struct stripping {
    uint32_t minor;
    const struct value_graph *graph;
    struct target *target;
    struct str key;
    struct value **pending; /* dicts to be looked through, each once */
    uint32_t count, capacity;
    uint8_t *is_known;      /* by id: it was or is among them */
};

static reshard_status release_classes_push(struct stripping *stripping, struct value *dict, reshard_error *err)
{
    if (stripping->is_known[dict->id])
        return RESHARD_OK;
    if (!ARRAY_ROOM(stripping->pending, stripping->count, stripping->capacity))
        return error_set_memory(err);
    stripping->is_known[dict->id] = 1;
    stripping->pending[stripping->count++] = dict;
    return RESHARD_OK;
}

static reshard_status release_classes_note(struct stripping *stripping, const struct value *member, const struct value *unknown,
                                           reshard_error *err)
{
    struct str name;
    if (!value_as_str(member, &name))
        name = STR("(a key that is no text)");
    const struct str key = ARENA_JOIN(&stripping->target->catalog->arena, stripping->key, STR("."), name);
    if (!key.data)
        return error_set_memory(err);
    return target_note_dropped(stripping->target, NOTE_RELEASE, key, err, "Megatron Core 0.%" PRIu32 " does not have %.*s.%.*s",
                               stripping->minor, STR_ARG(unknown->global.module), STR_ARG(unknown->global.name));
}

static reshard_status strip_dict(struct stripping *stripping, struct value *dict, reshard_error *err)
{
    size_t kept = 0;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < dict->list.count && !status; i += 2) {
        struct value *name = dict->list.items[i], *value = dict->list.items[i + 1], *members = release_classes_members_of(value);
        const struct value *unknown = NULL;
        status = find(stripping->minor, value, stripping->graph->count, &unknown, err);
        if (!status && unknown && members)
            status = release_classes_push(stripping, members, err);
        else if (!status && unknown)
            status = release_classes_note(stripping, name, unknown, err);
        if (unknown && !members)
            continue;
        dict->list.items[kept++] = name;
        dict->list.items[kept++] = value;
    }
    dict->list.count = status ? dict->list.count : kept;
    return status;
}

reshard_status megatron_release_strip(uint32_t minor, const struct value_graph *graph, struct str key, struct value *value,
                                      struct target *target, bool *is_whole, reshard_error *err)
{
    struct stripping stripping = { .minor = minor, .graph = graph, .target = target, .key = key };
    struct value *members = release_classes_members_of(value);
    *is_whole = !members;
    if (!members)
        return RESHARD_OK;
    stripping.is_known = array_zeroed(graph->count, 1);
    reshard_status status = stripping.is_known ? release_classes_push(&stripping, members, err) : error_set_memory(err);
    while (!status && stripping.count)
        status = strip_dict(&stripping, stripping.pending[--stripping.count], err);
    free(stripping.pending);
    free(stripping.is_known);
    return status;
}
