/* SPDX-License-Identifier: Apache-2.0 */
#include "names/model_settings.h"

#include "base/model_data.h"
#include "encoding/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define ARGUMENTS_KEY "args"
#define CONFIG_NAMES "hf"
#define ARGUMENTS_NAMES "megatron"
#define TYPE_NAME "model_type"
#define SUFFIX ".settings"

void model_settings_free(struct model_settings *made)
{
    if (!made)
        return;
    settings_release(&made->settings);
    value_graph_release(&made->parsed);
    value_graph_release(&made->constants);
    free(made->config);
    free(made->remark);
    free(made);
}

bool model_settings_relate(const struct mapping_rules *rules, const struct mapping_relation *relation)
{
    return str_is(rules->nodes[relation->from], CONFIG_NAMES) && str_is(rules->nodes[relation->to], ARGUMENTS_NAMES);
}

/* ---- candidates ---- */

/* Whether a text says that it is of the family, which is quicker to see than to parse all of them. */
static bool names_family(struct str text, struct str family)
{
    while (text.size) {
        struct str line = str_take(&text, '\n');
        if (str_is(str_take_word(&line), "#:") && str_is(str_take_word(&line), "family") && str_equal(str_take_word(&line), family))
            return true;
    }
    return false;
}

/* The settings of a family; *is_known false if there are none. */
static reshard_status load_family(struct str family, struct settings *out, bool *is_known, reshard_error *err)
{
    const struct model_data *data;
    reshard_status status = RESHARD_OK;
    *is_known = false;
    for (uint32_t i = 0; !status && (data = model_data_at(i)); i++) {
        if (*is_known || !str_ends_with(str_of(data->name), SUFFIX) || !names_family(data->text, family))
            continue;
        status = settings_parse(data->name, data->text, out, err);
        *is_known = !status;
    }
    return status;
}

struct choice {
    const struct model_settings_request *request;
    struct settings_input input;
    enum settings_side side;
    struct settings settings[16];  /* of the families that fit */
    struct str families[16];
    uint32_t count;
    struct buffer unfit;           /* why the others do not: "llama: window_size is (3, 0)" */
};

/* The run's arguments say that its tensors are laid out in a way that no text of a family takes apart. */
static reshard_status refuse_settings(struct str why, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, ARGUMENTS_KEY ": %.*s: no model of Hugging Face's families has such weights", STR_ARG(why));
    error_hint(err, "reshard_map_options.rules none keeps names and weights as they are, "
                    "reshard_map_options.texts FILE runs a text of your own");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status consider(struct choice *choice, struct str family, reshard_error *err)
{
    struct settings settings;
    enum settings_verdict verdict = SETTINGS_FIT;
    bool is_known, fits = true;
    struct buffer why = { 0 };
    reshard_status status = load_family(family, &settings, &is_known, err);
    if (status || !is_known)
        return status;
    if (settings.key_count && !mapping_keys_fit(choice->request->walked->left, settings.keys, settings.key_count)) {
        fits = false;
        buffer_append_text(&why, "its tensors have other names");
    } else if (choice->input.members) {
        status = settings_fit(&settings, choice->side, &choice->input, &verdict, &why, err);
        fits = verdict == SETTINGS_FIT;
    }
    if (!status && fits && choice->count < sizeof(choice->families) / sizeof(choice->families[0])) {
        choice->families[choice->count] = family;
        choice->settings[choice->count++] = settings;
    } else {
        buffer_printf(&choice->unfit, "%s%.*s: %.*s", choice->unfit.size ? "; " : "", STR_ARG(family), STR_ARG(buffer_str(&why)));
        settings_release(&settings);
    }
    bool is_said = !why.failed;
    buffer_release(&why);
    return status || is_said ? status : error_set_memory(err);
}

static void drop(struct choice *choice, uint32_t index)
{
    settings_release(&choice->settings[index]);
    choice->count--;
    for (uint32_t i = index; i < choice->count; i++) {
        choice->settings[i] = choice->settings[i + 1];
        choice->families[i] = choice->families[i + 1];
    }
}

static bool gives_way(const struct choice *choice, uint32_t index)
{
    const struct settings *settings = &choice->settings[index];
    for (uint32_t r = 0; r < settings->rather_count; r++) {
        for (uint32_t i = 0; i < choice->count; i++) {
            if (str_equal(choice->families[i], settings->rather[r]))
                return true;
        }
    }
    return false;
}

