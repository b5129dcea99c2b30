/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage.h"

#include "convert/key_filter.h"
#include "convert/salvage_look.h"
#include "convert/target_check.h"
#include "formats/source_probe.h"
#include "remote/remote.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A sibling's files that say where things lie; they hold no values. */
struct layout_files {
    const char *const *globs;
};

/* What is known of the checkpoint while it is looked through. */
struct salvaging {
    const struct salvage_options *options;
    const struct engine_options *engine;
    struct finding_sink *findings;
    struct checkpoint *checkpoint;
    struct remains stored, view; /* view: has no checkpoint where what is stored is written */
    struct key_filter filter;
    struct salvage_counts *counts;
    struct layout_files layout_files; /* of the sibling's format; the open store asks for them */
    bool has_sibling; /* names, shapes and places are its */
};

/* ---- opening ---- */

static bool is_layout_file(void *context, struct str name)
{
    const struct layout_files *files = context;
    struct str base = name;
    size_t slash;
    while (str_find_char(base, '/', &slash))
        base = (struct str){ base.data + slash + 1, base.size - slash - 1 };
    for (size_t i = 0; files->globs && files->globs[i]; i++)
        if (str_matches_glob(base, str_of(files->globs[i])))
            return true;
    return false;
}

/* Whether a file of the folder matches. */
static bool has_match(const struct store_entry *entries, size_t count, const char *glob)
{
    const char *const globs[] = { glob, NULL };
    struct layout_files one = { globs };
    bool has = false;
    for (size_t i = 0; i < count && !has; i++)
        has = is_layout_file(&one, entries[i].name);
    return has;
}

/* Whether the folder has such files itself: all that have one name, or one of those that have a pattern. */
static reshard_status has_layout_files(struct store *store, const char *name, const struct layout_files *files, bool *out,
                                       reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries = NULL;
    size_t count = 0;
    bool has_all = true, has_plain = false, has_pattern = false;
    reshard_status status = store_list(store, name, &arena, &entries, &count, err);
    for (size_t i = 0; files->globs[i] && !status; i++) {
        bool has = has_match(entries, count, files->globs[i]);
        if (strchr(files->globs[i], '*'))
            has_pattern = has_pattern || has;
        else
            has_all = has_all && has;
        has_plain = has_plain || !strchr(files->globs[i], '*');
    }
    arena_release(&arena);
    *out = (has_plain && has_all) || has_pattern;
    return status;
}

/* Of what remote_open_path says of a path. */
static bool names_file(const char *file_name)
{
    return file_name && file_name[0];
}

static reshard_status open_with_sibling(struct salvaging *salvaging, const char *path, const struct format_driver *driver,
                                        reshard_error *err)
{
    const struct salvage_options *options = salvaging->options;
    struct store *own = NULL, *sibling = NULL;
    char *own_file = NULL, *sibling_file = NULL, shown[STORE_SHOWN_MAX];
    salvaging->layout_files.globs = driver->layout_files;
    reshard_status status = remote_open_path(path, options->open.store_flags, &own, &own_file, err);
    if (!status)
        status = remote_open_path(options->like, options->open.store_flags, &sibling, &sibling_file, err);
    if (!status && (names_file(own_file) || names_file(sibling_file)))
        status = error_set(err, RESHARD_ERR_USAGE, "a sibling's layout is for folders, and this is a file");
    struct store *both = status ? NULL : store_new_overlay(own, sibling, is_layout_file, &salvaging->layout_files);
    if (!status && !both)
        status = error_set_memory(err);
    if (status) {
        store_free(own);
        store_free(sibling);
    } else {
        struct open_options open = options->open.open;
        open.is_salvage = true;
        open.format = driver->name;
        status = checkpoint_open_in(both, "", &open, store_path_shown(path, shown), &salvaging->checkpoint, err);
    }
    if (!status)
        finding_report(salvaging->findings, FINDING_WARNING, "sibling", (struct str){ 0 },
                       "names, shapes and places come from '%s': no checksum covers them", store_path_shown(options->like, shown));
    salvaging->has_sibling = !status;
    free(own_file);
    free(sibling_file);
    return status;
}

