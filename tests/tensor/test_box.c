/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "tensor/box.h"

#define SMALL_RANK_MAX 4
#define SMALL_VOLUME_MAX 4096

TEST(volumes_are_exact_or_refused)
{
    static const struct { const char *why; int rank; int64_t shape[4]; bool ok; int64_t volume; } cases[] = {
        { "scalar", 0, { 0 }, true, 1 }, { "vector", 1, { 7 }, true, 7 }, { "empty", 3, { 2, 0, 5 }, true, 0 },
        { "largest", 2, { INT64_MAX, 1 }, true, INT64_MAX }, { "overflow", 2, { INT64_MAX, 2 }, false, 0 },
        { "overflow by squares", 3, { 3037000500, 3037000500, 1 }, false, 0 }, { "negative", 2, { 3, -1 }, false, 0 },
        { "negative beside zero", 2, { 0, -1 }, false, 0 }, { "empty, but no strides", 3, { 0, INT64_MAX, 2 }, false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t volume = 77;
        if (shape_volume(cases[i].rank, cases[i].shape, &volume) != cases[i].ok || volume != (cases[i].ok ? cases[i].volume : 77))
            fail_msg("%s: %lld", cases[i].why, (long long)volume);
        if (cases[i].ok)
            assert_true(box_volume(cases[i].rank, cases[i].shape) == volume);
    }
}

TEST(boxes_must_lie_in_the_shape)
{
    static const struct { const char *why; int64_t start, extent, shape; bool ok;
    } cases[] = {
        { "whole", 0, 5, 5, true },
        { "empty at the end", 5, 0, 5, true },
        { "past the end", 3, 3, 5, false },
        { "starts outside", 6, 0, 5, false },
        { "negative start", -1, 2, 5, false },
        { "negative extent", 2, -1, 5, false },
        { "overflow", INT64_MAX, INT64_MAX, INT64_MAX, false },
        { "overflowing sum", 2, INT64_MAX, 5, false },
        { "largest", 0, INT64_MAX, INT64_MAX, true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t start[] = { 0, cases[i].start }, extent[] = { 1, cases[i].extent }, shape[] = { 1, cases[i].shape };
        int axis = 77;
        if (box_check(2, start, extent, shape, &axis) != cases[i].ok || axis != (cases[i].ok ? 77 : 1))
            fail_msg("%s", cases[i].why);
        assert_int_equal(box_check(2, start, extent, shape, NULL), cases[i].ok);
    }
    assert_true(box_check(0, NULL, NULL, NULL, NULL));
}

TEST(emptiness_and_equality)
{
    assert_false(box_is_empty(0, NULL));
    assert_true(box_is_empty(2, (int64_t[]){ 1, 0 }));
    assert_false(box_is_empty(2, (int64_t[]){ 1, 2 }));
    assert_true(box_equal(0, NULL, NULL, NULL, NULL));
    assert_true(box_equal(1, (int64_t[]){ 1 }, (int64_t[]){ 2 }, (int64_t[]){ 1 }, (int64_t[]){ 2 }));
    assert_false(box_equal(1, (int64_t[]){ 1 }, (int64_t[]){ 2 }, (int64_t[]){ 1 }, (int64_t[]){ 3 }));
    assert_false(box_equal(1, (int64_t[]){ 1 }, (int64_t[]){ 2 }, (int64_t[]){ 0 }, (int64_t[]){ 2 }));
}

TEST(intersection_of_intervals)
{
    static const struct { const char *why; int64_t a, a_extent, b, b_extent; bool overlap; int64_t start, extent; } cases[] = {
        { "identical", 0, 4, 0, 4, true, 0, 4 }, { "touching, not over", 0, 4, 4, 4, false, 0, 0 }, { "by one", 0, 5, 4, 4, true, 4, 1 },
        { "inside", 0, 9, 3, 2, true, 3, 2 }, { "empty inside", 0, 4, 2, 0, false, 0, 0 }, { "both empty", 2, 0, 2, 0, false, 0, 0 },
        { "apart", 0, 2, 5, 2, false, 0, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int swap = 0; swap < 2; swap++) {
            int64_t start = 0, extent = 0;
            const int64_t *a = swap ? &cases[i].b : &cases[i].a, *ax = swap ? &cases[i].b_extent : &cases[i].a_extent;
            const int64_t *b = swap ? &cases[i].a : &cases[i].b, *bx = swap ? &cases[i].a_extent : &cases[i].b_extent;
            bool overlap = box_intersect(1, a, ax, b, bx, &start, &extent);
            if (overlap != cases[i].overlap || (overlap && (start != cases[i].start || extent != cases[i].extent)))
                fail_msg("%s: %lld + %lld", cases[i].why, (long long)start, (long long)extent);
        }
    }
    assert_true(box_intersect(0, NULL, NULL, NULL, NULL, NULL, NULL)); /* two scalars share their element */
}

static bool is_inside(int rank, const int64_t *start, const int64_t *extent, const int64_t *point)
{
    for (int i = 0; i < rank; i++)
        if (point[i] < start[i] || point[i] >= start[i] + extent[i])
            return false;
    return true;
}

static int64_t random_in(uint64_t *seed, int64_t least, int64_t most)
{
    return least + (int64_t)(test_random(seed) % (uint64_t)(most - least + 1));
}

/* The oracle asks every point of the space. */
TEST(random_intersections_hold_the_points_in_both)
{
    uint64_t seed = 31;
    for (int round = 0; round < 5000; round++) {
        int64_t a[3], ax[3], b[3], bx[3], out[3], out_extent[3];
        int rank = (int)random_in(&seed, 1, 3);
        for (int i = 0; i < rank; i++) {
            a[i] = random_in(&seed, 0, 5), ax[i] = random_in(&seed, 0, 6 - a[i]);
            b[i] = random_in(&seed, 0, 5), bx[i] = random_in(&seed, 0, 6 - b[i]);
        }
        bool overlap = box_intersect(rank, a, ax, b, bx, out, out_extent), any = false;
        for (int code = 0; code < 6 * 6 * 6; code++) {
            int64_t point[3] = { code % 6, code / 6 % 6, code / 36 };
            bool both = is_inside(rank, a, ax, point) && is_inside(rank, b, bx, point);
            any |= both;
            if (both != (overlap && is_inside(rank, out, out_extent, point)))
                fail_msg("seed 31, round %d, point %lld %lld %lld", round, (long long)point[0], (long long)point[1], (long long)point[2]);
        }
        assert_int_equal(overlap, any);
    }
}

struct painting {
    int rank, boxes, stop_after;
    const int64_t *shape;
    int64_t begin, next_index;
    uint8_t hits[SMALL_VOLUME_MAX];
};

/* Counts each element of the box, in the row-major order that the run must have. */
static bool paint(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct painting *painting = context;
    int rank = painting->rank, bad_axis;
    assert_true(box_check(rank, start, extent, painting->shape, &bad_axis));
    assert_false(box_is_empty(rank, extent));
    assert_true(flat_index == painting->next_index);
    int64_t volume = box_volume(rank, extent);
    for (int64_t i = 0; i < volume; i++) {
        int64_t rest = i, flat = 0, scale = 1;
        for (int axis = rank - 1; axis >= 0; axis--) {
            flat += (start[axis] + rest % extent[axis]) * scale;
            rest /= extent[axis];
            scale *= painting->shape[axis];
        }
        assert_true(flat == painting->begin + painting->next_index + i);
        painting->hits[flat]++;
    }
    painting->next_index += volume;
    return ++painting->boxes != painting->stop_after;
}

TEST(random_flat_runs_are_cut_into_few_boxes_in_order)
{
    uint64_t seed = 77;
    static struct painting painting;
    for (int round = 0; round < 20000; round++) {
        int64_t shape[SMALL_RANK_MAX], volume;
        int rank = (int)random_in(&seed, 0, SMALL_RANK_MAX);
        for (int i = 0; i < rank; i++)
            shape[i] = random_in(&seed, round % 50 == 0 ? 0 : 1, 7);
        assert_true(shape_volume(rank, shape, &volume));
        int64_t begin = random_in(&seed, 0, volume), count = random_in(&seed, 0, volume - begin);
        memset(&painting, 0, sizeof(painting));
        painting = (struct painting){ .rank = rank, .shape = shape, .begin = begin };
        assert_true(flat_run_boxes(rank, shape, begin, count, paint, &painting));
        for (int64_t i = 0; i < volume; i++)
            assert_int_equal(painting.hits[i], i >= begin && i < begin + count);
        assert_true(painting.next_index == count);
        assert_true(painting.boxes <= (rank ? 2 * rank - 1 : 1));
        if (begin == 0 && count == volume && count)
            assert_int_equal(painting.boxes, 1);
        if (painting.boxes > 1) {
            int boxes = painting.boxes;
            painting = (struct painting){ .rank = rank, .shape = shape, .begin = begin, .stop_after = boxes - 1 };
            assert_false(flat_run_boxes(rank, shape, begin, count, paint, &painting));
            assert_int_equal(painting.boxes, boxes - 1);
        }
    }
}

static bool keep_last(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    int64_t *last = context;
    last[0] = start[0];
    last[1] = extent[0];
    last[2] = flat_index;
    return true;
}

TEST(flat_runs_work_at_the_ends_of_int64)
{
    int64_t shape[] = { INT64_C(1) << 31, INT64_C(1) << 31 }, last[3] = { 0 };
    int64_t volume = INT64_C(1) << 62;
    assert_true(flat_run_boxes(2, shape, volume - 1, 1, keep_last, last));
    assert_true(last[0] == shape[0] - 1 && last[1] == 1 && last[2] == 0);
    assert_true(flat_run_boxes(2, shape, 1, volume - 1, keep_last, last));
    assert_true(last[0] == 1 && last[1] == shape[0] - 1 && last[2] == shape[1] - 1);
    int64_t line[] = { INT64_MAX };
    assert_true(flat_run_boxes(1, line, 5, INT64_MAX - 5, keep_last, last));
    assert_true(last[0] == 5 && last[1] == INT64_MAX - 5);
}

TEST(row_major_strides)
{
    int64_t strides[RANK_MAX];
    strides_row_major(3, (int64_t[]){ 2, 3, 4 }, strides);
    assert_true(strides[0] == 12 && strides[1] == 4 && strides[2] == 1);
    strides_row_major(3, (int64_t[]){ 2, 0, 4 }, strides);
    assert_true(strides[0] == 4 && strides[1] == 4 && strides[2] == 1);
    static const struct { const char *why; int rank; int64_t shape[3], strides[3]; bool row_major; int64_t end;
    } cases[] = {
        { "row-major", 3, { 2, 3, 4 }, { 12, 4, 1 }, true, 24 },
        { "transposed", 2, { 2, 3 }, { 1, 2 }, false, 6 },
        { "gap", 2, { 2, 3 }, { 4, 1 }, false, 7 },
        { "axis of one element", 3, { 2, 1, 4 }, { 4, 99, 1 }, true, 8 },
        { "repeated", 2, { 5, 4 }, { 0, 1 }, false, 4 },
        { "empty", 2, { 0, 4 }, { 77, 77 }, true, 0 },
        { "scalar", 0, { 0 }, { 0 }, true, 1 },
        { "spread", 1, { 3 }, { 5 }, false, 11 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t end = -1;
        if (strides_are_row_major(cases[i].rank, cases[i].shape, cases[i].strides) != cases[i].row_major)
            fail_msg("%s", cases[i].why);
        assert_true(strides_span(cases[i].rank, cases[i].shape, cases[i].strides, &end));
        if (end != cases[i].end)
            fail_msg("%s: ends at %lld", cases[i].why, (long long)end);
    }
    int64_t end = 77;
    assert_false(strides_span(1, (int64_t[]){ 3 }, (int64_t[]){ INT64_MAX }, &end));
    assert_false(strides_span(2, (int64_t[]){ 2, 2 }, (int64_t[]){ INT64_MAX - 1, 1 }, &end));
    assert_false(strides_span(1, (int64_t[]){ 3 }, (int64_t[]){ -1 }, &end));
    assert_true(end == 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(volumes_are_exact_or_refused),
        cmocka_unit_test(boxes_must_lie_in_the_shape),
        cmocka_unit_test(emptiness_and_equality),
        cmocka_unit_test(intersection_of_intervals),
        cmocka_unit_test(random_intersections_hold_the_points_in_both),
        cmocka_unit_test(random_flat_runs_are_cut_into_few_boxes_in_order),
        cmocka_unit_test(flat_runs_work_at_the_ends_of_int64),
        cmocka_unit_test(row_major_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
