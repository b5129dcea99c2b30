/* SPDX-License-Identifier: Apache-2.0 */
/* Which texts a conversion or a comparison needs, and the numbers that they may name. */
#include "names/mapping_make.h"

#include "encoding/json.h"
#include "names/mapping_relate.h"
#include "names/mapping_trim.h"
#include "names/mapping_words.h"
#include "names/model_shapes.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define CONFIG_NAME "config.json"
#define TIED_NAME "tie_word_embeddings"
#define CONTAINER_NAMES "hf"
#define NUMBERS_MAX 256

/* ---- numbers ---- */

/* Options of the run, completed with what the checkpoints say. */
struct numbers {
    struct mapping_options options;
    struct buffer config;
    struct arena arena;
    struct mapping_constant constants[NUMBERS_MAX];
};

/* Whether a checkpoint carries a config.json beside its weights. */
static bool has_config(const struct catalog *catalog)
{
    uint32_t item = catalog_find_item(catalog, STR(CONFIG_NAME));
    return item != CATALOG_NONE && catalog->items[item].kind == ITEM_FILE;
}

/* The config.json that a checkpoint carries beside its weights. Nothing is appended if there is none. */
static reshard_status mapping_make_read_config(const struct source *source, struct buffer *out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    if (!has_config(catalog))
        return RESHARD_OK;
    char *name = str_copy(catalog->objects[catalog->items[catalog_find_item(catalog, STR(CONFIG_NAME))].object].name);
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), out, err) : error_set_memory(err);
    free(name);
    return status;
}

/* The members of a dictionary, or the attributes of an object. */
static const struct value *members_of(const struct value *value)
{
    if (value && value->kind == VALUE_NEW)
        value = value->object->state_count ? value->object->states[0] : NULL;
    return value && value->kind == VALUE_DICT ? value : NULL;
}

static bool mapping_make_has_constant(const struct mapping_options *options, const char *name)
{
    for (size_t i = 0; i < options->constant_count; i++) {
        if (strcmp(options->constants[i].name, name) == 0)
            return true;
    }
    return false;
}

static reshard_status mapping_make_add_number(const struct mapping_number *number, const struct value *members, struct numbers *out,
                                              reshard_error *err)
{
    char *name = arena_copy(&out->arena, number->name.data, number->name.size),
         *member = arena_copy(&out->arena, number->member.data, number->member.size);
    char *condition = arena_copy(&out->arena, number->condition.data, number->condition.size);
    int64_t value;
    if (!name || !member || !condition)
        return error_set_memory(err);
    const struct value *flag = number->condition.size ? value_dict_get(members, condition) : NULL;
    if (flag && flag->kind == VALUE_BOOL && !flag->boolean)
        return RESHARD_OK;
    if (out->options.constant_count == NUMBERS_MAX || mapping_make_has_constant(&out->options, name) ||
        !value_as_int(value_dict_get(members, member), &value) || value < 0)
        return RESHARD_OK;
    out->constants[out->options.constant_count++] = (struct mapping_constant){ name, value };
    return RESHARD_OK;
}

/* Numbers that rules find in a checkpoint's items, such as the arguments of the run. */
static reshard_status mapping_make_read_numbers(const struct mapping_rules *rules, struct source *source, struct numbers *out,
                                   reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->item_count && !status; i++) {
        const struct value *members = NULL;
        for (uint32_t n = 0; n < rules->number_count && !status; n++) {
            if (!str_equal(rules->numbers[n].item, catalog->items[i].key) || catalog->items[i].kind == ITEM_FILE)
                continue;
            status = members ? RESHARD_OK : source_load_item(source, i, err);
            members = status ? NULL : members_of(catalog->items[i].value);
            if (members)
                status = mapping_make_add_number(&rules->numbers[n], members, out, err);
        }
    }
    return status;
}

/* A member of the dict or object that an item is; *out NULL if there is none. */
static reshard_status mapping_make_find_member(struct source *source, struct str item, struct str member, const struct value **out,
                                  reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    uint32_t index = catalog_find_item(catalog, item);
    char name[64];
    *out = NULL;
    if (index == CATALOG_NONE || catalog->items[index].kind == ITEM_FILE || member.size >= sizeof(name))
        return RESHARD_OK;
    reshard_status status = source_load_item(source, index, err);
    const struct value *members = status ? NULL : members_of(catalog->items[index].value);
    snprintf(name, sizeof(name), "%.*s", STR_ARG(member));
    *out = members ? value_dict_get(members, name) : NULL;
    return status;
}

