/* SPDX-License-Identifier: Apache-2.0 */
/* Which elements of a space are there, against a map of all of them. */
#include "check.h"
#include "fail_malloc.h"

#include "tensor/box_set.h"

static int rank;
static int64_t shape[RANK_MAX];

/* How many elements of the box are marked; marks them all if mark. */
static int64_t marked(uint8_t *map, const int64_t *start, const int64_t *extent, bool mark)
{
    int64_t count = 0, volume = box_volume(rank, extent);
    for (int64_t i = 0; i < volume; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int axis = rank - 1; axis >= 0; axis--) {
            at += (start[axis] + rest % extent[axis]) * stride;
            rest /= extent[axis];
            stride *= shape[axis];
        }
        count += map[at];
        map[at] |= mark;
    }
    return count;
}

static void draw_box(uint64_t *seed, int64_t longest, int64_t *start, int64_t *extent)
{
    for (int axis = 0; axis < rank; axis++) {
        extent[axis] = 1 + (int64_t)(test_random(seed) % (uint64_t)(shape[axis] < longest ? shape[axis] : longest));
        start[axis] = (int64_t)(test_random(seed) % (uint64_t)(shape[axis] - extent[axis] + 1));
    }
}

/* Boxes are added until nothing is missing: drawn ones, then the holes that are told. */
static void check_filling(uint64_t *seed, int drawn)
{
    const int64_t volume = box_volume(rank, shape);
    int64_t start[RANK_MAX], extent[RANK_MAX], met_start[RANK_MAX], met_extent[RANK_MAX], there = 0;
    uint8_t *map = calloc((size_t)volume + 1, 1);
    struct box_set set;
    assert_non_null(map);
    assert_true(box_set_init(&set, rank, shape));
    for (int i = 0; i < drawn && there < volume; i++) {
        draw_box(seed, 4, start, extent);
        const int64_t old = marked(map, start, extent, false);
        assert_int_equal(box_set_meets(&set, start, extent, met_start, met_extent), old != 0);
        if (old) {
            assert_int_equal(marked(map, met_start, met_extent, false), box_volume(rank, met_extent));
            continue;
        }
        assert_true(box_set_add(&set, start, extent));
        marked(map, start, extent, true);
        there += box_volume(rank, extent);
    }
    while (box_set_hole(&set, start, extent)) {
        assert_true(box_volume(rank, extent) > 0);
        for (int axis = 0; axis < rank; axis++)
            assert_true(start[axis] >= 0 && start[axis] + extent[axis] <= shape[axis]);
        assert_int_equal(marked(map, start, extent, true), 0);
        assert_int_equal(set.missing, volume - there);
        assert_true(box_set_add(&set, start, extent));
        there += box_volume(rank, extent);
    }
    assert_int_equal(there, volume);
    assert_int_equal(set.missing, 0);
    box_set_release(&set);
    free(map);
}

TEST(what_is_there_and_what_is_not)
{
    uint64_t seed = 5;
    for (int turn = 0; turn < 600; turn++) {
        rank = turn % 5;
        for (int axis = 0; axis < rank; axis++)
            shape[axis] = 1 + (int64_t)(test_random(&seed) % (rank < 3 ? 30 : 7));
        check_filling(&seed, turn % 40);
    }
}

/* Enough elements for several slabs, which a box may lie across. */
TEST(large_spaces_are_cut_along_their_longest_axis)
{
    static const int64_t shapes[][3] = { { 3, 500000, 1 }, { 2000, 1, 700 }, { 1, 2, 1100000 }, { 257, 64, 64 } };
    uint64_t seed = 7;
    rank = 3;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        memcpy(shape, shapes[i], sizeof(shapes[i]));
        struct box_set set;
        assert_true(box_set_init(&set, rank, shape));
        assert_true(set.slab_count > 1);
        assert_int_equal(set.axis, i == 3 ? 0 : i == 1 ? 0 : i == 0 ? 1 : 2);
        int64_t missing = 0;
        for (size_t slab = 0; slab < set.slab_count; slab++)
            missing += set.slabs[slab].missing;
        assert_int_equal(missing, box_volume(rank, shape));
        box_set_release(&set);
        check_filling(&seed, 12);
    }
}

/* Parts that come in order take the room of one box. */
TEST(what_continues_becomes_one_box)
{
    static const int64_t whole[2] = { 12, 9 };
    for (int axis = 0; axis < 2; axis++) {
        for (int backward = 0; backward < 2; backward++) {
            struct box_set set;
            assert_true(box_set_init(&set, 2, whole));
            for (int64_t i = 0; i < whole[axis]; i++) {
                int64_t start[2] = { 0 }, extent[2] = { 12, 9 };
                start[axis] = backward ? whole[axis] - 1 - i : i;
                extent[axis] = 1;
                assert_true(box_set_add(&set, start, extent));
                assert_int_equal(set.slabs[0].count, 1);
            }
            assert_int_equal(set.missing, 0);
            box_set_release(&set);
        }
    }
}

TEST(nothing_is_missing_of_no_elements)
{
    static const int64_t empty[2] = { 4, 0 }, start[2] = { 1, 0 }, none[2] = { 2, 0 };
    int64_t out_start[2], out_extent[2];
    struct box_set set;
    assert_true(box_set_init(&set, 2, empty));
    assert_false(box_set_hole(&set, out_start, out_extent));
    assert_false(box_set_meets(&set, start, none, out_start, out_extent));
    assert_true(box_set_add(&set, start, none));
    assert_int_equal(set.missing, 0);
    box_set_release(&set);
}

TEST(want_of_memory_is_told)
{
    static const int64_t space[2] = { 40, 40 }, extent[2] = { 1, 1 };
    bool is_hit = true;
    for (unsigned long nth = 1; is_hit; nth++) {
        struct box_set set;
        fail_malloc_at(nth);
        bool good = box_set_init(&set, 2, space);
        for (int64_t i = 0; i < 20 && good; i++)
            good = box_set_add(&set, (int64_t[2]){ 2 * i, 2 * i }, extent);
        is_hit = fail_malloc_was_hit();
        assert_true(good == !is_hit);
        box_set_release(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_there_and_what_is_not),
        cmocka_unit_test(large_spaces_are_cut_along_their_longest_axis),
        cmocka_unit_test(what_continues_becomes_one_box),
        cmocka_unit_test(nothing_is_missing_of_no_elements),
        cmocka_unit_test(want_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
