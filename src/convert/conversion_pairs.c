/* SPDX-License-Identifier: Apache-2.0 */
/* F4 where the target has it in pairs: the source is seen so, and that is told. */
#include "convert/conversion.h"

reshard_status conversion_pair(struct conversion *conversion, struct checkpoint **checkpoint, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = conversion_driver(conversion, &driver, err);
    if (status || !(driver->abilities & FORMAT_PAIRS_F4))
        return status;
    return checkpoint_pair(*checkpoint, checkpoint, err);
}

reshard_status conversion_note_pairs(struct conversion *conversion, reshard_error *err)
{
    const struct source *stored = conversion->source->source->stored;
    const struct catalog *wanted = conversion->selection.wanted, *source = conversion->source->source->catalog;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; stored && i < wanted->tensor_count && !status; i++) {
        uint32_t from = conversion->selection.wanted_source[i];
        if (from == CATALOG_NONE || source->tensors[from].dtype != DTYPE_F4_X2)
            continue;
        from = catalog_find(stored->catalog, source->tensors[from].key);
        if (from != CATALOG_NONE && stored->catalog->tensors[from].dtype == DTYPE_F4)
            status = target_note_changed(&conversion->target, NOTE_DTYPE, wanted->tensors[i].key, err,
                                         "F4 becomes %s, its last dimension half as long", dtype_info(DTYPE_F4_X2)->name);
    }
    return status;
}
