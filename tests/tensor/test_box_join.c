/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/box_join.h"

#include "check.h"
#include "fail_malloc.h"

struct box_set {
    uint32_t count;
    int rank;
    int64_t (*numbers)[2][4];
    struct join_box *boxes;
};

static void set_release(struct box_set *set)
{
    free(set->numbers);
    free(set->boxes);
}

static void set_make(struct box_set *set, int rank, uint32_t capacity)
{
    *set = (struct box_set){ .rank = rank };
    set->numbers = calloc(capacity + 1, sizeof(*set->numbers));
    set->boxes = calloc(capacity + 1, sizeof(*set->boxes));
}

static void set_add(struct box_set *set, const int64_t *start, const int64_t *extent)
{
    uint32_t i = set->count++;
    memcpy(set->numbers[i][0], start, (size_t)set->rank * sizeof(int64_t));
    memcpy(set->numbers[i][1], extent, (size_t)set->rank * sizeof(int64_t));
    set->boxes[i] = (struct join_box){ set->numbers[i][0], set->numbers[i][1], i };
}

/* Boxes that were cut out of one by nested cuts; kind 1: a grid; kind 2: anything, overlapping too. */
static void set_fill(struct box_set *set, uint64_t *seed, int kind, uint32_t count)
{
    const int64_t size = 60;
    int64_t start[4] = { 0 }, extent[4] = { size, size, size, size };
    if (kind == 2) {
        for (uint32_t i = 0; i < count; i++) {
            for (int axis = 0; axis < set->rank; axis++) {
                start[axis] = (int64_t)(test_random(seed) % (uint64_t)size);
                extent[axis] = 1 + (int64_t)(test_random(seed) % (uint64_t)(size - start[axis]));
            }
            set_add(set, start, extent);
        }
        return;
    }
    set_add(set, start, extent);
    for (uint32_t i = 0; i < count * 3 && set->count < count && set->rank; i++) {
        uint32_t box = (uint32_t)(test_random(seed) % set->count);
        int axis = (int)(test_random(seed) % (uint64_t)set->rank);
        int64_t old = set->numbers[box][1][axis];
        int64_t at = kind == 1 ? old / 2 : old > 1 ? 1 + (int64_t)(test_random(seed) % (uint64_t)(old - 1)) : 0;
        if (at == 0)
            continue;
        memcpy(start, set->numbers[box][0], sizeof(start));
        memcpy(extent, set->numbers[box][1], sizeof(extent));
        set->numbers[box][1][axis] = at;
        start[axis] += at;
        extent[axis] = old - at;
        set_add(set, start, extent);
    }
}

struct found {
    uint8_t *pairs; /* by source * targets + target: times found */
    uint32_t targets;
    const struct box_set *sets;
};

static bool find(void *context, uint32_t source, uint32_t target, const int64_t *start, const int64_t *extent)
{
    struct found *found = context;
    const struct join_box *s = &found->sets[0].boxes[source], *t = &found->sets[1].boxes[target];
    int64_t expected_start[4], expected_extent[4];
    assert_true(box_intersect(found->sets[0].rank, s->start, s->extent, t->start, t->extent, expected_start, expected_extent));
    assert_true(box_equal(found->sets[0].rank, start, extent, expected_start, expected_extent));
    found->pairs[source * found->targets + target]++;
    return true;
}

TEST(every_overlapping_pair_is_found_once)
{
    struct box_joiner joiner = { .misses_max = UINT64_MAX };
    for (uint64_t round = 0; round < 400; round++) {
        reshard_error err;
        uint64_t seed = round;
        int rank = (int)(round % 5);
        struct box_set sets[2];
        int64_t start[4], extent[4];
        for (int side = 0; side < 2; side++) {
            uint32_t count = 1 + (uint32_t)(test_random(&seed) % 200);
            set_make(&sets[side], rank, count + 1);
            set_fill(&sets[side], &seed, (int)(test_random(&seed) % 3), count);
        }
        struct found found = { .pairs = calloc((size_t)sets[0].count * sets[1].count, 1), .targets = sets[1].count, .sets = sets };
        CHECK_OK(box_join(&joiner, rank, sets[0].boxes, sets[0].count, sets[1].boxes, sets[1].count, find, &found, &err));
        for (uint32_t s = 0; s < sets[0].count; s++) {
            for (uint32_t t = 0; t < sets[1].count; t++) {
                bool overlaps = box_intersect(rank, sets[0].boxes[s].start, sets[0].boxes[s].extent, sets[1].boxes[t].start,
                                              sets[1].boxes[t].extent, start, extent);
                if (found.pairs[s * sets[1].count + t] != overlaps)
                    fail_msg("round %llu: boxes %u and %u found %d times", (unsigned long long)round, s, t,
                             found.pairs[s * sets[1].count + t]);
            }
        }
        free(found.pairs);
        set_release(&sets[0]);
        set_release(&sets[1]);
    }
    box_joiner_release(&joiner);
}

