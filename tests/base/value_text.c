/* SPDX-License-Identifier: Apache-2.0 */
#include "value_text.h"

#include "check.h"

#include <ctype.h>
#include <math.h>

#define ITEMS_MAX 64

struct text {
    struct value_graph *graph;
    const char *start, *p;
};

static struct value *parse(struct text *text);

static bool take(struct text *text, const char *word)
{
    while (*text->p == ' ')
        text->p++;
    if (strncmp(text->p, word, strlen(word)) != 0)
        return false;
    text->p += strlen(word);
    return true;
}

static void must_take(struct text *text, const char *word)
{
    if (!take(text, word))
        fail_msg("value text '%s': expected '%s' at '%s'", text->start, word, text->p);
}

/* Elements up to the closing text; pairs are separated by ':'. */
static struct value **parse_items(struct text *text, const char *close, size_t *count)
{
    struct value *items[ITEMS_MAX];
    *count = 0;
    while (!take(text, close)) {
        assert_true(*count < ITEMS_MAX);
        items[(*count)++] = parse(text);
        if (!take(text, ":"))
            (void)take(text, ",");
    }
    struct value **kept = arena_array(&text->graph->arena, *count, sizeof(*kept));
    if (*count)
        memcpy(kept, items, *count * sizeof(*kept));
    return kept;
}

static struct value *parse_list(struct text *text, enum value_kind kind, const char *close)
{
    size_t count;
    struct value **items = parse_items(text, close, &count);
    return value_new_list(text->graph, kind, items, count);
}

static struct value *parse_string(struct text *text, enum value_kind kind)
{
    char bytes[512];
    size_t size = 0;
    must_take(text, "'");
    while (*text->p != '\'') {
        char c = *text->p++;
        if (c == '\\' && *text->p == 'x') {
            char digits[3] = { text->p[1], text->p[2], 0 };
            c = (char)strtoul(digits, NULL, 16);
            text->p += 3;
        } else if (c == '\\') {
            c = *text->p++;
        }
        bytes[size++] = c;
    }
    text->p++;
    struct value *value = value_new_str(text->graph, (struct str){ bytes, size });
    value->kind = (uint8_t)kind;
    return value;
}

/* Decimal digits to little-endian bytes: times ten, plus a digit. */
static struct value *parse_bigint(struct text *text, const char *digits, size_t count)
{
    uint8_t bytes[128] = { 0 };
    for (size_t d = 0; d < count; d++) {
        unsigned carry = (unsigned)(digits[d] - '0');
        for (size_t i = 0; i < sizeof(bytes); i++) {
            carry += bytes[i] * 10u;
            bytes[i] = (uint8_t)carry;
            carry >>= 8;
        }
    }
    struct value *value = value_new_str(text->graph, (struct str){ (char *)bytes, count / 2 + 1 });
    value->kind = VALUE_BIGINT;
    return value;
}

static struct value *parse_number(struct text *text)
{
    char *end;
    size_t digits = strspn(text->p, "0123456789");
    double real = strtod(text->p, &end);
    struct value *value;
    if (digits > 18) {
        value = parse_bigint(text, text->p, digits);
    } else if (memchr(text->p, '.', (size_t)(end - text->p)) || isalpha((unsigned char)end[-1]) ||
               memchr(text->p, 'e', (size_t)(end - text->p))) {
        value = value_new(text->graph, VALUE_FLOAT);
        value->real = real;
    } else {
        value = value_new_int(text->graph, strtoll(text->p, &end, 10));
    }
    text->p = end;
    return value;
}

