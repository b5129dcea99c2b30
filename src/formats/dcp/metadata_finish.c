/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the fast way: the root's attributes become the arrays of the result. */
#include "formats/dcp/metadata_machine.h"

#include <stdlib.h>

static const struct container *container_of(const struct machine *m, word w)
{
    return &m->containers[word_payload(w)];
}

static enum step finish_entries(struct machine *m, word state)
{
    if (word_tag(state) != WORD_DICT || container_of(m, state)->is_run)
        return STEP_GIVE_UP;
    const struct container *dict = container_of(m, state);
    for (uint64_t i = 0; i < dict->count; i += 2) {
        word key = dict->items[i], value = dcp_resolve(m, dict->items[i + 1]);
        struct dcp_entry entry = { .dtype = DCP_NONE, .size = DCP_NONE, .offset = word_payload(key) >> 8 };
        if (word_tag(key) != WORD_STR)
            return STEP_GIVE_UP;
        if (word_tag(value) == WORD_TENSOR) {
            const struct machine_tensor *tensor = &m->tensors[word_payload(value)];
            entry.dtype = tensor->dtype;
            entry.size = tensor->size;
            entry.first_chunk = tensor->first_chunk;
            entry.chunk_count = tensor->chunk_count;
        } else if (word_tag(value) != WORD_NEW || dcp_word_class(m, value) != DCP_CLASS_BYTES) {
            return STEP_GIVE_UP;
        }
        enum step step = dcp_word_name(m, key, &entry.name);
        if (step)
            return step;
        reshard_status status = dcp_build_entry(m->build, entry);
        if (status)
            return dcp_machine_fail(m, status);
    }
    return STEP_ON;
}

#define PARTS_MAX 4096

/* Parts of one path into the buffer; an integer tuple is a path too. */
static enum step path_parts(struct machine *m, word path, struct dcp_path_part *parts, size_t *count)
{
    if (word_tag(path) == WORD_VECTOR) {
        *count = (size_t)dcp_vector_rank(m->build->out, (uint32_t)word_payload(path));
        const int64_t *values = dcp_vector_at(m->build->out, (uint32_t)word_payload(path));
        for (size_t i = 0; i < *count; i++)
            parts[i] = (struct dcp_path_part){ DCP_NONE, values[i] };
        return STEP_ON;
    }
    if (word_tag(path) != WORD_TUPLE || m->pool[word_payload(path)] > PARTS_MAX)
        return STEP_GIVE_UP;
    *count = (size_t)m->pool[word_payload(path)];
    for (size_t i = 0; i < *count; i++) {
        word part = m->pool[word_payload(path) + 1 + i];
        parts[i] = (struct dcp_path_part){ DCP_NONE, 0 };
        if (word_tag(part) == WORD_INT) {
            parts[i].index = word_int(part);
            continue;
        }
        if (word_tag(part) != WORD_STR)
            return STEP_GIVE_UP;
        enum step step = dcp_word_to_text(m, part, &parts[i].text);
        if (step)
            return step;
    }
    return STEP_ON;
}

static enum step finish_paths(struct machine *m, word state)
{
    if (word_tag(state) == WORD_NONE)
        return STEP_ON;
    if (word_tag(state) != WORD_DICT || container_of(m, state)->is_run)
        return STEP_GIVE_UP;
    const struct container *dict = container_of(m, state);
    struct dcp_path_part *parts = calloc(PARTS_MAX, sizeof(*parts));
    if (!parts)
        return dcp_machine_fail(m, error_set_memory(m->build->err));
    enum step step = STEP_ON;
    for (uint64_t i = 0; !step && i < dict->count; i += 2) {
        uint32_t name;
        size_t count;
        step = word_tag(dict->items[i]) == WORD_STR ? dcp_word_name(m, dict->items[i], &name) : STEP_GIVE_UP;
        if (!step)
            step = path_parts(m, dict->items[i + 1], parts, &count);
        if (step)
            break;
        reshard_status status = dcp_build_path(m->build, name, parts, count);
        if (status)
            step = dcp_machine_fail(m, status);
    }
    free(parts);
    m->build->out->has_planner_data = true;
    return step;
}

