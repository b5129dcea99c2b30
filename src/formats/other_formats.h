/* SPDX-License-Identifier: Apache-2.0 */
/* Formats that people have and that no driver reads: what they are told by, and what leads on from there. */
#ifndef FORMATS_OTHER_FORMATS_H
#define FORMATS_OTHER_FORMATS_H

#include "formats/driver.h"

struct other_format {
    const char *name, *next_step;
};

/* By the names in a folder; NULL: none that is known. */
const struct other_format *other_format_of_entries(const struct store_entry *entries, size_t count);

/* By a file's name and first bytes. */
const struct other_format *other_format_of_file(const char *name, const uint8_t *first, size_t size);

/* The format of the folder that a file lies in, which may be a part of it; *out NULL: it is none that is known. */
reshard_status format_of_folder(struct store *store, const char *name, const struct format_driver **out, reshard_error *err);

/* Tells in a hint to open the folder that a file lies in. */
void hint_folder(struct store *store, const char *name, const struct format_driver *driver, reshard_error *err);

/* Tells in hints which checkpoints lie one and two levels below a folder that is none. Damage there is left for whoever opens them. */
reshard_status hint_checkpoints_below(struct store *store, const struct store_entry *entries, size_t count, reshard_error *err);

#endif
