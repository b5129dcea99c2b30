/* SPDX-License-Identifier: Apache-2.0 */
#include "base/value.h"

#include "base/value_parts.h"

#include <stdlib.h>

#define SPARE_MIN 8
#define SPARE_MAX 1024

/* Nodes come from arrays, because the arena's alignment would waste a sixth of each. */
struct value *value_new(struct value_graph *graph, enum value_kind kind)
{
    if (graph->count == UINT32_MAX)
        return NULL;
    if (!graph->spare_count) {
        uint32_t count = graph->count < SPARE_MIN ? SPARE_MIN : graph->count > SPARE_MAX ? SPARE_MAX : graph->count;
        graph->spare = arena_array(&graph->arena, count, sizeof(*graph->spare));
        if (!graph->spare)
            return NULL;
        graph->spare_count = count;
    }
    struct value *value = graph->spare;
    *value = (struct value){ .kind = (uint8_t)kind, .id = graph->count };
    if (kind == VALUE_CALL || kind == VALUE_NEW) {
        value->object = arena_zalloc(&graph->arena, sizeof(*value->object));
        if (!value->object)
            return NULL;
    }
    graph->spare++;
    graph->spare_count--;
    graph->count++;
    return value;
}

struct value *value_new_int(struct value_graph *graph, int64_t integer)
{
    struct value *value = value_new(graph, VALUE_INT);
    if (value)
        value->integer = integer;
    return value;
}

struct value *value_new_str(struct value_graph *graph, struct str text)
{
    struct str copy;
    if (!arena_str(&graph->arena, text, &copy))
        return NULL;
    struct value *value = value_new(graph, VALUE_STR);
    if (value)
        value->text = copy;
    return value;
}

struct value *value_new_global(struct value_graph *graph, const char *module, const char *name)
{
    struct str module_copy, name_copy;
    if (!arena_str(&graph->arena, str_of(module), &module_copy) || !arena_str(&graph->arena, str_of(name), &name_copy))
        return NULL;
    struct value *value = value_new(graph, VALUE_GLOBAL);
    if (value) {
        value->global.module = module_copy;
        value->global.name = name_copy;
    }
    return value;
}

struct value *value_new_list(struct value_graph *graph, enum value_kind kind, struct value **items, size_t count)
{
    struct value *value = value_new(graph, kind);
    if (value) {
        value->list.items = items;
        value->list.count = count;
    }
    return value;
}

struct value *value_new_call(struct value_graph *graph, struct value *callable, struct value **args, size_t count)
{
    struct value *tuple = value_new_list(graph, VALUE_TUPLE, args, count);
    struct value *value = tuple ? value_new(graph, VALUE_CALL) : NULL;
    if (value) {
        value->object->callable = callable;
        value->object->args = tuple;
    }
    return value;
}

void value_graph_release(struct value_graph *graph)
{
    arena_release(&graph->arena);
    *graph = (struct value_graph){ .arena = graph->arena };
}

bool value_is_global(const struct value *value, const char *module, const char *name)
{
    return value && value->kind == VALUE_GLOBAL && str_is(value->global.name, name) && str_is(value->global.module, module);
}

bool value_is_call(const struct value *value, const char *module, const char *name)
{
    return value && (value->kind == VALUE_CALL || value->kind == VALUE_NEW) && value_is_global(value->object->callable, module, name);
}

/* The place of the key's value, the last one of several; NULL if absent. */
static struct value **dict_place(struct value *const *pairs, size_t count, struct str key)
{
    for (size_t i = count / 2; i-- > 0;) {
        const struct value *found = pairs[2 * i];
        if (found && found->kind == VALUE_STR && str_equal(found->text, key))
            return (struct value **)&pairs[2 * i + 1];
    }
    return NULL;
}

struct value *value_dict_find(const struct value *dict, struct str key)
{
    struct value **pairs;
    size_t count;
    struct value **place = value_as_mapping(dict, &pairs, &count) ? dict_place(pairs, count, key) : NULL;
    return place ? *place : NULL;
}

struct value *value_dict_get(const struct value *dict, const char *key)
{
    return value_dict_find(dict, str_of(key));
}

bool value_dict_is_true(const struct value *dict, const char *key)
{
    const struct value *value = dict ? value_dict_get(dict, key) : NULL;
    return value && value->kind == VALUE_BOOL && value->boolean;
}

bool value_dict_set(struct value_graph *graph, struct value *dict, const char *key, struct value *value, bool must_be)
{
    size_t count = dict->list.count;
    struct value **place = dict_place(dict->list.items, count, str_of(key));
    if (place)
        *place = value;
    if (place || !must_be)
        return true;
    struct value **items = arena_array(&graph->arena, count + 2, sizeof(*items));
    struct value *name = value_new_str(graph, str_of(key));
    if (!items || !name)
        return false;
    if (count)
        memcpy(items, dict->list.items, count * sizeof(*items));
    items[count] = name;
    items[count + 1] = value;
    dict->list.items = items;
    dict->list.count = count + 2;
    return true;
}

bool value_as_int(const struct value *value, int64_t *out)
{
    if (!value || value->kind != VALUE_INT)
        return false;
    *out = value->integer;
    return true;
}

bool value_as_str(const struct value *value, struct str *out)
{
    if (!value || (value->kind != VALUE_STR && value->kind != VALUE_BYTES))
        return false;
    *out = value->text;
    return true;
}

bool value_as_ints(const struct value *value, int64_t *out, size_t max, size_t *count)
{
    struct value **items;
    size_t found;
    if (!value_as_sequence(value, &items, &found) || found > max)
        return false;
    for (size_t i = 0; i < found; i++)
        if (!value_as_int(items[i], &out[i]))
            return false;
    *count = found;
    return true;
}
