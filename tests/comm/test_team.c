/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that hash, verify and diff together: each gets what one process gets, and reads a share of it; who fails is named on all. */
#include "check.h"

#include "comm/ranks.h"
#include "reshard/state.h"
#include "store/temp_directory.h"

#define RANKS 3
#define TEXT_MAX 65536

/* What a call told its receivers, as text. */
struct told {
    char text[TEXT_MAX];
    size_t size;
    uint64_t bytes; /* that this process was to read */
    int stop_at;    /* the receiver stops there; 0: never */
    int count;
};

struct team_case {
    const char *path, *other; /* of rank `absent` there is none */
    int64_t absent, stops;
    struct told told[RANKS];
};

static void tell(struct told *told, const char *line)
{
    int size = snprintf(told->text + told->size, TEXT_MAX - told->size, "%s\n", line);
    told->size += size > 0 && told->size + (size_t)size < TEXT_MAX ? (size_t)size : 0;
}

static int tell_hash(size_t tensor, const char *hex, void *context)
{
    struct told *told = context;
    char line[512];
    snprintf(line, sizeof(line), "%zu %s", tensor, hex);
    tell(told, line);
    return ++told->count == told->stop_at;
}

static int tell_finding(const reshard_finding *finding, void *context)
{
    struct told *told = context;
    char line[2048];
    snprintf(line, sizeof(line), "%d %s %.*s %s %lld %llu %g", (int)finding->severity, finding->kind, (int)finding->key.size,
             finding->key.data, finding->text, (long long)finding->index, (unsigned long long)finding->count, finding->max_difference);
    tell(told, line);
    return ++told->count == told->stop_at;
}

static int tell_progress(const reshard_progress *progress, void *context)
{
    struct told *told = context;
    told->bytes = progress->bytes_total > told->bytes ? progress->bytes_total : told->bytes;
    return 0;
}

static reshard_status team_verify(reshard_checkpoint *a, const reshard_run_options *run, struct told *told, reshard_error *err)
{
    char line[256];
    reshard_coverage covered = RESHARD_COVERAGE_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    verify.deep = 1;
    verify.coverage = &covered;
    reshard_status status = reshard_verify(a, &verify, run, tell_finding, told, err);
    snprintf(line, sizeof(line), "%d: %llu %llu %llu %llu", (int)status, (unsigned long long)covered.checked_tensors,
             (unsigned long long)covered.checksums, (unsigned long long)covered.read_bytes, (unsigned long long)covered.replicas);
    tell(told, line);
    return status == RESHARD_DIFFERS ? RESHARD_OK : status;
}

static reshard_status team_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_run_options *run, struct told *told,
                                reshard_error *err)
{
    char line[256];
    reshard_diff_summary summary = RESHARD_DIFF_SUMMARY_INIT;
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    diff.summary = &summary;
    diff.explain = 1;
    reshard_status status = reshard_diff(a, b, &diff, run, tell_finding, told, err);
    snprintf(line, sizeof(line), "%d: %llu %llu %llu %g", (int)status, (unsigned long long)summary.same_tensors,
             (unsigned long long)summary.changed_elements, (unsigned long long)summary.explained_tensors, summary.max_difference);
    tell(told, line);
    return status == RESHARD_DIFFERS ? RESHARD_OK : status;
}

static void shards_make(reshard_shards **out);

/* Copies are in memory only: files have each value once. */
static reshard_status team_verify_copies(const reshard_run_options *run, struct told *told, reshard_error *err)
{
    reshard_shards *shards;
    reshard_checkpoint *live;
    reshard_state state = RESHARD_STATE_INIT;
    shards_make(&shards);
    state.shards = shards;
    reshard_status status = reshard_open_shards(&state, NULL, &live, err);
    if (!status)
        status = team_verify(live, run, told, err);
    reshard_close(live);
    reshard_shards_free(shards);
    return status;
}

static reshard_status team_look(const struct team_case *team, int64_t number, reshard_comm *comm, struct told *told, reshard_error *err)
{
    reshard_checkpoint *a = NULL, *b = NULL;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    run.comm = comm;
    run.threads = 1;
    run.progress = tell_progress;
    run.context = told;
    reshard_status status = reshard_open(number == team->absent ? "/nonexistent" : team->path, NULL, &a, err);
    if (comm)
        status = reshard_comm_agree(comm, status, err);
    if (!status)
        status = reshard_open(team->other, NULL, &b, err);
    if (!status)
        status = reshard_hash(a, "sha256", &run, tell_hash, told, err);
    if (!status)
        status = team_verify(a, &run, told, err);
    if (!status)
        status = team_verify_copies(&run, told, err);
    if (!status)
        status = team_diff(a, b, &run, told, err);
    reshard_close(a);
    reshard_close(b);
    return status;
}

static void team_rank_run(struct test_rank *rank)
{
    struct team_case *team = rank->context;
    struct told *told = &team->told[rank->rank];
    told->stop_at = rank->rank == team->stops ? 9 : 0;
    rank->status = team_look(team, rank->rank, rank->comm, told, &rank->err);
}

/* ---- what is looked at: tensors in halves, the second half twice ---- */

#define TENSORS 7
#define ROWS 40
#define COLUMNS 8

static float values[TENSORS][ROWS / 2 * COLUMNS * 3];

