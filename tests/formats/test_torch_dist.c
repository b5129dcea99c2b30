/* SPDX-License-Identifier: Apache-2.0 */
/* What Megatron's flavours of DCP have of their own when they are written: the save root, the common state, the grid of chunks. */
#include "formats/dcp_toy.h"

#include "encoding/pickle.h"
#include "encoding/pickle_write.h"
#include "fail_malloc.h"
#include "formats/mcore/mcore_items.h"
#include "formats/mcore/mcore_source.h"
#include "formats/mcore/mcore_target.h"

/* ---- names ---- */

TEST(stacked_axes_are_layers_and_experts_without_an_index)
{
    static const struct {
        const char *key;
        int rank, axes;
    } cases[] = {
        { "decoder.layers.mlp.linear_fc1.weight", 3, 1 },
        { "decoder.layers.3.mlp.linear_fc1.weight", 2, 0 },
        { "decoder.layers.mlp.experts.experts.linear_fc1.weight", 4, 2 },
        { "decoder.layers.0.mlp.experts.experts.linear_fc1.weight", 3, 1 },
        { "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight", 3, 1 },
        { "decoder.layers.mlp.shared_experts.linear_fc1.weight", 3, 1 },
        { "decoder.layers.mlp.experts.linear_fc1.weight7", 3, 1 },
        { "layers.stack", 1, 1 },
        { "layers.stack", 0, 0 },
        { "decoder.layers", 2, 0 },
        { "embedding.word_embeddings.weight", 2, 0 },
        { "", 1, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (mcore_prepended_axes(str_of(cases[i].key), cases[i].rank) != cases[i].axes)
            fail_msg("%s", cases[i].key);
    }
}

TEST(the_name_of_a_sharded_object_ends_with_offsets_and_extents)
{
    static const struct {
        const char *name, *key; /* NULL: it is none */
    } cases[] = {
        { "ObjB/shard_0.3_1.8", "ObjB" }, { "a.b/c/shard_0_1", "a.b/c" }, { "k/shard_10.0.2_11.1.3", "k" }, { "k/shard_0_1.8", NULL },
        { "k/shard_0.3_1", NULL },        { "k/shard_0.3", NULL },        { "k/shard__", NULL },            { "k/shard_.0_1.1", NULL },
        { "k/shard_0._1.1", NULL },       { "/shard_0_1", NULL },         { "shard_0_1", NULL },            { "k/shard_a_1", NULL },
        { "k/shard_0_1_2", NULL },        { "k.shard_0_1", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct str key = { 0 };
        bool is_object = mcore_object_key(str_of(cases[i].name), &key);
        if (is_object != (cases[i].key != NULL) || (is_object && !str_is(key, cases[i].key)))
            fail_msg("%s", cases[i].name);
    }
}

/* ---- the tree ---- */

#define KEY(text) { .kind = PATH_KEY, .key = STR(text) }
#define AT(number) { .kind = PATH_INDEX, .index = (number) }

/* Every leaf is the number of the wanted item. */
static reshard_status put_number(void *context, uint32_t node, struct buffer *out, reshard_error *err)
{
    const struct path_tree *tree = context;
    pickle_put_int(out, tree->nodes[node].wanted);
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}

static void expect_tree(struct path_tree *tree, const char *json)
{
    reshard_error err = { 0 };
    struct buffer bytes = { 0 }, text = { 0 };
    struct value_graph graph = { 0 };
    struct pickle_report report;
    pickle_put_begin(&bytes);
    CHECK_OK(path_tree_write(tree, 0, put_number, tree, &bytes, &err));
    pickle_put_end(&bytes);
    CHECK_OK(pickle_parse(bytes.data, bytes.size, 0, &limits_default, &graph, &report, &err));
    CHECK_OK(value_to_json(graph.root, &text, AT_MOST(10000), &err));
    buffer_append_byte(&text, '\0');
    assert_string_equal((const char *)text.data, json);
    value_graph_release(&graph);
    buffer_release(&bytes);
    buffer_release(&text);
}

TEST(items_are_put_together_along_their_paths)
{
    reshard_error err = { 0 };
    struct path_tree tree = { 0 };
    bool has_hole;
    const struct path_part a[] = { KEY("optimizer"), KEY("groups"), AT(1), KEY("lr") },
                           b[] = { KEY("optimizer"), KEY("groups"), AT(0), KEY("lr") }, c[] = { KEY("iteration") },
                           d[] = { KEY("optimizer"), { .kind = PATH_INT_KEY, .index = 7 } }, e[] = { KEY("holed"), AT(4) };
    expect_tree(&tree, "{}");
    CHECK_OK(path_tree_add(&tree, a, 4, (struct path_tree_node){ .wanted = 1 }, &err));
    CHECK_OK(path_tree_add(&tree, b, 4, (struct path_tree_node){ .wanted = 2 }, &err));
    CHECK_OK(path_tree_add(&tree, c, 1, (struct path_tree_node){ .wanted = 3 }, &err));
    CHECK_OK(path_tree_add(&tree, d, 2, (struct path_tree_node){ .wanted = 4 }, &err));
    CHECK_OK(path_tree_finish(&tree, &has_hole, &err));
    assert_false(has_hole);
    expect_tree(&tree, "{\"optimizer\": {\"groups\": [{\"lr\": 2}, {\"lr\": 1}], \"7\": 4}, \"iteration\": 3}");
    CHECK_OK(path_tree_add(&tree, e, 2, (struct path_tree_node){ .wanted = 5 }, &err));
    CHECK_OK(path_tree_finish(&tree, &has_hole, &err));
    assert_true(has_hole);
    tree.nodes[path_tree_child(&tree, 0, STR("iteration"))].is_left_out = true;
    expect_tree(&tree, "{\"optimizer\": {\"groups\": [{\"lr\": 2}, {\"lr\": 1}], \"7\": 4}, \"holed\": {\"4\": 5}}");
    CHECK_FAILS(path_tree_add(&tree, c, 1, (struct path_tree_node){ .wanted = 3 }, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "'iteration'"));
    const struct path_part inside[] = { KEY("iteration"), KEY("x") };
    CHECK_FAILS(path_tree_add(&tree, inside, 2, (struct path_tree_node){ .wanted = 3 }, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_FAILS(path_tree_add(&tree, a, 2, (struct path_tree_node){ .wanted = 3 }, &err), RESHARD_ERR_UNSUPPORTED);
    path_tree_release(&tree);
}

/* ---- writing ---- */

/* A nested dict, an object of one rank, and the RNG state as a plain item; with state, what Megatron's own checkpoints say too. */
static void toy_fill(struct toy *toy, bool with_state)
{
    reshard_error err = { 0 };
    struct value_graph *graph = toy_graph(toy);
    struct value **pair = arena_array(&graph->arena, 4, sizeof(*pair)), **list = arena_array(&graph->arena, 2, sizeof(*list));
    pair[0] = value_new_str(graph, STR("lr"));
    pair[1] = value_new_int(graph, 5);
    pair[2] = value_new_int(graph, 3);
    pair[3] = toy_inner_tensor(graph, 1, 2);
    list[0] = value_new_list(graph, VALUE_DICT, pair, 4);
    list[1] = toy_inner_tensor(graph, 0, 2);
    toy_tensor(toy, "embedding.weight", DTYPE_BF16, 2, (int64_t[]){ 10, 3 });
    toy_tensor(toy, "decoder.layers.mlp.weight", DTYPE_F32, 3, (int64_t[]){ 4, 6, 5 });
    toy_tensor(toy, "scalar", DTYPE_I64, 0, NULL);
    toy_tensor(toy, "empty", DTYPE_F16, 2, (int64_t[]){ 0, 4 });
    toy_item(toy, "scheduler", NULL, 0, graph, value_new_list(graph, VALUE_LIST, list, 2));
    toy_item(toy, "obj/shard_0_1", NULL, 0, graph, value_new_list(graph, VALUE_LIST, list, 1));
    toy_item(toy, "rng_state", NULL, 0, graph, value_new_list(graph, VALUE_LIST, list + 1, 1));
    if (with_state)
        toy_item(toy, "iteration", NULL, 0, graph, value_new_int(graph, 25));
    CHECK_OK(catalog_seal(toy->source.catalog, false, &err));
}

static reshard_status write_to(const struct format_driver *driver, const struct option_value *options, struct toy *toy, struct store *store,
                               uint32_t ranks, reshard_error *err)
{
    struct check_conversion conversion;
    struct store_txn *txn = NULL;
    struct store_txn_options how = { .is_directory = true, .no_sync = true, .overwrite = true };
    reshard_status status = check_lay_out_as(driver, options, &toy->source, NULL, ranks, -1, &conversion, err);
    if (!status)
        status = store_txn_begin_in(store, "out", &how, &txn, err);
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

static void expect_text(struct store *store, const char *name, const char *text)
{
    reshard_error err = { 0 };
    struct buffer bytes = { 0 };
    CHECK_OK(store_read_all(store, name, AT_MOST(100000), &bytes, &err));
    buffer_append_byte(&bytes, '\0');
    assert_string_equal((const char *)bytes.data, text);
    buffer_release(&bytes);
}

static uint32_t find_item(const struct source *source, const char *key)
{
    uint32_t index = 0;
    while (index < source->catalog->item_count && !str_is(source->catalog->items[index].key, key))
        index++;
    return index;
}

/* json NULL: there is none of that name. */
static void expect_item(struct source *source, const char *key, const char *json)
{
    reshard_error err = { 0 };
    struct buffer text = { 0 };
    uint32_t index = find_item(source, key);
    assert_int_equal(index < source->catalog->item_count, json != NULL);
    if (!json)
        return;
    CHECK_OK(source_load_item(source, index, &err));
    CHECK_OK(value_to_json(source->catalog->items[index].value, &text, AT_MOST(100000), &err));
    buffer_append_byte(&text, '\0');
    assert_string_equal((const char *)text.data, json);
    buffer_release(&text);
}

/* The storages of an item, in the order of the pickle, are these bytes eight times each. */
struct storages {
    uint32_t numbers[8], count;
};

static bool note_storage(const struct value *value, void *context)
{
    struct storages *storages = context;
    if (value->kind == VALUE_PERSID)
        storages->numbers[storages->count++] = value->storage - 1;
    return storages->count < 8;
}

static void expect_storages(struct source *source, const char *key, const uint8_t *bytes, uint32_t count)
{
    reshard_error err = { 0 };
    struct storages storages = { .count = 0 };
    uint32_t index = find_item(source, key);
    assert_true(index < source->catalog->item_count);
    CHECK_OK(source_load_item(source, index, &err));
    const struct catalog_item *item = &source->catalog->items[index];
    assert_true(value_walk(item->value, item->graph->count, NULL, note_storage, &storages, NULL));
    assert_int_equal(storages.count, count);
    for (uint32_t i = 0; i < count; i++) {
        struct buffer found = { 0 };
        CHECK_OK(source->driver->read_item_storage(source, index, storages.numbers[i], &found, &err));
        assert_int_equal(found.size, 8);
        for (size_t at = 0; at < 8; at++)
            assert_int_equal(found.data[at], bytes[i]);
        buffer_release(&found);
    }
}

static void compare_tensors(struct toy *toy, struct source *again)
{
    reshard_error err = { 0 };
    assert_int_equal(toy->source.catalog->tensor_count, again->catalog->tensor_count);
    CHECK_OK(check_resolve_all(again, &err));
    CHECK_OK(again->driver->verify(again, true, &err));
    assert_int_equal(again->catalog->warning_count, 0);
    for (uint32_t i = 0; i < toy->source.catalog->tensor_count; i++) {
        struct buffer a = { 0 }, b = { 0 };
        uint32_t found = catalog_find(again->catalog, toy->source.catalog->tensors[i].key);
        assert_int_not_equal(found, CATALOG_NONE);
        CHECK_OK(check_tensor_bytes(&toy->source, i, &a, &err));
        CHECK_OK(check_tensor_bytes(again, found, &b, &err));
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data ? (void *)a.data : "", b.data ? (void *)b.data : "", a.size);
        buffer_release(&a);
        buffer_release(&b);
    }
}

#define CONFIG_OF_FILE                                                                                                                     \
    "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1, \"common_backend\": \"torch\", \"common_backend_version\": 1}"
#define CONFIG_OF_OBJECT "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1}"

TEST(torch_dist_reads_back_in_every_form)
{
    static const struct {
        const char *why, *folder, *tracker, *config;
        const char *iteration;
        bool with_state;
        uint32_t ranks;
        struct option_value options[5];
    } cases[] = {
        { "an iteration", "out/iter_0000025/", "25", CONFIG_OF_FILE, "25", true, 0, { { NULL, NULL } } },
        { "weights alone are a release", "out/release/", "release", CONFIG_OF_FILE, NULL, false, 0, { { NULL, NULL } } },
        { "the folder alone", "out/", NULL, CONFIG_OF_FILE, "25", true, 3, { { "root", "none" } } },
        { "the iteration is given",
          "out/iter_12345678/",
          "12345678",
          CONFIG_OF_FILE,
          "12345678",
          false,
          2,
          { { "root", "iteration" }, { "iteration", "12345678" } } },
        { "an object",
          "out/release/",
          "release",
          CONFIG_OF_OBJECT,
          "25",
          true,
          2,
          { { "common", "object" }, { "integrity", "yes" }, { "root", "release" } } },
        { "small chunks",
          "out/",
          NULL,
          CONFIG_OF_FILE,
          NULL,
          false,
          5,
          { { "root", "none" }, { "chunk-bytes", "16" }, { "integrity", "yes" } } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *store = store_new_memory();
        struct source *again = NULL;
        char name[100];
        bool is_directory;
        uint64_t bytes;
        print_message("# %s\n", cases[i].why);
        toy_init(&toy, &format_toy);
        toy_fill(&toy, cases[i].with_state);
        CHECK_OK(write_to(&format_torch_dist, cases[i].options, &toy, store, cases[i].ranks, &err));
        if (cases[i].tracker)
            expect_text(store, "out/" MCORE_TRACKER, cases[i].tracker);
        snprintf(name, sizeof(name), "%smetadata.json", cases[i].folder);
        expect_text(store, name, cases[i].config);
        snprintf(name, sizeof(name), "%scommon.pt", cases[i].folder);
        assert_int_equal(store_exists(store, name, &is_directory, &bytes), strcmp(cases[i].config, CONFIG_OF_FILE) == 0);
        snprintf(name, sizeof(name), "%.*s", (int)strlen(cases[i].folder) - 1, cases[i].folder);
        CHECK_OK(check_open(&format_torch_dist, store, name, &again, &err));
        compare_tensors(&toy, again);
        expect_storages(again, "obj/shard_0_1", (uint8_t[]){ 2 }, 1);
        expect_storages(again, "rng_state/shard_0.0_1.1", (uint8_t[]){ 1 }, 1);
        expect_storages(again, "scheduler", (uint8_t[]){ 2, 1 }, 2);
        expect_item(again, "iteration", cases[i].iteration);
        expect_item(again, "rng_state", NULL);
        if (!cases[i].with_state)
            expect_item(again, "checkpoint_version", "3.0");
        check_close(again);
        toy_release(&toy);
    }
}

TEST(chunks_are_single_layers_no_larger_than_wanted_and_spread_evenly)
{
    static const struct option_value options[] = { { "root", "none" }, { "chunk-bytes", "100" }, { NULL, NULL } };
    reshard_error err = { 0 };
    struct toy toy;
    struct check_conversion conversion;
    toy_init(&toy, &format_toy);
    toy_fill(&toy, true);
    CHECK_OK(check_lay_out_as(&format_torch_dist, options, &toy.source, NULL, 3, -1, &conversion, &err));
    const struct catalog *catalog = conversion.target.catalog;
    const struct catalog_tensor *layers = &catalog->tensors[catalog_find(catalog, STR("decoder.layers.mlp.weight"))];
    uint64_t least = UINT64_MAX, most = 0;
    assert_int_equal(layers->chunk_count, 4 * 2); /* 6 x 5 floats a layer, in two halves */
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        assert_true(chunk->bytes <= 100);
        if (chunk->tensor == (uint32_t)(layers - catalog->tensors))
            assert_int_equal(catalog_vector_at(catalog, chunk->extent)[0], 1);
    }
    for (uint32_t i = 0; i < catalog->object_count; i++) {
        uint64_t rank, bytes = 0;
        if (!dcp_file_rank(catalog->objects[i].name, &rank))
            continue;
        for (uint32_t c = 0; c < catalog->chunk_count; c++)
            bytes += catalog->chunks[c].object == i ? 1 : 0;
        least = bytes < least ? bytes : least;
        most = bytes > most ? bytes : most;
    }
    assert_true(most - least <= 1);
    check_conversion_release(&conversion);
    toy_release(&toy);
}

TEST(options_that_cannot_be_are_refused)
{
    static const struct {
        const char *name, *value;
    } cases[] = {
        { "root", "here" }, { "common", "both" }, { "integrity", "1" }, { "iteration", "-3" }, { "iteration", "x" }, { "chunk-bytes", "0" },
        { "chunk-bytes", "1k" }, { "root", "iteration" }, /* and nothing says which */
    };
    struct toy toy;
    toy_init(&toy, &format_toy);
    toy_fill(&toy, false);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct check_conversion conversion;
        const struct option_value options[] = { { cases[i].name, cases[i].value }, { NULL, NULL } };
        CHECK_FAILS(check_lay_out_as(&format_torch_dist, options, &toy.source, NULL, 0, -1, &conversion, &err), RESHARD_ERR_USAGE);
        check_conversion_release(&conversion);
    }
    toy_release(&toy);
}

/* A dict in a dict, beside lists that torch enters and lists that it does not. */
TEST(nested_items_are_stored_leaf_by_leaf)
{
    static const struct option_value options[] = { { "root", "none" }, { NULL, NULL } };
    reshard_error err = { 0 };
    struct toy toy;
    struct store *store = store_new_memory();
    struct source *again = NULL;
    const struct path_part *parts;
    struct path_part single;
    toy_init(&toy, &format_toy);
    toy_fill(&toy, true);
    CHECK_OK(write_to(&format_torch_dcp_megatron, options, &toy, store, 2, &err));
    CHECK_OK(check_open(&format_torch_dcp_megatron, store, "out", &again, &err));
    compare_tensors(&toy, again);
    expect_item(again, "iteration", "25");
    expect_item(again, "scheduler.0.lr", "5");
    expect_storages(again, "scheduler.0.3", (uint8_t[]){ 2 }, 1);
    expect_storages(again, "scheduler.1", (uint8_t[]){ 1 }, 1);
    expect_storages(again, "obj/shard_0_1", (uint8_t[]){ 2 }, 1);
    const struct catalog_item *item = &again->catalog->items[find_item(again, "scheduler.0.lr")];
    assert_int_equal(catalog_item_path(again->catalog, item, &single, &parts), 3);
    assert_int_equal(parts[1].kind, PATH_INDEX);
    check_close(again);
    toy_release(&toy);
}

TEST(classes_that_megatron_refuses_in_the_common_state_are_reported)
{
    static const struct {
        const char *module, *name;
        uint32_t notes;
    } cases[] = { { "megatron.core.enums", "ModelType", 0 },
                  { "collections", "OrderedDict", 0 },
                  { "megatron.tokenizer", "Tokenizer", 1 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct check_conversion conversion;
        toy_init(&toy, &format_toy);
        struct value_graph *graph = toy_graph(&toy);
        toy_tensor(&toy, "w", DTYPE_F32, 1, (int64_t[]){ 2 });
        toy_item(&toy, "odd", NULL, 0, graph, value_new_call(graph, value_new_global(graph, cases[i].module, cases[i].name), NULL, 0));
        CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
        CHECK_OK(check_lay_out_as(&format_torch_dist, NULL, &toy.source, NULL, 1, -1, &conversion, &err));
        assert_int_equal(conversion.target.changed.count, cases[i].notes);
        check_conversion_release(&conversion);
        toy_release(&toy);
    }
}

/* ---- what is wrong with a checkpoint ---- */

static reshard_status append_at(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct buffer *out = context;
    assert_int_equal(out->size, offset);
    return buffer_append(out, bytes, size) ? RESHARD_OK : error_set_memory(err);
}

/* A torch.save archive of the pickle. */
static void put_archive(struct store *store, const char *name, struct buffer *pickle)
{
    reshard_error err = { 0 };
    struct torch_frame frame;
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    struct store_txn_options how = { .overwrite = true, .no_sync = true };
    struct buffer bytes = { 0 };
    CHECK_OK(torch_frame_plan("archive", pickle, NULL, 0, 64, &frame, &err));
    CHECK_OK(torch_frame_write(&frame, NULL, append_at, &bytes, &err));
    CHECK_OK(store_txn_begin_in(store, name, &how, &txn, &err));
    CHECK_OK(store_txn_create(txn, "", bytes.size, &object, &err));
    CHECK_OK(store_write_at(object, 0, bytes.data, bytes.size, &err));
    store_object_close(object);
    CHECK_OK(store_txn_commit(txn, &err));
    torch_frame_release(&frame);
    buffer_release(&bytes);
}

TEST(what_no_torch_dist_checkpoint_may_be_is_refused)
{
    static const struct {
        const char *why, *file, *text; /* text NULL: a common state that is a number */
        reshard_status status;
        const char *message;
    } cases[] = {
        { "no JSON", "out/metadata.json", "{\"sharded_backend\": ", RESHARD_ERR_FORMAT, "metadata.json" },
        { "another file of that name", "out/metadata.json", "{\"model\": 1}", RESHARD_ERR_FORMAT, "never finished" },
        { "a backend that is no string", "out/metadata.json", "{\"sharded_backend\": 1}", RESHARD_ERR_FORMAT, "no string" },
        { "another backend", "out/metadata.json", "{\"sharded_backend\": \"torch_fist\"}", RESHARD_ERR_UNSUPPORTED, "torch_fist" },
        { "another version", "out/metadata.json", "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 2}",
          RESHARD_ERR_UNSUPPORTED, "2" },
        { "a version that is no number", "out/metadata.json", "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": \"1\"}",
          RESHARD_ERR_FORMAT, "no integer" },
        { "a torn .metadata", "out/.metadata", "\x80\x02", RESHARD_ERR_FORMAT, ".metadata" },
        { "a torn data file", "out/__0_0.distcp", "PK", RESHARD_ERR_FORMAT, "__0_0.distcp" },
        { "a torn common.pt", "out/common.pt", "PK\x03\x04", RESHARD_ERR_FORMAT, "common.pt" },
        { "a common state that is no dict", "out/common.pt", NULL, RESHARD_ERR_FORMAT, "no dict" },
    };
    static const struct option_value options[] = { { "root", "none" }, { NULL, NULL } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *store = store_new_memory();
        struct source *again = NULL;
        struct buffer pickle = { 0 };
        print_message("# %s\n", cases[i].why);
        toy_init(&toy, &format_toy);
        toy_fill(&toy, true);
        CHECK_OK(write_to(&format_torch_dist, options, &toy, store, 1, &err));
        pickle_put_begin(&pickle);
        pickle_put_int(&pickle, 7);
        pickle_put_end(&pickle);
        if (cases[i].text)
            CHECK_OK(store_memory_put(store, cases[i].file, cases[i].text, strlen(cases[i].text), &err));
        else
            put_archive(store, cases[i].file, &pickle);
        CHECK_FAILS(check_open(&format_torch_dist, store, "out", &again, &err), cases[i].status);
        if (!strstr(err.message, cases[i].message))
            fail_msg("%s: %s", cases[i].why, err.message);
        buffer_release(&pickle);
        toy_release(&toy);
    }
}

TEST(an_object_of_which_cells_are_missing_does_not_verify)
{
    static const struct option_value options[] = { { "root", "none" }, { NULL, NULL } };
    static const struct {
        const char *names[3];
        uint32_t warnings;
    } cases[] = {
        { { "o/shard_0.0_1.2", "o/shard_0.1_1.2" }, 0 },
        { { "o/shard_0.1_1.2" }, 1 },
        { { "o/shard_0_2", "o/shard_1_3" }, 1 }, /* another shape */
        { { "o/shard_0_2", "o/shard_1_2", "p/shard_0_3" }, 1 },
        { { "o/shard_0_99999999999999999999" }, 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *store = store_new_memory();
        struct source *again = NULL;
        toy_init(&toy, &format_toy);
        struct value_graph *graph = toy_graph(&toy);
        toy_tensor(&toy, "w", DTYPE_F32, 1, (int64_t[]){ 2 });
        for (size_t name = 0; name < 3 && cases[i].names[name]; name++)
            toy_item(&toy, cases[i].names[name], NULL, 0, graph, value_new_int(graph, 1));
        CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
        CHECK_OK(write_to(&format_torch_dist, options, &toy, store, 1, &err));
        CHECK_OK(check_open(&format_torch_dist, store, "out", &again, &err));
        CHECK_OK(again->driver->verify(again, false, &err));
        assert_int_equal(again->catalog->warning_count, cases[i].warnings);
        check_close(again);
        toy_release(&toy);
    }
}

static int probe(const struct format_driver *driver, struct store *store)
{
    return driver->probe(store, "out/iter_0000025", NULL);
}

/* metadata.json makes a torch_dist checkpoint; of the plain ones, the keys tell whose it is. */
TEST(an_iteration_is_known_by_the_name_of_its_folder)
{
    static const struct {
        const char *name;
        bool is_one;
    } cases[] = {
        { "iter_0000010", true }, { "run/iter_7", true }, { "run/iter_7//", true }, { "release", true }, { "run/release/", true },
        { "iter_", false }, { "iter_x7", false }, { "iter_7x", false }, { "iter_7/run", false }, { "iter7", false }, { "releases", false },
    };
    struct store *store = store_new_memory();
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        if (mcore_is_iteration(store, cases[i].name) != cases[i].is_one)
            fail_msg("'%s' is taken for %s", cases[i].name, cases[i].is_one ? "none" : "one");
    store_free(store);
}

TEST(the_flavour_is_told_by_files_and_keys)
{
    static const struct {
        const char *key;
        const struct format_driver *driver;
    } cases[] = {
        { "decoder.weight", &format_torch_dist },
        { "model.decoder.weight", &format_torch_dcp_megatron },
        { "model.module.decoder.weight", &format_fsdp_dtensor },
    };
    const struct format_driver *const drivers[] = { &format_torch_dist, &format_torch_dcp_megatron, &format_fsdp_dtensor,
                                                    &format_torch_dcp };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = { 0 };
        struct toy toy;
        struct store *store = store_new_memory();
        toy_init(&toy, &format_toy);
        struct value_graph *graph = toy_graph(&toy);
        toy_tensor(&toy, cases[i].key, DTYPE_F32, 1, (int64_t[]){ 2 });
        toy_item(&toy, "iteration", NULL, 0, graph, value_new_int(graph, 25));
        CHECK_OK(catalog_seal(toy.source.catalog, false, &err));
        CHECK_OK(write_to(cases[i].driver, NULL, &toy, store, 1, &err));
        for (size_t d = 0; d < sizeof(drivers) / sizeof(drivers[0]); d++) {
            if (drivers[d] != cases[i].driver)
                assert_true(probe(drivers[d], store) < probe(cases[i].driver, store));
        }
        toy_release(&toy);
        store_free(store);
    }
}

/* ---- faults ---- */

TEST(writing_survives_every_failed_allocation)
{
    static const struct option_value options[] = {
        { "common", "object" }, { "integrity", "yes" }, { "chunk-bytes", "100" }, { NULL, NULL }
    };
    const struct format_driver *const drivers[] = { &format_torch_dist, &format_torch_dcp_megatron };
    for (size_t d = 0; d < 2; d++) {
        struct toy toy;
        unsigned long nth = 0;
        bool was_hit;
        toy_init(&toy, &format_toy);
        toy_fill(&toy, false);
        do {
            reshard_error err = { 0 };
            struct check_conversion prepared;
            struct target target = { .driver = drivers[d] };
            struct check_conversion plain;
            CHECK_OK(check_lay_out(&toy.source, NULL, 2, -1, &plain, &err));
            prepared = plain;
            prepared.request.options = options;
            fail_malloc_at(++nth);
            target.catalog = catalog_new(drivers[d]->name);
            reshard_status status = target.catalog ? drivers[d]->lay_out(&prepared.request, &target, &err) : RESHARD_ERR_MEMORY;
            was_hit = fail_malloc_was_hit();
            if (status && !(was_hit && status == RESHARD_ERR_MEMORY))
                fail_msg("allocation %lu: status %d: %s", nth, status, err.message);
            if (target.catalog)
                drivers[d]->close_target(&target);
            catalog_free(target.catalog);
            note_list_release(&target.dropped);
            note_list_release(&target.changed);
            check_conversion_release(&plain);
        } while (was_hit);
        print_message("# %s: %lu allocations\n", drivers[d]->name, nth - 1);
        toy_release(&toy);
    }
}

TEST(a_failed_write_is_reported_and_leaves_no_target)
{
    static const struct option_value options[] = { { "integrity", "yes" }, { "root", "none" }, { NULL, NULL } };
    const enum fault_kind kinds[] = { FAULT_DISK_FULL, FAULT_IO };
    for (size_t k = 0; k < 2; k++) {
        unsigned nth = 0;
        bool was_hit;
        do {
            reshard_error err = { 0 };
            struct toy toy;
            struct store *inner = store_new_memory(), *faulty = store_new_fault(inner, kinds[k], ++nth);
            bool is_directory;
            uint64_t bytes;
            toy_init(&toy, &format_toy);
            toy_fill(&toy, true);
            reshard_status status = write_to(&format_torch_dist, options, &toy, faulty, 2, &err);
            was_hit = store_fault_was_hit(faulty);
            if (was_hit && !status)
                fail_msg("access %u: no error", nth);
            assert_true(store_exists(inner, "out/metadata.json", &is_directory, &bytes) == !status);
            toy_release(&toy);
            store_free(faulty);
            store_free(inner);
        } while (was_hit);
        print_message("# %u accesses\n", nth - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacked_axes_are_layers_and_experts_without_an_index),
        cmocka_unit_test(the_name_of_a_sharded_object_ends_with_offsets_and_extents),
        cmocka_unit_test(items_are_put_together_along_their_paths),
        cmocka_unit_test(torch_dist_reads_back_in_every_form),
        cmocka_unit_test(chunks_are_single_layers_no_larger_than_wanted_and_spread_evenly),
        cmocka_unit_test(options_that_cannot_be_are_refused),
        cmocka_unit_test(nested_items_are_stored_leaf_by_leaf),
        cmocka_unit_test(classes_that_megatron_refuses_in_the_common_state_are_reported),
        cmocka_unit_test(what_no_torch_dist_checkpoint_may_be_is_refused),
        cmocka_unit_test(an_object_of_which_cells_are_missing_does_not_verify),
        cmocka_unit_test(an_iteration_is_known_by_the_name_of_its_folder),
        cmocka_unit_test(the_flavour_is_told_by_files_and_keys),
        cmocka_unit_test(writing_survives_every_failed_allocation),
        cmocka_unit_test(a_failed_write_is_reported_and_leaves_no_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
