/* SPDX-License-Identifier: Apache-2.0 */
#include "whole.h"

#include "convert/verify.h"
#include "outcome.h"

#include <stdlib.h>

#define PAYLOAD_BYTES_MAX (256 << 10)
#define JSON_BYTES_MAX (16 << 10)
#define ITEMS_MAX 64
#define STORAGES_MAX 3

struct limits whole_limits(void)
{
    struct limits limits = limits_default;
    limits.metadata_bytes = 512 << 10;
    limits.json_bytes = 256 << 10;
    limits.pickle_values = 50000;
    limits.memo_gap = 10000;
    limits.zip_entries = 500;
    limits.inflate_bytes = 256 << 10;
    limits.chunk_bytes = 1 << 20;
    limits.tensors = 2000;
    limits.chunks = 5000;
    limits.objects = 300;
    limits.tensor_expansion = 256 << 10;
    limits.box_checks = 100000;
    limits.item_bytes = 256 << 10;
    limits.map_names = 20000;
    limits.map_pieces = 20000;
    return limits;
}

struct checkpoint *whole_open(struct store *store, const char *name, const struct whole_options *options, reshard_error *err)
{
    const struct open_options open = {
        .format = options->format, .limits = whole_limits(), .iteration = -1, .borrow_store = true, .lenient = options->lenient
    };
    struct checkpoint *checkpoint = NULL;
    reshard_error own = RESHARD_ERROR_INIT;
    err = err ? err : &own;
    if (outcome_status(checkpoint_open_in(store, name, &open, "", &checkpoint, err), err))
        return NULL;
    outcome_catalog(checkpoint->source->catalog);
    return checkpoint;
}

struct engine_options whole_run(void)
{
    return (struct engine_options){ .memory_bytes = 1 << 17, .chunk_memory = 1 << 20, .threads = 1 }; /* less than sanitizers map anew */
}

bool whole_is_small(const struct catalog *catalog)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        uint64_t bytes = catalog_tensor_bytes(catalog, &catalog->tensors[i]);
        if (bytes > PAYLOAD_BYTES_MAX || (total += bytes) > PAYLOAD_BYTES_MAX)
            return false;
    }
    return true;
}

static void load_storages(struct source *source, uint32_t item)
{
    for (uint32_t storage = 0;
         source->driver->read_item_storage && source->catalog->items[item].kind == ITEM_BLOB && storage < STORAGES_MAX; storage++) {
        struct buffer bytes = { 0 };
        reshard_error err = RESHARD_ERROR_INIT;
        if (!outcome_status(source->driver->read_item_storage(source, item, storage, &bytes, &err), &err))
            outcome_text(buffer_str(&bytes));
        buffer_release(&bytes);
    }
}

void whole_load_items(struct source *source)
{
    for (uint32_t i = 0; i < source->catalog->item_count && i < ITEMS_MAX; i++) {
        struct buffer json = { 0 };
        reshard_error err = RESHARD_ERROR_INIT;
        if (!outcome_status(source_load_item(source, i, &err), &err) && source->catalog->items[i].value) {
            reshard_status status = value_to_json(source->catalog->items[i].value, &json, AT_MOST(JSON_BYTES_MAX), NULL);
            if (!status && json.size > JSON_BYTES_MAX)
                abort();
            outcome_text(buffer_str(&json));
            load_storages(source, i);
        }
        buffer_release(&json);
    }
}

static reshard_status take_finding(void *context, const struct finding *finding)
{
    (void)context;
    outcome_number(finding->severity);
    outcome_text(str_of(finding->kind));
    outcome_text(finding->key);
    outcome_number(finding->count);
    return RESHARD_OK;
}

void whole_verify(struct checkpoint *checkpoint, bool deep)
{
    const struct verify_options options = { .is_deep = deep };
    const struct engine_options run = whole_run();
    struct finding_sink findings = { .receive = take_finding };
    reshard_error err = RESHARD_ERROR_INIT;
    outcome_status(verify_run(checkpoint, &options, &run, &findings, &err), &err);
}

static reshard_status hash_part(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                reshard_error *err)
{
    (void)tensor, (void)offset, (void)is_last, (void)err;
    uint64_t *hash = context;
    *hash = outcome_hash(*hash, bytes, size);
    return RESHARD_OK;
}

reshard_status whole_hash(struct checkpoint *checkpoint, uint32_t tensor, uint64_t *hash, reshard_error *err)
{
    *hash = 0;
    return whole_hash_on(checkpoint, tensor, hash, err);
}

reshard_status whole_hash_on(struct checkpoint *checkpoint, uint32_t tensor, uint64_t *hash, reshard_error *err)
{
    struct engine_source source = checkpoint_engine_source(checkpoint);
    struct engine_options options = whole_run();
    reshard_error own = RESHARD_ERROR_INIT;
    err = err ? err : &own;
    reshard_status status = source_resolve(checkpoint->source, &tensor, 1, err);
    if (!status)
        status = engine_stream(&source, &tensor, 1, NULL, NULL, &options, hash_part, hash, err);
    outcome_number(*hash);
    return outcome_status(status, err);
}
