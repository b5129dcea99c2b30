/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_expression.h"

#include "base/arithmetic.h"

struct expression {
    struct str text;
    const struct map_token *token;
    const struct map_constants *constants;
    struct map_diagnoses *diagnoses;
};

static struct str map_expression_token_text(const struct expression *expression)
{
    return (struct str){ expression->text.data + expression->token->span.offset, expression->token->span.size };
}

bool map_number_value(struct str text, int64_t *out)
{
    int64_t value = 0;
    size_t size;
    for (size_t at = 0; at < text.size; at += size) {
        int digit = map_digit_value(text, at, &size);
        if (digit < 0 || __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    return text.size > 0;
}

static bool fail_constant(struct map_diagnoses *diagnoses, struct map_span span, struct str name)
{
    return map_diagnose(diagnoses, MAP_ERROR, span,
                        "define it before (name = number), with reshard_map_options.constants, or take it from a config.json",
                        "the constant '%.*s' has no value", STR_ARG(name));
}

bool map_bound_value(struct str word, const struct map_constants *constants, struct map_span span, struct map_diagnoses *diagnoses,
                     int64_t *out)
{
    size_t size;
    if (word.size && map_digit_value(word, 0, &size) >= 0)
        return map_number_value(word, out) ||
               map_diagnose(diagnoses, MAP_ERROR, span, NULL, "'%.*s' is no number, or too large", STR_ARG(word));
    if (!map_is_plain_name(word))
        return map_diagnose(diagnoses, MAP_ERROR, span, NULL, "expected a number or a constant, found '%.*s'", STR_ARG(word));
    return (constants && map_constants_find(constants, word, out)) || fail_constant(diagnoses, span, word);
}

/* factor = number | constant */
static bool read_factor(struct expression *expression, int64_t *out)
{
    const struct map_token *token = expression->token;
    struct str text = map_expression_token_text(expression);
    if (token->kind == TOKEN_NUMBER || token->kind == TOKEN_NAME) {
        if (!map_bound_value(text, expression->constants, token->span, expression->diagnoses, out))
            return false;
        expression->token++;
        return true;
    }
    struct map_span span = token->span;
    if (token->kind == TOKEN_LINE_END)
        span.size = 0;
    return token->kind != TOKEN_BAD && map_diagnose(expression->diagnoses, MAP_ERROR, span, NULL,
                                                    "expected a number or a constant, found %s", map_token_name(token->kind));
}

/* One operation; what has no whole, positive result is diagnosed. */
static bool apply(const struct expression *expression, struct map_span span, char operator, int64_t left, int64_t right, int64_t *out)
{
    if (arithmetic_apply(operator, left, right, out))
        return true;
    return map_diagnose(expression->diagnoses, MAP_ERROR, span, NULL, "%lld %c %lld is %s", (long long)left, operator,
                        (long long)right, operator == '/' ? "no whole number" : "too large");
}

/* product = factor { ( "*" | "/" ) factor } */
static bool read_product(struct expression *expression, int64_t *out)
{
    if (!read_factor(expression, out))
        return false;
    while (expression->token->kind == TOKEN_OPERATOR) {
        struct map_span span = expression->token->span;
        char operator = expression->text.data[span.offset];
        int64_t factor;
        if (operator != '*' && operator != '/')
            break;
        expression->token++;
        if (!read_factor(expression, &factor) || !apply(expression, span, operator, *out, factor, out))
            return false;
    }
    return true;
}

bool map_expression_read(struct str text, const struct map_token **token, const struct map_constants *constants,
                         struct map_diagnoses *diagnoses, int64_t *out)
{
    struct expression expression = { text, *token, constants, diagnoses };
    struct map_span start = (*token)->span;
    bool is_good = read_product(&expression, out);
    while (is_good && expression.token->kind == TOKEN_OPERATOR) {
        struct map_span span = expression.token->span;
        int64_t product;
        expression.token++;
        is_good = read_product(&expression, &product) && apply(&expression, span, text.data[span.offset], *out, product, out);
    }
    *token = expression.token;
    if (is_good && *out < 0)
        return map_diagnose(diagnoses, MAP_ERROR, start, NULL, "the number %lld is negative", (long long)*out);
    return is_good;
}

/* ---- conditions ---- */

struct str map_trimmed(struct str text)
{
    while (text.size && (text.data[0] == ' ' || text.data[0] == '\t'))
        text = (struct str){ text.data + 1, text.size - 1 };
    while (text.size && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t'))
        text.size--;
    return text;
}

static const struct {
    const char *text;
    bool less, equal, greater;
} comparisons[] = {
    { "==", false, true, false }, { "!=", true, false, true }, { "<=", true, true, false },
    { ">=", false, true, true },  { "<", true, false, false }, { ">", false, false, true },
};

#define COMPARISONS (sizeof(comparisons) / sizeof(comparisons[0]))

/* The comparison in a text: where it stands, or COMPARISONS. */
static size_t find_comparison(struct str text, size_t *at)
{
    for (*at = 0; *at < text.size; (*at)++) {
        struct str rest = { text.data + *at, text.size - *at };
        for (size_t i = 0; i < COMPARISONS; i++) {
            if (str_starts_with(rest, comparisons[i].text))
                return i;
        }
    }
    return COMPARISONS;
}

bool map_is_comparison(struct str text)
{
    size_t at;
    return find_comparison(text, &at) < COMPARISONS;
}

bool map_comparison_holds(struct str text, const struct map_constants *constants, struct map_span span, struct map_diagnoses *diagnoses,
                          bool *holds)
{
    size_t at, found = find_comparison(text, &at);
    if (found == COMPARISONS)
        return map_diagnose(diagnoses, MAP_ERROR, span, NULL, "'%.*s' compares nothing", STR_ARG(text));
    size_t behind = at + strlen(comparisons[found].text);
    int64_t left, right;
    if (!map_bound_value(map_trimmed((struct str){ text.data, at }), constants, span, diagnoses, &left) ||
        !map_bound_value(map_trimmed((struct str){ text.data + behind, text.size - behind }), constants, span, diagnoses, &right))
        return false;
    *holds = left < right ? comparisons[found].less : left > right ? comparisons[found].greater : comparisons[found].equal;
    return true;
}