static void list_families(const struct choice *choice, struct buffer *out)
{
    for (uint32_t i = 0; i < choice->count; i++)
        buffer_printf(out, "%s%.*s", i ? ", " : "", STR_ARG(choice->families[i]));
}

/* The name that was asked for, or that config.json says, is none of those that fit. */
static reshard_status fail_named(const struct choice *choice, struct str named, bool is_asked, reshard_error *err)
{
    struct buffer fit = { 0 };
    list_families(choice, &fit);
    error_set(err, RESHARD_ERR_USAGE, "%s '%.*s', but the model is %s%.*s%s%.*s",
              is_asked ? "reshard_map_options.rules says" : "config.json: model_type is", STR_ARG(named),
              fit.size ? "one of " : "none of the families that its tensors could be", STR_ARG(buffer_str(&fit)),
              choice->unfit.size ? "; " : "", STR_ARG(buffer_str(&choice->unfit)));
    error_hint(err, is_asked ? "reshard_map_options.rules auto takes the family that fits"
                             : "reshard_map_options.rules FAMILY says which it is all the same");
    buffer_release(&fit);
    return RESHARD_ERR_USAGE;
}

/* Several families fit: an error where names were asked to change, else settings are left alone. */
static reshard_status stay_ambiguous(struct choice *choice, reshard_error *err)
{
    struct buffer fit = { 0 };
    reshard_status status = RESHARD_OK;
    list_families(choice, &fit);
    if (choice->request->is_asked) {
        status = error_set(err, RESHARD_ERR_USAGE, "the model may be one of several families: %.*s", STR_ARG(buffer_str(&fit)));
        error_hint(err, "reshard_map_options.rules FAMILY says which");
    } else {
        buffer_printf(&choice->unfit, "%sit may be one of %.*s: reshard_map_options.rules FAMILY says which",
                      choice->unfit.size ? "; " : "", STR_ARG(buffer_str(&fit)));
    }
    buffer_release(&fit);
    return status;
}

/* The family whose settings count: the one that is named, else the only one that fits. UINT32_MAX: none. */
static reshard_status model_settings_choose(struct choice *choice, struct str named, bool is_asked, uint32_t *out, reshard_error *err)
{
    const struct mapping_relation *relation = choice->request->walked->family;
    reshard_status status = RESHARD_OK;
    *out = UINT32_MAX;
    for (uint32_t i = 0; i < relation->family_count && !status; i++)
        status = consider(choice, relation->families[i], err);
    for (uint32_t i = 0; i < choice->count && named.size; i++) {
        if (str_equal(choice->families[i], named))
            *out = i;
    }
    if (!status && choice->unfit.failed)
        status = error_set_memory(err);
    if (status || *out != UINT32_MAX)
        return status;
    if (named.size && choice->request->is_lenient)
        return RESHARD_OK;
    if (named.size && (choice->count || choice->unfit.size))
        return fail_named(choice, named, is_asked, err);
    for (uint32_t i = choice->count; i-- > 0;) {
        if (choice->count > 1 && gives_way(choice, i))
            drop(choice, i);
    }
    if (choice->count > 1)
        return stay_ambiguous(choice, err);
    *out = choice->count ? 0 : UINT32_MAX;
    return RESHARD_OK;
}

/* ---- what is read ---- */

static reshard_status read_arguments(struct source *source, struct model_settings *made, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    uint32_t item = catalog_find_item(catalog, STR(ARGUMENTS_KEY));
    if (item == CATALOG_NONE || catalog->items[item].kind == ITEM_FILE)
        return RESHARD_OK;
    reshard_status status = source_load_item(source, item, err);
    const struct value *value = status ? NULL : catalog->items[item].value;
    if (value && value->kind == VALUE_NEW)
        value = value->object->state_count ? value->object->states[0] : NULL;
    if (value && value->kind == VALUE_DICT && catalog->items[item].graph) {
        made->members = value;
        made->members_count = catalog->items[item].graph->count;
    }
    return status;
}

static reshard_status model_settings_read_config(const struct model_settings_request *request, struct model_settings *made,
                                                 reshard_error *err)
{
    const struct mapping_options *options = request->options;
    if (!options->config.size)
        return RESHARD_OK;
    reshard_status status = json_parse_python(options->config.data, options->config.size, &request->source->limits, &made->parsed, err);
    if (status)
        error_prefix(err, "config.json");
    else if (made->parsed.root->kind == VALUE_DICT && !made->is_config_made) {
        made->members = made->parsed.root;
        made->members_count = made->parsed.count;
    }
    return status;
}

