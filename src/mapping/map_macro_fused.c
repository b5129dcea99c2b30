/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_qkv_old and fused_ffn: tensors whose every rank holds [all Q | all K | all V] or [gate | up]; how they are cut depends on the
 * number of ranks on each side. fused_qkv: the layout by groups [q… k v], which no number of ranks changes.
 */
#include "mapping/map_chain.h"
#include "mapping/map_macro.h"

#include <inttypes.h>
#include <stdio.h>

#define KINDS_MAX 3

/* The pieces of one kind (Q, K, V, gate, up), in order. */
struct piece_kind {
    struct map_name *names;
    int64_t count;
};

struct fused {
    const struct map_macro_context *context;
    const struct map_chain *chain;
    const struct map_statement *statement;
    struct map_program *out;
    reshard_error *err;
    struct map_attribute axis;
    int64_t heads, groups;
    struct piece_kind kinds[KINDS_MAX];
    int kind_count;
};

static bool map_macro_fused_fail(const struct fused *fused, struct map_span span, const char *hint, const char *message)
{
    return map_diagnose(fused->context->diagnoses, MAP_ERROR, span, hint, "%s: %s", map_flag_name(fused->statement->flag), message);
}

/* ---- attributes ---- */

static bool is_known(const struct fused *fused, struct str key)
{
    bool has_heads = fused->statement->flag != MAP_FLAG_FFN;
    return str_is(key, "axis") || (has_heads && (str_is(key, "num_heads") || str_is(key, "num_key_value_groups"))) ||
           (has_heads && !fused->context->strict && str_is(key, "num_key_value_heads"));
}

static bool check_attributes(const struct fused *fused)
{
    const struct map_statement *statement = fused->statement;
    for (uint32_t i = 0; i < statement->attribute_count; i++) {
        const struct map_attribute *attribute = &statement->attributes[i];
        if (!is_known(fused, attribute->key))
            return map_diagnose(fused->context->diagnoses, MAP_ERROR, attribute->key_span, "use a second statement",
                                "%s has no attribute '%.*s'", map_flag_name(statement->flag), STR_ARG(attribute->key));
        if (!attribute->is_number || attribute->is_huge)
            return map_macro_fused_fail(fused, attribute->value_span, NULL, "the value must be a number");
        for (uint32_t j = 0; j < i; j++) {
            if (str_equal(statement->attributes[j].key, attribute->key))
                return map_macro_fused_fail(fused, attribute->key_span, NULL, "the attribute is given twice");
        }
    }
    return true;
}

static bool read_count(const struct fused *fused, const char *key, const char *other, int64_t *out)
{
    const struct map_attribute *attribute = map_attribute_find(fused->statement, key);
    if (!attribute && other)
        attribute = map_attribute_find(fused->statement, other);
    if (!attribute)
        return map_diagnose(fused->context->diagnoses, MAP_ERROR, fused->statement->flag_span, NULL, "%s needs %s=…",
                            map_flag_name(fused->statement->flag), key);
    if (attribute->number <= 0)
        return map_diagnose(fused->context->diagnoses, MAP_ERROR, attribute->value_span, NULL, "%s must be positive", key);
    *out = attribute->number;
    return true;
}

static bool read_heads(struct fused *fused)
{
    const struct map_statement *statement = fused->statement;
    if (!read_count(fused, "num_heads", NULL, &fused->heads) ||
        !read_count(fused, "num_key_value_groups", "num_key_value_heads", &fused->groups))
        return false;
    if (fused->heads % fused->groups)
        return map_diagnose(
            fused->context->diagnoses, MAP_ERROR, statement->flag_span, "num_key_value_groups is the number of key and value heads",
            "num_heads (%" PRId64 ") must be a multiple of num_key_value_groups (%" PRId64 ")", fused->heads, fused->groups);
    if ((uint64_t)fused->heads > fused->context->limits->map_names / 4)
        return map_macro_fused_fail(fused, statement->flag_span, "raise the limit map_names", "too many heads");
    return true;
}

