/* SPDX-License-Identifier: Apache-2.0 */
/*
 * $LAYER_ID, $EXPERT_ID and $LAYER_ID_OFFSET: one statement for every set of numbers that the keys show.
 *
 * Names made by earlier statements are searched only where no key of the source matches, so that programs which upstream accepts expand as
 * they do there.
 */
#include "mapping/map_macro.h"
#include "base/array.h"
#include "mapping/map_pattern.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ID_KINDS (1u << MAP_HOLE_EXPERT | 1u << MAP_HOLE_LAYER)
#define OFFSET_KINDS (1u << MAP_HOLE_OFFSET)

/* Numbers of one match; an empty one is not asked for. */
struct id_row {
    struct str expert, layer;
};

struct id_rows {
    struct id_row *rows;
    uint32_t count, capacity;
};

/* Backwards: names of the left sides, and the first right-hand name of the first statement that reads each. */
struct left_names {
    struct name_map names;
    struct str *sources; /* by names */
    uint32_t capacity;
    bool is_made;
};

struct id_search {
    const struct map_macro_context *context;
    const struct map_program *program; /* that is being expanded */
    struct left_names *left;           /* of it, made when it is first asked for */
    bool is_offset;
    int64_t offset;           /* how far the right-hand numbers are below the left-hand ones */
    bool has_base;            /* the offset was written: numbers below it mean nothing here */
    unsigned kinds;           /* of holes in the pattern */
    struct map_pattern pattern;
    struct id_rows found;
};

static bool rows_append(const struct map_macro_context *context, struct id_rows *rows, struct id_row row)
{
    if (!arena_charge(context->arena, sizeof(row)) || !ARRAY_ROOM(rows->rows, rows->count, rows->capacity))
        return false;
    rows->rows[rows->count++] = row;
    return true;
}

static int compare_rows(const void *a, const void *b)
{
    const struct id_row *x = a, *y = b;
    int order = map_digits_compare(x->expert, y->expert);
    return order ? order : map_digits_compare(x->layer, y->layer);
}

static void rows_sort(struct id_rows *rows)
{
    uint32_t kept = 0;
    if (rows->count)
        qsort(rows->rows, rows->count, sizeof(rows->rows[0]), compare_rows);
    for (uint32_t i = 0; i < rows->count; i++) {
        if (!kept || compare_rows(&rows->rows[kept - 1], &rows->rows[i]) != 0)
            rows->rows[kept++] = rows->rows[i];
    }
    rows->count = kept;
}

static struct str map_macro_ids_without_zeros(struct str digits)
{
    while (digits.size > 1 && digits.data[0] == '0')
        digits = (struct str){ digits.data + 1, digits.size - 1 };
    return digits;
}

static bool search_name(struct id_search *search, struct str name)
{
    struct str values[MAP_HOLE_KINDS] = { 0 };
    if (!map_pattern_match(&search->pattern, name, values))
        return true;
    struct id_row row = { values[MAP_HOLE_EXPERT], values[MAP_HOLE_LAYER] };
    if (search->is_offset) {
        uint64_t number;
        row = (struct id_row){ .layer = values[MAP_HOLE_OFFSET] };
        if (!str_to_u64(map_macro_ids_without_zeros(row.layer), &number) || number > INT64_MAX - (uint64_t)search->offset)
            return true;
    }
    return rows_append(search->context, &search->found, row);
}

static bool search_space(struct id_search *search, const struct map_space *space)
{
    const uint32_t *weights;
    uint32_t count;
    if (!space)
        return true;
    if (!map_space_candidates(space, &search->pattern, &weights, &count))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (!search_name(search, space->weights[weights[i]].name))
            return false;
    }
    return true;
}

