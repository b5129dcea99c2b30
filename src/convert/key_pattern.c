/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/key_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>

#define STEPS_MAX 1000000
#define BRACES_MAX 16 /* one in another */

struct key_pattern {
    pcre2_code *code;
    pcre2_match_data *found;
    pcre2_match_context *limits;
    char *text; /* as it was given, for messages */
};

/* ---- expressions ---- */

void key_pattern_free(struct key_pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    pcre2_match_data_free(pattern->found);
    pcre2_match_context_free(pattern->limits);
    free(pattern->text);
    free(pattern);
}

static reshard_status expression_wrong(struct str text, int code, size_t at, reshard_error *err)
{
    char why[200];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof(why));
    return error_set(err, RESHARD_ERR_USAGE, "'%.*s': %s, at character %zu of the expression", STR_ARG(text), why, at + 1);
}

static reshard_status pattern_compile(struct str text, struct str expression, uint32_t flags, struct key_pattern **out, reshard_error *err)
{
    struct key_pattern *pattern = calloc(1, sizeof(*pattern));
    int code = 0;
    size_t at = 0;
    if (!pattern)
        return error_set_memory(err);
    pattern->text = strndup(text.data, text.size);
    pattern->code = pcre2_compile((PCRE2_SPTR)expression.data, expression.size, flags | PCRE2_DOTALL, &code, &at, NULL);
    if (pattern->code) {
        pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE); /* where there is none, it is interpreted */
        pattern->found = pcre2_match_data_create_from_pattern(pattern->code, NULL);
        pattern->limits = pcre2_match_context_create(NULL);
    }
    bool is_made = pattern->text && pattern->found && pattern->limits;
    if (is_made) {
        pcre2_set_match_limit(pattern->limits, STEPS_MAX);
        *out = pattern;
        return RESHARD_OK;
    }
    bool is_wrong = !pattern->code && code != PCRE2_ERROR_HEAP_FAILED;
    key_pattern_free(pattern);
    return is_wrong ? expression_wrong(text, code, at, err) : error_set_memory(err);
}

/* *count: of groups found, 0: nothing is. */
static reshard_status pattern_search(struct key_pattern *pattern, struct str in, size_t from, int *count, reshard_error *err)
{
    *count = pcre2_match(pattern->code, (PCRE2_SPTR)in.data, in.size, from, PCRE2_NO_UTF_CHECK, pattern->found, pattern->limits);
    if (*count > 0)
        return RESHARD_OK;
    int code = *count;
    *count = 0;
    if (code == PCRE2_ERROR_NOMATCH)
        return RESHARD_OK;
    if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAPLIMIT)
        return error_set_memory(err);
    return error_set(err, RESHARD_ERR_LIMIT, "'%s' takes more than %d steps to search '%.*s'", pattern->text, STEPS_MAX, STR_ARG(in));
}

/* ---- globs ---- */

struct glob_reading {
    struct str text;
    struct buffer *out;
    unsigned numbers; /* written out so far */
    bool keeps_stars; /* as groups */
};

static void put_literal(struct buffer *out, char c)
{
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", c) || c == 0)
        buffer_printf(out, "\\x%02x", (unsigned)(uint8_t)c);
    else
        buffer_append_byte(out, (uint8_t)c);
}

/* Where the set that begins at `at` ends; 0: it is never closed. */
static size_t set_end(struct str text, size_t at)
{
    size_t i = at + 1;
    i += i < text.size && (text.data[i] == '!' || text.data[i] == '^');
    for (size_t first = i; i < text.size && (text.data[i] != ']' || i == first); i++)
        ;
    return i < text.size ? i : 0;
}

static void put_set(const struct glob_reading *reading, size_t at, size_t end)
{
    struct str text = reading->text;
    bool is_negated = text.data[at + 1] == '!' || text.data[at + 1] == '^';
    buffer_append_text(reading->out, is_negated ? "[^" : "[");
    for (size_t i = at + 1 + is_negated; i < end; i++) {
        uint8_t low = (uint8_t)text.data[i], high = low;
        if (i + 2 < end && text.data[i + 1] == '-') {
            high = (uint8_t)text.data[i + 2];
            i += 2;
        }
        if (low <= high)
            buffer_printf(reading->out, "\\x%02x-\\x%02x", low, high);
    }
    buffer_append_byte(reading->out, ']');
}

