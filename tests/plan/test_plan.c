/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include "check.h"
#include "fail_malloc.h"

static reshard_error err;

static struct catalog *catalog_with(const char *key, enum dtype dtype, int rank, const int64_t *shape, int objects)
{
    struct catalog *catalog = catalog_new("test");
    uint32_t index;
    for (int i = 0; i < objects; i++) {
        char name[16];
        snprintf(name, sizeof(name), "o%d", i);
        CHECK_OK(catalog_add_object(catalog, str_of(name), 1 << 30, &index, &err));
    }
    CHECK_OK(catalog_add_tensor(catalog, str_of(key), dtype, rank, shape, &index, &err));
    return catalog;
}

static void add(struct catalog *catalog, uint32_t object, uint64_t offset, int64_t r, int64_t c, int64_t rows, int64_t columns)
{
    const int64_t start[] = { r, c }, extent[] = { rows, columns };
    CHECK_OK(catalog_add_chunk(catalog, 0, start, extent, object, offset, (uint64_t)(rows * columns) * 4, NULL, &err));
}

static const int64_t shape_8x8[] = { 8, 8 };
static const struct recipe whole = { .is_whole = true };

static struct catalog *whole_catalog(enum dtype dtype)
{
    struct catalog *catalog = catalog_with("x", dtype, 2, shape_8x8, 1);
    CHECK_OK(catalog_add_chunk(catalog, 0, NULL, NULL, 0, 0, 512, NULL, &err));
    CHECK_OK(catalog_seal(catalog, false, &err));
    return catalog;
}

