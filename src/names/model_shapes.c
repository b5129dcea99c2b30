/* SPDX-License-Identifier: Apache-2.0 */
#include "names/model_shapes.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/arithmetic.h"
#include "base/array.h"
#include "base/model_data.h"
#include "encoding/json.h"
#include "names/map_values.h"

#define SHAPES_FILE "hf.shapes"
#define RANGES_MAX 4
#define RANGE_MAX 65536      /* layers, or experts */
#define TENSORS_MAX 1000000u /* ten times what the largest models have: some hundred bytes can ask for more */
#define NESTING_MAX 8        /* of brackets */

struct shape_range {
    struct str name;
    int64_t begin, end;
};

/* A section of the text being read for one config.json. */
struct shapes_reader {
    struct map_constants numbers;
    struct value_graph config;
    struct shape_range ranges[RANGES_MAX];
    uint32_t range_count;
    struct model_shapes *out;
    const struct limits *limits;
    bool is_refused; /* a member of config.json that nothing is known about is set */
    bool is_number;  /* of a section, what is meant by numbers alone counts */
};

/* ---- numbers ---- */

/* What is left of an expression. Names and numbers may be absent or not fit: then the text is not to be evaluated. */
struct expression {
    const struct map_constants *numbers;
    const char *at, *end;
    int depth;
};

static bool expression_sum(struct expression *expression, int64_t *out);

static bool is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static bool expression_atom(struct expression *expression, int64_t *out)
{
    const char *start = expression->at;
    if (start < expression->end && *start == '(') {
        expression->at++;
        bool is_read = ++expression->depth < NESTING_MAX && expression_sum(expression, out);
        expression->depth--;
        return is_read && expression->at < expression->end && *expression->at++ == ')';
    }
    while (expression->at < expression->end && is_word_char(*expression->at))
        expression->at++;
    const struct str word = { start, (size_t)(expression->at - start) };
    uint64_t number;
    if (!word.size)
        return false;
    if (*start < '0' || *start > '9')
        return map_constants_find(expression->numbers, word, out);
    if (!str_to_u64(word, &number) || number > INT64_MAX)
        return false;
    *out = (int64_t)number;
    return true;
}

static bool expression_product(struct expression *expression, int64_t *out)
{
    int64_t right;
    bool is_read = expression_atom(expression, out);
    while (is_read && expression->at < expression->end && strchr("*/%", *expression->at)) {
        const char operator = *expression->at++;
        is_read = expression_atom(expression, &right);
        if (is_read && operator == '%' && right > 0)
            *out %= right;
        else
            is_read = is_read && operator != '%' && arithmetic_apply(operator, *out, right, out);
    }
    return is_read;
}

static bool expression_sum(struct expression *expression, int64_t *out)
{
    int64_t right;
    bool is_read = expression_product(expression, out);
    while (is_read && expression->at < expression->end && strchr("+-", *expression->at)) {
        const char operator = *expression->at++;
        is_read = expression_product(expression, &right) && arithmetic_apply(operator, *out, right, out);
    }
    return is_read;
}

static bool evaluate(const struct map_constants *numbers, struct str text, int64_t *out)
{
    struct expression expression = { numbers, text.data, text.data + text.size, 0 };
    return expression_sum(&expression, out) && expression.at == expression.end;
}

/* A comparison: two expressions with one of < >= > == between them. */
static bool evaluate_condition(const struct map_constants *numbers, struct str text, bool *holds)
{
    size_t at = 0;
    while (at < text.size && !strchr("<>=", text.data[at]))
        at++;
    size_t size = at + 1 < text.size && text.data[at + 1] == '=' ? 2 : 1;
    int64_t left, right;
    if (at >= text.size || !evaluate(numbers, (struct str){ text.data, at }, &left) ||
        !evaluate(numbers, (struct str){ text.data + at + size, text.size - at - size }, &right))
        return false;
    const char *operator = text.data + at;
    *holds = *operator == '=' ? left == right : *operator == '>' ? left > right || (size == 2 && left == right) : left < right;
    return true;
}

