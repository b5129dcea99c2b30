/* SPDX-License-Identifier: Apache-2.0 */
/* verify and diff: findings, then a verdict. */
#include "command_words.h"
#include "commands.h"
#include "mapping_input.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct findings {
    const struct options *options;
    uint64_t count[3];
    bool any;
};

static int print_finding(const reshard_finding *finding, void *context)
{
    static const char *const severities[] = { "note", "warning", "failure" };
    struct findings *findings = context;
    const char *text = command_words(finding->text);
    findings->count[finding->severity]++;
    if (findings->options->json) {
        printf("%s{\"severity\":\"%s\",\"kind\":\"%s\",\"key\":", findings->any ? "," : "", severities[finding->severity], finding->kind);
        json_string(stdout, finding->key.data, finding->key.size);
        fputs(",\"text\":", stdout);
        json_text(stdout, text);
        if (finding->index >= 0)
            printf(",\"index\":%lld,\"count\":%llu", (long long)finding->index, (unsigned long long)finding->count);
        if (finding->index >= 0 && isfinite(finding->max_difference))
            printf(",\"max_difference\":%.17g", finding->max_difference);
        putchar('}');
        findings->any = true;
        return 0;
    }
    if (findings->options->quiet)
        return 0;
    const char *paint = colour(findings->options, finding->severity == 2 ? "\x1b[31m" : finding->severity == 1 ? "\x1b[33m" : "");
    printf("%s%s%s\t%s\t", paint, severities[finding->severity], *paint ? "\x1b[0m" : "", finding->kind);
    print_escaped(stdout, finding->key.data, finding->key.size);
    putchar('\t');
    print_text(stdout, text, strlen(text));
    putchar('\n');
    return 0;
}

/* In JSON the findings are closed by now. */
static int verdict(const struct findings *findings, reshard_status status, const char *good, const char *bad)
{
    bool holds = status == RESHARD_OK;
    if (findings->options->json)
        printf(",\"ok\":%s,\"failures\":%llu,\"warnings\":%llu}\n", holds ? "true" : "false", (unsigned long long)findings->count[2],
               (unsigned long long)findings->count[1]);
    else if (!findings->options->quiet)
        printf("%s\n", holds ? good : bad);
    return holds ? 0 : 1;
}

static int verify_latest(const struct options *options)
{
    struct findings findings = { .options = options };
    reshard_error err = { 0 };
    reshard_open_options open = options_open(options);
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    char *path = NULL;
    verify.deep = options->deep;
    verify.expect_optimizer = options->expect_optimizer;
    struct options quiet = *options;
    quiet.quiet = true;
    findings.options = options->json || options->verbose ? options : &quiet;
    if (options->json)
        fputs("{\"schema\":\"reshard-verify/1\",\"findings\":[", stdout);
    reshard_status status = reshard_latest_good(options->paths[0], &open, &verify, NULL, print_finding, &findings, &path, &err);
    if (options->json) {
        fputs("],\"latest_good\":", stdout);
        if (path)
            json_text(stdout, path);
        else
            fputs("null", stdout);
        puts("}");
    } else if (path) {
        puts(path);
    }
    reshard_free(path);
    return status ? print_error(options, status, &err) : 0;
}

/* ---- what was proved, and what was not ---- */

#define UNCOVERED_SHOWN 1000

struct uncovered {
    const struct options *options;
    char *keys; /* JSON strings */
    size_t size;
    FILE *out;
    uint64_t count;
};

static int note_uncovered(reshard_str key, uint64_t bytes, void *context)
{
    struct uncovered *uncovered = context;
    (void)bytes;
    if (!uncovered->out || uncovered->count++ >= UNCOVERED_SHOWN)
        return 0;
    fputs(uncovered->count > 1 ? "," : "", uncovered->out);
    json_string(uncovered->out, key.data, key.size);
    return 0;
}

