/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_syntax.h"

#include "base/array.h"
#include "mapping/map_expression.h"

#include <inttypes.h>
#include <stdlib.h>

struct parser {
    struct str text;
    const struct map_token *token; /* the next one */
    enum map_grammar grammar;
    bool no_memory;
    struct map_constants *constants; /* may be NULL */
    struct map_program *program;
    struct map_diagnoses *diagnoses;
};

static const char *const flag_names[] = {
    [MAP_FLAG_NONE] = "", [MAP_FLAG_FFN] = "fused_ffn", [MAP_FLAG_QKV] = "fused_qkv", [MAP_FLAG_QKV_OLD] = "fused_qkv_old"
};

/* Words that upstream's macros never take for a tensor. */
static const char *const reserved_words[] = { "axis",  "fused_ffn", "fused_qkv_old", "num_heads", "num_key_value_groups", "permute",
                                              "dtype", "fused_qkv", "src_dtype",     "dst_dtype" };

enum map_flag map_flag_of(struct str word)
{
    for (enum map_flag flag = MAP_FLAG_FFN; flag <= MAP_FLAG_QKV_OLD; flag++) {
        if (str_is(word, flag_names[flag]))
            return flag;
    }
    return MAP_FLAG_NONE;
}

const char *map_flag_name(enum map_flag flag)
{
    return flag_names[flag];
}

const struct map_attribute *map_attribute_find(const struct map_statement *statement, const char *key)
{
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        if (str_is(statement->attributes[i].key, key))
            return &statement->attributes[i];
    }
    return NULL;
}

bool map_program_append(struct map_program *program, const struct map_statement *statement)
{
    if (!ARRAY_ROOM(program->statements, program->count, program->capacity))
        return false;
    program->statements[program->count++] = *statement;
    program->name_count += (uint64_t)statement->left_count + statement->right_count;
    return true;
}

void map_program_release(struct map_program *program)
{
    free(program->statements);
    arena_release(&program->arena);
    *program = (struct map_program){ 0 };
}

/* ---- tokens ---- */

static bool map_syntax_next_is(const struct parser *parser, enum map_token_kind kind)
{
    return parser->token->kind == kind;
}

static struct str map_syntax_token_text(const struct parser *parser, const struct map_token *token)
{
    return (struct str){ parser->text.data + token->span.offset, token->span.size };
}

/* Where the lexer has found fault with the rest of the line, what the parser thinks of it would be noise. */
static bool is_diagnosed(const struct parser *parser)
{
    const struct map_token *token = parser->token;
    while (token->kind != TOKEN_BAD && token->kind != TOKEN_LINE_END && token->kind != TOKEN_END)
        token++;
    return token->kind == TOKEN_BAD;
}

static bool fail_expected(struct parser *parser, const char *expected, const char *hint)
{
    const struct map_token *found = parser->token;
    if (is_diagnosed(parser))
        return false;
    struct str text = map_syntax_token_text(parser, found);
    if (found->kind == TOKEN_NAME || found->kind == TOKEN_NUMBER)
        return map_diagnose(parser->diagnoses, MAP_ERROR, found->span, hint, "expected %s, found '%.*s'", expected, STR_ARG(text));
    struct map_span span = found->span;
    if (found->kind == TOKEN_LINE_END)
        span.size = 0;
    return map_diagnose(parser->diagnoses, MAP_ERROR, span, hint, "expected %s, found %s", expected, map_token_name(found->kind));
}

static bool map_syntax_take(struct parser *parser, enum map_token_kind kind, const char *hint)
{
    if (!map_syntax_next_is(parser, kind))
        return fail_expected(parser, map_token_name(kind), hint);
    parser->token++;
    return true;
}

/* Makes room for one more element of an array in the program's arena; counts of a power of two mean a full array. */
static void *grow(struct parser *parser, void *rows, uint32_t count, size_t size)
{
    if (count && (count & (count - 1)))
        return rows;
    void *larger = arena_array(&parser->program->arena, count ? (size_t)count * 2 : 1, size);
    if (!larger) {
        parser->no_memory = true;
        return NULL;
    }
    if (count)
        memcpy(larger, rows, count * size);
    return larger;
}

/* ---- grammar ---- */

static const char array_hint[] = "an array is name[begin:end] with numbers, and stands for name_begin, …, name_(end-1)";

