/* SPDX-License-Identifier: Apache-2.0 */
/* Overlap and coverage: named cases, then random tilings and random damage against counting every element. */
#include "check.h"

#include <time.h>

#include "catalog/catalog.h"

static reshard_error err;

struct given {
    int64_t start[4], extent[4];
    int64_t flat_begin, flat_count; /* -1: whole box */
};

static void add_given(struct catalog *catalog, uint32_t tensor, const struct given *given)
{
    uint32_t object;
    struct catalog_chunk *chunk;
    CHECK_OK(catalog_add_object(catalog, STR("file"), 100, &object, &err));
    CHECK_OK(catalog_add_chunk(catalog, tensor, given->start, given->extent, object, 0, 4, &chunk, &err));
    if (given->flat_count >= 0) {
        struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
        assert_non_null(layout);
        layout->flat_begin = given->flat_begin;
        layout->flat_count = given->flat_count;
    }
}

static struct catalog *catalog_of(int rank, const int64_t *shape, const struct given *given, int count)
{
    struct catalog *catalog = catalog_new("test");
    uint32_t tensor;
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_F32, rank, shape, &tensor, &err));
    for (int i = 0; i < count; i++)
        add_given(catalog, tensor, &given[i]);
    return catalog;
}

#define WHOLE 0, -1

