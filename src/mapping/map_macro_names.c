/* SPDX-License-Identifier: Apache-2.0 */
/* The macros that replace a name by a list of names, or by another name: arrays, stars, transposes. */
#include "mapping/map_macro.h"
#include "base/array.h"
#include "mapping/map_pattern.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A list of names that is being made. */
struct name_list {
    struct map_name *rows;
    uint32_t count, capacity;
};

static bool list_append(const struct map_macro_context *context, struct name_list *list, const struct map_name *name)
{
    if (!arena_charge(context->arena, sizeof(*name)) || !ARRAY_ROOM(list->rows, list->count, list->capacity))
        return false;
    list->rows[list->count++] = *name;
    return true;
}

static bool list_keep(struct name_list *list, struct arena *arena, struct map_name **names, uint32_t *count)
{
    struct map_name *copy = arena_array(arena, list->count, sizeof(*copy));
    if (!copy)
        return false;
    if (list->count)
        memcpy(copy, list->rows, list->count * sizeof(*copy));
    *names = copy;
    *count = list->count;
    return true;
}

/* ---- arrays ---- */

static bool has_arrays(const struct map_statement *statement)
{
    for (uint32_t i = 0; i < statement->left_count; i++) {
        if (statement->left[i].has_array)
            return true;
    }
    for (uint32_t i = 0; i < statement->right_count; i++) {
        if (statement->right[i].has_array)
            return true;
    }
    return false;
}

static reshard_status append_array(const struct map_macro_context *context, const struct map_name *name, struct name_list *list,
                                   reshard_error *err)
{
    uint64_t wanted = (uint64_t)(name->end - name->begin);
    if (wanted > context->limits->map_names)
        return error_set_limit(err, "map_names", wanted, context->limits->map_names);
    /* A name's text has a digit and its end at least; the name is kept once as the list grows, once in the statement. */
    if (!arena_fits(context->arena, (size_t)wanted, 2 * sizeof(*name) + name->text.size + 2))
        return error_set_memory(err);
    for (int64_t i = name->begin; i < name->end; i++) {
        struct map_name one = { .span = name->span, .is_quoted = name->is_quoted };
        struct str suffix = name->is_inline || i + 1 == name->end ? name->array_suffix : (struct str){ 0 };
        char number[32];
        snprintf(number, sizeof(number), "%s%" PRId64, name->is_inline ? "" : "_", i);
        one.text = ARENA_JOIN(context->arena, name->text, str_of(number), suffix);
        if (!one.text.data)
            return error_set_memory(err);
        if (!list_append(context, list, &one))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static reshard_status expand_arrays(const struct map_macro_context *context, struct map_name **names, uint32_t *count, reshard_error *err)
{
    struct name_list list = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < *count && !status; i++) {
        if ((*names)[i].has_array)
            status = append_array(context, &(*names)[i], &list, err);
        else if (!list_append(context, &list, &(*names)[i]))
            status = error_set_memory(err);
    }
    if (!status && !list_keep(&list, context->arena, names, count))
        status = error_set_memory(err);
    free(list.rows);
    return status;
}

reshard_status map_macro_arrays(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                                reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < in->count && !status; i++) {
        struct map_statement copy = in->statements[i];
        if (has_arrays(&copy)) {
            copy.is_expanded = true;
            status = expand_arrays(context, &copy.left, &copy.left_count, err);
            if (!status)
                status = expand_arrays(context, &copy.right, &copy.right_count, err);
        }
        if (!status)
            status = map_emit(context, out, &copy, err);
    }
    return status;
}

/* ---- stars ---- */

static bool has_stars(const struct map_name *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (memchr(names[i].text.data, '*', names[i].text.size))
            return true;
    }
    return false;
}

struct star_match {
    struct str digits, name;
};

static int compare_matches(const void *a, const void *b)
{
    const struct star_match *x = a, *y = b;
    return map_digits_compare(x->digits, y->digits);
}

