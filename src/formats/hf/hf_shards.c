/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face storage of torch DCP: each file holds pieces, and says in its metadata where they lie. The global shapes are written
 * nowhere: a tensor reaches as far as its pieces do, so a missing last piece cannot be noticed.
 */
#include "formats/hf/hf_read.h"

#include "base/checked.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- DCP_SHARDING_INFO ---- */

struct info_parse {
    struct json_parser *json;
    const struct st_file *file;
    struct hf_offsets *offsets;
    bool *seen; /* by entry */
};

static reshard_status expect(struct info_parse *p, enum json_event wanted, const char *complaint, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = json_next(p->json, &event, &text, err);
    if (status)
        return status;
    return event == wanted ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "%s", complaint);
}

static reshard_status skip_value(struct info_parse *p, reshard_error *err)
{
    enum json_event event;
    struct str text;
    reshard_status status = json_next(p->json, &event, &text, err);
    return status ? status : json_skip(p->json, event, err);
}

static reshard_status parse_saved_offsets(struct info_parse *p, uint32_t entry_index, reshard_error *err)
{
    const struct st_entry *entry = &p->file->header.entries[entry_index];
    reshard_status status = expect(p, JSON_ARRAY_BEGIN, "saved_offsets is not a list", err);
    for (int count = 0; !status; count++) {
        enum json_event event;
        struct str text;
        uint64_t value;
        status = json_next(p->json, &event, &text, err);
        if (status)
            return status;
        if (event == JSON_ARRAY_END && count == entry->rank) {
            p->seen[entry_index] = true;
            return RESHARD_OK;
        }
        if (event == JSON_ARRAY_END || count == entry->rank)
            return error_set(err, RESHARD_ERR_FORMAT, "saved_offsets has %s numbers than the tensor's %d dimensions",
                             event == JSON_ARRAY_END ? "fewer" : "more", entry->rank);
        if (event != JSON_NUMBER || !json_number_is_u64(text, &value) || value > INT64_MAX)
            return error_set(err, RESHARD_ERR_FORMAT, "an offset is no unsigned 63-bit integer");
        p->offsets->values[p->offsets->at[entry_index] + (uint64_t)count] = (int64_t)value;
    }
    return status;
}

static reshard_status parse_tensor_info(struct info_parse *p, uint32_t entry_index, reshard_error *err)
{
    reshard_status status = expect(p, JSON_OBJECT_BEGIN, "the value of a name is not an object", err);
    while (!status) {
        enum json_event event;
        struct str text;
        status = json_next(p->json, &event, &text, err);
        if (status || event == JSON_OBJECT_END)
            return status;
        if (str_equal(text, STR("saved_offsets")) && entry_index != NAME_NONE)
            status = parse_saved_offsets(p, entry_index, err);
        else
            status = skip_value(p, err);
    }
    return status;
}

static reshard_status parse_info(struct info_parse *p, reshard_error *err)
{
    reshard_status status = expect(p, JSON_OBJECT_BEGIN, "it is not a JSON object", err);
    while (!status) {
        enum json_event event;
        struct str text;
        status = json_next(p->json, &event, &text, err);
        if (status)
            return status;
        if (event == JSON_OBJECT_END)
            return expect(p, JSON_END, "something follows the object", err);
        uint32_t entry_index = name_map_find(&p->file->header.names, text);
        status = parse_tensor_info(p, entry_index, err);
        if (status && entry_index != NAME_NONE)
            error_prefix(err, "tensor '%.*s'", STR_ARG(name_map_at(&p->file->header.names, entry_index)));
    }
    return status;
}

static reshard_status parse_text(const struct st_file *file, struct str info, const struct limits *limits, struct hf_offsets *offsets,
                                 bool *seen, reshard_error *err)
{
    struct info_parse parse = { .file = file, .offsets = offsets, .seen = seen };
    parse.json = json_new(info.data, info.size, 0, limits);
    if (!parse.json)
        return error_set_memory(err);
    reshard_status status = parse_info(&parse, err);
    json_free(parse.json);
    for (uint32_t i = 0; i < file->header.count && !status; i++) {
        if (!seen[i])
            status = error_set(err, RESHARD_ERR_FORMAT, "it says nothing of tensor '%.*s'", STR_ARG(name_map_at(&file->header.names, i)));
    }
    return status;
}

