/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_index.h"

#include "base/array.h"
#include "encoding/json.h"
#include "formats/shared/safetensors_pieces.h"
#include "store/store.h"

#include <inttypes.h>
#include <stdlib.h>

struct index_parse {
    struct json_parser *json;
    struct str text;
    const struct limits *limits;
    struct hf_index *index;
    bool lenient;
};

void hf_index_release(struct hf_index *index)
{
    name_map_release(&index->keys);
    name_map_release(&index->files);
    value_graph_release(&index->graph);
    free(index->file_of);
    *index = (struct hf_index){ 0 };
}

bool hf_index_add(struct hf_index *index, struct str key, uint32_t file, bool *was_new)
{
    uint32_t number = name_map_intern(&index->keys, key, was_new);
    if (number == NAME_NONE)
        return false;
    if (!ARRAY_ROOM(index->file_of, number, index->capacity))
        return false;
    if (*was_new)
        index->file_of[number] = file;
    return true;
}

static reshard_status hf_index_fail_at(const struct index_parse *p, const char *complaint, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, json_offset(p->json), "%s", complaint);
}

/* Only a plain way down from the index file's own folder is believed. */
static reshard_status hf_index_check_file(const struct index_parse *p, struct str file, reshard_error *err)
{
    reshard_status status = store_name_check(file, err);
    if (status) {
        error_prefix(err, "weight_map names the file '%.*s'", STR_ARG(file));
        return RESHARD_ERR_FORMAT;
    }
    if (!str_ends_with(file, ".safetensors"))
        return error_set_at(err, RESHARD_ERR_FORMAT, json_offset(p->json), "weight_map names '%.*s', which is no safetensors file",
                            STR_ARG(file));
    return RESHARD_OK;
}

static reshard_status parse_mapping(struct index_parse *p, struct str text, reshard_error *err)
{
    struct hf_index *index = p->index;
    uint64_t position = json_offset(p->json);
    bool was_new;
    if (!hf_index_add(index, text, 0, &was_new))
        return error_set_memory(err);
    uint32_t key = name_map_find(&index->keys, text);
    if (!was_new && !p->lenient) {
        struct str name = name_map_at(&index->keys, key);
        error_set_at(err, RESHARD_ERR_FORMAT, position, "weight_map has the key '%.*s' twice", STR_ARG(name));
        error_hint(err, "reshard_open_options.lenient takes the last");
        return RESHARD_ERR_FORMAT;
    }
    enum json_event event;
    struct str file;
    reshard_status status = json_next(p->json, &event, &file, err);
    if (status)
        return status;
    if (event != JSON_STRING)
        return hf_index_fail_at(p, "a value in weight_map is not a string", err);
    status = hf_index_check_file(p, file, err);
    if (status)
        return status;
    index->file_of[key] = name_map_intern(&index->files, file, NULL);
    return index->file_of[key] == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
}

static reshard_status parse_weight_map(struct index_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = json_next(p->json, &event, &text, err);
    if (status)
        return status;
    if (event != JSON_OBJECT_BEGIN)
        return hf_index_fail_at(p, "weight_map is not an object", err);
    for (;;) {
        status = json_next(p->json, &event, &text, err);
        if (status || event == JSON_OBJECT_END)
            return status;
        status = parse_mapping(p, text, err);
        if (status)
            return status;
    }
}

/* The metadata's own text as a value tree; anything but an object is ignored, as its readers do. */
static reshard_status hf_index_parse_metadata(struct index_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = json_next(p->json, &event, &text, err);
    if (status)
        return status;
    uint64_t begin = json_offset(p->json);
    status = json_skip(p->json, event, err);
    if (status || event != JSON_OBJECT_BEGIN)
        return status;
    uint64_t end = json_offset(p->json) + 1;
    status = json_parse(p->text.data + begin, (size_t)(end - begin), p->limits, &p->index->graph, err);
    if (status) {
        error_shift(err, begin);
        error_prefix(err, "metadata");
        return status;
    }
    int64_t total;
    const struct value *value = value_dict_get(p->index->graph.root, "total_size");
    if (value && value_as_int(value, &total) && total >= 0) {
        p->index->has_total_size = true;
        p->index->total_size = (uint64_t)total;
    }
    return RESHARD_OK;
}

