/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/atorch/atorch_meta.h"

#include "encoding/pickle.h"

#include <inttypes.h>

/* What is being read, for messages: the name of a unit or parameter. */
struct meta_reading {
    struct arena *arena;
    struct str name;
    const char *what;
    reshard_error *err;
};

/* ---- members of a dict ---- */

static reshard_status meta_wrong(const struct meta_reading *reading, const char *member, const struct value *found, const char *expected)
{
    char text[PICKLE_DESCRIBE_MAX];
    if (!found)
        return error_set(reading->err, RESHARD_ERR_FORMAT, "%s '%.*s' has no %s", reading->what, STR_ARG(reading->name), member);
    return error_set_at(reading->err, RESHARD_ERR_FORMAT, found->offset, "%s of %s '%.*s' is %s, expected %s", member, reading->what,
                        STR_ARG(reading->name), pickle_describe(found, text), expected);
}

/* A whole number from 0 on. */
static reshard_status meta_int(const struct meta_reading *reading, const struct value *dict, const char *member, int64_t *out)
{
    const struct value *found = value_dict_get(dict, member);
    if (!found || !value_as_int(found, out))
        return meta_wrong(reading, member, found, "a whole number");
    if (*out < 0)
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, found->offset, "%s of %s '%.*s' is %" PRId64 ", below 0", member,
                            reading->what, STR_ARG(reading->name), *out);
    return RESHARD_OK;
}

static reshard_status meta_text(const struct meta_reading *reading, const struct value *dict, const char *member, struct str *out)
{
    const struct value *found = value_dict_get(dict, member);
    if (!found || !value_as_str(found, out))
        return meta_wrong(reading, member, found, "a text");
    return arena_str(reading->arena, *out, out) ? RESHARD_OK : error_set_memory(reading->err);
}

/* The name of a unit or parameter: a key. */
static reshard_status meta_name(struct meta_reading *reading, const struct value *name, struct str *out)
{
    if (!value_as_str(name, out))
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, name->offset, "the name of a %s is no text", reading->what);
    if (!arena_str(reading->arena, *out, out))
        return error_set_memory(reading->err);
    reading->name = *out;
    return RESHARD_OK;
}

/* A list or tuple of numbers from 0 on. */
static reshard_status meta_numbers(const struct meta_reading *reading, const struct value *dict, const char *member,
                                   struct atorch_numbers *out)
{
    const struct value *found = value_dict_get(dict, member);
    struct value **items;
    if (!found || !value_as_sequence(found, &items, &out->count))
        return meta_wrong(reading, member, found, "a list of whole numbers");
    int64_t *numbers = arena_array(reading->arena, out->count, sizeof(*numbers));
    if (!numbers)
        return error_set_memory(reading->err);
    for (size_t i = 0; i < out->count; i++) {
        if (!value_as_int(items[i], &numbers[i]))
            return meta_wrong(reading, member, items[i], "whole numbers");
        if (numbers[i] < 0)
            return error_set_at(reading->err, RESHARD_ERR_FORMAT, items[i]->offset, "%s of %s '%.*s' has %" PRId64 ", below 0", member,
                                reading->what, STR_ARG(reading->name), numbers[i]);
    }
    out->items = numbers;
    return RESHARD_OK;
}

static reshard_status meta_mask(const struct meta_reading *reading, const struct value *dict, size_t count, const bool **out)
{
    const struct value *found = value_dict_get(dict, "is_padding_mask");
    struct value **items;
    size_t found_count;
    if (!found || !value_as_sequence(found, &items, &found_count))
        return meta_wrong(reading, "is_padding_mask", found, "a list of booleans");
    if (found_count != count)
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, found->offset,
                            "is_padding_mask of %s '%.*s' has %zu members, numels_with_padding %zu", reading->what, STR_ARG(reading->name),
                            found_count, count);
    bool *mask = arena_array(reading->arena, count, sizeof(*mask));
    if (!mask)
        return error_set_memory(reading->err);
    for (size_t i = 0; i < count; i++) {
        if (items[i]->kind != VALUE_BOOL)
            return meta_wrong(reading, "is_padding_mask", items[i], "booleans");
        mask[i] = items[i]->boolean;
    }
    *out = mask;
    return RESHARD_OK;
}

/* ---- units ---- */

