/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON of a safetensors header, in one pass into flat arrays. */
#include "encoding/safetensors_header.h"

#include "base/array.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdio.h>

struct st_parse {
    struct json_parser *json;
    struct st_header *header;
    const struct limits *limits;
    bool lenient;
};

enum st_field { ST_DTYPE = 1, ST_SHAPE = 2, ST_OFFSETS = 4 };

static reshard_status safetensors_parse_fail_at(reshard_error *err, uint64_t position, const char *format, ...) PRINTF_LIKE(3, 4);
static reshard_status safetensors_parse_fail_at(reshard_error *err, uint64_t position, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set_at(err, RESHARD_ERR_FORMAT, position, "%s", text);
}

static reshard_status next_event(struct st_parse *p, enum json_event *event, struct str *text, reshard_error *err)
{
    return json_next(p->json, event, text, err);
}

static reshard_status expect_event(struct st_parse *p, enum json_event wanted, const char *complaint, struct str *text, reshard_error *err)
{
    enum json_event event;
    reshard_status status = next_event(p, &event, text, err);
    if (status)
        return status;
    return event == wanted ? RESHARD_OK : safetensors_parse_fail_at(err, json_offset(p->json), "%s", complaint);
}

/* ---- __metadata__ ---- */

/* A key may come twice; the last value counts, as in the library. */
static reshard_status parse_metadata_pair(struct st_parse *p, struct str key, reshard_error *err)
{
    struct st_header *header = p->header;
    uint32_t index = name_map_intern(&header->metadata_keys, key, NULL);
    if (index == NAME_NONE || !ARRAY_ROOM(header->metadata_values, index, header->metadata_capacity))
        return error_set_memory(err);
    struct str value;
    reshard_status status = expect_event(p, JSON_STRING, "a value in '" ST_METADATA_KEY "' is not a string", &value, err);
    if (status)
        return status;
    return arena_str(&header->metadata_keys.arena, value, &header->metadata_values[index]) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status safetensors_parse_metadata(struct st_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = next_event(p, &event, &text, err);
    if (status || event == JSON_NULL)
        return status;
    if (event != JSON_OBJECT_BEGIN)
        return safetensors_parse_fail_at(err, json_offset(p->json), "'" ST_METADATA_KEY "' is not an object");
    p->header->has_metadata = true;
    for (;;) {
        status = next_event(p, &event, &text, err);
        if (status || event == JSON_OBJECT_END)
            return status;
        status = parse_metadata_pair(p, text, err);
        if (status)
            return status;
    }
}

/* ---- entries ---- */

static reshard_status parse_dtype(struct st_parse *p, struct str name, struct st_entry *entry, reshard_error *err)
{
    struct str text;
    enum dtype dtype;
    reshard_status status = expect_event(p, JSON_STRING, "dtype is not a string", &text, err);
    if (status)
        return status;
    if (!dtype_from_safetensors(text, &dtype) || dtype_info(dtype)->safetensors_rank < 0)
        return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': unknown dtype '%.*s'", STR_ARG(name), STR_ARG(text));
    entry->dtype = (uint8_t)dtype;
    return RESHARD_OK;
}

static bool shapes_append(struct st_header *header, int64_t dimension)
{
    if (!ARRAY_ROOM(header->shapes, header->shape_count, header->shape_capacity))
        return false;
    header->shapes[header->shape_count++] = dimension;
    return true;
}

static reshard_status parse_dimension(struct st_parse *p, struct str name, struct str text, struct st_entry *entry, reshard_error *err)
{
    uint64_t dimension;
    if (!json_number_is_u64(text, &dimension))
        return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': dimension %.*s%s is not an unsigned 64-bit integer",
                                         STR_ARG(name), STR_ARG_BRIEF(text));
    if (dimension > INT64_MAX)
        return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': dimension %" PRIu64 " is beyond 63 bits", STR_ARG(name),
                                         dimension);
    if (entry->rank == RANK_MAX) {
        error_set_at(err, RESHARD_ERR_LIMIT, json_offset(p->json), "tensor '%.*s': more than %d dimensions", STR_ARG(name), RANK_MAX);
        error_hint(err, "the limit of %d dimensions is built in", RANK_MAX);
        return RESHARD_ERR_LIMIT;
    }
    entry->rank++;
    return shapes_append(p->header, (int64_t)dimension) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status parse_shape(struct st_parse *p, struct str name, struct st_entry *entry, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = expect_event(p, JSON_ARRAY_BEGIN, "shape is not a list", &text, err);
    if (status)
        return status;
    entry->shape = p->header->shape_count;
    for (;;) {
        status = next_event(p, &event, &text, err);
        if (status || event == JSON_ARRAY_END)
            return status;
        if (event != JSON_NUMBER)
            return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': a dimension is not a number", STR_ARG(name));
        status = parse_dimension(p, name, text, entry, err);
        if (status)
            return status;
    }
}

static reshard_status parse_offset(struct st_parse *p, struct str name, uint64_t *out, reshard_error *err)
{
    struct str text;
    reshard_status status = expect_event(p, JSON_NUMBER, "data_offsets is not a list of two numbers", &text, err);
    if (status)
        return status;
    if (!json_number_is_u64(text, out))
        return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': offset %.*s%s is not an unsigned 64-bit integer",
                                         STR_ARG(name), STR_ARG_BRIEF(text));
    return RESHARD_OK;
}

