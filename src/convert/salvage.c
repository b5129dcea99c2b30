/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage.h"

#include "convert/key_filter.h"
#include "convert/payload_check.h"
#include "convert/salvage_replicas.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"
#include "convert/verify.h"
#include "formats/source_probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A sibling's files that say where things lie; they hold no values. */
struct layout_files {
    const char *const *globs;
};

/* What there is left of a tensor or an item. */
enum { IS_THERE, IS_LOST, IS_LEFT_OUT /* nobody asked for it */ };

/* What is known of the checkpoint while it is looked through. */
struct salvaging {
    const struct salvage_options *options;
    const struct engine_options *engine;
    struct finding_sink *findings;
    struct checkpoint *checkpoint;
    uint8_t *lost_tensors, *lost_items; /* by number: IS_THERE … */
    struct key_filter filter;
    struct catalog_span *spans;         /* by chunk, also when it is lost */
    struct bad_chunks bad;
    struct sidecar_cover cover;
    struct salvage_counts *counts;
    struct layout_files layout_files; /* of the sibling's format; the open store asks for them */
    bool has_sibling; /* names, shapes and places are its */
    bool is_rebuilt;  /* there was nothing that said them, and data files alone were asked */
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
static bool has_layout_files(struct store *store, const char *name, const struct layout_files *files)
{
    struct arena arena = { 0 };
    struct store_entry *entries = NULL;
    reshard_error seen = { 0 };
    size_t count = 0;
    bool has_all = true, has_plain = false, has_pattern = false;
    if (store_list(store, name, &arena, &entries, &count, &seen))
        count = 0;
    for (size_t i = 0; files->globs[i]; i++) {
        bool has = has_match(entries, count, files->globs[i]);
        if (strchr(files->globs[i], '*'))
            has_pattern = has_pattern || has;
        else
            has_all = has_all && has;
        has_plain = has_plain || !strchr(files->globs[i], '*');
    }
    arena_release(&arena);
    return (has_plain && has_all) || has_pattern;
}

/* Of what store_open_path says of a path. */
static bool names_file(const char *file_name)
{
    return file_name && file_name[0];
}

static reshard_status open_with_sibling(struct salvaging *salvaging, const char *path, const struct format_driver *driver,
                                        reshard_error *err)
{
    const struct salvage_options *options = salvaging->options;
    struct store *own = NULL, *sibling = NULL;
    char *own_file = NULL, *sibling_file = NULL;
    salvaging->layout_files.globs = driver->layout_files;
    reshard_status status = store_open_path(path, options->open.store_flags, &own, &own_file, err);
    if (!status)
        status = store_open_path(options->like, options->open.store_flags, &sibling, &sibling_file, err);
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
        status = checkpoint_open_in(both, "", &open, path, &salvaging->checkpoint, err);
    }
    if (!status)
        finding_report(salvaging->findings, FINDING_WARNING, "sibling", (struct str){ 0 },
                       "names, shapes and places come from '%s': no checksum covers them", options->like);
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
    reshard_status status = store_open_path(path, options->open.store_flags, &store, &file, err);
    if (!status && !names_file(file))
        status = driver_recognise(store, "", &driver, err);
    if (!status && driver && driver->layout_files) {
        struct layout_files files = { driver->layout_files };
        *needs = !has_layout_files(store, "", &files);
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
    open.open.is_salvage = true;
    reshard_status status = RESHARD_OK;
    /* A sibling knows more than what can be made of data files alone. */
    bool wants_sibling = salvaging->options->like && !lacks_layout(salvaging->options, path, &needs_layout, &seen) && needs_layout;
    if (!wants_sibling) {
        status = checkpoint_open(path, &open, &salvaging->checkpoint, err);
        salvaging->is_rebuilt = !status && !lacks_layout(salvaging->options, path, &needs_layout, &seen) && needs_layout;
        if (!status || status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_CANCELLED)
            return status;
    }
    if (salvaging->options->like) {
        status = sibling_driver(salvaging->options, &driver, err);
        return status ? status : open_with_sibling(salvaging, path, driver, err);
    }
    if (lacks_layout(salvaging->options, path, &needs_layout, &seen) || !needs_layout)
        return status;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': its data files hold neither names nor places of tensors, and the metadata is gone",
              path);
    error_hint(err, "reshard_salvage_options.like takes them from a checkpoint of the same run and layout");
    return RESHARD_ERR_UNSUPPORTED;
}