static reshard_status meta_experts(const struct meta_reading *reading, const struct value *said, struct atorch_meta_unit *unit)
{
    unit->has_experts = value_dict_get(said, "expert_ranks") != NULL;
    if (!unit->has_experts)
        return RESHARD_OK;
    reshard_status status = meta_numbers(reading, said, "expert_ranks", &unit->place.ranks);
    if (!status)
        status = meta_numbers(reading, said, "expert_fsdp_ranks", &unit->place.fsdp_ranks);
    if (!status)
        status = meta_int(reading, said, "expert_rank", &unit->place.rank);
    if (!status)
        status = meta_int(reading, said, "expert_fsdp_rank", &unit->place.fsdp_rank);
    return status;
}

/* The runs that are no padding are the parameters', one by one. */
static reshard_status meta_check_runs(const struct meta_reading *reading, const struct atorch_meta_unit *unit)
{
    size_t next = 0;
    for (size_t i = 0; i < unit->runs.count; i++) {
        if (unit->is_padding[i])
            continue;
        if (next == unit->numels.count || unit->runs.items[i] != unit->numels.items[next])
            return error_set(reading->err, RESHARD_ERR_FORMAT,
                             "unit '%.*s': run %zu of numels_with_padding has %" PRId64 " elements, which numels does not say",
                             STR_ARG(unit->name), i, unit->runs.items[i]);
        next++;
    }
    if (next != unit->numels.count)
        return error_set(reading->err, RESHARD_ERR_FORMAT, "unit '%.*s': numels has %zu parameters, numels_with_padding %zu",
                         STR_ARG(unit->name), unit->numels.count, next);
    return RESHARD_OK;
}

static reshard_status meta_unit(struct meta_reading *reading, const struct value *name, const struct value *said,
                                struct atorch_meta_unit *out)
{
    reading->what = "unit";
    reshard_status status = meta_name(reading, name, &out->name);
    if (!status)
        status = meta_numbers(reading, said, "numels", &out->numels);
    if (!status)
        status = meta_int(reading, said, "flat_numel", &out->shard);
    if (!status)
        status = meta_numbers(reading, said, "numels_with_padding", &out->runs);
    if (!status)
        status = meta_mask(reading, said, out->runs.count, &out->is_padding);
    if (!status)
        status = meta_experts(reading, said, out);
    return status ? status : meta_check_runs(reading, out);
}

/* ---- parameters ---- */

/* Numbers for each axis. */
static reshard_status meta_axes(const struct meta_reading *reading, const struct value *said, const char *member, int *rank,
                                const int64_t **out)
{
    struct atorch_numbers numbers;
    reshard_status status = meta_numbers(reading, said, member, &numbers);
    if (status)
        return status;
    if (numbers.count > RANK_MAX)
        return error_set(reading->err, RESHARD_ERR_UNSUPPORTED, "parameter '%.*s' has %zu axes, at most %d are known",
                         STR_ARG(reading->name), numbers.count, RANK_MAX);
    *rank = (int)numbers.count;
    *out = numbers.items;
    return RESHARD_OK;
}

static bool axes_are_dense(int rank, const int64_t *shape, const int64_t *strides, int64_t numel)
{
    int64_t end;
    return numel == 0 || (strides_are_apart(rank, shape, strides) && strides_span(rank, shape, strides, &end) && end == numel);
}

static reshard_status meta_shape(const struct meta_reading *reading, const struct value *said, struct atorch_meta_entry *out)
{
    int64_t volume;
    int stride_count = 0;
    reshard_status status = meta_axes(reading, said, "param_shapes", &out->rank, &out->shape);
    if (!status)
        status = meta_int(reading, said, "param_numels", &out->numel);
    if (status)
        return status;
    if (!shape_volume(out->rank, out->shape, &volume) || volume != out->numel)
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, value_dict_get(said, "param_shapes")->offset,
                            "param_shapes of parameter '%.*s' does not have the %" PRId64 " elements that param_numels says",
                            STR_ARG(out->name), out->numel);
    const struct value *strides = value_dict_get(said, "param_strides");
    if (!strides)
        return RESHARD_OK;
    status = meta_axes(reading, said, "param_strides", &stride_count, &out->strides);
    if (!status && (stride_count != out->rank || !axes_are_dense(out->rank, out->shape, out->strides, out->numel)))
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, strides->offset,
                            "param_strides of parameter '%.*s' do not order its elements without a gap", STR_ARG(out->name));
    return status;
}

