/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"
#include "commands.h"
#include "note_groups.h"
#include "mapping_input.h"
#include "streams.h"

#include "reshard/writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COMMIT_SCHEMA "reshard-commit/1"

reshard_convert_options convert_options_make(const struct options *options, const reshard_open_options *open,
                                             const struct mapping_input *mapping)
{
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    convert.to = options->to;
    convert.like = options->like;
    convert.layout = options->layout;
    convert.include = options->include.values;
    convert.exclude = options->exclude.values;
    convert.dtypes = options->dtypes.values;
    convert.format_options = options->format_options.values;
    convert.max_shard_bytes = options->max_shard_bytes > 0 ? (uint64_t)options->max_shard_bytes : 0;
    convert.no_shard_limit = options->max_shard_bytes == 0;
    convert.drop_items = options->items && strcmp(options->items, "drop") == 0;
    convert.overwrite = options->overwrite;
    convert.resume = options->resume;
    convert.no_sync = options->no_sync;
    convert.no_space_check = options->no_space_check;
    convert.verify = options->verify;
    convert.checksum = options->checksum && strcmp(options->checksum, "none") != 0 ? options->checksum : NULL;
    convert.open = open;
    convert.map = &mapping->map;
    convert.wrap = options->wrap;
    convert.strip_prefix = options->strip_prefix;
    convert.add_prefix = options->add_prefix;
    convert.renames = options->renames.values;
    convert.missing = options->missing;
    return convert;
}

/* The texts of one kind of notes. */
static void json_notes(const char *name, const reshard_report *report, int what)
{
    reshard_note note = RESHARD_NOTE_INIT;
    bool is_first = true;
    printf(",\"%s\":[", name);
    for (size_t i = 0; reshard_report_note_at(report, i, &note) == RESHARD_OK; i++) {
        if (note.what != what)
            continue;
        if (!is_first)
            putchar(',');
        json_text(stdout, command_words(note.text.data));
        is_first = false;
    }
    putchar(']');
}

static void json_targets(const reshard_report *report)
{
    reshard_report_file file = RESHARD_REPORT_FILE_INIT;
    fputs(",\"targets\":[", stdout);
    for (size_t i = 0; reshard_report_file_at(report, i, &file) == RESHARD_OK; i++) {
        fputs(i ? ",{\"file\":" : "{\"file\":", stdout);
        json_string(stdout, file.name.data, file.name.size);
        printf(",\"bytes\":%llu,\"chunks\":%llu,\"sources\":%llu}", (unsigned long long)file.bytes, (unsigned long long)file.chunks,
               (unsigned long long)file.sources);
    }
    putchar(']');
}

static void report_json(const struct options *options, const reshard_report *report, const char *schema, bool has_verified)
{
    printf("{\"schema\":\"%s\",\"source\":", schema);
    json_text(stdout, shown_path(options->paths[0]));
    printf(",\"from\":\"%s\",\"to\":\"%s\",\"tensors\":%llu,\"items\":%llu,\"source_chunks\":%llu,\"target_chunks\":%llu,\"steps\":%llu,"
           "\"read_bytes\":%llu,\"write_bytes\":%llu,\"files\":%llu,\"file_bytes\":%llu,\"peak_memory_bytes\":%llu",
           report->source_format, report->target_format, (unsigned long long)report->tensors, (unsigned long long)report->items,
           (unsigned long long)report->source_chunks, (unsigned long long)report->target_chunks, (unsigned long long)report->steps,
           (unsigned long long)report->read_bytes, (unsigned long long)report->write_bytes, (unsigned long long)report->file_count,
           (unsigned long long)report->target_bytes, (unsigned long long)report->peak_memory_bytes);
    if (has_verified)
        printf(",\"verified_tensors\":%llu,\"verified_bytes\":%llu", (unsigned long long)report->verified_tensors,
               (unsigned long long)report->verified_bytes);
    if (options->ranks_flag)
        json_targets(report);
    json_notes("dropped", report, RESHARD_NOTE_DROPPED);
    json_notes("changed", report, RESHARD_NOTE_CHANGED);
    json_notes("warnings", report, RESHARD_NOTE_WARNING);
    puts("}");
}

