/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_relate.h"

#include "base/array.h"
#include "parallel/flat_buffer_rules.h"
#include "parallel/flat_state.h"
#include "parallel/state_keys.h"
#include "parallel/vector_chunks.h"

#include <inttypes.h>
#include <stdlib.h>

#define SIZES_OBJECT "per_bucket_numel_unpadded/shard_0_1" /* for messages */
#define STATES_MAX 64          /* kinds of state of one optimizer */

/* A bucket's vector, taken from its key. */
struct bucket {
    int64_t chain, group, buffer, index;
    enum dtype param_dtype, grad_dtype;
    struct str state;
    uint32_t tensor;
    int64_t count;
    uint32_t first_part, part_count;
};

struct relating {
    struct catalog *catalog;
    struct parallel_model model;
    const struct optimizer_object *objects;
    uint32_t object_count;
    struct bucket *buckets;    /* by chain, group, state, buffer, index */
    uint32_t bucket_count;
    struct vector_part *parts; /* of all buckets, in their order and ascending */
    uint8_t *is_bucket;        /* by tensor of the catalog, as it was at first */
    uint32_t tensor_count;
    struct str states[STATES_MAX];
    uint32_t state_count;
    struct name_map stored;    /* keys that the catalog has beside buckets */
    uint32_t *state_tensors;   /* [state][weight]: 1 + tensor */
};

/* ---- names ---- */

static bool read_bucket(struct str key, struct bucket *out)
{
    struct state_key read;
    if (!state_key_read(key, &read) || read.kind != STATE_KEY_BUCKET)
        return false;
    out->chain = read.chain;
    out->group = read.group;
    out->buffer = read.buffer;
    out->index = read.bucket;
    out->param_dtype = read.param_dtype;
    out->grad_dtype = read.grad_dtype;
    out->state = read.state;
    return true;
}

bool optimizer_state_key(struct arena *arena, struct str key, bool is_flattened, struct str *out)
{
    struct state_key read;
    *out = key;
    if (!state_key_read(key, &read))
        return true;
    *out = read.plain;
    if (!is_flattened || read.kind != STATE_KEY_PARAMETER || !str_is(read.state, STATE_PLAIN_MASTER))
        return true;
    const struct str text = ARENA_JOIN(arena, STR(STATE_KEY_PREFIX STATE_MASTER "."), read.parameter);
    if (text.data)
        *out = text;
    return text.data != NULL;
}

/* ---- buckets ---- */

static int mcore_relate_compare(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_bucket(const void *a, const void *b)
{
    const struct bucket *x = a, *y = b;
    int order = mcore_relate_compare(x->chain, y->chain);
    order = order ? order : mcore_relate_compare(x->group, y->group);
    order = order ? order : str_compare(x->state, y->state);
    order = order ? order : mcore_relate_compare(x->buffer, y->buffer);
    return order ? order : mcore_relate_compare(x->index, y->index);
}

static reshard_status list_buckets(struct relating *relating, reshard_error *err)
{
    struct catalog *catalog = relating->catalog;
    relating->tensor_count = catalog->tensor_count;
    relating->is_bucket = array_zeroed(catalog->tensor_count, 1);
    relating->buckets = array_zeroed(catalog->tensor_count, sizeof(*relating->buckets));
    if (!relating->is_bucket || !relating->buckets)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct bucket *bucket = &relating->buckets[relating->bucket_count];
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        if (!read_bucket(tensor->key, bucket)) {
            if (name_map_intern(&relating->stored, tensor->key, NULL) == NAME_NONE)
                return error_set_memory(err);
            continue;
        }
        if (tensor->rank != 1)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has %d axes, expected a vector", STR_ARG(tensor->key), tensor->rank);
        bucket->tensor = i;
        bucket->count = catalog_vector_at(catalog, tensor->shape)[0];
        relating->is_bucket[i] = 1;
        relating->bucket_count++;
    }
    qsort(relating->buckets, relating->bucket_count, sizeof(*relating->buckets), by_bucket);
    return RESHARD_OK;
}

static int by_start(const void *a, const void *b)
{
    return mcore_relate_compare(((const struct vector_part *)a)->start, ((const struct vector_part *)b)->start);
}

