/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_lex.h"

#include <stdlib.h>

#include "base/array.h"

/* The zeros of the scripts' decimal digits (Unicode 14, general category Nd); nine more follow each. ASCII is treated apart. */
static const uint32_t script_zeros[] = {
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50, 0xED0, 0xF20,
    0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0,
    0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0, 0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0,
    0x11450, 0x114D0, 0x11650, 0x116C0, 0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0,
    0x16B50, 0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0,
};

#define SCRIPT_COUNT (sizeof(script_zeros) / sizeof(script_zeros[0]))

struct lexer {
    struct str text;
    size_t at;
    bool strict;
    struct map_tokens *tokens;
    struct map_diagnoses *diagnoses;
};

static uint32_t code_point(struct str text, size_t at, size_t size)
{
    const uint8_t *bytes = (const uint8_t *)text.data + at;
    if (size == 2)
        return (uint32_t)(bytes[0] & 0x1F) << 6 | (bytes[1] & 0x3F);
    if (size == 3)
        return (uint32_t)(bytes[0] & 0x0F) << 12 | (uint32_t)(bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F);
    return (uint32_t)(bytes[0] & 0x07) << 18 | (uint32_t)(bytes[1] & 0x3F) << 12 | (uint32_t)(bytes[2] & 0x3F) << 6 | (bytes[3] & 0x3F);
}

int map_digit_value(struct str text, size_t at, size_t *size)
{
    if (at >= text.size)
        return -1;
    *size = 1;
    if (text.data[at] >= '0' && text.data[at] <= '9')
        return text.data[at] - '0';
    if (!(text.data[at] & 0x80))
        return -1;
    *size = str_utf8_char(text, at, false);
    if (*size < 2)
        return -1;
    uint32_t found = code_point(text, at, *size);
    size_t low = 0, high = SCRIPT_COUNT;
    while (low + 1 < high) {
        size_t middle = (low + high) / 2;
        if (script_zeros[middle] <= found)
            low = middle;
        else
            high = middle;
    }
    return found >= script_zeros[low] && found - script_zeros[low] < 10 ? (int)(found - script_zeros[low]) : -1;
}