static bool count_pair(void *context, uint32_t source, uint32_t target, const int64_t *start, const int64_t *extent)
{
    (void)source, (void)target, (void)start, (void)extent;
    ++*(uint64_t *)context;
    return true;
}

TEST(the_work_is_near_linear_for_grids)
{
    reshard_error err;
    struct box_joiner joiner = { .misses_max = 400000 };
    struct box_set sets[2];
    uint64_t pairs = 0;
    const int64_t parts[2][2] = { { 200, 100 }, { 80, 250 } };
    for (int side = 0; side < 2; side++) {
        set_make(&sets[side], 2, 20000);
        for (int64_t r = 0; r < parts[side][0]; r++) {
            for (int64_t c = 0; c < parts[side][1]; c++) {
                int64_t start[2] = { 10000 / parts[side][0] * r, 10000 / parts[side][1] * c };
                int64_t extent[2] = { 10000 / parts[side][0], 10000 / parts[side][1] };
                set_add(&sets[side], start, extent);
            }
        }
    }
    CHECK_OK(box_join(&joiner, 2, sets[0].boxes, sets[0].count, sets[1].boxes, sets[1].count, count_pair, &pairs, &err));
    assert_true(pairs >= 20000);
    box_joiner_release(&joiner);
    set_release(&sets[0]);
    set_release(&sets[1]);
}

TEST(comparisons_have_a_limit)
{
    reshard_error err;
    struct box_joiner joiner = { .misses_max = 1000 };
    struct box_set sets[2];
    uint64_t seed = 5, pairs = 0;
    for (int side = 0; side < 2; side++) {
        set_make(&sets[side], 3, 2000);
        for (int i = 0; i < 1000; i++) {
            int64_t start[3], extent[3] = { 500, 1, 1 };
            for (int axis = 0; axis < 3; axis++)
                start[axis] = (int64_t)(test_random(&seed) % 500);
            extent[1 + i % 2] = 300;
            set_add(&sets[side], start, extent);
        }
    }
    CHECK_FAILS(box_join(&joiner, 3, sets[0].boxes, 1000, sets[1].boxes, 1000, count_pair, &pairs, &err), RESHARD_ERR_LIMIT);
    box_joiner_release(&joiner);
    set_release(&sets[0]);
    set_release(&sets[1]);
}

static bool any_pair(const struct box_set *set, uint32_t *first, uint32_t *second)
{
    int64_t start[4], extent[4];
    for (*second = 1; *second < set->count; ++*second) {
        const struct join_box *b = &set->boxes[*second];
        for (*first = 0; *first < *second; ++*first) {
            const struct join_box *a = &set->boxes[*first];
            if (box_intersect(set->rank, a->start, a->extent, b->start, b->extent, start, extent))
                return true;
        }
    }
    return false;
}

