/* SPDX-License-Identifier: Apache-2.0 */
/* diff: findings, by layer and module on demand, a summary, and one sentence of verdict. */
#include "commands.h"
#include "findings.h"
#include "mapping_input.h"
#include "roll_up.h"
#include "table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tensors of one layer, or one module, together. */
struct diff_group {
    uint64_t tensors, different, elements, bytes, changed_elements, changed_bytes;
    double max_difference, max_relative;
};

struct diff_groups {
    struct roll_up names;
    struct diff_group *groups; /* by number of the name */
};

struct diff_output {
    const struct options *options;
    struct findings findings;
    struct diff_groups layers, modules;
    bool failed; /* for lack of memory */
};

static int read_tolerance(const struct options *options, reshard_diff_options *diff)
{
    char *end;
    if (!options->tolerance)
        return 0;
    diff->absolute_tolerance = strtod(options->tolerance, &end);
    if (end != options->tolerance && *end == ',')
        diff->relative_tolerance = strtod(end + 1, &end);
    if (end == options->tolerance || *end || !(diff->absolute_tolerance >= 0) || !(diff->relative_tolerance >= 0))
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "--tolerance: '%s' is not ABS or ABS,REL", options->tolerance);
    return 0;
}

/* ---- rolled up ---- */

static double larger(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : fmax(a, b);
}

/* Takes over the name. */
static void join_diff_group(struct diff_output *output, struct diff_groups *groups, char *name, const reshard_diff_tensor *tensor)
{
    const size_t before = groups->names.count, room = groups->names.room;
    const size_t number = name ? roll_up_number(&groups->names, name) : (size_t)-1;
    free(name);
    if (number != (size_t)-1 && groups->names.room != room) {
        struct diff_group *grown = realloc(groups->groups, groups->names.room * sizeof(*grown));
        groups->groups = grown ? grown : groups->groups;
        output->failed = output->failed || !grown;
    }
    output->failed = output->failed || number == (size_t)-1;
    if (output->failed)
        return;
    if (number == before)
        groups->groups[number] = (struct diff_group){ 0 };
    struct diff_group *group = &groups->groups[number];
    group->tensors++;
    group->different += tensor->outcome != RESHARD_DIFF_SAME;
    group->elements += tensor->elements;
    group->bytes += tensor->bytes;
    group->changed_elements += tensor->changed_elements;
    if (tensor->elements)
        group->changed_bytes += (uint64_t)((double)tensor->bytes / (double)tensor->elements * (double)tensor->changed_elements);
    group->max_difference = larger(group->max_difference, tensor->max_difference);
    group->max_relative = larger(group->max_relative, tensor->max_relative);
}

