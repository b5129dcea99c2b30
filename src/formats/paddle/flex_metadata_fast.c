/* SPDX-License-Identifier: Apache-2.0 */
/* The fast way: what the classes of the metadata mean to encoding/pickle_records. */
#include "formats/paddle/flex_metadata_build.h"

#include "base/array.h"
#include "encoding/pickle_records.h"
#include "tensor/box.h"

#include <stdlib.h>

enum flex_word {
    FLEX_WORD_TYPE = RECORDS_OWN, /* an integer type of NumPy: bytes << 1 | whether it has a sign */
    FLEX_WORD_SHARD,
    FLEX_WORD_INDEX, /* number of each */
    FLEX_WORD_ROOT   /* its attributes: container */
};

/* No value of a dict comes in runs. */
#define NO_RUN_TAG RECORDS_TAG_MAX

/* Spaces of strings. */
enum { FAST_NAMES, FAST_TEXTS };

static struct flex_build *build_of(const struct records *m)
{
    return m->context;
}

static enum records_step step_of(struct records *m, reshard_status status)
{
    return status ? records_fail(m, status) : RECORDS_ON;
}

/* ---- scalars of NumPy ---- */

/* numpy.dtype("i8", False, True) */
static enum records_step call_dtype(struct records *m, int kind, records_word args, records_word *out)
{
    size_t count = 0, bytes;
    bool is_signed;
    const records_word *items = records_tag(args) == RECORDS_TUPLE ? records_tuple(m, args, &count) : NULL;
    if (kind != FLEX_CLASS_DTYPE || !count || records_tag(items[0]) != RECORDS_STR ||
        !flex_integer_type(records_text(m, items[0]), &is_signed, &bytes))
        return RECORDS_GIVE_UP;
    *out = records_word_of(FLEX_WORD_TYPE, bytes << 1 | is_signed);
    return RECORDS_ON;
}

/* Its state is (3, byte order, …). */
static enum records_step restate_dtype(struct records *m, records_word w, records_word state, records_word *out)
{
    size_t count = 0;
    const records_word *items = records_tag(state) == RECORDS_TUPLE ? records_tuple(m, state, &count) : NULL;
    if (records_tag(w) != FLEX_WORD_TYPE || count < 2 || records_tag(items[1]) != RECORDS_STR || str_is(records_text(m, items[1]), ">"))
        return RECORDS_GIVE_UP;
    *out = w;
    return RECORDS_ON;
}

static bool fast_scalar(struct records *m, records_word type, struct str bytes, int64_t *out)
{
    (void)m;
    return records_tag(type) == FLEX_WORD_TYPE && bytes.size == records_payload(type) >> 1 &&
           flex_integer_of(bytes, records_payload(type) & 1, out);
}

/* ---- objects ---- */

/* The attribute's vector: a tuple, or a list of integers. Absent or None gives FLEX_NONE. */
static enum records_step fast_vector_of(struct records *m, records_word w, uint32_t *out)
{
    int64_t numbers[RANK_MAX];
    *out = FLEX_NONE;
    if (records_is_absent(w) || records_is_vector(w, out))
        return RECORDS_ON;
    if (records_tag(w) != RECORDS_LIST)
        return RECORDS_GIVE_UP;
    const struct records_container *list = records_take_container(m, w);
    if (list->is_run || list->count > RANK_MAX)
        return RECORDS_GIVE_UP;
    for (uint64_t i = 0; i < list->count; i++) {
        if (records_tag(list->items[i]) != RECORDS_INT)
            return RECORDS_GIVE_UP;
        numbers[i] = records_int(list->items[i]);
    }
    return step_of(m, flex_build_vector(build_of(m), numbers, (size_t)list->count, out));
}

static enum records_step flag_of(records_word w, bool *out)
{
    *out = records_tag(w) == RECORDS_TRUE;
    return *out || records_tag(w) == RECORDS_FALSE || records_tag(w) == RECORDS_UNSET ? RECORDS_ON : RECORDS_GIVE_UP;
}

static void note_generation(struct records *m, enum flex_class class, bool has_flag)
{
    struct flex_generation *generation = &build_of(m)->out->generation;
    if (has_flag && class == FLEX_CLASS_SHARD)
        generation->shard = 1;
    else if (has_flag && generation->index < 1)
        generation->index = 1;
}

