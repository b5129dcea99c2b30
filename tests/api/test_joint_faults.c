/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a save or a load of three processes over shared memory when one of them is killed before any of its calls to the others
 * or to the disk: the others end, and their error names it; what is at the target is the old checkpoint or the new one, whole; nothing
 * else is visible; and the next save works and leaves nothing beside the target. And of a rank that was given up and goes on later.
 */
#include "check.h"

#include "api/held.h"
#include "comm/comm.h"
#include "fail_malloc.h"
#include "store/store.h"
#include "test_folder.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 3
#define MOMENTS_MAX 1000
#define TIMEOUT 20.0
#define LATE_TIMEOUT 2.0 /* of one that stopped: the others must not seem to have, on a machine that others keep busy */

static reshard_error err;
static char target[64];

/* ---- a moment at which something happens to this process ---- */

static long moments_left; /* 0: never */
static int moment_signal;
static bool moment_is_behind; /* the call, and not before it */

static bool moment_is_now(void)
{
    return moments_left && --moments_left == 0;
}

static void moment(bool is_one)
{
    if (is_one)
        raise(moment_signal);
}

/* The linker gives the wrapped functions these names. */
#define WRAP(type, name, parameters, arguments)  \
    type __real_##name parameters;               \
    type __wrap_##name parameters;               \
    type __wrap_##name parameters                \
    {                                            \
        bool is_now = moment_is_now();           \
        moment(is_now && !moment_is_behind);     \
        type result = __real_##name arguments;   \
        moment(is_now && moment_is_behind);      \
        return result;                           \
    }

WRAP(reshard_status, comm_all_gather,
     (struct comm *comm, const char *call, const void *bytes, size_t size, struct comm_gathered *out, reshard_error *error),
     (comm, call, bytes, size, out, error))
WRAP(reshard_status, comm_agree, (struct comm *comm, const char *call, reshard_status status, reshard_error *error),
     (comm, call, status, error))
WRAP(reshard_status, comm_run, (struct comm *comm, const char *call, reshard_error *error), (comm, call, error))
WRAP(ssize_t, pwrite64, (int fd, const void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))
WRAP(int, ftruncate64, (int fd, off_t size), (fd, size))
WRAP(int, fdatasync, (int fd), (fd))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
WRAP(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
WRAP(int, renameat2, (int from, const char *old, int to, const char *path, unsigned flags), (from, old, to, path, flags))
WRAP(ssize_t, pread64, (int fd, void *bytes, size_t size, off_t offset), (fd, bytes, size, offset))

/* ---- ranks as processes ---- */

struct job {
    const char *format;
    int (*work)(reshard_comm *comm, int rank, const struct job *job);
    float more;         /* what is saved, or loaded */
    double timeout;
    int victim;         /* a rank; -1: none */
    int signal;         /* that it gets */
    long at;            /* its moment, from 1 */
    bool is_behind;     /* the call that is this moment, and not before it */
};

enum { WENT_WELL = 0, WAS_TOLD = 1 /* of the victim */, WENT_ASTRAY = 2, WAS_HELD_UP = 3 /* by one that tries for its lock */ };

static void ranks_start(const struct job *job, pid_t *ids)
{
    static int number;
    char group[64];
    snprintf(group, sizeof(group), "joint-%d-%d", (int)getpid(), number++);
    fflush(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        ids[rank] = fork();
        assert_true(ids[rank] >= 0);
        if (ids[rank])
            continue;
        reshard_error own = RESHARD_ERROR_INIT;
        reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
        reshard_comm *comm;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also of one that is stopped */
        options.timeout_seconds = job->timeout;
        if (reshard_comm_processes(group, rank, RANKS, &options, &comm, &own)) {
            fprintf(stderr, "rank %d: %s\n", rank, own.message);
            _exit(WENT_ASTRAY);
        }
        if (rank == job->victim) {
            moments_left = job->at;
            moment_signal = job->signal;
            moment_is_behind = job->is_behind;
        }
        int result = job->work(comm, rank, job);
        moments_left = 0;
        reshard_comm_free(comm);
        exit(result); /* not _exit: lines that ran are counted */
    }
}

static int rank_await(pid_t id)
{
    int status;
    assert_int_equal(waitpid(id, &status, 0), id);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static void ranks_run(const struct job *job, int *results)
{
    pid_t ids[RANKS];
    ranks_start(job, ids);
    for (int rank = 0; rank < RANKS; rank++)
        results[rank] = rank_await(ids[rank]);
}

/* What a rank says of how its call ended. */
static int outcome(int rank, const struct job *job, reshard_status status, const reshard_error *said)
{
    char expected[64];
    if (!status)
        return WENT_WELL;
    snprintf(expected, sizeof(expected), job->signal == SIGKILL ? "rank %d has died" : "rank %d did not come within", job->victim);
    if (job->victim >= 0 && rank != job->victim && strstr(said->message, expected))
        return WAS_TOLD;
    if (job->signal == SIGSTOP && rank != job->victim && strstr(said->message, "did not come within"))
        return WAS_HELD_UP;
    if (rank != job->victim && !strstr(said->message, "another run is writing this target"))
        fprintf(stderr, "moment %ld of rank %d, rank %d: status %d: %s\n", job->at, job->victim, rank, (int)status, said->message);
    return WENT_ASTRAY;
}

static int saves(reshard_comm *comm, int rank, const struct job *job)
{
    struct held *held = held_new(rank, RANKS);
    reshard_error own = RESHARD_ERROR_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    held->more = job->more;
    held_walk(held, rank, RANKS, true);
    convert.to = job->format;
    convert.overwrite = 1;
    options.convert = &convert;
    reshard_status status = reshard_save(comm, target, held->sharded, &options, NULL, &own);
    held_free(held);
    return outcome(rank, job, status, &own);
}

static int loads(reshard_comm *comm, int rank, const struct job *job)
{
    struct held *held = held_new(rank, RANKS);
    reshard_error own = RESHARD_ERROR_INIT;
    reshard_sharded *result = NULL;
    held->more = job->more;
    reshard_status status = reshard_load(comm, target, held->sharded, NULL, NULL, &result, &own);
    int wrong = status ? 0 : held_walk(held, rank, RANKS, false);
    reshard_sharded_free(result);
    held_free(held);
    return wrong ? WENT_ASTRAY : outcome(rank, job, status, &own);
}

/* ---- what is there ---- */

/* Whether the target has all values of a time, and nothing else is in sight; beside: nor out of sight. */
static bool target_is(float more, bool beside)
{
    struct held *held = held_new(0, 1);
    reshard_sharded *tensors;
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    DIR *stream = opendir(test_folder);
    bool is_clean = true;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));)
        is_clean &= strcmp(entry->d_name, "target") == 0 || (entry->d_name[0] == '.' && (!beside || strlen(entry->d_name) < 3));
    closedir(stream);
    assert_int_equal(reshard_sharded_new(&tensors, NULL), RESHARD_OK);
    for (size_t i = 0; i < reshard_sharded_count(held->sharded); i++) {
        reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
        reshard_sharded_at(held->sharded, i, &tensor);
        CHECK_OK(reshard_sharded_add(tensors, &tensor, &err));
    }
    options.strict = RESHARD_STRICT_IGNORE_ALL;
    held->more = more;
    CHECK_OK(reshard_load(NULL, target, tensors, &options, NULL, NULL, &err));
    int wrong = held_walk(held, 0, 1, false);
    reshard_sharded_free(tensors);
    held_free(held);
    return is_clean && !wrong;
}

