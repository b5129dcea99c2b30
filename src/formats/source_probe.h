/* SPDX-License-Identifier: Apache-2.0 */
/* The auction among drivers: each says how sure it is, the surest gets the checkpoint. */
#ifndef FORMATS_SOURCE_PROBE_H
#define FORMATS_SOURCE_PROBE_H

#include "formats/driver.h"

/* How sure the driver is, see probe in driver.h. Fails where that could not be found out. */
reshard_status driver_score(const struct format_driver *driver, struct store *store, const char *name, int *score, reshard_error *err);

/* *out is the surest driver for store's name, or NULL if no driver knows it. */
reshard_status driver_recognise(struct store *store, const char *name, const struct format_driver **out, reshard_error *err);

/* The error for what no driver knows: says what was seen, and which formats there are. */
reshard_status driver_not_recognised(struct store *store, const char *name, reshard_error *err);

/* The error for a format name that no driver has. */
reshard_status driver_name_unknown(const char *format, reshard_error *err);

#endif
