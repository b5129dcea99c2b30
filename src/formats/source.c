/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/driver.h"

#include "base/array.h"
#include "base/waiting.h"
#include "formats/other_formats.h"
#include "formats/source_probe.h"
#include "formats/source_root.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void source_free(struct source *source)
{
    if (!source)
        return;
    if (source->driver && source->driver->close_source)
        source->driver->close_source(source);
    catalog_free(source->catalog);
    if (!source->is_borrowed_store)
        store_free(source->store);
    free(source->name);
    free(source->stored_items);
    free(source);
}

static struct source *source_new(struct store *store, const char *name, const struct open_options *options)
{
    struct source *source = calloc(1, sizeof(*source));
    if (!source)
        return NULL;
    source->store = store;
    source->limits = options->limits;
    source->limits.budget = &source->work;
    work_begin(&source->work, source->limits.work);
    source->work.goes_on = options->goes_on;
    source->work.context = options->context;
    source->is_borrowed_store = options->borrow_store;
    source->lenient = options->lenient || options->is_salvage;
    source->is_salvage = options->is_salvage;
    source->skip_unsupported = options->skip_unsupported || source->lenient;
    source->shows_damage = options->shows_damage;
    source->iteration = options->iteration;
    source->name = strdup(name);
    if (!source->name) {
        free(source);
        return NULL;
    }
    return source;
}

/* Moves the source into the sub-directory that the root's choice names. */
static reshard_status enter_root(struct source *source, const struct root_choice *choice, reshard_error *err)
{
    char *name = strdup(choice->name);
    if (!name)
        return error_set_memory(err);
    free(source->name);
    source->name = name;
    source->is_in_root = true;
    return RESHARD_OK;
}

/* Moves it into what the root chooses, if it is one. */
static reshard_status enter_chosen(struct source *source, int64_t iteration, struct arena *arena, struct root_choice *out,
                                   reshard_error *err)
{
    reshard_status status = root_choose(source->store, source->name, iteration, arena, out, err);
    return status || !out->name ? status : enter_root(source, out, err);
}

static reshard_status source_recognise(struct source *source, const struct format_driver *forced, bool *found, reshard_error *err)
{
    int score = 0;
    source->driver = forced;
    reshard_status status = forced ? driver_score(forced, source->store, source->name, &score, err)
                                   : driver_recognise(source->store, source->name, &source->driver, err);
    *found = forced ? score > 0 : source->driver != NULL;
    return status;
}

/*
 * Decides which driver opens which directory. What a driver knows is taken as it is; only then the place may be a root of several
 * checkpoints, unless an iteration was asked for. A forced driver gets the last word: it says best what is wrong.
 */
static reshard_status choose_driver(struct source *source, const struct format_driver *forced, struct root_choice *choice,
                                    struct arena *arena, reshard_error *err)
{
    bool is_directory = store_is_directory(source->store, source->name), found = false;
    reshard_status status = source->iteration < 0 ? source_recognise(source, forced, &found, err) : RESHARD_OK;
    if (status || found)
        return status;
    if (is_directory) {
        status = enter_chosen(source, source->iteration, arena, choice, err);
        if (status)
            return status;
    } else if (source->iteration >= 0) {
        return error_set(err, RESHARD_ERR_USAGE, "iteration %" PRId64 " was asked for, but '%s' is a file", source->iteration,
                         source->name);
    }
    status = source_recognise(source, forced, &found, err);
    if (!status && !found && choice->name) { /* a step may be a root of its one checkpoint */
        struct root_choice within = { .iteration = -1 };
        status = enter_chosen(source, -1, arena, &within, err);
        if (!status && within.name) {
            choice->name = within.name;
            status = source_recognise(source, forced, &found, err);
        }
    }
    if (status || found || forced)
        return status;
    status = driver_not_recognised(source->store, source->name, err);
    if (choice->name)
        error_prefix(err, "'%s'", source->name);
    return status;
}

static reshard_status note_choice(struct catalog *catalog, const struct root_choice *choice, reshard_error *err)
{
    if (!choice->name)
        return RESHARD_OK;
    if (choice->is_guess)
        catalog_warn(catalog, false, "nothing says which checkpoint is the latest: '%s' has the highest number", choice->name);
    return catalog_add_fact(catalog, "sub-directory", err, "%s", choice->name);
}

