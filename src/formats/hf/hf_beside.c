/* SPDX-License-Identifier: Apache-2.0 */
/* What lies beside a model's weights, in folders or from the run that trained it. */
#include "formats/hf/hf_read.h"

#include "formats/shared/side_files.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* sentence-transformers keeps each of a model's modules in a folder, N_Name, with weights of its own where it has some. */
static bool is_module(struct str base)
{
    size_t digits = 0;
    while (digits < base.size && is_digit(base.data[digits]))
        digits++;
    return digits && digits + 1 < base.size && base.data[digits] == '_';
}

static bool is_carried(struct str base)
{
    return str_is(base, "additional_chat_templates") || is_module(base);
}

/* global_step100 */
static bool is_deepspeed(struct str base)
{
    return str_starts_with(base, "global_step") && base.size > 11 && is_digit(base.data[11]);
}

/* What belongs to nobody: caches, logs. */
static bool is_of_no_model(struct str base)
{
    return base.data[0] == '.' || str_is(base, "__pycache__") || str_is(base, "runs") || str_is(base, "logs");
}

reshard_status hf_beside_add(const struct hf_read *read, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < read->folder.entry_count && !status; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        struct str base = str_base_name(entry->name);
        if (!entry->is_directory || entry->leads_out || !is_carried(base))
            continue;
        const char *prefix = ARENA_JOIN(&read->source->catalog->arena, base, STR("/")).data;
        status = prefix ? side_files_add(read->source, entry->name.data, prefix, NULL, NULL, err) : error_set_memory(err);
    }
    return status;
}

reshard_status hf_beside_left(const struct hf_read *read, struct hf_state *state, reshard_error *err)
{
    struct arena *arena = &read->source->catalog->arena;
    state->left = arena_array(arena, read->folder.entry_count + 1, sizeof(*state->left));
    if (!state->left)
        return error_set_memory(err);
    for (size_t i = 0; i < read->folder.entry_count; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        struct str base = str_base_name(entry->name);
        if (!entry->is_directory || is_of_no_model(base) || (is_carried(base) && !entry->leads_out))
            continue;
        if (!arena_str(arena, base, &state->left[state->left_count++]))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

void hf_beside_warn(const struct hf_read *read)
{
    struct str file = { 0 };
    size_t files = 0;
    for (size_t i = 0; i < read->folder.entry_count; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        struct str base = str_base_name(entry->name);
        if (entry->is_directory && is_deepspeed(base))
            catalog_warn(read->source->catalog, false, "'%.*s' is DeepSpeed's state of a run, which is not read with the weights: "
                         "reshard_open_options.format 'deepspeed' opens it", STR_ARG(base));
        if (entry->is_directory || !side_file_is_of_training(base))
            continue;
        file = files++ ? file : base;
    }
    if (files == 1)
        catalog_warn(read->source->catalog, false, "'%.*s' is the state of a training run, which is not read with the weights; it opens by "
                     "its own path", STR_ARG(file));
    else if (files)
        catalog_warn(read->source->catalog, false, "'%.*s' and %zu more files are the state of a training run, which is not read with the "
                     "weights; each opens by its own path", STR_ARG(file), files - 1);
}
