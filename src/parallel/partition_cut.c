/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/partition_cut.h"

#include "base/checked.h"

#include <inttypes.h>

/* ---- from the rule to a cut ---- */

static void copy_shape(int64_t *out, const int64_t *shape, int rank)
{
    memcpy(out, shape, (size_t)rank * sizeof(*shape));
}

/* Whether a rule with "unless" leaves the tensor whole on every rank. size: of the axis, on a rank or in the whole. */
static bool is_kept_whole(const struct cut_context *context, const struct partition_rule *rule, int64_t size, bool is_local)
{
    int64_t whole;
    if (rule->unless.size == 0)
        return false;
    if (!is_local) /* what is of blocks is a module of both kinds' that cuts */
        return !context->is_split_down && rule->block_count == 0;
    return !partition_size_value(context->rules, context->args, rule->unless, &whole) || size == whole;
}

static int64_t group_parts(const struct cut_context *context, enum partition_group group)
{
    return group == PARTITION_ETP ? context->layout.etp : context->layout.tp;
}

/* What does not depend on the direction. *axis_size is the size of the cut axis; false: nothing is cut by tensor parallelism. */
static bool cut_prepare(const struct cut_context *context, const struct partition_rule *rule, int rank, const int64_t *shape, bool is_local,
                        struct cut *out)
{
    *out = (struct cut){ .rank = rank, .axis = -1, .expert_axis = -1, .parts = 1, .repeats = 1, .expert_parts = 1, .version_order = 2 };
    copy_shape(out->shape, shape, rank);
    copy_shape(out->local, shape, rank);
    if (rule->expert_axis >= 0 && rule->expert_axis < rank) {
        out->expert_axis = rule->expert_axis;
        out->expert_parts = context->layout.ep;
    }
    if (!rule->is_cut || rule->axis >= rank || is_kept_whole(context, rule, shape[rule->axis], is_local))
        return false;
    /* Of one rank the blocks follow each other as they do in the whole, whatever their sizes are. */
    if (rule->block_count > 0 && group_parts(context, rule->group) == 1)
        return false;
    out->axis = rule->axis;
    out->group = rule->group;
    out->parts = group_parts(context, rule->group);
    out->is_grouped = rule->is_grouped && rank == 2;
    return true;
}

/* Halves and named blocks of the axis; sum: its size in the whole, of one expert. Which rule does not fit is the caller's to say. */
static bool cut_blocks(const struct cut_context *context, const struct partition_rule *rule, int64_t sum, struct cut *out)
{
    out->block_count = rule->is_gated && context->is_gated ? 2 : 1;
    for (int i = 0; i < out->block_count; i++)
        out->blocks[i] = sum / out->block_count;
    if (sum % out->block_count)
        return false;
    if (rule->block_count == 0)
        return true;
    int64_t total = 0;
    out->block_count = rule->block_count;
    for (int i = 0; i < rule->block_count; i++)
        if (!partition_size_value(context->rules, context->args, rule->blocks[i], &out->blocks[i]) ||
            !checked_add_i64(total, out->blocks[i], &total))
            return false;
    return total == sum;
}

static reshard_status fail_blocks(const struct partition_rule *rule, const struct cut *cut, int64_t size, reshard_error *err)
{
    if (rule->block_count > 0) {
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "axis %d has %" PRId64 " entries, which are not the blocks that the arguments of the run give it", cut->axis, size);
        error_hint(err, "reshard_convert_options.like CHECKPOINT takes the arguments of another run where the source has none; one "
                        "tensor-parallel rank needs none");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return error_set(err, RESHARD_ERR_FORMAT, "axis %d has %" PRId64 " entries: no two equal halves, which a gated activation needs",
                     cut->axis, size);
}

static bool set_version(const struct cut_context *context, const struct partition_rule *rule, struct cut *out)
{
    const struct training_args *args = context->args;
    if (rule->versions == 0 || context->version_order >= 2)
        return true;
    out->versions = rule->versions;
    out->version_order = context->version_order;
    out->head_size = args->head_size;
    if (out->head_size <= 0 && args->hidden_size > 0 && args->heads > 0)
        out->head_size = args->hidden_size / args->heads;
    int64_t part = out->head_size > 0 ? out->head_size * rule->versions : 0;
    return part > 0 && out->local[out->axis] % part == 0;
}

/* Experts of one rank's grouped matrix. */
static bool set_grouped(const struct cut_context *context, struct cut *out)
{
    int64_t experts = context->args->experts;
    if (!out->is_grouped)
        return true;
    if (experts <= 0 || experts % context->layout.ep)
        return false;
    out->repeats = experts / context->layout.ep;
    out->expert_axis = out->axis;
    out->expert_parts = context->layout.ep;
    return true;
}

