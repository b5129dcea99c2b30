/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/conversion.h"
#include "base/array.h"
#include "convert/checkpoint_view.h"

#include "convert/conversion_second.h"
#include "convert/fused_check.h"
#include "convert/header_items.h"
#include "convert/model_check.h"
#include "convert/naming_memo.h"
#include "convert/scale_check.h"
#include "convert/sidecar.h"
#include "convert/target_check.h"
#include "convert/tied_states.h"
#include "formats/preview.h"

#include <inttypes.h>
#include <stdlib.h>

reshard_status conversion_format(const char *to, const struct checkpoint *otherwise, const struct format_driver **out, reshard_error *err)
{
    if (!to && !otherwise) {
        error_set(err, RESHARD_ERR_USAGE, "neither a target format nor a reference is given");
        error_hint(err, "say reshard_convert_options.to FORMAT or reshard_convert_options.like REFERENCE");
        return RESHARD_ERR_USAGE;
    }
    const struct format_driver *driver = to ? format_driver_find(to) : otherwise->source->driver;
    if (!driver) {
        error_set(err, RESHARD_ERR_USAGE, "unknown format '%s'", to);
        error_hint(err, "reshard_format_at() lists them");
        return RESHARD_ERR_USAGE;
    }
    if (!(driver->abilities & FORMAT_WRITES)) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "format '%s' is read only", driver->name);
        error_hint(err, "reshard_format_at() says which formats can be written");
        return RESHARD_ERR_UNSUPPORTED;
    }
    *out = driver;
    return RESHARD_OK;
}

reshard_status conversion_driver(const struct conversion *conversion, const struct format_driver **out, reshard_error *err)
{
    return conversion_format(conversion->options->to, conversion->like, out, err);
}

/* The destination's last path component, without trailing slashes. */
static char *conversion_base_name(const char *path)
{
    return str_copy(str_base_name(str_without_slashes(str_of(path))));
}

/* Formats may store nothing of a tensor without elements, and keep it all the same. */
bool conversion_stores(const struct conversion *conversion, uint32_t wanted)
{
    const struct catalog *target = conversion->target.catalog;
    const struct catalog_tensor *tensor = &target->tensors[wanted];
    bool is_empty = box_volume(tensor->rank, catalog_vector_at(target, tensor->shape)) == 0 && !(tensor->flags & TENSOR_HIDDEN);
    return tensor->chunk_count || is_empty;
}

static reshard_status conversion_make_recipes(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    const struct recipe_table *table = &conversion->selection.table;
    conversion->recipes = array_zeroed(table->count, sizeof(*conversion->recipes));
    if (!conversion->recipes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        if (!target->tensors[i].chunk_count)
            continue;
        for (uint32_t r = table->first[i]; r < table->first[i + 1]; r++)
            conversion->recipes[conversion->recipe_count++] = table->recipes[r];
    }
    return RESHARD_OK;
}

/* The payload of the tensors that recipes read, each once. */
static reshard_status resolve_read(const struct conversion *conversion, reshard_error *err)
{
    uint32_t *tensors, count;
    reshard_status status = recipes_read(conversion->recipes, conversion->recipe_count,
                                         conversion->source->source->catalog->tensor_count, &tensors, &count, err);
    if (!status)
        status = source_resolve(conversion->source->source, tensors, count, err);
    free(tensors);
    return status;
}

static reshard_status open_like(struct conversion *conversion, reshard_error *err)
{
    const struct conversion_options *options = conversion->options;
    if (!options->like)
        return RESHARD_OK;
    reshard_status status = checkpoint_open(options->like, &options->open, &conversion->like, err);
    if (status)
        error_prefix(err, "reference");
    return status;
}

static reshard_status tied_note(struct conversion *conversion, struct selected_names *names, const struct tied_state *tied,
                                reshard_error *err)
{
    struct str key = conversion->source->source->catalog->tensors[tied->tensor].key;
    bool is_wanted;
    reshard_status status = key_filter_wants(&names->filter, tied->key, &is_wanted, err);
    if (status || !is_wanted)
        return status;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_TIE, tied->key, err,
                    "has the values of '%.*s', whose weight is the same: the source has one state for both", STR_ARG(key));
}

/* Marks what the reference has once, and is the same, as not to be selected. */
static reshard_status spare_note(struct conversion *conversion, const struct spare_state *spare, uint8_t *is_left_out, reshard_error *err)
{
    const struct catalog_tensor *tensors = conversion->source->source->catalog->tensors;
    struct str key = tensors[spare->tensor].key, kept = tensors[spare->kept].key;
    if (!spare->is_same)
        return note_add(&conversion->warnings, &conversion->notes, NOTE_TIE, key, err,
                        "is written, though the reference has one state for this and '%.*s': in the source they are not the same",
                        STR_ARG(kept));
    is_left_out[spare->tensor] = 1;
    return note_add(&conversion->losses, &conversion->notes, NOTE_TIE, key, err,
                    "the same as '%.*s', which is the one state of both in the reference", STR_ARG(kept));
}

