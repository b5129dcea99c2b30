/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads settings from one side towards the other. A statement is a small system of equations: what is there binds variables, a pattern with
 * one unknown is solved for it, and what has two waits for the others.
 */
#include "mapping/settings.h"

#include "base/arithmetic.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define LIST_MAX 100000 /* elements of a list that is made */
#define UNUSED_BYTES_MAX 1000 /* of names that are listed */
#define WHOLE_MAX 9007199254740992.0

enum match { MATCH_NO, MATCH_YES, MATCH_LATER };

struct run {
    const struct settings *settings;
    const struct settings_input *input;
    struct value_graph *graph;
    struct value *filled;                                 /* DICT: defaults of the side that is read */
    const struct value *bound[SETTINGS_VARIABLES_MAX];    /* of the graph */
    uint32_t foreign_count;                               /* nodes of the graph that the term's value is of; 0: of the run's own */
    bool no_memory;
};

/* ---- members ---- */

/* The name before the next dot, into a buffer; false at the end or if it is too long. */
static bool next_name(const char **path, char *out, size_t size)
{
    size_t length = strcspn(*path, ".");
    if (!length || length >= size)
        return false;
    memcpy(out, *path, length);
    out[length] = 0;
    *path += length + ((*path)[length] == '.');
    return true;
}

static const struct value *find_any(const struct value *members, const char *path)
{
    char name[128];
    while (members && path[0]) {
        if (members->kind != VALUE_DICT || !next_name(&path, name, sizeof(name)))
            return NULL;
        members = value_dict_get(members, name);
    }
    return members;
}

const struct value *settings_find(const struct value *members, const char *path)
{
    const struct value *found = find_any(members, path);
    return found && found->kind != VALUE_NONE ? found : NULL;
}

/* *count: nodes of the graph that it is of, or 0 if that is the run's own. */
static const struct value *settings_run_look_up(const struct run *run, const char *path, uint32_t *count)
{
    const struct value *found = settings_find(run->input->extra, path);
    *count = run->input->extra_count;
    if (found)
        return found;
    found = settings_find(run->input->members, path);
    *count = found ? run->input->members_count : 0;
    return found ? found : settings_find(run->filled, path);
}

/* Sets a member by its path; dictionaries on the way are made. One that is there stays. */
static bool set_path(struct value_graph *graph, struct value *members, const char *path, struct value *value)
{
    char name[128];
    while (next_name(&path, name, sizeof(name)) && path[0]) {
        struct value *inner = value_dict_get(members, name);
        if (inner && inner->kind != VALUE_DICT)
            return true;
        if (!inner) {
            inner = value_new_list(graph, VALUE_DICT, NULL, 0);
            if (!inner || !value_dict_set(graph, members, name, inner, true))
                return false;
        }
        members = inner;
    }
    return value_dict_get(members, name) || value_dict_set(graph, members, name, value, true);
}

/* ---- values ---- */

static bool as_real(const struct value *value, double *out)
{
    if (value->kind == VALUE_FLOAT)
        *out = value->real;
    else if (value->kind == VALUE_INT)
        *out = (double)value->integer;
    return value->kind == VALUE_FLOAT || value->kind == VALUE_INT;
}

/* A whole number, also where it is written with a fraction of 0. */
static bool as_whole(const struct value *value, int64_t *out)
{
    if (value_as_int(value, out))
        return true;
    if (value->kind != VALUE_FLOAT || !(fabs(value->real) < WHOLE_MAX) || floor(value->real) != value->real)
        return false;
    *out = (int64_t)value->real;
    return true;
}

/* As in Python, where true is 1: numbers that the caller sets are never truth values. */
static bool equal(const struct value *a, const struct value *b)
{
    double x, y;
    if (a->kind == VALUE_BOOL && b->kind == VALUE_INT)
        return b->integer == a->boolean;
    if (a->kind == VALUE_INT && b->kind == VALUE_BOOL)
        return a->integer == b->boolean;
    return as_real(a, &x) && as_real(b, &y) ? x == y : value_equal(a, b);
}

static bool known(const struct run *run, struct settings_operand operand, int64_t *out)
{
    *out = operand.number;
    return operand.variable < 0 || (run->bound[operand.variable] && as_whole(run->bound[operand.variable], out));
}

/* Takes note that there was no memory for what should have been made. */
static struct value *made(struct run *run, struct value *value)
{
    run->no_memory = run->no_memory || !value;
    return value;
}

