/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are the same bytes: found by type, shape, first rows and all bytes, and never taken for others because something failed. */
#include "../formats/memory_checkpoint.h"
#include "check.h"
#include "fail_malloc.h"

#include "convert/weight_copies.h"

#define WEIGHT(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"

/* b is as a; c ends differently, d begins differently, e has another shape and f another type; s is scalar; k and l are empty;
 * a to f, k, l and s have states. */
static const char header[] = "{" WEIGHT("a", "U8", "2,2", "0", "4") "," WEIGHT("b", "U8", "2,2", "4", "8") ","
    WEIGHT("c", "U8", "2,2", "8", "12") "," WEIGHT("d", "U8", "2,2", "12", "16") "," WEIGHT("e", "U8", "4", "16", "20") ","
    WEIGHT("f", "I8", "2,2", "20", "24") "," WEIGHT("z", "U8", "2,2", "24", "28") "," WEIGHT("s", "U8", "", "28", "29") ","
    WEIGHT("t", "U8", "", "29", "30") "," WEIGHT("a.moment1_0", "U8", "", "30", "31") "," WEIGHT("b.moment1_0", "U8", "", "31", "32") ","
    WEIGHT("c.moment1_0", "U8", "", "32", "33") "," WEIGHT("d.moment1_0", "U8", "", "33", "34") ","
    WEIGHT("e.moment1_0", "U8", "", "34", "35") "," WEIGHT("f.moment1_0", "U8", "", "35", "36") ","
    WEIGHT("s.moment1_0", "U8", "", "36", "37") "," WEIGHT("b.moment2_0", "U8", "", "37", "38") ","
    WEIGHT("x.moment1_0", "U8", "", "38", "39") "," WEIGHT("k", "U8", "0,2", "39", "39") "," WEIGHT("l", "U8", "0,2", "39", "39") ","
    WEIGHT("k.moment1_0", "U8", "0,2", "39", "39") "," WEIGHT("l.moment1_0", "U8", "0,2", "39", "39") "}";
static const char data[] = "wxyz" "wxyz" "wxyZ" "Wxyz" "wxyz" "wxyz" "wxyz" "q" "q" "000000000";

static reshard_error err;
static struct store *store;
static struct checkpoint *checkpoint;
static const struct engine_options engine = { .threads = 1 };

static void open_checkpoint_of(const char *text, const char *bytes)
{
    struct source *source = NULL;
    struct buffer file = { 0 };
    store = store_new_memory();
    buffer_append_u64le(&file, strlen(text));
    buffer_append_text(&file, text);
    buffer_append_text(&file, bytes);
    memory_put(store, "m.safetensors", file.data, file.size);
    buffer_release(&file);
    CHECK_OK(memory_open(store, "m.safetensors", false, &source, &err));
    CHECK_OK(checkpoint_of(source, "m.safetensors", &checkpoint, &err));
}

static void open_checkpoint(void)
{
    open_checkpoint_of(header, data);
}

static void close_checkpoint(void)
{
    checkpoint_close(checkpoint);
    store_free(store);
}

/* The names of the owners that are as the weight, in a row. */
static reshard_status owners_of(struct weight_copies *copies, const char *weight, char *out)
{
    const struct catalog *catalog = copies->catalog;
    struct weight_walk walk;
    uint32_t owner = 0;
    reshard_status status = weight_walk_begin(copies, catalog_find(catalog, str_of(weight)), &walk, &err);
    while (!status && owner != CATALOG_NONE) {
        status = weight_walk_next(copies, &walk, &owner, &err);
        if (!status && owner != CATALOG_NONE)
            *out++ = catalog->tensors[owner].key.data[0];
    }
    *out = 0;
    return status;
}

TEST(copies_are_weights_of_the_same_bytes_that_have_states)
{
    static const char *const expected[][2] = { { "z", "ab" }, { "a", "b" }, { "b", "a" }, { "c", "" }, { "d", "" },
                                               { "e", "" }, { "f", "" }, { "t", "s" }, { "s", "" },
                                               { "k", "l" } };
    struct weight_copies copies;
    char found[20];
    open_checkpoint();
    CHECK_OK(weight_copies_open(checkpoint, NULL, &engine, &copies, &err));
    assert_int_equal(copies.owner_count, 9);
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        CHECK_OK(owners_of(&copies, expected[i][0], found));
        assert_string_equal(found, expected[i][1]);
    }
    uint32_t b = catalog_find(copies.catalog, STR("b"));
    assert_true(weight_copies_find(&copies, STR("a"), STR(".moment2_0")) == CATALOG_NONE);
    assert_true(weight_copies_find(&copies, STR("b"), STR(".moment2_0")) == catalog_find(copies.catalog, STR("b.moment2_0")));
    bool is_same;
    CHECK_OK(weight_copies_same(&copies, b, catalog_find(copies.catalog, STR("z")), &is_same, &err));
    assert_true(is_same);
    CHECK_OK(weight_copies_same(&copies, b, catalog_find(copies.catalog, STR("f")), &is_same, &err));
    assert_false(is_same);
    weight_copies_release(&copies);
    close_checkpoint();
}