static bool has_fact(const struct catalog *catalog, struct str name, struct str text)
{
    for (uint32_t i = 0; i < catalog->fact_count; i++) {
        if (str_equal(catalog->facts[i].name, name) && str_equal(catalog->facts[i].value, text))
            return true;
    }
    return false;
}

/* Whether the value is a list, true, or a text that is not empty. */
static bool is_kind(const struct value *value, struct str kind)
{
    struct str text;
    if (str_is(kind, "list"))
        return value->kind == VALUE_LIST;
    if (str_is(kind, "text"))
        return value_as_str(value, &text) && text.size;
    return value->kind == VALUE_BOOL && value->boolean;
}

/* What a checkpoint's items say about its names: which spellings are meant, and which dtype the weights of its run have. */
static reshard_status read_marks(const struct mapping_rules *rules, struct source *source, struct mapping_goal *out,
                                 reshard_error *err)
{
    const struct value *value;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < rules->mark_count && !status; i++) {
        const struct mapping_mark *mark = &rules->marks[i];
        struct str text;
        status = mapping_make_find_member(source, mark->item, mark->member, &value, err);
        if (value && mark->is_exclusion)
            out->excluded |= (uint64_t)is_kind(value, mark->text) << mark->node;
        else if (value && value_as_str(value, &text))
            *(str_equal(text, mark->text) ? &out->named : &out->denied) |= UINT64_C(1) << mark->node;
    }
    for (uint32_t i = 0; i < rules->weights_count && !status; i++) {
        const struct mapping_weights *weights = &rules->weights[i];
        value = NULL;
        if (!weights->fact.size)
            status = mapping_make_find_member(source, weights->item, weights->member, &value, err);
        bool is_true = value && value->kind == VALUE_BOOL && value->boolean;
        if (!is_true && !(weights->fact.size && has_fact(source->catalog, weights->fact, weights->text)))
            continue;
        out->weights = rules->weights[i].dtype;
        out->has_weights = true;
    }
    return status;
}

/* Whether the embedding is the output layer: config.json may leave that to its family. What is wrong with the text, who reads it says. */
static reshard_status find_tied(const struct mapping_options *given, const struct limits *limits, struct numbers *out, reshard_error *err)
{
    int64_t value;
    bool is_known = false;
    reshard_status status = RESHARD_OK;
    if (out->options.config.size && !mapping_make_has_constant(given, TIED_NAME) && given->constant_count < NUMBERS_MAX)
        status = model_shapes_number(out->options.config, STR(TIED_NAME), limits, &value, &is_known, NULL);
    if (is_known)
        out->constants[out->options.constant_count++] = (struct mapping_constant){ TIED_NAME, value };
    return status == RESHARD_ERR_MEMORY ? error_set_memory(err) : RESHARD_OK;
}

/* What the caller gave comes first, then what the source says, then the other checkpoint: for what the ones before leave open. */
static reshard_status find_numbers(const struct mapping_request *request, const struct mapping_rules *rules, struct numbers *out,
                                   reshard_error *err)
{
    static const struct mapping_options defaults = { 0 };
    struct source *sides[] = { request->source, request->other };
    reshard_status status = RESHARD_OK;
    out->options = request->options ? *request->options : defaults;
    if (out->options.constant_count > NUMBERS_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "more than %d constants", NUMBERS_MAX);
    for (size_t i = 0; i < out->options.constant_count; i++)
        out->constants[i] = out->options.constants[i];
    out->options.constants = out->constants;
    for (int i = 0; i < 2 && !status && sides[i] && !out->options.config.size; i++) {
        status = mapping_make_read_config(sides[i], &out->config, err);
        out->options.config = buffer_str(&out->config);
        if (!status && !out->config.size)
            status = mapping_make_read_numbers(rules, sides[i], out, err);
    }
    return status ? status : find_tied(&out->options, &request->source->limits, out, err);
}

/* ---- which names ---- */