/* ---- tensors ---- */

/* Nothing reads the tensor's bytes any more. */
static void close_tensor(struct catalog *catalog, const struct catalog_tensor *entry)
{
    for (uint32_t i = 0; i < entry->chunk_count; i++) {
        struct catalog_chunk *chunk = &catalog->chunks[entry->first_chunk + i];
        chunk->flags &= (uint16_t) ~(CHUNK_UNRESOLVED | CHUNK_HAS_CRC | CHUNK_CHECKED);
        chunk->bytes = 0;
        chunk->layout = 0;
    }
}

static void lose_tensor(struct salvaging *salvaging, uint32_t tensor, const char *why)
{
    struct catalog *catalog = salvaging->checkpoint->source->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    if (salvaging->lost_tensors[tensor])
        return;
    salvaging->lost_tensors[tensor] = IS_LOST;
    close_tensor(catalog, entry);
    if (!(entry->flags & TENSOR_HIDDEN))
        finding_report(salvaging->findings, FINDING_FAILURE, "lost", entry->key, "%s", why);
}

static void note_spans(struct salvaging *salvaging, uint32_t tensor)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count; i++)
        salvaging->spans[i] = catalog_chunk_span(catalog, &catalog->chunks[i]);
}

/* Whether a chunk lies in its file. */
static bool lies_in_file(struct salvaging *salvaging, const struct catalog_chunk *chunk, char *why, size_t size)
{
    struct source *source = salvaging->checkpoint->source;
    const struct catalog *catalog = source->catalog;
    const struct catalog_span *span = &salvaging->spans[chunk - catalog->chunks];
    uint64_t begin = span->offset, bytes = span->bytes, found = 0;
    bool is_directory = false;
    struct str name = catalog->objects[chunk->object].name;
    bool has_file = store_exists(source->store, name.data, &is_directory, &found) && !is_directory;
    if (has_file && begin <= found && bytes <= found - begin)
        return true;
    if (has_file)
        snprintf(why, size, "'%.*s' ends at %" PRIu64 ", its bytes are [%" PRIu64 ", +%" PRIu64 ")", STR_ARG(name), found, begin, bytes);
    else
        snprintf(why, size, "'%.*s' is missing", STR_ARG(name));
    return false;
}

/* Notes the chunks that reach beyond their file's end. */
static reshard_status look_at_ends(struct salvaging *salvaging, uint32_t tensor, bool *all_there, reshard_error *err)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    reshard_status status = RESHARD_OK;
    char why[512];
    *all_there = true;
    note_spans(salvaging, tensor);
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status; i++) {
        if (lies_in_file(salvaging, &catalog->chunks[i], why, sizeof(why)))
            continue;
        *all_there = false;
        status = bad_chunks_add(&salvaging->bad, i, why, err);
    }
    return status;
}

/* Finds the payload of each chunk by itself, so that one that cannot be found says nothing of the others. */
static reshard_status resolve_each(struct salvaging *salvaging, uint32_t tensor, reshard_error *err)
{
    struct source *source = salvaging->checkpoint->source;
    const struct catalog_tensor *entry = &source->catalog->tensors[tensor];
    uint32_t begin = entry->first_chunk, end = begin + entry->chunk_count;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = begin; i < end && !status && source->driver->resolve; i++) {
        reshard_error seen = { 0 };
        if (salvaging->bad.why[i] || !(source->catalog->chunks[i].flags & CHUNK_UNRESOLVED))
            continue;
        reshard_status found = source->driver->resolve(source, &i, 1, &seen);
        if (found == RESHARD_ERR_MEMORY || found == RESHARD_ERR_CANCELLED)
            return error_set(err, found, "%s", seen.message);
        if (found)
            status = bad_chunks_add(&salvaging->bad, i, seen.message, err);
    }
    return status;
}

/* Copies stand in for bad chunks, or the tensor is lost. */
static void settle_tensor(struct salvaging *salvaging, uint32_t tensor)
{
    struct catalog *catalog = salvaging->checkpoint->source->catalog;
    uint32_t replaced;
    const char *why;
    if (salvaging->lost_tensors[tensor])
        return;
    if (!bad_chunks_replace(&salvaging->bad, catalog, tensor, &replaced, &why))
        lose_tensor(salvaging, tensor, why);
    else if (replaced && !(catalog->tensors[tensor].flags & TENSOR_HIDDEN))
        finding_report(salvaging->findings, FINDING_WARNING, "replaced", catalog->tensors[tensor].key, "%s: another copy stands in", why);
}

