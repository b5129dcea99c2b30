/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's tensors in the order of the dict `module`: parameters that are trained are made up of the optimizer's masters, or are as they
 * are stored where there are none (ZeRO 0, or its files are gone); at ZeRO 3 frozen ones are made up of each rank's fragments. A second
 * name of a tied weight is in `module`, too, but not in param_shapes. Of several parts of a universal checkpoint's model each may have
 * tensors that the others lack; what they all have is the same.
 */
#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"
#include "formats/shared/torch_views.h"

#include <inttypes.h>
#include <stdlib.h>

/* Members of the model file's object that are no items: what the tensors and the item `optimizer` are made of. */
static const char *const taken_apart[] = { "module",        "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments",
                                           "shared_params" };

/* Values by name: what is asked for each of a model's many tensors. */
struct value_table {
    struct name_map names;
    struct value **values;
    uint32_t capacity;
};

/* A frozen parameter of ZeRO 3, whose fragments come when all are listed. */
struct frozen_parameter {
    struct str name;
    uint32_t tensor;
    int64_t elements;
};

struct model_adding {
    struct deepspeed_reading *reading;
    uint32_t file, part; /* whose `module` is gone through */
    struct value_table shared, frozen_shapes, fragments, buffers; /* fragments: rank 0's */
    struct torch_views views; /* of the first part */
    struct frozen_parameter *frozen;
    uint32_t frozen_count, frozen_capacity;
};

static bool table_add(struct value_table *table, const struct value *name, struct value *value)
{
    struct str text;
    if (!value_as_str(name, &text))
        return true;
    uint32_t number = name_map_intern(&table->names, text, NULL);
    if (number == NAME_NONE || !ARRAY_ROOM(table->values, number, table->capacity))
        return false;
    table->values[number] = value;
    return true;
}

/* Of a dict, or a list of names; NULL and other values have none. false without memory. */
static bool table_fill(struct value_table *table, const struct value *value)
{
    struct value **items;
    size_t count;
    bool good = true, is_dict = value && value_as_mapping(value, &items, &count);
    if (!value || (!is_dict && !value_as_sequence(value, &items, &count)))
        return true;
    for (size_t i = 0; good && i + is_dict < count; i += is_dict ? 2 : 1)
        good = table_add(table, items[i], items[i + is_dict]);
    return good;
}

static struct value *table_find(const struct value_table *table, struct str name)
{
    uint32_t number = name_map_find(&table->names, name);
    return number == NAME_NONE ? NULL : table->values[number];
}

static void table_release(struct value_table *table)
{
    name_map_release(&table->names);
    free(table->values);
}

reshard_status deepspeed_add_tensor(struct deepspeed_reading *reading, struct str key, enum dtype dtype, int rank, const int64_t *shape,
                                    bool is_parameter, uint32_t *out, reshard_error *err)
{
    bool was_new;
    reshard_status status = catalog_add_tensor(reading->source->catalog, key, dtype, rank, shape, out, err);
    uint32_t number = status ? NAME_NONE : name_map_intern(&reading->listed, key, &was_new);
    if (!status && (number == NAME_NONE || !ARRAY_ROOM(reading->listed_tensors, number, reading->listed_capacity)))
        status = error_set_memory(err);
    if (status)
        return status;
    if (was_new)
        reading->listed_tensors[number] = *out;
    if (is_parameter)
        reading->source->catalog->tensors[*out].flags |= TENSOR_PARAMETER;
    return RESHARD_OK;
}

uint32_t deepspeed_find_tensor(const struct deepspeed_reading *reading, struct str key)
{
    uint32_t number = name_map_find(&reading->listed, key);
    return number == NAME_NONE ? CATALOG_NONE : reading->listed_tensors[number];
}

/* ---- frozen parameters of ZeRO 3 ---- */

