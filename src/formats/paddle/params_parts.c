/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a folder of rank files lacks, as its names say: files of a numbered set, tensors of an index (model_state.pdparams.index.json,
 * model_state.pdparams.index.tp00.json). An index is no more than that here: every file says itself what it has.
 */
#include "formats/paddle/params_family.h"

#include "base/array.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdio.h>

bool family_is_index(struct str base)
{
    return str_matches_glob(base, STR("*model_state.pdparams.index*.json"));
}

bool family_is_config(struct str base)
{
    return str_is(base, "config.json");
}

/* What cannot be read says nothing. */
reshard_status family_read_config(struct family *family, struct str name, reshard_error *err)
{
    static const char *const words[] = { "tensor_model_parallel_size", "tensor_parallel_degree" }; /* PaddleFormers, PaddleNLP */
    const struct limits *limits = &family->source->limits;
    struct value_graph graph = { 0 };
    struct buffer text = { 0 };
    reshard_error unsaid = { 0 };
    int64_t count;
    reshard_status status = store_read_all(family->source->store, name.data, NAMED_LIMIT(limits, json_bytes), &text, &unsaid);
    if (!status)
        status = json_parse_python(text.data, text.size, limits, &graph, &unsaid);
    bool is_over = failure_ends_run(status, &unsaid, err);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && !status && graph.root->kind == VALUE_DICT; i++) {
        const struct value *value = value_dict_get(graph.root, words[i]);
        if (value && value_as_int(value, &count) && count > 1 && count <= INT32_MAX)
            family->told_tp = (uint32_t)count;
    }
    value_graph_release(&graph);
    buffer_release(&text);
    return is_over ? status : RESHARD_OK;
}

static bool parts_are_one_set(const struct family_file *a, const struct family_file *b)
{
    return a->role == b->role && a->part_count == b->part_count && a->ranks.tp == b->ranks.tp && a->ranks.pp == b->ranks.pp &&
           a->ranks.ep == b->ranks.ep && a->ranks.shard == b->ranks.shard;
}

/* The set that begins at a file: how many files of it there are, and the first number that none has. */
static uint32_t parts_count(const struct family *family, uint32_t first, int32_t *missing)
{
    uint32_t count = 0;
    *missing = 1;
    while (first + count < family->file_count && parts_are_one_set(&family->files[first], &family->files[first + count])) {
        *missing += family->files[first + count].part == *missing;
        count++;
    }
    return count;
}

static reshard_status parts_check_set(const struct family *family, uint32_t first, int32_t missing, uint32_t count, reshard_error *err)
{
    const struct family_file *file = &family->files[first];
    struct catalog *catalog = family->source->catalog;
    char others[64] = "";
    if (file->part_count - (int64_t)count > 1)
        snprintf(others, sizeof(others), ", and %" PRId64 " more are", file->part_count - (int64_t)count - 1);
    if (!source_bears_loss(family->source)) {
        error_set(err, RESHARD_ERR_FORMAT, "file %" PRId32 " of %" PRId32 " is missing%s, beside '%.*s'", missing, file->part_count, others,
                  STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
        return RESHARD_ERR_FORMAT;
    }
    if (family->index_count) /* it names what is lost */
        catalog_warn(catalog, true, "file %" PRId32 " of %" PRId32 " is missing%s, beside '%.*s'", missing, file->part_count, others,
                     STR_ARG(file->name));
    else
        catalog_warn_lost(catalog, (struct str){ 0 },
                          "file %" PRId32 " of %" PRId32 " is missing%s, beside '%.*s', and there is no index: what they held is lost",
                          missing, file->part_count, others, STR_ARG(file->name));
    return RESHARD_OK;
}

reshard_status family_check_parts(const struct family *family, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    uint32_t count;
    for (uint32_t i = 0; i < family->file_count && !status; i += count) {
        int32_t missing;
        count = parts_count(family, i, &missing);
        if (missing <= family->files[i].part_count)
            status = parts_check_set(family, i, missing, count, err);
    }
    return status;
}

/* ---- indexes ---- */

static reshard_status parts_check_key(const struct family *family, struct str index, struct str key, struct str file, reshard_error *err)
{
    uint32_t number = name_map_find(&family->keys, key);
    if (number != NAME_NONE && family->key_list[number].first != CATALOG_NONE)
        return RESHARD_OK;
    if (source_bears_loss(family->source)) {
        catalog_warn_lost(family->source->catalog, key, "tensor '%.*s' is lost: no file has it, '%.*s' says that '%.*s' does", STR_ARG(key),
                          STR_ARG(index), STR_ARG(file));
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_FORMAT, "'%.*s': index: no file has the tensor '%.*s', which should be in '%.*s'", STR_ARG(index),
              STR_ARG(key), STR_ARG(file));
    error_object(err, "%.*s", STR_ARG(index));
    return RESHARD_ERR_FORMAT;
}

static reshard_status parts_check_index(const struct family *family, struct str index, reshard_error *err)
{
    const struct limits *limits = &family->source->limits;
    struct value_graph graph = { 0 };
    struct buffer text = { 0 };
    reshard_error unsaid = { 0 };
    reshard_status status = store_read_all(family->source->store, index.data, NAMED_LIMIT(limits, json_bytes), &text, &unsaid);
    if (!status)
        status = json_parse_python(text.data, text.size, limits, &graph, &unsaid);
    bool is_over = failure_ends_run(status, &unsaid, err);
    if (status && !is_over) {
        catalog_warn(family->source->catalog, false, "'%.*s' is no index: %s", STR_ARG(index), unsaid.message);
        status = RESHARD_OK;
    }
    const struct value *map = graph.root && graph.root->kind == VALUE_DICT ? value_dict_get(graph.root, "weight_map") : NULL;
    for (size_t i = 0; !status && map && map->kind == VALUE_DICT && i + 1 < map->list.count; i += 2) {
        struct str file;
        if (value_as_str(map->list.items[i + 1], &file))
            status = parts_check_key(family, index, map->list.items[i]->text, file, err);
    }
    value_graph_release(&graph);
    buffer_release(&text);
    return status;
}

reshard_status family_check_indexes(const struct family *family, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < family->index_count && !status; i++)
        status = parts_check_index(family, family->indexes[i], err);
    return status;
}
