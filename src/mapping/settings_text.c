/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of settings: line by line, without recursion. */
#include "mapping/settings.h"

#include "base/array.h"
#include "base/decimal_text.h"
#include "base/model_data.h"
#include "mapping/map_expression.h"

#include <stdlib.h>

#define DIRECTIVE "#:"
#define INCLUDE_DEPTH_MAX 4

struct parser {
    struct settings *settings;
    const char *name;
    uint32_t line;
    struct str rest;                           /* of the line */
    struct str variables[SETTINGS_VARIABLES_MAX];
    int variable_count;
    uint32_t statement_capacity, segment_capacity;
    reshard_error *err;
};

void settings_release(struct settings *settings)
{
    for (uint32_t i = 0; i < settings->statement_count; i++) {
        free(settings->statements[i].terms[0]);
        free(settings->statements[i].terms[1]);
    }
    free(settings->statements);
    free(settings->segments);
    free(settings->families);
    free(settings->keys);
    free(settings->rather);
    free(settings->asked);
    free(settings->ignored);
    free(settings->vocabulary);
    value_graph_release(&settings->literals);
    *settings = (struct settings){ 0 };
}

/* ---- characters ---- */

static void settings_text_skip_blanks(struct parser *parser)
{
    while (parser->rest.size && (parser->rest.data[0] == ' ' || parser->rest.data[0] == '\t'))
        parser->rest = (struct str){ parser->rest.data + 1, parser->rest.size - 1 };
}

/* Takes the text if the line goes on with it. */
static bool settings_text_take(struct parser *parser, const char *text)
{
    size_t size = strlen(text);
    settings_text_skip_blanks(parser);
    if (!str_starts_with(parser->rest, text))
        return false;
    parser->rest = (struct str){ parser->rest.data + size, parser->rest.size - size };
    return true;
}

static bool settings_text_is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

static struct str take_name(struct parser *parser)
{
    size_t size = 0;
    settings_text_skip_blanks(parser);
    while (size < parser->rest.size && settings_text_is_name_char(parser->rest.data[size]))
        size++;
    struct str name = { parser->rest.data, size };
    parser->rest = (struct str){ parser->rest.data + size, parser->rest.size - size };
    return name;
}

static reshard_status settings_text_fail(const struct parser *parser, const char *expected)
{
    return error_set(parser->err, RESHARD_ERR_USAGE, "%s:%u: expected %s, found '%.*s'", parser->name, parser->line, expected,
                     STR_ARG(parser->rest));
}

/* ---- patterns ---- */

static reshard_status take_variable(struct parser *parser, int *out)
{
    struct str name = take_name(parser);
    if (!name.size)
        return settings_text_fail(parser, "the name of a variable");
    for (*out = 0; *out < parser->variable_count; (*out)++) {
        if (str_equal(parser->variables[*out], name))
            return RESHARD_OK;
    }
    if (parser->variable_count == SETTINGS_VARIABLES_MAX)
        return settings_text_fail(parser, "fewer variables");
    parser->variables[parser->variable_count++] = name;
    return RESHARD_OK;
}

/* operand = "$" name | number */
static reshard_status take_operand(struct parser *parser, struct settings_operand *out)
{
    uint64_t number;
    *out = (struct settings_operand){ .variable = -1 };
    if (settings_text_take(parser, "$"))
        return take_variable(parser, &out->variable);
    struct str before = parser->rest;
    if (!str_to_u64(take_name(parser), &number) || number > INT32_MAX) {
        parser->rest = before;
        return settings_text_fail(parser, "a number or a variable");
    }
    out->number = (int64_t)number;
    return RESHARD_OK;
}

