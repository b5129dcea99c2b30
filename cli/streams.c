/* SPDX-License-Identifier: Apache-2.0 */
#include "streams.h"

#include "command_words.h"
#include "failure.h"
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define COPY_BYTES (1 << 20)
#define OUTPUT_NAME "/checkpoint"

static const char *temporary_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder && *folder ? folder : "/tmp";
}

static bool write_all(int file, const char *bytes, size_t size)
{
    while (size) {
        ssize_t done = write(file, bytes, size);
        if (done < 0 && errno != EINTR)
            return false;
        bytes += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

/* From one file to the other, to the end. False with errno, or where there is more than bytes_max: *is_more. */
static bool copy_all(int from, int to, uint64_t bytes_max, bool *is_more)
{
    char *buffer = malloc(COPY_BYTES);
    uint64_t copied = 0;
    ssize_t got = -1;
    do {
        got = buffer ? read(from, buffer, COPY_BYTES) : -1;
        copied += got > 0 ? (uint64_t)got : 0;
        *is_more = copied > bytes_max;
        if (*is_more || (got > 0 && !write_all(to, buffer, (size_t)got)))
            got = -2;
    } while (got > 0 || (got == -1 && buffer && errno == EINTR));
    int number = buffer ? errno : ENOMEM;
    free(buffer);
    errno = number;
    return got == 0;
}

/* A file without a name, or -1 with errno. */
static int nameless_file(void)
{
    char *name = NULL;
    if (asprintf(&name, "%s/reshard-stdin-XXXXXX", temporary_folder()) < 0)
        return -1;
    int file = mkostemp(name, O_CLOEXEC);
    if (file >= 0)
        unlink(name);
    free(name);
    return file;
}

/* Of what is free in the temporary folder nine tenths: what others need there is left. Some file systems (ramfs) do not know their size. */
static uint64_t room_for_input(int file)
{
    struct statvfs info;
    return fstatvfs(file, &info) < 0 || info.f_blocks == 0 ? UINT64_MAX : (uint64_t)info.f_bavail * info.f_frsize / 10 * 9;
}

/* Standard input in a file without a name; -1: said why not. */
static int keep_input(const struct options *options, int *exit_status)
{
    int file = nameless_file();
    const uint64_t room = file < 0 ? 0 : room_for_input(file);
    bool is_more = false;
    if (file >= 0 && copy_all(STDIN_FILENO, file, room, &is_more))
        return file;
    if (is_more)
        *exit_status = print_failure(options, RESHARD_ERR_LIMIT, "TMPDIR says where there is room; or name the file",
                                     "standard input has more than %llu bytes, nine tenths of what is free in '%s'",
                                     (unsigned long long)room, temporary_folder());
    else
        *exit_status = print_failure(options, RESHARD_ERR_IO,
                                     errno == EFBIG ? "raise the limit (ulimit -f), or name the file" : "TMPDIR says where there is room",
                                     "cannot keep standard input in '%s': %s", temporary_folder(), strerror(errno));
    if (file >= 0)
        close(file);
    return -1;
}

bool stream_input(const struct options *options, char path[STREAM_PATH_MAX], int *exit_status)
{
    static int kept = -1; /* it is read once, and may be opened again */
    struct stat info;
    int file = kept >= 0 ? kept : STDIN_FILENO;
    if (isatty(STDIN_FILENO)) {
        *exit_status = print_failure(options, RESHARD_ERR_USAGE, "name a file, or pipe one in",
                                     "'-' is standard input, which is a terminal");
        return false;
    }
    if (kept < 0 && (fstat(STDIN_FILENO, &info) < 0 || !S_ISREG(info.st_mode))) {
        file = kept = keep_input(options, exit_status);
        if (file < 0)
            return false;
    }
    snprintf(path, STREAM_PATH_MAX, "/proc/self/fd/%d", file);
    call_stream(path);
    return true;
}

/* Only formats of one file, and nothing that goes on beside it. */
static int refuse_output(const struct options *options)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    if (isatty(STDOUT_FILENO))
        return print_failure(options, RESHARD_ERR_USAGE, "pipe it on, or name a file", "'-' is standard output, which is a terminal");
    if (!options->to)
        return print_failure(options, RESHARD_ERR_USAGE, "for example --to safetensors", "standard output needs --to FORMAT");
    if (options->json || options->part || options->resume || options->overwrite || options->checksum)
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "with '-' there is no --json, --part, --resume, --overwrite or --checksum");
    for (size_t i = 0; reshard_format_at(i, &format) == RESHARD_OK; i++) {
        if (strcmp(format.name, options->to) == 0 && format.is_directory)
            return print_failure(options, RESHARD_ERR_USAGE, "formats of one file: safetensors, torch",
                                 "'-' takes one file, and %s is a folder", format.name);
    }
    return 0;
}

char *stream_output_begin(const struct options *options, int *exit_status)
{
    char *path = NULL;
    *exit_status = refuse_output(options);
    if (*exit_status)
        return NULL;
    if (asprintf(&path, "%s/reshard-stdout-XXXXXX" OUTPUT_NAME, temporary_folder()) < 0)
        path = NULL;
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash)
        *slash = '\0';
    if (!path || !mkdtemp(path)) {
        *exit_status = print_failure(options, RESHARD_ERR_IO, "TMPDIR says where there is room", "cannot make a folder in '%s': %s",
                                     temporary_folder(), strerror(errno));
        free(path);
        return NULL;
    }
    *slash = '/';
    call_stream(path);
    return path;
}

int stream_output_end(const struct options *options, char *path, int exit_status)
{
    int file = exit_status ? -1 : open(path, O_RDONLY | O_CLOEXEC), number = errno;
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    free(path);
    if (exit_status)
        return exit_status;
    if (file < 0)
        return print_failure(options, RESHARD_ERR_IO, NULL, "what was written is gone: %s", strerror(number));
    if (signals_end_at_once()) {
        close(file);
        return print_interrupted(options, NULL);
    }
    bool is_more, is_copied = copy_all(file, STDOUT_FILENO, UINT64_MAX, &is_more);
    number = errno;
    close(file);
    if (is_copied)
        return 0;
    if (number == EPIPE) { /* nobody reads on: ends as any other in a pipe */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return print_failure(options, RESHARD_ERR_IO, NULL, "cannot write standard output: %s", strerror(number));
}
