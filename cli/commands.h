/* SPDX-License-Identifier: Apache-2.0 */
/* One function a verb; each returns the exit status. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include "output.h"
#include "progress.h"

int command_inspect(const struct options *options);
int command_ls(const struct options *options);
int command_hash(const struct options *options);
int command_cat(const struct options *options);
int command_convert(const struct options *options);
int command_commit(const struct options *options);
int command_plan(const struct options *options);
int command_verify(const struct options *options);
int command_diff(const struct options *options);
int command_stats(const struct options *options);
int command_salvage(const struct options *options);
int command_draw(const struct options *options);
int command_map(const struct options *options);
int command_formats(const struct options *options);
int command_completion(const struct options *options);
int command_help(const struct options *options);

/* What the options of convert say; open and mapping must outlive it. */
struct mapping_input;
reshard_convert_options convert_options_make(const struct options *options, const reshard_open_options *open,
                                             const struct mapping_input *mapping);

/* Whether there are options of names or of selection. */
bool is_view_asked(const struct options *options);

/* Opens paths[index] with the options given, or prints why not: then *exit_status is set and NULL returned. */
reshard_checkpoint *open_path(const struct options *options, int index, int *exit_status);

/* The same, and what the options of names and of selection leave of it: open_path does so for verbs of option_is_viewing alone. */
reshard_checkpoint *open_view(const struct options *options, int index, int *exit_status);

#endif