/* Where the brace that begins at `at` ends; 0: never. */
static size_t brace_end(struct str text, size_t at)
{
    unsigned depth = 0;
    for (size_t i = at; i < text.size; i++) {
        depth += text.data[i] == '{';
        depth -= text.data[i] == '}';
        if (depth == 0)
            return i;
    }
    return 0;
}

static struct str without_zeros(struct str digits)
{
    while (digits.size > 1 && digits.data[0] == '0') {
        digits.data++;
        digits.size--;
    }
    return digits;
}

/* "0..15" as numbers; *width: of all of them, where they have zeros before them. */
static bool read_range(struct str text, uint64_t *first, uint64_t *last, int *width)
{
    size_t dot;
    if (!str_find_char(text, '.', &dot) || dot + 2 >= text.size || text.data[dot + 1] != '.')
        return false;
    struct str low = { text.data, dot }, high = { text.data + dot + 2, text.size - dot - 2 };
    *width = low.size > 1 && low.data[0] == '0' && low.size == high.size && low.size < 20 ? (int)low.size : 0;
    if (*width)
        low = without_zeros(low), high = without_zeros(high);
    return str_to_u64(low, first) && str_to_u64(high, last) && *first <= *last;
}

static reshard_status put_glob(struct glob_reading *reading, size_t from, size_t to, unsigned depth, reshard_error *err);

static reshard_status put_range(struct glob_reading *reading, uint64_t first, uint64_t last, int width, reshard_error *err)
{
    if (last - first >= KEY_NUMBERS_MAX - reading->numbers)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': more than %d numbers", STR_ARG(reading->text), KEY_NUMBERS_MAX);
    reading->numbers += (unsigned)(last - first) + 1;
    for (uint64_t number = first; number <= last; number++)
        buffer_printf(reading->out, "%s%0*llu", number == first ? "(?:" : "|", width, (unsigned long long)number);
    buffer_append_byte(reading->out, ')');
    return RESHARD_OK;
}

/* The alternatives of a brace, whose commas outside of other braces part them; *is_one: there are none, and nothing is written. */
static reshard_status put_alternatives(struct glob_reading *reading, size_t from, size_t to, unsigned depth, bool *is_one,
                                       reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    unsigned inside = 0;
    size_t begin = from;
    *is_one = true;
    for (size_t i = from; i <= to && !status; i++) {
        char c = i < to ? reading->text.data[i] : ',';
        inside += c == '{';
        inside -= c == '}';
        if (c != ',' || inside > 0 || (i == to && *is_one))
            continue;
        buffer_append_text(reading->out, *is_one ? "(?:" : "|");
        *is_one = false;
        status = put_glob(reading, begin, i, depth + 1, err);
        begin = i + 1;
    }
    if (!*is_one)
        buffer_append_byte(reading->out, ')');
    return status;
}