static void map_macro_fused_read_axis(struct fused *fused)
{
    const struct map_attribute *axis = map_attribute_find(fused->statement, "axis");
    if (axis)
        fused->axis = *axis;
    else
        fused->axis = (struct map_attribute){ .key = STR("axis"),
                                              .value = STR("1"),
                                              .is_number = true,
                                              .number = 1,
                                              .key_span = fused->statement->flag_span,
                                              .value_span = fused->statement->flag_span };
}

/* ---- names ---- */

/* Each piece is made, and stands once more in the order of a side. */
static bool pieces_fit(const struct fused *fused, int64_t count, bool *no_memory)
{
    *no_memory |= !arena_fits(fused->context->arena, (size_t)count, 2 * sizeof(struct map_name));
    return !*no_memory;
}

static bool make_pieces(struct fused *fused, const char *separator, struct str base, const char *kind, int64_t count, bool *no_memory)
{
    struct map_name *names = arena_array(fused->context->arena, (size_t)count, sizeof(*names));
    for (int64_t i = 0; names && i < count; i++) {
        char end[64];
        snprintf(end, sizeof(end), "%s%s%" PRId64, separator, kind, i);
        const struct str text = ARENA_JOIN(fused->context->arena, base, str_of(end));
        if (!text.data)
            names = NULL;
        else
            names[i] = (struct map_name){ .text = text, .span = fused->statement->flag_span, .is_made = true };
    }
    *no_memory |= names == NULL;
    fused->kinds[fused->kind_count++] = (struct piece_kind){ names, count };
    return names != NULL;
}

static uint32_t all_pieces(const struct fused *fused)
{
    int64_t count = 0;
    for (int kind = 0; kind < fused->kind_count; kind++)
        count += fused->kinds[kind].count;
    return (uint32_t)count;
}

/* All pieces in the order in which `ranks` ranks hold them: rank by rank its share of every kind. */
static struct map_name *in_rank_order(const struct fused *fused, int64_t ranks)
{
    uint32_t count = 0;
    struct map_name *names = arena_array(fused->context->arena, all_pieces(fused), sizeof(*names));
    for (int64_t rank = 0; names && rank < ranks; rank++) {
        for (int kind = 0; kind < fused->kind_count; kind++) {
            int64_t share = fused->kinds[kind].count / ranks;
            for (int64_t i = rank * share; i < (rank + 1) * share; i++)
                names[count++] = fused->kinds[kind].names[i];
        }
    }
    return names;
}

static reshard_status emit(const struct fused *fused, struct map_name *left, uint32_t left_count, struct map_name *right,
                           uint32_t right_count)
{
    struct map_attribute *axis = arena_array(fused->context->arena, 1, sizeof(*axis));
    if (!left || !right || !axis)
        return error_set_memory(fused->err);
    *axis = fused->axis;
    struct map_statement statement = { .left = left,
                                       .right = right,
                                       .attributes = axis,
                                       .left_count = left_count,
                                       .right_count = right_count,
                                       .attribute_count = 1,
                                       .flag_span = fused->statement->flag_span,
                                       .span = fused->statement->span,
                                       .is_expanded = true };
    return map_emit(fused->context, fused->out, &statement, fused->err);
}

