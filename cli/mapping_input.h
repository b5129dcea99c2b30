/* SPDX-License-Identifier: Apache-2.0 */
/* What --map, -m, --rules, --set, --config and --strict-aoa give the library: files read, statements joined, diagnoses printed. */
#ifndef CLI_MAPPING_INPUT_H
#define CLI_MAPPING_INPUT_H

#include "options.h"

struct mapping_input {
    const struct options *options;
    reshard_map_options map;
    reshard_map_text texts[OPTION_LIST_MAX + 1], rules;
    reshard_map_constant constants[OPTION_LIST_MAX];
    char *statements, *config; /* owned, as are the texts of files and the constants' names */
    char *diagnoses; /* with --json: what would else be printed; owned */
    bool has_errors; /* diagnoses say what is wrong */
};

/* Returns -1 to go on, or an exit status: then what is wrong was printed. Release it in either case. */
int mapping_input_read(const struct options *options, struct mapping_input *out);
/* Prints diagnoses, as reshard_map_options.diagnose is given them, or keeps them for the object that --json prints. */
int mapping_input_diagnose(const char *diagnoses, size_t error_count, void *input);

/* Prints an error of the run that the mapping is for, with its diagnoses if it is the mapping's, and returns the exit status. */
int mapping_input_error(const struct mapping_input *input, reshard_status status, const reshard_error *err);

void mapping_input_release(struct mapping_input *input);

#endif
