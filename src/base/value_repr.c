/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"
#include "base/decimal_text.h"
#include "base/value_print.h"


static const char hex_digits[] = "0123456789abcdef";

/* The letter after the backslash for what Python abbreviates inside `quote`, else 0. */
static char short_escape(uint8_t c, char quote)
{
    if (c == (uint8_t)quote || c == '\\')
        return (char)c;
    return c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : 0;
}

/* One that does not stand for itself. */
static bool put_byte(struct buffer *out, uint8_t c, char quote)
{
    char letter = short_escape(c, quote);
    if (letter)
        return buffer_append(out, (char[]){ '\\', letter }, 2);
    return buffer_append(out, (char[]){ '\\', 'x', hex_digits[c >> 4], hex_digits[c & 15] }, 4);
}

/* How many characters from there on stand for themselves. */
static size_t plain_length(struct str text, size_t from, char quote)
{
    size_t at = from;
    while (at < text.size && text.data[at] >= ' ' && text.data[at] < 0x7F && text.data[at] != quote && text.data[at] != '\\')
        at++;
    return at - from;
}

/* A lone surrogate, three bytes of WTF-8, as \udxxx. */
static bool put_surrogate(struct buffer *out, const char *bytes)
{
    unsigned unit = 0xD000 | ((uint8_t)bytes[1] & 0x3Fu) << 6 | ((uint8_t)bytes[2] & 0x3Fu);
    return buffer_printf(out, "\\u%04x", unit);
}

/* Python prefers single quotes, unless the text has some and no double ones. */
static bool put_quoted(struct buffer *out, struct str text, bool is_text)
{
    size_t at;
    char quote = str_find_char(text, '\'', &at) && !str_find_char(text, '"', &at) ? '"' : '\'';
    bool ok = buffer_append_byte(out, (uint8_t)quote);
    for (size_t i = 0; ok && i < text.size;) {
        size_t plain = plain_length(text, i, quote);
        if (plain) {
            ok = buffer_append(out, text.data + i, plain);
            i += plain;
            continue;
        }
        size_t size = is_text ? str_utf8_char(text, i, true) : 1;
        if (size > 1 && str_printable_char(text, i))
            ok = buffer_append(out, text.data + i, size);
        else if (size == 3)
            ok = put_surrogate(out, text.data + i);
        else
            ok = put_byte(out, size == 2 ? (uint8_t)text.data[i + 1] : (uint8_t)text.data[i], quote);
        i += size ? size : 1;
    }
    return ok && buffer_append_byte(out, (uint8_t)quote);
}

static bool value_repr_put_bytes(struct printer *p, const struct value *value)
{
    bool is_array = value->kind == VALUE_BYTEARRAY || value_is_call(value, "builtins", "bytearray");
    buffer_clear(&p->scratch);
    p->scratch.limit = p->out->limit;
    bool ok = value_as_bytes(value, &p->scratch) && buffer_append_text(p->out, is_array ? "bytearray(b" : "b");
    p->out->failed |= p->scratch.failed;
    p->out->over_limit |= p->scratch.over_limit;
    return ok && put_quoted(p->out, buffer_str(&p->scratch), false) && (!is_array || buffer_append_byte(p->out, ')'));
}

static bool value_repr_put_leaf(struct printer *p, const struct value *value)
{
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE:
        return buffer_append_text(p->out, "None");
    case VALUE_BOOL:
        return buffer_append_text(p->out, value->boolean ? "True" : "False");
    case VALUE_INT:
        return buffer_append_integer(p->out, value->integer);
    case VALUE_BIGINT:
        return buffer_append_bigint(p->out, value->text);
    case VALUE_FLOAT:
        return buffer_append_double(p->out, value->real);
    case VALUE_STR:
        return put_quoted(p->out, value->text, true);
    case VALUE_GLOBAL:
        return value_append_name(value, p->out);
    default:
        return value_repr_put_bytes(p, value);
    }
}

static bool value_repr_push(struct printer *p, const struct value *node, enum print_kind kind, struct value *const *items, size_t count,
                 const char *open, const char *close)
{
    struct print_frame frame = { .node = node, .kind = (uint8_t)kind, .items = items, .count = count, .between = ", ", .close = close };
    if (!buffer_append_text(p->out, open))
        return false;
    if (kind == PRINT_PAIRS) {
        frame.count /= 2;
        if (!printer_order_pairs(p, &frame))
            return false;
    }
    return printer_push(p, frame);
}

static bool push_set(struct printer *p, const struct value *node)
{
    bool is_frozen = node->kind == VALUE_FROZENSET;
    if (node->list.count == 0)
        return value_repr_push(p, node, PRINT_ITEMS, NULL, 0, is_frozen ? "frozenset(" : "set(", ")");
    return value_repr_push(p, node, PRINT_ITEMS, node->list.items, node->list.count, is_frozen ? "frozenset({" : "{",
                           is_frozen ? "})" : "}");
}

