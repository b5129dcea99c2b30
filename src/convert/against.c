/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/against.h"

#include <stdlib.h>

#include "convert/checkpoint_view.h"
#include "convert/mapped.h"
#include "convert/paddle_keys.h"
#include "encoding/json.h"
#include "names/model_shapes.h"
#include "parallel/state_keys.h"
#include "remote/remote.h"

#define CONFIG_NAME "config.json"
#define INDEX_SUFFIX ".index.json"

/* What is asked for. */
struct expected {
    const struct catalog *catalog;
    const uint8_t *is_optional;  /* by tensor; NULL: none is */
    const struct str *ignored;
    uint32_t ignored_count;
    const struct catalog *losses; /* of the reference as it was opened: names that its warnings tell are expected, too; NULL: none */
    bool knows_shapes, knows_types;
    bool leaves_state;           /* optimizer state is no matter of a model */
    struct key_filter *filter;   /* of a view of the checkpoint: other names are not asked for; NULL: there is none */
    size_t skipped;              /* characters that the names lack in front: a model saved without its head */
};

static bool expected_is_ignored(const struct expected *expected, struct str key)
{
    for (uint32_t i = 0; i < expected->ignored_count; i++) {
        if (str_matches_glob(key, expected->ignored[i]))
            return true;
    }
    return false;
}

static struct str expected_key(const struct expected *expected, uint32_t tensor)
{
    struct str key = expected->catalog->tensors[tensor].key;
    return key.size > expected->skipped ? (struct str){ key.data + expected->skipped, key.size - expected->skipped } : key;
}

static void report_misshaped(const struct catalog *found, const struct catalog_tensor *tensor, const struct expected *expected,
                             uint32_t wanted, struct finding_sink *findings)
{
    const struct catalog_tensor *other = &expected->catalog->tensors[wanted];
    char have[SHAPE_TEXT_MAX], want[SHAPE_TEXT_MAX];
    if (expected->knows_shapes && !catalog_same_shape(found, tensor, expected->catalog, other))
        finding_report(findings, FINDING_FAILURE, "shape", tensor->key, "has shape %s, expected is %s",
                       shape_text(tensor->rank, catalog_vector_at(found, tensor->shape), ",", have),
                       shape_text(other->rank, catalog_vector_at(expected->catalog, other->shape), ",", want));
    else if (expected->knows_types && tensor->dtype != other->dtype)
        finding_report(findings, FINDING_WARNING, "dtype", tensor->key, "is %s, expected is %s", dtype_info(tensor->dtype)->name,
                       dtype_info(other->dtype)->name);
}

static uint32_t count_found(const struct catalog *found, const struct expected *expected)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < expected->catalog->tensor_count; i++)
        count += !(expected->catalog->tensors[i].flags & TENSOR_HIDDEN) && catalog_find(found, expected_key(expected, i)) != CATALOG_NONE;
    return count;
}

/* Names that a base model lacks: model. or transformer. */
static void skip_what_a_bare_model_lacks(const struct catalog *found, struct expected *expected)
{
    size_t dot;
    if (!expected->catalog->tensor_count || count_found(found, expected) || !str_find_char(expected->catalog->tensors[0].key, '.', &dot))
        return;
    expected->skipped = dot + 1;
    if (!count_found(found, expected))
        expected->skipped = 0;
}

/* What the reference names but lost: of these nothing is known but that they are expected. Reports that it is damaged. */
static reshard_status expect_losses(const struct catalog *found, const struct expected *expected, struct name_map *keys,
                                    struct finding_sink *findings, reshard_error *err)
{
    const struct catalog *reference = expected->losses;
    for (uint32_t i = 0; reference && i < reference->warning_count; i++) {
        const struct catalog_warning *warning = &reference->warnings[i];
        if (!warning->is_damage)
            continue;
        finding_report(findings, FINDING_WARNING, "reference", warning->key, "what is expected is damaged itself: %.*s",
                       STR_ARG(warning->text));
        bool is_wanted = warning->key.size > 0;
        reshard_status status = RESHARD_OK;
        if (is_wanted && expected->filter)
            status = key_filter_wants(expected->filter, warning->key, &is_wanted, err);
        if (status)
            return status;
        bool is_new = is_wanted && name_map_find(keys, warning->key) == NAME_NONE;
        if (is_new && name_map_intern(keys, warning->key, NULL) == NAME_NONE)
            return error_set_memory(err);
        if (is_new && catalog_find(found, warning->key) == CATALOG_NONE)
            finding_report(findings, FINDING_FAILURE, "missing", warning->key, "is expected, and missing");
    }
    if (reference && reference->damage_dropped)
        finding_report(findings, FINDING_WARNING, "reference", STR(""), "what is expected has %u more damages", reference->damage_dropped);
    return RESHARD_OK;
}