static reshard_status meta_offsets(const struct meta_reading *reading, const struct value *said, struct atorch_meta_entry *out)
{
    struct atorch_numbers offsets;
    reshard_status status = meta_numbers(reading, said, "param_offsets", &offsets);
    if (status)
        return status;
    uint64_t at = value_dict_get(said, "param_offsets")->offset;
    if (offsets.count != 2)
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, at, "param_offsets of parameter '%.*s' has %zu numbers, expected 2",
                            STR_ARG(out->name), offsets.count);
    out->begin = offsets.items[0];
    out->end = offsets.items[1];
    if (out->end < out->begin || out->end - out->begin > out->numel)
        return error_set_at(reading->err, RESHARD_ERR_FORMAT, at,
                            "param_offsets of parameter '%.*s' are %" PRId64 " to %" PRId64 ", but it has %" PRId64 " elements",
                            STR_ARG(out->name), out->begin, out->end, out->numel);
    return RESHARD_OK;
}

static reshard_status meta_entry(struct meta_reading *reading, const struct value *name, const struct value *said,
                                 struct atorch_meta_entry *out, int version)
{
    reading->what = "parameter";
    out->shard = -1;
    reshard_status status = meta_name(reading, name, &out->name);
    if (!status)
        status = meta_text(reading, said, "param_names", &out->inner);
    if (!status)
        status = meta_shape(reading, said, out);
    if (!status)
        status = meta_offsets(reading, said, out);
    if (!status)
        status = meta_int(reading, said, "pad", &out->pad);
    if (!status)
        status = meta_int(reading, said, "rank", &out->data_rank);
    if (!status)
        status = meta_text(reading, said, "striped_fsdp_name", &out->unit);
    if (!status && version == 0)
        status = meta_int(reading, said, "flat_numel", &out->shard);
    return status;
}

/* ---- the file ---- */

/* A dict of dicts: pairs of name and dict. */
static reshard_status meta_pairs(const struct value *value, const char *what, struct value ***pairs, size_t *count, reshard_error *err)
{
    char text[PICKLE_DESCRIBE_MAX];
    if (value->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "byte %" PRIu64 ": %s is %s, expected a dict", value->offset, what,
                         pickle_describe(value, text));
    *pairs = value->list.items;
    *count = value->list.count;
    for (size_t i = 1; i < *count; i += 2) {
        if ((*pairs)[i]->kind != VALUE_DICT)
            return error_set_at(err, RESHARD_ERR_FORMAT, (*pairs)[i]->offset, "a member of %s is %s, expected a dict", what,
                                pickle_describe((*pairs)[i], text));
    }
    return RESHARD_OK;
}

static reshard_status meta_read_units(const struct value *value, struct arena *arena, struct atorch_meta *out, reshard_error *err)
{
    struct meta_reading reading = { .arena = arena, .err = err };
    struct value **pairs;
    size_t count;
    reshard_status status = meta_pairs(value, "flat_param_meta", &pairs, &count, err);
    if (status)
        return status;
    out->units = arena_zalloc(arena, (count / 2 + 1) * sizeof(*out->units));
    if (!out->units)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < count && !status; i += 2)
        status = meta_unit(&reading, pairs[i], pairs[i + 1], &out->units[out->unit_count++]);
    return status;
}

static reshard_status meta_read_entries(const struct value *value, const char *what, struct arena *arena, struct atorch_meta *out,
                                        reshard_error *err)
{
    struct meta_reading reading = { .arena = arena, .err = err };
    struct value **pairs;
    size_t count;
    reshard_status status = meta_pairs(value, what, &pairs, &count, err);
    if (status)
        return status;
    out->entries = arena_zalloc(arena, (count / 2 + 1) * sizeof(*out->entries));
    if (!out->entries)
        return error_set_memory(err);
    for (size_t i = 0; i + 1 < count && !status; i += 2)
        status = meta_entry(&reading, pairs[i], pairs[i + 1], &out->entries[out->entry_count++], out->version);
    return status;
}

reshard_status atorch_meta_read(struct str bytes, const struct limits *limits, struct arena *arena, struct atorch_meta *out,
                                reshard_error *err)
{
    struct value_graph graph = { 0 };
    *out = (struct atorch_meta){ 0 };
    reshard_status status = pickle_parse(bytes.data, bytes.size, 0, limits, &graph, NULL, err);
    if (status)
        goto out;
    const struct value *root = graph.root, *units = value_dict_get(root, "flat_param_meta"), *entries = value_dict_get(root, "param_meta");
    out->version = units || entries;
    if (out->version && (!units || !entries)) {
        status = error_set(err, RESHARD_ERR_FORMAT, "it has %s without %s", units ? "flat_param_meta" : "param_meta",
                           units ? "param_meta" : "flat_param_meta");
        goto out;
    }
    if (units)
        status = meta_read_units(units, arena, out, err);
    if (!status)
        status = meta_read_entries(entries ? entries : root, entries ? "param_meta" : "the file's object", arena, out, err);

out:
    value_graph_release(&graph);
    return status;
}
