/* SPDX-License-Identifier: Apache-2.0 */
/* stats: what the values of tensors are like, tensor by tensor and rolled up by layer and module. */
#include "commands.h"
#include "roll_up.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 14
#define BARS_MAX 12    /* powers of two that a histogram shows of each sign; what is smaller is in the last */
#define BAR_CELLS 50

/* Of one kind: layers, or modules. */
struct stats_groups {
    struct roll_up names;
    reshard_tensor_stats *stats; /* by number of the name */
    size_t *tensors;
};

struct stats_output {
    const struct options *options;
    reshard_checkpoint *checkpoint;
    struct table table;
    struct stats_groups layers, modules;
    reshard_tensor_stats all;
    size_t tensors;
    bool failed; /* for lack of memory */
};

/* ---- lines ---- */

/* Which bins a histogram shows: from the largest that has anything down, at most BARS_MAX. */
static bool shown_bins(const reshard_tensor_stats *stats, int *first, int *last)
{
    int low = 0, high = RESHARD_STATS_BINS - 1;
    while (high >= 0 && !(stats->negative[high] | stats->positive[high]))
        high--;
    while (low < high && !(stats->negative[low] | stats->positive[low]))
        low++;
    *last = high;
    *first = high - low >= BARS_MAX ? high - BARS_MAX + 1 : low;
    return high >= 0;
}

/* What the bin stands for in a histogram whose first one is `first`: that holds what is smaller, too. */
static uint64_t bin_count(const uint64_t *bins, int bin, int first)
{
    uint64_t count = bins[bin];
    for (int i = 0; bin == first && i < first; i++)
        count += bins[i];
    return count;
}