/* ---- lines ---- */

static reshard_status refuse_line(struct str line, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "config.json lacks, or has in another way, what tells the shape of '%.*s'",
                     STR_ARG(line));
}

/* "[a,b*c]" */
static reshard_status read_axes(struct shapes_reader *reader, struct str text, int64_t *shape, int *rank, reshard_error *err)
{
    struct str rest = { text.data + 1, text.size - 2 };
    for (*rank = 0; rest.size && *rank < RANK_MAX; ++*rank) {
        struct str axis = str_take(&rest, ',');
        if (!evaluate(&reader->numbers, axis, &shape[*rank]) || shape[*rank] < 0)
            return refuse_line(text, err);
    }
    return RESHARD_OK;
}

static reshard_status add_expected(struct shapes_reader *reader, struct str key, struct str rest, bool is_optional, reshard_error *err)
{
    struct model_shapes *out = reader->out;
    const struct str shape_text = str_take_word(&rest);
    int64_t shape[RANK_MAX];
    int rank;
    uint32_t tensor;
    for (struct str word = str_take_word(&rest); word.size; word = str_take_word(&rest)) {
        bool holds = str_is(word, "if");
        if (!holds && !evaluate_condition(&reader->numbers, word, &holds))
            return refuse_line(word, err);
        if (!holds)
            return RESHARD_OK;
    }
    reshard_status status = read_axes(reader, shape_text, shape, &rank, err);
    if (!status && out->catalog->tensor_count >= reader->limits->tensors)
        status = error_set_limit(err, "tensors", (uint64_t)out->catalog->tensor_count + 1, reader->limits->tensors);
    if (!status && out->catalog->tensor_count >= TENSORS_MAX)
        status = error_set(err, RESHARD_ERR_LIMIT, "config.json asks for more than %u tensors", TENSORS_MAX);
    if (!status)
        status = catalog_add_tensor(out->catalog, key, out->dtype == DTYPE_COUNT ? DTYPE_F32 : out->dtype, rank, shape, &tensor, err);
    if (status)
        return status;
    out->catalog->tensors[tensor].flags |= TENSOR_NO_DATA;
    if (!ARRAY_ROOM(out->is_optional, tensor, out->optional_capacity))
        return error_set_memory(err);
    out->is_optional[tensor] = is_optional;
    return RESHARD_OK;
}

static reshard_status add_ignored(struct model_shapes *out, struct str glob, reshard_error *err)
{
    if (!ARRAY_ROOM(out->ignored, out->ignored_count, out->ignored_capacity))
        return error_set_memory(err);
    return arena_str(&out->catalog->arena, glob, &out->ignored[out->ignored_count++]) ? RESHARD_OK : error_set_memory(err);
}

enum line_kind { LINE_TENSOR, LINE_OPTIONAL, LINE_IGNORE };

/* Puts numbers in the place of what stands in braces, one after the other. */
static reshard_status expand_line(struct shapes_reader *reader, struct str key, struct str rest, enum line_kind kind, reshard_error *err)
{
    size_t open, close;
    reshard_status status = RESHARD_OK;
    if (!str_find_char(key, '{', &open) || !str_find_char(key, '}', &close))
        return kind == LINE_IGNORE ? add_ignored(reader->out, key, err) : add_expected(reader, key, rest, kind == LINE_OPTIONAL, err);
    const struct str name = { key.data + open + 1, close - open - 1 };
    for (uint32_t r = 0; r < reader->range_count; r++) {
        const struct shape_range *range = &reader->ranges[r];
        if (!str_equal(range->name, name))
            continue;
        for (int64_t i = range->begin; i < range->end && !status; i++) {
            struct buffer made = { 0 };
            buffer_printf(&made, "%.*s%lld%.*s", (int)open, key.data, (long long)i, (int)(key.size - close - 1), key.data + close + 1);
            bool is_set = map_constants_set(&reader->numbers, name, i, true);
            status = made.failed || !is_set ? error_set_memory(err) : expand_line(reader, buffer_str(&made), rest, kind, err);
            buffer_release(&made);
        }
    }
    return status;
}