TEST(chunks_tile_their_tensor)
{
    static const struct {
        const char *why;
        int rank, count;
        int64_t shape[4];
        struct given given[5];
        reshard_status expected;
        uint32_t replicas;
        const char *message;
    } cases[] = {
        { "one whole chunk", 2, 1, { 4, 6 }, { { { 0, 0 }, { 4, 6 }, WHOLE } }, RESHARD_OK, 0, "" },
        { "scalar", 0, 1, { 0 }, { { { 0 }, { 0 }, WHOLE } }, RESHARD_OK, 0, "" },
        { "scalar replica", 0, 2, { 0 }, { { { 0 }, { 0 }, WHOLE }, { { 0 }, { 0 }, WHOLE } }, RESHARD_OK, 1, "" },
        { "two halves", 2, 2, { 4, 6 }, { { { 0, 3 }, { 4, 3 }, WHOLE }, { { 0, 0 }, { 4, 3 }, WHOLE } }, RESHARD_OK, 0, "" },
        { "replicas of one half",
          2,
          3,
          { 4, 6 },
          { { { 0, 0 }, { 2, 6 }, WHOLE }, { { 2, 0 }, { 2, 6 }, WHOLE }, { { 0, 0 }, { 2, 6 }, WHOLE } },
          RESHARD_OK,
          1,
          "" },
        { "empty chunk inside another",
          1,
          3,
          { 4 },
          { { { 0 }, { 4 }, WHOLE }, { { 2 }, { 0 }, WHOLE }, { { 2 }, { 0 }, WHOLE } },
          RESHARD_OK,
          0,
          "" },
        { "empty tensor, no chunk", 1, 0, { 0 }, { { { 0 }, { 0 }, WHOLE } }, RESHARD_OK, 0, "" },
        { "pinwheel, no clean cut",
          2,
          5,
          { 3, 3 },
          { { { 0, 0 }, { 1, 2 }, WHOLE },
            { { 0, 2 }, { 2, 1 }, WHOLE },
            { { 2, 1 }, { 1, 2 }, WHOLE },
            { { 1, 0 }, { 2, 1 }, WHOLE },
            { { 1, 1 }, { 1, 1 }, WHOLE } },
          RESHARD_OK,
          0,
          "" },
        { "flat runs",
          2,
          3,
          { 4, 6 },
          { { { 0, 0 }, { 4, 6 }, 0, 7 }, { { 0, 0 }, { 4, 6 }, 7, 10 }, { { 0, 0 }, { 4, 6 }, 17, 7 } },
          RESHARD_OK,
          0,
          "" },
        { "flat run equal to a box",
          2,
          3,
          { 4, 6 },
          { { { 0, 0 }, { 4, 6 }, 0, 12 }, { { 0, 0 }, { 2, 6 }, WHOLE }, { { 2, 0 }, { 2, 6 }, WHOLE } },
          RESHARD_OK,
          1,
          "" },
        { "flat run repeated",
          2,
          3,
          { 4, 6 },
          { { { 0, 0 }, { 4, 6 }, 0, 7 }, { { 0, 0 }, { 4, 6 }, 0, 7 }, { { 0, 0 }, { 4, 6 }, 7, 17 } },
          RESHARD_OK,
          1,
          "" },
        { "empty flat run", 1, 2, { 4 }, { { { 0 }, { 4 }, 2, 0 }, { { 0 }, { 4 }, WHOLE } }, RESHARD_OK, 0, "" },
        { "flat run too long",
          1,
          1,
          { 4 },
          { { { 0 }, { 4 }, 2, 3 } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': flat run of 3 elements from 2 leaves its box of 4 elements" },
        { "partial overlap",
          2,
          2,
          { 4, 6 },
          { { { 0, 0 }, { 3, 6 }, WHOLE }, { { 2, 0 }, { 2, 6 }, WHOLE } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': its chunks [0:3, 0:6] in 'file' and [2:4, 0:6] in 'file' overlap but are not equal" },
        { "one inside the other",
          1,
          2,
          { 4 },
          { { { 0 }, { 4 }, WHOLE }, { { 1 }, { 1 }, WHOLE } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': its chunks [0:4] in 'file' and [1:2] in 'file' overlap but are not equal" },
        { "overlapping flat runs",
          2,
          2,
          { 4, 6 },
          { { { 0, 0 }, { 4, 6 }, 0, 9 }, { { 0, 0 }, { 4, 6 }, 8, 16 } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': its chunks [1:2, 0:3] in 'file' and [1:2, 2:6] in 'file' overlap but are not equal" },
        { "gap on an axis",
          2,
          2,
          { 4, 6 },
          { { { 0, 0 }, { 1, 6 }, WHOLE }, { { 3, 0 }, { 1, 6 }, WHOLE } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': its 2 chunks hold 12 of 24 elements, nothing holds 1:3 of axis 0" },
        { "hole that no axis shows",
          2,
          2,
          { 2, 2 },
          { { { 0, 0 }, { 1, 1 }, WHOLE }, { { 1, 1 }, { 1, 1 }, WHOLE } },
          RESHARD_ERR_FORMAT,
          0,
          "tensor 'w': its 2 chunks hold 2 of 4 elements" },
        { "no chunk", 1, 0, { 4 }, { { { 0 }, { 0 }, WHOLE } }, RESHARD_ERR_FORMAT, 0, "tensor 'w': its 0 chunks hold 0 of 4 elements" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct catalog *catalog = catalog_of(cases[i].rank, cases[i].shape, cases[i].given, cases[i].count);
        err.message[0] = 0;
        reshard_status status = catalog_seal(catalog, false, &err);
        if (status != cases[i].expected || strcmp(err.message, cases[i].message) != 0)
            fail_msg("%s: status %d, '%s'", cases[i].why, status, err.message);
        uint32_t replicas = 0;
        for (uint32_t c = 0; c < catalog->chunk_count; c++)
            replicas += (catalog->chunks[c].flags & CHUNK_REPLICA) != 0;
        if (!status && replicas != cases[i].replicas)
            fail_msg("%s: %u replicas", cases[i].why, replicas);
        catalog_free(catalog);
    }
}

TEST(allowed_holes_are_damage_warnings)
{
    static const int64_t shape[1] = { 4 };
    struct given half = { { 0 }, { 2 }, WHOLE };
    struct catalog *catalog = catalog_of(1, shape, &half, 1);
    uint32_t tensor;
    CHECK_OK(catalog_add_tensor(catalog, STR("absent"), DTYPE_F32, 1, shape, &tensor, &err));
    CHECK_OK(catalog_add_tensor(catalog, STR("meta"), DTYPE_F32, 1, shape, &tensor, &err));
    catalog->tensors[tensor].flags |= TENSOR_NO_DATA;
    CHECK_OK(catalog_seal(catalog, true, &err));
    assert_int_equal(catalog->warning_count, 2);
    assert_true(catalog->warnings[0].is_damage);
    assert_true(str_is(catalog->warnings[0].text, "tensor 'w': its 1 chunks hold 2 of 4 elements, nothing holds 2:4 of axis 0"));
    catalog_free(catalog);
}

/* Cuts [start, start + extent) at random until pieces are small, on an explicit stack. */
static int random_tiling(uint64_t *seed, int rank, const int64_t *shape, struct given *out, int max)
{
    int count = 1;
    out[0] = (struct given){ .flat_count = -1 };
    memcpy(out[0].extent, shape, (size_t)rank * sizeof(*shape));
    for (int tries = 0; tries < max && count < max; tries++) {
        struct given *cut = &out[test_random(seed) % (uint64_t)count];
        int axis = (int)(test_random(seed) % (uint64_t)rank);
        if (cut->extent[axis] < 2)
            continue;
        int64_t at = 1 + (int64_t)(test_random(seed) % (uint64_t)(cut->extent[axis] - 1));
        out[count] = *cut;
        out[count].start[axis] += at;
        out[count].extent[axis] -= at;
        cut->extent[axis] = at;
        count++;
    }
    for (int i = count - 1; i > 0; i--) {
        int j = (int)(test_random(seed) % (uint64_t)(i + 1));
        struct given swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
    return count;
}

/* Oracle: RESHARD_OK if every element is held exactly once, counting equal boxes once. */
static reshard_status count_elements(int rank, const int64_t *shape, const struct given *given, int count)
{
    static uint8_t held[16 * 16 * 16];
    int64_t volume = box_volume(rank, shape), strides[4];
    strides_row_major(rank, shape, strides);
    memset(held, 0, sizeof(held));
    for (int i = 0; i < count; i++) {
        bool is_replica = false;
        for (int j = 0; j < i && !is_replica; j++)
            is_replica = box_equal(rank, given[i].start, given[i].extent, given[j].start, given[j].extent);
        for (int64_t e = 0; e < volume && !is_replica; e++) {
            bool is_inside = true;
            for (int axis = 0; axis < rank; axis++) {
                int64_t at = e / strides[axis] % shape[axis];
                is_inside &= at >= given[i].start[axis] && at < given[i].start[axis] + given[i].extent[axis];
            }
            held[e] += is_inside;
        }
    }
    for (int64_t e = 0; e < volume; e++)
        if (held[e] != 1)
            return RESHARD_ERR_FORMAT;
    return RESHARD_OK;
}

TEST(random_tilings_agree_with_counting)
{
    uint64_t seed = 20240611;
    print_message("# seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 3000; round++) {
        struct given given[64];
        int64_t shape[3];
        int rank = 1 + (int)(test_random(&seed) % 3);
        for (int axis = 0; axis < rank; axis++)
            shape[axis] = 1 + (int64_t)(test_random(&seed) % 12);
        int count = random_tiling(&seed, rank, shape, given, 1 + (int)(test_random(&seed) % 60));
        if (test_random(&seed) % 2) {
            struct given *damaged = &given[test_random(&seed) % (uint64_t)count];
            int axis = (int)(test_random(&seed) % (uint64_t)rank);
            if (damaged->start[axis] + damaged->extent[axis] < shape[axis])
                damaged->extent[axis]++;
            else if (damaged->start[axis] > 0)
                damaged->start[axis]--;
        }
        if (test_random(&seed) % 3 == 0)
            given[count] = given[test_random(&seed) % (uint64_t)count], count++;
        struct catalog *catalog = catalog_of(rank, shape, given, count);
        assert_int_equal(catalog_seal(catalog, false, &err), count_elements(rank, shape, given, count));
        catalog_free(catalog);
    }
}

TEST(a_million_chunks_of_one_tensor_are_checked_in_time)
{
    struct catalog *catalog = catalog_new("test");
    static const int64_t shape[3] = { 1000, 2000, 300 };
    struct timespec begin, end;
    uint32_t tensor, object;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_F32, 3, shape, &tensor, &err));
    CHECK_OK(catalog_add_object(catalog, STR("f"), 1, &object, &err));
    for (int64_t x = 0; x < 100; x++)
        for (int64_t y = 99; y >= 0; y--)
            for (int64_t z = 0; z < 100; z++) {
                int64_t start[3] = { x * 10, y * 20, z * 3 }, extent[3] = { 10, 20, 3 };
                CHECK_OK(catalog_add_chunk(catalog, tensor, start, extent, object, 0, 1, NULL, &err));
            }
    CHECK_OK(catalog_seal(catalog, false, &err));
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    print_message("# 1e6 chunks in %.3f s, %.1f bytes each\n", seconds, (double)catalog_memory(catalog) / 1e6);
    assert_true(seconds < 20); /* all pairs would take hours; the bound leaves room for sanitizers and busy machines */
    catalog_free(catalog);
}

TEST(hostile_cuts_reach_a_limit_instead_of_hours)
{
    struct catalog *catalog = catalog_new("test");
    static const int64_t shape[2] = { 20000, 20000 };
    uint32_t tensor, object;
    catalog->limits.box_checks = 100000;
    CHECK_OK(catalog_add_tensor(catalog, STR("w"), DTYPE_F32, 2, shape, &tensor, &err));
    CHECK_OK(catalog_add_object(catalog, STR("f"), 1, &object, &err));
    for (int64_t i = 0; i < 9000; i++) { /* a staircase: every cut takes off one piece */
        int64_t column[2] = { i, i }, column_extent[2] = { 20000 - i, 1 };
        int64_t row[2] = { i, i + 1 }, row_extent[2] = { 1, 20000 - i - 1 };
        CHECK_OK(catalog_add_chunk(catalog, tensor, column, column_extent, object, 0, 1, NULL, &err));
        CHECK_OK(catalog_add_chunk(catalog, tensor, row, row_extent, object, 0, 1, NULL, &err));
    }
    CHECK_FAILS(catalog_seal(catalog, false, &err), RESHARD_ERR_LIMIT);
    catalog_free(catalog);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_tile_their_tensor),
        cmocka_unit_test(allowed_holes_are_damage_warnings),
        cmocka_unit_test(random_tilings_agree_with_counting),
        cmocka_unit_test(a_million_chunks_of_one_tensor_are_checked_in_time),
        cmocka_unit_test(hostile_cuts_reach_a_limit_instead_of_hours),
    };
    return cmocka_run_group_tests_name("cover", tests, NULL, NULL);
}
