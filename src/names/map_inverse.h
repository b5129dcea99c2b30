/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the inverse of a mapping that ran, and proves it. */
#ifndef NAMES_MAP_INVERSE_H
#define NAMES_MAP_INVERSE_H

#include "names/map_session.h"

/* Appends the inverse as text and as JSON; context is ignored. RESHARD_ERR_USAGE if there is none: the session's diagnoses say which
 * statement is to blame. */
reshard_status map_inverse_write(struct map_session *session, void *context, struct buffer *text, struct buffer *json, reshard_error *err);

#endif
