/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole conversions of whatever the bytes describe, from memory to memory: opening, verifying, loading items, moving payload, writing,
 * and reading back what was written, which must hold the same tensors.
 *
 * The input is byte 0, bits 0-2: target format, bit 3: cast to F16, bit 4: shards of 64 bytes, bit 5: lenient, bit 6: eight ranks; then
 * files: flags (bit 0: the checksums of zips in it are set right), size of the name, name, 3 bytes of size (little-endian), bytes.
 * make_corpus.py packs directories like this.
 */
#include "zip_repair.h"

#include "api/conversion.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define FILES_MAX 24
#define PAYLOAD_BYTES_MAX (256 << 10)
#define JSON_BYTES_MAX (16 << 10)
#define ITEMS_MAX 64

enum convert_flags { TO_MASK = 7, CASTS = 8, SMALL_SHARDS = 16, LENIENT = 32, MANY_RANKS = 64 };

static struct limits small_limits(void)
{
    struct limits limits = limits_default;
    limits.metadata_bytes = 256 << 10;
    limits.json_bytes = 256 << 10;
    limits.pickle_values = 20000;
    limits.memo_gap = 10000;
    limits.zip_entries = 100;
    limits.inflate_bytes = 256 << 10;
    limits.tensors = 200;
    limits.chunks = 500;
    limits.objects = 100;
    limits.tensor_expansion = 256 << 10;
    limits.box_checks = 100000;
    limits.item_bytes = 256 << 10;
    return limits;
}

static void fail(const char *what, struct str key, const reshard_error *err)
{
    fprintf(stderr, "fuzz_convert: %s '%.*s': %s\n", what, STR_ARG(key), err->message);
    abort();
}

/* ---- the input ---- */

struct input {
    const uint8_t *at;
    size_t left;
};

static size_t take_number(struct input *input, int size)
{
    size_t value = 0;
    for (int i = 0; i < size && input->left; i++, input->left--)
        value |= (size_t)*input->at++ << 8 * i;
    return value;
}

static const uint8_t *take_bytes(struct input *input, size_t *size)
{
    const uint8_t *bytes = input->at;
    *size = *size < input->left ? *size : input->left;
    input->at += *size;
    input->left -= *size;
    return bytes;
}

/* Puts the next file into the store; false at the end of the input. The first file's name is kept: alone, it is the checkpoint. */
static bool put_file(struct input *input, struct store *store, char first_name[256])
{
    if (input->left == 0)
        return false;
    bool is_repaired = take_number(input, 1) & 1;
    size_t name_size = take_number(input, 1);
    const uint8_t *name = take_bytes(input, &name_size);
    size_t size = take_number(input, 3);
    const uint8_t *bytes = take_bytes(input, &size);
    char text[256] = { 0 };
    memcpy(text, name, name_size);
    uint8_t *copy = malloc(size + 1);
    if (!copy)
        return false;
    memcpy(copy, bytes, size);
    if (is_repaired)
        zip_repair(copy, size);
    if (!store_memory_put(store, text, copy, size, NULL) && !first_name[0])
        memcpy(first_name, text, sizeof(text));
    free(copy);
    return true;
}

/* ---- reading ---- */

static bool is_payload_small(const struct catalog *catalog)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        uint64_t bytes = catalog_tensor_bytes(catalog, &catalog->tensors[i]);
        if (bytes > PAYLOAD_BYTES_MAX || (total += bytes) > PAYLOAD_BYTES_MAX)
            return false;
    }
    return true;
}

static reshard_status hash_part(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last, reshard_error *err)
{
    (void)tensor, (void)offset, (void)is_last, (void)err;
    uint64_t *hash = context;
    for (size_t i = 0; i < size; i++)
        *hash = (*hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001B3);
    return RESHARD_OK;
}