/* *is_left_out: by tensor of the source, what is lost, and what is spare; NULL if nothing is spare. */
static reshard_status spare_states_leave_out(struct conversion *conversion, const struct selected_names *names, uint8_t **is_left_out,
                                             reshard_error *err)
{
    const uint8_t *lost = conversion->options->selection.lost_tensors;
    uint32_t count = 0, tensor_count = conversion->source->source->catalog->tensor_count;
    struct spare_state *spare = NULL;
    reshard_status status = spare_states_find(conversion->source, names, conversion->named, &conversion->engine, &spare, &count, err);
    if (!status && count) {
        *is_left_out = array_zeroed(tensor_count, sizeof(**is_left_out));
        status = *is_left_out ? RESHARD_OK : error_set_memory(err);
    }
    if (!status && count && lost)
        memcpy(*is_left_out, lost, tensor_count);
    for (uint32_t i = 0; i < count && !status; i++)
        status = spare_note(conversion, &spare[i], *is_left_out, err);
    free(spare);
    return status;
}

/* In memory what a mapping leaves is what was there; a file has nothing. */
static reshard_status unfilled_note(struct conversion *conversion, const struct unfilled *unfilled, reshard_error *err)
{
    const struct catalog *wanted = conversion->selection.wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[unfilled->tensor];
    int64_t elements = box_volume(tensor->rank, catalog_vector_at(wanted, tensor->shape));
    if (unfilled->elements == elements)
        return note_add(&conversion->warnings, &conversion->notes, NOTE_MISSING, tensor->key, err,
                        "filled with zeros, as the mapping makes nothing of it: "
                        "reshard_convert_options.missing says what else it is to be");
    return note_add(&conversion->warnings, &conversion->notes, NOTE_MISSING, tensor->key, err,
                    "%" PRId64 " of its %" PRId64
                    " elements are filled with zeros, as the mapping removes what they come from: "
                    "reshard_convert_options.missing says what else they are to be",
                    unfilled->elements, elements);
}

/* The reference may want states under each of two names that are one weight in the source, or have one for both. */
static reshard_status conversion_relate_ties(struct conversion *conversion, const struct selection_options *options,
                                             struct tied_state **tied, uint32_t *tied_count, uint8_t **is_left_out, reshard_error *err)
{
    struct checkpoint *source = conversion->source;
    const struct catalog *reference = conversion->named->source->catalog;
    struct selected_names names;
    reshard_status status = selected_names_make(source->source->catalog, options, &names, err);
    if (!status)
        status = tied_states_find(source, &names, reference, &conversion->engine, tied, tied_count, err);
    if (!status)
        status = spare_states_leave_out(conversion, &names, is_left_out, err);
    for (uint32_t i = 0; i < *tied_count && !status; i++)
        status = tied_note(conversion, &names, &(*tied)[i], err);
    selected_names_release(&names);
    return status;
}

/* Without a reference: for loaders that look for states under each name. */
static reshard_status conversion_tie_each(struct conversion *conversion, struct tied_state **tied, uint32_t *tied_count, reshard_error *err)
{
    const struct catalog_tensor *tensors = conversion->source->source->catalog->tensors;
    reshard_status status = tied_states_of_each(conversion->source, &conversion->engine, tied, tied_count, err);
    for (uint32_t i = 0; i < *tied_count && !status; i++)
        status = note_add(&conversion->warnings, &conversion->notes, NOTE_TIE, tensors[(*tied)[i].weight].key, err,
                          "has a state with the values of '%.*s', whose weight is the same: its loader looks for it under both names",
                          STR_ARG(tensors[(*tied)[i].tensor].key));
    return status;
}