static int roll_up_tensor(const reshard_diff_tensor *tensor, void *context)
{
    struct diff_output *output = context;
    join_diff_group(output, &output->layers, layer_name(tensor->key), tensor);
    join_diff_group(output, &output->modules, module_name(tensor->key), tensor);
    return output->failed;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static void json_real(const char *name, double value)
{
    if (isfinite(value))
        printf(",\"%s\":%.17g", name, value);
    else
        printf(",\"%s\":null", name);
}

static void json_group(const char *name, const struct diff_group *group)
{
    fputs("{\"name\":", stdout);
    json_text(stdout, name);
    printf(",\"tensors\":%" PRIu64 ",\"different\":%" PRIu64 ",\"elements\":%" PRIu64 ",\"changed_elements\":%" PRIu64
           ",\"bytes\":%" PRIu64 ",\"changed_bytes\":%" PRIu64,
           group->tensors, group->different, group->elements, group->changed_elements, group->bytes, group->changed_bytes);
    json_real("max_difference", group->max_difference);
    json_real("max_relative", group->max_relative);
    putchar('}');
}

static void list_group(struct table *table, const char *kind, const char *name, const struct diff_group *group)
{
    fputs(kind, table_cell(table));
    print_escaped(table_cell(table), name, strlen(name));
    fprintf(table_cell(table), "%" PRIu64 " of %" PRIu64 " differ", group->different, group->tensors);
    fprintf(table_cell(table), "%.4g %% of the elements", 100 * share(group->changed_elements, group->elements));
    fprintf(table_cell(table), "max abs %.6g", group->max_difference);
    fprintf(table_cell(table), "max rel %.6g", group->max_relative);
}

static void print_diff_groups(struct diff_output *output, struct table *table, const char *kind, const struct diff_groups *groups)
{
    size_t *order = roll_up_order(&groups->names);
    output->failed = output->failed || !order;
    for (size_t i = 0; !output->failed && i < groups->names.count; i++) {
        const char *name = groups->names.names[order[i]];
        if (output->options->json) {
            fputs(i ? "," : "", stdout);
            json_group(name, &groups->groups[order[i]]);
        } else {
            list_group(table, kind, *name ? name : "(in no layer)", &groups->groups[order[i]]);
        }
    }
    free(order);
}

static void print_rolled_up(struct diff_output *output)
{
    struct table table = { .columns = 6 };
    if (!output->options->stat || (output->options->quiet && !output->options->json))
        return;
    if (output->options->json)
        fputs(",\"layers\":[", stdout);
    print_diff_groups(output, &table, "layer", &output->layers);
    if (output->options->json)
        fputs("],\"modules\":[", stdout);
    print_diff_groups(output, &table, "module", &output->modules);
    if (output->options->json)
        putchar(']');
    else
        table_end(&table);
}

/* ---- summary and verdict ---- */

static void print_summary_json(const reshard_diff_summary *found)
{
    printf(",\"summary\":{\"tensors\":%" PRIu64 ",\"same\":%" PRIu64 ",\"values\":%" PRIu64 ",\"missing\":%" PRIu64
           ",\"unexpected\":%" PRIu64 ",\"shape\":%" PRIu64 ",\"dtype\":%" PRIu64 ",\"explained\":%" PRIu64 ",\"items\":%" PRIu64
           ",\"different_items\":%" PRIu64,
           found->tensors, found->same_tensors, found->changed_tensors, found->missing_tensors, found->unexpected_tensors,
           found->reshaped_tensors, found->retyped_tensors, found->explained_tensors, found->items, found->different_items);
    printf(",\"elements\":%" PRIu64 ",\"changed_elements\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"changed_bytes\":%" PRIu64, found->elements,
           found->changed_elements, found->bytes, found->changed_bytes);
    json_real("max_difference", found->max_difference);
    json_real("max_relative", found->max_relative);
    putchar('}');
}

static void say_count(FILE *out, bool *any, uint64_t count, const char *of_one, const char *of_many)
{
    if (!count)
        return;
    fprintf(out, "%s%" PRIu64 " %s", *any ? ", " : "", count, count == 1 ? of_one : of_many);
    *any = true;
}

/* One sentence. */
static void say_verdict(FILE *out, const struct options *options, const reshard_diff_summary *found, bool is_same)
{
    const bool items = !options->items || strcmp(options->items, "ignore") != 0;
    bool any = false;
    fprintf(out, is_same ? "same: all %" PRIu64 " tensors" : "different: of %" PRIu64 " tensors ", found->tensors);
    if (is_same) {
        if (items)
            fprintf(out, " and %" PRIu64 " items", found->items);
        fprintf(out, " agree%s%s", found->changed_elements ? ", within the tolerance" : ", bit by bit",
                options->ignore_dtype ? ", in the types of the second" : "");
        return;
    }
    say_count(out, &any, found->changed_tensors, "has other values", "have other values");
    if (found->changed_tensors)
        fprintf(out, " (%.4g %% of the elements, %.4g %% of the bytes, largest relative error %.3g)",
                100 * share(found->changed_elements, found->elements), 100 * share(found->changed_bytes, found->bytes),
                found->max_relative);
    say_count(out, &any, found->missing_tensors, "is missing in the second", "are missing in the second");
    say_count(out, &any, found->unexpected_tensors, "is only in the second", "are only in the second");
    say_count(out, &any, found->reshaped_tensors, "has another shape", "have another shape");
    say_count(out, &any, found->retyped_tensors, "has another type", "have another type");
    if (!any)
        fputs("none differs", out);
    if (found->different_items)
        fprintf(out, "; %" PRIu64 " items differ", found->different_items);
    if (found->explained_tensors)
        fprintf(out, "; for %" PRIu64 " a cause was found", found->explained_tensors);
}

static int print_verdict(struct diff_output *output, reshard_status status, const reshard_diff_summary *found)
{
    const struct options *options = output->options;
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    say_verdict(out, options, found, status == RESHARD_OK);
    fclose(out);
    if (options->json) {
        print_rolled_up(output);
        print_summary_json(found);
        fputs(",\"verdict\":", stdout);
        json_text(stdout, text);
        verdict(&output->findings, status, "", "");
    } else {
        print_findings_left_out(&output->findings);
        print_rolled_up(output);
        puts(text);
    }
    free(text);
    return output->failed ? print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory") : status == RESHARD_OK ? 0 : 1;
}

/* ---- the verb ---- */

static int compare_opened(const struct options *options, const struct mapping_input *mapping, reshard_diff_options *diff,
                          reshard_checkpoint *a, reshard_checkpoint *b)
{
    struct options silent = *options;
    struct diff_output output = { .options = options, .findings = { .options = options, .most = options->most } };
    reshard_diff_summary summary = RESHARD_DIFF_SUMMARY_INIT;
    reshard_error err = { 0 };
    struct progress progress;
    int exit_status;
    silent.quiet = true;
    if (options->stat && !options->json)
        output.findings.options = &silent; /* layers and modules stand for the tensors */
    diff->summary = &summary;
    diff->tensor = options->stat ? roll_up_tensor : NULL;
    diff->context = &output;
    reshard_run_options run = progress_start(&progress, options, "diff");
    if (options->json) {
        document_begin();
        fputs("{\"schema\":\"reshard-diff/1\",\"findings\":[", stdout);
    }
    reshard_status status = reshard_diff(a, b, diff, &run, print_finding, &output.findings, &err);
    const bool is_compared = !status || status == RESHARD_DIFFERS;
    progress_end(&progress);
    if (options->json && is_compared)
        putchar(']');
    exit_status = is_compared ? print_verdict(&output, status, &summary) : 0;
    document_end(is_compared);
    if (!is_compared)
        exit_status = mapping_input_error(mapping, status, &err);
    roll_up_release(&output.layers.names);
    roll_up_release(&output.modules.names);
    free(output.layers.groups);
    free(output.modules.groups);
    return exit_status;
}

static int run_diff(const struct options *options, const struct mapping_input *mapping)
{
    int exit_status = 0;
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    diff.ignore_items = options->items && strcmp(options->items, "ignore") == 0;
    diff.ignore_dtype = options->ignore_dtype;
    diff.map = &mapping->map;
    diff.include = options->include.values;
    diff.exclude = options->exclude.values;
    diff.strip_prefix = options->strip_prefix;
    diff.renames = options->renames.values;
    diff.add_prefix = options->add_prefix;
    diff.explain = 1;
    if (read_tolerance(options, &diff))
        return 2;
    reshard_checkpoint *a = open_path(options, 0, &exit_status);
    if (!a)
        return exit_status;
    reshard_checkpoint *b = open_path(options, 1, &exit_status);
    if (b)
        exit_status = compare_opened(options, mapping, &diff, a, b);
    if (b && exit_status < 2 && !options->json) { /* what is left out of either was not compared */
        tell_warnings(options, a);
        tell_warnings(options, b);
    }
    reshard_close(a);
    reshard_close(b);
    return exit_status;
}

int command_diff(const struct options *options)
{
    struct mapping_input mapping;
    int exit_status = mapping_input_read(options, &mapping);
    if (exit_status < 0)
        exit_status = run_diff(options, &mapping);
    mapping_input_release(&mapping);
    return exit_status;
}