static bool fail_empty_array(struct parser *parser, struct map_span span, int64_t begin, int64_t end)
{
    return map_diagnose(parser->diagnoses, MAP_ERROR, span, array_hint, "the array is empty: %lld is not below %lld", (long long)begin,
                        (long long)end);
}

static bool parse_bound(struct parser *parser, int64_t *out)
{
    struct str digits = map_syntax_token_text(parser, parser->token);
    struct map_span span = parser->token->span;
    if (parser->constants && (map_syntax_next_is(parser, TOKEN_NUMBER) || map_syntax_next_is(parser, TOKEN_NAME)))
        return map_expression_read(parser->text, &parser->token, parser->constants, parser->diagnoses, out);
    if (!map_syntax_take(parser, TOKEN_NUMBER, array_hint))
        return false;
    return map_number_value(digits, out) ||
           map_diagnose(parser->diagnoses, MAP_ERROR, span, NULL, "the number %.*s is too large", STR_ARG(digits));
}

/* array = "[" bound ":" bound "]" [ suffix ] */
static bool parse_array(struct parser *parser, struct map_name *name)
{
    int64_t ends[2];
    const struct map_token *open = parser->token++;
    for (int i = 0; i < 2; i++) {
        if (!parse_bound(parser, &ends[i]))
            return false;
        if (!map_syntax_take(parser, i ? TOKEN_CLOSE : TOKEN_COLON, array_hint))
            return false;
    }
    name->span.size = parser->token[-1].span.offset + parser->token[-1].span.size - name->span.offset;
    if (ends[0] >= ends[1]) {
        struct map_span span = { open->span.offset, name->span.offset + name->span.size - open->span.offset };
        return fail_empty_array(parser, span, ends[0], ends[1]);
    }
    name->has_array = true;
    name->begin = ends[0];
    name->end = ends[1];
    if (map_syntax_next_is(parser, TOKEN_NAME) && parser->token->span.offset == name->span.offset + name->span.size)
        name->array_suffix = map_syntax_token_text(parser, parser->token++);
    return true;
}

/* …{begin:end}…, which is one token. */
static bool parse_braces(struct parser *parser, struct map_name *name)
{
    struct str text = name->text;
    const char *open = memchr(text.data, '{', text.size), *close = memchr(text.data, '}', text.size);
    const char *colon = close ? memchr(open, ':', (size_t)(close - open)) : NULL;
    struct str suffix = { close ? close + 1 : open, close ? (size_t)(text.data + text.size - close - 1) : 0 };
    if (!colon)
        return map_diagnose(parser->diagnoses, MAP_ERROR, name->span, NULL,
                            "braces hold two bounds: layers.{0:4}.weight stands for layers.0.weight, …, layers.3.weight");
    if (memchr(suffix.data, '{', suffix.size) || memchr(suffix.data, '$', suffix.size))
        return map_diagnose(parser->diagnoses, MAP_ERROR, name->span, "placeholders stand before braces",
                            "behind braces a name has no other braces and no placeholder");
    if (!map_bound_value((struct str){ open + 1, (size_t)(colon - open - 1) }, parser->constants, name->span, parser->diagnoses,
                         &name->begin) ||
        !map_bound_value((struct str){ colon + 1, (size_t)(close - colon - 1) }, parser->constants, name->span, parser->diagnoses,
                         &name->end))
        return false;
    if (name->begin >= name->end)
        return fail_empty_array(parser, name->span, name->begin, name->end);
    name->text.size = (size_t)(open - text.data);
    name->array_suffix = suffix;
    name->has_array = name->is_inline = true;
    return true;
}

static bool is_reserved(struct str word)
{
    for (size_t i = 0; i < sizeof(reserved_words) / sizeof(reserved_words[0]); i++) {
        if (str_is(word, reserved_words[i]))
            return true;
    }
    return false;
}

