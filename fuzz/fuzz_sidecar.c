/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as reshard.json beside a small checkpoint, a file or (byte 0, bit 0) a folder; or (bit 1) the one that belongs there, with
 * bytes put over it: two of the place, then what is put there.
 */
#include "convert/sidecar.h"
#include "convert/verify.h"
#include "outcome.h"
#include "whole.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Three tensors and metadata, as a safetensors file. */
static bool put_checkpoint(struct store *store, const char *name)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]},\"c.d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[8,16]}}";
    struct buffer file = { 0 };
    buffer_append_u64le(&file, sizeof(header) - 1);
    buffer_append(&file, header, sizeof(header) - 1);
    for (uint8_t i = 0; i < 16; i++)
        buffer_append_byte(&file, i);
    bool done = !file.failed && !store_memory_put(store, name, file.data, file.size, NULL);
    buffer_release(&file);
    return done;
}

static bool verify(struct checkpoint *checkpoint)
{
    const struct verify_options options = { 0 };
    const struct engine_options run = whole_run();
    struct finding_sink findings = { 0 };
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = outcome_status(verify_run(checkpoint, &options, &run, &findings, &err), &err);
    outcome_number(findings.failures << 32 | findings.warnings);
    return status != RESHARD_OK;
}

/* The sidecar that belongs there, from a place on overwritten by the input. As it was made it must fit. */
static void splice(struct checkpoint *checkpoint, struct store *store, unsigned digest, const uint8_t *bytes, size_t size)
{
    static const char *const digests[] = { "crc32c", "sha256", "xxh3" };
    const struct engine_options engine = { .memory_bytes = 1 << 20, .threads = 1 };
    struct buffer json = { 0 };
    char *name = NULL;
    reshard_error err;
    if (sidecar_make(checkpoint, digests[digest % 3], &engine, &json, &name, &err))
        abort();
    outcome_text(buffer_str(&json));
    size_t at = size > 2 ? (bytes[0] | (size_t)bytes[1] << 8) % json.size : json.size;
    for (size_t i = 2; i < size && at < json.size; i++, at++)
        json.data[at] = bytes[i];
    if (!store_memory_put(store, name, json.data, json.size, NULL) && verify(checkpoint) && size <= 2)
        abort();
    buffer_release(&json);
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    struct store *store = store_new_memory();
    bool is_folder = bytes[0] & 1, is_made = bytes[0] & 2;
    struct whole_options options = { .format = is_folder ? "hf" : "safetensors" };
    const char *sidecar = is_folder ? "reshard.json" : "x.safetensors.reshard.json";
    bool done = store && put_checkpoint(store, is_folder ? "model.safetensors" : "x.safetensors");
    if (done && is_folder)
        done = !store_memory_put(store, "config.json", "{}", 2, NULL);
    if (done && !is_made)
        done = !store_memory_put(store, sidecar, bytes + 1, size - 1, NULL);
    struct checkpoint *checkpoint = done ? whole_open(store, is_folder ? "" : "x.safetensors", &options, NULL) : NULL;
    if (checkpoint && is_made)
        splice(checkpoint, store, bytes[0] >> 2, bytes + 1, size - 1);
    else if (checkpoint)
        verify(checkpoint);
    checkpoint_close(checkpoint);
    store_free(store);
    return 0;
}