/* number = integer | decimal fraction. Whether the text is one; *out is NULL then without memory. */
static bool number_literal(struct value_graph *graph, struct str text, bool is_negative, struct value **out)
{
    uint64_t whole;
    size_t dot;
    if (str_to_u64(text, &whole) && whole <= INT64_MAX) {
        *out = value_new_int(graph, is_negative ? -(int64_t)whole : (int64_t)whole);
        return true;
    }
    if (!text.size || text.data[0] < '0' || text.data[0] > '9' || !str_find_char(text, '.', &dot) || text.size > 30)
        return false;
    *out = value_new(graph, VALUE_FLOAT);
    char digits[32];
    memcpy(digits, text.data, text.size);
    digits[text.size] = 0;
    if (*out && !decimal_parse(digits, &(*out)->real))
        *out = NULL;
    if (*out && is_negative)
        (*out)->real = -(*out)->real;
    return true;
}

/* The same for true | false | null | torch.NAME. */
static bool word_literal(struct value_graph *graph, struct str word, struct value **out)
{
    if (str_is(word, "true") || str_is(word, "false")) {
        *out = value_new(graph, VALUE_BOOL);
        if (*out)
            (*out)->boolean = word.data[0] == 't';
    } else if (str_is(word, "null")) {
        *out = value_new(graph, VALUE_NONE);
    } else if (str_starts_with(word, "torch.") && word.size < 64) {
        char name[64];
        memcpy(name, word.data + strlen("torch."), word.size - strlen("torch."));
        name[word.size - strlen("torch.")] = 0;
        *out = value_new_global(graph, "torch", name);
    } else {
        return false;
    }
    return true;
}

/* literal = text in quotes | number | true | false | null | torch.NAME */
static reshard_status take_literal(struct parser *parser, const struct value **out)
{
    struct value_graph *graph = &parser->settings->literals;
    struct str before = parser->rest;
    size_t end;
    if (settings_text_take(parser, "\"")) {
        if (!str_find_char(parser->rest, '"', &end))
            return settings_text_fail(parser, "a quote at the end of the text");
        *out = value_new_str(graph, (struct str){ parser->rest.data, end });
        parser->rest = (struct str){ parser->rest.data + end + 1, parser->rest.size - end - 1 };
        return *out ? RESHARD_OK : error_set_memory(parser->err);
    }
    bool is_negative = settings_text_take(parser, "-");
    struct str word = take_name(parser);
    struct value *value = NULL;
    if ((!is_negative && word_literal(graph, word, &value)) || number_literal(graph, word, is_negative, &value)) {
        *out = value;
        return value ? RESHARD_OK : error_set_memory(parser->err);
    }
    parser->rest = before;
    return settings_text_fail(parser, "a value");
}

/* NAME(operand [, operand]) */
static reshard_status take_call(struct parser *parser, struct settings_pattern *out)
{
    reshard_status status = take_operand(parser, &out->a);
    bool is_pair = out->kind == PATTERN_ROUNDED || out->kind == PATTERN_MARKS || out->kind == PATTERN_EVERY;
    if (!status && is_pair && !settings_text_take(parser, ","))
        status = settings_text_fail(parser, "a comma");
    if (!status && is_pair)
        status = take_operand(parser, &out->b);
    if (!status && !settings_text_take(parser, ")"))
        status = settings_text_fail(parser, "')'");
    return status;
}

/* simple = literal | operand [operator operand] | call */
static reshard_status take_simple(struct parser *parser, struct settings_pattern *out)
{
    static const struct {
        const char *text;
        enum settings_pattern_kind kind;
    } calls[] = { { "float(", PATTERN_FLOAT },
                  { "whole(", PATTERN_WHOLE },
                  { "rounded(", PATTERN_ROUNDED },
                  { "marks(", PATTERN_MARKS },
                  { "every(", PATTERN_EVERY } },
      operators[] = { { "+", PATTERN_SUM }, { "- ", PATTERN_DIFFERENCE }, { "*", PATTERN_PRODUCT }, { "/", PATTERN_QUOTIENT } };
    *out = (struct settings_pattern){ .a.variable = -1, .b.variable = -1 };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (!settings_text_take(parser, calls[i].text))
            continue;
        out->kind = calls[i].kind;
        return take_call(parser, out);
    }
    settings_text_skip_blanks(parser);
    struct str before = parser->rest;
    bool is_variable = before.size && before.data[0] == '$';
    reshard_status status =
        is_variable || (before.size && before.data[0] >= '0' && before.data[0] <= '9') ? take_operand(parser, &out->a) : RESHARD_OK;
    for (size_t i = 0; !status && parser->rest.data != before.data && i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (!settings_text_take(parser, operators[i].text))
            continue;
        out->kind = operators[i].kind;
        return take_operand(parser, &out->b);
    }
    if (is_variable) {
        out->kind = PATTERN_VARIABLE;
        return status;
    }
    parser->rest = before;
    *out = (struct settings_pattern){ .a.variable = -1, .b.variable = -1 };
    return take_literal(parser, &out->literal);
}

