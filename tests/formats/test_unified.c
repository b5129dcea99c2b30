/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_checkpoint.h"

#include "fail_malloc.h"
#include "formats/paddle/unified_quantised.h"
#include "parallel/expert_keys.h"

static reshard_error err;

#define ENTRY(name, shape, begin, end) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end "]}"
#define MODEL_1 "model-00001-of-00002.safetensors"
#define MODEL_2 "model-00002-of-00002.safetensors"

/* Two ranks' experts, pieces of a state, a side file: all ways through the reader. */
static struct store *busy_checkpoint(void)
{
    struct store *store = store_new_memory();
    memory_put_safetensors(store, MODEL_1, "{" ENTRY("w", "4", "0", "4") "," ENTRY("m.experts.0.up", "2", "4", "6") "}", 6, 1);
    memory_put_safetensors(store, MODEL_2, "{" ENTRY("m.experts.0.up", "2", "0", "2") "}", 2, 100);
    memory_put_text(store, "model.safetensors.index.json",
                    "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"w\":\"" MODEL_1 "\",\"m.experts.0.up\":\"" MODEL_2 "\"}}");
    memory_put_text(store, "optimizer.safetensors.index.json", "{\"quant_ckpt_resume_times\":1,\"ckpt_quant_stage\":\"O1\",\"flag\":true}");
    memory_put_safetensors(store, "optimizer.tp00_shard00.safetensors", "{" ENTRY("w/moment1_0", "2", "0", "2") "}", 2, 7);
    memory_put_safetensors(store, "optimizer.tp01_shard00.safetensors", "{" ENTRY("w/moment1_0", "2", "0", "2") "}", 2, 9);
    memory_put_text(store, "config.json", "{}");
    return store;
}

TEST(experts_and_pieces_become_whole_tensors)
{
    struct store *store = busy_checkpoint();
    struct source *source = NULL;
    CHECK_FAILS(memory_open(store, "", false, &source, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_OK(memory_open(store, "", true, &source, &err));
    const struct catalog *catalog = source->catalog;
    assert_string_equal(source->driver->name, "paddle-uc");
    assert_int_equal(catalog->tensor_count, 4);
    uint32_t moment = catalog_find(catalog, STR("optimizer:w/moment1_0")), second = catalog_find(catalog, STR("model:m.experts.1.up"));
    assert_int_equal(catalog->tensors[moment].chunk_count, 2);
    assert_int_equal(catalog_vector_at(catalog, catalog->tensors[moment].shape)[0], 4);
    assert_true(str_is(catalog->objects[catalog->chunks[catalog->tensors[second].first_chunk].object].name, MODEL_2));
    bool is_told = false;
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        assert_false(catalog->warnings[i].is_damage); /* nothing is lost */
        is_told = is_told || str_is(catalog->warnings[i].text,
                                    "'model:m.experts.': the experts of 2 ranks, 1 each, have got the numbers in the model");
    }
    assert_true(is_told);
    source_free(source);
    store_free(store);
}

TEST(numbers_of_experts_are_found)
{
    size_t begin, end;
    uint64_t number;
    assert_true(expert_number_find(STR("m.experts.12.up"), &begin, &end, &number));
    assert_int_equal(number, 12);
    assert_int_equal(begin, 10);
    assert_int_equal(end, 12);
    assert_true(expert_number_find(STR("a.experts.x.experts.3"), &begin, &end, &number));
    assert_int_equal(number, 3);
    assert_false(expert_number_find(STR("m.experts.up"), &begin, &end, &number));
    assert_false(expert_number_find(STR("m.experts."), &begin, &end, &number));
    assert_false(expert_number_find(STR("m.experts.99999999999999999999.up"), &begin, &end, &number));
    assert_false(expert_number_find(STR("x"), &begin, &end, &number));
}

TEST(names_of_files_tell_their_family)
{
    static const char *const names[] = { "optimizer.tp00_pp01_shard02.safetensors", "optimizer.moe00.safetensors",
                                         "optimizer.tp00.safetensors_shard_0001", "optimizer.x.safetensors", "optimizer.tp0.safetensors",
                                         "optimizers.safetensors", "optimizer-0001-of-0002.safetensors",
                                         "master_weights-00001-of-00001.safetensors", "peft_model.safetensors" };
    struct store *store = store_new_memory();
    struct arena arena = { 0 };
    struct uc_folder folder = { 0 };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        memory_put_text(store, names[i], "");
    CHECK_OK(uc_folder_scan(store, "", &arena, &folder, &err));
    assert_int_equal(folder.families[UC_OPTIMIZER].ranked_count, 3);
    assert_int_equal(folder.families[UC_OPTIMIZER].numbered_count, 0);
    assert_false(uc_family_is_there(&folder, UC_MODEL));
    assert_true(uc_family_is_there(&folder, UC_MASTERS));
    assert_true(uc_family_is_there(&folder, UC_PEFT));
    arena_release(&arena);
    store_free(store);
}

TEST(every_failed_allocation_is_reported_and_leaks_nothing_of_families)
{
    struct store *store = busy_checkpoint();
    unsigned long nth = 0;
    do {
        struct source *source = NULL;
        struct target target = { 0 };
        struct whole_request whole = { 0 };
        err = (reshard_error){ 0 };
        fail_malloc_at(++nth);
        reshard_status status = memory_open(store, "", true, &source, &err);
        if (!status) {
            whole = request_whole(source, NULL);
            whole.request.ranks = 2;
            if (whole.tensors && whole.items)
                status = lay_out("paddle-uc", &whole.request, &target, &err);
        }
        /* U8 and I8 are all that the tensors have; probing never fails, so what cannot be looked at is not recognised. */
        assert_true(status == RESHARD_OK || status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_UNSUPPORTED ||
                    status == RESHARD_ERR_FORMAT);
        target_free(&target);
        request_release(&whole);
        source_free(source);
    } while (fail_malloc_was_hit());
    assert_true(nth > 50);
    store_free(store);
}

#define QUANTISED "optimizer.safetensors"

/* Three rows of two columns, 8 bits each, and 32 rows of one column, 4 bits each; scales of the columns. */
static struct store *quantised_checkpoint(void)
{
    static const float scales[] = { 127, 254, 510, 255, 7, 1, 16 };
    struct store *store = store_new_memory();
    struct buffer file = { 0 };
    const char *header = "{\"a/moment1_0\":{\"dtype\":\"I8\",\"shape\":[3,2],\"data_offsets\":[0,6]},"
                         "\"b/moment2_0\":{\"dtype\":\"I8\",\"shape\":[32,1],\"data_offsets\":[6,38]},"
                         "\"a/moment1_0@scales\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[38,46]},"
                         "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[46,54]},"
                         "\"b/moment1_0@scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[54,58]},"
                         "\"b/moment2_0@min_scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[58,62]},"
                         "\"b/moment2_0@max_scales\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[62,66]}}";
    buffer_append_u64le(&file, strlen(header));
    buffer_append_text(&file, header);
    for (int i = 0; i < 6; i++)
        buffer_append_byte(&file, (uint8_t)(i - 3));
    for (int i = 0; i < 32; i++)
        buffer_append_byte(&file, (uint8_t)((i << 4 | ((15 - i) & 15)) & 0xFF));
    buffer_append(&file, scales, sizeof(scales));
    memory_put(store, QUANTISED, file.data, file.size);
    memory_put_text(store, QUANTISED ".index.json",
                    "{\"ckpt_quant_stage\":\"O2\",\"master_weights\":false,\"weight_map\":{\"a/moment1_0\":\"" QUANTISED
                    "\",\"x\":\"" QUANTISED "\",\"b/moment1_0\":\"" QUANTISED "\",\"b/moment2_0\":\"" QUANTISED "\"}}");
    buffer_release(&file);
    return store;
}

/* Reads a range of a tensor of one chunk, through the store of its source. */
static reshard_status read_tensor(struct source *source, const char *key, uint64_t offset, void *out, size_t size)
{
    const struct catalog *catalog = source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[catalog->tensors[catalog_find(catalog, str_of(key))].first_chunk];
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, catalog->objects[chunk->object].name.data, &object, &err);
    if (!status)
        status = store_read_at(object, chunk->offset + offset, out, size, &err);
    store_object_close(object);
    return status;
}

