/* SPDX-License-Identifier: Apache-2.0 */
/* The fast way: what the classes of a `.metadata` mean to encoding/pickle_records. */
#include "formats/dcp/metadata_fast.h"

#include "tensor/box.h"

#include <stdlib.h>

static struct dcp_build *metadata_fast_build_of(const struct records *m)
{
    return ((const struct dcp_fast *)m->context)->build;
}

/* ---- calls ---- */

/* The classes of pathlib. */
static enum records_step call_path(struct records *m, int kind, records_word args, records_word *out)
{
    size_t count = 0;
    const records_word *items = records_tag(args) == RECORDS_TUPLE ? records_tuple(m, args, &count) : NULL;
    (void)kind;
    struct str parts[RANK_MAX];
    if (!count || count > RANK_MAX)
        return RECORDS_GIVE_UP;
    for (size_t i = 0; i < count; i++) {
        if (records_tag(items[i]) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        parts[i] = records_text(m, items[i]);
    }
    uint32_t text;
    reshard_status status = dcp_build_joined(metadata_fast_build_of(m), parts, count, &text);
    *out = records_word_of(DCP_WORD_PATH, text);
    return status ? records_fail(m, status) : RECORDS_ON;
}

/* ---- objects ---- */

/* The attributes that an object's state gives, by name. */
struct attributes {
    records_word values[DCP_ATTR_COUNT]; /* UNSET if absent */
};

static bool read_attributes(struct records *m, records_word state, struct attributes *out)
{
    return records_read_attributes(m, state, out->values, DCP_ATTR_COUNT);
}

static enum records_step build_chunk(struct records *m, const struct attributes *given, records_word *out)
{
    uint32_t offsets, sizes, number;
    if (!records_is_vector(given->values[DCP_ATTR_OFFSETS], &offsets) || !records_is_vector(given->values[DCP_ATTR_SIZES], &sizes))
        return RECORDS_GIVE_UP;
    reshard_status status = dcp_build_chunk(metadata_fast_build_of(m), offsets, sizes, &number);
    *out = records_word_of(DCP_WORD_CHUNK, number);
    return status ? records_fail(m, status) : RECORDS_ON;
}

static enum records_step build_index(struct records *m, const struct attributes *given, records_word *out)
{
    struct dcp_index index = { .offset = DCP_NONE, .index = -1 };
    records_word fqn = given->values[DCP_ATTR_FQN], hint = given->values[DCP_ATTR_INDEX], offset = given->values[DCP_ATTR_OFFSET];
    uint32_t number;
    if (records_tag(fqn) != RECORDS_STR || (!records_is_absent(offset) && !records_is_vector(offset, &index.offset)) ||
        (!records_is_absent(hint) && records_tag(hint) != RECORDS_INT))
        return RECORDS_GIVE_UP;
    if (records_tag(hint) == RECORDS_INT && records_int(hint) >= 0)
        index.index = records_int(hint);
    enum records_step step = records_string(m, DCP_NAMES, fqn, &index.name);
    if (step)
        return step;
    reshard_status status = dcp_build_index(metadata_fast_build_of(m), index, &number);
    *out = records_word_of(DCP_WORD_INDEX, number);
    return status ? records_fail(m, status) : RECORDS_ON;
}

static enum records_step transforms_of(struct records *m, records_word list, uint32_t *out)
{
    uint32_t texts[RANK_MAX];
    if (records_tag(list) != RECORDS_LIST)
        return RECORDS_GIVE_UP;
    const struct records_container *container = records_take_container(m, list);
    if (container->is_run || container->count > RANK_MAX)
        return RECORDS_GIVE_UP;
    for (uint64_t i = 0; i < container->count; i++) {
        if (records_tag(container->items[i]) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        enum records_step step = records_string(m, DCP_TEXTS, container->items[i], &texts[i]);
        if (step)
            return step;
    }
    reshard_status status = dcp_build_transforms(metadata_fast_build_of(m), texts, (size_t)container->count, out);
    return status ? records_fail(m, status) : RECORDS_ON;
}

static enum records_step build_range(struct records *m, const struct attributes *given, records_word *out)
{
    records_word path = given->values[DCP_ATTR_RELATIVE_PATH], offset = given->values[DCP_ATTR_OFFSET],
                 length = given->values[DCP_ATTR_LENGTH];
    struct dcp_range range = { .transforms = DCP_NONE };
    uint32_t number;
    if (records_tag(path) != RECORDS_STR || records_tag(offset) != RECORDS_INT || records_int(offset) < 0 ||
        records_tag(length) != RECORDS_INT || records_int(length) < 0)
        return RECORDS_GIVE_UP;
    range.offset = (uint64_t)records_int(offset);
    range.length = (uint64_t)records_int(length);
    enum records_step step = records_string(m, DCP_TEXTS, path, &range.path);
    if (!step && !records_is_absent(given->values[DCP_ATTR_TRANSFORMS]))
        step = transforms_of(m, given->values[DCP_ATTR_TRANSFORMS], &range.transforms);
    if (step)
        return step;
    reshard_status status = dcp_build_range(metadata_fast_build_of(m), range, &number);
    *out = records_word_of(DCP_WORD_RANGE, number);
    return status ? records_fail(m, status) : RECORDS_ON;
}

/* The chunks of a list that is no run are put once more behind all others, in their order. */
static enum records_step gather_chunks(struct records *m, const struct records_container *list, uint32_t *first)
{
    *first = metadata_fast_build_of(m)->out->chunk_count;
    for (uint64_t i = 0; i < list->count; i++) {
        records_word chunk = records_resolve(m, list->items[i]);
        uint32_t number;
        if (records_tag(chunk) != DCP_WORD_CHUNK)
            return RECORDS_GIVE_UP;
        struct dcp_chunk copy = metadata_fast_build_of(m)->out->chunks[records_payload(chunk)];
        reshard_status status = dcp_build_chunk(metadata_fast_build_of(m), copy.offsets, copy.sizes, &number);
        if (status)
            return records_fail(m, status);
    }
    return RECORDS_ON;
}

static enum records_step build_tensor(struct records *m, const struct attributes *given, records_word *out)
{
    records_word properties = given->values[DCP_ATTR_PROPERTIES], chunks = given->values[DCP_ATTR_CHUNKS];
    struct dcp_fast_tensor tensor = { .dtype = (uint32_t)records_payload(properties) };
    if (records_tag(properties) != DCP_WORD_PROPERTIES || !records_is_vector(given->values[DCP_ATTR_SIZE], &tensor.size) ||
        records_tag(chunks) != RECORDS_LIST)
        return RECORDS_GIVE_UP;
    const struct records_container *list = records_take_container(m, chunks);
    if (list->count > UINT32_MAX)
        return RECORDS_GIVE_UP;
    tensor.chunk_count = (uint32_t)list->count;
    tensor.first_chunk = list->run_first;
    if (!list->is_run) {
        enum records_step step = gather_chunks(m, list, &tensor.first_chunk);
        if (step)
            return step;
    }
    struct dcp_fast *fast = m->context;
    if (fast->tensor_count == fast->tensor_capacity) {
        enum records_step step = records_grow(m, &fast->tensors, &fast->tensor_capacity, sizeof(*fast->tensors));
        if (step)
            return step;
    }
    fast->tensors[fast->tensor_count] = tensor;
    *out = records_word_of(DCP_WORD_TENSOR, fast->tensor_count++);
    return RECORDS_ON;
}

/* State: (dtype, layout, requires_grad, memory format, pin_memory), or a dict. */
static enum records_step build_properties(struct records *m, records_word state, records_word *out)
{
    struct attributes given;
    size_t count = 0;
    records_word dtype;
    if (records_tag(state) == RECORDS_TUPLE) {
        const records_word *items = records_tuple(m, state, &count);
        dtype = items[0];
    } else if (read_attributes(m, state, &given)) {
        dtype = given.values[DCP_ATTR_DTYPE];
    } else {
        return RECORDS_GIVE_UP;
    }
    if (records_tag(dtype) != RECORDS_GLOBAL || records_class(m, dtype)->kind != DCP_CLASS_DTYPE)
        return RECORDS_GIVE_UP;
    uint32_t text;
    reshard_status status = dcp_build_text(metadata_fast_build_of(m), m->globals[records_payload(dtype)].name, &text);
    *out = records_word_of(DCP_WORD_PROPERTIES, text);
    return status ? records_fail(m, status) : RECORDS_ON;
}

static enum records_step build_storage_meta(struct records *m, const struct attributes *given, records_word *out)
{
    records_word ids[] = { given->values[DCP_ATTR_CHECKPOINT_ID], given->values[DCP_ATTR_SAVE_ID], given->values[DCP_ATTR_LOAD_ID] };
    for (int i = 0; i < 3; i++)
        if (!records_is_absent(ids[i]) && records_tag(ids[i]) != RECORDS_STR && (records_tag(ids[i]) != DCP_WORD_PATH || i))
            return RECORDS_GIVE_UP;
    memcpy(((struct dcp_fast *)m->context)->ids, ids, sizeof(ids));
    *out = records_word_of(DCP_WORD_STORAGE_META, 0);
    return RECORDS_ON;
}

/* Its attributes are read at the end, so what they hold must stay. */
static enum records_step build_root(struct records *m, records_word object, records_word state, records_word *out)
{
    const struct records_global *class = &m->globals[records_payload(object)];
    reshard_status status =
        dcp_build_class_name(metadata_fast_build_of(m), class->module, class->name, &metadata_fast_build_of(m)->out->root_class);
    records_keep_all(m);
    *out = records_word_of(DCP_WORD_ROOT, records_payload(state));
    return status ? records_fail(m, status) : RECORDS_ON;
}

static enum records_step build_object(struct records *m, records_word object, records_word state, records_word *out)
{
    enum dcp_class class = (enum dcp_class)m->globals[records_payload(object)].kind;
    struct attributes given;
    if (class == DCP_CLASS_PROPERTIES)
        return build_properties(m, state, out);
    if (!read_attributes(m, state, &given))
        return RECORDS_GIVE_UP;
    switch (class) {
    case DCP_CLASS_CHUNK:
        return build_chunk(m, &given, out);
    case DCP_CLASS_INDEX:
        return build_index(m, &given, out);
    case DCP_CLASS_RANGE:
        return build_range(m, &given, out);
    case DCP_CLASS_TENSOR:
        return build_tensor(m, &given, out);
    case DCP_CLASS_STORAGE_META:
        return build_storage_meta(m, &given, out);
    case DCP_CLASS_BYTES:
        *out = object;
        return RECORDS_ON;
    case DCP_CLASS_METADATA:
        return build_root(m, object, state, out);
    default:
        return RECORDS_GIVE_UP;
    }
}

/* ---- records: chunks, indexes and ranges, which make up nearly all of a large file ---- */

static const struct records_field chunk_fields[] = {
    { DCP_ATTR_OFFSETS, RECORDS_FIELD_SIZE, 0, true, false },
    { DCP_ATTR_SIZES, RECORDS_FIELD_SIZE, 1, true, false },
};

static reshard_status make_chunk(struct records *m, const struct records_values *values, records_word *out)
{
    uint32_t number = 0;
    reshard_status status = dcp_build_chunk(metadata_fast_build_of(m), values->vectors[0], values->vectors[1], &number);
    *out = records_word_of(DCP_WORD_CHUNK, number);
    return status;
}

static const struct records_field index_fields[] = {
    { DCP_ATTR_FQN, RECORDS_FIELD_STRING, DCP_NAMES, true, false },
    { DCP_ATTR_INDEX, RECORDS_FIELD_NUMBER, 0, false, true },
    { DCP_ATTR_OFFSET, RECORDS_FIELD_SIZE, 0, false, true },
};

static reshard_status make_index(struct records *m, const struct records_values *values, records_word *out)
{
    uint32_t number = 0;
    int64_t hint = values->numbers[0] < 0 ? -1 : values->numbers[0];
    reshard_status status =
        dcp_build_index(metadata_fast_build_of(m),
                        (struct dcp_index){ .name = values->strings[DCP_NAMES], .offset = values->vectors[0], .index = hint }, &number);
    *out = records_word_of(DCP_WORD_INDEX, number);
    return status;
}

static const struct records_field range_fields[] = {
    { DCP_ATTR_RELATIVE_PATH, RECORDS_FIELD_STRING, DCP_TEXTS, true, false },
    { DCP_ATTR_OFFSET, RECORDS_FIELD_NATURAL, 0, true, false },
    { DCP_ATTR_LENGTH, RECORDS_FIELD_NATURAL, 1, true, false },
    { DCP_ATTR_TRANSFORMS, RECORDS_FIELD_NONE, 0, false, true },
};

static reshard_status make_range(struct records *m, const struct records_values *values, records_word *out)
{
    uint32_t number = 0;
    struct dcp_range range = { (uint64_t)values->numbers[0], (uint64_t)values->numbers[1], values->strings[DCP_TEXTS], DCP_NONE };
    reshard_status status = dcp_build_range(metadata_fast_build_of(m), range, &number);
    *out = records_word_of(DCP_WORD_RANGE, number);
    return status;
}

#define FIELDS(fields) fields, sizeof(fields) / sizeof((fields)[0])

static const struct records_shape record_shapes[] = {
    { DCP_CLASS_CHUNK, FIELDS(chunk_fields), make_chunk },
    { DCP_CLASS_INDEX, FIELDS(index_fields), make_index },
    { DCP_CLASS_RANGE, FIELDS(range_fields), make_range },
};

/* ---- names with a meaning, and what is kept ---- */

static unsigned metadata_fast_attribute_of(struct str name)
{
    return dcp_attribute_of(name);
}

static reshard_status classify(struct records *m, struct records_global *global)
{
    bool is_harmless;
    enum dcp_class class = dcp_class_of(global->module, global->name, &is_harmless);
    global->kind = class;
    if (class == DCP_CLASS_SIZE)
        global->role = RECORDS_IS_SIZE;
    else if (class == DCP_CLASS_PATH)
        global->role = RECORDS_IS_CALL;
    else if (class >= DCP_CLASS_METADATA && class <= DCP_CLASS_STORAGE_META)
        global->role = RECORDS_IS_OBJECT;
    return dcp_build_note_global(metadata_fast_build_of(m), global->module, global->name);
}

static reshard_status keep_vector(struct records *m, const int64_t *values, size_t count, uint32_t *out)
{
    return dcp_build_vector(metadata_fast_build_of(m), values, count, out);
}

static reshard_status keep_string(struct records *m, int space, struct str text, uint32_t *out)
{
    return space == DCP_NAMES ? dcp_build_name(metadata_fast_build_of(m), text, out) : dcp_build_text(metadata_fast_build_of(m), text, out);
}

static const struct records_shapes shapes = {
    .list_tag = DCP_WORD_CHUNK,
    .key_tag = DCP_WORD_INDEX,
    .value_tag = DCP_WORD_RANGE,
    .shapes = record_shapes,
    .shape_count = sizeof(record_shapes) / sizeof(record_shapes[0]),
    .attribute = metadata_fast_attribute_of,
    .classify = classify,
    .keep_vector = keep_vector,
    .keep_string = keep_string,
    .call = call_path,
    .build = build_object,
    .finish = dcp_fast_finish,
};

reshard_status dcp_decode_fast(const void *bytes, size_t size, struct dcp_build *build, bool *is_done)
{
    struct dcp_fast fast = { .build = build, .ids = { RECORDS_NONE, RECORDS_NONE, RECORDS_NONE } };
    reshard_status status = records_decode(bytes, size, &shapes, &fast, build->limits, is_done, &build->out->protocol, build->err);
    free(fast.tensors);
    return status;
}
