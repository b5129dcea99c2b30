/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/source_probe.h"

#include "formats/other_formats.h"

#include <inttypes.h>

#define ENTRIES_SHOWN 6
#define FIRST_BYTES_SHOWN 8

/* What went wrong while a driver looked, as far as it matters: no memory, a caller who stops, or a disk that does not answer. */
static reshard_status probe_status(struct store *store, const reshard_error *seen, reshard_error *err)
{
    if (store_status_is_answer(seen->code, seen))
        return store_failure(store, err);
    if (err)
        *err = *seen;
    return seen->code;
}

reshard_status driver_score(const struct format_driver *driver, struct store *store, const char *name, int *score, reshard_error *err)
{
    reshard_error seen = { 0 };
    *score = driver->probe ? driver->probe(store, name, &seen) : 0;
    return probe_status(store, &seen, err);
}

/* The format of what is left of a checkpoint that no probe knows; *out stays as it is where there is none. */
static reshard_status recognise_rest(struct store *store, const char *name, const struct format_driver **out, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = RESHARD_OK;
    for (int i = 0; !status && !*out && (driver = format_driver_at(i)); i++) {
        reshard_error seen = { 0 };
        if (driver->probe_rest && driver->probe_rest(store, name, &seen))
            *out = driver;
        status = probe_status(store, &seen, err);
    }
    return status;
}

reshard_status driver_recognise(struct store *store, const char *name, const struct format_driver **out, reshard_error *err)
{
    const struct format_driver *best = NULL;
    int best_score = 0;
    const struct format_driver *driver;
    reshard_status status = RESHARD_OK;
    store_hold_listing(store);
    for (int i = 0; !status && (driver = format_driver_at(i)); i++) {
        int score = 0;
        status = driver_score(driver, store, name, &score, err);
        if (!status && score > best_score) {
            best_score = score;
            best = driver;
        }
    }
    if (!status)
        status = recognise_rest(store, name, &best, err);
    store_release_listing(store);
    *out = best;
    return status;
}

static void hint_formats(reshard_error *err)
{
    struct buffer names = { 0 };
    const struct format_driver *driver;
    for (int i = 0; (driver = format_driver_at(i)); i++) {
        if (driver->abilities & FORMAT_READS)
            buffer_printf(&names, "%s%s", names.size ? ", " : "", driver->name);
    }
    buffer_append_byte(&names, '\0');
    if (!names.failed)
        error_hint(err, "known formats: %s", (const char *)names.data);
    error_hint(err, "reshard_open_options.format NAME takes one without asking");
    buffer_release(&names);
}

static void describe_directory(const struct store_entry *entries, size_t count, struct buffer *text)
{
    buffer_printf(text, "a directory with %zu entries", count);
    for (size_t i = 0; i < count && i < ENTRIES_SHOWN; i++) {
        struct str entry = str_base_name(entries[i].name);
        buffer_append_text(text, i ? ", " : ": ");
        buffer_append(text, entry.data, entry.size);
        if (entries[i].is_directory)
            buffer_append_byte(text, '/');
    }
    if (count > ENTRIES_SHOWN)
        buffer_append_text(text, ", …");
    buffer_append_byte(text, '\0');
}

/* other: what it seems to be; NULL: nothing that is known. */
static reshard_status not_recognised(const struct buffer *seen, const struct other_format *other, reshard_error *err)
{
    if (seen->failed)
        return error_set_memory(err);
    if (!other)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "no known checkpoint format: found %s", (const char *)seen->data);
    error_set(err, RESHARD_ERR_UNSUPPORTED, "%s is not read yet: found %s", other->name, (const char *)seen->data);
    error_hint(err, "%s", other->next_step);
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status directory_not_recognised(struct store *store, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    struct buffer seen = { 0 };
    struct store_entry *entries;
    size_t count;
    reshard_status status = store_list(store, name, &arena, &entries, &count, err);
    if (!status) {
        describe_directory(entries, count, &seen);
        status = not_recognised(&seen, other_format_of_entries(entries, count), err);
        if (status == RESHARD_ERR_UNSUPPORTED && hint_checkpoints_below(store, entries, count, err))
            status = error_set_memory(err);
    }
    buffer_release(&seen);
    arena_release(&arena);
    return status;
}

static reshard_status file_not_recognised(struct store *store, const char *name, reshard_error *err)
{
    struct store_object *object = NULL;
    struct buffer seen = { 0 };
    uint8_t first[FIRST_BYTES_SHOWN];
    const struct format_driver *driver = NULL;
    reshard_status status = store_open_object(store, name, &object, err);
    if (status)
        return status;
    uint64_t bytes = store_object_size(object);
    size_t shown = bytes < sizeof(first) ? (size_t)bytes : sizeof(first);
    status = shown ? store_read_at(object, 0, first, shown, err) : RESHARD_OK;
    if (!status) {
        buffer_printf(&seen, "a file of %" PRIu64 " bytes", bytes);
        for (size_t i = 0; i < shown; i++)
            buffer_printf(&seen, "%s%02x", i ? " " : " that starts with ", first[i]);
        buffer_append_byte(&seen, '\0');
        status = not_recognised(&seen, other_format_of_file(name, first, shown), err);
    }
    if (status == RESHARD_ERR_UNSUPPORTED && format_of_folder(store, name, &driver, err))
        status = error_set_memory(err);
    else if (status == RESHARD_ERR_UNSUPPORTED && driver)
        hint_folder(store, name, driver, err);
    buffer_release(&seen);
    store_object_close(object);
    return status;
}

reshard_status driver_not_recognised(struct store *store, const char *name, reshard_error *err)
{
    reshard_status status = store_is_directory(store, name) ? directory_not_recognised(store, name, err)
                                                            : file_not_recognised(store, name, err);
    if (status == RESHARD_ERR_UNSUPPORTED)
        hint_formats(err);
    return status;
}

reshard_status driver_name_unknown(const char *format, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "unknown format '%s'", format);
    hint_formats(err);
    return RESHARD_ERR_USAGE;
}
