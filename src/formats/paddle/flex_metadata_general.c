/* SPDX-License-Identifier: Apache-2.0 */
/* The general way: the pickle's value graph, walked. It takes every spelling of the known objects, and says what is wrong. */
#include "formats/paddle/flex_metadata_build.h"

#include "encoding/pickle.h"
#include "encoding/pickle_objects.h"
#include "tensor/box.h"

#include <inttypes.h>

/* Where we are, for messages: "tensor 'w'", "flat_mapping", … */
struct flex_spot {
    struct flex_build *build;
    const char *what;
    struct str name;
};

static reshard_status spot_fail(const struct flex_spot *spot, const struct value *found, const char *part, const char *expected)
{
    char text[PICKLE_DESCRIBE_MAX];
    bool has_name = spot->name.data != NULL;
    return error_set_at(spot->build->err, RESHARD_ERR_FORMAT, found->offset, "%s%s%.*s%s: %s: byte %" PRIu64 ": found %s, expected %s",
                        spot->what, has_name ? " '" : "", STR_ARG(spot->name), has_name ? "'" : "", part, found->offset,
                        pickle_describe(found, text), expected);
}

static reshard_status spot_fail_absent(const struct flex_spot *spot, const struct value *object, enum flex_attribute attribute)
{
    bool has_name = spot->name.data != NULL;
    return error_set_at(spot->build->err, RESHARD_ERR_FORMAT, object->offset, "%s%s%.*s%s: byte %" PRIu64 ": there is no '%s'", spot->what,
                        has_name ? " '" : "", STR_ARG(spot->name), has_name ? "'" : "", object->offset, flex_attribute_name(attribute));
}

/* ---- objects ---- */

static enum flex_class class_at(const struct value *value)
{
    const struct value *class = pickle_object_class(value);
    return class ? flex_class_of(class->global.module, class->global.name) : FLEX_CLASS_UNKNOWN;
}

/* NULL if it is absent, and if it is None. */
static const struct value *given(const struct value *object, enum flex_attribute attribute)
{
    const struct value *found = pickle_object_attribute(object, flex_attribute_name(attribute));
    return found && found->kind != VALUE_NONE ? found : NULL;
}

/* The general_argument of a call, or NULL. */
static const struct value *general_argument(const struct value *call, size_t index)
{
    const struct value *args = call->object->args;
    return args && args->kind == VALUE_TUPLE && index < args->list.count ? args->list.items[index] : NULL;
}

/* numpy.dtype("i8", False, True), whose state is (3, byte order, …). */
static bool general_type(const struct value *type, bool *is_signed, size_t *bytes)
{
    if (!type || class_at(type) != FLEX_CLASS_DTYPE)
        return false;
    const struct value *name = general_argument(type, 0);
    for (uint32_t i = 0; i < type->object->state_count; i++) {
        const struct value *state = type->object->states[i];
        if (state->kind != VALUE_TUPLE || state->list.count < 2 || state->list.items[1]->kind != VALUE_STR ||
            str_is(state->list.items[1]->text, ">"))
            return false;
    }
    return name && name->kind == VALUE_STR && flex_integer_type(name->text, is_signed, bytes);
}

/* An int, or a scalar of NumPy: numpy._core.multiarray.scalar(dtype, bytes). */
static bool general_integer(const struct value *value, int64_t *out)
{
    bool is_signed, done = false;
    size_t bytes;
    if (value->kind == VALUE_INT) {
        *out = value->integer;
        return true;
    }
    if (class_at(value) != FLEX_CLASS_SCALAR || !general_type(general_argument(value, 0), &is_signed, &bytes))
        return false;
    const struct value *content = general_argument(value, 1);
    struct buffer text = { 0 };
    if (content && value_as_bytes(content, &text))
        done = text.size == bytes && flex_integer_of(buffer_str(&text), is_signed, out);
    buffer_release(&text);
    return done;
}

