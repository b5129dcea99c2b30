/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/request_words.h"

#include "base/buffer.h"

#define LAYOUT_NUMBER_MAX 1000000

/* ---- format options ---- */

static const char *known_option(const struct format_driver *driver, struct str name)
{
    for (const struct format_option *option = driver->options; option && option->name; option++) {
        if (str_is(name, option->name))
            return option->name;
    }
    return NULL;
}

/* False: it is set already. */
static bool set_option(struct option_value *values, const char *name, const char *value)
{
    for (; values->name; values++)
        if (values->name == name)
            return false;
    *values = (struct option_value){ name, value };
    return true;
}

static reshard_status read_options(const char *const *given, const struct format_driver *driver, struct request_words *out,
                                   reshard_error *err)
{
    size_t count = 0;
    for (const struct format_option *option = driver->options; option && option->name; option++)
        count++;
    struct option_value *values = arena_zalloc(&out->arena, (count + 1) * sizeof(*values));
    if (!values)
        return error_set_memory(err);
    out->options = values;
    for (size_t i = 0; given && given[i]; i++) {
        const char *equals = strchr(given[i], '=');
        if (!equals)
            return error_set(err, RESHARD_ERR_USAGE, "format option '%s' is not NAME=VALUE", given[i]);
        const struct str said = { given[i], (size_t)(equals - given[i]) };
        const char *name = known_option(driver, said);
        if (!name) {
            error_set(err, RESHARD_ERR_USAGE, "format '%s' has no option '%.*s'", driver->name, STR_ARG(said));
            error_hint(err, "reshard_format_option_at(%s) lists its options", driver->name);
            return RESHARD_ERR_USAGE;
        }
        if (!set_option(values, name, equals + 1))
            return error_set(err, RESHARD_ERR_USAGE, "format option '%s' is said twice", name);
    }
    return RESHARD_OK;
}

/* ---- words of the layout ---- */

static const struct layout_word *known_word(const struct layout_word *words, struct str name)
{
    for (; words->name; words++) {
        if (str_is(name, words->name))
            return words;
    }
    return NULL;
}

/* Whether any format has the word: what is 1 then says nothing to the others, and tp=1 may be asked of each. */
static bool is_word_of_any(struct str name)
{
    const struct format_driver *driver;
    for (int i = 0; (driver = format_driver_at(i)) != NULL; i++) {
        if (driver->words && known_word(driver->words, name))
            return true;
    }
    return false;
}

/* False: it is set already. */
static bool set_number(struct word_number *numbers, const char *name, uint32_t number)
{
    for (; numbers->name; numbers++)
        if (numbers->name == name)
            return false;
    *numbers = (struct word_number){ name, number };
    return true;
}

