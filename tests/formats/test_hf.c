/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_checkpoint.h"

#include "fail_malloc.h"
#include "formats/hf/hf_assign.h"
#include "formats/hf/hf_folder.h"
#include "formats/hf/hf_index.h"

static reshard_error err;

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define INDEX(map) "{\"metadata\":{\"total_size\":8},\"weight_map\":{" map "}}"
#define IN_1 "model-00001-of-00002.safetensors"
#define IN_2 "model-00002-of-00002.safetensors"

static struct store *two_files(const char *index)
{
    struct store *store = store_new_memory();
    memory_put_safetensors(store, IN_1, ONE("a"), 4, 1);
    memory_put_safetensors(store, IN_2, ONE("b"), 4, 2);
    if (index)
        memory_put_text(store, "model.safetensors.index.json", index);
    return store;
}

/* ---- the index ---- */

TEST(an_index_is_believed_only_if_its_files_agree)
{
    static const struct {
        const char *why, *index, *message;
    } cases[] = {
        { "a file that is not there", INDEX("\"a\":\"" IN_1 "\",\"b\":\"other.safetensors\""), "which is not there" },
        { "a first file that is not there", INDEX("\"a\":\"a.safetensors\",\"b\":\"" IN_1 "\""), "which is not there" },
        { "a name that no file holds", INDEX("\"a\":\"" IN_1 "\",\"c\":\"" IN_2 "\""), "which does not hold it" },
        { "a name in another file", INDEX("\"a\":\"" IN_2 "\",\"b\":\"" IN_2 "\""), "which does not hold it" },
        { "a way out", INDEX("\"a\":\"../" IN_1 "\""), "'..'" },
        { "an absolute path", INDEX("\"a\":\"/etc/x.safetensors\""), "starts with '/'" },
        { "another kind of file", INDEX("\"a\":\"x.bin\""), "no safetensors file" },
        { "a list", "{\"weight_map\":[]}", "weight_map is not an object" },
        { "a number", INDEX("\"a\":1"), "not a string" },
        { "no map", "{\"metadata\":{}}", "no weight_map" },
        { "a key twice", INDEX("\"a\":\"" IN_1 "\",\"a\":\"" IN_1 "\""), "twice" },
        { "two maps", "{\"weight_map\":{},\"weight_map\":{}}", "twice" },
        { "cut off", "{\"weight_map\":{\"a\":\"", "byte" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = two_files(cases[i].index);
        struct source *source = NULL;
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "", false, &source, &err);
        if (status != RESHARD_ERR_FORMAT || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
        store_free(store);
    }
}

TEST(names_outside_the_map_are_read_with_a_warning)
{
    struct store *store = two_files("{\"metadata\":{\"total_size\":4},\"weight_map\":{\"a\":\"" IN_1 "\"}}");
    memory_put_safetensors(
        store, IN_1,
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"stray\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}",
        5, 1);
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_int_equal(source->catalog->tensor_count, 2);
    assert_int_equal(source->catalog->warning_count, 2); /* the name, and the second file */
    source_free(source);
    store_free(store);
}

TEST(files_outside_the_map_are_left_alone_with_a_warning)
{
    struct store *store = two_files("{\"metadata\":{\"total_size\":4,\"note\":[1]},\"weight_map\":{\"a\":\"" IN_1 "\"}}");
    memory_put_text(store, "config.json", "{}");
    struct source *source = NULL;
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_string_equal(source->driver->name, "hf");
    assert_int_equal(source->catalog->tensor_count, 1);
    assert_int_equal(source->catalog->warning_count, 1); /* the second file */
    assert_int_equal(source->catalog->item_count, 2);
    assert_true(str_is(source->catalog->items[0].key, "__index_metadata__"));
    assert_true(str_is(source->catalog->items[1].key, "config.json"));
    assert_int_equal(source->catalog->items[1].kind, ITEM_FILE);
    source_free(source);
    store_free(store);
}

TEST(a_name_in_two_files_must_have_the_same_bytes)
{
    for (int differs = 0; differs < 2; differs++) {
        struct store *store = two_files(NULL);
        struct source *source = NULL;
        memory_put_safetensors(store, IN_2, ONE("a"), 4, differs ? 9 : 1);
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "", false, &source, &err);
        assert_int_equal(status, differs ? RESHARD_ERR_FORMAT : RESHARD_OK);
        if (differs)
            assert_non_null(strstr(err.message, "other bytes"));
        else
            assert_int_equal(source->catalog->tensor_count, 1);
        source_free(source);
        store_free(store);
    }
}