/* default NAME = EXPRESSION */
static reshard_status read_default(struct shapes_reader *reader, struct str rest, reshard_error *err)
{
    const struct str name = str_take_word(&rest);
    int64_t value;
    str_take_word(&rest);
    if (map_constants_find(&reader->numbers, name, &value))
        return RESHARD_OK;
    if (!evaluate(&reader->numbers, str_take_word(&rest), &value))
        return reader->is_number ? RESHARD_OK : refuse_line(name, err);
    return map_constants_set(&reader->numbers, name, value, true) ? RESHARD_OK : error_set_memory(err);
}

/* range NAME = BEGIN .. END */
static reshard_status read_shape_range(struct shapes_reader *reader, struct str rest, reshard_error *err)
{
    struct shape_range range = { .name = str_take_word(&rest) };
    str_take_word(&rest);
    const struct str begin = str_take_word(&rest);
    str_take_word(&rest);
    const struct str end = str_take_word(&rest);
    if (!evaluate(&reader->numbers, begin, &range.begin) || !evaluate(&reader->numbers, end, &range.end) || range.begin < 0)
        return refuse_line(range.name, err);
    if (range.end - range.begin > RANGE_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "config.json has %lld of '%.*s', at most %d are taken",
                         (long long)(range.end - range.begin), STR_ARG(range.name), RANGE_MAX);
    if (reader->range_count < RANGES_MAX)
        reader->ranges[reader->range_count++] = range;
    return RESHARD_OK;
}

/* unless NAME: a member that makes the rest of the section say nothing, if it is there and not empty. */
static void read_unless(struct shapes_reader *reader, struct str rest)
{
    const struct value *member = value_dict_find(reader->config.root, str_take_word(&rest));
    reader->is_refused = member && member->kind == VALUE_LIST && member->list.count;
}

static reshard_status read_line(struct shapes_reader *reader, struct str line, reshard_error *err)
{
    struct str rest = line, word = str_take_word(&rest);
    if (reader->is_number && !str_is(word, "default"))
        return RESHARD_OK;
    if (str_is(word, "default"))
        return read_default(reader, rest, err);
    if (str_is(word, "range"))
        return read_shape_range(reader, rest, err);
    if (str_is(word, "unless")) {
        read_unless(reader, rest);
        return RESHARD_OK;
    }
    if (str_is(word, "ignore"))
        return expand_line(reader, str_take_word(&rest), rest, LINE_IGNORE, err);
    if (str_is(word, "?"))
        return expand_line(reader, str_take_word(&rest), rest, LINE_OPTIONAL, err);
    return expand_line(reader, word, rest, LINE_TENSOR, err);
}

/* Whether the section's head names the family; is_NAME becomes 1 for it and 0 for the others of the section. */
static bool head_names(struct shapes_reader *reader, struct str names, struct str family)
{
    bool is_named = false;
    char flag[80];
    struct str rest = names;
    for (struct str name = str_take_word(&rest); name.size; name = str_take_word(&rest))
        is_named = is_named || str_equal(name, family);
    for (struct str name = str_take_word(&names); is_named && name.size; name = str_take_word(&names)) {
        snprintf(flag, sizeof(flag), "is_%.*s", STR_ARG(name));
        is_named = map_constants_set(&reader->numbers, str_of(flag), str_equal(name, family), true);
    }
    return is_named;
}