/* var = name [ array ] */
static bool parse_name(struct parser *parser, struct map_name *out)
{
    bool is_full = parser->grammar == MAP_GRAMMAR_FULL;
    if (!map_syntax_next_is(parser, TOKEN_NAME))
        return fail_expected(parser, "a name", is_full && map_syntax_next_is(parser, TOKEN_OPEN) ? array_hint : NULL);
    struct map_name name = { .text = map_syntax_token_text(parser, parser->token), .span = parser->token->span };
    parser->token++;
    if (name.text.data[0] == '`') {
        name.is_quoted = true;
        name.text = (struct str){ name.text.data + 1, name.text.size - 2 };
    } else if (is_full && is_reserved(name.text)) {
        return map_diagnose(parser->diagnoses, MAP_ERROR, name.span,
                            map_flag_of(name.text) ? "the flag stands behind the right-hand names" : "an attribute has a value: axis=0",
                            "'%.*s' is a word of the language, not the name of a tensor", STR_ARG(name.text));
    }
    if (is_full && !name.is_quoted && memchr(name.text.data, '{', name.text.size)) {
        if (!parse_braces(parser, &name))
            return false;
    } else if (is_full && map_syntax_next_is(parser, TOKEN_OPEN) && !parse_array(parser, &name)) {
        return false;
    }
    *out = name;
    return true;
}

static bool map_syntax_append_name(struct parser *parser, struct map_name **names, uint32_t *count)
{
    struct map_name name;
    if (!parse_name(parser, &name))
        return false;
    *names = grow(parser, *names, *count, sizeof(name));
    if (!*names)
        return false;
    (*names)[(*count)++] = name;
    return true;
}

/* The number that an expression gives, as if it were written. */
static bool parse_expression(struct parser *parser, struct map_attribute *attribute)
{
    parser->diagnoses->is_ours = true;
    if (!map_expression_read(parser->text, &parser->token, parser->constants, parser->diagnoses, &attribute->number))
        return false;
    const struct map_span *last = &parser->token[-1].span;
    attribute->value_span.size = last->offset + last->size - attribute->value_span.offset;
    char *text = arena_printf(&parser->program->arena, "%lld", (long long)attribute->number);
    parser->no_memory |= text == NULL;
    attribute->is_number = true;
    attribute->value = str_of(text ? text : "");
    return text != NULL;
}

/* when="a == b" and unless="a == b" are decided here. */
static bool parse_comparison(struct parser *parser, const struct map_attribute *attribute, struct map_statement *statement)
{
    bool holds;
    if (!map_comparison_holds(attribute->value, parser->constants, attribute->value_span, parser->diagnoses, &holds))
        return false;
    statement->is_off |= holds != str_is(attribute->key, "when");
    return true;
}

/* shares="[a, b]" names numbers or writes them: what stands behind is the list of their values. */
static bool parse_shares(struct parser *parser, struct map_attribute *attribute)
{
    struct str rest = attribute->value;
    struct buffer text = { 0 };
    bool is_good = rest.size >= 2 && rest.data[0] == '[' && rest.data[rest.size - 1] == ']';
    if (!is_good)
        return map_diagnose(parser->diagnoses, MAP_ERROR, attribute->value_span, "write shares=\"[2, 1, 1]\"",
                            "shares are a list of numbers");
    rest = (struct str){ rest.data + 1, rest.size - 2 };
    buffer_append_text(&text, "[");
    while (is_good && rest.size) {
        int64_t number;
        is_good = map_bound_value(map_trimmed(str_take(&rest, ',')), parser->constants, attribute->value_span, parser->diagnoses, &number);
        if (is_good)
            buffer_printf(&text, "%s%" PRId64, text.size > 1 ? ", " : "", number);
    }
    buffer_append_text(&text, "]");
    struct str made = buffer_str(&text);
    char *copy = is_good && !text.failed ? arena_copy(&parser->program->arena, made.data, made.size) : NULL;
    parser->no_memory |= is_good && !copy;
    if (copy)
        attribute->value = (struct str){ copy, made.size };
    buffer_release(&text);
    return copy != NULL;
}

static bool is_expression(const struct parser *parser, struct str key)
{
    if (!parser->constants || is_diagnosed(parser))
        return false;
    return map_syntax_next_is(parser, TOKEN_NUMBER) ? parser->token[1].kind == TOKEN_OPERATOR
                                                    : map_syntax_next_is(parser, TOKEN_NAME) && !str_is(key, "dtype");
}

