/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random layouts through files, against a naive model: what up to eight ranks hold is saved under one layout and loaded under another by as
 * many ranks, by more or by fewer. `make check` runs a fifth of the cases, `make faults` all; a number runs so many, from the seed that a
 * second one names.
 */
#include "check.h"

#include "comm/ranks.h"
#include "comm/saved_layouts.h"

#include <unistd.h>

#define CASES 5000

static char folder[TEST_FOLDER_SIZE];

struct saved_case {
    struct layouts layouts;
    struct saved_way way;
    char path[LAYOUT_RANKS_MAX][300];
};

static void rank_saves(struct test_rank *rank)
{
    struct saved_case *given = rank->context;
    struct layout_rank own;
    rank->status = layout_rank_make(&given->layouts, (int)rank->rank, &own, &rank->err);
    if (!rank->status)
        rank->status = layouts_save(rank->comm, &given->layouts, &own, &given->way, folder, given->path[rank->rank], &rank->err);
    int count = own.count;
    own.count = own.first_target; /* what it holds is as it was */
    if (!rank->status && !layout_rank_is_good(&given->layouts, &own))
        rank->status = RESHARD_DIFFERS;
    own.count = count;
    layout_rank_release(&own);
}

static void rank_loads(struct test_rank *rank)
{
    struct saved_case *given = rank->context;
    struct layout_rank own;
    rank->status = layout_rank_make(&given->layouts, (int)rank->rank, &own, &rank->err);
    if (!rank->status)
        rank->status = layouts_load(rank->comm, &given->layouts, &own, &given->way, given->path[0], &rank->err);
    layout_rank_release(&own);
}

static void ranks_do(const struct saved_case *given, uint64_t seed, int count, const char *what, test_rank_run run)
{
    struct test_rank ranks[LAYOUT_RANKS_MAX];
    test_ranks(count, 30, (void *)(uintptr_t)given, run, ranks);
    for (int i = 0; i < count; i++)
        if (ranks[i].status)
            fail_msg("seed %llu, %s by rank %d of %d, %s%s%s: status %d '%s'", (unsigned long long)seed, what, i, count, given->way.format,
                     given->way.second ? " to " : "", given->way.second ? given->way.second : "", ranks[i].status, ranks[i].err.message);
}

static void run_case(uint64_t seed)
{
    static struct saved_case given;
    uint64_t choice = seed * 7919;
    int saving = 1 + (int)(test_random(&choice) % LAYOUT_RANKS_MAX), loading = 1 + (int)(test_random(&choice) % LAYOUT_RANKS_MAX);
    layouts_make(&given.layouts, seed, saving);
    for (int i = 0; i < given.layouts.target_count; i++)
        given.layouts.targets[i].owner = (int)(test_random(&choice) % (uint64_t)loading);
    given.way = saved_way_make(seed);
    ranks_do(&given, seed, saving, "saving", rank_saves);
    ranks_do(&given, seed, loading, "loading", rank_loads);
}

static void run_cases(uint64_t first, uint64_t count)
{
    char command[256];
    assert_non_null(test_mkdtemp(folder));
    for (uint64_t seed = first; seed < first + count; seed++)
        run_case(seed);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

TEST(random_layouts_go_through_files)
{
    run_cases(1, getenv("RESHARD_EVERY_FAULT") ? CASES : CASES / 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_layouts_go_through_files) };
    if (argc > 1) {
        run_cases(argc > 2 ? strtoull(argv[2], NULL, 10) : 1, strtoull(argv[1], NULL, 10));
        printf("%s cases are good\n", argv[1]);
        return 0;
    }
    return cmocka_run_group_tests_name("saved_layouts", tests, NULL, NULL);
}
