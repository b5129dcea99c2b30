/* SPDX-License-Identifier: Apache-2.0 */
#include "command_run.h"

#include "commands.h"

#include <errno.h>
#include <signal.h>
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

/* Writes out what is buffered. Where nobody reads it any more, the process ends as any other in a pipe; but what convert was asked for is
 * not its output. */
int finish_output(const struct options *options, int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    int number = errno ? errno : output_failure();
    if (output_is_gone()) {
        if (options->verb == VERB_CONVERT)
            return status;
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
        return status;
    }
    clearerr(stdout);
    print_failure(options, RESHARD_ERR_IO, NULL, "standard output: %s", number ? strerror(number) : "cannot be written");
    return status ? status : reshard_status_exit(RESHARD_ERR_IO);
}

int command_run(struct options *options)
{
    static int (*const commands[VERB_COUNT])(const struct options *) = {
        [VERB_INSPECT] = command_inspect, [VERB_LS] = command_ls,           [VERB_HASH] = command_hash,
        [VERB_CAT] = command_cat,         [VERB_CONVERT] = command_convert, [VERB_PLAN] = command_plan,
        [VERB_VERIFY] = command_verify,   [VERB_DIFF] = command_diff,       [VERB_MAP] = command_map,
        [VERB_SALVAGE] = command_salvage, [VERB_COMMIT] = command_commit,   [VERB_STATS] = command_stats,
        [VERB_DRAW] = command_draw,
        [VERB_FORMATS] = command_formats, [VERB_HELP] = command_help,       [VERB_COMPLETION] = command_completion,
    };
    return finish_output(options, commands[options->verb](options));
}
