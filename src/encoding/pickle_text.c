/* SPDX-License-Identifier: Apache-2.0 */
/* Strings, numbers and names: the opcodes of protocol 0 whose arguments are lines of text, and what they share with others. */
#include "encoding/pickle_machine.h"

#include "base/decimal_text.h"

#include <math.h>
#include <stdlib.h>

#define QUOTE_MAX 100 /* characters of foreign text in a message */
#define QUOTE(s) (int)((s).size > QUOTE_MAX ? QUOTE_MAX : (s).size), ((s).size ? (s).data : "")

reshard_status pickle_read_line(struct pickle_machine *m, size_t size_max, struct str *out)
{
    if (cursor_line(&m->input, size_max, out))
        return RESHARD_OK;
    if (cursor_left(&m->input) < size_max)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "the pickle ends inside a line of text");
    return pickle_fail(m, RESHARD_ERR_LIMIT, "a line of text is longer than %zu bytes", size_max);
}

static size_t text_line_max(const struct pickle_machine *m)
{
    uint64_t limit = m->limits->pickle_string_bytes;
    return limit < SIZE_MAX / 16 ? (size_t)limit + 1 : SIZE_MAX / 16;
}

/* ---- strings ---- */

static reshard_status push_string_node(struct pickle_machine *m, enum value_kind kind, struct str text, uint16_t marks)
{
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, kind, &status);
    if (!node)
        return status;
    node->text = text;
    node->reserved = marks;
    return pickle_push(m, node);
}

reshard_status pickle_push_text(struct pickle_machine *m, struct str text)
{
    size_t bad;
    if (!str_is_utf8(text, true, &bad))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a string is not UTF-8: byte 0x%02X at its index %zu", (uint8_t)text.data[bad], bad);
    return push_string_node(m, VALUE_STR, text, 0);
}

/* One byte of a quoted Python 2 string after a backslash at text[*at]; *at moves behind it. */
static bool unescape_byte(struct str text, size_t *at, char *out, size_t *used)
{
    static const char plain[] = "\\\\''\"\"a\ab\bt\tn\nv\vf\fr\r";
    char c = text.data[(*at)++];
    if (c == 'x') {
        uint64_t number;
        if (!str_hex_at(text, *at, 2, &number))
            return false;
        *at += 2;
        out[(*used)++] = (char)number;
        return true;
    }
    if (c >= '0' && c <= '7') {
        uint32_t number = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < text.size && text.data[*at] >= '0' && text.data[*at] <= '7'; i++)
            number = number << 3 | (uint32_t)(text.data[(*at)++] - '0');
        out[(*used)++] = (char)number;
        return true;
    }
    for (size_t i = 0; plain[i]; i += 2) {
        if (plain[i] == c) {
            out[(*used)++] = plain[i + 1];
            return true;
        }
    }
    out[(*used)++] = '\\';
    out[(*used)++] = c;
    return true;
}

/* STRING: a quoted literal of Python 2. */
reshard_status pickle_op_string(struct pickle_machine *m)
{
    struct str line;
    reshard_status status = pickle_read_line(m, text_line_max(m), &line);
    if (status)
        return status;
    while (line.size && (line.data[line.size - 1] == '\r' || line.data[line.size - 1] == ' '))
        line.size--;
    if (line.size < 2 || (line.data[0] != '\'' && line.data[0] != '"') || line.data[line.size - 1] != line.data[0])
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a string literal without quotes around it");

    struct str text = { line.data + 1, line.size - 2 };
    char *out = arena_alloc(&m->graph->arena, text.size);
    if (!out)
        return error_set_memory(m->err);
    size_t used = 0;
    for (size_t i = 0; i < text.size;) {
        char c = text.data[i++];
        if (c != '\\')
            out[used++] = c;
        else if (i == text.size || !unescape_byte(text, &i, out, &used))
            return pickle_fail(m, RESHARD_ERR_FORMAT, "a string literal with a broken escape at its index %zu", i);
    }
    struct str decoded = { out, used };
    if (str_is_utf8(decoded, true, NULL))
        return push_string_node(m, VALUE_STR, decoded, 0);
    return push_string_node(m, VALUE_BYTES, decoded, NODE_RAW_STRING);
}

