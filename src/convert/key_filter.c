/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/key_filter.h"

#include "base/array.h"

#include <stdlib.h>

/* ---- a pattern ---- */

reshard_status key_filter_pattern_begin(struct key_filter_pattern *pattern, struct str glob, reshard_error *err)
{
    *pattern = (struct key_filter_pattern){ .glob = glob };
    return key_pattern_of_glob(glob, &pattern->pattern, err);
}

void key_filter_pattern_release(struct key_filter_pattern *pattern)
{
    key_pattern_free(pattern->pattern);
    for (size_t i = 0; i < KEY_NEAREST; i++)
        free(pattern->nearest[i]);
    free(pattern->first);
    *pattern = (struct key_filter_pattern){ 0 };
}

/* How many characters a key and a glob have in common, at their beginnings and ends and, for typing mistakes, by pairs in between. */
static size_t likeness(struct str glob, struct str key)
{
    size_t head = 0, tail = 0, pairs = 0, shorter = glob.size < key.size ? glob.size : key.size;
    while (head < shorter && glob.data[head] == key.data[head])
        head++;
    while (tail < shorter - head && glob.data[glob.size - 1 - tail] == key.data[key.size - 1 - tail])
        tail++;
    for (size_t i = head; i + 2 <= glob.size - tail; i++)
        pairs += memmem(key.data + head, key.size - head, glob.data + i, 2) != NULL;
    return 2 * (head + tail) + pairs;
}

/* Keeps the key if it is among the nearest so far; without memory there is a name less to tell. */
static void note_nearest(struct key_filter_pattern *pattern, struct str key)
{
    size_t score = likeness(pattern->glob, key), at = KEY_NEAREST;
    if (!pattern->first)
        pattern->first = str_copy(key);
    while (at > 0 && (!pattern->nearest[at - 1] || pattern->scores[at - 1] < score))
        at--;
    if (at == KEY_NEAREST || score < 4)
        return;
    free(pattern->nearest[KEY_NEAREST - 1]);
    for (size_t i = KEY_NEAREST - 1; i > at; i--) {
        pattern->nearest[i] = pattern->nearest[i - 1];
        pattern->scores[i] = pattern->scores[i - 1];
    }
    pattern->nearest[at] = str_copy(key);
    pattern->scores[at] = score;
}

reshard_status key_filter_pattern_match(struct key_filter_pattern *pattern, struct str key, bool *matched, reshard_error *err)
{
    reshard_status status = key_pattern_match(pattern->pattern, key, matched, err);
    pattern->has_matched |= *matched;
    if (!status && !pattern->has_matched)
        note_nearest(pattern, key);
    return status;
}

reshard_status key_filter_pattern_check(const struct key_filter_pattern *pattern, const char *option, reshard_error *err)
{
    struct buffer near = { 0 };
    if (pattern->has_matched)
        return RESHARD_OK;
    for (size_t i = 0; i < KEY_NEAREST && pattern->nearest[i]; i++)
        buffer_printf(&near, "%s'%s'", i ? ", " : "", pattern->nearest[i]);
    error_set(err, RESHARD_ERR_USAGE, "%s '%.*s' matches no key", option, STR_ARG(pattern->glob));
    if (near.size && !near.failed)
        error_hint(err, "the nearest keys are %.*s", STR_ARG(buffer_str(&near)));
    else if (pattern->first)
        error_hint(err, "no key is like it; the first is '%s'", pattern->first);
    buffer_release(&near);
    return RESHARD_ERR_USAGE;
}

/* ---- lists ---- */

static reshard_status list_begin(struct key_filter_list *list, const char *const *globs, reshard_error *err)
{
    size_t count = 0;
    while (globs && globs[count])
        count++;
    list->patterns = array_zeroed(count, sizeof(*list->patterns));
    reshard_status status = list->patterns ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < count && !status; i++) {
        status = key_filter_pattern_begin(&list->patterns[i], str_of(globs[i]), err);
        list->count += !status;
    }
    return status;
}

/* Every pattern sees every key. */
static reshard_status list_match(struct key_filter_list *list, struct str key, bool *matched, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    bool found;
    *matched = false;
    for (uint32_t i = 0; i < list->count && !status; i++) {
        status = key_filter_pattern_match(&list->patterns[i], key, &found, err);
        *matched |= found;
    }
    return status;
}

static reshard_status list_check(const struct key_filter_list *list, const char *option, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < list->count && !status; i++)
        status = key_filter_pattern_check(&list->patterns[i], option, err);
    return status;
}

static void list_release(struct key_filter_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        key_filter_pattern_release(&list->patterns[i]);
    free(list->patterns);
}

reshard_status key_filter_begin(struct key_filter *filter, const char *const *include, const char *const *exclude, reshard_error *err)
{
    *filter = (struct key_filter){ 0 };
    reshard_status status = list_begin(&filter->include, include, err);
    return status ? status : list_begin(&filter->exclude, exclude, err);
}

reshard_status key_filter_wants(struct key_filter *filter, struct str key, bool *wanted, reshard_error *err)
{
    bool is_in = true, is_out = false;
    reshard_status status = filter->include.count ? list_match(&filter->include, key, &is_in, err) : RESHARD_OK;
    if (!status)
        status = list_match(&filter->exclude, key, &is_out, err);
    *wanted = is_in && !is_out;
    return status;
}

reshard_status key_filter_check(const struct key_filter *filter, reshard_error *err)
{
    reshard_status status = list_check(&filter->include, "include", err);
    return status ? status : list_check(&filter->exclude, "exclude", err);
}

void key_filter_release(struct key_filter *filter)
{
    list_release(&filter->include);
    list_release(&filter->exclude);
    *filter = (struct key_filter){ 0 };
}
