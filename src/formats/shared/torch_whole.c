/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_whole.h"

#include "tensor/box.h"

/* A tuple of numbers; NULL without memory. */
static struct value *new_ints(struct value_graph *graph, const int64_t *numbers, int count)
{
    struct value **items = arena_array(&graph->arena, count, sizeof(*items));
    bool good = items != NULL;
    for (int i = 0; good && i < count; i++)
        good = (items[i] = value_new_int(graph, numbers[i])) != NULL;
    return good ? value_new_list(graph, VALUE_TUPLE, items, (size_t)count) : NULL;
}

static bool all_made(struct value *const *values, size_t count)
{
    bool good = true;
    for (size_t i = 0; i < count; i++)
        good = good && values[i];
    return good;
}

static struct value *new_storage(struct value_graph *graph, const struct dtype_info *info, uint32_t storage, int64_t elements)
{
    bool is_typed = info->torch_storage[0] != '\0';
    struct value **id = arena_array(&graph->arena, 5, sizeof(*id)), *persid = value_new(graph, VALUE_PERSID);
    if (!id || !persid)
        return NULL;
    id[0] = value_new_str(graph, STR("storage"));
    id[1] = value_new_global(graph, is_typed ? "torch" : "torch.storage", is_typed ? info->torch_storage : "UntypedStorage");
    id[2] = value_new_str(graph, STR("0"));
    id[3] = value_new_str(graph, STR("cpu"));
    id[4] = value_new_int(graph, is_typed ? elements : elements * info->bits / 8);
    persid->inner = all_made(id, 5) ? value_new_list(graph, VALUE_TUPLE, id, 5) : NULL;
    persid->storage = storage + 1;
    return persid->inner ? persid : NULL;
}

struct value *torch_tensor_value(struct value_graph *graph, enum dtype dtype, int rank, const int64_t *shape, uint32_t storage)
{
    const struct dtype_info *info = dtype_info(dtype);
    bool is_typed = info->torch_storage[0] != '\0';
    size_t count = is_typed ? 6 : 7;
    int64_t strides[RANK_MAX];
    strides_row_major(rank, shape, strides);
    struct value **args = arena_array(&graph->arena, 7, sizeof(*args));
    struct value *ordered = value_new_global(graph, "collections", "OrderedDict");
    struct value *function = value_new_global(graph, "torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    if (!args || !ordered || !function)
        return NULL;
    args[0] = new_storage(graph, info, storage, box_volume(rank, shape));
    args[1] = value_new_int(graph, 0);
    args[2] = new_ints(graph, shape, rank);
    args[3] = new_ints(graph, strides, rank);
    args[4] = value_new(graph, VALUE_BOOL);
    args[5] = value_new_call(graph, ordered, NULL, 0);
    args[6] = value_new_global(graph, "torch", info->torch_name);
    return all_made(args, 7) ? value_new_call(graph, function, args, count) : NULL;
}

static bool name_whole(struct value_graph *graph, const struct catalog *catalog, const struct torch_whole *whole)
{
    const struct catalog_tensor *tensor = &catalog->tensors[whole->tensor];
    struct value *call =
        torch_tensor_value(graph, tensor->dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape), whole->tensor);
    if (!call)
        return false;
    whole->node->kind = call->kind;
    whole->node->object = call->object;
    whole->node->tensor = 0;
    return true;
}

reshard_status torch_wholes_name(struct value_graph *graph, const struct catalog *catalog, const struct torch_whole *wholes, size_t count,
                                 reshard_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!name_whole(graph, catalog, &wholes[i]))
            return error_set_memory(err);
    return RESHARD_OK;
}