static reshard_status conversion_select(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    struct selection_options options = conversion->options->selection;
    const struct catalog *reference = conversion->named ? conversion->named->source->catalog : NULL;
    struct tied_state *tied = NULL;
    uint8_t *is_left_out = NULL, *items_left_out = NULL;
    struct naming_memo memo;
    reshard_status status = RESHARD_OK;
    options.has_one_master = conversion->has_one_master;
    options.has_flat_state = driver->abilities & FORMAT_STATE_FLAT;
    options.naming = naming_memo_begin(&memo, &conversion->options->selection.naming);
    if (reference && !conversion->mapping.stage)
        status = conversion_relate_ties(conversion, &options, &tied, &options.tied_count, &is_left_out, err);
    if (!reference && conversion->mapping.stage && driver->abilities & FORMAT_STATE_BY_NAME)
        status = conversion_tie_each(conversion, &tied, &options.tied_count, err);
    options.tied = tied;
    options.lost_tensors = is_left_out ? is_left_out : options.lost_tensors;
    options.second = conversion->second.view ? conversion->second.view->source->catalog : NULL;
    if (!status && !options.drop_items)
        status = header_items_leave_out(conversion->source->source, driver, options.lost_items, &conversion->losses, &conversion->notes,
                                        &items_left_out, err);
    options.lost_items = items_left_out ? items_left_out : options.lost_items;
    if (!status)
        status = selection_make(conversion->source->source->catalog, conversion->mapping.stage, driver->name, &options, reference,
                                &conversion->selection, err);
    if (!status)
        status = conversion_rename_ties(conversion, &options, err);
    if (!status)
        status = conversion_remark_lacking(conversion, &options, err);
    for (uint32_t i = 0; i < conversion->selection.unfilled_count && !status; i++)
        status = unfilled_note(conversion, &conversion->selection.unfilled[i], err);
    naming_memo_end(&memo);
    free(tied);
    free(is_left_out);
    free(items_left_out);
    return status;
}

/* Folders may have names of any bytes, keys are texts to every format: what is written with others, nothing opens. */
static reshard_status conversion_check_names(const struct catalog *wanted, reshard_error *err)
{
    size_t bad;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct str key = wanted->tensors[i].key;
        if (str_is_utf8(key, true, &bad))
            continue;
        error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': its name is no Unicode text, byte %zu is 0x%02X", STR_ARG(key), bad,
                  (uint8_t)key.data[bad]);
        error_object(err, "%.*s", STR_ARG(key));
        error_hint(err, "reshard_convert_options.renames gives it a name, reshard_convert_options.exclude leaves it out");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

static reshard_status conversion_lay_out(struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = conversion_driver(conversion, &driver, err);
    if (!status)
        status = request_words_read(conversion->options->format_options, conversion->options->layout, driver, &conversion->said, err);
    if (status)
        return status;
    if (conversion->options->wrap && !(driver->abilities & FORMAT_WRAPS)) {
        error_set(err, RESHARD_ERR_USAGE, "format '%s' flattens no parameters together: wrap says nothing to it", driver->name);
        error_hint(err, "reshard_convert_options.to atorch does");
        return RESHARD_ERR_USAGE;
    }
    if (conversion->options->max_shard_bytes > 0 && !(driver->abilities & FORMAT_LIMITS_FILES)) {
        error_set(err, RESHARD_ERR_USAGE, "format '%s' has the files that its layout says: %s says nothing to it", driver->name,
                  "reshard_convert_options.max_shard_bytes");
        error_hint(err, "reshard_convert_options.to hf writes as many files as that takes");
        return RESHARD_ERR_USAGE;
    }
    status = conversion_map_names(conversion, driver, err);
    if (!status)
        status = conversion_select(conversion, driver, err);
    if (!status)
        status = conversion_check_names(conversion->selection.wanted, err);
    if (status)
        return status;
    conversion->file_name = conversion_base_name(target_path ? target_path : "checkpoint");
    conversion->target.driver = driver;
    conversion->target.catalog = catalog_new(driver->name);
    if (!conversion->file_name || !conversion->target.catalog)
        return error_set_memory(err);
    conversion->target.catalog->limits = conversion->source->source->limits;
    conversion->target.catalog->limits.budget = NULL; /* how finely the target is cut is the caller's choice, not the input's */
    struct layout_request *request = &conversion->request;
    *request = (struct layout_request){
        .wanted = conversion->selection.wanted,
        .wanted_source = conversion->selection.wanted_source,
        .wanted_items = conversion->selection.wanted_items,
        .is_whole = conversion->selection.is_whole,
        .by_writer = conversion->options->by_writer,
        .like = conversion->like && conversion->like->source->driver == driver ? conversion->like->source : NULL,
        .max_shard_bytes = conversion->options->max_shard_bytes,
        .wrap = conversion->options->wrap,
        .file_name = conversion->file_name,
        .ranks = conversion->said.ranks,
        .words = conversion->said.words,
        .options = conversion->said.options,
        .limits = conversion->source->source->limits,
    };
    layout_of_source(request, conversion->source->source);
    status = conversion_add_settings(conversion, driver, err);
    if (!status)
        status = conversion_add_torch_state(conversion, err);
    if (status)
        return status;
    status = work_explain(request->limits.budget, driver->lay_out(request, &conversion->target, err), err);
    if (status)
        return status;
    return target_seal(&conversion->target, err);
}

