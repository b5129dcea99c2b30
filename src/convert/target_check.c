/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/target_check.h"

#include "base/array.h"
#include "convert/sidecar.h"
#include "formats/shared/side_files.h"
#include "formats/source_probe.h"
#include "formats/source_root.h"
#include "store/store_calls.h"
#include "store/store_target.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FOREIGN_SHOWN 3

static reshard_status refuse(reshard_error *err, const char *hint, const char *what, const char *target)
{
    error_set(err, RESHARD_ERR_USAGE, "'%s' %s", target, what);
    error_hint(err, "%s", hint);
    return RESHARD_ERR_USAGE;
}

/* ---- the source ---- */

/* Whether the path that was opened is one file that stands for others: an index, or a folder's metadata. */
static bool stands_for_folder(const struct source *source)
{
    if (!store_is_file(source->store, source->name))
        return false;
    for (uint32_t i = 0; i < source->catalog->object_count; i++) {
        if (!str_is(source->catalog->objects[i].name, source->name))
            return true;
    }
    return false;
}

/* What lies beside an index or the like and exists belongs to the source, whether or not this conversion reads it. */
static bool is_of_its_folder(const struct source *source, const struct store_target *target)
{
    struct buffer folder = { 0 };
    buffer_append_text(&folder, store_path(source->store));
    buffer_append_byte(&folder, '/');
    buffer_append_str(&folder, str_without_slashes(str_folder(str_of(source->name))));
    buffer_append_byte(&folder, '\0');
    bool is_within = folder.failed || store_target_relation(target, (const char *)folder.data) != TARGET_BESIDE;
    buffer_release(&folder);
    return is_within;
}

/* An object may lie anywhere if links lead there. */
static reshard_status target_check_objects(const struct source *source, const struct store_target *target, const char *shown,
                                           reshard_error *err)
{
    struct buffer path = { 0 };
    bool is_hit = false;
    for (uint32_t i = 0; i < source->catalog->object_count && !is_hit && !path.failed; i++) {
        struct str name = source->catalog->objects[i].name;
        buffer_clear(&path);
        buffer_append_text(&path, store_path(source->store));
        buffer_append_byte(&path, '/');
        buffer_append_str(&path, name);
        if (!buffer_append_byte(&path, '\0'))
            continue;
        if (target->kind == TARGET_DIRECTORY && store_follows_links(source->store))
            is_hit = store_target_relation(target, (const char *)path.data) != TARGET_BESIDE;
        else
            is_hit = store_target_is(target, (const char *)path.data);
    }
    bool failed = path.failed;
    buffer_release(&path);
    if (failed)
        return error_set_memory(err);
    return is_hit ? refuse(err, "write it beside the source, and rename it then", "is or holds a file of the source", shown) : RESHARD_OK;
}

static reshard_status check_relation(const struct checkpoint *source, const struct store_target *target, const char *shown,
                                     reshard_error *err)
{
    switch (store_target_relation(target, source->path)) {
    case TARGET_IS:
        return refuse(err, "write it beside the source, and rename it then", "is the source itself", shown);
    case TARGET_WITHIN:
        error_set(err, RESHARD_ERR_USAGE, "'%s' lies in the source '%s'", shown, source->path);
        error_hint(err, "choose a target outside of the source");
        return RESHARD_ERR_USAGE;
    case TARGET_AROUND:
        error_set(err, RESHARD_ERR_USAGE, "'%s' holds the source '%s'", shown, source->path);
        error_hint(err, "choose a target outside of it");
        return RESHARD_ERR_USAGE;
    case TARGET_BESIDE:
        break;
    }
    if (!target->is_known)
        return RESHARD_OK; /* nothing is there that could be the source's */
    if (stands_for_folder(source->source) && is_of_its_folder(source->source, target))
        return refuse(err, "write it outside of the source's folder", "is or holds a file of the source", shown);
    return target_check_objects(source->source, target, shown, err);
}

