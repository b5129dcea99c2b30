/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/parameter_names.h"

#include <inttypes.h>

#define NUMBER_DIGITS_MAX 9 /* of a layer or expert */
#define NUMBERS_ALL NAME_NUMBERS_MAX

/* ---- reading the table ---- */

static const struct {
    const char *word;
    unsigned condition;
} conditions_known[] = { { "local", NAME_LOCAL },   { "mla", NAME_MLA },           { "grouped", NAME_GROUPED },
                         { "hybrid", NAME_HYBRID }, { "0.17", NAME_SINCE_0_17 }, { "0.19", NAME_SINCE_0_19 } };

static bool take_condition(struct str word, struct name_line *line)
{
    bool is_not = word.size && word.data[0] == '!';
    struct str name = { word.data + is_not, word.size - is_not };
    if (str_is(name, "buffer") || str_is(name, "numbered")) {
        *(name.data[0] == 'b' ? &line->is_buffer : &line->keeps_number) = true;
        return !is_not;
    }
    for (size_t i = 0; i < sizeof(conditions_known) / sizeof(conditions_known[0]); i++) {
        if (!str_is(name, conditions_known[i].word))
            continue;
        *(is_not ? &line->unwanted : &line->wanted) |= conditions_known[i].condition;
        return true;
    }
    return false;
}

static bool take_conditions(struct str text, struct name_line *line)
{
    if (str_is(text, "-"))
        return true;
    while (text.size) {
        const char *comma = memchr(text.data, ',', text.size);
        size_t size = comma ? (size_t)(comma - text.data) : text.size;
        if (!take_condition((struct str){ text.data, size }, line))
            return false;
        text.data += size + (comma ? 1 : 0);
        text.size -= size + (comma ? 1 : 0);
    }
    return true;
}

/* The pattern with its {a,b,c} replaced by alternative number `choice`, which must be one. A pattern without braces has one alternative for
 * every choice. */
static reshard_status names_expand(struct str pattern, int choice, struct arena *arena, struct str *out, int *alternatives,
                                   reshard_error *err)
{
    const char *open = pattern.size ? memchr(pattern.data, '{', pattern.size) : NULL;
    const char *close = open ? memchr(open, '}', (size_t)(pattern.data + pattern.size - open)) : NULL;
    *alternatives = 0;
    if (!close)
        return arena_str(arena, pattern, out) ? RESHARD_OK : error_set_memory(err);
    const char *begin = open + 1, *end = begin;
    for (int i = 0;; i++, begin = end + 1) {
        end = memchr(begin, ',', (size_t)(close - begin));
        if (!end)
            end = close;
        if (i == choice) {
            *out = ARENA_JOIN(arena, { pattern.data, (size_t)(open - pattern.data) }, { begin, (size_t)(end - begin) },
                              { close + 1, (size_t)(pattern.data + pattern.size - close - 1) });
            if (!out->data)
                return error_set_memory(err);
        }
        *alternatives = i + 1;
        if (end == close)
            return choice <= i ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "the braces of the two names do not correspond");
    }
}

static int names_count_numbers(struct str pattern)
{
    int count = 0;
    for (size_t i = 0; i < pattern.size; i++)
        count += pattern.data[i] == '#';
    return count;
}

/* The pattern up to and with its number `index`. */
static struct str up_to_number(struct str pattern, int index)
{
    size_t at = 0;
    for (int seen = 0; at < pattern.size; at++) {
        if (pattern.data[at] == '#' && seen++ == index)
            break;
    }
    return (struct str){ pattern.data, at + 1 };
}

/* Lines that repeat together start with the first of them. */
static void find_groups(struct parameter_names *names, uint32_t number)
{
    struct name_line *line = &names->lines[number];
    for (int i = 0; i < line->number_count; i++) {
        struct str prefix = up_to_number(line->name, i);
        line->group[i] = number;
        for (uint32_t k = 0; k < number; k++) {
            if (names->lines[k].number_count > i && str_equal(up_to_number(names->lines[k].name, i), prefix)) {
                line->group[i] = names->lines[k].group[i];
                break;
            }
        }
    }
}

static bool add_line(struct parameter_names *names, const struct name_line *line, struct arena *arena)
{
    if (names->count == names->capacity) {
        uint32_t capacity = names->capacity ? names->capacity * 2 : 64;
        struct name_line *grown = arena_array(arena, capacity, sizeof(*grown));
        if (!grown)
            return false;
        if (names->count)
            memcpy(grown, names->lines, names->count * sizeof(*grown));
        names->lines = grown;
        names->capacity = capacity;
    }
    names->lines[names->count] = *line;
    find_groups(names, names->count++);
    return true;
}