static void print_coverage_json(const reshard_coverage *covered, const struct uncovered *uncovered)
{
    printf("],\"proved\":{\"tensors\":%llu,\"bytes\":%llu,\"items\":%llu,\"replicas\":%llu,\"checksum_tensors\":%llu,"
           "\"checksum_bytes\":%llu,\"checksum_items\":%llu,\"checksum_names\":%s,\"sidecar\":%s}",
           (unsigned long long)covered->tensors, (unsigned long long)covered->bytes, (unsigned long long)covered->items,
           (unsigned long long)covered->replicas, (unsigned long long)covered->checked_tensors, (unsigned long long)covered->checked_bytes,
           (unsigned long long)covered->checked_items, covered->names_are_checked ? "true" : "false",
           covered->has_sidecar ? "true" : "false");
    printf(",\"uncovered\":{\"tensors\":%llu,\"bytes\":%llu,\"items\":%llu,\"names\":%s,\"keys\":[%.*s]}",
           (unsigned long long)(covered->tensors - covered->checked_tensors), (unsigned long long)(covered->bytes - covered->checked_bytes),
           (unsigned long long)(covered->items - covered->checked_items), covered->names_are_checked ? "false" : "true",
           (int)uncovered->size, uncovered->keys ? uncovered->keys : "");
}

/* One line: what no checksum covers, so that a changed bit in it goes unnoticed. */
static void print_coverage(const struct options *options, const reshard_coverage *covered)
{
    uint64_t tensors = covered->tensors - covered->checked_tensors, items = covered->items - covered->checked_items;
    if (options->quiet || (!tensors && !items && covered->names_are_checked))
        return;
    printf("note\tuncovered\t\tno checksum covers ");
    if (tensors)
        printf("the values of %llu of %llu tensors (%llu of %llu bytes)", (unsigned long long)tensors, (unsigned long long)covered->tensors,
               (unsigned long long)(covered->bytes - covered->checked_bytes), (unsigned long long)covered->bytes);
    if (items)
        printf("%s%llu of %llu items", tensors ? ", " : "", (unsigned long long)items, (unsigned long long)covered->items);
    if (!covered->names_are_checked)
        printf("%snames, shapes and types", tensors || items ? ", " : "");
    putchar('\n');
}

int command_verify(const struct options *options)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    struct findings findings = { .options = options };
    if (options->latest_good)
        return verify_latest(options);
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_coverage covered = RESHARD_COVERAGE_INIT;
    struct uncovered uncovered = { .options = options };
    if (options->json)
        uncovered.out = open_memstream(&uncovered.keys, &uncovered.size);
    verify.deep = options->deep;
    verify.expect_optimizer = options->expect_optimizer;
    verify.coverage = &covered;
    verify.uncovered = note_uncovered;
    verify.context = &uncovered;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "verify");
    if (options->json)
        fputs("{\"schema\":\"reshard-verify/1\",\"findings\":[", stdout);
    reshard_status status = reshard_verify(checkpoint, &verify, &run, print_finding, &findings, &err);
    progress_end(&progress);
    if (uncovered.out)
        fclose(uncovered.out);
    if (status && status != RESHARD_DIFFERS) {
        if (options->json)
            puts("]}");
        exit_status = print_error(options, status, &err);
    } else {
        if (options->json)
            print_coverage_json(&covered, &uncovered);
        else
            print_coverage(options, &covered);
        exit_status = verdict(&findings, status, "ok", "does not verify");
    }
    free(uncovered.keys);
    reshard_close(checkpoint);
    return exit_status;
}

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

static int run_diff(const struct options *options, const struct mapping_input *mapping)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    struct findings findings = { .options = options };
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    diff.ignore_items = options->items && strcmp(options->items, "ignore") == 0;
    diff.map = &mapping->map;
    diff.include = options->include.values;
    diff.exclude = options->exclude.values;
    if (read_tolerance(options, &diff))
        return 2;
    reshard_checkpoint *a = open_path(options, 0, &exit_status);
    if (!a)
        return exit_status;
    reshard_checkpoint *b = open_path(options, 1, &exit_status);
    if (!b) {
        reshard_close(a);
        return exit_status;
    }
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "diff");
    if (options->json)
        fputs("{\"schema\":\"reshard-diff/1\",\"findings\":[", stdout);
    reshard_status status = reshard_diff(a, b, &diff, &run, print_finding, &findings, &err);
    progress_end(&progress);
    if (status && status != RESHARD_DIFFERS) {
        if (options->json)
            puts("]}");
        exit_status = mapping_input_error(mapping, status, &err);
    } else {
        if (options->json)
            putchar(']');
        exit_status = verdict(&findings, status, "same", "different");
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
