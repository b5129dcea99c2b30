/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/partition_rules.h"

#include "base/arithmetic.h"
#include "base/array.h"

#include <stdlib.h>

#define RULES_MAX 4096
#define WORDS_MAX 24

/* ---- words of a line ---- */

struct line {
    struct str words[WORDS_MAX];
    int count;
    int number;
};

/* A word that is '#' begins a comment; others may begin so. false: too many words. */
static bool split_line(struct str text, struct line *out)
{
    struct str word;
    out->count = 0;
    while ((word = str_take_word(&text)).size && !str_is(word, "#")) {
        if (out->count == WORDS_MAX)
            return false;
        out->words[out->count++] = word;
    }
    return true;
}

static reshard_status rules_fail(const struct line *line, struct str word, const char *expected, reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT, "partition rules: '%.*s', expected %s", STR_ARG(word), expected);
    if (err)
        err->line = line->number;
    return RESHARD_ERR_FORMAT;
}

struct parsing {
    struct partition_rules *rules; /* but for the rules themselves, of which a line may make many */
    struct partition_rule *grown;
    uint32_t capacity;
    struct arena *arena;
    struct line line;
};

/* ---- the words of a rule ---- */

static bool word_number(const struct line *line, int *at, int max, int *out)
{
    uint64_t number;
    if (*at + 1 >= line->count || !str_to_u64(line->words[*at + 1], &number) || number > (uint64_t)max)
        return false;
    *out = (int)number;
    (*at)++;
    return true;
}

static reshard_status parse_cut(const struct line *line, int *at, struct partition_rule *rule, reshard_error *err)
{
    if (rule->is_cut || !word_number(line, at, 7, &rule->axis) || *at + 2 >= line->count || !str_is(line->words[*at + 1], "by"))
        return rules_fail(line, line->words[*at], "cut AXIS by tp or etp, once", err);
    rule->is_cut = true;
    rule->group = str_is(line->words[*at + 2], "etp") ? PARTITION_ETP : PARTITION_TP;
    if (rule->group == PARTITION_TP && !str_is(line->words[*at + 2], "tp"))
        return rules_fail(line, line->words[*at + 2], "tp or etp", err);
    *at += 2;
    return RESHARD_OK;
}

static reshard_status parse_word(const struct line *line, int *at, struct partition_rule *rule, reshard_error *err)
{
    struct str word = line->words[*at];
    if (str_is(word, "item")) {
        rule->is_item = true;
    } else if (str_is(word, "cut")) {
        return parse_cut(line, at, rule, err);
    } else if (str_is(word, "assumed")) {
        rule->is_assumed = true;
    } else if (str_is(word, "vocabulary")) {
        rule->is_vocabulary = true;
    } else if (str_is(word, "gated")) {
        rule->is_gated = true;
    } else if (str_is(word, "grouped")) {
        rule->is_grouped = true;
    } else if (str_is(word, "experts")) {
        if (!word_number(line, at, 7, &rule->expert_axis))
            rule->is_expert = true;
    } else if (str_is(word, "versions")) {
        if (!word_number(line, at, 16, &rule->versions) || rule->versions < 2)
            return rules_fail(line, word, "a number of parts after 'versions'", err);
    } else if (str_is(word, "unless") && *at + 1 < line->count) {
        rule->unless = line->words[++*at];
    } else if (str_is(word, "blocks") && *at + 1 < line->count) {
        while (*at + 1 < line->count) {
            if (rule->block_count == RULE_BLOCKS_MAX)
                return rules_fail(line, line->words[*at + 1], "fewer blocks", err);
            rule->blocks[rule->block_count++] = line->words[++*at];
        }
    } else if (!str_is(word, "replicated")) {
        return rules_fail(line, word, "a word of a partition rule", err);
    }
    return RESHARD_OK;
}

