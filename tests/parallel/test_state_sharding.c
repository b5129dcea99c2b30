/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "parallel/state_sharding.h"

static reshard_error err;

/* embed, l1.w, l1.b, l2.w, l2.b, norm */
static const int64_t sizes[6] = { 2400, 10000, 100, 10000, 100, 100 };

static void fill(struct sharded_parameter *parameters, const int64_t *elements, uint32_t count, enum dtype dtype)
{
    for (uint32_t i = 0; i < count; i++)
        parameters[i] = (struct sharded_parameter){ .elements = elements[i], .dtype = dtype };
}

static void check_owners(enum sharding_stage stage, uint32_t ranks, const uint32_t *owners)
{
    struct sharded_parameter parameters[6];
    fill(parameters, sizes, 6, DTYPE_F32);
    CHECK_OK(sharding_assign(stage, ranks, SHARDING_SEGMENT, parameters, 6, &err));
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(parameters[i].owner, owners[i]);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            int64_t begin, end;
            sharding_range(&parameters[i], rank, &begin, &end);
            assert_int_equal(end - begin, rank == owners[i] ? sizes[i] : 0);
        }
    }
}

TEST(the_largest_goes_to_the_rank_with_least)
{
    check_owners(SHARDING_1_V1, 2, (uint32_t[]){ 0, 0, 1, 1, 1, 1 });
    check_owners(SHARDING_1_V1, 4, (uint32_t[]){ 2, 0, 3, 1, 3, 3 });
}

TEST(stage_2_takes_parameters_as_they_come)
{
    check_owners(SHARDING_2, 2, (uint32_t[]){ 0, 1, 0, 0, 1, 1 });
}

/* w, l1.w, l1.b: where they lie, and which elements ranks own. */
TEST(buffers_are_cut_evenly)
{
    static const int64_t elements[3] = { 2400, 10000, 100 };
    static const struct {
        enum dtype dtype;
        uint32_t ranks;
        int64_t part, start[3], padded[3], ends[4][3];
    } cases[] = {
        { DTYPE_BF16, 2, 6528, { 0, 2560, 12800 }, { 2560, 10240, 256 }, { { 2400, 3968, 0 }, { 2400, 10000, 100 } } },
        { DTYPE_BF16,
          4,
          3328,
          { 0, 2560, 12800 },
          { 2560, 10240, 512 },
          { { 2400, 768, 0 }, { 2400, 4096, 0 }, { 2400, 7424, 0 }, { 2400, 10000, 100 } } },
        { DTYPE_F32, 2, 6336, { 0, 2432, 12544 }, { 2432, 10112, 128 }, { { 2400, 3904, 0 }, { 2400, 10000, 100 } } },
    };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct sharded_parameter parameters[3];
        fill(parameters, elements, 3, cases[c].dtype);
        CHECK_OK(sharding_assign(SHARDING_1_V2, cases[c].ranks, SHARDING_SEGMENT, parameters, 3, &err));
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(parameters[i].part, cases[c].part);
            assert_int_equal(parameters[i].start, cases[c].start[i]);
            assert_int_equal(parameters[i].padded, cases[c].padded[i]);
            for (uint32_t rank = 0; rank < cases[c].ranks; rank++) {
                int64_t begin, end;
                sharding_range(&parameters[i], rank, &begin, &end);
                assert_int_equal(begin, rank ? cases[c].ends[rank - 1][i] : 0);
                assert_int_equal(end, cases[c].ends[rank][i]);
            }
        }
    }
}

/* Types do not mix, and the parameter that fills a buffer is its last: what the real function does with 100, 100, 50, 300, 10, 10, 260
 * floats and a limit of 1000 bytes, scaled. */