static struct value *parse_global(struct text *text)
{
    char name[256];
    size_t size = strspn(text->p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
    assert_true(size > 0 && size < sizeof(name));
    memcpy(name, text->p, size);
    name[size] = 0;
    text->p += size;
    char *dot = strrchr(name, '.');
    if (!dot)
        fail_msg("value text '%s': no module in '%s'", text->start, name);
    *dot = 0;
    return value_new_global(text->graph, name, dot + 1);
}

static struct value *parse_call(struct text *text, struct value *callable, enum value_kind kind)
{
    size_t count;
    must_take(text, "(");
    struct value **args = parse_items(text, ")", &count);
    struct value *value = value_new_call(text->graph, callable, args, count);
    value->kind = (uint8_t)kind;
    return value;
}

static void parse_additions(struct text *text, struct value_object *object)
{
    struct value *states[8];
    for (;;) {
        size_t count = 0;
        if (take(text, "^")) {
            states[object->state_count++] = parse(text);
            object->states = arena_array(&text->graph->arena, 8, sizeof(*states));
            memcpy(object->states, states, object->state_count * sizeof(*states));
        } else if (take(text, "!{")) {
            object->dict_items = parse_items(text, "}", &count);
            object->dict_count = (uint32_t)count;
        } else if (take(text, "!**")) {
            object->kwargs = parse(text);
        } else if (take(text, "![")) {
            object->list_items = parse_items(text, "]", &count);
            object->list_count = (uint32_t)count;
        } else if (take(text, "!$set[")) {
            object->set_items = parse_items(text, "]", &count);
            object->set_count = (uint32_t)count;
        } else {
            return;
        }
    }
}

static struct value *parse_object(struct text *text)
{
    struct value *value;
    if (take(text, "$new "))
        value = parse_call(text, parse_global(text), VALUE_NEW);
    else if (take(text, "$call "))
        value = parse_call(text, parse(text), VALUE_CALL);
    else
        value = parse_call(text, parse_global(text), VALUE_CALL);
    parse_additions(text, value->object);
    return value;
}

static struct value *parse_word(struct text *text)
{
    static const char *const words[] = { "None", "True", "False", "inf", "-inf", "nan" };
    for (int i = 0; i < 6; i++) {
        if (!take(text, words[i]))
            continue;
        struct value *value = value_new(text->graph, i == 0 ? VALUE_NONE : i < 3 ? VALUE_BOOL : VALUE_FLOAT);
        if (i == 1 || i == 2)
            value->boolean = i == 1;
        else if (i > 2)
            value->real = i == 5 ? (double)NAN : i == 4 ? -(double)INFINITY : (double)INFINITY;
        return value;
    }
    return parse_object(text);
}

static struct value *parse(struct text *text)
{
    while (*text->p == ' ')
        text->p++;
    if (take(text, "["))
        return parse_list(text, VALUE_LIST, "]");
    if (take(text, "("))
        return parse_list(text, VALUE_TUPLE, ")");
    if (take(text, "{"))
        return parse_list(text, VALUE_DICT, "}");
    if (take(text, "$set["))
        return parse_list(text, VALUE_SET, "]");
    if (take(text, "$frozenset["))
        return parse_list(text, VALUE_FROZENSET, "]");
    if (take(text, "$bytearray "))
        return parse_string(text, VALUE_BYTEARRAY);
    if (take(text, "$pid ")) {
        struct value *inner = parse(text), *value = value_new(text->graph, VALUE_PERSID);
        value->inner = inner;
        return value;
    }
    if (take(text, "@"))
        return parse_global(text);
    if (*text->p == '\'')
        return parse_string(text, VALUE_STR);
    if (text->p[0] == 'b' && text->p[1] == '\'') {
        text->p++;
        return parse_string(text, VALUE_BYTES);
    }
    if (isdigit((unsigned char)*text->p) || (*text->p == '-' && isdigit((unsigned char)text->p[1])))
        return parse_number(text);
    return parse_word(text);
}

struct value *value_from_text(struct value_graph *graph, const char *text)
{
    struct text state = { graph, text, text };
    struct value *value = parse(&state);
    if (*state.p)
        fail_msg("value text '%s': '%s' is left", text, state.p);
    return value;
}