/* The chunks of every bucket. They are not grouped by tensor yet: counted first, then dealt out. */
static reshard_status mcore_relate_list_parts(struct relating *relating, reshard_error *err)
{
    const struct catalog *catalog = relating->catalog;
    uint32_t *bucket_of = array_zeroed(relating->tensor_count, sizeof(*bucket_of)), total = 0;
    if (!bucket_of)
        return error_set_memory(err);
    for (uint32_t i = 0; i < relating->bucket_count; i++)
        bucket_of[relating->buckets[i].tensor] = i;
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        relating->buckets[bucket_of[catalog->chunks[i].tensor]].part_count += relating->is_bucket[catalog->chunks[i].tensor];
    for (uint32_t i = 0; i < relating->bucket_count; i++) {
        relating->buckets[i].first_part = total;
        total += relating->buckets[i].part_count;
        relating->buckets[i].part_count = 0;
    }
    relating->parts = array_zeroed(total, sizeof(*relating->parts));
    for (uint32_t i = 0; relating->parts && i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        if (!relating->is_bucket[chunk->tensor])
            continue;
        struct bucket *bucket = &relating->buckets[bucket_of[chunk->tensor]];
        const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
        struct vector_part *part = &relating->parts[bucket->first_part + bucket->part_count++];
        *part = (struct vector_part){
            .start = catalog_vector_at(catalog, chunk->start)[0],
            .count = catalog_vector_at(catalog, chunk->extent)[0],
            .object = chunk->object,
            .offset = chunk->offset,
            .bytes = chunk->bytes,
            .flags = chunk->flags,
            .writer = chunk->writer,
        };
        /* A rank's part of a bucket that was flattened: a run of it. */
        if (layout && layout->flat_count >= 0) {
            part->start += layout->flat_begin;
            part->count = layout->flat_count;
        }
        if ((layout && (layout->codec != CODEC_NONE || layout->chain || layout->strides != CATALOG_NONE)) || chunk->driver_data) {
            error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is compressed, and not related to parameters",
                      STR_ARG(catalog->tensors[chunk->tensor].key));
            free(bucket_of);
            return RESHARD_ERR_UNSUPPORTED;
        }
    }
    free(bucket_of);
    if (!relating->parts)
        return error_set_memory(err);
    for (uint32_t i = 0; i < relating->bucket_count; i++)
        qsort(relating->parts + relating->buckets[i].first_part, relating->buckets[i].part_count, sizeof(*relating->parts), by_start);
    return RESHARD_OK;
}

/* ---- logical tensors ---- */

/* The tensor of a weight's state, added on first use. */
static reshard_status mcore_relate_state_tensor(struct relating *relating, struct str state, uint32_t weight, enum dtype dtype,
                                                uint32_t *out, reshard_error *err)
{
    struct catalog *catalog = relating->catalog;
    uint32_t index = 0;
    while (index < relating->state_count && !str_equal(relating->states[index], state))
        index++;
    if (index == STATES_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "an optimizer with more than %d kinds of state", STATES_MAX);
    if (index == relating->state_count) {
        uint32_t *grown = reallocarray(relating->state_tensors, ((size_t)index + 1) * ((size_t)relating->tensor_count + 1), sizeof(*grown));
        if (!grown)
            return error_set_memory(err);
        memset(grown + (size_t)index * relating->tensor_count, 0, (size_t)relating->tensor_count * sizeof(*grown));
        relating->state_tensors = grown;
        relating->states[relating->state_count++] = state;
    }
    uint32_t *slot = &relating->state_tensors[(size_t)index * relating->tensor_count + weight];
    if (*slot) {
        *out = *slot - 1;
        return catalog->tensors[*out].dtype == dtype
                   ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_FORMAT, "state '%.*s' has several dtypes", STR_ARG(state));
    }
    const struct catalog_tensor *tensor = &catalog->tensors[weight];
    int64_t shape[RANK_MAX];
    memcpy(shape, catalog_vector_at(catalog, tensor->shape), (size_t)tensor->rank * sizeof(*shape));
    const struct str key = ARENA_JOIN(&catalog->arena, STR(STATE_KEY_PREFIX), state, STR("."), tensor->key);
    if (!key.data)
        return error_set_memory(err);
    if (name_map_find(&relating->stored, key) != NAME_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is stored by bucket and by parameter: which of the two counts is not known",
                         STR_ARG(key));
    reshard_status status = catalog_add_tensor(catalog, key, dtype, tensor->rank, shape, out, err);
    if (!status)
        *slot = *out + 1;
    return status;
}

