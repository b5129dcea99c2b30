/* SPDX-License-Identifier: Apache-2.0 */
#include "base/library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

reshard_status library_load(const struct library *library, reshard_error *err)
{
    errno = 0;
    void *handle = dlopen(library->file, RTLD_NOW | RTLD_LOCAL);
    if (!handle && errno == ENOMEM)
        return error_set_memory(err);
    bool is_whole = handle != NULL;
    for (size_t i = 0; i < library->symbols_count && is_whole; i++) {
        void *function = dlsym(handle, library->symbols[i].name);
        memcpy(library->symbols[i].function, &function, sizeof(function)); /* C converts no pointer to data to one to a function */
        is_whole = function != NULL;
    }
    if (is_whole)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "%s %s, which cannot be loaded: %s", library->needed, library->file, dlerror());
    error_hint(err, "%s", library->hint);
    return RESHARD_ERR_UNSUPPORTED;
}
