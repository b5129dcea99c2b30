/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_malloc.h"
#include "store/store.h"
#include "temp_directory.h"

static reshard_error err;

/* Reads "source", writes what it holds twice into the directory "target", all through `store`. */
static reshard_status copy_twice(struct store *store, const struct store_txn_options *options, reshard_error *error)
{
    struct buffer bytes = { 0 };
    struct store_txn *txn = NULL;
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    reshard_status status = store_list(store, "", &arena, &entries, &count, error);
    if (!status)
        status = store_read_all(store, "source", AT_MOST(100), &bytes, error);
    if (!status)
        status = store_txn_begin_in(store, "target", options, &txn, error);
    if (!status)
        status = store_txn_journal_read(txn, &bytes, error);
    for (int i = 0; i < 2 && !status; i++) {
        struct store_object *object = NULL;
        status = store_txn_create(txn, i ? "d/b" : "a", 6, &object, error);
        if (!status)
            status = store_write_at(object, 0, bytes.data, 6, error);
        store_object_close(object);
        if (!status)
            status = store_txn_journal_append(txn, "x", 1, error);
    }
    if (status) {
        store_txn_abort(txn, false);
    } else {
        status = store_txn_commit(txn, error);
    }
    buffer_release(&bytes);
    arena_release(&arena);
    return status;
}

static bool is_whole(struct store *store, const char *expected)
{
    static const char *const names[] = { "target/a", "target/d/b" };
    for (int i = 0; i < 2; i++) {
        struct buffer bytes = { 0 };
        bool same = !store_read_all(store, names[i], AT_MOST(100), &bytes, NULL) && str_is(buffer_str(&bytes), expected);
        buffer_release(&bytes);
        if (!same)
            return false;
    }
    return true;
}

static struct store *make_inner(bool in_memory, bool has_target)
{
    struct store *store = NULL;
    if (in_memory) {
        store = store_new_memory();
        CHECK_OK(store_memory_put(store, "source", "source", 6, &err));
        if (has_target) {
            CHECK_OK(store_memory_put(store, "target/a", "before", 6, &err));
            CHECK_OK(store_memory_put(store, "target/d/b", "before", 6, &err));
        }
        return store;
    }
    test_folder_remove(NULL);
    mkdir(test_folder, 0777);
    temp_write("source", "source");
    if (has_target) {
        mkdir(temp_path("target"), 0777);
        mkdir(temp_path("target/d"), 0777);
        temp_write("target/a", "before");
        temp_write("target/d/b", "before");
    }
    CHECK_OK(store_open_path(test_folder, 0, &store, NULL, &err));
    return store;
}

static void check_state(struct store *store, bool done, bool has_target, bool in_memory)
{
    bool is_directory;
    uint64_t bytes;
    assert_int_equal(store_exists(store, "target", &is_directory, &bytes), done || has_target);
    if (done || has_target)
        assert_true(is_whole(store, done ? "source" : "before"));
    if (!in_memory)
        assert_false(temp_exists(".target.reshard-partial"));
}

TEST(each_call_that_fails_once_leaves_the_old_target_or_the_new_one)
{
    static const struct {
        enum fault_kind kind;
        reshard_status expected;
        uint64_t calls;
    } cases[] = { { FAULT_IO, RESHARD_ERR_IO, 12 }, { FAULT_SHORT_READ, RESHARD_ERR_FORMAT, 2 }, { FAULT_DISK_FULL, RESHARD_ERR_IO, 8 } };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (int variant = 0; variant < 4; variant++) {
            bool in_memory = variant & 1, has_target = variant & 2, was_hit;
            struct store_txn_options options = { .is_directory = true, .overwrite = has_target, .no_sync = true };
            uint64_t nth = 0;
            do {
                struct store *inner = make_inner(in_memory, has_target), *store = store_new_fault(inner, cases[c].kind, ++nth);
                reshard_status status = copy_twice(store, &options, &err);
                was_hit = store_fault_was_hit(store);
                if (status != (was_hit ? cases[c].expected : RESHARD_OK))
                    fail_msg("kind %d, call %d: status %d (%s)", cases[c].kind, (int)nth, status, err.message);
                check_state(inner, !status, has_target, in_memory);
                store_free(store);
                store_free(inner);
            } while (was_hit);
            assert_int_equal(nth - 1, cases[c].calls);
        }
    }
}

TEST(each_allocation_that_fails_once_leaves_the_old_target_or_the_new_one)
{
    for (int variant = 0; variant < 4; variant++) {
        bool in_memory = variant & 1, has_target = variant & 2, was_hit;
        struct store_txn_options options = { .is_directory = true, .overwrite = has_target, .no_sync = true };
        unsigned long nth = 0;
        do {
            struct store *inner = make_inner(in_memory, has_target);
            fail_malloc_at(++nth);
            reshard_status status = copy_twice(inner, &options, &err);
            was_hit = fail_malloc_was_hit();
            if (status && (!was_hit || status != RESHARD_ERR_MEMORY))
                fail_msg("allocation %lu: status %d (%s)", nth, status, err.message);
            check_state(inner, !status, has_target, in_memory);
            store_free(inner);
        } while (was_hit);
        assert_true(nth > 10);
    }
}

TEST(opening_survives_each_allocation_that_fails)
{
    struct store *inner = make_inner(false, true);
    store_free(inner);
    unsigned long nth = 0;
    bool was_hit;
    do {
        struct store *store = NULL;
        struct store_object *object = NULL;
        char *name = NULL;
        fail_malloc_at(++nth);
        reshard_status status = store_open_path(temp_path("target/a"), STORE_MMAP | STORE_DIRECT, &store, &name, &err);
        if (!status)
            status = store_open_object(store, name, &object, &err);
        was_hit = fail_malloc_was_hit();
        assert_int_equal(status, was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        store_object_close(object);
        store_free(store);
        free(name);
    } while (was_hit);
}

TEST(a_fault_store_hides_maps_and_descriptors)
{
    struct store *inner = make_inner(false, false), *store = store_new_fault(inner, FAULT_IO, 0);
    struct store_object *object = NULL;
    CHECK_OK(store_open_object(store, "source", &object, &err));
    assert_int_equal(store_object_fd(object), -1);
    assert_null(store_object_map(object));
    assert_string_equal(store_path(store), test_folder);
    assert_false(store_fault_was_hit(store));
    assert_false(store_fault_was_hit(inner));
    store_object_close(object);
    store_free(store);
    store_free(inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_that_fails_once_leaves_the_old_target_or_the_new_one),
        cmocka_unit_test(each_allocation_that_fails_once_leaves_the_old_target_or_the_new_one),
        cmocka_unit_test(opening_survives_each_allocation_that_fails),
        cmocka_unit_test(a_fault_store_hides_maps_and_descriptors),
    };
    return cmocka_run_group_tests_name("store_fault", tests, test_folder_make, test_folder_remove);
}
