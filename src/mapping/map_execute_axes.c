/* SPDX-License-Identifier: Apache-2.0 */
/* Statements that change the number of axes: stack, unstack, reshape. */
#include "mapping/map_engine_parts.h"

#include "mapping/map_permute.h"

/* axes: how many the axis may be below. */
static bool read_stack_axis(struct map_machine *machine, const struct map_attribute *attribute, int axes, int *out)
{
    const struct map_statement *statement = machine->statement;
    if (statement->attribute_count != 1)
        return map_machine_fail(machine, attribute->key_span, "do other things in a statement of their own", "%.*s stands alone",
                                STR_ARG(attribute->key));
    if (!attribute->is_number || attribute->is_huge || attribute->number >= axes)
        return map_machine_fail(machine, attribute->value_span, "it is counted in the tensor that has the axis",
                                "the axis is a number below %d", axes);
    *out = (int)attribute->number;
    return true;
}

static reshard_status execute_unstack(struct map_machine *machine, const struct map_attribute *attribute, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable *in;
    int axis;
    if (statement->left_count != 1) {
        map_machine_fail(machine, attribute->key_span, machine->input->reverse ? NULL : "to join tensors write stack=",
                         "an unstack takes one tensor apart, here are %u", statement->left_count);
        return RESHARD_OK;
    }
    reshard_status status = map_machine_read(machine, &statement->left[0], &in, err);
    if (status || !in || !read_stack_axis(machine, attribute, in->rank, &axis))
        return status;
    if (in->shape[axis] != statement->right_count) {
        map_machine_fail(machine, statement->span, NULL, "'%.*s' has %lld on axis %d, for %u names", STR_ARG(statement->left[0].text),
                         (long long)in->shape[axis], axis, statement->right_count);
        return RESHARD_OK;
    }
    struct map_variable *parts = arena_array(machine->workshop.arena, statement->right_count, sizeof(*parts));
    if (!parts)
        return error_set_memory(err);
    status = map_variable_unstack(&machine->workshop, in, axis, statement->right_count, parts, err);
    for (uint32_t i = 0; i < statement->right_count && !status; i++)
        status = map_machine_assign(machine, &statement->right[i], &parts[i], err);
    return status;
}

/* Parts of a stack have one shape. */
static bool stack_fits(struct map_machine *machine, const struct map_variable *const *parts, uint32_t count)
{
    const struct map_name *names = machine->statement->left;
    for (uint32_t i = 0; i < count; i++) {
        for (int k = 0; k < parts[i]->rank && parts[i]->rank == parts[0]->rank; k++) {
            if (parts[i]->shape[k] != parts[0]->shape[k])
                return map_machine_fail(
                    machine, names[i].span, NULL, "on axis %d '%.*s' has %lld, '%.*s' has %lld: what is stacked has one shape", k,
                    STR_ARG(names[i].text), (long long)parts[i]->shape[k], STR_ARG(names[0].text), (long long)parts[0]->shape[k]);
        }
        if (parts[i]->rank != parts[0]->rank)
            return map_machine_fail(machine, names[i].span, NULL, "'%.*s' has %d axes, '%.*s' has %d", STR_ARG(names[i].text),
                                    parts[i]->rank, STR_ARG(names[0].text), parts[0]->rank);
    }
    return parts[0]->rank < RANK_MAX || map_machine_fail(machine, names[0].span, NULL, "a tensor has at most %d axes", RANK_MAX);
}