/* Cuts of one box do not overlap; with one more box somewhere they do. */
TEST(overlaps_within_a_set_are_found)
{
    struct box_joiner joiner = { .misses_max = UINT64_MAX };
    for (uint64_t round = 0; round < 600; round++) {
        reshard_error err;
        struct box_set set;
        uint64_t seed = round;
        uint32_t count = 1 + (uint32_t)(test_random(&seed) % (round % 3 ? 20 : 400)), pair[2], a, b;
        int64_t start[4], extent[4];
        bool overlaps;
        set_make(&set, (int)(round % 5), count + 2);
        set_fill(&set, &seed, (int)(test_random(&seed) % 2), count);
        if (round % 2 && set.rank) {
            for (int axis = 0; axis < set.rank; axis++) {
                start[axis] = (int64_t)(test_random(&seed) % 60);
                extent[axis] = 1 + (int64_t)(test_random(&seed) % (uint64_t)(60 - start[axis]));
            }
            set_add(&set, start, extent);
        }
        CHECK_OK(boxes_overlap(&joiner, set.rank, set.boxes, set.count, &overlaps, pair, &err));
        assert_int_equal(overlaps, any_pair(&set, &a, &b));
        if (overlaps) {
            const struct join_box *x = &set.boxes[pair[0]], *y = &set.boxes[pair[1]];
            assert_true(pair[0] < pair[1] && pair[1] < set.count);
            assert_true(box_intersect(set.rank, x->start, x->extent, y->start, y->extent, start, extent));
        }
        set_release(&set);
    }
    box_joiner_release(&joiner);
}

TEST(looking_within_a_set_is_near_linear_and_limited)
{
    reshard_error err;
    struct box_joiner joiner = { .misses_max = 400000 };
    struct box_set grid, long_ones;
    uint64_t seed = 5;
    uint32_t pair[2];
    bool overlaps;
    set_make(&grid, 2, 40000);
    set_make(&long_ones, 3, 3000);
    for (int64_t i = 0; i < 40000; i++)
        set_add(&grid, (int64_t[]){ i / 200 * 3, i % 200 * 5 }, (int64_t[]){ 3, 5 });
    CHECK_OK(boxes_overlap(&joiner, 2, grid.boxes, grid.count, &overlaps, pair, &err));
    assert_false(overlaps);
    /* Bars in three directions that never meet: no axis has a clean cut. */
    for (int64_t i = 0; i < 3000; i++) {
        int64_t start[3] = { 0 }, extent[3] = { 1, 1, 1 };
        int axis = (int)(i % 3);
        extent[axis] = 200;
        start[(axis + 1) % 3] = 2 * (int64_t)(test_random(&seed) % 100);
        start[(axis + 2) % 3] = 2 * (i / 3 % 100) + 1;
        set_add(&long_ones, start, extent);
    }
    joiner.misses_max = 1000;
    CHECK_FAILS(boxes_overlap(&joiner, 3, long_ones.boxes, long_ones.count, &overlaps, pair, &err), RESHARD_ERR_LIMIT);
    box_joiner_release(&joiner);
    set_release(&grid);
    set_release(&long_ones);
}

/* Joins two sets and looks within each, with a joiner of its own each time: all must come of it, or an error. */
static void check_whole_or_error(uint64_t misses_max, const struct box_set *sets, reshard_status error, bool *is_error)
{
    reshard_error err;
    uint64_t pairs = 0, expected = 0;
    int64_t start[4], extent[4];
    struct box_joiner joiner = { .misses_max = misses_max };
    for (uint32_t s = 0; s < sets[0].count; s++)
        for (uint32_t t = 0; t < sets[1].count; t++)
            expected += box_intersect(sets[0].rank, sets[0].boxes[s].start, sets[0].boxes[s].extent, sets[1].boxes[t].start,
                                      sets[1].boxes[t].extent, start, extent);
    reshard_status status =
        box_join(&joiner, sets[0].rank, sets[0].boxes, sets[0].count, sets[1].boxes, sets[1].count, count_pair, &pairs, &err);
    *is_error = status != RESHARD_OK;
    assert_true(status ? status == error : pairs == expected);
    for (int side = 0; side < 2; side++) {
        uint32_t pair[2], a, b;
        bool overlaps;
        box_joiner_release(&joiner);
        status = boxes_overlap(&joiner, sets[side].rank, sets[side].boxes, sets[side].count, &overlaps, pair, &err);
        *is_error |= status != RESHARD_OK;
        assert_true(status ? status == error : overlaps == any_pair(&sets[side], &a, &b));
    }
    box_joiner_release(&joiner);
}