static void must_save(const char *format, float more)
{
    const struct job job = { .format = format, .work = saves, .more = more, .timeout = TIMEOUT, .victim = -1 };
    int results[RANKS];
    ranks_run(&job, results);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(results[rank], WENT_WELL);
    assert_true(target_is(more, true));
}

static void target_clear(void)
{
    assert_int_equal(test_tree_remove(target), 0);
}

/* ---- killed at every moment ---- */

/* Every `step`-th moment of a rank; how many there are, or more. Of a rank that is killed behind its last word the others need not hear. */
static long killed_saves(const char *format, int victim, long step)
{
    struct job job = { .format = format, .work = saves, .timeout = TIMEOUT, .victim = victim, .signal = SIGKILL };
    float there = 100000;
    must_save(format, there);
    for (job.at = 1; job.at < MOMENTS_MAX; job.at += step) {
        int results[RANKS], told = 0;
        job.more = there + 10000;
        ranks_run(&job, results);
        for (int rank = 0; rank < RANKS; rank++) {
            if (rank != victim && results[rank] != WENT_WELL && results[rank] != WAS_TOLD)
                fail_msg("%s: moment %ld of rank %d: rank %d ended with %d", format, job.at, victim, rank, results[rank]);
            told += results[rank] == WAS_TOLD;
        }
        assert_true(told == 0 || told == RANKS - 1);
        bool is_new = target_is(job.more, false);
        if (!is_new && (!told || !target_is(there, false)))
            fail_msg("%s: moment %ld of rank %d: what is there is neither the old nor the new checkpoint", format, job.at, victim);
        there = is_new ? job.more : there;
        if (results[victim] == WENT_WELL)
            return job.at;
        if (job.at % 3 == 0)
            must_save(format, there += 10000);
    }
    fail_msg("a save has more than %d moments", MOMENTS_MAX);
    return 0;
}