/* Puts a prefix in the place of the other that the pattern begins with. */
static bool behind_prefix(struct str prefix, struct str other, struct arena *arena, struct str *pattern)
{
    const struct str joined = ARENA_JOIN(arena, prefix, { pattern->data + other.size, pattern->size - other.size });
    if (joined.data)
        *pattern = joined;
    return joined.data != NULL;
}

/*
 * A module that registers what another one does: PREFIX= and the other's prefix. Its lines are those whose names and keys begin so, under
 * their own conditions and the line's, with the new prefixes.
 */
static reshard_status take_again(struct parameter_names *names, const struct name_line *line, struct str name, struct str key,
                                 struct arena *arena, reshard_error *err)
{
    struct str other = name, prefix = str_take(&other, '=');
    uint32_t before = names->count;
    if (!key.size)
        key = prefix;
    for (uint32_t i = 0; i < before; i++) {
        struct name_line made = names->lines[i];
        if (made.has_rest || !str_begins(made.name, other) || !str_begins(made.key, other))
            continue;
        if (!behind_prefix(prefix, other, arena, &made.name) || !behind_prefix(key, other, arena, &made.key))
            return error_set_memory(err);
        made.wanted |= line->wanted;
        made.unwanted |= line->unwanted;
        made.keeps_number |= line->keeps_number;
        if (names_count_numbers(made.name) != made.number_count || names_count_numbers(made.key) != made.number_count)
            return error_set(err, RESHARD_ERR_FORMAT, "the prefixes do not have the same numbers");
        if (!add_line(names, &made, arena))
            return error_set_memory(err);
    }
    return names->count > before ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "no line begins with '%.*s'", STR_ARG(other));
}

