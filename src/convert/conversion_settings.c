/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a model that gets other names: config.json of the arguments of a run, or these of config.json. */
#include "convert/conversion.h"
#include "parallel/training_args.h"

#include <inttypes.h>

#define CONFIG_KEY "config.json"
#define ARGUMENTS_KEY "args"

static bool has_item(const struct catalog *catalog, const char *key)
{
    return catalog_find_item(catalog, str_of(key)) != CATALOG_NONE;
}

/* ---- what the tensors tell ---- */

/* The type that most bytes of numbers with fractions have. */
static enum dtype main_type(const struct catalog *wanted)
{
    uint64_t bytes[DTYPE_COUNT] = { 0 };
    enum dtype main = DTYPE_COUNT;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        uint64_t size = catalog_tensor_bytes(wanted, tensor);
        if (tensor->flags & TENSOR_HIDDEN || dtype_info(tensor->dtype)->class_ != DTYPE_CLASS_FLOAT)
            continue;
        bytes[tensor->dtype] += size;
        if (main == DTYPE_COUNT || bytes[tensor->dtype] > bytes[main])
            main = tensor->dtype;
    }
    return main;
}

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

static reshard_status add_made_text(struct conversion *conversion, struct str text, reshard_error *err)
{
    struct value_graph graph = { 0 };
    graph.root = value_new(&graph, VALUE_BYTES);
    if (!graph.root || !arena_str(&graph.arena, text, &graph.root->text)) {
        value_graph_release(&graph);
        return error_set_memory(err);
    }
    return add_made_item(conversion, CONFIG_KEY, &graph, err);
}

static reshard_status conversion_settings_add_config(struct conversion *conversion, const struct model_facts *facts, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    struct target *target = &conversion->target;
    struct settings_result made = { 0 };
    struct buffer text = { 0 };
    if (settings->config) {
        reshard_status status = add_made_text(conversion, (struct str){ settings->config, settings->config_size }, err);
        return status ? status : target_note_changed(target, NOTE_CONFIG, STR(CONFIG_KEY), err, "as it was given");
    }
    if (settings->remark)
        return target_note_changed(target, NOTE_CONFIG, (struct str){ 0 }, err, "%s", settings->remark);
    reshard_status status = model_settings_run(settings, facts, &made, err);
    if (!status)
        status = print_config(made.members, &conversion->request.limits, &text, err);
    if (!status)
        status = add_made_text(conversion, buffer_str(&text), err);
    if (!status)
        status = target_note_changed(target, NOTE_CONFIG, STR(CONFIG_KEY), err,
                                     "made of the arguments of the run (" ARGUMENTS_KEY "), as a '%.*s'", STR_ARG(settings->family));
    if (!status && made.missing.size)
        status = target_note_changed(
            target, NOTE_CONFIG, STR(CONFIG_KEY), err,
            "no argument tells %.*s: defaults count unless reshard_map_options.constants NAME=NUMBER or you write them there",
            STR_ARG(buffer_str(&made.missing)));
    if (!status)
        status = warn_of_settings(conversion, CONFIG_KEY, err);
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
        status = target_note_changed(&conversion->target, NOTE_CONFIG, STR(ARGUMENTS_KEY), err, "made of " CONFIG_KEY ", as a '%.*s'",
                                     STR_ARG(settings->family));
    if (!status && made.unused.size)
        status = note_add(&conversion->losses, &conversion->notes, NOTE_CONFIG, STR(CONFIG_KEY), err, "no argument says %.*s",
                          STR_ARG(buffer_str(&made.unused)));
    if (!status)
        status = warn_of_settings(conversion, ARGUMENTS_KEY, err);
    settings_result_release(&made);
    return status;
}

reshard_status conversion_add_settings(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    const struct catalog *wanted = conversion->selection.wanted;
    reshard_status status = RESHARD_OK;
    if (settings && settings->kept_rows)
        status = target_note_changed(&conversion->target, NOTE_VOCABULARY, (struct str){ 0 }, err,
                                     "the vocabulary has %" PRId64 " tokens: the rows behind them are padding and stay behind",
                                     settings->kept_rows);
    if (status || !settings || conversion->options->selection.drop_items)
        return status;
    const struct model_facts facts = { .dtype = main_type(wanted),
                                       .vocabulary_rows = vocabulary_rows(wanted, model_settings_embedding(settings)),
                                       .tensor_ranks = layout_number(&conversion->request, "tp") };
    if (settings->is_config_made)
        return driver->abilities & FORMAT_HOLDS_CONFIG && !has_item(wanted, CONFIG_KEY)
                   ? conversion_settings_add_config(conversion, &facts, err)
                   : RESHARD_OK;
    bool is_run = !(driver->abilities & FORMAT_HOLDS_CONFIG) && driver->abilities & FORMAT_HOLDS_ITEMS;
    return is_run && settings->members && !has_item(wanted, ARGUMENTS_KEY) ? add_arguments(conversion, &facts, err) : RESHARD_OK;
}