TEST(a_rank_killed_in_a_save_leaves_the_old_checkpoint_or_the_new)
{
    static const struct {
        const char *format;
        int victim;
        long step;
    } cases[] = { { "torch-dcp", 0, 1 }, { "torch-dcp", 2, 1 }, { "hf", 0, 3 }, { "hf", 1, 1 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        long moments = killed_saves(cases[i].format, cases[i].victim, cases[i].step * (long)fail_stride());
        assert_true(moments > 8);
        target_clear();
    }
}

TEST(a_rank_killed_in_a_load_is_named)
{
    must_save("torch-dcp", 0);
    for (int victim = 0; victim < RANKS; victim += 2) {
        struct job job = { .work = loads, .timeout = TIMEOUT, .victim = victim, .signal = SIGKILL };
        int results[RANKS] = { 0 };
        for (job.at = 1; job.at < MOMENTS_MAX; job.at += (long)fail_stride()) {
            ranks_run(&job, results);
            for (int rank = 0; rank < RANKS; rank++)
                if (rank != victim && results[rank] != WENT_WELL && results[rank] != WAS_TOLD)
                    fail_msg("moment %ld of rank %d: rank %d ended with %d", job.at, victim, rank, results[rank]);
            if (results[victim] == WENT_WELL)
                break;
        }
        assert_in_range(job.at, 6, MOMENTS_MAX - 1);
    }
    assert_true(target_is(0, true));
    target_clear();
}

/* ---- given up, and back again ---- */

static bool is_asleep_or_gone(pid_t pid)
{
    char path[64], text[512], *end = NULL;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file && fgets(text, sizeof(text), file))
        end = strrchr(text, ')');
    if (file)
        fclose(file);
    return !end || end[2] == 'S' || end[2] == 'Z';
}

/* Until ranks 0 and 2 have done what they can without the others: a busy machine takes its time. */
static void await_rest(const pid_t *ranks)
{
    for (int polls = 0, asleep = 0; polls < 1000 && asleep < 10; polls++) {
        usleep(10000);
        asleep = is_asleep_or_gone(ranks[0]) && is_asleep_or_gone(ranks[2]) ? asleep + 1 : 0;
    }
}

/* A rank of one save stops at a moment, is given up, and wakes up in the middle of the next save, of which a rank waits for that. Where the
 * one that stops has the lock of what lies beside the target, another that tries for it is who does not come to the third. */
static bool late_rank_case(long at, bool is_behind, int *told)
{
    const struct job first = { "torch-dcp", saves, 10000, LATE_TIMEOUT, 2, SIGSTOP, at, is_behind };
    pid_t late[RANKS], next[RANKS];
    int status;
    must_save("torch-dcp", 0);
    ranks_start(&first, late);
    for (int rank = 0; rank < 2; rank++) {
        int result = rank_await(late[rank]);
        assert_true(result == WAS_TOLD || result == WAS_HELD_UP);
        *told += result == WAS_TOLD;
    }
    assert_true(target_is(0, false));
    const struct job second = { "torch-dcp", saves, 20000, TIMEOUT, 1, SIGSTOP, at, is_behind };
    ranks_start(&second, next);
    pid_t changed = waitpid(next[1], &status, WUNTRACED);
    assert_int_equal(changed, next[1]);
    bool has_lock = WIFEXITED(status); /* the late rank holds the lock on what lies beside the target: the save is refused */
    await_rest(next); /* the others of the second save write meanwhile */
    kill(late[2], SIGCONT);
    assert_int_equal(rank_await(late[2]), WENT_ASTRAY);
    if (!has_lock)
        kill(next[1], SIGCONT);
    for (int rank = 0; rank < RANKS; rank++)
        if (rank != 1 || !has_lock)
            assert_int_equal(rank_await(next[rank]), has_lock ? WENT_ASTRAY : WENT_WELL);
    assert_true(target_is(has_lock ? 0 : 20000, false));
    target_clear();
    return has_lock;
}

TEST(a_rank_that_was_given_up_harms_no_later_save)
{
    int refused = 0, told = 0;
    for (long at = 1; at <= 10; at++)
        refused += late_rank_case(at, false, &told);
    assert_in_range(refused, 1, 9);
    assert_in_range(told, 12, 20);
    for (long at = 5; at <= 7; at++) /* it has heard that all are ready, and opens next what lies beside the target */
        late_rank_case(at, true, &told);
}

static int made(void **state)
{
    if (test_folder_make(state))
        return -1;
    snprintf(target, sizeof(target), "%s/target", test_folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_in_a_save_leaves_the_old_checkpoint_or_the_new),
        cmocka_unit_test(a_rank_killed_in_a_load_is_named),
        cmocka_unit_test(a_rank_that_was_given_up_harms_no_later_save),
    };
    return cmocka_run_group_tests_name("joint_faults", tests, made, test_folder_remove);
}