static reshard_status add_pattern(struct parsing *parsing, struct str pattern, const struct partition_rule *meaning, reshard_error *err)
{
    if (parsing->rules->rule_count == RULES_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "more than %d partition rules", RULES_MAX);
    if (!ARRAY_ROOM(parsing->grown, parsing->rules->rule_count, parsing->capacity))
        return error_set_memory(err);
    struct partition_rule *rule = &parsing->grown[parsing->rules->rule_count++];
    *rule = *meaning;
    size_t end = pattern.size;
    for (size_t i = pattern.size + 1; i-- > 0;) {
        if (i > 0 && pattern.data[i - 1] != '.')
            continue;
        if (rule->component_count == RULE_COMPONENTS_MAX || end == i)
            return rules_fail(&parsing->line, pattern, "up to 8 components with dots between", err);
        rule->components[rule->component_count++] = (struct str){ pattern.data + i, end - i };
        end = i ? i - 1 : 0;
    }
    return RESHARD_OK;
}

#define BRACES_MAX 3 /* in one pattern */

/* One rule for each of the alternatives of "{a,b}", of which there may be several; those before are taken. */
static reshard_status add_alternatives(struct parsing *parsing, struct str pattern, int taken, const struct partition_rule *meaning,
                                       reshard_error *err)
{
    size_t open, close;
    if (!str_find_char(pattern, '{', &open))
        return add_pattern(parsing, pattern, meaning, err);
    if (!str_find_char(pattern, '}', &close) || close < open || taken == BRACES_MAX)
        return rules_fail(&parsing->line, pattern, "'}' after '{', up to three times", err);
    reshard_status status = RESHARD_OK;
    for (size_t begin = open + 1; !status && begin <= close;) {
        size_t end = begin;
        while (end < close && pattern.data[end] != ',')
            end++;
        const struct str text = ARENA_JOIN(parsing->arena, { pattern.data, open }, { pattern.data + begin, end - begin },
                                           { pattern.data + close + 1, pattern.size - close - 1 });
        if (!text.data)
            return error_set_memory(err);
        status = add_alternatives(parsing, text, taken + 1, meaning, err);
        begin = end + 1;
    }
    return status;
}

static reshard_status parse_rule(struct parsing *parsing, reshard_error *err)
{
    struct partition_rule rule = { .expert_axis = -1 };
    reshard_status status = RESHARD_OK;
    if (parsing->line.count < 2)
        return rules_fail(&parsing->line, parsing->line.words[0], "a pattern and words", err);
    for (int i = 1; !status && i < parsing->line.count; i++)
        status = parse_word(&parsing->line, &i, &rule, err);
    return status ? status : add_alternatives(parsing, parsing->line.words[0], 0, &rule, err);
}

/* ---- the other lines ---- */

/* The rest of the line from a word on. */
static struct str rest_of(const struct line *line, int at)
{
    struct str last = line->words[line->count - 1];
    return (struct str){ line->words[at].data, (size_t)(last.data + last.size - line->words[at].data) };
}

static enum partition_place place_read(struct str word)
{
    static const char *const words[] = { [PLACE_FIRST] = "first", [PLACE_LAST] = "last", [PLACE_NORM] = "norm", [PLACE_MTP] = "mtp" };
    for (int place = PLACE_FIRST; place <= PLACE_MTP; place++)
        if (str_is(word, words[place]))
            return (enum partition_place)place;
    return PLACE_UNKNOWN;
}

