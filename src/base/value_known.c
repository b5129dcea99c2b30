/* SPDX-License-Identifier: Apache-2.0 */
/* What well-known calls stand for: mappings, sequences, bytes; and the names of kinds and classes. */
#include "base/value_parts.h"

/* How deep nested classes may be named by getattr(getattr(…)). */
#define NAME_PARTS_MAX 16

bool value_is_plain_call(const struct value *value, const char *module, const char *name, struct value ***args, size_t *count)
{
    if (!value || value->kind != VALUE_CALL || !value_is_global(value->object->callable, module, name))
        return false;
    const struct value_object *object = value->object;
    if (object->state_count || object->list_count || object->dict_count || object->set_count || !object->args)
        return false;
    if (object->args->kind != VALUE_TUPLE && object->args->kind != VALUE_LIST)
        return false;
    *args = object->args->list.items;
    *count = object->args->list.count;
    return true;
}

/* OrderedDict(), defaultdict(factory), Counter(): the items were set on it, or a single DICT is the last argument. */
static bool call_as_mapping(const struct value_object *object, size_t args_skipped, struct value ***pairs, size_t *count)
{
    const struct value *args = object->args;
    size_t arg_count = args && (args->kind == VALUE_TUPLE || args->kind == VALUE_LIST) ? args->list.count : 0;
    size_t left = arg_count > args_skipped ? arg_count - args_skipped : 0;
    if (left == 0) {
        *pairs = object->dict_items;
        *count = object->dict_count;
        return true;
    }
    const struct value *last = args->list.items[arg_count - 1];
    if (left != 1 || object->dict_count || !last || last->kind != VALUE_DICT)
        return false;
    *pairs = last->list.items;
    *count = last->list.count;
    return true;
}

bool value_as_mapping(const struct value *value, struct value ***pairs, size_t *count)
{
    if (!value)
        return false;
    if (value->kind == VALUE_DICT) {
        *pairs = value->list.items;
        *count = value->list.count;
        return true;
    }
    if (value_is_call(value, "collections", "OrderedDict") || value_is_call(value, "collections", "Counter"))
        return call_as_mapping(value->object, 0, pairs, count);
    if (value_is_call(value, "collections", "defaultdict"))
        return call_as_mapping(value->object, 1, pairs, count);
    return false;
}

bool value_as_sequence(const struct value *value, struct value ***items, size_t *count)
{
    struct value **args;
    size_t arg_count;
    if (value_is_plain_call(value, "torch", "Size", &args, &arg_count) && arg_count == 1)
        value = args[0];
    if (!value || (value->kind != VALUE_LIST && value->kind != VALUE_TUPLE))
        return false;
    *items = value->list.items;
    *count = value->list.count;
    return true;
}

bool value_as_set(const struct value *value, struct value ***items, size_t *count)
{
    struct value **args;
    size_t arg_count;
    if (value_is_plain_call(value, "builtins", "set", &args, &arg_count) ||
        value_is_plain_call(value, "builtins", "frozenset", &args, &arg_count))
        return arg_count == 1 && value_as_sequence(args[0], items, count);
    if (!value || (value->kind != VALUE_SET && value->kind != VALUE_FROZENSET))
        return false;
    *items = value->list.items;
    *count = value->list.count;
    return true;
}

static bool is_latin1_name(const struct value *value)
{
    return value && value->kind == VALUE_STR && (str_is(value->text, "latin1") || str_is(value->text, "latin-1"));
}

static bool is_latin1_text(const struct value *value)
{
    if (!value || value->kind != VALUE_STR || !str_is_utf8(value->text, false, NULL))
        return false;
    for (size_t i = 0; i < value->text.size; i++)
        if ((uint8_t)value->text.data[i] > 0xC3)
            return false;
    return true;
}

/* The bytes that value stands for: text itself, or with *is_latin1 the characters of text. */
static bool bytes_source(const struct value *value, struct str *text, bool *is_latin1)
{
    struct value **args;
    size_t count;
    if (value_is_plain_call(value, "builtins", "bytearray", &args, &count) && count == 1)
        value = args[0];
    if (!value)
        return false;
    *is_latin1 = false;
    *text = (struct str){ 0 };
    if (value->kind == VALUE_BYTES || value->kind == VALUE_BYTEARRAY) {
        *text = value->text;
        return true;
    }
    bool is_bytearray = value_is_plain_call(value, "builtins", "bytearray", &args, &count);
    if ((is_bytearray || value_is_plain_call(value, "builtins", "bytes", &args, &count)) && count == 0)
        return true;
    if (!is_bytearray && !value_is_plain_call(value, "_codecs", "encode", &args, &count))
        return false;
    if (count != 2 || !is_latin1_text(args[0]) || !is_latin1_name(args[1]))
        return false;
    *text = args[0]->text;
    *is_latin1 = true;
    return true;
}

