/* SPDX-License-Identifier: Apache-2.0 */
/* salvage: what is lost and what is unproved, then how much was written. */
#include "command_words.h"
#include "commands.h"
#include "streams.h"

#include <string.h>

struct salvage_print {
    const struct options *options;
    bool any;
};

static int print_salvage_finding(const reshard_finding *finding, void *context)
{
    struct salvage_print *print = context;
    const char *text = command_words(finding->text);
    if (print->options->json) {
        printf("%s{\"kind\":\"%s\",\"key\":", print->any ? "," : "", finding->kind);
        json_string(stdout, finding->key.data, finding->key.size);
        fputs(",\"reason\":", stdout);
        json_text(stdout, text);
        putchar('}');
        print->any = true;
        return 0;
    }
    if (print->options->quiet)
        return 0;
    const char *paint = colour(print->options, finding->severity == 2 ? "\x1b[31m" : finding->severity == 1 ? "\x1b[33m" : "");
    printf("%s%s%s\t", paint, finding->kind, *paint ? "\x1b[0m" : "");
    print_escaped(stdout, finding->key.data, finding->key.size);
    putchar('\t');
    print_text(stdout, text, strlen(text));
    putchar('\n');
    return 0;
}

static void print_counts(const struct options *options, const reshard_salvage_counts *counts)
{
    unsigned long long lost = counts->lost_tensors, proved = counts->proved_tensors, unproved = counts->unproved_tensors;
    if (options->json)
        printf("\"tensors\":%llu,\"proved\":%llu,\"unproved\":%llu,\"lost\":%llu,\"items\":%llu,\"proved_items\":%llu,"
               "\"unproved_items\":%llu,\"lost_items\":%llu}\n",
               (unsigned long long)counts->tensors, proved, unproved, lost, (unsigned long long)counts->items,
               (unsigned long long)counts->proved_items, (unsigned long long)counts->unproved_items,
               (unsigned long long)counts->lost_items);
    else if (!options->quiet)
        printf("%llu of %llu tensors written: %llu proved by checksums, %llu unproved; %llu lost; items: %llu of %llu written\n",
               proved + unproved, (unsigned long long)counts->tensors, proved, unproved, lost,
               (unsigned long long)(counts->items - counts->lost_items), (unsigned long long)counts->items);
}

static int salvage_path(const struct options *options, const char *path)
{
    reshard_error err = { 0 };
    struct salvage_print print = { .options = options };
    struct progress progress;
    reshard_open_options open = options_open(options);
    reshard_salvage_options salvage = RESHARD_SALVAGE_OPTIONS_INIT;
    reshard_salvage_counts counts = RESHARD_SALVAGE_COUNTS_INIT;
    salvage.to = options->to;
    salvage.like = options->like;
    salvage.overwrite = options->overwrite;
    salvage.no_sync = options->no_sync;
    salvage.open = &open;
    salvage.include = options->include.values;
    salvage.exclude = options->exclude.values;
    reshard_run_options run = progress_start(&progress, options, "salvage");
    if (options->json) {
        document_begin();
        fputs("{\"schema\":\"reshard-salvage/1\",\"findings\":[", stdout);
    }
    reshard_status status = reshard_salvage(path, options->paths[1], &salvage, &run, print_salvage_finding, &print, &counts, &err);
    progress_end(&progress);
    if (status && status != RESHARD_DIFFERS) {
        document_end(false);
        return status == RESHARD_ERR_CANCELLED ? print_interrupted(options, NULL) : print_error(options, status, &err);
    }
    if (options->json)
        printf("],\"ok\":%s,", status ? "false" : "true");
    print_counts(options, &counts);
    document_end(true);
    return status ? 1 : 0;
}

int command_salvage(const struct options *options)
{
    char stream[STREAM_PATH_MAX];
    int exit_status = 0;
    if (strcmp(options->paths[0], "-") != 0)
        return salvage_path(options, options->paths[0]);
    return stream_input(options, stream, &exit_status) ? salvage_path(options, stream) : exit_status;
}