static reshard_status add_fragment(struct deepspeed_reading *reading, const struct frozen_parameter *frozen, const struct value *node,
                                   uint32_t rank, reshard_error *err)
{
    const struct torch_tensor *found;
    struct flat_unit_part part;
    int64_t share = flat_unit_piece(frozen->elements, reading->folder.model_count);
    if (!flat_unit_part_of(share, reading->folder.model_count, rank, 0, frozen->elements, &part) || !part.count)
        return RESHARD_OK;
    uint32_t file = reading->model_files[rank];
    reshard_status status = deepspeed_flat_tensor(reading, file, node, "a fragment of a frozen parameter", &found, err);
    if (status)
        return status;
    if (found->shape[0] != share || found->dtype != reading->source->catalog->tensors[frozen->tensor].dtype) {
        error_set(err, RESHARD_ERR_FORMAT,
                  "the fragment of '%.*s' has %" PRId64 " elements of type %s, and not %" PRId64 " of rank 0's type",
                  STR_ARG(frozen->name), found->shape[0], dtype_info(found->dtype)->name, share);
        deepspeed_name_file(reading, file, err);
        return RESHARD_ERR_FORMAT;
    }
    struct torch_run run = { .tensor = frozen->tensor,
                             .file = file,
                             .archive_tensor = node->tensor - 1,
                             .writer = rank,
                             .offset = part.place,
                             .begin = part.begin,
                             .count = part.count };
    return torch_source_add_run(reading->source, &run, err);
}

static reshard_status add_fragments(struct model_adding *adding, uint32_t rank, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    struct value_table fragments = { 0 };
    const struct value *object = deepspeed_root(reading, reading->model_files[rank]);
    reshard_status status = table_fill(&fragments, value_dict_get(object, "frozen_param_fragments")) ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < adding->frozen_count; i++)
        status = add_fragment(reading, &adding->frozen[i], table_find(&fragments, adding->frozen[i].name), rank, err);
    table_release(&fragments);
    return status;
}

static reshard_status add_frozen(struct model_adding *adding, struct str name, const struct value *shape, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    const struct torch_tensor *first = NULL;
    struct frozen_parameter frozen = { .name = name };
    int64_t numbers[RANK_MAX];
    size_t rank = 0;
    if (!value_as_ints(shape, numbers, RANK_MAX, &rank))
        return error_set(err, RESHARD_ERR_FORMAT, "frozen_param_shapes: '%.*s' has no shape of a tensor", STR_ARG(name));
    if (!ARRAY_ROOM(adding->frozen, adding->frozen_count, adding->frozen_capacity))
        return error_set_memory(err);
    reshard_status status = deepspeed_flat_tensor(reading, reading->model_files[0], table_find(&adding->fragments, name),
                                                  "a fragment of a frozen parameter", &first, err);
    if (!status)
        status = deepspeed_add_tensor(reading, name, first->dtype, (int)rank, numbers, true, &frozen.tensor, err);
    if (status)
        return status;
    const struct catalog_tensor *tensor = &reading->source->catalog->tensors[frozen.tensor];
    frozen.name = tensor->key;
    frozen.elements = box_volume((int)rank, numbers);
    adding->frozen[adding->frozen_count++] = frozen;
    return RESHARD_OK;
}

/* ---- the dict `module` ---- */

/* The parameter that a name is the second one of; NULL: of none. */
static struct deepspeed_parameter *tied_parameter(const struct model_adding *adding, struct str name)
{
    const struct value *source = table_find(&adding->shared, name);
    struct str other;
    uint32_t number = source && value_as_str(source, &other) ? name_map_find(&adding->reading->names, other) : NAME_NONE;
    return number == NAME_NONE ? NULL : &adding->reading->parameters[number];
}

static reshard_status add_trained(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter, reshard_error *err)
{
    if (parameter->tensor != CATALOG_NONE)
        return RESHARD_OK;
    return reading->origin->add_master(reading, parameter, parameter->name, &parameter->tensor, err);
}

static reshard_status add_tied(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter, struct str name,
                               reshard_error *err)
{
    uint32_t tensor;
    reshard_status status = add_trained(reading, parameter, err);
    if (!status)
        status = reading->origin->add_master(reading, parameter, name, &tensor, err);
    if (!status && parameter->elements)
        reading->source->catalog->tensors[tensor].tied_to = parameter->tensor;
    return status;
}

static reshard_status check_same_kind(const struct model_adding *adding, uint32_t index, const struct torch_tensor *tensor,
                                      reshard_error *err)
{
    const struct catalog *catalog = adding->reading->source->catalog;
    const struct catalog_tensor *first = &catalog->tensors[index];
    if (first->dtype == tensor->dtype && shape_equal(first->rank, catalog_vector_at(catalog, first->shape), tensor->rank, tensor->shape))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_UNSUPPORTED,
                     "'%.*s' has another shape or type than in the first part: how it is cut is not known", STR_ARG(first->key));
}

