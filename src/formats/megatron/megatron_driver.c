/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/megatron/megatron.h"
#include "formats/megatron/megatron_target.h"
#include "formats/megatron/optimizer_source.h"
#include "formats/shared/parallel_words.h"

#include <stdlib.h>

/* ---- recognising ---- */

static bool is_rank_file_name(const char *name)
{
    struct str base = str_base_name(str_of(name));
    return str_is(base, MEGATRON_MODEL_FILE) || str_is(base, MEGATRON_OPTIMIZER_FILE) || str_is(base, MEGATRON_OLD_MODEL_FILE);
}

static bool is_torch_file(struct store *store, const char *name, reshard_error *err)
{
    struct store_object *object = NULL;
    if (store_open_object(store, name, &object, err))
        return false;
    struct reader reader = store_object_reader(object);
    enum torch_container container;
    bool is_torch = !torch_save_probe(&reader, &container, err) && container != TORCH_NO_CONTAINER;
    store_object_close(object);
    return is_torch;
}

static bool has_rank_folder(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    bool found = false;
    if (!store_list(store, name, &arena, &entries, &count, err)) {
        for (size_t i = 0; i < count && !found; i++) {
            struct rank_folder folder;
            found = entries[i].is_directory && rank_folder_parse(str_base_name(entries[i].name), &folder);
        }
    }
    arena_release(&arena);
    return found;
}

static int megatron_probe(struct store *store, const char *name, reshard_error *err)
{
    if (store_is_directory(store, name))
        return has_rank_folder(store, name, err) ? 80 : 0;
    return is_rank_file_name(name) && is_torch_file(store, name, err) ? 95 : 0;
}

/* ---- reading ---- */

/* One rank's own tensors; random number states are a value, as they are to whoever resumes. */
static reshard_status read_rank_file(struct source *source, reshard_error *err)
{
    static const char *const closed[] = { "rng_state", NULL };
    struct megatron_source *state = megatron_source_of(source);
    uint32_t file;
    state->is_rank_file = true;
    state->torch.closed_members = closed;
    reshard_status status = torch_source_open_file(source, source->name, -1, &file, err);
    if (!status)
        status = torch_source_add_file(source, file, NULL, NULL, err);
    if (!status)
        status = torch_source_add_facts(source, file, err);
    if (!status)
        status = catalog_add_fact(source->catalog, "one rank's file", err,
                                  "the tensors are this rank's parts; the folder above holds the whole model");
    return status;
}

static reshard_status read_folder(struct source *source, reshard_error *err)
{
    struct megatron_items *items = NULL;
    reshard_status status = megatron_open_ranks(source, err);
    if (!status)
        status = megatron_items_new(source, &items, err);
    if (!status)
        status = megatron_collect_leaves(source, items, err);
    if (!status)
        status = megatron_merge(source, err);
    if (!status)
        status = megatron_items_end(items, err);
    if (!status)
        status = megatron_add_facts(source, err);
    megatron_items_free(items);
    return status;
}

reshard_status megatron_read_catalog(struct source *source, reshard_error *err)
{
    source->driver_state = calloc(1, sizeof(struct megatron_source));
    if (!source->driver_state)
        return error_set_memory(err);
    if (store_is_directory(source->store, source->name))
        return read_folder(source, err);
    return read_rank_file(source, err);
}

static void megatron_close_source(struct source *source)
{
    struct megatron_source *state = source->driver_state;
    if (source->stored)
        megatron_close_view(source);
    if (source->stored || !state)
        return;
    arena_release(&state->arena);
    free(state->leaves);
    free(state->parameters);
    torch_source_close(source);
}

static const struct format_option options[] = {
    { "padded-vocab", "N", "as Megatron pads",
      "rows of the embedding and of the output layer, padding included, as the run that is to load the files has them" },
    { NULL, NULL, NULL, NULL },
};

static const char *const folder_entries[] = { "mp_rank_*/", "release/", "latest_checkpointed_iteration.txt", NULL };

const struct format_driver format_megatron = {
    .name = "megatron",
    .name_space = "megatron",
    .summary = "legacy Megatron-LM folders mp_rank_XX, a torch.save file a rank",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS |
                 FORMAT_STATE_BY_PARAMETER | FORMAT_ITEMS_NAME_TENSORS | FORMAT_IS_WHOLE,
    .options = options,
    .words = parallel_words,
    .folder_entries = folder_entries,
    .probe = megatron_probe,
    .read_catalog = megatron_read_catalog,
    .view_by_parameter = megatron_view_by_parameter,
    .each_stored_name = megatron_each_stored_name,
    .verify = torch_source_verify,
    .lay_out = megatron_lay_out,
    .publish_object = megatron_publish_object,
    .commit = megatron_commit,
    .close_source = megatron_close_source,
    .close_target = megatron_close_target,
};
