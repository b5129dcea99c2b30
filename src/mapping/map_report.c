/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_report.h"

#include "tensor/box_join.h"

#include <stdlib.h>

#define SHOWN_KEYS_MAX 20

bool map_cast_is_exact(enum dtype source, enum dtype target)
{
    static const enum dtype wider[][2] = {
        { DTYPE_F16, DTYPE_F32 }, { DTYPE_BF16, DTYPE_F32 }, { DTYPE_F16, DTYPE_F64 }, { DTYPE_BF16, DTYPE_F64 }, { DTYPE_F32, DTYPE_F64 }
    };
    for (size_t i = 0; i < sizeof(wider) / sizeof(wider[0]); i++) {
        if (source == wider[i][0] && target == wider[i][1])
            return true;
    }
    return source == target;
}

static bool casts_round(const struct map_cast *casts, enum dtype source)
{
    for (const struct map_cast *step = casts; step; step = step->before) {
        if (!map_cast_is_exact(step->before ? step->before->dtype : source, step->dtype))
            return true;
    }
    return false;
}

static reshard_status group_copies(const struct map_result *result, uint32_t tensors, struct map_report *report, reshard_error *err)
{
    report->first_copy = arena_zalloc(&report->arena, ((size_t)tensors + 2) * sizeof(*report->first_copy));
    report->by_source = arena_array(&report->arena, result->copy_count, sizeof(*report->by_source));
    if (!report->first_copy || !report->by_source)
        return error_set_memory(err);
    uint32_t *ends = report->first_copy + 1;
    for (uint32_t i = 0; i < result->copy_count; i++)
        ends[result->copies[i].source_tensor + 1]++;
    for (uint32_t i = 1; i <= tensors; i++)
        ends[i] += ends[i - 1];
    for (uint32_t i = 0; i < result->copy_count; i++)
        report->by_source[ends[result->copies[i].source_tensor]++] = i;
    return RESHARD_OK;
}

/* The box of the source that a copy reads. */
static bool source_box(struct arena *arena, const struct map_copy *copy, const struct map_tensor *source, int target_rank,
                       struct join_box *out)
{
    static const int64_t zeros[RANK_MAX];
    if (!copy->piece) {
        *out = (struct join_box){ zeros, source->shape, 0 };
        return true;
    }
    int64_t *extent = arena_array(arena, (size_t)source->rank, sizeof(*extent));
    if (extent)
        map_piece_source_extent(copy->piece, target_rank, extent);
    *out = (struct join_box){ copy->piece->source_start, extent, 0 };
    return extent != NULL;
}

static reshard_status measure_tensor(const struct map_result *result, const struct map_tensor *source, uint32_t index,
                                     struct box_joiner *joiner, struct map_report *report, reshard_error *err)
{
    struct arena arena = { 0 };
    struct map_use *use = &report->uses[index];
    uint32_t first = report->first_copy[index], count = report->first_copy[index + 1] - first, pair[2];
    reshard_status status = RESHARD_OK;
    shape_volume(source->rank, source->shape, &use->elements);
    struct join_box *pieces = arena_array(&arena, count, sizeof(*pieces));
    if (!pieces)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct map_copy *copy = &result->copies[report->by_source[first + i]];
        if (!source_box(&arena, copy, source, result->target->tensors[copy->target_tensor].rank, &pieces[i])) {
            status = error_set_memory(err);
            break;
        }
        int64_t volume = box_volume(source->rank, pieces[i].extent);
        use->is_whole |= volume == use->elements;
        if (__builtin_add_overflow(use->read, volume, &use->read))
            use->read = INT64_MAX;
        report->rounding += casts_round(copy->casts, source->dtype);
    }
    if (!status && count > 1 && !box_is_empty(source->rank, source->shape)) {
        status = use->is_whole ? RESHARD_OK : boxes_overlap(joiner, source->rank, pieces, count, &use->overlaps, pair, err);
        use->overlaps |= use->is_whole;
    }
    arena_release(&arena);
    return status;
}

static void count_use(const struct map_result *result, const struct map_tensor *source, const struct map_use *use,
                      struct map_report *report)
{
    report->doubled += use->overlaps;
    if (use->elements == 0)
        return;
    if (use->read == 0) {
        report->unused++;
        report->removed_unused += result->removed[source->weight];
    } else if (use->read < use->elements) {
        report->partly_used++;
    }
}

/* How many elements of a target tensor its copies write; *next is its first copy, then that of the next tensor. */
static int64_t count_written(const struct map_result *result, uint32_t target, uint32_t *next)
{
    const struct map_tensor *tensor = &result->target->tensors[target];
    int64_t written = 0;
    for (; *next < result->copy_count && result->copies[*next].target_tensor == target; ++*next) {
        const struct map_piece *piece = result->copies[*next].piece;
        written += box_volume(tensor->rank, piece ? piece->extent : tensor->shape);
    }
    return written;
}