static reshard_status execute_stack(struct map_machine *machine, const struct map_attribute *attribute, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable **parts = arena_array(machine->workshop.arena, statement->left_count, sizeof(*parts));
    struct map_variable *joined = arena_alloc(machine->workshop.arena, sizeof(*joined));
    reshard_status status = parts && joined ? RESHARD_OK : error_set_memory(err);
    bool is_good = statement->right_count == 1;
    int axis;
    if (!is_good)
        map_machine_fail(machine, attribute->key_span,
                         machine->input->reverse ? NULL : "to take a tensor apart write unstack=", "a stack makes one tensor, here are %u",
                         statement->right_count);
    for (uint32_t i = 0; i < statement->left_count && !status && is_good; i++) {
        status = map_machine_read(machine, &statement->left[i], &parts[i], err);
        is_good = !status && parts[i];
    }
    if (status || !is_good || !stack_fits(machine, parts, statement->left_count) ||
        !read_stack_axis(machine, attribute, parts[0]->rank + 1, &axis))
        return status;
    status = map_variable_stack(&machine->workshop, parts, statement->left_count, axis, joined, err);
    return status ? status : map_machine_assign(machine, &statement->right[0], joined, err);
}

/* ---- reshape ---- */

/* The shape that reshape= gives, of three axes or more. */
static bool read_shape(struct map_machine *machine, const struct map_attribute *attribute, int64_t shape[RANK_MAX], int *rank)
{
    bool is_good = machine->statement->attribute_count == 1 && !attribute->is_number &&
                   map_list_parse(attribute->value, shape, rank) == MAP_LIST_OK && *rank >= 3;
    for (int i = 0; i < *rank && is_good; i++)
        is_good = shape[i] > 0;
    return is_good || map_machine_fail(machine, attribute->value_span, "write reshape=\"[8, 2, 4]\" and nothing else",
                                       "reshape takes a list of three numbers or more, the shape of the side that has more axes");
}

static bool has_shape(const struct map_variable *variable, int rank, const int64_t *shape)
{
    return variable->rank == rank && memcmp(variable->shape, shape, (size_t)rank * sizeof(*shape)) == 0;
}

/* The shape with two axes: the first two made one, and the others. false: too many elements. */
static bool flat_shape(int rank, const int64_t *shape, int64_t flat[2])
{
    int64_t volume;
    if (!shape_volume(rank, shape, &volume))
        return false;
    flat[0] = shape[0] * shape[1];
    flat[1] = volume / flat[0];
    return true;
}

/* One axis becomes two, the first of extent `count`. */
static reshard_status unflatten(struct map_machine *machine, const struct map_variable *in, int axis, uint32_t count,
                                struct map_variable *out, reshard_error *err)
{
    struct map_variable *parts = arena_array(machine->workshop.arena, count, sizeof(*parts));
    const struct map_variable **order = arena_array(machine->workshop.arena, count, sizeof(*order));
    int64_t *ends = arena_array(machine->workshop.arena, count, sizeof(*ends));
    if (!parts || !order || !ends)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        ends[i] = in->shape[axis] / count * (i + 1);
        order[i] = &parts[i];
    }
    reshard_status status = map_variable_split(&machine->workshop, in, axis, ends, count, parts, err);
    return status ? status : map_variable_stack(&machine->workshop, order, count, axis, out, err);
}

/* An axis and the one behind it become one. */
static reshard_status map_execute_axes_flatten(struct map_machine *machine, const struct map_variable *in, int axis,
                                               struct map_variable *out, reshard_error *err)
{
    uint32_t count = (uint32_t)in->shape[axis];
    struct map_variable *parts = arena_array(machine->workshop.arena, count, sizeof(*parts));
    const struct map_variable **order = arena_array(machine->workshop.arena, count, sizeof(*order));
    if (!parts || !order)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        order[i] = &parts[i];
    reshard_status status = map_variable_unstack(&machine->workshop, in, axis, count, parts, err);
    return status ? status : map_variable_concat(&machine->workshop, order, count, axis, out, err);
}

