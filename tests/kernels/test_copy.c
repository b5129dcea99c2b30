/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <inttypes.h>

#include "kernels/cast.h"
#include "kernels/copy.h"
#include "kernels/element_ops.h"
#include "kernels/move_block.h"

#define BYTES_MAX (1 << 16)

static const enum dtype dtypes[] = { DTYPE_BOOL,        DTYPE_U8,        DTYPE_BF16,       DTYPE_I16,   DTYPE_F32, DTYPE_I32,
                                     DTYPE_F64,         DTYPE_I64,       DTYPE_C64,        DTYPE_C128,  DTYPE_F16, DTYPE_F8_E4M3,
                                     DTYPE_F8_E5M2FNUZ, DTYPE_COMPLEX32, DTYPE_BCOMPLEX32, DTYPE_BITS16 };
#define DTYPES_COUNT (sizeof(dtypes) / sizeof(dtypes[0]))

/* The slow obvious version: one element at a time. */
static void copy_naive(const struct copy_spec *spec, const uint8_t *source, uint8_t *target)
{
    int64_t total = 1;
    const struct dtype_info *info = dtype_info(spec->source_dtype);
    size_t bytes = dtype_element_bytes(spec->source_dtype);
    for (int axis = 0; axis < spec->rank; axis++)
        total *= spec->extent[axis];
    for (int64_t i = 0; i < total; i++) {
        int64_t rest = i, from = 0, to = 0;
        uint8_t element[16], swapped[16];
        for (int axis = spec->rank - 1; axis >= 0; axis--) {
            from += rest % spec->extent[axis] * spec->source_stride[axis];
            to += rest % spec->extent[axis] * spec->target_stride[axis];
            rest /= spec->extent[axis];
        }
        memcpy(element, source + from, bytes);
        for (size_t byte = 0; byte < bytes; byte++) {
            size_t word = byte / info->swap_bytes * info->swap_bytes;
            swapped[byte] = element[word + (info->swap_bytes - 1 - (byte - word))];
        }
        if (spec->flags & COPY_SWAP_SOURCE)
            memcpy(element, swapped, bytes);
        elements_negate(spec->source_dtype, spec->flags & COPY_NEGATE, spec->flags & COPY_CONJUGATE, element, 1);
        struct cast cast;
        assert_true(cast_find(spec->source_dtype, spec->target_dtype, &cast) || spec->source_dtype == spec->target_dtype);
        if (spec->source_dtype == spec->target_dtype)
            memcpy(target + to, element, bytes);
        else
            cast_run(&cast, element, target + to, 1);
    }
}

static void strides_random(uint64_t *seed, int rank, const int64_t *extent, int64_t element_bytes, bool may_repeat, int64_t *strides)
{
    int order[RANK_MAX];
    for (int i = 0; i < rank; i++) {
        int j = (int)(test_random(seed) % (uint64_t)(i + 1));
        order[i] = order[j];
        order[j] = i;
    }
    int64_t stride = element_bytes;
    for (int i = 0; i < rank; i++) {
        int axis = order[i];
        if (test_random(seed) % 8 == 0)
            stride += element_bytes; /* a gap */
        strides[axis] = stride;
        stride *= extent[axis];
        if (may_repeat && test_random(seed) % 16 == 0)
            strides[axis] = 0;
    }
}

static void compare_with_naive(const struct copy_spec *spec, uint64_t *seed)
{
    static uint8_t source[BYTES_MAX * 8 + 16], fast[BYTES_MAX * 8 + 16], slow[BYTES_MAX * 8 + 16];
    for (size_t i = 0; i < sizeof(source); i += 8) {
        uint64_t bits = test_random(seed);
        memcpy(source + i, &bits, 8);
    }
    size_t shift = test_random(seed) % 9;
    memset(fast, 0xa5, sizeof(fast));
    memset(slow, 0xa5, sizeof(slow));
    copy_naive(spec, source + shift, slow + shift);
    copy_run(spec, source + shift, fast + shift);
    if (memcmp(slow, fast, sizeof(slow)) == 0)
        return;
    fail_msg("%s to %s, rank %d, flags %u: extents %" PRId64 " %" PRId64 " %" PRId64 ", source strides %" PRId64 " %" PRId64 " %" PRId64
             ", target strides %" PRId64 " %" PRId64 " %" PRId64,
             dtype_info(spec->source_dtype)->name, dtype_info(spec->target_dtype)->name, spec->rank, spec->flags, spec->extent[0],
             spec->extent[1], spec->extent[2], spec->source_stride[0], spec->source_stride[1], spec->source_stride[2],
             spec->target_stride[0], spec->target_stride[1], spec->target_stride[2]);
}