TEST(without_memory_or_work_there_is_an_error)
{
    uint64_t seed = 11;
    struct box_set sets[2];
    bool is_error = true, is_hit = true;
    set_make(&sets[0], 3, 800);
    set_make(&sets[1], 3, 400);
    for (int64_t i = 0; i < 800; i++)
        set_add(&sets[0], (int64_t[]){ i / 40 * 3, i % 40, 0 }, (int64_t[]){ 3, 1, 60 });
    set_fill(&sets[1], &seed, 0, 300);
    set_add(&sets[1], (int64_t[]){ 58, 58, 58 }, (int64_t[]){ 2, 2, 2 }); /* over others */
    for (unsigned long nth = 1; is_hit; nth++) {
        fail_malloc_at(nth);
        check_whole_or_error(UINT64_MAX, sets, RESHARD_ERR_MEMORY, &is_error);
        is_hit = fail_malloc_was_hit();
        assert_int_equal(is_error, is_hit);
    }
    is_error = true;
    for (uint64_t most = 0; is_error; most += 1 + most / 8) {
        check_whole_or_error(most, sets, RESHARD_ERR_LIMIT, &is_error);
        assert_true(is_error || most > 100);
    }
    set_release(&sets[0]);
    set_release(&sets[1]);
}

static bool take_pairs(void *context, uint32_t source, uint32_t target, const int64_t *start, const int64_t *extent)
{
    uint64_t *left = context;
    (void)source, (void)target, (void)start, (void)extent;
    return (*left)-- > 0;
}

TEST(whoever_takes_pairs_may_end_it)
{
    reshard_error err;
    struct box_joiner joiner = { .misses_max = UINT64_MAX };
    struct box_set sets[2];
    uint64_t seed = 11, pairs = 0;
    for (int turn = 0; turn < 6; turn++) {
        for (int side = 0; side < 2; side++) {
            set_make(&sets[side], 2, 200);
            set_fill(&sets[side], &seed, turn % 3, turn < 3 ? 100 : 10);
        }
        CHECK_OK(box_join(&joiner, 2, sets[0].boxes, sets[0].count, sets[1].boxes, sets[1].count, count_pair, &pairs, &err));
        for (uint64_t most = 0; most < pairs; most += 1 + most / 16) {
            uint64_t left = most;
            CHECK_FAILS(box_join(&joiner, 2, sets[0].boxes, sets[0].count, sets[1].boxes, sets[1].count, take_pairs, &left, &err),
                        RESHARD_ERR_MEMORY);
            assert_true(left == UINT64_MAX); /* it was not asked again */
        }
        pairs = 0;
        set_release(&sets[0]);
        set_release(&sets[1]);
    }
    box_joiner_release(&joiner);
}

TEST(sorting_is_stable_and_complete)
{
    for (uint64_t round = 0; round < 60; round++) {
        uint64_t seed = round;
        size_t count = round < 50 ? round * 7 : 20000;
        struct sort_entry *entries = calloc(count + 1, sizeof(*entries)), *spare = calloc(count + 1, sizeof(*spare));
        for (size_t i = 0; i < count; i++)
            entries[i] = (struct sort_entry){ (int64_t)(test_random(&seed) >> (round * 7 % 60)) - (round % 3 ? 50 : 0), (uint32_t)i };
        entries_sort(entries, spare, count);
        for (size_t i = 1; i < count; i++) {
            assert_true(entries[i - 1].key <= entries[i].key);
            if (entries[i - 1].key == entries[i].key)
                assert_true(entries[i - 1].value < entries[i].value);
        }
        for (size_t i = 0; i < count; i += 1 + count / 100) {
            size_t found = entries_first(entries, 0, count, entries[i].key);
            assert_true(found <= i && entries[found].key == entries[i].key && (!found || entries[found - 1].key < entries[i].key));
        }
        assert_int_equal(entries_first(entries, 0, count, INT64_MAX), count);
        free(entries);
        free(spare);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_overlapping_pair_is_found_once),
        cmocka_unit_test(the_work_is_near_linear_for_grids),
        cmocka_unit_test(comparisons_have_a_limit),
        cmocka_unit_test(overlaps_within_a_set_are_found),
        cmocka_unit_test(looking_within_a_set_is_near_linear_and_limited),
        cmocka_unit_test(without_memory_or_work_there_is_an_error),
        cmocka_unit_test(whoever_takes_pairs_may_end_it),
        cmocka_unit_test(sorting_is_stable_and_complete),
    };
    return cmocka_run_group_tests_name("box_join", tests, NULL, NULL);
}