reshard_status target_check_source(const struct checkpoint *source, const char *target_path, bool overwrite, reshard_error *err)
{
    struct store_target target;
    if (!target_path || !target_path[0])
        return error_set(err, RESHARD_ERR_USAGE, "the target has no name");
    reshard_status status = store_target_look(target_path, &target, err);
    if (status)
        return status;
    status = check_relation(source, &target, target_path, err);
    if (!status && target.kind != TARGET_ABSENT && !overwrite)
        status = store_error_exists(target_path, err);
    store_target_release(&target);
    return status;
}

/* ---- what may be replaced ---- */

/* What people and programs put beside weights, whatever the format. */
static const char *const side_files[] = {
    "config.json",
    "*_config.json",
    "params.json",
    "model_index.json",
    "tokenizer*",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "spiece.model",
    "sentencepiece*.model",
    "*.tiktoken",
    "README.md",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY.md",
    ".gitattributes",
    "modeling_*.py",
    "configuration_*.py",
    "tokenization_*.py",
    "processing_*.py",
    "trainer_state.json",
    "zero_to_fp32.py",
    "latest",
    "latest_universal",
    "latest_*.txt",
    "progress.txt",
    SIDECAR_NAME,
    "*." SIDECAR_NAME,
    NULL,
};

/* What lies in a folder that is to be replaced. */
struct census {
    const char *path; /* NULL: what store lists is all that there is */
    struct arena arena;
    const struct format_driver *driver; /* of the folder itself; NULL: it is a root of iterations */
    struct store *store;
    struct name_map known;       /* names that need no look, and the folders that lead there */
    struct name_map folders;     /* to be looked into, "" first */
    uint32_t iterations, foreign_count;
    const char *foreign[FOREIGN_SHOWN];
};

/* A glob that ends with '/' is for folders. */
static bool target_check_is_listed(const char *const *globs, struct str name, bool is_directory)
{
    for (; globs && *globs; globs++) {
        struct str glob = str_of(*globs);
        bool for_folders = str_ends_with(glob, "/");
        glob.size -= for_folders;
        if (for_folders == is_directory && str_matches_glob(name, glob))
            return true;
    }
    return false;
}

static bool is_of_a_format(struct str name, bool is_directory)
{
    const struct format_driver *driver;
    bool found = target_check_is_listed(side_files, name, is_directory) || (!is_directory && side_file_is_of_training(name));
    for (int i = 0; !found && (driver = format_driver_at(i)); i++)
        found = target_check_is_listed(driver->folder_entries, name, is_directory);
    return found;
}

static bool has_part_mark(const struct census *census, const char *name, const char *const *marks)
{
    struct buffer path = { 0 };
    bool found = false;
    for (; marks && *marks && !found; marks++) {
        buffer_clear(&path);
        buffer_printf(&path, "%s/%s", name, *marks);
        found = buffer_append_byte(&path, '\0') && store_is_file(census->store, (const char *)path.data);
    }
    buffer_release(&path);
    return found;
}

/* Of any format: what is replaced need not be of the one that replaces it. */
static bool is_marked_part(const struct census *census, const char *name)
{
    const struct format_driver *driver;
    bool found = false;
    for (int i = 0; !found && (driver = format_driver_at(i)); i++)
        found = has_part_mark(census, name, driver->part_marks);
    return found;
}