static reshard_status hash_tensor(reshard_checkpoint *checkpoint, uint32_t tensor, uint64_t *hash, reshard_error *err)
{
    struct engine_source source = checkpoint_engine_source(checkpoint);
    struct engine_options options = { .memory_bytes = 64 << 10, .threads = 1 };
    *hash = 0;
    reshard_status status = source_resolve(checkpoint->source, &tensor, 1, err);
    if (!status)
        status = engine_stream(&source, &tensor, 1, NULL, NULL, &options, hash_part, hash, err);
    return status;
}

static void load_items(struct source *source)
{
    for (uint32_t i = 0; i < source->catalog->item_count && i < ITEMS_MAX; i++) {
        struct buffer json = { 0 };
        if (!source_load_item(source, i, NULL) && source->catalog->items[i].value) {
            reshard_status status = value_to_json(source->catalog->items[i].value, &json, AT_MOST(JSON_BYTES_MAX), NULL);
            if (!status && json.size > JSON_BYTES_MAX)
                abort();
        }
        buffer_release(&json);
    }
}

/* The handle that reshard_open makes, over a store. */
static bool open_checkpoint(struct store *store, const char *name, const char *format, bool lenient, reshard_checkpoint *out, reshard_error *err)
{
    struct open_options options = { .format = format, .limits = small_limits(), .iteration = -1, .borrow_store = true, .lenient = lenient };
    *out = (struct reshard_checkpoint){ 0 };
    if (format_open(store, name, &options, &out->source, err))
        return false;
    const struct catalog *catalog = out->source->catalog;
    out->listed = calloc((size_t)catalog->tensor_count + 1, sizeof(uint32_t));
    for (uint32_t i = 0; out->listed && i < catalog->tensor_count; i++) {
        if (!(catalog->tensors[i].flags & TENSOR_HIDDEN))
            out->listed[out->listed_count++] = i;
    }
    return true;
}

static void close_checkpoint(reshard_checkpoint *checkpoint)
{
    source_free(checkpoint->source);
    free(checkpoint->listed);
}

/* ---- writing ---- */

static reshard_status write_objects(struct conversion *conversion, struct store_txn *txn, struct store_object **objects, uint32_t *crcs,
                                    reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    bool is_directory = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < target->object_count && !status; i++) {
        char *name = copy_text(target->objects[i].name.data, is_directory ? target->objects[i].name.size : 0);
        status = name ? store_txn_create(txn, name, target->objects[i].bytes, &objects[i], err) : RESHARD_ERR_MEMORY;
        free(name);
    }
    struct engine_source source = checkpoint_engine_source(conversion->source);
    if (!status)
        status = engine_run(conversion->plan, &source, objects, crcs, txn, &conversion->engine, err);
    struct publish_job job = {
        .target = &conversion->target,
        .source = conversion->source->source,
        .objects = objects,
        .chunk_crcs = crcs,
        .request = &conversion->request,
    };
    return status ? status : conversion->target.driver->publish(&job, err);
}

static reshard_status write_target(struct conversion *conversion, struct store *store, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    bool is_directory = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    struct store_txn_options options = { .is_directory = is_directory, .no_sync = true, .identity = plan_hash(conversion->plan) };
    struct store_txn *txn = NULL;
    struct store_object **objects = calloc((size_t)target->object_count + 1, sizeof(*objects));
    uint32_t *crcs = calloc((size_t)target->chunk_count + 1, sizeof(*crcs));
    reshard_status status = objects && crcs ? RESHARD_OK : RESHARD_ERR_MEMORY;
    if (!status)
        status = store_txn_begin_in(store, "out", &options, &txn, err);
    if (!status)
        status = write_objects(conversion, txn, objects, crcs, err);
    for (uint32_t i = 0; objects && i < target->object_count; i++)
        store_object_close(objects[i]);
    free(objects);
    free(crcs);
    if (!status)
        return store_txn_commit(txn, err);
    store_txn_abort(txn, false);
    return status;
}