/* What lies behind them is no part of the checkpoint, though it may be meant to be. */
static void warn_of_links(const struct source *source)
{
    const char *name;
    for (size_t i = 0; (name = store_link_out(source->store, i)); i++)
        catalog_warn(source->catalog, false, "'%s': a symbolic link leads out of the checkpoint's directory and is not followed", name);
    if (store_has_more_links_out(source->store))
        catalog_warn(source->catalog, false, "further symbolic links lead out of the checkpoint's directory and are not followed");
}

static reshard_status source_seal(struct source *source, reshard_error *err)
{
    bool allow_holes = source->lenient || source->shows_damage || (source->driver->abilities & FORMAT_ALLOWS_HOLES);
    source->read_warnings = source->catalog->warning_count;
    source->catalog->shows_overlaps = source->shows_damage;
    reshard_status status = catalog_seal(source->catalog, allow_holes, err);
    return status ? status : catalog_check_made(source->catalog, err);
}

static reshard_status read_source(struct source *source, const struct root_choice *choice, reshard_error *err)
{
    const struct format_driver *driver = source->driver;
    source->catalog = catalog_new(driver->name);
    if (!source->catalog)
        return error_set_memory(err);
    source->catalog->limits = source->limits;
    const bool is_asked = source->iteration >= 0;
    if (choice->iteration >= 0)
        source->iteration = choice->iteration;
    reshard_status status = note_choice(source->catalog, choice, err);
    if (status)
        return status;
    status = driver->read_catalog(source, err);
    if (!status) {
        warn_of_links(source);
        status = source_seal(source, err);
    }
    if (status == RESHARD_ERR_FORMAT && choice->name && choice->before >= 0 && !is_asked)
        error_hint(err, "reshard_open_options.iteration %" PRId64 " opens the one before it", choice->before);
    return status;
}

/* What lies behind a link that is not followed may be what is missed. */
static void hint_links(const struct source *source, reshard_status status, reshard_error *err)
{
    const char *name = store_link_out(source->store, 0);
    bool is_about_content = status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_UNSUPPORTED || status == RESHARD_ERR_IO;
    bool is_of_link = err && err->sys_errno == EXDEV; /* the store has said so of the very name */
    if (name && is_about_content && !is_of_link)
        error_hint(
            err, "'%s' is a symbolic link out of the directory: reshard_open_options.follow_links follows it, if you trust where it leads",
            name);
}

/* What was made of a file that "is not there" counts for nothing if the disk failed when it was looked for, and nothing is good of which a
 * warning may be missing. */
static reshard_status or_failure(struct source *source, reshard_status status, reshard_error *err)
{
    if (!status && source->catalog && source->catalog->is_short_of_memory)
        status = error_set_memory(err);
    status = work_explain(&source->work, status, err);
    bool is_judgement = status != RESHARD_ERR_IO && status != RESHARD_ERR_MEMORY && status != RESHARD_ERR_CANCELLED;
    reshard_status failure = is_judgement ? store_failure(source->store, err) : RESHARD_OK;
    hint_links(source, failure ? failure : status, err);
    return failure ? failure : status;
}

/* A data file of torch's distributed checkpoints is many containers in one, which reads as a broken one of them. */
static reshard_status explain_data_file(struct source *source, reshard_status status, reshard_error *err)
{
    const struct format_driver *driver = NULL;
    bool is_judgement = status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_UNSUPPORTED;
    if (!is_judgement || !str_ends_with(str_of(source->name), ".distcp") || store_is_directory(source->store, source->name))
        return status;
    if (format_of_folder(source->store, source->name, &driver, err))
        return error_set_memory(err);
    if (!driver)
        return status;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "a data file of a %s checkpoint, which is read as a whole", driver->name);
    hint_folder(source->store, source->name, driver, err);
    return RESHARD_ERR_UNSUPPORTED;
}

/* While a store waits for what it reads. */
static bool source_waits_on(void *work)
{
    return !work_poll(work, NULL);
}

