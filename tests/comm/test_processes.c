/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes over shared memory: random layouts against the naive model, and what becomes of the others when a process is killed, is late,
 * or leaves; that no segment is left; and that what is not this user's is refused.
 */
#include "check.h"

#include "comm/layouts.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CASES 150

static char group[64];

static char *segment_name(void)
{
    static char name[128];
    snprintf(name, sizeof(name), "/reshard-%u-%s", (unsigned)geteuid(), group);
    return name;
}

static int segment_is_left(void)
{
    int fd = shm_open(segment_name(), O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

typedef int (*process_run)(reshard_comm *comm, int rank, int size);

/* Runs a function as every rank, in processes of their own: by rank, what it returned, or 256 and more if it was killed. */
static void processes_run_all(int size, double timeout_seconds, process_run run, int *results)
{
    pid_t ids[LAYOUT_RANKS_MAX];
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        ids[rank] = fork();
        if (ids[rank])
            continue;
        reshard_error err = RESHARD_ERROR_INIT;
        reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
        reshard_comm *comm;
        options.timeout_seconds = timeout_seconds;
        if (reshard_comm_processes(group, rank, size, &options, &comm, &err)) {
            fprintf(stderr, "rank %d: %s\n", rank, err.message);
            _exit(99);
        }
        int result = run(comm, rank, size);
        reshard_comm_free(comm);
        _exit(result);
    }
    for (int rank = 0; rank < size; rank++) {
        int status;
        waitpid(ids[rank], &status, 0);
        results[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    }
    assert_false(segment_is_left());
}

static int process_redistributes(reshard_comm *comm, int rank, int size)
{
    static struct layouts layouts;
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct layout_rank own;
        reshard_error err = RESHARD_ERROR_INIT;
        reshard_redistribute_options options = RESHARD_REDISTRIBUTE_OPTIONS_INIT;
        reshard_redistribute_report report = RESHARD_REDISTRIBUTE_REPORT_INIT;
        layouts_make(&layouts, seed * 31, size);
        options.scratch_bytes = UINT64_C(1) << seed % 20;
        reshard_status status = layout_rank_make(&layouts, rank, &own, &err);
        if (!status)
            status = reshard_redistribute(comm, own.source, own.target, &options, &report, &err);
        int is_good = !status && layout_rank_is_good(&layouts, &own) && report.bytes_moved == layouts_minimum(&layouts);
        if (!is_good)
            fprintf(stderr, "seed %d, rank %d: %s\n", (int)seed, rank, err.message);
        layout_rank_release(&own);
        if (!is_good)
            return 1;
    }
    return 0;
}

TEST(random_layouts_over_processes)
{
    int results[LAYOUT_RANKS_MAX];
    for (int size = 1; size <= 5; size += 2) {
        processes_run_all(size, 30, process_redistributes, results);
        for (int rank = 0; rank < size; rank++)
            assert_int_equal(results[rank], 0);
    }
}

/* 0 if the group broke as it should have. */
static int process_expects(reshard_comm *comm, const char *text)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_comm_barrier(comm, &err);
    if (status == RESHARD_ERR_IO && strstr(err.message, text))
        return 0;
    fprintf(stderr, "status %d: '%s' lacks '%s'\n", (int)status, err.message, text);
    return 1;
}

static int process_is_killed(reshard_comm *comm, int rank, int size)
{
    if (rank == size - 1)
        raise(SIGKILL);
    return process_expects(comm, "rank 2 has died");
}

static int process_leaves(reshard_comm *comm, int rank, int size)
{
    return rank == size - 1 ? 0 : process_expects(comm, "rank 2 has left");
}

static int process_is_late(reshard_comm *comm, int rank, int size)
{
    if (rank == size - 1)
        usleep(1500000);
    return process_expects(comm, "rank 2 did not come within 0.5 s");
}

TEST(a_rank_that_goes_is_named_and_nothing_is_left)
{
    static const process_run faults[] = { process_is_killed, process_leaves, process_is_late };
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        int results[LAYOUT_RANKS_MAX];
        processes_run_all(3, i == 2 ? 0.5 : 20, faults[i], results);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(results[rank], i == 0 && rank == 2 ? 256 + SIGKILL : 0);
    }
}

static int process_does_nothing(reshard_comm *comm, int rank, int size)
{
    (void)comm, (void)rank, (void)size;
    return 0;
}

TEST(what_a_crash_left_is_taken_over)
{
    int results[LAYOUT_RANKS_MAX], fd = shm_open(segment_name(), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
    close(fd);
    processes_run_all(3, 20, process_does_nothing, results);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(results[rank], 0);
}

TEST(what_others_may_open_is_refused)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm *comm;
    int fd = shm_open(segment_name(), O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && fchmod(fd, 0666) == 0);
    CHECK_FAILS(reshard_comm_processes(group, 0, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "mode 666"));
    CHECK_FAILS(reshard_comm_processes(group, 1, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
    if (geteuid() == 0) {
        assert_true(fchmod(fd, 0600) == 0 && fchown(fd, 12345, 12345) == 0);
        CHECK_FAILS(reshard_comm_processes(group, 0, 2, NULL, &comm, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "user 12345"));
    }
    assert_true(segment_is_left());
    close(fd);
    shm_unlink(segment_name());
}

TEST(a_rank_that_never_comes_is_named)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    reshard_comm *comm;
    options.timeout_seconds = 0.2;
    CHECK_FAILS(reshard_comm_processes(group, 0, 2, &options, &comm, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "rank 1 did not come"));
    assert_false(segment_is_left());
    CHECK_FAILS(reshard_comm_processes(group, 1, 2, &options, &comm, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "rank 0 did not come"));
    CHECK_FAILS(reshard_comm_processes("a/b", 0, 2, &options, &comm, &err), RESHARD_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_layouts_over_processes),
        cmocka_unit_test(a_rank_that_goes_is_named_and_nothing_is_left),
        cmocka_unit_test(what_a_crash_left_is_taken_over),
        cmocka_unit_test(what_others_may_open_is_refused),
        cmocka_unit_test(a_rank_that_never_comes_is_named),
    };
    snprintf(group, sizeof(group), "test-%d", (int)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
