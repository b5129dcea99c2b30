/* SPDX-License-Identifier: Apache-2.0 */
/* The auction among drivers: each says how sure it is, the surest gets the checkpoint. */
#ifndef FORMATS_SOURCE_PROBE_H
#define FORMATS_SOURCE_PROBE_H

#include "formats/driver.h"

/* The surest driver for store's name, or NULL if no driver knows it. */
const struct format_driver *driver_recognise(struct store *store, const char *name);

/* Whether name is a directory ("" always is). */
bool store_is_directory(struct store *store, const char *name);

/* The error for what no driver knows: says what was seen, and which formats there are. */
reshard_status driver_not_recognised(struct store *store, const char *name, reshard_error *err);

/* The error for a format name that no driver has. */
reshard_status driver_name_unknown(const char *format, reshard_error *err);

#endif
