/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as reshard.json beside a small checkpoint, a file or (byte 0, bit 0) a folder: verified, nothing may be called good that differs. */
#include "whole.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Three tensors and metadata, as a safetensors file. */
static bool put_checkpoint(struct store *store, const char *name)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},"
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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < 1)
        return 0;
    struct store *store = store_new_memory();
    bool is_folder = bytes[0] & 1;
    struct whole_options options = { .format = is_folder ? "hf" : "safetensors" };
    const char *sidecar = is_folder ? "reshard.json" : "x.safetensors.reshard.json";
    bool done = store && put_checkpoint(store, is_folder ? "model.safetensors" : "x.safetensors") &&
                !store_memory_put(store, sidecar, bytes + 1, size - 1, NULL);
    reshard_checkpoint *checkpoint = done ? whole_open(store, is_folder ? "" : "x.safetensors", &options, NULL) : NULL;
    if (checkpoint)
        whole_verify(checkpoint, true);
    reshard_close(checkpoint);
    store_free(store);
    return 0;
}
