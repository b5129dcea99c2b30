/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder zero/ of a universal checkpoint, which ds_to_universal.py makes: a folder NAME of each parameter, and in it a file of each
 * state, whole whatever the layout was that it comes from:
 *
 *   fp32.pt             the master
 *   exp_avg.pt, …       { param: the tensor, cat_dim, … }; of ZeRO 3 without tensor-parallel parts the bare tensor, flat
 *   step.pt             a number, or a tensor of none; of ZeRO 3 there is none
 *
 * Of ZeRO 1 and 2 what is not trained has a folder, too, with fp32.pt alone: a copy of the model file's tensor cast to fp32. That is taken
 * only where no model file has the tensor whole.
 */
#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"
#include "formats/source_root.h"

#include <inttypes.h>
#include <stdlib.h>

#define UNIVERSAL_STATES_MAX 64 /* of a parameter */

struct universal_state {
    struct str name;
    uint32_t file; /* of torch_source */
};

/* A folder below zero/. */
struct universal_entry {
    struct str name;
    uint32_t master; /* file of torch_source */
    uint32_t first, count; /* states besides */
};

struct deepspeed_universal {
    struct universal_entry *entries;
    uint32_t entry_count, entry_capacity;
    struct universal_state *states;
    uint32_t state_count, state_capacity;
    struct name_map names; /* of the entries, by number */
    uint32_t optimizer;
};

void deepspeed_universal_release(struct deepspeed_universal *universal)
{
    if (!universal)
        return;
    name_map_release(&universal->names);
    free(universal->entries);
    free(universal->states);
    free(universal);
}

uint32_t deepspeed_universal_optimizer(const struct deepspeed_universal *universal)
{
    return universal->optimizer;
}

static const struct universal_entry *entry_of(const struct deepspeed_reading *reading, struct str name)
{
    uint32_t number = name_map_find(&reading->universal->names, name);
    return number == NAME_NONE ? NULL : &reading->universal->entries[number];
}

/* ---- what a file has ---- */

/* The file's tensor: the object itself, or its member `param`; NULL: it has none. */
static const struct torch_tensor *universal_tensor(const struct deepspeed_reading *reading, uint32_t file, uint32_t *number)
{
    const struct value *root = deepspeed_root(reading, file);
    const struct value *node = root->tensor ? root : value_dict_get(root, "param");
    if (!node || !node->tensor)
        return NULL;
    *number = node->tensor - 1;
    const struct torch_tensor *tensor = &torch_source_of(reading->source)->files[file].archive.tensors[*number];
    return tensor->flags & TORCH_TENSOR_META ? NULL : tensor;
}

static reshard_status universal_master(const struct deepspeed_reading *reading, const struct universal_entry *entry,
                                       const struct torch_tensor **out, uint32_t *number, reshard_error *err)
{
    *out = universal_tensor(reading, entry->master, number);
    if (*out)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "there is no tensor in it, neither as `param` of a dict nor by itself");
    deepspeed_name_file(reading, entry->master, err);
    return RESHARD_ERR_FORMAT;
}

/* Adds the chunk that a file's tensor is of the catalog's `tensor`, which has as many elements: in its shape, or flat. */
static reshard_status universal_add_chunk(struct deepspeed_reading *reading, uint32_t file, uint32_t number, uint32_t tensor,
                                          reshard_error *err)
{
    struct source *source = reading->source;
    const struct catalog_tensor *owner = &source->catalog->tensors[tensor];
    struct torch_file *opened = &torch_source_of(source)->files[file];
    const struct torch_tensor *found = &opened->archive.tensors[number];
    struct catalog_chunk *chunk;
    if (shape_equal(owner->rank, catalog_vector_at(source->catalog, owner->shape), found->rank, found->shape)) {
        bool is_whole = catalog_tensor_bytes(source->catalog, owner) == opened->archive.storages[found->storage].bytes;
        return torch_source_add_chunk(source, tensor, NULL, file, number, is_whole && !opened->has_crc_in_chunk[found->storage], &chunk,
                                      err);
    }
    const struct value *root = deepspeed_root(reading, file);
    const struct value *node = root->tensor ? root : value_dict_get(root, "param");
    reshard_status status = deepspeed_flat_tensor(reading, file, node, "a state", &found, err);
    struct torch_run run = { .tensor = tensor, .file = file, .archive_tensor = number, .count = status ? 0 : found->shape[0] };
    return status || !run.count ? status : torch_source_add_run(source, &run, err);
}

/* ---- zero/ ---- */