/* The sibling's driver, if it keeps files that only say where things lie. */
static reshard_status sibling_driver(const struct salvage_options *options, const struct format_driver **out, reshard_error *err)
{
    struct checkpoint *sibling;
    reshard_status status = checkpoint_open(options->like, &options->open, &sibling, err);
    if (status) {
        error_prefix(err, "sibling");
        return status;
    }
    *out = sibling->source->driver;
    checkpoint_close(sibling);
    if ((*out)->layout_files)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "a sibling of format '%s' has no files of its own that say where things lie",
                     (*out)->name);
}

/* Whether what is there is of a format that keeps names and places in files of their own, and they are gone: *needs. */
static reshard_status lacks_layout(const struct salvage_options *options, const char *path, bool *needs, reshard_error *err)
{
    struct store *store = NULL;
    char *file = NULL;
    const struct format_driver *driver = NULL;
    *needs = false;
    reshard_status status = remote_open_path(path, options->open.store_flags, &store, &file, err);
    if (!status && !names_file(file))
        status = driver_recognise(store, "", &driver, err);
    if (!status && driver && driver->layout_files) {
        struct layout_files files = { driver->layout_files };
        bool has = false;
        status = has_layout_files(store, "", &files, &has, err);
        *needs = !has;
    }
    store_free(store);
    free(file);
    return status;
}

static reshard_status open_damaged(struct salvaging *salvaging, const char *path, reshard_error *err)
{
    struct checkpoint_options open = salvaging->options->open;
    const struct format_driver *driver;
    reshard_error seen = { 0 };
    bool needs_layout = false;
    char shown[STORE_SHOWN_MAX];
    open.open.is_salvage = true;
    reshard_status status = salvaging->options->like ? lacks_layout(salvaging->options, path, &needs_layout, &seen) : RESHARD_OK;
    if (failure_ends_run(status, &seen, err))
        return status;
    /* A sibling knows more than what can be made of data files alone. */
    bool wants_sibling = !status && needs_layout;
    if (!wants_sibling) {
        status = checkpoint_open(path, &open, &salvaging->checkpoint, err);
        if (!status || status_ends_run(status))
            return status;
    }
    if (salvaging->options->like) {
        status = sibling_driver(salvaging->options, &driver, err);
        return status ? status : open_with_sibling(salvaging, path, driver, err);
    }
    reshard_status looked = lacks_layout(salvaging->options, path, &needs_layout, &seen);
    if (failure_ends_run(looked, &seen, err))
        return looked;
    if (looked || !needs_layout)
        return status;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': its data files hold neither names nor places of tensors, and the metadata is gone",
              store_path_shown(path, shown));
    error_hint(err, "reshard_salvage_options.like takes them from a checkpoint of the same run and layout");
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- what is told ---- */

/* What speaks against names and places; NULL: they are the checkpoint's own. */
static const char *foreign_places(const struct salvaging *salvaging)
{
    if (salvaging->has_sibling)
        return "its name and place are the sibling's";
    return salvaging->checkpoint->source->is_rebuilt ? "its shape and place are those of the only file that has it" : NULL;
}

/* What is written. */
static const struct remains *salvage_written(const struct salvaging *salvaging)
{
    return salvaging->view.checkpoint ? &salvaging->view : &salvaging->stored;
}

static void tell_items(struct salvaging *salvaging)
{
    const char *foreign = foreign_places(salvaging);
    const struct remains *written = salvage_written(salvaging);
    const struct catalog *catalog = written->checkpoint->source->catalog;
    struct salvage_counts *counts = salvaging->counts;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        struct str key = catalog->items[i].key;
        bool is_checked = written->is_proved_item[i], is_proved = is_checked && !foreign, is_lost = written->items[i] == IS_LOST;
        if (written->items[i] == IS_LEFT_OUT)
            continue;
        counts->items++;
        counts->lost_items += is_lost;
        counts->proved_items += !is_lost && is_proved;
        counts->unproved_items += !is_lost && !is_proved;
        if (is_lost)
            finding_report(salvaging->findings, FINDING_FAILURE, "lost-item", key, "%s", written->item_reasons[i]);
        else if (!is_proved)
            finding_report(salvaging->findings, FINDING_NOTE, "unproved-item", key, "%s%s",
                           is_checked ? "it agrees with a checksum, " : "no checksum covers it", is_checked ? foreign : "");
    }
}

