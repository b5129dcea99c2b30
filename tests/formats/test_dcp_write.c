/* SPDX-License-Identifier: Apache-2.0 */
/* Writing from a made-up source: what torch must be able to load, and what must be refused. RESHARD_KEEP names a folder to write to. */
#include "formats/dcp_toy.h"

#include "fail_malloc.h"
#include "formats/dcp/dcp_target.h"

static void add_items(struct toy *toy, uint32_t hidden)
{
    struct value_graph *graph = toy_graph(toy);
    struct path_part list_path[] = { { .kind = PATH_KEY, .key = STR("groups") },
                                     { .kind = PATH_INDEX, .index = 0 },
                                     { .kind = PATH_KEY, .key = STR("lr") } };
    struct path_part int_path[] = { { .kind = PATH_KEY, .key = STR("state") }, { .kind = PATH_INT_KEY, .index = 3 } };
    struct value *real = value_new(graph, VALUE_FLOAT);
    real->real = 0.25;
    toy_item(toy, "step", NULL, 0, graph, value_new_int(graph, 1234));
    toy_item(toy, "groups.0.lr", list_path, 3, graph, real);
    toy_item(toy, "state.3", int_path, 2, graph, value_new_str(graph, STR("three")));

    bool is_hidden = toy->source.driver == &format_toy_hidden;
    struct value **pair = arena_array(&graph->arena, 3, sizeof(*pair));
    pair[0] = toy_inner_tensor(graph, is_hidden ? hidden : 0, 2);
    pair[1] = toy_inner_tensor(graph, is_hidden ? hidden : 1, 2);
    pair[2] = pair[0];
    toy_item(toy, "pair", NULL, 0, graph, value_new_list(graph, VALUE_TUPLE, pair, 3));
    toy_item(toy, "hidden", NULL, 0, graph, pair[0]);
}

/* Every kind of thing that can be written. */
static void toy_fill(struct toy *toy)
{
    reshard_error err = { 0 };
    struct path_part deep[] = { { .kind = PATH_KEY, .key = STR("model") },
                                { .kind = PATH_KEY, .key = STR("a.b") },
                                { .kind = PATH_INDEX, .index = 0 },
                                { .kind = PATH_KEY, .key = STR("w") } };
    uint32_t deep_tensor = toy_tensor(toy, "model.a.b.0.w", DTYPE_F32, 2, (int64_t[]){ 7, 5 });
    CHECK_OK(catalog_set_tensor_path(toy->source.catalog, deep_tensor, deep, 4, &err));
    toy_tensor(toy, "bf16", DTYPE_BF16, 1, (int64_t[]){ 3 });
    toy_tensor(toy, "scalar", DTYPE_I64, 0, NULL);
    toy_tensor(toy, "empty", DTYPE_F16, 2, (int64_t[]){ 0, 4 });
    toy_tensor(toy, "untyped", DTYPE_U16, 3, (int64_t[]){ 2, 3, 2 });
    uint32_t hidden = toy_tensor(toy, "(hidden)", DTYPE_U8, 1, (int64_t[]){ 8 });
    toy->source.catalog->tensors[hidden].flags |= TENSOR_HIDDEN;
    uint32_t meta = toy_tensor(toy, "meta", DTYPE_F32, 1, (int64_t[]){ 5 });
    toy->source.catalog->tensors[meta].flags |= TENSOR_NO_DATA;
    add_items(toy, hidden);
    CHECK_OK(catalog_seal(toy->source.catalog, false, &err));
}

static reshard_status write_to(struct toy *toy, struct store *store, const char *name, uint32_t ranks, int64_t max_shard_bytes,
                               reshard_error *err)
{
    struct check_conversion conversion;
    struct store_txn *txn = NULL;
    struct store_txn_options options = { .is_directory = true, .no_sync = true, .overwrite = true };
    reshard_status status = check_lay_out(&toy->source, NULL, ranks, max_shard_bytes, &conversion, err);
    if (!status)
        status = store ? store_txn_begin_in(store, name, &options, &txn, err) : store_txn_begin(name, &options, &txn, err);
    if (!status) {
        status = check_write(&conversion, txn, err);
        if (status)
            store_txn_abort(txn, false);
        else
            status = store_txn_commit(txn, err);
    }
    check_conversion_release(&conversion);
    return status;
}

/* What was written reads back the same, tensor by tensor. */
static void compare(struct toy *toy, struct source *again)
{
    reshard_error err = { 0 };
    CHECK_OK(check_resolve_all(again, &err));
    CHECK_OK(again->driver->verify(again, true, &err));
    assert_int_equal(again->catalog->warning_count, 0);
    for (uint32_t i = 0; i < toy->source.catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &toy->source.catalog->tensors[i];
        struct buffer a = { 0 }, b = { 0 };
        uint32_t found = catalog_find(again->catalog, tensor->key);
        if (tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA)) {
            assert_int_equal(found, CATALOG_NONE);
            continue;
        }
        assert_int_not_equal(found, CATALOG_NONE);
        CHECK_OK(check_tensor_bytes(&toy->source, i, &a, &err));
        CHECK_OK(check_tensor_bytes(again, found, &b, &err));
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data, b.data, a.size);
        struct path_part single_a, single_b;
        const struct path_part *parts_a, *parts_b;
        size_t count_a = catalog_tensor_path(toy->source.catalog, tensor, &single_a, &parts_a);
        size_t count_b = catalog_tensor_path(again->catalog, &again->catalog->tensors[found], &single_b, &parts_b);
        assert_true(path_equal(parts_a, count_a, parts_b, count_b));
        buffer_release(&a);
        buffer_release(&b);
    }
}