/* As it is in the model file; what another part has, too, is a replica. */
static reshard_status add_stored(struct model_adding *adding, struct str name, const struct value *node, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    struct source *source = reading->source;
    struct torch_file *file = &torch_source_of(source)->files[adding->file];
    const struct torch_tensor *tensor = &file->archive.tensors[node->tensor - 1];
    const struct torch_storage *storage = &file->archive.storages[tensor->storage];
    struct catalog_chunk *chunk;
    uint32_t index = adding->part ? deepspeed_find_tensor(reading, name) : CATALOG_NONE, tied = CATALOG_NONE;
    bool is_new = index == CATALOG_NONE;
    reshard_status status = is_new ? deepspeed_add_tensor(reading, name, tensor->dtype, tensor->rank, tensor->shape, false, &index, err)
                                   : check_same_kind(adding, index, tensor, err);
    if (!status && is_new && !adding->part && !box_is_empty(tensor->rank, tensor->shape))
        status = torch_views_find(&adding->views, tensor, index, &tied, err);
    bool is_whole = !status && catalog_tensor_bytes(source->catalog, &source->catalog->tensors[index]) == storage->bytes;
    if (!status)
        status = torch_source_add_chunk(source, index, NULL, adding->file, node->tensor - 1,
                                        is_whole && !file->has_crc_in_chunk[tensor->storage], &chunk, err);
    if (status)
        return status;
    if (is_new)
        source->catalog->tensors[index].tied_to = tied;
    if (!file->listed[node->tensor - 1])
        file->listed[node->tensor - 1] = index + 1;
    return RESHARD_OK;
}

static reshard_status model_add_member(struct model_adding *adding, struct str name, const struct value *node, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    const struct torch_tensor *tensor = &torch_source_of(reading->source)->files[adding->file].archive.tensors[node->tensor - 1];
    uint32_t number = reading->origin ? name_map_find(&reading->names, name) : NAME_NONE;
    bool is_split = reading->folder.is_split;
    if (number != NAME_NONE) {
        struct deepspeed_parameter *parameter = &reading->parameters[number];
        if (!is_split && !reading->universal && !shape_equal(parameter->rank, parameter->shape, tensor->rank, tensor->shape))
            return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has another shape in param_shapes than in module", STR_ARG(name));
        return add_trained(reading, parameter, err);
    }
    struct deepspeed_parameter *tied = reading->origin ? tied_parameter(adding, name) : NULL;
    const struct value *shape = is_split ? table_find(&adding->frozen_shapes, name) : NULL;
    if (tied)
        return adding->part && deepspeed_find_tensor(reading, name) != CATALOG_NONE ? RESHARD_OK : add_tied(reading, tied, name, err);
    if (reading->folder.part_count && !is_split && deepspeed_universal_differs(reading, name, tensor))
        return RESHARD_OK; /* the whole is added with the rest */
    if (shape && reading->folder.part_count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "'%.*s' is frozen, and its fragments are of one tensor-parallel part each: such are not read", STR_ARG(name));
    if (shape)
        return add_frozen(adding, name, shape, err);
    if (is_split && tensor->rank == 1 && tensor->shape[0] == 0 && name_map_find(&adding->buffers.names, name) == NAME_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is in module, but neither param_shapes nor frozen_param_shapes say what it is",
                         STR_ARG(name));
    return add_stored(adding, name, node, err);
}

static reshard_status keep_item(struct deepspeed_reading *reading, struct str key, struct value *value, reshard_error *err)
{
    if (!ARRAY_ROOM(reading->items, reading->item_count, reading->item_capacity))
        return error_set_memory(err);
    reading->items[reading->item_count++] = value;
    return torch_source_add_item(reading->source, reading->model_files[0], key, NULL, 0, value, err);
}

static reshard_status deepspeed_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct model_adding *adding = context;
    struct deepspeed_reading *reading = adding->reading;
    buffer_clear(&reading->key);
    if (!path_join(leaf->parts, leaf->part_count, &reading->key))
        return error_set_memory(err);
    struct str name = buffer_str(&reading->key);
    if (leaf->value->tensor)
        return model_add_member(adding, name, leaf->value, err);
    return adding->part ? RESHARD_OK : keep_item(reading, name, leaf->value, err);
}

/* ---- items ---- */

