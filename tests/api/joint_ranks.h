/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, and the folder that they save to, for tests of what they do together. */
#ifndef TESTS_API_JOINT_RANKS_H
#define TESTS_API_JOINT_RANKS_H

#include "check.h"

#include "api/held.h"
#include "reshard/sharded.h"

#include <pthread.h>

#define RANKS_MAX 4

static reshard_error err;
static char folder[200];

struct rank_call {
    int64_t rank, ranks;
    reshard_comm *comm;
    const char *path, *format;
    void (*work)(struct rank_call *call);
    void *context;
    reshard_status status;
    reshard_error err;
};

static void *rank_main(void *argument)
{
    struct rank_call *call = argument;
    call->work(call);
    return NULL;
}

static void ranks_run(struct rank_call *calls, int64_t ranks, const struct rank_call *like)
{
    reshard_comm *comms[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    options.timeout_seconds = 20;
    CHECK_OK(reshard_comm_threads(ranks, &options, comms, &err));
    for (int64_t r = 0; r < ranks; r++) {
        calls[r] = *like;
        calls[r].rank = r;
        calls[r].ranks = ranks;
        calls[r].comm = comms[r];
        calls[r].err = (reshard_error)RESHARD_ERROR_INIT;
        assert_int_equal(pthread_create(&threads[r], NULL, rank_main, &calls[r]), 0);
    }
    for (int64_t r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        reshard_comm_free(comms[r]);
    }
}

static void ranks_must(const struct rank_call *like, int64_t ranks)
{
    struct rank_call calls[RANKS_MAX];
    ranks_run(calls, ranks, like);
    for (int64_t r = 0; r < ranks; r++)
        if (calls[r].status)
            fail_msg("%s, rank %d of %d: status %d: %s", like->format ? like->format : "load", (int)r, (int)ranks, calls[r].status,
                     calls[r].err.message);
}

static const char *path_in(const char *name)
{
    static char path[300];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static int folder_made(void **state)
{
    const char *given = getenv("RESHARD_JOINT_FOLDER");
    (void)state;
    if (!given)
        return test_mkdtemp(folder) ? 0 : -1;
    return snprintf(folder, sizeof(folder), "%s", given) < (int)sizeof(folder) ? 0 : -1;
}

static int folder_removed(void **state)
{
    (void)state;
    return getenv("RESHARD_JOINT_FOLDER") ? 0 : test_tree_remove(folder);
}

#endif
