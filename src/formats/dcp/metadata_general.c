/* SPDX-License-Identifier: Apache-2.0 */
/* The general way: the pickle's value graph, walked. It takes every spelling of the known objects, and says what is wrong. */
#include "formats/dcp/metadata_build.h"

#include "base/array.h"
#include "encoding/pickle.h"
#include "encoding/pickle_objects.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdlib.h>

/* Where we are, for messages: "tensor 'w'", "planner_data", … */
struct place {
    struct dcp_build *build;
    const char *what;
    struct str name;
};

static reshard_status metadata_general_fail_at(const struct place *place, const struct value *found, const char *part, const char *expected)
{
    char text[PICKLE_DESCRIBE_MAX];
    const char *colon = part ? ": " : "";
    part = part ? part : "";
    if (place->name.data)
        return error_set_at(place->build->err, RESHARD_ERR_FORMAT, found->offset, "%s '%.*s'%s%s: byte %" PRIu64 ": found %s, expected %s",
                            place->what, STR_ARG(place->name), colon, part, found->offset, pickle_describe(found, text), expected);
    return error_set_at(place->build->err, RESHARD_ERR_FORMAT, found->offset, "%s%s%s: byte %" PRIu64 ": found %s, expected %s",
                        place->what, colon, part, found->offset, pickle_describe(found, text), expected);
}

static reshard_status fail_absent(const struct place *place, const struct value *object, enum dcp_attribute attribute)
{
    return error_set_at(place->build->err, RESHARD_ERR_FORMAT, object->offset,
                        "%s%s%.*s%s: byte %" PRIu64 ": the object has no attribute '%s'", place->what, place->name.data ? " '" : "",
                        STR_ARG(place->name), place->name.data ? "'" : "", object->offset, dcp_attribute_name(attribute));
}

/* ---- objects ---- */

static enum dcp_class metadata_general_class_of(const struct value *value)
{
    const struct value *class = pickle_object_class(value);
    bool is_harmless;
    return class ? dcp_class_of(class->global.module, class->global.name, &is_harmless) : DCP_CLASS_UNKNOWN;
}

static const struct value *metadata_general_attribute_of(const struct value *object, enum dcp_attribute attribute)
{
    return pickle_object_attribute(object, dcp_attribute_name(attribute));
}

/* As attribute_of, for one that may be absent or None: both give NULL. */
static const struct value *optional_of(const struct value *object, enum dcp_attribute attribute)
{
    const struct value *found = metadata_general_attribute_of(object, attribute);
    return found && found->kind != VALUE_NONE ? found : NULL;
}

static reshard_status metadata_general_read_vector(const struct place *place, const struct value *object, enum dcp_attribute attribute,
                                                   uint32_t *out)
{
    const struct value *value = metadata_general_attribute_of(object, attribute);
    struct value **items;
    size_t count;
    if (!value)
        return fail_absent(place, object, attribute);
    if (!value_as_sequence(value, &items, &count))
        return metadata_general_fail_at(place, value, dcp_attribute_name(attribute), "torch.Size");
    if (count > RANK_MAX)
        return error_set_at(place->build->err, RESHARD_ERR_UNSUPPORTED, value->offset,
                            "%s '%.*s': %s: %zu dimensions, at most %d are supported", place->what, STR_ARG(place->name),
                            dcp_attribute_name(attribute), count, RANK_MAX);
    int64_t numbers[RANK_MAX];
    for (size_t i = 0; i < count; i++) {
        if (items[i]->kind != VALUE_INT)
            return metadata_general_fail_at(place, items[i], dcp_attribute_name(attribute), "an int of 64 bits");
        numbers[i] = items[i]->integer;
    }
    return dcp_build_vector(place->build, numbers, count, out);
}

static reshard_status metadata_general_read_text(const struct place *place, const struct value *object, enum dcp_attribute attribute,
                                                 struct str *out)
{
    const struct value *value = metadata_general_attribute_of(object, attribute);
    if (!value)
        return fail_absent(place, object, attribute);
    if (value->kind != VALUE_STR)
        return metadata_general_fail_at(place, value, dcp_attribute_name(attribute), "a str");
    *out = value->text;
    return RESHARD_OK;
}

