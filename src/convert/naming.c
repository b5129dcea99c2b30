/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/naming.h"

#include "base/array.h"

#include <stdlib.h>

static size_t count_renames(const struct naming_options *options)
{
    size_t count = 0;
    while (options->renames && options->renames[count])
        count++;
    return count;
}

bool naming_is_asked(const struct naming_options *options)
{
    return options->strip_prefix || options->add_prefix || options->rename || count_renames(options);
}

reshard_status naming_begin(struct naming *naming, const struct naming_options *options, reshard_error *err)
{
    size_t count = count_renames(options);
    *naming = (struct naming){ .options = options };
    naming->is_active = naming_is_asked(options);
    naming->renames = array_zeroed(count, sizeof(*naming->renames));
    reshard_status status = naming->renames ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < count && !status; i++) {
        status = key_rename_parse(options->renames[i], &naming->renames[i], err);
        naming->rename_count += !status;
    }
    if (status)
        naming_end(naming);
    return status;
}

static void swap_texts(struct naming *naming)
{
    struct buffer old = naming->text;
    naming->text = naming->other;
    naming->other = old;
    buffer_clear(&naming->other);
}

/* What the caller's function makes of the text comes behind the expressions. */
static reshard_status naming_run_renames(struct naming *naming, enum naming_of of, reshard_error *err)
{
    const struct naming_options *options = naming->options;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < naming->rename_count && !status; i++) {
        status = key_rename_run(naming->renames[i], buffer_str(&naming->text), &naming->other, err);
        swap_texts(naming);
    }
    if (status || !options->rename || of == NAMING_ITEM)
        return status;
    status = options->rename(buffer_str(&naming->text), &naming->other, options->context, err);
    swap_texts(naming);
    return status;
}

/* Notes that the key becomes naming->other. */
static reshard_status naming_take(struct naming *naming, struct str *key, reshard_error *err)
{
    bool is_new;
    uint32_t number = name_map_intern(&naming->made, buffer_str(&naming->other), &is_new);
    if (number == NAME_NONE || !ARRAY_ROOM(naming->from, number, naming->from_capacity))
        return error_set_memory(err);
    if (!is_new)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s' and '%.*s' would both be called '%.*s'", STR_ARG(naming->from[number]),
                         STR_ARG(*key), STR_ARG(buffer_str(&naming->other)));
    naming->from[number] = *key;
    *key = name_map_at(&naming->made, number);
    return RESHARD_OK;
}

/* Up to the first dot. */
static struct str name_head(struct str key)
{
    size_t dot;
    return str_find_char(key, '.', &dot) ? (struct str){ key.data, dot } : (struct str){ 0 };
}

/* Whether what is named gets the prefix: what stands beside the model, such as the arguments of a run, does not. */
static bool gets_prefix(const struct naming *naming, enum naming_of of, struct str key)
{
    struct str head = name_head(key);
    return of == NAMING_TENSOR || (head.size > 0 && name_map_find(&naming->heads, head) != NAME_NONE);
}

reshard_status naming_apply(struct naming *naming, enum naming_of of, struct str *key, reshard_error *err)
{
    const struct naming_options *options = naming->options;
    struct str rest = *key;
    reshard_status status;
    if (!naming->is_active)
        return RESHARD_OK;
    if (options->strip_prefix && str_starts_with(rest, options->strip_prefix) && rest.size > strlen(options->strip_prefix)) {
        size_t skip = strlen(options->strip_prefix);
        rest = (struct str){ rest.data + skip, rest.size - skip };
    }
    buffer_clear(&naming->text);
    if (!buffer_append_str(&naming->text, rest))
        return error_set_memory(err);
    buffer_clear(&naming->other);
    status = naming_run_renames(naming, of, err);
    if (status)
        return status;
    struct str head = name_head(buffer_str(&naming->text));
    if (of == NAMING_TENSOR && head.size && name_map_intern(&naming->heads, head, NULL) == NAME_NONE)
        return error_set_memory(err);
    bool has_prefix = options->add_prefix && gets_prefix(naming, of, buffer_str(&naming->text));
    if (!buffer_append_text(&naming->other, has_prefix ? options->add_prefix : "") ||
        !buffer_append_str(&naming->other, buffer_str(&naming->text)))
        return error_set_memory(err);
    return naming_take(naming, key, err);
}

void naming_hint(const struct naming *naming, reshard_error *err)
{
    if (naming->is_active)
        error_hint(err, "patterns are compared with the new names, after prefixes and renames");
}

void naming_end(struct naming *naming)
{
    for (uint32_t i = 0; i < naming->rename_count; i++)
        key_rename_free(naming->renames[i]);
    free(naming->renames);
    free(naming->from);
    name_map_release(&naming->made);
    name_map_release(&naming->heads);
    buffer_release(&naming->text);
    buffer_release(&naming->other);
    *naming = (struct naming){ 0 };
}