static reshard_status count_entry(struct census *census, struct str folder, const struct target_entry *entry, reshard_error *err)
{
    const char *name = folder.size ? ARENA_JOIN(&census->arena, folder, STR("/"), str_of(entry->name)).data : entry->name;
    if (!name)
        return error_set_memory(err);
    bool is_iteration = entry->is_directory && root_is_iteration(str_of(entry->name)), is_of_root = !census->driver && !folder.size;
    bool may_be_bare = census->driver && census->driver->abilities & FORMAT_HAS_BARE_FOLDERS;
    census->iterations += is_iteration && is_of_root;
    if (is_iteration && (is_of_root || str_starts_with(str_of(entry->name), "global_step")))
        return name_map_intern(&census->folders, str_of(name), NULL) == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
    if (name_map_find(&census->known, str_of(name)) != NAME_NONE || is_of_a_format(str_of(entry->name), entry->is_directory))
        return RESHARD_OK;
    if (entry->is_directory && is_marked_part(census, name))
        return RESHARD_OK;
    if (entry->is_directory && may_be_bare)
        return name_map_intern(&census->folders, str_of(name), NULL) == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
    if (census->foreign_count < FOREIGN_SHOWN)
        census->foreign[census->foreign_count] = name;
    census->foreign_count++;
    return RESHARD_OK;
}

/* In a store of the caller's. */
static reshard_status count_listed(struct census *census, struct str folder, reshard_error *err)
{
    struct store_entry *entries;
    size_t count = 0;
    const char *name = arena_copy(&census->arena, folder.data, folder.size);
    reshard_status status = name ? store_list(census->store, name, &census->arena, &entries, &count, err) : error_set_memory(err);
    for (size_t i = 0; i < count && !status; i++) {
        const size_t skipped = folder.size ? folder.size + 1 : 0;
        const struct target_entry entry = { entries[i].name.data + skipped, entries[i].is_directory };
        status = count_entry(census, folder, &entry, err);
    }
    return status;
}

static reshard_status count_folder(struct census *census, struct str folder, reshard_error *err)
{
    struct target_entry *entries;
    size_t count;
    if (!census->path)
        return count_listed(census, folder, err);
    const char *path = ARENA_JOIN(&census->arena, str_of(census->path), STR("/"), folder).data;
    if (!path)
        return error_set_memory(err);
    reshard_status status = store_target_entries(path, &census->arena, &entries, &count, err);
    for (size_t i = 0; i < count && !status; i++)
        status = count_entry(census, folder, &entries[i], err);
    return status;
}

/* From the root on; folders that are found join the list. */
static reshard_status count_folders(struct census *census, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    census->iterations = census->foreign_count = 0;
    for (uint32_t i = 0; !status && i < census->folders.count; i++)
        status = count_folder(census, name_map_at(&census->folders, i), err);
    return status;
}

/* The name, and the folders that lead there. */
static bool note_known(struct census *census, struct str name)
{
    bool good = true;
    for (size_t end = 1; end <= name.size && good; end++) {
        if (end == name.size || name.data[end] == '/')
            good = name_map_intern(&census->known, (struct str){ name.data, end }, NULL) != NAME_NONE;
    }
    return good;
}

/* What is written anew is replaced by itself. */
static bool note_written(struct census *census, const struct catalog *target)
{
    bool good = true;
    for (uint32_t i = 0; i < target->object_count && good; i++)
        good = note_known(census, target->objects[i].name);
    return good;
}

/* Where the old checkpoint keeps its tensors and values, whatever those files are called; nothing if it cannot be read. */
static bool note_payload(struct census *census, const struct limits *limits)
{
    struct open_options options = { .limits = *limits, .iteration = -1, .borrow_store = true, .lenient = true };
    struct source *old = NULL;
    if (format_open(census->store, "", &options, &old, NULL))
        return true;
    bool *is_beside = array_zeroed(old->catalog->object_count, sizeof(*is_beside)), good = is_beside != NULL;
    for (uint32_t i = 0; good && i < old->catalog->item_count; i++)
        if (old->catalog->items[i].kind == ITEM_FILE)
            is_beside[old->catalog->items[i].object] = true;
    for (uint32_t i = 0; good && i < old->catalog->object_count; i++)
        good = is_beside[i] || note_known(census, old->catalog->objects[i].name);
    free(is_beside);
    source_free(old);
    return good;
}