static reshard_status open_to_look(struct store *store, struct source **out)
{
    struct open_options options = { .limits = limits_default, .iteration = -1, .borrow_store = true, .shows_damage = true };
    return format_open(store, "", &options, out, &err);
}

TEST(a_gap_in_a_set_without_index_is_noticed)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_safetensors(store, "model-00001-of-00003.safetensors", ONE("a"), 4, 1);
    memory_put_safetensors(store, "model-00003-of-00003.safetensors", ONE("b"), 4, 1);
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "file 2 of 3 is missing"));
    CHECK_OK(open_to_look(store, &source));
    assert_int_equal(source->catalog->tensor_count, 2);
    assert_true(source->catalog->has_unnamed_loss);
    source_free(source);
    store_free(store);
}

TEST(who_looks_at_damage_sees_what_is_left_and_what_is_lost)
{
    static const struct {
        const char *index;
        uint32_t tensors, lost, warnings;
        bool has_unnamed_loss;
    } cases[] = {
        { INDEX("\"a\":\"" IN_1 "\",\"b\":\"other.safetensors\""), 1, 1, 4, false },  /* the file, b, the size, IN_2 */
        { INDEX("\"a\":\"" IN_1 "\",\"c\":\"" IN_2 "\""), 2, 1, 4, false },             /* c is not in it, b not in the map, c, the size */
        { INDEX("\"a\":\"" IN_2 "\",\"b\":\"" IN_2 "\""), 1, 1, 4, false },
        { INDEX("\"a\":\"" IN_2 "\",\"b\":\"" IN_2 "\",\"c\":\"" IN_1 "\""), 2, 1, 3, false }, /* a is found elsewhere */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = two_files(cases[i].index);
        struct source *source = NULL;
        CHECK_OK(open_to_look(store, &source));
        if (source->catalog->tensor_count != cases[i].tensors || source->catalog->lost_count != cases[i].lost ||
            source->catalog->warning_count != cases[i].warnings || source->catalog->has_unnamed_loss != cases[i].has_unnamed_loss)
            fail_msg("case %zu: %u tensors, %u lost, %u warnings", i, source->catalog->tensor_count, source->catalog->lost_count,
                     source->catalog->warning_count);
        source_free(source);
        store_free(store);
    }
}

TEST(a_file_that_is_cut_off_leaves_the_tensors_before_its_end)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_safetensors(store, "model.safetensors",
                           "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                           "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
                           7, 1);
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_FORMAT);
    CHECK_OK(open_to_look(store, &source));
    assert_int_equal(source->catalog->tensor_count, 2);
    assert_int_equal(source->catalog->chunk_count, 1);
    assert_int_equal(source->catalog->warning_count, 2); /* the file, and the tensor's hole */
    assert_true(source->catalog->warnings[0].is_damage && source->catalog->warnings[1].is_damage);
    source_free(source);
    memory_put_safetensors(store, "model.safetensors", ONE("a"), 5, 1); /* what is too long is no damage that leaves a rest */
    CHECK_FAILS(open_to_look(store, &source), RESHARD_ERR_FORMAT);
    store_free(store);
}

TEST(the_model_is_chosen_among_several)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_safetensors(store, "model.safetensors", ONE("a"), 4, 1);
    memory_put_safetensors(store, "model.fp16.safetensors", ONE("b"), 4, 1);
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_int_equal(source->catalog->tensor_count, 1);
    assert_true(str_is(source->catalog->tensors[0].key, "a"));
    assert_int_equal(source->catalog->warning_count, 1);
    source_free(source);
    store_free(store);
}

