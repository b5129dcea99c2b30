/* SPDX-License-Identifier: Apache-2.0 */
/* `reshard map parse|expand|check|eval|invert FILE`: trying mapping texts. Its verbs have options of their own, so it reads its arguments itself. */
#include "cmd_map.h"

#include "read_file.h"

#include <reshard/reshard.h>

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAP_LIMITS_MAX 64

struct map_options {
    const char *file, *source, *target, *format, *config;
    bool json, strict, reverse, quiet, help;
    reshard_limit limits[MAP_LIMITS_MAX];
    char *limit_names[MAP_LIMITS_MAX];
    size_t limit_count;
    reshard_map_constant constants[MAP_LIMITS_MAX];
    char *constant_names[MAP_LIMITS_MAX];
    size_t constant_count;
};

typedef reshard_status (*map_function)(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

static const struct map_verb {
    const char *name, *summary;
    map_function run;
    bool needs_source;
} verbs[] = {
    { "parse", "syntax only: the statements as they are understood", reshard_map_parse, false },
    { "expand", "the statements behind all macros, one a line", reshard_map_expand, true },
    { "check", "whether the mapping fits, and what it loses or doubles", reshard_map_check, true },
    { "eval", "the target's values, from those of the source's description", reshard_map_eval, true },
    { "invert", "the mapping back, where an exact one exists", reshard_map_invert, true },
};

#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

static void print_help(FILE *out)
{
    fputs("usage: reshard map VERB [options] FILE\n\nTries a mapping between name spaces. FILE '-' is standard input.\n\n", out);
    for (size_t i = 0; i < VERBS; i++)
        fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fputs("\n      --source S      checkpoint, or description (JSON), that the mapping reads\n"
          "      --target T      checkpoint, or description, that it is to fill\n"
          "      --strict-aoa    refuse what Paddle's own engine does not know\n"
          "      --reverse       read the text backwards, as with aoa_config_reverse\n"
          "      --format NAME   format of the checkpoints\n"
          "      --config FILE   config.json of the model: its integers are constants of the mapping\n"
          "      --set NAME=N    a constant of the mapping; repeatable\n"
          "      --limit N=V     raise or lower a named limit\n"
          "  -j, --json          one JSON object on standard output\n"
          "  -q, --quiet         errors only, no warnings\n"
          "\nexamples:\n  reshard map check llama.map --source hf-model --target step-1000\n  reshard map expand llama.map --source hf-model\n",
          out);
}

static int fail(const struct map_options *options, reshard_status status, const reshard_error *err)
{
    if (options->json) {
        fputs("{\"schema\":\"reshard-error/1\",\"message\":\"", stderr);
        for (const char *at = err->message; *at; at++)
            fprintf(stderr, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
        fprintf(stderr, "\",\"status\":%d,\"line\":%d,\"column\":%d}\n", reshard_status_exit(status), err->line, err->column);
        return reshard_status_exit(status);
    }
    fprintf(stderr, "reshard: %s%s%s\n", err->object, err->object[0] ? ": " : "", err->message);
    if (err->hint[0])
        fprintf(stderr, "hint: %s\n", err->hint);
    return reshard_status_exit(status);
}

static int usage(const char *what, const char *text)
{
    fprintf(stderr, "reshard: map: %s%s%s%s\nhint: 'reshard map --help' tells more\n", what, text ? " '" : "", text ? text : "", text ? "'" : "");
    return 2;
}

static bool is_description(const char *path)
{
    char start[64] = { 0 };
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(start, 1, sizeof(start) - 1, file) : 0;
    if (file)
        fclose(file);
    return got && start[strspn(start, " \t\r\n")] == '{';
}

static reshard_status open_space(const struct map_options *options, const char *path, reshard_map_space **out, reshard_error *err)
{
    size_t size;
    if (is_description(path)) {
        char *json = read_file(path, &size);
        if (!json) {
            snprintf(err->message, sizeof(err->message), "%s: %s", path, strerror(errno));
            return RESHARD_ERR_IO;
        }
        reshard_status status = reshard_map_space_describe(json, size, out, err);
        if (status)
            snprintf(err->object, sizeof(err->object), "%s", path);
        free(json);
        return status;
    }
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *checkpoint = NULL;
    open.format = options->format;
    reshard_status status = reshard_open(path, &open, &checkpoint, err);
    if (!status)
        status = reshard_map_space_of(checkpoint, out, err);
    reshard_close(checkpoint);
    return status;
}

/* NAME=NUMBER; the caller frees *name. */
static bool read_pair(const char *text, char **name, unsigned long long *value)
{
    const char *equals = strchr(text, '=');
    char *end;
    if (!equals || equals[1] < '0' || equals[1] > '9')
        return false;
    errno = 0;
    *value = strtoull(equals + 1, &end, 10);
    if (*end || errno || *value > INT64_MAX)
        return false;
    *name = strndup(text, (size_t)(equals - text));
    return *name != NULL;
}

static bool add_limit(struct map_options *options, const char *text)
{
    unsigned long long value;
    size_t at = options->limit_count;
    if (at == MAP_LIMITS_MAX || !read_pair(text, &options->limit_names[at], &value))
        return false;
    options->limits[options->limit_count++] = (reshard_limit){ options->limit_names[at], value, NULL };
    return true;
}

static bool add_constant(struct map_options *options, const char *text)
{
    unsigned long long value;
    size_t at = options->constant_count;
    if (at == MAP_LIMITS_MAX || !read_pair(text, &options->constant_names[at], &value))
        return false;
    options->constants[options->constant_count++] = (reshard_map_constant){ options->constant_names[at], (int64_t)value };
    return true;
}

/* -1: go on; else the exit status. */
static int parse_options(int argc, char **argv, struct map_options *out)
{
    static const struct option longs[] = {
        { "source", required_argument, NULL, 's' }, { "target", required_argument, NULL, 't' }, { "strict-aoa", no_argument, NULL, 'a' },
        { "reverse", no_argument, NULL, 'r' },      { "format", required_argument, NULL, 'f' }, { "limit", required_argument, NULL, 'l' },
        { "json", no_argument, NULL, 'j' },         { "quiet", no_argument, NULL, 'q' },        { "help", no_argument, NULL, 'h' },
        { "config", required_argument, NULL, 'c' }, { "set", required_argument, NULL, 'd' },    { 0 },
    };
    opterr = 0;
    optind = 1;
    for (int found; (found = getopt_long(argc, argv, ":jqh", longs, NULL)) != -1;) {
        switch (found) {
        case 's': out->source = optarg; break;
        case 't': out->target = optarg; break;
        case 'f': out->format = optarg; break;
        case 'a': out->strict = true; break;
        case 'r': out->reverse = true; break;
        case 'j': out->json = true; break;
        case 'q': out->quiet = true; break;
        case 'h': out->help = true; break;
        case 'c': out->config = optarg; break;
        case 'd':
            if (!add_constant(out, optarg))
                return usage("--set is not NAME=NUMBER:", optarg);
            break;
        case 'l':
            if (!add_limit(out, optarg))
                return usage("--limit is not NAME=VALUE:", optarg);
            break;
        default: return usage(found == ':' ? "no value for option" : "unknown option", argv[optind - 1]);
        }
    }
    if (optind + 1 != argc && !out->help)
        return usage(optind == argc ? "the mapping's FILE is missing" : "more than one FILE", NULL);
    out->file = argv[optind];
    return -1;
}

static int run_verb(const struct map_verb *verb, const struct map_options *options, const char *text, size_t size)
{
    reshard_error err = { 0 };
    reshard_map_space *source = NULL, *target = NULL;
    reshard_map_output output = { 0 };
    reshard_status status = options->source && verb->needs_source ? open_space(options, options->source, &source, &err) : RESHARD_OK;
    if (!status && options->target && verb->needs_source)
        status = open_space(options, options->target, &target, &err);
    size_t config_size = 0;
    char *config = options->config && !status ? read_file(options->config, &config_size) : NULL;
    if (options->config && !config && !status) {
        status = RESHARD_ERR_IO;
        snprintf(err.message, sizeof(err.message), "%s: %s", options->config, strerror(errno));
    }
    int exit_status = status ? fail(options, status, &err) : 0;
    if (!status) {
        reshard_map_input input = RESHARD_MAP_INPUT_INIT;
        input.name = strcmp(options->file, "-") == 0 ? "<stdin>" : options->file;
        input.text = text;
        input.size = size;
        input.source = source;
        input.target = target;
        input.strict = options->strict;
        input.reverse = options->reverse;
        input.limits = options->limits;
        input.limit_count = options->limit_count;
        input.config = config;
        input.config_size = config_size;
        input.constants = options->constants;
        input.constant_count = options->constant_count;
        status = verb->run(&input, &output, &err);
        if (output.diagnoses && (status || !options->quiet))
            fputs(output.diagnoses, stderr);
        if (!status)
            fprintf(stdout, options->json ? "%s\n" : "%s", options->json ? output.json : output.text);
        else
            exit_status = output.diagnoses && output.diagnoses[0] && status == RESHARD_ERR_USAGE ? 2 : fail(options, status, &err);
    }
    reshard_map_output_release(&output);
    free(config);
    reshard_map_space_free(source);
    reshard_map_space_free(target);
    return exit_status;
}

int command_map(int argc, char **argv)
{
    struct map_options options = { 0 };
    const struct map_verb *verb = NULL;
    for (size_t i = 0; argc > 1 && i < VERBS; i++) {
        if (strcmp(argv[1], verbs[i].name) == 0)
            verb = &verbs[i];
    }
    if (!verb) {
        bool wants_help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
        if (wants_help)
            print_help(stdout);
        return wants_help ? 0 : usage(argc > 1 ? "unknown verb" : "expected a verb", argc > 1 ? argv[1] : NULL);
    }
    int exit_status = parse_options(argc - 1, argv + 1, &options);
    if (exit_status < 0 && options.help) {
        print_help(stdout);
        exit_status = 0;
    }
    if (exit_status < 0 && verb->needs_source && !options.source)
        exit_status = usage("--source is missing: a checkpoint, or a description", NULL);
    if (exit_status < 0) {
        size_t size;
        char *text = read_file(options.file, &size);
        if (text) {
            exit_status = run_verb(verb, &options, text, size);
        } else {
            fprintf(stderr, "reshard: map: %s: %s\n", options.file, strerror(errno));
            exit_status = 3;
        }
        free(text);
    }
    for (size_t i = 0; i < options.limit_count; i++)
        free(options.limit_names[i]);
    for (size_t i = 0; i < options.constant_count; i++)
        free(options.constant_names[i]);
    return exit_status;
}
