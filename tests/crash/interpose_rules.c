/* SPDX-License-Identifier: Apache-2.0 */
/* Which call is failed, and the log of calls. */
#undef _FILE_OFFSET_BITS
#include "interpose.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Words for several calls. */
static const struct {
    const char *name, *members;
} groups[] = {
    { "disk", "fsync,fdatasync,sync_file_range,renameat,renameat2,linkat,unlinkat,flock,fallocate,ftruncate,copy_file_range,pwrite,write,"
              "mkdirat,openat,openat2,close,fchmod,fchown" },
    { "space", "fsync,fdatasync,fallocate,ftruncate,copy_file_range,pwrite,write,mkdirat" },
    { "change",
      "fsync,fdatasync,renameat,renameat2,linkat,unlinkat,flock,fallocate,ftruncate,copy_file_range,pwrite,write,mkdirat,openat,fchmod" },
    { "look", "pread,read,stat,fstat,fstatat,readlinkat,fdopendir,readdir,mmap,fcntl,fopen,realpath" },
    { "thread", "pthread_create,pthread_mutex_init,pthread_cond_init" },
};

static const char *const call_names[CALL_COUNT] = {
#define X(name) [CALL_##name] = #name,
    CALLS(X)
#undef X
};

enum act { ACT_NONE, ACT_FAIL, ACT_FAIL_ON, ACT_KILL_BEFORE, ACT_KILL_AFTER, ACT_FLIP };
static const char *const act_names[] = { "none", "fail", "fail-on", "kill-before", "kill-after", "flip" };

static struct {
    bool concerns[CALL_COUNT];
    enum act act;
    int error_number;
    uint64_t nth;
    const char *path, *refused;
    size_t short_bytes;
} rules;

static struct outcome own_outcome;
struct outcome *outcome = &own_outcome;
static _Thread_local bool kill_follows;

/* ---- reading the environment ---- */

static bool lists(const char *list, const char *word, const char **end)
{
    size_t size = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)) != NULL; at += size) {
        if ((at == list || at[-1] == ',') && (at[size] == '\0' || at[size] == ',' || at[size] == '=')) {
            *end = at + size;
            return true;
        }
    }
    return false;
}

void rules_load(uint64_t number)
{
    const char *calls = getenv("SHIM_CALLS"), *act = getenv("SHIM_ACT"), *nth = getenv("SHIM_NTH"), *short_bytes = getenv("SHIM_SHORT"),
               *end;
    for (int i = 0; i < CALL_COUNT; i++)
        rules.concerns[i] = lists(calls, call_names[i], &end);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (int i = 0; lists(calls, groups[g].name, &end) && i < CALL_COUNT; i++)
            rules.concerns[i] |= lists(groups[g].members, call_names[i], &end);
    }
    for (size_t i = 0; act && i < sizeof(act_names) / sizeof(act_names[0]); i++) {
        size_t size = strlen(act_names[i]);
        if (strncmp(act, act_names[i], size) == 0 && (act[size] == '\0' || act[size] == ':'))
            rules.act = (enum act)i;
    }
    rules.error_number = act && strchr(act, ':') ? atoi(strchr(act, ':') + 1) : EIO;
    rules.nth = nth ? strtoull(nth, NULL, 10) : number;
    rules.path = getenv("SHIM_PATH");
    rules.refused = getenv("SHIM_REFUSE");
    rules.short_bytes = short_bytes ? strtoull(short_bytes, NULL, 10) : 0;
}

void rules_stop(void)
{
    memset(rules.concerns, 0, sizeof(rules.concerns));
}

/* ---- deciding ---- */

static const char *name_of(int fd, char out[4096])
{
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, out, 4095);
    out[size > 0 ? size : 0] = '\0';
    return out;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
}

static enum verdict hit(enum call call, const char *name)
{
    if (!outcome->was_hit)
        snprintf(outcome->what, sizeof(outcome->what), "%s %.200s", call_names[call], name);
    outcome->was_hit = true;
    if (rules.act == ACT_KILL_BEFORE)
        die();
    kill_follows = rules.act == ACT_KILL_AFTER;
    if (rules.act == ACT_FLIP)
        return MUST_FLIP;
    if (rules.act != ACT_FAIL && rules.act != ACT_FAIL_ON)
        return LET_PASS;
    errno = call == CALL_alloc || call == CALL_library_alloc ? ENOMEM : rules.error_number;
    return MUST_FAIL;
}