/* A range is a pair; a box has an offset. */
static bool is_plausible(const struct records *m, uint32_t offset, uint32_t range)
{
    return offset != FLEX_NONE && (range == FLEX_NONE || flex_vector_rank(build_of(m)->out, range) == 2);
}

static enum records_step fast_add_shard(struct records *m, const struct flex_shard *shard, bool has_flag, records_word *out)
{
    uint32_t number = 0;
    if (!is_plausible(m, shard->offset, shard->range) || shard->shape == FLEX_NONE)
        return RECORDS_GIVE_UP;
    note_generation(m, FLEX_CLASS_SHARD, has_flag);
    reshard_status status = flex_build_shard(build_of(m), *shard, &number);
    *out = records_word_of(FLEX_WORD_SHARD, number);
    return step_of(m, status);
}

static enum records_step fast_add_index(struct records *m, const struct flex_index *index, bool has_flag, records_word *out)
{
    uint32_t number = 0;
    if (!is_plausible(m, index->offset, index->range))
        return RECORDS_GIVE_UP;
    note_generation(m, FLEX_CLASS_INDEX, has_flag);
    reshard_status status = flex_build_index(build_of(m), *index, &number);
    *out = records_word_of(FLEX_WORD_INDEX, number);
    return step_of(m, status);
}

static enum records_step fast_build_shard(struct records *m, const records_word *given, records_word *out)
{
    struct flex_shard shard = { .dtype = FLEX_NONE };
    records_word dtype = given[FLEX_ATTR_DTYPE], flag = given[FLEX_ATTR_IS_FLATTENED];
    enum records_step step = fast_vector_of(m, given[FLEX_ATTR_GLOBAL_OFFSET], &shard.offset);
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_LOCAL_SHAPE], &shard.shape);
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_GLOBAL_SHAPE], &shard.global_shape);
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_FLATTENED_RANGE], &shard.range);
    if (!step)
        step = flag_of(flag, &shard.is_flattened);
    if (!step && !records_is_absent(dtype))
        step = records_tag(dtype) == RECORDS_STR ? records_string(m, FAST_TEXTS, dtype, &shard.dtype) : RECORDS_GIVE_UP;
    return step ? step : fast_add_shard(m, &shard, records_tag(flag) != RECORDS_UNSET, out);
}

static enum records_step fast_build_index(struct records *m, const records_word *given, records_word *out)
{
    struct flex_index index = { .file = FLEX_NONE, .replica = -1 };
    records_word key = given[FLEX_ATTR_TENSOR_KEY], replica = given[FLEX_ATTR_REPLICA_ID], flag = given[FLEX_ATTR_IS_FLATTENED];
    enum records_step step = records_tag(key) == RECORDS_STR ? records_string(m, FAST_NAMES, key, &index.name) : RECORDS_GIVE_UP;
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_GLOBAL_OFFSET], &index.offset);
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_LOCAL_SHAPE], &index.shape);
    if (!step)
        step = fast_vector_of(m, given[FLEX_ATTR_FLATTENED_RANGE], &index.range);
    if (!step)
        step = flag_of(flag, &index.is_flattened);
    if (!step && !records_is_absent(replica)) {
        if (records_tag(replica) != RECORDS_INT || records_int(replica) < 0 || records_int(replica) > INT32_MAX)
            return RECORDS_GIVE_UP;
        index.replica = (int32_t)records_int(replica);
    }
    return step ? step : fast_add_index(m, &index, records_tag(flag) != RECORDS_UNSET, out);
}

static enum records_step fast_build_object(struct records *m, records_word object, records_word state, records_word *out)
{
    enum flex_class class = (enum flex_class)records_class(m, object)->kind;
    records_word given[FLEX_ATTR_COUNT];
    if (class == FLEX_CLASS_METADATA) {
        /* Its attributes are read at the end, so what they hold must stay. */
        records_keep_all(m);
        build_of(m)->out->generation.is_old_module = str_is(records_class(m, object)->module, FLEX_OLD_MODULE);
        *out = records_word_of(FLEX_WORD_ROOT, records_payload(state));
        return records_tag(state) == RECORDS_DICT ? RECORDS_ON : RECORDS_GIVE_UP;
    }
    if (!records_read_attributes(m, state, given, FLEX_ATTR_COUNT) || records_tag(given[FLEX_ATTR_NONE]) != RECORDS_UNSET)
        return RECORDS_GIVE_UP;
    return class == FLEX_CLASS_SHARD ? fast_build_shard(m, given, out) : fast_build_index(m, given, out);
}