/* *end: behind the brace, or where it began if it stands for itself. */
static reshard_status put_brace(struct glob_reading *reading, size_t at, size_t to, unsigned depth, size_t *end, reshard_error *err)
{
    uint64_t first, last;
    int width;
    bool is_one = true;
    size_t close = brace_end((struct str){ reading->text.data, to }, at);
    *end = at;
    if (!close)
        return RESHARD_OK;
    if (depth == BRACES_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': more than %d braces one in another", STR_ARG(reading->text), BRACES_MAX);
    if (read_range((struct str){ reading->text.data + at + 1, close - at - 1 }, &first, &last, &width)) {
        *end = close + 1;
        return put_range(reading, first, last, width, err);
    }
    reshard_status status = put_alternatives(reading, at + 1, close, depth, &is_one, err);
    *end = is_one ? at : close + 1;
    return status;
}

static reshard_status put_glob(struct glob_reading *reading, size_t from, size_t to, unsigned depth, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = from, end; i < to && !status; i++) {
        char c = reading->text.data[i];
        size_t close = c == '[' ? set_end((struct str){ reading->text.data, to }, i) : 0;
        if (c == '*') {
            buffer_append_text(reading->out, reading->keeps_stars ? "(.*?)" : ".*?");
        } else if (c == '?') {
            buffer_append_byte(reading->out, '.');
        } else if (close) {
            put_set(reading, i, close);
            i = close;
        } else if (c == '{') {
            status = put_brace(reading, i, to, depth, &end, err);
            if (end == i)
                put_literal(reading->out, c);
            else
                i = end - 1;
        } else {
            put_literal(reading->out, c);
        }
    }
    return status;
}

static reshard_status glob_compile(struct str glob, bool keeps_stars, struct key_pattern **out, reshard_error *err)
{
    struct buffer expression = { 0 };
    struct glob_reading reading = { .text = glob, .out = &expression, .keeps_stars = keeps_stars };
    reshard_status status = put_glob(&reading, 0, glob.size, 0, err);
    buffer_append_byte(&expression, 0);
    if (!status && expression.failed) /* of any of its parts */
        status = error_set_memory(err);
    if (!status)
        status = pattern_compile(glob, (struct str){ (char *)expression.data, expression.size - 1 }, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                 out, err);
    buffer_release(&expression);
    return status;
}

reshard_status key_pattern_of_glob(struct str glob, struct key_pattern **out, reshard_error *err)
{
    return glob_compile(glob, false, out, err);
}

reshard_status key_pattern_match(struct key_pattern *pattern, struct str key, bool *matched, reshard_error *err)
{
    int count;
    reshard_status status = pattern_search(pattern, key, 0, &count, err);
    *matched = count > 0;
    return status;
}

/* ---- renames ---- */

struct key_rename {
    struct key_pattern *pattern;
    char *replacement;  /* \0 or & is all that was found, \1 to \9 or $1 to $9 its groups; of a glob: * is the next star */
    bool is_everywhere, is_glob;
};

static reshard_status rename_wrong(const char *text, const char *why, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "rename '%s': %s", text, why);
    error_hint(err, "expected s/EXPRESSION/NEW/, for example 's/^model\\.//' or 's/layers\\.(\\d+)/h.\\1/', or 'GLOB -> GLOB', such as "
                    "'model.* -> *'");
    return RESHARD_ERR_USAGE;
}

/* The text up to the next separator that no backslash hides; *text moves behind it. NULL: there is none, or *no_memory is set. */
static char *rename_part(const char **text, char separator, bool *no_memory)
{
    struct buffer part = { 0 };
    const char *at = *text;
    for (; *at && *at != separator; at++) {
        if (*at == '\\' && at[1] == separator)
            at++;
        else if (*at == '\\' && at[1])
            buffer_append_byte(&part, (uint8_t)*at++);
        buffer_append_byte(&part, (uint8_t)*at);
    }
    *text = *at ? at + 1 : at;
    buffer_append_byte(&part, 0);
    *no_memory |= part.failed;
    if (*at && !part.failed)
        return (char *)part.data;
    buffer_release(&part);
    return NULL;
}

static reshard_status rename_parse_expression(const char *text, struct key_rename *rename, reshard_error *err)
{
    const char *at = text + 2;
    bool no_memory = false;
    char *expression = rename_part(&at, text[1], &no_memory);
    if (expression)
        rename->replacement = rename_part(&at, text[1], &no_memory);
    rename->is_everywhere = at[0] == 'g';
    reshard_status status = no_memory ? error_set_memory(err) : RESHARD_OK;
    if (!status && (!rename->replacement || at[rename->is_everywhere]))
        status = rename_wrong(text, "it is no s/EXPRESSION/NEW/", err);
    if (!status)
        status = pattern_compile(str_of(text), str_of(expression), 0, &rename->pattern, err);
    free(expression);
    return status;
}