/* attribute = name "=" ( string | number | expression ) */
static bool parse_attribute(struct parser *parser, struct map_statement *statement)
{
    struct map_attribute attribute = { .key = map_syntax_token_text(parser, parser->token), .key_span = parser->token->span };
    if (!map_syntax_take(parser, TOKEN_NAME, NULL) ||
        !map_syntax_take(parser, TOKEN_EQUAL, "attributes stand behind all names of the right side"))
        return false;
    struct str value = map_syntax_token_text(parser, parser->token);
    attribute.value_span = parser->token->span;
    if (is_expression(parser, attribute.key)) {
        if (!parse_expression(parser, &attribute))
            return false;
    } else if (map_syntax_next_is(parser, TOKEN_NUMBER)) {
        attribute.is_number = true;
        attribute.value = value;
        attribute.is_huge = !map_number_value(value, &attribute.number);
        parser->token++;
    } else if (map_syntax_next_is(parser, TOKEN_STRING)) {
        attribute.quote = value.data[0];
        attribute.value = (struct str){ value.data + 1, value.size - 2 };
        parser->token++;
        bool is_condition = parser->constants && (str_is(attribute.key, "when") || str_is(attribute.key, "unless"));
        parser->diagnoses->is_ours |= is_condition;
        if (is_condition && map_is_comparison(attribute.value))
            return parse_comparison(parser, &attribute, statement);
        if (parser->constants && str_is(attribute.key, "shares")) {
            parser->diagnoses->is_ours = true;
            if (!parse_shares(parser, &attribute))
                return false;
        }
    } else {
        return fail_expected(parser, "a number or a string",
                             map_syntax_next_is(parser, TOKEN_NAME) || map_syntax_next_is(parser, TOKEN_OPEN) ? "put the value in quotes"
                                                                                                              : NULL);
    }
    if (parser->grammar == MAP_GRAMMAR_FULL && map_flag_of(attribute.key))
        return map_diagnose(parser->diagnoses, MAP_ERROR, attribute.value_span, NULL, "%.*s takes no value", STR_ARG(attribute.key));
    statement->attributes = grow(parser, statement->attributes, statement->attribute_count, sizeof(attribute));
    if (!statement->attributes)
        return false;
    statement->attributes[statement->attribute_count++] = attribute;
    return true;
}

static bool attribute_follows(const struct parser *parser)
{
    return parser->token->kind == TOKEN_NAME && parser->token[1].kind == TOKEN_EQUAL;
}

/* In the full grammar a word such as fused_ffn behind a comma is a flag. */
static bool flag_follows(const struct parser *parser)
{
    return parser->grammar == MAP_GRAMMAR_FULL && map_syntax_next_is(parser, TOKEN_NAME) &&
           map_flag_of(map_syntax_token_text(parser, parser->token)) && !attribute_follows(parser);
}

/* Where a flag stands twice, upstream takes the first one for the name of a tensor. */
static bool flag_to_name(struct parser *parser, struct map_statement *statement)
{
    struct map_name name = { .text = str_of(map_flag_name(statement->flag)), .span = statement->flag_span };
    statement->right = grow(parser, statement->right, statement->right_count, sizeof(name));
    if (statement->right)
        statement->right[statement->right_count++] = name;
    return statement->right != NULL;
}

/* `optional` is no word of upstream's. */
static bool optional_follows(const struct parser *parser)
{
    return parser->constants && map_syntax_next_is(parser, TOKEN_NAME) &&
           str_is(map_syntax_token_text(parser, parser->token), "optional") && !attribute_follows(parser);
}

/* A macro that PaddleFormers registers for its Qwen3.5. Of several tensors several others cannot be made, so it is no name there. */
static bool is_formers_flag(const struct parser *parser, const struct map_statement *statement)
{
    return statement->left_count > 1 && map_syntax_next_is(parser, TOKEN_NAME) &&
           str_is(map_syntax_token_text(parser, parser->token), "fused_in_proj");
}

static bool fail_formers_flag(const struct parser *parser)
{
    return map_diagnose(parser->diagnoses, MAP_ERROR, parser->token->span,
                        "cut each tensor into as many parts as ranks cut the target, and join these rank by rank",
                        "fused_in_proj is a macro of PaddleFormers' own, which is not supported");
}

