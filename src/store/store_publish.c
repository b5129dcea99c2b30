/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define REPLACED_NAME ".replaced" /* where the old target waits when the two cannot be exchanged in one step */

static bool lacks_flags(int number)
{
    return number == EINVAL || number == ENOSYS || number == EOPNOTSUPP;
}

static int store_publish_fail(int number)
{
    errno = number;
    return -1;
}

static bool is_there(int directory_fd, const char *name)
{
    struct stat info;
    return fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

/* Without RENAME_NOREPLACE a file is published by a hard link, which does not replace either. */
static int publish_by_link(int directory_fd, int parent_fd, const char *name)
{
    if (linkat(directory_fd, name, parent_fd, name, 0) == 0)
        return unlinkat(directory_fd, name, 0);
    if (errno == EEXIST)
        return -1;
    return is_there(parent_fd, name) ? store_publish_fail(EEXIST) : renameat(directory_fd, name, parent_fd, name);
}

int publish_new(int directory_fd, int parent_fd, const char *name, bool is_directory)
{
    if (renameat2(directory_fd, name, parent_fd, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (!lacks_flags(errno))
        return -1;
    if (!is_directory)
        return publish_by_link(directory_fd, parent_fd, name);
    /* Renaming a directory replaces nothing but an empty directory. */
    return is_there(parent_fd, name) ? store_publish_fail(EEXIST) : renameat(directory_fd, name, parent_fd, name);
}

static bool is_regular(int directory_fd, const char *name)
{
    struct stat info;
    return fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

int publish_over(int directory_fd, int parent_fd, const char *name, bool no_sync)
{
    if (renameat2(directory_fd, name, parent_fd, name, RENAME_EXCHANGE) == 0)
        return 0;
    if (!lacks_flags(errno))
        return -1;
    if (is_regular(directory_fd, name) && is_regular(parent_fd, name))
        return renameat(directory_fd, name, parent_fd, name);
    /* Where the old target is going to wait must have a name on the disk. */
    if (!no_sync && !sync_directory(parent_fd, "."))
        return -1;
    if (renameat(parent_fd, name, directory_fd, REPLACED_NAME) < 0)
        return -1;
    return renameat(directory_fd, name, parent_fd, name);
}

int publish_undo(int directory_fd, int parent_fd, const char *name)
{
    if (!is_there(directory_fd, REPLACED_NAME) || is_there(parent_fd, name))
        return 0;
    return renameat(directory_fd, REPLACED_NAME, parent_fd, name);
}
