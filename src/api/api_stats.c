/* SPDX-License-Identifier: Apache-2.0 */
/* What values are like: of tensors, and of several together. */
#include "api/handle.h"

#include "api/public_options.h"
#include "base/array.h"
#include "convert/key_filter.h"
#include "convert/tensor_stats.h"

#include <math.h>
#include <stdlib.h>

/* A tally that waits for its turn: without the bins that are empty at both ends. */
struct kept_tally {
    struct value_tally *tally; /* as far as its bins, which are elsewhere */
    uint64_t *bins;            /* of both signs, bin_count each, from first_bin on */
    int first_bin, bin_count;
};

struct stats_run {
    struct kept_tally *kept; /* by catalog tensor */
    struct arena arena;
};

static reshard_status keep_tally(void *context, uint32_t tensor, const struct value_tally *tally, reshard_error *err)
{
    struct stats_run *run = context;
    struct kept_tally *kept = &run->kept[tensor];
    int first = 0, end = TALLY_BINS;
    while (first < end && !(tally->bins[0][first] | tally->bins[1][first]))
        first++;
    while (end > first && !(tally->bins[0][end - 1] | tally->bins[1][end - 1]))
        end--;
    size_t count = (size_t)(end - first);
    kept->tally = arena_alloc(&run->arena, offsetof(struct value_tally, bins));
    kept->bins = arena_array(&run->arena, 2 * count, sizeof(*kept->bins));
    if (!kept->tally || !kept->bins)
        return error_set_memory(err);
    memcpy(kept->tally, tally, offsetof(struct value_tally, bins));
    memcpy(kept->bins, &tally->bins[0][first], count * sizeof(uint64_t));
    memcpy(kept->bins + count, &tally->bins[1][first], count * sizeof(uint64_t));
    kept->first_bin = first;
    kept->bin_count = end - first;
    return RESHARD_OK;
}

/* Range and moments of nothing are NaN. */
static void stats_of_kept(const struct kept_tally *kept, enum dtype dtype, reshard_tensor_stats *out)
{
    const struct value_tally *tally = kept->tally;
    const size_t count = (size_t)kept->bin_count;
    const double finite = (double)(tally->count - tally->nan_count - tally->inf_count);
    *out = (reshard_tensor_stats){ .struct_size = sizeof(*out),
                                   .count = tally->count,
                                   .nan_count = tally->nan_count,
                                   .inf_count = tally->inf_count,
                                   .zero_count = tally->zero_count,
                                   .subnormal_count = tally->subnormal_count,
                                   .is_opaque = !value_counter_knows(dtype),
                                   .min = NAN, .max = NAN, .mean = NAN, .deviation = NAN, .norm = 0 };
    if (finite > 0) {
        out->min = tally->min;
        out->max = tally->max;
        out->mean = tally->mean;
        out->deviation = sqrt(tally->square_sum / finite);
        out->norm = sqrt(tally->square_sum + tally->mean * tally->mean * finite);
    }
    memcpy(out->negative + kept->first_bin, kept->bins, count * sizeof(uint64_t));
    memcpy(out->positive + kept->first_bin, kept->bins + count, count * sizeof(uint64_t));
}

/* What is of the finite numbers alone. */
static void moments_join(reshard_tensor_stats *into, const reshard_tensor_stats *part)
{
    const double before = (double)(into->count - into->nan_count - into->inf_count),
                 added = (double)(part->count - part->nan_count - part->inf_count), total = before + added;
    if (added > 0 && before > 0) {
        double distance = part->mean - into->mean, squares = into->deviation * into->deviation * before;
        squares += part->deviation * part->deviation * added + distance * distance * before * added / total;
        into->mean += distance * added / total;
        into->deviation = sqrt(squares / total);
        into->min = fmin(into->min, part->min);
        into->max = fmax(into->max, part->max);
    } else if (added > 0) {
        into->min = part->min;
        into->max = part->max;
        into->mean = part->mean;
        into->deviation = part->deviation;
    }
    if (total == 0)
        into->min = into->max = into->mean = into->deviation = NAN;
    into->norm = hypot(into->norm, part->norm);
}