/* FLEX_NONE if it is absent or None. */
static reshard_status general_vector(const struct flex_spot *spot, const struct value *object, enum flex_attribute attribute, uint32_t *out)
{
    const struct value *value = given(object, attribute);
    struct value **items;
    size_t count;
    int64_t numbers[RANK_MAX];
    *out = FLEX_NONE;
    if (!value)
        return RESHARD_OK;
    if (!value_as_sequence(value, &items, &count))
        return spot_fail(spot, value, flex_attribute_name(attribute), "a tuple of ints");
    if (count > RANK_MAX)
        return error_set_at(spot->build->err, RESHARD_ERR_UNSUPPORTED, value->offset,
                            "%s '%.*s': %s: %zu numbers, at most %d are supported", spot->what, STR_ARG(spot->name),
                            flex_attribute_name(attribute), count, RANK_MAX);
    for (size_t i = 0; i < count; i++) {
        if (!general_integer(items[i], &numbers[i]))
            return spot_fail(spot, items[i], flex_attribute_name(attribute), "an int of 64 bits");
    }
    if (attribute == FLEX_ATTR_FLATTENED_RANGE && count != 2)
        return spot_fail(spot, value, flex_attribute_name(attribute), "(start, stop)");
    return flex_build_vector(spot->build, numbers, count, out);
}

static reshard_status general_box(const struct flex_spot *spot, const struct value *object, enum flex_attribute attribute, uint32_t *out)
{
    reshard_status status = general_vector(spot, object, attribute, out);
    return !status && *out == FLEX_NONE ? spot_fail_absent(spot, object, attribute) : status;
}

static reshard_status general_flag(const struct flex_spot *spot, const struct value *object, bool *is_there, bool *out)
{
    const struct value *flag = pickle_object_attribute(object, flex_attribute_name(FLEX_ATTR_IS_FLATTENED));
    *is_there = flag != NULL;
    *out = flag && flag->kind == VALUE_BOOL && flag->boolean;
    return !flag || flag->kind == VALUE_BOOL ? RESHARD_OK : spot_fail(spot, flag, "is_flattened", "a bool");
}

/* Attributes that have no meaning for us are left unread, and said. */
static reshard_status note_extras(struct flex_build *build, const struct value *object)
{
    reshard_status status = pickle_object_spend(object, build->limits->budget, build->err);
    for (uint32_t i = 0; i < object->object->state_count; i++) {
        const struct value *state = object->object->states[i];
        for (size_t j = 0; !status && state->kind == VALUE_DICT && j + 1 < state->list.count; j += 2) {
            const struct value *key = state->list.items[j];
            if (key->kind == VALUE_STR && flex_attribute_of(key->text) == FLEX_ATTR_NONE)
                status = flex_build_extra(build, key->text);
        }
    }
    return status;
}

/* ---- state_dict_metadata ---- */

static reshard_status general_shard(const struct flex_spot *spot, const struct value *object, uint32_t *number)
{
    struct flex_shard shard = { .dtype = FLEX_NONE };
    const struct value *dtype = given(object, FLEX_ATTR_DTYPE);
    bool has_flag = false;
    reshard_status status = note_extras(spot->build, object);
    if (!status)
        status = general_box(spot, object, FLEX_ATTR_GLOBAL_OFFSET, &shard.offset);
    if (!status)
        status = general_box(spot, object, FLEX_ATTR_LOCAL_SHAPE, &shard.shape);
    if (!status)
        status = general_vector(spot, object, FLEX_ATTR_GLOBAL_SHAPE, &shard.global_shape);
    if (!status)
        status = general_vector(spot, object, FLEX_ATTR_FLATTENED_RANGE, &shard.range);
    if (!status)
        status = general_flag(spot, object, &has_flag, &shard.is_flattened);
    if (!status && dtype && dtype->kind != VALUE_STR)
        status = spot_fail(spot, dtype, "dtype", "a str");
    if (!status && dtype)
        status = flex_build_text(spot->build, dtype->text, &shard.dtype);
    if (has_flag)
        spot->build->out->generation.shard = 1;
    return status ? status : flex_build_shard(spot->build, shard, number);
}

