/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of ranks: what is gathered and sent arrives, ranks agree about failures, and a rank that is late, leaves, does something else or
 * gives up is named by all others in time. Callbacks that fail or lie are told from those that do not.
 */
#include "check.h"

#include "api/api_comm.h"
#include "comm/ranks.h"

#include <unistd.h>

#define RANKS 5
#define LATE_SECONDS 2.0

static void rank_exchanges(struct test_rank *rank)
{
    struct comm *comm = rank->comm->inner;
    uint8_t in[RANKS][3000], out[RANKS][3000];
    for (int round = 0; round < 30 && !rank->status; round++) {
        for (uint32_t r = 0; r < RANKS && !rank->status; r++) {
            memset(out[r], (int)(rank->rank * RANKS + r + (uint32_t)round), sizeof(out[r]));
            if (r == rank->rank)
                continue;
            size_t sent = (size_t)(round * 100) + (size_t)rank->rank, expected = (size_t)(round * 100) + r;
            rank->status = comm_send(comm, r, out[r], sent, &rank->err);
            if (!rank->status)
                rank->status = comm_recv(comm, r, in[r], expected, &rank->err);
        }
        if (!rank->status)
            rank->status = comm_run(comm, "test", &rank->err);
        for (uint32_t r = 0; r < RANKS && !rank->status; r++)
            for (size_t i = 0; r != rank->rank && i < (size_t)(round * 100) + r; i++)
                if (in[r][i] != (uint8_t)(r * RANKS + rank->rank + round))
                    rank->status = RESHARD_DIFFERS;
    }
}

TEST(messages_arrive)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 20, NULL, rank_exchanges, ranks);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, RESHARD_OK);
}

static void rank_gathers(struct test_rank *rank)
{
    char text[64];
    const void *parts[RANKS];
    size_t sizes[RANKS];
    void *all;
    for (int round = 0; round < 200 && !rank->status; round++) {
        memset(text, 'a' + (int)rank->rank, sizeof(text));
        size_t size = (size_t)(round + rank->rank * 7) % sizeof(text);
        rank->status = reshard_comm_all_gather(rank->comm, text, size, parts, sizes, &all, &rank->err);
        for (int r = 0; r < RANKS && !rank->status; r++) {
            memset(text, 'a' + r, sizeof(text));
            if (sizes[r] != (size_t)(round + r * 7) % sizeof(text) || memcmp(parts[r], text, sizes[r]) != 0)
                rank->status = RESHARD_DIFFERS;
        }
        reshard_free(all);
    }
}

TEST(all_ranks_gather)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 20, NULL, rank_gathers, ranks);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(ranks[i].status, RESHARD_OK);
}

/* Ranks 2 and 4 fail; the group can still be used. */
static void rank_agrees(struct test_rank *rank)
{
    reshard_error after = RESHARD_ERROR_INIT;
    reshard_status own = RESHARD_OK;
    if (rank->rank == 2 || rank->rank == 4) {
        own = error_set_at(&rank->err, RESHARD_ERR_FORMAT, 17, "tensor 'w%d' is odd", (int)rank->rank);
        error_object(&rank->err, "w");
        error_hint(&rank->err, "make it even");
    }
    rank->status = comm_agree(rank->comm->inner, "test", own, &rank->err);
    if (reshard_comm_barrier(rank->comm, &after))
        rank->status = RESHARD_ERR_IO;
}

TEST(ranks_agree_about_the_first_failure)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 20, NULL, rank_agrees, ranks);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, RESHARD_ERR_FORMAT);
        assert_string_equal(ranks[i].err.message, "rank 2: tensor 'w2' is odd");
        assert_string_equal(ranks[i].err.object, "w");
        assert_string_equal(ranks[i].err.hint, "make it even");
        assert_int_equal(ranks[i].err.offset, 17);
    }
}

static void check_others(const struct test_rank *ranks, int culprit, reshard_status status, const char *text)
{
    for (int i = 0; i < RANKS; i++) {
        if (i == culprit)
            continue;
        assert_int_equal(ranks[i].status, status);
        if (!strstr(ranks[i].err.message, text))
            fail_msg("rank %d: '%s' lacks '%s'", i, ranks[i].err.message, text);
    }
}

static void rank_comes_late(struct test_rank *rank)
{
    reshard_error again = RESHARD_ERROR_INIT;
    if (rank->rank == 3)
        usleep((useconds_t)(LATE_SECONDS * 3e6));
    rank->status = reshard_comm_barrier(rank->comm, &rank->err);
    assert_int_equal(reshard_comm_barrier(rank->comm, &again), rank->status);
    assert_string_equal(again.message, rank->err.message);
}