reshard_status cut_from_local(const struct cut_context *context, const struct partition_rule *rule, int rank, const int64_t *local,
                              struct cut *out, reshard_error *err)
{
    bool is_cut = cut_prepare(context, rule, rank, local, true, out);
    bool fits = true;
    if (is_cut && !set_grouped(context, out))
        return error_set(err, RESHARD_ERR_FORMAT,
                         "a matrix of all experts, but the arguments of the run name no number of experts that ep=%" PRId64 " divides",
                         context->layout.ep);
    if (is_cut)
        fits = checked_mul_i64(out->shape[out->axis], out->parts, &out->shape[out->axis]);
    if (out->expert_axis >= 0)
        fits = fits && checked_mul_i64(out->shape[out->expert_axis], out->expert_parts, &out->shape[out->expert_axis]);
    if (!fits)
        return error_set(err, RESHARD_ERR_FORMAT, "its size times the number of ranks is too large");
    if (!is_cut)
        return RESHARD_OK;
    int64_t experts = out->repeats * (out->is_grouped ? out->expert_parts : 1), size = out->shape[out->axis];
    if (size % experts)
        return error_set(err, RESHARD_ERR_FORMAT, "axis %d has %" PRId64 " entries for %" PRId64 " experts", out->axis, size, experts);
    if (!cut_blocks(context, rule, size / experts, out))
        return fail_blocks(rule, out, size / experts, err);
    for (int i = 0; i < out->block_count; i++)
        if (out->blocks[i] % out->parts)
            return error_set(err, RESHARD_ERR_FORMAT, "axis %d: a block of %" PRId64 " entries is not divided by %" PRId64 " ranks",
                             out->axis, out->blocks[i], out->parts);
    if (!set_version(context, rule, out))
        return error_set(err, RESHARD_ERR_FORMAT, "axis %d has %" PRId64 " entries, which are no whole heads (checkpoint version %d)",
                         out->axis, local[out->axis], context->version_order);
    return RESHARD_OK;
}

/* ---- writing ---- */

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static reshard_status cut_fail_division(const struct cut *cut, const char *what, int64_t parts, int64_t size, reshard_error *err)
{
    bool is_expert_axis = what[0] == 'e' && what[1] == 'p';
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s=%" PRId64 " does not divide axis %d of %" PRId64 " entries", what, parts,
                     is_expert_axis ? cut->expert_axis : cut->axis, size);
}

int64_t cut_common_divisor(const struct cut *cut, int64_t common)
{
    for (int i = 0; i < cut->block_count; i++)
        common = greatest_divisor(common, cut->blocks[i]);
    return common;
}

static reshard_status divide_blocks(struct cut *cut, reshard_error *err)
{
    int64_t common = cut_common_divisor(cut, 0);
    const char *name = cut->group == PARTITION_ETP ? "etp" : "tp";
    if (common % cut->parts)
        return cut_fail_division(cut, name, cut->parts, common, err);
    cut->local[cut->axis] /= cut->parts;
    return RESHARD_OK;
}

reshard_status cut_from_whole(const struct cut_context *context, const struct partition_rule *rule, int rank, const int64_t *shape,
                              struct cut *out, reshard_error *err)
{
    bool is_cut = cut_prepare(context, rule, rank, shape, false, out);
    if (is_cut && !set_grouped(context, out))
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "a matrix of all experts: their number is not known, or ep=%" PRId64 " does not divide it", context->layout.ep);
    if (out->expert_axis >= 0 && !out->is_grouped && out->shape[out->expert_axis] % out->expert_parts)
        return cut_fail_division(out, "ep", out->expert_parts, out->shape[out->expert_axis], err);
    if (is_cut) {
        int64_t experts = out->repeats * (out->is_grouped ? out->expert_parts : 1), size = out->shape[out->axis];
        if (size % experts || !cut_blocks(context, rule, size / experts, out))
            return fail_blocks(rule, out, size, err);
        reshard_status status = divide_blocks(out, err);
        if (status)
            return status;
    }
    if (out->expert_axis >= 0)
        out->local[out->expert_axis] /= out->expert_parts;
    return RESHARD_OK;
}

/* ---- pieces ---- */

struct emitting {
    const struct cut *cut;
    struct cut_piece piece;
    cut_sink emit;
    void *context;
};

/* Sets the piece to [global, global + extent) of the axis, which is [local, …) of the rank's, and emits it. */
static reshard_status emit_range(struct emitting *emitting, int axis, int64_t global, int64_t local, int64_t extent, reshard_error *err)
{
    struct cut_piece *piece = &emitting->piece;
    piece->start[axis] = global;
    piece->extent[axis] = extent;
    piece->local_start[axis] = local;
    return emitting->emit(piece, emitting->context, err);
}

/* The blocks of the axis from `global` on; local: where the rank's own parts of them begin. */
static reshard_status emit_blocks(struct emitting *emitting, int64_t part, int64_t global, int64_t local, reshard_error *err)
{
    const struct cut *cut = emitting->cut;
    reshard_status status = RESHARD_OK;
    if (cut->parts == 1) {
        int64_t sum = 0;
        for (int i = 0; i < cut->block_count; i++)
            sum += cut->blocks[i];
        return emit_range(emitting, cut->axis, global, local, sum, err);
    }
    for (int i = 0; !status && i < cut->block_count; i++) {
        int64_t extent = cut->blocks[i] / cut->parts;
        status = emit_range(emitting, cut->axis, global + part * extent, local, extent, err);
        global += cut->blocks[i];
        local += extent;
    }
    return status;
}

