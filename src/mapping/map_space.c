/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_space.h"

#include <stdlib.h>

#include "base/array.h"

static int64_t *copy_vector(struct arena *arena, const int64_t *values, int count)
{
    int64_t *copy = arena_array(arena, (size_t)count, sizeof(*copy));
    if (copy && count)
        memcpy(copy, values, (size_t)count * sizeof(*copy));
    return copy;
}

static reshard_status copy_shards(struct map_space *space, struct map_tensor *tensor, const struct map_shard *shards, uint32_t count,
                                  reshard_error *err)
{
    static const int64_t zeros[RANK_MAX];
    struct map_shard whole = { zeros, tensor->shape };
    if (!shards || !count) {
        shards = &whole;
        count = 1;
    }
    struct map_shard *copies = arena_array(&space->arena, count, sizeof(*copies));
    if (!copies)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        int axis;
        if (!box_check(tensor->rank, shards[i].start, shards[i].extent, tensor->shape, &axis))
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': shard %u lies outside the shape on axis %d", STR_ARG(tensor->key), i,
                             axis);
        copies[i].start = copy_vector(&space->arena, shards[i].start, tensor->rank);
        copies[i].extent = copy_vector(&space->arena, shards[i].extent, tensor->rank);
        if (!copies[i].start || !copies[i].extent)
            return error_set_memory(err);
    }
    tensor->shards = copies;
    tensor->shard_count = count;
    return RESHARD_OK;
}

/* Number of the weight that a key belongs to, made if it is new. */
static uint32_t map_space_weight_of_here(struct map_space *space, struct str name)
{
    bool is_new;
    if (!ARRAY_RESERVE(space->weights, space->names.count + 1, space->weight_capacity))
        return MAP_NONE;
    uint32_t weight = name_map_intern(&space->names, name, &is_new);
    if (weight != NAME_NONE && is_new) {
        space->weights[weight].name = name_map_at(&space->names, weight);
        space->weights[weight].is_state = false;
        for (int i = 0; i < MAP_STATE_COUNT; i++)
            space->weights[weight].tensors[i] = MAP_NONE;
    }
    return weight;
}

reshard_status map_space_add(struct map_space *space, struct str key, enum dtype dtype, int rank, const int64_t *shape,
                             const struct map_shard *shards, uint32_t shard_count, reshard_error *err)
{
    bool is_new;
    int64_t volume;
    struct str name;
    if (rank < 0 || rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %d axes, at most %d are supported", STR_ARG(key), rank, RANK_MAX);
    if (!shape_volume(rank, shape, &volume))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': the shape is negative or too large", STR_ARG(key));
    if (!ARRAY_RESERVE(space->tensors, space->keys.count + 1, space->tensor_capacity))
        return error_set_memory(err);
    uint32_t index = name_map_intern(&space->keys, key, &is_new);
    if (index == NAME_NONE)
        return error_set_memory(err);
    if (!is_new)
        return error_set(err, RESHARD_ERR_FORMAT, "two tensors have the key '%.*s'", STR_ARG(key));
    struct map_tensor tensor = { .key = name_map_at(&space->keys, index), .dtype = dtype, .rank = rank };
    tensor.state = map_state_of(tensor.key, &name);
    tensor.name_size = (uint32_t)name.size;
    tensor.weight = map_space_weight_of_here(space, name);
    tensor.shape = copy_vector(&space->arena, shape, rank);
    if (tensor.weight == MAP_NONE || !tensor.shape)
        return error_set_memory(err);
    reshard_status status = copy_shards(space, &tensor, shards, shard_count, err);
    if (status)
        return status;
    space->tensors[index] = tensor;
    space->weights[tensor.weight].tensors[tensor.state] = index;
    return RESHARD_OK;
}

static bool map_space_is_empty(const struct map_space *space, uint32_t weight)
{
    for (int state = 0; state < MAP_STATE_COUNT; state++) {
        if (space->weights[weight].tensors[state] != MAP_NONE)
            return false;
    }
    return true;
}

static int compare_weights(const void *a, const void *b, void *context)
{
    const struct map_space *space = context;
    return str_compare(space->weights[*(const uint32_t *)a].name, space->weights[*(const uint32_t *)b].name);
}

/* The weight itself, if there is a tensor of it. */
static uint32_t find_weight(const struct map_space *space, const struct str parts[3], struct buffer *text)
{
    if (text->failed)
        return MAP_NONE;
    buffer_clear(text);
    for (int i = 0; i < 3; i++)
        buffer_append_str(text, parts[i]);
    uint32_t weight = text->failed ? MAP_NONE : map_space_find(space, buffer_str(text));
    return weight == MAP_NONE || space->weights[weight].tensors[MAP_STATE_WEIGHT] == MAP_NONE ? MAP_NONE : weight;
}

/* The weight that a reading of a key means. States often lack the name of the container that the weights are in. */
static uint32_t weight_of_reading(const struct map_space *space, const struct map_state_key *reading, struct buffer *text)
{
    static const struct str containers[] = { { "model.", 6 }, { "module.", 7 }, { "state_dict.", 11 } };
    size_t parent = reading->before.size; /* "app." of "app.optim." */
    uint32_t weight = find_weight(space, (struct str[3]){ { "", 0 }, { "", 0 }, reading->name }, text);
    while (parent && reading->before.data[parent - 1] == '.')
        parent--;
    while (parent && reading->before.data[parent - 1] != '.')
        parent--;
    for (size_t i = 0; i < sizeof(containers) / sizeof(containers[0]) && weight == MAP_NONE; i++) {
        weight = find_weight(space, (struct str[3]){ { reading->before.data, parent }, containers[i], reading->name }, text);
        if (weight == MAP_NONE && parent)
            weight = find_weight(space, (struct str[3]){ { "", 0 }, containers[i], reading->name }, text);
    }
    return weight;
}

static bool has_shape_of(const struct map_tensor *a, const struct map_tensor *b)
{
    return a->rank == b->rank && (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(*a->shape)) == 0);
}

