/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tar that torch wrote before 0.1.10, opened as it is and with the checksums of its headers set right; what opens must lie inside the
 * file.
 */
#include "encoding/torch_save.h"
#include "outcome.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define BLOCK_BYTES 512
#define CHECKSUM_AT 148

static void repair(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; size - at >= BLOCK_BYTES; at += BLOCK_BYTES) {
        unsigned sum = 0;
        if (memcmp(bytes + at + 257, "ustar", 5) != 0)
            continue;
        memset(bytes + at + CHECKSUM_AT, ' ', 8);
        for (size_t i = 0; i < BLOCK_BYTES; i++)
            sum += bytes[at + i];
        for (int i = 5; i >= 0; i--, sum >>= 3)
            bytes[at + CHECKSUM_AT + (size_t)i] = (uint8_t)('0' + (sum & 7));
        bytes[at + CHECKSUM_AT + 6] = 0;
    }
}

static void open_archive(const uint8_t *bytes, size_t size)
{
    struct limits limits = limits_default;
    struct reader reader = reader_over_memory(bytes, size, "fuzz");
    struct torch_archive archive;
    limits.metadata_bytes = 1 << 20;
    limits.memo_gap = 10000;
    limits.pickle_values = 100000;
    limits.pickle_depth = 10000;
    reshard_error err = RESHARD_ERROR_INIT;
    if (outcome_status(torch_save_open(&reader, &limits, 0, &archive, &err), &err))
        return;
    outcome_value(archive.graph.root);
    for (uint32_t i = 0; i < archive.storage_count; i++) {
        const struct torch_storage *storage = &archive.storages[i];
        if (storage->has_data && (storage->offset > size || storage->stored_bytes > size - storage->offset))
            abort();
        outcome_number(storage->offset);
        outcome_number(storage->bytes << 1 | storage->has_data);
    }
    for (uint32_t i = 0; i < archive.tensor_count; i++)
        if (archive.tensors[i].storage >= archive.storage_count)
            abort();
    torch_save_release(&archive);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    open_archive(bytes, size);
    uint8_t *copy = malloc(size + 1);
    if (copy) {
        memcpy(copy, bytes, size);
        repair(copy, size);
        if (memcmp(copy, bytes, size) != 0)
            open_archive(copy, size);
    }
    free(copy);
    return 0;
}