/* ---- records: shards and indexes, which make up nearly all of a large file ---- */

static const struct records_field shard_fields[] = {
    { FLEX_ATTR_GLOBAL_OFFSET, RECORDS_FIELD_TUPLE, 0, true, false },   { FLEX_ATTR_LOCAL_SHAPE, RECORDS_FIELD_TUPLE, 1, true, false },
    { FLEX_ATTR_GLOBAL_SHAPE, RECORDS_FIELD_TUPLE, 2, false, true },    { FLEX_ATTR_FLATTENED_RANGE, RECORDS_FIELD_TUPLE, 3, false, true },
    { FLEX_ATTR_DTYPE, RECORDS_FIELD_STRING, FAST_TEXTS, false, true }, { FLEX_ATTR_IS_FLATTENED, RECORDS_FIELD_BOOL, 0, false, false },
};

/* FLEX_NONE is RECORDS_ABSENT. A step that gives up where the range is no pair is an error of the general way: both give up here. */
static reshard_status fast_make_shard(struct records *m, const struct records_values *values, records_word *out)
{
    const struct flex_shard shard = { .offset = values->vectors[0],
                                      .shape = values->vectors[1],
                                      .global_shape = values->vectors[2],
                                      .range = values->vectors[3],
                                      .dtype = values->strings[FAST_TEXTS],
                                      .is_flattened = values->numbers[0] > 0 };
    enum records_step step = fast_add_shard(m, &shard, values->numbers[0] >= 0, out);
    if (step == RECORDS_GIVE_UP)
        *out = RECORDS_NONE; /* no list takes it, so that the whole decoder gives up */
    return step == RECORDS_FAILED ? m->status : RESHARD_OK;
}

static const struct records_field index_fields[] = {
    { FLEX_ATTR_TENSOR_KEY, RECORDS_FIELD_STRING, FAST_NAMES, true, false },
    { FLEX_ATTR_GLOBAL_OFFSET, RECORDS_FIELD_TUPLE, 0, true, false },
    { FLEX_ATTR_LOCAL_SHAPE, RECORDS_FIELD_TUPLE, 1, false, true },
    { FLEX_ATTR_FLATTENED_RANGE, RECORDS_FIELD_TUPLE, 2, false, true },
    { FLEX_ATTR_IS_FLATTENED, RECORDS_FIELD_BOOL, 0, false, false },
    { FLEX_ATTR_REPLICA_ID, RECORDS_FIELD_NATURAL, 1, false, true },
};

static reshard_status fast_make_index(struct records *m, const struct records_values *values, records_word *out)
{
    const struct flex_index index = { .name = values->strings[FAST_NAMES],
                                      .offset = values->vectors[0],
                                      .shape = values->vectors[1],
                                      .range = values->vectors[2],
                                      .file = FLEX_NONE,
                                      .is_flattened = values->numbers[0] > 0,
                                      .replica = values->numbers[1] <= INT32_MAX ? (int32_t)values->numbers[1] : INT32_MAX };
    enum records_step step = fast_add_index(m, &index, values->numbers[0] >= 0, out);
    if (step == RECORDS_GIVE_UP)
        *out = RECORDS_NONE;
    return step == RECORDS_FAILED ? m->status : RESHARD_OK;
}

#define FIELDS(fields) fields, sizeof(fields) / sizeof((fields)[0])

static const struct records_shape flex_record_shapes[] = {
    { FLEX_CLASS_SHARD, FIELDS(shard_fields), fast_make_shard },
    { FLEX_CLASS_INDEX, FIELDS(index_fields), fast_make_index },
};

/* ---- the root ---- */