static reshard_status compare_with_expected(const struct catalog *found, const struct expected *expected, struct finding_sink *findings,
                                            reshard_error *err)
{
    struct name_map keys = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < expected->catalog->tensor_count && !status; i++) {
        const struct str key = expected_key(expected, i);
        const uint32_t tensor = catalog_find(found, key);
        bool is_wanted = !(expected->catalog->tensors[i].flags & TENSOR_HIDDEN);
        if (is_wanted && expected->filter)
            status = key_filter_wants(expected->filter, key, &is_wanted, err);
        if (status || !is_wanted)
            continue;
        if (name_map_intern(&keys, key, NULL) == NAME_NONE)
            status = error_set_memory(err);
        else if (tensor != CATALOG_NONE)
            report_misshaped(found, &found->tensors[tensor], expected, i, findings);
        else if (!expected->is_optional || !expected->is_optional[i])
            finding_report(findings, FINDING_FAILURE, "missing", key, "is expected, and missing");
    }
    if (!status)
        status = expect_losses(found, expected, &keys, findings, err);
    for (uint32_t i = 0; i < found->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &found->tensors[i];
        bool is_listed = !(tensor->flags & TENSOR_HIDDEN) && name_map_find(&keys, tensor->key) == NAME_NONE;
        bool is_state = state_key_is_any(tensor->key) || paddle_key_is_state(found, tensor->key);
        if (is_listed && !expected_is_ignored(expected, tensor->key) && !(expected->leaves_state && is_state))
            finding_report(findings, FINDING_FAILURE, "unexpected", tensor->key, "nobody expects this tensor");
    }
    name_map_release(&keys);
    return status ? status : finding_sink_status(findings, err);
}

/* Types of quantised weights are no matter of torch_dtype. */
static bool is_plain_float(enum dtype dtype)
{
    return dtype_info(dtype)->class_ == DTYPE_CLASS_FLOAT && dtype_info(dtype)->bits >= 16;
}

/* One warning for each other floating type that weights have, not one for each weight. */
static void report_other_types(const struct catalog *found, const struct expected *expected, enum dtype wanted,
                               struct finding_sink *findings)
{
    uint32_t counts[DTYPE_COUNT] = { 0 }, first[DTYPE_COUNT] = { 0 };
    for (uint32_t i = 0; i < expected->catalog->tensor_count; i++) {
        uint32_t tensor = catalog_find(found, expected_key(expected, i));
        enum dtype dtype = tensor == CATALOG_NONE ? wanted : found->tensors[tensor].dtype;
        if (dtype != wanted && is_plain_float(dtype) && !counts[dtype]++)
            first[dtype] = tensor;
    }
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        if (counts[dtype])
            finding_report(findings, FINDING_WARNING, "dtype", found->tensors[first[dtype]].key,
                           "is %s, one of %u such weights; config.json says %s", dtype_info((enum dtype)dtype)->name,
                           counts[dtype], dtype_info(wanted)->name);
    }
}

/* The checkpoint that a configuration is held against, or only its catalog. */
struct against_subject {
    struct checkpoint *checkpoint; /* NULL: names are those of the model already */
    const struct catalog *catalog;
    struct key_filter *filter;     /* as in expected */
};

static reshard_status compare_with_model(const struct catalog *catalog, const struct model_shapes *shapes, struct expected *expected,
                                         struct finding_sink *findings, reshard_error *err)
{
    reshard_status status = compare_with_expected(catalog, expected, findings, err);
    if (!status && shapes->dtype != DTYPE_COUNT)
        report_other_types(catalog, expected, shapes->dtype, findings);
    return status;
}

/* Where not one name is the model's, it may be another framework's. */
static reshard_status compare_under_names(const struct against_subject *subject, const struct against_model *model,
                                          const struct model_shapes *shapes, struct finding_sink *findings, reshard_error *err)
{
    struct expected expected = { .catalog = shapes->catalog, .is_optional = shapes->is_optional, .ignored = shapes->ignored,
                                 .ignored_count = shapes->ignored_count, .knows_shapes = true, .leaves_state = model->leaves_state,
                                 .filter = subject->filter };
    struct checkpoint *related = subject->checkpoint;
    struct mapped mapped = { .catalog = subject->catalog };
    reshard_status status = RESHARD_OK;
    skip_what_a_bare_model_lacks(subject->catalog, &expected);
    if (related && !expected.skipped && !count_found(subject->catalog, &expected)) {
        status = checkpoint_relate_if_possible(subject->checkpoint, &related, err);
        if (!status)
            status = mapped_make_model(related, shapes->catalog, model->config, findings, &mapped, err);
        expected.leaves_state = true;
    }
    if (!status)
        status = compare_with_model(mapped.catalog, shapes, &expected, findings, err);
    mapped_release(&mapped);
    return status;
}