static reshard_status read_position(const struct place *place, const struct value *object, enum dcp_attribute attribute, uint64_t *out)
{
    const struct value *value = metadata_general_attribute_of(object, attribute);
    if (!value)
        return fail_absent(place, object, attribute);
    if (value->kind != VALUE_INT)
        return metadata_general_fail_at(place, value, dcp_attribute_name(attribute), "an int of 64 bits");
    if (value->integer < 0)
        return error_set_at(place->build->err, RESHARD_ERR_FORMAT, value->offset, "%s '%.*s': %s: byte %" PRIu64 ": negative: %" PRId64,
                            place->what, STR_ARG(place->name), dcp_attribute_name(attribute), value->offset, value->integer);
    *out = (uint64_t)value->integer;
    return RESHARD_OK;
}

/* ---- state_dict_metadata ---- */

/* The dtype of a TensorProperties, whose state is a tuple that begins with it, or a dict. */
static reshard_status metadata_general_read_dtype(const struct place *place, const struct value *tensor, uint32_t *out)
{
    const struct value *properties = metadata_general_attribute_of(tensor, DCP_ATTR_PROPERTIES), *dtype = NULL;
    bool is_harmless;
    if (!properties)
        return fail_absent(place, tensor, DCP_ATTR_PROPERTIES);
    if (metadata_general_class_of(properties) != DCP_CLASS_PROPERTIES)
        return metadata_general_fail_at(place, properties, "properties", "TensorProperties");
    uint32_t states = properties->object->state_count;
    const struct value *state = states ? properties->object->states[states - 1] : NULL;
    if (state && state->kind == VALUE_TUPLE && state->list.count > 0 && state->list.items[0]->kind != VALUE_NONE)
        dtype = state->list.items[0];
    else
        dtype = metadata_general_attribute_of(properties, DCP_ATTR_DTYPE);
    if (!dtype)
        return fail_absent(place, properties, DCP_ATTR_DTYPE);
    if (dtype->kind != VALUE_GLOBAL || dcp_class_of(dtype->global.module, dtype->global.name, &is_harmless) != DCP_CLASS_DTYPE)
        return metadata_general_fail_at(place, dtype, "dtype", "a dtype of torch");
    return dcp_build_text(place->build, dtype->global.name, out);
}

static reshard_status metadata_general_read_tensor(const struct place *place, const struct value *tensor, struct dcp_entry *entry)
{
    const struct value *chunks = metadata_general_attribute_of(tensor, DCP_ATTR_CHUNKS);
    struct value **items;
    size_t count;
    reshard_status status = metadata_general_read_dtype(place, tensor, &entry->dtype);
    if (!status)
        status = metadata_general_read_vector(place, tensor, DCP_ATTR_SIZE, &entry->size);
    if (status)
        return status;
    if (!chunks)
        return fail_absent(place, tensor, DCP_ATTR_CHUNKS);
    if (!value_as_sequence(chunks, &items, &count))
        return metadata_general_fail_at(place, chunks, "chunks", "a list");
    entry->first_chunk = place->build->out->chunk_count;
    for (size_t i = 0; i < count; i++) {
        uint32_t offsets, sizes, number;
        if (metadata_general_class_of(items[i]) != DCP_CLASS_CHUNK)
            return metadata_general_fail_at(place, items[i], "chunks", "ChunkStorageMetadata");
        status = pickle_object_spend(items[i], place->build->limits->budget, place->build->err);
        if (!status)
            status = metadata_general_read_vector(place, items[i], DCP_ATTR_OFFSETS, &offsets);
        if (!status)
            status = metadata_general_read_vector(place, items[i], DCP_ATTR_SIZES, &sizes);
        if (!status)
            status = dcp_build_chunk(place->build, offsets, sizes, &number);
        if (status)
            return status;
    }
    entry->chunk_count = (uint32_t)count;
    return RESHARD_OK;
}