/* ---- one group of data-parallel ranks ---- */

static bool has_experts(const struct parallel_model *model)
{
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->parameters[i].is_expert)
            return true;
    }
    return false;
}

/* Which ranks share the state, and whether it is the experts'. */
static reshard_status group_place(const struct parallel_model *model, int64_t chain, int64_t group, bool *is_expert, struct rank_place *out,
                                  reshard_error *err)
{
    const struct parallel_layout *layout = &model->context.layout;
    *out = (struct rank_place){ 0 };
    *is_expert = chain == 1;
    if (chain > 1 || (chain == 1 && !has_experts(model)))
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "optimizer %" PRId64 " of several: known are 0, and 1 for the experts of an expert-parallel run", chain);
    if (*is_expert) {
        out->etp = group % layout->etp;
        out->ep = group / layout->etp % layout->ep;
        out->pp = group / layout->etp / layout->ep;
    } else {
        out->tp = group % layout->tp;
        out->etp = out->tp % layout->etp; /* EP = 1: experts are among the others */
        out->pp = group / layout->tp;
    }
    if (out->pp >= layout->pp)
        return error_set(err, RESHARD_ERR_FORMAT, "data-parallel group %" PRId64 " is beyond tp=%" PRId64 ", pp=%" PRId64 ", ep=%" PRId64,
                         group, layout->tp, layout->pp, layout->ep);
    return RESHARD_OK;
}

static void mcore_relate_set_gradients(struct rank_parameters *rank, const struct bucket *buckets, uint32_t count)
{
    for (uint32_t i = 0; i < rank->count; i++) {
        for (uint32_t k = 0; k < count; k++) {
            if (buckets[k].param_dtype == rank->parameters[i].param_dtype)
                rank->parameters[i].grad_dtype = buckets[k].grad_dtype;
        }
    }
}

/* [{pair of dtypes: [elements of each bucket]}, …], a dict for each buffer, in lists of one: the numbers in order. */
static reshard_status read_sizes(const struct value *value, const struct bucket *buckets, uint32_t count, int64_t *out, reshard_error *err)
{
    uint32_t found = 0;
    while (value->kind == VALUE_LIST && value->list.count == 1 && value->list.items[0]->kind == VALUE_LIST)
        value = value->list.items[0];
    for (size_t b = 0; value->kind == VALUE_LIST && b < value->list.count; b++) {
        const struct value *buffer = value->list.items[b];
        const struct value *sizes = buffer->kind == VALUE_DICT && buffer->list.count == 2 ? buffer->list.items[1] : NULL;
        for (size_t i = 0; sizes && sizes->kind == VALUE_LIST && i < sizes->list.count; i++, found++) {
            bool is_next = found < count && buckets[found].buffer == (int64_t)b && buckets[found].index == (int64_t)i;
            if (!is_next || !value_as_int(sizes->list.items[i], &out[found]) || out[found] < 0 || out[found] > buckets[found].count)
                return error_set(err, RESHARD_ERR_FORMAT, "'%s' says other buckets than there are", SIZES_OBJECT);
        }
    }
    return found == count
               ? RESHARD_OK
               : error_set(err, RESHARD_ERR_FORMAT, "'%s' says %" PRIu32 " buckets, there are %" PRIu32, SIZES_OBJECT, found, count);
}

/* Where an object says how large the buckets are without the padding at their ends, which fully_sharded_bucket_space stores too, it counts.
 */
static reshard_status take_sizes(const struct relating *relating, const struct bucket *buckets, uint32_t count, int64_t *per_bucket,
                                 reshard_error *err)
{
    for (uint32_t i = 0; i < relating->object_count; i++) {
        struct state_key name;
        bool is_one = state_key_read(relating->objects[i].name, &name) && name.kind == STATE_KEY_UNPADDED_SIZES &&
                      name.chain == buckets->chain && name.group == buckets->group;
        if (is_one)
            return read_sizes(relating->objects[i].root, buckets, count, per_bucket, err);
    }
    for (uint32_t i = 0; i < count; i++)
        per_bucket[i] = buckets[i].count;
    return RESHARD_OK;
}

