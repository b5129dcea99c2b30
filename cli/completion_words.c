/* SPDX-License-Identifier: Apache-2.0 */
#include "completion_words.h"

#include "output.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_VERB ((1u << VERB_COUNT) - 1)
#define ARGUMENT_MAX 128
#define WORD_MAX 2048

/* A command line up to the word that is being typed. */
struct line {
    int verb, place; /* VERB_COUNT before there is one; places behind it that are filled */
    const char *path, *format; /* the first place, and the value of --to; or NULL */
    bool has_row;
    struct option_row row; /* the option whose value is being typed */
    const char *word, *value; /* what is being typed: all of it, and what behind "--option=" and commas is new */
    bool is_json, has_files, has_more; /* the answer */
    size_t offered;
};

static bool has_verb(const struct option_row *row, int verb)
{
    return verb == VERB_COUNT ? row->verbs == EVERY_VERB : (row->verbs & 1u << verb) != 0;
}

/* The option that a word "--name", "--name=…" or "-n" is. */
static bool find_row(int verb, const char *word, struct option_row *out)
{
    size_t size = strcspn(word, "=");
    for (size_t i = 0; options_row(i, out); i++) {
        bool is_long = strncmp(word, "--", 2) == 0 && strlen(out->name) == size - 2 && strncmp(word + 2, out->name, size - 2) == 0;
        bool is_short = word[0] == '-' && out->short_name && word[1] == out->short_name && !word[2];
        if ((is_long || is_short) && has_verb(out, verb))
            return true;
    }
    return false;
}

static void take_word(struct line *line, const char *word)
{
    for (int i = 0; line->verb == VERB_COUNT && i < VERB_COUNT; i++) {
        if (strcmp(word, verb_table[i].name) == 0) {
            line->verb = i;
            return;
        }
    }
    if (line->place++ == 0)
        line->path = word;
}

static void take_option(struct line *line, const char *word)
{
    struct option_row row;
    const char *value = strchr(word, '=');
    if (!find_row(line->verb, word, &row) || !row.argument)
        return;
    if (!value) {
        line->row = row;
        line->has_row = true;
    } else if (strcmp(row.name, "to") == 0) {
        line->format = value + 1;
    }
}

static void read_line(const char *const *words, struct line *out)
{
    *out = (struct line){ .verb = VERB_COUNT, .word = "", .value = "" };
    for (; *words && words[1]; words++) {
        if (out->has_row) {
            if (strcmp(out->row.name, "to") == 0)
                out->format = *words;
            out->has_row = false;
        } else if (**words == '-' && (*words)[1]) {
            take_option(out, *words);
        } else {
            take_word(out, *words);
        }
    }
    if (*words)
        out->word = out->value = *words;
    const char *equals = strchr(out->word, '=');
    if (!out->has_row && equals && strncmp(out->word, "--", 2) == 0) {
        out->has_row = find_row(out->verb, out->word, &out->row);
        out->value = equals + 1;
    }
}

/* What stands before the value stays as it is typed. */
static void offer(struct line *line, const char *word, const char *behind, const char *help)
{
    char whole[WORD_MAX];
    snprintf(whole, sizeof(whole), "%.*s%s%s", (int)(line->value - line->word), line->word, word, behind);
    if (!line->is_json) {
        printf("%s\t%s\n", whole, help);
        return;
    }
    fputs(line->offered++ ? ",{\"word\":" : "{\"word\":", stdout);
    json_text(stdout, whole);
    fputs(",\"help\":", stdout);
    json_text(stdout, help);
    putchar('}');
}

static void offer_files(struct line *line)
{
    line->has_files = true;
}

static void offer_formats(struct line *line)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    for (size_t i = 0; reshard_format_at(i, &format) == RESHARD_OK; i++)
        offer(line, format.name, "", format.summary);
}

/* Whether the words behind --layout or -o are those of this format: the one of --to, or any. */
static bool is_asked(const struct line *line, size_t index)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    return !line->format || (reshard_format_at(index, &format) == RESHARD_OK && strcmp(format.name, line->format) == 0);
}

/* What is behind the last comma is new. */
static void begin_member(struct line *line)
{
    const char *comma = strrchr(line->value, ',');
    if (comma)
        line->value = comma + 1;
}

static const char *layout_word_at(size_t format, size_t index)
{
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    return reshard_format_word_at(format, index, &word) == RESHARD_OK ? word.name : NULL;
}

