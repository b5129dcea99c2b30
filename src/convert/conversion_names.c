/* SPDX-License-Identifier: Apache-2.0 */
/* The mapping of a conversion, and what is said of the names that come of it. */
#include "convert/conversion.h"

#include "convert/model_check.h"

static const char *target_names(struct conversion *conversion, const struct format_driver *driver)
{
    struct layout_request request = { .like = conversion->like ? conversion->like->source : NULL, .options = conversion->said.options };
    layout_of_source(&request, conversion->source->source);
    return driver->target_names ? driver->target_names(&request) : driver->name_space;
}

/* A folder for Transformers takes any names, and loads with its own: who asked for nothing is told that these are others. */
static reshard_status note_foreign_names(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct mapping_options *map = conversion->options->map;
    const char *own = conversion->source->source->driver->name_space;
    const bool is_said = map && (map->rules || map->rules_text || map->text_count);
    if (!(driver->abilities & FORMAT_HOLDS_CONFIG) || mapping_is_container(own) || is_said || conversion->like)
        return RESHARD_OK;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_NAMES, (struct str){ 0 }, err,
                    "names stay those of %s, which from_pretrained does not know: "
                    "reshard_map_options.rules auto makes them those of Hugging Face, with a config.json",
                    own);
}

/* ---- prefixes that come off too late ---- */

/* What a mapping says, until it is known whether that is what is wrong. */
struct held_diagnoses {
    struct buffer text;
    size_t error_count;
    bool is_said;
};

static void diagnoses_hold(const char *diagnoses, size_t error_count, void *context)
{
    struct held_diagnoses *held = context;
    held->is_said = buffer_append_text(&held->text, diagnoses);
    held->error_count += error_count;
}

static void diagnoses_give(struct held_diagnoses *held, const struct mapping_options *map)
{
    if (held->is_said && map->diagnose && buffer_append_byte(&held->text, '\0'))
        map->diagnose((const char *)held->text.data, held->error_count, map->context);
}

/* Whether names begin with what is to be taken off, behind the mapping that looks for them without it. */
static bool has_stripped_names(const struct conversion *conversion)
{
    const char *prefix = conversion->options->selection.naming.strip_prefix;
    const struct catalog *catalog = conversion->source->source->catalog;
    for (uint32_t i = 0; prefix && i < catalog->tensor_count; i++) {
        if (!(catalog->tensors[i].flags & TENSOR_HIDDEN) && str_starts_with(catalog->tensors[i].key, prefix))
            return true;
    }
    return false;
}

#define STRIP_FIRST "convert to hf with it first, then that to the format that is wanted"

static reshard_status fail_stripped(const struct conversion *conversion, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE,
              "reshard_map_options.rules: names begin with '%s', which reshard_convert_options.strip_prefix takes off behind them",
              conversion->options->selection.naming.strip_prefix);
    error_hint(err, STRIP_FIRST);
    return RESHARD_ERR_USAGE;
}

/* Runs the mapping; where a family was asked for that only a prefix hides, that is the error, and not each statement that finds nothing. */
static reshard_status related_names_make(struct conversion *conversion, struct mapping_request *request, reshard_error *err)
{
    const struct mapping_options *given = request->options;
    const bool is_asked = given && (given->rules || given->rules_text) && !given->text_count, is_hidden = has_stripped_names(conversion);
    struct held_diagnoses held = { 0 };
    struct mapping_options asking = { 0 };
    if (is_asked && is_hidden) {
        asking = *given;
        asking.diagnose = diagnoses_hold;
        asking.context = &held;
        request->options = &asking;
    }
    reshard_status status = mapping_make(request, &conversion->mapping, err);
    const bool is_diagnosed = status == RESHARD_ERR_USAGE && held.error_count;
    if (is_diagnosed)
        status = fail_stripped(conversion, err);
    else
        diagnoses_give(&held, given);
    if (status == RESHARD_ERR_USAGE && !is_diagnosed && is_asked && is_hidden)
        error_hint(err, "names are recognised before reshard_convert_options.strip_prefix: " STRIP_FIRST);
    buffer_release(&held.text);
    if (status || !is_hidden || !conversion->mapping.warning)
        return status;
    return note_add(&conversion->warnings, &conversion->notes, NOTE_NAMES, (struct str){ 0 }, err,
                    "names are recognised before reshard_convert_options.strip_prefix takes '%s' off: " STRIP_FIRST,
                    conversion->options->selection.naming.strip_prefix);
}

reshard_status conversion_map_names(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    struct mapping_request request = {
        .source = conversion->source->source,
        .other = conversion->like ? conversion->like->source : NULL,
        .target_names = target_names(conversion, driver),
        .options = conversion->options->map,
        .wants_torch_words = conversion->has_megatrons_words,
        .torch_prefix = conversion->torch_prefix,
        .check_model = model_check_source,
        .context = conversion,
    };
    reshard_status status = related_names_make(conversion, &request, err);
    if (!status)
        status = note_foreign_names(conversion, driver, err);
    if (!status)
        status = conversion_note_unmapped(conversion, err);
    if (!status && conversion->mapping.stage)
        status =
            mapping_losses(conversion->mapping.stage, conversion->source->source->catalog, &conversion->notes, &conversion->losses, err);
    return status;
}
