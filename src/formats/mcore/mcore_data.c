/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_data.h"

#include "base/array.h"
#include "encoding/pickle.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

#define ATTRIBUTE "mcore_data"
#define SHAPE_KEY "nd_reformulated_orig_global_shape"

/*
 * The distributed optimizer keeps its state as flat vectors, and Megatron's load_plain_tensors gives them so. Other flattened tensors have
 * their real shape.
 */
static reshard_status add_shape(struct mcore_data *data, struct str name, const struct value *shape, reshard_error *err)
{
    struct mcore_reshape made = { .is_flat = state_key_is_any(name) };
    size_t count;
    int64_t volume;
    if (!value_as_ints(shape, made.shape, RANK_MAX, &count) || !shape_volume((int)count, made.shape, &volume))
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s': its original shape is no tuple of integers", STR_ARG(name));
    made.rank = (int)count;
    uint32_t index = name_map_intern(&data->names, name, NULL);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (!ARRAY_ROOM(data->shapes, index, data->capacity))
        return error_set_memory(err);
    data->shapes[index] = made;
    return RESHARD_OK;
}

static reshard_status take_data(const struct value *root, struct mcore_data *out, reshard_error *err)
{
    const struct value *attributes = root->kind == VALUE_NEW && root->object->state_count ? root->object->states[0] : NULL;
    const struct value *data = attributes && attributes->kind == VALUE_DICT ? value_dict_get(attributes, ATTRIBUTE) : NULL;
    if (!data || data->kind != VALUE_DICT)
        return RESHARD_OK;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < data->list.count && !status; i += 2) {
        struct str name;
        const struct value *entry = data->list.items[i + 1];
        const struct value *shape = entry->kind == VALUE_DICT ? value_dict_get(entry, SHAPE_KEY) : NULL;
        if (shape && value_as_str(data->list.items[i], &name))
            status = add_shape(out, name, shape, err);
    }
    return status;
}

reshard_status mcore_data_read(const struct buffer *pickle, const struct limits *limits, struct mcore_data *out, reshard_error *err)
{
    struct value_graph graph = { 0 };
    if (!pickle->size || !memmem(pickle->data, pickle->size, ATTRIBUTE, strlen(ATTRIBUTE)))
        return RESHARD_OK;
    reshard_status status = pickle_parse(pickle->data, pickle->size, 0, limits, &graph, NULL, err);
    if (!status)
        status = take_data(graph.root, out, err);
    if (status)
        error_prefix(err, "'" DCP_METADATA "'");
    value_graph_release(&graph);
    return status;
}

bool mcore_data_find(const struct mcore_data *data, struct str name, struct mcore_reshape *out)
{
    uint32_t index = data->names.count ? name_map_find(&data->names, name) : NAME_NONE;
    if (index == NAME_NONE)
        return false;
    *out = data->shapes[index];
    return true;
}

void mcore_data_release(struct mcore_data *data)
{
    name_map_release(&data->names);
    free(data->shapes);
    *data = (struct mcore_data){ 0 };
}
