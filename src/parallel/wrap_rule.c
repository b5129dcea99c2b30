/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/wrap_rule.h"

#include "base/array.h"
#include "base/buffer.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#define NEAREST_BYTES_MAX 256

/* A path of the rule, or the expression. */
struct wrap_part {
    struct str text;
    bool is_used;                    /* it names a module */
    char nearest[NEAREST_BYTES_MAX]; /* until it is: the path of a module that is most like it */
    size_t likeness;
};

struct wrap_rule {
    char *text;
    struct wrap_part *parts; /* the paths; one if the expression counts; none of root */
    size_t part_count;
    regex_t expression;
    bool has_expression;
};

/* Names and single * between dots, and nothing that only regular expressions have. */
static bool wrap_is_paths(const char *text)
{
    for (const char *at = text; *at; at++) {
        bool is_name = isalnum((unsigned char)*at) || *at == '_' || *at == '-';
        bool starts = at == text || at[-1] == '.' || at[-1] == '|', ends = !at[1] || at[1] == '.' || at[1] == '|';
        if (!is_name && !(*at == '*' && starts && ends) && !((*at == '.' || *at == '|') && !starts && at[1]))
            return false;
    }
    return text[0] != '\0';
}

/* \d, which extended expressions lack. */
static bool wrap_translate(const char *text, struct buffer *out)
{
    for (; *text; text++) {
        if (text[0] == '\\' && text[1] == 'd') {
            buffer_append_text(out, "[0-9]");
            text++;
        } else if (text[0] == '\\' && text[1]) {
            buffer_append(out, text++, 2);
        } else {
            buffer_append_byte(out, (uint8_t)*text);
        }
    }
    return buffer_append_byte(out, 0);
}

static reshard_status wrap_compile(struct wrap_rule *rule, const char *text, reshard_error *err)
{
    struct buffer pattern = { 0 };
    char why[200];
    if (!wrap_translate(text, &pattern)) {
        buffer_release(&pattern);
        return error_set_memory(err);
    }
    int code = regcomp(&rule->expression, (const char *)pattern.data, REG_EXTENDED);
    buffer_release(&pattern);
    rule->has_expression = code == 0;
    if (code == REG_ESPACE)
        return error_set_memory(err);
    if (code == 0)
        return RESHARD_OK;
    regerror(code, &rule->expression, why, sizeof(why));
    error_set(err, RESHARD_ERR_USAGE, "wrap '%s' is no regular expression: %s", text, why);
    error_hint(err,
               "expected 'root', a path of modules such as 'transformer.h.*', or an expression such as '^(transformer\\.h\\.\\d+)\\.'");
    return RESHARD_ERR_USAGE;
}

/* The paths between |, or all of an expression. */
static reshard_status wrap_divide(struct wrap_rule *rule, bool is_paths, reshard_error *err)
{
    size_t count = 1;
    for (const char *at = rule->text; is_paths && *at; at++)
        count += *at == '|';
    rule->parts = array_zeroed(count, sizeof(*rule->parts));
    if (!rule->parts)
        return error_set_memory(err);
    struct str rest = str_of(rule->text);
    while (rule->part_count < count)
        rule->parts[rule->part_count++].text = is_paths ? str_take(&rest, '|') : rest;
    return RESHARD_OK;
}

reshard_status wrap_rule_parse(const char *text, struct wrap_rule **out, reshard_error *err)
{
    struct wrap_rule *rule = calloc(1, sizeof(*rule));
    bool is_paths = wrap_is_paths(text), is_root = strcmp(text, "root") == 0;
    if (!rule)
        return error_set_memory(err);
    rule->text = strdup(text);
    reshard_status status = rule->text ? RESHARD_OK : error_set_memory(err);
    if (!status && !is_root)
        status = wrap_divide(rule, is_paths, err);
    if (!status && !is_root && !is_paths)
        status = wrap_compile(rule, text, err);
    if (status)
        wrap_rule_free(rule);
    else
        *out = rule;
    return status;
}

void wrap_rule_free(struct wrap_rule *rule)
{
    if (!rule)
        return;
    if (rule->has_expression)
        regfree(&rule->expression);
    free(rule->parts);
    free(rule->text);
    free(rule);
}