static reshard_status read_entries(struct dcp_build *build, const struct value *root)
{
    struct place place = { build, "state_dict_metadata", { 0 } };
    const struct value *mapping = metadata_general_attribute_of(root, DCP_ATTR_STATE_DICT_METADATA);
    struct value **pairs;
    size_t count;
    if (!mapping)
        return fail_absent(&(struct place){ build, "root", { 0 } }, root, DCP_ATTR_STATE_DICT_METADATA);
    if (!value_as_mapping(mapping, &pairs, &count))
        return metadata_general_fail_at(&place, mapping, NULL, "a dict");
    for (size_t i = 0; i < count; i += 2) {
        const struct value *key = pairs[i], *value = pairs[i + 1];
        struct dcp_entry entry = { .dtype = DCP_NONE, .size = DCP_NONE, .offset = key->offset };
        if (key->kind != VALUE_STR)
            return metadata_general_fail_at(&place, key, "key", "a str");
        struct place at = { build, "tensor", key->text };
        enum dcp_class class = metadata_general_class_of(value);
        if (class != DCP_CLASS_TENSOR && class != DCP_CLASS_BYTES)
            return metadata_general_fail_at(&at, value, NULL, "TensorStorageMetadata or BytesStorageMetadata");
        reshard_status status = class == DCP_CLASS_TENSOR ? metadata_general_read_tensor(&at, value, &entry) : RESHARD_OK;
        if (!status)
            status = dcp_build_name(build, key->text, &entry.name);
        if (!status)
            status = dcp_build_entry(build, entry);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* ---- planner_data ---- */

/* A planner may keep what it likes there; what is no path is no concern of ours. */
static reshard_status read_path(struct dcp_build *build, const struct value *key, const struct value *path)
{
    struct value **items;
    size_t count;
    uint32_t name;
    if (key->kind != VALUE_STR || !value_as_sequence(path, &items, &count))
        return RESHARD_OK;
    for (size_t i = 0; i < count; i++)
        if (items[i]->kind != VALUE_STR && items[i]->kind != VALUE_INT)
            return RESHARD_OK;
    struct dcp_path_part *parts = array_zeroed(count, sizeof(*parts));
    reshard_status status = parts ? dcp_build_name(build, key->text, &name) : error_set_memory(build->err);
    for (size_t i = 0; !status && i < count; i++) {
        parts[i].text = DCP_NONE;
        if (items[i]->kind == VALUE_STR)
            status = dcp_build_text(build, items[i]->text, &parts[i].text);
        else
            parts[i].index = items[i]->integer;
    }
    if (!status)
        status = dcp_build_path(build, name, parts, count);
    free(parts);
    return status;
}

static reshard_status read_paths(struct dcp_build *build, const struct value *root)
{
    const struct value *mapping = optional_of(root, DCP_ATTR_PLANNER_DATA);
    struct value **pairs;
    size_t count;
    if (!mapping || !value_as_mapping(mapping, &pairs, &count))
        return RESHARD_OK;
    build->out->has_planner_data = true;
    for (size_t i = 0; i < count; i += 2) {
        reshard_status status = read_path(build, pairs[i], pairs[i + 1]);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* ---- storage_data ---- */

reshard_status dcp_general_index(struct dcp_build *build, const struct value *key, const char *what, struct dcp_index *out)
{
    struct place place = { build, what, { 0 } };
    struct str name;
    *out = (struct dcp_index){ .offset = DCP_NONE, .index = -1 };
    if (metadata_general_class_of(key) != DCP_CLASS_INDEX)
        return metadata_general_fail_at(&place, key, "key", "MetadataIndex");
    reshard_status status = metadata_general_read_text(&place, key, DCP_ATTR_FQN, &name);
    if (status)
        return status;
    const struct value *hint = optional_of(key, DCP_ATTR_INDEX);
    place = (struct place){ build, "tensor", name };
    if (hint && hint->kind != VALUE_INT)
        return metadata_general_fail_at(&place, hint, "index", "an int of 64 bits");
    if (hint && hint->integer >= 0)
        out->index = hint->integer;
    if (optional_of(key, DCP_ATTR_OFFSET))
        status = metadata_general_read_vector(&place, key, DCP_ATTR_OFFSET, &out->offset);
    return status ? status : dcp_build_name(build, name, &out->name);
}

static reshard_status read_transforms(const struct place *place, const struct value *list, uint32_t *out)
{
    struct value **items;
    size_t count;
    if (!value_as_sequence(list, &items, &count))
        return metadata_general_fail_at(place, list, "transform_descriptors", "a list");
    uint32_t *texts = array_zeroed(count, sizeof(*texts));
    reshard_status status = texts ? RESHARD_OK : error_set_memory(place->build->err);
    for (size_t i = 0; !status && i < count; i++)
        status = items[i]->kind == VALUE_STR ? dcp_build_text(place->build, items[i]->text, &texts[i])
                                             : metadata_general_fail_at(place, items[i], "transform_descriptors", "a str");
    if (!status)
        status = dcp_build_transforms(place->build, texts, count, out);
    free(texts);
    return status;
}

static reshard_status metadata_general_read_range(const struct place *place, const struct value *info, uint32_t *number)
{
    struct dcp_range range = { .transforms = DCP_NONE };
    const struct value *transforms = optional_of(info, DCP_ATTR_TRANSFORMS);
    struct str path;
    reshard_status status = metadata_general_read_text(place, info, DCP_ATTR_RELATIVE_PATH, &path);
    if (!status)
        status = read_position(place, info, DCP_ATTR_OFFSET, &range.offset);
    if (!status)
        status = read_position(place, info, DCP_ATTR_LENGTH, &range.length);
    if (!status)
        status = dcp_build_text(place->build, path, &range.path);
    if (!status && transforms)
        status = read_transforms(place, transforms, &range.transforms);
    return status ? status : dcp_build_range(place->build, range, number);
}

static reshard_status metadata_general_read_storage(struct dcp_build *build, const struct value *root)
{
    struct place place = { build, "storage_data", { 0 } };
    const struct value *mapping = optional_of(root, DCP_ATTR_STORAGE_DATA);
    struct value **pairs;
    size_t count;
    if (!mapping)
        return RESHARD_OK;
    if (!value_as_mapping(mapping, &pairs, &count))
        return metadata_general_fail_at(&place, mapping, NULL, "a dict");
    for (size_t i = 0; i < count; i += 2) {
        struct dcp_index index;
        uint32_t number;
        reshard_status status = dcp_general_index(build, pairs[i], place.what, &index);
        if (status)
            return status;
        struct place at = { build, "tensor", name_map_at(&build->out->names, index.name) };
        if (metadata_general_class_of(pairs[i + 1]) != DCP_CLASS_RANGE)
            return metadata_general_fail_at(&at, pairs[i + 1], "storage_data", "_StorageInfo");
        status = dcp_build_index(build, index, &number);
        if (!status)
            status = metadata_general_read_range(&at, pairs[i + 1], &number);
        if (status)
            return status;
    }
    build->out->storage_count = (uint32_t)(count / 2);
    build->out->has_storage_data = true;
    return RESHARD_OK;
}

/* ---- the rest ---- */

/* A str or a pathlib path; anything else counts as absent. */
static reshard_status read_id(struct dcp_build *build, const struct value *object, enum dcp_attribute attribute, uint32_t *out)
{
    const struct value *id = optional_of(object, attribute);
    *out = DCP_NONE;
    if (id && id->kind == VALUE_STR)
        return dcp_build_text(build, id->text, out);
    if (!id || attribute != DCP_ATTR_CHECKPOINT_ID || metadata_general_class_of(id) != DCP_CLASS_PATH ||
        id->object->args->list.count == 0 || id->object->args->list.count > RANK_MAX)
        return RESHARD_OK;
    struct str parts[RANK_MAX];
    size_t count = id->object->args->list.count;
    for (size_t i = 0; i < count; i++) {
        if (id->object->args->list.items[i]->kind != VALUE_STR)
            return RESHARD_OK;
        parts[i] = id->object->args->list.items[i]->text;
    }
    return dcp_build_joined(build, parts, count, out);
}

static reshard_status read_storage_meta(struct dcp_build *build, const struct value *root)
{
    struct dcp_metadata *out = build->out;
    const struct value *meta = optional_of(root, DCP_ATTR_STORAGE_META);
    if (!meta || metadata_general_class_of(meta) != DCP_CLASS_STORAGE_META)
        return RESHARD_OK;
    out->has_storage_meta = true;
    reshard_status status = read_id(build, meta, DCP_ATTR_CHECKPOINT_ID, &out->checkpoint_id);
    if (!status)
        status = read_id(build, meta, DCP_ATTR_SAVE_ID, &out->save_id);
    return status ? status : read_id(build, meta, DCP_ATTR_LOAD_ID, &out->load_id);
}

static reshard_status note_attributes(struct dcp_build *build, const struct value *root)
{
    for (uint32_t i = 0; i < root->object->state_count; i++) {
        const struct value *state = root->object->states[i];
        for (size_t j = 0; state->kind == VALUE_DICT && j + 1 < state->list.count; j += 2) {
            const struct value *key = state->list.items[j];
            if (key->kind != VALUE_STR)
                continue;
            enum dcp_attribute attribute = dcp_attribute_of(key->text);
            bool is_known = attribute != DCP_ATTR_NONE && attribute <= DCP_ATTR_VERSION;
            reshard_status status = is_known ? RESHARD_OK : dcp_build_note_attribute(build, key->text);
            if (status)
                return status;
        }
    }
    return RESHARD_OK;
}

struct global_list {
    const struct value **nodes;
    size_t count, capacity;
    bool no_memory;
};

static bool collect_global(const struct value *value, void *context)
{
    struct global_list *list = context;
    if (value->kind != VALUE_GLOBAL)
        return true;
    list->no_memory = !ARRAY_ROOM(list->nodes, list->count, list->capacity);
    if (list->no_memory)
        return false;
    list->nodes[list->count++] = value;
    return true;
}

static int compare_ids(const void *a, const void *b)
{
    const struct value *const *x = a, *const *y = b;
    return ((*x)->id > (*y)->id) - ((*x)->id < (*y)->id);
}

/* In the order of appearance in the pickle, which is that of the nodes' numbers. */
static reshard_status note_globals(struct dcp_build *build, const struct value_graph *graph)
{
    struct global_list list = { 0 };
    bool no_memory = false;
    value_walk(graph->root, graph->count, build->limits->budget, collect_global, &list, &no_memory);
    reshard_status status = no_memory || list.no_memory ? error_set_memory(build->err) : RESHARD_OK;
    if (list.count)
        qsort(list.nodes, list.count, sizeof(*list.nodes), compare_ids);
    for (size_t i = 0; !status && i < list.count; i++)
        status = dcp_build_note_global(build, list.nodes[i]->global.module, list.nodes[i]->global.name);
    free(list.nodes);
    return status;
}

static reshard_status metadata_general_read_root(struct dcp_build *build, const struct value *root)
{
    if (metadata_general_class_of(root) != DCP_CLASS_METADATA)
        return metadata_general_fail_at(&(struct place){ build, "root", { 0 } }, root, NULL,
                                        "a Metadata object of torch.distributed.checkpoint");
    const struct value *class = pickle_object_class(root);
    reshard_status status = dcp_build_class_name(build, class->global.module, class->global.name, &build->out->root_class);
    if (!status)
        status = read_entries(build, root);
    if (!status)
        status = read_paths(build, root);
    if (!status)
        status = metadata_general_read_storage(build, root);
    const struct value *raw = optional_of(root, DCP_ATTR_RAW);
    if (!status && raw)
        status = dcp_raw_read(build, raw);
    if (!status)
        status = read_storage_meta(build, root);
    if (!status)
        status = read_id(build, root, DCP_ATTR_VERSION, &build->out->version);
    return status ? status : note_attributes(build, root);
}

reshard_status dcp_decode_general(const void *bytes, size_t size, struct dcp_build *build)
{
    struct value_graph graph = { 0 };
    struct pickle_report report = { 0 };
    reshard_status status = pickle_parse(bytes, size, 0, build->limits, &graph, &report, build->err);
    build->out->protocol = report.protocol;
    if (!status)
        status = note_globals(build, &graph);
    if (!status)
        status = metadata_general_read_root(build, graph.root);
    value_graph_release(&graph);
    return status;
}