TEST(a_buffer_ends_behind_the_parameter_that_fills_it)
{
    static const int64_t elements[] = { 100, 100, 50, 300, 10, 10, 260 };
    static const int first[] = { 0, 0, 0, 3, 4, 4, 4 };
    struct sharded_parameter parameters[8];
    fill(parameters, elements, 7, DTYPE_F32);
    for (int i = 0; i < 7; i++)
        parameters[i].elements *= SHARDING_BUFFER_BYTES / 1000 + 1;
    parameters[7] = parameters[2];
    parameters[2] = (struct sharded_parameter){ .elements = 64, .dtype = DTYPE_BF16 };
    struct sharded_parameter moved[8];
    memcpy(moved, parameters, 3 * sizeof(*moved));
    moved[3] = parameters[7];
    memcpy(moved + 4, parameters + 3, 4 * sizeof(*moved));
    CHECK_OK(sharding_assign(SHARDING_1_V2, 1, SHARDING_SEGMENT, moved, 8, &err));
    for (int i = 0; i < 7; i++) {
        int at = i < 2 ? i : i + 1;
        assert_int_equal(moved[at].start == 0, first[i] == i);
    }
    assert_int_equal(moved[2].start, 0);
    assert_int_equal(moved[2].part, 128);
}

/* A full buffer, one of another type behind it, and more of the first type. */
TEST(a_buffer_goes_on_behind_other_types)
{
    struct sharded_parameter parameters[] = { { .elements = SHARDING_BUFFER_BYTES, .dtype = DTYPE_F32 },
                                              { .elements = 64, .dtype = DTYPE_BF16 },
                                              { .elements = 64, .dtype = DTYPE_BF16 },
                                              { .elements = 64, .dtype = DTYPE_F32 },
                                              { .elements = 64, .dtype = DTYPE_F32 } };
    static const int64_t starts[] = { 0, 0, 128, 0, 64 };
    CHECK_OK(sharding_assign(SHARDING_1_V2, 1, SHARDING_SEGMENT, parameters, 5, &err));
    for (int i = 0; i < 5; i++)
        assert_int_equal(parameters[i].start, starts[i]);
}

TEST(sizes_beyond_63_bits_are_refused)
{
    static const int64_t wide[] = { INT64_MAX, INT64_MAX - 1000, INT64_MAX / 2 };
    for (enum sharding_stage stage = SHARDING_1_V2; stage <= SHARDING_3; stage++) {
        for (int i = 0; i < 3; i++) {
            struct sharded_parameter parameters[2];
            bool fits = stage == SHARDING_2 || (stage == SHARDING_3 && i == 2);
            fill(parameters, wide + i, 1, DTYPE_F32);
            parameters[1] = parameters[0];
            assert_int_equal(sharding_assign(stage, 1024, SHARDING_SEGMENT, parameters, 2, &err), fits ? RESHARD_OK : RESHARD_ERR_LIMIT);
        }
    }
}

TEST(stage_3_cuts_only_large_parameters)
{
    static const int64_t elements[3] = { SHARDING_SEGMENT + 1, SHARDING_SEGMENT, SHARDING_SEGMENT + 1 };
    struct sharded_parameter parameters[3];
    int64_t begin, end;
    fill(parameters, elements, 3, DTYPE_BF16);
    CHECK_OK(sharding_assign(SHARDING_3, 3, SHARDING_SEGMENT, parameters, 3, &err));
    for (uint32_t rank = 0; rank < 3; rank++) {
        sharding_range(&parameters[1], rank, &begin, &end);
        assert_true(begin == 0 && end == elements[1]);
    }
    /* 2^20 + 1 padded to 128 elements, then to a multiple of 3: 1048704 = 3 x 349568 */
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(parameters[i].part, 349568);
        sharding_range(&parameters[i], 2, &begin, &end);
        assert_true(begin == 699136 && end == elements[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_goes_to_the_rank_with_least), cmocka_unit_test(stage_2_takes_parameters_as_they_come),
        cmocka_unit_test(buffers_are_cut_evenly),                  cmocka_unit_test(a_buffer_ends_behind_the_parameter_that_fills_it),
        cmocka_unit_test(a_buffer_goes_on_behind_other_types),     cmocka_unit_test(sizes_beyond_63_bits_are_refused),
        cmocka_unit_test(stage_3_cuts_only_large_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