/* UNICODE: Latin-1 in which only \uXXXX and \UXXXXXXXX are escapes; another backslash stands for itself and what follows it. */
reshard_status pickle_op_unicode(struct pickle_machine *m)
{
    struct str line;
    reshard_status status = pickle_read_line(m, text_line_max(m), &line);
    if (status)
        return status;
    char *out = arena_array(&m->graph->arena, line.size, 2);
    if (!out)
        return error_set_memory(m->err);
    size_t used = 0;
    for (size_t i = 0; i < line.size;) {
        uint32_t c = (uint8_t)line.data[i++];
        char next = c == '\\' && i < line.size ? line.data[i] : 0;
        if (next == 'u' || next == 'U') {
            const size_t digits = next == 'u' ? 4 : 8;
            uint64_t code;
            if (!str_hex_at(line, i + 1, digits, &code) || code > 0x10FFFF)
                return pickle_fail(m, RESHARD_ERR_FORMAT, "a string with a broken escape at its index %zu", i - 1);
            i += 1 + digits;
            used += str_put_utf8((uint32_t)code, out + used);
            continue;
        }
        used += str_put_utf8(c, out + used);
        if (c == '\\') {
            if (i == line.size)
                return pickle_fail(m, RESHARD_ERR_FORMAT, "a string ends in a backslash");
            used += str_put_utf8((uint8_t)line.data[i++], out + used);
        }
    }
    return push_string_node(m, VALUE_STR, (struct str){ out, used }, 0);
}

/* ---- numbers ---- */

reshard_status pickle_push_integer(struct pickle_machine *m, struct str bytes)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t size = bytes.size;
    /* A last byte that only repeats the sign says nothing. */
    while (size > 1 && data[size - 1] == (data[size - 2] & 0x80 ? 0xFF : 0x00))
        size--;
    if (size > m->limits->bigint_bytes)
        return pickle_fail_limit(m, "bigint_bytes", size, m->limits->bigint_bytes);
    reshard_status status = RESHARD_OK;
    struct value *node = pickle_node(m, size > 8 ? VALUE_BIGINT : VALUE_INT, &status);
    if (!node)
        return status;
    if (size > 8) {
        node->text = (struct str){ bytes.data, size };
    } else if (size) {
        uint64_t number = load_le(data, (int)size);
        if (size < 8 && data[size - 1] & 0x80)
            number |= UINT64_MAX << (8 * size);
        node->integer = (int64_t)number;
    }
    return pickle_push(m, node);
}

/* Decimal digits to two's complement. Quadratic, and bounded by the limit on the result. */
static reshard_status push_decimal(struct pickle_machine *m, struct str digits, bool is_negative)
{
    size_t size_max = digits.size / 2 + 2, size = 1;
    if (digits.size / 3 > m->limits->bigint_bytes)
        return pickle_fail_limit(m, "bigint_bytes", digits.size / 3, m->limits->bigint_bytes);
    uint8_t *out = arena_zalloc(&m->graph->arena, size_max);
    if (!out)
        return error_set_memory(m->err);
    for (size_t i = 0; i < digits.size; i++) {
        unsigned carry = (unsigned)(digits.data[i] - '0');
        for (size_t j = 0; j < size; j++) {
            carry += out[j] * 10u;
            out[j] = (uint8_t)carry;
            carry >>= 8;
        }
        if (carry)
            out[size++] = (uint8_t)carry;
    }
    size++; /* the sign */
    unsigned carry = 1;
    for (size_t j = 0; is_negative && j < size; j++) {
        carry += (uint8_t)~out[j];
        out[j] = (uint8_t)carry;
        carry >>= 8;
    }
    return pickle_push_integer(m, (struct str){ (char *)out, size });
}

static reshard_status push_integer_line(struct pickle_machine *m, struct str line, const char *what)
{
    struct str digits = line;
    bool is_negative = digits.size && digits.data[0] == '-';
    if (is_negative || (digits.size && digits.data[0] == '+'))
        digits = (struct str){ digits.data + 1, digits.size - 1 };
    bool is_number = digits.size > 0 && (digits.size == 1 || digits.data[0] != '0');
    for (size_t i = 0; i < digits.size; i++)
        is_number &= digits.data[i] >= '0' && digits.data[i] <= '9';
    if (!is_number)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "%s '%.*s' is not a decimal number", what, QUOTE(line));
    return push_decimal(m, digits, is_negative);
}

/* INT: a number, or the booleans of protocol 0 and 1. */
reshard_status pickle_op_int(struct pickle_machine *m)
{
    struct str line;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &line);
    if (status)
        return status;
    if (str_is(line, "00"))
        return pickle_op_newfalse(m);
    if (str_is(line, "01"))
        return pickle_op_newtrue(m);
    return push_integer_line(m, line, "INT");
}

reshard_status pickle_op_long(struct pickle_machine *m)
{
    struct str line;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &line);
    if (status)
        return status;
    struct str number = line;
    if (number.size && number.data[number.size - 1] == 'L')
        number.size--;
    return push_integer_line(m, number, "LONG");
}

