/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_index.h"

#include "base/array.h"
#include "encoding/json.h"
#include "store/store.h"
#include <stdlib.h>

struct index_parse {
    struct json_parser *json;
    struct str text;
    const struct limits *limits;
    struct st_index *index;
    bool lenient;
};

void st_index_release(struct st_index *index)
{
    name_map_release(&index->keys);
    name_map_release(&index->files);
    value_graph_release(&index->graph);
    free(index->file_of);
    free(index->members);
    arena_release(&index->arena);
    *index = (struct st_index){ 0 };
}

bool st_index_add(struct st_index *index, struct str key, uint32_t file, bool *was_new)
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

static reshard_status index_fail_at(const struct index_parse *p, const char *complaint, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, json_offset(p->json), "%s", complaint);
}

/* Only a plain way down from the index file's own folder is believed. */
static reshard_status index_check_file(const struct index_parse *p, struct str file, reshard_error *err)
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
    struct st_index *index = p->index;
    uint64_t position = json_offset(p->json);
    bool was_new;
    if (!st_index_add(index, text, 0, &was_new))
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
        return index_fail_at(p, "a value in weight_map is not a string", err);
    status = index_check_file(p, file, err);
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
        return index_fail_at(p, "weight_map is not an object", err);
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
static reshard_status index_parse_metadata(struct index_parse *p, reshard_error *err)
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

const struct value *st_index_find(const struct st_index *index, const char *name)
{
    for (uint32_t i = 0; i < index->member_count; i++) {
        if (str_is(index->members[i].name, name))
            return &index->members[i].value;
    }
    return NULL;
}

/* A member that is neither of the two known ones: kept if it is a word or a number, in the order of the file. */
static reshard_status parse_other(struct index_parse *p, struct str name, reshard_error *err)
{
    struct st_index *index = p->index;
    struct st_index_member member = { 0 };
    enum json_event event;
    struct str text;
    bool fits = arena_str(&index->arena, name, &member.name);
    reshard_status status = fits ? json_next(p->json, &event, &text, err) : error_set_memory(err);
    uint64_t number;
    if (status)
        return status;
    if (event == JSON_TRUE || event == JSON_FALSE) {
        member.value = (struct value){ .kind = VALUE_BOOL, .boolean = event == JSON_TRUE };
    } else if (event == JSON_NUMBER && json_number_is_u64(text, &number) && number <= INT64_MAX) {
        member.value = (struct value){ .kind = VALUE_INT, .integer = (int64_t)number };
    } else if (event == JSON_STRING) {
        member.value.kind = VALUE_STR;
        fits = arena_str(&index->arena, text, &member.value.text);
    } else {
        return json_skip(p->json, event, err);
    }
    if (!fits || !ARRAY_ROOM(index->members, index->member_count, index->member_capacity))
        return error_set_memory(err);
    index->members[index->member_count++] = member;
    return RESHARD_OK;
}

static reshard_status parse_member(struct index_parse *p, struct str name, bool *seen_map, bool *seen_metadata, reshard_error *err)
{
    bool is_map = str_equal(name, STR("weight_map")), is_metadata = str_equal(name, STR("metadata"));
    if ((is_map && *seen_map) || (is_metadata && *seen_metadata))
        return index_fail_at(p, is_map ? "weight_map is there twice" : "metadata is there twice", err);
    *seen_map = *seen_map || is_map;
    *seen_metadata = *seen_metadata || is_metadata;
    if (is_map)
        return parse_weight_map(p, err);
    if (is_metadata)
        return index_parse_metadata(p, err);
    return parse_other(p, name, err);
}

static reshard_status index_parse_members(struct index_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    bool seen_map = false, seen_metadata = false;
    reshard_status status = json_next(p->json, &event, &text, err);
    if (status)
        return status;
    if (event != JSON_OBJECT_BEGIN)
        return index_fail_at(p, "the index is not a JSON object", err);
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
    p->index->has_map = seen_map;
    status = json_next(p->json, &event, &text, err);
    return status || event == JSON_END ? status : index_fail_at(p, "something follows the index", err);
}

reshard_status st_index_parse(struct str json, const struct limits *limits, bool lenient, struct st_index *out, reshard_error *err)
{
    struct st_index index = { 0 };
    struct index_parse parse = { .text = json, .limits = limits, .index = &index, .lenient = lenient };
    parse.json = json_new(json.data, json.size, 0, limits);
    if (!parse.json)
        return error_set_memory(err);
    reshard_status status = index_parse_members(&parse, err);
    json_free(parse.json);
    if (status)
        st_index_release(&index);
    else
        *out = index;
    return status;
}
