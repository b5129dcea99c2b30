/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/side_files.h"

#include <string.h>

reshard_status side_files_add(struct source *source, const char *directory, const char *prefix, side_file_test is_wanted,
                              const void *context, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0, size = strlen(directory) + (directory[0] != '\0'), skip = size - strlen(prefix);
    reshard_status status = store_list(source->store, directory, &arena, &entries, &count, err);
    for (size_t i = 0; !status && i < count; i++) {
        const struct store_entry *entry = &entries[i];
        struct str base = str_base_name(entry->name);
        if (entry->is_directory || entry->leads_out || (is_wanted && !is_wanted(context, entry, base)))
            continue;
        status = catalog_add_file(source->catalog, (struct str){ entry->name.data + skip, entry->name.size - skip }, entry->name,
                                  entry->bytes, err);
    }
    arena_release(&arena);
    return status;
}

bool side_file_is_of_training(struct str base)
{
    static const char *const globs[] = { "optimizer*.pt", "optimizer*.bin", "scheduler*.pt", "scheduler*.bin", "scaler*.pt",
                                         "rng_state*.pth", "random_states*.pkl", "sampler*.bin", "dl_state_dict*.bin",
                                         "custom_checkpoint_*.pkl", "training_args.bin" };
    bool found = false;
    for (size_t i = 0; i < sizeof(globs) / sizeof(globs[0]) && !found; i++)
        found = str_matches_glob(base, str_of(globs[i]));
    return found;
}