bool value_is_bytes(const struct value *value)
{
    struct str text;
    bool is_latin1;
    return bytes_source(value, &text, &is_latin1);
}

bool value_as_bytes(const struct value *value, struct buffer *out)
{
    struct str text;
    bool is_latin1;
    if (!bytes_source(value, &text, &is_latin1))
        return false;
    if (!is_latin1)
        return buffer_append_str(out, text);
    if (!buffer_reserve(out, text.size))
        return false;
    for (size_t i = 0; i < text.size; i++) {
        uint8_t c = (uint8_t)text.data[i];
        if (c >= 0x80)
            c = (uint8_t)((c & 3) << 6 | ((uint8_t)text.data[++i] & 0x3F));
        buffer_append_byte(out, c);
    }
    return true;
}

const char *value_kind_name(const struct value *value)
{
    struct value **items;
    size_t count;
    if (value_as_mapping(value, &items, &count))
        return "dict";
    if (value_as_sequence(value, &items, &count))
        return "list";
    if (value_is_bytes(value))
        return "bytes";
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE:
        return "null";
    case VALUE_BOOL:
        return "bool";
    case VALUE_INT:
    case VALUE_BIGINT:
        return "int";
    case VALUE_FLOAT:
        return "float";
    case VALUE_STR:
        return "str";
    default:
        return "object";
    }
}

/* The object and the name of getattr(object, 'name'). */
static bool as_getattr(const struct value *value, const struct value **object, struct str *name)
{
    struct value **args;
    size_t count;
    if (!value_is_plain_call(value, "builtins", "getattr", &args, &count) || count != 2)
        return false;
    if (!args[0] || !args[1] || args[1]->kind != VALUE_STR)
        return false;
    *object = args[0];
    *name = args[1]->text;
    return true;
}

bool value_append_name(const struct value *value, struct buffer *out)
{
    struct str names[NAME_PARTS_MAX];
    size_t count = 0;
    while (count < NAME_PARTS_MAX && as_getattr(value, &value, &names[count]))
        count++;
    if (!value || value->kind != VALUE_GLOBAL)
        return false;
    bool ok = buffer_append_str(out, value->global.module) && buffer_append_byte(out, '.') && buffer_append_str(out, value->global.name);
    while (ok && count-- > 0)
        ok = buffer_append_byte(out, '.') && buffer_append_str(out, names[count]);
    return ok;
}

/* copyreg._reconstructor(class, base, state) and copyreg.__newobj__(class, …) are what protocols 0 and 1 write for an instance. */
const struct value *value_class(const struct value *value, size_t *args_skipped)
{
    *args_skipped = 0;
    if (!value || (value->kind != VALUE_CALL && value->kind != VALUE_NEW))
        return NULL;
    const struct value_object *object = value->object;
    const struct value *args = object->args;
    if (!args || args->kind != VALUE_TUPLE || args->list.count == 0)
        return object->callable;
    if (value_is_global(object->callable, "copyreg", "__newobj__")) {
        *args_skipped = 1;
        return args->list.items[0];
    }
    if (value_is_global(object->callable, "copyreg", "_reconstructor") && args->list.count == 3) {
        bool is_of_object = value_is_global(args->list.items[1], "builtins", "object");
        *args_skipped = is_of_object && args->list.items[2] && args->list.items[2]->kind == VALUE_NONE ? 3 : 1;
        return args->list.items[0];
    }
    return object->callable;
}

/* _rebuild_from_type_v2(function, type, args, state): torch calls the function, and makes what it returns one of the type. */
static const struct value *rebuilt_class(const struct value *value)
{
    struct value **args;
    size_t count;
    return value_is_plain_call(value, "torch._tensor", "_rebuild_from_type_v2", &args, &count) && count == 4 ? args[1] : NULL;
}

bool value_class_name(const struct value *value, struct buffer *out)
{
    size_t skipped;
    const struct value *rebuilt = rebuilt_class(value), *class = rebuilt ? rebuilt : value_class(value, &skipped);
    const struct value *object;
    struct str name;
    return class && !as_getattr(value, &object, &name) && value_append_name(class, out);
}