static const char *format_option_at(size_t format, size_t index)
{
    reshard_format_option option = RESHARD_FORMAT_OPTION_INIT;
    return reshard_format_option_at(format, index, &option) == RESHARD_OK ? option.name : NULL;
}

/* Whether a format before this one has a word of the name too: each is offered once. */
static bool is_offered_before(const struct line *line, size_t format, const char *(*name_at)(size_t, size_t), const char *name)
{
    for (size_t i = 0; i < format; i++) {
        const char *other;
        for (size_t w = 0; is_asked(line, i) && (other = name_at(i, w)); w++) {
            if (strcmp(other, name) == 0)
                return true;
        }
    }
    return false;
}

static void offer_layout_word(struct line *line, const reshard_format_word *word)
{
    char text[ARGUMENT_MAX];
    if (!word->choices)
        offer(line, word->name, "=", word->help);
    for (size_t i = 0; word->choices && word->choices[i]; i++) {
        snprintf(text, sizeof(text), "%s=%s", word->name, word->choices[i]);
        offer(line, text, "", word->help);
    }
}

static void offer_layout(struct line *line)
{
    reshard_format_word word = RESHARD_FORMAT_WORD_INIT;
    begin_member(line);
    line->has_more = true;
    for (size_t i = 0; i < reshard_format_count(); i++) {
        for (size_t w = 0; is_asked(line, i) && reshard_format_word_at(i, w, &word) == RESHARD_OK; w++) {
            if (!is_offered_before(line, i, layout_word_at, word.name))
                offer_layout_word(line, &word);
        }
    }
}

static void offer_format_options(struct line *line)
{
    reshard_format_option option = RESHARD_FORMAT_OPTION_INIT;
    line->has_more = true;
    for (size_t i = 0; i < reshard_format_count(); i++) {
        for (size_t o = 0; is_asked(line, i) && reshard_format_option_at(i, o, &option) == RESHARD_OK; o++) {
            if (!is_offered_before(line, i, format_option_at, option.name))
                offer(line, option.name, "=", option.help);
        }
    }
}

static void offer_limits(struct line *line)
{
    reshard_limit limit = RESHARD_LIMIT_INIT;
    line->has_more = true;
    for (size_t i = 0; reshard_limit_at(i, &limit) == RESHARD_OK; i++)
        offer(line, limit.name, "=", limit.help);
}

static void offer_types(struct line *line)
{
    reshard_dtype type = RESHARD_DTYPE_INIT;
    char name[ARGUMENT_MAX];
    for (size_t i = 0; reshard_dtype_at(i, &type) == RESHARD_OK; i++) {
        size_t size = 0;
        for (; type.name[size] && size < sizeof(name) - 1; size++)
            name[size] = (char)tolower((unsigned char)type.name[size]);
        name[size] = '\0';
        offer(line, name, "", type.torch_name);
    }
}

static void offer_verbs(struct line *line)
{
    for (int i = 0; i < VERB_COUNT; i++)
        offer(line, verb_table[i].name, "", verb_table[i].summary);
}

/* A key that would break the lines is not offered. */
static void offer_key(struct line *line, reshard_str key, const char *help)
{
    char text[WORD_MAX];
    for (size_t i = 0; i < key.size; i++) {
        if ((unsigned char)key.data[i] < ' ')
            return;
    }
    if (key.size < sizeof(text)) {
        snprintf(text, sizeof(text), "%.*s", (int)key.size, key.data);
        offer(line, text, "", help);
    }
}

/* The checkpoint of the line's first place, also where it is damaged; NULL if it cannot be opened. "~/" is the shell's to replace. */
static reshard_checkpoint *open_line(const struct line *line)
{
    const char *home = getenv("HOME");
    char *path = NULL;
    reshard_checkpoint *checkpoint = NULL;
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    open.skip_unsupported = open.shows_damage = true;
    if (!line->path || strcmp(line->path, "-") == 0)
        return NULL;
    bool is_home = home && strncmp(line->path, "~/", 2) == 0;
    if (asprintf(&path, "%s%s", is_home ? home : "", line->path + is_home) < 0)
        return NULL;
    reshard_open(path, &open, &checkpoint, NULL);
    free(path);
    return checkpoint;
}

static void offer_tensors(struct line *line, const reshard_checkpoint *checkpoint)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    for (size_t i = 0; reshard_tensor_at(checkpoint, i, &tensor) == RESHARD_OK; i++)
        offer_key(line, tensor.key, tensor.dtype);
}