static reshard_status universal_open(struct deepspeed_reading *reading, struct str name, uint32_t *out, reshard_error *err)
{
    char *copy = arena_copy(&reading->source->catalog->arena, name.data, name.size);
    return copy ? torch_source_open_file(reading->source, copy, 0, out, err) : error_set_memory(err);
}

static reshard_status universal_add_state(struct deepspeed_reading *reading, struct universal_entry *entry, struct str state,
                                          struct str path, reshard_error *err)
{
    struct deepspeed_universal *universal = reading->universal;
    uint32_t file;
    reshard_status status = universal_open(reading, path, &file, err);
    if (status)
        return status;
    if (str_is(state, "fp32")) {
        entry->master = file;
        return RESHARD_OK;
    }
    if (entry->count == UNIVERSAL_STATES_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "zero/%.*s has more than %d states", STR_ARG(entry->name), UNIVERSAL_STATES_MAX);
    if (!ARRAY_ROOM(universal->states, universal->state_count, universal->state_capacity))
        return error_set_memory(err);
    universal->states[universal->state_count++] = (struct universal_state){ state, file };
    entry->count++;
    return RESHARD_OK;
}

/* A folder of a parameter; path is its name from the store's root on. */
static reshard_status universal_add_entry(struct deepspeed_reading *reading, struct str name, struct str path, reshard_error *err)
{
    struct deepspeed_universal *universal = reading->universal;
    struct universal_entry entry = { .name = name, .master = TORCH_NONE, .first = universal->state_count };
    struct arena *arena = &reading->folder.arena;
    char *directory = arena_copy(arena, path.data, path.size);
    struct store_entry *files;
    size_t count = 0;
    reshard_status status = directory ? store_list(reading->source->store, directory, arena, &files, &count, err) : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(files[i].name);
        if (!files[i].is_directory && str_ends_with(base, ".pt"))
            status = universal_add_state(reading, &entry, (struct str){ base.data, base.size - 3 }, files[i].name, err);
    }
    if (!status && entry.master == TORCH_NONE) {
        status = error_set(err, RESHARD_ERR_FORMAT, "zero/%.*s has no fp32.pt, which is the parameter itself", STR_ARG(name));
        error_object(err, "%.*s", STR_ARG(path));
    }
    if (status)
        return status;
    if (name_map_intern(&universal->names, name, NULL) == NAME_NONE ||
        !ARRAY_ROOM(universal->entries, universal->entry_count, universal->entry_capacity))
        return error_set_memory(err);
    universal->entries[universal->entry_count++] = entry;
    return RESHARD_OK;
}

static reshard_status universal_list(struct deepspeed_reading *reading, reshard_error *err)
{
    struct arena *arena = &reading->folder.arena;
    char *directory = store_join(arena, reading->source->name, STR("zero"));
    struct store_entry *entries;
    size_t count = 0;
    reshard_status status = directory ? store_list(reading->source->store, directory, arena, &entries, &count, err) : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++) {
        struct str base = str_base_name(entries[i].name);
        if (entries[i].is_directory)
            status = universal_add_entry(reading, base, entries[i].name, err);
        else if (str_is(base, "optimizer_state.pt"))
            status = universal_open(reading, entries[i].name, &reading->universal->optimizer, err);
    }
    return status;
}

/* ---- parameters ---- */

/* The shape that the file has, which is the whole parameter's, unless it is flat. param_shapes has a part's, where the model lies in
 * several; rows that pad a vocabulary are left out of the file, and experts that other ranks have are in it. */
static reshard_status universal_set_shape(const struct deepspeed_reading *reading, struct deepspeed_parameter *parameter,
                                          const struct universal_entry *entry, reshard_error *err)
{
    const struct torch_tensor *master;
    const struct value *root = deepspeed_root(reading, entry->master);
    uint32_t number;
    reshard_status status = universal_master(reading, entry, &master, &number, err);
    if (status)
        return status;
    bool is_bare = root->tensor != 0, is_known = parameter->group != DEEPSPEED_NO_GROUP, is_cut = reading->folder.part_count > 0;
    bool may_differ =
        !is_bare && (!is_known || is_cut || value_dict_is_true(root, "vocab_tensor") || value_dict_is_true(root, "is_expert_param"));
    bool is_flat = is_bare && is_known && !is_cut && master->rank == 1 && master->shape[0] == parameter->elements;
    if (is_flat || (is_known && shape_equal(parameter->rank, parameter->shape, master->rank, master->shape)))
        return RESHARD_OK;
    if (may_differ && (!is_known || parameter->rank == master->rank)) {
        parameter->rank = master->rank;
        memcpy(parameter->shape, master->shape, (size_t)master->rank * sizeof(*master->shape));
        parameter->elements = box_volume(master->rank, master->shape);
        return RESHARD_OK;
    }
    char here[SHAPE_TEXT_MAX], said[SHAPE_TEXT_MAX];
    if (!is_known || (is_bare && is_cut))
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is a bare tensor, and no param_shapes says the shape of the whole",
                  STR_ARG(parameter->name));
    else
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s' has the shape %s in param_shapes, and %s here", STR_ARG(parameter->name),
                  shape_text(parameter->rank, parameter->shape, ",", said), shape_text(master->rank, master->shape, ",", here));
    deepspeed_name_file(reading, entry->master, err);
    return RESHARD_ERR_FORMAT;
}