TEST(what_is_written_reads_back)
{
    static const struct {
        const char *why;
        const struct format_driver *driver;
        uint32_t ranks;
        int64_t max_shard_bytes;
    } cases[] = {
        { "one file", &format_toy, 0, -1 },
        { "hidden tensors", &format_toy_hidden, 0, -1 },
        { "three ranks", &format_toy, 3, -1 },
        { "more ranks than rows", &format_toy, 20, -1 },
        { "a file a blob", &format_toy, 0, 1 },
        { "both", &format_toy_hidden, 2, 4000 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *store = store_new_memory();
        struct source *again = NULL;
        toy_init(&toy, cases[i].driver);
        toy_fill(&toy);
        CHECK_OK(write_to(&toy, store, "ckpt", cases[i].ranks, cases[i].max_shard_bytes, &err));
        CHECK_OK(check_open(&format_torch_dcp, store, "ckpt", &again, &err));
        print_message("# %s: %u files\n", cases[i].why, again->catalog->object_count);
        compare(&toy, again);
        assert_int_equal(again->catalog->item_count, 5);
        check_close(again);
        toy_release(&toy);
    }
}

TEST(for_torch_to_load)
{
    const char *folder = getenv("RESHARD_KEEP");
    reshard_error err = { 0 };
    struct toy toy;
    if (!folder)
        return; /* only on request: the result is for torch to load */
    toy_init(&toy, &format_toy);
    toy_fill(&toy);
    CHECK_OK(write_to(&toy, NULL, folder, 3, -1, &err));
    toy_release(&toy);
}

TEST(two_things_of_one_name_are_refused_with_both_paths)
{
    reshard_error err = { 0 };
    struct toy toy;
    struct store *store = store_new_memory();
    struct path_part first[] = { { .kind = PATH_KEY, .key = STR("a.b") }, { .kind = PATH_KEY, .key = STR("c") } };
    struct path_part second[] = { { .kind = PATH_KEY, .key = STR("a") }, { .kind = PATH_KEY, .key = STR("b.c") } };
    toy_init(&toy, &format_toy);
    uint32_t a = toy_tensor(&toy, "a.b.c", DTYPE_F32, 1, (int64_t[]){ 2 }), b = toy_tensor(&toy, "a.b.c", DTYPE_F32, 1, (int64_t[]){ 2 });
    CHECK_OK(catalog_set_tensor_path(toy.source.catalog, a, first, 2, &err));
    CHECK_OK(catalog_set_tensor_path(toy.source.catalog, b, second, 2, &err));
    CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
    CHECK_FAILS(write_to(&toy, store, "ckpt", 0, -1, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "('a.b', 'c')"));
    assert_non_null(strstr(err.message, "('a', 'b.c')"));
    toy_release(&toy);
    store_free(store);
}

TEST(a_dtype_that_torch_lacks_is_refused_by_name)
{
    reshard_error err = { 0 };
    struct toy toy;
    struct store *store = store_new_memory();
    toy_init(&toy, &format_toy);
    toy_tensor(&toy, "small", DTYPE_F4, 1, (int64_t[]){ 4 });
    CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
    CHECK_FAILS(write_to(&toy, store, "ckpt", 0, -1, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'small'"));
    toy_release(&toy);
    store_free(store);
}

struct collected {
    struct buffer bytes;
};

static reshard_status collect(void *context, const void *bytes, size_t size, reshard_error *err)
{
    struct collected *collected = context;
    return buffer_append(&collected->bytes, bytes, size) ? RESHARD_OK : error_set_memory(err);
}

TEST(metadata_is_the_same_before_and_after_sealing)
{
    reshard_error err = { 0 };
    struct toy toy;
    struct check_conversion conversion;
    struct collected first = { 0 }, second = { 0 };
    toy_init(&toy, &format_toy);
    toy_fill(&toy);
    CHECK_OK(check_lay_out(&toy.source, NULL, 3, -1, &conversion, &err));
    CHECK_OK(dcp_metadata_write(&conversion.request, &conversion.target, collect, &first, &err));
    CHECK_OK(dcp_metadata_write(&conversion.request, &conversion.target, collect, &second, &err));
    uint64_t laid_out = conversion.target.catalog->objects[dcp_target_state(&conversion.target)->metadata_object].bytes;
    assert_int_equal(first.bytes.size, laid_out);
    assert_int_equal(first.bytes.size, second.bytes.size);
    assert_memory_equal(first.bytes.data, second.bytes.data, first.bytes.size);
    buffer_release(&first.bytes);
    buffer_release(&second.bytes);
    check_conversion_release(&conversion);
    toy_release(&toy);
}

/* An arena that cannot have a big block takes a small one, so not every failure is fatal. */
static reshard_status lay_out_only(struct toy *toy, struct check_conversion *prepared, struct target *target, reshard_error *err)
{
    *target = (struct target){ .driver = &format_torch_dcp, .catalog = catalog_new("torch-dcp") };
    (void)toy;
    return target->catalog ? format_torch_dcp.lay_out(&prepared->request, target, err) : error_set_memory(err);
}

TEST(laying_out_survives_every_failed_allocation)
{
    reshard_error err = { 0 };
    struct toy toy;
    struct check_conversion prepared;
    unsigned long nth = 0;
    bool was_hit;
    toy_init(&toy, &format_toy);
    toy_fill(&toy);
    CHECK_OK(check_lay_out(&toy.source, NULL, 3, -1, &prepared, &err));
    do {
        struct target target;
        fail_malloc_at(++nth);
        reshard_status status = lay_out_only(&toy, &prepared, &target, &err);
        was_hit = fail_malloc_was_hit();
        if (was_hit && status != RESHARD_OK && status != RESHARD_ERR_MEMORY)
            fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
        format_torch_dcp.close_target(&target);
        catalog_free(target.catalog);
        note_list_release(&target.dropped);
        note_list_release(&target.changed);
    } while (was_hit);
    print_message("# %lu allocations\n", nth - 1);
    check_conversion_release(&prepared);
    toy_release(&toy);
}

TEST(a_failed_write_is_reported_and_leaves_no_target)
{
    unsigned nth = 0;
    bool was_hit;
    do {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *inner = store_new_memory(), *faulty = store_new_fault(inner, FAULT_DISK_FULL, ++nth);
        bool is_directory;
        uint64_t bytes;
        toy_init(&toy, &format_toy);
        toy_fill(&toy);
        reshard_status status = write_to(&toy, faulty, "ckpt", 2, -1, &err);
        was_hit = store_fault_was_hit(faulty);
        bool is_there = store_exists(inner, "ckpt/.metadata", &is_directory, &bytes);
        if (was_hit && !status)
            fail_msg("access %u: no error", nth);
        assert_true(is_there == !status);
        toy_release(&toy);
        store_free(faulty);
        store_free(inner);
    } while (was_hit);
    print_message("# %u accesses\n", nth - 1);
}

TEST(members_of_a_list_with_a_hole_keep_their_flat_name)
{
    reshard_error err = { 0 };
    struct toy toy;
    struct store *store = store_new_memory();
    struct source *again = NULL;
    struct path_part whole[] = { { .kind = PATH_KEY, .key = STR("whole") }, { .kind = PATH_INDEX, .index = 0 } };
    struct path_part holed[] = { { .kind = PATH_KEY, .key = STR("holed") }, { .kind = PATH_INDEX, .index = 2 } };
    struct path_part top[] = { { .kind = PATH_INDEX, .index = 5 } };
    struct path_part single;
    const struct path_part *parts;
    toy_init(&toy, &format_toy);
    uint32_t a = toy_tensor(&toy, "whole.0", DTYPE_F32, 1, (int64_t[]){ 2 }),
             b = toy_tensor(&toy, "holed.2", DTYPE_F32, 1, (int64_t[]){ 2 }), c = toy_tensor(&toy, "5", DTYPE_F32, 1, (int64_t[]){ 2 });
    CHECK_OK(catalog_set_tensor_path(toy.source.catalog, a, whole, 2, &err));
    CHECK_OK(catalog_set_tensor_path(toy.source.catalog, b, holed, 2, &err));
    CHECK_OK(catalog_set_tensor_path(toy.source.catalog, c, top, 1, &err));
    CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
    CHECK_OK(write_to(&toy, store, "ckpt", 0, -1, &err));
    CHECK_OK(check_open(&format_torch_dcp, store, "ckpt", &again, &err));
    const struct catalog *catalog = again->catalog;
    assert_int_equal(catalog_tensor_path(catalog, &catalog->tensors[catalog_find(catalog, STR("whole.0"))], &single, &parts), 2);
    assert_int_equal(parts[1].kind, PATH_INDEX);
    assert_int_equal(catalog_tensor_path(catalog, &catalog->tensors[catalog_find(catalog, STR("holed.2"))], &single, &parts), 1);
    assert_int_equal(catalog_tensor_path(catalog, &catalog->tensors[catalog_find(catalog, STR("5"))], &single, &parts), 1);
    assert_int_equal(parts[0].kind, PATH_KEY);
    check_close(again);
    toy_release(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_write_is_reported_and_leaves_no_target),
        cmocka_unit_test(members_of_a_list_with_a_hole_keep_their_flat_name),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(for_torch_to_load),
        cmocka_unit_test(two_things_of_one_name_are_refused_with_both_paths),
        cmocka_unit_test(a_dtype_that_torch_lacks_is_refused_by_name),
        cmocka_unit_test(metadata_is_the_same_before_and_after_sealing),
        cmocka_unit_test(laying_out_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests_name("dcp_write", tests, NULL, NULL);
}
