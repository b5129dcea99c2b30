/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up source for tests of writing: tensors in one file of a memory store, items made by hand. */
#ifndef TESTS_FORMATS_DCP_TOY_H
#define TESTS_FORMATS_DCP_TOY_H

#include "formats/dcp_check.h"

#define DATA_BYTES 4096

static inline reshard_status toy_resolve(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err)
{
    (void)source;
    (void)chunks;
    (void)count;
    (void)err;
    return RESHARD_OK;
}

/* Storage n of an item is n + 1 repeated. */
static inline reshard_status toy_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out,
                                                   reshard_error *err)
{
    (void)source;
    (void)item;
    return buffer_append_fill(out, (uint8_t)(storage + 1), 8) ? RESHARD_OK : error_set_memory(err);
}

/* Storages inside items: bytes that the driver reads, or hidden tensors of the catalog. */
static const struct format_driver format_toy = { .name = "toy", .resolve = toy_resolve, .read_item_storage = toy_read_item_storage };
static const struct format_driver format_toy_hidden = { .name = "toy-hidden", .resolve = toy_resolve };

/* A source whose tensors lie one after the other in the file "data" of a memory store. */
struct toy {
    struct source source;
    uint64_t used;
    uint32_t object;
};

static inline void toy_put_data(struct store *store)
{
    reshard_error err = { 0 };
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    struct store_txn_options options = { .no_sync = true };
    uint8_t bytes[DATA_BYTES];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7 % 31);
    CHECK_OK(store_txn_begin_in(store, "data", &options, &txn, &err));
    CHECK_OK(store_txn_create(txn, "", sizeof(bytes), &object, &err));
    CHECK_OK(store_write_at(object, 0, bytes, sizeof(bytes), &err));
    store_object_close(object);
    CHECK_OK(store_txn_commit(txn, &err));
}

static inline void toy_init(struct toy *toy, const struct format_driver *driver)
{
    reshard_error err = { 0 };
    *toy = (struct toy){ .source = { .driver = driver, .limits = limits_default, .iteration = -1 } };
    toy->source.store = store_new_memory();
    toy->source.catalog = catalog_new("toy");
    toy_put_data(toy->source.store);
    CHECK_OK(catalog_add_object(toy->source.catalog, STR("data"), DATA_BYTES, &toy->object, &err));
}

static inline void toy_release(struct toy *toy)
{
    catalog_free(toy->source.catalog);
    store_free(toy->source.store);
}

static inline uint32_t toy_tensor(struct toy *toy, const char *key, enum dtype dtype, int rank, const int64_t *shape)
{
    reshard_error err = { 0 };
    uint32_t tensor;
    CHECK_OK(catalog_add_tensor(toy->source.catalog, str_of(key), dtype, rank, shape, &tensor, &err));
    uint64_t bytes = catalog_tensor_bytes(toy->source.catalog, &toy->source.catalog->tensors[tensor]);
    CHECK_OK(catalog_add_chunk(toy->source.catalog, tensor, NULL, NULL, toy->object, toy->used, bytes, NULL, &err));
    toy->used += bytes;
    return tensor;
}

static inline struct value_graph *toy_graph(struct toy *toy)
{
    struct value_graph *graph = catalog_adopt_graph(toy->source.catalog, (struct value_graph){ 0 });
    assert_non_null(graph);
    return graph;
}

static inline void toy_item(struct toy *toy, const char *key, const struct path_part *parts, size_t part_count, struct value_graph *graph,
                     const struct value *value)
{
    reshard_error err = { 0 };
    struct catalog_item item = { .key = str_of(key), .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = value, .graph = graph };
    CHECK_OK(catalog_add_item(toy->source.catalog, &item, parts, part_count, NULL, &err));
}

/* (torch.FloatStorage of numel elements) as the pickle refers to it. */
static inline struct value *toy_storage(struct value_graph *graph, const char *module, const char *class_name, uint32_t storage,
                                        int64_t numel)
{
    struct value **items = arena_array(&graph->arena, 5, sizeof(*items));
    items[0] = value_new_str(graph, STR("storage"));
    items[1] = value_new_global(graph, module, class_name);
    items[2] = value_new_str(graph, STR("17"));
    items[3] = value_new_str(graph, STR("cuda:0"));
    items[4] = value_new_int(graph, numel);
    struct value *persid = value_new(graph, VALUE_PERSID);
    persid->inner = value_new_list(graph, VALUE_TUPLE, items, 5);
    persid->storage = storage + 1;
    return persid;
}

/* A tensor inside an item: a rebuild call on a storage. */
static inline struct value *toy_inner_tensor(struct value_graph *graph, uint32_t storage, int64_t numel)
{
    struct value **args = arena_array(&graph->arena, 6, sizeof(*args)), **one = arena_array(&graph->arena, 1, sizeof(*one)),
                 **stride = arena_array(&graph->arena, 1, sizeof(*stride));
    one[0] = value_new_int(graph, numel);
    stride[0] = value_new_int(graph, 1);
    args[0] = toy_storage(graph, "torch", "FloatStorage", storage, numel);
    args[1] = value_new_int(graph, 0);
    args[2] = value_new_list(graph, VALUE_TUPLE, one, 1);
    args[3] = value_new_list(graph, VALUE_TUPLE, stride, 1);
    args[4] = value_new(graph, VALUE_BOOL);
    args[5] = value_new_call(graph, value_new_global(graph, "collections", "OrderedDict"), NULL, 0);
    return value_new_call(graph, value_new_global(graph, "torch._utils", "_rebuild_tensor_v2"), args, 6);
}

#endif