/* Whether a tensor's content must come out as it went in: it was written, its key names it alone, nothing says it twice. */
static bool is_comparable(const struct conversion *conversion, uint32_t tensor)
{
    const struct catalog *source = conversion->source->source->catalog;
    const struct catalog_tensor *target = &conversion->target.catalog->tensors[tensor];
    const struct catalog_tensor *from = &source->tensors[conversion->selection.wanted_source[tensor]];
    if (target->chunk_count == 0 || (target->flags | from->flags) & (TENSOR_HIDDEN | TENSOR_AMBIGUOUS) || target->dtype != from->dtype)
        return false;
    for (uint32_t i = 0; i < from->chunk_count; i++) {
        if (source->chunks[from->first_chunk + i].flags & CHUNK_REPLICA)
            return false;
    }
    return true;
}

static void check_target(const struct conversion *conversion, struct store *store)
{
    reshard_checkpoint written;
    reshard_error err = { 0 };
    if (!open_checkpoint(store, "out", conversion->target.driver->name, false, &written, &err)) {
        /* What was read through small limits may be written at greater length. */
        if (err.code != RESHARD_ERR_LIMIT)
            fail("what was written cannot be opened", str_of(conversion->target.driver->name), &err);
        return;
    }
    const struct catalog *target = conversion->target.catalog;
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        uint64_t before, after;
        if (!is_comparable(conversion, i))
            continue;
        struct str key = target->tensors[i].key;
        uint32_t found = catalog_find(written.source->catalog, key);
        if (found == CATALOG_NONE)
            fail("missing after writing", key, &err);
        if (hash_tensor(conversion->source, conversion->selection.wanted_source[i], &before, &err))
            fail("was written, but cannot be read", key, &err);
        if (hash_tensor(&written, found, &after, &err))
            fail("cannot be read back", key, &err);
        if (before != after)
            fail("differs after writing", key, &err);
    }
    load_items(written.source);
    close_checkpoint(&written);
}

static const char *pick_format(unsigned number)
{
    const char *names[8];
    unsigned count = 0;
    for (int i = 0; format_driver_at(i) && count < 8; i++) {
        if (format_driver_at(i)->abilities & FORMAT_WRITES)
            names[count++] = format_driver_at(i)->name;
    }
    return names[number % count];
}

static void convert(reshard_checkpoint *checkpoint, unsigned flags)
{
    static const char *const half[] = { "f16", NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    struct conversion conversion;
    options.to = pick_format(flags & TO_MASK);
    options.dtypes = flags & CASTS ? half : NULL;
    options.max_shard_bytes = flags & SMALL_SHARDS ? 64 : -1;
    options.layout = flags & MANY_RANKS ? "ranks=8" : NULL;
    run.memory_bytes = 64 << 10;
    run.threads = 1;
    if (conversion_prepare(checkpoint, "out", &options, &run, true, &conversion, NULL))
        return;
    struct store *store = store_new_memory();
    if (store && !write_target(&conversion, store, NULL))
        check_target(&conversion, store);
    store_free(store);
    conversion_release(&conversion);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input input = { bytes, size };
    unsigned flags = (unsigned)take_number(&input, 1);
    char name[256] = { 0 };
    int file_count = 0;
    struct store *store = store_new_memory();
    while (store && file_count < FILES_MAX && put_file(&input, store, name))
        file_count++;
    /* A file at the top of the store that stands alone is a checkpoint itself, else the store's root is. */
    bool is_file = file_count == 1 && !strchr(name, '/') && name[0] != '.';
    reshard_checkpoint checkpoint;
    if (store && open_checkpoint(store, is_file ? name : "", NULL, flags & LENIENT, &checkpoint, NULL)) {
        reshard_verify_options deep = RESHARD_VERIFY_OPTIONS_INIT;
        reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
        deep.deep = 1;
        run.memory_bytes = 64 << 10;
        run.threads = 1;
        load_items(checkpoint.source);
        if (checkpoint.listed && is_payload_small(checkpoint.source->catalog)) {
            reshard_verify(&checkpoint, &deep, &run, NULL, NULL, NULL);
            convert(&checkpoint, flags);
        }
        close_checkpoint(&checkpoint);
    }
    store_free(store);
    return 0;
}