TEST(an_index_file_opens_by_its_own_name)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_safetensors(store, "unet/x.safetensors", ONE("a"), 4, 1);
    memory_put_text(store, "unet/x.safetensors.index.fp16.json", "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    CHECK_OK(memory_open(store, "unet/x.safetensors.index.fp16.json", false, &source, &err));
    assert_int_equal(source->catalog->tensor_count, 1);
    assert_true(str_is(source->catalog->objects[0].name, "unet/x.safetensors"));
    source_free(source);
    store_free(store);
}

/* ---- pieces ---- */

#define INFO(text) "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"" text "\"},\"w\":{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[0,2]}}"
#define PIECE_1 "shard-00001-model-00001-of-00001.safetensors"
#define PIECE_2 "shard-00002-model-00001-of-00001.safetensors"

TEST(pieces_make_a_tensor_as_large_as_they_reach)
{
    struct store *store = store_new_memory();
    struct source *source = NULL;
    memory_put_safetensors(store, PIECE_1, INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [0, 0]}}"), 2, 1);
    memory_put_safetensors(store, PIECE_2, INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [1, 0]}}"), 2, 1);
    CHECK_OK(memory_open(store, "", false, &source, &err));
    const struct catalog *catalog = source->catalog;
    assert_int_equal(catalog->tensor_count, 1);
    assert_int_equal(catalog_vector_at(catalog, catalog->tensors[0].shape)[0], 2);
    assert_int_equal(catalog->chunk_count, 2);
    assert_int_equal(catalog->chunks[1].writer, 1);
    assert_int_equal(catalog->ranks, 2);
    source_free(source);
    store_free(store);
}

TEST(sharding_info_must_make_sense)
{
    static const struct {
        const char *why, *header, *message;
    } cases[] = {
        { "no object", INFO("[]"), "not a JSON object" },
        { "cut off", INFO("{"), "DCP_SHARDING_INFO" },
        { "a name is missing", INFO("{}"), "nothing of tensor 'w'" },
        { "too few offsets", INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [0]}}"), "fewer" },
        { "too many offsets", INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [0, 0, 0]}}"), "more" },
        { "negative", INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [-1, 0]}}"), "63-bit" },
        { "overflow", INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [9223372036854775807, 0]}}"), "beyond 2^63" },
        { "a hole", INFO("{\\\"w\\\": {\\\"saved_offsets\\\": [1, 0]}}"), "w" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct store *store = store_new_memory();
        struct source *source = NULL;
        memory_put_safetensors(store, PIECE_1, cases[i].header, 2, 1);
        err = (reshard_error){ 0 };
        reshard_status status = memory_open(store, "", false, &source, &err);
        if (status != RESHARD_ERR_FORMAT || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d, message '%s'", cases[i].why, status, err.message);
        store_free(store);
    }
}

/* ---- writing ---- */

