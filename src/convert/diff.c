/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/diff.h"
#include "base/array.h"
#include "convert/checkpoint_view.h"

#include "convert/diff_items.h"
#include "convert/explain.h"
#include "convert/mapped.h"
#include "convert/pair_values.h"

#include <math.h>
#include <stdlib.h>

/* Which keys are compared; the first failure to find out is kept. */
struct diff_keys {
    struct key_filter filter;
    reshard_status status;
    reshard_error err;
};

struct diff {
    struct checkpoint *a, *b;
    struct mapped mapped;
    const struct catalog *catalog_a; /* a's tensors as they are compared: mapped.catalog */
    const struct diff_options *options;
    struct diff_keys *keys;
    struct finding_sink *findings;
    struct lockstep_pair *pairs;
    struct difference *results;    /* by pair */
    struct lockstep_pair *misfits; /* of other shapes or types, which may be explained all the same */
    uint32_t pair_count, misfit_count;
    struct tolerance tolerance;
    struct diff_summary summary;
};

/* Where keys are ambiguous only the path tells which tensor is meant. */
static uint32_t find_counterpart(const struct catalog *catalog, const struct catalog *from, const struct catalog_tensor *tensor)
{
    uint32_t found = catalog_find(catalog, tensor->key);
    if (found == CATALOG_NONE || !((tensor->flags | catalog->tensors[found].flags) & TENSOR_AMBIGUOUS))
        return found;
    struct path_part single, other_single;
    const struct path_part *parts, *other;
    size_t count = catalog_tensor_path(from, tensor, &single, &parts);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *candidate = &catalog->tensors[i];
        if (candidate->flags & TENSOR_HIDDEN || !str_equal(candidate->key, tensor->key))
            continue;
        size_t other_count = catalog_tensor_path(catalog, candidate, &other_single, &other);
        if (path_equal(parts, count, other, other_count))
            return i;
    }
    return CATALOG_NONE;
}

/* Where one axis is a whole number of times as long: a tensor that was saved as one tensor-parallel rank had it looks so. */
static void diff_part_text(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b, const struct catalog_tensor *y,
                           struct buffer *out)
{
    int64_t times = 0;
    int axis = -1;
    for (int i = 0; x->rank == y->rank && i < x->rank && times >= 0; i++) {
        int64_t m = catalog_vector_at(a, x->shape)[i], n = catalog_vector_at(b, y->shape)[i], low = m < n ? m : n, high = m < n ? n : m;
        if (m == n)
            continue;
        times = times == 0 && low > 0 && high % low == 0 ? high / low : -1;
        axis = i;
    }
    if (times > 1)
        buffer_printf(out, ", axis %d is %lld times as long: is one of them the part of one tensor-parallel rank, not merged?", axis,
                      (long long)times);
}

/* Some writers forget the shape of a tensor without elements, which then has one axis (dlrover's shared memory does). */
static bool diff_lost_shape(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b,
                            const struct catalog_tensor *y)
{
    bool is_lost = (x->rank == 1 && catalog_vector_at(a, x->shape)[0] == 0) || (y->rank == 1 && catalog_vector_at(b, y->shape)[0] == 0);
    return is_lost && x->dtype == y->dtype && !catalog_tensor_bytes(a, x) && !catalog_tensor_bytes(b, y);
}

/* Keys that the caller left out are on neither side. */
static bool diff_is_wanted(const struct diff *diff, const struct catalog_tensor *tensor)
{
    struct diff_keys *keys = diff->keys;
    bool is_wanted = false;
    if (!(tensor->flags & TENSOR_HIDDEN) && !keys->status)
        keys->status = key_filter_wants(&keys->filter, tensor->key, &is_wanted, &keys->err);
    return is_wanted;
}

/* Tells the receiver of tensors what became of one, and counts it. */
static void diff_tell_tensor(struct diff *diff, const struct catalog *catalog, const struct catalog_tensor *tensor,
                             enum diff_outcome outcome, const struct difference *result)
{
    const unsigned bits = dtype_info(tensor->dtype)->bits;
    struct diff_summary *summary = &diff->summary;
    struct diff_tensor told = { .key = tensor->key, .outcome = outcome, .bytes = catalog_tensor_bytes(catalog, tensor) };
    told.elements = told.bytes * 8 / bits;
    summary->tensors++;
    summary->by_outcome[outcome]++;
    if (result) {
        told.changed_elements = result->changed;
        told.max_absolute = result->max_absolute;
        told.max_relative = result->max_relative;
        summary->elements += told.elements;
        summary->bytes += told.bytes;
        summary->changed_elements += result->changed;
        summary->changed_bytes += result->changed * (bits % 8 ? 8 : bits) / 8;
        if (result->count && !(result->max_absolute <= summary->max_absolute))
            summary->max_absolute = result->max_absolute;
        if (result->count && result->max_relative > summary->max_relative)
            summary->max_relative = result->max_relative;
    }
    if (diff->options->tensor)
        diff->options->tensor(diff->options->tensor_context, &told);
}

