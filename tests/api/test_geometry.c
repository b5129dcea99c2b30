/* SPDX-License-Identifier: Apache-2.0 */
/* Indices, boxes and lists of shards, with the worked numbers of Paddle's utilities; and every flat range of small shapes, counted out. */
#include "check.h"

#include "reshard/geometry.h"

#include <stdbool.h>

#define V(...) ((const int64_t[]){ __VA_ARGS__ })

static reshard_error err;

static void check_vector(const char *what, size_t rank, const int64_t *found, const int64_t *expected)
{
    for (size_t i = 0; i < rank; i++) {
        if (found[i] != expected[i])
            fail_msg("%s: axis %zu is %lld, not %lld", what, i, (long long)found[i], (long long)expected[i]);
    }
}

/* ---- indices ---- */

TEST(an_index_has_a_number_and_a_number_an_index)
{
    static const struct {
        size_t rank;
        int64_t shape[4], index[4], flat;
    } cases[] = {
        { 3, { 2, 3, 4 }, { 1, 2, 3 }, 23 }, { 2, { 5, 7 }, { 4, 6 }, 34 },      { 2, { 5, 7 }, { 0, 0 }, 0 }, { 1, { 9 }, { 3 }, 3 },
        { 0, { 0 }, { 0 }, 0 },              { 3, { 3, 1, 4 }, { 2, 0, 3 }, 11 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t flat = -1, index[4] = { -1, -1, -1, -1 };
        CHECK_OK(reshard_ravel(cases[i].rank, cases[i].shape, cases[i].index, &flat, &err));
        assert_int_equal(flat, cases[i].flat);
        CHECK_OK(reshard_unravel(cases[i].rank, cases[i].shape, flat, index, &err));
        check_vector("unravel", cases[i].rank, index, cases[i].index);
    }
    CHECK_OK(reshard_ravel(0, NULL, NULL, &(int64_t){ 1 }, &err));
}

TEST(an_index_outside_of_its_shape_is_refused)
{
    int64_t flat = 7, index[2] = { 7, 7 }, wide[65] = { 0 };
    CHECK_FAILS(reshard_ravel(2, V(5, 7), V(4, 7), &flat, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "axis 1: index 7 is outside of 7"));
    assert_int_equal(flat, 0);
    CHECK_FAILS(reshard_ravel(2, V(5, 7), V(-1, 0), &flat, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_unravel(2, V(5, 7), 35, index, &err), RESHARD_ERR_USAGE);
    check_vector("cleared", 2, index, V(0, 0));
    CHECK_FAILS(reshard_unravel(2, V(5, 7), -1, index, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_unravel(2, V(0, 7), 0, index, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_ravel(2, V(INT64_MAX, 7), V(0, 0), &flat, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_ravel(65, wide, wide, &flat, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "above 64"));
}

/* ---- flat ranges ---- */

TEST(the_smallest_box_of_a_flat_range)
{
    static const struct {
        size_t rank;
        int64_t shape[4], range[2], start[4], end[4], relative[2], volume;
    } cases[] = {
        { 2, { 4, 3 }, { 0, 12 }, { 0, 0 }, { 4, 3 }, { 0, 12 }, 12 },
        { 2, { 4, 3 }, { 3, 6 }, { 1, 0 }, { 2, 3 }, { 0, 3 }, 3 },
        { 2, { 4, 3 }, { 4, 5 }, { 1, 1 }, { 2, 2 }, { 0, 1 }, 1 },
        { 2, { 4, 3 }, { 1, 3 }, { 0, 1 }, { 1, 3 }, { 0, 2 }, 2 },
        { 2, { 4, 3 }, { 5, 8 }, { 1, 0 }, { 3, 3 }, { 2, 5 }, 6 },
        { 2, { 4, 3 }, { 0, 5 }, { 0, 0 }, { 2, 3 }, { 0, 5 }, 6 },
        { 2, { 4, 3 }, { 8, 12 }, { 2, 0 }, { 4, 3 }, { 2, 6 }, 6 },
        { 3, { 2, 3, 4 }, { 5, 7 }, { 0, 1, 1 }, { 1, 2, 3 }, { 0, 2 }, 2 },
        { 3, { 2, 3, 4 }, { 2, 10 }, { 0, 0, 0 }, { 1, 3, 4 }, { 2, 10 }, 12 },
        { 3, { 2, 3, 4 }, { 11, 13 }, { 0, 0, 0 }, { 2, 3, 4 }, { 11, 13 }, 24 },
        { 3, { 2, 3, 4 }, { 12, 24 }, { 1, 0, 0 }, { 2, 3, 4 }, { 0, 12 }, 12 },
        { 3, { 2, 3, 4 }, { 14, 18 }, { 1, 0, 0 }, { 2, 2, 4 }, { 2, 6 }, 8 },
        { 1, { 7 }, { 2, 5 }, { 2 }, { 5 }, { 0, 3 }, 3 },
        { 3, { 3, 4, 5 }, { 22, 27 }, { 1, 0, 0 }, { 2, 2, 5 }, { 2, 7 }, 10 },
        { 3, { 3, 4, 5 }, { 18, 38 }, { 0, 0, 0 }, { 2, 4, 5 }, { 18, 38 }, 40 },
        { 4, { 2, 2, 3, 4 }, { 13, 22 }, { 0, 1, 0, 0 }, { 1, 2, 3, 4 }, { 1, 10 }, 12 },
        { 4, { 2, 2, 3, 4 }, { 14, 34 }, { 0, 0, 0, 0 }, { 2, 2, 3, 4 }, { 14, 34 }, 48 },
        { 2, { 100, 100 }, { 3968, 10000 }, { 39, 0 }, { 100, 100 }, { 68, 6100 }, 6100 },
        { 2, { 8, 16 }, { 17, 31 }, { 1, 1 }, { 2, 15 }, { 0, 14 }, 14 },
        { 3, { 2, 2, 2 }, { 0, 5 }, { 0, 0, 0 }, { 2, 2, 2 }, { 0, 5 }, 8 },
        { 4, { 64, 3, 7, 7 }, { 0, 5000 }, { 0, 0, 0, 0 }, { 35, 3, 7, 7 }, { 0, 5000 }, 5145 },
        { 0, { 0 }, { 0, 1 }, { 0 }, { 0 }, { 0, 1 }, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t start[4], extent[4], relative[2], volume = 1;
        CHECK_OK(reshard_minimal_box(cases[i].rank, cases[i].shape, cases[i].range[0], cases[i].range[1], start, extent, &err));
        check_vector("start", cases[i].rank, start, cases[i].start);
        CHECK_OK(reshard_range_in_box(cases[i].rank, cases[i].shape, start, extent, cases[i].range[0], cases[i].range[1], &relative[0],
                                      &relative[1], &err));
        check_vector("relative range", 2, relative, cases[i].relative);
        for (size_t axis = 0; axis < cases[i].rank; axis++) {
            volume *= extent[axis];
            extent[axis] += start[axis];
        }
        check_vector("end", cases[i].rank, extent, cases[i].end);
        assert_int_equal(volume, cases[i].volume);
    }
}

/* Every element of the range lies in the box, where the relative range says, and on each face of the box lies one of them. */
static void check_range(size_t rank, const int64_t *shape, int64_t begin, int64_t end)
{
    int64_t start[4], extent[4], first[4], last[4], box_begin, box_end, place;
    CHECK_OK(reshard_minimal_box(rank, shape, begin, end, start, extent, &err));
    CHECK_OK(reshard_range_in_box(rank, shape, start, extent, begin, end, &box_begin, &box_end, &err));
    for (int64_t flat = begin; flat < end; flat++) {
        int64_t index[4];
        CHECK_OK(reshard_unravel(rank, shape, flat, index, &err));
        for (size_t axis = 0; axis < rank; axis++) {
            first[axis] = flat == begin || index[axis] < first[axis] ? index[axis] : first[axis];
            last[axis] = flat == begin || index[axis] > last[axis] ? index[axis] : last[axis];
            index[axis] -= start[axis];
        }
        CHECK_OK(reshard_ravel(rank, extent, index, &place, &err));
        assert_int_equal(place, box_begin + flat - begin);
    }
    assert_int_equal(box_end - box_begin, end - begin);
    for (size_t axis = 0; axis < rank; axis++)
        last[axis] -= first[axis] - 1;
    check_vector("smallest start", rank, start, first);
    check_vector("smallest extent", rank, extent, last);
}

TEST(every_flat_range_of_small_shapes)
{
    static const struct {
        size_t rank;
        int64_t shape[4];
    } shapes[] = { { 1, { 5 } },       { 2, { 4, 3 } },       { 3, { 2, 2, 2 } },   { 3, { 2, 3, 2 } },
                   { 3, { 3, 4, 5 } }, { 4, { 2, 2, 2, 2 } }, { 3, { 3, 1, 4 } } };
    int tried = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int64_t volume = 1;
        for (size_t axis = 0; axis < shapes[i].rank; axis++)
            volume *= shapes[i].shape[axis];
        for (int64_t begin = 0; begin < volume; begin++) {
            for (int64_t end = begin + 1; end <= volume; end++, tried++)
                check_range(shapes[i].rank, shapes[i].shape, begin, end);
        }
    }
    assert_int_equal(tried, 15 + 78 + 36 + 78 + 1830 + 136 + 78);
}

TEST(ranges_that_are_none)
{
    int64_t start[2], extent[2], begin = 5, end = 5;
    CHECK_FAILS(reshard_minimal_box(2, V(4, 3), 3, 3, start, extent, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_minimal_box(2, V(4, 3), 3, 13, start, extent, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "12 elements"));
    CHECK_FAILS(reshard_minimal_box(2, V(4, 3), -1, 3, start, extent, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_range_in_box(2, V(4, 3), V(0, 1), V(4, 2), 1, 3, &begin, &end, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "not consecutive"));
    CHECK_FAILS(reshard_range_in_box(2, V(4, 3), V(1, 0), V(2, 3), 2, 5, &begin, &end, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "the box, which is [3, 9)"));
    CHECK_FAILS(reshard_range_in_box(2, V(4, 3), V(1, 0), V(2, 3), 3, 10, &begin, &end, &err), RESHARD_ERR_USAGE);
    assert_int_equal(end, 0);
    CHECK_FAILS(reshard_range_in_box(2, V(4, 3), V(3, 0), V(2, 3), 9, 12, &begin, &end, &err), RESHARD_ERR_USAGE);
}

/* ---- overlaps ---- */

TEST(what_two_boxes_have_in_common)
{
    int overlaps = 0;
    int64_t start[2], extent[2], in_a[2], in_b[2];
    CHECK_OK(reshard_overlap(2, V(0, 0), V(4, 4), V(2, 2), V(4, 4), &overlaps, start, extent, in_a, in_b, &err));
    assert_int_equal(overlaps, 1);
    check_vector("start", 2, start, V(2, 2));
    check_vector("extent", 2, extent, V(2, 2));
    check_vector("in a", 2, in_a, V(2, 2));
    check_vector("in b", 2, in_b, V(0, 0));
    CHECK_OK(reshard_overlap(2, V(6, 0), V(2, 8), V(4, 0), V(4, 8), &overlaps, start, extent, in_a, in_b, &err));
    check_vector("start", 2, start, V(6, 0));
    check_vector("extent", 2, extent, V(2, 8));
    check_vector("in b", 2, in_b, V(2, 0));
    CHECK_OK(reshard_overlap(2, V(0, 8), V(16, 8), V(0, 0), V(16, 12), &overlaps, start, extent, in_a, in_b, &err));
    check_vector("extent", 2, extent, V(16, 4));
    check_vector("in a", 2, in_a, V(0, 0));
    check_vector("in b", 2, in_b, V(0, 8));
    CHECK_OK(reshard_overlap(2, V(0, 0), V(4, 4), V(4, 0), V(4, 4), &overlaps, start, extent, in_a, in_b, &err));
    assert_int_equal(overlaps, 0);
    check_vector("cleared", 2, extent, V(0, 0));
    CHECK_OK(reshard_overlap(0, NULL, NULL, NULL, NULL, &overlaps, NULL, NULL, NULL, NULL, &err));
    assert_int_equal(overlaps, 1);
    CHECK_FAILS(reshard_overlap(2, V(0, 0), V(4, 4), V(0, INT64_MAX), V(4, 4), &overlaps, start, extent, in_a, in_b, &err),
                RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "box b, axis 1"));
}

/* ---- shards ---- */

static reshard_shard shard_of(const char *key, size_t rank, const int64_t *shape, const int64_t *start, const int64_t *extent, void *data)
{
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = "float32";
    shard.rank = rank;
    shard.global_shape = shape;
    shard.start = start;
    shard.extent = extent;
    shard.data = data;
    return shard;
}

TEST(a_descriptor_is_a_shard_without_values)
{
    float value = 1;
    reshard_shard shard = shard_of("linear.weight", 2, V(1024, 2048), V(0, 512), V(1024, 512), &value), found = RESHARD_SHARD_INIT;
    shard.dtype = "paddle.bfloat16";
    shard.is_flattened = 1;
    shard.flat_end = 5;
    CHECK_OK(reshard_shard_describe(&shard, &found, &err));
    assert_string_equal(found.dtype, "BF16");
    assert_memory_equal(found.key.data, "linear.weight", found.key.size);
    check_vector("start", 2, found.start, V(0, 512));
    assert_null(found.data);
    assert_int_equal(found.is_flattened, 0);
    shard.dtype = "paddle.float33";
    CHECK_FAILS(reshard_shard_describe(&shard, &found, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "paddle.float33"));
    assert_null(found.global_shape);
}

TEST(a_shard_that_leaves_its_tensor_is_refused)
{
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    reshard_shard shard = shard_of("w", 2, V(4, 4), V(2, 0), V(3, 4), NULL);
    CHECK_FAILS(reshard_shards_add(shards, &shard, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "axis 0: offset 2 and extent 3 leave the global extent of 4"));
    shard.extent = V(2, 4);
    shard.is_flattened = 1;
    shard.flat_begin = 3;
    shard.flat_end = 9;
    CHECK_FAILS(reshard_shards_add(shards, &shard, &err), RESHARD_ERR_USAGE);
    shard.flat_end = 3;
    CHECK_FAILS(reshard_shards_add(shards, &shard, &err), RESHARD_ERR_USAGE);
    shard.flat_end = 8;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    shard.dtype = NULL;
    CHECK_FAILS(reshard_shards_add(shards, &shard, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_shards_count(shards), 1);
    reshard_shards_free(shards);
}

/* ---- slices ---- */

static void fill(float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(i + 1);
}

/* From two ranks to four, as the founding documents tell it: the third rank of four takes the upper half of the second of two. */
TEST(a_slice_goes_from_one_layout_to_another)
{
    float from[32], to[16] = { 0 };
    uint64_t elements = 9;
    fill(from, 32);
    const reshard_shard source = shard_of("w", 2, V(8, 8), V(4, 0), V(4, 8), from);
    const reshard_shard target = shard_of("w", 2, V(8, 8), V(4, 0), V(2, 8), to);
    reshard_slice_copy copy = RESHARD_SLICE_COPY_INIT;
    copy.source = copy.source_region = &source;
    copy.target = copy.target_region = &target;
    copy.source_region = &target;
    CHECK_OK(reshard_assign_slice(&copy, &elements, &err));
    assert_int_equal(elements, 16);
    assert_memory_equal(to, from, sizeof(to));
    const reshard_shard elsewhere = shard_of("w", 2, V(8, 8), V(0, 0), V(4, 8), NULL);
    copy.source_region = &elsewhere;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "source: the region and the shard of 'w' do not meet"));
    assert_int_equal(elements, 0);
    const reshard_shard smaller = shard_of("w", 2, V(8, 8), V(4, 0), V(1, 8), NULL);
    copy.source_region = &smaller;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "axis 0: the source's slice has 1 there, the target's 2"));
    copy.source = copy.source_region = &elsewhere;
    elements = 9;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "no values"));
    assert_int_equal(elements, 0);
}

TEST(a_slice_is_permuted_and_cast_in_the_order_given)
{
    float from[6];
    uint16_t to[6] = { 0 };
    uint64_t elements;
    fill(from, 6);
    reshard_shard source = shard_of("w", 2, V(2, 3), V(0, 0), V(2, 3), from), target = shard_of("v", 2, V(3, 2), V(0, 0), V(3, 2), to);
    const reshard_slice_operation operations[] = { { NULL, V(1, 0) }, { "bfloat16", NULL } };
    reshard_slice_copy copy = RESHARD_SLICE_COPY_INIT;
    target.dtype = "bfloat16";
    copy.source = copy.source_region = &source;
    copy.target = copy.target_region = &target;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "F32 behind its operations, the target BF16"));
    copy.operations = operations;
    copy.operation_count = 2;
    CHECK_OK(reshard_assign_slice(&copy, &elements, &err));
    static const uint16_t expected[] = { 0x3F80, 0x4080, 0x4000, 0x40A0, 0x4040, 0x40C0 }; /* 1 4, 2 5, 3 6 */
    assert_memory_equal(to, expected, sizeof(to));
    static const int64_t wrong[][2] = { { 1, 1 }, { 0, 0 }, { -1, 0 }, { 1, 2 } };
    copy.operation_count = 1;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const reshard_slice_operation permutation = { NULL, wrong[i] };
        copy.operations = &permutation;
        CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "of a permutation of 2 axes"));
    }
    const reshard_slice_operation none[] = { { NULL, NULL } };
    copy.operations = none;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
}