TEST(quantised_states_are_computed_as_they_are_read)
{
    struct store *store = quantised_checkpoint();
    struct source *source = NULL, *view = NULL;
    float a[6], first[32], second[32];
    uint8_t part[9];
    CHECK_OK(memory_open(store, "", false, &source, &err));
    assert_true(source->has_other_view);
    assert_int_equal(source->catalog->tensor_count, 7);
    CHECK_OK(source_by_parameter(source, &view, &err));
    assert_int_equal(view->catalog->tensor_count, 4);
    CHECK_OK(read_tensor(view, "optimizer:a/moment1_0", 0, a, sizeof(a)));
    for (int i = 0; i < 6; i++)
        assert_true(a[i] == (float)(i - 3) / 127.0F * (i % 2 ? 254.0F : 127.0F));
    CHECK_OK(read_tensor(view, "optimizer:b/moment1_0", 0, first, sizeof(first)));
    CHECK_OK(read_tensor(view, "optimizer:b/moment2_0", 0, second, sizeof(second)));
    for (int i = 0; i < 32; i++) {
        float ratio = (float)((15 - i) & 15) / 15.0F * 15.0F + 1.0F, root = 1.0F / ratio - 1e-8F;
        assert_true(first[i] == (float)((i & 15) > 7 ? (i & 15) - 16 : i & 15) && second[i] == root * root);
    }
    for (size_t begin = 0; begin < sizeof(a); begin++) {
        size_t size = sizeof(a) - begin < sizeof(part) ? sizeof(a) - begin : sizeof(part);
        CHECK_OK(read_tensor(view, "optimizer:a/moment1_0", begin, part, size));
        assert_memory_equal(part, (const uint8_t *)a + begin, size);
    }
    source_free(view);
    source_free(source);
    store_free(store);
}

TEST(every_failed_allocation_of_a_view_is_reported_and_leaks_nothing)
{
    struct store *store = quantised_checkpoint();
    struct source *source = NULL;
    unsigned long nth = 0;
    CHECK_OK(memory_open(store, "", false, &source, &err));
    do {
        struct source *view = NULL;
        float values[6];
        fail_malloc_at(++nth);
        reshard_status status = source_by_parameter(source, &view, &err);
        if (!status)
            status = read_tensor(view, "optimizer:a/moment1_0", 0, values, sizeof(values));
        assert_true(status == RESHARD_OK || status == RESHARD_ERR_MEMORY);
        source_free(view);
    } while (fail_malloc_was_hit());
    assert_true(nth > 10);
    source_free(source);
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_and_pieces_become_whole_tensors),
        cmocka_unit_test(numbers_of_experts_are_found),
        cmocka_unit_test(names_of_files_tell_their_family),
        cmocka_unit_test(every_failed_allocation_is_reported_and_leaks_nothing_of_families),
        cmocka_unit_test(quantised_states_are_computed_as_they_are_read),
        cmocka_unit_test(every_failed_allocation_of_a_view_is_reported_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
