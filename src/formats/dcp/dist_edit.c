/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dist_edit.h"

void dist_set(struct dist_editing *editing, const char *name, struct value *value, bool must_be)
{
    struct value *members = editing->members;
    editing->failed = editing->failed || !value;
    for (size_t i = 0; i + 1 < members->list.count && !editing->failed; i += 2) {
        const struct value *key = members->list.items[i];
        if (key->kind == VALUE_STR && str_is(key->text, name)) {
            members->list.items[i + 1] = value;
            return;
        }
    }
    if (!must_be || editing->failed)
        return;
    size_t count = members->list.count;
    struct value **items = arena_array(&editing->graph->arena, count + 2, sizeof(*items));
    struct value *key = value_new_str(editing->graph, str_of(name));
    if (!items || !key) {
        editing->failed = true;
        return;
    }
    if (count)
        memcpy(items, members->list.items, count * sizeof(*items));
    items[count] = key;
    items[count + 1] = value;
    members->list.items = items;
    members->list.count = count + 2;
}

void dist_set_number(struct dist_editing *editing, const char *name, int64_t number, bool must_be)
{
    dist_set(editing, name, value_new_int(editing->graph, number), must_be);
}

void dist_set_bool(struct dist_editing *editing, const char *name, bool boolean)
{
    struct value *value = value_new(editing->graph, VALUE_BOOL);
    if (value)
        value->boolean = boolean;
    dist_set(editing, name, value, true);
}

void dist_set_text(struct dist_editing *editing, const char *name, const char *text)
{
    dist_set(editing, name, value_new_str(editing->graph, str_of(text)), true);
}