reshard_status hf_offsets_read(const struct st_file *file, const struct limits *limits, struct arena *arena, struct hf_offsets *out,
                               reshard_error *err)
{
    const struct st_header *header = &file->header;
    uint64_t total = 0;
    struct str info;
    out->at = arena_array(arena, header->count, sizeof(*out->at));
    bool *seen = arena_zalloc(arena, (size_t)header->count + 1);
    if (!out->at || !seen)
        return error_set_memory(err);
    for (uint32_t i = 0; i < header->count; i++) {
        out->at[i] = total;
        total += header->entries[i].rank;
    }
    out->values = arena_zalloc(arena, ((size_t)total + 1) * sizeof(*out->values));
    if (!out->values)
        return error_set_memory(err);
    if (!st_metadata_find(header, HF_SHARDING_INFO, &info))
        return RESHARD_OK;
    reshard_status status = parse_text(file, info, limits, out, seen, err);
    if (status) {
        st_error_place(err, HF_SHARDING_INFO);
        error_prefix(err, "shard '%.*s'", STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
    }
    return status;
}

/* ---- the tensors ---- */

struct whole {
    uint64_t shape; /* in shapes */
    uint32_t tensor;
    uint32_t file; /* where it was seen first */
    uint16_t rank;
    uint8_t dtype;
};

struct hf_assembly {
    struct hf_read *read;
    struct hf_offsets *offsets; /* by file */
    struct name_map names;
    struct whole *wholes; /* by name */
    int64_t *shapes;
    uint64_t shape_count;
};

static reshard_status refuse_piece(const struct hf_assembly *assembly, struct str key, uint32_t a, uint32_t b, const char *what,
                                   reshard_error *err)
{
    const struct st_file *files = assembly->read->set.files.items;
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': '%.*s' and '%.*s' disagree on its %s", STR_ARG(key), STR_ARG(files[a].name),
              STR_ARG(files[b].name), what);
    error_object(err, "%.*s", STR_ARG(key));
    return RESHARD_ERR_FORMAT;
}

static reshard_status merge_piece(struct hf_assembly *assembly, uint32_t file_index, uint32_t entry_index, reshard_error *err)
{
    const struct st_file *file = &assembly->read->set.files.items[file_index];
    const struct st_entry *entry = &file->header.entries[entry_index];
    const int64_t *extent = st_entry_shape(&file->header, entry);
    const int64_t *start = assembly->offsets[file_index].values + assembly->offsets[file_index].at[entry_index];
    struct str key = name_map_at(&file->header.names, entry_index);
    bool was_new;
    uint32_t number = name_map_intern(&assembly->names, key, &was_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    struct whole *whole = &assembly->wholes[number];
    if (was_new) {
        *whole = (struct whole){ .shape = assembly->shape_count, .file = file_index, .rank = entry->rank, .dtype = entry->dtype };
        assembly->shape_count += entry->rank;
    }
    if (whole->dtype != entry->dtype)
        return refuse_piece(assembly, key, whole->file, file_index, "dtype", err);
    if (whole->rank != entry->rank)
        return refuse_piece(assembly, key, whole->file, file_index, "number of dimensions", err);
    for (int i = 0; i < entry->rank; i++) {
        int64_t end;
        if (!checked_add_i64(start[i], extent[i], &end))
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': the piece in '%.*s' reaches beyond 2^63", STR_ARG(key),
                             STR_ARG(file->name));
        int64_t *reach = &assembly->shapes[whole->shape + (uint64_t)i];
        if (end > *reach)
            *reach = end;
    }
    return RESHARD_OK;
}

static reshard_status hf_shards_add_piece(struct hf_assembly *assembly, uint32_t file_index, uint32_t entry_index, uint16_t writer,
                                reshard_error *err)
{
    const struct st_file *file = &assembly->read->set.files.items[file_index];
    const struct st_entry *entry = &file->header.entries[entry_index];
    const struct hf_offsets *offsets = &assembly->offsets[file_index];
    uint32_t number = name_map_find(&assembly->names, name_map_at(&file->header.names, entry_index));
    struct catalog_chunk *chunk;
    reshard_status status = st_file_add_chunk(assembly->read->source, assembly->wholes[number].tensor, file, entry,
                                              offsets->values + offsets->at[entry_index], &chunk, err);
    if (!status && chunk)
        chunk->writer = writer;
    return status;
}