static reshard_status parse_line(struct parsing *parsing, reshard_error *err)
{
    const struct line *line = &parsing->line;
    struct partition_rules *rules = parsing->rules;
    struct str word = line->words[0];
    if (str_is(word, "layers")) {
        if (line->count < 2 || !str_ends_with(line->words[1], ".#") || (line->count > 2 && !str_is(line->words[2], "own")))
            return rules_fail(line, word, "layers KEY.# and 'own' or nothing", err);
        struct str path = { line->words[1].data, line->words[1].size - 2 };
        rules->stacks[rules->stack_count++] = (struct partition_stack){ path, line->count > 2 };
        return RESHARD_OK;
    }
    if (str_is(word, "stage")) {
        enum partition_place place = line->count == 3 ? place_read(line->words[1]) : PLACE_UNKNOWN;
        if (place == PLACE_UNKNOWN)
            return rules_fail(line, word, "stage WHERE KEY: first, last, norm or mtp", err);
        rules->stages[rules->stage_count++] = (struct partition_stage){ line->words[2], place };
        return RESHARD_OK;
    }
    if (str_is(word, "copy")) {
        if (line->count != 4 || !str_is(line->words[2], "of"))
            return rules_fail(line, word, "copy KEY of KEY", err);
        rules->copies[rules->copy_count++] = (struct partition_copy){ line->words[1], line->words[3] };
        return RESHARD_OK;
    }
    if (str_is(word, "group")) {
        if (line->count != 4 || !str_is(line->words[2], "of"))
            return rules_fail(line, word, "group KEY of KEY", err);
        rules->groupings[rules->grouping_count++] = (struct partition_grouping){ line->words[1], line->words[3] };
        return RESHARD_OK;
    }
    if (str_is(word, "gate")) {
        if (line->count != 4 || !str_is(line->words[2], "by"))
            return rules_fail(line, word, "gate KEY by KEY", err);
        rules->gates[rules->gate_count++] = (struct partition_gate){ line->words[1], line->words[3] };
        return RESHARD_OK;
    }
    if (str_is(word, "let")) {
        if (line->count < 4 || !str_is(line->words[2], "="))
            return rules_fail(line, word, "let NAME = EXPRESSION", err);
        rules->sizes[rules->size_count++] = (struct partition_size){ line->words[1], rest_of(line, 3) };
        return RESHARD_OK;
    }
    return parse_rule(parsing, err);
}

bool partition_rule_has_experts(const struct partition_rule *rule)
{
    return rule->is_expert || rule->expert_axis >= 0 || rule->is_grouped;
}

static reshard_status parse_lines(struct parsing *parsing, struct str text, reshard_error *err)
{
    while (text.size) {
        struct str line = str_take(&text, '\n');
        parsing->line.number++;
        if (!split_line(line, &parsing->line))
            return rules_fail(&parsing->line, line, "fewer words", err);
        reshard_status status = parsing->line.count ? parse_line(parsing, err) : RESHARD_OK;
        if (status)
            return status;
    }
    struct partition_rules *rules = parsing->rules;
    rules->rules = arena_array(parsing->arena, rules->rule_count, sizeof(*rules->rules));
    if (!rules->rules)
        return error_set_memory(err);
    if (rules->rule_count)
        memcpy(rules->rules, parsing->grown, rules->rule_count * sizeof(*rules->rules));
    return RESHARD_OK;
}

reshard_status partition_rules_parse(struct str text, struct arena *arena, struct partition_rules *out, reshard_error *err)
{
    size_t lines = 1;
    for (size_t i = 0; i < text.size; i++)
        lines += text.data[i] == '\n';
    struct partition_rules rules = { .stacks = arena_array(arena, lines, sizeof(*rules.stacks)),
                                     .stages = arena_array(arena, lines, sizeof(*rules.stages)),
                                     .copies = arena_array(arena, lines, sizeof(*rules.copies)),
                                     .groupings = arena_array(arena, lines, sizeof(*rules.groupings)),
                                     .gates = arena_array(arena, lines, sizeof(*rules.gates)),
                                     .sizes = arena_array(arena, lines, sizeof(*rules.sizes)) };
    if (!rules.stacks || !rules.stages || !rules.copies || !rules.sizes || !rules.gates || !rules.groupings)
        return error_set_memory(err);
    struct parsing parsing = { .rules = &rules, .arena = arena };
    reshard_status status = parse_lines(&parsing, text, err);
    free(parsing.grown);
    if (!status)
        *out = rules;
    return status;
}

/* ---- matching ---- */

static bool rules_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Whether a component of a key fits one of a pattern; digits of "#" are noted. */
static bool component_matches(struct str key, size_t begin, size_t end, struct str pattern, struct partition_key *out)
{
    if (str_is(pattern, "*"))
        return true;
    bool has_number = pattern.data[pattern.size - 1] == '#';
    size_t literal = pattern.size - has_number;
    if (end - begin < literal || memcmp(key.data + begin, pattern.data, literal) != 0)
        return false;
    if (!has_number)
        return end - begin == literal;
    uint64_t number;
    struct str digits = { key.data + begin + literal, end - begin - literal };
    if (!str_to_u64(digits, &number) || number > INT32_MAX)
        return false;
    out->expert_at = begin + literal;
    out->expert_size = digits.size;
    out->expert = (int64_t)number;
    return true;
}