/* What stands behind "WORD=": the number; false if it is none that the word may have. */
static bool word_value(const struct layout_word *word, struct str text, uint32_t *out)
{
    uint64_t value;
    if (word && word->choices) {
        for (*out = 1; word->choices[*out - 1]; ++*out) {
            if (str_is(text, word->choices[*out - 1]))
                return true;
        }
        return false;
    }
    if (!str_to_u64(text, &value) || value == 0 || value > LAYOUT_NUMBER_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

static void hint_words(const struct layout_word *words, reshard_error *err);

/* word NULL: none stands there. */
static reshard_status fail_number(const char *layout, struct str said, const struct layout_word *word, const struct layout_word *words,
                                  reshard_error *err)
{
    size_t equals;
    uint64_t value;
    const bool is_number = str_find_char(said, '=', &equals) &&
                           str_to_u64((struct str){ said.data + equals + 1, said.size - equals - 1 }, &value);
    if (word && is_number)
        return error_set(err, RESHARD_ERR_USAGE, "layout '%s': '%.*s': %s is a number from 1 to %d", layout, STR_ARG(said), word->name,
                         LAYOUT_NUMBER_MAX);
    error_set(err, RESHARD_ERR_USAGE, "layout '%s': '%.*s' is not WORD=NUMBER", layout, STR_ARG(said));
    hint_words(words, err);
    error_hint(err, "between words stands a comma: tp=2,pp=4");
    return RESHARD_ERR_USAGE;
}

static reshard_status fail_choice(const char *layout, struct str said, const struct layout_word *word, reshard_error *err)
{
    struct buffer text = { 0 };
    for (const char *const *choice = word->choices; *choice; choice++)
        buffer_printf(&text, "%s%s", choice == word->choices ? "" : ", ", *choice);
    error_set(err, RESHARD_ERR_USAGE, "layout '%s': '%.*s': %s is one of %.*s", layout, STR_ARG(said), word->name, (int)text.size,
              (const char *)text.data);
    buffer_release(&text);
    return RESHARD_ERR_USAGE;
}

/* What a word with choices may be: "1v1|1v2|2". */
static void print_choices(const struct layout_word *word, struct buffer *out)
{
    for (const char *const *choice = word->choices; choice && *choice; choice++)
        buffer_printf(out, "%s%s", choice == word->choices ? "" : "|", *choice);
}

/* "tp=, pp= and dp=", or "ranks=N". */
static void hint_words(const struct layout_word *words, reshard_error *err)
{
    struct buffer text = { 0 };
    size_t count = 0, at = 0;
    for (const struct layout_word *word = words; word->name; word++)
        count += word->help != NULL;
    for (const struct layout_word *word = words; word->name; word++) {
        if (!word->help)
            continue;
        at++;
        buffer_printf(&text, "%s%s=%s", at == 1 ? "" : at == count ? " and " : ", ", word->name, count == 1 ? "N" : "");
        print_choices(word, &text);
    }
    if (!count)
        error_hint(err, "this format has one layout; reshard_convert_options.to torch-dcp spreads tensors over ranks");
    else if (!text.failed)
        error_hint(err, "this format knows %.*s", (int)text.size, (const char *)text.data);
    buffer_release(&text);
}

static reshard_status read_layout(const char *layout, const struct format_driver *driver, struct request_words *out, reshard_error *err)
{
    static const struct layout_word none[] = { { NULL, NULL, NULL, false, NULL } };
    const struct layout_word *words = driver->words ? driver->words : none;
    struct str rest = layout ? str_of(layout) : (struct str){ 0 };
    size_t count = 0;
    while (words[count].name)
        count++;
    struct word_number *numbers = arena_zalloc(&out->arena, (count + 1) * sizeof(*numbers));
    if (!numbers)
        return error_set_memory(err);
    out->words = numbers;
    while (rest.size) {
        struct str said = str_take(&rest, ',');
        size_t equals;
        uint32_t value;
        if (!str_find_char(said, '=', &equals))
            return fail_number(layout, said, NULL, words, err);
        const struct layout_word *word = known_word(words, (struct str){ said.data, equals });
        if (!word_value(word, (struct str){ said.data + equals + 1, said.size - equals - 1 }, &value))
            return word && word->choices ? fail_choice(layout, said, word, err) : fail_number(layout, said, word, words, err);
        said.size = equals;
        if (!word && (value != 1 || !is_word_of_any(said))) {
            error_set(err, RESHARD_ERR_UNSUPPORTED, "layout '%s': format '%s' has no '%.*s'", layout, driver->name, STR_ARG(said));
            hint_words(words, err);
            return RESHARD_ERR_UNSUPPORTED;
        }
        if (word && !set_number(numbers, word->name, value))
            return error_set(err, RESHARD_ERR_USAGE, "layout '%s': %s is said twice", layout, word->name);
        if (word && word->is_rank_count)
            out->ranks = value;
    }
    return RESHARD_OK;
}

reshard_status request_words_read(const char *const *options, const char *layout, const struct format_driver *driver,
                                  struct request_words *out, reshard_error *err)
{
    *out = (struct request_words){ 0 };
    reshard_status status = read_options(options, driver, out, err);
    return status ? status : read_layout(layout, driver, out, err);
}

void request_words_release(struct request_words *words)
{
    arena_release(&words->arena);
    *words = (struct request_words){ 0 };
}