/* Whether chunks hold every element: they do not overlap, so it is a matter of counting. */
static bool is_covered(const struct catalog *catalog, const struct catalog_tensor *tensor)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
        const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
        if (chunk->flags & CHUNK_REPLICA)
            continue;
        held += layout && layout->flat_count >= 0 ? (uint64_t)layout->flat_count
                                                  : (uint64_t)box_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent));
    }
    return (tensor->flags & TENSOR_NO_DATA) || held == (uint64_t)box_volume(tensor->rank, catalog_vector_at(catalog, tensor->shape));
}

static reshard_status look_at_tensor(struct salvaging *salvaging, uint32_t tensor, reshard_error *err)
{
    struct source *source = salvaging->checkpoint->source;
    reshard_error seen = { 0 };
    bool all_there;
    work_renew(&source->work);
    reshard_status status = look_at_ends(salvaging, tensor, &all_there, err);
    if (status)
        return status;
    reshard_status found = all_there ? source_resolve(source, &tensor, 1, &seen) : RESHARD_ERR_FORMAT;
    if (found == RESHARD_ERR_MEMORY || found == RESHARD_ERR_CANCELLED)
        return error_set(err, found, "%s", seen.message);
    if (found)
        status = resolve_each(salvaging, tensor, err);
    if (!status)
        status = look_at_ends(salvaging, tensor, &all_there, err); /* what a blob says of itself */
    if (status)
        return status;
    settle_tensor(salvaging, tensor);
    if (!salvaging->lost_tensors[tensor] && !is_covered(source->catalog, &source->catalog->tensors[tensor]))
        lose_tensor(salvaging, tensor, "not all of its pieces are there");
    return RESHARD_OK;
}

static reshard_status look_at_tensors(struct salvaging *salvaging, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < salvaging->checkpoint->source->catalog->tensor_count && !status; i++)
        status = salvaging->lost_tensors[i] ? RESHARD_OK : look_at_tensor(salvaging, i, err);
    return status;
}

/* ---- checksums ---- */

static bool is_tensor_key(const struct catalog *catalog, struct str key)
{
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !found; i++)
        found = str_equal(catalog->tensors[i].key, key);
    return found;
}

/* What goes against a checksum is bad: a chunk, whose copies may be good, or every tensor of that key, if there are several. */
static reshard_status take_finding(void *context, const struct finding *finding)
{
    struct salvaging *salvaging = context;
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    bool is_known = finding->key.size > 0 && is_tensor_key(catalog, finding->key);
    if (finding->severity != FINDING_FAILURE)
        return RESHARD_OK;
    if (finding->chunk)
        return bad_chunks_add_checked(&salvaging->bad, catalog, finding->chunk - 1, finding->text, NULL);
    for (uint32_t i = 0; is_known && i < catalog->tensor_count; i++)
        if (str_equal(catalog->tensors[i].key, finding->key))
            lose_tensor(salvaging, i, finding->text);
    for (uint32_t i = 0; !is_known && i < catalog->item_count; i++)
        if (finding->key.size > 0 && str_equal(catalog->items[i].key, finding->key))
            salvaging->lost_items[i] = salvaging->lost_items[i] == IS_LEFT_OUT ? IS_LEFT_OUT : IS_LOST;
    if (!is_known)
        finding_report(salvaging->findings, FINDING_WARNING, finding->kind, finding->key, "%s", finding->text);
    return RESHARD_OK;
}

/* Whether a text has the name between quotes. */
static bool is_quoted(struct str text, struct str name)
{
    const char *at = text.data, *end = text.data + text.size;
    bool found = false;
    while (name.size && !found && (at = memmem(at, (size_t)(end - at), name.data, name.size))) {
        found = at > text.data && at[-1] == '\'' && at + name.size < end && at[name.size] == '\'';
        at++;
    }
    return found;
}

static bool span_meets(const struct catalog_span *span, const struct catalog_warning *warning)
{
    return warning->bytes && span->object == warning->object && span->offset < warning->offset + warning->bytes &&
           warning->offset < span->offset + span->bytes;
}