/* The shards of a list that is no run are put once more behind all others, in their order. */
static enum records_step gather_shards(struct records *m, const struct records_container *list, uint32_t *first)
{
    struct flex_build *build = build_of(m);
    *first = build->out->shard_count;
    for (uint64_t i = 0; i < list->count; i++) {
        records_word shard = records_resolve(m, list->items[i]);
        uint32_t number;
        if (records_tag(shard) != FLEX_WORD_SHARD)
            return RECORDS_GIVE_UP;
        reshard_status status = flex_build_shard(build, build->out->shards[records_payload(shard)], &number);
        if (status)
            return records_fail(m, status);
    }
    return RECORDS_ON;
}

static enum records_step finish_key(struct records *m, records_word name, records_word value)
{
    if (records_tag(name) != RECORDS_STR || records_tag(value) != RECORDS_LIST)
        return RECORDS_GIVE_UP;
    const struct records_container *list = records_take_container(m, value);
    struct flex_key key = { .first_shard = list->run_first, .offset = records_payload(name) >> 8 };
    if (list->count > UINT32_MAX)
        return RECORDS_GIVE_UP;
    key.shard_count = (uint32_t)list->count;
    enum records_step step = list->is_run ? RECORDS_ON : gather_shards(m, list, &key.first_shard);
    if (!step)
        step = records_string(m, FAST_NAMES, name, &key.name);
    return step ? step : step_of(m, flex_build_key(build_of(m), key));
}

