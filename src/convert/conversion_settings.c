/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a model that gets other names: config.json of the arguments of a run, or these of config.json. */
#include "convert/conversion.h"

#include "convert/model_config.h"
#include "parallel/training_args.h"

#include <inttypes.h>

#define ARGUMENTS_KEY "args"

static bool has_item(const struct catalog *catalog, const char *key)
{
    return catalog_find_item(catalog, str_of(key)) != CATALOG_NONE;
}

/* ---- what the tensors tell ---- */

static int64_t vocabulary_rows(const struct catalog *wanted, struct str key)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        if (str_equal(wanted->tensors[i].key, key) && wanted->tensors[i].rank > 0)
            return catalog_vector_at(wanted, wanted->tensors[i].shape)[0];
    }
    return 0;
}

/* ---- the item ---- */

/* Adds an item to those that are wanted, which no source has. The graph is taken over, also on failure. */
static reshard_status add_made_item(struct conversion *conversion, const char *key, struct value_graph *graph, reshard_error *err)
{
    struct catalog *wanted = conversion->selection.wanted;
    struct catalog_item item = { .key = str_of(key), .kind = ITEM_VALUE };
    uint32_t index;
    struct value_graph *kept = catalog_adopt_graph(wanted, *graph);
    *graph = (struct value_graph){ 0 };
    if (!kept)
        return error_set_memory(err);
    item.value = kept->root;
    item.graph = kept;
    reshard_status status = catalog_add_item(wanted, &item, NULL, 0, &index, err);
    if (!status)
        conversion->selection.wanted_items[index] = CATALOG_NONE;
    return status;
}

/* What a configuration that was made cannot say. */
static reshard_status warn_of_settings(struct conversion *conversion, const char *key, reshard_error *err)
{
    const struct str warning = conversion->mapping.settings->settings.warning;
    return warning.size ? note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, str_of(key), err, "%.*s", STR_ARG(warning))
                        : RESHARD_OK;
}

/* ---- config.json ---- */

/* As Transformers writes it: a member a line. */
static reshard_status print_config(const struct value *members, const struct limits *limits, struct buffer *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    buffer_append_text(out, "{\n");
    for (size_t i = 0; i + 1 < members->list.count && !status; i += 2) {
        buffer_append_text(out, "  ");
        buffer_append_json_string(out, members->list.items[i]->text);
        buffer_append_text(out, ": ");
        status = value_to_python_json(members->list.items[i + 1], out, NAMED_LIMIT(limits, json_bytes), err);
        buffer_append_text(out, i + 2 < members->list.count ? ",\n" : "\n");
    }
    buffer_append_text(out, "}\n");
    return status || !out->failed ? status : error_set_memory(err);
}

static reshard_status conversion_settings_add_config(struct conversion *conversion, const struct model_facts *facts, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    struct target *target = &conversion->target;
    struct settings_result made = { 0 };
    struct buffer text = { 0 };
    if (settings->config) {
        reshard_status status = model_config_put(conversion, (struct str){ settings->config, settings->config_size }, err);
        return status ? status : target_note_changed(target, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err, "as it was given");
    }
    if (settings->remark)
        return target_note_changed(target, NOTE_CONFIG, (struct str){ 0 }, err, "%s", settings->remark);
    reshard_status status = model_settings_run(settings, facts, &made, err);
    if (!status)
        status = print_config(made.members, &conversion->request.limits, &text, err);
    if (!status)
        status = model_config_put(conversion, buffer_str(&text), err);
    if (!status)
        status = target_note_changed(target, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err,
                                     "made of the arguments of the run (" ARGUMENTS_KEY "), as a '%.*s'", STR_ARG(settings->family));
    if (!status && made.missing.size)
        status = target_note_changed(
            target, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err,
            "no argument tells %.*s: defaults count unless reshard_map_options.constants NAME=NUMBER or you write them there",
            STR_ARG(buffer_str(&made.missing)));
    if (!status)
        status = warn_of_settings(conversion, MODEL_CONFIG_KEY, err);
    buffer_release(&text);
    settings_result_release(&made);
    return status;
}