static reshard_status compare_with_config(const struct against_subject *subject, const struct against_model *model,
                                          const struct limits *limits, struct finding_sink *findings, reshard_error *err)
{
    struct model_shapes shapes;
    reshard_status status = model_shapes_make(model->config, model->constants, model->constant_count, limits, &shapes, err);
    if (!status && shapes.catalog)
        status = compare_under_names(subject, model, &shapes, findings, err);
    else if (!status)
        finding_report(findings, FINDING_NOTE, "config", STR(""), shapes.family ? "nothing is known about the tensors of a '%s'"
                                                                                : "config.json names no model_type%s",
                       shapes.family ? shapes.family : "");
    model_shapes_release(&shapes);
    return status;
}

reshard_status against_config(const struct catalog *catalog, const struct against_model *model, const struct limits *limits,
                              struct finding_sink *findings, reshard_error *err)
{
    const struct against_subject subject = { .catalog = catalog };
    return compare_with_config(&subject, model, limits, findings, err);
}

/* {"weight_map": {key: file}}: keys only. */
static reshard_status against_index(const struct against_subject *subject, const struct value *map, struct finding_sink *findings,
                                    reshard_error *err)
{
    struct catalog *names = catalog_new("index");
    struct expected expected = { .catalog = names, .filter = subject->filter };
    reshard_status status = names ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < map->list.count; i += 2) {
        uint32_t tensor;
        status = catalog_add_tensor(names, map->list.items[i]->text, DTYPE_U8, 0, NULL, &tensor, err);
        if (!status)
            names->tensors[tensor].flags |= TENSOR_NO_DATA;
    }
    if (!status)
        status = compare_with_expected(subject->catalog, &expected, findings, err);
    catalog_free(names);
    return status;
}

/* A file of JSON: an index, or a config.json. */
static reshard_status against_text(const struct against_subject *subject, struct str text, const char *name, const struct limits *limits,
                                   struct finding_sink *findings, reshard_error *err)
{
    struct value_graph graph = { 0 };
    reshard_status status = json_parse_python(text.data, text.size, limits, &graph, err);
    const struct value *map = !status && graph.root->kind == VALUE_DICT ? value_dict_get(graph.root, "weight_map") : NULL;
    if (!status && map && map->kind == VALUE_DICT)
        status = against_index(subject, map, findings, err);
    else if (!status)
        status = compare_with_config(subject, &(struct against_model){ .config = text }, limits, findings, err);
    if (status)
        error_prefix(err, "'%s'", name);
    value_graph_release(&graph);
    return status;
}

/* The tensors of a view, by its names. */
static reshard_status catalog_of_view(const struct checkpoint *checkpoint, struct catalog **out, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    *out = catalog_new("view");
    reshard_status status = *out ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < checkpoint->listed_count && !status; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[checkpoint->listed[i]];
        uint32_t number;
        status = catalog_add_tensor(*out, checkpoint_tensor_name(checkpoint, i), tensor->dtype, tensor->rank,
                                    catalog_vector_at(catalog, tensor->shape), &number, err);
        if (!status)
            (*out)->tensors[number].flags |= TENSOR_NO_DATA;
    }
    return status ? status : catalog_seal(*out, true, err);
}

static reshard_status against_file(struct checkpoint *checkpoint, struct store *store, const char *name, struct finding_sink *findings,
                                   reshard_error *err)
{
    struct against_subject subject = { .checkpoint = checkpoint, .catalog = checkpoint->source->catalog };
    const struct limits *limits = &checkpoint->source->limits;
    struct buffer text = { 0 };
    struct catalog *shown = NULL;
    reshard_status status = store_read_all(store, name, NAMED_LIMIT(limits, json_bytes), &text, err);
    if (!status && checkpoint->view) {
        status = catalog_of_view(checkpoint, &shown, err);
        subject = (struct against_subject){ .catalog = shown, .filter = &checkpoint->view->filter };
    }
    if (!status)
        status = against_text(&subject, buffer_str(&text), name, limits, findings, err);
    buffer_release(&text);
    catalog_free(shown);
    return status;
}