static size_t pickle_text_skip_digits(struct str s, size_t at)
{
    while (at < s.size && s.data[at] >= '0' && s.data[at] <= '9')
        at++;
    return at;
}

/* [sign] digits [. digits] [e [sign] digits], with a digit before or after the point; or inf, infinity, nan. */
static bool is_float_text(struct str s)
{
    size_t at = s.size && (s.data[0] == '-' || s.data[0] == '+');
    struct str word = { s.data + at, s.size - at };
    if (str_is(word, "inf") || str_is(word, "nan") || str_is(word, "infinity"))
        return true;
    size_t whole_end = pickle_text_skip_digits(s, at), digit_count = whole_end - at;
    at = whole_end;
    if (at < s.size && s.data[at] == '.') {
        size_t fraction_end = pickle_text_skip_digits(s, at + 1);
        digit_count += fraction_end - at - 1;
        at = fraction_end;
    }
    if (!digit_count)
        return false;
    if (at < s.size && (s.data[at] == 'e' || s.data[at] == 'E')) {
        at++;
        at += at < s.size && (s.data[at] == '-' || s.data[at] == '+');
        size_t exponent_end = pickle_text_skip_digits(s, at);
        if (exponent_end == at)
            return false;
        at = exponent_end;
    }
    return at == s.size;
}

/* The decimal point must not depend on the program's locale. */
static reshard_status float_from_text(struct pickle_machine *m, struct str line, double *out)
{
    char *text = arena_copy(&m->graph->arena, line.data, line.size);
    return text && decimal_parse(text, out) ? RESHARD_OK : error_set_memory(m->err);
}

reshard_status pickle_op_float(struct pickle_machine *m)
{
    struct str line;
    double real = 0;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &line);
    if (status)
        return status;
    if (!is_float_text(line))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "FLOAT '%.*s' is not a number", QUOTE(line));
    status = float_from_text(m, line, &real);
    if (status)
        return status;
    /* Infinity is either written as a word, or what a number too large becomes. */
    size_t i;
    if (isinf(real) && !str_find_char(line, 'n', &i))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "FLOAT '%.*s' is too large for 64 bits", QUOTE(line));
    struct value *node = pickle_node(m, VALUE_FLOAT, &status);
    if (!node)
        return status;
    node->real = real;
    return pickle_push(m, node);
}

/* ---- names ---- */

reshard_status pickle_push_global(struct pickle_machine *m, struct str module, struct str name)
{
    if (!module.size || !name.size)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "a global with an empty %s", module.size ? "name" : "module");
    if (!str_is_utf8(module, true, NULL) || !str_is_utf8(name, true, NULL))
        return pickle_fail(m, RESHARD_ERR_FORMAT, "the name of a global is not UTF-8");
    if (m->protocol < 3)
        pickle_name_modernise(&module, &name);
    /* torch renamed the module in 1.8 and maps the old name itself. */
    if (str_is(module, "torch.tensor"))
        module = STR("torch._tensor");
    reshard_status status = RESHARD_OK;
    struct value **kept = &m->globals[(module.size * 31 + name.size * 7 + (uint8_t)name.data[0]) % PICKLE_GLOBALS_KEPT];
    if (*kept && str_equal((*kept)->global.module, module) && str_equal((*kept)->global.name, name))
        return pickle_push(m, *kept);
    struct value *node = pickle_node(m, VALUE_GLOBAL, &status);
    if (!node)
        return status;
    *kept = node;
    size_t dot;
    node->global.module = module;
    node->global.name = name;
    node->reserved = m->protocol >= 4 && str_find_char(name, '.', &dot) ? NODE_NESTED_NAME : 0;
    return pickle_push(m, node);
}

reshard_status pickle_op_global(struct pickle_machine *m)
{
    struct str module, name;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &module);
    if (!status)
        status = pickle_read_line(m, PICKLE_LINE_MAX, &name);
    return status ? status : pickle_push_global(m, module, name);
}

reshard_status pickle_op_stack_global(struct pickle_machine *m)
{
    if (!pickle_has(m, 2))
        return pickle_fail_underflow(m);
    const struct value *name = m->stack[m->stack_count - 1], *module = m->stack[m->stack_count - 2];
    if (module->kind != VALUE_STR || name->kind != VALUE_STR)
        return pickle_fail(m, RESHARD_ERR_FORMAT, "the module and name of a global are not strings");
    m->stack_count -= 2;
    return pickle_push_global(m, module->text, name->text);
}

reshard_status pickle_op_persid(struct pickle_machine *m)
{
    struct str line;
    reshard_status status = pickle_read_line(m, PICKLE_LINE_MAX, &line);
    if (!status)
        status = pickle_push_text(m, line);
    return status ? status : pickle_op_binpersid(m);
}