enum verdict rules_before(enum call call, int fd, const char *name)
{
    char buffer[4096];
    if (!rules.concerns[call])
        return LET_PASS;
    if (rules.path && !strstr(name ? name : name_of(fd, buffer), rules.path))
        return LET_PASS;
    uint64_t number = __atomic_add_fetch(&outcome->calls, 1, __ATOMIC_RELAXED);
    if (!rules.nth || number < rules.nth || (number > rules.nth && rules.act != ACT_FAIL_ON))
        return LET_PASS;
    return hit(call, name ? name : name_of(fd, buffer));
}

void rules_after(enum call call)
{
    (void)call;
    if (kill_follows)
        die();
}

bool rules_refuse(const char *feature)
{
    const char *end;
    if (!lists(rules.refused, feature, &end))
        return false;
    errno = *end == '=' ? atoi(end + 1) : ENOSYS;
    return true;
}

size_t rules_shorten(size_t size)
{
    return rules.short_bytes && size > rules.short_bytes ? rules.short_bytes : size;
}

/* ---- the log ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1, data_fd = -1;
static uint64_t data_bytes;

void log_open(void)
{
    const char *path = getenv("SHIM_LOG");
    char data_path[4096];
    if (!path)
        return;
    snprintf(data_path, sizeof(data_path), "%s.data", path);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    data_fd = (int)syscall(SYS_openat, AT_FDCWD, data_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    /* Out of the way of those that the command gets. */
    log_fd = (int)syscall(SYS_fcntl, log_fd, F_DUPFD_CLOEXEC, 900);
    data_fd = (int)syscall(SYS_fcntl, data_fd, F_DUPFD_CLOEXEC, 900);
}

void log_close(void)
{
    if (log_fd < 0)
        return;
    syscall(SYS_close, log_fd);
    syscall(SYS_close, data_fd);
    log_fd = data_fd = -1;
}

/* Calls are logged in the order in which they happen: one at a time. */
void log_begin(void)
{
    if (log_fd >= 0)
        pthread_mutex_lock(&log_lock);
}

static uint64_t inode_of(int fd)
{
    struct stat info; /* not by stat: that is one of the calls that are counted */
    if (fd < 0 && fd != AT_FDCWD)
        return 0;
    const char *name = fd == AT_FDCWD ? "." : "";
    return syscall(SYS_newfstatat, fd, name, &info, AT_EMPTY_PATH) < 0 ? 0 : (uint64_t)info.st_ino;
}

static void log_bytes(const struct entry *entry)
{
    static char window[1 << 16];
    for (int64_t done = 0; done < entry->result;) {
        size_t size = entry->result - done < (int64_t)sizeof(window) ? (size_t)(entry->result - done) : sizeof(window);
        const char *bytes = entry->data ? (const char *)entry->data + done : window;
        if (!entry->data && syscall(SYS_pread64, entry->fd, window, size, entry->offset + done) != (long)size)
            die(); /* a log with holes proves nothing */
        if (syscall(SYS_write, data_fd, bytes, size) != (long)size)
            die();
        done += (int64_t)size;
        data_bytes += size;
    }
}

void log_end(const struct entry *entry)
{
    if (log_fd < 0)
        return;
    int number = errno;
    bool moves_bytes = entry->call == CALL_pwrite || entry->call == CALL_write || entry->call == CALL_copy_file_range;
    uint64_t data_at = data_bytes;
    if (moves_bytes)
        log_bytes(entry);
    char line[9000];
    int size = snprintf(line, sizeof(line),
                        "%s\t%" PRId64 "\t%d\t%" PRIu64 "\t%" PRIu64 "\t%s\t%" PRIu64 "\t%s\t%" PRId64 "\t%" PRId64 "\t%" PRIu64 "\n",
                        call_names[entry->call], entry->result, entry->result < 0 ? number : 0, inode_of(entry->fd),
                        inode_of(entry->directory_fd), entry->name ? entry->name : "", inode_of(entry->other_directory_fd),
                        entry->other_name ? entry->other_name : "", entry->flags, entry->offset, data_at);
    if (syscall(SYS_write, log_fd, line, (size_t)size) != size)
        die();
    errno = number;
    pthread_mutex_unlock(&log_lock);
}