static uint64_t count_entries(const struct st_files *files, uint64_t *dimensions)
{
    uint64_t entries = 0;
    *dimensions = 0;
    for (uint32_t f = 0; f < files->count; f++) {
        entries += files->items[f].header.count;
        *dimensions += files->items[f].header.shape_count;
    }
    return entries;
}

static reshard_status merge_files(struct hf_assembly *assembly, reshard_error *err)
{
    struct hf_read *read = assembly->read;
    uint64_t dimensions, entries = count_entries(&read->set.files, &dimensions);
    reshard_status status = RESHARD_OK;
    assembly->offsets = arena_array(&read->arena, read->set.files.count, sizeof(*assembly->offsets));
    assembly->wholes = arena_array(&read->arena, entries, sizeof(*assembly->wholes));
    assembly->shapes = arena_zalloc(&read->arena, ((size_t)dimensions + 1) * sizeof(*assembly->shapes));
    if (!assembly->offsets || !assembly->wholes || !assembly->shapes)
        return error_set_memory(err);
    for (uint32_t f = 0; f < read->set.files.count && !status; f++) {
        const struct st_file *file = &read->set.files.items[f];
        status = hf_offsets_read(file, &read->source->limits, &read->arena, &assembly->offsets[f], err);
        for (uint32_t i = 0; i < file->header.count && !status; i++)
            status = merge_piece(assembly, f, i, err);
    }
    return status;
}

static reshard_status add_wholes(struct hf_assembly *assembly, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < assembly->names.count && !status; i++) {
        struct whole *whole = &assembly->wholes[i];
        status = catalog_add_tensor(assembly->read->source->catalog, name_map_at(&assembly->names, i), whole->dtype, whole->rank,
                                    assembly->shapes + whole->shape, &whole->tensor, err);
    }
    return status;
}

static reshard_status add_pieces(struct hf_assembly *assembly, reshard_error *err)
{
    struct hf_read *read = assembly->read;
    uint64_t ranks = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t f = 0; f < read->set.files.count && !status; f++) {
        const struct st_file *file = &read->set.files.items[f];
        uint64_t plan = 1, number, total;
        hf_parse_shard_name(str_base_name(file->name), &plan, &number, &total);
        ranks = plan > ranks ? plan : ranks;
        uint64_t writer = plan ? plan - 1 : 0;
        for (uint32_t i = 0; i < file->header.count && !status; i++)
            status = hf_shards_add_piece(assembly, f, i, catalog_writer(writer), err);
    }
    read->source->catalog->ranks = ranks < UINT32_MAX ? (uint32_t)ranks : UINT32_MAX;
    return status;
}

/* Every file name tells of how many output files the set is. Each of these has at least one piece, so one without any is lost. */
static reshard_status check_set(const struct hf_read *read, reshard_error *err)
{
    uint64_t plan, number, total = 0, found = 0;
    const struct st_file *first = &read->set.files.items[0];
    struct name_map numbers = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t f = 0; f < read->set.files.count && !status; f++) {
        const struct st_file *file = &read->set.files.items[f];
        uint64_t set_total;
        hf_parse_shard_name(str_base_name(file->name), &plan, &number, &set_total);
        total = f == 0 ? set_total : total;
        if (set_total != total)
            status = error_set(err, RESHARD_ERR_FORMAT, "two sets of shards are mixed: '%.*s' and '%.*s'", STR_ARG(first->name),
                               STR_ARG(file->name));
        else if (name_map_intern(&numbers, (struct str){ (const char *)&number, sizeof(number) }, NULL) == NAME_NONE)
            status = error_set_memory(err);
    }
    found = numbers.count;
    name_map_release(&numbers);
    if (!status && found < total)
        catalog_warn(read->source->catalog, false, "of %" PRIu64 " files of pieces, %" PRIu64 " have none here", total, total - found);
    return status;
}

reshard_status hf_read_shards(struct hf_read *read, reshard_error *err)
{
    struct hf_assembly assembly = { .read = read };
    reshard_status status = merge_files(&assembly, err);
    if (!status)
        status = add_wholes(&assembly, err);
    if (!status)
        status = add_pieces(&assembly, err);
    if (!status)
        status = check_set(read, err);
    name_map_release(&assembly.names);
    return status;
}
