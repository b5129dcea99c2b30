/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <errno.h>
#include <string.h>

reshard_checkpoint *open_path(const struct options *options, int index, int *exit_status)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = { 0 };
    reshard_open_options open = options_open(options);
    reshard_status status = reshard_open(options->paths[index], &open, &checkpoint, &err);
    if (status) {
        *exit_status = print_error(options, status, &err);
        return NULL;
    }
    return checkpoint;
}

int main(int argc, char **argv)
{
    static int (*const commands[VERB_COUNT])(const struct options *) = {
        [VERB_INSPECT] = command_inspect, [VERB_LS] = command_ls,     [VERB_HASH] = command_hash,       [VERB_CAT] = command_cat,
        [VERB_CONVERT] = command_convert, [VERB_PLAN] = command_plan, [VERB_VERIFY] = command_verify,   [VERB_DIFF] = command_diff,
        [VERB_FORMATS] = command_formats, [VERB_COMPLETION] = command_completion,
    };
    static struct options options;
    int status = options_parse(argc, argv, &options);
    if (status >= 0)
        return status;
    install_signals();
    status = commands[options.verb](&options);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "reshard: standard output: %s\n", strerror(errno));
        return status ? status : 3;
    }
    return was_interrupted() && status == 0 && options.verb != VERB_CONVERT ? 130 : status;
}