/* The sizes of the buckets of one state, which must be numbered without gaps. */
static reshard_status measure_buckets(const struct relating *relating, const struct bucket *buckets, uint32_t count, int64_t *per_bucket,
                                      int64_t *per_buffer, uint32_t *buffer_count, reshard_error *err)
{
    reshard_status status = take_sizes(relating, buckets, count, per_bucket, err);
    if (status)
        return status;
    *buffer_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        bool is_next_buffer = i == 0 || buckets[i].buffer != buckets[i - 1].buffer;
        int64_t wanted = is_next_buffer ? 0 : buckets[i - 1].index + 1,
                wanted_buffer = is_next_buffer ? *buffer_count : (int64_t)*buffer_count - 1;
        if (buckets[i].index != wanted || buckets[i].buffer != wanted_buffer)
            return error_set(err, RESHARD_ERR_FORMAT, "state '%.*s': bucket %" PRId64 " of buffer %" PRId64 " is missing",
                             STR_ARG(buckets[i].state), wanted, wanted_buffer);
        if (is_next_buffer)
            per_buffer[(*buffer_count)++] = 0;
        if (__builtin_add_overflow(per_buffer[*buffer_count - 1], per_bucket[i], &per_buffer[*buffer_count - 1]))
            return error_set(err, RESHARD_ERR_FORMAT, "the sizes of the buckets overflow");
    }
    return RESHARD_OK;
}

static reshard_status emit_state(struct relating *relating, const struct flat_buffers *made, const struct rank_parameters *rank,
                                 const struct rank_place *place, const struct bucket *buckets, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < made->place_count && !status; i++) {
        const struct flat_place *spot = &made->places[i];
        const struct bucket *bucket = &buckets[spot->bucket];
        const struct model_parameter *parameter = &relating->model.parameters[rank->indices[spot->parameter]];
        enum dtype dtype = relating->catalog->tensors[bucket->tensor].dtype;
        const struct stored_vector vector = {
            .dtype = dtype, .count = bucket->count, .parts = relating->parts + bucket->first_part, .part_count = bucket->part_count
        };
        uint32_t tensor;
        status = mcore_relate_state_tensor(relating, bucket->state, parameter->tensor, dtype, &tensor, err);
        if (!status)
            status = vector_chunks_add(relating->catalog, tensor, parameter, place, &vector,
                                       spot->start - made->buckets[spot->bucket].start, err);
    }
    return status;
}

/* One state of one group: count buckets. */
static reshard_status relate_buckets(struct relating *relating, const struct bucket *buckets, uint32_t count, reshard_error *err)
{
    struct rank_parameters rank = { 0 };
    struct flat_buffers made = { 0 };
    struct flat_buffer_rules rules;
    struct training_run run;
    struct rank_place place;
    uint32_t buffer_count;
    bool is_expert, changed;
    int64_t *per_bucket = array_zeroed(count, sizeof(*per_bucket)), *per_buffer = array_zeroed(count, sizeof(*per_buffer));
    reshard_status status = per_bucket && per_buffer ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = group_place(&relating->model, buckets->chain, buckets->group, &is_expert, &place, err);
    if (!status)
        status = measure_buckets(relating, buckets, count, per_bucket, per_buffer, &buffer_count, err);
    if (!status)
        status = rank_parameters_make(&relating->model, relating->catalog, &place, is_expert, &rank, err);
    if (!status)
        status = rank_training_run(&relating->model, relating->catalog, &place, &run, err);
    if (!status) {
        mcore_relate_set_gradients(&rank, buckets, count);
        status = flat_buffer_rules_of(&run, rank.parameters, rank.count, is_expert, &rules, err);
    }
    if (!status) {
        const struct flat_sizes sizes = {
            .unpadded = per_buffer, .buffer_count = buffer_count, .per_bucket_unpadded = per_bucket, .bucket_count = count
        };
        status = flat_buffers_match(rank.parameters, rank.count, is_expert, &rules, &sizes, &made, &changed, err);
    }
    for (uint32_t i = 0; !status && i < made.buffer_count; i++) {
        const struct bucket *first = &buckets[made.buffers[i].first_bucket];
        if (made.buffers[i].param_dtype != first->param_dtype)
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "buffer %" PRIu32 " is of parameters of dtype %s, in the model they have %s",
                               i, dtype_info(first->param_dtype)->name, dtype_info(made.buffers[i].param_dtype)->name);
    }
    if (!status)
        status = emit_state(relating, &made, &rank, &place, buckets, err);
    flat_buffers_release(&made);
    rank_parameters_release(&rank);
    free(per_bucket);
    free(per_buffer);
    return status;
}

