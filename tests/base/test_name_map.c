/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "fail_malloc.h"

#include "base/hash.h"
#include "base/name_map.h"

#define NAMES 1000000

static struct str name_of(uint32_t i, char *text)
{
    int size = sprintf(text, "decoder.layers.%u.self_attention.linear_qkv.weight.%u", i % 97, i);
    return (struct str){ text, (size_t)size };
}

TEST(a_million_names_keep_their_numbers)
{
    struct name_map map = { 0 };
    char text[128];
    bool was_new;
    for (uint32_t i = 0; i < NAMES; i++) {
        assert_int_equal(name_map_intern(&map, name_of(i, text), &was_new), i);
        assert_true(was_new);
    }
    for (uint32_t i = 0; i < NAMES; i += 7) {
        struct str name = name_of(i, text);
        assert_int_equal(name_map_find(&map, name), i);
        assert_int_equal(name_map_intern(&map, name, &was_new), i);
        assert_false(was_new);
        assert_true(str_equal(name_map_at(&map, i), name));
        text[name.size] = 'x';
        name.size++;
        assert_int_equal(name_map_find(&map, name), NAME_NONE);
    }
    assert_int_equal(map.count, NAMES);
    name_map_release(&map);
    assert_int_equal(map.count, 0);
    assert_int_equal(name_map_find(&map, STR("x")), NAME_NONE);
    name_map_release(&map);
}

TEST(names_may_be_empty_or_hold_anything)
{
    static const struct str names[] = { { NULL, 0 }, { "\0", 1 }, { "\0\0", 2 }, { "a", 1 }, { "a\0", 2 }, { "\xED\xA0\x80", 3 } };
    struct name_map map = { 0 };
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(name_map_intern(&map, names[i], NULL), i);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(name_map_find(&map, names[i]), i);
    assert_int_equal(name_map_intern(&map, STR(""), NULL), 0);
    name_map_release(&map);
}

/* The list of names seen so far, searched from its start, is the oracle. */
TEST(random_names_are_numbered_by_first_insertion)
{
    uint64_t seed = 11;
    for (int round = 0; round < 50; round++) {
        struct name_map map = { 0 };
        char seen[300][4];
        uint32_t count = 0;
        for (int step = 0; step < 400; step++) {
            char text[4];
            sprintf(text, "%u", (unsigned)(test_random(&seed) % 300));
            uint32_t expected = 0;
            while (expected < count && strcmp(seen[expected], text) != 0)
                expected++;
            bool adds = test_random(&seed) % 2, is_new = expected == count, was_new = false;
            uint32_t found = adds ? name_map_intern(&map, str_of(text), &was_new) : name_map_find(&map, str_of(text));
            if (adds && is_new)
                strcpy(seen[count++], text);
            assert_int_equal(found, adds || !is_new ? expected : NAME_NONE);
            assert_int_equal(was_new, adds && is_new);
        }
        assert_int_equal(map.count, count);
        name_map_release(&map);
    }
}

TEST(without_memory_nothing_is_added)
{
    unsigned long nth = 0;
    uint32_t failed_ever = 0;
    bool hit;
    do {
        struct name_map map = { 0 };
        uint32_t failures = 0;
        fail_malloc_at(++nth);
        for (uint32_t i = 0; i < 500; i++) {
            char text[128];
            struct str name = name_of(i, text);
            uint32_t index = name_map_intern(&map, name, NULL);
            if (index == NAME_NONE) {
                failures++;
                assert_int_equal(name_map_find(&map, name), NAME_NONE);
                index = name_map_intern(&map, name, NULL);
            }
            assert_int_equal(index, i);
        }
        hit = fail_malloc_was_hit();
        assert_true(failures <= hit); /* the arena may get by with a smaller block */
        failed_ever |= failures;
        name_map_release(&map);
    } while (hit);
    assert_true(nth > 5 && failed_ever);
}

TEST(names_are_found_by_their_parts)
{
    struct name_map map = { 0 };
    reshard_error err = { 0 };
    const struct str parts[] = { STR("layer."), STR(""), STR("7") };
    uint32_t found;
    assert_int_equal(name_map_intern(&map, STR("layer."), NULL), 0);
    assert_int_equal(name_map_intern(&map, STR("layer.7"), NULL), 1);
    CHECK_OK(name_map_find_joined(&map, parts, 3, &found, &err));
    assert_int_equal(found, 1);
    CHECK_OK(name_map_find_joined(&map, parts, 2, &found, &err));
    assert_int_equal(found, 0);
    CHECK_OK(name_map_find_joined(&map, parts + 1, 2, &found, &err));
    assert_int_equal(found, NAME_NONE);
    fail_malloc_at(1);
    CHECK_FAILS(name_map_find_joined(&map, parts, 3, &found, &err), RESHARD_ERR_MEMORY);
    assert_true(fail_malloc_was_hit());
    assert_int_equal(found, NAME_NONE);
    name_map_release(&map);
}

TEST(hashes_of_parts_and_whole_agree)
{
    static uint8_t bytes[5000];
    uint64_t seed = 5;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)test_random(&seed);
    struct hash64_stream *stream = hash64_stream_new();
    assert_non_null(stream);
    for (int round = 0; round < 200; round++) {
        size_t size = (size_t)(test_random(&seed) % sizeof(bytes)), done = 0;
        hash64_stream_reset(stream);
        while (done < size) {
            size_t part = (size_t)(test_random(&seed) % (size - done)) + 1;
            hash64_stream_update(stream, bytes + done, part);
            done += part;
        }
        assert_true(hash64_stream_digest(stream) == hash64(bytes, size, 0));
    }
    hash64_stream_free(stream);
    hash64_stream_free(NULL);
    /* Known answers of XXH3_64bits. */
    assert_true(hash64("", 0, 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(hash64(NULL, 0, 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(hash64("a", 1, 0) != hash64("a", 1, 1));
    assert_true(hash_random_seed() != hash_random_seed());
    fail_malloc_at(1);
    assert_null(hash64_stream_new());
    assert_true(fail_malloc_was_hit());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_names_keep_their_numbers),
        cmocka_unit_test(names_may_be_empty_or_hold_anything),
        cmocka_unit_test(random_names_are_numbered_by_first_insertion),
        cmocka_unit_test(without_memory_nothing_is_added),
        cmocka_unit_test(names_are_found_by_their_parts),
        cmocka_unit_test(hashes_of_parts_and_whole_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