reshard_status format_open(struct store *store, const char *name, const struct open_options *options, struct source **out,
                           reshard_error *err)
{
    struct arena arena = { 0 };
    struct root_choice choice = { .iteration = -1 };
    const struct format_driver *forced = NULL;
    reshard_status status;

    struct source *source = source_new(store, name, options);
    if (!source) {
        if (!options->borrow_store)
            store_free(store);
        return error_set_memory(err);
    }
    const struct waiting waiting = { source_waits_on, &source->work }, *before = waiting_set_if(options->goes_on, &waiting);
    if (options->format) {
        forced = format_driver_find(options->format);
        if (!forced) {
            status = driver_name_unknown(options->format, err);
            goto out;
        }
        if (!(forced->abilities & FORMAT_READS)) {
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "format '%s' can only be written", forced->name);
            goto out;
        }
    }
    status = work_poll(&source->work, err);
    if (!status)
        status = choose_driver(source, forced, &choice, &arena, err);
    if (!status)
        status = read_source(source, &choice, err);
    if (!forced)
        status = explain_data_file(source, status, err);
    status = or_failure(source, status, err);
    source->work.goes_on = NULL;

out:
    waiting_set(before);
    arena_release(&arena);
    if (status)
        source_free(source);
    else
        *out = source;
    return status;
}

reshard_status source_open_made(const struct format_driver *driver, struct store *store, void *driver_state,
                                const struct open_options *options, struct source **out, reshard_error *err)
{
    const struct root_choice choice = { .iteration = -1 };
    struct source *source = source_new(store, "", options), none = { .driver_state = driver_state };
    if (!source) {
        store_free(store);
        if (driver->close_source)
            driver->close_source(&none);
        return error_set_memory(err);
    }
    source->driver = driver;
    source->driver_state = driver_state;
    reshard_status status = or_failure(source, read_source(source, &choice, err), err);
    source->work.goes_on = NULL;
    if (status)
        source_free(source);
    else
        *out = source;
    return status;
}

void source_warn_left_out(struct source *source, struct str key, bool is_damage, const char *format, ...)
{
    char why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    if (source->is_salvage)
        catalog_warn_lost(source->catalog, key, "'%.*s' is left out: %s", STR_ARG(key), why);
    else
        catalog_warn(source->catalog, is_damage, "'%.*s' is left out: %s", STR_ARG(key), why);
}

/* ---- views ---- */

/* What was read allows the view the work that it allowed the source. */
static struct source *view_new(struct source *stored)
{
    const struct open_options options = { .limits = stored->limits,
                                          .iteration = stored->iteration,
                                          .borrow_store = true,
                                          .lenient = stored->lenient,
                                          .skip_unsupported = stored->skip_unsupported };
    struct source *view = source_new(stored->store, stored->name, &options);
    if (!view)
        return NULL;
    work_add_input(&view->work, stored->work.read);
    view->driver = stored->driver;
    view->is_in_root = stored->is_in_root;
    view->stored = stored;
    view->catalog = catalog_new(stored->driver->name);
    if (view->catalog) {
        view->catalog->limits = view->limits;
        return view;
    }
    source_free(view);
    return NULL;
}

struct view_maker {
    reshard_status (*make)(struct source *view, reshard_error *err);
};

static reshard_status view_make_plainly(struct source *view, void *context, reshard_error *err)
{
    const struct view_maker *maker = context;
    return maker->make(view, err);
}

reshard_status source_view(struct source *stored, reshard_status (*make)(struct source *view, reshard_error *err), struct source **out,
                           reshard_error *err)
{
    struct view_maker maker = { make };
    return source_view_with(stored, view_make_plainly, &maker, out, err);
}

reshard_status source_view_with(struct source *stored, reshard_status (*make)(struct source *view, void *context, reshard_error *err),
                                void *context, struct source **out, reshard_error *err)
{
    struct source *view = view_new(stored);
    if (!view)
        return error_set_memory(err);
    reshard_status status = or_failure(view, make(view, context, err), err);
    if (!status)
        status = source_seal(view, err);
    if (status)
        source_free(view);
    else
        *out = view;
    return status;
}

reshard_status source_by_parameter(struct source *stored, struct source **out, reshard_error *err)
{
    return source_view(stored, stored->driver->view_by_parameter, out, err);
}

/* ---- resolving ---- */