/* A name that is made for each number from begin to end, such as name{0:4} or the star of an unstack. */
static bool search_numbered(struct id_search *search, struct str before, const char *mark, struct str behind, int64_t begin, int64_t end)
{
    struct str name;
    for (int64_t i = begin; i < end; i++) {
        char number[64];
        snprintf(number, sizeof(number), "%s%" PRId64, mark, i);
        const struct str text = ARENA_JOIN(search->context->arena, before, str_of(number), behind);
        if (!text.data)
            return false;
        map_strip_transpose(text, &name);
        if (!search_name(search, name))
            return false;
    }
    return true;
}

/* Later macros make many names of an array or a star. *count: how many, to be looked at one by one; 0: the name is what it is. */
static bool search_list(struct id_search *search, const struct map_statement *statement, const struct map_name *name, uint64_t *count)
{
    struct map_pattern pattern;
    *count = 0;
    if (search->context->strict)
        return true;
    if (name->has_array) {
        *count = (uint64_t)(name->end - name->begin);
        return *count > search->context->limits->map_names ||
               search_numbered(search, name->text, name->is_inline ? "" : "_", name->is_inline ? name->array_suffix : (struct str){ 0 },
                               name->begin, name->end);
    }
    bool is_made =
        map_attribute_find(statement, search->context->reverse ? "stack" : "unstack") && memchr(name->text.data, '*', name->text.size);
    int64_t extent = is_made ? map_stack_extent(search->context, statement) : -1;
    if (extent < 0 || !map_pattern_of(name->text, 1u << MAP_HOLE_STAR, false, &pattern) || pattern.count != 1)
        return true;
    *count = (uint64_t)extent;
    return *count > search->context->limits->map_names || search_numbered(search, pattern.literals[0], "", pattern.literals[1], 0, extent);
}

/* Names that statements executed before this one make. */
static bool search_made(struct id_search *search, const struct map_statement *asking, const struct map_program *made)
{
    bool reverse = search->context->reverse;
    *search->context->work += made->name_count;
    if (*search->context->work > search->context->limits->map_names) {
        map_diagnose(search->context->diagnoses, MAP_ERROR, asking->span, "raise the limit map_names",
                     "too many statements take their numbers from names that others make");
        return true;
    }
    for (uint32_t i = 0; i < made->count; i++) {
        const struct map_statement *statement = &made->statements[i];
        const struct map_name *names = reverse ? statement->left : statement->right;
        uint32_t count = reverse ? statement->left_count : statement->right_count;
        for (uint32_t j = 0; j < count; j++) {
            struct str name = names[j].text;
            uint64_t listed;
            if (!search_list(search, statement, &names[j], &listed))
                return false;
            *search->context->work += listed;
            if (reverse)
                map_strip_transpose(name, &name);
            if (!listed && !search_name(search, name))
                return false;
        }
    }
    return true;
}

static bool has_row(const struct id_rows *sorted, const struct id_row *row)
{
    return bsearch(row, sorted->rows, sorted->count, sizeof(*row), compare_rows) != NULL;
}

/*
 * Where keys of the source match, their numbers alone count, as in Paddle: of names that statements before this one make, and whose numbers
 * the source lacks, somebody may think otherwise. It takes at most half of the work that is allowed, and says nothing then.
 */
static void warn_of_made(const struct id_search *search, const struct map_statement *asking, const struct map_program *made)
{
    const struct map_macro_context *context = search->context;
    uint32_t left_out = 0;
    struct str first = { 0 };
    if (!search->found.count || search->is_offset || *context->work + made->name_count > context->limits->map_names / 2)
        return;
    *context->work += made->name_count;
    for (uint32_t i = 0; i < made->count; i++) {
        const struct map_statement *statement = &made->statements[i];
        const struct map_name *names = context->reverse ? statement->left : statement->right;
        for (uint32_t j = 0; j < (context->reverse ? statement->left_count : statement->right_count); j++) {
            struct str name = names[j].text, values[MAP_HOLE_KINDS] = { 0 };
            map_strip_transpose(name, &name);
            if (!map_pattern_match(&search->pattern, name, values) ||
                has_row(&search->found, &(struct id_row){ values[MAP_HOLE_EXPERT], values[MAP_HOLE_LAYER] }))
                continue;
            first = left_out++ ? first : name;
        }
    }
    if (left_out)
        map_diagnose(context->diagnoses, MAP_WARNING, asking->span, "a statement for these names alone does what this one does not",
                     "the numbers are those of the source's keys: '%.*s', which a statement before makes, is left out%s", STR_ARG(first),
                     left_out > 1 ? ", and so are others" : "");
}