/* The names that a view shows are those that the reference has, or nobody's: who gives names relates by them. */
static reshard_status against_viewed(const struct checkpoint *checkpoint, struct checkpoint *reference, struct finding_sink *findings,
                                     reshard_error *err)
{
    const struct catalog *catalog = reference->source->catalog;
    const struct expected expected = { .catalog = catalog, .losses = catalog, .knows_shapes = true, .knows_types = true,
                                       .filter = &checkpoint->view->filter };
    struct catalog *shown = NULL;
    reshard_status status = catalog_of_view(checkpoint, &shown, err);
    if (!status)
        status = compare_with_expected(shown, &expected, findings, err);
    catalog_free(shown);
    return status;
}

static reshard_status against_checkpoint(struct checkpoint *checkpoint, struct checkpoint *other, struct finding_sink *findings,
                                         reshard_error *err)
{
    struct checkpoint *related = other;
    struct mapped mapped = { 0 };
    if (checkpoint->view)
        return against_viewed(checkpoint, other, findings, err);
    reshard_status status = checkpoint_relate_both(&checkpoint, &related, err);
    if (!status)
        status = mapped_make(checkpoint, related, NULL, NULL, false, findings, &mapped, err);
    if (!status) {
        const struct expected expected = { .catalog = related->source->catalog, .losses = other->source->catalog, .knows_shapes = true,
                                           .knows_types = true };
        status = compare_with_expected(mapped.catalog, &expected, findings, err);
    }
    mapped_release(&mapped);
    return status;
}

/* The JSON file that a path means: the file itself, or in a folder that is no checkpoint its index or config.json. */
static reshard_status find_reference_text(struct store *store, const char *file_name, char **out, reshard_error *err)
{
    static const char *const names[] = { "model.safetensors" INDEX_SUFFIX, "pytorch_model.bin" INDEX_SUFFIX, CONFIG_NAME };
    *out = NULL;
    if (*file_name) {
        bool is_text = str_ends_with(str_of(file_name), ".json");
        return is_text && !(*out = str_copy(str_of(file_name))) ? error_set_memory(err) : RESHARD_OK;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !*out; i++) {
        if (store_is_file(store, names[i]) && !(*out = str_copy(str_of(names[i]))))
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* Whether another reading of the reference may do better than the one that ended so. */
static bool may_be_text(reshard_status status)
{
    return status == RESHARD_ERR_UNSUPPORTED || status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_IO;
}

/* What cannot be read as a checkpoint, or not compared as one, which `refused` says: the text in it. */
static reshard_status reference_find_text(struct reference *reference, reshard_status status, reshard_error *err)
{
    reshard_status looked = may_be_text(status) ? find_reference_text(reference->store, reference->file_name, &reference->text, err)
                                                : RESHARD_OK;
    if (looked || reference->text)
        return looked;
    if (err)
        *err = reference->refused;
    return status;
}

reshard_status reference_open(const char *path, const struct open_options *open, struct reference *out, reshard_error *err)
{
    const struct checkpoint_options options = { .open = *open };
    *out = (struct reference){ .store = NULL };
    reshard_status status = remote_open_path(path, 0, &out->store, &out->file_name, err);
    if (status)
        return status;
    if (str_ends_with(str_of(out->file_name), ".json"))
        status = RESHARD_ERR_UNSUPPORTED; /* a text */
    else
        status = checkpoint_open(path, &options, &out->checkpoint, &out->refused);
    if (status)
        status = reference_find_text(out, status, err);
    if (status)
        reference_release(out);
    return status;
}

void reference_release(struct reference *reference)
{
    checkpoint_close(reference->checkpoint);
    free(reference->text);
    free(reference->file_name);
    store_free(reference->store);
    *reference = (struct reference){ .store = NULL };
}

reshard_status against_run(struct checkpoint *checkpoint, struct reference *reference, struct finding_sink *findings, reshard_error *err)
{
    if (reference->checkpoint) {
        reshard_status status = against_checkpoint(checkpoint, reference->checkpoint, findings, &reference->refused);
        if (status)
            status = reference_find_text(reference, status, err);
        if (status || !reference->text)
            return status;
    }
    if (!*reference->file_name && !str_is(str_of(reference->text), CONFIG_NAME))
        finding_report(findings, FINDING_WARNING, "reference", STR(""), "only names are compared, with those of '%s': %s", reference->text,
                       reference->refused.message);
    return against_file(checkpoint, reference->store, reference->text, findings, err);
}