/* A path is a tuple of strings. */
static enum records_step finish_path(struct records *m, records_word name, records_word value)
{
    struct flex_build *build = build_of(m);
    size_t count = 0;
    uint32_t number;
    if (records_tag(name) != RECORDS_STR || records_tag(value) != RECORDS_TUPLE)
        return RECORDS_GIVE_UP;
    records_tuple(m, value, &count);
    if (count > UINT32_MAX)
        return RECORDS_GIVE_UP;
    for (size_t i = 0; i < count; i++) {
        records_word part = records_resolve(m, records_tuple(m, value, &count)[i]);
        if (records_tag(part) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        reshard_status status = flex_build_path_part(build, records_text(m, part));
        if (status)
            return records_fail(m, status);
    }
    enum records_step step = records_string(m, FAST_NAMES, name, &number);
    return step ? step : step_of(m, flex_build_path(build, number, (uint32_t)count));
}

static enum records_step finish_pair(struct records *m, enum flex_attribute attribute, records_word key, records_word value)
{
    if (attribute == FLEX_ATTR_STATE_DICT_METADATA)
        return finish_key(m, key, value);
    if (attribute == FLEX_ATTR_FLAT_MAPPING)
        return finish_path(m, key, value);
    if (records_tag(key) != FLEX_WORD_INDEX || records_tag(value) != RECORDS_STR)
        return RECORDS_GIVE_UP;
    return records_string(m, FAST_TEXTS, value, &build_of(m)->out->indexes[records_payload(key)].file);
}

/* Puts indexes into the order of the dict where they were made in another one, or one of them is there twice. */
static enum records_step order_indexes(struct records *m, const struct records_container *dict)
{
    struct flex_metadata *out = build_of(m)->out;
    uint32_t count = (uint32_t)(dict->count / 2);
    bool is_in_order = count == out->index_count;
    for (uint32_t i = 0; i < count && is_in_order; i++)
        is_in_order = records_payload(records_resolve(m, dict->items[2 * (size_t)i])) == i;
    if (is_in_order)
        return RECORDS_ON;
    struct flex_index *ordered = array_new(count, sizeof(*ordered));
    if (!ordered)
        return records_fail(m, error_set_memory(m->err));
    for (uint32_t i = 0; i < count; i++)
        ordered[i] = out->indexes[records_payload(records_resolve(m, dict->items[2 * (size_t)i]))];
    free(out->indexes);
    out->indexes = ordered;
    out->index_count = count;
    return RECORDS_ON;
}

static enum records_step finish_dict(struct records *m, enum flex_attribute attribute, records_word w)
{
    if (records_tag(w) != RECORDS_DICT)
        return RECORDS_GIVE_UP;
    const struct records_container *dict = records_take_container(m, w);
    if (dict->is_run || dict->count / 2 > m->limits->chunks)
        return RECORDS_GIVE_UP;
    for (uint64_t i = 0; i < dict->count; i += 2) {
        enum records_step step = finish_pair(m, attribute, records_resolve(m, dict->items[i]), records_resolve(m, dict->items[i + 1]));
        if (step)
            return step;
    }
    return attribute == FLEX_ATTR_STORAGE_METADATA ? order_indexes(m, dict) : RECORDS_ON;
}

static enum records_step finish_label(struct records *m, enum flex_attribute attribute, records_word value)
{
    uint32_t *out = &build_of(m)->out->labels[attribute - FLEX_ATTR_MODEL_TYPE];
    if (records_tag(value) == RECORDS_NONE)
        return RECORDS_ON;
    return records_tag(value) == RECORDS_STR ? records_string(m, FAST_TEXTS, value, out) : RECORDS_GIVE_UP;
}

static enum records_step finish_root(struct records *m, records_word root)
{
    records_word given[FLEX_ATTR_COUNT];
    root = records_resolve(m, root);
    if (records_tag(root) != FLEX_WORD_ROOT || build_of(m)->has_unknown ||
        !records_read_attributes(m, records_word_of(RECORDS_DICT, records_payload(root)), given, FLEX_ATTR_COUNT) ||
        records_tag(given[FLEX_ATTR_NONE]) != RECORDS_UNSET)
        return RECORDS_GIVE_UP;
    enum records_step step = finish_dict(m, FLEX_ATTR_STATE_DICT_METADATA, given[FLEX_ATTR_STATE_DICT_METADATA]);
    if (!step)
        step = finish_dict(m, FLEX_ATTR_STORAGE_METADATA, given[FLEX_ATTR_STORAGE_METADATA]);
    build_of(m)->out->has_flat_mapping = !records_is_absent(given[FLEX_ATTR_FLAT_MAPPING]);
    if (!step && build_of(m)->out->has_flat_mapping)
        step = finish_dict(m, FLEX_ATTR_FLAT_MAPPING, given[FLEX_ATTR_FLAT_MAPPING]);
    for (int i = FLEX_ATTR_MODEL_TYPE; !step && i <= FLEX_ATTR_PADDLE_COMMIT; i++) {
        if (!records_is_absent(given[i]))
            step = finish_label(m, (enum flex_attribute)i, given[i]);
    }
    return step;
}

/* ---- names with a meaning, and what is kept ---- */

static unsigned fast_attribute_of(struct str name)
{
    return flex_attribute_of(name);
}

/* The general way says which class is refused. */
static reshard_status fast_classify(struct records *m, struct records_global *global)
{
    enum flex_class class = flex_class_of(global->module, global->name);
    global->kind = class;
    build_of(m)->has_unknown |= class == FLEX_CLASS_UNKNOWN;
    if (class == FLEX_CLASS_SCALAR)
        global->role = RECORDS_IS_SCALAR;
    else if (class == FLEX_CLASS_METADATA || class == FLEX_CLASS_SHARD || class == FLEX_CLASS_INDEX)
        global->role = RECORDS_IS_OBJECT;
    else
        global->role = RECORDS_IS_CALL;
    return RESHARD_OK;
}

static reshard_status fast_keep_vector(struct records *m, const int64_t *values, size_t count, uint32_t *out)
{
    return flex_build_vector(build_of(m), values, count, out);
}

static reshard_status fast_keep_string(struct records *m, int space, struct str text, uint32_t *out)
{
    return space == FAST_NAMES ? flex_build_name(build_of(m), text, out) : flex_build_text(build_of(m), text, out);
}

static const struct records_shapes flex_shapes = {
    .list_tag = FLEX_WORD_SHARD,
    .key_tag = NO_RUN_TAG,
    .value_tag = NO_RUN_TAG,
    .shapes = flex_record_shapes,
    .shape_count = sizeof(flex_record_shapes) / sizeof(flex_record_shapes[0]),
    .attribute = fast_attribute_of,
    .classify = fast_classify,
    .keep_vector = fast_keep_vector,
    .keep_string = fast_keep_string,
    .call = call_dtype,
    .scalar = fast_scalar,
    .restate = restate_dtype,
    .build = fast_build_object,
    .finish = finish_root,
};

reshard_status flex_decode_fast(const void *bytes, size_t size, struct flex_build *build, bool *is_done)
{
    return records_decode(bytes, size, &flex_shapes, build, build->limits, is_done, &build->out->protocol, build->err);
}