static void shards_make(reshard_shards **out)
{
    reshard_error err = RESHARD_ERROR_INIT;
    const int64_t shape[] = { ROWS, COLUMNS }, starts[][2] = { { 0, 0 }, { ROWS / 2, 0 }, { ROWS / 2, 0 } };
    const int64_t extent[] = { ROWS / 2, COLUMNS };
    CHECK_OK(reshard_shards_new(out, &err));
    for (int t = 0; t < TENSORS; t++) {
        char key[32];
        snprintf(key, sizeof(key), "layers.%d.weight", t);
        for (int i = 0; i < 3; i++) {
            reshard_shard shard = RESHARD_SHARD_INIT;
            shard.key = (reshard_str){ key, strlen(key) };
            shard.dtype = "float32";
            shard.rank = 2;
            shard.global_shape = shape;
            shard.start = starts[i];
            shard.extent = extent;
            shard.data = values[t] + i * ROWS / 2 * COLUMNS;
            CHECK_OK(reshard_shards_add(*out, &shard, &err));
        }
    }
}

static void values_make(void)
{
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < ROWS * COLUMNS * 3 / 2; i++)
            values[t][i] = t == 3 ? 0 : (float)((t * 1000 + i) % (ROWS * COLUMNS));
    for (int t = 0; t < TENSORS; t++)
        memcpy(values[t] + ROWS * COLUMNS, values[t] + ROWS / 2 * COLUMNS, sizeof(float) * ROWS / 2 * COLUMNS);
}

static void stored_make(const char *name)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_shards *shards;
    reshard_checkpoint *live;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = "torch-dcp";
    options.layout = "ranks=2";
    options.checksum = "sha256";
    shards_make(&shards);
    state.shards = shards;
    CHECK_OK(reshard_open_shards(&state, NULL, &live, &err));
    CHECK_OK(reshard_convert(live, temp_path(name), &options, NULL, NULL, &err));
    reshard_close(live);
    reshard_shards_free(shards);
}

/* Changes a value of two tensors where they are stored; then copies of two tensors in memory. */
static void damage(const char *name)
{
    for (int file = 0; file < 2; file++) {
        char path[64];
        snprintf(path, sizeof(path), "%s/__%d_0.distcp", name, file);
        int fd = open(temp_path(path), O_RDWR);
        unsigned char byte;
        off_t at = lseek(fd, 0, SEEK_END) / 2;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
    }
    values[1][ROWS * COLUMNS + 5] += 1;
    values[6][ROWS * COLUMNS + 9] += 1;
}

static int team_setup(void **state)
{
    if (test_folder_make(state))
        return -1;
    values_make();
    stored_make("good");
    stored_make("bad");
    damage("bad");
    return 0;
}

static struct team_case team_case_make(void)
{
    static char bad[1024], good[1024];
    snprintf(bad, sizeof(bad), "%s", temp_path("bad"));
    snprintf(good, sizeof(good), "%s", temp_path("good"));
    return (struct team_case){ .path = bad, .other = good, .absent = -1, .stops = -1 };
}

TEST(each_rank_gets_what_one_process_gets)
{
    static struct team_case team;
    static struct told alone;
    struct test_rank ranks[RANKS];
    reshard_error err = RESHARD_ERROR_INIT;
    uint64_t bytes = 0;
    team = team_case_make();
    alone = (struct told){ 0 };
    CHECK_OK(team_look(&team, 0, NULL, &alone, &err));
    assert_non_null(strstr(alone.text, "checksum"));
    assert_non_null(strstr(alone.text, "replica"));
    assert_non_null(strstr(alone.text, "values differ"));
    test_ranks(RANKS, 60, &team, team_rank_run, ranks);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, RESHARD_OK);
        assert_string_equal(team.told[i].text, alone.text);
        assert_true(team.told[i].bytes < alone.bytes);
        bytes += team.told[i].bytes;
    }
    assert_true(bytes <= alone.bytes * 5 / 4); /* what they read together: the largest of several calls, each */
}

TEST(who_fails_is_named_on_all)
{
    static struct team_case team;
    struct test_rank ranks[RANKS];
    team = team_case_make();
    team.absent = 1;
    test_ranks(RANKS, 60, &team, team_rank_run, ranks);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, RESHARD_ERR_IO);
        assert_non_null(strstr(ranks[i].err.message, "rank 1: "));
    }
}

/* Its receiver stops in the middle of what is told on all ranks alike: the others learn it at the next step. */
TEST(a_rank_that_stops_ends_all)
{
    static struct team_case team;
    struct test_rank ranks[RANKS];
    team = team_case_make();
    team.stops = 2;
    test_ranks(RANKS, 60, &team, team_rank_run, ranks);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].status, RESHARD_ERR_CANCELLED);
        assert_non_null(strstr(ranks[i].err.message, "rank 2: "));
    }
}

TEST(other_calls_take_no_group)
{
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *checkpoint;
    CHECK_OK(reshard_comm_threads(1, NULL, &run.comm, &err));
    CHECK_OK(reshard_open(temp_path("good"), NULL, &checkpoint, &err));
    options.to = "safetensors";
    CHECK_FAILS(reshard_convert(checkpoint, temp_path("out"), &options, &run, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_run_options.comm"));
    reshard_close(checkpoint);
    reshard_comm_free(run.comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rank_gets_what_one_process_gets),
        cmocka_unit_test(who_fails_is_named_on_all),
        cmocka_unit_test(a_rank_that_stops_ends_all),
        cmocka_unit_test(other_calls_take_no_group),
    };
    return cmocka_run_group_tests(tests, team_setup, test_folder_remove);
}