/* Weights of the space that match, in numeric order; NULL without memory. *count may be 0. */
static struct star_match *star_matches(const struct map_space *space, const struct map_pattern *pattern, uint32_t *count)
{
    uint32_t first, end;
    map_space_prefix(space, pattern->literals[0], &first, &end);
    struct star_match *matches = array_zeroed((size_t)(end - first), sizeof(*matches));
    *count = 0;
    for (uint32_t i = first; matches && i < end; i++) {
        struct str values[MAP_HOLE_KINDS] = { 0 }, name = space->weights[space->sorted[i]].name;
        if (map_pattern_match(pattern, name, values))
            matches[(*count)++] = (struct star_match){ values[MAP_HOLE_STAR], name };
    }
    if (matches && *count)
        qsort(matches, *count, sizeof(*matches), compare_matches);
    return matches;
}

static bool append_matches(const struct map_macro_context *context, const struct map_name *name, bool is_transposed,
                           const struct star_match *matches, uint32_t count, struct name_list *list)
{
    for (uint32_t i = 0; i < count; i++) {
        struct map_name one = { .text = matches[i].name, .span = name->span, .is_quoted = name->is_quoted };
        if (is_transposed) {
            one.text = ARENA_JOIN(context->arena, one.text, STR("^T"));
            if (!one.text.data)
                return false;
        }
        if (!list_append(context, list, &one))
            return false;
    }
    return true;
}

int64_t map_stack_extent(const struct map_macro_context *context, const struct map_statement *statement)
{
    const struct map_attribute *unstack = map_attribute_find(statement, "unstack"),
                               *attribute = unstack ? unstack : map_attribute_find(statement, "stack");
    const struct map_name *names = unstack ? statement->left : statement->right;
    const struct map_space *space = unstack ? map_left_space(context) : map_right_space(context);
    struct str text;
    if (context->strict || !space || !attribute || !attribute->is_number || (unstack ? statement->left_count : statement->right_count) != 1)
        return -1;
    bool is_transposed = map_strip_transpose(names[0].text, &text);
    uint32_t weight = map_space_find(space, text);
    const struct map_tensor *tensor = weight == MAP_NONE ? NULL : map_space_shaped(space, weight);
    if (!tensor || attribute->number >= tensor->rank)
        return -1;
    return tensor->shape[is_transposed ? tensor->rank - 1 - attribute->number : attribute->number];
}

