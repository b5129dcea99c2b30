/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/other_formats.h"

#include "formats/source_probe.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOKED_AT_MAX 200 /* entries below a folder */
#define SHOWN_MAX 2       /* three hints are seen, and one more says how many there are */

enum other { TENSORFLOW, FLAX, KERAS, ONNX };

static const struct other_format others[] = {
    [TENSORFLOW] = { "TensorFlow", "tf.train.load_checkpoint gives its arrays; safetensors.numpy.save_file writes them" },
    [FLAX] = { "Flax (msgpack)", "transformers reads it (from_flax=True) and saves it as a folder that is read (save_pretrained)" },
    [KERAS] = { "HDF5", "h5py gives its arrays; safetensors.numpy.save_file writes them" },
    [ONNX] = { "ONNX", "the checkpoint that the model was exported from holds its weights" },
};

/* The first that fits counts. */
static const struct {
    const char *glob;
    enum other format;
} names[] = {
    { "saved_model.pb", TENSORFLOW },
    { "*.data-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]", TENSORFLOW },
    { "flax_model*.msgpack", FLAX },
    { "*.h5", KERAS },
    { "*.keras", KERAS },
    { "*.onnx", ONNX },
};

#define NAMES (sizeof(names) / sizeof(names[0]))

static bool any_entry_fits(const struct store_entry *entries, size_t count, const char *glob)
{
    for (size_t i = 0; i < count; i++) {
        if (fnmatch(glob, str_base_name(entries[i].name).data, 0) == 0)
            return true;
    }
    return false;
}

const struct other_format *other_format_of_entries(const struct store_entry *entries, size_t count)
{
    for (size_t i = 0; i < NAMES; i++) {
        if (any_entry_fits(entries, count, names[i].glob))
            return &others[names[i].format];
    }
    return NULL;
}

static const struct other_format *format_of_name(const char *name)
{
    for (size_t i = 0; i < NAMES; i++) {
        if (fnmatch(names[i].glob, name, 0) == 0)
            return &others[names[i].format];
    }
    return NULL;
}

const struct other_format *other_format_of_file(const char *name, const uint8_t *first, size_t size)
{
    static const struct {
        const char *bytes;
        enum other format;
    } starts[] = { { "\x89HDF", KERAS } };
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        if (size >= strlen(starts[i].bytes) && memcmp(first, starts[i].bytes, strlen(starts[i].bytes)) == 0)
            return &others[starts[i].format];
    }
    return format_of_name(str_base_name(str_of(name)).data);
}

/* ---- what lies below ---- */

struct below {
    struct store *store;
    size_t looked_at, found;
    const struct other_format *other; /* the first folder's that is of one; NULL: none */
    char other_name[200];
    reshard_error *err;
};

/* Files of other kinds cannot be opened by themselves, or are parts of what their folder is. */
static bool may_be_checkpoint(const struct store_entry *entry)
{
    static const char *const globs[] = { "*.ckpt", "*.pt", "*.pth", "*.bin", "*.safetensors", "*.pdparams", "*.npz" };
    for (size_t i = 0; !entry->is_directory && i < sizeof(globs) / sizeof(globs[0]); i++) {
        if (fnmatch(globs[i], entry->name.data, 0) == 0)
            return true;
    }
    return entry->is_directory;
}

static bool has_controls(const char *name)
{
    for (; *name; name++) {
        if ((unsigned char)*name < ' ' || *name == '\'')
            return true;
    }
    return false;
}

/* A path as a shell takes it. */
static bool path_is_plain(const char *path)
{
    return strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=+,:@%") == strlen(path);
}

/* name: below the store's folder; empty: that itself. */
static void hint_open(struct store *store, const char *name, const struct format_driver *driver, reshard_error *err)
{
    const char *path = store_path(store);
    size_t size = strlen(path);
    const char *quote = path_is_plain(path) && path_is_plain(name) ? "" : "'";
    if (!has_controls(path) && !has_controls(name))
        error_hint(err, "reshard_open() of %s%s%s%s%s   # %s", quote, path, !*name || (size && path[size - 1] == '/') ? "" : "/", name,
                   quote, driver->name);
}

static void hint_checkpoint(struct below *below, const char *name, const struct format_driver *driver)
{
    below->found++;
    if (below->found <= SHOWN_MAX)
        hint_open(below->store, name, driver, below->err);
}

static reshard_status look_below(struct below *below, const struct store_entry *entries, size_t count, int levels);

static reshard_status look_into(struct below *below, const char *directory, int levels)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    reshard_error ignored = { 0 };
    reshard_status status = store_list(below->store, directory, &arena, &entries, &count, &ignored);
    if (!status && !below->other && !has_controls(directory)) {
        below->other = other_format_of_entries(entries, count);
        if (below->other)
            snprintf(below->other_name, sizeof(below->other_name), "%s", directory);
    }
    if (!status && levels)
        status = look_below(below, entries, count, levels);
    arena_release(&arena);
    return status == RESHARD_ERR_MEMORY ? status : RESHARD_OK;
}

static reshard_status look_below(struct below *below, const struct store_entry *entries, size_t count, int levels)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < count && below->looked_at < LOOKED_AT_MAX && status != RESHARD_ERR_MEMORY; i++) {
        const struct format_driver *driver = NULL;
        reshard_error ignored = { 0 };
        if (!may_be_checkpoint(&entries[i]))
            continue;
        below->looked_at++;
        status = driver_recognise(below->store, entries[i].name.data, &driver, &ignored);
        if (!status && driver)
            hint_checkpoint(below, entries[i].name.data, driver);
        else if (!status && entries[i].is_directory && levels)
            status = look_into(below, entries[i].name.data, levels - 1);
    }
    return status == RESHARD_ERR_MEMORY ? status : RESHARD_OK;
}

reshard_status hint_checkpoints_below(struct store *store, const struct store_entry *entries, size_t count, reshard_error *err)
{
    struct below below = { .store = store, .err = err };
    reshard_status status = look_below(&below, entries, count, 2);
    if (!status && below.found > SHOWN_MAX)
        error_hint(err, "and %zu more below", below.found - SHOWN_MAX);
    if (!status && !below.found && below.other)
        error_hint(err, "'%s' is %s, which is not read yet: %s", below.other_name, below.other->name, below.other->next_step);
    return status;
}

/* ---- what a file is a part of ---- */

/* Without the '/'; NULL: no memory. */
static char *file_folder(const char *name)
{
    return str_copy(str_without_slashes(str_folder(str_of(name))));
}

reshard_status format_of_folder(struct store *store, const char *name, const struct format_driver **out, reshard_error *err)
{
    reshard_error ignored = { 0 };
    char *folder = file_folder(name);
    *out = NULL;
    if (!folder)
        return error_set_memory(err);
    reshard_status status = driver_recognise(store, folder, out, &ignored);
    free(folder);
    return status == RESHARD_ERR_MEMORY ? error_set_memory(err) : RESHARD_OK;
}

void hint_folder(struct store *store, const char *name, const struct format_driver *driver, reshard_error *err)
{
    char *folder = file_folder(name);
    if (folder)
        hint_open(store, folder, driver, err);
    free(folder);
}