static reshard_status refuse_foreign(const struct census *census, const char *shown, reshard_error *err)
{
    struct buffer names = { 0 };
    for (uint32_t i = 0; i < census->foreign_count && i < FOREIGN_SHOWN; i++)
        buffer_printf(&names, "%s'%s'", i ? ", " : "", census->foreign[i]);
    if (census->foreign_count > FOREIGN_SHOWN)
        buffer_printf(&names, " and %u more", (unsigned)(census->foreign_count - FOREIGN_SHOWN));
    buffer_append_byte(&names, '\0');
    error_set(err, RESHARD_ERR_USAGE, "'%s' holds more than a checkpoint: %s", shown, names.failed ? "" : (const char *)names.data);
    error_hint(err, "move that away, or choose another target; what reshard_convert_options.overwrite replaces is gone");
    buffer_release(&names);
    return RESHARD_ERR_USAGE;
}

/* Whether the folder is a checkpoint, or a root that holds one. */
static reshard_status recognise_folder(struct census *census, const char *shown, reshard_error *err)
{
    struct root_choice choice = { 0 };
    const struct format_driver *inside = NULL;
    reshard_error seen = { 0 };
    reshard_status status = driver_recognise(census->store, "", &census->driver, err);
    if (status || census->driver)
        return status;
    status = root_choose(census->store, "", -1, &census->arena, &choice, &seen);
    if (!store_status_is_answer(status, &seen)) {
        if (err)
            *err = seen;
        return status;
    }
    if (!status && choice.name) {
        status = driver_recognise(census->store, choice.name, &inside, err);
        if (status || inside)
            return status;
    }
    return refuse(
        err, "remove it yourself, or choose another target: reshard_convert_options.overwrite replaces checkpoints and empty folders only",
        "is no checkpoint", shown);
}

/* Of the store's root. Releases the census. */
static reshard_status census_take(struct census *census, const struct conversion *conversion, const char *shown, reshard_error *err)
{
    reshard_status status = recognise_folder(census, shown, err);
    if (!status && (!note_written(census, conversion->target.catalog) || name_map_intern(&census->folders, STR(""), NULL) == NAME_NONE))
        status = error_set_memory(err);
    if (!status)
        status = count_folders(census, err);
    if (!status && census->foreign_count)
        status = note_payload(census, &conversion->source->source->limits) ? count_folders(census, err) : error_set_memory(err);
    if (!status && census->iterations > 1) {
        error_set(err, RESHARD_ERR_USAGE, "'%s' holds %u checkpoints", shown, (unsigned)census->iterations);
        error_hint(err, "name the one that is to be replaced, or choose another target");
        status = RESHARD_ERR_USAGE;
    }
    if (!status && census->foreign_count)
        status = refuse_foreign(census, shown, err);
    name_map_release(&census->known);
    name_map_release(&census->folders);
    return status;
}

/* Without a conversion: whether it is a checkpoint at all. */
static reshard_status check_folder(const struct conversion *conversion, const struct store_target *target, const char *shown,
                                   reshard_error *err)
{
    struct census census = { .path = target->path };
    struct target_entry *entries;
    size_t count;
    reshard_status status = store_target_entries(target->path, &census.arena, &entries, &count, err);
    if (!status && count) {
        status = store_open_path(target->path, 0, &census.store, NULL, err);
        if (!status)
            status = conversion ? census_take(&census, conversion, shown, err) : recognise_folder(&census, shown, err);
    }
    store_free(census.store);
    arena_release(&census.arena);
    return status;
}

static reshard_status target_check_file(struct store *store, const char *name, const char *shown, reshard_error *err)
{
    const struct format_driver *driver = NULL;
    reshard_status status = driver_recognise(store, name, &driver, err);
    if (!status && !driver)
        status = refuse(
            err, "remove it yourself, or choose another target: reshard_convert_options.overwrite replaces files of known formats only",
            "is no checkpoint", shown);
    return status;
}