/* One name for each number below count: where no keys say which there are. */
static reshard_status append_counted(const struct map_macro_context *context, const struct map_name *name, bool is_transposed,
                                     const struct map_pattern *pattern, int64_t count, struct name_list *list, reshard_error *err)
{
    struct str before = pattern->literals[0], behind = pattern->literals[1];
    if ((uint64_t)count > context->limits->map_names)
        return error_set_limit(err, "map_names", (uint64_t)count, context->limits->map_names);
    for (int64_t i = 0; i < count; i++) {
        struct map_name one = { .span = name->span, .is_quoted = name->is_quoted };
        char number[32];
        snprintf(number, sizeof(number), "%" PRId64, i);
        one.text = ARENA_JOIN(context->arena, before, str_of(number), behind, is_transposed ? STR("^T") : STR(""));
        if (!one.text.data)
            return error_set_memory(err);
        if (!list_append(context, list, &one))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* Read backwards, Paddle's engine looks for the keys on the wrong side. false without memory. */
static bool warn_side(const struct map_macro_context *context, const struct map_name *name, bool is_left, const struct map_pattern *pattern)
{
    const struct map_space *space = is_left ? map_right_space(context) : map_left_space(context);
    uint32_t count = 0;
    struct star_match *matches = space ? star_matches(space, pattern, &count) : NULL;
    bool done = !space || matches;
    if (done && !count)
        map_diagnose(context->diagnoses, MAP_UNPORTABLE, name->span, NULL,
                     "read backwards, Paddle's engine looks for the star's keys in the %s, where none matches",
                     is_left ? "source" : "target");
    free(matches);
    return done;
}

/* *is_good is cleared where the name was diagnosed. counted: how many names a star is if no keys are known; -1: that is an error. */
static reshard_status append_star(const struct map_macro_context *context, const struct map_name *name, bool is_left, int64_t counted,
                                  struct name_list *list, bool *is_good, reshard_error *err)
{
    const struct map_space *space = is_left ? map_left_space(context) : map_right_space(context);
    const char *side = is_left != context->reverse ? "source" : "target";
    struct str text;
    struct map_pattern pattern;
    uint32_t count;
    bool is_transposed = map_strip_transpose(name->text, &text);
    if (!map_pattern_of(text, 1u << MAP_HOLE_STAR, false, &pattern) || pattern.count != 1) {
        *is_good = map_diagnose(context->diagnoses, MAP_ERROR, name->span, NULL, "a name may have one star");
        return RESHARD_OK;
    }
    if (!space && counted >= 0)
        return append_counted(context, name, is_transposed, &pattern, counted, list, err);
    if (!space) {
        *is_good = map_diagnose(context->diagnoses, MAP_ERROR, name->span, "give the target",
                                "a star needs the keys of the %s, which is not known", side);
        return RESHARD_OK;
    }
    if (is_transposed)
        map_diagnose(context->diagnoses, MAP_UNPORTABLE, name->span, NULL, "Paddle's engine finds no key for a star in a transposed name");
    struct star_match *matches = star_matches(space, &pattern, &count);
    if (matches && context->reverse && !warn_side(context, name, is_left, &pattern)) {
        free(matches);
        return error_set_memory(err);
    }
    if (matches && !count && counted >= 0) {
        free(matches);
        return append_counted(context, name, is_transposed, &pattern, counted, list, err);
    }
    bool done = matches && append_matches(context, name, is_transposed, matches, count, list);
    free(matches);
    if (!done)
        return error_set_memory(err);
    if (!count)
        *is_good = map_diagnose(context->diagnoses, MAP_ERROR, name->span, "a star stands for decimal digits",
                                "no key of the %s matches '%.*s'", side, STR_ARG(text));
    return RESHARD_OK;
}

static reshard_status expand_stars(const struct map_macro_context *context, bool is_left, int64_t counted, struct map_name **names,
                                   uint32_t *count, bool *is_good, reshard_error *err)
{
    struct name_list list = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < *count && !status && *is_good; i++) {
        if (has_stars(&(*names)[i], 1))
            status = append_star(context, &(*names)[i], is_left, counted, &list, is_good, err);
        else if (!list_append(context, &list, &(*names)[i]))
            status = error_set_memory(err);
    }
    if (!status && *is_good && !list_keep(&list, context->arena, names, count))
        status = error_set_memory(err);
    free(list.rows);
    return status;
}

reshard_status map_macro_stars(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                               reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < in->count && !status; i++) {
        struct map_statement copy = in->statements[i];
        bool is_good = true;
        int64_t counted = map_stack_extent(context, &copy);
        if (has_stars(copy.left, copy.left_count)) {
            copy.is_expanded = true;
            status = expand_stars(context, true, counted, &copy.left, &copy.left_count, &is_good, err);
        }
        if (!status && is_good && has_stars(copy.right, copy.right_count)) {
            copy.is_expanded = true;
            status = expand_stars(context, false, counted, &copy.right, &copy.right_count, &is_good, err);
        }
        if (!status && is_good)
            status = map_emit(context, out, &copy, err);
    }
    return status;
}

/* ---- sides and transposes ---- */

bool map_strip_transpose(struct str name, struct str *out)
{
    *out = name;
    if (name.size < 3 || !str_ends_with(name, "^T"))
        return false;
    out->size -= 2;
    return true;
}

