/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/model_check.h"

#include "convert/against.h"
#include "convert/model_config.h"
#include "convert/weight_copies.h"

#define KEYS_NAMED 3

/* What is wrong in one way. */
struct model_fault {
    const char *kind, *words;
    uint32_t count;
    struct buffer keys;  /* the first few */
    struct buffer first; /* what is found of the first, in words */
};

enum { FAULT_MISSING, FAULT_SHAPE, FAULT_UNEXPECTED, FAULT_KINDS };

struct model_faults {
    struct model_fault of[FAULT_KINDS];
};

static reshard_status take_fault(void *context, const struct finding *finding)
{
    struct model_faults *faults = context;
    for (size_t i = 0; i < FAULT_KINDS; i++) {
        struct model_fault *fault = &faults->of[i];
        if (strcmp(fault->kind, finding->kind) != 0)
            continue;
        if (!fault->count)
            buffer_printf(&fault->first, "'%.*s' %s", STR_ARG(finding->key), finding->text);
        if (fault->count++ < KEYS_NAMED)
            buffer_printf(&fault->keys, "%s'%.*s'", fault->count > 1 ? ", " : "", STR_ARG(finding->key));
    }
    return RESHARD_OK;
}

static reshard_status warn_of_fault(struct conversion *conversion, const struct model_fault *fault, reshard_error *err)
{
    return note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err, "%u tensors %s: %.*s%s",
                    fault->count, fault->words, STR_ARG(buffer_str(&fault->keys)), fault->count > KEYS_NAMED ? ", …" : "");
}

/* Warns of all that is wrong, but of what is missing where that was asked for. */
static reshard_status warn_of_faults(struct conversion *conversion, const struct model_faults *faults, reshard_error *err)
{
    const struct selection_options *chosen = &conversion->options->selection;
    const bool is_part = (chosen->include && chosen->include[0]) || (chosen->exclude && chosen->exclude[0]);
    reshard_status status = RESHARD_OK;
    for (size_t i = is_part ? FAULT_SHAPE : FAULT_MISSING; i < FAULT_KINDS && !status; i++) {
        if (faults->of[i].count)
            status = warn_of_fault(conversion, &faults->of[i], err);
    }
    return status;
}

/* What tensors are wrong by a config.json; that it says too little itself is a warning. */
static reshard_status find_faults(struct conversion *conversion, const struct catalog *catalog, const struct against_model *model,
                                  struct model_faults *out, reshard_error *err)
{
    struct finding_sink sink = { .receive = take_fault, .context = out };
    reshard_error problem = { 0 };
    *out = (struct model_faults){ { { .kind = "missing", .words = "that it asks for are missing" },
                                    { .kind = "shape", .words = "have another shape than it asks for" },
                                    { .kind = "unexpected", .words = "are none that it asks for" } } };
    if (model->config.size && against_config(catalog, model, &conversion->source->source->limits, &sink, &problem))
        return note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err,
                        "names and shapes were not held against it: %s", problem.message);
    return RESHARD_OK;
}

static void faults_release(struct model_faults *faults)
{
    for (size_t i = 0; i < FAULT_KINDS; i++) {
        buffer_release(&faults->of[i].keys);
        buffer_release(&faults->of[i].first);
    }
}

reshard_status model_check(struct conversion *conversion, reshard_error *err)
{
    struct model_faults faults = { 0 };
    struct buffer config = { 0 };
    if (!(conversion->target.driver->abilities & FORMAT_HOLDS_CONFIG))
        return RESHARD_OK;
    reshard_status status = model_config_read(conversion, &config, err);
    const struct against_model model = { .config = buffer_str(&config) };
    if (!status)
        status = find_faults(conversion, conversion->target.catalog, &model, &faults, err);
    if (!status)
        status = warn_of_faults(conversion, &faults, err);
    faults_release(&faults);
    buffer_release(&config);
    return status;
}

/* ---- where names have changed ---- */

/* The tensors of a model before its names change, without data. */
static reshard_status model_catalog(const struct map_space *space, struct catalog **out, reshard_error *err)
{
    *out = catalog_new("model");
    reshard_status status = *out ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < map_space_tensor_count(space) && !status; i++) {
        const struct map_tensor *tensor = &space->tensors[i];
        uint32_t number;
        status = catalog_add_tensor(*out, tensor->key, tensor->dtype, tensor->rank, tensor->shape, &number, err);
        if (!status)
            (*out)->tensors[number].flags |= TENSOR_NO_DATA;
    }
    return status ? status : catalog_seal(*out, true, err);
}

static reshard_status refuse_shapes(const struct model_fault *fault, reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT, MODEL_CONFIG_KEY ": %u tensors %s: %.*s", fault->count, fault->words,
              STR_ARG(buffer_str(&fault->first)));
    error_hint(err, "with its numbers weights would be put together wrongly: reshard_map_options.config FILE gives the model's own, "
                    "reshard_map_options.constants NAME=NUMBER one of them, such as num_key_value_heads");
    return RESHARD_ERR_FORMAT;
}

reshard_status model_check_source(void *context, const struct map_space *model, const struct mapping_options *numbers, reshard_error *err)
{
    struct conversion *conversion = context;
    const struct against_model against = {
        .config = numbers->config, .constants = numbers->constants, .constant_count = numbers->constant_count, .leaves_state = true
    };
    struct model_faults faults = { 0 };
    struct catalog *catalog = NULL;
    reshard_status status = model_catalog(model, &catalog, err);
    if (!status)
        status = find_faults(conversion, catalog, &against, &faults, err);
    if (!status && faults.of[FAULT_SHAPE].count)
        status = refuse_shapes(&faults.of[FAULT_SHAPE], err);
    if (!status)
        status = warn_of_faults(conversion, &faults, err);
    faults_release(&faults);
    catalog_free(catalog);
    return status;
}

/* ---- a tied output layer ---- */

static bool is_left_behind(const struct conversion *conversion, struct str key)
{
    for (uint32_t i = 0; i < conversion->losses.count; i++) {
        if (str_equal(conversion->losses.notes[i].key, key))
            return true;
    }
    return false;
}

reshard_status model_check_tied(struct conversion *conversion, reshard_error *err)
{
    const struct model_settings *settings = conversion->mapping.settings;
    const struct catalog *catalog = conversion->source->source->catalog;
    struct weight_copies copies = { 0 };
    bool is_same = true;
    if (!settings || settings->is_config_made || settings->settings.vocabulary_count < 3)
        return RESHARD_OK;
    const struct str *names = settings->settings.vocabulary; /* behind the number: the embedding, the output layer */
    const uint32_t embedding = catalog_find(catalog, names[1]), output = catalog_find(catalog, names[2]);
    if (embedding == CATALOG_NONE || output == CATALOG_NONE || !is_left_behind(conversion, names[2]))
        return RESHARD_OK;
    reshard_status status = weight_copies_open(conversion->source, NULL, &conversion->engine, &copies, err);
    if (!status)
        status = weight_copies_same(&copies, embedding, output, &is_same, err);
    if (!status && !is_same)
        status = note_add(&conversion->warnings, &conversion->notes, NOTE_TIE, names[2], err,
                          "is not '%.*s', though " MODEL_CONFIG_KEY " ties it to that: the model is another without it, and "
                          "reshard_map_options.constants tie_word_embeddings=0 keeps it", STR_ARG(names[1]));
    weight_copies_release(&copies);
    return status;
}