static bool is_number_or_text(const struct value *value)
{
    return value->kind == VALUE_BOOL || value->kind == VALUE_INT || value->kind == VALUE_FLOAT || value->kind == VALUE_STR;
}

/* What a setting may be: a number, a text, or a list of such. Arguments of a run hold much else. */
static bool is_setting(const struct value *value)
{
    if (value->kind != VALUE_LIST && value->kind != VALUE_TUPLE)
        return is_number_or_text(value);
    for (size_t i = 0; i < value->list.count && i < LIST_MAX; i++) {
        if (!is_number_or_text(value->list.items[i]))
            return false;
    }
    return value->list.count <= LIST_MAX;
}

static enum match bind(struct run *run, int variable, const struct value *value)
{
    if (!is_setting(value))
        return MATCH_NO;
    if (run->bound[variable])
        return equal(run->bound[variable], value) ? MATCH_YES : MATCH_NO;
    run->bound[variable] = run->foreign_count ? made(run, value_copy(run->graph, value, run->foreign_count)) : value;
    return run->bound[variable] ? MATCH_YES : MATCH_NO;
}

static enum match bind_whole(struct run *run, struct settings_operand operand, int64_t number)
{
    int64_t own;
    if (operand.variable < 0 || run->bound[operand.variable])
        return known(run, operand, &own) && own == number ? MATCH_YES : MATCH_NO;
    run->bound[operand.variable] = made(run, value_new_int(run->graph, number));
    return run->bound[operand.variable] ? MATCH_YES : MATCH_NO;
}

/* ---- expressions ---- */

static bool compute(enum settings_pattern_kind kind, int64_t a, int64_t b, int64_t *out)
{
    switch (kind) {
    case PATTERN_SUM: return arithmetic_apply('+', a, b, out);
    case PATTERN_DIFFERENCE: return arithmetic_apply('-', a, b, out);
    case PATTERN_PRODUCT: return arithmetic_apply('*', a, b, out);
    case PATTERN_QUOTIENT: return b > 0 && a >= 0 && arithmetic_apply('/', a, b, out);
    default: /* PATTERN_ROUNDED */
        if (b <= 0 || a < 0 || !arithmetic_apply('+', a, b - 1, out))
            return false;
        *out = *out / b * b;
        return true;
    }
}

/* a of `a kind b = result`. */
static bool solve_left(enum settings_pattern_kind kind, int64_t b, int64_t result, int64_t *out)
{
    static const enum settings_pattern_kind inverse[] = { [PATTERN_SUM] = PATTERN_DIFFERENCE, [PATTERN_DIFFERENCE] = PATTERN_SUM,
                                                          [PATTERN_PRODUCT] = PATTERN_QUOTIENT, [PATTERN_QUOTIENT] = PATTERN_PRODUCT };
    return kind != PATTERN_ROUNDED && compute(inverse[kind], result, b, out);
}

static bool solve_right(enum settings_pattern_kind kind, int64_t a, int64_t result, int64_t *out)
{
    switch (kind) {
    case PATTERN_SUM: return compute(PATTERN_DIFFERENCE, result, a, out);
    case PATTERN_DIFFERENCE: return compute(PATTERN_DIFFERENCE, a, result, out);
    case PATTERN_PRODUCT: return compute(PATTERN_QUOTIENT, result, a, out);
    case PATTERN_QUOTIENT: return compute(PATTERN_QUOTIENT, a, result, out);
    default: return false;
    }
}

static enum match match_expression(struct run *run, const struct settings_pattern *pattern, const struct value *value)
{
    int64_t a, b, number, solved;
    bool has_a = known(run, pattern->a, &a), has_b = known(run, pattern->b, &b);
    if (!as_whole(value, &number))
        return MATCH_NO;
    if (!has_a && !has_b)
        return MATCH_LATER;
    if (has_a && has_b)
        return compute(pattern->kind, a, b, &solved) && solved == number ? MATCH_YES : MATCH_NO;
    if (has_b)
        return solve_left(pattern->kind, b, number, &solved) ? bind_whole(run, pattern->a, solved) : MATCH_NO;
    return solve_right(pattern->kind, a, number, &solved) ? bind_whole(run, pattern->b, solved) : MATCH_NO;
}

/* ---- patterns that are matched ---- */