static bool plan_text(const struct options *options, const reshard_report *report)
{
    char size[32];
    printf("%s to %s\n", report->source_format, report->target_format);
    printf("  %-14s %llu, and %llu items\n", "tensors", (unsigned long long)report->tensors, (unsigned long long)report->items);
    printf("  %-14s %llu to %llu, in %llu copies\n", "chunks", (unsigned long long)report->source_chunks,
           (unsigned long long)report->target_chunks, (unsigned long long)report->steps);
    printf("  %-14s %s\n", "reads", human_bytes(report->read_bytes, size));
    printf("  %-14s %s", "writes", human_bytes(report->write_bytes, size));
    printf(" of tensors, %s in %llu files\n", human_bytes(report->target_bytes, size), (unsigned long long)report->file_count);
    printf("  %-14s %s\n", "peak memory", human_bytes(report->peak_memory_bytes, size));
    reshard_report_file file = RESHARD_REPORT_FILE_INIT;
    for (size_t i = 0; options->ranks_flag && reshard_report_file_at(report, i, &file) == RESHARD_OK; i++) {
        fputs("  ", stdout);
        print_escaped(stdout, file.name.data, file.name.size);
        printf("  %s, %llu chunks from %llu pieces\n", human_bytes(file.bytes, size), (unsigned long long)file.chunks,
               (unsigned long long)file.sources);
    }
    return print_notes(stdout, options, report, ": ");
}

/* For programs: a word, then numbers as they are. */
static bool plan_lines(const struct options *options, const reshard_report *report)
{
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        { "tensors", report->tensors }, { "items", report->items }, { "source_chunks", report->source_chunks },
        { "target_chunks", report->target_chunks }, { "steps", report->steps }, { "read_bytes", report->read_bytes },
        { "write_bytes", report->write_bytes }, { "files", report->file_count }, { "file_bytes", report->target_bytes },
        { "peak_memory_bytes", report->peak_memory_bytes },
    };
    printf("from\t%s\nto\t%s\n", report->source_format, report->target_format);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        printf("%s\t%llu\n", numbers[i].name, (unsigned long long)numbers[i].value);
    reshard_report_file file = RESHARD_REPORT_FILE_INIT;
    for (size_t i = 0; options->ranks_flag && reshard_report_file_at(report, i, &file) == RESHARD_OK; i++) {
        fputs("file\t", stdout);
        print_escaped(stdout, file.name.data, file.name.size);
        printf("\t%llu\t%llu\t%llu\n", (unsigned long long)file.bytes, (unsigned long long)file.chunks, (unsigned long long)file.sources);
    }
    return print_notes(stdout, options, report, "\t");
}

static int run_plan(const struct options *options, const struct mapping_input *mapping)
{
    int exit_status = 0;
    reshard_error err = { 0 };
    reshard_checkpoint *source = open_path(options, 0, &exit_status);
    if (!source)
        return exit_status;
    reshard_open_options open = options_open(options);
    open.format = NULL;
    reshard_convert_options convert = convert_options_make(options, &open, mapping);
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, "plan");
    reshard_report report = RESHARD_REPORT_INIT;
    const char *target = options->path_count > 1 && strcmp(options->paths[1], "-") != 0 ? options->paths[1] : NULL;
    reshard_status status = reshard_estimate(source, target, &convert, &run, &report, &err);
    progress_end(&progress);
    if (status)
        exit_status = mapping_input_error(mapping, status, &err);
    else if (options->json)
        report_json(options, &report, "reshard-plan/1", false);
    else if (!(is_terminal() ? plan_text(options, &report) : plan_lines(options, &report)))
        exit_status = print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    reshard_report_release(&report);
    reshard_close(source);
    return exit_status;
}

int command_plan(const struct options *options)
{
    struct mapping_input mapping;
    int exit_status = mapping_input_read(options, &mapping);
    if (exit_status < 0)
        exit_status = run_plan(options, &mapping);
    mapping_input_release(&mapping);
    return exit_status;
}

static void convert_text(const struct options *options, const reshard_report *report)
{
    char size[32];
    print_notes(stderr, options, report, ": ");
    if (options->is_stream)
        return;
    print_path(stdout, options->paths[1]);
    printf(": %llu tensors, %llu items, %s in %llu files\n", (unsigned long long)report->tensors, (unsigned long long)report->items,
           human_bytes(report->target_bytes, size), (unsigned long long)report->file_count);
    if (!options->verify)
        return;
    printf("verified: %llu tensors, %s read back and compared with the source, bit by bit", (unsigned long long)report->verified_tensors,
           human_bytes(report->verified_bytes, size));
    if (report->verified_tensors < report->tensors)
        printf("; not the %llu that lie within items", (unsigned long long)(report->tensors - report->verified_tensors));
    puts("");
}