TEST(steps_come_in_the_order_of_the_targets_bytes)
{
    struct catalog *source = whole_catalog(DTYPE_F32), *target = catalog_with("x", DTYPE_F32, 2, shape_8x8, 3);
    struct plan *plan;
    add(target, 2, 0, 0, 0, 4, 4);
    add(target, 1, 64, 0, 4, 4, 4);
    add(target, 1, 0, 4, 0, 4, 4);
    add(target, 0, 0, 4, 4, 4, 4);
    CHECK_OK(catalog_seal(target, false, &err));
    CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
    static const uint32_t order[] = { 3, 2, 1, 0 };
    assert_int_equal(plan->step_count, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(plan->steps[i].target_chunk, order[i]);
    assert_int_equal(plan->read_bytes, 256);
    assert_int_equal(plan->write_bytes, 256);
    struct plan_copy copy;
    CHECK_OK(plan_step_copy(plan, &plan->steps[0], &copy, &err));
    assert_int_equal(copy.source_offset, (4 * 8 + 4) * 4);
    assert_int_equal(copy.target_offset, 0);
    assert_int_equal(copy.spec.source_stride[0], 32);
    assert_int_equal(copy.spec.target_stride[0], 16);
    plan_free(plan);
    catalog_free(source);
    catalog_free(target);
}

TEST(of_replicas_the_one_in_the_most_used_object_is_read)
{
    struct catalog *source = catalog_with("x", DTYPE_F32, 2, shape_8x8, 3), *target = whole_catalog(DTYPE_F32);
    struct plan *plan;
    add(source, 0, 0, 0, 0, 2, 8);
    add(source, 1, 0, 0, 0, 2, 8);
    add(source, 2, 0, 0, 0, 2, 8);
    add(source, 2, 100, 2, 0, 4, 8);
    add(source, 0, 200, 6, 0, 2, 8);
    add(source, 1, 200, 6, 0, 2, 8);
    CHECK_OK(catalog_seal(source, false, &err));
    CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
    assert_int_equal(plan->step_count, 3);
    assert_int_equal(plan->replicas_skipped, 3);
    assert_int_equal(plan->steps[0].source_chunk, 2);
    assert_int_equal(plan->steps[1].source_chunk, 3);
    assert_int_equal(plan->steps[2].source_chunk, 4);
    assert_int_equal(plan->read_bytes, 256);
    plan_free(plan);
    catalog_free(source);
    catalog_free(target);
}

TEST(a_hole_in_the_source_is_an_error_that_names_tensor_and_box)
{
    struct catalog *source = catalog_with("layer.weight", DTYPE_F32, 2, shape_8x8, 1),
                   *target = catalog_with("layer.weight", DTYPE_F32, 2, shape_8x8, 1);
    struct plan *plan;
    add(source, 0, 0, 0, 0, 8, 5);
    CHECK_OK(catalog_seal(source, true, &err));
    add(target, 0, 0, 0, 0, 8, 4);
    add(target, 0, 128, 0, 4, 8, 4);
    CHECK_OK(catalog_seal(target, false, &err));
    CHECK_FAILS(plan_new(source, target, &whole, 1, &plan, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "layer.weight"));
    assert_non_null(strstr(err.message, "8 of the 32 elements of [0:8, 4:8]"));
    catalog_free(source);
    catalog_free(target);
}

TEST(recipes_must_fit_and_not_overlap)
{
    struct catalog *source = whole_catalog(DTYPE_F32), *target = whole_catalog(DTYPE_F32), *opaque = whole_catalog(DTYPE_BITS16);
    static const int64_t zero[] = { 0, 0 }, four[] = { 4, 0 }, three[] = { 3, 0 }, half[] = { 4, 8 }, big[] = { 5, 8 };
    static const uint8_t twice[] = { 1, 1 };
    struct plan *plan;
    const struct {
        const char *why;
        struct recipe recipes[2];
        uint32_t count;
        reshard_status status;
    } cases[] = {
        { "two halves",
          { { .rank = 2, .source_start = zero, .target_start = zero, .extent = half },
            { .rank = 2, .source_start = zero, .target_start = four, .extent = half } },
          2,
          RESHARD_OK },
        { "one half only", { { .rank = 2, .source_start = zero, .target_start = zero, .extent = half } }, 1, RESHARD_ERR_USAGE },
        { "halves overlap",
          { { .rank = 2, .source_start = zero, .target_start = zero, .extent = half },
            { .rank = 2, .source_start = zero, .target_start = three, .extent = big } },
          2,
          RESHARD_ERR_USAGE },
        { "leaves the target", { { .rank = 2, .source_start = zero, .target_start = four, .extent = big } }, 1, RESHARD_ERR_USAGE },
        { "leaves the source", { { .rank = 2, .source_start = four, .target_start = zero, .extent = big } }, 1, RESHARD_ERR_USAGE },
        { "wrong rank", { { .rank = 1, .source_start = zero, .target_start = zero, .extent = half } }, 1, RESHARD_ERR_USAGE },
        { "no permutation",
          { { .rank = 2, .source_start = zero, .target_start = zero, .extent = shape_8x8, .permutation = twice } },
          1,
          RESHARD_ERR_USAGE },
        { "no such tensor", { { .is_whole = true, .source_tensor = 1 } }, 1, RESHARD_ERR_USAGE },
        { "nothing", { { 0 } }, 0, RESHARD_ERR_USAGE },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_status status = plan_new(source, target, cases[i].recipes, cases[i].count, &plan, &err);
        if (status != cases[i].status)
            fail_msg("%s: status %d, expected %d", cases[i].why, status, cases[i].status);
        if (!status)
            plan_free(plan);
    }
    CHECK_FAILS(plan_new(source, opaque, &whole, 1, &plan, &err), RESHARD_ERR_UNSUPPORTED);
    catalog_free(source);
    catalog_free(target);
    catalog_free(opaque);
}

TEST(a_flat_run_takes_few_boxes)
{
    static const int64_t shape[] = { 4, 5, 6 };
    struct catalog *source = catalog_with("x", DTYPE_F32, 3, shape, 1), *target = catalog_with("x", DTYPE_F32, 3, shape, 1);
    static const int64_t cuts[] = { 0, 7, 100, 120 };
    struct catalog_chunk *chunk;
    struct plan *plan;
    CHECK_OK(catalog_add_chunk(source, 0, NULL, NULL, 0, 0, 480, NULL, &err));
    CHECK_OK(catalog_seal(source, false, &err));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(catalog_add_chunk(target, 0, NULL, NULL, 0, (uint64_t)cuts[i] * 4, (uint64_t)(cuts[i + 1] - cuts[i]) * 4, &chunk, &err));
        struct chunk_layout *layout = catalog_chunk_layout(target, chunk);
        layout->flat_begin = cuts[i];
        layout->flat_count = cuts[i + 1] - cuts[i];
    }
    CHECK_OK(catalog_seal(target, false, &err));
    CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
    assert_true(plan->step_count <= 15);
    for (uint32_t i = 0; i < plan->step_count; i++) {
        struct plan_copy copy;
        CHECK_OK(plan_step_copy(plan, &plan->steps[i], &copy, &err));
        assert_int_equal(copy.source_offset, copy.target_offset);
    }
    plan_free(plan);
    catalog_free(source);
    catalog_free(target);
}

