/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_checkpoint.h"

#include "formats/source_root.h"

static reshard_error err;

#define HEADER "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"

static struct store *root_of(const char *tracker, const char *text, const char *const *directories)
{
    struct store *store = store_new_memory();
    for (size_t i = 0; directories[i]; i++) {
        char name[100];
        snprintf(name, sizeof(name), "%s/model.safetensors", directories[i]);
        memory_put_safetensors(store, name, HEADER, 4, 1);
    }
    if (tracker)
        memory_put_text(store, tracker, text);
    return store;
}

TEST(a_root_opens_its_latest_or_the_wanted_checkpoint)
{
    static const struct {
        const char *why, *tracker, *text;
        const char *directories[4];
        int64_t iteration;
        const char *expected; /* NULL: fails */
        reshard_status status;
    } cases[] = {
        { "Megatron", "latest_checkpointed_iteration.txt", "10\n", { "iter_0000010", "iter_0000020" }, -1, "iter_0000010", 0 },
        { "short numbers", "latest_checkpointed_iteration.txt", "17", { "iter_17" }, -1, "iter_17", 0 },
        { "release", "latest_checkpointed_iteration.txt", "release", { "release", "iter_0000020" }, -1, "release", 0 },
        { "DeepSpeed", "latest", "global_step10", { "global_step10", "global_step9" }, -1, "global_step10", 0 },
        { "any tag", "latest", "best", { "best" }, -1, "best", 0 },
        { "no tracker: the highest", NULL, NULL, { "checkpoint-9", "checkpoint-10" }, -1, "checkpoint-10", 0 },
        { "another one is wanted", "latest_checkpointed_iteration.txt", "10", { "iter_0000010", "iter_0000020" }, 20, "iter_0000020", 0 },
        { "zero", NULL, NULL, { "iter_0000000" }, 0, "iter_0000000", 0 },
        { "one that is not there", NULL, NULL, { "iter_0000010" }, 30, NULL, RESHARD_ERR_USAGE },
        { "the tracker lies", "latest_checkpointed_iteration.txt", "30", { "iter_0000010" }, -1, NULL, RESHARD_ERR_FORMAT },
        { "the tracker leads out", "latest", "../x", { "iter_0000010" }, -1, NULL, RESHARD_ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = root_of(cases[i].tracker, cases[i].text, cases[i].directories);
        struct open_options options = { .limits = limits_default, .iteration = cases[i].iteration, .borrow_store = true };
        struct source *source = NULL;
        err = (reshard_error){ 0 };
        reshard_status status = format_open(store, "", &options, &source, &err);
        if (status != cases[i].status)
            fail_msg("%s: status %d: %s", cases[i].why, status, err.message);
        if (cases[i].expected)
            assert_string_equal(source->name, cases[i].expected);
        source_free(source);
        store_free(store);
    }
}

TEST(what_no_driver_knows_is_described)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_text(store, "dir/notes.xyz", "hello");
    CHECK_FAILS(memory_open(store, "dir/notes.xyz", false, &source, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a file of 5 bytes that starts with 68 65 6c 6c 6f"));
    assert_non_null(strstr(err.hint, "safetensors"));
    err = (reshard_error){ 0 };
    CHECK_FAILS(memory_open(store, "dir", false, &source, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a directory with 1 entries: notes.xyz"));
    store_free(store);
}

TEST(a_forced_format_gets_the_last_word)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    struct open_options options = { .format = "safetensors", .limits = limits_default, .iteration = -1, .borrow_store = true };
    memory_put_safetensors(store, "file", HEADER, 4, 1);
    memory_put_text(store, "other", "hello world");
    CHECK_OK(format_open(store, "file", &options, &source, &err));
    source_free(source);
    CHECK_FAILS(format_open(store, "other", &options, &source, &err), RESHARD_ERR_FORMAT);
    options.format = "no-such-format";
    CHECK_FAILS(format_open(store, "file", &options, &source, &err), RESHARD_ERR_USAGE);
    assert_string_equal(err.message, "unknown format 'no-such-format'");
    assert_non_null(strstr(err.hint, "safetensors"));
    store_free(store);
}

TEST(every_driver_is_found_by_its_name)
{
    int count = 0;
    for (const struct format_driver *driver; (driver = format_driver_at(count)); count++) {
        assert_ptr_equal(format_driver_find(driver->name), driver);
        assert_true(driver->summary && driver->summary[0]);
        assert_true(!(driver->abilities & FORMAT_READS) || (driver->probe && driver->read_catalog));
        assert_true(!(driver->abilities & FORMAT_WRITES) || (driver->lay_out && driver->publish_object));
    }
    assert_true(count >= 8);
    assert_null(format_driver_at(-1));
    assert_null(format_driver_find("no-such-format"));
}

TEST(notes_of_a_target_are_kept_in_order)
{
    struct target target = { .catalog = catalog_new("test") };
    for (int i = 0; i < 100; i++)
        CHECK_OK(target_note_dropped(&target, NOTE_NO_PLACE, STR("key"), &err, "item %d", i));
    CHECK_OK(target_note_changed(&target, NOTE_CLASS, STR("w"), &err, "loses %s", "x"));
    assert_int_equal(target.dropped.count, 100);
    assert_true(str_is(target.dropped.notes[99].key, "key"));
    assert_true(str_is(target.dropped.notes[99].reason, "item 99"));
    assert_int_equal(target.changed.count, 1);
    struct buffer line = { 0 };
    note_print(&target.dropped.notes[99], &line);
    note_print(&target.changed.notes[0], &line);
    assert_true(str_is(buffer_str(&line), "key: item 99'w' loses x"));
    buffer_release(&line);
    target_free(&target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_root_opens_its_latest_or_the_wanted_checkpoint),
        cmocka_unit_test(what_no_driver_knows_is_described),
        cmocka_unit_test(a_forced_format_gets_the_last_word),
        cmocka_unit_test(every_driver_is_found_by_its_name),
        cmocka_unit_test(notes_of_a_target_are_kept_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