static int convert_failed(const struct options *options, const struct mapping_input *mapping, reshard_status status,
                          const reshard_error *err)
{
    if (status != RESHARD_ERR_CANCELLED)
        return mapping_input_error(mapping, status, err);
    return print_interrupted(options, options->resume ? "what is done is kept: the same command goes on from there" : NULL);
}

/* Reads --part I/N; false: it is none. */
static bool part_read(const char *text, reshard_convert_options *convert)
{
    char *slash, *end;
    if (*text < '0' || *text > '9')
        return false;
    convert->part = strtoull(text, &slash, 10);
    if (*slash != '/' || slash[1] < '0' || slash[1] > '9')
        return false;
    convert->part_count = strtoull(slash + 1, &end, 10);
    return *end == '\0' && convert->part < convert->part_count;
}

/* The folder that we are in, then the words of the command line, each with a NUL behind it. malloc'd; NULL: no memory. */
static char *part_words_make(const struct options *options, size_t *size)
{
    char *folder = realpath(".", NULL), *words = NULL;
    FILE *out = folder ? open_memstream(&words, size) : NULL;
    if (out) {
        fwrite(folder, 1, strlen(folder) + 1, out);
        for (size_t i = 0; options->words[i]; i++)
            fwrite(options->words[i], 1, strlen(options->words[i]) + 1, out);
        if (fclose(out)) {
            free(words);
            words = NULL;
        }
    }
    free(folder);
    return words;
}

static void part_text(const struct options *options)
{
    printf("part %.*s of %s is written; 'reshard commit ", (int)strcspn(options->part, "/"), options->part, strchr(options->part, '/') + 1);
    print_path(stdout, options->paths[1]);
    puts("' makes all visible, once they are there");
}

/* Says what was written. */
static void conversion_told(const struct options *options, const char *schema, bool is_part, const reshard_report *report)
{
    if (options->json)
        report_json(options, report, schema, options->verify);
    else if (!options->quiet && is_part)
        part_text(options);
    else if (!options->quiet)
        convert_text(options, report);
}