TEST(the_hash_tells_plans_apart)
{
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        struct catalog *source = whole_catalog(DTYPE_F32), *target = catalog_with("x", DTYPE_F32, 2, shape_8x8, 1);
        struct plan *plan;
        add(target, 0, i == 2 ? 8 : 0, 0, 0, 8, 4);
        add(target, 0, 256, 0, 4, 8, 4);
        CHECK_OK(catalog_seal(target, false, &err));
        CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
        hashes[i] = plan_hash(plan);
        plan_free(plan);
        catalog_free(source);
        catalog_free(target);
    }
    assert_true(hashes[0] == hashes[1]);
    assert_true(hashes[0] != hashes[2]);
}

static void set_strides(struct catalog *catalog, uint32_t chunk, int64_t rows, int64_t columns, uint64_t bytes)
{
    uint32_t strides = catalog_vector(catalog, (int64_t[]){ rows, columns }, 2);
    catalog_chunk_layout(catalog, &catalog->chunks[chunk])->strides = strides;
    catalog->chunks[chunk].bytes = bytes;
}

/* Columns 2 to 5 of a row-major file of 8 x 8 are one chunk with strides, and one step; so are those of its transpose. */
TEST(a_block_of_columns_is_one_step)
{
    static const struct {
        int64_t rows, columns;
        uint64_t bytes;
        reshard_status status;
    } cases[] = {
        { 8, 1, 240, RESHARD_OK },
        { 1, 8, 128, RESHARD_OK },
        { 8, 1, 236, RESHARD_ERR_UNSUPPORTED },  /* the last element lies outside */
        { 3, 1, 4096, RESHARD_ERR_UNSUPPORTED }, /* rows lie on each other */
        { 8, 0, 4096, RESHARD_ERR_UNSUPPORTED },
        { -8, 1, 4096, RESHARD_ERR_UNSUPPORTED },
        { INT64_MAX / 2, 1, 4096, RESHARD_ERR_UNSUPPORTED },
    };
    struct catalog *source = whole_catalog(DTYPE_F32);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct catalog *target = catalog_with("x", DTYPE_F32, 2, shape_8x8, 1);
        struct plan *plan;
        struct plan_copy copy;
        add(target, 0, 0, 0, 0, 8, 2);
        add(target, 0, 8, 0, 2, 8, 4);
        add(target, 0, 24, 0, 6, 8, 2);
        set_strides(target, 0, 8, 1, 232);
        set_strides(target, 1, cases[i].rows, cases[i].columns, cases[i].bytes);
        set_strides(target, 2, 8, 1, 232);
        CHECK_OK(catalog_seal(target, false, &err));
        reshard_status status = plan_new(source, target, &whole, 1, &plan, &err);
        assert_int_equal(status, cases[i].status);
        if (!status) {
            assert_int_equal(plan->step_count, 3);
            CHECK_OK(plan_step_copy(plan, &plan->steps[1], &copy, &err));
            assert_int_equal(copy.target_offset, 8);
            assert_int_equal(copy.spec.target_stride[0], cases[i].rows * 4);
            assert_int_equal(copy.spec.target_stride[1], cases[i].columns * 4);
            plan_free(plan);
        }
        catalog_free(target);
    }
    catalog_free(source);
}

