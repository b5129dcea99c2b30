/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a zarr store of an array document and two chunk files: the first bytes say how long each is and which format the document is of.
 * What opens is read.
 */
#include "engine/engine.h"
#include "formats/driver.h"
#include "outcome.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define HEAD_BYTES 4
#define SHOWN_BYTES_MAX ((uint64_t)1 << 20)

static reshard_status note(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                             reshard_error *err)
{
    (void)context, (void)tensor, (void)is_last, (void)err;
    outcome_number(offset);
    outcome_bytes(bytes, size);
    return RESHARD_OK;
}

static void read_all(struct source *source)
{
    const struct catalog *catalog = source->catalog;
    reshard_error err = RESHARD_ERROR_INIT;
    struct engine_source from = { .store = source->store, .catalog = catalog, .limits = &source->limits };
    struct engine_options options = { .threads = 1, .memory_bytes = 1 << 20 };
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        if (catalog_tensor_bytes(catalog, &catalog->tensors[i]) <= SHOWN_BYTES_MAX)
            outcome_status(engine_stream(&from, &i, 1, NULL, NULL, &options, note, NULL, &err), &err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const documents[] = { "w/.zarray", "w/zarr.json", "w/.zarray", ".zmetadata" };
    static const char *const first[] = { "w/0", "w/c/0", "w/0.0", "w/0" }, *const second[] = { "w/1", "w/c/1", "w/0.1", "w/1" };
    if (size < HEAD_BYTES)
        return 0;
    unsigned form = bytes[0] & 3;
    size_t left = size - HEAD_BYTES, document = bytes[1] | (size_t)(bytes[2] & 15) << 8, chunk = bytes[3];
    document = document < left ? document : left;
    chunk = chunk < left - document ? chunk : left - document;
    const uint8_t *at = bytes + HEAD_BYTES;
    struct store *store = store_new_memory();
    struct open_options options = {
        .limits = limits_default, .iteration = -1, .borrow_store = true, .lenient = bytes[0] & 4, .format = "zarr"
    };
    options.limits.tensor_expansion = SHOWN_BYTES_MAX;
    options.limits.chunk_bytes = SHOWN_BYTES_MAX;
    options.limits.metadata_bytes = SHOWN_BYTES_MAX;
    struct source *source = NULL;
    bool done = store && !store_memory_put(store, documents[form], at, document, NULL) &&
                !store_memory_put(store, first[form], at + document, chunk, NULL) &&
                !store_memory_put(store, second[form], at + document + chunk, left - document - chunk, NULL);
    reshard_error err = RESHARD_ERROR_INIT;
    if (done && !outcome_status(format_open(store, "", &options, &source, &err), &err)) {
        outcome_catalog(source->catalog);
        read_all(source);
    }
    source_free(source);
    store_free(store);
    return 0;
}