TEST(random_copies_agree_with_one_element_at_a_time)
{
    uint64_t seed = 4711;
    print_message("# seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 4000; round++) {
        struct copy_spec spec = { .rank = (int)(test_random(&seed) % 5) };
        int64_t room = BYTES_MAX / 40;
        for (int axis = 0; axis < spec.rank; axis++) {
            static const int64_t most[] = { 3, 9, 40, 150 };
            int64_t limit = most[test_random(&seed) % 4];
            spec.extent[axis] = 1 + (int64_t)(test_random(&seed) % (uint64_t)(limit < room ? limit : room));
            room /= spec.extent[axis];
            room = room < 1 ? 1 : room;
        }
        spec.source_dtype = spec.target_dtype = dtypes[test_random(&seed) % DTYPES_COUNT];
        if (test_random(&seed) % 2) {
            enum dtype other = dtypes[test_random(&seed) % DTYPES_COUNT];
            if (copy_can_cast(spec.source_dtype, other))
                spec.target_dtype = other;
        }
        spec.flags = test_random(&seed) % 2 ? 0 : (unsigned)(test_random(&seed) % 8);
        strides_random(&seed, spec.rank, spec.extent, dtype_element_bytes(spec.source_dtype), true, spec.source_stride);
        strides_random(&seed, spec.rank, spec.extent, dtype_element_bytes(spec.target_dtype), false, spec.target_stride);
        compare_with_naive(&spec, &seed);
    }
}

TEST(transposes_of_all_element_sizes_agree)
{
    static const enum dtype of_size[] = { DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_I64, DTYPE_C128 };
    static const int64_t sides[][2] = { { 64, 64 }, { 65, 63 }, { 16, 200 }, { 3, 500 }, { 500, 3 }, { 100, 17 }, { 1, 70 } };
    uint64_t seed = 5;
    for (size_t d = 0; d < sizeof(of_size) / sizeof(of_size[0]); d++)
        for (size_t s = 0; s < sizeof(sides) / sizeof(sides[0]); s++) {
            int64_t bytes = dtype_element_bytes(of_size[d]), rows = sides[s][0], columns = sides[s][1];
            struct copy_spec spec = { .rank = 2,
                                      .extent = { rows, columns },
                                      .source_stride = { bytes, rows * bytes },
                                      .target_stride = { columns * bytes, bytes },
                                      .source_dtype = of_size[d],
                                      .target_dtype = of_size[d] };
            compare_with_naive(&spec, &seed);
        }
}

TEST(simplifying_drops_orders_and_merges_axes)
{
    struct copy_spec spec = { .rank = 5,
                              .extent = { 3, 1, 4, 5, 6 },
                              .source_stride = { 480, 7, 120, 24, 4 },
                              .target_stride = { 480, 9, 24, 96, 4 },
                              .source_dtype = DTYPE_F32,
                              .target_dtype = DTYPE_F32 };
    copy_simplify(&spec);
    assert_int_equal(spec.rank, 4);
    assert_int_equal(spec.extent[1], 5);
    assert_int_equal(spec.source_stride[1], 24);
    assert_int_equal(spec.target_stride[1], 96);
    spec = (struct copy_spec){ .rank = 3,
                               .extent = { 6, 3, 4 },
                               .source_stride = { 4, 96, 24 },
                               .target_stride = { 4, 96, 24 },
                               .source_dtype = DTYPE_F32,
                               .target_dtype = DTYPE_F32 };
    copy_simplify(&spec);
    assert_int_equal(spec.rank, 1);
    assert_int_equal(spec.extent[0], 72);
}