/* 40 chunks of 4 to 44 KiB in 8 objects. */
TEST(parts_of_a_plan_are_near_equal)
{
    static const int64_t shape[] = { 300, 1024 };
    struct catalog *source = catalog_with("x", DTYPE_F32, 2, shape, 1), *target = catalog_with("x", DTYPE_F32, 2, shape, 8);
    struct plan *plan, *part;
    CHECK_OK(catalog_add_chunk(source, 0, NULL, NULL, 0, 0, 300 * 4096, NULL, &err));
    int64_t row = 0;
    for (uint32_t i = 0; i < 40; i++) {
        int64_t rows = 1 + i * 7 % 11;
        add(target, i / 5, i % 5 * 65536, row, 0, rows, 1024);
        row += rows;
    }
    for (; row < 300; row++)
        add(target, 7, 1 << 20, row, 0, 1, 1024);
    CHECK_OK(catalog_seal(source, false, &err));
    CHECK_OK(catalog_seal(target, false, &err));
    CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
    for (uint32_t count = 1; count <= 6; count++) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < count; i++) {
            CHECK_OK(plan_split(plan, i, count, &part, &err));
            assert_ptr_equal(part->steps, plan->steps + next);
            next += part->step_count;
            assert_in_range(part->write_bytes * count, plan->write_bytes * 2 / 3, plan->write_bytes * 3 / 2);
            assert_true(count == 1 || plan_hash(part) != plan_hash(plan));
            plan_free(part);
        }
        assert_int_equal(next, plan->step_count);
    }
    CHECK_OK(plan_split(plan, 999, 1000, &part, &err));
    plan_free(part);
    CHECK_FAILS(plan_split(plan, 2, 2, &part, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(plan_split(plan, 0, 0, &part, &err), RESHARD_ERR_USAGE);
    plan_free(plan);
    catalog_free(source);
    catalog_free(target);
}

TEST(what_is_filled_belongs_to_the_plan)
{
    static const int64_t zero[] = { 0, 0 };
    static const float marker = 42, other = 43;
    const void *fills[] = { NULL, &marker, &other };
    struct catalog *target = whole_catalog(DTYPE_F32), *packed = whole_catalog(DTYPE_F4);
    uint64_t hashes[3];
    struct plan *plan;
    struct recipe recipe = { .source_tensor = RECIPE_FILL, .rank = 2, .target_start = zero, .extent = shape_8x8 };
    for (int i = 0; i < 3; i++) {
        recipe.fill = fills[i];
        CHECK_OK(plan_new(target, target, &recipe, 1, &plan, &err));
        hashes[i] = plan_hash(plan);
        if (fills[i])
            assert_memory_equal(plan->recipes[0].fill, fills[i], sizeof(float));
        plan_free(plan);
    }
    assert_true(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
    CHECK_FAILS(plan_new(packed, packed, &recipe, 1, &plan, &err), RESHARD_ERR_USAGE);
    catalog_free(target);
    catalog_free(packed);
}

/* Every element comes from one and the same place, whatever box is filled. */
TEST(a_fill_is_read_without_moving_on)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_F4 };
    static const int64_t zero[] = { 0, 0 }, start[] = { 4, 0 }, extent[] = { 4, 8 };
    for (int i = 0; i < 2; i++) {
        struct catalog *source = whole_catalog(types[i]), *target = catalog_with("x", types[i], 2, shape_8x8, 1);
        struct recipe recipe = { .source_tensor = RECIPE_FILL, .rank = 2, .target_start = zero, .extent = shape_8x8 };
        struct plan *plan;
        struct plan_copy copy = { .source_offset = 7 };
        CHECK_OK(catalog_add_chunk(target, 0, NULL, NULL, 0, 100, 256, NULL, &err));
        CHECK_OK(catalog_seal(target, false, &err));
        CHECK_OK(plan_new(source, target, &recipe, 1, &plan, &err));
        assert_int_equal(plan->step_count, 1);
        CHECK_OK(plan_part_copy(plan, &plan->steps[0], start, extent, &copy, &err));
        assert_int_equal(copy.source_offset, 0);
        assert_int_equal(copy.target_offset, 100 + (i ? 16 : 128));
        assert_int_equal(copy.spec.rank, i ? 1 : 2);
        assert_int_equal(copy.spec.extent[0], i ? 16 : 4);
        assert_int_equal(copy.spec.target_stride[0], i ? 1 : 32);
        for (int axis = 0; axis < copy.spec.rank; axis++)
            assert_int_equal(copy.spec.source_stride[axis], 0);
        assert_true(copy.spec.source_dtype == copy.spec.target_dtype && copy.spec.target_dtype == (i ? DTYPE_U8 : DTYPE_F32));
        assert_int_equal(copy.spec.flags, 0);
        plan_free(plan);
        catalog_free(source);
        catalog_free(target);
    }
}

