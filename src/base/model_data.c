/* SPDX-License-Identifier: Apache-2.0 */
#include "base/model_data.h"

/* Made by tools/embed_files.py from models/: the array model_files, sorted, and its length model_file_count. */
#include "models/model_files.h"

const struct model_data *model_data_at(uint32_t index)
{
    return index < model_file_count ? &model_files[index] : NULL;
}

const struct model_data *model_data_find(struct str name)
{
    for (uint32_t i = 0; i < model_file_count; i++) {
        if (str_is(name, model_files[i].name))
            return &model_files[i];
    }
    return NULL;
}
