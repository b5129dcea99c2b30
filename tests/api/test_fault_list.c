/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can go wrong with one rank of three, which are processes here, in each call that they make together: it dies, comes late, says
 * another layout, passes what overlaps with another's, has a callback that fails or that never returns. Every other rank gets an error
 * that names it, and the tensor where one is concerned, within the timeout; what was at the target is there; no memory is left.
 */
#include "check.h"

#include "reshard/async.h"
#include "test_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define VICTIM 1
#define ROWS 6
#define COLUMNS 4
#define TIMEOUT 5.0
#define SLACK 20.0 /* a machine that has other things to do */

enum call { CALL_SAVE, CALL_LOAD, CALL_RESHARD, CALL_BACKGROUND, CALLS };
enum fault { FAULT_DIES, FAULT_LATE, FAULT_DISAGREES, FAULT_OVERLAPS, FAULT_CALLBACK_FAILS, FAULT_CALLBACK_STAYS, FAULTS };

static const char *const call_names[] = { "save", "load", "reshard", "background save" };
static const char *const fault_names[] = { "dies", "late", "disagrees", "overlaps", "callback fails", "callback never returns" };

/* How a rank's call ended: in memory of all processes. */
struct outcome {
    reshard_status status;
    double seconds;
    bool is_there;
    char message[1024];
};

static struct outcome (*outcomes)[FAULTS][RANKS];
static reshard_error err;

struct place {
    enum call call;
    enum fault fault;
    int64_t rank;
    reshard_comm *comm;
    char path[100];
    float values[ROWS * COLUMNS];
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool is_victim(const struct place *place, enum fault fault)
{
    return place->rank == VICTIM && place->fault == fault;
}

/* ---- what a rank has ---- */

static int part_build(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context)
{
    const struct place *place = context;
    reshard_sharded_tensor tensor = *whole;
    while (is_victim(place, FAULT_CALLBACK_STAYS))
        pause();
    if (is_victim(place, FAULT_CALLBACK_FAILS))
        return 1;
    tensor.key = (reshard_str){ "part", 4 };
    return reshard_sharded_add_offsets(parts, &tensor, &(reshard_rank_offset){ 0, place->rank, RANKS }, sizeof(reshard_rank_offset), 1,
                                       NULL) != RESHARD_OK;
}

static reshard_sharded *state_new(struct place *place)
{
    static const int64_t local[] = { ROWS / RANKS, COLUMNS }, other[] = { ROWS / RANKS, COLUMNS + 1 };
    static float part[ROWS];
    reshard_sharded *state;
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_sharded_factory factory = RESHARD_SHARDED_FACTORY_INIT;
    const reshard_rank_offset at = { 0, is_victim(place, FAULT_OVERLAPS) ? 0 : place->rank, RANKS };
    CHECK_OK(reshard_sharded_new(&state, &err));
    tensor.key = (reshard_str){ "w", 1 };
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = is_victim(place, FAULT_DISAGREES) ? other : local;
    tensor.data = place->values;
    CHECK_OK(reshard_sharded_add_offsets(state, &tensor, &at, sizeof(at), 1, &err));
    tensor.key = (reshard_str){ "fused", 5 };
    tensor.local_shape = local;
    tensor.rank = 1;
    tensor.data = part;
    factory.whole = &tensor;
    factory.build = part_build;
    factory.context = place;
    CHECK_OK(reshard_sharded_add_factory(state, &factory, &err));
    return state;
}

static void shard_add(reshard_shards *list, float *values, int64_t columns, int64_t first, int64_t rows)
{
    const int64_t shape[] = { ROWS, columns }, start[] = { first, 0 }, extent[] = { rows, columns };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ "w", 1 };
    shard.dtype = "F32";
    shard.rank = 2;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = values;
    CHECK_OK(reshard_shards_add(list, &shard, &err));
}

/* ---- the calls ---- */

static reshard_status call_save(struct place *place, reshard_error *own)
{
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded *state = state_new(place);
    convert.to = "torch-dcp";
    convert.overwrite = 1;
    options.convert = &convert;
    reshard_status status = reshard_save(place->comm, place->path, state, &options, NULL, own);
    reshard_sharded_free(state);
    return status;
}

static reshard_status call_load(struct place *place, reshard_error *own)
{
    reshard_sharded *state = state_new(place);
    reshard_status status = reshard_load(place->comm, place->path, state, NULL, NULL, NULL, own);
    reshard_sharded_free(state);
    return status;
}