static reshard_status settings_text_add_segment(struct parser *parser, const struct settings_segment *segment)
{
    struct settings *settings = parser->settings;
    if (!ARRAY_ROOM(settings->segments, settings->segment_count, parser->segment_capacity))
        return error_set_memory(parser->err);
    settings->segments[settings->segment_count++] = *segment;
    return RESHARD_OK;
}

/* list = "[" simple {"," simple} "]" | run {"+" run}; run = "[" simple "]" "*" operand. Behind the opening bracket. */
static reshard_status take_list(struct parser *parser, const char *close, struct settings_pattern *out)
{
    reshard_status status = RESHARD_OK;
    out->first_segment = parser->settings->segment_count;
    if (settings_text_take(parser, close))
        return RESHARD_OK;
    do {
        struct settings_segment segment = { .count = { 1, -1 } };
        status = take_simple(parser, &segment.element);
        bool is_closed = !status && settings_text_take(parser, close);
        if (is_closed && settings_text_take(parser, "*"))
            status = take_operand(parser, &segment.count);
        if (!status)
            status = settings_text_add_segment(parser, &segment);
        out->segment_count++;
        if (!status && is_closed && settings_text_take(parser, "+")) {
            if (!settings_text_take(parser, "["))
                status = settings_text_fail(parser, "'['");
        } else if (is_closed) {
            return status;
        } else if (!status && !settings_text_take(parser, ",")) {
            status = settings_text_fail(parser, "a comma or the end of the list");
        }
    } while (!status);
    return status;
}

static reshard_status take_pattern(struct parser *parser, struct settings_pattern *out)
{
    *out = (struct settings_pattern){ .kind = PATTERN_LIST, .a.variable = -1, .b.variable = -1 };
    if (settings_text_take(parser, "["))
        return take_list(parser, "]", out);
    out->kind = PATTERN_ABSENT;
    if (settings_text_take(parser, "absent"))
        return RESHARD_OK;
    out->kind = PATTERN_TUPLE;
    return settings_text_take(parser, "(") ? take_list(parser, ")", out) : take_simple(parser, out);
}

/* ---- statements ---- */

/* side = "_" | term {"," term}; term = path [ "=" pattern ]. A path alone means one value that both sides share. */
static reshard_status take_terms(struct parser *parser, struct settings_statement *statement, int side)
{
    struct settings_term terms[SETTINGS_TERMS_MAX];
    uint32_t count = 0;
    reshard_status status = RESHARD_OK;
    do {
        struct str before = parser->rest, name = take_name(parser);
        if (!name.size || str_is(name, "optional")) {
            parser->rest = before;
            break;
        }
        if (str_is(name, "_"))
            break;
        if (count == SETTINGS_TERMS_MAX)
            return settings_text_fail(parser, "fewer terms");
        terms[count] = (struct settings_term){ .pattern = { .kind = PATTERN_VARIABLE, .a.variable = 0, .b.variable = -1 } };
        terms[count].path = arena_copy(&parser->settings->literals.arena, name.data, name.size);
        if (!terms[count].path)
            return error_set_memory(parser->err);
        if (settings_text_take(parser, "="))
            status = take_pattern(parser, &terms[count].pattern);
        else
            parser->variable_count = parser->variable_count ? parser->variable_count : 1;
        count++;
    } while (!status && settings_text_take(parser, ","));
    if (status || !count)
        return status;
    statement->terms[side] = array_new(count, sizeof(*terms));
    if (!statement->terms[side])
        return error_set_memory(parser->err);
    memcpy(statement->terms[side], terms, count * sizeof(*terms));
    statement->counts[side] = count;
    return RESHARD_OK;
}