static reshard_status parse_offsets(struct st_parse *p, struct str name, struct st_entry *entry, reshard_error *err)
{
    struct str text;
    reshard_status status = expect_event(p, JSON_ARRAY_BEGIN, "data_offsets is not a list of two numbers", &text, err);
    if (status)
        return status;
    status = parse_offset(p, name, &entry->begin, err);
    if (status)
        return status;
    status = parse_offset(p, name, &entry->end, err);
    if (status)
        return status;
    return expect_event(p, JSON_ARRAY_END, "data_offsets has more than two numbers", &text, err);
}

static unsigned field_of(struct str name)
{
    if (str_equal(name, STR("dtype")))
        return ST_DTYPE;
    if (str_equal(name, STR("shape")))
        return ST_SHAPE;
    return str_equal(name, STR("data_offsets")) ? ST_OFFSETS : 0;
}

static reshard_status parse_unknown_field(struct st_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = next_event(p, &event, &text, err);
    return status ? status : json_skip(p->json, event, err);
}

static reshard_status parse_field(struct st_parse *p, struct str name, struct str field_name, unsigned *seen, struct st_entry *entry,
                                  reshard_error *err)
{
    unsigned field = field_of(field_name);
    if (*seen & field)
        return safetensors_parse_fail_at(err, json_offset(p->json), "tensor '%.*s': duplicate field '%.*s'", STR_ARG(name),
                                         STR_ARG(field_name));
    *seen |= field;
    switch (field) {
    case ST_DTYPE:
        return parse_dtype(p, name, entry, err);
    case ST_SHAPE:
        return parse_shape(p, name, entry, err);
    case ST_OFFSETS:
        return parse_offsets(p, name, entry, err);
    default:
        return parse_unknown_field(p, err);
    }
}

static reshard_status check_fields(const struct st_entry *entry, struct str name, unsigned seen, reshard_error *err)
{
    const char *missing = !(seen & ST_DTYPE) ? "dtype" : !(seen & ST_SHAPE) ? "shape" : !(seen & ST_OFFSETS) ? "data_offsets" : NULL;
    return missing ? safetensors_parse_fail_at(err, entry->position, "tensor '%.*s': no field '%s'", STR_ARG(name), missing) : RESHARD_OK;
}

static reshard_status parse_entry_fields(struct st_parse *p, struct str name, struct st_entry *entry, reshard_error *err)
{
    enum json_event event;
    struct str text;
    unsigned seen = 0;
    reshard_status status = expect_event(p, JSON_OBJECT_BEGIN, "the entry of a tensor is not an object", &text, err);
    while (!status) {
        status = next_event(p, &event, &text, err);
        if (status)
            return status;
        if (event == JSON_OBJECT_END)
            return check_fields(entry, name, seen, err);
        status = parse_field(p, name, text, &seen, entry, err);
    }
    return status;
}

static reshard_status safetensors_parse_entry(struct st_parse *p, struct str text, reshard_error *err)
{
    struct st_header *header = p->header;
    struct st_entry entry = { .position = json_offset(p->json) };
    bool was_new;
    uint32_t index = name_map_intern(&header->names, text, &was_new);
    if (index == NAME_NONE || !ARRAY_ROOM(header->entries, index, header->capacity))
        return error_set_memory(err);
    struct str name = name_map_at(&header->names, index);
    if (!was_new && !p->lenient) {
        safetensors_parse_fail_at(err, entry.position, "duplicate tensor name '%.*s'", STR_ARG(name));
        error_hint(err, "parsers disagree on which one counts; reshard_open_options.lenient takes the last");
        return RESHARD_ERR_FORMAT;
    }
    if (index >= p->limits->tensors)
        return error_set_limit(err, "tensors", (uint64_t)index + 1, p->limits->tensors);
    reshard_status status = parse_entry_fields(p, name, &entry, err);
    if (status)
        return status;
    header->entries[index] = entry;
    header->count = header->names.count;
    return RESHARD_OK;
}

static reshard_status safetensors_parse_members(struct st_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    bool seen_metadata = false;
    reshard_status status = expect_event(p, JSON_OBJECT_BEGIN, "the header is not a JSON object", &text, err);
    while (!status) {
        status = next_event(p, &event, &text, err);
        if (status)
            return status;
        if (event == JSON_OBJECT_END)
            return expect_event(p, JSON_END, "something follows the header's object", &text, err);
        if (!str_equal(text, STR(ST_METADATA_KEY))) {
            status = safetensors_parse_entry(p, text, err);
            continue;
        }
        if (seen_metadata)
            return safetensors_parse_fail_at(err, json_offset(p->json), "duplicate '" ST_METADATA_KEY "'");
        seen_metadata = true;
        status = safetensors_parse_metadata(p, err);
    }
    return status;
}

reshard_status st_header_parse(struct str json, uint64_t base_offset, const struct limits *limits, bool lenient, struct st_header *out,
                               reshard_error *err)
{
    struct st_parse parse = { .header = out, .limits = limits, .lenient = lenient };
    parse.json = json_new(json.data, json.size, base_offset, limits);
    if (!parse.json)
        return error_set_memory(err);
    reshard_status status = safetensors_parse_members(&parse, err);
    json_free(parse.json);
    return status;
}