/* Rows become a copy of the whole on each rank. */
static reshard_status call_reshard(struct place *place, reshard_error *own)
{
    float whole[ROWS * (COLUMNS + 1)];
    reshard_shards *source, *target;
    const int64_t rows = ROWS / RANKS, first = rows * place->rank - (is_victim(place, FAULT_OVERLAPS) ? 1 : 0);
    CHECK_OK(reshard_shards_new(&source, &err));
    CHECK_OK(reshard_shards_new(&target, &err));
    shard_add(source, place->values, is_victim(place, FAULT_DISAGREES) ? COLUMNS + 1 : COLUMNS, first, rows);
    shard_add(target, whole, COLUMNS, 0, ROWS);
    reshard_status status = reshard_redistribute(place->comm, source, target, NULL, NULL, own);
    reshard_shards_free(source);
    reshard_shards_free(target);
    return status;
}

static reshard_status call_background(struct place *place, reshard_error *own)
{
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    reshard_saver *saver;
    reshard_sharded *state = state_new(place);
    convert.to = "torch-dcp";
    convert.overwrite = 1;
    options.comm = place->comm;
    request.path = place->path;
    request.options = &convert;
    request.sharded = state;
    CHECK_OK(reshard_saver_open(&options, &saver, &err));
    reshard_status status = reshard_saver_save(saver, &request, NULL, own);
    if (status) /* a rank that cannot begin says so, and keeps no other waiting */
        reshard_comm_abort(place->comm, own->message);
    else
        status = reshard_saver_wait(saver, -1, own);
    reshard_saver_close(saver, NULL);
    reshard_sharded_free(state);
    return status;
}

static reshard_status (*const calls[])(struct place *place, reshard_error *own) = { call_save, call_load, call_reshard, call_background };

/* ---- ranks ---- */

static void rank_run(struct place *place)
{
    reshard_error own = RESHARD_ERROR_INIT;
    reshard_comm_options options = RESHARD_COMM_OPTIONS_INIT;
    char group[64];
    struct outcome *out = &outcomes[place->call][place->fault][place->rank];
    snprintf(group, sizeof(group), "faults-%d-%d-%d", (int)getppid(), place->call, place->fault);
    options.timeout_seconds = SLACK; /* until all have come */
    if (reshard_comm_processes(group, place->rank, RANKS, &options, &place->comm, &own))
        _exit(1);
    reshard_comm_free(place->comm);
    options.timeout_seconds = TIMEOUT;
    strcat(group, "-run");
    if (reshard_comm_processes(group, place->rank, RANKS, &options, &place->comm, &own))
        _exit(1);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        place->values[i] = 2;
    if (is_victim(place, FAULT_DIES))
        raise(SIGKILL);
    if (is_victim(place, FAULT_LATE))
        sleep((unsigned)TIMEOUT + 3);
    const double begun = seconds_now();
    out->status = calls[place->call](place, &own);
    out->seconds = seconds_now() - begun;
    snprintf(out->message, sizeof(out->message), "%s", own.message);
    out->is_there = true;
    reshard_comm_free(place->comm);
    _exit(0);
}

static bool has_callback(enum call call)
{
    return call != CALL_RESHARD;
}

static struct place place_of(int call, int fault, int64_t rank)
{
    struct place place = { .call = (enum call)call, .fault = (enum fault)fault, .rank = rank };
    snprintf(place.path, sizeof(place.path), "%s/%d-%d", test_folder, call, fault);
    return place;
}

/* Each case has a checkpoint of ones at its place. */
static void old_save(struct place *place)
{
    static float part[ROWS];
    static const int64_t whole[] = { ROWS, COLUMNS };
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_sharded *state;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        place->values[i] = 1;
    CHECK_OK(reshard_sharded_new(&state, &err));
    tensor.key = (reshard_str){ "w", 1 };
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = whole;
    tensor.data = place->values;
    CHECK_OK(reshard_sharded_add_offsets(state, &tensor, NULL, sizeof(reshard_rank_offset), 0, &err));
    tensor.key = (reshard_str){ "part", 4 };
    tensor.rank = 1;
    tensor.data = part;
    CHECK_OK(reshard_sharded_add_offsets(state, &tensor, NULL, sizeof(reshard_rank_offset), 0, &err));
    convert.to = "torch-dcp";
    convert.overwrite = 1;
    options.convert = &convert;
    CHECK_OK(reshard_save(NULL, place->path, state, &options, NULL, &err));
    reshard_sharded_free(state);
}

