/* SPDX-License-Identifier: Apache-2.0 */
#include "api/saver_process.h"

#include "reshard/async.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/installed_paths.h"
#include "api/saver_staging.h"
#include "api/versioned.h"

#define HELLO_MAGIC UINT64_C(0x314F4C4C45485352) /* RSHELLO1 */
#define HELLO_SECONDS 20

/* Both sides are of one version, so packets are structs. */
struct saver_hello {
    uint64_t magic;
    char version[32];
};

struct saver_order {
    int64_t number;
    uint64_t request_at, request_size;
};

/* ---- packets ---- */

static ssize_t packet_send(int socket, const void *bytes, size_t size, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { (void *)(uintptr_t)bytes, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    ssize_t sent;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    do
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* *fd: a descriptor that came along, or -1. 0: the other side is gone. */
static ssize_t packet_receive(int socket, void *bytes, size_t size, int *fd)
{
    char control[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec part = { bytes, size };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
    ssize_t got;
    *fd = -1;
    do
        got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(header), sizeof(*fd));
    return got;
}

/* Whether there is a packet, or the other side is gone; waits so many milliseconds, -1: for ever. */
static bool packet_is_there(int socket, int milliseconds)
{
    struct pollfd waiting = { .fd = socket, .events = POLLIN };
    int found;
    do
        found = poll(&waiting, 1, milliseconds);
    while (found < 0 && errno == EINTR);
    return found > 0;
}

/* ---- the job's side ---- */

const char *saver_program(const char *given)
{
    const char *named = getenv("RESHARD_SAVER_PROGRAM");
    return given ? given : named && named[0] ? named : SAVER_INSTALLED;
}

static int spawn_with_socket(const char *program, int socket, pid_t *pid)
{
    extern char **environ;
    char *const arguments[] = { (char *)(uintptr_t)program, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed)
        return failed;
    failed = posix_spawnattr_init(&attributes);
    if (!failed) {
        failed = posix_spawn_file_actions_adddup2(&actions, socket, SAVER_SOCKET);
        if (!failed)
            failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (!failed)
            failed = posix_spawnattr_setsigmask(&attributes, &none);
        if (!failed)
            failed = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
        if (!failed)
            failed = posix_spawn(pid, program, &actions, &attributes, arguments, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static reshard_status hello_check(const char *program, const struct saver_process *process, reshard_error *err)
{
    struct saver_hello hello = { 0 };
    int fd;
    if (!packet_is_there(process->socket, HELLO_SECONDS * 1000))
        return error_set(err, RESHARD_ERR_IO, "'%s' has not answered for %d seconds", program, HELLO_SECONDS);
    const ssize_t got = packet_receive(process->socket, &hello, sizeof(hello), &fd);
    if (fd >= 0)
        close(fd);
    if (got != (ssize_t)sizeof(hello) || hello.magic != HELLO_MAGIC)
        return error_set(err, RESHARD_ERR_IO, "'%s' ended, or is no reshard-saver", program);
    hello.version[sizeof(hello.version) - 1] = 0;
    if (strcmp(hello.version, reshard_version()) != 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s' is of version %s, the library of %s", program, hello.version,
                         reshard_version());
    return RESHARD_OK;
}

reshard_status saver_process_start(const char *program, struct saver_process *out, reshard_error *err)
{
    int sockets[2];
    char how[64];
    *out = (struct saver_process)SAVER_PROCESS_NONE;
    if (access(program, X_OK) < 0) {
        error_set_errno(err, "the program that writes, '%s'", program);
        error_hint(err, "reshard_saver_options.program or the environment's RESHARD_SAVER_PROGRAM says where reshard-saver is");
        return RESHARD_ERR_IO;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        return error_set_errno(err, "a socket for '%s'", program);
    out->socket = sockets[0];
    errno = spawn_with_socket(program, sockets[1], &out->pid);
    reshard_status status = errno ? error_set_errno(err, "starting '%s'", program) : RESHARD_OK;
    close(sockets[1]);
    if (status)
        out->pid = 0;
    else
        status = hello_check(program, out, err);
    if (status)
        saver_process_end(out, how);
    return status;
}

reshard_status saver_process_send(const struct saver_process *process, int64_t number, int fd, uint64_t request_at, uint64_t request_size,
                                  reshard_error *err)
{
    const struct saver_order order = { number, request_at, request_size };
    if (packet_send(process->socket, &order, sizeof(order), fd) == (ssize_t)sizeof(order))
        return RESHARD_OK;
    return error_set_errno(err, "the program that writes does not listen");
}

reshard_status saver_process_receive(const struct saver_process *process, int milliseconds, struct saver_reply *out, bool *is_there,
                                     reshard_error *err)
{
    int fd;
    *is_there = packet_is_there(process->socket, milliseconds);
    if (!*is_there)
        return RESHARD_OK;
    const ssize_t got = packet_receive(process->socket, out, sizeof(*out), &fd);
    if (fd >= 0)
        close(fd);
    if (got == (ssize_t)sizeof(*out)) {
        out->error.object[sizeof(out->error.object) - 1] = 0;
        out->error.message[sizeof(out->error.message) - 1] = 0;
        out->error.hint[sizeof(out->error.hint) - 1] = 0;
        return RESHARD_OK;
    }
    *is_there = false;
    return error_set(err, RESHARD_ERR_IO, "the program that writes is gone");
}

void saver_process_end(struct saver_process *process, char *out)
{
    int how = 0;
    pid_t ended = 0;
    if (process->socket >= 0) {
        shutdown(process->socket, SHUT_RDWR); /* a process that was forked meanwhile has it too, and the program waits for its end */
        close(process->socket);
    }
    while (process->pid && (ended = waitpid(process->pid, &how, 0)) < 0 && errno == EINTR)
        ;
    snprintf(out, 64, "%s %d", ended > 0 && WIFSIGNALED(how) ? "was killed by signal" : "ended with status",
             ended <= 0         ? 0
             : WIFSIGNALED(how) ? WTERMSIG(how)
                                : WEXITSTATUS(how));
    *process = (struct saver_process)SAVER_PROCESS_NONE;
}

/* ---- the program's side ---- */

static void order_run(int socket, const struct saver_order *order, int fd)
{
    struct saver_reply reply = { .number = order->number, .error = RESHARD_ERROR_INIT };
    reply.error.code = saver_staging_run_foreign(fd, order->request_at, order->request_size, &reply.error);
    packet_send(socket, &reply, sizeof(reply), -1); /* nobody may be left to hear of it */
}

API_EXPORT reshard_status reshard_saver_serve(int socket, reshard_error *err)
{
    struct saver_hello hello = { .magic = HELLO_MAGIC };
    struct saver_order order;
    struct ucred peer = { 0 };
    socklen_t size = sizeof(peer);
    int fd;
    ERROR_SCOPE(err);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return error_set_errno(err, "descriptor %d is no socket of a job", socket);
    if (peer.uid != geteuid())
        return error_set(err, RESHARD_ERR_USAGE, "the job is another user's");
    strncpy(hello.version, reshard_version(), sizeof(hello.version) - 1);
    if (packet_send(socket, &hello, sizeof(hello), -1) != (ssize_t)sizeof(hello))
        return error_set_errno(err, "the job does not listen");
    for (;;) {
        const ssize_t got = packet_receive(socket, &order, sizeof(order), &fd);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return RESHARD_OK;
        if (got != (ssize_t)sizeof(order) || fd < 0)
            return error_set(err, RESHARD_ERR_FORMAT, "the job sent a packet of %zd bytes", got);
        order_run(socket, &order, fd);
    }
}
