/* SPDX-License-Identifier: Apache-2.0 */
/* How shards are dealt to rounds: by bytes of each rank, with those that are copied from others, in order. */
#include "check.h"

#include "convert/load_rounds.h"

#define UNIT 64 /* of the memory that values come by */

static reshard_error err;

/* Each letter is a round: "aabc". */
static void deals(const struct load_round *given, uint32_t count, uint32_t ranks, uint64_t budget, const char *expected)
{
    struct load_round shards[16];
    uint32_t rounds;
    memcpy(shards, given, count * sizeof(*shards));
    CHECK_OK(load_rounds_deal(shards, count, ranks, budget, &rounds, &err));
    char found[17] = { 0 };
    uint32_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        found[i] = (char)('a' + shards[i].round);
        last = shards[i].round > last ? shards[i].round : last;
    }
    assert_string_equal(found, expected);
    assert_int_equal(rounds, last + 1);
}

TEST(shards_of_one_rank_fill_rounds_in_order)
{
    const struct load_round shards[] = { { 0, 0, UNIT, 9 },     { 0, 1, UNIT, 9 }, { 0, 2, 2 * UNIT, 9 }, { 0, 3, 1, 9 },
                                         { 0, 4, 5 * UNIT, 9 }, { 0, 5, 0, 9 },    { 0, 6, UNIT, 9 },     { 0, 7, UNIT, 9 } };
    deals(shards, 8, 1, UINT64_MAX, "aaaaaaaa");
    deals(shards, 8, 1, 2 * UNIT, "aabcddee");
    deals(shards, 8, 1, 3 * UNIT, "aabbccdd");
    deals(shards, 8, 1, 5 * UNIT, "aaaabbcc");
    deals(shards, 8, 1, 0, "abcdeefg"); /* one at a time; what stages nothing needs no round */
    deals(shards, 0, 1, UNIT, "");
}

TEST(a_round_is_full_where_one_rank_is)
{
    /* Rank 1 has all the bytes; the third is read by rank 0 and copied to rank 1, which comes with it. */
    const struct load_round shards[] = { { 0, 0, 0, 0 }, { 1, 1, UNIT, 0 },     { 0, 2, 0, 0 }, { 1, 2, UNIT, 0 },
                                         { 0, 4, 0, 0 }, { 1, 5, 2 * UNIT, 0 }, { 0, 6, 0, 0 }, { 1, 7, UNIT, 0 } };
    deals(shards, 8, 2, 2 * UNIT, "aaaaabbc");
    deals(shards, 8, 2, UNIT, "aabbbccd");
    /* A reader behind those that it reads for. */
    const struct load_round back[] = { { 0, 2, UNIT, 0 }, { 1, 1, UNIT, 0 }, { 2, 2, UNIT, 0 }, { 0, 3, UNIT, 0 }, { 2, 4, UNIT, 0 } };
    deals(back, 5, 3, UNIT, "aaabb");
}

TEST(sizes_that_nobody_has_overflow_nothing)
{
    const struct load_round shards[] = { { 0, 0, UINT64_MAX, 0 }, { 0, 1, UINT64_MAX - 1, 0 }, { 0, 2, UNIT, 0 } };
    struct load_staging staging;
    deals(shards, 3, 1, UINT64_MAX, "abc");
    assert_int_equal(load_staging_new(shards, 1, 0, 1, &staging, &err), RESHARD_ERR_MEMORY);
    load_staging_release(&staging);
}

TEST(memory_is_that_of_the_largest_round_of_the_rank)
{
    const struct load_round shards[] = { { 0, 0, 100, 0 }, { 1, 1, 5000, 0 }, { 0, 2, 1, 1 }, { 0, 3, 65, 1 }, { 0, 4, 0, 2 } };
    struct load_staging staging;
    CHECK_OK(load_staging_new(shards, 5, 0, 3, &staging, &err));
    assert_int_equal(staging.size, 3 * UNIT);
    uint8_t *first = load_staging_room(&staging, 1);
    assert_int_equal((uintptr_t)first % UNIT, 0);
    assert_ptr_equal(load_staging_room(&staging, 65), first + UNIT);
    assert_int_equal(staging.used, 3 * UNIT);
    load_staging_release(&staging);
    CHECK_OK(load_staging_new(shards, 5, 2, 3, &staging, &err)); /* a rank that stages nothing */
    assert_null(staging.memory);
    load_staging_release(&staging);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_one_rank_fill_rounds_in_order),
        cmocka_unit_test(a_round_is_full_where_one_rank_is),
        cmocka_unit_test(sizes_that_nobody_has_overflow_nothing),
        cmocka_unit_test(memory_is_that_of_the_largest_round_of_the_rank),
    };
    return cmocka_run_group_tests_name("load rounds", tests, NULL, NULL);
}