static bool starts_name(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

/* Where a run of name characters that starts at `at` ends. */
static size_t name_end(struct str text, size_t at)
{
    size_t size;
    while (at < text.size) {
        char c = text.data[at];
        if (starts_name(c) || c == '.' || c == '$' || c == '*' || c == '^')
            at++;
        else if (map_digit_value(text, at, &size) >= 0)
            at += size;
        else
            break;
    }
    return at;
}

bool map_is_plain_name(struct str name)
{
    return name.size && starts_name(name.data[0]) && name_end(name, 0) == name.size;
}

const char *map_token_name(enum map_token_kind kind)
{
    static const char *const names[] = {
        [TOKEN_NAME] = "a name",
        [TOKEN_NUMBER] = "a number",
        [TOKEN_STRING] = "a string",
        [TOKEN_ARROW] = "'->'",
        [TOKEN_EQUAL] = "'='",
        [TOKEN_COLON] = "':'",
        [TOKEN_OPEN] = "'['",
        [TOKEN_CLOSE] = "']'",
        [TOKEN_COMMA] = "','",
        [TOKEN_OPERATOR] = "an operator",
        [TOKEN_LINE_END] = "the end of the line",
        [TOKEN_BAD] = "something unreadable",
        [TOKEN_END] = "the end of the text",
    };
    return names[kind];
}

static bool map_lex_push(struct lexer *lexer, enum map_token_kind kind, size_t start, size_t end)
{
    struct map_tokens *tokens = lexer->tokens;
    if (!ARRAY_ROOM(tokens->rows, tokens->count, tokens->capacity))
        return false;
    tokens->rows[tokens->count++] = (struct map_token){ (uint8_t)kind, { (uint32_t)start, (uint32_t)(end - start) } };
    return true;
}

static bool map_lex_is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

static size_t line_end_from(struct str text, size_t at)
{
    while (at < text.size && !map_lex_is_line_end(text.data[at]))
        at++;
    return at;
}

/* What a user who writes such a character probably means. */
static const char *hint_for(const struct lexer *lexer)
{
    struct str text = lexer->text;
    char c = text.data[lexer->at], next = lexer->at + 1 < text.size ? text.data[lexer->at + 1] : '\0';
    switch (c) {
    case '\\': return next == '$' ? "remove the backslash before $" : NULL;
    case '#': return "comments are an extension, which reshard_map_options.strict refuses";
    case '`':
        return lexer->strict ? "names in back quotes are an extension, which reshard_map_options.strict refuses"
                             : "the closing back quote is missing";
    case '<': return next == '-' ? "the arrow points from source to target: A -> B" : NULL;
    case '\'':
    case '"': return "the closing quote is missing";
    case ';': return "statements are separated by line ends";
    case '-':
        if (next >= '0' && next <= '9')
            return "numbers have no sign";
        __attribute__((fallthrough));
    case '/':
    case '@': return lexer->strict ? NULL : "a name with such characters is written in back quotes: `a-b/c`";
    default: return NULL;
    }
}

static bool push_bad(struct lexer *lexer)
{
    struct str text = lexer->text;
    size_t start = lexer->at, size = str_utf8_char(text, start, false);
    struct map_span span = { (uint32_t)start, (uint32_t)(size ? size : 1) };
    if (size)
        map_diagnose(lexer->diagnoses, MAP_ERROR, span, hint_for(lexer), "unexpected character '%.*s'", (int)size, text.data + start);
    else
        map_diagnose(lexer->diagnoses, MAP_ERROR, span, "a mapping is UTF-8 text", "byte 0x%02x is no character",
                     (uint8_t)text.data[start]);
    lexer->at = line_end_from(text, start + span.size);
    return map_lex_push(lexer, TOKEN_BAD, start, lexer->at);
}

/* A string reaches to its quote, over line ends too; a quoted name must close on its line. */
static bool push_quoted(struct lexer *lexer, char quote)
{
    size_t end = lexer->at + 1;
    while (end < lexer->text.size && lexer->text.data[end] != quote && !(quote == '`' && map_lex_is_line_end(lexer->text.data[end])))
        end++;
    if (end >= lexer->text.size || lexer->text.data[end] != quote || (quote == '`' && end == lexer->at + 1))
        return push_bad(lexer);
    bool done = map_lex_push(lexer, quote == '`' ? TOKEN_NAME : TOKEN_STRING, lexer->at, end + 1);
    lexer->at = end + 1;
    return done;
}

static bool push_mark(struct lexer *lexer, enum map_token_kind kind, size_t size)
{
    lexer->at += size;
    return map_lex_push(lexer, kind, lexer->at - size, lexer->at);
}

/* Behind a {begin:end} that starts here; the same place if none does. */
static size_t braces_end(struct str text, size_t at)
{
    size_t end = at;
    if (at >= text.size || text.data[at] != '{')
        return at;
    while (end < text.size && !map_lex_is_line_end(text.data[end]) && text.data[end] != '}')
        end++;
    return end < text.size && text.data[end] == '}' ? end + 1 : at;
}

/* + - * / between blanks. */
static bool is_operator(struct str text, size_t at)
{
    char before = at ? text.data[at - 1] : '\n', behind = at + 1 < text.size ? text.data[at + 1] : '\n';
    return memchr("+-*/", text.data[at], 4) && (before == ' ' || before == '\t') && (behind == ' ' || behind == '\t');
}

static bool push_word_or_bad(struct lexer *lexer)
{
    struct str text = lexer->text;
    size_t start = lexer->at, size;
    if (starts_name(text.data[start])) {
        lexer->at = name_end(text, start);
        for (size_t behind; !lexer->strict && (behind = braces_end(text, lexer->at)) > lexer->at;)
            lexer->at = name_end(text, behind);
        return map_lex_push(lexer, TOKEN_NAME, start, lexer->at);
    }
    while (map_digit_value(text, lexer->at, &size) >= 0)
        lexer->at += size;
    if (lexer->at > start)
        return map_lex_push(lexer, TOKEN_NUMBER, start, lexer->at);
    return push_bad(lexer);
}

static bool push_next(struct lexer *lexer)
{
    struct str text = lexer->text;
    size_t start = lexer->at;
    if (!lexer->strict && is_operator(text, start))
        return push_mark(lexer, TOKEN_OPERATOR, 1);
    switch (text.data[start]) {
    case ' ':
    case '\t': lexer->at++; return true;
    case '\n':
    case '\r':
        while (lexer->at < text.size && map_lex_is_line_end(text.data[lexer->at]))
            lexer->at++;
        return map_lex_push(lexer, TOKEN_LINE_END, start, lexer->at);
    case '=': return push_mark(lexer, TOKEN_EQUAL, 1);
    case ':': return push_mark(lexer, TOKEN_COLON, 1);
    case '[': return push_mark(lexer, TOKEN_OPEN, 1);
    case ']': return push_mark(lexer, TOKEN_CLOSE, 1);
    case ',': return push_mark(lexer, TOKEN_COMMA, 1);
    case '\'':
    case '"': return push_quoted(lexer, text.data[start]);
    case '-':
        if (start + 1 < text.size && text.data[start + 1] == '>')
            return push_mark(lexer, TOKEN_ARROW, 2);
        return push_bad(lexer);
    case '#':
        if (lexer->strict)
            return push_bad(lexer);
        lexer->at = line_end_from(text, start);
        return true;
    case '`': return lexer->strict ? push_bad(lexer) : push_quoted(lexer, '`');
    default: return push_word_or_bad(lexer);
    }
}

reshard_status map_lex(struct str text, bool strict, const struct limits *limits, struct map_tokens *out, struct map_diagnoses *diagnoses,
                       reshard_error *err)
{
    uint64_t bytes_max = limits->map_text_bytes < UINT32_MAX / 2 ? limits->map_text_bytes : UINT32_MAX / 2;
    if (text.size > bytes_max)
        return error_set_limit(err, "map_text_bytes", text.size, bytes_max);
    struct lexer lexer = { text, 0, strict, out, diagnoses };
    while (lexer.at < text.size) {
        if (!push_next(&lexer))
            return error_set_memory(err);
    }
    if (!map_lex_push(&lexer, TOKEN_LINE_END, text.size, text.size) || !map_lex_push(&lexer, TOKEN_END, text.size, text.size))
        return error_set_memory(err);
    return RESHARD_OK;
}

void map_tokens_release(struct map_tokens *tokens)
{
    free(tokens->rows);
    *tokens = (struct map_tokens){ 0 };
}
