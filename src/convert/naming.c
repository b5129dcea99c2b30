/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/naming.h"

#include <regex.h>
#include <stdlib.h>

#define GROUPS_MAX 10

struct naming_rename {
    regex_t expression;
    char *replacement; /* \0 or & is all that was found, \1 to \9 its groups */
    bool is_everywhere, is_compiled;
};

/* ---- s/RE/NEW/ ---- */

/* The text up to the next separator that no backslash hides; *text moves behind it. NULL: there is none, or no memory. */
static char *rename_part(const char **text, char separator)
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
    if (!*at || !buffer_append_byte(&part, 0)) {
        buffer_release(&part);
        return NULL;
    }
    return (char *)part.data;
}

static reshard_status rename_wrong(const char *text, const char *why, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "rename '%s': %s", text, why);
    error_hint(err, "expected s/EXPRESSION/NEW/, for example 's/^model\\.//' or 's/layers\\.([0-9]+)/h.\\1/'");
    return RESHARD_ERR_USAGE;
}

static reshard_status rename_parse(const char *text, struct naming_rename *out, reshard_error *err)
{
    const char *at = text;
    char why[200];
    if (at[0] != 's' || !at[1] || at[1] == '\\')
        return rename_wrong(text, "it is no s/EXPRESSION/NEW/", err);
    char separator = at[1];
    at += 2;
    char *pattern = rename_part(&at, separator);
    if (pattern)
        out->replacement = rename_part(&at, separator);
    out->is_everywhere = at[0] == 'g';
    if (!out->replacement || at[out->is_everywhere]) {
        free(pattern);
        return rename_wrong(text, "it is no s/EXPRESSION/NEW/", err);
    }
    int code = regcomp(&out->expression, pattern, REG_EXTENDED);
    free(pattern);
    out->is_compiled = code == 0;
    if (code == REG_ESPACE)
        return error_set_memory(err);
    if (code == 0)
        return RESHARD_OK;
    regerror(code, &out->expression, why, sizeof(why));
    return rename_wrong(text, why, err);
}

static void rename_put(const char *replacement, const char *text, const regmatch_t *found, struct buffer *out)
{
    for (const char *at = replacement; *at; at++) {
        int group = *at == '&' ? 0 : at[0] == '\\' && at[1] >= '0' && at[1] <= '9' ? at[1] - '0' : -1;
        if (*at == '\\' && at[1])
            at++;
        if (group < 0)
            buffer_append_byte(out, (uint8_t)*at);
        else if (found[group].rm_so >= 0)
            buffer_append(out, text + found[group].rm_so, (size_t)(found[group].rm_eo - found[group].rm_so));
    }
}

/* The text of `in`, which ends with NUL, with what is found replaced. */
static reshard_status rename_run(const struct naming_rename *rename, const char *in, struct buffer *out, reshard_error *err)
{
    regmatch_t found[GROUPS_MAX];
    int flags = 0, code;
    while ((code = regexec(&rename->expression, in, GROUPS_MAX, found, flags)) == 0) {
        buffer_append(out, in, (size_t)found[0].rm_so);
        rename_put(rename->replacement, in, found, out);
        bool is_empty = found[0].rm_so == found[0].rm_eo;
        in += found[0].rm_eo;
        if (is_empty && *in)
            buffer_append_byte(out, (uint8_t)*in++);
        if (!rename->is_everywhere || !*in)
            break;
        flags = REG_NOTBOL;
    }
    buffer_append_text(out, in);
    return code == REG_ESPACE || out->failed ? error_set_memory(err) : RESHARD_OK;
}

/* ---- names ---- */

reshard_status naming_begin(struct naming *naming, const struct naming_options *options, reshard_error *err)
{
    size_t count = 0;
    while (options->renames && options->renames[count])
        count++;
    *naming = (struct naming){ .options = options };
    naming->is_active = options->strip_prefix || options->add_prefix || options->rename || count;
    naming->renames = calloc(count + 1, sizeof(*naming->renames));
    reshard_status status = naming->renames ? RESHARD_OK : error_set_memory(err);
    for (; naming->rename_count < count && !status; naming->rename_count++)
        status = rename_parse(options->renames[naming->rename_count], &naming->renames[naming->rename_count], err);
    if (status)
        naming_end(naming);
    return status;
}

static reshard_status naming_run_renames(struct naming *naming, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < naming->rename_count && !status; i++) {
        if (memchr(naming->text.data, 0, naming->text.size) || !buffer_append_byte(&naming->text, 0))
            return naming->text.failed ? error_set_memory(err) : RESHARD_OK; /* no text that an expression can search */
        buffer_clear(&naming->other);
        status = rename_run(&naming->renames[i], (const char *)naming->text.data, &naming->other, err);
        struct buffer old = naming->text;
        naming->text = naming->other;
        naming->other = old;
    }
    return status;
}

reshard_status naming_apply(struct naming *naming, struct str *key, reshard_error *err)
{
    const struct naming_options *options = naming->options;
    struct str rest = *key;
    reshard_status status = RESHARD_OK;
    bool is_new;
    if (!naming->is_active)
        return RESHARD_OK;
    if (options->strip_prefix && str_starts_with(rest, options->strip_prefix) && rest.size > strlen(options->strip_prefix)) {
        size_t skip = strlen(options->strip_prefix);
        rest = (struct str){ rest.data + skip, rest.size - skip };
    }
    buffer_clear(&naming->text);
    if (!buffer_append_str(&naming->text, rest))
        return error_set_memory(err);
    status = naming_run_renames(naming, err);
    if (!status && options->rename) {
        buffer_clear(&naming->other);
        status = options->rename(buffer_str(&naming->text), &naming->other, options->context, err);
        struct buffer old = naming->text;
        naming->text = naming->other;
        naming->other = old;
    }
    if (status)
        return status;
    buffer_clear(&naming->other);
    if (!buffer_append_text(&naming->other, options->add_prefix ? options->add_prefix : "") ||
        !buffer_append_str(&naming->other, buffer_str(&naming->text)))
        return error_set_memory(err);
    uint32_t number = name_map_intern(&naming->made, buffer_str(&naming->other), &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (!is_new)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s' gets the name '%.*s', which another tensor has", STR_ARG(*key),
                         STR_ARG(buffer_str(&naming->other)));
    *key = name_map_at(&naming->made, number);
    return RESHARD_OK;
}

void naming_end(struct naming *naming)
{
    for (uint32_t i = 0; naming->renames && naming->options->renames && naming->options->renames[i]; i++) {
        if (naming->renames[i].is_compiled)
            regfree(&naming->renames[i].expression);
        free(naming->renames[i].replacement);
    }
    free(naming->renames);
    name_map_release(&naming->made);
    buffer_release(&naming->text);
    buffer_release(&naming->other);
    *naming = (struct naming){ 0 };
}