/* Parameters of a group are of one optimizer's: what one has of them all have. */
static reshard_status check_states(const struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter,
                                   const struct universal_entry *entry, reshard_error *err)
{
    const struct deepspeed_parameter *first = &reading->parameters[reading->groups[parameter->group].first];
    const struct universal_entry *other = entry_of(reading, first->name);
    const struct universal_state *states = reading->universal->states;
    bool is_same = !other || other->count == entry->count;
    for (uint32_t i = 0; is_same && other && i < entry->count; i++)
        is_same = str_equal(states[entry->first + i].name, states[other->first + i].name);
    if (is_same)
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_FORMAT, "zero/%.*s has files of other states than zero/%.*s, of the same group of the optimizer",
              STR_ARG(parameter->name), STR_ARG(first->name));
    error_object(err, "zero/%.*s", STR_ARG(parameter->name));
    error_hint(err, "a file is missing there: copy the folder anew, or let ds_to_universal.py make it anew");
    return RESHARD_ERR_FORMAT;
}

static reshard_status universal_check_parameter(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter,
                                                reshard_error *err)
{
    const struct universal_entry *entry = entry_of(reading, parameter->name);
    if (!entry) {
        error_set(err, RESHARD_ERR_FORMAT, "there is no folder zero/%.*s, and param_shapes has the parameter", STR_ARG(parameter->name));
        error_object(err, "zero/%.*s", STR_ARG(parameter->name));
        return RESHARD_ERR_FORMAT;
    }
    reshard_status status = universal_set_shape(reading, parameter, entry, err);
    return status || parameter->group == DEEPSPEED_NO_GROUP ? status : check_states(reading, parameter, entry, err);
}

/* Parameters that are trained, as their states say, and that no model file names. */
static reshard_status universal_add_unnamed(struct deepspeed_reading *reading, reshard_error *err)
{
    const struct deepspeed_universal *universal = reading->universal;
    for (uint32_t i = 0; i < universal->entry_count; i++) {
        const struct universal_entry *entry = &universal->entries[i];
        bool was_new = false;
        if (!entry->count || name_map_find(&reading->names, entry->name) != NAME_NONE)
            continue;
        if (name_map_intern(&reading->names, entry->name, &was_new) == NAME_NONE ||
            !ARRAY_ROOM(reading->parameters, reading->parameter_count, reading->parameter_capacity))
            return error_set_memory(err);
        reading->parameters[reading->parameter_count++] =
            (struct deepspeed_parameter){ .name = entry->name, .group = DEEPSPEED_NO_GROUP, .tensor = CATALOG_NONE };
    }
    return RESHARD_OK;
}

reshard_status deepspeed_read_universal(struct deepspeed_reading *reading, reshard_error *err)
{
    reading->universal = calloc(1, sizeof(*reading->universal));
    if (!reading->universal)
        return error_set_memory(err);
    reading->universal->optimizer = TORCH_NONE;
    reading->origin = &deepspeed_origin_universal;
    reshard_status status = universal_list(reading, err);
    if (!status)
        status = deepspeed_read_shapes(reading, err);
    if (!status)
        status = universal_add_unnamed(reading, err);
    for (uint32_t i = 0; !status && i < reading->parameter_count; i++)
        status = universal_check_parameter(reading, &reading->parameters[i], err);
    return status;
}

/* ---- what is listed ---- */

static reshard_status universal_add_master(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter, struct str key,
                                           uint32_t *out, reshard_error *err)
{
    const struct universal_entry *entry = entry_of(reading, parameter->name);
    const struct torch_tensor *master;
    uint32_t number;
    reshard_status status = universal_master(reading, entry, &master, &number, err);
    if (!status)
        status = deepspeed_add_tensor(reading, key, master->dtype, parameter->rank, parameter->shape, true, out, err);
    return status ? status : universal_add_chunk(reading, entry->master, number, *out, err);
}

