/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of formats share: checkpoints in a memory store, made, opened, and laid out anew without an engine. */
#ifndef TESTS_MEMORY_CHECKPOINT_H
#define TESTS_MEMORY_CHECKPOINT_H

#include "check.h"

#include "formats/driver.h"

#include <dirent.h>

/* Puts a file into a memory store. */
static inline void memory_put(struct store *store, const char *name, const void *bytes, size_t size)
{
    reshard_error err = { 0 };
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    struct store_txn_options options = { .overwrite = true, .no_sync = true };
    CHECK_OK(store_txn_begin_in(store, name, &options, &txn, &err));
    CHECK_OK(store_txn_create(txn, "", size, &object, &err));
    CHECK_OK(store_write_at(object, 0, bytes, size, &err));
    store_object_close(object);
    CHECK_OK(store_txn_commit(txn, &err));
}

static inline void memory_put_text(struct store *store, const char *name, const char *text)
{
    memory_put(store, name, text, strlen(text));
}

/* A safetensors file of this header text and data_bytes bytes of data, the n-th of which is seed + n. */
static inline void memory_put_safetensors(struct store *store, const char *name, const char *header, size_t data_bytes, uint8_t seed)
{
    struct buffer file = { 0 };
    buffer_append_u64le(&file, strlen(header));
    buffer_append_text(&file, header);
    for (size_t i = 0; i < data_bytes; i++)
        buffer_append_byte(&file, (uint8_t)(seed + i));
    assert_false(file.failed);
    memory_put(store, name, file.data, file.size);
    buffer_release(&file);
}

static inline reshard_status memory_open(struct store *store, const char *name, bool lenient, struct source **out, reshard_error *err)
{
    struct open_options options = { .limits = limits_default, .iteration = -1, .borrow_store = true, .lenient = lenient };
    return format_open(store, name, &options, out, err);
}

/* A request for all of source as another format, with the defaults. The arrays live until request_release. */
struct whole_request {
    struct layout_request request;
    uint32_t *tensors, *items;
};

static inline struct whole_request request_whole(struct source *source, const struct option_value *options)
{
    struct whole_request whole = { 0 };
    const struct catalog *catalog = source->catalog;
    whole.tensors = calloc((size_t)catalog->tensor_count + 1, sizeof(uint32_t));
    whole.items = calloc((size_t)catalog->item_count + 1, sizeof(uint32_t));
    for (uint32_t i = 0; whole.tensors && i < catalog->tensor_count; i++)
        whole.tensors[i] = i;
    for (uint32_t i = 0; whole.items && i < catalog->item_count; i++)
        whole.items[i] = i;
    whole.request = (struct layout_request){
        .wanted = catalog,
        .wanted_source = whole.tensors,
        .wanted_items = whole.items,
        .is_whole = true,
        .max_shard_bytes = -1,
        .file_name = "out",
        .options = options,
        .limits = limits_default,
    };
    layout_of_source(&whole.request, source);
    return whole;
}

static inline void request_release(struct whole_request *whole)
{
    free(whole->tensors);
    free(whole->items);
}

static inline reshard_status lay_out(const char *format, const struct layout_request *request, struct target *target, reshard_error *err)
{
    *target = (struct target){ .driver = format_driver_find(format) };
    target->catalog = catalog_new(format);
    if (!target->catalog)
        return RESHARD_ERR_MEMORY;
    reshard_status status = target->driver->lay_out(request, target, err);
    return status ? status : target_seal(target, err);
}

/* Writes a target into the store below name, payload included: what the engine does, one chunk after the other, for chunks that are
 * whole on both sides or lie in one run of a whole source chunk. */
static inline reshard_status publish_simply(struct store *store, const char *name, const struct layout_request *request,
                                            struct target *target, reshard_error *err)
{
    const struct catalog *to = target->catalog, *from = request->source->catalog;
    struct store_txn *txn = NULL;
    struct store_txn_options options = { .is_directory = target->driver->abilities & FORMAT_IS_DIRECTORY, .no_sync = true };
    struct store_object **objects = calloc((size_t)to->object_count + 1, sizeof(*objects));
    reshard_status status = store_txn_begin_in(store, name, &options, &txn, err);
    for (uint32_t i = 0; i < to->object_count && !status; i++)
        status = store_txn_create(txn, to->objects[i].name.data, to->objects[i].bytes, &objects[i], err);
    for (uint32_t i = 0; i < to->chunk_count && !status; i++) {
        const struct catalog_chunk *chunk = &to->chunks[i];
        const struct catalog_tensor *tensor = &from->tensors[request->wanted_source[chunk->tensor]];
        const int64_t *start = catalog_vector_at(to, chunk->start), *shape = catalog_vector_at(from, tensor->shape);
        uint64_t begin = 0, row = tensor->rank ? catalog_tensor_bytes(from, tensor) / (uint64_t)(shape[0] ? shape[0] : 1) : 0;
        begin = tensor->rank ? row * (uint64_t)start[0] : 0;
        assert_int_equal(tensor->chunk_count, 1);
        uint8_t *bytes = malloc(chunk->bytes + 1);
        struct store_object *object = NULL;
        status = store_open_object(request->source->store, from->objects[from->chunks[tensor->first_chunk].object].name.data, &object, err);
        if (!status)
            status = store_read_at(object, from->chunks[tensor->first_chunk].offset + begin, bytes, chunk->bytes, err);
        if (!status)
            status = store_write_at(objects[chunk->object], chunk->offset, bytes, chunk->bytes, err);
        store_object_close(object);
        free(bytes);
    }
    struct publish_job job = { .target = target, .source = request->source, .objects = objects, .request = request };
    if (!status)
        status = target_publish(&job, err);
    for (uint32_t i = 0; i < to->object_count; i++)
        store_object_close(objects[i]);
    free(objects);
    if (status)
        store_txn_abort(txn, false);
    else
        status = store_txn_commit(txn, err);
    return status;
}

/* Calls visit for every case of a family among the fixtures whose name starts with prefix; returns how many there were. */
static inline int each_fixture(const char *family, const char *prefix, void (*visit)(const char *folder, const char *name))
{
    char root[4096], folder[8192];
    int count = 0;
    snprintf(root, sizeof(root), "%s/%s", test_fixtures(), family);
    DIR *directory = opendir(root);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(folder, sizeof(folder), "%s/%s", root, entry->d_name);
        visit(folder, entry->d_name);
        count++;
    }
    if (directory)
        closedir(directory);
    return count;
}

#endif
