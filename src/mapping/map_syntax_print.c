/* SPDX-License-Identifier: Apache-2.0 */
/* Statements as text and as JSON. */
#include "mapping/map_syntax.h"

static void print_name(const struct map_name *name, struct buffer *out)
{
    bool is_plain = map_is_plain_name(name->text) && !(name->is_quoted && name->text.size == 1);
    buffer_append_text(out, is_plain ? "" : "`");
    buffer_append_str(out, name->text);
    buffer_append_text(out, is_plain ? "" : "`");
    if (name->is_inline)
        buffer_printf(out, "{%lld:%lld}", (long long)name->begin, (long long)name->end);
    else if (name->has_array)
        buffer_printf(out, "[%lld:%lld]", (long long)name->begin, (long long)name->end);
    buffer_append_str(out, name->array_suffix);
}

static void print_names(const struct map_name *names, uint32_t count, struct buffer *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            buffer_append_text(out, ", ");
        print_name(&names[i], out);
    }
}

bool map_statement_print(const struct map_statement *statement, struct buffer *out)
{
    print_names(statement->left, statement->left_count, out);
    buffer_append_text(out, " -> ");
    print_names(statement->right, statement->right_count, out);
    if (statement->flag)
        buffer_printf(out, ", %s", map_flag_name(statement->flag));
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        buffer_printf(out, ", %.*s=", STR_ARG(attribute->key));
        if (!attribute->is_number)
            buffer_append_byte(out, (uint8_t)attribute->quote);
        buffer_append_str(out, attribute->value);
        if (!attribute->is_number)
            buffer_append_byte(out, (uint8_t)attribute->quote);
    }
    if (statement->is_optional)
        buffer_append_text(out, ", optional");
    return !out->failed;
}

static void names_json(const struct map_name *names, uint32_t count, struct buffer *out)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            buffer_append_text(out, ",");
        if (!names[i].has_array) {
            buffer_append_json_visible(out, names[i].text);
            continue;
        }
        struct buffer whole = { 0 };
        print_name(&names[i], &whole);
        out->failed |= whole.failed;
        buffer_append_json_visible(out, buffer_str(&whole));
        buffer_release(&whole);
    }
}

/* Digits of any script as an ordinary number. */
static void number_json(struct str digits, struct buffer *out)
{
    size_t size, before = out->size;
    for (size_t at = 0; at < digits.size; at += size) {
        int value = map_digit_value(digits, at, &size);
        if (value > 0 || out->size > before)
            buffer_append_byte(out, (uint8_t)('0' + value));
    }
    if (out->size == before)
        buffer_append_byte(out, '0');
}

static void attributes_json(const struct map_statement *statement, struct buffer *out)
{
    if (statement->flag)
        buffer_printf(out, "[\"%s\",true]%s", map_flag_name(statement->flag), statement->attribute_count ? "," : "");
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        buffer_append_text(out, i ? ",[" : "[");
        buffer_append_json_visible(out, attribute->key);
        buffer_append_text(out, ",");
        if (attribute->is_number)
            number_json(attribute->value, out);
        else
            buffer_append_json_visible(out, attribute->value);
        buffer_append_text(out, "]");
    }
    if (statement->is_optional)
        buffer_append_text(out, statement->flag || statement->attribute_count ? ",[\"optional\",true]" : "[\"optional\",true]");
}

bool map_program_json(const struct map_program *program, struct str text, struct buffer *out)
{
    buffer_append_text(out, "[");
    uint32_t offset = 0;
    int line = 1, column = 1;
    for (uint32_t i = 0; i < program->count; i++) {
        const struct map_statement *statement = &program->statements[i];
        struct str rest = { text.data + offset, text.size - offset };
        int lines_down;
        map_position(rest, statement->span.offset - offset, &lines_down, &column);
        line += lines_down - 1;
        offset = statement->span.offset;
        buffer_append_text(out, i ? ",{\"left\":[" : "{\"left\":[");
        names_json(statement->left, statement->left_count, out);
        buffer_append_text(out, "],\"right\":[");
        names_json(statement->right, statement->right_count, out);
        buffer_append_text(out, "],\"attrs\":[");
        attributes_json(statement, out);
        buffer_printf(out, "],\"line\":%d}", line);
    }
    buffer_append_text(out, "]");
    return !out->failed;
}
