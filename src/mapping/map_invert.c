/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_invert.h"

#include "mapping/map_macro.h"
#include "mapping/map_permute.h"
#include "mapping/map_report.h"

#include <stdio.h>

#define PARTS_MAX 4096 /* of a join whose parts have different extents */

struct inversion {
    const struct map_program *expanded;
    const struct map_result *result;
    const struct map_statement *statement;
    struct buffer *out;
    struct map_diagnoses *diagnoses;
    bool is_expanded; /* the statement is one of the expanded ones */
};

static bool map_invert_fail(const struct inversion *inversion, struct map_span span, const char *hint, const char *message)
{
    if (inversion->diagnoses)
        map_diagnose(inversion->diagnoses, MAP_ERROR, span, hint, "%s", message);
    return false;
}

static void map_invert_append_name(const struct inversion *inversion, const struct map_name *name, bool strip)
{
    struct map_name copy = *name;
    struct map_statement statement = { .right = &copy, .right_count = 1 };
    struct buffer text = { 0 };
    if (strip)
        map_strip_transpose(name->text, &copy.text);
    /* The statement's printer knows how names are quoted; the arrow before the name is cut off. */
    map_statement_print(&statement, &text);
    if (text.failed || text.size < 4)
        inversion->out->failed = true;
    else
        buffer_append(inversion->out, text.data + 4, text.size - 4);
    buffer_release(&text);
}

static void append_names(const struct inversion *inversion, const struct map_name *names, uint32_t count, bool strip)
{
    for (uint32_t i = 0; i < count; i++) {
        if (i)
            buffer_append_text(inversion->out, ", ");
        map_invert_append_name(inversion, &names[i], strip);
    }
}

/* `A^T -> A` for every name that had ^T: behind the arrow it cannot stand. */
static void append_transposes(const struct inversion *inversion)
{
    struct str base;
    for (uint32_t i = 0; i < inversion->statement->left_count; i++) {
        const struct map_name *name = &inversion->statement->left[i];
        if (!map_strip_transpose(name->text, &base))
            continue;
        map_invert_append_name(inversion, name, false);
        buffer_append_text(inversion->out, " -> ");
        map_invert_append_name(inversion, name, true);
        buffer_append_text(inversion->out, "\n");
    }
}

static void append_attributes(const struct inversion *inversion)
{
    const struct map_statement *statement = inversion->statement;
    if (statement->flag)
        buffer_printf(inversion->out, ", %s", map_flag_name(statement->flag));
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        const char *quote = attribute->is_number ? "" : "\"";
        buffer_printf(inversion->out, ", %.*s=%s", STR_ARG(attribute->key), quote);
        buffer_append_str(inversion->out, attribute->value);
        buffer_append_text(inversion->out, quote);
    }
}

static void append_turned(const struct inversion *inversion)
{
    append_names(inversion, inversion->statement->right, inversion->statement->right_count, false);
    buffer_append_text(inversion->out, " -> ");
    append_names(inversion, inversion->statement->left, inversion->statement->left_count, true);
}