/* Upstream takes the product of the two sets of numbers, whether or not the pairs exist. */
static bool make_product(const struct map_macro_context *context, struct id_rows *rows)
{
    struct id_rows product = { 0 };
    bool done = true;
    for (uint32_t i = 0; i < rows->count && done; i++) {
        if (i && str_equal(rows->rows[i].expert, rows->rows[i - 1].expert))
            continue;
        for (uint32_t j = 0; j < rows->count && done; j++)
            done = rows_append(context, &product, (struct id_row){ rows->rows[i].expert, rows->rows[j].layer });
    }
    free(rows->rows);
    *rows = product;
    rows_sort(rows);
    return done;
}

/* ---- names ---- */

static bool name_has(struct str name, unsigned kinds)
{
    for (int kind = 0; kind < MAP_HOLE_KINDS; kind++) {
        if (kinds & 1u << kind && map_contains(name, map_hole_text[kind]))
            return true;
    }
    return false;
}

static unsigned statement_kinds(const struct map_statement *statement, unsigned wanted)
{
    unsigned found = 0;
    for (uint32_t i = 0; i < statement->left_count + statement->right_count; i++) {
        struct str name = i < statement->left_count ? statement->left[i].text : statement->right[i - statement->left_count].text;
        for (int kind = 0; kind < MAP_HOLE_KINDS; kind++) {
            if (wanted & 1u << kind && map_contains(name, map_hole_text[kind]))
                found |= 1u << kind;
        }
    }
    return found;
}

/* `name -> _` backwards: what is dropped forwards keeps its value, so the numbers are those of the left side. */
static bool is_kept_backwards(const struct map_macro_context *context, const struct map_statement *statement)
{
    return context->reverse && !context->strict && statement->right_count == 1 && map_is_hole(&statement->right[0]);
}

/* The name whose numbers are looked for: the first with a placeholder; backwards the first on the right. */
static const struct map_name *pattern_name(const struct map_macro_context *context, const struct map_statement *statement, unsigned kinds)
{
    bool takes_left = !context->reverse || is_kept_backwards(context, statement);
    for (uint32_t i = 0; i < statement->left_count && takes_left; i++) {
        if (name_has(statement->left[i].text, kinds))
            return &statement->left[i];
    }
    for (uint32_t i = 0; i < statement->right_count; i++) {
        if (name_has(statement->right[i].text, kinds))
            return &statement->right[i];
    }
    return NULL;
}

/* Every name needs every placeholder of the pattern. Upstream looks for the word without its $, and strict mode does so too. */
static bool map_macro_ids_check_name(const struct id_search *search, const struct map_name *name)
{
    for (int kind = 0; kind < MAP_HOLE_KINDS; kind++) {
        const char *text = map_hole_text[kind];
        if (search->kinds & 1u << kind && map_is_hole(name))
            map_diagnose(search->context->diagnoses, MAP_UNPORTABLE, name->span, NULL, "Paddle's engine wants %s in '_' too", text);
        if (!(search->kinds & 1u << kind) || map_is_hole(name) || map_contains(name->text, search->context->strict ? text + 1 : text))
            continue;
        return map_diagnose(search->context->diagnoses, MAP_ERROR, name->span,
                            "one statement is made for each number, so every name needs the placeholder",
                            "'%.*s' lacks %s, which another name of the statement has", STR_ARG(name->text), text);
    }
    return true;
}

/* when="key" and unless="key": ours. */
static bool is_condition(const struct map_macro_context *context, const struct map_attribute *attribute)
{
    return !context->strict && !attribute->is_number && (str_is(attribute->key, "when") || str_is(attribute->key, "unless"));
}