static reshard_status check_file(const struct store_target *target, const char *shown, reshard_error *err)
{
    struct store *store = NULL;
    char *name = NULL;
    if (target->bytes == 0)
        return RESHARD_OK;
    reshard_status status = store_open_path(target->path, 0, &store, &name, err);
    if (!status)
        status = target_check_file(store, name, shown, err);
    store_free(store);
    free(name);
    return status;
}

/* Whether one of the names is the other, or lies in it. */
static bool names_meet(const char *a, const char *b)
{
    const size_t sizes[2] = { strlen(a), strlen(b) }, least = sizes[0] < sizes[1] ? sizes[0] : sizes[1];
    const char *longer = sizes[0] < sizes[1] ? b : a;
    return memcmp(a, b, least) == 0 && (sizes[0] == sizes[1] || longer[least] == '/');
}

/* In a store of the caller's. What is there and may not be replaced at all is said where the target begins. */
static reshard_status check_stored(const struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    struct census census = { .path = NULL };
    reshard_error seen = RESHARD_ERROR_INIT;
    char *name = NULL;
    if (store_calls_are_of(conversion->source->source->store, options->store) && names_meet(conversion->source->path, target_path))
        return refuse(err, "choose a target outside of the source", "is, holds or lies in the source", target_path);
    if (!options->overwrite)
        return RESHARD_OK;
    reshard_status status = store_open_calls(options->store, target_path, &census.store, &name, &seen);
    if (status == RESHARD_ERR_IO && seen.sys_errno == ENOENT)
        return RESHARD_OK;
    if (status && err)
        *err = seen;
    if (!status)
        status = name[0] ? target_check_file(census.store, name, target_path, err) : census_take(&census, conversion, target_path, err);
    store_free(census.store);
    free(name);
    arena_release(&census.arena);
    return status;
}

static reshard_status check_path(const struct conversion *conversion, const char *target_path, reshard_error *err)
{
    struct store_target target;
    reshard_status status = store_target_look(target_path, &target, err);
    if (status)
        return status;
    if (target.kind == TARGET_FILE)
        status = check_file(&target, target_path, err);
    else if (target.kind == TARGET_DIRECTORY)
        status = check_folder(conversion, &target, target_path, err);
    else if (target.kind == TARGET_LINK)
        status = refuse(err, "name what it leads to, or remove the link", "is a symbolic link", target_path);
    else if (target.kind == TARGET_SPECIAL)
        status = refuse(err, "choose another target", "is neither a file nor a folder", target_path);
    store_target_release(&target);
    return status;
}

reshard_status target_check_replaced(const struct conversion *conversion, const char *target_path, reshard_error *err)
{
    return conversion->options->store ? check_stored(conversion, target_path, err) : check_path(conversion, target_path, err);
}

reshard_status target_check_known(const char *target_path, reshard_error *err)
{
    return check_path(NULL, target_path, err);
}

/* ---- room ---- */

reshard_status target_check_space(const struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    const struct catalog *target = conversion->target.catalog;
    struct store_target place;
    uint64_t needed = 0, free_bytes = 0;
    if (options->store || options->no_space_check || options->resume || options->part_count)
        return RESHARD_OK;
    for (uint32_t i = 0; i < target->object_count; i++) {
        if (__builtin_add_overflow(needed, target->objects[i].bytes, &needed))
            needed = UINT64_MAX;
    }
    reshard_status status = store_target_look(target_path, &place, err);
    if (status)
        return status;
    /* A character device and the like holds nothing. */
    if (place.kind != TARGET_SPECIAL && store_target_free_bytes(&place, &free_bytes) && free_bytes < needed) {
        status = error_set(err, RESHARD_ERR_IO,
                           "not enough space for '%s': %.3f GB (%" PRIu64 " bytes) are to be written, %.3f GB are free", target_path,
                           (double)needed / 1e9, needed, (double)free_bytes / 1e9);
        error_hint(err, "make room, or write elsewhere; reshard_convert_options.no_space_check writes as far as it goes");
    }
    store_target_release(&place);
    return status;
}