TEST(ranks_may_differ_where_extents_are_one)
{
    static const int64_t stacked[] = { 3, 4, 8 }, row[] = { 4, 8 }, at[] = { 1, 0, 0 }, box[] = { 1, 4, 8 }, zero[] = { 0, 0, 0 },
                         two[] = { 2, 0, 0 };
    static const uint8_t lead[] = { RECIPE_UNIT_AXIS, 0, 1 }, dropped[] = { 1, 2 }, twice[] = { RECIPE_UNIT_AXIS, 0, 0 };
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F4 };
    struct plan *plan;
    struct plan_copy copy;
    for (int i = 0; i < 2; i++) {
        unsigned bits = dtype_info(dtypes[i])->bits;
        struct catalog *one = catalog_with("w", dtypes[i], 2, row, 1), *all = catalog_with("w", dtypes[i], 3, stacked, 1);
        CHECK_OK(catalog_add_chunk(one, 0, NULL, NULL, 0, 100, 32 * bits / 8, NULL, &err));
        CHECK_OK(catalog_add_chunk(all, 0, NULL, NULL, 0, 0, 96 * bits / 8, NULL, &err));
        CHECK_OK(catalog_seal(one, false, &err));
        CHECK_OK(catalog_seal(all, false, &err));
        struct recipe stack[] = {
            { .rank = 3, .source_start = zero, .target_start = at, .extent = box, .permutation = lead },
            { .source_tensor = RECIPE_FILL, .rank = 3, .target_start = zero, .extent = box },
            { .source_tensor = RECIPE_FILL, .rank = 3, .target_start = two, .extent = box },
        };
        CHECK_OK(plan_new(one, all, stack, 3, &plan, &err));
        assert_int_equal(plan->step_count, 3);
        assert_int_equal(plan->read_bytes, 32 * bits / 8);
        assert_int_equal(plan->steps[0].source_chunk, CATALOG_NONE);
        CHECK_OK(plan_step_copy(plan, &plan->steps[1], &copy, &err));
        assert_int_equal(copy.source_offset, 100);
        assert_int_equal(copy.target_offset, 32 * bits / 8);
        plan_free(plan);
        struct recipe unstack = { .rank = 2, .source_start = at, .target_start = zero, .extent = row, .permutation = dropped };
        CHECK_OK(plan_new(all, one, &unstack, 1, &plan, &err));
        CHECK_OK(plan_step_copy(plan, &plan->steps[0], &copy, &err));
        assert_int_equal(copy.source_offset, 32 * bits / 8);
        assert_int_equal(copy.target_offset, 100);
        plan_free(plan);
        stack[0].permutation = twice;
        CHECK_FAILS(plan_new(one, all, stack, 3, &plan, &err), RESHARD_ERR_USAGE);
        stack[0].permutation = NULL;
        CHECK_FAILS(plan_new(one, all, stack, 3, &plan, &err), RESHARD_ERR_USAGE);
        stack[0].permutation = lead;
        CHECK_FAILS(plan_new(one, all, stack, 2, &plan, &err), RESHARD_ERR_USAGE);
        catalog_free(one);
        catalog_free(all);
    }
}

TEST(casts_on_the_way_belong_to_the_plan)
{
    static const enum dtype via[] = { DTYPE_BF16, DTYPE_F16 }, impossible[] = { DTYPE_BITS16 };
    struct catalog *source = whole_catalog(DTYPE_F32), *target = whole_catalog(DTYPE_F32);
    struct recipe recipe = whole;
    uint64_t hashes[3];
    struct plan *plan;
    for (unsigned i = 0; i < 3; i++) {
        recipe.via = via;
        recipe.via_count = i;
        CHECK_OK(plan_new(source, target, &recipe, 1, &plan, &err));
        assert_int_equal(plan->cast_bytes, i ? 256 : 0);
        hashes[i] = plan_hash(plan);
        plan_free(plan);
    }
    assert_true(hashes[0] != hashes[1] && hashes[1] != hashes[2]);
    recipe.via = impossible;
    recipe.via_count = 1;
    CHECK_FAILS(plan_new(source, target, &recipe, 1, &plan, &err), RESHARD_ERR_UNSUPPORTED);
    recipe.via_count = COPY_VIA_MAX + 1;
    CHECK_FAILS(plan_new(source, target, &recipe, 1, &plan, &err), RESHARD_ERR_UNSUPPORTED);
    catalog_free(source);
    catalog_free(target);
}