API_EXPORT reshard_status reshard_stats_join(reshard_tensor_stats *into, const reshard_tensor_stats *part)
{
    reshard_tensor_stats made, given;
    if (!into || !part || struct_take(&made, sizeof(made), into, "reshard_tensor_stats", NULL) ||
        struct_take(&given, sizeof(given), part, "reshard_tensor_stats", NULL))
        return RESHARD_ERR_USAGE;
    moments_join(&made, &given);
    made.count += given.count;
    made.nan_count += given.nan_count;
    made.inf_count += given.inf_count;
    made.zero_count += given.zero_count;
    made.subnormal_count += given.subnormal_count;
    made.is_opaque = made.is_opaque && given.is_opaque;
    for (size_t i = 0; i < RESHARD_STATS_BINS; i++) {
        made.negative[i] += given.negative[i];
        made.positive[i] += given.positive[i];
    }
    struct_give(into, &made, sizeof(made));
    return RESHARD_OK;
}

static reshard_status stats_hand_out(reshard_checkpoint *checkpoint, const struct stats_run *run, reshard_stats_sink sink, void *context,
                                     reshard_error *err)
{
    const size_t *order, count = reshard_tensor_count(checkpoint);
    reshard_status status = reshard_tensor_order(checkpoint, &order, err);
    for (size_t i = 0; i < count && !status; i++) {
        const uint32_t tensor = checkpoint_listed(checkpoint, order[i]);
        reshard_tensor_stats stats;
        if (!run->kept[tensor].tally)
            continue;
        stats_of_kept(&run->kept[tensor], checkpoint_catalog(checkpoint)->tensors[tensor].dtype, &stats);
        if (sink(order[i], &stats, context))
            status = error_set(err, RESHARD_ERR_CANCELLED, "stopped by the receiver");
    }
    return status;
}

/* Catalog indices of what is asked for; tensors without stored values are left out. */
static reshard_status stats_wanted(const reshard_checkpoint *checkpoint, const reshard_stats_options *options, uint32_t *wanted,
                                   uint32_t *count, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    struct key_filter filter;
    reshard_status status = key_filter_begin(&filter, options->include, options->exclude, err);
    for (size_t i = 0; i < reshard_tensor_count(checkpoint) && !status; i++) {
        const uint32_t tensor = checkpoint_listed(checkpoint, i);
        bool is_wanted;
        status = key_filter_wants(&filter, checkpoint_tensor_name(checkpoint->opened, i), &is_wanted, err);
        if (!status && is_wanted && !(catalog->tensors[tensor].flags & TENSOR_NO_DATA))
            wanted[(*count)++] = tensor;
    }
    if (!status)
        status = key_filter_check(&filter, err);
    key_filter_release(&filter);
    return status;
}

API_EXPORT reshard_status reshard_stats(reshard_checkpoint *checkpoint, const reshard_stats_options *options,
                                        const reshard_run_options *run, reshard_stats_sink sink, void *context, reshard_error *err)
{
    reshard_stats_options given;
    struct run_call running;
    struct stats_run stats = { 0 };
    uint32_t *wanted = NULL, count = 0;
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    NEEDS(sink, err);
    reshard_status status = struct_take(&given, sizeof(given), options, "reshard_stats_options", err);
    if (!status)
        status = run_options_read(run, &running, err);
    if (status)
        return status;
    RUN_WAITS(&running);
    stats.kept = array_zeroed((size_t)checkpoint_catalog(checkpoint)->tensor_count, sizeof(*stats.kept));
    wanted = array_zeroed(reshard_tensor_count(checkpoint), sizeof(*wanted));
    status = stats.kept && wanted ? RESHARD_OK : error_set_memory(err);
    work_renew(&checkpoint_source(checkpoint)->work);
    if (!status)
        status = stats_wanted(checkpoint, &given, wanted, &count, err);
    if (!status)
        status = tensor_stats(checkpoint->opened, wanted, count, &running.engine, keep_tally, &stats, err);
    if (!status)
        status = stats_hand_out(checkpoint, &stats, sink, context, err);
    arena_release(&stats.arena);
    free(stats.kept);
    free(wanted);
    return status;
}