static reshard_status take_line(struct parameter_names *names, struct str text, struct arena *arena, reshard_error *err)
{
    struct name_line line = { 0 };
    struct str conditions = str_take_word(&text), name = str_take_word(&text), key = str_take_word(&text);
    int alternatives = 1, key_alternatives;
    if (!name.size || !take_conditions(conditions, &line) || str_take_word(&text).size)
        return error_set(err, RESHARD_ERR_FORMAT, "expected 'CONDITIONS NAME [KEY]'");
    if (memchr(name.data, '=', name.size))
        return take_again(names, &line, name, key, arena, err);
    if (!key.size)
        key = name;
    for (int i = 0; i < alternatives; i++) {
        struct name_line made = line;
        int found;
        reshard_status status = names_expand(name, i, arena, &made.name, &found, err);
        if (!status)
            status = names_expand(key, i, arena, &made.key, &key_alternatives, err);
        if (status)
            return status;
        if (memchr(made.name.data, '{', made.name.size) || memchr(made.key.data, '{', made.key.size))
            return error_set(err, RESHARD_ERR_FORMAT, "a name has more than one pair of braces");
        alternatives = found ? found : 1;
        made.number_count = names_count_numbers(made.name);
        made.has_rest = str_ends_with(made.name, "*");
        if (made.number_count > NAME_NUMBERS_MAX || names_count_numbers(made.key) != made.number_count ||
            made.has_rest != str_ends_with(made.key, "*"))
            return error_set(err, RESHARD_ERR_FORMAT, "the two names do not have the same numbers");
        if (!add_line(names, &made, arena))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

reshard_status parameter_names_parse(struct str text, struct arena *arena, struct parameter_names *out, reshard_error *err)
{
    *out = (struct parameter_names){ 0 };
    for (int number = 1; text.size; number++) {
        struct str line = str_take(&text, '\n'), probe = line;
        struct str word = str_take_word(&probe);
        if (!word.size || word.data[0] == '#')
            continue;
        reshard_status status = take_line(out, line, arena, err);
        if (status) {
            error_prefix(err, "line %d", number);
            return status;
        }
    }
    return RESHARD_OK;
}

/* ---- reading names ---- */

unsigned name_conditions_of(const struct training_args *args)
{
    return (args->is_local_spec ? NAME_LOCAL : 0) | (training_args_int(args, "multi_latent_attention") == 1 ? NAME_MLA : 0) |
           (training_args_int(args, "moe_grouped_gemm") == 1 && !experts_are_matrices(args) ? NAME_GROUPED : 0) |
           (args->is_hybrid ? NAME_HYBRID : 0) | (args->is_since_0_17 ? NAME_SINCE_0_17 : 0) | (args->parts_by_etp ? NAME_SINCE_0_19 : 0);
}

static bool names_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The number at text[at]; *size of it is 0 if there is none. */
static int64_t number_at(struct str text, size_t at, size_t *size)
{
    int64_t number = 0;
    *size = 0;
    while (at + *size < text.size && names_is_digit(text.data[at + *size]) && *size < NUMBER_DIGITS_MAX)
        number = number * 10 + (text.data[at + (*size)++] - '0');
    if (at + *size < text.size && names_is_digit(text.data[at + *size]))
        *size = 0;
    return number;
}

/* may_drop: a number that is a component of its own may be missing, together with the dot before it. */
static bool matches(struct str pattern, struct str text, bool may_drop, struct parameter_name *out)
{
    size_t at = 0;
    out->number_count = 0;
    out->rest = (struct str){ NULL, 0 };
    for (size_t i = 0; i < pattern.size; i++) {
        size_t digits;
        if (pattern.data[i] == '*' && i + 1 == pattern.size) {
            out->rest = (struct str){ text.data + at, text.size - at };
            return out->rest.size > 0;
        }
        if (may_drop && pattern.data[i] == '.' && i + 1 < pattern.size && pattern.data[i + 1] == '#') {
            int64_t number = number_at(text, at < text.size && text.data[at] == '.' ? at + 1 : text.size, &digits);
            bool is_component = digits && (at + 1 + digits == text.size || text.data[at + 1 + digits] == '.');
            out->numbers[out->number_count++] = is_component ? number : -1;
            at += is_component ? 1 + digits : 0;
            i++;
        } else if (pattern.data[i] == '#') {
            out->numbers[out->number_count++] = number_at(text, at, &digits);
            if (!digits)
                return false;
            at += digits;
        } else {
            if (at == text.size || text.data[at] != pattern.data[i])
                return false;
            at++;
        }
    }
    return at == text.size;
}

static bool applies(const struct name_line *line, unsigned conditions)
{
    return (line->wanted & conditions) == line->wanted && !(line->unwanted & conditions);
}

bool parameter_name_read(const struct parameter_names *names, unsigned conditions, struct str name, struct parameter_name *out)
{
    for (out->line = 0; out->line < names->count; out->line++) {
        const struct name_line *line = &names->lines[out->line];
        if (applies(line, conditions) && matches(line->name, name, false, out))
            return true;
    }
    return false;
}

bool parameter_key_read(const struct parameter_names *names, unsigned conditions, struct str key, struct parameter_name *out)
{
    for (out->line = 0; out->line < names->count; out->line++) {
        const struct name_line *line = &names->lines[out->line];
        if (applies(line, conditions) && matches(line->key, key, true, out))
            return true;
    }
    return false;
}

/* ---- writing names ---- */

static void write_pattern(struct str pattern, const struct parameter_name *parameter, int kept, struct buffer *out)
{
    int number = 0;
    for (size_t i = 0; i < pattern.size; i++) {
        bool is_dropped = number >= kept && pattern.data[i] == '.' && i + 1 < pattern.size && pattern.data[i + 1] == '#';
        if (is_dropped) {
            number++;
            i++;
        } else if (pattern.data[i] == '#') {
            buffer_printf(out, "%" PRId64, parameter->numbers[number++]);
        } else if (pattern.data[i] == '*' && i + 1 == pattern.size) {
            buffer_append_str(out, parameter->rest);
        } else {
            buffer_append_byte(out, (uint8_t)pattern.data[i]);
        }
    }
}

void parameter_name_write(const struct parameter_names *names, const struct parameter_name *parameter, struct buffer *out)
{
    write_pattern(names->lines[parameter->line].name, parameter, NUMBERS_ALL, out);
}

int parameter_key_kept(const struct parameter_names *names, const struct parameter_name *parameter, int kept)
{
    return names->lines[parameter->line].keeps_number && kept < 1 ? 1 : kept;
}

void parameter_key_write(const struct parameter_names *names, const struct parameter_name *parameter, int kept, struct buffer *out)
{
    write_pattern(names->lines[parameter->line].key, parameter, kept, out);
}

static int names_compare(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

int parameter_name_compare(const struct parameter_names *names, const struct parameter_name *a, const struct parameter_name *b)
{
    for (int i = 0; i < a->number_count && i < b->number_count; i++) {
        int order = names_compare(names->lines[a->line].group[i], names->lines[b->line].group[i]);
        if (order)
            return order;
        order = names_compare(a->numbers[i], b->numbers[i]);
        if (order)
            return order;
    }
    /* Where one has more numbers, what it repeats with stands against the other's own line. */
    int both = a->number_count < b->number_count ? a->number_count : b->number_count;
    uint32_t own_a = a->number_count > both ? names->lines[a->line].group[both] : a->line;
    uint32_t own_b = b->number_count > both ? names->lines[b->line].group[both] : b->line;
    return names_compare(own_a, own_b);
}
