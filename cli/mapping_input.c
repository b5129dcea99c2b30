/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping_input.h"

#include "command_words.h"
#include "failure.h"
#include "read_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int read_text(const struct options *options, const char *path, reshard_map_text *out)
{
    size_t size;
    char *text = read_file(path, &size);
    if (!text)
        return print_failure(options, RESHARD_ERR_IO, NULL, "%s: %s", shown_path(path), strerror(errno));
    *out = (reshard_map_text){ strcmp(path, "-") == 0 ? "<stdin>" : path, text, size };
    return -1;
}

/* The statements of -m are one text, a line each: the third one's errors are said to be in line 3. */
static int join_statements(const struct options *options, struct mapping_input *out)
{
    size_t size = 0, at = 0;
    for (size_t i = 0; i < options->statements.count; i++)
        size += strlen(options->statements.values[i]) + 1;
    out->statements = malloc(size + 1);
    if (!out->statements)
        return print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
    for (size_t i = 0; i < options->statements.count; i++) {
        size_t length = strlen(options->statements.values[i]);
        memcpy(out->statements + at, options->statements.values[i], length);
        out->statements[at + length] = '\n';
        at += length + 1;
    }
    out->texts[out->map.text_count++] = (reshard_map_text){ "-m", out->statements, size };
    return -1;
}

static int read_constants(const struct options *options, struct mapping_input *out)
{
    for (size_t i = 0; i < options->constants.count; i++) {
        const char *text = options->constants.values[i], *equals = strchr(text, '=');
        char *end = NULL;
        errno = 0;
        long long value = equals ? strtoll(equals + 1, &end, 10) : 0;
        if (!equals || equals == text || end == equals + 1 || *end || errno || value < 0)
            return print_failure(options, RESHARD_ERR_USAGE, NULL, "--set: '%s' is not NAME=NUMBER", text);
        char *name = strndup(text, (size_t)(equals - text));
        if (!name)
            return print_failure(options, RESHARD_ERR_MEMORY, NULL, "out of memory");
        out->constants[out->map.constant_count++] = (reshard_map_constant){ name, value };
    }
    return -1;
}

int mapping_input_diagnose(const char *diagnoses, size_t error_count, void *context)
{
    struct mapping_input *input = context;
    diagnoses = command_words(diagnoses);
    input->has_errors |= error_count > 0;
    if (input->options->json) {
        free(input->diagnoses);
        input->diagnoses = strdup(diagnoses);
    } else if (error_count || !input->options->quiet) {
        fputs(diagnoses, stderr);
    }
    return 0;
}

int mapping_input_error(const struct mapping_input *input, reshard_status status, const reshard_error *err)
{
    bool is_diagnosed = input->has_errors && status == RESHARD_ERR_USAGE;
    return is_diagnosed ? print_diagnosed_error(input->options, status, err, input->diagnoses) : print_error(input->options, status, err);
}

/* A family's name is a plain word; anything else is the name of a file. */
static bool is_file_name(const char *rules)
{
    return strchr(rules, '/') || strchr(rules, '.') || strcmp(rules, "-") == 0;
}

int mapping_input_read(const struct options *options, struct mapping_input *out)
{
    int status = -1;
    *out = (struct mapping_input){ .options = options, .map = RESHARD_MAP_OPTIONS_INIT };
    out->map.texts = out->texts;
    out->map.constants = out->constants;
    out->map.strict = options->strict_aoa;
    out->map.diagnose = mapping_input_diagnose;
    out->map.context = out;
    for (size_t i = 0; i < options->maps.count && status < 0; i++) {
        status = read_text(options, options->maps.values[i], &out->texts[i]);
        out->map.text_count += status < 0;
    }
    if (status < 0 && options->statements.count)
        status = join_statements(options, out);
    if (status < 0)
        status = read_constants(options, out);
    if (status < 0 && options->config) {
        out->config = read_file(options->config, &out->map.config_size);
        out->map.config = out->config;
        if (!out->config)
            status = print_failure(options, RESHARD_ERR_IO, NULL, "%s: %s", shown_path(options->config), strerror(errno));
    }
    if (status < 0 && options->rules && is_file_name(options->rules)) {
        status = read_text(options, options->rules, &out->rules);
        out->map.rules_text = &out->rules;
    } else {
        out->map.rules = options->rules;
    }
    return status;
}

void mapping_input_release(struct mapping_input *input)
{
    for (size_t i = 0; i < input->map.text_count; i++) {
        if (input->texts[i].text != input->statements)
            free((char *)input->texts[i].text);
    }
    for (size_t i = 0; i < input->map.constant_count; i++)
        free((char *)input->constants[i].name);
    free((char *)input->rules.text);
    free(input->statements);
    free(input->config);
    free(input->diagnoses);
}