/* Whether every listed key of one is one of the other: then there is nothing to relate. */
static bool keys_are_among(const struct catalog *a, const struct catalog *b)
{
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        if (!(a->tensors[i].flags & TENSOR_HIDDEN) && catalog_find(b, a->tensors[i].key) == CATALOG_NONE)
            return false;
    }
    return true;
}

static bool is_word(const char *text, const char *word)
{
    return text && strcmp(text, word) == 0;
}

/* The tensors whose names are wanted, where there are such. */
static const struct catalog *wanted_tensors(const struct mapping_request *request)
{
    return request->other ? request->other->catalog : request->model;
}

/* What options ask for about names: nothing, what is recognised, or a family. */
struct wanted_rules {
    bool is_asked;   /* by --rules: not to be able to is an error */
    bool is_wanted;
    struct str family;
};

static struct wanted_rules wanted_rules_of(const struct mapping_request *request)
{
    const struct mapping_options *options = request->options;
    struct wanted_rules wanted = { .is_asked = options && (options->rules_text || (options->rules && !is_word(options->rules, "none"))) };
    bool is_container_target = request->target_names ? mapping_is_container(request->target_names) : true;
    if (options && !options->rules_text && is_word(options->rules, "none"))
        return wanted;
    if (wanted.is_asked && options->rules && !is_word(options->rules, "auto"))
        wanted.family = str_of(options->rules);
    /* A folder or file takes any names, so theirs stay unless the caller says otherwise. */
    bool is_implied = !(options && options->text_count) && (wanted_tensors(request) || !is_container_target);
    wanted.is_wanted = wanted.is_asked || is_implied;
    if (wanted.is_asked)
        return wanted;
    const char *own = request->source->driver->name_space;
    if (wanted_tensors(request) && keys_are_among(request->source->catalog, wanted_tensors(request)))
        wanted.is_wanted = false;
    if (!wanted_tensors(request) && own && is_word(request->target_names, own))
        wanted.is_wanted = false;
    return wanted;
}

static reshard_status check_family(const struct mapping_rules *rules, struct str family, reshard_error *err)
{
    struct buffer known = { 0 };
    bool is_known = !family.size;
    for (uint32_t i = 0; i < rules->relation_count && !is_known; i++)
        is_known = mapping_relation_has_family(&rules->relations[i], family);
    if (is_known)
        return RESHARD_OK;
    struct str name;
    for (size_t i = 0; mapping_family_at(rules, i, &name); i++)
        buffer_printf(&known, "%s%.*s", known.size ? ", " : "", STR_ARG(name));
    error_set(err, RESHARD_ERR_USAGE, "reshard_map_options.rules: unknown family '%.*s'", STR_ARG(family));
    error_hint(err, "known: %.*s", STR_ARG(buffer_str(&known)));
    buffer_release(&known);
    return RESHARD_ERR_USAGE;
}

/* ---- choosing ---- */

struct mapping_choice {
    const struct mapping_request *request;
    struct mapping_rules rules;
    struct numbers numbers;
    struct mapping_context context;
    struct mapping_stage *stage;
    struct map_space other;
    struct mapping_made *out;
};

static void unwind(struct mapping_stage **stage, struct mapping_stage *to)
{
    while (*stage != to) {
        struct mapping_stage *last = *stage;
        *stage = last->before;
        last->before = NULL;
        mapping_free(last);
    }
}

static reshard_status mapping_make_note(char **out, reshard_error *err, const char *format, ...) PRINTF_LIKE(3, 4);
static reshard_status mapping_make_note(char **out, reshard_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int size = vasprintf(out, format, args);
    va_end(args);
    if (size < 0)
        *out = NULL;
    return *out ? RESHARD_OK : error_set_memory(err);
}

/* What config.json calls its model, in words behind others; empty if it says nothing. */
static void say_type(const struct mapping_choice *choice, char *out, size_t size)
{
    const struct str config = choice->numbers.options.config;
    struct value_graph graph = { 0 };
    struct str type;
    out[0] = 0;
    if (config.size && !json_parse_python(config.data, config.size, &choice->request->source->limits, &graph, NULL)) {
        const struct value *member = graph.root->kind == VALUE_DICT ? value_dict_get(graph.root, "model_type") : NULL;
        if (member && value_as_str(member, &type))
            snprintf(out, size, ", which config.json calls '%.*s',", (int)(type.size < 100 ? type.size : 100), type.data);
    }
    value_graph_release(&graph);
}

