/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "fail_malloc.h"

#include "base/arena.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#define PARTS 4000

TEST(parts_are_aligned_and_do_not_overlap)
{
    struct arena arena = { 0 };
    static struct { unsigned char *bytes; size_t size; } parts[PARTS];
    uint64_t seed = 3;
    size_t total = 0;
    for (size_t i = 0; i < PARTS; i++) {
        parts[i].size = (size_t)(test_random(&seed) % (i % 500 == 0 ? 2000000 : 300));
        parts[i].bytes = arena_alloc(&arena, parts[i].size);
        assert_non_null(parts[i].bytes);
        assert_int_equal((uintptr_t)parts[i].bytes % 16, 0);
        memset(parts[i].bytes, (int)(i % 251), parts[i].size);
        total += parts[i].size;
        assert_non_null(arena_copy(&arena, "x", i % 2)); /* spoils the alignment for the next */
    }
    for (size_t i = 0; i < PARTS; i++)
        for (size_t b = 0; b < parts[i].size; b++)
            if (parts[i].bytes[b] != i % 251)
                fail_msg("part %zu was overwritten at byte %zu", i, b);
    assert_true(arena.bytes_used >= total);
    assert_true(arena.bytes_used < total + total / 2 + ((size_t)4 << 20));
    arena_release(&arena);
    assert_null(arena.blocks);
    assert_int_equal(arena.bytes_used, 0);
}

TEST(small_and_empty_requests)
{
    struct arena arena = { 0 };
    assert_non_null(arena_alloc(&arena, 0));
    assert_non_null(arena_array(&arena, 0, 8));
    assert_null(arena_array(&arena, SIZE_MAX / 4, 8));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, SIZE_MAX - 8));
    assert_null(arena_copy(&arena, "", SIZE_MAX));
    const unsigned char *zeros = arena_zalloc(&arena, 5000);
    assert_non_null(zeros);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(zeros[i], 0);
    arena_release(&arena);
    arena_release(&arena);
}

TEST(copies_end_in_a_nul)
{
    struct arena arena = { 0 };
    struct str copy = { 0 };
    assert_true(arena_str(&arena, STR("a\0b"), &copy));
    assert_int_equal(copy.size, 3);
    assert_memory_equal(copy.data, "a\0b", 4);
    assert_true(arena_str(&arena, (struct str){ NULL, 0 }, &copy));
    assert_string_equal(copy.data, "");
    assert_string_equal(arena_printf(&arena, "%s-%d", "x", 12), "x-12");
    char *text = arena_printf(&arena, "%5000d", 1);
    assert_int_equal(strlen(text), 5000);
    arena_release(&arena);
}

TEST(the_limit_holds_and_survives_release)
{
    struct arena arena = { .bytes_max = 10000 };
    size_t taken = 0;
    while (arena_alloc(&arena, 480))
        taken += 480;
    assert_true(taken >= 8000);
    assert_true(arena.bytes_used <= 10000);
    arena_release(&arena);
    assert_int_equal(arena.bytes_max, 10000);
    assert_null(arena_alloc(&arena, 10000));
    assert_non_null(arena_alloc(&arena, 9000));
    arena_release(&arena);
}

TEST(what_is_asked_beforehand_is_told_beforehand)
{
    struct arena arena = { .bytes_max = 10000 };
    assert_true(arena_fits(&arena, 100, 100));
    assert_false(arena.is_full);
    assert_false(arena_fits(&arena, 101, 100));
    assert_true(arena.is_full);
    arena.is_full = false;
    assert_false(arena_fits(&arena, SIZE_MAX, 2));
    assert_true(arena.is_full);
    assert_int_equal(arena.bytes_used, 0);
    assert_non_null(arena_alloc(&arena, 9000));
    assert_true(arena_fits(&arena, 1, 900));
    assert_false(arena_fits(&arena, 1, 1001));
    arena_release(&arena);
    arena.bytes_max = 0;
    assert_true(arena_fits(&arena, SIZE_MAX / 2, 2));
}

#ifdef __SANITIZE_ADDRESS__
TEST(sanitizers_see_what_was_not_given_out)
{
    static const size_t sizes[] = { 1, 8, 15, 16, 300, 5000 };
    struct arena arena = { 0 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        char *of_any_type = arena_alloc(&arena, sizes[i]), *copy = arena_copy(&arena, "0123456789abcdef", i);
        assert_null(__asan_region_is_poisoned(of_any_type, sizes[i]));
        assert_true(__asan_address_is_poisoned(of_any_type + sizes[i]));
        assert_null(__asan_region_is_poisoned(copy, i + 1));
        assert_true(__asan_address_is_poisoned(copy + i + 1));
    }
    assert_true(__asan_address_is_poisoned(arena_array(&arena, 0, 8)));
    arena_release(&arena);
}
#endif

TEST(joined_parts_are_whole)
{
    struct arena arena = { 0 };
    char *many = test_malloc(5000);
    memset(many, 'n', 5000);
    const struct str joined = ARENA_JOIN(&arena, STR("a\0b"), { NULL, 0 }, { many, 5000 }, STR("."));
    assert_int_equal(joined.size, 5004);
    assert_memory_equal(joined.data, "a\0b", 3);
    assert_memory_equal(joined.data + 3, many, 5000);
    assert_string_equal(joined.data + 5003, ".");
    assert_string_equal(ARENA_JOIN(&arena, STR("")).data, "");
    const struct str huge = { many, SIZE_MAX / 2 };
    assert_null(ARENA_JOIN(&arena, huge, huge, STR("abc")).data);
    assert_null(ARENA_JOIN(&arena, huge, huge, STR("a")).data);
    test_free(many);
    arena_release(&arena);
}

TEST(an_arena_goes_on_after_a_failed_allocation)
{
    struct arena arena = { 0 };
    fail_malloc_once_at(1);
    assert_non_null(arena_alloc(&arena, 100)); /* tried again without room for others */
    assert_true(fail_malloc_was_hit());
    char *a = arena_copy(&arena, "abc", 3);
    fail_malloc_at(1);
    assert_null(arena_alloc(&arena, (size_t)1 << 20));
    assert_true(fail_malloc_was_hit());
    assert_string_equal(a, "abc");
    assert_non_null(arena_alloc(&arena, 100));
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_aligned_and_do_not_overlap),
        cmocka_unit_test(small_and_empty_requests),
        cmocka_unit_test(copies_end_in_a_nul),
        cmocka_unit_test(the_limit_holds_and_survives_release),
        cmocka_unit_test(what_is_asked_beforehand_is_told_beforehand),
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(sanitizers_see_what_was_not_given_out),
#endif
        cmocka_unit_test(joined_parts_are_whole),
        cmocka_unit_test(an_arena_goes_on_after_a_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