TEST(a_late_rank_is_named_and_the_group_stays_broken)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, LATE_SECONDS, NULL, rank_comes_late, ranks);
    check_others(ranks, -1, RESHARD_ERR_IO, "rank 3 did not come within 2 s");
}

static void rank_leaves(struct test_rank *rank)
{
    if (rank->rank == 1) {
        reshard_comm_free(rank->comm);
        rank->comm = NULL;
    } else {
        rank->status = reshard_comm_barrier(rank->comm, &rank->err);
    }
}

static int stop_at_third(void *context)
{
    int *count = context;
    return ++*count == 3;
}

TEST(a_rank_waits_as_long_as_it_says_so)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *ends[2];
    int count = 0;
    options.timeout_seconds = 60;
    options.waiting = stop_at_third;
    options.context = &count;
    CHECK_OK(reshard_comm_threads(2, &options, ends, &err));
    CHECK_FAILS(reshard_comm_barrier(ends[0], &err), RESHARD_ERR_CANCELLED);
    assert_int_equal(count, 3);
    CHECK_FAILS(reshard_comm_barrier(ends[1], &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "rank 0 waits no longer"));
    reshard_comm_free(ends[0]);
    reshard_comm_free(ends[1]);
    for (int64_t rank = 0; rank < 2; rank++) { /* of processes, which have not come */
        count = 0;
        CHECK_FAILS(reshard_comm_processes("test-waits", rank, 2, &options, &ends[0], &err), RESHARD_ERR_CANCELLED);
    }
}

TEST(a_rank_that_leaves_is_named_at_once)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 60, NULL, rank_leaves, ranks);
    check_others(ranks, 1, RESHARD_ERR_IO, "rank 1 has left");
}

static void rank_gives_up(struct test_rank *rank)
{
    if (rank->rank == 0)
        reshard_comm_abort(rank->comm, "out of coffee");
    rank->status = reshard_comm_barrier(rank->comm, &rank->err);
}

TEST(a_rank_that_gives_up_says_why)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 60, NULL, rank_gives_up, ranks);
    check_others(ranks, -1, RESHARD_ERR_IO, "rank 0: out of coffee");
}

static void rank_does_something_else(struct test_rank *rank)
{
    rank->status = comm_agree(rank->comm->inner, rank->rank == 4 ? "save" : "load", RESHARD_OK, &rank->err);
}

TEST(a_rank_in_another_call_is_named)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 60, NULL, rank_does_something_else, ranks);
    check_others(ranks, 4, RESHARD_ERR_USAGE, "rank 4 is save");
}

static void rank_sends_less(struct test_rank *rank)
{
    uint8_t bytes[16] = { 0 };
    struct comm *comm = rank->comm->inner;
    if (rank->rank == 0)
        rank->status = comm_send(comm, 1, bytes, 8, &rank->err);
    if (rank->rank == 1)
        rank->status = comm_recv(comm, 0, bytes, 16, &rank->err);
    if (rank->rank > 1)
        rank->status = comm_recv(comm, 1, bytes, 16, &rank->err);
    if (!rank->status)
        rank->status = comm_run(comm, "test", &rank->err);
}

TEST(messages_of_unequal_sizes_are_refused)
{
    struct test_rank ranks[RANKS];
    test_ranks(RANKS, 60, NULL, rank_sends_less, ranks);
    check_others(ranks, -1, RESHARD_ERR_IO, "rank 0 sends 8 bytes, rank 1 expects 16");
}

/* ---- callbacks: a group of one whose transport misbehaves ---- */

struct misbehaviour {
    int fails, lies, is_without_memory, is_released, is_aborted;
    char reason[64]; /* of abort */
};

static int gather_alone(const void *bytes, size_t size, void **all, size_t *sizes, void *context)
{
    const struct misbehaviour *how = context;
    *all = how->is_without_memory ? NULL : malloc(size + 1);
    if (*all)
        memcpy(*all, bytes, size);
    sizes[0] = how->lies == 1 ? size * 2 : size;
    if (*all && how->lies == 2)
        memset(*all, 0, size);
    return how->fails;
}

static int submit_none(int64_t rank, const void *bytes, size_t size, void *context)
{
    (void)rank, (void)bytes, (void)size;
    return ((struct misbehaviour *)context)->fails;
}