static reshard_status say_failure(struct mapping_choice *choice, const struct wanted_rules *wanted, enum mapping_way way, const char *goal,
                                  struct str said, reshard_error *err)
{
    const char *from = choice->request->source->driver->name_space;
    char what[400], type[160];
    say_type(choice, type, sizeof(type));
    if (way == MAPPING_WAY_AMBIGUOUS)
        snprintf(what, sizeof(what), "more than one text fits: %.*s", (int)(said.size < 300 ? said.size : 300), said.data);
    else
        snprintf(what, sizeof(what), "the model's family%s is not recognised", type);
    if (wanted->is_asked) {
        error_set(err, RESHARD_ERR_USAGE, "reshard_map_options.rules: names of %s do not become those of %s: %s",
                  from ? from : "the source", goal, what);
        error_hint(err, way == MAPPING_WAY_AMBIGUOUS
                            ? "reshard_map_options.rules FAMILY picks one, reshard_map_options.texts FILE runs a text of your own"
                            : "reshard_map_options.texts FILE runs a text of your own");
        return RESHARD_ERR_USAGE;
    }
    return mapping_make_note(
        &choice->out->warning, err,
        "names are kept as they are, %s: reshard_map_options.rules FAMILY|FILE or reshard_map_options.texts FILE makes them those of %s",
        what, goal);
}

/* The settings of the model whose names have changed, and its weights without padding. */
static reshard_status find_settings(struct mapping_choice *choice, const struct wanted_rules *wanted, const struct mapping_walked *walked,
                                    reshard_error *err)
{
    const struct mapping_options *given = choice->request->options;
    const struct model_settings_request request = {
        .walked = walked,
        .source = choice->request->source,
        .given = given,
        .options = &choice->numbers.options,
        .family = wanted->family,
        .is_asked = wanted->is_asked && !choice->request->is_comparison,
        .is_lenient = choice->request->is_comparison,
        .has_own_config = has_config(choice->request->source->catalog) && !(given && given->config.size),
    };
    int64_t rows = 0;
    /* A comparison needs no settings but those that tell padding. */
    if (!walked->family || !model_settings_relate(&choice->rules, walked->family) || (choice->request->is_comparison && !walked->is_back))
        return RESHARD_OK;
    reshard_status status = model_settings_make(&request, &choice->out->settings, err);
    struct model_settings *settings = choice->out->settings;
    const struct mapping_stage *before = choice->stage;
    if (status || !settings || !settings->is_config_made)
        return status;
    status = model_settings_vocabulary(settings, &rows, err);
    if (!status)
        status = mapping_trim(&choice->stage, settings, rows, err);
    settings->kept_rows = choice->stage != before ? rows : 0;
    return status;
}

static reshard_status mapping_make_check_model(void *context, const struct map_space *model, reshard_error *err)
{
    struct mapping_choice *choice = context;
    const struct mapping_request *request = choice->request;
    return request->check_model(request->context, model, &choice->numbers.options, err);
}

/* Walks from the source's names to those wanted. */
static reshard_status relate(struct mapping_choice *choice, const struct wanted_rules *wanted, reshard_error *err)
{
    const struct mapping_request *request = choice->request;
    const char *own = request->source->driver->name_space;
    const struct catalog *tensors = wanted_tensors(request);
    const char *goal_names = request->other ? request->other->driver->name_space : request->model ? CONTAINER_NAMES : request->target_names;
    struct mapping_stage *before = choice->stage;
    struct mapping_walked walked = { 0 };
    struct mapping_goal goal = { .name_space = tensors || goal_names ? goal_names : CONTAINER_NAMES, .family = wanted->family };
    if (request->check_model && (!own || is_word(own, CONTAINER_NAMES))) {
        goal.check = mapping_make_check_model;
        goal.context = choice;
    }
    reshard_status status = RESHARD_OK;
    if (tensors) {
        status = map_space_from_catalog(tensors, &choice->other, err);
        goal.reference = &choice->other;
        if (!status && !mapping_names_of(&choice->rules, goal_names, &choice->other) && !wanted->is_asked)
            return RESHARD_OK;
    }
    if (!status)
        status = read_marks(&choice->rules, request->source, &goal, err);
    if (!status)
        status =
            mapping_relate(&choice->rules, own, &goal, &choice->context, request->source->catalog, &choice->stage, &walked, err);
    const char *target = goal.name_space ? goal.name_space : "the other checkpoint";
    if (!status && (walked.way == MAPPING_WAY_NONE || walked.way == MAPPING_WAY_AMBIGUOUS)) {
        unwind(&choice->stage, before);
        status = say_failure(choice, wanted, walked.way, target, buffer_str(&walked.said), err);
    } else if (!status && walked.way == MAPPING_WAY_WALKED) {
        char made[80] = "";
        if (walked.made)
            snprintf(made, sizeof(made), "; %" PRIu32 " weights are cast from their master weights", walked.made);
        status = mapping_make_note(&choice->out->names, err, "names: %s to %s, by %.*s%s", own ? own : "the source's", target,
                                   STR_ARG(buffer_str(&walked.said)), made);
        if (!status && walked.undone && !request->is_comparison && model_settings_relate(&choice->rules, walked.undone))
            status = model_settings_check(walked.undone, request->source, err);
        if (!status)
            status = find_settings(choice, wanted, &walked, err);
    }
    buffer_release(&walked.said);
    return status;
}