typedef reshard_status (*conversion_call)(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                          const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* Converts, or commits what was converted in parts. */
static int run_conversion(const struct options *options, const struct mapping_input *mapping, conversion_call call,
                          reshard_convert_options *convert)
{
    reshard_error err = { 0 };
    int exit_status = 0;
    reshard_checkpoint *source = open_path(options, 0, &exit_status);
    if (!source)
        return exit_status;
    reshard_open_options open = options_open(options);
    open.format = NULL;
    convert->open = &open;
    struct progress progress;
    reshard_run_options run = progress_start(&progress, options, call == reshard_commit ? "commit" : "convert");
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_status status = call(source, options->paths[1], convert, &run, &report, &err);
    progress_end(&progress);
    if (status)
        exit_status = convert_failed(options, mapping, status, &err);
    else
        conversion_told(options, call == reshard_commit ? COMMIT_SCHEMA : "reshard-convert/1", convert->part_count, &report);
    reshard_report_release(&report);
    reshard_close(source);
    return exit_status;
}

static int run_convert(const struct options *options, const struct mapping_input *mapping)
{
    reshard_convert_options convert = convert_options_make(options, NULL, mapping);
    if (!options->part)
        return run_conversion(options, mapping, reshard_convert, &convert);
    if (!part_read(options->part, &convert))
        return print_failure(options, RESHARD_ERR_USAGE, "parts are 0/N to N-1/N", "--part: '%s' is not I/N", options->part);
    char *words = part_words_make(options, &convert.part_words.size);
    if (!words)
        return print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    convert.part_words.data = words;
    int exit_status = run_conversion(options, mapping, reshard_convert, &convert);
    free(words);
    return exit_status;
}

/* The word of the command line that is read from standard input; NULL: none is. */
static const char *word_of_stdin(const struct options *options)
{
    const struct {
        const char *name, *value;
    } words[] = { { "SRC", options->paths[0] }, { "--config", options->config }, { "--rules", options->rules } };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (words[i].value && strcmp(words[i].value, "-") == 0)
            return words[i].name;
    for (size_t i = 0; i < options->maps.count; i++)
        if (strcmp(options->maps.values[i], "-") == 0)
            return "--map";
    return NULL;
}

static int convert_to(const struct options *options)
{
    struct mapping_input mapping;
    const char *word = options->part ? word_of_stdin(options) : NULL;
    if (word)
        return print_failure(options, RESHARD_ERR_USAGE, "name a file: it is still there when the parts are committed",
                             "in parts %s cannot be '-': the commit reads it once more, and standard input is gone by then", word);
    int exit_status = mapping_input_read(options, &mapping);
    if (exit_status < 0)
        exit_status = run_convert(options, &mapping);
    mapping_input_release(&mapping);
    return exit_status;
}

static int convert_to_stream(const struct options *options)
{
    static struct options inner;
    int exit_status = 0;
    char *path = stream_output_begin(options, &exit_status);
    if (!path)
        return exit_status;
    inner = *options;
    inner.paths[1] = path;
    inner.is_stream = true;
    return stream_output_end(options, path, convert_to(&inner));
}

int command_convert(const struct options *options)
{
    if (options->dry_run)
        return command_plan(options);
    return strcmp(options->paths[1], "-") == 0 ? convert_to_stream(options) : convert_to(options);
}

/* ---- commit ---- */

/* The words of a part as a command line; *argv, which points into them, is malloc'd. */
static int part_words_split(char *words, size_t size, char ***argv)
{
    int count = 0;
    *argv = calloc(size + 1, sizeof(**argv));
    for (size_t at = 0; *argv && at < size; at += strlen(words + at) + 1)
        (*argv)[count++] = words + at;
    return *argv ? count : 0;
}

/* What was said about the output of this command counts, and where the target is; all else is as the parts were told. */
static void options_of_part(struct options *part, const struct options *options, const char *target)
{
    part->paths[1] = target;
    part->json = options->json;
    part->quiet = options->quiet;
    part->verbose = options->verbose;
    part->progress = options->progress;
    part->color = options->color;
}

/* Parts that a program has written. */
static int commit_declared(const struct options *given, const char *target)
{
    static struct options options;
    struct progress progress;
    reshard_error err = { 0 };
    reshard_report report = RESHARD_REPORT_INIT;
    options = *given;
    options.paths[1] = target;
    reshard_run_options run = progress_start(&progress, &options, "commit");
    reshard_status status = reshard_writer_commit(NULL, target, NULL, &run, &report, &err);
    progress_end(&progress);
    if (!status)
        conversion_told(&options, COMMIT_SCHEMA, false, &report);
    reshard_report_release(&report);
    return status ? print_error(&options, status, &err) : 0;
}

static int commit_as(const struct options *options, const char *target, char *words, size_t size)
{
    static struct options part;
    struct mapping_input mapping;
    char **argv;
    int count = part_words_split(words, size, &argv);
    if (count < 2 || chdir(argv[0])) {
        free(argv);
        return print_failure(options, RESHARD_ERR_IO, NULL, "the folder that the parts ran in is not here");
    }
    int exit_status = options_parse(count - 1, argv + 1, &part);
    if (exit_status < 0 && part.path_count < 2)
        exit_status = print_failure(options, RESHARD_ERR_FORMAT, NULL, "the words of a part are no conversion");
    if (exit_status < 0) {
        options_of_part(&part, options, target);
        exit_status = mapping_input_read(&part, &mapping);
        reshard_convert_options convert = convert_options_make(&part, NULL, &mapping);
        if (exit_status < 0)
            exit_status = run_conversion(&part, &mapping, reshard_commit, &convert);
        mapping_input_release(&mapping);
    }
    options_release(&part);
    free(argv);
    return exit_status;
}

/* Absolute, because the words of parts count from their folder. malloc'd. */
static char *absolute_path(const char *path)
{
    if (path[0] == '/' || strstr(path, "://")) /* which the library refuses */
        return strdup(path);
    char *folder = realpath(".", NULL), *out = NULL;
    if (!folder || asprintf(&out, "%s/%s", folder, path) < 0)
        out = NULL;
    free(folder);
    return out;
}

int command_commit(const struct options *options)
{
    reshard_error err = { 0 };
    char *words = NULL, *target = absolute_path(options->paths[0]);
    size_t size;
    int exit_status;
    reshard_status status = target ? reshard_part_words(target, &words, &size, &err) : RESHARD_ERR_MEMORY;
    if (status)
        exit_status = target ? print_error(options, status, &err) : print_failure(options, status, NULL, "out of memory");
    else
        exit_status = size ? commit_as(options, target, words, size) : commit_declared(options, target);
    reshard_free(words);
    free(target);
    return exit_status;
}