static enum match match_simple(struct run *run, const struct settings_pattern *pattern, const struct value *value)
{
    double real;
    switch (pattern->kind) {
    case PATTERN_LITERAL:
        return equal(pattern->literal, value) ? MATCH_YES : MATCH_NO;
    case PATTERN_VARIABLE:
        return bind(run, pattern->a.variable, value);
    case PATTERN_FLOAT:
    case PATTERN_WHOLE:
        return as_real(value, &real) ? bind(run, pattern->a.variable, value) : MATCH_NO;
    case PATTERN_EVERY:
        return MATCH_NO;
    default:
        return match_expression(run, pattern, value);
    }
}

static enum match match_list(struct run *run, const struct settings_pattern *pattern, const struct value *value)
{
    struct value **items;
    size_t count, at = 0;
    if (!value_as_sequence(value, &items, &count))
        return MATCH_NO;
    for (uint32_t i = 0; i < pattern->segment_count; i++) {
        const struct settings_segment *segment = &run->settings->segments[pattern->first_segment + i];
        int64_t wanted, found = 0;
        bool is_known = known(run, segment->count, &wanted);
        enum match match = MATCH_YES;
        while (at < count && (!is_known || found < wanted) && (match = match_simple(run, &segment->element, items[at])) == MATCH_YES) {
            at++;
            found++;
        }
        if (match == MATCH_LATER || (is_known ? found != wanted : bind_whole(run, segment->count, found) != MATCH_YES))
            return match == MATCH_LATER ? MATCH_LATER : MATCH_NO;
    }
    return at == count ? MATCH_YES : MATCH_NO;
}

/* A list of 0 and 1: a is the list of the positions of 0, b the length. */
static enum match match_marks(struct run *run, const struct settings_pattern *pattern, const struct value *value)
{
    struct value **items;
    size_t count, used = 0;
    int64_t mark;
    if (pattern->a.variable < 0 || !value_as_sequence(value, &items, &count) || count > LIST_MAX)
        return MATCH_NO;
    struct value **positions = arena_array(&run->graph->arena, count, sizeof(*positions));
    for (size_t i = 0; i < count && positions; i++) {
        if (!value_as_int(items[i], &mark) || (mark != 0 && mark != 1))
            return MATCH_NO;
        if (mark == 0 && !(positions[used++] = made(run, value_new_int(run->graph, (int64_t)i))))
            return MATCH_NO;
    }
    struct value *list = made(run, positions ? value_new_list(run->graph, VALUE_LIST, positions, used) : NULL);
    run->foreign_count = 0;
    return list && bind(run, pattern->a.variable, list) == MATCH_YES ? bind_whole(run, pattern->b, (int64_t)count) : MATCH_NO;
}

static enum match match_term(struct run *run, const struct settings_term *term)
{
    const struct value *value = settings_run_look_up(run, term->path, &run->foreign_count);
    const struct settings_pattern *pattern = &term->pattern;
    if (pattern->kind == PATTERN_ABSENT)
        return find_any(run->input->extra, term->path) || find_any(run->input->members, term->path) ? MATCH_NO : MATCH_YES;
    if (!value)
        return pattern->kind == PATTERN_LITERAL && pattern->literal->kind == VALUE_NONE ? MATCH_YES : MATCH_NO;
    if (pattern->kind == PATTERN_LIST || pattern->kind == PATTERN_TUPLE)
        return match_list(run, pattern, value);
    return pattern->kind == PATTERN_MARKS ? match_marks(run, pattern, value) : match_simple(run, pattern, value);
}

/* Whether all terms fit. Terms that wait are tried again as long as others get on; *failed: the one that does not. */
static bool match_terms(struct run *run, const struct settings_term *terms, uint32_t count, uint32_t *failed)
{
    uint64_t done = 0;
    bool gets_on = true;
    memset(run->bound, 0, sizeof(run->bound));
    while (gets_on) {
        gets_on = false;
        for (uint32_t i = 0; i < count; i++) {
            if (done >> i & 1)
                continue;
            *failed = i;
            enum match match = match_term(run, &terms[i]);
            if (match == MATCH_NO)
                return false;
            if (match == MATCH_YES) {
                done |= UINT64_C(1) << i;
                gets_on = true;
            }
        }
    }
    return done + 1 == UINT64_C(1) << count;
}

/* ---- patterns that are made ---- */

static struct value *new_real(struct run *run, double real)
{
    struct value *value = made(run, value_new(run->graph, VALUE_FLOAT));
    if (value)
        value->real = real;
    return value;
}