static void tell_unproved(struct salvaging *salvaging)
{
    const char *foreign = foreign_places(salvaging);
    const struct remains *written = salvage_written(salvaging);
    const struct checkpoint *checkpoint = written->checkpoint;
    const struct catalog *catalog = checkpoint->source->catalog;
    struct salvage_counts *counts = salvaging->counts;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        uint32_t tensor = checkpoint->listed[i];
        if (written->tensors[tensor] == IS_LEFT_OUT)
            continue;
        counts->tensors++;
        counts->lost_tensors += written->tensors[tensor] == IS_LOST;
        if (written->tensors[tensor])
            continue;
        bool is_checked = written->is_proved_tensor[tensor], is_proved = is_checked && !foreign;
        counts->proved_tensors += is_proved;
        counts->unproved_tensors += !is_proved;
        if (!is_proved)
            finding_report(salvaging->findings, FINDING_NOTE, "unproved", catalog->tensors[tensor].key, "%s%s",
                           is_checked ? "its values agree with a checksum, " : "no checksum covers its values", is_checked ? foreign : "");
    }
    if (!salvaging->checkpoint->source->catalog->names_are_checked && !salvaging->stored.cover.items)
        finding_report(salvaging->findings, FINDING_NOTE, "unproved-names", (struct str){ 0 },
                       "no checksum covers names, shapes, types and places");
}

/* ---- the result ---- */

/* Whether what is left can be a checkpoint of its format. */
static reshard_status check_format(const struct salvaging *salvaging, reshard_error *err)
{
    const struct format_driver *driver = salvaging->checkpoint->source->driver;
    if (salvaging->options->to || !salvaging->counts->lost_tensors || !(driver->abilities & FORMAT_IS_WHOLE))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "%" PRIu64 " of %" PRIu64 " tensors are lost, and nobody loads what is left as format '%s'",
              salvaging->counts->lost_tensors, salvaging->counts->tensors, driver->name);
    error_hint(err, "reshard_salvage_options.to names a format for what is left: torch-dcp holds all of it");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status write_rest(struct salvaging *salvaging, const char *target_path, reshard_error *err)
{
    const struct salvage_options *options = salvaging->options;
    const struct format_driver *driver = salvaging->checkpoint->source->driver;
    const struct mapping_options map = { .rules = "none" };
    const struct remains *written = salvage_written(salvaging);
    struct conversion conversion;
    const struct conversion_options convert = {
        .to = options->to ? options->to : driver->name,
        .like = salvaging->has_sibling && !options->to ? options->like : NULL,
        .open = options->open,
        .selection = { .lost_tensors = written->tensors, .lost_items = written->items },
        .max_shard_bytes = -1,
        .overwrite = options->overwrite,
        .no_sync = options->no_sync,
        .map = &map,
    };
    reshard_status status = check_format(salvaging, err);
    if (!status)
        status = conversion_prepare(written->checkpoint, target_path, &convert, salvaging->engine, CONVERSION_TO_RUN, &conversion, err);
    if (status)
        return status;
    status = conversion_run(&conversion, target_path, err);
    conversion_release(&conversion);
    return status;
}

/* What reading has found damaged. Tensors of which only the name is left are lost too; those that nobody asked for are not told of. */
static reshard_status tell_damage(struct salvaging *salvaging, reshard_error *err)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    uint32_t lost = catalog->lost_count;
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        const struct catalog_warning *warning = &catalog->warnings[i];
        bool is_wanted = true;
        reshard_status status = warning->key.size ? key_filter_wants(&salvaging->filter, warning->key, &is_wanted, err) : RESHARD_OK;
        if (status)
            return status;
        if (!is_wanted) {
            lost--;
        } else if (warning->key.size) {
            finding_report(salvaging->findings, FINDING_FAILURE, "lost", warning->key, "%.*s", STR_ARG(warning->text));
        } else if (warning->is_damage && !salvage_is_told(&salvaging->stored, warning)) {
            finding_report(salvaging->findings, FINDING_WARNING, "damage", (struct str){ 0 }, "%.*s", STR_ARG(warning->text));
        }
    }
    salvaging->counts->tensors += lost;
    salvaging->counts->lost_tensors += lost;
    return key_filter_check(&salvaging->filter, err);
}