/* ---- arguments ---- */

static reshard_status add_arguments(struct conversion *conversion, const struct model_facts *facts, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    struct settings_result made = { 0 };
    if (settings->remark)
        return target_note_changed(&conversion->target, NOTE_CONFIG, (struct str){ 0 }, err, "%s", settings->remark);
    reshard_status status = model_settings_run(settings, facts, &made, err);
    if (!status && !(made.graph.root = namespace_new(&made.graph, made.members)))
        status = error_set_memory(err);
    if (!status)
        status = add_made_item(conversion, ARGUMENTS_KEY, &made.graph, err);
    if (!status)
        status = target_note_changed(&conversion->target, NOTE_CONFIG, STR(ARGUMENTS_KEY), err, "made of " MODEL_CONFIG_KEY ", as a '%.*s'",
                                     STR_ARG(settings->family));
    if (!status && made.unused.size)
        status = note_add(&conversion->losses, &conversion->notes, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err, "no argument says %.*s",
                          STR_ARG(buffer_str(&made.unused)));
    if (!status)
        status = warn_of_settings(conversion, ARGUMENTS_KEY, err);
    settings_result_release(&made);
    return status;
}

/* Files beside the weights are what loaders look for: without them nothing is gone in silence. */
static reshard_status note_dropped_files(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct catalog *source = conversion->source->source->catalog;
    const struct model_settings *settings = conversion->mapping.settings;
    const bool is_unmade = settings && settings->is_config_made && driver->abilities & FORMAT_HOLDS_CONFIG;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < source->item_count && !status; i++) {
        if (source->items[i].kind == ITEM_FILE)
            status = note_add(&conversion->losses, &conversion->notes, NOTE_ITEMS, source->items[i].key, err,
                              "a file beside the weights, which reshard_convert_options.drop_items leaves out");
    }
    if (!status && is_unmade && !has_item(source, MODEL_CONFIG_KEY))
        status = note_add(&conversion->losses, &conversion->notes, NOTE_ITEMS, STR(MODEL_CONFIG_KEY), err,
                          "not made, as reshard_convert_options.drop_items leaves it out");
    return status;
}

/* What the settings of a model whose names change make for the target. */
static reshard_status conversion_make_settings(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    const struct catalog *wanted = conversion->selection.wanted;
    const struct model_facts facts = { .dtype = model_config_main_type(wanted),
                                       .vocabulary_rows = vocabulary_rows(wanted, model_settings_embedding(settings)),
                                       .tensor_ranks = layout_number(&conversion->request, "tp") };
    if (settings->is_config_made)
        return driver->abilities & FORMAT_HOLDS_CONFIG && !has_item(wanted, MODEL_CONFIG_KEY)
                   ? conversion_settings_add_config(conversion, &facts, err)
                   : RESHARD_OK;
    bool is_run = !(driver->abilities & FORMAT_HOLDS_CONFIG) && driver->abilities & FORMAT_HOLDS_ITEMS;
    return is_run && settings->members && !has_item(wanted, ARGUMENTS_KEY) ? add_arguments(conversion, &facts, err) : RESHARD_OK;
}

reshard_status conversion_add_settings(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    bool is_given = false;
    reshard_status status = RESHARD_OK;
    if (settings && settings->kept_rows)
        status = target_note_changed(&conversion->target, NOTE_VOCABULARY, (struct str){ 0 }, err,
                                     "the vocabulary has %" PRId64 " tokens: the rows behind them are padding and stay behind",
                                     settings->kept_rows);
    if (!status)
        status = model_config_take_given(conversion, &is_given, err);
    if (!status && conversion->options->selection.drop_items)
        return note_dropped_files(conversion, driver, err);
    if (!status)
        status = model_config_follow_types(conversion, err);
    return !status && settings && !is_given ? conversion_make_settings(conversion, driver, err) : status;
}