/* Whether damage is where the chunk's bytes lie, or lay before another copy stood in. */
static bool lies_at(const struct salvaging *salvaging, const struct catalog_warning *warning, uint32_t chunk)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    const struct catalog_span now = catalog_chunk_span(catalog, &catalog->chunks[chunk]);
    return span_meets(&salvaging->spans[chunk], warning) || span_meets(&now, warning);
}

/* Chunks where the damage is are bad; false: there are none, or nobody knows where it is. */
static bool take_place_of_damage(struct salvaging *salvaging, const struct catalog_warning *warning, reshard_status *status,
                                 reshard_error *err)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    bool is_any = false;
    for (uint32_t i = 0; i < catalog->chunk_count && !*status; i++) {
        if (!lies_at(salvaging, warning, i))
            continue;
        is_any = true;
        *status = bad_chunks_add(&salvaging->bad, i, warning->text.data, err);
    }
    return is_any;
}

/* What the driver has checked itself proves nothing any more, of a file or (CATALOG_NONE) of all. */
static void withdraw_checks(struct salvaging *salvaging, uint32_t object)
{
    struct catalog *catalog = salvaging->checkpoint->source->catalog;
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        if (object == CATALOG_NONE || catalog->chunks[i].object == object)
            catalog->chunks[i].flags &= (uint16_t)~CHUNK_CHECKED;
    for (uint32_t i = 0; i < catalog->item_count; i++)
        catalog->items[i].is_checked = false;
}

/* Damage that the driver has found is a tensor's that it names, else a file's, else anybody's. */
static reshard_status take_damage(struct salvaging *salvaging, const struct catalog_warning *warning, reshard_error *err)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    struct str text = warning->text;
    reshard_status status = RESHARD_OK;
    bool is_named = take_place_of_damage(salvaging, warning, &status, err), is_placed = false;
    if (is_named)
        return status;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        if (!is_quoted(text, catalog->tensors[i].key))
            continue;
        is_named = true;
        lose_tensor(salvaging, i, text.data);
    }
    for (uint32_t i = 0; i < catalog->object_count && !is_named; i++) {
        bool is_there = warning->bytes ? warning->object == i : is_quoted(text, catalog->objects[i].name);
        if (!is_there)
            continue;
        is_placed = true;
        withdraw_checks(salvaging, i);
    }
    if (!is_named && !is_placed)
        withdraw_checks(salvaging, CATALOG_NONE);
    return status;
}

/* Stored checksums that only the driver knows. */
static reshard_status verify_by_driver(struct salvaging *salvaging, reshard_error *err)
{
    struct source *source = salvaging->checkpoint->source;
    const struct catalog *catalog = source->catalog;
    reshard_error seen = { 0 };
    uint32_t before = catalog->warning_count;
    reshard_status status = source_verify(source, false, &seen);
    if (status)
        finding_report(salvaging->findings, FINDING_WARNING, "damage", (struct str){ 0 }, "%s", seen.message);
    reshard_status taken = RESHARD_OK;
    for (uint32_t i = before; i < catalog->warning_count && !taken; i++)
        if (catalog->warnings[i].is_damage)
            taken = take_damage(salvaging, &catalog->warnings[i], err);
    if (status || catalog->warnings_dropped)
        withdraw_checks(salvaging, CATALOG_NONE);
    return taken;
}

static reshard_status check_payload(struct salvaging *salvaging, reshard_error *err)
{
    struct source *source = salvaging->checkpoint->source;
    struct finding_sink sink = { .receive = take_finding, .context = salvaging };
    reshard_status status = verify_by_driver(salvaging, err);
    if (!status)
        status = payload_check(source, NULL, NULL, NULL, salvaging->engine, &sink, err);
    for (uint32_t i = 0; !status && i < source->catalog->tensor_count; i++)
        settle_tensor(salvaging, i);
    return status ? status : sidecar_verify(salvaging->checkpoint, salvaging->lost_tensors, NULL, salvaging->engine, &sink,
                                            &salvaging->cover, err);
}

/* ---- items ---- */

struct item_walk {
    const struct salvaging *salvaging;
    bool is_lost;
};