static void take_arrow(struct parser *parser, struct settings_statement *statement)
{
    statement->reads[0] = statement->reads[1] = settings_text_take(parser, "<->");
    if (!statement->reads[0])
        statement->reads[1] = settings_text_take(parser, "<-");
    if (!statement->reads[0] && !statement->reads[1])
        statement->reads[0] = settings_text_take(parser, "->");
}

/* "demand" side ":" terms { "or" terms }, or "require" in place of "demand": behind a first demand, which is one already. */
static reshard_status read_alternatives(struct parser *parser)
{
    struct settings *settings = parser->settings;
    reshard_status status = RESHARD_OK;
    while (!status && settings_text_take(parser, "or ")) {
        if (!ARRAY_ROOM(settings->statements, settings->statement_count, parser->statement_capacity))
            return error_set_memory(parser->err);
        struct settings_statement *statement = &settings->statements[settings->statement_count];
        *statement = settings->statements[settings->statement_count - 1];
        statement->terms[0] = NULL;
        statement->counts[0] = 0;
        statement->is_alternative = true;
        settings->statement_count++;
        parser->variable_count = 0;
        status = take_terms(parser, statement, 0);
    }
    return status;
}

/* statement = terms ( "<->" | "->" | "<-" ) terms [ [","] "optional" ] | side ":" terms "->" terms | demand */
static reshard_status settings_text_read_statement(struct parser *parser, struct settings_statement *out)
{
    parser->variable_count = 0;
    out->line = parser->line;
    out->is_required = settings_text_take(parser, "require ");
    out->is_demand = out->is_required || settings_text_take(parser, "demand ");
    bool is_config = settings_text_take(parser, "config:"), has_side = is_config || settings_text_take(parser, "args:");
    out->side = is_config ? SETTINGS_CONFIG : SETTINGS_ARGS;
    out->is_default = has_side && !out->is_demand;
    if (out->is_demand && !has_side)
        return settings_text_fail(parser, "'config:' or 'args:'");
    reshard_status status = take_terms(parser, out, 0);
    if (!status && !out->is_demand) {
        take_arrow(parser, out);
        if (!out->reads[0] && !out->reads[1])
            status = settings_text_fail(parser, "'<->', '->' or '<-'");
        else
            status = take_terms(parser, out, 1);
    }
    if (!status && out->is_demand)
        status = read_alternatives(parser);
    else if (!status)
        out->is_optional =
            settings_text_take(parser, "optional") || (settings_text_take(parser, ",") && settings_text_take(parser, "optional"));
    settings_text_skip_blanks(parser);
    return status || !parser->rest.size ? status : settings_text_fail(parser, "the end of the line");
}

static reshard_status add_statement(struct parser *parser)
{
    struct settings *settings = parser->settings;
    if (!ARRAY_ROOM(settings->statements, settings->statement_count, parser->statement_capacity))
        return error_set_memory(parser->err);
    struct settings_statement *statement = &settings->statements[settings->statement_count++];
    *statement = (struct settings_statement){ 0 };
    return settings_text_read_statement(parser, statement);
}

/* ---- directives ---- */

static reshard_status settings_text_append(struct parser *parser, struct str **list, uint32_t *count, struct str value)
{
    struct str *larger = reallocarray(*list, (size_t)*count + 1, sizeof(*larger));
    if (!larger)
        return error_set_memory(parser->err);
    *list = larger;
    return arena_str(&parser->settings->literals.arena, value, &larger[(*count)++]) ? RESHARD_OK : error_set_memory(parser->err);
}