/* What shows before anything is looked at. */
static reshard_status conversion_check(struct checkpoint *source, const struct conversion_options *options,
                                       enum conversion_purpose purpose, reshard_error *err)
{
    reshard_status status = purpose == CONVERSION_TO_RUN ? preview_refuse(source->source, err) : RESHARD_OK;
    if (!status)
        status = checkpoint_is_whole(source, err);
    if (!status && options->checksum)
        status = sidecar_digest_check(options->checksum, err);
    return status;
}

static reshard_status conversion_remark(struct conversion *conversion, reshard_error *err)
{
    reshard_status status = conversion_remark_root(conversion, err);
    if (!status)
        status = conversion_remark_parts(conversion, err);
    return status ? status : conversion_remark_state(conversion, err);
}

reshard_status conversion_prepare(struct checkpoint *source, const char *target_path, const struct conversion_options *options,
                                  const struct engine_options *engine, enum conversion_purpose purpose, struct conversion *out,
                                  reshard_error *err)
{
    *out = (struct conversion){ .source = source, .options = options, .engine = *engine };
    out->engine.no_sync = options->no_sync;
    reshard_status status = conversion_check(source, options, purpose, err);
    if (!status)
        status = open_like(out, err);
    if (status)
        goto out;
    status = conversion_relate_state(out, err);
    if (!status)
        status = conversion_respell_state(out, err);
    if (!status)
        status = conversion_paddle_state(out, err);
    if (!status)
        status = conversion_pair(out, &out->source, err);
    if (status)
        goto out;
    status = second_open(out, err);
    if (status)
        goto out;
    status = conversion_lay_out(out, target_path, err);
    if (status)
        goto out;
    status = conversion_note_pairs(out, err);
    if (!status)
        status = conversion_make_recipes(out, err);
    if (!status)
        status = conversion_count(out, err);
    if (!status)
        status = conversion_remark(out, err);
    if (!status && out->selection.borrowed_count)
        status = second_join(out, purpose == CONVERSION_TO_RUN, err);
    if (!status)
        status = fused_check(out, err);
    if (!status)
        status = scale_check(out, err);
    if (!status)
        status = model_check(out, err);
    if (!status)
        status = model_check_tied(out, err);
    if (!status && purpose == CONVERSION_TO_RUN && !out->second.joined)
        status = resolve_read(out, err);
    if (status)
        goto out;
    if (purpose == CONVERSION_TO_REPORT && target_path)
        status = target_note(source, out, target_path, err);
    if (!status)
        status = plan_new(conversion_read_catalog(out), out->target.catalog, out->recipes, out->recipe_count, &out->plan, err);

out:
    if (status)
        conversion_release(out);
    return status;
}

/* Formats of folders note the name in a text, if at all, whose size counts; single files may have it in each member's name. */
reshard_status conversion_turn_to(struct conversion *conversion, const char *target_path, const struct conversion_options *options,
                                  const struct engine_options *engine, bool *out, reshard_error *err)
{
    char *name = conversion_base_name(target_path);
    if (!name)
        return error_set_memory(err);
    bool is_folder = conversion->target.driver->abilities & FORMAT_IS_DIRECTORY;
    *out = is_folder ? strlen(name) == strlen(conversion->file_name) : strcmp(name, conversion->file_name) == 0;
    if (*out) {
        free(conversion->file_name);
        conversion->request.file_name = conversion->file_name = name;
        conversion->options = options;
        conversion->request.wrap = options->wrap;
        conversion->engine = *engine;
        conversion->engine.no_sync = options->no_sync;
    } else {
        free(name);
    }
    return RESHARD_OK;
}

void conversion_release(struct conversion *conversion)
{
    plan_free(conversion->plan);
    free(conversion->recipes);
    free(conversion->is_counted);
    target_free(&conversion->target);
    selection_release(&conversion->selection);
    mapping_made_release(&conversion->mapping);
    second_release(conversion);
    note_list_release(&conversion->losses);
    note_list_release(&conversion->warnings);
    arena_release(&conversion->notes);
    request_words_release(&conversion->said);
    checkpoint_close(conversion->respelled);
    checkpoint_close(conversion->like);
    free(conversion->file_name);
    *conversion = (struct conversion){ 0 };
}

uint64_t conversion_memory(const struct conversion *conversion)
{
    const struct plan *plan = conversion->plan;
    return engine_memory_estimate(plan, &conversion->engine) + catalog_memory(conversion_read_catalog(conversion)) +
           catalog_memory(conversion->target.catalog) + (uint64_t)plan->step_capacity * sizeof(*plan->steps) +
           (uint64_t)plan->vector_capacity * sizeof(int64_t);
}
