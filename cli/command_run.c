/* SPDX-License-Identifier: Apache-2.0 */
#include "command_run.h"

#include "commands.h"
#include "streams.h"

#include "reshard/comm.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>

static bool ends_in_a_digit(const char *name)
{
    const size_t size = strlen(name);
    return size && name[size - 1] >= '0' && name[size - 1] <= '9';
}

/* Whether a folder has several that are numbered, as steps of a run are. */
static bool has_numbered_folders(const char *path)
{
    int count = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && count < 2 && (entry = readdir(folder));)
        count += entry->d_type == DT_DIR && ends_in_a_digit(entry->d_name);
    if (folder)
        closedir(folder);
    return count > 1;
}

/* What is damaged or was never finished may be one checkpoint of several: how to find the last good one is said too. */
static void hint_at_the_last_good(const char *path, reshard_status status, reshard_error *err)
{
    char parent[4096];
    size_t used = strlen(err->hint);
    if ((status != RESHARD_ERR_FORMAT && status != RESHARD_ERR_IO) || strlen(path) >= sizeof(parent))
        return;
    strcpy(parent, path);
    for (size_t size = strlen(parent); size > 1 && parent[size - 1] == '/'; size--)
        parent[size - 1] = 0;
    char *slash = strrchr(parent, '/');
    if (slash && slash > parent && ends_in_a_digit(slash) && !has_numbered_folders(path))
        *slash = 0;
    if (has_numbered_folders(parent) && used + strlen(parent) + 100 < sizeof(err->hint))
        snprintf(err->hint + used, sizeof(err->hint) - used,
                 "%s'reshard verify --latest-good %s' prints the newest checkpoint that is whole", used ? "\n" : "", parent);
}

bool is_view_asked(const struct options *options)
{
    return options->strip_prefix || options->add_prefix || options->renames.count || options->include.count || options->exclude.count;
}

/* What the options of names and of selection leave. */
static reshard_status show_chosen(const struct options *options, reshard_checkpoint *checkpoint, reshard_error *err)
{
    reshard_view view = RESHARD_VIEW_INIT;
    view.strip_prefix = options->strip_prefix;
    view.renames = options->renames.values;
    view.add_prefix = options->add_prefix;
    view.include = options->include.values;
    view.exclude = options->exclude.values;
    return is_view_asked(options) ? reshard_checkpoint_view(checkpoint, &view, err) : RESHARD_OK;
}

static reshard_checkpoint *open_one(const struct options *options, int index, bool is_view, int *exit_status)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_error err = { 0 };
    reshard_open_options open = options_open(options);
    const char *path = options->paths[index];
    char stream[STREAM_PATH_MAX];
    if (strcmp(path, "-") == 0) {
        if (!stream_input(options, stream, exit_status))
            return NULL;
        path = stream;
    }
    reshard_status status = reshard_open(path, &open, &checkpoint, &err);
    if (!status && is_view)
        status = show_chosen(options, checkpoint, &err);
    if (options->comm)
        status = reshard_comm_agree(options->comm, status, &err);
    if (status) {
        hint_at_the_last_good(path, status, &err);
        *exit_status = print_error(options, status, &err);
        reshard_close(checkpoint);
        return NULL;
    }
    return checkpoint;
}

reshard_checkpoint *open_path(const struct options *options, int index, int *exit_status)
{
    return open_one(options, index, option_is_viewing(options->verb), exit_status);
}

reshard_checkpoint *open_view(const struct options *options, int index, int *exit_status)
{
    return open_one(options, index, true, exit_status);
}

/* Writes out what is buffered. Where nobody reads it any more, the process ends as any other in a pipe; but what convert was asked for is
 * not its output, nor salvage. */
int finish_output(const struct options *options, int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    int number = errno ? errno : output_failure();
    if (output_is_gone()) {
        if (verb_writes(options))
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
