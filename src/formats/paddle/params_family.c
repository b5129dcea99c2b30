/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that the ranks of a training run wrote. */
#include "formats/paddle/params.h"

reshard_status params_look_at_folder(struct store *store, const char *name, enum params_folder_kind *out, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    reshard_status status = store_list(store, name, &arena, &entries, &count, err);
    *out = PARAMS_NO_FOLDER;
    for (size_t i = 0; i < count && !status; i++)
        if (!entries[i].is_directory && params_is_name(entries[i].name))
            *out = PARAMS_FOLDER_OF_FILES;
    arena_release(&arena);
    return status;
}

reshard_status params_read_family(struct source *source, bool *is_family, reshard_error *err)
{
    (void)source;
    (void)err;
    *is_family = false;
    return RESHARD_OK;
}