/* NULL: a variable has no value, or there is no memory; the run knows the latter. */
static struct value *settings_run_make_simple(struct run *run, const struct settings_pattern *pattern)
{
    const struct value *bound = pattern->a.variable < 0 ? NULL : run->bound[pattern->a.variable];
    int64_t a, b, number;
    double real;
    switch (pattern->kind) {
    case PATTERN_LITERAL:
        return made(run, value_copy(run->graph, pattern->literal, run->settings->literals.count));
    case PATTERN_VARIABLE:
        return (struct value *)bound;
    case PATTERN_FLOAT:
        return bound && as_real(bound, &real) ? new_real(run, real) : NULL;
    case PATTERN_WHOLE:
        return bound && as_whole(bound, &number) ? made(run, value_new_int(run->graph, number)) : (struct value *)bound;
    default:
        if (!known(run, pattern->a, &a) || !known(run, pattern->b, &b) || !compute(pattern->kind, a, b, &number))
            return NULL;
        return made(run, value_new_int(run->graph, number));
    }
}

static struct value *make_list(struct run *run, const struct settings_pattern *pattern)
{
    /* A text without a list that is not empty has no segments at all. */
    const struct settings_segment *segments = pattern->segment_count ? run->settings->segments + pattern->first_segment : NULL;
    int64_t total = 0, count, at = 0;
    for (uint32_t i = 0; i < pattern->segment_count; i++) {
        if (!known(run, segments[i].count, &count) || count < 0 || count > LIST_MAX || (total += count) > LIST_MAX)
            return NULL;
    }
    struct value **items = arena_array(&run->graph->arena, total, sizeof(*items));
    for (uint32_t i = 0; i < pattern->segment_count && items; i++) {
        for (known(run, segments[i].count, &count); count > 0; count--) {
            if (!(items[at++] = settings_run_make_simple(run, &segments[i].element)))
                return NULL;
        }
    }
    return made(run,
                items ? value_new_list(run->graph, pattern->kind == PATTERN_TUPLE ? VALUE_TUPLE : VALUE_LIST, items, (size_t)total) : NULL);
}

static struct value *make_marks(struct run *run, const struct settings_pattern *pattern)
{
    struct value **positions;
    size_t position_count;
    int64_t count, position;
    if (pattern->a.variable < 0 || !run->bound[pattern->a.variable] || !known(run, pattern->b, &count) || count < 0 || count > LIST_MAX ||
        !value_as_sequence(run->bound[pattern->a.variable], &positions, &position_count))
        return NULL;
    struct value **items = arena_array(&run->graph->arena, count, sizeof(*items));
    for (int64_t i = 0; i < count && items; i++) {
        if (!(items[i] = made(run, value_new_int(run->graph, 1))))
            return NULL;
    }
    for (size_t i = 0; i < position_count && items; i++) {
        if (!value_as_int(positions[i], &position) || position < 0 || position >= count)
            return NULL;
        items[position]->integer = 0;
    }
    return made(run, items ? value_new_list(run->graph, VALUE_LIST, items, (size_t)count) : NULL);
}

static struct value *make_every(struct run *run, const struct settings_pattern *pattern)
{
    int64_t step, count;
    if (!known(run, pattern->a, &step) || !known(run, pattern->b, &count) || step <= 0 || count < 0 || count > LIST_MAX)
        return NULL;
    struct value **items = arena_array(&run->graph->arena, count, sizeof(*items));
    for (int64_t i = 0; i < count && items; i++) {
        if (!(items[i] = made(run, value_new_int(run->graph, i % step == 0))))
            return NULL;
    }
    return made(run, items ? value_new_list(run->graph, VALUE_LIST, items, (size_t)count) : NULL);
}

static struct value *settings_run_make(struct run *run, const struct settings_pattern *pattern)
{
    if (pattern->kind == PATTERN_EVERY)
        return make_every(run, pattern);
    if (pattern->kind == PATTERN_LIST || pattern->kind == PATTERN_TUPLE)
        return make_list(run, pattern);
    return pattern->kind == PATTERN_MARKS ? make_marks(run, pattern) : settings_run_make_simple(run, pattern);
}

/* Whether all terms could be made. */
static bool make_terms(struct run *run, const struct settings_term *terms, uint32_t count, struct value *into)
{
    bool are_made = true;
    for (uint32_t i = 0; i < count && !run->no_memory; i++) {
        struct value *value = settings_run_make(run, &terms[i].pattern);
        are_made = are_made && value;
        if (value && !set_path(run->graph, into, terms[i].path, value))
            run->no_memory = true;
    }
    return are_made;
}

/* ---- a whole text ---- */

