/* SPDX-License-Identifier: Apache-2.0 */
/* `reshard map check|expand|invert|eval|parse FILE`: trying mapping texts. */
#include "command_words.h"
#include "commands.h"
#include "mapping_input.h"
#include "near_names.h"
#include "read_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef reshard_status (*map_function)(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

static const struct map_verb {
    const char *name;
    map_function run;
    bool needs_source, is_json; /* what it prints, with or without --json */
} verbs[] = {
    { "check", reshard_map_check, true, false },
    { "expand", reshard_map_expand, true, false },
    { "invert", reshard_map_invert, true, false },
    { "eval", reshard_map_eval, true, true },
    { "parse", reshard_map_parse, false, true },
};

#define VERBS (sizeof(verbs) / sizeof(verbs[0]))

static const struct map_verb *find_verb(const struct options *options, int *exit_status)
{
    const char *name = options->paths[0];
    struct near_names near = { .word = name };
    char hint[128];
    for (size_t i = 0; i < VERBS; i++) {
        if (strcmp(name, verbs[i].name) == 0) {
            if (!verbs[i].needs_source || options->source)
                return &verbs[i];
            *exit_status = print_failure(options, RESHARD_ERR_USAGE, NULL, "map %s needs --source: a checkpoint, or a description", name);
            return NULL;
        }
        near_names_offer(&near, verbs[i].name);
    }
    near_names_hint(&near, "check, expand, invert, eval and parse are there", hint, sizeof(hint));
    *exit_status = print_failure(options, RESHARD_ERR_USAGE, hint, "map: unknown verb '%s'", name);
    return NULL;
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

static int read_description(const struct options *options, const char *path, reshard_map_space **out)
{
    size_t size;
    reshard_error err = { 0 };
    char *json = read_file(path, &size);
    if (!json)
        return print_failure(options, RESHARD_ERR_IO, NULL, "%s: %s", shown_path(path), strerror(errno));
    reshard_status status = reshard_map_space_describe(json, size, out, &err);
    free(json);
    if (status && !err.object[0])
        snprintf(err.object, sizeof(err.object), "%s", path);
    return status ? print_error(options, status, &err) : -1;
}

/* Returns -1 to go on, or an exit status. Without a path there is no space. */
static int open_space(const struct options *options, const char *path, reshard_map_space **out)
{
    reshard_error err = { 0 };
    reshard_checkpoint *checkpoint = NULL;
    if (!path)
        return -1;
    if (is_description(path))
        return read_description(options, path, out);
    reshard_open_options open = options_open(options);
    reshard_status status = reshard_open(path, &open, &checkpoint, &err);
    if (!status)
        status = reshard_map_space_of(checkpoint, out, &err);
    reshard_close(checkpoint);
    return status ? print_error(options, status, &err) : -1;
}

static int run_verb(const struct map_verb *verb, struct mapping_input *mapping, reshard_map_input *input)
{
    const struct options *options = mapping->options;
    reshard_error err = { 0 };
    reshard_map_output output = RESHARD_MAP_OUTPUT_INIT;
    reshard_status status = verb->run(input, &output, &err);
    if (output.diagnoses && output.diagnoses[0])
        mapping_input_diagnose(output.diagnoses, output.error_count, mapping);
    bool is_json = options->json || verb->is_json;
    if (!status)
        fputs(is_json ? output.json : output.text, stdout);
    if (!status && is_json)
        putchar('\n');
    reshard_map_output_release(&output);
    return status ? mapping_input_error(mapping, status, &err) : 0;
}

/* Reads what the verb works on, and runs it. */
static int read_and_run(const struct map_verb *verb, struct mapping_input *mapping)
{
    const struct options *options = mapping->options;
    const char *file = options->paths[1];
    reshard_map_space *source = NULL, *target = NULL;
    reshard_map_input input = RESHARD_MAP_INPUT_INIT;
    int exit_status = -1;
    char *text = read_file(file, &input.size);
    if (!text)
        exit_status = print_failure(options, RESHARD_ERR_IO, NULL, "%s: %s", shown_path(file), strerror(errno));
    if (exit_status < 0 && verb->needs_source)
        exit_status = open_space(options, options->source, &source);
    if (exit_status < 0 && verb->needs_source)
        exit_status = open_space(options, options->target, &target);
    if (exit_status < 0) {
        input.name = strcmp(file, "-") == 0 ? "<stdin>" : file;
        input.text = text;
        input.source = source;
        input.target = target;
        input.strict = options->strict_aoa;
        input.reverse = options->reverse;
        input.limits = options->limit_values;
        input.limit_count = options->limits.count;
        input.config = mapping->config;
        input.config_size = mapping->map.config_size;
        input.constants = mapping->constants;
        input.constant_count = mapping->map.constant_count;
        exit_status = run_verb(verb, mapping, &input);
    }
    reshard_map_space_free(source);
    reshard_map_space_free(target);
    free(text);
    return exit_status;
}

int command_map(const struct options *options)
{
    int exit_status = 0;
    struct mapping_input mapping;
    const struct map_verb *verb = find_verb(options, &exit_status);
    if (!verb)
        return exit_status;
    exit_status = mapping_input_read(options, &mapping);
    if (exit_status < 0)
        exit_status = read_and_run(verb, &mapping);
    mapping_input_release(&mapping);
    return exit_status;
}