static reshard_status general_key(struct flex_build *build, const struct value *name, const struct value *list)
{
    struct flex_spot spot = { build, "state_dict_metadata", { 0 } };
    struct flex_key key = { .offset = name->offset, .first_shard = build->out->shard_count };
    struct value **items;
    size_t count;
    uint32_t number;
    if (name->kind != VALUE_STR)
        return spot_fail(&spot, name, "key", "a str");
    spot = (struct flex_spot){ build, "tensor", name->text };
    if (!value_as_sequence(list, &items, &count))
        return spot_fail(&spot, list, "shards", "a list of LocalTensorMetadata");
    reshard_status status = flex_build_name(build, name->text, &key.name);
    for (size_t i = 0; !status && i < count; i++)
        status = class_at(items[i]) == FLEX_CLASS_SHARD ? general_shard(&spot, items[i], &number)
                                                        : spot_fail(&spot, items[i], "shards", "a LocalTensorMetadata");
    key.shard_count = (uint32_t)count;
    return status ? status : flex_build_key(build, key);
}

/* ---- storage_metadata ---- */

static reshard_status general_index(struct flex_build *build, const struct value *object, const struct value *file)
{
    struct flex_spot spot = { build, "storage_metadata", { 0 } };
    struct flex_index index = { .replica = -1 };
    uint32_t number;
    bool has_flag = false;
    if (class_at(object) != FLEX_CLASS_INDEX)
        return spot_fail(&spot, object, "key", "a LocalTensorIndex");
    const struct value *key = given(object, FLEX_ATTR_TENSOR_KEY), *replica = given(object, FLEX_ATTR_REPLICA_ID);
    if (!key)
        return spot_fail_absent(&spot, object, FLEX_ATTR_TENSOR_KEY);
    if (key->kind != VALUE_STR)
        return spot_fail(&spot, key, "tensor_key", "a str");
    spot = (struct flex_spot){ build, "storage_metadata of", key->text };
    if (file->kind != VALUE_STR)
        return spot_fail(&spot, file, "file", "a str");
    int64_t number_of_replica = -1;
    if (replica && (!general_integer(replica, &number_of_replica) || number_of_replica < 0 || number_of_replica > INT32_MAX))
        return spot_fail(&spot, replica, "replica_id", "an int that is not negative");
    index.replica = (int32_t)number_of_replica;
    reshard_status status = note_extras(build, object);
    if (!status)
        status = flex_build_name(build, key->text, &index.name);
    if (!status)
        status = flex_build_text(build, file->text, &index.file);
    if (!status)
        status = general_box(&spot, object, FLEX_ATTR_GLOBAL_OFFSET, &index.offset);
    if (!status)
        status = general_vector(&spot, object, FLEX_ATTR_LOCAL_SHAPE, &index.shape);
    if (!status)
        status = general_vector(&spot, object, FLEX_ATTR_FLATTENED_RANGE, &index.range);
    if (!status)
        status = general_flag(&spot, object, &has_flag, &index.is_flattened);
    if (has_flag && build->out->generation.index < 1)
        build->out->generation.index = 1;
    return status ? status : flex_build_index(build, index, &number);
}

/* ---- flat_mapping ---- */

static reshard_status general_path(struct flex_build *build, const struct value *name, const struct value *path)
{
    const struct flex_spot spot = { build, "flat_mapping", { 0 } };
    struct value **items;
    size_t count;
    uint32_t number;
    if (name->kind != VALUE_STR)
        return spot_fail(&spot, name, "key", "a str");
    if (!value_as_sequence(path, &items, &count))
        return spot_fail(&spot, path, "path", "a tuple of strs");
    reshard_status status = flex_build_name(build, name->text, &number);
    for (size_t i = 0; !status && i < count; i++)
        status = items[i]->kind == VALUE_STR ? flex_build_path_part(build, items[i]->text) : spot_fail(&spot, items[i], "path", "a str");
    return status ? status : flex_build_path(build, number, (uint32_t)count);
}

