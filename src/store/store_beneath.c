/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINKS_MAX 40 /* as the kernel allows */
#define TRIES_MAX 16
#define WALK_BYTES 8192

/* A path being resolved: what is known to hold no link, and what is still to be walked. */
struct walk {
    char resolved[WALK_BYTES], pending[WALK_BYTES];
    size_t resolved_size;
    int links;
};

static int store_beneath_fail(int number)
{
    errno = number;
    return -1;
}

static int step_up(struct walk *walk)
{
    if (walk->resolved_size == 0)
        return store_beneath_fail(EXDEV);
    while (walk->resolved_size > 0 && walk->resolved[walk->resolved_size - 1] != '/')
        walk->resolved_size--;
    if (walk->resolved_size > 0)
        walk->resolved_size--;
    walk->resolved[walk->resolved_size] = '\0';
    return 0;
}

/* Puts a link's target before what is still to be walked: behind a slash, or there is none. */
static int follow(struct walk *walk, const char *target, size_t size, bool is_folder)
{
    size_t rest = strlen(walk->pending);
    if (target[0] == '/')
        return store_beneath_fail(EXDEV);
    if (++walk->links > LINKS_MAX)
        return store_beneath_fail(ELOOP);
    if (size + 1 + rest + 1 > sizeof(walk->pending))
        return store_beneath_fail(ENAMETOOLONG);
    memmove(walk->pending + size + is_folder, walk->pending, rest + 1);
    memcpy(walk->pending, target, size);
    if (is_folder)
        walk->pending[size] = '/';
    return 0;
}

/* What has a slash behind it is a folder, also where the next part leads back out of it. */
static int walk_check_folder(int root, const struct walk *walk)
{
    struct stat info;
    if (fstatat(root, walk->resolved, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    return S_ISDIR(info.st_mode) ? 0 : store_beneath_fail(ENOTDIR);
}

static int step_down(int root, struct walk *walk, const char *part, size_t size, bool is_folder)
{
    char target[WALK_BYTES / 2];
    size_t before = walk->resolved_size, at = before + (before > 0);
    if (at + size + 1 > sizeof(walk->resolved))
        return store_beneath_fail(ENAMETOOLONG);
    if (before > 0)
        walk->resolved[before] = '/';
    memcpy(walk->resolved + at, part, size);
    walk->resolved[at + size] = '\0';
    walk->resolved_size = at + size;
    ssize_t target_size = readlinkat(root, walk->resolved, target, sizeof(target) - 1);
    if (target_size < 0 && errno == EINVAL) /* it is no link */
        return is_folder ? walk_check_folder(root, walk) : 0;
    if (target_size < 0)
        return -1;
    walk->resolved_size = before;
    walk->resolved[before] = '\0';
    target[target_size] = '\0';
    return follow(walk, target, (size_t)target_size, is_folder);
}

static int resolve(int root, struct walk *walk)
{
    while (walk->pending[0]) {
        char part[WALK_BYTES];
        size_t size = strcspn(walk->pending, "/");
        bool is_folder = walk->pending[size] == '/';
        memcpy(part, walk->pending, size);
        part[size] = '\0';
        memmove(walk->pending, walk->pending + size + is_folder, strlen(walk->pending + size + is_folder) + 1);
        if (size == 0 || strcmp(part, ".") == 0)
            continue;
        int result = strcmp(part, "..") == 0 ? step_up(walk) : step_down(root, walk, part, size, is_folder);
        if (result < 0)
            return -1;
    }
    return 0;
}

/* Opens a path part by part and follows nothing: what became a link in the meantime is refused. */
static int open_strictly(int root, char *path, int flags)
{
    int directory = root;
    for (char *part = path;;) {
        char *slash = strchr(part, '/');
        if (slash)
            *slash = '\0';
        int fd = openat(directory, part, slash ? O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC : flags | O_NOFOLLOW);
        int number = errno;
        if (directory != root)
            close(directory);
        errno = number;
        if (fd < 0 || !slash)
            return fd;
        directory = fd;
        part = slash + 1;
    }
}

static int open_by_hand(int root, const char *name, int flags)
{
    struct walk walk;
    if (strlen(name) >= sizeof(walk.pending))
        return store_beneath_fail(ENAMETOOLONG);
    walk.resolved[0] = '\0';
    walk.resolved_size = 0;
    walk.links = 0;
    strcpy(walk.pending, name);
    if (resolve(root, &walk) < 0)
        return -1;
    if (walk.resolved_size == 0)
        return openat(root, ".", flags);
    return open_strictly(root, walk.resolved, flags);
}

int open_beneath(int root, const char *name, int flags, bool by_hand)
{
    if (!name[0])
        return openat(root, ".", flags);
    if (by_hand)
        return open_by_hand(root, name, flags);
    struct open_how how = { .flags = (uint64_t)flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    /* EAGAIN: something was renamed while the kernel looked. */
    for (int i = 0; i < TRIES_MAX; i++) {
        long fd = syscall(SYS_openat2, root, name, &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM) /* EPERM: a sandbox that does not know the call */
            return open_by_hand(root, name, flags);
        if (errno != EAGAIN && errno != EINTR)
            return -1;
    }
    return open_by_hand(root, name, flags);
}