static bool note_lost_storage(const struct value *value, void *context)
{
    struct item_walk *walk = context;
    uint32_t count = walk->salvaging->checkpoint->source->catalog->tensor_count;
    if (value->kind == VALUE_PERSID && value->storage > 0 && value->storage <= count &&
        walk->salvaging->lost_tensors[value->storage - 1] == IS_LOST)
        walk->is_lost = true;
    return !walk->is_lost;
}

static bool item_is_lost(struct salvaging *salvaging, uint32_t index, const char **why, reshard_error *seen)
{
    struct source *source = salvaging->checkpoint->source;
    const struct catalog_item *item = &source->catalog->items[index];
    struct item_walk walk = { salvaging, false };
    work_renew(&source->work);
    if (item->kind != ITEM_FILE && item->kind != ITEM_RAW && source_load_item(source, index, seen)) {
        *why = seen->message;
        return true;
    }
    *why = "its bytes go against their checksum";
    if (salvaging->lost_items[index])
        return true;
    item = &source->catalog->items[index];
    *why = "a storage in it is lost";
    if (item->value && item->graph && source->driver->abilities & FORMAT_ITEMS_NAME_TENSORS)
        value_walk(item->value, item->graph->count, NULL, note_lost_storage, &walk, NULL);
    return walk.is_lost;
}

/* What speaks against names and places; NULL: they are the checkpoint's own. */
static const char *foreign_places(const struct salvaging *salvaging)
{
    if (salvaging->has_sibling)
        return "its name and place are the sibling's";
    return salvaging->is_rebuilt ? "its shape and place are those of the only file that has it" : NULL;
}

static void look_at_items(struct salvaging *salvaging)
{
    const char *foreign = foreign_places(salvaging);
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        reshard_error seen = { 0 };
        const char *why;
        struct str key = catalog->items[i].key;
        if (salvaging->lost_items[i] == IS_LEFT_OUT)
            continue;
        bool is_lost = item_is_lost(salvaging, i, &why, &seen);
        bool is_checked = catalog->items[i].is_checked || (salvaging->cover.items && salvaging->cover.items[i]);
        bool is_proved = is_checked && !foreign;
        salvaging->lost_items[i] = is_lost;
        salvaging->counts->items++;
        salvaging->counts->lost_items += is_lost;
        salvaging->counts->proved_items += !is_lost && is_proved;
        salvaging->counts->unproved_items += !is_lost && !is_proved;
        if (is_lost)
            finding_report(salvaging->findings, FINDING_FAILURE, "lost-item", key, "%s", why);
        else if (!is_proved)
            finding_report(salvaging->findings, FINDING_NOTE, "unproved-item", key, "%s%s",
                           is_checked ? "it agrees with a checksum, " : "no checksum covers it", is_checked ? foreign : "");
    }
}

/* ---- the result ---- */

static void tell_unproved(struct salvaging *salvaging)
{
    const char *foreign = foreign_places(salvaging);
    const struct checkpoint *checkpoint = salvaging->checkpoint;
    const struct catalog *catalog = checkpoint->source->catalog;
    struct salvage_counts *counts = salvaging->counts;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        uint32_t tensor = checkpoint->listed[i];
        if (salvaging->lost_tensors[tensor] == IS_LEFT_OUT)
            continue;
        counts->tensors++;
        counts->lost_tensors += salvaging->lost_tensors[tensor] == IS_LOST;
        if (salvaging->lost_tensors[tensor])
            continue;
        bool is_checked = verify_is_checked(catalog, tensor, &salvaging->cover);
        bool is_proved = is_checked && !foreign;
        counts->proved_tensors += is_proved;
        counts->unproved_tensors += !is_proved;
        if (!is_proved)
            finding_report(salvaging->findings, FINDING_NOTE, "unproved", catalog->tensors[tensor].key, "%s%s",
                           is_checked ? "its values agree with a checksum, " : "no checksum covers its values", is_checked ? foreign : "");
    }
    if (!catalog->names_are_checked && !salvaging->cover.items)
        finding_report(salvaging->findings, FINDING_NOTE, "unproved-names", (struct str){ 0 },
                       "no checksum covers names, shapes, types and places");
}

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
    struct conversion conversion;
    const struct conversion_options convert = {
        .to = options->to ? options->to : driver->name,
        .like = salvaging->has_sibling && !options->to ? options->like : NULL,
        .open = options->open,
        .selection = { .lost_tensors = salvaging->lost_tensors, .lost_items = salvaging->lost_items },
        .max_shard_bytes = -1,
        .overwrite = options->overwrite,
        .no_sync = options->no_sync,
        .map = &map,
    };
    reshard_status status = check_format(salvaging, err);
    if (!status)
        status = target_check_source(salvaging->checkpoint, target_path, options->overwrite, err);
    if (!status)
        status = conversion_prepare(salvaging->checkpoint, target_path, &convert, salvaging->engine, CONVERSION_TO_RUN, &conversion, err);
    if (status)
        return status;
    status = conversion_run(&conversion, target_path, err);
    conversion_release(&conversion);
    return status;
}

