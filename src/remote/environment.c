/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/environment.h"

#include "store/store.h"

#include <stdlib.h>
#include <string.h>

const char *environment_text(const char *variable)
{
    const char *value = variable ? getenv(variable) : NULL;
    return value && *value ? value : NULL;
}

reshard_status environment_server(const char *variable, const char *text, struct str *out, reshard_error *err)
{
    char shown[STORE_SHOWN_MAX];
    *out = str_without_slashes(str_of(text));
    const size_t scheme = str_starts_with(*out, "https://") ? 8 : str_starts_with(*out, "http://") ? 7 : 0;
    if (scheme && out->size > scheme && !strchr("/?#", out->data[scheme]))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE, "the environment's %s is '%s', which is no URL of a server", variable,
                     store_path_shown(text, shown));
}