static bool check_strings(const struct map_macro_context *context, const struct map_statement *statement)
{
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        if (!attribute->is_number && name_has(attribute->value, ID_KINDS) && !is_condition(context, attribute))
            return map_diagnose(context->diagnoses, MAP_ERROR, attribute->value_span, NULL, "a placeholder in a string is not replaced");
    }
    return true;
}

static bool append_number(struct buffer *out, struct str digits, int64_t shift)
{
    uint64_t number;
    int64_t shifted;
    if (!shift)
        return buffer_append_str(out, digits);
    if (!str_to_u64(map_macro_ids_without_zeros(digits), &number) || __builtin_add_overflow(number, shift, &shifted) || shifted < 0)
        return false;
    return buffer_printf(out, "%lld", (long long)shifted);
}

/* The name with its placeholders replaced by the row's numbers, the layer's shifted. */
static bool replace_name(const struct id_search *search, const struct map_name *name, struct id_row row, int64_t shift,
                         struct map_name *out)
{
    struct map_pattern pattern;
    struct buffer text = { 0 };
    *out = *name;
    if (map_is_hole(name))
        return true;
    if (!map_pattern_of(name->text, search->kinds, false, &pattern))
        return false;
    bool done = true;
    for (int i = 0; i <= pattern.count && done; i++) {
        done = buffer_append_str(&text, pattern.literals[i]);
        if (i < pattern.count && done)
            done = append_number(&text, pattern.holes[i] == MAP_HOLE_EXPERT ? row.expert : row.layer, shift);
    }
    done = done && arena_str(search->context->arena, buffer_str(&text), &out->text);
    buffer_release(&text);
    return done;
}

static struct map_name *replace_names(const struct id_search *search, const struct map_name *names, uint32_t count, struct id_row row,
                                      int64_t shift)
{
    struct map_name *copies = arena_array(search->context->arena, count, sizeof(*copies));
    for (uint32_t i = 0; copies && i < count; i++) {
        if (!replace_name(search, &names[i], row, shift, &copies[i]))
            return NULL;
    }
    return copies;
}

static bool is_made(const struct map_program *made, struct str name)
{
    for (uint32_t i = 0; i < made->count; i++) {
        for (uint32_t j = 0; j < made->statements[i].left_count; j++) {
            struct str text;
            map_strip_transpose(made->statements[i].left[j].text, &text);
            if (str_equal(text, name))
                return true;
        }
    }
    return false;
}

/* Backwards towards a target that is not known, a conditional statement is executed only where all that it reads is there. */
static bool can_be_read(const struct map_macro_context *context, const struct map_statement *statement, const struct map_program *made)
{
    for (uint32_t i = 0; i < statement->right_count; i++) {
        struct str name = statement->right[i].text;
        bool is_pattern = statement->right[i].has_array || memchr(name.data, '*', name.size);
        if (is_pattern || map_space_find(context->source, name) != MAP_NONE)
            continue;
        *context->work += made->name_count;
        if (*context->work > context->limits->map_names)
            return !map_diagnose(context->diagnoses, MAP_ERROR, statement->span, "raise the limit map_names",
                                 "too many conditions, read backwards, depend on names that others make");
        if (!is_made(made, name))
            return false;
    }
    return true;
}

static bool left_names_add(struct left_names *left, const struct map_statement *statement)
{
    for (uint32_t i = 0; i < statement->left_count; i++) {
        struct str text;
        bool was_new;
        map_strip_transpose(statement->left[i].text, &text);
        uint32_t index = name_map_intern(&left->names, text, &was_new);
        if (index == NAME_NONE || !ARRAY_ROOM(left->sources, index, left->capacity))
            return false;
        if (was_new)
            left->sources[index] = statement->right[0].text;
    }
    return true;
}

/* Backwards, what a name of the left side comes from: the first right-hand name of the statement that reads it, or itself. false: no
 * memory. */