/* Whether the warning names a tensor that is listed as lost, or the place of one. */
static bool is_told(const struct salvaging *salvaging, const struct catalog_warning *warning)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    bool told = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !told; i++)
        told = salvaging->lost_tensors[i] && is_quoted(warning->text, catalog->tensors[i].key);
    for (uint32_t i = 0; i < catalog->chunk_count && !told; i++)
        told = salvaging->lost_tensors[catalog->chunks[i].tensor] && lies_at(salvaging, warning, i);
    return told;
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
        } else if (warning->is_damage && !is_told(salvaging, warning)) {
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
    struct catalog *catalog = salvaging->checkpoint->source->catalog;
    bool is_wanted;
    reshard_status status = key_filter_begin(&salvaging->filter, options->include, options->exclude, err);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        status = key_filter_wants(&salvaging->filter, catalog->tensors[i].key, &is_wanted, err);
        if (!status && !is_wanted) {
            salvaging->lost_tensors[i] = IS_LEFT_OUT;
            close_tensor(catalog, &catalog->tensors[i]);
        }
    }
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        status = key_filter_wants(&salvaging->filter, catalog->items[i].key, &is_wanted, err);
        if (!status && !is_wanted)
            salvaging->lost_items[i] = IS_LEFT_OUT;
    }
    return status;
}

static reshard_status look_through(struct salvaging *salvaging, reshard_error *err)
{
    const struct catalog *catalog = salvaging->checkpoint->source->catalog;
    salvaging->lost_tensors = calloc((size_t)catalog->tensor_count + 1, 1);
    salvaging->lost_items = calloc((size_t)catalog->item_count + 1, 1);
    salvaging->spans = calloc((size_t)catalog->chunk_count + 1, sizeof(*salvaging->spans));
    if (!salvaging->lost_tensors || !salvaging->lost_items || !salvaging->spans)
        return error_set_memory(err);
    reshard_status status = bad_chunks_init(&salvaging->bad, catalog, err);
    if (!status)
        status = salvage_leave_out(salvaging, err);
    if (!status)
        status = look_at_tensors(salvaging, err);
    if (!status)
        status = check_payload(salvaging, err);
    if (status)
        return status;
    look_at_items(salvaging);
    tell_unproved(salvaging);
    status = tell_damage(salvaging, err);
    if (status)
        return status;
    if (salvaging->counts->tensors > 0 && salvaging->counts->lost_tensors == salvaging->counts->tensors)
        return error_set(err, RESHARD_ERR_FORMAT, "no tensor can be recovered");
    return finding_sink_status(salvaging->findings, err);
}

reshard_status salvage_run(const char *path, const char *target_path, const struct salvage_options *options,
                           const struct engine_options *engine, struct finding_sink *findings, struct salvage_counts *counts,
                           reshard_error *err)
{
    struct salvaging salvaging = { .options = options, .engine = engine, .findings = findings, .counts = counts };
    *counts = (struct salvage_counts){ 0 };
    reshard_status status = open_damaged(&salvaging, path, err);
    if (!status)
        status = look_through(&salvaging, err);
    if (!status)
        status = write_rest(&salvaging, target_path, err);
    bool is_lost = counts->lost_tensors > 0 || counts->lost_items > 0 ||
                   (salvaging.checkpoint && salvaging.checkpoint->source->catalog->has_unnamed_loss);
    sidecar_cover_release(&salvaging.cover);
    key_filter_release(&salvaging.filter);
    checkpoint_close(salvaging.checkpoint);
    free(salvaging.lost_tensors);
    free(salvaging.lost_items);
    free(salvaging.spans);
    bad_chunks_release(&salvaging.bad);
    return status ? status : is_lost ? RESHARD_DIFFERS : RESHARD_OK;
}