static reshard_status run_texts(struct mapping_choice *choice, reshard_error *err)
{
    const struct mapping_options *options = choice->request->options;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; options && i < options->text_count && !status; i++) {
        status = mapping_apply(&choice->stage, choice->request->source->catalog, &choice->context, &options->texts[i],
                               i + 1 == options->text_count, err);
    }
    return status;
}

static reshard_status mapping_make_make(struct mapping_choice *choice, const struct wanted_rules *wanted, reshard_error *err)
{
    const struct mapping_request *request = choice->request;
    const struct mapping_options *options = request->options;
    bool has_texts = options && options->text_count;
    reshard_status status = mapping_rules_load(options ? options->rules_text : NULL, &choice->rules, err);
    if (!status)
        status = check_family(&choice->rules, wanted->family, err);
    if (!status)
        status = find_numbers(request, &choice->rules, &choice->numbers, err);
    if (!status)
        status = mapping_begin(request->source->catalog, &choice->stage, err);
    if (!status && wanted_tensors(request))
        status = mapping_check_keys(wanted_tensors(request), err);
    /* What nobody asked for need not be possible. */
    if (status == RESHARD_ERR_UNSUPPORTED && !has_texts && !wanted->is_asked)
        return RESHARD_OK;
    if (status)
        return status;
    choice->context = (struct mapping_context){ .options = &choice->numbers.options, .limits = &request->source->limits };
    if (request->is_comparison)
        choice->context.pattern = wanted_tensors(request);
    else
        choice->context.reference = wanted_tensors(request);
    if (wanted->is_wanted)
        status = relate(choice, wanted, err);
    if (!status)
        status = run_texts(choice, err);
    return !status && request->wants_torch_words ? mapping_torch_words(&choice->stage, request->torch_prefix, err) : status;
}

reshard_status mapping_make(const struct mapping_request *request, struct mapping_made *out, reshard_error *err)
{
    const struct mapping_options *options = request->options;
    *out = (struct mapping_made){ 0 };
    struct wanted_rules wanted = wanted_rules_of(request);
    if (!wanted.is_wanted && !(options && options->text_count) && !request->wants_torch_words)
        return RESHARD_OK;
    struct mapping_choice *choice = calloc(1, sizeof(*choice));
    if (!choice)
        return error_set_memory(err);
    choice->request = request;
    choice->out = out;
    reshard_status status = mapping_make_make(choice, &wanted, err);
    /* Nothing ran: the source is as it is. */
    if (!status && choice->stage && choice->stage->before) {
        out->stage = choice->stage;
        choice->stage = NULL;
    }
    mapping_free(choice->stage);
    map_space_release(&choice->other);
    mapping_rules_release(&choice->rules);
    buffer_release(&choice->numbers.config);
    arena_release(&choice->numbers.arena);
    free(choice);
    if (status)
        mapping_made_release(out);
    return status;
}

void mapping_made_release(struct mapping_made *made)
{
    mapping_free(made->stage);
    free(made->names);
    free(made->warning);
    model_settings_free(made->settings);
    *made = (struct mapping_made){ 0 };
}