/* By the settings of one family. */
static reshard_status refuse_family(struct str family, const struct model_settings *made, reshard_error *err)
{
    const struct settings_input input = { .members = made->members, .members_count = made->members_count };
    enum settings_verdict verdict = SETTINGS_FIT;
    struct settings settings;
    struct buffer why = { 0 };
    bool is_known;
    reshard_status status = load_family(family, &settings, &is_known, err);
    if (status || !is_known)
        return status;
    status = settings_fit(&settings, SETTINGS_ARGS, &input, &verdict, &why, err);
    if (!status && verdict == SETTINGS_REFUSED)
        status = refuse_settings(buffer_str(&why), err);
    settings_release(&settings);
    buffer_release(&why);
    return status;
}

reshard_status model_settings_check(const struct mapping_relation *relation, struct source *source, reshard_error *err)
{
    struct model_settings made = { 0 };
    reshard_status status = read_arguments(source, &made, err);
    for (uint32_t i = 0; made.members && i < relation->family_count && !status; i++)
        status = refuse_family(relation->families[i], &made, err);
    return status;
}

/* A config.json that the caller or the reference gives goes to the target; the source's own goes there as a file beside its weights. */
static reshard_status keep_config(const struct model_settings_request *request, struct model_settings *made, reshard_error *err)
{
    if (!made->is_config_made || request->has_own_config || !request->options->config.size)
        return RESHARD_OK;
    made->config = str_copy(request->options->config);
    made->config_size = request->options->config.size;
    return made->config ? RESHARD_OK : error_set_memory(err);
}

static reshard_status read_constants(const struct mapping_options *options, struct model_settings *made, reshard_error *err)
{
    struct value_graph *graph = &made->constants;
    graph->root = value_new_list(graph, VALUE_DICT, NULL, 0);
    bool is_done = graph->root != NULL;
    for (size_t i = 0; options && i < options->constant_count && is_done; i++) {
        struct value *number = value_new_int(graph, options->constants[i].value);
        is_done = number && value_dict_set(graph, graph->root, options->constants[i].name, number, true);
    }
    return is_done ? RESHARD_OK : error_set_memory(err);
}

/* ---- values ---- */

static reshard_status remark(struct model_settings *made, reshard_error *err, const char *format, ...) PRINTF_LIKE(3, 4);
static reshard_status remark(struct model_settings *made, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = vasprintf(&made->remark, format, args);
    va_end(args);
    if (size < 0)
        made->remark = NULL;
    return made->remark ? RESHARD_OK : error_set_memory(err);
}

/* What config.json calls its model. */
static struct str config_family(const struct model_settings *made)
{
    struct str name = { 0 };
    const struct value *type = settings_find(made->parsed.root, TYPE_NAME);
    if (!type || !value_as_str(type, &name))
        return (struct str){ 0 };
    return name;
}

static reshard_status choose_family(const struct model_settings_request *request, struct model_settings *made, bool *is_found,
                                    reshard_error *err)
{
    struct choice *choice = calloc(1, sizeof(*choice));
    uint32_t chosen = UINT32_MAX;
    if (!choice)
        return error_set_memory(err);
    choice->request = request;
    choice->side = made->is_config_made ? SETTINGS_ARGS : SETTINGS_CONFIG;
    choice->input = (struct settings_input){ .members = made->members, .members_count = made->members_count };
    struct str named = request->family.size ? request->family : config_family(made);
    reshard_status status = model_settings_choose(choice, named, request->family.size > 0, &chosen, err);
    *is_found = !status && chosen != UINT32_MAX;
    if (*is_found) {
        made->settings = choice->settings[chosen];
        for (uint32_t i = 0; i < made->settings.family_count; i++) {
            if (str_equal(made->settings.families[i], choice->families[chosen]))
                made->family = made->settings.families[i];
        }
        choice->settings[chosen] = (struct settings){ 0 };
    } else if (!status && made->members && choice->unfit.size) {
        status = remark(made, err, "%s not made: no single family fits: %.*s", made->is_config_made ? "config.json is" : "args are",
                        STR_ARG(buffer_str(&choice->unfit)));
    }
    for (uint32_t i = 0; i < choice->count; i++)
        settings_release(&choice->settings[i]);
    buffer_release(&choice->unfit);
    free(choice);
    return status;
}