/* (3, 4, 5), in two flat runs that begin and end within rows, to boxes and to other runs. */
TEST(slices_of_flattened_shards)
{
    float whole[60], box[40] = { 0 }, run[20] = { 0 };
    uint64_t elements, sum = 0;
    fill(whole, 60);
    reshard_shard sources[2] = { shard_of("w", 3, V(3, 4, 5), V(0, 0, 0), V(3, 4, 5), whole),
                                 shard_of("w", 3, V(3, 4, 5), V(0, 0, 0), V(3, 4, 5), whole + 18) };
    sources[0].is_flattened = sources[1].is_flattened = 1;
    sources[0].flat_end = sources[1].flat_begin = 18;
    sources[1].flat_end = 60;
    const reshard_shard target = shard_of("w", 3, V(3, 4, 5), V(0, 0, 0), V(2, 4, 5), box);
    reshard_slice_copy copy = RESHARD_SLICE_COPY_INIT;
    copy.target = copy.target_region = &target;
    for (int i = 0; i < 2; i++, sum += elements) {
        copy.source = &sources[i];
        copy.source_region = &target;
        CHECK_OK(reshard_assign_slice(&copy, &elements, &err));
    }
    assert_int_equal(sum, 40);
    assert_memory_equal(box, whole, sizeof(box));
    reshard_shard flat = target;
    flat.data = run;
    flat.is_flattened = 1;
    flat.flat_begin = 13;
    flat.flat_end = 33;
    copy.target = &flat;
    sum = 0;
    for (int i = 0; i < 2; i++, sum += elements) {
        copy.source = &sources[i];
        CHECK_OK(reshard_assign_slice(&copy, &elements, &err));
    }
    assert_int_equal(sum, 20);
    assert_memory_equal(run, whole + 13, sizeof(run));
}