static reshard_status parse_member(struct index_parse *p, struct str name, bool *seen_map, bool *seen_metadata, reshard_error *err)
{
    enum json_event event;
    struct str text;
    bool is_map = str_equal(name, STR("weight_map")), is_metadata = str_equal(name, STR("metadata"));
    if ((is_map && *seen_map) || (is_metadata && *seen_metadata))
        return hf_index_fail_at(p, is_map ? "weight_map is there twice" : "metadata is there twice", err);
    *seen_map = *seen_map || is_map;
    *seen_metadata = *seen_metadata || is_metadata;
    if (is_map)
        return parse_weight_map(p, err);
    if (is_metadata)
        return hf_index_parse_metadata(p, err);
    reshard_status status = json_next(p->json, &event, &text, err);
    return status ? status : json_skip(p->json, event, err);
}

static reshard_status hf_index_parse_members(struct index_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    bool seen_map = false, seen_metadata = false;
    reshard_status status = json_next(p->json, &event, &text, err);
    if (status)
        return status;
    if (event != JSON_OBJECT_BEGIN)
        return hf_index_fail_at(p, "the index is not a JSON object", err);
    for (;;) {
        status = json_next(p->json, &event, &text, err);
        if (status)
            return status;
        if (event == JSON_OBJECT_END)
            break;
        status = parse_member(p, text, &seen_map, &seen_metadata, err);
        if (status)
            return status;
    }
    if (!seen_map)
        return error_set(err, RESHARD_ERR_FORMAT, "the index has no weight_map");
    status = json_next(p->json, &event, &text, err);
    return status || event == JSON_END ? status : hf_index_fail_at(p, "something follows the index", err);
}

reshard_status hf_index_parse(struct str json, const struct limits *limits, bool lenient, struct hf_index *out, reshard_error *err)
{
    struct hf_index index = { 0 };
    struct index_parse parse = { .text = json, .limits = limits, .index = &index, .lenient = lenient };
    parse.json = json_new(json.data, json.size, 0, limits);
    if (!parse.json)
        return error_set_memory(err);
    reshard_status status = hf_index_parse_members(&parse, err);
    json_free(parse.json);
    if (status)
        hf_index_release(&index);
    else
        *out = index;
    return status;
}

/* ---- writing ---- */

static int mapped_order(const void *a, const void *b)
{
    const struct hf_mapped *x = a, *y = b;
    return str_compare(x->key, y->key);
}

/* What is counted from the tensors is not taken over: total_size always, total_parameters unless all tensors are still there. */
static bool is_counted(struct str key, bool is_whole)
{
    return str_is(key, "total_size") || (!is_whole && str_is(key, "total_parameters"));
}

static reshard_status write_metadata(const struct value *metadata, bool is_whole, const struct st_metadata *ties, uint64_t total_size,
                                     const struct limits *limits, struct buffer *out, reshard_error *err)
{
    struct value **pairs = NULL;
    size_t count = 0;
    if (metadata && !value_as_mapping(metadata, &pairs, &count))
        count = 0;
    buffer_printf(out, "  \"metadata\": {\n    \"total_size\": %" PRIu64, total_size);
    for (size_t i = 0; i < count; i += 2) {
        struct str key;
        if (!value_as_str(pairs[i], &key) || is_counted(key, is_whole) || st_metadata_get(ties, key))
            continue;
        buffer_append_text(out, ",\n    ");
        buffer_append_json_string(out, key);
        buffer_append_text(out, ": ");
        reshard_status status = value_to_json(pairs[i + 1], out, NAMED_LIMIT(limits, item_bytes), err);
        if (status)
            return status;
    }
    for (uint32_t i = 0; i < ties->count; i++) {
        buffer_append_text(out, ",\n    ");
        buffer_append_json_string(out, ties->pairs[i].key);
        buffer_append_text(out, ": ");
        buffer_append_json_string(out, ties->pairs[i].value);
    }
    return buffer_append_text(out, "\n  },\n") ? RESHARD_OK : error_set_memory(err);
}

reshard_status hf_index_write(struct hf_mapped *mapped, size_t count, uint64_t total_size, const struct value *metadata, bool is_whole,
                              const struct st_metadata *ties, const struct limits *limits, struct buffer *out, reshard_error *err)
{
    buffer_append_text(out, "{\n");
    reshard_status status = write_metadata(metadata, is_whole, ties, total_size, limits, out, err);
    if (status)
        return status;
    if (count)
        qsort(mapped, count, sizeof(*mapped), mapped_order);
    buffer_append_text(out, count ? "  \"weight_map\": {\n" : "  \"weight_map\": {");
    for (size_t i = 0; i < count; i++) {
        buffer_append_text(out, "    ");
        buffer_append_json_string(out, mapped[i].key);
        buffer_append_text(out, ": ");
        buffer_append_json_string(out, mapped[i].file);
        buffer_append_text(out, i + 1 < count ? ",\n" : "\n  ");
    }
    buffer_append_text(out, "}\n}\n");
    return out->failed ? error_set_memory(err) : RESHARD_OK;
}