TEST(a_plain_run_is_recognised)
{
    static const struct {
        const char *why;
        struct copy_spec spec;
        bool is_plain;
        uint64_t bytes;
    } cases[] = {
        { "scalar", { 0, { 0 }, { 0 }, { 0 }, DTYPE_F64, DTYPE_F64, 0, 0, NULL }, true, 8 },
        { "matrix", { 2, { 3, 4 }, { 16, 4 }, { 16, 4 }, DTYPE_F32, DTYPE_F32, 0, 0, NULL }, true, 48 },
        { "column of one", { 2, { 3, 1 }, { 4, 99 }, { 4, 7 }, DTYPE_F32, DTYPE_F32, 0, 0, NULL }, true, 12 },
        { "both transposed", { 2, { 3, 4 }, { 4, 12 }, { 4, 12 }, DTYPE_F32, DTYPE_F32, 0, 0, NULL }, true, 48 },
        { "gap", { 2, { 3, 4 }, { 20, 4 }, { 16, 4 }, DTYPE_F32, DTYPE_F32, 0, 0, NULL }, false, 0 },
        { "cast", { 1, { 4 }, { 4 }, { 2 }, DTYPE_F32, DTYPE_F16, 0, 0, NULL }, false, 0 },
        { "swap", { 1, { 4 }, { 4 }, { 4 }, DTYPE_F32, DTYPE_F32, COPY_SWAP_SOURCE, 0, NULL }, false, 0 },
        { "swap of bytes", { 1, { 4 }, { 1 }, { 1 }, DTYPE_U8, DTYPE_U8, COPY_SWAP_SOURCE, 0, NULL }, true, 4 },
        { "conjugate of reals", { 1, { 4 }, { 4 }, { 4 }, DTYPE_F32, DTYPE_F32, COPY_CONJUGATE, 0, NULL }, true, 16 },
        { "expanded", { 1, { 4 }, { 0 }, { 4 }, DTYPE_F32, DTYPE_F32, 0, 0, NULL }, false, 0 },
        { "packed", { 1, { 4 }, { 1 }, { 1 }, DTYPE_F4, DTYPE_F4, 0, 0, NULL }, false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t bytes = 0;
        bool is_plain = copy_is_plain_run(&cases[i].spec, &bytes);
        if (is_plain != cases[i].is_plain || bytes != cases[i].bytes)
            fail_msg("%s: %d, %" PRIu64 " bytes", cases[i].why, is_plain, bytes);
    }
}

TEST(lazy_negation_and_conjugation_have_torch_bits)
{
    uint32_t c64[2] = { 0x7fc00000, 0x00000000 };
    elements_negate(DTYPE_C64, false, true, c64, 1);
    assert_int_equal(c64[0], 0x7fc00000);
    assert_int_equal(c64[1], 0x80000000);
    elements_negate(DTYPE_C64, true, true, c64, 1);
    assert_int_equal(c64[0], 0xffc00000);
    assert_int_equal(c64[1], 0x80000000);
    int16_t words[3] = { 1, INT16_MIN, -5 };
    elements_negate(DTYPE_I16, true, false, words, 3);
    assert_int_equal(words[0], -1);
    assert_int_equal(words[1], INT16_MIN);
    assert_int_equal(words[2], 5);
    uint8_t fnuz[3] = { 0x00, 0x80, 0x41 };
    elements_negate(DTYPE_F8_E4M3FNUZ, true, false, fnuz, 3);
    assert_int_equal(fnuz[0], 0x00);
    assert_int_equal(fnuz[1], 0x80);
    assert_int_equal(fnuz[2], 0xc1);
}

TEST(plain_nan_is_the_one_that_torch_makes)
{
    uint16_t source[6] = { 0x7fc0, 0xffc0, 0x7f81, 0x7f80, 0xff80, 0x3f80 }, target[6];
    struct copy_spec spec = { 1, { 6 }, { 2 }, { 2 }, DTYPE_BF16, DTYPE_BF16, COPY_PLAIN_NAN, 0, NULL };
    copy_run(&spec, source, target);
    for (int i = 0; i < 6; i++)
        assert_int_equal(target[i], i < 3 ? 0xffff : source[i]);
}

TEST(what_cannot_be_cast_is_said)
{
    assert_true(copy_can_cast(DTYPE_F32, DTYPE_BF16));
    assert_true(copy_can_cast(DTYPE_C64, DTYPE_C128));
    assert_true(copy_can_cast(DTYPE_BITS8, DTYPE_BITS8));
    assert_false(copy_can_cast(DTYPE_BITS8, DTYPE_U8));
    assert_false(copy_can_cast(DTYPE_C64, DTYPE_F32));
    assert_false(copy_can_cast(DTYPE_F32, DTYPE_C64));
    assert_false(copy_can_cast(DTYPE_F4, DTYPE_F32));
}

/* Whole lines go past the caches, and what sticks out at both ends does not; nothing beside a row is touched. */
static void streamed_rows_are_the_rows(void **state)
{
    enum { ROWS = 3, APART = 2048 };
    static uint8_t source[ROWS * APART], target[ROWS * APART + 64], wanted[sizeof(target)];
    static const int64_t counts[] = { 1, 511, 512, 575, 576, 577, 1000, 1984 };
    (void)state;
    for (size_t i = 0; i < sizeof(source); i++)
        source[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t begin = 0; begin < 64; begin += 9) {
        for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
            const struct move_block block = { .rows = ROWS, .columns = counts[k], .source_row = APART - 5, .source_column = 1,
                                              .target_row = APART, .target_column = 1, .bytes = 1, .is_streamed = true };
            memset(target, 0xEE, sizeof(target));
            memset(wanted, 0xEE, sizeof(wanted));
            for (int row = 0; row < ROWS; row++)
                memcpy(wanted + begin + row * APART, source + 3 + row * (APART - 5), (size_t)counts[k]);
            move_block(&block, source + 3, target + begin);
            assert_memory_equal(target, wanted, sizeof(target));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_copies_agree_with_one_element_at_a_time), cmocka_unit_test(transposes_of_all_element_sizes_agree),
        cmocka_unit_test(simplifying_drops_orders_and_merges_axes),       cmocka_unit_test(a_plain_run_is_recognised),
        cmocka_unit_test(lazy_negation_and_conjugation_have_torch_bits),  cmocka_unit_test(what_cannot_be_cast_is_said),
        cmocka_unit_test(plain_nan_is_the_one_that_torch_makes),           cmocka_unit_test(streamed_rows_are_the_rows),
    };
    return cmocka_run_group_tests_name("copy", tests, NULL, NULL);
}