static int submit_no_recv(int64_t rank, void *bytes, size_t size, void *context)
{
    return submit_none(rank, bytes, size, context);
}

static int run_none(void *context)
{
    return ((struct misbehaviour *)context)->fails;
}

static void note_abort(const char *reason, void *context)
{
    struct misbehaviour *how = context;
    how->is_aborted = 1;
    snprintf(how->reason, sizeof(how->reason), "%s", reason);
}

static void note_release(void *context)
{
    ((struct misbehaviour *)context)->is_released = 1;
}

/* A group of one rank over such callbacks. */
static reshard_comm *comm_alone(struct misbehaviour *how, void (*tell)(const char *reason, void *context))
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    reshard_comm *comm;
    callbacks.size = 1;
    callbacks.all_gather = gather_alone;
    callbacks.submit_send = submit_none;
    callbacks.submit_recv = submit_no_recv;
    callbacks.run = run_none;
    callbacks.abort = tell;
    callbacks.release = note_release;
    callbacks.context = how;
    CHECK_OK(reshard_comm_new(&callbacks, NULL, &comm, &err));
    return comm;
}

static void check_misbehaviour(struct misbehaviour how, const char *text)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm = comm_alone(&how, note_abort);
    reshard_status status = reshard_comm_barrier(comm, &err);
    assert_int_equal(status, text ? RESHARD_ERR_IO : RESHARD_OK);
    if (text && !strstr(err.message, text))
        fail_msg("'%s' lacks '%s'", err.message, text);
    assert_int_equal(how.is_aborted, text != NULL);
    reshard_comm_free(comm);
    assert_int_equal(how.is_released, 1);
}

TEST(callbacks_that_fail_or_lie_are_named)
{
    check_misbehaviour((struct misbehaviour){ 0 }, NULL);
    check_misbehaviour((struct misbehaviour){ .fails = 7 }, "all_gather of the transport failed on rank 0 with 7");
    check_misbehaviour((struct misbehaviour){ .lies = 1 }, "of its own");
    check_misbehaviour((struct misbehaviour){ .lies = 2 }, "is no message of a rank");
    check_misbehaviour((struct misbehaviour){ .is_without_memory = 1 }, "gave no memory");
}

/* Whatever the host makes of it. */
TEST(a_rank_over_callbacks_that_gives_up_goes_no_further)
{
    struct misbehaviour none = { 0 };
    for (int is_told = 0; is_told < 2; is_told++) {
        reshard_error err = RESHARD_ERROR_INIT;
        reshard_comm *comm = comm_alone(&none, is_told ? note_abort : NULL);
        CHECK_OK(reshard_comm_barrier(comm, &err));
        reshard_comm_abort(comm, "cannot go on");
        for (int i = 0; i < 2; i++) {
            CHECK_FAILS(reshard_comm_barrier(comm, &err), RESHARD_ERR_IO);
            assert_string_equal(err.message, "rank 0: cannot go on");
        }
        CHECK_FAILS(reshard_comm_agree(comm, RESHARD_OK, &err), RESHARD_ERR_IO);
        reshard_comm_free(comm);
    }
    assert_string_equal(none.reason, "rank 0: cannot go on");
}

TEST(arguments_are_checked)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_callbacks callbacks = RESHARD_COMM_CALLBACKS_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    CHECK_FAILS(reshard_comm_new(&callbacks, NULL, &comm, &err), RESHARD_ERR_USAGE);
    assert_null(comm);
    CHECK_FAILS(reshard_comm_threads(0, NULL, &comm, &err), RESHARD_ERR_USAGE);
    options.timeout_seconds = -1;
    CHECK_FAILS(reshard_comm_threads(1, &options, &comm, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_comm_size(NULL), 0);
    reshard_comm_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive),
        cmocka_unit_test(all_ranks_gather),
        cmocka_unit_test(ranks_agree_about_the_first_failure),
        cmocka_unit_test(a_late_rank_is_named_and_the_group_stays_broken),
        cmocka_unit_test(a_rank_waits_as_long_as_it_says_so),
        cmocka_unit_test(a_rank_that_leaves_is_named_at_once),
        cmocka_unit_test(a_rank_that_gives_up_says_why),
        cmocka_unit_test(a_rank_in_another_call_is_named),
        cmocka_unit_test(messages_of_unequal_sizes_are_refused),
        cmocka_unit_test(callbacks_that_fail_or_lie_are_named),
        cmocka_unit_test(a_rank_over_callbacks_that_gives_up_goes_no_further),
        cmocka_unit_test(arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