static bool counterpart(const struct id_search *search, struct str *name)
{
    const struct map_program *program = search->program;
    struct left_names *left = search->left;
    for (uint32_t i = 0; i < program->count && !left->is_made; i++) {
        if (!map_is_hole(&program->statements[i].right[0]) && !left_names_add(left, &program->statements[i]))
            return false;
    }
    left->is_made = true;
    uint32_t index = name_map_find(&left->names, *name);
    if (index != NAME_NONE)
        *name = left->sources[index];
    return true;
}

static void left_names_release(struct left_names *left)
{
    name_map_release(&left->names);
    free(left->sources);
}

/*
 * Whether the left side has the key that a condition names, for "when", or lacks it, for "unless". The conditions are taken off. Backwards
 * the left side may not be known: then it has the keys that come from some of the source.
 */
static reshard_status conditions_hold(const struct id_search *search, struct map_statement *statement, const struct map_program *made,
                                      struct id_row row, bool *holds, reshard_error *err)
{
    const struct map_macro_context *context = search->context;
    const struct map_space *space = map_left_space(context);
    struct map_attribute *kept = arena_array(context->arena, statement->attribute_count, sizeof(*kept));
    uint32_t count = 0;
    *holds = true;
    if (!kept)
        return error_set_memory(err);
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        struct map_name key = { .text = attribute->value }, replaced;
        if (!is_condition(context, attribute)) {
            kept[count++] = *attribute;
            continue;
        }
        if (context->reverse && !context->target && !counterpart(search, &key.text))
            return error_set_memory(err);
        if (!replace_name(search, &key, row, 0, &replaced))
            return error_set_memory(err);
        if (name_has(replaced.text, ID_KINDS)) {
            *holds = map_diagnose(context->diagnoses, MAP_ERROR, attribute->value_span,
                                  "a condition has no placeholder but those of the statement's names",
                                  "no name of the statement has a number for '%.*s'", STR_ARG(replaced.text));
            return RESHARD_OK;
        }
        *holds &= (map_space_find(space ? space : context->source, replaced.text) != MAP_NONE) == str_is(attribute->key, "when");
        *holds &= space || can_be_read(context, statement, made);
    }
    statement->attributes = kept;
    statement->attribute_count = count;
    return RESHARD_OK;
}

static bool has_conditions(const struct map_macro_context *context, const struct map_statement *statement)
{
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        if (is_condition(context, &statement->attributes[i]))
            return true;
    }
    return false;
}

/* Whether the number is below the offset. */
static bool is_below(struct str digits, int64_t offset)
{
    uint64_t number;
    return str_to_u64(map_macro_ids_without_zeros(digits), &number) && number < (uint64_t)offset;
}

/* One statement for one row. Forwards the numbers are those of the left side; backwards those of the right. */
static reshard_status emit_row(const struct id_search *search, const struct map_statement *statement, struct id_row row,
                               struct map_program *out, reshard_error *err)
{
    const struct map_macro_context *context = search->context;
    struct map_statement copy = *statement;
    bool from_left = !context->reverse || is_kept_backwards(context, statement);
    int64_t left_shift = from_left ? 0 : search->offset, right_shift = from_left ? -search->offset : 0;
    if (from_left && is_below(row.layer, search->offset)) {
        if (!search->has_base)
            map_diagnose(context->diagnoses, MAP_ERROR, statement->span, NULL,
                         "$LAYER_ID_OFFSET counts down by one, but the source has a layer 0");
        return RESHARD_OK;
    }
    copy.left = replace_names(search, statement->left, statement->left_count, row, left_shift);
    copy.right = replace_names(search, statement->right, statement->right_count, row, right_shift);
    copy.is_expanded = true;
    if (!copy.left || !copy.right)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    bool holds = search->is_offset;
    if (!holds) {
        copy.is_optional = false;
        status = conditions_hold(search, &copy, out, row, &holds, err);
    }
    return status || !holds ? status : map_emit(context, out, &copy, err);
}