static bool parse_flag(struct parser *parser, struct map_statement *statement)
{
    struct map_span span = parser->token->span;
    if (optional_follows(parser)) {
        parser->token++;
        statement->is_optional = parser->diagnoses->is_ours = true;
        return true;
    }
    enum map_flag flag = map_flag_of(map_syntax_token_text(parser, parser->token++));
    bool is_strict = parser->constants == NULL;
    if (is_strict && statement->flag == flag && !statement->attribute_count && !flag_to_name(parser, statement))
        return false;
    if (statement->flag && !(is_strict && statement->flag == flag && !statement->attribute_count))
        return map_diagnose(parser->diagnoses, MAP_ERROR, span, NULL, "a second flag behind %s", map_flag_name(statement->flag));
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        if (!str_is(statement->attributes[i].key, "axis"))
            map_diagnose(parser->diagnoses, MAP_UNPORTABLE, statement->attributes[i].key_span, NULL,
                         "Paddle's engine takes an attribute before %s for a name", map_flag_name(flag));
    }
    statement->flag = flag;
    statement->flag_span = span;
    return true;
}

/* What follows the first name of the right side: more names, a flag, attributes. */
static bool parse_tail(struct parser *parser, struct map_statement *statement)
{
    bool names_over = false;
    while (map_syntax_next_is(parser, TOKEN_COMMA)) {
        parser->token++;
        bool done;
        if (flag_follows(parser) || optional_follows(parser)) {
            names_over = true;
            done = parse_flag(parser, statement);
        } else if (names_over || attribute_follows(parser)) {
            names_over = true;
            done = parse_attribute(parser, statement);
        } else {
            done = is_formers_flag(parser, statement) ? fail_formers_flag(parser)
                                                      : map_syntax_append_name(parser, &statement->right, &statement->right_count);
        }
        if (!done)
            return false;
    }
    return true;
}

/* statement = names "->" names [ "," attributes ] */
static bool parse_statement(struct parser *parser, struct map_statement *statement)
{
    uint32_t start = parser->token->span.offset;
    if (!map_syntax_append_name(parser, &statement->left, &statement->left_count))
        return false;
    while (map_syntax_next_is(parser, TOKEN_COMMA)) {
        parser->token++;
        if (!map_syntax_append_name(parser, &statement->left, &statement->left_count))
            return false;
    }
    if (!map_syntax_take(parser, TOKEN_ARROW, map_syntax_next_is(parser, TOKEN_EQUAL) ? "a statement is source -> target" : NULL))
        return false;
    if (!map_syntax_append_name(parser, &statement->right, &statement->right_count) || !parse_tail(parser, statement))
        return false;
    const struct map_span *last = &parser->token[-1].span;
    statement->span = (struct map_span){ start, last->offset + last->size - start };
    return true;
}

/* definition = name "=" expression */
static bool parse_definition(struct parser *parser)
{
    struct str name = map_syntax_token_text(parser, parser->token);
    int64_t number;
    parser->token += 2;
    if (!map_expression_read(parser->text, &parser->token, parser->constants, parser->diagnoses, &number))
        return false;
    parser->no_memory |= !map_constants_set(parser->constants, name, number, false);
    return true;
}

static void skip_line(struct parser *parser)
{
    while (!map_syntax_next_is(parser, TOKEN_LINE_END) && !map_syntax_next_is(parser, TOKEN_END))
        parser->token++;
}

reshard_status map_parse(struct str text, const struct map_tokens *tokens, enum map_grammar grammar, struct map_constants *constants,
                         struct map_program *out, struct map_diagnoses *diagnoses, reshard_error *err)
{
    struct parser parser = { text, tokens->rows, grammar, false, constants, out, diagnoses };
    while (!map_syntax_next_is(&parser, TOKEN_END) && !parser.no_memory) {
        if (map_syntax_next_is(&parser, TOKEN_LINE_END)) {
            parser.token++;
            continue;
        }
        if (constants && attribute_follows(&parser)) {
            if (!parse_definition(&parser))
                skip_line(&parser);
            continue;
        }
        struct map_statement statement = { 0 };
        bool is_first = parser.token == tokens->rows || parser.token[-1].kind == TOKEN_LINE_END;
        if (!parse_statement(&parser, &statement)) {
            skip_line(&parser);
            continue;
        }
        statement.is_glued = !is_first;
        if (!is_first && grammar == MAP_GRAMMAR_FULL)
            map_diagnose(diagnoses, MAP_WARNING, statement.left[0].span, "is a comma or a line end missing before it?",
                         "a second statement on one line");
        if (!statement.is_off && !map_program_append(out, &statement))
            return error_set_memory(err);
    }
    return parser.no_memory || diagnoses->no_memory ? error_set_memory(err) : RESHARD_OK;
}