static void offer_families(struct line *line)
{
    reshard_str family;
    for (size_t i = 0; reshard_family_at(i, &family) == RESHARD_OK; i++)
        offer_key(line, family, "family of models");
}

static void offer_globs(struct line *line)
{
    reshard_checkpoint *checkpoint = open_line(line);
    if (checkpoint)
        offer_tensors(line, checkpoint);
    reshard_close(checkpoint);
}

static void offer_keys(struct line *line)
{
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_checkpoint *checkpoint = open_line(line);
    if (checkpoint)
        offer_tensors(line, checkpoint);
    for (size_t i = 0; checkpoint && reshard_item_at(checkpoint, i, &item) == RESHARD_OK; i++)
        offer_key(line, item.key, item.kind);
    reshard_close(checkpoint);
}

/* Words in the place of a value, in tables and usage lines. Of others only the user knows what they are: numbers, names, expressions. */
static const struct {
    const char *name;
    void (*offer)(struct line *line);
} kinds[] = {
    { "FORMAT", offer_formats }, { "WORDS", offer_layout },      { "OPTION=VALUE", offer_format_options },
    { "KEY", offer_keys },       { "GLOB", offer_globs },        { "GLOB…", offer_globs },
    { "FAMILY", offer_families },
    { "VERB", offer_verbs },     { "LIMIT=VALUE", offer_limits }, { "[GLOB=]TYPE", offer_types },
    { "PATH", offer_files },     { "FILE", offer_files },        { "REF", offer_files },
    { "SRC", offer_files },      { "DST", offer_files },         { "SIBLING", offer_files },
    { "A", offer_files },        { "B", offer_files },           { "OUT.html", offer_files },
};

/* One alternative of an argument: a word as it is to be typed, several of which commas may join, or one that stands for values. */
static void offer_alternative(struct line *line, char *text)
{
    static const char literal[] = "abcdefghijklmnopqrstuvwxyz0123456789-,";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(text, kinds[i].name) == 0)
            kinds[i].offer(line);
    }
    if (text[strspn(text, literal)])
        return;
    if (strchr(text, ',')) {
        begin_member(line);
        line->has_more = true;
    }
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        offer(line, word, "", "");
}

static void offer_argument(struct line *line, const char *argument, size_t size)
{
    char text[ARGUMENT_MAX], *rest = NULL;
    if (size >= sizeof(text))
        return;
    memcpy(text, argument, size);
    text[size] = '\0';
    for (char *one = strtok_r(text, "|", &rest); one; one = strtok_r(NULL, "|", &rest))
        offer_alternative(line, one);
}

/* The next place of the verb, from its usage line; the last one that ends in "…" again and again. */
static void offer_place(struct line *line)
{
    const char *at = verb_table[line->verb].arguments, *end = at + strcspn(at, " ");
    for (int i = 0; i < line->place; i++) {
        if (*end) {
            at = end + 1;
            end = at + strcspn(at, " ");
        } else if (!strstr(at, "…")) {
            return;
        }
    }
    bool is_optional = *at == '[' && end[-1] == ']';
    offer_argument(line, at + is_optional, (size_t)(end - at) - 2 * is_optional);
}

static void offer_options(struct line *line)
{
    struct option_row row;
    char name[ARGUMENT_MAX];
    for (size_t i = 0; options_row(i, &row); i++) {
        snprintf(name, sizeof(name), "--%s", row.name);
        if (has_verb(&row, line->verb))
            offer(line, name, "", row.help);
    }
}

void completion_words(const char *const *words, bool is_json)
{
    struct line line;
    read_line(words, &line);
    line.is_json = is_json;
    if (is_json)
        fputs("{\"schema\":\"reshard-completion/1\",\"words\":[", stdout);
    if (line.has_row)
        offer_argument(&line, line.row.argument ? line.row.argument : "", line.row.argument ? strlen(line.row.argument) : 0);
    else if (*line.word == '-')
        offer_options(&line);
    else if (line.verb == VERB_COUNT)
        offer_verbs(&line);
    else
        offer_place(&line);
    if (is_json)
        printf("],\"files\":%s,\"more\":%s}\n", line.has_files ? "true" : "false", line.has_more ? "true" : "false");
    else
        printf("%s%s", line.has_files ? "\tfiles\n" : "", line.has_more ? "\tmore\n" : "");
}
