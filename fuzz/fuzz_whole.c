/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens packed files as a checkpoint of one format (FUZZ_FORMAT), as it is stored and with optimizer state by parameter, loads items,
 * verifies and reads it. Options: byte 0, bit 0: lenient, bit 1: state as it is stored only, bit 2: no payload.
 */
#include "packed.h"
#include "whole.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum whole_flags { LENIENT = 1, STORED_ONLY = 2, NO_PAYLOAD = 4 };

static void read_all(struct store *store, const char *name, const struct whole_options *options, bool has_payload)
{
    struct checkpoint *checkpoint = whole_open(store, name, options, NULL);
    if (!checkpoint)
        return;
    const struct catalog *catalog = checkpoint->source->catalog;
    whole_load_items(checkpoint->source);
    if (has_payload && whole_is_small(catalog)) {
        uint64_t hash;
        whole_verify(checkpoint, true);
        for (uint32_t i = 0; i < catalog->tensor_count; i++)
            whole_hash(checkpoint, i, &hash, NULL);
    } else {
        whole_verify(checkpoint, false);
    }
    checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct packed packed;
    if (!packed_read(bytes, size, &packed))
        return 0;
    struct store *store = store_new_memory();
    unsigned flags = packed.options[0];
    struct whole_options options = { .format = FUZZ_FORMAT, .lenient = flags & LENIENT };
    if (store) {
        const char *name = packed_store(&packed, store);
        read_all(store, name, &options, !(flags & NO_PAYLOAD));
        options.relate_optimizer = true;
        if (!(flags & STORED_ONLY))
            read_all(store, name, &options, !(flags & NO_PAYLOAD));
    }
    store_free(store);
    packed_release(&packed);
    return 0;
}