static reshard_status read_section(struct shapes_reader *reader, struct str family, bool *is_known, reshard_error *err)
{
    const struct model_data *data = model_data_find(STR(SHAPES_FILE));
    struct str text = data ? data->text : (struct str){ 0 };
    bool is_ours = false;
    reshard_status status = RESHARD_OK;
    *is_known = false;
    while (text.size && !status) {
        struct str line = str_take(&text, '\n'), rest = line;
        if (!line.size || line.data[0] == '#')
            continue;
        if (str_is(str_take_word(&rest), "model")) {
            is_ours = head_names(reader, rest, family);
            *is_known = *is_known || is_ours;
        } else if (is_ours && !reader->is_refused) {
            status = read_line(reader, line, err);
        }
    }
    *is_known = *is_known && !reader->is_refused;
    return status;
}

static void read_weights_type(struct shapes_reader *reader)
{
    static const char *const names[] = { "torch_dtype", "dtype" };
    reader->out->dtype = DTYPE_COUNT;
    for (int i = 0; i < 2; i++) {
        const struct value *member = value_dict_get(reader->config.root, names[i]);
        struct str name;
        enum dtype dtype;
        if (member && value_as_str(member, &name) && dtype_from_name(name, &dtype))
            reader->out->dtype = dtype;
    }
}

/* *family empty: config.json names none. */
static reshard_status read_shapes_config(struct shapes_reader *reader, struct str config, struct str *family, reshard_error *err)
{
    *family = (struct str){ 0 };
    reshard_status status = json_parse_python(config.data, config.size, reader->limits, &reader->config, err);
    if (status || reader->config.root->kind != VALUE_DICT)
        return status;
    const struct value *model_type = value_dict_get(reader->config.root, "model_type");
    if (!model_type || !value_as_str(model_type, family))
        return RESHARD_OK;
    return map_config_constants(config, reader->limits, &reader->numbers, err);
}

static reshard_status read_shapes_of(struct shapes_reader *reader, struct str config, const struct mapping_constant *constants,
                                     size_t constant_count, reshard_error *err)
{
    struct model_shapes *out = reader->out;
    struct str family;
    bool is_known = false;
    reshard_status status = read_shapes_config(reader, config, &family, err);
    if (status || !family.size)
        return status;
    for (size_t i = 0; i < constant_count; i++) {
        if (!map_constants_set(&reader->numbers, str_of(constants[i].name), constants[i].value, true))
            return error_set_memory(err);
    }
    out->family = str_copy(family);
    out->catalog = catalog_new("config");
    if (!out->family || !out->catalog)
        return error_set_memory(err);
    read_weights_type(reader);
    status = read_section(reader, family, &is_known, err);
    if (!status && is_known)
        status = catalog_seal(out->catalog, true, err);
    if (!is_known || status) {
        catalog_free(out->catalog);
        out->catalog = NULL;
        out->ignored_count = 0;
    }
    return status;
}

static void shapes_reader_release(struct shapes_reader *reader)
{
    map_constants_release(&reader->numbers);
    value_graph_release(&reader->config);
}

reshard_status model_shapes_make(struct str config, const struct mapping_constant *constants, size_t constant_count,
                                 const struct limits *limits, struct model_shapes *out, reshard_error *err)
{
    struct shapes_reader reader = { .out = out, .limits = limits };
    *out = (struct model_shapes){ .dtype = DTYPE_COUNT };
    reshard_status status = read_shapes_of(&reader, config, constants, constant_count, err);
    shapes_reader_release(&reader);
    return status;
}

reshard_status model_shapes_number(struct str config, struct str name, const struct limits *limits, int64_t *out, bool *is_known,
                                   reshard_error *err)
{
    struct shapes_reader reader = { .limits = limits, .is_number = true };
    struct str family;
    bool has_section;
    reshard_status status = read_shapes_config(&reader, config, &family, err);
    if (!status && family.size)
        status = read_section(&reader, family, &has_section, err);
    *is_known = !status && map_constants_find(&reader.numbers, name, out);
    shapes_reader_release(&reader);
    return status;
}

void model_shapes_release(struct model_shapes *shapes)
{
    catalog_free(shapes->catalog);
    free(shapes->is_optional);
    free(shapes->ignored);
    free(shapes->family);
    *shapes = (struct model_shapes){ .dtype = DTYPE_COUNT };
}
