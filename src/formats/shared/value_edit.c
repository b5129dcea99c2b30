/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/value_edit.h"

void dist_set(struct dist_editing *editing, const char *name, struct value *value, bool must_be)
{
    editing->failed = editing->failed || !value || !value_dict_set(editing->graph, editing->members, name, value, must_be);
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
