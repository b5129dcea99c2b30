/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the fast way: the root's attributes become the arrays of the result. */
#include "formats/dcp/metadata_fast.h"

#include "base/array.h"

#include <stdlib.h>

static const struct dcp_fast *fast_of(const struct records *m)
{
    return m->context;
}

static struct dcp_build *metadata_finish_build_of(const struct records *m)
{
    return fast_of(m)->build;
}

static const struct records_container *container_of(const struct records *m, records_word w)
{
    return &m->containers[records_payload(w)];
}

static enum records_step finish_entries(struct records *m, records_word state)
{
    if (records_tag(state) != RECORDS_DICT || container_of(m, state)->is_run)
        return RECORDS_GIVE_UP;
    const struct records_container *dict = container_of(m, state);
    for (uint64_t i = 0; i < dict->count; i += 2) {
        records_word key = dict->items[i], value = records_resolve(m, dict->items[i + 1]);
        struct dcp_entry entry = { .dtype = DCP_NONE, .size = DCP_NONE, .offset = records_payload(key) >> 8 };
        if (records_tag(key) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        if (records_tag(value) == DCP_WORD_TENSOR) {
            const struct dcp_fast_tensor *tensor = &fast_of(m)->tensors[records_payload(value)];
            entry.dtype = tensor->dtype;
            entry.size = tensor->size;
            entry.first_chunk = tensor->first_chunk;
            entry.chunk_count = tensor->chunk_count;
        } else if (records_tag(value) != RECORDS_NEW || records_class(m, value)->kind != DCP_CLASS_BYTES) {
            return RECORDS_GIVE_UP;
        }
        enum records_step step = records_string(m, DCP_NAMES, key, &entry.name);
        if (step)
            return step;
        reshard_status status = dcp_build_entry(metadata_finish_build_of(m), entry);
        if (status)
            return records_fail(m, status);
    }
    return RECORDS_ON;
}

#define PARTS_MAX 4096

/* Parts of one path into the buffer; an integer tuple is a path too. */
static enum records_step path_parts(struct records *m, records_word path, struct dcp_path_part *parts, size_t *count)
{
    if (records_tag(path) == RECORDS_VECTOR) {
        *count = (size_t)dcp_vector_rank(metadata_finish_build_of(m)->out, (uint32_t)records_payload(path));
        const int64_t *values = dcp_vector_at(metadata_finish_build_of(m)->out, (uint32_t)records_payload(path));
        for (size_t i = 0; i < *count; i++)
            parts[i] = (struct dcp_path_part){ DCP_NONE, values[i] };
        return RECORDS_ON;
    }
    if (records_tag(path) != RECORDS_TUPLE || m->pool[records_payload(path)] > PARTS_MAX)
        return RECORDS_GIVE_UP;
    *count = (size_t)m->pool[records_payload(path)];
    for (size_t i = 0; i < *count; i++) {
        records_word part = m->pool[records_payload(path) + 1 + i];
        parts[i] = (struct dcp_path_part){ DCP_NONE, 0 };
        if (records_tag(part) == RECORDS_INT) {
            parts[i].index = records_int(part);
            continue;
        }
        if (records_tag(part) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        enum records_step step = records_string(m, DCP_TEXTS, part, &parts[i].text);
        if (step)
            return step;
    }
    return RECORDS_ON;
}

static enum records_step finish_paths(struct records *m, records_word state)
{
    if (records_tag(state) == RECORDS_NONE)
        return RECORDS_ON;
    if (records_tag(state) != RECORDS_DICT || container_of(m, state)->is_run)
        return RECORDS_GIVE_UP;
    const struct records_container *dict = container_of(m, state);
    struct dcp_path_part *parts = array_zeroed(PARTS_MAX, sizeof(*parts));
    if (!parts)
        return records_fail(m, error_set_memory(metadata_finish_build_of(m)->err));
    enum records_step step = RECORDS_ON;
    for (uint64_t i = 0; !step && i < dict->count; i += 2) {
        uint32_t name;
        size_t count;
        step = records_tag(dict->items[i]) == RECORDS_STR ? records_string(m, DCP_NAMES, dict->items[i], &name) : RECORDS_GIVE_UP;
        if (!step)
            step = path_parts(m, dict->items[i + 1], parts, &count);
        if (step)
            break;
        reshard_status status = dcp_build_path(metadata_finish_build_of(m), name, parts, count);
        if (status)
            step = records_fail(m, status);
    }
    free(parts);
    metadata_finish_build_of(m)->out->has_planner_data = true;
    return step;
}

/* Indexes and ranges of the given pairs, in their order, as new arrays. */
static enum records_step gather_storage(struct records *m, const struct records_container *dict)
{
    struct dcp_metadata *out = metadata_finish_build_of(m)->out;
    uint64_t count = dict->count / 2;
    struct dcp_index *indexes = array_new(count, sizeof(*indexes));
    struct dcp_range *ranges = array_new(count, sizeof(*ranges));
    enum records_step step = indexes && ranges ? RECORDS_ON : records_fail(m, error_set_memory(metadata_finish_build_of(m)->err));
    for (uint64_t i = 0; !step && i < count; i++) {
        records_word key = dict->is_run ? records_word_of(DCP_WORD_INDEX, dict->run_first + i) : records_resolve(m, dict->items[2 * i]);
        records_word value =
            dict->is_run ? records_word_of(DCP_WORD_RANGE, dict->run_value + i) : records_resolve(m, dict->items[2 * i + 1]);
        if (records_tag(key) != DCP_WORD_INDEX || records_tag(value) != DCP_WORD_RANGE) {
            step = RECORDS_GIVE_UP;
            break;
        }
        indexes[i] = out->indexes[records_payload(key)];
        ranges[i] = out->ranges[records_payload(value)];
    }
    if (step) {
        free(indexes);
        free(ranges);
        return step;
    }
    free(out->indexes);
    free(out->ranges);
    out->indexes = indexes;
    out->ranges = ranges;
    return RECORDS_ON;
}

static enum records_step finish_storage(struct records *m, records_word state)
{
    if (records_tag(state) == RECORDS_NONE)
        return RECORDS_ON;
    if (records_tag(state) != RECORDS_DICT || container_of(m, state)->count / 2 > metadata_finish_build_of(m)->limits->chunks)
        return RECORDS_GIVE_UP;
    const struct records_container *dict = container_of(m, state);
    bool is_in_place = dict->count == 0 || (dict->is_run && dict->run_first == 0 && dict->run_value == 0);
    enum records_step step = is_in_place ? RECORDS_ON : gather_storage(m, dict);
    metadata_finish_build_of(m)->out->storage_count = (uint32_t)(dict->count / 2);
    metadata_finish_build_of(m)->out->has_storage_data = true;
    return step;
}

static enum records_step finish_id(struct records *m, records_word id, uint32_t *out)
{
    *out = DCP_NONE;
    if (records_tag(id) == RECORDS_STR)
        return records_string(m, DCP_TEXTS, id, out);
    if (records_tag(id) == DCP_WORD_PATH)
        *out = (uint32_t)records_payload(id);
    return RECORDS_ON;
}

static enum records_step finish_storage_meta(struct records *m, records_word state)
{
    struct dcp_metadata *out = metadata_finish_build_of(m)->out;
    if (records_tag(state) == RECORDS_NONE)
        return RECORDS_ON;
    if (records_tag(state) != DCP_WORD_STORAGE_META)
        return RECORDS_GIVE_UP;
    out->has_storage_meta = true;
    enum records_step step = finish_id(m, fast_of(m)->ids[0], &out->checkpoint_id);
    if (!step)
        step = finish_id(m, fast_of(m)->ids[1], &out->save_id);
    return step ? step : finish_id(m, fast_of(m)->ids[2], &out->load_id);
}

static enum records_step finish_attribute(struct records *m, records_word key, records_word value)
{
    reshard_status status;
    switch (records_attribute(key)) {
    case DCP_ATTR_STATE_DICT_METADATA:
        return finish_entries(m, value);
    case DCP_ATTR_PLANNER_DATA:
        return finish_paths(m, value);
    case DCP_ATTR_STORAGE_DATA:
        return finish_storage(m, value);
    case DCP_ATTR_STORAGE_META:
        return finish_storage_meta(m, value);
    case DCP_ATTR_RAW:
        return records_tag(value) == RECORDS_NONE ? RECORDS_ON : RECORDS_GIVE_UP;
    case DCP_ATTR_VERSION:
        if (records_tag(value) != RECORDS_NONE && records_tag(value) != RECORDS_STR)
            return RECORDS_GIVE_UP;
        return finish_id(m, value, &metadata_finish_build_of(m)->out->version);
    default:
        status = dcp_build_note_attribute(metadata_finish_build_of(m), records_text(m, key));
        return status ? records_fail(m, status) : RECORDS_ON;
    }
}

enum records_step dcp_fast_finish(struct records *m, records_word root)
{
    root = records_resolve(m, root);
    if (records_tag(root) != DCP_WORD_ROOT || container_of(m, root)->is_run)
        return RECORDS_GIVE_UP;
    const struct records_container *attributes = container_of(m, root);
    bool seen[DCP_ATTR_COUNT] = { false };
    for (uint64_t i = 0; i < attributes->count; i += 2) {
        records_word key = attributes->items[i];
        enum dcp_attribute attribute = records_attribute(key);
        if (records_tag(key) != RECORDS_STR || (attribute && seen[attribute]))
            return RECORDS_GIVE_UP;
        seen[attribute] = true;
        enum records_step step = finish_attribute(m, key, records_resolve(m, attributes->items[i + 1]));
        if (step)
            return step;
    }
    return seen[DCP_ATTR_STATE_DICT_METADATA] ? RECORDS_ON : RECORDS_GIVE_UP;
}
