/* SPDX-License-Identifier: Apache-2.0 */
/* Targets of every writable format, laid out and published from a catalog and an item loader: there is no file and no open source. */
#include "memory_checkpoint.h"

#define WEIGHT "decoder.layers.0.mlp.linear_fc1.weight"
#define NORM "decoder.final_layernorm.weight"
#define ITEM "note"

/* Live memory: the item's value is made when it is asked for. */
struct live {
    struct catalog *catalog;
    unsigned loads;
};

static reshard_status load_live(void *context, uint32_t item, reshard_error *err)
{
    struct live *live = context;
    struct catalog_item *entry = &live->catalog->items[item];
    struct value_graph graph = { 0 };
    struct value *text = value_new_str(&graph, STR("from memory"));
    graph.root = text;
    struct value_graph *kept = text ? catalog_adopt_graph(live->catalog, graph) : NULL;
    if (!kept)
        return error_set_memory(err);
    entry->value = kept->root;
    entry->graph = kept;
    live->loads++;
    return RESHARD_OK;
}

static struct live live_new(void)
{
    struct live live = { .catalog = catalog_new("memory") };
    const int64_t matrix[] = { 8, 4 }, vector[] = { 4 };
    const struct catalog_item item = { .key = STR(ITEM), .kind = ITEM_VALUE };
    reshard_error err = { 0 };
    uint32_t index;
    assert_non_null(live.catalog);
    live.catalog->limits = limits_default;
    CHECK_OK(catalog_add_tensor(live.catalog, STR(WEIGHT), DTYPE_F32, 2, matrix, &index, &err));
    CHECK_OK(catalog_add_tensor(live.catalog, STR(NORM), DTYPE_F32, 1, vector, &index, &err));
    CHECK_OK(catalog_add_item(live.catalog, &item, NULL, 0, NULL, &err));
    for (uint32_t i = 0; i < live.catalog->tensor_count; i++)
        live.catalog->tensors[i].tied_to = live.catalog->tensors[i].storage_group = CATALOG_NONE;
    CHECK_OK(catalog_seal(live.catalog, true, &err));
    return live;
}

/* Payload stays zero: who has it in memory writes it there. */
static reshard_status write_live(struct store *store, const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct catalog *catalog = target->catalog;
    bool is_directory = target->driver->abilities & FORMAT_IS_DIRECTORY;
    struct store_txn_options options = { .is_directory = is_directory, .no_sync = true };
    struct store_object **objects = calloc((size_t)catalog->object_count + 1, sizeof(*objects));
    uint32_t *crcs = calloc((size_t)catalog->chunk_count + 1, sizeof(*crcs));
    struct store_txn *txn = NULL;
    reshard_status status = store_txn_begin_in(store, "out", &options, &txn, err);
    for (uint32_t i = 0; i < catalog->object_count && !status; i++)
        status = store_txn_create(txn, is_directory ? catalog->objects[i].name.data : "", catalog->objects[i].bytes, &objects[i], err);
    const struct publish_job job = { .target = target, .objects = objects, .chunk_crcs = crcs, .request = request };
    if (!status)
        status = target_publish(&job, err);
    for (uint32_t i = 0; i < catalog->object_count; i++)
        store_object_close(objects[i]);
    free(objects);
    free(crcs);
    if (!status)
        return store_txn_commit(txn, err);
    store_txn_abort(txn, false);
    return status;
}

/* Some formats have families of tensors: a name without one is a weight's. */
static uint32_t find_written(const struct catalog *catalog, struct str key)
{
    char name[64];
    uint32_t found = catalog_find(catalog, key);
    snprintf(name, sizeof(name), "model:%.*s", STR_ARG(key));
    return found == CATALOG_NONE ? catalog_find(catalog, str_of(name)) : found;
}

static void check_written(struct store *store, const struct format_driver *driver, const struct live *live)
{
    const struct open_options options = { .format = driver->name, .limits = limits_default, .iteration = -1, .borrow_store = true };
    struct source *source = NULL;
    reshard_error err = { 0 };
    CHECK_OK(format_open(store, "out", &options, &source, &err));
    for (uint32_t i = 0; i < live->catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &live->catalog->tensors[i];
        uint32_t found = find_written(source->catalog, tensor->key);
        assert_int_not_equal(found, CATALOG_NONE);
        assert_int_equal(source->catalog->tensors[found].rank, tensor->rank);
        assert_int_equal(catalog_tensor_bytes(source->catalog, &source->catalog->tensors[found]),
                         catalog_tensor_bytes(live->catalog, tensor));
    }
    if (live->loads) {
        uint32_t item = catalog_find_item(source->catalog, STR(ITEM));
        struct str text;
        assert_int_not_equal(item, CATALOG_NONE);
        CHECK_OK(source_load_item(source, item, &err));
        assert_true(value_as_str(source->catalog->items[item].value, &text));
        assert_true(str_is(text, "from memory"));
    }
    source_free(source);
}

static void lay_out_live(const struct format_driver *driver)
{
    struct live live = live_new();
    const uint32_t tensors[] = { 0, 1 }, items[] = { 0 };
    struct store *store = store_new_memory();
    struct target target;
    reshard_error err = { 0 };
    const struct layout_request request = {
        .source_catalog = live.catalog,
        .items = { .load = load_live, .context = &live },
        .wanted = live.catalog,
        .wanted_source = tensors,
        .wanted_items = items,
        .is_whole = true,
        .max_shard_bytes = -1,
        .file_name = "out",
        .limits = limits_default,
    };
    printf("# %s\n", driver->name);
    CHECK_OK(lay_out(driver->name, &request, &target, &err));
    CHECK_OK(write_live(store, &request, &target, &err));
    /* A store of zarr without Megatron's flavour has a place for attributes of its nodes only. */
    bool has_place = driver->abilities & FORMAT_HOLDS_ITEMS && strcmp(driver->name, "zarr") != 0;
    assert_int_equal(live.loads, has_place);
    check_written(store, driver, &live);
    target_free(&target);
    catalog_free(live.catalog);
    store_free(store);
}

TEST(every_writable_format_is_laid_out_without_a_file)
{
    const struct format_driver *driver;
    int count = 0;
    for (int i = 0; (driver = format_driver_at(i)); i++) {
        if (!(driver->abilities & FORMAT_WRITES))
            continue;
        lay_out_live(driver);
        count++;
    }
    assert_true(count >= 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_writable_format_is_laid_out_without_a_file) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