/* offset=number takes the place of the one that $LAYER_ID_OFFSET counts down by; it is taken off the copy. */
static reshard_status take_offset(struct id_search *search, struct map_statement *statement, bool *is_good, reshard_error *err)
{
    const struct map_macro_context *context = search->context;
    const struct map_attribute *offset = search->is_offset && !context->strict ? map_attribute_find(statement, "offset") : NULL;
    search->offset = search->is_offset ? 1 : 0;
    *is_good = true;
    if (!offset)
        return RESHARD_OK;
    if (!offset->is_number || offset->is_huge) {
        *is_good = map_diagnose(context->diagnoses, MAP_ERROR, offset->value_span, NULL, "the offset is a number");
        return RESHARD_OK;
    }
    struct map_attribute *kept = arena_array(context->arena, statement->attribute_count, sizeof(*kept));
    uint32_t count = 0;
    if (!kept)
        return error_set_memory(err);
    search->offset = offset->number;
    search->has_base = true;
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        if (&statement->attributes[i] != offset)
            kept[count++] = statement->attributes[i];
    }
    statement->attributes = kept;
    statement->attribute_count = count;
    return RESHARD_OK;
}

static bool has_repeated(struct str name)
{
    struct map_pattern pattern;
    unsigned seen = 0;
    bool is_repeated = false;
    if (!map_pattern_of(name, ID_KINDS, false, &pattern))
        return false;
    for (int i = 0; i < pattern.count; i++) {
        is_repeated |= (seen & 1u << pattern.holes[i]) != 0;
        seen |= 1u << pattern.holes[i];
    }
    return is_repeated;
}

static bool map_macro_ids_prepare(struct id_search *search, const struct map_statement *statement)
{
    const struct map_macro_context *context = search->context;
    unsigned wanted = search->is_offset ? OFFSET_KINDS : ID_KINDS;
    const struct map_name *name = pattern_name(context, statement, wanted);
    if (!name)
        return map_diagnose(context->diagnoses, MAP_ERROR, statement->span, "backwards the numbers are those of the right side",
                            "no name on the right has the placeholder");
    struct str text = name->text;
    if (!(search->is_offset && context->strict))
        map_strip_transpose(text, &text);
    search->kinds = 0;
    for (int kind = 0; kind < MAP_HOLE_KINDS; kind++) {
        if (wanted & 1u << kind && map_contains(text, map_hole_text[kind]))
            search->kinds |= 1u << kind;
    }
    for (uint32_t i = 0; i < statement->left_count; i++) {
        if (!map_macro_ids_check_name(search, &statement->left[i]))
            return false;
    }
    for (uint32_t i = 0; i < statement->right_count; i++) {
        if (!map_macro_ids_check_name(search, &statement->right[i]))
            return false;
    }
    if (!search->is_offset && has_repeated(text))
        map_diagnose(context->diagnoses, MAP_UNPORTABLE, name->span, NULL, "Paddle's engine fails where a name has one placeholder twice");
    /* Holes that a later macro fills match numbers here too. */
    unsigned later = search->is_offset ? (context->strict ? 0 : 1u << MAP_HOLE_EXPERT | 1u << MAP_HOLE_STAR) : 1u << MAP_HOLE_STAR;
    if (!map_pattern_of(text, search->kinds | later, context->strict, &search->pattern))
        return map_diagnose(context->diagnoses, MAP_ERROR, name->span, NULL, "more than %d placeholders in one name", MAP_HOLES_MAX);
    return true;
}

static bool search_all(struct id_search *search, const struct map_statement *statement, const struct map_program *made)
{
    const struct map_macro_context *context = search->context;
    bool is_twice = search->is_offset && context->strict && search->pattern.count > 1;
    bool is_kept = is_kept_backwards(context, statement);
    if (!is_twice && !search_space(search, is_kept ? context->target : context->source))
        return false;
    if (is_kept) {
        rows_sort(&search->found);
        return true;
    }
    if (!search->found.count && map_is_hole(&statement->left[0]) && !search_space(search, context->target))
        return false;
    rows_sort(&search->found);
    warn_of_made(search, statement, made);
    if (!search->found.count && !search->is_offset && !search_made(search, statement, made))
        return false;
    rows_sort(&search->found);
    return !context->strict || search->kinds != ID_KINDS || make_product(search->context, &search->found);
}