reshard_status model_settings_make(const struct model_settings_request *request, struct model_settings **out, reshard_error *err)
{
    bool is_found = false;
    struct model_settings *made = calloc(1, sizeof(*made));
    *out = NULL;
    if (!made)
        return error_set_memory(err);
    made->is_config_made = request->walked->is_back;
    reshard_status status = made->is_config_made ? read_arguments(request->source, made, err) : RESHARD_OK;
    if (!status)
        status = model_settings_read_config(request, made, err);
    if (!status)
        status = keep_config(request, made, err);
    if (!status)
        status = read_constants(request->given, made, err);
    if (!status)
        status = choose_family(request, made, &is_found, err);
    if (!status && is_found && made->is_config_made && !made->members && !made->config && !request->has_own_config)
        status = remark(made, err, "config.json is not made: the checkpoint has no arguments (args) that tell what stands there");
    if (status || !(is_found || made->remark || made->config))
        model_settings_free(made);
    else
        *out = made;
    return status;
}

/* ---- running ---- */

static bool set_fact(struct value_graph *graph, struct value *into, const char *name, struct value *value)
{
    return value && value_dict_set(graph, into, name, value, true);
}

static bool set_facts(const struct model_facts *facts, struct value_graph *graph, struct value *into)
{
    const char *type = facts->dtype < DTYPE_COUNT ? dtype_info(facts->dtype)->torch_name : "";
    bool is_done = !type[0] || set_fact(graph, into, "tensor_dtype", value_new_str(graph, str_of(type)));
    if (is_done && facts->vocabulary_rows > 0)
        is_done = set_fact(graph, into, "embedding_rows", value_new_int(graph, facts->vocabulary_rows));
    return is_done && set_fact(graph, into, "tensor_ranks", value_new_int(graph, facts->tensor_ranks > 0 ? facts->tensor_ranks : 1));
}

/* What the caller set goes before the rest: on the side of config.json, whose names it has. */
reshard_status model_settings_run(const struct model_settings *made, const struct model_facts *facts, struct settings_result *out,
                                  reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct value *given = NULL;
    struct value *extra = made->is_config_made ? value_new_list(&graph, VALUE_DICT, NULL, 0)
                                               : value_copy(&graph, made->constants.root, made->constants.count);
    bool is_done = extra && set_facts(facts, &graph, extra);
    if (is_done && made->is_config_made) {
        given = value_new_list(&graph, VALUE_DICT, NULL, 0);
        is_done = given != NULL;
    }
    for (size_t i = 0; is_done && given && i + 1 < made->constants.root->list.count; i += 2) {
        const struct value *name = made->constants.root->list.items[i], *number = made->constants.root->list.items[i + 1];
        struct value *copy = value_new_int(&graph, number->integer);
        if (settings_mention(&made->settings, SETTINGS_CONFIG, name->text))
            is_done = copy && value_dict_set(&graph, given, name->text.data, copy, true);
    }
    struct settings_input input = {
        .members = made->members, .members_count = made->members_count, .extra = extra, .extra_count = graph.count
    };
    reshard_status status = is_done ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status =
            settings_run(&made->settings, made->is_config_made ? SETTINGS_ARGS : SETTINGS_CONFIG, &input, given, graph.count, out, err);
    value_graph_release(&graph);
    return status;
}

/* ---- the vocabulary ---- */

struct str model_settings_embedding(const struct model_settings *made)
{
    return made->settings.vocabulary_count > 1 ? made->settings.vocabulary[1] : (struct str){ 0 };
}

reshard_status model_settings_vocabulary(const struct model_settings *made, int64_t *out, reshard_error *err)
{
    const struct model_facts facts = { .dtype = DTYPE_COUNT };
    struct settings_result result;
    *out = 0;
    if (!made->settings.vocabulary_count)
        return RESHARD_OK;
    reshard_status status = model_settings_run(made, &facts, &result, err);
    if (status)
        return status;
    const char *name = made->settings.vocabulary[0].data;
    const struct value *rows = settings_find(result.members, name),
                       *own = made->is_config_made ? settings_find(made->parsed.root, name) : NULL;
    /* A config.json that is given says what is wanted. */
    if (own && !settings_find(made->constants.root, name))
        rows = own;
    if (!rows || !value_as_int(rows, out) || *out < 0)
        *out = 0;
    settings_result_release(&result);
    return RESHARD_OK;
}
