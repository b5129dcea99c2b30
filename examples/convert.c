/* SPDX-License-Identifier: Apache-2.0 */
/* Converts a checkpoint, with progress; the target appears whole or not at all: convert SOURCE TARGET FORMAT */
#include <reshard/reshard.h>

#include <stdio.h>

static int show(const reshard_progress *progress, void *context)
{
    (void)context;
    fprintf(stderr, "\r%3.0f%%", progress->bytes_total ? 100.0 * (double)progress->bytes_done / (double)progress->bytes_total : 100.0);
    return 0; /* anything else would cancel */
}

int main(int argc, char **argv)
{
    reshard_checkpoint *source = NULL;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_error err = RESHARD_ERROR_INIT;
    if (argc != 4) {
        fprintf(stderr, "usage: convert SOURCE TARGET FORMAT\n");
        return RESHARD_ERR_USAGE;
    }
    options.to = argv[3];
    run.progress = show;
    reshard_status status = reshard_open(argv[1], NULL, &source, &err);
    if (!status)
        status = reshard_convert(source, argv[2], &options, &run, NULL, &err);
    fprintf(stderr, status ? "\nconvert: %s\n" : "\n%s", status ? err.message : "");
    reshard_close(source);
    return reshard_status_exit(status);
}
