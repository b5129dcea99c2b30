/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/value_edit.h"

void value_edit_set(struct value_edit *editing, const char *name, struct value *value, bool must_be)
{
    editing->failed = editing->failed || !value || !value_dict_set(editing->graph, editing->members, name, value, must_be);
}

void value_edit_number(struct value_edit *editing, const char *name, int64_t number, bool must_be)
{
    value_edit_set(editing, name, value_new_int(editing->graph, number), must_be);
}

void value_edit_bool(struct value_edit *editing, const char *name, bool boolean)
{
    struct value *value = value_new(editing->graph, VALUE_BOOL);
    if (value)
        value->boolean = boolean;
    value_edit_set(editing, name, value, true);
}

void value_edit_remove(struct value *dict, const char *name)
{
    size_t kept = 0;
    for (size_t i = 0; i + 1 < dict->list.count; i += 2) {
        struct str key;
        if (value_as_str(dict->list.items[i], &key) && str_is(key, name))
            continue;
        dict->list.items[kept++] = dict->list.items[i];
        dict->list.items[kept++] = dict->list.items[i + 1];
    }
    dict->list.count = kept;
}

void value_edit_text(struct value_edit *editing, const char *name, const char *text)
{
    value_edit_set(editing, name, value_new_str(editing->graph, str_of(text)), true);
}