TEST(tensors_are_split_over_files_as_the_hub_does)
{
    static const struct {
        const char *why;
        uint64_t bytes_max;
        int count;
        uint64_t sizes[8];
        uint32_t files[8], file_count;
    } cases[] = {
        { "the hub's own example", 10, 6, { 6, 6, 2, 6, 2, 2 }, { 0, 1, 1, 2, 2, 2 }, 3 },
        { "a large one is numbered before the open file", 10, 4, { 4, 12, 4, 4 }, { 1, 0, 1, 2 }, 3 },
        { "exactly full", 10, 3, { 5, 5, 1 }, { 0, 0, 1 }, 2 },
        { "only large ones", 10, 2, { 11, 12 }, { 0, 1 }, 2 },
        { "no limit", 0, 3, { 50, 60, 70 }, { 0, 0, 0 }, 1 },
        { "nothing", 10, 0, { 0 }, { 0 }, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_piece items[8] = { { .bytes = 0 } };
        struct st_pieces pieces = { .items = items, .count = (uint32_t)cases[i].count };
        for (int p = 0; p < cases[i].count; p++)
            items[p].bytes = cases[i].sizes[p];
        assert_int_equal(hf_split(&pieces, cases[i].bytes_max), cases[i].file_count);
        for (int p = 0; p < cases[i].count; p++) {
            if (items[p].file != cases[i].files[p])
                fail_msg("%s: piece %d in file %u instead of %u", cases[i].why, p, items[p].file, cases[i].files[p]);
        }
    }
}

static struct store *source_store(void)
{
    struct store *store = store_new_memory();
    memory_put_safetensors(
        store, "in/model.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"U8\",\"shape\":[3,2],\"data_offsets\":[0,6]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]},\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[10,11]}}",
        11, 1);
    memory_put_text(store, "in/config.json", "{\"x\": 1}");
    return store;
}

static void check_same_values(const struct source *a, const struct source *b)
{
    assert_int_equal(a->catalog->tensor_count, b->catalog->tensor_count);
    for (uint32_t i = 0; i < a->catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &a->catalog->tensors[i];
        uint32_t other = catalog_find(b->catalog, tensor->key);
        assert_int_not_equal(other, CATALOG_NONE);
        assert_int_equal(tensor->rank, b->catalog->tensors[other].rank);
        assert_int_equal(catalog_tensor_bytes(a->catalog, tensor), catalog_tensor_bytes(b->catalog, &b->catalog->tensors[other]));
    }
}

static void convert_hf(struct store *store, struct source *source, const char *name, int64_t max_shard_bytes, uint32_t ranks,
                       const struct source *like)
{
    struct whole_request whole = request_whole(source, NULL);
    struct target target;
    whole.request.max_shard_bytes = max_shard_bytes;
    whole.request.ranks = ranks;
    whole.request.like = like;
    CHECK_OK(lay_out("hf", &whole.request, &target, &err));
    CHECK_OK(publish_simply(store, name, &whole.request, &target, &err));
    target_free(&target);
    request_release(&whole);
}

TEST(one_shard_needs_no_index_and_side_files_travel)
{
    struct store *store = source_store();
    struct source *source = NULL, *again = NULL;
    struct buffer config = { 0 };
    bool is_directory;
    uint64_t bytes;
    CHECK_OK(memory_open(store, "in", false, &source, &err));
    convert_hf(store, source, "out", -1, 0, NULL);
    assert_true(store_exists(store, "out/model.safetensors", &is_directory, &bytes));
    assert_false(store_exists(store, "out/model.safetensors.index.json", &is_directory, &bytes));
    CHECK_OK(store_read_all(store, "out/config.json", AT_MOST(100), &config, &err));
    assert_true(str_is(buffer_str(&config), "{\"x\": 1}"));
    CHECK_OK(memory_open(store, "out", false, &again, &err));
    check_same_values(source, again);
    buffer_release(&config);
    source_free(again);
    source_free(source);
    store_free(store);
}

TEST(several_shards_get_an_index_as_transformers_writes_it)
{
    static const char expected[] = "{\n  \"metadata\": {\n    \"total_size\": 11\n  },\n  \"weight_map\": {\n"
                                   "    \"a\": \"model-00001-of-00002.safetensors\",\n"
                                   "    \"b\": \"model-00002-of-00002.safetensors\",\n"
                                   "    \"s\": \"model-00002-of-00002.safetensors\"\n  }\n}\n";
    struct store *store = source_store();
    struct source *source = NULL, *again = NULL;
    struct buffer index = { 0 };
    CHECK_OK(memory_open(store, "in", false, &source, &err));
    convert_hf(store, source, "out", 6, 0, NULL);
    CHECK_OK(store_read_all(store, "out/model.safetensors.index.json", AT_MOST(1000), &index, &err));
    assert_int_equal(index.size, sizeof(expected) - 1);
    assert_memory_equal(index.data, expected, sizeof(expected) - 1);
    CHECK_OK(memory_open(store, "out", false, &again, &err));
    assert_int_equal(again->catalog->warning_count, 0);
    check_same_values(source, again);
    buffer_release(&index);
    source_free(again);
    source_free(source);
    store_free(store);
}

TEST(ranks_get_pieces_that_read_back_whole)
{
    struct store *store = source_store();
    struct source *source = NULL, *again = NULL;
    CHECK_OK(memory_open(store, "in", false, &source, &err));
    convert_hf(store, source, "out", -1, 2, NULL);
    CHECK_OK(memory_open(store, "out", false, &again, &err));
    assert_int_equal(again->catalog->ranks, 2);
    assert_int_equal(again->catalog->tensors[catalog_find(again->catalog, STR("a"))].chunk_count, 2);
    assert_int_equal(again->catalog->tensors[catalog_find(again->catalog, STR("s"))].chunk_count, 1);
    check_same_values(source, again);
    source_free(again);
    source_free(source);
    store_free(store);
}

TEST(a_reference_gives_names_and_pieces)
{
    struct store *store = source_store();
    struct source *source = NULL, *sharded = NULL, *like_split = NULL, *again = NULL;
    bool is_directory;
    uint64_t bytes;
    CHECK_OK(memory_open(store, "in", false, &source, &err));
    convert_hf(store, source, "split", 6, 0, NULL);
    CHECK_OK(memory_open(store, "split", false, &like_split, &err));
    convert_hf(store, source, "like-split", -1, 0, like_split);
    assert_true(store_exists(store, "like-split/model-00002-of-00002.safetensors", &is_directory, &bytes));
    assert_true(store_exists(store, "like-split/model.safetensors.index.json", &is_directory, &bytes));

    convert_hf(store, source, "pieces", -1, 3, NULL);
    CHECK_OK(memory_open(store, "pieces", false, &sharded, &err));
    convert_hf(store, source, "like-pieces", -1, 0, sharded);
    CHECK_OK(memory_open(store, "like-pieces", false, &again, &err));
    assert_int_equal(again->catalog->chunk_count, sharded->catalog->chunk_count);
    check_same_values(source, again);
    source_free(again);
    source_free(sharded);
    source_free(like_split);
    source_free(source);
    store_free(store);
}

TEST(every_failed_allocation_is_reported_and_leaks_nothing)
{
    struct store *store = two_files("{\"metadata\":{\"total_size\":8,\"x\":\"y\"},\"weight_map\":{\"a\":\"" IN_1 "\",\"b\":\"" IN_2 "\"}}");
    memory_put_text(store, "config.json", "{}");
    unsigned long nth = 0;
    do {
        struct source *source = NULL;
        struct target target = { 0 };
        struct whole_request whole = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = memory_open(store, "", false, &source, &err);
        if (!status) {
            whole = request_whole(source, NULL);
            whole.request.max_shard_bytes = 4;
            if (whole.tensors && whole.items)
                status = lay_out("hf", &whole.request, &target, &err);
        }
        /* Probing never fails, so what cannot be looked at is not recognised. */
        assert_true(status == RESHARD_OK || status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_UNSUPPORTED);
        target_free(&target);
        request_release(&whole);
        source_free(source);
    } while (fail_malloc_was_hit());
    assert_true(nth > 20);
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_is_believed_only_if_its_files_agree),
        cmocka_unit_test(names_outside_the_map_are_read_with_a_warning),
        cmocka_unit_test(files_outside_the_map_are_left_alone_with_a_warning),
        cmocka_unit_test(a_name_in_two_files_must_have_the_same_bytes),
        cmocka_unit_test(a_gap_in_a_set_without_index_is_noticed),
        cmocka_unit_test(who_looks_at_damage_sees_what_is_left_and_what_is_lost),
        cmocka_unit_test(a_file_that_is_cut_off_leaves_the_tensors_before_its_end),
        cmocka_unit_test(the_model_is_chosen_among_several),
        cmocka_unit_test(an_index_file_opens_by_its_own_name),
        cmocka_unit_test(pieces_make_a_tensor_as_large_as_they_reach),
        cmocka_unit_test(sharding_info_must_make_sense),
        cmocka_unit_test(tensors_are_split_over_files_as_the_hub_does),
        cmocka_unit_test(one_shard_needs_no_index_and_side_files_travel),
        cmocka_unit_test(several_shards_get_an_index_as_transformers_writes_it),
        cmocka_unit_test(ranks_get_pieces_that_read_back_whole),
        cmocka_unit_test(a_reference_gives_names_and_pieces),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