/* Of a weight that is alone in its type and shape nothing is read, and of one whose first row is its own no other row. */
TEST(few_are_read_whole)
{
    struct weight_copies copies;
    char found[20];
    open_checkpoint();
    CHECK_OK(weight_copies_open(checkpoint, NULL, &engine, &copies, &err));
    for (const char *key = "zaefd"; *key; key++)
        CHECK_OK(owners_of(&copies, (char[]){ *key, 0 }, found));
    const struct { const char *key; bool is_sampled, is_read; } expected[] = {
        { "a", true, true }, { "c", true, true }, { "d", true, false }, { "e", false, false }, { "f", false, false },
    };
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        uint32_t tensor = catalog_find(copies.catalog, str_of(expected[i].key));
        assert_int_equal(copies.samples[tensor] != 0, expected[i].is_sampled);
        assert_int_equal(copies.hex[tensor][0] != 0, expected[i].is_read);
    }
    weight_copies_release(&copies);
    close_checkpoint();
}

/* 26 of one type and shape, in whichever order their samples come, each with one copy. */
TEST(each_of_many_finds_its_copy)
{
    struct buffer text = { 0 };
    char bytes[26 * 6 + 1], found[20];
    struct weight_copies copies;
    buffer_append_text(&text, "{");
    for (int i = 0; i < 26; i++) {
        buffer_printf(&text, "%s\"%c\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[%d,%d]},", i ? "," : "", 'a' + i, i * 6,
                      i * 6 + 5);
        buffer_printf(&text, "\"%c.moment1_0\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}", 'a' + i, i * 6 + 5,
                      i * 6 + 6);
        memset(bytes + i * 6, 'A' + i % 13, 6);
    }
    bytes[sizeof(bytes) - 1] = 0;
    assert_true(buffer_append(&text, "}", 2));
    open_checkpoint_of((const char *)text.data, bytes);
    CHECK_OK(weight_copies_open(checkpoint, NULL, &engine, &copies, &err));
    for (int i = 0; i < 26; i++) {
        CHECK_OK(owners_of(&copies, (char[]){ (char)('a' + i), 0 }, found));
        assert_string_equal(found, ((char[]){ (char)('a' + (i + 13) % 26), 0 }));
    }
    weight_copies_release(&copies);
    close_checkpoint();
    buffer_release(&text);
}

TEST(want_of_memory_is_an_error)
{
    for (unsigned long nth = 1;; nth++) {
        struct weight_copies copies;
        open_checkpoint();
        fail_malloc_at(nth);
        reshard_status status = weight_copies_open(checkpoint, NULL, &engine, &copies, &err);
        bool is_hit = fail_malloc_was_hit();
        weight_copies_release(&copies);
        close_checkpoint();
        if (!is_hit)
            break;
        CHECK_FAILS(status, RESHARD_ERR_MEMORY);
    }
}

/* What could not be looked at is an error, and is looked at again: it is not a weight without copies. */
TEST(work_that_runs_out_is_an_error_and_hides_nothing)
{
    bool is_enough = false;
    for (int64_t left = 0; !is_enough; left += 8) {
        struct weight_copies copies;
        char found[20];
        open_checkpoint();
        CHECK_OK(weight_copies_open(checkpoint, NULL, &engine, &copies, &err));
        struct work *work = checkpoint->source->limits.budget;
        const int64_t whole = work->left;
        work->left = left;
        reshard_status status = owners_of(&copies, "z", found);
        is_enough = !status;
        if (status)
            CHECK_FAILS(status, RESHARD_ERR_LIMIT);
        work->left = whole;
        CHECK_OK(owners_of(&copies, "z", found));
        assert_string_equal(found, "ab");
        weight_copies_release(&copies);
        close_checkpoint();
        assert_in_range(left, 0, 100000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_weights_of_the_same_bytes_that_have_states),
        cmocka_unit_test(few_are_read_whole),
        cmocka_unit_test(each_of_many_finds_its_copy),
        cmocka_unit_test(want_of_memory_is_an_error),
        cmocka_unit_test(work_that_runs_out_is_an_error_and_hides_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