/* Heads of old versions: part s of head p is a run of rows in the whole, and lies apart in the file. */
static reshard_status emit_versions(struct emitting *emitting, int64_t part, reshard_error *err)
{
    const struct cut *cut = emitting->cut;
    int64_t rows = cut->local[cut->axis], heads = rows / (cut->versions * cut->head_size), base = part * rows;
    reshard_status status = RESHARD_OK;
    for (int64_t head = 0; !status && head < heads; head++) {
        for (int64_t s = 0; !status && s < cut->versions; s++) {
            int64_t global = base + (head * cut->versions + s) * cut->head_size;
            int64_t local = cut->version_order == 0 ? (s * heads + head) * cut->head_size : head * cut->head_size * cut->versions + s;
            emitting->piece.step[cut->axis] = cut->version_order == 0 ? 1 : cut->versions;
            status = emit_range(emitting, cut->axis, global, local, cut->head_size, err);
        }
    }
    return status;
}

/* Experts one after another on the cut axis: the memory's order is the shape's. */
static reshard_status emit_grouped_rows(struct emitting *emitting, const struct rank_place *place, int64_t part, reshard_error *err)
{
    const struct cut *cut = emitting->cut;
    int64_t size = cut->shape[cut->axis] / (cut->repeats * cut->expert_parts);
    reshard_status status = RESHARD_OK;
    if (cut->parts == 1)
        return emit_range(emitting, cut->axis, place->ep * cut->repeats * size, 0, cut->repeats * size, err);
    for (int64_t i = 0; !status && i < cut->repeats; i++)
        status = emit_blocks(emitting, part, (place->ep * cut->repeats + i) * size, i * (size / cut->parts), err);
    return status;
}

/*
 * The declared shape is [in, experts * out], the memory [expert, in, out]: line number q of `out` elements belongs to expert q / in. In the
 * declared shape line q is row q / experts, block q % experts. A rank's lines are a run of them, at most three boxes of (row, block); in
 * its own declared shape a step of one row of the whole is a step of `expert_parts` rows.
 */
struct line_run {
    struct emitting *emitting;
    int64_t part, first_line, out_size, experts;
    reshard_status status;
    reshard_error *err;
};

static bool emit_lines(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct line_run *run = context;
    const struct cut *cut = run->emitting->cut;
    struct cut_piece *piece = &run->emitting->piece;
    (void)flat_index;
    for (int64_t block = start[1]; !run->status && block < start[1] + extent[1]; block++) {
        int64_t line = start[0] * run->experts + block - run->first_line; /* in the rank's own numbering */
        piece->start[0] = start[0];
        piece->extent[0] = extent[0];
        piece->local_start[0] = line / cut->repeats;
        piece->step[0] = cut->expert_parts;
        run->status =
            emit_blocks(run->emitting, run->part, block * run->out_size, line % cut->repeats * (run->out_size / cut->parts), run->err);
    }
    return run->status == RESHARD_OK;
}

static reshard_status emit_grouped_columns(struct emitting *emitting, const struct rank_place *place, int64_t part, reshard_error *err)
{
    const struct cut *cut = emitting->cut;
    int64_t experts = cut->repeats * cut->expert_parts, lines = cut->repeats * cut->shape[0];
    int64_t grid[2] = { cut->shape[0], experts };
    struct line_run run = { emitting, part, place->ep * lines, cut->shape[1] / experts, experts, RESHARD_OK, err };
    flat_run_boxes(2, grid, run.first_line, lines, emit_lines, &run);
    return run.status;
}

reshard_status cut_pieces(const struct cut *cut, const struct rank_place *place, cut_sink emit, void *context, reshard_error *err)
{
    struct emitting emitting = { .cut = cut, .emit = emit, .context = context };
    for (int i = 0; i < cut->rank; i++) {
        emitting.piece.extent[i] = cut->local[i];
        emitting.piece.step[i] = 1;
    }
    if (cut->expert_axis >= 0 && !cut->is_grouped)
        emitting.piece.start[cut->expert_axis] = place->ep * cut->local[cut->expert_axis];
    if (box_is_empty(cut->rank, cut->shape))
        return RESHARD_OK;
    if (cut->axis < 0 || (cut->parts == 1 && cut->expert_parts == 1 && cut->versions == 0))
        return emit(&emitting.piece, context, err);
    int64_t part = cut->group == PARTITION_ETP ? place->etp : place->tp;
    if (cut->versions > 0)
        return emit_versions(&emitting, part, err);
    if (!cut->is_grouped)
        return emit_blocks(&emitting, part, 0, 0, err);
    return cut->axis == 0 ? emit_grouped_rows(&emitting, place, part, err) : emit_grouped_columns(&emitting, place, part, err);
}