/* Where what the target's tensors are comes from. Copies do not overlap in the target. */
static reshard_status count_origins(const struct map_result *result, struct map_report *report, reshard_error *err)
{
    uint32_t tensors = map_space_tensor_count(result->target), next = 0;
    report->origins = arena_zalloc(&report->arena, ((size_t)tensors + 1) * sizeof(*report->origins));
    if (!report->origins)
        return error_set_memory(err);
    for (uint32_t i = 0; i < tensors; i++) {
        const struct map_tensor *tensor = &result->target->tensors[i];
        int64_t elements = box_volume(tensor->rank, tensor->shape), written = count_written(result, i, &next);
        enum map_origin origin = elements && !written ? MAP_ORIGIN_KEPT : result->outcomes[tensor->weight].origin;
        report->origins[i] = origin;
        report->assigned += origin == MAP_ORIGIN_ASSIGNED;
        report->identity += origin == MAP_ORIGIN_IDENTITY;
        report->kept += origin == MAP_ORIGIN_KEPT;
        report->kept_in_part += origin != MAP_ORIGIN_KEPT && written < elements;
    }
    return RESHARD_OK;
}

reshard_status map_report_make(const struct map_result *result, const struct map_space *source, const struct limits *limits,
                               struct map_report *out, reshard_error *err)
{
    uint32_t tensors = map_space_tensor_count(source);
    struct box_joiner joiner = { .misses_max = limits->box_checks };
    out->uses = arena_zalloc(&out->arena, ((size_t)tensors + 1) * sizeof(*out->uses));
    reshard_status status = out->uses ? group_copies(result, tensors, out, err) : error_set_memory(err);
    for (uint32_t i = 0; i < tensors && !status; i++) {
        status = measure_tensor(result, &source->tensors[i], i, &joiner, out, err);
        count_use(result, &source->tensors[i], &out->uses[i], out);
    }
    box_joiner_release(&joiner);
    if (!status)
        status = count_origins(result, out, err);
    out->is_bijective = !out->unused && !out->partly_used && !out->doubled && !out->kept && !out->kept_in_part;
    return status;
}

/* ---- printing ---- */

static bool is_lost(const struct map_use *use)
{
    return use->read < use->elements;
}

static void print_keys(const struct map_report *report, const struct map_space *source, bool doubled, struct buffer *out)
{
    uint32_t shown = 0, total = 0;
    for (uint32_t i = 0; i < map_space_tensor_count(source); i++) {
        const struct map_use *use = &report->uses[i];
        if (doubled ? !use->overlaps : !is_lost(use))
            continue;
        if (++total > SHOWN_KEYS_MAX)
            continue;
        shown++;
        buffer_append_text(out, "  ");
        buffer_append_escaped(out, source->tensors[i].key);
        if (!doubled && use->read)
            buffer_printf(out, " (%lld of %lld elements)", (long long)(use->elements - use->read), (long long)use->elements);
        buffer_append_text(out, "\n");
    }
    if (total > shown)
        buffer_printf(out, "  … and %u more\n", total - shown);
}

bool map_report_print(const struct map_report *report, const struct map_result *result, const struct map_space *source, struct buffer *out)
{
    buffer_printf(out, "fits: %u tensors of the target: %u by statements, %u under their own name, %u keep their initial value",
                  map_space_tensor_count(result->target), report->assigned, report->identity, report->kept);
    if (report->kept_in_part)
        buffer_printf(out, ", %u in part", report->kept_in_part);
    buffer_append_text(out, "\n");
    if (report->unused || report->partly_used) {
        buffer_printf(out, "lost: %u tensors of the source are not used (%u of them removed by a statement), %u only in part\n",
                      report->unused, report->removed_unused, report->partly_used);
        print_keys(report, source, false, out);
    }
    if (report->doubled) {
        buffer_printf(out, "doubled: %u tensors of the source arrive more than once, wholly or in part\n", report->doubled);
        print_keys(report, source, true, out);
    }
    if (report->rounding)
        buffer_printf(out, "rounded: %u pieces are cast to a narrower type\n", report->rounding);
    buffer_printf(out, "bijective: %s\n", report->is_bijective ? "yes" : "no");
    return !out->failed;
}

static void box_json(int rank, const int64_t *start, const int64_t *extent, struct buffer *out)
{
    buffer_append_text(out, "[");
    for (int axis = 0; axis < rank; axis++)
        buffer_printf(out, "%s[%lld,%lld]", axis ? "," : "", (long long)start[axis], (long long)(start[axis] + extent[axis]));
    buffer_append_text(out, "]");
}

