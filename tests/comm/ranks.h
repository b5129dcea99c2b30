/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a function as every rank of a group of threads. */
#ifndef TESTS_COMM_RANKS_H
#define TESTS_COMM_RANKS_H

#include "check.h"

#include "reshard/comm.h"

#include <pthread.h>

struct test_rank {
    reshard_comm *comm;
    int64_t rank, size;
    void *context;
    reshard_status status;
    reshard_error err;
};

typedef void (*test_rank_run)(struct test_rank *rank);

struct test_thread {
    struct test_rank rank;
    test_rank_run run;
};

static inline void *test_thread_main(void *given)
{
    struct test_thread *thread = given;
    thread->run(&thread->rank);
    return NULL;
}

/* out has room for size; handles are freed behind the last thread's end. */
static inline void test_ranks(int64_t size, double timeout_seconds, void *context, test_rank_run run, struct test_rank *out)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    struct test_thread *threads = calloc((size_t)size, sizeof(*threads));
    pthread_t *ids = calloc((size_t)size, sizeof(*ids));
    reshard_comm **comms = calloc((size_t)size, sizeof(reshard_comm *));
    options.timeout_seconds = timeout_seconds;
    CHECK_OK(reshard_comm_threads(size, &options, comms, &err));
    for (int64_t i = 0; i < size; i++) {
        threads[i] = (struct test_thread){ { comms[i], i, size, context, RESHARD_OK, RESHARD_ERROR_INIT }, run };
        assert_int_equal(pthread_create(&ids[i], NULL, test_thread_main, &threads[i]), 0);
    }
    for (int64_t i = 0; i < size; i++) {
        pthread_join(ids[i], NULL);
        out[i] = threads[i].rank;
    }
    for (int64_t i = 0; i < size; i++)
        reshard_comm_free(out[i].comm);
    free(threads);
    free(ids);
    free(comms);
}

#endif