/* How much of the name a path of modules takes; 0: it does not fit, or nothing would be left for the parameter. */
static size_t path_fits(struct str path, struct str name)
{
    size_t at = 0;
    while (path.size) {
        struct str part = str_take(&path, '.');
        size_t end = at;
        while (end < name.size && name.data[end] != '.')
            end++;
        struct str found = { name.data + at, end - at };
        if (end == name.size || !(str_is(part, "*") || str_equal(part, found)))
            return 0;
        at = end + 1;
    }
    return at - 1;
}

/* Characters that two paths have in common at their beginnings and ends. */
static size_t path_likeness(struct str a, struct str b)
{
    size_t head = 0, tail = 0, shorter = a.size < b.size ? a.size : b.size;
    while (head < shorter && a.data[head] == b.data[head])
        head++;
    while (tail < shorter - head && a.data[a.size - 1 - tail] == b.data[b.size - 1 - tail])
        tail++;
    return head + tail;
}

/* Looks at the modules around a parameter, with * for numbers. */
static void note_nearest_module(struct wrap_part *part, struct str name)
{
    char path[NEAREST_BYTES_MAX];
    size_t size = 0;
    struct str rest = name;
    while (rest.size) {
        struct str word = str_take(&rest, '.');
        uint64_t number;
        if (str_to_u64(word, &number))
            word = STR("*");
        if (!rest.size || size + word.size + 2 > sizeof(path))
            return;
        if (size)
            path[size++] = '.';
        memcpy(path + size, word.data, word.size);
        size += word.size;
        size_t likeness = path_likeness(part->text, (struct str){ path, size });
        if (likeness <= part->likeness && part->nearest[0])
            continue;
        part->likeness = likeness;
        memcpy(part->nearest, path, size);
        part->nearest[size] = '\0';
    }
}

static struct str module_of_paths(struct wrap_rule *rule, struct str name)
{
    size_t best = 0;
    for (size_t i = 0; i < rule->part_count; i++) {
        struct wrap_part *part = &rule->parts[i];
        size_t size = path_fits(part->text, name);
        best = size > best ? size : best;
        part->is_used |= size > 0;
        if (!part->is_used)
            note_nearest_module(part, name);
    }
    return (struct str){ name.data, best };
}

reshard_status wrap_rule_check(const struct wrap_rule *rule, reshard_error *err)
{
    for (size_t i = 0; i < rule->part_count; i++) {
        const struct wrap_part *part = &rule->parts[i];
        if (part->is_used)
            continue;
        error_set(err, RESHARD_ERR_USAGE, "wrap '%.*s' names no module", STR_ARG(part->text));
        if (part->nearest[0])
            error_hint(err, "the nearest is '%s'; 'root' is one unit of all parameters", part->nearest);
        else
            error_hint(err, "expected modules that parameters lie in; 'root' is one unit of all parameters");
        return RESHARD_ERR_USAGE;
    }
    return RESHARD_OK;
}

reshard_status wrap_rule_module(struct wrap_rule *rule, struct str name, struct str *out, reshard_error *err)
{
    regmatch_t found[2];
    *out = (struct str){ name.data, 0 };
    if (!rule->part_count)
        return RESHARD_OK;
    if (!rule->has_expression) {
        *out = module_of_paths(rule, name);
        return RESHARD_OK;
    }
    char *text = str_copy(name);
    if (!text)
        return error_set_memory(err);
    int code = regexec(&rule->expression, text, 2, found, 0);
    free(text);
    if (code == REG_ESPACE)
        return error_set_memory(err);
    if (code)
        return RESHARD_OK;
    size_t end = (size_t)(rule->expression.re_nsub && found[1].rm_so >= 0 ? found[1].rm_eo : found[0].rm_eo);
    while (end > 0 && end < name.size && name.data[end] != '.' && name.data[end - 1] != '.')
        end++;
    while (end > 0 && (end == name.size || name.data[end] != '.')) /* back to the end of a module's name */
        end--;
    out->size = end;
    rule->parts[0].is_used |= end > 0;
    return RESHARD_OK;
}
