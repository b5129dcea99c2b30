/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/paddle.h"
#include "formats/paddle/params.h"
#include "formats/paddle/params_forms.h"
#include "formats/paddle/params_target.h"

#include <inttypes.h>
#include <stdlib.h>

#define PROBE_BYTES 4096

bool params_is_name(struct str name)
{
    static const char *const globs[] = { "*.pdparams", "*.pdopt", "*.pdtensor", "*.pdstates", "*.pdema" };
    for (size_t i = 0; i < sizeof(globs) / sizeof(globs[0]); i++)
        if (str_matches_glob(name, str_of(globs[i])))
            return true;
    return false;
}

/* Whether the first bytes of a file, of which *size are read, may be those of a file of paddle.save. */
static bool params_driver_probe_head(struct store *store, const char *name, uint8_t head[PROBE_BYTES], size_t *size, reshard_error *err)
{
    struct store_object *object = NULL;
    if (store_open_object(store, name, &object, err))
        return false;
    struct reader reader = store_object_reader(object);
    *size = reader.size < PROBE_BYTES ? (size_t)reader.size : PROBE_BYTES;
    bool is_read = !*size || !reader_read(&reader, 0, head, *size, err);
    store_object_close(object);
    return is_read && paddle_save_probe(head, *size);
}

bool params_is_taken(struct store *store, const struct store_entry *entry, bool *is_left_out)
{
    uint8_t head[PROBE_BYTES];
    size_t size = 0;
    bool is_model = !entry->is_directory && str_ends_with(entry->name, ".pdmodel");
    bool is_good = is_model && !entry->leads_out && params_driver_probe_head(store, entry->name.data, head, &size, NULL);
    *is_left_out = is_model && !is_good;
    return is_good || (!entry->is_directory && params_is_name(str_base_name(entry->name)));
}

void params_warn_left_out(struct source *source, struct str name)
{
    catalog_warn(source->catalog, false, "'%.*s' is left out: it is no file of paddle.save, but a program for inference, as its name says",
                 STR_ARG(name));
}

/* Any pickle may begin so; with another name a file has to show an array, or the table of names. */
static bool shows_arrays(const uint8_t *head, size_t size)
{
    static const char *const words[] = { "numpy.core.", "numpy._core.", PADDLE_NAME_TABLE };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (memmem(head, size, words[i], strlen(words[i])))
            return true;
    return false;
}

static int probe_file(struct store *store, const char *name, reshard_error *err)
{
    uint8_t head[PROBE_BYTES];
    size_t size = 0;
    bool is_good = params_driver_probe_head(store, name, head, &size, err);
    if (params_is_name(str_of(name)))
        return is_good ? 85 : 50;
    return is_good && shows_arrays(head, size) ? 40 : 0;
}

static int params_driver_probe(struct store *store, const char *name, reshard_error *err)
{
    enum params_folder_kind kind;
    if (!store_is_directory(store, name))
        return probe_file(store, name, err);
    if (params_look_at_folder(store, name, &kind, err))
        return 0;
    return kind == PARAMS_FOLDER_OF_RANKS ? 70 : kind == PARAMS_FOLDER_OF_FILES ? 45 : 0;
}

/* Numbers of the archive's tensors become those of the catalog's. */
static bool params_driver_number(const struct value *value, void *context)
{
    const struct params_file *file = context;
    struct value *node = (struct value *)(uintptr_t)value; /* the graph is the catalog's own */
    node->tensor = node->tensor ? file->listed[node->tensor - 1] : 0;
    return true;
}

static reshard_status params_driver_number_all(struct source *source, uint32_t index, reshard_error *err)
{
    struct params_file *file = &params_source_of(source)->files[index];
    return value_walk(file->graph->root, file->graph->count, source->limits.budget, params_driver_number, file, NULL)
               ? RESHARD_OK
               : work_error(source->limits.budget, err);
}

/* All that is in a file of a folder, under the file's name. */
static reshard_status params_driver_read_one(struct source *source, const char *name, const char *prefix, struct params_forms *forms,
                                             reshard_error *err)
{
    uint32_t file;
    reshard_status status = params_open_file(source, name, &file, err);
    if (!status)
        status = params_add_file(source, file, prefix, err);
    if (status || !params_source_of(source)->files[file].graph)
        return status;
    status = params_driver_number_all(source, file, err);
    return status ? status : params_forms_add(forms, source, file, str_of(prefix), params_source_of(source)->files[file].graph->root, err);
}

static reshard_status params_driver_read_files(struct source *source, reshard_error *err)
{
    struct arena arena = { 0 };
    struct params_forms forms = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    reshard_status status = store_list(source->store, source->name, &arena, &entries, &count, err);
    for (size_t i = 0; i < count && !status; i++) {
        bool is_left_out;
        if (params_is_taken(source->store, &entries[i], &is_left_out))
            status = params_driver_read_one(source, entries[i].name.data, str_base_name(entries[i].name).data, &forms, err);
        else if (is_left_out)
            params_warn_left_out(source, entries[i].name);
    }
    if (!status)
        status = params_forms_keep(&forms, source, err);
    params_forms_release(&forms);
    arena_release(&arena);
    return status;
}

static reshard_status params_driver_read_single(struct source *source, reshard_error *err)
{
    uint32_t index;
    reshard_status status = params_open_file(source, source->name, &index, err);
    if (!status)
        status = params_add_file(source, index, NULL, err);
    if (status)
        return status;
    struct params_file *file = &params_source_of(source)->files[index];
    if (!file->graph)
        return RESHARD_OK;
    status = params_driver_number_all(source, index, err);
    if (status)
        return status;
    source->catalog->tree_graph = file->graph;
    source->catalog->tree = file->graph->root;
    return RESHARD_OK;
}

static reshard_status params_driver_read(struct source *source, reshard_error *err)
{
    bool is_family = false;
    reshard_status status = RESHARD_OK;
    source->driver_state = calloc(1, sizeof(struct params_source));
    if (!source->driver_state)
        return error_set_memory(err);
    if (!store_is_directory(source->store, source->name))
        status = params_driver_read_single(source, err);
    else
        status = params_read_family(source, &is_family, err);
    if (!status && !is_family && store_is_directory(source->store, source->name))
        status = params_driver_read_files(source, err);
    return status ? status : params_add_facts(source, err);
}

static const struct format_option params_options[] = {
    { "protocol", "4|5", "4", "of the pickle: 4 is for every Paddle since 2.1.1, 5 for 3.4 and later" },
    { NULL, NULL, NULL, NULL },
};

static const char *const params_endings[] = { ".pdparams", ".pdopt", NULL };

const struct format_driver format_paddle = {
    .name = "paddle",
    .summary = "files of paddle.save: .pdparams, .pdopt, single tensors, and the folders of them that ranks write",
    .name_space = "paddle",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_HOLDS_ITEMS | FORMAT_PADDLE_STATE,
    .options = params_options,
    .file_endings = params_endings,
    .probe = params_driver_probe,
    .read_catalog = params_driver_read,
    .verify = params_verify,
    .lay_out = params_lay_out,
    .publish_object = params_publish_object,
    .close_source = params_close_source,
    .close_target = params_close_target,
};