static bool same_state(const struct bucket *a, const struct bucket *b)
{
    return a->chain == b->chain && a->group == b->group && str_equal(a->state, b->state);
}

static reshard_status relate_all_buckets(struct relating *relating, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t begin = 0, end = 0; begin < relating->bucket_count && !status; begin = end) {
        while (end < relating->bucket_count && same_state(&relating->buckets[begin], &relating->buckets[end]))
            end++;
        status = relate_buckets(relating, &relating->buckets[begin], end - begin, err);
        if (status)
            error_prefix(err, "'%.*s'", STR_ARG(relating->catalog->tensors[relating->buckets[begin].tensor].key));
    }
    return status;
}

/* ---- objects ---- */

static reshard_status emit_object(struct relating *relating, const struct optimizer_object *object, const struct state_pieces *pieces,
                                  const struct rank_parameters *rank, const struct rank_place *place, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < pieces->count && !status; i++) {
        const struct state_piece *piece = &pieces->pieces[i];
        const struct torch_tensor *tensor = &object->archive->tensors[piece->tensor];
        const struct torch_storage *storage = &object->archive->storages[tensor->storage];
        const struct model_parameter *parameter = &relating->model.parameters[rank->indices[piece->parameter]];
        if (storage->codec != CODEC_NONE || !storage->has_data)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "state '%.*s' is compressed or has no data", STR_ARG(piece->state));
        const struct vector_part part = { .count = tensor->shape[0],
                                          .object = object->object,
                                          .offset = object->offset + storage->offset + tensor->offset_bytes,
                                          .flags = tensor->flags & TORCH_TENSOR_SWAP ? CHUNK_SWAP : 0 };
        const struct stored_vector vector = { .dtype = tensor->dtype, .count = tensor->shape[0], .parts = &part, .part_count = 1 };
        struct str state;
        uint32_t index;
        if (!arena_str(&relating->catalog->arena, piece->state, &state))
            return error_set_memory(err);
        status = mcore_relate_state_tensor(relating, state, parameter->tensor, tensor->dtype, &index, err);
        if (!status)
            status = vector_chunks_add(relating->catalog, index, parameter, place, &vector, piece->offset, err);
    }
    return status;
}

static reshard_status relate_object(struct relating *relating, const struct optimizer_object *object, reshard_error *err)
{
    struct rank_parameters rank = { 0 };
    struct state_pieces pieces = { 0 };
    struct rank_place place;
    struct training_run run;
    struct state_key name;
    bool is_expert;
    const struct value *state = object->root;
    if (state->kind == VALUE_LIST && state->list.count == 1)
        state = state->list.items[0];
    if (!state_key_read(object->name, &name) || name.kind != STATE_KEY_BUFFERS)
        return RESHARD_OK;
    reshard_status status = group_place(&relating->model, name.chain, name.group, &is_expert, &place, err);
    if (!status)
        status = rank_parameters_make(&relating->model, relating->catalog, &place, is_expert, &rank, err);
    if (!status)
        status = rank_training_run(&relating->model, relating->catalog, &place, &run, err);
    if (!status)
        status = flat_state_read_one(object->archive, state, &run, rank.parameters, rank.count, is_expert, &pieces, err);
    if (!status)
        status = emit_object(relating, object, &pieces, &rank, &place, err);
    state_pieces_release(&pieces);
    rank_parameters_release(&rank);
    if (status)
        error_prefix(err, "item '%.*s'", STR_ARG(object->name));
    return status;
}

/* ---- the whole ---- */

