/* SPDX-License-Identifier: Apache-2.0 */
/*
 * param_shapes of a model file: for each group of the optimizer (at ZeRO 3: sub-group) a dict of the parameters that are trained and their
 * shapes. The order is that of flat buffers. Where the model lies in several parts (tensor-parallel, stages of a pipeline; a universal
 * checkpoint alone) each has a file with its own; what several have is listed once.
 */
#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>

void deepspeed_name_file(const struct deepspeed_reading *reading, uint32_t file, reshard_error *err)
{
    const struct catalog *catalog = reading->source->catalog;
    struct str name = catalog->objects[torch_source_of(reading->source)->files[file].object].name;
    error_prefix(err, "'%.*s'", STR_ARG(name));
    error_object(err, "%.*s", STR_ARG(name));
}

const struct value *deepspeed_root(const struct deepspeed_reading *reading, uint32_t file)
{
    return torch_source_of(reading->source)->files[file].graph->root;
}

struct value *deepspeed_member(const struct value *list, uint32_t index)
{
    struct value **items;
    size_t count;
    return list && value_as_sequence(list, &items, &count) && index < count ? items[index] : NULL;
}

uint32_t deepspeed_part_file(const struct deepspeed_reading *reading, uint32_t part)
{
    return part ? reading->part_files[part - 1] : reading->model_files[0];
}

static const struct value *shapes_of(const struct deepspeed_reading *reading, uint32_t part)
{
    return value_dict_get(deepspeed_root(reading, deepspeed_part_file(reading, part)), "param_shapes");
}

static reshard_status shapes_add_one(struct deepspeed_reading *reading, uint32_t part, struct str name, const struct value *shape,
                                     reshard_error *err)
{
    struct deepspeed_parameter parameter = {
        .name = name, .group = reading->group_count, .part = part, .tensor = CATALOG_NONE, .elements = 1
    };
    size_t rank = 0;
    bool was_new, is_good = value_as_ints(shape, parameter.shape, RANK_MAX, &rank);
    for (size_t i = 0; is_good && i < rank; i++)
        is_good = parameter.shape[i] >= 0 && checked_mul_i64(parameter.elements, parameter.shape[i], &parameter.elements) &&
                  parameter.elements <= DEEPSPEED_ELEMENTS_MAX;
    if (!is_good)
        return error_set(err, RESHARD_ERR_FORMAT, "param_shapes: '%.*s' has no shape of a tensor", STR_ARG(name));
    parameter.rank = (int)rank;
    uint32_t number = name_map_intern(&reading->names, name, &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(reading->parameters, reading->parameter_count, reading->parameter_capacity))
        return error_set_memory(err);
    if (!was_new && reading->parameters[number].part == part)
        return error_set(err, RESHARD_ERR_FORMAT, "param_shapes has '%.*s' twice", STR_ARG(name));
    if (was_new)
        reading->parameters[reading->parameter_count++] = parameter;
    return RESHARD_OK;
}

static reshard_status shapes_add_part(struct deepspeed_reading *reading, uint32_t part, reshard_error *err)
{
    const struct value *shapes = deepspeed_member(shapes_of(reading, part), reading->group_count);
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!shapes)
        return RESHARD_OK;
    if (!value_as_mapping(shapes, &pairs, &count))
        status = error_set(err, RESHARD_ERR_FORMAT, "param_shapes[%" PRIu32 "] is no dict of shapes", reading->group_count);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct str name;
        status = value_as_str(pairs[i], &name) ? shapes_add_one(reading, part, name, pairs[i + 1], err)
                                               : error_set(err, RESHARD_ERR_FORMAT, "param_shapes has a key that is no name");
    }
    if (status)
        deepspeed_name_file(reading, deepspeed_part_file(reading, part), err);
    return status;
}

reshard_status deepspeed_read_shapes(struct deepspeed_reading *reading, reshard_error *err)
{
    size_t most = 0;
    for (uint32_t part = 0; part <= reading->folder.part_count; part++) {
        const struct value *shapes = shapes_of(reading, part);
        struct value **groups;
        size_t count;
        if (shapes && value_as_sequence(shapes, &groups, &count) && count > most)
            most = count;
    }
    reading->groups = array_zeroed(most, sizeof(*reading->groups));
    reshard_status status = reading->groups ? RESHARD_OK : error_set_memory(err);
    for (; !status && reading->group_count < most; reading->group_count++) {
        struct deepspeed_group *group = &reading->groups[reading->group_count];
        group->first = reading->parameter_count;
        for (uint32_t part = 0; !status && part <= reading->folder.part_count; part++)
            status = shapes_add_part(reading, part, err);
        group->count = reading->parameter_count - group->first;
    }
    return status;
}