static void report_shape(struct diff *diff, const struct catalog_tensor *x, const struct catalog_tensor *y, bool is_lost)
{
    const struct catalog *a = diff->catalog_a, *b = diff->b->source->catalog;
    char shape_a[SHAPE_TEXT_MAX], shape_b[SHAPE_TEXT_MAX];
    struct buffer part = { 0 };
    if (!is_lost)
        diff_part_text(a, x, b, y, &part);
    buffer_append_byte(&part, 0);
    finding_report(diff->findings, is_lost ? FINDING_WARNING : FINDING_FAILURE, "shape", x->key, "shape %s against %s%s%s",
                   shape_text(x->rank, catalog_vector_at(a, x->shape), ",", shape_a),
                   shape_text(y->rank, catalog_vector_at(b, y->shape), ",", shape_b), is_lost ? ", both without elements" : "",
                   part.failed ? "" : (char *)part.data);
    buffer_release(&part);
}

/* Where tensor i of a belongs: among the pairs to be compared, or among what is reported at once. */
static void match_tensor(struct diff *diff, uint32_t i)
{
    const struct catalog *a = diff->catalog_a, *b = diff->b->source->catalog;
    const struct catalog_tensor *x = &a->tensors[i];
    uint32_t other = find_counterpart(b, a, x);
    if (other == CATALOG_NONE) {
        finding_report(diff->findings, FINDING_FAILURE, "missing", x->key, "missing in the second: %s", dtype_info(x->dtype)->name);
        diff_tell_tensor(diff, a, x, DIFF_MISSING, NULL);
        return;
    }
    const struct catalog_tensor *y = &b->tensors[other];
    const struct lockstep_pair pair = { i, other };
    if (!catalog_same_shape(a, x, b, y)) {
        bool is_lost = diff_lost_shape(a, x, b, y);
        report_shape(diff, x, y, is_lost);
        diff_tell_tensor(diff, a, x, is_lost ? DIFF_SAME : DIFF_SHAPE, NULL);
        if (!is_lost)
            diff->misfits[diff->misfit_count++] = pair;
    } else if (x->dtype != y->dtype) {
        finding_report(diff->findings, FINDING_FAILURE, "dtype", x->key, "dtype %s against %s", dtype_info(x->dtype)->name,
                       dtype_info(y->dtype)->name);
        diff_tell_tensor(diff, a, x, DIFF_DTYPE, NULL);
        diff->misfits[diff->misfit_count++] = pair;
    } else if (!((x->flags | y->flags) & TENSOR_NO_DATA)) {
        diff->pairs[diff->pair_count++] = pair;
    } else {
        diff_tell_tensor(diff, a, x, DIFF_SAME, NULL);
    }
}

/* Finds partners, reports what has none or cannot be compared, and lists the rest in diff->pairs. */
static reshard_status match_tensors(struct diff *diff, reshard_error *err)
{
    const struct catalog *a = diff->catalog_a, *b = diff->b->source->catalog;
    diff->pairs = array_new(a->tensor_count, sizeof(*diff->pairs));
    diff->misfits = array_new(a->tensor_count, sizeof(*diff->misfits));
    if (!diff->pairs || !diff->misfits)
        return error_set_memory(err);
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        if (diff_is_wanted(diff, &a->tensors[i]))
            match_tensor(diff, i);
    }
    for (uint32_t i = 0; i < diff->b->listed_count; i++) {
        const struct catalog_tensor *y = &b->tensors[diff->b->listed[i]];
        if (!diff_is_wanted(diff, y) || find_counterpart(a, b, y) != CATALOG_NONE)
            continue;
        finding_report(diff->findings, FINDING_FAILURE, "unexpected", y->key, "only in the second: %s", dtype_info(y->dtype)->name);
        diff_tell_tensor(diff, b, y, DIFF_UNEXPECTED, NULL);
    }
    return finding_sink_status(diff->findings, err);
}

/* The source tensors that the pairs' made ones are made of. */
static reshard_status resolve_made(struct diff *diff, reshard_error *err)
{
    const struct recipe_table *table = &diff->mapped.selection.table;
    uint32_t *tensors, count;
    reshard_status status = recipes_read(table->recipes, table->count, diff->a->source->catalog->tensor_count, &tensors, &count, err);
    if (!status)
        status = source_resolve(diff->a->source, tensors, count, err);
    free(tensors);
    return status;
}