static bool model_lacks(const struct value *dict, const char *key)
{
    const struct value *value = value_dict_get(dict, key);
    return !value || value->kind == VALUE_NONE;
}

static bool is_taken_apart(const struct deepspeed_reading *reading, struct str key)
{
    for (size_t i = 0; i < sizeof(taken_apart) / sizeof(taken_apart[0]); i++)
        if (str_is(key, taken_apart[i]))
            return i != 1 || model_lacks(reading->model, "optimizer");
    return false;
}

static reshard_status add_items(struct deepspeed_reading *reading, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!value_as_mapping(reading->model, &pairs, &count))
        return RESHARD_OK;
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        buffer_clear(&reading->key);
        bool is_text = pairs[i]->kind == VALUE_STR;
        if (!(is_text ? buffer_append_str(&reading->key, pairs[i]->text)
                      : value_to_repr(pairs[i], &reading->key, reading->source->limits.budget)))
            return error_set_memory(err);
        struct str key = buffer_str(&reading->key);
        if (!is_text || !is_taken_apart(reading, key))
            status = keep_item(reading, key, pairs[i + 1], err);
    }
    return status;
}

/* Tells what is left out: copies of the masters in the model's own type. */
static reshard_status add_copies_fact(const struct deepspeed_reading *reading, reshard_error *err)
{
    if (!reading->origin || reading->folder.is_split)
        return RESHARD_OK;
    return catalog_add_fact(reading->source->catalog, "weights", err,
                            "fp32 masters of %" PRIu32 " parameters; the model file's copies of them are not listed",
                            reading->parameter_count);
}

static reshard_status model_walk_module(struct model_adding *adding, uint32_t part, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    adding->part = part;
    adding->file = deepspeed_part_file(reading, part);
    struct value_graph module = *torch_source_of(reading->source)->files[adding->file].graph; /* a part of it is walked */
    module.root = value_dict_get(module.root, "module");
    bool is_there = module.root && module.root->kind != VALUE_NONE;
    if (!is_there && reading->universal) /* a pipeline's are in files of layers, which ds_to_universal.py does not copy */
        return RESHARD_OK;
    reshard_status status = is_there ? torch_flatten(&module, &reading->source->limits, deepspeed_add_leaf, adding, err)
                                     : error_set(err, RESHARD_ERR_FORMAT, "there is no module, which has the model's tensors");
    if (status)
        deepspeed_name_file(reading, adding->file, err);
    return status;
}

static reshard_status model_add_module(struct model_adding *adding, reshard_error *err)
{
    struct deepspeed_reading *reading = adding->reading;
    if (!table_fill(&adding->shared, value_dict_get(reading->model, "shared_params")) ||
        !table_fill(&adding->frozen_shapes, value_dict_get(reading->model, "frozen_param_shapes")) ||
        !table_fill(&adding->fragments, value_dict_get(reading->model, "frozen_param_fragments")) ||
        !table_fill(&adding->buffers, value_dict_get(reading->model, "buffer_names")))
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (uint32_t part = 0; !status && part <= reading->folder.part_count; part++)
        status = model_walk_module(adding, part, err);
    for (uint32_t i = 0; !status && reading->origin && i < reading->parameter_count; i++)
        status = add_trained(reading, &reading->parameters[i], err);
    for (uint32_t rank = 0; !status && rank < reading->folder.model_count; rank++)
        status = add_fragments(adding, rank, err);
    return status;
}

reshard_status deepspeed_add_model(struct deepspeed_reading *reading, reshard_error *err)
{
    struct model_adding adding = { .reading = reading };
    uint32_t file = reading->model_files[0];
    reshard_status status = model_add_module(&adding, err);
    if (!status)
        status = add_items(reading, err);
    if (!status)
        status = add_copies_fact(reading, err);
    bool *wanted = status ? NULL : array_zeroed(torch_source_of(reading->source)->files[file].archive.storage_count, sizeof(*wanted));
    if (!status)
        status = wanted ? torch_source_hide_storages(reading->source, file, reading->items, reading->item_count, wanted, err)
                        : error_set_memory(err);
    free(wanted);
    free(adding.frozen);
    torch_views_release(&adding.views);
    table_release(&adding.shared);
    table_release(&adding.frozen_shapes);
    table_release(&adding.fragments);
    table_release(&adding.buffers);
    return status;
}
