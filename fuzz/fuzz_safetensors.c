/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens arbitrary bytes as a safetensors file, as the index of a Hugging Face folder, and as the sharding info of a shard. The first byte
 * chooses. What opens is laid out again as both formats.
 */
#include "formats/driver.h"
#include "outcome.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static bool put(struct store *store, const char *name, const void *bytes, size_t size)
{
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    struct store_txn_options options = { .no_sync = true };
    if (store_txn_begin_in(store, name, &options, &txn, NULL))
        return false;
    bool written = !store_txn_create(txn, "", size, &object, NULL) && !store_write_at(object, 0, bytes, size, NULL);
    store_object_close(object);
    if (!written) {
        store_txn_abort(txn, false);
        return false;
    }
    return !store_txn_commit(txn, NULL);
}

static bool put_shard(struct store *store, const char *name, struct str info)
{
    static const char entries[] =
        "\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}";
    struct buffer header = { 0 }, file = { 0 };
    buffer_append_text(&header, "{\"__metadata__\":{\"DCP_SHARDING_INFO\":");
    buffer_append_json_string(&header, info);
    buffer_append_text(&header, "},");
    buffer_append_text(&header, entries);
    buffer_append_u64le(&file, header.size);
    buffer_append(&file, header.data, header.size);
    buffer_append_fill(&file, 1, 8);
    bool done = !header.failed && !file.failed && put(store, name, file.data, file.size);
    buffer_release(&header);
    buffer_release(&file);
    return done;
}

static void lay_out_again(struct source *source, const char *format)
{
    const struct catalog *catalog = source->catalog;
    struct target target = { .driver = format_driver_find(format), .catalog = catalog_new(format) };
    uint32_t *tensors = calloc((size_t)catalog->tensor_count + 1, sizeof(*tensors)),
             *items = calloc((size_t)catalog->item_count + 1, sizeof(*items));
    for (uint32_t i = 0; tensors && i < catalog->tensor_count; i++)
        tensors[i] = i;
    for (uint32_t i = 0; items && i < catalog->item_count; i++)
        items[i] = i;
    struct layout_request request = { .wanted = catalog,
                                      .wanted_source = tensors,
                                      .wanted_items = items,
                                      .is_whole = true,
                                      .max_shard_bytes = 16,
                                      .file_name = "out",
                                      .limits = source->limits };
    layout_of_source(&request, source);
    reshard_error err = RESHARD_ERROR_INIT;
    if (target.catalog && tensors && items && !outcome_status(target.driver->lay_out(&request, &target, &err), &err) &&
        !outcome_status(catalog_seal(target.catalog, true, &err), &err))
        outcome_catalog(target.catalog);
    target_free(&target);
    free(tensors);
    free(items);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    struct store *store = store_new_memory();
    struct open_options options = { .limits = limits_default, .iteration = -1, .borrow_store = true, .lenient = bytes[0] & 4 };
    struct source *source = NULL;
    const char *name = "";
    bool done;
    switch (bytes[0] & 3) {
    case 0:
        done = put_shard(store, "model.safetensors", (struct str){ 0 }) && put(store, "model.safetensors.index.json", bytes + 1, size - 1);
        break;
    case 1:
        done = put_shard(store, "shard-00001-model-00001-of-00001.safetensors", (struct str){ (const char *)bytes + 1, size - 1 });
        break;
    default:
        name = "x.safetensors";
        done = put(store, name, bytes + 1, size - 1);
        break;
    }
    reshard_error err = RESHARD_ERROR_INIT;
    if (done && !outcome_status(format_open(store, name, &options, &source, &err), &err)) {
        outcome_catalog(source->catalog);
        lay_out_again(source, "safetensors");
        lay_out_again(source, "hf");
    }
    source_free(source);
    store_free(store);
    return 0;
}