static reshard_status append_words(struct parser *parser, struct str **list, uint32_t *count, struct str rest)
{
    reshard_status status = RESHARD_OK;
    struct str word;
    while (!status && (word = str_take_word(&rest)).size)
        status = settings_text_append(parser, list, count, word);
    return status;
}

/* Other texts are entered where they are named: what is left of this one waits on a stack. */
struct text_stack {
    struct { const char *name; struct str rest; uint32_t line; } texts[INCLUDE_DEPTH_MAX];
    size_t count;
};

static reshard_status settings_text_enter(struct parser *parser, struct text_stack *stack, struct str name)
{
    const struct model_data *data = model_data_find(name);
    if (!data || stack->count == INCLUDE_DEPTH_MAX)
        return error_set(parser->err, RESHARD_ERR_USAGE, "%s:%u: %s '%.*s'", parser->name, parser->line,
                         data ? "too deep:" : "there is no text", STR_ARG(name));
    stack->texts[stack->count].name = data->name;
    stack->texts[stack->count].rest = data->text;
    stack->texts[stack->count++].line = 0;
    return RESHARD_OK;
}

static reshard_status settings_text_read_directive(struct parser *parser, struct text_stack *stack, struct str rest)
{
    struct settings *settings = parser->settings;
    struct str word = str_take_word(&rest);
    if (str_is(word, "family"))
        return append_words(parser, &settings->families, &settings->family_count, rest);
    if (str_is(word, "keys"))
        return settings_text_append(parser, &settings->keys, &settings->key_count, rest);
    if (str_is(word, "rather"))
        return append_words(parser, &settings->rather, &settings->rather_count, rest);
    if (str_is(word, "ask"))
        return append_words(parser, &settings->asked, &settings->asked_count, rest);
    if (str_is(word, "ignore"))
        return append_words(parser, &settings->ignored, &settings->ignored_count, rest);
    if (str_is(word, "vocabulary"))
        return append_words(parser, &settings->vocabulary, &settings->vocabulary_count, rest);
    if (str_is(word, "warn"))
        return arena_str(&settings->literals.arena, map_trimmed(rest), &settings->warning) ? RESHARD_OK : error_set_memory(parser->err);
    if (str_is(word, "with"))
        return settings_text_enter(parser, stack, str_take_word(&rest));
    if (!word.size)
        return RESHARD_OK;
    return error_set(parser->err, RESHARD_ERR_USAGE, "%s:%u: unknown word '%.*s'", parser->name, parser->line, STR_ARG(word));
}

static reshard_status settings_text_read_line(struct parser *parser, struct text_stack *stack, struct str line)
{
    if (str_starts_with(line, DIRECTIVE))
        return settings_text_read_directive(parser, stack, (struct str){ line.data + strlen(DIRECTIVE), line.size - strlen(DIRECTIVE) });
    parser->rest = line;
    settings_text_skip_blanks(parser);
    return parser->rest.size && parser->rest.data[0] != '#' ? add_statement(parser) : RESHARD_OK;
}

reshard_status settings_parse(const char *name, struct str text, struct settings *out, reshard_error *err)
{
    struct settings settings = { 0 };
    struct parser parser = { .settings = &settings, .err = err };
    struct text_stack stack = { .texts = { { name, text, 0 } }, .count = 1 };
    reshard_status status = RESHARD_OK;
    while (!status && stack.count) {
        size_t top = stack.count - 1;
        if (!stack.texts[top].rest.size) {
            stack.count--;
            continue;
        }
        parser.name = stack.texts[top].name;
        parser.line = ++stack.texts[top].line;
        struct str line = str_take(&stack.texts[top].rest, '\n');
        status = settings_text_read_line(&parser, &stack, line);
    }
    if (status)
        settings_release(&settings);
    else
        *out = settings;
    return status;
}
