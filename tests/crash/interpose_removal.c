/* SPDX-License-Identifier: Apache-2.0 */
/* SHIM_SILLY: files that are removed while this process has them open, as clients of NFS and FUSE do it: under another name they stay in
 * their directory until the last descriptor is closed. */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT_MAX 64
#define DESCRIPTORS_MAX 256

static struct kept {
    char path[4096]; /* "" is free */
    dev_t device;
    ino_t inode;
} kept[KEPT_MAX];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_open(dev_t device, ino_t inode)
{
    struct stat info;
    for (int fd = 3; fd < DESCRIPTORS_MAX; fd++)
        if (syscall(SYS_newfstatat, fd, "", &info, AT_EMPTY_PATH) == 0 && info.st_dev == device && info.st_ino == inode)
            return true;
    return false;
}

bool removal_renames(int directory_fd, const char *name)
{
    static uint64_t number;
    struct stat info;
    char link[64], folder[4000] = "", hidden[64];
    if (!getenv("SHIM_SILLY") || strncmp(name, ".nfs", 4) == 0 ||
        syscall(SYS_newfstatat, directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1 ||
        !is_open(info.st_dev, info.st_ino))
        return false;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", directory_fd);
    if (directory_fd == AT_FDCWD || syscall(SYS_readlinkat, AT_FDCWD, link, folder, sizeof(folder) - 1) <= 0)
        return false;
    snprintf(hidden, sizeof(hidden), ".nfs%016llx", (unsigned long long)__atomic_add_fetch(&number, 1, __ATOMIC_RELAXED));
    pthread_mutex_lock(&kept_lock);
    size_t i = 0;
    while (i < KEPT_MAX && kept[i].path[0])
        i++;
    const bool renames = i < KEPT_MAX && syscall(SYS_renameat, directory_fd, name, directory_fd, hidden) == 0;
    if (renames) {
        kept[i].device = info.st_dev;
        kept[i].inode = info.st_ino;
        snprintf(kept[i].path, sizeof(kept[i].path), "%s/%s", folder, hidden);
    }
    pthread_mutex_unlock(&kept_lock);
    return renames;
}

void removal_closed(void)
{
    const int number = errno;
    pthread_mutex_lock(&kept_lock);
    for (size_t i = 0; i < KEPT_MAX; i++)
        if (kept[i].path[0] && !is_open(kept[i].device, kept[i].inode)) {
            syscall(SYS_unlinkat, AT_FDCWD, kept[i].path, 0);
            kept[i].path[0] = '\0';
        }
    pthread_mutex_unlock(&kept_lock);
    errno = number;
}