/* ---- the root ---- */

typedef reshard_status (*general_pair)(struct flex_build *build, const struct value *key, const struct value *value);

static reshard_status general_dict(struct flex_build *build, const struct value *root, enum flex_attribute attribute, bool is_required,
                                   general_pair read)
{
    const struct flex_spot spot = { build, "Metadata", { 0 } };
    const struct value *dict = given(root, attribute);
    struct value **pairs;
    size_t count;
    if (!dict)
        return is_required ? spot_fail_absent(&spot, root, attribute) : RESHARD_OK;
    if (!value_as_mapping(dict, &pairs, &count))
        return spot_fail(&spot, dict, flex_attribute_name(attribute), "a dict");
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; !status && i + 1 < count; i += 2)
        status = read(build, pairs[i], pairs[i + 1]);
    return status;
}

static reshard_status general_labels(struct flex_build *build, const struct value *root)
{
    reshard_status status = RESHARD_OK;
    for (int i = 0; !status && i < FLEX_LABELS; i++) {
        const struct value *label = given(root, (enum flex_attribute)(FLEX_ATTR_MODEL_TYPE + i));
        if (label && label->kind == VALUE_STR)
            status = flex_build_text(build, label->text, &build->out->labels[i]);
    }
    return status;
}

static reshard_status general_metadata(struct flex_build *build, const struct value *root)
{
    const struct flex_spot spot = { build, "Metadata", { 0 } };
    if (class_at(root) != FLEX_CLASS_METADATA)
        return spot_fail(&spot, root, "root", "a Metadata object of paddle.distributed.flex_checkpoint");
    build->out->generation.is_old_module = str_is(pickle_object_class(root)->global.module, FLEX_OLD_MODULE);
    build->out->has_flat_mapping = given(root, FLEX_ATTR_FLAT_MAPPING) != NULL;
    reshard_status status = note_extras(build, root);
    if (!status)
        status = general_dict(build, root, FLEX_ATTR_STATE_DICT_METADATA, true, general_key);
    if (!status)
        status = general_dict(build, root, FLEX_ATTR_STORAGE_METADATA, true, general_index);
    if (!status)
        status = general_dict(build, root, FLEX_ATTR_FLAT_MAPPING, false, general_path);
    return status ? status : general_labels(build, root);
}

/* The first global that is not allowed. */
static bool general_is_allowed(const struct value *value, void *context)
{
    const struct value **refused = context;
    if (value->kind != VALUE_GLOBAL || flex_class_of(value->global.module, value->global.name) != FLEX_CLASS_UNKNOWN)
        return true;
    *refused = value;
    return false;
}

static reshard_status check_globals(const struct flex_build *build, const struct value_graph *graph)
{
    const struct value *refused = NULL;
    bool no_memory = false;
    value_walk(graph->root, graph->count, build->limits->budget, general_is_allowed, &refused, &no_memory);
    if (no_memory)
        return work_error(build->limits->budget, build->err);
    if (!refused)
        return RESHARD_OK;
    return error_set_at(build->err, RESHARD_ERR_FORMAT, refused->offset,
                        "byte %" PRIu64 ": the pickle refers to '%.*s.%.*s', which has no place in metadata (nothing was called)",
                        refused->offset, STR_ARG(refused->global.module), STR_ARG(refused->global.name));
}

reshard_status flex_decode_general(const void *bytes, size_t size, struct flex_build *build)
{
    struct value_graph graph = { 0 };
    struct pickle_report report = { 0 };
    reshard_status status = pickle_parse(bytes, size, 0, build->limits, &graph, &report, build->err);
    build->out->protocol = report.protocol;
    if (!status)
        status = check_globals(build, &graph);
    if (!status)
        status = general_metadata(build, graph.root);
    value_graph_release(&graph);
    return status;
}
