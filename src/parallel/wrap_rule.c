/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/wrap_rule.h"

#include "base/buffer.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>

struct wrap_rule {
    char *paths; /* separated by |; NULL: the expression counts */
    regex_t expression;
    bool is_root, has_expression;
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

reshard_status wrap_rule_parse(const char *text, struct wrap_rule **out, reshard_error *err)
{
    struct wrap_rule *rule = calloc(1, sizeof(*rule));
    if (!rule)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    rule->is_root = strcmp(text, "root") == 0;
    if (!rule->is_root && wrap_is_paths(text)) {
        rule->paths = strdup(text);
        status = rule->paths ? RESHARD_OK : error_set_memory(err);
    } else if (!rule->is_root) {
        status = wrap_compile(rule, text, err);
    }
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
    free(rule->paths);
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

static struct str module_of_paths(const struct wrap_rule *rule, struct str name)
{
    struct str rest = str_of(rule->paths);
    size_t best = 0;
    while (rest.size) {
        size_t size = path_fits(str_take(&rest, '|'), name);
        best = size > best ? size : best;
    }
    return (struct str){ name.data, best };
}

reshard_status wrap_rule_module(const struct wrap_rule *rule, struct str name, struct str *out, reshard_error *err)
{
    regmatch_t found[2];
    *out = (struct str){ name.data, 0 };
    if (rule->is_root)
        return RESHARD_OK;
    if (rule->paths) {
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
    return RESHARD_OK;
}