bool settings_mention(const struct settings *settings, enum settings_side side, struct str path)
{
    for (uint32_t i = 0; i < settings->statement_count; i++) {
        const struct settings_statement *statement = &settings->statements[i];
        for (uint32_t t = 0; !statement->is_default && !statement->is_demand && t < statement->counts[side]; t++) {
            if (str_is(path, statement->terms[side][t].path))
                return true;
        }
    }
    for (uint32_t i = 0; side == SETTINGS_CONFIG && i < settings->asked_count; i++) {
        if (str_equal(path, settings->asked[i]))
            return true;
    }
    return false;
}

/* What the side that is read means by what it does not say. */
static void fill_defaults(struct run *run, enum settings_side side)
{
    uint32_t failed;
    for (uint32_t i = 0; i < run->settings->statement_count && !run->no_memory; i++) {
        const struct settings_statement *statement = &run->settings->statements[i];
        if (statement->is_default && statement->side == side && match_terms(run, statement->terms[0], statement->counts[0], &failed))
            make_terms(run, statement->terms[1], statement->counts[1], run->filled);
    }
}

static reshard_status begin(const struct settings *settings, enum settings_side side, const struct settings_input *input,
                            struct value_graph *graph, struct run *out, reshard_error *err)
{
    *out = (struct run){ .settings = settings, .input = input, .graph = graph };
    out->filled = value_new_list(graph, VALUE_DICT, NULL, 0);
    if (!out->filled)
        return error_set_memory(err);
    fill_defaults(out, side);
    return out->no_memory ? error_set_memory(err) : RESHARD_OK;
}

static void add_word(struct buffer *out, const char *word)
{
    buffer_printf(out, "%s%s", out->size ? ", " : "", word);
}

/* Names of the other side that statements could have given. */
static void note_missing(const struct settings *settings, int to, struct settings_result *out)
{
    for (uint32_t i = 0; i < settings->statement_count; i++) {
        const struct settings_statement *statement = &settings->statements[i];
        if (statement->is_default || statement->is_demand || statement->is_optional || !statement->reads[1 - to] ||
            !statement->counts[1 - to])
            continue;
        for (uint32_t t = 0; t < statement->counts[to]; t++) {
            const char *path = statement->terms[to][t].path;
            bool is_new = true;
            for (uint32_t before = 0; before < i && is_new; before++) {
                for (uint32_t u = 0; u < settings->statements[before].counts[to] && is_new; u++)
                    is_new =
                        !settings->statements[before].reads[1 - to] || strcmp(settings->statements[before].terms[to][u].path, path) != 0;
            }
            if (is_new && !find_any(out->members, path))
                add_word(&out->missing, path);
        }
    }
    for (uint32_t i = 0; i < settings->asked_count && to == SETTINGS_CONFIG; i++) {
        char name[128];
        const char *path = settings->asked[i].data;
        if (next_name(&path, name, sizeof(name)) && !find_any(out->members, name))
            add_word(&out->missing, name);
    }
}

static bool is_ignored(const struct settings *settings, struct str path)
{
    for (uint32_t i = 0; i < settings->ignored_count; i++) {
        if (str_matches_glob(path, settings->ignored[i]))
            return true;
    }
    return false;
}

/* Members of config.json, two levels deep, that no statement has read. */
static bool settings_run_note_unused(const struct settings *settings, const struct value *members, struct str prefix,
                                     const struct value *read, struct buffer *out)
{
    struct buffer path = { 0 };
    bool is_done = true;
    for (size_t i = 0; members && members->kind == VALUE_DICT && i + 1 < members->list.count && is_done; i += 2) {
        const struct value *key = members->list.items[i], *value = members->list.items[i + 1];
        if (key->kind != VALUE_STR || value->kind == VALUE_NONE || out->size > UNUSED_BYTES_MAX)
            continue;
        if (value->kind == VALUE_DICT && !prefix.size) {
            is_done = settings_run_note_unused(settings, value, key->text, read, out);
            continue;
        }
        buffer_clear(&path);
        buffer_printf(&path, "%.*s%s%.*s", STR_ARG(prefix), prefix.size ? "." : "", STR_ARG(key->text));
        is_done = buffer_append_byte(&path, 0) && !path.failed;
        const char *name = (const char *)path.data;
        if (is_done && !find_any(read, name) && !is_ignored(settings, str_of(name)))
            buffer_printf(out, "%s%s", out->size ? ", " : "", name);
    }
    buffer_release(&path);
    return is_done;
}