/* A state that is a tensor: of the parameter's shape, or a number of its own. */
static reshard_status universal_make_tensor(struct deepspeed_making *making, const struct deepspeed_parameter *parameter,
                                            const struct universal_state *state, const struct torch_tensor *found, uint32_t number,
                                            struct value **out, reshard_error *err)
{
    bool is_number = found->rank == 0;
    int64_t elements = box_volume(found->rank, found->shape);
    uint32_t tensor;
    if (!is_number && elements != parameter->elements) {
        error_set(err, RESHARD_ERR_FORMAT, "there are %" PRId64 " elements in it, and %" PRId64 " in the parameter", elements,
                  parameter->elements);
        deepspeed_name_file(making->reading, state->file, err);
        return RESHARD_ERR_FORMAT;
    }
    reshard_status status = deepspeed_add_whole(making, parameter, state->name, found->dtype, is_number ? 0 : parameter->rank,
                                                parameter->shape, &tensor, out, err);
    return status ? status : universal_add_chunk(making->reading, state->file, number, tensor, err);
}

/* A state that is no tensor, which step is of some optimizers. */
static reshard_status universal_make_number(struct deepspeed_making *making, const struct universal_state *state, struct value **out,
                                            reshard_error *err)
{
    const struct value_graph *graph = torch_source_of(making->reading->source)->files[state->file].graph;
    const struct value *root = graph->root;
    bool is_number = root->kind == VALUE_INT || root->kind == VALUE_FLOAT || root->kind == VALUE_BOOL || root->kind == VALUE_NONE;
    if (is_number) {
        *out = value_copy(making->graph, root, graph->count);
        return *out ? RESHARD_OK : error_set_memory(err);
    }
    error_set(err, RESHARD_ERR_FORMAT, "it is neither a tensor nor a number, as a state of a parameter is");
    deepspeed_name_file(making->reading, state->file, err);
    return RESHARD_ERR_FORMAT;
}

static reshard_status universal_make_state(struct deepspeed_making *making, const struct deepspeed_parameter *parameter,
                                           struct value **out, reshard_error *err)
{
    struct deepspeed_reading *reading = making->reading;
    const struct universal_entry *entry = entry_of(reading, parameter->name);
    struct value **made = arena_array(&making->graph->arena, (size_t)entry->count * 2, sizeof(*made));
    reshard_status status = made ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < entry->count; i++) {
        const struct universal_state *state = &reading->universal->states[entry->first + i];
        uint32_t number;
        const struct torch_tensor *found = universal_tensor(reading, state->file, &number);
        made[2 * i] = value_new_str(making->graph, state->name);
        if (!made[2 * i])
            status = error_set_memory(err);
        else if (found)
            status = universal_make_tensor(making, parameter, state, found, number, &made[2 * i + 1], err);
        else
            status = universal_make_number(making, state, &made[2 * i + 1], err);
    }
    if (!status && !(*out = value_new_list(making->graph, VALUE_DICT, made, (size_t)entry->count * 2)))
        status = error_set_memory(err);
    return status;
}

const struct deepspeed_origin deepspeed_origin_universal = { universal_add_master, universal_make_state };

bool deepspeed_universal_differs(const struct deepspeed_reading *reading, struct str name, const struct torch_tensor *tensor)
{
    const struct universal_entry *entry = entry_of(reading, name);
    uint32_t number;
    const struct torch_tensor *master = entry ? universal_tensor(reading, entry->master, &number) : NULL;
    return master && !shape_equal(master->rank, master->shape, tensor->rank, tensor->shape);
}

reshard_status deepspeed_universal_add_rest(struct deepspeed_reading *reading, reshard_error *err)
{
    const struct deepspeed_universal *universal = reading->universal;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < universal->entry_count; i++) {
        const struct universal_entry *entry = &universal->entries[i];
        const struct torch_tensor *master;
        uint32_t number, tensor;
        if (deepspeed_find_tensor(reading, entry->name) != CATALOG_NONE)
            continue;
        status = universal_master(reading, entry, &master, &number, err);
        if (!status)
            status = deepspeed_add_tensor(reading, entry->name, master->dtype, master->rank, master->shape, false, &tensor, err);
        if (!status)
            status = universal_add_chunk(reading, entry->master, number, tensor, err);
    }
    return status;
}
