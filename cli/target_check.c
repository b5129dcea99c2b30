/* SPDX-License-Identifier: Apache-2.0 */
#include "target_check.h"

#include "failure.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The path without links and dots; its last part need not exist. False if there is no such folder. */
static bool resolve_target(const char *target, char out[PATH_MAX])
{
    char folder[PATH_MAX], real[PATH_MAX];
    size_t size = strlen(target);
    while (size > 1 && target[size - 1] == '/')
        size--;
    size_t name = size;
    while (name && target[name - 1] != '/')
        name--;
    if (size >= sizeof(folder))
        return false;
    memcpy(folder, target, name);
    memcpy(folder + name, ".", 2);
    if (!realpath(folder, real))
        return false;
    int used = snprintf(out, PATH_MAX, "%s/%.*s", real[1] ? real : "", (int)(size - name), target + name);
    return used < PATH_MAX;
}

/* Whether path is folder, or lies somewhere in it. */
static bool is_within(const char *path, const char *folder)
{
    size_t size = strlen(folder);
    return strncmp(path, folder, size) == 0 && (path[size] == '/' || path[size] == '\0');
}

int target_check(const struct options *options, const char *source, const char *target)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat a, b;
    if (!*target)
        return print_failure(options, RESHARD_ERR_USAGE, NULL, "the target has no name");
    if (!resolve_target(target, to))
        return print_failure(options, RESHARD_ERR_IO, "the folder that is to hold the target must exist", "cannot write '%s': %s", target, strerror(errno));
    if (!realpath(source, from) || stat(from, &a))
        return 0; /* opening it says why */
    bool exists = lstat(to, &b) == 0;
    if (strcmp(from, to) == 0 || (exists && stat(to, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino))
        return print_failure(options, RESHARD_ERR_USAGE, "write it beside the source, and rename it then", "'%s' is the source itself", target);
    if (S_ISDIR(a.st_mode) && is_within(to, from))
        return print_failure(options, RESHARD_ERR_USAGE, "choose a target outside of the source", "'%s' lies in the source '%s'", target, source);
    if (exists && is_within(from, to))
        return print_failure(options, RESHARD_ERR_USAGE, "choose a target outside of it", "'%s' holds the source '%s'", target, source);
    if (exists && !options->overwrite)
        return print_failure(options, RESHARD_ERR_IO, "--overwrite replaces it, whatever it is", "cannot write '%s': File exists", target);
    return 0;
}