/* Drivers give the sizes of chunks, which they may have from a file: nothing behind a chunk's bytes is read. */
TEST(elements_beyond_the_bytes_of_their_chunk_are_refused)
{
    static const struct {
        int64_t strides[2];
        uint64_t bytes;
        bool is_good;
    } cases[] = { { { 8, 1 }, 256, true },   { { 8, 1 }, 255, false }, { { 8, 1 }, 0, false },
                  { { 1, 8 }, 256, true },   { { 1, 8 }, 252, false }, { { 16, 1 }, 480, true },
                  { { 16, 1 }, 479, false }, { { 0, 0 }, 4, true },    { { 0, 0 }, 3, false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct catalog *source = catalog_with("x", DTYPE_F32, 2, shape_8x8, 1), *target = whole_catalog(DTYPE_F32);
        struct catalog_chunk *chunk;
        struct plan *plan;
        struct plan_copy copy;
        CHECK_OK(catalog_add_chunk(source, 0, NULL, NULL, 0, 1000, cases[i].bytes, &chunk, &err));
        catalog_chunk_layout(source, chunk)->strides = catalog_vector(source, cases[i].strides, 2);
        CHECK_OK(catalog_seal(source, false, &err));
        CHECK_OK(plan_new(source, target, &whole, 1, &plan, &err));
        reshard_status status = plan_step_copy(plan, &plan->steps[0], &copy, &err);
        assert_int_equal(status, cases[i].is_good ? RESHARD_OK : RESHARD_ERR_FORMAT);
        if (status) {
            assert_non_null(strstr(err.message, "'x': its elements reach to byte"));
            assert_int_equal(err.offset, 1000);
        }
        plan_free(plan);
        catalog_free(source);
        catalog_free(target);
    }
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing)
{
    struct catalog *source = catalog_with("x", DTYPE_F32, 2, shape_8x8, 2), *target = catalog_with("x", DTYPE_F32, 2, shape_8x8, 2);
    struct plan *plan;
    for (int64_t row = 0; row < 8; row++) {
        add(source, (uint32_t)row % 2, (uint64_t)row * 32, row, 0, 1, 8);
        add(source, (uint32_t)(row + 1) % 2, (uint64_t)row * 32, row, 0, 1, 8);
        add(target, 1 - (uint32_t)row % 2, (uint64_t)row * 32, 0, row, 8, 1);
    }
    CHECK_OK(catalog_seal(source, false, &err));
    CHECK_OK(catalog_seal(target, false, &err));
    unsigned long nth = 0;
    reshard_status status;
    do {
        fail_malloc_at(++nth);
        status = plan_new(source, target, &whole, 1, &plan, &err);
        if (!status)
            plan_free(plan); /* also when only giving memory back failed */
        else
            assert_int_equal(status, RESHARD_ERR_MEMORY);
    } while (fail_malloc_was_hit());
    assert_true(nth > 10);
    assert_int_equal(status, RESHARD_OK);
    catalog_free(source);
    catalog_free(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_come_in_the_order_of_the_targets_bytes),
        cmocka_unit_test(of_replicas_the_one_in_the_most_used_object_is_read),
        cmocka_unit_test(a_hole_in_the_source_is_an_error_that_names_tensor_and_box),
        cmocka_unit_test(recipes_must_fit_and_not_overlap),
        cmocka_unit_test(a_flat_run_takes_few_boxes),
        cmocka_unit_test(the_hash_tells_plans_apart),
        cmocka_unit_test(a_block_of_columns_is_one_step),
        cmocka_unit_test(parts_of_a_plan_are_near_equal),
        cmocka_unit_test(what_is_filled_belongs_to_the_plan),
        cmocka_unit_test(a_fill_is_read_without_moving_on),
        cmocka_unit_test(ranks_may_differ_where_extents_are_one),
        cmocka_unit_test(casts_on_the_way_belong_to_the_plan),
        cmocka_unit_test(elements_beyond_the_bytes_of_their_chunk_are_refused),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
