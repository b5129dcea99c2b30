/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens packed files as a checkpoint of one format (FUZZ_FORMAT), as it is stored and with optimizer state by parameter, loads items,
 * verifies and reads it; and makes what it would be without its last tensor, where the format can. Options: byte 0, bit 0: lenient, bit 1:
 * state as it is stored only, bit 2: no payload.
 */
#include "outcome.h"
#include "packed.h"
#include "whole.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define FAILURES_MAX 16

enum whole_flags { LENIENT = 1, STORED_ONLY = 2, NO_PAYLOAD = 4 };

static void read_all(struct checkpoint *checkpoint, bool has_payload)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    whole_load_items(checkpoint->source);
    if (has_payload && whole_is_small(catalog)) {
        uint64_t hash;
        unsigned failures = 0; /* each may read all of a file again: nobody goes on for ever */
        whole_verify(checkpoint, true);
        for (uint32_t i = 0; i < catalog->tensor_count && failures < FAILURES_MAX; i++)
            failures += whole_hash(checkpoint, i, &hash, NULL) != RESHARD_OK;
    } else {
        whole_verify(checkpoint, false);
    }
}

static void read_view(struct checkpoint *stored, bool has_payload)
{
    struct source *view;
    struct checkpoint *checkpoint;
    reshard_error err = RESHARD_ERROR_INIT;
    if (!stored->source->has_other_view || outcome_status(source_by_parameter(stored->source, &view, &err), &err) ||
        outcome_status(checkpoint_of(view, "", &checkpoint, &err), &err))
        return;
    outcome_catalog(checkpoint->source->catalog);
    read_all(checkpoint, has_payload);
    checkpoint_close(checkpoint);
}

/* Files that go are files of the checkpoint. */
static void leave_out(struct source *source)
{
    const struct catalog *catalog = source->catalog;
    struct removal removal = { .name = NULL };
    reshard_error err = RESHARD_ERROR_INIT;
    if (!source->driver->leave_out || !catalog->tensor_count)
        return;
    struct str key = catalog->tensors[catalog->tensor_count - 1].key;
    if (!outcome_status(source->driver->leave_out(source, key, &removal, &err), &err) && !removal.bytes.size)
        abort();
    outcome_text(buffer_str(&removal.bytes));
    outcome_number(removal.file_count);
    for (size_t i = 0; i < removal.file_count; i++)
        if (name_map_find(&catalog->object_names, str_of(removal.files[i])) == NAME_NONE)
            abort();
    removal_release(&removal);
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
        struct checkpoint *checkpoint = whole_open(store, packed_store(&packed, store), &options, NULL);
        if (checkpoint)
            read_all(checkpoint, !(flags & NO_PAYLOAD));
        if (checkpoint && !(flags & STORED_ONLY))
            read_view(checkpoint, !(flags & NO_PAYLOAD));
        if (checkpoint)
            leave_out(checkpoint->source);
        checkpoint_close(checkpoint);
    }
    store_free(store);
    packed_release(&packed);
    return 0;
}
