/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says of servers and of who asks them, under the names that other programs use (docs/urls.md). */
#ifndef REMOTE_ENVIRONMENT_H
#define REMOTE_ENVIRONMENT_H

#include "base/error.h"
#include "base/str.h"

/* NULL if it is empty, or there is no name. */
const char *environment_text(const char *variable);

/* The text as the URL of a server, without '/' at its end; the error names the variable that has it. */
reshard_status environment_server(const char *variable, const char *text, struct str *out, reshard_error *err);

#endif