/* Indexes and ranges of the given pairs, in their order, as new arrays. */
static enum step gather_storage(struct machine *m, const struct container *dict)
{
    struct dcp_metadata *out = m->build->out;
    uint64_t count = dict->count / 2;
    struct dcp_index *indexes = malloc((count + 1) * sizeof(*indexes));
    struct dcp_range *ranges = malloc((count + 1) * sizeof(*ranges));
    enum step step = indexes && ranges ? STEP_ON : dcp_machine_fail(m, error_set_memory(m->build->err));
    for (uint64_t i = 0; !step && i < count; i++) {
        word key = dict->is_run ? word_make(WORD_INDEX, dict->run_first + i) : dcp_resolve(m, dict->items[2 * i]);
        word value = dict->is_run ? word_make(WORD_RANGE, dict->run_value + i) : dcp_resolve(m, dict->items[2 * i + 1]);
        if (word_tag(key) != WORD_INDEX || word_tag(value) != WORD_RANGE) {
            step = STEP_GIVE_UP;
            break;
        }
        indexes[i] = out->indexes[word_payload(key)];
        ranges[i] = out->ranges[word_payload(value)];
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
    return STEP_ON;
}

static enum step finish_storage(struct machine *m, word state)
{
    if (word_tag(state) == WORD_NONE)
        return STEP_ON;
    if (word_tag(state) != WORD_DICT || container_of(m, state)->count / 2 > m->build->limits->chunks)
        return STEP_GIVE_UP;
    const struct container *dict = container_of(m, state);
    bool is_in_place = dict->count == 0 || (dict->is_run && dict->run_first == 0 && dict->run_value == 0);
    enum step step = is_in_place ? STEP_ON : gather_storage(m, dict);
    m->build->out->storage_count = (uint32_t)(dict->count / 2);
    m->build->out->has_storage_data = true;
    return step;
}

static enum step finish_id(struct machine *m, word id, uint32_t *out)
{
    *out = DCP_NONE;
    if (word_tag(id) == WORD_STR)
        return dcp_word_to_text(m, id, out);
    if (word_tag(id) == WORD_PATH)
        *out = (uint32_t)word_payload(id);
    return STEP_ON;
}

static enum step finish_storage_meta(struct machine *m, word state)
{
    struct dcp_metadata *out = m->build->out;
    if (word_tag(state) == WORD_NONE)
        return STEP_ON;
    if (word_tag(state) != WORD_STORAGE_META)
        return STEP_GIVE_UP;
    out->has_storage_meta = true;
    enum step step = finish_id(m, m->checkpoint_id, &out->checkpoint_id);
    if (!step)
        step = finish_id(m, m->save_id, &out->save_id);
    return step ? step : finish_id(m, m->load_id, &out->load_id);
}

static enum step finish_attribute(struct machine *m, word key, word value)
{
    reshard_status status;
    switch (word_attribute(key)) {
    case DCP_ATTR_STATE_DICT_METADATA:
        return finish_entries(m, value);
    case DCP_ATTR_PLANNER_DATA:
        return finish_paths(m, value);
    case DCP_ATTR_STORAGE_DATA:
        return finish_storage(m, value);
    case DCP_ATTR_STORAGE_META:
        return finish_storage_meta(m, value);
    case DCP_ATTR_VERSION:
        if (word_tag(value) != WORD_NONE && word_tag(value) != WORD_STR)
            return STEP_GIVE_UP;
        return finish_id(m, value, &m->build->out->version);
    default:
        status = dcp_build_note_attribute(m->build, dcp_word_text(m, key));
        return status ? dcp_machine_fail(m, status) : STEP_ON;
    }
}

enum step dcp_shape_finish(struct machine *m, word root)
{
    root = dcp_resolve(m, root);
    if (word_tag(root) != WORD_ROOT || container_of(m, root)->is_run)
        return STEP_GIVE_UP;
    const struct container *attributes = container_of(m, root);
    bool seen[DCP_ATTR_COUNT] = { false };
    for (uint64_t i = 0; i < attributes->count; i += 2) {
        word key = attributes->items[i];
        enum dcp_attribute attribute = word_attribute(key);
        if (word_tag(key) != WORD_STR || (attribute && seen[attribute]))
            return STEP_GIVE_UP;
        seen[attribute] = true;
        enum step step = finish_attribute(m, key, dcp_resolve(m, attributes->items[i + 1]));
        if (step)
            return step;
    }
    return seen[DCP_ATTR_STATE_DICT_METADATA] ? STEP_ON : STEP_GIVE_UP;
}
