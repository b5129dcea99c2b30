/* SPDX-License-Identifier: Apache-2.0 */
/* How strided bytes are read: which axes are read over, which are walked, and where each block begins. */
#include "check.h"

#include "engine/engine_blocks.h"

/* Elements of float32; strides in bytes. */
static struct copy_spec spec_of(int rank, const int64_t *extent, const int64_t *source, const int64_t *target)
{
    struct copy_spec spec = { .rank = rank, .source_dtype = DTYPE_F32, .target_dtype = DTYPE_F32 };
    for (int axis = 0; axis < rank; axis++) {
        spec.extent[axis] = extent[axis];
        spec.source_stride[axis] = source[axis];
        spec.target_stride[axis] = target[axis];
    }
    return spec;
}

#define SPEC(rank, ...) spec_of(rank, __VA_ARGS__)
#define N(...) ((const int64_t[]){ __VA_ARGS__ })

TEST(bytes_reach_from_the_first_element_to_the_end_of_the_last)
{
    struct copy_spec spec = SPEC(2, N(3, 5), N(100, 4), N(20, 4));
    spec.target_dtype = DTYPE_F64;
    assert_int_equal(spec_source_bytes(&spec), 4 + 2 * 100 + 4 * 4);
    assert_int_equal(spec_target_bytes(&spec), 8 + 2 * 20 + 4 * 4);
    spec.rank = 0;
    assert_int_equal(spec_source_bytes(&spec), 4);
}

TEST(runs_are_what_is_contiguous_on_both_sides)
{
    static const struct {
        int64_t extent[2], source[2], target[2];
        bool is_run;
        uint64_t bytes, count;
    } cases[] = {
        { { 3, 5 }, { 100, 4 }, { 20, 4 }, true, 20, 3 },
        { { 3, 5 }, { 100, 8 }, { 20, 4 }, true, 4, 15 },  /* gaps at the source */
        { { 3, 5 }, { 100, 4 }, { 40, 8 }, true, 4, 15 },  /* and at the target */
        { { 3, 5 }, { 4, 12 }, { 20, 4 }, true, 4, 15 },   /* transposed */
        { { 3, 5 }, { 0, 4 }, { 20, 4 }, false, 0, 0 },    /* one run that is read again and again */
        { { 3, 5 }, { 100, 0 }, { 20, 4 }, false, 0, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct copy_spec spec = SPEC(2, cases[i].extent, cases[i].source, cases[i].target);
        uint64_t bytes, count;
        bool is_run = spec_runs(&spec, &bytes, &count);
        if (is_run != cases[i].is_run || (is_run && (bytes != cases[i].bytes || count != cases[i].count)))
            fail_msg("case %zu: %d, %llu runs of %llu", i, is_run, (unsigned long long)count, (unsigned long long)bytes);
    }
    struct copy_spec changing = SPEC(2, cases[0].extent, cases[0].source, cases[0].target);
    uint64_t bytes, count;
    changing.flags = COPY_SWAP_SOURCE;
    assert_false(spec_runs(&changing, &bytes, &count));
    changing.flags = 0;
    changing.target_dtype = DTYPE_I32;
    assert_false(spec_is_identity(&changing));
    assert_false(spec_runs(&changing, &bytes, &count));
    changing.rank = 0;
    changing.target_dtype = DTYPE_F32;
    assert_true(spec_runs(&changing, &bytes, &count));
    assert_int_equal(bytes, 4);
    assert_int_equal(count, 1);
}

/* Gaps up to GAP_ALWAYS are read over; larger ones, up to GAP_MAX, where enough of what is read is wanted. */
TEST(gaps_that_are_small_or_well_filled_are_read_over)
{
    static const struct {
        int64_t extent, stride;
        unsigned fill;
        uint64_t bytes, count;
    } cases[] = {
        { 10, 4, 2, 40, 1 },
        { 10, 2, 2, 22, 1 }, /* elements that overlap */
        { 10, 4 + GAP_ALWAYS, 8, 4 + 9 * (4 + GAP_ALWAYS), 1 },
        { 10, 5 + GAP_ALWAYS, 8, 4, 10 },
        { 1, 100000, 8, 4, 1 },
        { 10, 0, 8, 4, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const struct copy_spec spec = SPEC(1, &cases[i].extent, &cases[i].stride, N(4));
        struct blocks blocks;
        blocks_of(&spec, cases[i].fill, &blocks);
        if (blocks.block_bytes != cases[i].bytes || blocks.block_count != cases[i].count)
            fail_msg("case %zu: %llu blocks of %llu", i, (unsigned long long)blocks.block_count, (unsigned long long)blocks.block_bytes);
    }
    /* Rows of 8000 bytes: half of what is read is wanted, a little less than that, and gaps as large as they may be. */
    static const struct { int64_t width, stride; unsigned fill; uint64_t bytes, count; } rows[] = {
        { 2000, 16000, GAP_FILL_TIGHT, 8000 + 99 * 16000, 1 },
        { 2000, 16004 + 200, GAP_FILL_TIGHT, 8000, 100 },
        { 2000, 16004 + 200, GAP_FILL_LOOSE, 8000 + 99 * 16204, 1 },
        { 2000, 8000 + GAP_MAX, 10, 8000 + 99 * (8000 + GAP_MAX), 1 },
        { 2000, 8000 + GAP_MAX + 1, 10, 8000, 100 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const struct copy_spec spec = SPEC(2, N(100, rows[i].width), N(rows[i].stride, 4), N(rows[i].width * 4, 4));
        struct blocks blocks;
        blocks_of(&spec, rows[i].fill, &blocks);
        if (blocks.block_bytes != rows[i].bytes || blocks.block_count != rows[i].count)
            fail_msg("rows %zu: %llu blocks of %llu", i, (unsigned long long)blocks.block_count, (unsigned long long)blocks.block_bytes);
    }
}

/* Those that are walked come by their strides, the slowest first, whatever the order of the axes. */
TEST(blocks_are_walked_in_the_order_of_the_source)
{
    struct copy_spec spec = SPEC(3, N(2, 3, 10), N(1000000, 100000000, 4), N(120, 40, 4));
    struct blocks blocks;
    blocks_of(&spec, GAP_FILL_TIGHT, &blocks);
    assert_int_equal(blocks.block_bytes, 40);
    assert_int_equal(blocks.block_count, 6);
    assert_int_equal(blocks.outer_rank, 2);
    assert_int_equal(blocks.outer_axis[0], 1);
    assert_int_equal(blocks.outer_axis[1], 0);
    static const uint64_t offsets[] = { 0, 1000000, 100000000, 101000000, 200000000, 201000000 };
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(block_offset(&spec, &blocks, i), offsets[i]);
    blocks_pack(&spec, &blocks);
    assert_int_equal(spec.source_stride[0], 40);
    assert_int_equal(spec.source_stride[1], 80);
    assert_int_equal(spec.source_stride[2], 4);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(block_offset(&spec, &blocks, i), 40 * i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_reach_from_the_first_element_to_the_end_of_the_last),
        cmocka_unit_test(runs_are_what_is_contiguous_on_both_sides),
        cmocka_unit_test(gaps_that_are_small_or_well_filled_are_read_over),
        cmocka_unit_test(blocks_are_walked_in_the_order_of_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
