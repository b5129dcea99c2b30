/* SPDX-License-Identifier: Apache-2.0 */
/* reshard-saver: writes the checkpoints of a job that saves in the background, also if the job crashes. reshard_saver_open starts it. */
#include <reshard/async.h>

#include <stdio.h>
#include <unistd.h>

#define JOB_SOCKET 3

int main(void)
{
    reshard_error err = RESHARD_ERROR_INIT;
    /* Of what the job has open nothing is to live on here. */
    closefrom(JOB_SOCKET + 1);
    const reshard_status status = reshard_saver_serve(JOB_SOCKET, &err);
    if (status) {
        fprintf(stderr, "reshard-saver: %s\n", err.message);
        fprintf(stderr, "hint: this program is started by the library (reshard_saver_open), not by hand\n");
    }
    return reshard_status_exit(status);
}