/* What nobody asked for is left out, before anything of it is read. Storages that items name have no keys of their own, and stay. */
static reshard_status salvage_leave_out(struct salvaging *salvaging, reshard_error *err)
{
    const struct salvage_options *options = salvaging->options;
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    bool is_wanted;
    reshard_status status = key_filter_begin(&salvaging->filter, options->include, options->exclude, err);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        status = key_filter_wants(&salvaging->filter, catalog->tensors[i].key, &is_wanted, err);
        if (!status && !is_wanted) {
            salvaging->stored.tensors[i] = IS_LEFT_OUT;
            remains_close(&salvaging->stored, i);
        }
    }
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        status = key_filter_wants(&salvaging->filter, catalog->items[i].key, &is_wanted, err);
        if (!status && !is_wanted)
            salvaging->stored.items[i] = IS_LEFT_OUT;
    }
    return status;
}

/* Formats that name state by parameter get it so, and what is left of it is told so. The view is made before anything is looked at: what is
 * lost closes pieces of the stored checkpoint. */
static reshard_status salvage_relate(struct salvaging *salvaging, reshard_error *err)
{
    const char *to = salvaging->options->to;
    const struct format_driver *driver = to ? format_driver_find(to) : salvaging->checkpoint->source->driver;
    struct checkpoint *related = NULL;
    if (!driver || !(driver->abilities & FORMAT_STATE_BY_PARAMETER))
        return RESHARD_OK;
    reshard_status status = checkpoint_relate(salvaging->checkpoint, &related, err);
    if (status)
        error_hint(err, "reshard_salvage_options.to torch-dcp keeps it as it is stored");
    if (status || related == salvaging->checkpoint)
        return status;
    salvaging->stored.has_view = true;
    return remains_begin(&salvaging->view, related, err);
}

static reshard_status look_through(struct salvaging *salvaging, reshard_error *err)
{
    reshard_status status = salvage_relate(salvaging, err);
    if (!status)
        status = remains_begin(&salvaging->stored, salvaging->checkpoint, err);
    if (!status)
        status = salvage_leave_out(salvaging, err);
    if (!status)
        status = salvage_look(&salvaging->stored, salvaging->engine, salvaging->findings, err);
    if (!status && salvaging->stored.has_view)
        status = remains_carry(&salvaging->stored, &salvaging->view, err);
    if (status)
        return status;
    remains_tell(salvage_written(salvaging), salvaging->findings);
    tell_items(salvaging);
    tell_unproved(salvaging);
    status = tell_damage(salvaging, err);
    if (status)
        return status;
    if (salvaging->counts->tensors > 0 && salvaging->counts->lost_tensors == salvaging->counts->tensors)
        return error_set(err, RESHARD_ERR_FORMAT, "no tensor can be recovered");
    return finding_sink_status(salvaging->findings, err);
}

/* What is certain before anything is read: to look through a checkpoint takes as long as to read all of it. */
static reshard_status salvage_check_target(const struct salvaging *salvaging, const char *target_path, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = conversion_format(salvaging->options->to, salvaging->checkpoint, &driver, err);
    if (!status)
        status = target_check_source(salvaging->checkpoint, target_path, salvaging->options->overwrite, err);
    return status ? status : target_check_known(target_path, err);
}

reshard_status salvage_run(const char *path, const char *target_path, const struct salvage_options *options,
                           const struct engine_options *engine, struct finding_sink *findings, struct salvage_counts *counts,
                           reshard_error *err)
{
    struct salvaging salvaging = { .options = options, .engine = engine, .findings = findings, .counts = counts };
    *counts = (struct salvage_counts){ 0 };
    reshard_status status = open_damaged(&salvaging, path, err);
    if (!status)
        status = salvage_check_target(&salvaging, target_path, err);
    if (!status)
        status = look_through(&salvaging, err);
    if (!status)
        status = write_rest(&salvaging, target_path, err);
    bool is_lost = counts->lost_tensors > 0 || counts->lost_items > 0 ||
                   (salvaging.checkpoint && salvaging.checkpoint->source->catalog->has_unnamed_loss);
    key_filter_release(&salvaging.filter);
    remains_release(&salvaging.view);
    remains_release(&salvaging.stored);
    checkpoint_close(salvaging.checkpoint);
    return status ? status : is_lost ? RESHARD_DIFFERS : RESHARD_OK;
}
