/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <stdlib.h>

#include "base/array.h"

TEST(of_a_known_size)
{
    unsigned char *none = array_new(0, 24), *zeros = array_zeroed(3, 5), *empty = array_zeroed(0, 1);
    assert_non_null(none);
    assert_non_null(empty);
    assert_int_equal(empty[0], 0);
    for (int i = 0; i < 15; i++)
        assert_int_equal(zeros[i], 0);
    const volatile size_t too_many = SIZE_MAX / 4; /* the compiler would say so, too */
    assert_null(array_new(too_many, 8));
    assert_null(array_zeroed(too_many, 8));
    free(none);
    free(zeros);
    free(empty);
}

TEST(grows_by_doubling_and_keeps_elements)
{
    uint16_t *values = NULL;
    uint32_t count = 0, capacity = 0, moves = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t before = capacity;
        assert_true(ARRAY_ROOM(values, count, capacity));
        assert_true(capacity > count);
        moves += capacity != before;
        values[count++] = (uint16_t)i;
    }
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(values[i], i);
    assert_int_equal(capacity, 1024);
    assert_int_equal(moves, 7);
    free(values);
}

TEST(reserves_what_is_needed_at_once)
{
    char **texts = NULL;
    size_t capacity = 0;
    assert_true(ARRAY_RESERVE(texts, 0, capacity));
    assert_null(texts);
    assert_true(ARRAY_RESERVE(texts, 100, capacity));
    assert_int_equal(capacity, 100);
    assert_true(ARRAY_RESERVE(texts, 101, capacity));
    assert_int_equal(capacity, 200);
    free(texts);
}

TEST(failure_leaves_the_array_alone)
{
    struct {
        char bytes[1 << 20];
    } *blocks = NULL;
    uint32_t capacity = 0;
    assert_true(ARRAY_RESERVE(blocks, 1, capacity));
    void *kept = blocks;
    uint32_t kept_capacity = capacity;
    assert_false(ARRAY_RESERVE(blocks, UINT32_MAX, capacity)); /* the last number means none */
    size_t huge = capacity;
    assert_false(ARRAY_RESERVE(blocks, SIZE_MAX / 4, huge)); /* elements times bytes overflow */
    assert_ptr_equal(blocks, kept);
    assert_int_equal(capacity, kept_capacity);
    assert_int_equal(huge, kept_capacity);
    free(blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_known_size),
        cmocka_unit_test(grows_by_doubling_and_keeps_elements),
        cmocka_unit_test(reserves_what_is_needed_at_once),
        cmocka_unit_test(failure_leaves_the_array_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