/* Pieces of each kind joined into, or cut out of, the names of one side. */
static reshard_status emit_kinds(const struct fused *fused, struct map_name *names, bool cut)
{
    for (int kind = 0; kind < fused->kind_count; kind++) {
        const struct piece_kind *pieces = &fused->kinds[kind];
        reshard_status status = cut ? emit(fused, &names[kind], 1, pieces->names, (uint32_t)pieces->count) :
                                      emit(fused, pieces->names, (uint32_t)pieces->count, &names[kind], 1);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* "a.b.c.tmp", which joins several names. */
static struct map_name *joined_name(const struct fused *fused)
{
    struct buffer text = { 0 };
    struct map_name *name = arena_array(fused->context->arena, 1, sizeof(*name));
    for (uint32_t i = 0; i < fused->statement->left_count; i++) {
        buffer_append_str(&text, fused->statement->left[i].text);
        buffer_append_text(&text, ".");
    }
    buffer_append_text(&text, "tmp");
    if (name) {
        *name = (struct map_name){ .span = fused->statement->flag_span, .is_made = true };
        if (text.failed || !arena_str(fused->context->arena, buffer_str(&text), &name->text))
            name = NULL;
    }
    buffer_release(&text);
    return name;
}

/* Joins q, k, v or gate, up; backwards, where the join is a split, the numbers of heads say where to cut. */
static reshard_status emit_join(const struct fused *fused, struct map_name *joined)
{
    reshard_status status = emit(fused, fused->statement->left, fused->statement->left_count, joined, 1);
    int64_t *shares = arena_array(fused->context->arena, (size_t)fused->kind_count, sizeof(*shares));
    if (status || !shares)
        return status ? status : error_set_memory(fused->err);
    for (int kind = 0; kind < fused->kind_count; kind++)
        shares[kind] = fused->kinds[kind].count;
    fused->out->statements[fused->out->count - 1].shares = shares;
    return RESHARD_OK;
}

/* ---- the layouts by rank ---- */

static bool is_known_weight(const struct map_macro_context *context, struct str name)
{
    return map_space_find(context->source, name) != MAP_NONE || (context->target && map_space_find(context->target, name) != MAP_NONE);
}

static bool check_names(const struct fused *fused, const struct map_name *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct str base;
        struct str text = names[i].transpose_of.size ? names[i].transpose_of : names[i].text;
        if (map_is_hole(&names[i]))
            return map_macro_fused_fail(fused, names[i].span, NULL, "'_' is no tensor");
        if (map_state_of(text, &base) != MAP_STATE_WEIGHT && is_known_weight(fused->context, base))
            return map_diagnose(fused->context->diagnoses, MAP_ERROR, names[i].span, "name the weight: its optimizer states follow it",
                                "'%.*s' is an optimizer state", STR_ARG(text));
    }
    return true;
}

static bool check_degree(const struct fused *fused, int64_t degree, const struct map_name *name)
{
    if (fused->statement->flag == MAP_FLAG_FFN || fused->groups % degree == 0)
        return true;
    if (degree > fused->groups)
        return map_diagnose(fused->context->diagnoses, MAP_ERROR, name->span, NULL,
                            "%lld ranks cut it, more than the %lld key and value heads: replicated heads are not supported",
                            (long long)degree, (long long)fused->groups);
    return map_diagnose(fused->context->diagnoses, MAP_ERROR, name->span, NULL,
                        "%lld ranks cut it, which does not divide the %lld key and value heads", (long long)degree,
                        (long long)fused->groups);
}

static bool find_degree(const struct fused *fused, bool is_left, int64_t *degree)
{
    const struct map_name *name = is_left ? &fused->statement->left[0] : &fused->statement->right[0];
    return map_chain_degree(fused->context, fused->chain, name, is_left, fused->axis.number, degree) && check_degree(fused, *degree, name);
}

static int64_t greatest_common_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool make_kinds(struct fused *fused, int64_t source_degree, int64_t target_degree, bool *no_memory)
{
    static const struct str qkv = { "fused_qkv_old_tmp", 17 }, ffn = { "fused_ffn_tmp", 13 };
    if (fused->statement->flag == MAP_FLAG_QKV_OLD)
        return pieces_fit(fused, fused->heads + 2 * fused->groups, no_memory) &&
               make_pieces(fused, ".", qkv, "Q_", fused->heads, no_memory) &&
               make_pieces(fused, ".", qkv, "K_", fused->groups, no_memory) &&
               make_pieces(fused, ".", qkv, "V_", fused->groups, no_memory);
    int64_t count = source_degree / greatest_common_divisor(source_degree, target_degree);
    if (__builtin_mul_overflow(count, target_degree, &count) || (uint64_t)count > fused->context->limits->map_names / 4)
        return map_macro_fused_fail(fused, fused->statement->flag_span, "raise the limit map_names",
                                    "the numbers of ranks need too many pieces");
    return pieces_fit(fused, 2 * count, no_memory) && make_pieces(fused, ".", ffn, "GATE_", count, no_memory) &&
           make_pieces(fused, ".", ffn, "UP_", count, no_memory);
}

static reshard_status expand_by_rank(struct fused *fused)
{
    const struct map_statement *statement = fused->statement;
    uint32_t parts = statement->flag == MAP_FLAG_FFN ? 2 : 3;
    bool is_split = statement->right_count == parts, is_join = statement->left_count == parts, no_memory = false;
    int64_t source_degree = 1, target_degree = 1;
    if (statement->left_count + statement->right_count != 2 && !(is_split && statement->left_count == 1) &&
        !(is_join && statement->right_count == 1)) {
        map_macro_fused_fail(fused, statement->span,
                             parts == 2 ? "A -> B, A -> gate, up or gate, up -> B" : "A -> B, A -> q, k, v or q, k, v -> B",
                             "the number of names fits no form");
        return RESHARD_OK;
    }
    if (fused->context->reverse && is_split)
        map_diagnose(fused->context->diagnoses, MAP_UNPORTABLE, statement->span, NULL,
                     "Paddle's engine crashes on %s into %u names backwards", map_flag_name(statement->flag), parts);
    if ((!is_join && !find_degree(fused, true, &source_degree)) || (!is_split && !find_degree(fused, false, &target_degree)) ||
        !make_kinds(fused, source_degree, target_degree, &no_memory))
        return no_memory ? error_set_memory(fused->err) : RESHARD_OK;
    reshard_status status;
    if (is_join) {
        struct map_name *joined = joined_name(fused);
        status = emit_join(fused, joined);
        if (!status)
            status = emit(fused, joined, 1, in_rank_order(fused, 1), all_pieces(fused));
    } else {
        status = emit(fused, statement->left, 1, in_rank_order(fused, source_degree), all_pieces(fused));
    }
    if (status)
        return status;
    return is_split ? emit_kinds(fused, statement->right, false)
                    : emit(fused, in_rank_order(fused, target_degree), all_pieces(fused), statement->right, 1);
}

/* ---- the layout by groups ---- */

static struct map_name *in_group_order(const struct fused *fused)
{
    return in_rank_order(fused, fused->groups);
}

static reshard_status expand_by_group(struct fused *fused)
{
    const struct map_statement *statement = fused->statement;
    bool is_join = statement->left_count == 3 && statement->right_count == 1,
         is_split = statement->left_count == 1 && statement->right_count == 3;
    bool no_memory = false;
    if (!is_join && !is_split) {
        map_macro_fused_fail(fused, statement->span,
             "q, k, v -> B or A -> q, k, v; for [Q|K|V] on each rank use fused_qkv_old; between layouts by groups no statement is needed",
             "the number of names fits no form");
        return RESHARD_OK;
    }
    struct map_name *names = is_join ? statement->left : statement->right;
    int64_t counts[KINDS_MAX] = { fused->heads, fused->groups, fused->groups };
    pieces_fit(fused, fused->heads + 2 * fused->groups, &no_memory);
    for (int kind = 0; kind < KINDS_MAX && !no_memory; kind++)
        make_pieces(fused, "", names[kind].text, "", counts[kind], &no_memory);
    if (no_memory)
        return error_set_memory(fused->err);
    if (is_split) {
        reshard_status status = emit(fused, statement->left, 1, in_group_order(fused), all_pieces(fused));
        return status ? status : emit_kinds(fused, names, false);
    }
    reshard_status status = emit_kinds(fused, names, true);
    return status ? status : emit(fused, in_group_order(fused), all_pieces(fused), statement->right, 1);
}

static reshard_status expand_fused(struct fused *fused)
{
    const struct map_statement *statement = fused->statement;
    if (!check_attributes(fused) || !check_names(fused, statement->left, statement->left_count) ||
        !check_names(fused, statement->right, statement->right_count))
        return RESHARD_OK;
    map_macro_fused_read_axis(fused);
    if (statement->flag != MAP_FLAG_FFN && !read_heads(fused))
        return RESHARD_OK;
    return statement->flag == MAP_FLAG_QKV ? expand_by_group(fused) : expand_by_rank(fused);
}

reshard_status map_macro_fused(const struct map_macro_context *context, const struct map_chain *chain, const struct map_program *in,
                               struct map_program *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < in->count && !status; i++) {
        if (!in->statements[i].flag) {
            status = map_emit(context, out, &in->statements[i], err);
            continue;
        }
        struct fused fused = { .context = context, .chain = chain, .statement = &in->statements[i], .out = out, .err = err };
        status = expand_fused(&fused);
    }
    return status;
}
