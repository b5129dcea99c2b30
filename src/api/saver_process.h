/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program that writes when the job has crashed: started with a socket of packets as descriptor 3, in a session of its own. A packet to
 * it is a save, with the descriptor of the memory where it lies; one from it says how a save has ended. The first from it says who it is.
 */
#ifndef API_SAVER_PROCESS_H
#define API_SAVER_PROCESS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SAVER_SOCKET 3

struct saver_process {
    pid_t pid; /* 0: none */
    int socket;
};
#define SAVER_PROCESS_NONE                                                                                                                 \
    {                                                                                                                                      \
        0, -1                                                                                                                              \
    }

/* How a save has ended. */
struct saver_reply {
    int64_t number;
    reshard_error error; /* its code is the status */
};

/* Which program: the given one, the environment's, or the installed one. */
const char *saver_program(const char *given);

/* Starts it and waits until it has said who it is. IO, or UNSUPPORTED for another version. */
reshard_status saver_process_start(const char *program, struct saver_process *out, reshard_error *err);

/* IO if it has died. */
reshard_status saver_process_send(const struct saver_process *process, int64_t number, int fd, uint64_t request_at, uint64_t request_size,
                                  reshard_error *err);

/* The next reply: *is_there false if there is none within so many milliseconds; -1: however long it takes. IO if it has died. */
reshard_status saver_process_receive(const struct saver_process *process, int milliseconds, struct saver_reply *out, bool *is_there,
                                     reshard_error *err);

/* Closes the socket, upon which it finishes and ends, and waits for that. Names how it ended in out, of 64 bytes. */
void saver_process_end(struct saver_process *process, char *out);

#endif
