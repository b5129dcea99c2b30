/* SPDX-License-Identifier: Apache-2.0 */
/* verify: findings, then what was proved, and a verdict. */
#include "command_words.h"
#include "commands.h"
#include "findings.h"

#include <stdlib.h>
#include <string.h>

/* nan,inf,zero in any order. */
static int read_fail_on(const struct options *options, int64_t *out)
{
    static const struct {
        const char *word;
        int64_t flag;
    } words[] = { { "nan", RESHARD_FAIL_ON_NAN }, { "inf", RESHARD_FAIL_ON_INF }, { "zero", RESHARD_FAIL_ON_ZERO } };
    for (const char *at = options->fail_on; at; at = *at == ',' ? at + 1 : NULL) {
        size_t size = strcspn(at, ","), i = 0;
        while (i < 3 && !(strlen(words[i].word) == size && strncmp(words[i].word, at, size) == 0))
            i++;
        if (i == 3)
            return print_failure(options, RESHARD_ERR_USAGE, NULL, "--fail-on: '%.*s' is not one of nan, inf, zero", (int)size, at);
        *out |= words[i].flag;
        at += size;
    }
    return 0;
}

/* What the options ask of verify; open must stay. Returns an exit status, 0 to go on. */
static int verify_options(const struct options *options, const reshard_open_options *open, reshard_verify_options *out)
{
    out->deep = options->deep;
    out->expect_optimizer = options->expect_optimizer;
    out->against = options->against;
    out->open = open;
    return read_fail_on(options, &out->fail_on);
}

/* Findings of newer checkpoints; why each was skipped is said on standard error, with the first thing that is wrong with it. */
struct latest {
    struct findings findings;
    const struct options *options;
    char wrong[512];
};

static int latest_finding(const reshard_finding *finding, void *context)
{
    struct latest *latest = context;
    if (finding->severity == 2 && !*latest->wrong)
        snprintf(latest->wrong, sizeof(latest->wrong), ": %.*s%s%s", (int)finding->key.size, finding->key.data,
                 finding->key.size ? ": " : "", command_words(finding->text));
    if (strcmp(finding->kind, "rejected") == 0 && !latest->options->json && !latest->options->quiet) {
        fputs("skipped ", stderr);
        print_escaped(stderr, finding->key.data, finding->key.size);
        fputs(": ", stderr);
        print_text(stderr, finding->text, strlen(finding->text));
        print_text(stderr, latest->wrong, strlen(latest->wrong));
        putc('\n', stderr);
    }
    if (strcmp(finding->kind, "rejected") == 0)
        *latest->wrong = 0;
    return print_finding(finding, &latest->findings);
}

static int verify_latest(const struct options *options)
{
    struct latest latest = { .findings = { .options = options }, .options = options };
    reshard_error err = { 0 };
    reshard_open_options open = options_open(options);
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    char *path = NULL;
    if (is_view_asked(options))
        return print_failure(options, RESHARD_ERR_USAGE, "verify the checkpoint that --latest-good prints",
                             "--latest-good looks at whole checkpoints: it takes no names, globs and renames");
    if (verify_options(options, &open, &verify))
        return reshard_status_exit(RESHARD_ERR_USAGE);
    struct options quiet = *options;
    quiet.quiet = true;
    latest.findings.options = options->json || options->verbose ? options : &quiet;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "verify");
    if (options->json) {
        document_begin();
        fputs("{\"schema\":\"reshard-verify/1\",\"findings\":[", stdout);
    }
    reshard_status status = reshard_latest_good(options->paths[0], &open, &verify, &run, latest_finding, &latest, &path, &err);
    progress_end(&progress);
    if (options->json) {
        fputs("],\"latest_good\":", stdout);
        if (path)
            json_text(stdout, shown_path(path));
        else
            fputs("null", stdout);
        puts("}");
    } else if (path) {
        puts(shown_path(path));
    }
    document_end(!status || status == RESHARD_DIFFERS);
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

static void print_coverage_json(const reshard_coverage *covered, const struct uncovered *uncovered, double seconds)
{
    printf("],\"proved\":{\"tensors\":%llu,\"bytes\":%llu,\"items\":%llu,\"replicas\":%llu,\"checksum_tensors\":%llu,"
           "\"checksum_bytes\":%llu,\"checksum_items\":%llu,\"checksum_names\":%s,\"sidecar\":%s,\"elements\":%llu,\"read_bytes\":%llu,"
           "\"checksums\":%llu,\"seconds\":%.3f}",
           (unsigned long long)covered->tensors, (unsigned long long)covered->bytes, (unsigned long long)covered->items,
           (unsigned long long)covered->replicas, (unsigned long long)covered->checked_tensors, (unsigned long long)covered->checked_bytes,
           (unsigned long long)covered->checked_items, covered->names_are_checked ? "true" : "false",
           covered->has_sidecar ? "true" : "false", (unsigned long long)covered->elements, (unsigned long long)covered->read_bytes,
           (unsigned long long)covered->checksums, seconds);
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

/* One line: what was looked at, then the one above. */
static void print_proved(const struct options *options, const reshard_coverage *covered, double seconds)
{
    char size[32], time[32] = "less than a second";
    if (seconds >= 1)
        snprintf(time, sizeof(time), "%.0f s", seconds);
    if (!options->quiet)
        printf("note\tproved\t\t%llu tensors of %llu elements, %llu items, %s read, %llu checksums and %llu replicas compared, in %s\n",
               (unsigned long long)covered->tensors, (unsigned long long)covered->elements, (unsigned long long)covered->items,
               human_bytes(covered->read_bytes, size), (unsigned long long)covered->checksums, (unsigned long long)covered->replicas, time);
    print_coverage(options, covered);
}

int command_verify(const struct options *options)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    struct findings findings = { .options = options };
    if (options->latest_good)
        return verify_latest(options);
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_open_options open = options_open(options);
    open.format = NULL; /* that of the path */
    if (verify_options(options, &open, &verify))
        return reshard_status_exit(RESHARD_ERR_USAGE);
    reshard_checkpoint *checkpoint = open_path(options, 0, &exit_status);
    if (!checkpoint)
        return exit_status;
    reshard_coverage covered = RESHARD_COVERAGE_INIT;
    struct uncovered uncovered = { .options = options };
    if (options->json)
        uncovered.out = open_memstream(&uncovered.keys, &uncovered.size);
    verify.coverage = &covered;
    verify.uncovered = note_uncovered;
    verify.context = &uncovered;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "verify");
    if (options->json) {
        document_begin();
        fputs("{\"schema\":\"reshard-verify/1\",\"findings\":[", stdout);
    }
    reshard_status status = reshard_verify(checkpoint, &verify, &run, print_finding, &findings, &err);
    const double seconds = progress_seconds(&progress);
    progress_end(&progress);
    if (uncovered.out)
        fclose(uncovered.out);
    if (status && status != RESHARD_DIFFERS) {
        document_end(false);
        exit_status = print_error(options, status, &err);
    } else {
        if (options->json)
            print_coverage_json(&covered, &uncovered, seconds);
        else
            print_proved(options, &covered, seconds);
        exit_status = verdict(&findings, status, "ok", "does not verify");
        document_end(true);
    }
    free(uncovered.keys);
    reshard_close(checkpoint);
    return exit_status;
}