static void check_refused(const reshard_shard *source, const reshard_shard *source_region, const reshard_shard *target,
                          const reshard_shard *target_region, const char *why)
{
    const reshard_slice_copy copy = { sizeof(copy), source_region, source, target_region, target, NULL, 0, 0 };
    uint64_t elements = 9;
    CHECK_FAILS(reshard_assign_slice(&copy, &elements, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, why);
    assert_int_equal(elements, 0);
}

TEST(a_slice_of_other_axes_is_refused)
{
    float values[8] = { 0 };
    const reshard_shard row = shard_of("r", 1, V(8), V(0), V(8), values), matrix = shard_of("m", 2, V(2, 4), V(0, 0), V(2, 4), values),
                        none = shard_of("n", 2, V(2, 4), V(0, 0), V(2, 0), values);
    check_refused(&matrix, &row, &matrix, &matrix, "source: the region has 1 axes, the shard of 'm' has 2");
    check_refused(&row, &matrix, &matrix, &matrix, "source: the region has 2 axes, the shard of 'r' has 1");
    check_refused(&matrix, &matrix, &row, &matrix, "target: the region has 2 axes, the shard of 'r' has 1");
    check_refused(&row, &row, &matrix, &matrix, "the source's slice has 1 axes, the target's 2");
    check_refused(&matrix, &none, &matrix, &matrix, "source: the region and the shard of 'm' do not meet");
    check_refused(&none, &matrix, &matrix, &matrix, "source: the region and the shard of 'n' do not meet");
}

TEST(a_slice_without_axes)
{
    float from = 3, to = 0;
    uint64_t elements;
    const reshard_shard source = shard_of("s", 0, NULL, NULL, NULL, &from), target = shard_of("s", 0, NULL, NULL, NULL, &to);
    const reshard_slice_copy copy = { sizeof(copy), &source, &source, &target, &target, NULL, 0, 0 };
    CHECK_OK(reshard_assign_slice(&copy, &elements, &err));
    assert_int_equal(elements, 1);
    assert_true(to == 3);
}

/* ---- lists ---- */

static void add(reshard_shards *shards, const char *key, int64_t start)
{
    const reshard_shard shard = shard_of(key, 1, V(10), V(start), V(1), NULL);
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
}

TEST(lists_of_ranks_are_put_together_by_key)
{
    reshard_shards *ranks[3], *merged = NULL;
    for (int i = 0; i < 3; i++)
        CHECK_OK(reshard_shards_new(&ranks[i], &err));
    add(ranks[0], "p1", 0);
    add(ranks[0], "p1", 1);
    add(ranks[1], "p2", 3);
    add(ranks[1], "p1", 2);
    add(ranks[2], "p2", 4);
    CHECK_OK(reshard_shards_merge((const reshard_shards *const *)ranks, 3, &merged, &err));
    for (int i = 0; i < 3; i++)
        reshard_shards_free(ranks[i]);
    static const char *const keys[] = { "p1", "p1", "p1", "p2", "p2" };
    assert_int_equal(reshard_shards_count(merged), 5);
    for (size_t i = 0; i < 5; i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        CHECK_OK(reshard_shards_at(merged, i, &shard));
        assert_memory_equal(shard.key.data, keys[i], 2);
        assert_int_equal(shard.start[0], i);
    }
    reshard_shard past = RESHARD_SHARD_INIT;
    CHECK_FAILS(reshard_shards_at(merged, 5, &past), RESHARD_ERR_USAGE);
    reshard_shards_free(merged);
    CHECK_OK(reshard_shards_merge(NULL, 0, &merged, &err));
    assert_int_equal(reshard_shards_count(merged), 0);
    reshard_shards_free(merged);
}

static reshard_shards *tiling(const int64_t *shape, size_t count, const int64_t (*boxes)[4])
{
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < count; i++) {
        const reshard_shard shard = shard_of("w", 2, shape, boxes[i], boxes[i] + 2, NULL);
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    return shards;
}

TEST(every_tiling_is_seen_as_what_it_is)
{
    static const struct {
        int64_t shape[2];
        size_t count;
        int64_t boxes[5][4]; /* start and extent */
        const char *missing;
    } cases[] = {
        { { 4, 4 }, 2, { { 0, 0, 2, 4 }, { 2, 0, 2, 4 } }, NULL },
        { { 4, 4 }, 2, { { 0, 0, 2, 4 }, { 3, 0, 1, 4 } }, "missing on axis 0: [2, 3)" },
        { { 4, 4 }, 2, { { 0, 0, 3, 4 }, { 2, 0, 2, 4 } }, NULL },
        { { 2, 4 }, 3, { { 0, 0, 2, 1 }, { 0, 1, 1, 3 }, { 1, 1, 1, 3 } }, NULL },
        { { 4, 4 }, 5, { { 0, 0, 1, 3 }, { 0, 3, 3, 1 }, { 3, 1, 1, 3 }, { 1, 0, 3, 1 }, { 1, 1, 2, 2 } }, NULL },
        { { 4, 4 }, 4, { { 0, 0, 1, 3 }, { 0, 3, 3, 1 }, { 3, 1, 1, 3 }, { 1, 0, 3, 1 } }, "missing on axis 1: [1, 3)" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_shards *shards = tiling(cases[i].shape, cases[i].count, cases[i].boxes);
        memset(&err, 0, sizeof(err));
        assert_int_equal(reshard_shards_check(shards, NULL, &err), cases[i].missing ? RESHARD_ERR_USAGE : RESHARD_OK);
        if (cases[i].missing && !strstr(err.hint, cases[i].missing))
            fail_msg("%zu: %s", i, err.hint);
        reshard_shards_free(shards);
    }
}

TEST(source_and_target_must_go_together)
{
    static const int64_t boxes[2][4] = { { 0, 0, 2, 4 }, { 2, 0, 2, 4 } };
    reshard_shards *source = tiling(V(4, 4), 2, boxes), *target;
    reshard_shard wanted = shard_of("w", 2, V(4, 4), V(1, 0), V(2, 4), NULL);
    CHECK_OK(reshard_shards_new(&target, &err));
    CHECK_OK(reshard_shards_add(target, &wanted, &err));
    CHECK_OK(reshard_shards_check(source, target, &err));
    wanted.global_shape = V(4, 5);
    CHECK_OK(reshard_shards_add(target, &wanted, &err));
    CHECK_FAILS(reshard_shards_check(source, target, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "target 'w': shards do not agree on the global shape"));
    CHECK_FAILS(reshard_shards_check(target, NULL, &err), RESHARD_ERR_USAGE);
    reshard_shards_free(target);
    CHECK_OK(reshard_shards_new(&target, &err));
    CHECK_OK(reshard_shards_add(target, &wanted, &err));
    CHECK_FAILS(reshard_shards_check(source, target, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "source and target do not agree"));
    wanted.key.data = "v";
    CHECK_OK(reshard_shards_add(target, &wanted, &err));
    wanted.key.data = "w";
    wanted.global_shape = V(4, 4);
    wanted.dtype = "float16";
    CHECK_OK(reshard_shards_add(source, &wanted, &err));
    CHECK_FAILS(reshard_shards_check(source, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "a shard is F32, another F16"));
    reshard_shards_free(target);
    reshard_shards_free(source);
    source = tiling(V(4, 4), 2, boxes);
    CHECK_OK(reshard_shards_new(&target, &err));
    wanted.key.data = "v";
    CHECK_OK(reshard_shards_add(target, &wanted, &err));
    CHECK_FAILS(reshard_shards_check(source, target, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "target 'v': the source has no such key"));
    reshard_shards_free(target);
    reshard_shards_free(source);
}

TEST(flattened_shards_cover_by_their_ranges)
{
    reshard_shards *shards;
    reshard_shard shard = shard_of("w", 2, V(4, 3), V(0, 0), V(4, 3), NULL);
    CHECK_OK(reshard_shards_new(&shards, &err));
    shard.is_flattened = 1;
    shard.flat_end = 5;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    shard.flat_begin = 6;
    shard.flat_end = 12;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    CHECK_FAILS(reshard_shards_check(shards, NULL, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.hint, "missing on axis 0: [1, 2)\nmissing on axis 1: [2, 3)");
    shard.flat_begin = 5;
    shard.flat_end = 6;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    CHECK_OK(reshard_shards_check(shards, NULL, &err));
    reshard_shards_free(shards);
}

/* ---- a rank's tensors ---- */

#define NAME(text) { text, sizeof(text) - 1 }

TEST(split_rules_make_a_sharded_state_dict)
{
    const reshard_local_tensor tensors[] = {
        { NAME("weight"), "float32", 2, V(256, 512), NULL, NULL },
        { NAME("bias"), "float32", 1, V(512), NULL, NULL },
        { NAME("norm"), "float32", 1, V(256), NULL, NULL },
    };
    reshard_split_rule rules[] = { { NAME("weight"), 1 }, { NAME("bias"), 0 }, { NAME("absent"), 7 } };
    reshard_split_input input = RESHARD_SPLIT_INPUT_INIT;
    reshard_shards *shards = NULL;
    input.tensors = tensors;
    input.tensor_count = 3;
    input.rules = rules;
    input.rule_count = 3;
    input.prefix = (reshard_str)NAME("mlp.");
    input.part = 2;
    input.parts = 4;
    CHECK_OK(reshard_shards_split(&input, &shards, &err));
    assert_int_equal(reshard_shards_count(shards), 3);
    reshard_shard shard = RESHARD_SHARD_INIT;
    CHECK_OK(reshard_shards_at(shards, 0, &shard));
    assert_memory_equal(shard.key.data, "mlp.weight", 10);
    check_vector("shape", 2, shard.global_shape, V(256, 2048));
    check_vector("start", 2, shard.start, V(0, 1024));
    check_vector("extent", 2, shard.extent, V(256, 512));
    CHECK_OK(reshard_shards_at(shards, 1, &shard));
    check_vector("bias", 1, shard.start, V(1024));
    CHECK_OK(reshard_shards_at(shards, 2, &shard));
    check_vector("whole", 1, shard.global_shape, V(256));
    reshard_shards_free(shards);
    input.part = input.parts = 0; /* a group of one */
    CHECK_OK(reshard_shards_split(&input, &shards, &err));
    CHECK_OK(reshard_shards_at(shards, 0, &shard));
    check_vector("one rank", 2, shard.global_shape, V(256, 512));
    reshard_shards_free(shards);
    for (int64_t axis = -1; axis <= 2; axis += 3) {
        rules[0].axis = axis;
        CHECK_FAILS(reshard_shards_split(&input, &shards, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "weight': the rule splits axis"));
        assert_null(shards);
    }
    rules[0].axis = 1;
    input.part = input.parts = 4;
    CHECK_FAILS(reshard_shards_split(&input, &shards, &err), RESHARD_ERR_USAGE);
    input.part = 0;
    input.parts = INT64_MAX;
    CHECK_FAILS(reshard_shards_split(&input, &shards, &err), RESHARD_ERR_USAGE);
}

TEST(a_state_dict_holds_shards_or_tensors)
{
    const reshard_shard shard = shard_of("w", 1, V(4), V(0), V(4), NULL);
    reshard_local_tensor tensors[] = { { NAME("weight"), "float32", 1, V(4), NULL, &shard },
                                       { NAME("bias"), "float32", 1, V(4), NULL, NULL } };
    int64_t kind = 7;
    CHECK_FAILS(reshard_state_kind(tensors, sizeof(tensors[0]), 2, &kind, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, "a state dict holds shards or tensors, not both: 'weight' is a shard, 'bias' a tensor");
    assert_int_equal(kind, 0);
    CHECK_OK(reshard_state_kind(tensors, sizeof(tensors[0]), 1, &kind, &err));
    assert_int_equal(kind, RESHARD_STATE_SHARDED);
    tensors[0].shard = NULL;
    CHECK_OK(reshard_state_kind(tensors, sizeof(tensors[0]), 2, &kind, &err));
    assert_int_equal(kind, RESHARD_STATE_PLAIN);
    CHECK_OK(reshard_state_kind(NULL, 0, 0, &kind, &err));
    assert_int_equal(kind, RESHARD_STATE_EMPTY);
    CHECK_OK(reshard_state_kinds_join(V(0, 1, 0, 1), 4, &kind, &err));
    assert_int_equal(kind, RESHARD_STATE_SHARDED);
    CHECK_OK(reshard_state_kinds_join(V(0, -1), 2, &kind, &err));
    assert_int_equal(kind, RESHARD_STATE_PLAIN);
    CHECK_FAILS(reshard_state_kinds_join(V(0, -1, 1), 3, &kind, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, "rank 2 holds shards, rank 1 plain tensors");
    CHECK_FAILS(reshard_state_kinds_join(V(1, 1, -1), 3, &kind, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, "rank 0 holds shards, rank 2 plain tensors");
    CHECK_FAILS(reshard_state_kinds_join(V(2), 1, &kind, &err), RESHARD_ERR_USAGE);
}

TEST(nothing_where_something_is_needed)
{
    int64_t number;
    int flag;
    reshard_shards *shards;
    const reshard_shard shard = shard_of("w", 1, V(4), V(0), V(4), NULL), boxless = shard_of("w", 1, V(4), NULL, V(4), NULL);
    CHECK_FAILS(reshard_ravel(1, NULL, V(1), &number, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_ravel(1, V(1), NULL, &number, NULL), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_ravel(1, V(1), V(0), NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_unravel(1, V(1), 0, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_minimal_box(1, V(1), 0, 1, NULL, &number, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_range_in_box(1, V(1), V(0), NULL, 0, 1, &number, &number, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_overlap(1, V(0), V(1), V(0), NULL, &flag, NULL, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_overlap(1, V(0), V(1), V(0), V(1), NULL, NULL, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_shard_describe(&shard, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_assign_slice(NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_shards_new(NULL, &err), RESHARD_ERR_USAGE);
    CHECK_OK(reshard_shards_new(&shards, &err));
    CHECK_FAILS(reshard_shards_add(shards, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_shards_add(NULL, &shard, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_shards_add(shards, &boxless, &err), RESHARD_ERR_USAGE);
    reshard_shards_free(shards);
    CHECK_FAILS(reshard_shards_merge(NULL, 1, &shards, &err), RESHARD_ERR_USAGE);
    assert_null(shards);
    CHECK_FAILS(reshard_shards_check(NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_shards_split(NULL, &shards, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_state_kind(NULL, 0, 1, &number, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_state_kinds_join(NULL, 1, &number, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_shards_count(NULL), 0);
    reshard_shards_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_has_a_number_and_a_number_an_index),
        cmocka_unit_test(an_index_outside_of_its_shape_is_refused),
        cmocka_unit_test(the_smallest_box_of_a_flat_range),
        cmocka_unit_test(every_flat_range_of_small_shapes),
        cmocka_unit_test(ranges_that_are_none),
        cmocka_unit_test(what_two_boxes_have_in_common),
        cmocka_unit_test(a_descriptor_is_a_shard_without_values),
        cmocka_unit_test(a_shard_that_leaves_its_tensor_is_refused),
        cmocka_unit_test(a_slice_goes_from_one_layout_to_another),
        cmocka_unit_test(a_slice_is_permuted_and_cast_in_the_order_given),
        cmocka_unit_test(slices_of_flattened_shards),
        cmocka_unit_test(a_slice_of_other_axes_is_refused),
        cmocka_unit_test(a_slice_without_axes),
        cmocka_unit_test(lists_of_ranks_are_put_together_by_key),
        cmocka_unit_test(every_tiling_is_seen_as_what_it_is),
        cmocka_unit_test(source_and_target_must_go_together),
        cmocka_unit_test(flattened_shards_cover_by_their_ranges),
        cmocka_unit_test(split_rules_make_a_sharded_state_dict),
        cmocka_unit_test(a_state_dict_holds_shards_or_tensors),
        cmocka_unit_test(nothing_where_something_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