static bool rule_matches(const struct partition_rule *rule, struct str key, struct partition_key *out)
{
    size_t end = key.size;
    out->expert = -1;
    out->expert_size = 0;
    for (int i = 0; i < rule->component_count; i++) {
        size_t begin = end;
        while (begin > 0 && key.data[begin - 1] != '.')
            begin--;
        if (!component_matches(key, begin, end, rule->components[i], out))
            return false;
        if (begin == 0)
            return i + 1 == rule->component_count;
        end = begin - 1;
    }
    return true;
}

/* Finds "PATH.number." at the beginning of the key or after a dot. */
static bool find_layer(const struct partition_stack *stack, struct str key, struct partition_key *out)
{
    for (size_t at = 0; at + stack->path.size + 1 < key.size; at++) {
        if ((at > 0 && key.data[at - 1] != '.') || memcmp(key.data + at, stack->path.data, stack->path.size) != 0 ||
            key.data[at + stack->path.size] != '.')
            continue;
        size_t begin = at + stack->path.size + 1, end = begin;
        while (end < key.size && rules_is_digit(key.data[end]))
            end++;
        uint64_t number;
        if (end == key.size || key.data[end] != '.' || !str_to_u64((struct str){ key.data + begin, end - begin }, &number) ||
            number > INT32_MAX)
            continue;
        out->stack = stack;
        out->layer_at = begin;
        out->layer_size = end - begin;
        out->layer = (int64_t)number;
        return true;
    }
    return false;
}

bool partition_key_read(const struct partition_rules *rules, struct str key, struct partition_key *out)
{
    *out = (struct partition_key){ .layer = -1, .expert = -1 };
    for (uint32_t i = 0; i < rules->stack_count; i++) {
        struct partition_key found = *out;
        if (find_layer(&rules->stacks[i], key, &found) && (!out->stack || found.layer_at < out->layer_at))
            *out = found;
    }
    for (uint32_t i = 0; i < rules->rule_count; i++) {
        if (rule_matches(&rules->rules[i], key, out)) {
            out->rule = &rules->rules[i];
            if (!out->rule->is_expert) {
                out->expert = -1;
                out->expert_size = 0;
            }
            return true;
        }
    }
    return false;
}

/* ---- sizes ---- */

/* A product of numbers and arguments, the first after '/' dividing; *at stops at '+', "else" or the end. */
static bool term_value(const struct line *line, int *at, const struct training_args *args, int64_t *out)
{
    int64_t value = 1;
    char operation = '*';
    for (; *at < line->count; (*at)++) {
        struct str word = line->words[*at];
        if (str_is(word, "+") || str_is(word, "else"))
            break;
        if (str_is(word, "*") || str_is(word, "/")) {
            operation = word.data[0];
            continue;
        }
        uint64_t number;
        int64_t factor;
        char name[64] = "";
        if (word.size < sizeof(name))
            memcpy(name, word.data, word.size);
        factor = str_to_u64(word, &number) && number <= INT32_MAX ? (int64_t)number : training_args_int(args, name);
        if (factor <= 0)
            return false;
        if (!arithmetic_apply(operation, value, factor, &value))
            return false;
    }
    *out = value;
    return true;
}

static bool alternative_value(const struct line *line, int *at, const struct training_args *args, int64_t *out)
{
    int64_t sum = 0, term;
    bool is_good = true;
    for (;;) {
        is_good = is_good && term_value(line, at, args, &term) && arithmetic_apply('+', sum, term, &sum);
        while (*at < line->count && !str_is(line->words[*at], "+") && !str_is(line->words[*at], "else"))
            (*at)++;
        if (*at >= line->count || str_is(line->words[*at], "else"))
            break;
        (*at)++;
    }
    *out = sum;
    return is_good;
}

bool partition_size_value(const struct partition_rules *rules, const struct training_args *args, struct str name, int64_t *out)
{
    for (uint32_t i = 0; i < rules->size_count; i++) {
        struct line line = { 0 };
        if (!str_equal(rules->sizes[i].name, name) || !split_line(rules->sizes[i].expression, &line))
            continue;
        for (int at = 0; at < line.count; at++)
            if (alternative_value(&line, &at, args, out))
                return true;
        return false;
    }
    return false;
}