/* From two axes to many, or back: one axis after the other. */
static reshard_status map_execute_axes_reshape(struct map_machine *machine, const struct map_variable *in, int rank, const int64_t *shape,
                                               bool is_flattened, struct map_variable *out, reshard_error *err)
{
    struct map_variable now = *in;
    reshard_status status = RESHARD_OK;
    for (int axis = 0; axis < rank - 1; axis++) {
        if (axis != 1 && (uint64_t)shape[axis] > machine->workshop.pieces_max)
            return error_set_limit(err, "map_pieces", (uint64_t)shape[axis], machine->workshop.pieces_max);
    }
    if (is_flattened) {
        for (int axis = rank - 2; axis >= 2 && !status; axis--)
            status = map_execute_axes_flatten(machine, &now, axis, &now, err);
        if (!status)
            status = map_execute_axes_flatten(machine, &now, 0, &now, err);
    } else {
        status = unflatten(machine, &now, 0, (uint32_t)shape[0], &now, err);
        for (int axis = 2; axis < rank - 1 && !status; axis++)
            status = unflatten(machine, &now, axis, (uint32_t)shape[axis], &now, err);
    }
    *out = now;
    return status;
}

/* Which of the two shapes the right-hand name is to have: its key's in the target; else the one that the left-hand name has not. Without a
 * target it is forwards the one with more axes. */
static bool wants_flat(const struct map_machine *machine, const int64_t flat[2], int rank, const int64_t *shape, bool comes_flat)
{
    const struct map_space *target = machine->input->target;
    uint32_t weight = target ? map_space_find(target, machine->statement->right[0].text) : MAP_NONE;
    const struct map_tensor *tensor = weight == MAP_NONE ? NULL : map_space_shaped(target, weight);
    struct map_variable wanted = { .rank = tensor ? tensor->rank : -1, .shape = tensor ? tensor->shape : NULL };
    if (tensor && has_shape(&wanted, 2, flat))
        return true;
    if (tensor && has_shape(&wanted, rank, shape))
        return false;
    return target ? !comes_flat : machine->input->reverse;
}

static reshard_status execute_reshape(struct map_machine *machine, const struct map_attribute *attribute, reshard_error *err)
{
    const struct map_statement *statement = machine->statement;
    const struct map_variable *in;
    int64_t shape[RANK_MAX], flat[2];
    int rank = 0;
    bool is_flat, comes_flat;
    struct map_variable *made = arena_alloc(machine->workshop.arena, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    if (statement->left_count != 1 || statement->right_count != 1) {
        map_machine_fail(machine, attribute->key_span, NULL, "a reshape makes one tensor of one");
        return RESHARD_OK;
    }
    reshard_status status = map_machine_read(machine, &statement->left[0], &in, err);
    if (status || !in || !read_shape(machine, attribute, shape, &rank))
        return status;
    bool fits = flat_shape(rank, shape, flat);
    comes_flat = fits && has_shape(in, 2, flat);
    if (!comes_flat && !(fits && has_shape(in, rank, shape))) {
        map_machine_fail(machine, statement->left[0].span, NULL,
                         "'%.*s' has neither the shape that reshape gives nor the one with two axes", STR_ARG(statement->left[0].text));
        return RESHARD_OK;
    }
    is_flat = wants_flat(machine, flat, rank, shape, comes_flat);
    *made = *in;
    if (is_flat != comes_flat)
        status = map_execute_axes_reshape(machine, in, rank, shape, is_flat, made, err);
    return status ? status : map_machine_assign(machine, &statement->right[0], made, err);
}

const struct map_attribute *map_machine_axes_attribute(const struct map_machine *machine)
{
    static const char *const keys[] = { "stack", "unstack", "reshape" };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && !machine->input->strict; i++) {
        const struct map_attribute *found = map_attribute_find(machine->statement, keys[i]);
        if (found)
            return found;
    }
    return NULL;
}

reshard_status map_machine_change_axes(struct map_machine *machine, const struct map_attribute *attribute, reshard_error *err)
{
    if (str_is(attribute->key, "reshape"))
        return execute_reshape(machine, attribute, err);
    bool is_stack = str_is(attribute->key, "stack") != machine->input->reverse;
    return is_stack ? execute_stack(machine, attribute, err) : execute_unstack(machine, attribute, err);
}