/* The first expanded statement that comes from the same place in the text; macros keep the order. */
static uint32_t first_expanded(const struct inversion *inversion)
{
    uint32_t low = 0, high = inversion->expanded->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (inversion->expanded->statements[middle].span.offset < inversion->statement->span.offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool same_trace(const struct map_trace *a, const struct map_trace *b)
{
    return a->dtype == b->dtype && a->count == b->count &&
           (!a->count || memcmp(a->extents, b->extents, a->count * sizeof(*a->extents)) == 0);
}

/* The record of the statement, or the first one of those that it became; all of them must say the same. NULL: it was never executed. */
static const struct map_trace *find_trace(const struct inversion *inversion, bool *agree)
{
    const struct map_program *expanded = inversion->expanded;
    const struct map_trace *found = NULL;
    *agree = true;
    if (inversion->is_expanded)
        return &inversion->result->traces[inversion->statement - expanded->statements];
    for (uint32_t i = first_expanded(inversion);
         i < expanded->count && expanded->statements[i].span.offset == inversion->statement->span.offset; i++) {
        const struct map_trace *trace = &inversion->result->traces[i];
        if (!trace->count && trace->dtype == MAP_DTYPE_NONE)
            continue;
        *agree &= !found || same_trace(found, trace);
        found = found ? found : trace;
    }
    return found;
}

/* ---- joins ---- */

static int64_t common_width(const int64_t *extents, uint32_t count)
{
    int64_t width = 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t other = extents[i];
        while (other) {
            int64_t rest = width % other;
            width = other;
            other = rest;
        }
    }
    return width;
}

/* Parts of different extents are cut out of equal ones: B -> B.part[0:n], then B.part[a:b] -> A. */
static bool append_unequal(const struct inversion *inversion, const struct map_trace *trace)
{
    const struct map_statement *statement = inversion->statement;
    int64_t width = common_width(trace->extents, statement->left_count), total = 0, at = 0;
    char text[1024];
    if (trace->count != statement->left_count || !map_is_plain_name(statement->right[0].text) || statement->right[0].text.size > 900)
        return map_invert_fail(inversion, statement->span, NULL, "the parts differ in extent, and one statement cannot take them apart");
    for (uint32_t i = 0; i < statement->left_count; i++)
        total += width ? trace->extents[i] / width : 0;
    if (!width || total > PARTS_MAX)
        return map_invert_fail(inversion, statement->span, NULL,
                    "the extents of the joined parts have no large common divisor: an equal split cannot take them apart");
    snprintf(text, sizeof(text), "%.*s", STR_ARG(statement->right[0].text));
    buffer_printf(inversion->out, "%s -> %s.part[0:%lld], axis=%.*s\n", text, text, (long long)total,
                  STR_ARG(statement->attributes[0].value));
    for (uint32_t i = 0; i < statement->left_count; i++) {
        int64_t count = trace->extents[i] / width;
        if (!count)
            return map_invert_fail(inversion, statement->left[i].span, NULL, "an empty part cannot be cut out again");
        buffer_printf(inversion->out, "%s.part[%lld:%lld] -> ", text, (long long)at, (long long)(at + count));
        map_invert_append_name(inversion, &statement->left[i], true);
        buffer_printf(inversion->out, ", axis=%.*s\n", STR_ARG(statement->attributes[0].value));
        at += count;
    }
    return true;
}

static bool invert_join(const struct inversion *inversion)
{
    const struct map_statement *statement = inversion->statement;
    bool agree;
    const struct map_trace *trace = find_trace(inversion, &agree);
    bool is_equal = true;
    if (!agree)
        return map_invert_fail(inversion, statement->span, NULL, "the statement joins parts of different extents for different numbers");
    for (uint32_t i = 1; trace && i < trace->count; i++)
        is_equal &= trace->extents[i] == trace->extents[0];
    if (is_equal) {
        append_turned(inversion);
        append_attributes(inversion);
        buffer_append_text(inversion->out, "\n");
    } else if (!append_unequal(inversion, trace)) {
        return false;
    }
    append_transposes(inversion);
    return true;
}

/* ---- one to one ---- */

static bool invert_permute(const struct inversion *inversion, const struct map_attribute *attribute)
{
    int64_t values[RANK_MAX], inverse[RANK_MAX];
    uint8_t axes[RANK_MAX];
    int count;
    if (map_list_parse(attribute->value, values, &count) != MAP_LIST_OK || !map_permutation_of(values, count, count, axes))
        return map_invert_fail(inversion, attribute->value_span, NULL, "the permutation cannot be read");
    for (int i = 0; i < count; i++)
        inverse[values[i]] = i;
    append_turned(inversion);
    buffer_append_text(inversion->out, ", permute=\"[");
    for (int i = 0; i < count; i++)
        buffer_printf(inversion->out, "%s%lld", i ? ", " : "", (long long)inverse[i]);
    buffer_append_text(inversion->out, "]\"\n");
    append_transposes(inversion);
    return true;
}

static const char *cast_name(enum dtype dtype)
{
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16 || dtype == DTYPE_F32 || dtype == DTYPE_F64 ? dtype_info(dtype)->torch_name : NULL;
}

static bool invert_cast(const struct inversion *inversion)
{
    const struct map_statement *statement = inversion->statement;
    const struct map_attribute *last = &statement->attributes[statement->attribute_count - 1];
    bool agree;
    enum dtype target;
    const struct map_trace *trace = find_trace(inversion, &agree);
    if (!agree || !trace || !cast_name(trace->dtype) || !dtype_from_torch(last->value, &target))
        return map_invert_fail(inversion, statement->span, NULL,
                    "the type before the cast is not the same for all numbers, or none that can be cast to");
    if (!map_cast_is_exact(trace->dtype, target))
        return map_invert_fail(inversion, last->value_span, "values that are rounded do not come back", "the cast rounds");
    append_turned(inversion);
    buffer_printf(inversion->out, ", src_dtype=\"%s\", dst_dtype=\"%s\"\n", cast_name(target), cast_name(trace->dtype));
    append_transposes(inversion);
    return true;
}

static bool invert_one(const struct inversion *inversion)
{
    const struct map_statement *statement = inversion->statement;
    struct str base;
    if (map_is_hole(&statement->right[0]))
        return map_is_hole(&statement->left[0]) ||
               map_invert_fail(inversion, statement->span, "its values are nowhere in the target", "the statement drops a tensor");
    const struct map_attribute *first = statement->attributes;
    if (statement->attribute_count && (str_is(first->key, "permute") || str_is(first->key, "transpose")))
        return invert_permute(inversion, first);
    if (statement->attribute_count && !str_is(first->key, "axis"))
        return invert_cast(inversion);
    append_names(inversion, statement->right, 1, false);
    bool is_transposed = map_strip_transpose(statement->left[0].text, &base);
    buffer_append_text(inversion->out, is_transposed ? "^T -> " : " -> ");
    append_names(inversion, statement->left, 1, true);
    buffer_append_text(inversion->out, "\n");
    return true;
}

static bool has_offset(const struct map_statement *statement)
{
    for (uint32_t i = 0; i < statement->left_count; i++) {
        if (memmem(statement->left[i].text.data, statement->left[i].text.size, "$LAYER_ID_OFFSET", 16))
            return true;
    }
    return false;
}

/* stack and unstack are each other's inverse. */
static bool invert_stack(const struct inversion *inversion, const struct map_attribute *attribute)
{
    append_turned(inversion);
    buffer_printf(inversion->out, ", %s=%.*s\n", str_is(attribute->key, "stack") ? "unstack" : "stack", STR_ARG(attribute->value));
    append_transposes(inversion);
    return true;
}

/* Whichever shape the target has is taken: the same text serves both ways. */
static bool invert_reshape(const struct inversion *inversion, const struct map_attribute *attribute)
{
    append_turned(inversion);
    buffer_append_text(inversion->out, ", reshape=\"");
    buffer_append_str(inversion->out, attribute->value);
    buffer_append_text(inversion->out, "\"\n");
    append_transposes(inversion);
    return true;
}

static bool invert_statement(const struct inversion *inversion)
{
    const struct map_statement *statement = inversion->statement;
    const struct map_attribute *stack = map_attribute_find(statement, "stack");
    stack = stack ? stack : map_attribute_find(statement, "unstack");
    if (statement->is_optional || map_attribute_find(statement, "offset") || map_attribute_find(statement, "when") ||
        map_attribute_find(statement, "unless"))
        return map_invert_fail(inversion, statement->span, NULL,
                               "the condition asks for keys of the source, which the way back does not have");
    if (has_offset(statement))
        return map_invert_fail(inversion, statement->span, NULL, "$LAYER_ID_OFFSET counts down only");
    if (stack)
        return invert_stack(inversion, stack);
    const struct map_attribute *reshape = map_attribute_find(statement, "reshape");
    if (reshape)
        return invert_reshape(inversion, reshape);
    bool is_join = statement->left_count > 1 || statement->left[0].has_array ||
                   memchr(statement->left[0].text.data, '*', statement->left[0].text.size);
    if (!statement->flag && statement->left_count == 1 && statement->right_count == 1 && !statement->right[0].has_array && !is_join)
        return invert_one(inversion);
    if (!statement->flag && is_join)
        return invert_join(inversion);
    append_turned(inversion);
    append_attributes(inversion);
    buffer_append_text(inversion->out, "\n");
    append_transposes(inversion);
    return true;
}

bool map_invert(const struct map_program *program, const struct map_program *expanded, const struct map_result *result, struct buffer *out,
                struct map_diagnoses *diagnoses)
{
    bool is_good = true;
    for (uint32_t i = program->count; i-- > 0;) {
        struct inversion inversion = { expanded, result, &program->statements[i], out, diagnoses, program == expanded };
        is_good &= invert_statement(&inversion);
    }
    return is_good && !out->failed;
}
