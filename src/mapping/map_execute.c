/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_engine_parts.h"

#include "base/array.h"
#include "mapping/map_macro.h"
#include "mapping/map_permute.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define SHOWN_STATEMENT_BYTES 300

bool map_machine_fail(struct map_machine *machine, struct map_span span, const char *hint, const char *format, ...)
{
    char message[512], shown[SHOWN_STATEMENT_BYTES + 256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    if (machine->statement && machine->statement->is_expanded) {
        buffer_clear(&machine->text);
        map_statement_print(machine->statement, &machine->text);
        bool is_long = machine->text.size > SHOWN_STATEMENT_BYTES;
        snprintf(shown, sizeof(shown), "%.200s%sin the expansion: %.*s%s", hint ? hint : "", hint ? "; " : "",
                 is_long ? SHOWN_STATEMENT_BYTES : (int)machine->text.size, (const char *)machine->text.data, is_long ? "…" : "");
        hint = shown;
    }
    return map_diagnose(machine->input->diagnoses, MAP_ERROR, span, hint, "%s", message);
}

/* ---- names ---- */

static bool symbols_fit(struct map_machine *machine, uint32_t count)
{
    if (count <= machine->symbol_capacity)
        return true;
    uint32_t capacity = machine->symbol_capacity ? machine->symbol_capacity * 2 : 64;
    struct map_symbol *symbols = reallocarray(machine->symbols, capacity, sizeof(*symbols));
    if (!symbols)
        return false;
    memset(symbols + machine->symbol_capacity, 0, (capacity - machine->symbol_capacity) * sizeof(*symbols));
    machine->symbols = symbols;
    machine->symbol_capacity = capacity;
    return true;
}

/* The text under which a name is kept. Made names live apart from written ones. */
static bool symbol_text(struct map_machine *machine, const struct map_name *name, struct str *out)
{
    *out = name->text;
    if (!name->is_made)
        return true;
    buffer_clear(&machine->text);
    buffer_append_byte(&machine->text, MAP_MADE_MARK);
    buffer_append_str(&machine->text, name->text);
    *out = buffer_str(&machine->text);
    return !machine->text.failed;
}

struct map_symbol *map_machine_symbol(const struct map_machine *machine, struct str name)
{
    uint32_t index = name_map_find(&machine->names, name);
    return index == NAME_NONE ? NULL : &machine->symbols[index];
}

static struct map_symbol *symbol_make(struct map_machine *machine, const struct map_name *name)
{
    struct str text;
    if (!symbol_text(machine, name, &text) || !symbols_fit(machine, machine->names.count + 1))
        return NULL;
    uint32_t index = name_map_intern(&machine->names, text, NULL);
    return index == NAME_NONE ? NULL : &machine->symbols[index];
}

reshard_status map_machine_input(struct map_machine *machine, uint32_t weight, const struct map_variable **out, reshard_error *err)
{
    if (!machine->inputs[weight]) {
        struct map_variable *variable = arena_alloc(machine->workshop.arena, sizeof(*variable));
        if (!variable)
            return error_set_memory(err);
        reshard_status status = map_variable_input(&machine->workshop, machine->input->source, weight, variable, err);
        if (status)
            return status;
        machine->inputs[weight] = variable;
    }
    *out = machine->inputs[weight];
    return RESHARD_OK;
}

struct str map_machine_nearest(const struct map_machine *machine, struct str name)
{
    const bool is_among_first = machine->input->diagnoses->error_count < NEAREST_TOLD_MAX;
    return is_among_first ? map_space_nearest(machine->input->source, name) : (struct str){ NULL, 0 };
}

static void fail_unknown(struct map_machine *machine, const struct map_name *name)
{
    char hint[400];
    struct str base = map_space_weight_of(machine->input->source, name->text), near = map_machine_nearest(machine, name->text);
    if (map_is_hole(name)) {
        map_machine_fail(machine, name->span, NULL, "'_' is no tensor: it stands alone on its side of the arrow");
        return;
    }
    if (base.size)
        snprintf(hint, sizeof(hint), "statements name weights; optimizer states follow them: write '%.*s'", STR_ARG(base));
    else
        snprintf(hint, sizeof(hint), "did you mean '%.*s'?", STR_ARG(near));
    map_machine_fail(machine, name->span, near.size || base.size ? hint : NULL,
                     "'%.*s' is neither a weight of the source nor assigned before", STR_ARG(name->text));
}

reshard_status map_machine_read(struct map_machine *machine, const struct map_name *name, const struct map_variable **out,
                                reshard_error *err)
{
    struct str text;
    *out = NULL;
    if (!symbol_text(machine, name, &text))
        return error_set_memory(err);
    struct map_symbol *symbol = map_machine_symbol(machine, text);
    if (symbol && symbol->variable) {
        symbol->is_consumed = true;
        *out = symbol->variable;
        return RESHARD_OK;
    }
    uint32_t weight = name->is_made ? MAP_NONE : map_space_find(machine->input->source, name->text);
    if (weight == MAP_NONE || !map_space_shaped(machine->input->source, weight)) {
        fail_unknown(machine, name);
        return RESHARD_OK;
    }
    machine->result->used[weight] = true;
    return map_machine_input(machine, weight, out, err);
}

reshard_status map_machine_assign(struct map_machine *machine, const struct map_name *name, struct map_variable *variable,
                                  reshard_error *err)
{
    if (map_is_hole(name))
        return RESHARD_OK;
    struct map_symbol *symbol = symbol_make(machine, name);
    if (!symbol)
        return error_set_memory(err);
    if (symbol->variable && !symbol->is_consumed && !name->is_made)
        map_diagnose(machine->input->diagnoses, MAP_WARNING, name->span, NULL,
                     "'%.*s' is assigned again before anything used it: the last assignment counts", STR_ARG(name->text));
    variable->statement = machine->statement;
    *symbol = (struct map_symbol){ .variable = variable, .span = name->span };
    return RESHARD_OK;
}

/* The record of the statement being executed; NULL backwards. */
static struct map_trace *trace_of(const struct map_machine *machine)
{
    return machine->input->reverse ? NULL : &machine->result->traces[machine->statement - machine->input->program->statements];
}

/* ---- split and concat ---- */

static bool map_execute_read_axis(struct map_machine *machine, const char *what, const struct map_variable *variable, int *out)
{
    const struct map_statement *statement = machine->statement;
    bool has_shares = statement->attribute_count == 2 && !machine->input->strict && str_is(statement->attributes[1].key, "shares");
    if (statement->attribute_count != 1 + (uint32_t)has_shares || !str_is(statement->attributes[0].key, "axis")) {
        struct map_span span =
            statement->attribute_count ? statement->attributes[statement->attribute_count - 1].key_span : statement->span;
        return map_machine_fail(machine, span,
                                machine->input->strict ? "do other things in a statement of their own"
                                                       : "behind it may stand shares=\"[2, 1, 1]\"",
                                "a %s has exactly one attribute, axis=number", what);
    }
    const struct map_attribute *axis = &statement->attributes[0];
    if (!axis->is_number)
        return map_machine_fail(machine, axis->value_span, "write axis=0", "the axis is a number, not a string");
    if (axis->is_huge || axis->number >= variable->rank)
        return map_machine_fail(machine, axis->value_span, variable->rank == 1 ? "a bias needs axis=0" : NULL,
                                "axis %.*s is out of range: the tensor has %d axes", STR_ARG(axis->value), variable->rank);
    *out = (int)axis->number;
    return true;
}

/* Backwards, what a part is wide in the target; -1 if it is no key of it. */
static int64_t wanted_extent(const struct map_machine *machine, const struct map_name *name, int rank, int axis)
{
    const struct map_space *target = machine->input->target;
    struct str text = name->is_made ? name->transpose_of : name->text;
    uint32_t weight = target && text.size ? map_space_find(target, text) : MAP_NONE;
    const struct map_tensor *tensor = weight == MAP_NONE ? NULL : map_space_shaped(target, weight);
    if (!tensor || tensor->rank != rank)
        return -1;
    return tensor->shape[name->is_made ? rank - 1 - axis : axis];
}

/* Backwards a join is a split, whose parts the target may know. false: it does not know all, or they do not fit. */
static bool wanted_ends(const struct map_machine *machine, const struct map_variable *in, int axis, int64_t *ends)
{
    const struct map_statement *statement = machine->statement;
    int64_t at = 0;
    for (uint32_t i = 0; i < statement->right_count; i++) {
        int64_t extent = wanted_extent(machine, &statement->right[i], in->rank, axis);
        if (extent < 0 || extent > in->shape[axis] - at)
            return false;
        ends[i] = at += extent;
    }
    return at == in->shape[axis];
}

/* The shares of the parts of a split or a join, one each, if the statement says them. */
static bool read_shares(struct map_machine *machine, uint32_t count, int64_t said[RANK_MAX], const int64_t **shares)
{
    const struct map_attribute *attribute = map_attribute_find(machine->statement, "shares");
    int found = 0;
    if (!attribute)
        return true;
    bool is_good = map_list_parse(attribute->value, said, &found) == MAP_LIST_OK && (uint32_t)found == count;
    int64_t total = 0;
    for (int i = 0; i < found && is_good; i++)
        is_good = said[i] > 0 && !__builtin_add_overflow(total, said[i], &total);
    *shares = said;
    return is_good ||
           map_machine_fail(machine, attribute->value_span,
                            "a number by name comes from reshard_map_options.constants, or a line name = number",
                            "shares are %u positive numbers here, one for each part, not %.*s", count, STR_ARG(attribute->value));
}

/* Where the parts end: by their shares, else all alike. NULL: *is_good tells memory from a diagnosis. */
static int64_t *split_ends(struct map_machine *machine, const struct map_variable *in, int axis, bool *is_good)
{
    const struct map_statement *statement = machine->statement;
    uint32_t count = statement->right_count;
    int64_t said[RANK_MAX], total = 0, at = 0, *ends = arena_array(machine->workshop.arena, count, sizeof(*ends));
    const int64_t *shares = machine->input->reverse ? statement->shares : NULL;
    *is_good = read_shares(machine, count, said, &shares);
    if (!*is_good || !ends)
        return NULL;
    if (machine->input->reverse && !machine->input->strict && !shares && wanted_ends(machine, in, axis, ends))
        return ends;
    for (uint32_t i = 0; i < count; i++)
        total += shares ? shares[i] : 1;
    if (in->shape[axis] % total) {
        *is_good = map_machine_fail(machine, statement->span, NULL, "%lld on axis %d cannot be split into %lld equal parts",
                                    (long long)in->shape[axis], axis, (long long)total);
        return NULL;
    }
    for (uint32_t i = 0; ends && i < count; i++)
        ends[i] = at += in->shape[axis] / total * (shares ? shares[i] : 1);
    return ends;
}

static reshard_status execute_split(struct map_machine *machine, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable *in;
    int axis;
    bool is_good;
    reshard_status status = map_machine_read(machine, &statement->left[0], &in, err);
    if (status || !in || !map_execute_read_axis(machine, "split", in, &axis))
        return status;
    int64_t *ends = split_ends(machine, in, axis, &is_good);
    if (!is_good)
        return RESHARD_OK;
    struct map_variable *parts = arena_array(machine->workshop.arena, statement->right_count, sizeof(*parts));
    if (!ends || !parts)
        return error_set_memory(err);
    status = map_variable_split(&machine->workshop, in, axis, ends, statement->right_count, parts, err);
    for (uint32_t i = 0; i < statement->right_count && !status; i++)
        status = map_machine_assign(machine, &statement->right[i], &parts[i], err);
    return status;
}

static bool parts_fit(struct map_machine *machine, const struct map_variable *const *parts, uint32_t count, int axis)
{
    const struct map_variable *first = parts[0];
    const struct map_name *names = machine->statement->left;
    for (uint32_t i = 1; i < count; i++) {
        if (parts[i]->rank != first->rank)
            return map_machine_fail(machine, names[i].span, NULL, "'%.*s' has %d axes, '%.*s' has %d", STR_ARG(names[i].text),
                                    parts[i]->rank, STR_ARG(names[0].text), first->rank);
        for (int k = 0; k < first->rank; k++) {
            if (k != axis && parts[i]->shape[k] != first->shape[k])
                return map_machine_fail(machine, names[i].span, NULL,
                                        "on axis %d '%.*s' has %lld, '%.*s' has %lld: parts that are joined on axis %d agree on the others",
                                        k, STR_ARG(names[i].text), (long long)parts[i]->shape[k], STR_ARG(names[0].text),
                                        (long long)first->shape[k], axis);
        }
        if (machine->input->strict && parts[i]->dtype != first->dtype && parts[i]->dtype != MAP_DTYPE_NONE &&
            first->dtype != MAP_DTYPE_NONE)
            return map_machine_fail(machine, names[i].span, "Paddle's engine compares the types before all casts",
                                    "'%.*s' is %s, '%.*s' is %s", STR_ARG(names[i].text), dtype_info(parts[i]->dtype)->name,
                                    STR_ARG(names[0].text), dtype_info(first->dtype)->name);
    }
    return true;
}

/* Backwards a join comes from an equal split, which parts of different extent are not. */
static void warn_unequal(struct map_machine *machine, const struct map_variable *const *parts, uint32_t count, int axis)
{
    bool is_equal = machine->input->reverse && !map_attribute_find(machine->statement, "shares");
    for (uint32_t i = 1; i < count && is_equal; i++) {
        if (parts[i]->shape[axis] == parts[0]->shape[axis])
            continue;
        map_diagnose(machine->input->diagnoses, MAP_WARNING, machine->statement->left[i].span, NULL,
                     "read forwards this is an equal split, but the parts have %lld and %lld on axis %d", (long long)parts[0]->shape[axis],
                     (long long)parts[i]->shape[axis], axis);
        return;
    }
}

/* The parts of a fused tensor relate as their numbers of heads do: anything else would be cut at the wrong places. */
static bool shares_fit(struct map_machine *machine, const struct map_variable *const *parts, uint32_t count, int axis)
{
    const struct map_statement *statement = machine->statement;
    const int64_t *shares = statement->shares;
    int64_t said[RANK_MAX];
    if (!machine->input->reverse && !read_shares(machine, count, said, &shares))
        return false;
    for (uint32_t i = 1; i < count && shares && !machine->input->reverse; i++) {
        __int128 left = (__int128)parts[i]->shape[axis] * shares[0], right = (__int128)parts[0]->shape[axis] * shares[i];
        if (left != right)
            return map_machine_fail(
                machine, statement->left[i].span, shares == said ? "shares= says how they relate" : "all heads have the same size",
                "'%.*s' has %lld on axis %d, which does not go with %lld of '%.*s'", STR_ARG(statement->left[i].text),
                (long long)parts[i]->shape[axis], axis, (long long)parts[0]->shape[axis], STR_ARG(statement->left[0].text));
    }
    return true;
}

static bool trace_join(struct map_machine *machine, const struct map_variable *const *parts, uint32_t count, int axis)
{
    struct map_trace *trace = trace_of(machine);
    if (!trace)
        return true;
    trace->extents = arena_array(machine->workshop.arena, count, sizeof(*trace->extents));
    for (uint32_t i = 0; trace->extents && i < count; i++)
        trace->extents[i] = parts[i]->shape[axis];
    trace->count = count;
    return trace->extents != NULL;
}

static reshard_status execute_concat(struct map_machine *machine, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable **parts = arena_array(machine->workshop.arena, statement->left_count, sizeof(*parts));
    struct map_variable *joined = arena_alloc(machine->workshop.arena, sizeof(*joined));
    reshard_status status = parts && joined ? RESHARD_OK : error_set_memory(err);
    bool is_good = true;
    int axis;
    for (uint32_t i = 0; i < statement->left_count && !status; i++) {
        status = map_machine_read(machine, &statement->left[i], &parts[i], err);
        is_good = is_good && !status && parts[i];
    }
    if (status || !is_good || !map_execute_read_axis(machine, "join", parts[0], &axis) ||
        !parts_fit(machine, parts, statement->left_count, axis) || !shares_fit(machine, parts, statement->left_count, axis))
        return status;
    warn_unequal(machine, parts, statement->left_count, axis);
    if (!trace_join(machine, parts, statement->left_count, axis))
        return error_set_memory(err);
    status = map_variable_concat(&machine->workshop, parts, statement->left_count, axis, joined, err);
    return status ? status : map_machine_assign(machine, &statement->right[0], joined, err);
}

/* ---- one to one ---- */

static bool read_permutation(struct map_machine *machine, const struct map_attribute *attribute, int rank, uint8_t axes[RANK_MAX])
{
    int64_t values[RANK_MAX];
    uint8_t forward[RANK_MAX];
    int count;
    if (attribute->is_number || map_list_parse(attribute->value, values, &count) != MAP_LIST_OK)
        return map_machine_fail(machine, attribute->value_span, "write permute=\"[1, 0]\"", "a permutation is a list of axes");
    if (!map_permutation_of(values, count, rank, forward))
        return map_machine_fail(machine, attribute->value_span, NULL, "%.*s is no permutation of the %d axes", STR_ARG(attribute->value),
                                rank);
    for (int i = 0; i < rank; i++) {
        if (machine->input->reverse)
            axes[forward[i]] = (uint8_t)i;
        else
            axes[i] = forward[i];
    }
    return true;
}

static bool map_execute_read_dtype(struct map_machine *machine, const struct map_attribute *attribute, enum dtype *out)
{
    static const char *const names[] = { "float16", "float32", "bfloat16", "float64" };
    static const enum dtype dtypes[] = { DTYPE_F16, DTYPE_F32, DTYPE_BF16, DTYPE_F64 };
    for (int i = 0; i < (machine->input->strict ? 3 : 4) && !attribute->is_number; i++) {
        if (str_is(attribute->value, names[i])) {
            *out = dtypes[i];
            return true;
        }
    }
    return map_machine_fail(machine, attribute->value_span,
                            machine->input->strict ? "float16, bfloat16 or float32" : "float16, bfloat16, float32 or float64",
                            "'%.*s' is no type to cast to", STR_ARG(attribute->value));
}

/* dtype=, or src_dtype= and dst_dtype= in this order; in reverse mode the cast goes to src_dtype. */
static bool read_cast(struct map_machine *machine, enum dtype *out)
{
    const struct map_statement *statement = machine->statement;
    const struct map_attribute *first = &statement->attributes[0];
    enum dtype source, target;
    if (statement->attribute_count == 1 && str_is(first->key, "dtype")) {
        if (machine->input->reverse)
            return map_machine_fail(machine, first->key_span, "write src_dtype=\"…\", dst_dtype=\"…\"",
                                    "read backwards, dtype= does not say what to cast to");
        return map_execute_read_dtype(machine, first, out);
    }
    if (statement->attribute_count != 2 || !str_is(first->key, "src_dtype") || !str_is(statement->attributes[1].key, "dst_dtype"))
        return map_machine_fail(machine, first->key_span, NULL, "src_dtype=… stands first and dst_dtype=… second");
    if (!map_execute_read_dtype(machine, first, &source) || !map_execute_read_dtype(machine, &statement->attributes[1], &target))
        return false;
    *out = machine->input->reverse ? source : target;
    return true;
}

enum one_action { ACTION_FAILED, ACTION_NONE, ACTION_PERMUTE, ACTION_CAST };

static enum one_action one_action(struct map_machine *machine)
{
    const struct map_statement *statement = machine->statement;
    const struct map_attribute *first = statement->attributes;
    if (!statement->attribute_count)
        return ACTION_NONE;
    bool is_pair = str_is(first->key, "src_dtype") || str_is(first->key, "dst_dtype");
    if (statement->attribute_count > (is_pair ? 2 : 1)) {
        map_machine_fail(machine, statement->attributes[1].key_span, "use a second statement", "one statement does one thing");
        return ACTION_FAILED;
    }
    if (str_is(first->key, "axis"))
        return ACTION_NONE;
    if (str_is(first->key, "permute") || (!machine->input->strict && str_is(first->key, "transpose")))
        return ACTION_PERMUTE;
    if (is_pair || str_is(first->key, "dtype"))
        return ACTION_CAST;
    map_machine_fail(machine, first->key_span,
                     str_is(first->key, "transpose") ? "its name is permute"
                     : machine->input->strict        ? "axis, permute, dtype, or src_dtype and dst_dtype"
                                                     : "axis, permute, dtype, src_dtype and dst_dtype, reshape, stack, unstack",
                     "unknown attribute '%.*s'", STR_ARG(first->key));
    return ACTION_FAILED;
}

static reshard_status execute_one(struct map_machine *machine, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable *in;
    uint8_t axes[RANK_MAX];
    enum dtype dtype;
    struct map_variable *made = arena_alloc(machine->workshop.arena, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    reshard_status status = map_machine_read(machine, &statement->left[0], &in, err);
    enum one_action action = one_action(machine);
    if (status || !in || action == ACTION_FAILED)
        return status;
    if (action == ACTION_PERMUTE) {
        if (!read_permutation(machine, &statement->attributes[0], in->rank, axes))
            return RESHARD_OK;
        status = map_variable_permute(&machine->workshop, in, axes, made, err);
    } else if (action == ACTION_CAST) {
        struct map_trace *trace = trace_of(machine);
        if (!read_cast(machine, &dtype))
            return RESHARD_OK;
        if (trace && in->piece_count)
            trace->dtype = map_piece_dtype(&in->pieces[0]);
        status = map_variable_cast(&machine->workshop, in, dtype, made, err);
    } else {
        *made = *in;
    }
    return status ? status : map_machine_assign(machine, &statement->right[0], made, err);
}

/* ---- add and delete ---- */

static void warn_attributes(struct map_machine *machine)
{
    if (machine->statement->attribute_count)
        map_diagnose(machine->input->diagnoses, MAP_WARNING, machine->statement->attributes[0].key_span, NULL,
                     "attributes mean nothing beside '_'");
}

static reshard_status execute_remove(struct map_machine *machine, reshard_error *err)
{
    const struct map_name *name = &machine->statement->left[0];
    uint32_t weight = name->is_made ? MAP_NONE : map_space_find(machine->input->source, name->text);
    warn_attributes(machine);
    if (weight != MAP_NONE)
        machine->result->removed[weight] = true;
    struct map_symbol *symbol = symbol_make(machine, name);
    if (!symbol)
        return error_set_memory(err);
    if (symbol->variable)
        symbol->is_removed = true;
    else if (weight == MAP_NONE)
        map_diagnose(machine->input->diagnoses, MAP_WARNING, name->span, NULL, "'%.*s' is not in the source: the statement has no effect",
                     STR_ARG(name->text));
    return RESHARD_OK;
}

static reshard_status execute_keep(struct map_machine *machine, reshard_error *err)
{
    const struct map_name *name = &machine->statement->right[0];
    struct map_symbol *symbol = symbol_make(machine, name);
    warn_attributes(machine);
    if (!symbol)
        return error_set_memory(err);
    symbol->is_kept = true;
    symbol->span = name->span;
    return RESHARD_OK;
}

static reshard_status map_execute_execute(struct map_machine *machine, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    bool is_single = statement->left_count == 1 && statement->right_count == 1;
    bool left_hole = is_single && map_is_hole(&statement->left[0]), right_hole = is_single && map_is_hole(&statement->right[0]);
    if (left_hole && right_hole) {
        warn_attributes(machine);
        return RESHARD_OK;
    }
    if (left_hole)
        return execute_keep(machine, err);
    if (right_hole)
        return execute_remove(machine, err);
    const struct map_attribute *axes = map_machine_axes_attribute(machine);
    if (axes)
        return map_machine_change_axes(machine, axes, err);
    if (is_single)
        return execute_one(machine, err);
    return statement->left_count == 1 ? execute_split(machine, err) : execute_concat(machine, err);
}

static reshard_status execute_all(struct map_machine *machine, reshard_error *err)
{
    const struct map_program *program = machine->input->program;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < program->count && !status; i++) {
        struct map_statement *statement = &program->statements[machine->input->reverse ? program->count - 1 - i : i];
        if (machine->input->reverse) {
            struct map_statement *turned = arena_alloc(machine->workshop.arena, sizeof(*turned));
            if (!turned)
                return error_set_memory(err);
            *turned = *statement;
            turned->left = statement->right;
            turned->right = statement->left;
            turned->left_count = statement->right_count;
            turned->right_count = statement->left_count;
            statement = turned;
        }
        machine->statement = statement;
        status = map_execute_execute(machine, err);
    }
    machine->statement = NULL;
    return status;
}

reshard_status map_execute(const struct map_engine_input *input, struct map_result *out, reshard_error *err)
{
    uint32_t weights = map_space_weight_count(input->source);
    struct map_machine machine = { .input = input, .result = out };
    out->arena.bytes_max = input->limits->map_bytes < SIZE_MAX ? (size_t)input->limits->map_bytes : SIZE_MAX;
    machine.workshop = (struct map_workshop){ .arena = &out->arena, .pieces_max = input->limits->map_pieces };
    machine.inputs = array_zeroed(weights, sizeof(*machine.inputs));
    out->removed = arena_zalloc(&out->arena, (size_t)weights + 1);
    out->used = arena_zalloc(&out->arena, (size_t)weights + 1);
    out->traces = arena_array(&out->arena, input->program->count, sizeof(*out->traces));
    reshard_status status = machine.inputs && out->removed && out->used && out->traces ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < input->program->count && !status; i++)
        out->traces[i] = (struct map_trace){ .dtype = MAP_DTYPE_NONE };
    if (!status)
        status = execute_all(&machine, err);
    if (!status && !input->diagnoses->error_count)
        status = map_machine_output(&machine, err);
    if (!status && input->diagnoses->no_memory)
        status = error_set_memory(err);
    if (status == RESHARD_ERR_MEMORY)
        status = map_memory_error(&out->arena, err);
    name_map_release(&machine.names);
    buffer_release(&machine.text);
    free(machine.symbols);
    free(machine.inputs);
    return status;
}

void map_result_release(struct map_result *result)
{
    map_space_release(&result->made);
    arena_release(&result->arena);
    free(result->copies);
    *result = (struct map_result){ 0 };
}