/* Reads the statements one by one; read gets the names that those have read that count. */
static void settings_run_read_statements(struct run *run, enum settings_side from, struct value *read, struct value *into)
{
    enum settings_side to = from == SETTINGS_CONFIG ? SETTINGS_ARGS : SETTINGS_CONFIG;
    struct value *mark = made(run, value_new(run->graph, VALUE_BOOL));
    uint32_t failed;
    for (uint32_t i = 0; !run->no_memory && i < run->settings->statement_count; i++) {
        const struct settings_statement *statement = &run->settings->statements[i];
        if (statement->is_default || statement->is_demand || !statement->reads[from] ||
            !match_terms(run, statement->terms[from], statement->counts[from], &failed) ||
            !make_terms(run, statement->terms[to], statement->counts[to], into))
            continue;
        for (uint32_t t = 0; t < statement->counts[from] && !run->no_memory; t++)
            run->no_memory = !set_path(run->graph, read, statement->terms[from][t].path, mark);
    }
}

reshard_status settings_run(const struct settings *settings, enum settings_side from, const struct settings_input *input,
                            const struct value *given, uint32_t given_count, struct settings_result *out, reshard_error *err)
{
    struct settings_result result = { 0 };
    struct run run;
    reshard_status status = begin(settings, from, input, &result.graph, &run, err);
    struct value *read = status ? NULL : value_new_list(&result.graph, VALUE_DICT, NULL, 0);
    if (!status) {
        result.members = given ? value_copy(&result.graph, given, given_count) : value_new_list(&result.graph, VALUE_DICT, NULL, 0);
        if (result.members && read)
            settings_run_read_statements(&run, from, read, result.members);
        status = result.members && read && !run.no_memory ? RESHARD_OK : error_set_memory(err);
    }
    if (!status) {
        note_missing(settings, from == SETTINGS_CONFIG ? SETTINGS_ARGS : SETTINGS_CONFIG, &result);
        bool noted = from != SETTINGS_CONFIG || settings_run_note_unused(settings, input->members, (struct str){ 0 }, read, &result.unused);
        status = noted && !result.missing.failed && !result.unused.failed ? RESHARD_OK : error_set_memory(err);
    }
    if (status)
        settings_result_release(&result);
    else
        *out = result;
    return status;
}

void settings_result_release(struct settings_result *result)
{
    value_graph_release(&result->graph);
    buffer_release(&result->missing);
    buffer_release(&result->unused);
    *result = (struct settings_result){ 0 };
}

/* Whether a demand on the side holds, or one that may hold in its place; *at: the last of these. *failed: the term of the first that does
 * not fit. */
static bool demand_holds(struct run *run, uint32_t *at, uint32_t *failed)
{
    const struct settings_statement *statements = run->settings->statements;
    uint32_t other;
    bool holds = match_terms(run, statements[*at].terms[0], statements[*at].counts[0], failed);
    while (*at + 1 < run->settings->statement_count && statements[*at + 1].is_alternative) {
        ++*at;
        holds = holds || match_terms(run, statements[*at].terms[0], statements[*at].counts[0], &other);
    }
    return holds;
}

static reshard_status find_unfit(struct run *run, enum settings_side side, bool is_required, enum settings_verdict *out, struct buffer *why,
                                 reshard_error *err)
{
    for (uint32_t i = 0; *out == SETTINGS_FIT && i < run->settings->statement_count; i++) {
        const struct settings_statement *statement = &run->settings->statements[i];
        uint32_t failed = 0, graph_count;
        if (!statement->is_demand || statement->side != side || statement->is_required != is_required || demand_holds(run, &i, &failed))
            continue;
        const char *path = statement->terms[0][failed].path;
        const struct value *found = settings_run_look_up(run, path, &graph_count);
        *out = is_required ? SETTINGS_REFUSED : SETTINGS_UNFIT;
        buffer_printf(why, "%s is ", path);
        if (found ? !value_to_repr(found, why, NULL) : !buffer_append_text(why, "not set"))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

reshard_status settings_fit(const struct settings *settings, enum settings_side side, const struct settings_input *input,
                            enum settings_verdict *out, struct buffer *why, reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct run run;
    reshard_status status = begin(settings, side, input, &graph, &run, err);
    *out = SETTINGS_FIT;
    if (!status)
        status = find_unfit(&run, side, true, out, why, err);
    if (!status)
        status = find_unfit(&run, side, false, out, why, err);
    if (!status && run.no_memory)
        status = error_set_memory(err);
    value_graph_release(&graph);
    return status;
}