static reshard_status remove_buckets(struct relating *relating, reshard_error *err)
{
    struct catalog *catalog = relating->catalog;
    uint8_t *grown = realloc(relating->is_bucket, (size_t)catalog->tensor_count + 1);
    if (!grown)
        return error_set_memory(err);
    memset(grown + relating->tensor_count, 0, (size_t)(catalog->tensor_count - relating->tensor_count));
    relating->is_bucket = grown;
    return catalog_remove_tensors(catalog, grown, err);
}

reshard_status optimizer_dist_relate(struct catalog *catalog, const struct value *namespace, const struct optimizer_object *objects,
                                     uint32_t object_count, reshard_error *err)
{
    struct relating relating = { .catalog = catalog, .objects = objects, .object_count = object_count };
    reshard_status status = list_buckets(&relating, err);
    if (!status && relating.bucket_count + object_count > 0) {
        status = parallel_model_make(catalog, namespace, &relating.model, err);
        if (!status)
            status = mcore_relate_list_parts(&relating, err);
        if (!status)
            status = relate_all_buckets(&relating, err);
        for (uint32_t i = 0; i < object_count && !status; i++)
            status = relate_object(&relating, &objects[i], err);
        if (!status)
            status = remove_buckets(&relating, err);
        parallel_model_release(&relating.model);
    }
    free(relating.buckets);
    free(relating.parts);
    free(relating.is_bucket);
    free(relating.state_tensors);
    name_map_release(&relating.stored);
    return status;
}

/* ---- what upstream writes wrongly ---- */

/* Gathered buffers have no padding, and Megatron looks for a parameter where it lies with the padding of the buckets before it. */
static bool is_buffer_shifted(const struct parallel_model *model, const struct rank_parameters *rank, const struct flat_buffers *made,
                              const struct flat_buffer *buffer)
{
    for (uint32_t i = 0; i < buffer->place_count; i++) {
        const struct flat_place *place = &made->places[buffer->first_place + i];
        if (!model->parameters[rank->indices[place->parameter]].is_copy && flat_packed_start(made, place) != place->start)
            return true;
    }
    return false;
}

/* Whether any rank's buffers are gathered wrongly. */
static reshard_status are_shifted(const struct parallel_model *model, const struct catalog *catalog, bool *out, reshard_error *err)
{
    const struct parallel_layout *layout = &model->context.layout;
    reshard_status status = RESHARD_OK;
    *out = false;
    for (int64_t pp = 0; pp < layout->pp && !*out && !status; pp++) {
        for (int kind = 0; kind < 2 && !*out && !status; kind++) {
            const struct rank_place place = { .pp = pp };
            struct training_run run;
            struct rank_parameters rank = { 0 };
            struct flat_buffers made = { 0 };
            struct flat_buffer_rules rules;
            status = rank_parameters_make(model, catalog, &place, kind == 1, &rank, err);
            if (!status)
                status = rank_training_run(model, catalog, &place, &run, err);
            if (!status)
                status = flat_buffer_rules_of(&run, rank.parameters, rank.count, kind == 1, &rules, err);
            if (!status)
                status = flat_buffers_make(rank.parameters, rank.count, kind == 1, &rules, &made, err);
            for (uint32_t i = 0; !status && i < made.buffer_count; i++)
                *out |= is_buffer_shifted(model, &rank, &made, &made.buffers[i]);
            flat_buffers_release(&made);
            rank_parameters_release(&rank);
        }
    }
    return status;
}

reshard_status optimizer_dist_check(struct catalog *catalog, const struct value *namespace, reshard_error *err)
{
    struct parallel_model model;
    reshard_error unknown = { 0 };
    bool is_suspect = false;
    reshard_status status = parallel_model_make(catalog, namespace, &model, &unknown);
    if (!status)
        status = are_shifted(&model, catalog, &is_suspect, &unknown);
    parallel_model_release(&model);
    if (status == RESHARD_ERR_MEMORY)
        return error_set_memory(err);
    if (is_suspect)
        catalog_warn(
            catalog, false,
            "optimizer state: this run's gradient buffers have padding between their buckets, and Megatron Core 0.15 to 0.19 saves "
            "fully_reshardable state shifted then. If one of them saved it, it is wrong as stored; a legacy or dp_reshardable save of the "
            "same run is right");
    return RESHARD_OK;
}
