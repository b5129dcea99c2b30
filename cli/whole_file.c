/* SPDX-License-Identifier: Apache-2.0 */
#include "whole_file.h"

#include "command_words.h"
#include "failure.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int whole_file_fail(struct whole_file *file, int number)
{
    const char *hint = number == EEXIST ? "--overwrite replaces it" : NULL;
    int exit_status = print_failure(file->options, number == EEXIST ? RESHARD_ERR_USAGE : RESHARD_ERR_IO, hint, "'%s': %s",
                                    shown_path(file->path), strerror(number));
    if (file->beside)
        unlink(file->beside);
    free(file->beside);
    file->beside = NULL;
    return exit_status;
}

int whole_file_check(const struct options *options, const char *path)
{
    struct whole_file file;
    int exit_status = whole_file_begin(&file, options, path);
    if (exit_status)
        return exit_status;
    fclose(file.out);
    unlink(file.beside);
    free(file.beside);
    return 0;
}

int whole_file_begin(struct whole_file *file, const struct options *options, const char *path)
{
    struct stat there;
    *file = (struct whole_file){ .options = options, .path = path };
    if (lstat(path, &there) == 0 && (!options->overwrite || !S_ISREG(there.st_mode)))
        return whole_file_fail(file, EEXIST);
    if (asprintf(&file->beside, "%s.XXXXXX", path) < 0) {
        file->beside = NULL;
        return whole_file_fail(file, ENOMEM);
    }
    mode_t mask = umask(0);
    umask(mask);
    int descriptor = mkstemp(file->beside);
    if (descriptor < 0) {
        free(file->beside);
        file->beside = NULL;
        return whole_file_fail(file, errno);
    }
    fchmod(descriptor, 0666 & ~mask);
    file->out = fdopen(descriptor, "w");
    if (file->out)
        return 0;
    int number = errno;
    close(descriptor);
    return whole_file_fail(file, number);
}

int whole_file_end(struct whole_file *file)
{
    errno = 0;
    bool is_whole = !ferror(file->out) && fflush(file->out) == 0 && fsync(fileno(file->out)) == 0;
    int number = errno ? errno : EIO;
    fclose(file->out);
    if (!is_whole)
        return whole_file_fail(file, number);
    /* A link fails where another process was quicker; a file that is to be replaced is renamed over. */
    bool is_there = file->options->overwrite ? rename(file->beside, file->path) == 0 : link(file->beside, file->path) == 0;
    if (!is_there && !file->options->overwrite && errno != EEXIST)
        is_there = rename(file->beside, file->path) == 0; /* a file system without links */
    if (!is_there)
        return whole_file_fail(file, errno);
    if (!file->options->overwrite)
        unlink(file->beside);
    free(file->beside);
    file->beside = NULL;
    return 0;
}