/* Eight heights a character: negative numbers, the largest first, zeros, positive ones. */
static void print_sketch(FILE *out, const reshard_tensor_stats *stats)
{
    static const char *const heights[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    uint64_t counts[2 * BARS_MAX + 1], most = 1;
    int first, last, used = 0;
    if (!shown_bins(stats, &first, &last))
        first = 0, last = -1;
    for (int bin = last; bin >= first; bin--)
        counts[used++] = bin_count(stats->negative, bin, first);
    counts[used++] = stats->zero_count;
    for (int bin = first; bin <= last; bin++)
        counts[used++] = bin_count(stats->positive, bin, first);
    for (int i = 0; i < used; i++)
        most = counts[i] > most ? counts[i] : most;
    for (int i = 0; i < used; i++)
        fputs(heights[counts[i] ? 1 + (size_t)((double)counts[i] / (double)most * 7 + 0.5) : 0], out);
}

static void bar(const char *sign, int bin, bool is_least, uint64_t count, uint64_t most)
{
    size_t cells = (size_t)((double)count / (double)most * BAR_CELLS + 0.5);
    if (bin < 0)
        printf("%14s  ", "0");
    else
        printf("%2s%s2^%-5d%4s  ", sign, is_least ? "< " : "≥ ", bin - 127 + is_least, "");
    for (size_t i = 0; i < cells; i++)
        fputs("█", stdout);
    printf("%s%llu\n", cells ? " " : "", (unsigned long long)count);
}

/* A bar for each power of two. */
static void print_histogram(const reshard_tensor_stats *stats)
{
    uint64_t most = stats->zero_count ? stats->zero_count : 1;
    int first, last;
    if (!shown_bins(stats, &first, &last))
        return;
    for (int bin = first; bin <= last; bin++) {
        uint64_t negative = bin_count(stats->negative, bin, first), positive = bin_count(stats->positive, bin, first);
        most = negative > most ? negative : most;
        most = positive > most ? positive : most;
    }
    puts("\nmagnitudes by powers of two");
    for (int bin = last; bin >= first; bin--)
        bar("-", bin, bin == first, bin_count(stats->negative, bin, first), most);
    bar("", -1, false, stats->zero_count, most);
    for (int bin = first; bin <= last; bin++)
        bar("+", bin, bin == first, bin_count(stats->positive, bin, first), most);
}

static void print_number(struct table *table, double value)
{
    fprintf(table_cell(table), "%.6g", value);
}

static void print_count(struct table *table, uint64_t value)
{
    fprintf(table_cell(table), "%llu", (unsigned long long)value);
}

/* The cells behind the kind of line and the name. */
static void print_stats(struct table *table, const reshard_tensor_stats *stats)
{
    print_count(table, stats->count);
    print_number(table, stats->min);
    print_number(table, stats->max);
    print_number(table, stats->mean);
    print_number(table, stats->deviation);
    print_number(table, stats->norm);
    print_count(table, stats->zero_count);
    print_count(table, stats->subnormal_count);
    print_count(table, stats->nan_count);
    print_count(table, stats->inf_count);
    if (is_terminal())
        print_sketch(table_cell(table), stats);
}

static void print_heading(struct table *table)
{
    static const char *const names[COLUMNS] = { "", "", "dtype", "numbers", "min", "max", "mean", "std", "norm", "zeros",
                                                "subnormal", "nan", "inf" };
    for (size_t i = 0; is_terminal() && i < table->columns; i++)
        fputs(names[i] ? names[i] : "", table_cell(table));
}

/* ---- JSON ---- */

static void json_number(const char *name, double value)
{
    if (isfinite(value))
        printf(",\"%s\":%.17g", name, value);
    else
        printf(",\"%s\":null", name);
}

static void json_bins(const char *name, const uint64_t *bins, int first, int end)
{
    printf(",\"%s\":[", name);
    for (int bin = first; bin < end; bin++)
        printf("%s%llu", bin > first ? "," : "", (unsigned long long)bins[bin]);
    putchar(']');
}

/* The members behind a name. */
static void json_stats(const reshard_tensor_stats *stats)
{
    int first = 0, end = RESHARD_STATS_BINS;
    printf(",\"numbers\":%llu", (unsigned long long)stats->count);
    json_number("min", stats->min);
    json_number("max", stats->max);
    json_number("mean", stats->mean);
    json_number("std", stats->deviation);
    json_number("norm", stats->norm);
    printf(",\"zeros\":%llu,\"subnormal\":%llu,\"nan\":%llu,\"inf\":%llu", (unsigned long long)stats->zero_count,
           (unsigned long long)stats->subnormal_count, (unsigned long long)stats->nan_count, (unsigned long long)stats->inf_count);
    while (end > first && !(stats->negative[end - 1] | stats->positive[end - 1]))
        end--;
    while (first < end && !(stats->negative[first] | stats->positive[first]))
        first++;
    printf(",\"histogram\":{\"exponent\":%d", first < end ? first - 127 : 0);
    json_bins("negative", stats->negative, first, end);
    json_bins("positive", stats->positive, first, end);
    fputs("}}", stdout);
}

/* ---- groups ---- */

/* Takes over the name. */
static void join_group(struct stats_output *output, struct stats_groups *groups, char *name, const reshard_tensor_stats *stats)
{
    static const reshard_tensor_stats empty = RESHARD_TENSOR_STATS_INIT;
    size_t before = groups->names.count, room = groups->names.room, number = name ? roll_up_number(&groups->names, name) : (size_t)-1;
    free(name);
    if (number != (size_t)-1 && groups->names.room != room) {
        reshard_tensor_stats *grown = realloc(groups->stats, groups->names.room * sizeof(*grown));
        groups->stats = grown ? grown : groups->stats;
        size_t *tensors = realloc(groups->tensors, groups->names.room * sizeof(*tensors));
        groups->tensors = tensors ? tensors : groups->tensors;
        output->failed = output->failed || !grown || !tensors;
    }
    output->failed = output->failed || number == (size_t)-1;
    if (output->failed)
        return;
    if (number == before) {
        groups->stats[number] = empty;
        groups->tensors[number] = 0;
    }
    reshard_stats_join(&groups->stats[number], stats);
    groups->tensors[number]++;
}

static void print_groups(struct stats_output *output, const char *kind, const struct stats_groups *groups)
{
    size_t *order = roll_up_order(&groups->names);
    const bool json = output->options->json;
    output->failed = output->failed || !order;
    if (json)
        printf("],\"%ss\":[", kind);
    for (size_t i = 0; !output->failed && i < groups->names.count; i++) {
        const char *name = groups->names.names[order[i]];
        if (!json && strcmp(kind, "module") == 0 && groups->tensors[order[i]] < 2)
            continue; /* its one tensor has a line */
        if (json) {
            fputs(i ? ",{\"name\":" : "{\"name\":", stdout);
            json_text(stdout, name);
            printf(",\"tensors\":%zu", groups->tensors[order[i]]);
            json_stats(&groups->stats[order[i]]);
            continue;
        }
        fputs(kind, table_cell(&output->table));
        FILE *cell = table_cell(&output->table);
        print_escaped(cell, *name ? name : "(in no layer)", strlen(*name ? name : "(in no layer)"));
        fprintf(table_cell(&output->table), "×%zu", groups->tensors[order[i]]);
        print_stats(&output->table, &groups->stats[order[i]]);
    }
    free(order);
}

static void release_groups(struct stats_groups *groups)
{
    roll_up_release(&groups->names);
    free(groups->stats);
    free(groups->tensors);
}

static int print_tensor(size_t index, const reshard_tensor_stats *stats, void *context)
{
    struct stats_output *output = context;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(output->checkpoint, index, &tensor);
    join_group(output, &output->layers, layer_name(tensor.key), stats);
    join_group(output, &output->modules, module_name(tensor.key), stats);
    reshard_stats_join(&output->all, stats);
    if (output->options->json) {
        fputs(output->tensors ? ",{\"key\":" : "{\"key\":", stdout);
        json_string(stdout, tensor.key.data, tensor.key.size);
        printf(",\"dtype\":\"%s\",\"shape\":", tensor.dtype);
        json_ints(stdout, tensor.shape, tensor.rank);
        if (tensor.is_ambiguous)
            json_path(output->checkpoint, index);
        json_stats(stats);
    } else {
        fputs("tensor", table_cell(&output->table));
        print_escaped(table_cell(&output->table), tensor.key.data, tensor.key.size);
        fputs(tensor.dtype, table_cell(&output->table));
        print_stats(&output->table, stats);
    }
    output->tensors++;
    return output->failed;
}

static void print_all(struct stats_output *output)
{
    print_groups(output, "layer", &output->layers);
    print_groups(output, "module", &output->modules);
    if (output->options->json) {
        printf("],\"all\":{\"tensors\":%zu", output->tensors);
        json_stats(&output->all);
        puts("}");
        return;
    }
    fputs("all", table_cell(&output->table));
    table_cell(&output->table);
    fprintf(table_cell(&output->table), "×%zu", output->tensors);
    print_stats(&output->table, &output->all);
    table_end(&output->table);
    if (is_terminal())
        print_histogram(&output->all);
}

int command_stats(const struct options *options)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    reshard_stats_options stats = RESHARD_STATS_OPTIONS_INIT;
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    struct stats_output output = { .options = options, .checkpoint = checkpoint, .all = RESHARD_TENSOR_STATS_INIT };
    output.table.columns = is_terminal() ? COLUMNS : COLUMNS - 1;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "stats");
    if (options->json)
        fputs("{\"schema\":\"reshard-stats/1\",\"tensors\":[", stdout);
    else
        print_heading(&output.table);
    reshard_status status = reshard_stats(checkpoint, &stats, &run, print_tensor, &output, &err);
    progress_end(&progress);
    if (!status)
        print_all(&output);
    else
        table_end(&output.table);
    if (status && options->json)
        puts("]}");
    if (output.failed)
        exit_status = print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    else if (status)
        exit_status = print_error(options, status, &err);
    release_groups(&output.layers);
    release_groups(&output.modules);
    reshard_close(checkpoint);
    return exit_status;
}