/* Makes a tensor the state of another weight, if that is what its key says. */
static void attach_state(struct map_space *space, uint32_t index, struct buffer *text)
{
    struct map_tensor *tensor = &space->tensors[index];
    struct map_state_key reading;
    for (int i = 0; map_state_reading(tensor->key, i, &reading); i++) {
        uint32_t weight = weight_of_reading(space, &reading, text);
        /* Wrappers of modules stand in front of a state's weight more often than in front of the weight. */
        while (weight == MAP_NONE && str_starts_with(reading.name, "module.") && reading.name.size > strlen("module.")) {
            reading.name = (struct str){ reading.name.data + strlen("module."), reading.name.size - strlen("module.") };
            weight = weight_of_reading(space, &reading, text);
        }
        if (weight == MAP_NONE || weight == tensor->weight || space->weights[weight].tensors[reading.state] != MAP_NONE)
            continue;
        const struct map_tensor *own = &space->tensors[space->weights[weight].tensors[MAP_STATE_WEIGHT]];
        if (own->state != MAP_STATE_WEIGHT || (map_state_is_shaped[reading.state] && !has_shape_of(tensor, own)))
            continue;
        space->weights[tensor->weight].tensors[MAP_STATE_WEIGHT] = MAP_NONE;
        space->weights[tensor->weight].is_state = map_space_is_empty(space, tensor->weight);
        space->weights[weight].tensors[reading.state] = index;
        tensor->weight = weight;
        tensor->state = reading.state;
        tensor->name_at = (uint32_t)(reading.name.data - tensor->key.data);
        tensor->name_size = (uint32_t)reading.name.size;
        return;
    }
}

static reshard_status attach_states(struct map_space *space, reshard_error *err)
{
    struct buffer text = { 0 };
    for (uint32_t i = 0; i < map_space_tensor_count(space); i++) {
        if (space->tensors[i].state == MAP_STATE_WEIGHT)
            attach_state(space, i, &text);
    }
    bool failed = text.failed;
    buffer_release(&text);
    return failed ? error_set_memory(err) : RESHARD_OK;
}

reshard_status map_space_seal(struct map_space *space, reshard_error *err)
{
    uint32_t count = map_space_weight_count(space);
    reshard_status status = attach_states(space, err);
    if (status)
        return status;
    space->sorted = arena_array(&space->arena, count, sizeof(*space->sorted));
    if (!space->sorted)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        if (!space->weights[i].is_state)
            space->sorted[space->sorted_count++] = i;
    }
    if (space->sorted_count)
        qsort_r(space->sorted, space->sorted_count, sizeof(*space->sorted), compare_weights, space);
    return map_space_outline(space, err);
}

bool map_space_state_key(const struct map_space *space, const struct map_tensor *tensor, struct str name, struct buffer *out)
{
    struct str own = space->weights[tensor->weight].name, lacking = { own.data, own.size - tensor->name_size };
    bool lacks = name.size > lacking.size && (lacking.size == 0 || memcmp(name.data, lacking.data, lacking.size) == 0);
    size_t behind = (size_t)tensor->name_at + tensor->name_size;
    buffer_append(out, tensor->key.data, tensor->name_at);
    buffer_append(out, name.data + (lacks ? lacking.size : 0), name.size - (lacks ? lacking.size : 0));
    buffer_append(out, tensor->key.data + behind, tensor->key.size - behind);
    return !out->failed;
}