static reshard_status resolve_pairs(struct diff *diff, reshard_error *err)
{
    const uint32_t misfits = diff->options->explains ? diff->misfit_count : 0, count = diff->pair_count + misfits;
    uint32_t *tensors = array_new(count, sizeof(*tensors));
    if (!tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = i < misfits ? diff->misfits[i].a : diff->pairs[i - misfits].a;
    reshard_status status = diff->mapped.selection.wanted ? resolve_made(diff, err) : source_resolve(diff->a->source, tensors, count, err);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = i < misfits ? diff->misfits[i].b : diff->pairs[i - misfits].b;
    if (!status)
        status = source_resolve(diff->b->source, tensors, count, err);
    free(tensors);
    return status;
}

static reshard_status report_pairs(struct diff *diff, reshard_error *err)
{
    for (uint32_t i = 0; i < diff->pair_count; i++) {
        const struct catalog_tensor *tensor = &diff->catalog_a->tensors[diff->pairs[i].a];
        const struct difference *result = &diff->results[i];
        diff_tell_tensor(diff, diff->catalog_a, tensor, result->count ? DIFF_VALUES : DIFF_SAME, result);
        if (result->count)
            finding_report_values(diff->findings, tensor->key, result);
    }
    return finding_sink_status(diff->findings, err);
}

/* What may explain the differences, in a pass of its own over the tensors that differ; the first rank makes it. */
static reshard_status explain_differences(struct diff *diff, const struct engine_source *a, const struct engine_made *made,
                                          const struct engine_source *b, const struct engine_options *engine, reshard_error *err)
{
    struct team *team = diff->options->team;
    struct team_findings kept;
    struct explanation explanation = { .a = a, .made = made, .b = b, .catalog_a = diff->catalog_a, .engine = engine,
                                       .findings = team_findings_begin(team, &kept, diff->findings) };
    const uint32_t first = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < diff->pair_count && !status; i++) {
        const struct difference *result = &diff->results[i];
        const bool is_lost = isnan(result->max_absolute) && isinf(result->max_relative);
        const bool is_suspect = result->count > 1 || is_lost; /* of one number any two have a factor */
        if (is_suspect && team_rank(team) == first)
            status = explain_add(&explanation, diff->pairs[i], err);
    }
    for (uint32_t i = 0; i < diff->misfit_count && team_rank(team) == first && !status; i++)
        status = explain_add(&explanation, diff->misfits[i], err);
    if (!status)
        status = explain_run(&explanation, err);
    if (!status)
        status = team_rows(team, status, &first, 1, &explanation.explained, sizeof(explanation.explained), NULL, err);
    if (!status)
        status = team_findings_end(team, &kept, status, NULL, 0, diff->findings, err);
    buffer_release(&kept.packed);
    diff->summary.explained = explanation.explained;
    explain_release(&explanation);
    return status;
}

static reshard_status compare_tensors(struct diff *diff, const struct engine_options *engine, reshard_error *err)
{
    struct engine_source source_a = checkpoint_engine_source(diff->a), source_b = checkpoint_engine_source(diff->b);
    const struct engine_made made = { diff->catalog_a, diff->mapped.selection.table.recipes, diff->mapped.selection.table.first };
    const struct engine_made *maker = diff->mapped.selection.wanted ? &made : NULL;
    reshard_status status = match_tensors(diff, err);
    if (!status && diff->keys->status) {
        status = diff->keys->status;
        *err = diff->keys->err;
    }
    if (!status)
        status = key_filter_check(&diff->keys->filter, err);
    if (!status)
        status = resolve_pairs(diff, err);
    diff->results = array_zeroed(diff->pair_count, sizeof(*diff->results));
    if (!status && !diff->results)
        status = error_set_memory(err);
    const struct pair_values values = { &source_a, &source_b, maker, diff->catalog_a, diff->pairs, diff->pair_count,
                                        &diff->tolerance, diff->findings, diff->options->team };
    if (!status)
        status = pair_values_compare(&values, engine, diff->results, err);
    if (!status)
        status = report_pairs(diff, err);
    if (!status && diff->options->explains)
        status = explain_differences(diff, &source_a, maker, &source_b, engine, err);
    return status;
}

reshard_status diff_run(struct checkpoint *a, struct checkpoint *b, const struct diff_options *options, const struct engine_options *engine,
                        struct finding_sink *findings, reshard_error *err)
{
    reshard_status status = checkpoint_is_whole(a, err);
    if (!status)
        status = checkpoint_is_whole(b, err);
    if (!status)
        status = checkpoint_relate_both(&a, &b, err);
    if (status)
        return team_finish(options->team, status, err);
    struct diff_keys keys = { 0 };
    struct diff diff = { .a = a, .b = b, .options = options, .keys = &keys, .findings = findings,
                         .tolerance = { options->absolute_tolerance, options->relative_tolerance } };
    uint64_t failures = findings->failures;
    work_renew(&a->source->work);
    work_renew(&b->source->work);
    status = key_filter_begin(&keys.filter, options->include, options->exclude, err);
    if (!status)
        status = mapped_make(a, b, options->map, &options->naming, options->ignore_dtype, findings, &diff.mapped, err);
    diff.catalog_a = diff.mapped.catalog;
    if (!status)
        status = compare_tensors(&diff, engine, err);
    struct diff_items items = { .a = a, .b = b, .findings = findings, .tolerance = &diff.tolerance, .team = options->team };
    if (!status && !options->ignore_items)
        status = diff_items_compare(&items, engine, err);
    diff.summary.items = items.items;
    diff.summary.different_items = items.different;
    if (!status)
        status = finding_sink_status(findings, err);
    if (!status && options->summary)
        *options->summary = diff.summary;
    key_filter_release(&keys.filter);
    free(diff.pairs);
    free(diff.misfits);
    free(diff.results);
    mapped_release(&diff.mapped);
    status = status ? status : findings->failures > failures ? RESHARD_DIFFERS : RESHARD_OK;
    return team_finish(options->team, status, err);
}