/* Upstream refuses the statement if ^T stands at the end of a right-hand name. */
static bool check_sides(const struct map_macro_context *context, const struct map_statement *statement)
{
    struct str name;
    if (statement->left_count > 1 && statement->right_count > 1)
        return map_diagnose(context->diagnoses, MAP_ERROR, statement->span, "join them into one name first, then split that",
                            "%u names cannot become %u names in one statement", statement->left_count, statement->right_count);
    for (uint32_t i = 0; i < statement->right_count; i++) {
        if (map_strip_transpose(statement->right[i].text, &name))
            return map_diagnose(context->diagnoses, MAP_ERROR, statement->right[i].span, "assign first (A -> B), then transpose (B^T -> B)",
                                "'%.*s' cannot be assigned: ^T stands only on the left", STR_ARG(statement->right[i].text));
    }
    return true;
}

void map_macro_check_sides(const struct map_macro_context *context, struct map_program *list)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        if (check_sides(context, &list->statements[i]))
            list->statements[kept++] = list->statements[i];
    }
    list->count = kept;
}

/* name_transpose_tmp; remembers which name it stands for. */
static bool transposed_name(const struct map_macro_context *context, const struct map_name *name, struct str base, struct map_name *out)
{
    const struct str text = ARENA_JOIN(context->arena, base, STR("_transpose_tmp"));
    *out = (struct map_name){ .text = text, .span = name->span, .is_made = true, .transpose_of = base };
    return text.data != NULL;
}

static reshard_status emit_transpose(const struct map_macro_context *context, const struct map_statement *statement,
                                     const struct map_name *name, const struct map_name *made, struct map_program *out, reshard_error *err)
{
    struct map_statement transpose = {
        .left_count = 1, .right_count = 1, .attribute_count = 1, .span = statement->span, .is_expanded = true
    };
    transpose.left = arena_array(context->arena, 1, sizeof(*transpose.left));
    transpose.right = arena_array(context->arena, 1, sizeof(*transpose.right));
    transpose.attributes = arena_array(context->arena, 1, sizeof(*transpose.attributes));
    if (!transpose.left || !transpose.right || !transpose.attributes)
        return error_set_memory(err);
    transpose.left[0] = *name;
    transpose.left[0].text = made->transpose_of;
    transpose.right[0] = *made;
    transpose.attributes[0] =
        (struct map_attribute){ .key = STR("permute"), .value = STR("[]"), .key_span = name->span, .value_span = name->span, .quote = '"' };
    return map_emit(context, out, &transpose, err);
}

static bool is_repeated(const struct map_statement *statement, uint32_t index)
{
    for (uint32_t i = 0; i < index; i++) {
        if (str_equal(statement->left[i].text, statement->left[index].text))
            return true;
    }
    return false;
}

static reshard_status expand_transposes(const struct map_macro_context *context, const struct map_statement *statement,
                                        struct map_program *out, reshard_error *err)
{
    struct map_statement copy = *statement;
    reshard_status status = RESHARD_OK;
    struct str base;
    copy.is_expanded = true;
    copy.left = arena_array(context->arena, statement->left_count, sizeof(*copy.left));
    if (!copy.left)
        return error_set_memory(err);
    for (uint32_t i = 0; i < statement->left_count && !status; i++) {
        copy.left[i] = statement->left[i];
        if (!map_strip_transpose(statement->left[i].text, &base))
            continue;
        if (!transposed_name(context, &statement->left[i], base, &copy.left[i]))
            return error_set_memory(err);
        if (!is_repeated(statement, i))
            status = emit_transpose(context, statement, &statement->left[i], &copy.left[i], out, err);
    }
    return status ? status : map_emit(context, out, &copy, err);
}

reshard_status map_macro_transposes(const struct map_macro_context *context, const struct map_program *in, struct map_program *out,
                                    reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    struct str base;
    for (uint32_t i = 0; i < in->count && !status; i++) {
        const struct map_statement *statement = &in->statements[i];
        bool any = false;
        for (uint32_t j = 0; j < statement->left_count && !any; j++)
            any = map_strip_transpose(statement->left[j].text, &base);
        status = any ? expand_transposes(context, statement, out, err) : map_emit(context, out, statement, err);
    }
    return status;
}