struct str map_space_weight_of(const struct map_space *space, struct str name)
{
    struct str base;
    if (map_state_of(name, &base) != MAP_STATE_WEIGHT)
        return base;
    uint32_t tensor = name_map_find(&space->keys, name);
    if (tensor == NAME_NONE || space->tensors[tensor].state == MAP_STATE_WEIGHT)
        return (struct str){ 0 };
    return space->weights[space->tensors[tensor].weight].name;
}

static reshard_status add_catalog_tensor(struct map_space *space, const struct catalog *catalog, const struct catalog_tensor *tensor,
                                         reshard_error *err)
{
    struct map_shard *shards = tensor->chunk_count ? array_zeroed(tensor->chunk_count, sizeof(*shards)) : NULL;
    if (tensor->chunk_count && !shards)
        return error_set_memory(err);
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + i];
        shards[i] = (struct map_shard){ catalog_vector_at(catalog, chunk->start), catalog_vector_at(catalog, chunk->extent) };
    }
    reshard_status status = map_space_add(space, tensor->key, tensor->dtype, tensor->rank, catalog_vector_at(catalog, tensor->shape),
                                          shards, tensor->chunk_count, err);
    free(shards);
    return status;
}

reshard_status map_space_from_catalog(const struct catalog *catalog, struct map_space *out, reshard_error *err)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        reshard_status status = add_catalog_tensor(out, catalog, &catalog->tensors[i], err);
        if (status)
            return status;
    }
    return map_space_seal(out, err);
}

uint32_t map_space_find(const struct map_space *space, struct str name)
{
    uint32_t found = name_map_find(&space->names, name);
    return found == NAME_NONE || space->weights[found].is_state ? MAP_NONE : found;
}

const struct map_tensor *map_space_shaped(const struct map_space *space, uint32_t weight)
{
    for (int state = 0; state < MAP_STATE_COUNT; state++) {
        uint32_t tensor = space->weights[weight].tensors[state];
        if (map_state_is_shaped[state] && tensor != MAP_NONE)
            return &space->tensors[tensor];
    }
    return NULL;
}

/* Whether name is below the prefix, has it, or is above all names that have it. */
static int compare_prefix(struct str name, struct str prefix)
{
    size_t size = name.size < prefix.size ? name.size : prefix.size;
    int order = size ? memcmp(name.data, prefix.data, size) : 0;
    return order ? order : name.size < prefix.size ? -1 : 0;
}

void map_space_prefix(const struct map_space *space, struct str prefix, uint32_t *first, uint32_t *end)
{
    uint32_t low = 0, high = space->sorted_count, count = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_prefix(space->weights[space->sorted[middle]].name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *first = low;
    high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_prefix(space->weights[space->sorted[middle]].name, prefix) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    *end = low;
}

#define NEAREST_NAME_BYTES_MAX 200
#define NEAREST_NAMES_MAX 20000

/* Edits (insert, delete, replace) between two names; stops above limit. */
static unsigned edit_distance(struct str a, struct str b, unsigned limit)
{
    unsigned row[NEAREST_NAME_BYTES_MAX + 1];
    while (a.size && b.size && a.data[0] == b.data[0]) {
        a = (struct str){ a.data + 1, a.size - 1 };
        b = (struct str){ b.data + 1, b.size - 1 };
    }
    while (a.size && b.size && a.data[a.size - 1] == b.data[b.size - 1])
        a.size--, b.size--;
    for (size_t j = 0; j <= b.size; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= a.size; i++) {
        unsigned corner = row[0], best;
        row[0] = best = (unsigned)i;
        for (size_t j = 1; j <= b.size; j++) {
            unsigned replaced = corner + (a.data[i - 1] != b.data[j - 1]);
            corner = row[j];
            unsigned moved = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replaced < moved ? replaced : moved;
            best = row[j] < best ? row[j] : best;
        }
        if (best > limit)
            return best;
    }
    return row[b.size];
}

struct str map_space_nearest(const struct map_space *space, struct str name)
{
    struct str found = { 0 };
    unsigned best = (unsigned)(name.size / 3 < 8 ? name.size / 3 : 8) + 1;
    uint32_t count = map_space_weight_count(space);
    if (name.size > NEAREST_NAME_BYTES_MAX)
        return found;
    for (uint32_t i = 0; i < count && i < NEAREST_NAMES_MAX && best > 1; i++) {
        struct str other = space->weights[i].name;
        size_t difference = other.size > name.size ? other.size - name.size : name.size - other.size;
        if (other.size > NEAREST_NAME_BYTES_MAX || difference >= best)
            continue;
        unsigned distance = edit_distance(name, other, best);
        if (distance < best) {
            best = distance;
            found = other;
        }
    }
    return found;
}

void map_space_release(struct map_space *space)
{
    name_map_release(&space->keys);
    name_map_release(&space->names);
    name_map_release(&space->outlines);
    arena_release(&space->arena);
    free(space->tensors);
    free(space->weights);
    *space = (struct map_space){ 0 };
}