static struct str rename_trimmed(struct str text)
{
    while (text.size && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text.data++;
        text.size--;
    }
    while (text.size && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t'))
        text.size--;
    return text;
}

static size_t count_stars(struct str glob)
{
    size_t stars = 0;
    for (size_t i = 0; i < glob.size; i++)
        stars += glob.data[i] == '*';
    return stars;
}

static reshard_status rename_parse_globs(const char *text, const char *arrow, struct key_rename *rename, reshard_error *err)
{
    struct str from = rename_trimmed((struct str){ text, (size_t)(arrow - text) }), to = rename_trimmed(str_of(arrow + 2));
    if (!from.size || count_stars(to) > count_stars(from))
        return rename_wrong(text, "the second glob has more stars than the first", err);
    rename->is_glob = true;
    rename->replacement = str_copy(to);
    return rename->replacement ? glob_compile(from, true, &rename->pattern, err) : error_set_memory(err);
}

reshard_status key_rename_parse(const char *text, struct key_rename **out, reshard_error *err)
{
    const char *arrow = strstr(text, "->");
    struct key_rename *rename = calloc(1, sizeof(*rename));
    if (!rename)
        return error_set_memory(err);
    bool is_expression =
        text[0] == 's' && text[1] && !strchr("\\ abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.*", text[1]);
    reshard_status status = is_expression ? rename_parse_expression(text, rename, err)
                            : arrow       ? rename_parse_globs(text, arrow, rename, err)
                                          : rename_wrong(text, "it is neither s/EXPRESSION/NEW/ nor GLOB -> GLOB", err);
    if (status)
        key_rename_free(rename);
    else
        *out = rename;
    return status;
}

void key_rename_free(struct key_rename *rename)
{
    if (!rename)
        return;
    key_pattern_free(rename->pattern);
    free(rename->replacement);
    free(rename);
}

static void put_group(const struct key_pattern *pattern, struct str key, int group, struct buffer *out)
{
    const size_t *found = pcre2_get_ovector_pointer(pattern->found);
    if ((uint32_t)group < pcre2_get_ovector_count(pattern->found) && found[2 * group] != PCRE2_UNSET)
        buffer_append(out, key.data + found[2 * group], found[2 * group + 1] - found[2 * group]);
}

static void put_replacement(const struct key_rename *rename, struct str key, struct buffer *out)
{
    int star = 0;
    for (const char *at = rename->replacement; *at; at++) {
        bool is_escape = !rename->is_glob && (*at == '\\' || *at == '$') && at[1] >= '0' && at[1] <= '9';
        if (rename->is_glob && *at == '*')
            put_group(rename->pattern, key, ++star, out);
        else if (is_escape)
            put_group(rename->pattern, key, *++at - '0', out);
        else if (!rename->is_glob && *at == '&')
            put_group(rename->pattern, key, 0, out);
        else if (!rename->is_glob && *at == '\\' && at[1])
            buffer_append_byte(out, (uint8_t)*++at);
        else
            buffer_append_byte(out, (uint8_t)*at);
    }
}

reshard_status key_rename_run(struct key_rename *rename, struct str key, struct buffer *out, reshard_error *err)
{
    const size_t *found = pcre2_get_ovector_pointer(rename->pattern->found);
    size_t at = 0;
    reshard_status status = RESHARD_OK;
    for (bool goes_on = true; goes_on && !status;) {
        int count;
        status = pattern_search(rename->pattern, key, at, &count, err);
        if (status || count == 0)
            break;
        size_t begin = found[0], end = found[1];
        buffer_append(out, key.data + at, begin - at);
        put_replacement(rename, key, out);
        at = end;
        goes_on = rename->is_everywhere && at < key.size;
        if (begin == end && goes_on)
            buffer_append_byte(out, (uint8_t)key.data[at++]);
    }
    buffer_append(out, key.data + at, key.size - at);
    return !status && out->failed ? error_set_memory(err) : status;
}