static void casts_json(const struct map_cast *casts, struct buffer *out)
{
    const struct map_cast *steps[16];
    int count = 0;
    for (const struct map_cast *step = casts; step && count < 16; step = step->before)
        steps[count++] = step;
    buffer_append_text(out, "[");
    for (int i = count; i-- > 0;)
        buffer_printf(out, "\"%s\"%s", dtype_info(steps[i]->dtype)->name, i ? "," : "");
    buffer_append_text(out, "]");
}

/* Of each axis of the target the axis of the source; null: a new one. */
static void permute_json(const uint8_t *axes, int rank, struct buffer *out)
{
    buffer_append_text(out, ",\"permute\":[");
    for (int axis = 0; axis < rank; axis++) {
        buffer_append_text(out, axis ? "," : "");
        if (axes[axis] == MAP_AXIS_NEW)
            buffer_append_text(out, "null");
        else
            buffer_printf(out, "%d", axes[axis]);
    }
    buffer_append_text(out, "]");
}

static void copy_json(const struct map_copy *copy, const struct map_space *source, const struct map_tensor *target, struct buffer *out)
{
    const struct map_tensor *tensor = &source->tensors[copy->source_tensor];
    static const int64_t zeros[RANK_MAX];
    int64_t extent[RANK_MAX];
    buffer_append_text(out, "{\"source\":");
    buffer_append_json_visible(out, tensor->key);
    if (copy->piece)
        map_piece_source_extent(copy->piece, target->rank, extent);
    buffer_append_text(out, ",\"from\":");
    box_json(tensor->rank, copy->piece ? copy->piece->source_start : zeros, copy->piece ? extent : tensor->shape, out);
    buffer_append_text(out, ",\"to\":");
    box_json(target->rank, copy->piece ? copy->piece->start : zeros, copy->piece ? copy->piece->extent : tensor->shape, out);
    if (copy->piece && copy->piece->axes)
        permute_json(copy->piece->axes, target->rank, out);
    if (copy->casts) {
        buffer_append_text(out, ",\"casts\":");
        casts_json(copy->casts, out);
    }
    buffer_append_text(out, "}");
}

static void targets_json(const struct map_report *report, const struct map_result *result, const struct map_space *source,
                         struct buffer *out)
{
    static const char *const origins[] = { "assigned", "identity", "kept" };
    uint32_t next = 0;
    for (uint32_t i = 0; i < map_space_tensor_count(result->target); i++) {
        const struct map_tensor *tensor = &result->target->tensors[i];
        buffer_append_text(out, i ? ",{\"key\":" : "{\"key\":");
        buffer_append_json_visible(out, tensor->key);
        buffer_printf(out, ",\"origin\":\"%s\",\"dtype\":\"%s\",\"shape\":[", origins[report->origins[i]],
                      dtype_info(tensor->dtype)->name);
        for (int axis = 0; axis < tensor->rank; axis++)
            buffer_printf(out, "%s%lld", axis ? "," : "", (long long)tensor->shape[axis]);
        buffer_append_text(out, "],\"pieces\":[");
        for (bool any = false; next < result->copy_count && result->copies[next].target_tensor == i; next++, any = true) {
            buffer_append_text(out, any ? "," : "");
            copy_json(&result->copies[next], source, tensor, out);
        }
        buffer_append_text(out, "]}");
    }
}

static void keys_json(const struct map_report *report, const struct map_space *source, bool doubled, struct buffer *out)
{
    bool any = false;
    for (uint32_t i = 0; i < map_space_tensor_count(source); i++) {
        const struct map_use *use = &report->uses[i];
        if (doubled ? !use->overlaps : !is_lost(use))
            continue;
        buffer_append_text(out, any ? "," : "");
        buffer_append_json_visible(out, source->tensors[i].key);
        any = true;
    }
}

bool map_report_json(const struct map_report *report, const struct map_result *result, const struct map_space *source, struct buffer *out)
{
    buffer_printf(out, "{\"schema\":\"reshard-map-check/1\",\"bijective\":%s,\"assigned\":%u,\"identity\":%u,\"kept\":%u,",
                  report->is_bijective ? "true" : "false", report->assigned, report->identity, report->kept);
    buffer_printf(out, "\"kept_in_part\":%u,\"rounded\":%u,\"lost\":[", report->kept_in_part, report->rounding);
    keys_json(report, source, false, out);
    buffer_append_text(out, "],\"doubled\":[");
    keys_json(report, source, true, out);
    buffer_append_text(out, "],\"targets\":[");
    targets_json(report, result, source, out);
    buffer_append_text(out, "]}");
    return !out->failed;
}

void map_report_release(struct map_report *report)
{
    arena_release(&report->arena);
    *report = (struct map_report){ 0 };
}