static bool value_repr_push_object(struct printer *p, const struct value *node)
{
    size_t skipped;
    const struct value *class = value_class(node, &skipped), *args = node->object->args;
    if (!class || !value_append_name(class, p->out)) {
        if (p->out->failed || !buffer_append_text(p->out, "<unnamed>"))
            return false;
    }
    if (!buffer_append_byte(p->out, '('))
        return false;
    if (!printer_push(p, (struct print_frame){ .node = node, .kind = PRINT_OBJECT, .close = ")" }))
        return false;
    bool is_plain = args && (args->kind == VALUE_TUPLE || args->kind == VALUE_LIST);
    if (!is_plain || args->list.count <= skipped)
        return true;
    p->frames[p->frame_count - 1].any = true;
    return value_repr_push(p, NULL, PRINT_ITEMS, args->list.items + skipped, args->list.count - skipped, "", "");
}

static bool value_repr_put_value(struct printer *p, const struct value *value)
{
    bool is_open;
    if (!value)
        return buffer_append_text(p->out, "None");
    if (value_is_leaf(value))
        return value_repr_put_leaf(p, value);
    if (value_is_bytes(value))
        return value_repr_put_bytes(p, value);
    if (!printer_enter(p, value, &is_open))
        return false;
    if (is_open)
        return buffer_append_text(p->out, "...");
    switch ((enum value_kind)value->kind) {
    case VALUE_LIST:
        return value_repr_push(p, value, PRINT_ITEMS, value->list.items, value->list.count, "[", "]");
    case VALUE_TUPLE:
        return value_repr_push(p, value, PRINT_ITEMS, value->list.items, value->list.count, "(", value->list.count == 1 ? ",)" : ")");
    case VALUE_DICT:
        return value_repr_push(p, value, PRINT_PAIRS, value->list.items, value->list.count, "{", "}");
    case VALUE_SET:
    case VALUE_FROZENSET:
        return push_set(p, value);
    case VALUE_PERSID:
        return value_repr_push(p, value, PRINT_ITEMS, &value->inner, 1, "<persistent id ", ">");
    default:
        return value_repr_push_object(p, value);
    }
}

/* What follows an object's arguments, written like further arguments: attributes and keywords as dictionaries. */
static bool push_section(struct printer *p)
{
    struct print_frame *frame = &p->frames[p->frame_count - 1];
    const struct value_object *object = frame->node->object;
    const char *comma = frame->any ? ", " : "";
    switch (frame->section++) {
    case 0:
        if (!object->kwargs)
            return true;
        frame->any = true;
        return buffer_append_text(p->out, comma) && buffer_append_text(p->out, "**") && value_repr_put_value(p, object->kwargs);
    case 1:
        frame->any |= object->state_count != 0;
        return !object->state_count || value_repr_push(p, NULL, PRINT_ITEMS, object->states, object->state_count, comma, "");
    case 2:
        frame->any |= object->list_count != 0;
        return !object->list_count || (buffer_append_text(p->out, comma) &&
                                       value_repr_push(p, NULL, PRINT_ITEMS, object->list_items, object->list_count, "[", "]"));
    case 3:
        frame->any |= object->dict_count != 0;
        return !object->dict_count || (buffer_append_text(p->out, comma) &&
                                       value_repr_push(p, NULL, PRINT_PAIRS, object->dict_items, object->dict_count, "{", "}"));
    case 4:
        return !object->set_count ||
               (buffer_append_text(p->out, comma) && value_repr_push(p, NULL, PRINT_ITEMS, object->set_items, object->set_count, "{", "}"));
    default:
        return printer_pop(p);
    }
}

static bool value_repr_put_element(struct printer *p)
{
    size_t index;
    const struct print_frame *frame = &p->frames[p->frame_count - 1];
    struct value *const *items = frame->items;
    bool is_pair = frame->kind == PRINT_PAIRS;
    if (is_pair && frame->pair_open) {
        p->frames[p->frame_count - 1].pair_open = false;
        return buffer_append_text(p->out, ": ") && value_repr_put_value(p, items[2 * frame->pair + 1]);
    }
    if (!printer_next(p, &index))
        return false;
    if (index == SIZE_MAX)
        return printer_pop(p);
    if (!is_pair)
        return value_repr_put_value(p, items[index]);
    p->frames[p->frame_count - 1].pair_open = true;
    p->frames[p->frame_count - 1].pair = index;
    return value_repr_put_value(p, items[2 * index]);
}

bool value_to_repr(const struct value *value, struct buffer *out, struct work *work)
{
    struct printer printer = { .out = out, .seed = hash_table_seed(), .work = work };
    size_t start = out->size;
    bool ok = value_repr_put_value(&printer, value);
    while (ok && printer.frame_count)
        ok = printer.frames[printer.frame_count - 1].kind == PRINT_OBJECT ? push_section(&printer) : value_repr_put_element(&printer);
    ok = ok && work_take(work, out->size - start);
    out->failed |= printer.no_memory || !ok;
    printer_release(&printer);
    return ok;
}
