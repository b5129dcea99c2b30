/* SPDX-License-Identifier: Apache-2.0 */
/* Formats that people have and that no driver reads: what they are told by, and what leads on from there. */
#ifndef FORMATS_OTHER_FORMATS_H
#define FORMATS_OTHER_FORMATS_H

#include "store/store.h"

struct other_format {
    const char *name, *next_step;
};

/* By the names in a folder; NULL: none that is known. */
const struct other_format *other_format_of_entries(const struct store_entry *entries, size_t count);

/* By a file's name and first bytes. */
const struct other_format *other_format_of_file(const char *name, const uint8_t *first, size_t size);

/* Tells in hints which checkpoints lie one and two levels below a folder that is none. Damage there is left for whoever opens them. */
reshard_status hint_checkpoints_below(struct store *store, const struct store_entry *entries, size_t count, reshard_error *err);

#endif
