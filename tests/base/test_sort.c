/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

#include "base/sort.h"

/* Sorts copies of the keys, numbered as they come, and checks that nothing is lost and equal keys keep their order. */
static void check_sorting(const int64_t *keys, size_t count)
{
    struct sort_entry *entries = calloc(count + 1, sizeof(*entries)), *spare = calloc(count + 1, sizeof(*spare));
    assert_true(entries && spare);
    for (size_t i = 0; i < count; i++)
        entries[i] = (struct sort_entry){ keys[i], (uint32_t)i };
    entries[count] = spare[count] = (struct sort_entry){ 77, 7 };
    entries_sort(entries, spare, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(entries[i].key == keys[entries[i].value]);
        if (i == 0 || entries[i - 1].key < entries[i].key)
            continue;
        if (entries[i - 1].key > entries[i].key || entries[i - 1].value > entries[i].value)
            fail_msg("%zu keys: %jd of number %u before %jd of number %u", count, (intmax_t)entries[i - 1].key, entries[i - 1].value,
                     (intmax_t)entries[i].key, entries[i].value);
    }
    assert_true(entries[count].value == 7 && spare[count].value == 7);
    free(entries);
    free(spare);
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 11 ^ *state << 40;
}

/* Few are inserted, more go through passes, many through wide ones: each of these begins somewhere. */
static const size_t counts[] = { 0, 1, 2, 3, 23, 24, 25, 26, 300, 16383, 16384, 20000 };

TEST(keys_of_any_range_are_sorted_and_equal_ones_keep_their_order)
{
    static const struct {
        int64_t low;
        uint64_t range; /* of keys above the low one */
    } ranges[] = {
        { 0, 1 },         { 0, 255 },         { 0, 256 },        { 1000, 2047 },         { -5, 2048 },          { -300, 10 },
        { -70000, 65535 }, { -1, 65536 },      { 5, UINT32_MAX }, { INT64_MIN, 1000 },    { INT64_MAX - 1, 1 },  { INT64_MIN, UINT64_MAX },
        { -9, INT64_MAX }, { INT64_MIN, 1 },   { 0, INT64_MAX },  { INT64_MIN / 2, 1 << 22 },
    };
    int64_t *keys = calloc(counts[sizeof(counts) / sizeof(counts[0]) - 1], sizeof(*keys));
    uint64_t seed = 1;
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (size_t r = 0; r < sizeof(ranges) / sizeof(ranges[0]); r++) {
            for (size_t i = 0; i < counts[c]; i++) {
                uint64_t above = ranges[r].range == UINT64_MAX ? draw(&seed) : draw(&seed) % (ranges[r].range + 1);
                above = i == 1 ? ranges[r].range : i == 2 ? 0 : above;
                keys[i] = (int64_t)((uint64_t)ranges[r].low + above);
            }
            check_sorting(keys, counts[c]);
        }
    }
    free(keys);
}

TEST(two_that_are_the_wrong_way_round_are_found_wherever_they_are)
{
    int64_t keys[40];
    for (size_t count = 2; count <= 40; count += 19) {
        for (size_t wrong = 1; wrong < count; wrong++) {
            for (size_t i = 0; i < count; i++)
                keys[i] = (int64_t)i / 2 * 1000;
            keys[wrong] = keys[wrong - 1] - 1500;
            check_sorting(keys, count);
        }
    }
}

TEST(the_first_that_is_not_below_a_key)
{
    static const int64_t keys[] = { INT64_MIN, -3, -3, 0, 5, 5, 5, 9, INT64_MAX };
    struct sort_entry entries[9];
    for (uint32_t i = 0; i < 9; i++)
        entries[i] = (struct sort_entry){ keys[i], i };
    for (size_t low = 0; low <= 9; low++) {
        for (size_t high = low; high <= 9; high++) {
            for (int key = -5; key < 12; key++) {
                size_t expected = low;
                while (expected < high && keys[expected] < key)
                    expected++;
                assert_int_equal(entries_first(entries, low, high, key), expected);
            }
            assert_int_equal(entries_first(entries, low, high, INT64_MIN), low);
        }
    }
    assert_int_equal(entries_first(entries, 0, 9, INT64_MAX), 8);
    assert_int_equal(entries_first(entries, 0, 8, INT64_MAX), 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_any_range_are_sorted_and_equal_ones_keep_their_order),
        cmocka_unit_test(two_that_are_the_wrong_way_round_are_found_wherever_they_are),
        cmocka_unit_test(the_first_that_is_not_below_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