struct chunk_list {
    uint32_t *chunks;
    uint32_t count;
};

static uint32_t list_unresolved(const struct catalog *catalog, uint32_t tensor, uint32_t *chunks)
{
    uint32_t count = 0;
    const struct catalog_tensor *t = &catalog->tensors[tensor];
    for (uint32_t i = 0; i < t->chunk_count; i++) {
        if (!(catalog->chunks[t->first_chunk + i].flags & CHUNK_UNRESOLVED))
            continue;
        if (chunks)
            chunks[count] = t->first_chunk + i;
        count++;
    }
    return count;
}

static int chunk_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* A tensor may be asked for twice, a driver sees each chunk once. */
static void chunk_list_unique(struct chunk_list *list)
{
    uint32_t kept = 0;
    qsort(list->chunks, list->count, sizeof(*list->chunks), chunk_order);
    for (uint32_t i = 0; i < list->count; i++) {
        if (i == 0 || list->chunks[i] != list->chunks[i - 1])
            list->chunks[kept++] = list->chunks[i];
    }
    list->count = kept;
}

/* All unresolved chunks of the given tensors (NULL: of all), in their order. */
static bool chunk_list_make(const struct catalog *catalog, const uint32_t *tensors, uint32_t count, struct chunk_list *out)
{
    uint64_t total = 0;
    uint32_t tensor_count = tensors ? count : catalog->tensor_count;
    for (uint32_t i = 0; i < tensor_count; i++)
        total += list_unresolved(catalog, tensors ? tensors[i] : i, NULL);
    *out = (struct chunk_list){ 0 };
    if (total == 0)
        return true;
    if (total > UINT32_MAX)
        return false;
    out->chunks = array_new(total, sizeof(*out->chunks));
    if (!out->chunks)
        return false;
    for (uint32_t i = 0; i < tensor_count; i++)
        out->count += list_unresolved(catalog, tensors ? tensors[i] : i, out->chunks + out->count);
    chunk_list_unique(out);
    return true;
}

reshard_status source_resolve(struct source *source, const uint32_t *tensors, uint32_t count, reshard_error *err)
{
    struct chunk_list list;
    if (!source->driver->resolve)
        return RESHARD_OK;
    if (!chunk_list_make(source->catalog, tensors, count, &list))
        return error_set_memory(err);
    reshard_status status = list.count ? source->driver->resolve(source, list.chunks, list.count, err) : RESHARD_OK;
    free(list.chunks);
    return or_failure(source, status, err);
}

/* An item of a view has the value of what it is in the source: both stay with that. */
static reshard_status load_stored(struct source *view, uint32_t item_index, reshard_error *err)
{
    uint32_t index = view->stored_items[item_index];
    reshard_status status = source_load_item(view->stored, index, err);
    if (status)
        return status;
    const struct catalog_item *stored = &view->stored->catalog->items[index];
    struct catalog_item *item = &view->catalog->items[item_index];
    item->value = stored->value;
    item->graph = stored->graph;
    item->is_checked = stored->is_checked;
    return RESHARD_OK;
}

reshard_status source_load_item(struct source *source, uint32_t item_index, reshard_error *err)
{
    const struct catalog_item *item = &source->catalog->items[item_index];
    if (item->kind == ITEM_FILE || item->value)
        return RESHARD_OK;
    if (source->stored)
        return load_stored(source, item_index, err);
    if (source->driver->load_item)
        return or_failure(source, source->driver->load_item(source, item_index, err), err);
    error_set(err, RESHARD_ERR_UNSUPPORTED, "item '%.*s': the format keeps it as bytes only", STR_ARG(item->key));
    error_object(err, "%.*s", STR_ARG(item->key));
    return RESHARD_ERR_UNSUPPORTED;
}

reshard_status source_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    if (source->stored)
        return source_read_item_storage(source->stored, source->stored_items[item], storage, out, err);
    return source->driver->read_item_storage(source, item, storage, out, err);
}

reshard_status source_verify(struct source *source, bool is_deep, reshard_error *err)
{
    if (source->stored)
        return source_verify(source->stored, is_deep, err);
    if (!source->driver->verify)
        return RESHARD_OK;
    return or_failure(source, source->driver->verify(source, is_deep, err), err);
}