static bool old_is_there(const struct place *place)
{
    float values[ROWS * COLUMNS];
    reshard_checkpoint *checkpoint;
    CHECK_OK(reshard_open(place->path, NULL, &checkpoint, &err));
    const int64_t tensor = reshard_tensor_find(checkpoint, "w", 1);
    assert_true(tensor >= 0);
    CHECK_OK(reshard_read_into(checkpoint, (size_t)tensor, NULL, NULL, NULL, values, sizeof(values), &err));
    reshard_close(checkpoint);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        if (values[i] != 1)
            return false;
    return true;
}

/* ---- what must be said ---- */

static const char *const said[FAULTS][2] = {
    { "rank 1 has died", "" },
    { "rank 1 did not come within 5 s", "" },
    { "rank 1", "'w'" },
    { "ranks 0 and 1 have main copies", "'w'" },
    { "rank 1", "'fused'" },
    { "rank 1 did not come within 5 s", "" },
};

static void outcome_check(int call, int fault, int rank)
{
    const struct outcome *out = &outcomes[call][fault][rank];
    const bool waits = fault == FAULT_LATE || fault == FAULT_CALLBACK_STAYS;
    const char *who = fault == FAULT_OVERLAPS && call == CALL_RESHARD ? "in 'rank 1, shard" : said[fault][0];
    if (!out->is_there || !out->status || !strstr(out->message, who) || !strstr(out->message, said[fault][1]))
        fail_msg("%s, %s, rank %d: %s, status %d '%s'", call_names[call], fault_names[fault], rank, out->is_there ? "ended" : "did not end",
                 out->status, out->message);
    if (out->seconds > (waits ? TIMEOUT : 0) + SLACK || (waits && out->seconds < TIMEOUT - 1))
        fail_msg("%s, %s, rank %d: after %.1f s", call_names[call], fault_names[fault], rank, out->seconds);
}

static void ranks_await(pid_t (*ids)[FAULTS][RANKS])
{
    for (int rank = 0; rank < RANKS; rank++) {
        for (int call = 0; call < CALLS; call++) {
            for (int fault = 0; fault < FAULTS; fault++) {
                if (rank == VICTIM || !ids[call][fault][rank])
                    continue;
                assert_int_equal(waitpid(ids[call][fault][rank], NULL, 0), ids[call][fault][rank]);
            }
        }
    }
    for (int call = 0; call < CALLS; call++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            if (!ids[call][fault][VICTIM])
                continue;
            if (fault == FAULT_CALLBACK_STAYS)
                kill(ids[call][fault][VICTIM], SIGKILL);
            assert_int_equal(waitpid(ids[call][fault][VICTIM], NULL, 0), ids[call][fault][VICTIM]);
        }
    }
}

/* All cases at once: each has ranks of its own. */
TEST(each_fault_of_a_rank_is_told_to_the_others)
{
    static pid_t ids[CALLS][FAULTS][RANKS];
    char shared[64];
    snprintf(shared, sizeof(shared), "reshard-%u-faults-%d", (unsigned)geteuid(), (int)getpid());
    for (int call = 0; call < CALLS; call++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            struct place place = place_of(call, fault, 0);
            old_save(&place);
        }
    }
    fflush(NULL);
    for (int call = 0; call < CALLS; call++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            for (int rank = 0; rank < RANKS && (fault < FAULT_CALLBACK_FAILS || has_callback((enum call)call)); rank++) {
                struct place place = place_of(call, fault, rank);
                ids[call][fault][rank] = fork();
                assert_true(ids[call][fault][rank] >= 0);
                if (ids[call][fault][rank] == 0) {
                    prctl(PR_SET_PDEATHSIG, SIGKILL);
                    rank_run(&place);
                }
            }
        }
    }
    ranks_await(ids);
    for (int call = 0; call < CALLS; call++) {
        for (int fault = 0; fault < FAULTS; fault++) {
            struct place place = place_of(call, fault, 0);
            for (int rank = 0; rank < RANKS && ids[call][fault][0]; rank++)
                if (rank != VICTIM)
                    outcome_check(call, fault, rank);
            if (!old_is_there(&place))
                fail_msg("%s, %s: another checkpoint is there", call_names[call], fault_names[fault]);
            old_save(&place); /* the next save works, and takes away what is left */
        }
    }
    assert_int_equal(test_entries_count(test_folder, "."), 0);
    assert_int_equal(test_entries_count(test_folder, ""), CALLS * FAULTS);
    assert_int_equal(test_entries_count("/dev/shm", shared), 0);
}

static int made(void **state)
{
    outcomes = mmap(NULL, sizeof(*outcomes) * CALLS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return outcomes != MAP_FAILED && !test_folder_make(state) ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_fault_of_a_rank_is_told_to_the_others) };
    return cmocka_run_group_tests_name("fault list", tests, made, test_folder_remove);
}