static reshard_status expand_one(struct id_search *search, const struct map_statement *written, const struct map_program *made,
                                 struct map_program *out, reshard_error *err)
{
    struct map_statement copy = *written, *statement = &copy;
    bool is_good;
    reshard_status status = take_offset(search, statement, &is_good, err);
    if (status || !is_good || !check_strings(search->context, statement) || !map_macro_ids_prepare(search, statement))
        return status;
    if (!search_all(search, statement, made))
        return error_set_memory(err);
    if (!search->found.count && !statement->is_optional && !is_kept_backwards(search->context, statement))
        map_diagnose(search->context->diagnoses, MAP_WARNING, statement->span, "the numbers come from the keys of the source",
                     "no key matches: the statement has no effect");
    for (uint32_t i = 0; i < search->found.count && !status; i++)
        status = emit_row(search, statement, search->found.rows[i], out, err);
    return status;
}

static bool has_placeholder(const struct map_macro_context *context, const struct map_statement *statement, bool is_offset)
{
    if (statement_kinds(statement, is_offset ? OFFSET_KINDS : ID_KINDS))
        return true;
    for (uint32_t i = 0; i < statement->attribute_count && !is_offset; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        if (!attribute->is_number && name_has(attribute->value, ID_KINDS) && !is_condition(context, attribute))
            return true;
    }
    return false;
}

/* Whether the source has what an optional statement without placeholders reads first. */
static bool is_present(const struct map_macro_context *context, const struct map_statement *statement)
{
    struct str name = context->reverse ? statement->right[0].text : statement->left[0].text, values[MAP_HOLE_KINDS];
    struct map_pattern pattern;
    uint32_t first, end;
    map_strip_transpose(name, &name);
    if (!map_contains(name, "*") || !map_pattern_of(name, 1u << MAP_HOLE_STAR, false, &pattern))
        return map_space_find(context->source, name) != MAP_NONE;
    map_space_prefix(context->source, pattern.literals[0], &first, &end);
    for (uint32_t i = first; i < end; i++) {
        if (map_pattern_match(&pattern, context->source->weights[context->source->sorted[i]].name, values))
            return true;
    }
    return false;
}

/* Backwards the last statement is executed first: the list is made from its end, and turned round. from: the first to be turned. */
static void turn_round(struct map_program *list, uint32_t from)
{
    for (uint32_t i = 0; i < (list->count - from) / 2; i++) {
        struct map_statement spare = list->statements[from + i];
        list->statements[from + i] = list->statements[list->count - 1 - i];
        list->statements[list->count - 1 - i] = spare;
    }
}

reshard_status map_macro_ids(const struct map_macro_context *context, bool is_offset, const struct map_program *in, struct map_program *out,
                             reshard_error *err)
{
    struct left_names left = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < in->count && !status; i++) {
        const struct map_statement *statement = &in->statements[context->reverse ? in->count - 1 - i : i];
        struct id_search search = { .context = context, .program = in, .left = &left, .is_offset = is_offset };
        if (!has_placeholder(context, statement, is_offset)) {
            struct map_statement copy = *statement;
            bool holds = true;
            if (!is_offset && has_conditions(context, statement))
                status = conditions_hold(&search, &copy, out, (struct id_row){ 0 }, &holds, err);
            if (!is_offset && statement->is_optional) {
                copy.is_optional = false;
                holds &= is_present(context, statement);
            }
            if (!status && holds)
                status = map_emit(context, out, &copy, err);
            continue;
        }
        uint32_t before = out->count;
        status = expand_one(&search, statement, out, out, err);
        if (context->reverse)
            turn_round(out, before);
        free(search.found.rows);
    }
    left_names_release(&left);
    if (context->reverse)
        turn_round(out, 0);
    return status;
}
