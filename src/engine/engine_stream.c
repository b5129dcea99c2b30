/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming is running a plan whose target is one long object: all tensors one after the other. Its jobs hand their pieces to the
 * sink instead of writing them.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/array.h"
#include "engine/engine_state.h"

/* Adds the tensor to the target: of the given shape, with one chunk from *offset on. */
static reshard_status target_add(struct catalog *target, const struct catalog_tensor *like, const int64_t *shape, uint64_t *offset,
                                 reshard_error *err)
{
    uint32_t index;
    int64_t volume;
    uint64_t bytes;
    reshard_status status = catalog_add_tensor(target, STR(""), like->dtype, like->rank, shape, &index, err);
    if (status)
        return status;
    struct catalog_tensor *tensor = &target->tensors[index];
    tensor->key = like->key;
    tensor->flags = TENSOR_HIDDEN;
    if (!shape_volume(like->rank, shape, &volume) || !dtype_bytes(like->dtype, (uint64_t)volume, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': part is no whole number of bytes", STR_ARG(like->key));
    status = catalog_add_chunk(target, index, NULL, NULL, 0, *offset, bytes, NULL, err);
    if (!status && (!checked_add_u64(*offset, bytes, offset) || *offset > INT64_MAX))
        return error_set(err, RESHARD_ERR_LIMIT, "more than 2^63 bytes to read");
    return status;
}

static reshard_status target_new(const struct limits *limits, struct catalog **out, reshard_error *err)
{
    uint32_t object;
    *out = catalog_new("stream");
    if (!*out)
        return error_set_memory(err);
    (*out)->limits = *limits;
    (*out)->limits.budget = NULL; /* what is asked for is the caller's choice, not the input's; and several threads stream at once */
    reshard_status status = catalog_add_object(*out, STR("stream"), 0, &object, err);
    if (status) {
        catalog_free(*out);
        *out = NULL;
    }
    return status;
}

static reshard_status stream_work(const struct plan *plan, const struct engine_source *source, const uint32_t *tensors,
                                  const struct engine_options *options, engine_sink sink, void *context, reshard_error *err)
{
    struct engine engine;
    reshard_status status = engine_init(&engine, plan, source, options, true, err);
    if (status)
        return status;
    engine.sink = sink;
    engine.sink_context = context;
    engine.sink_tensors = tensors;
    status = engine_work(&engine, err);
    engine_release(&engine);
    return status;
}

/* Which part of which source tensor each target tensor is. */
static reshard_status stream_plan(const struct engine_source *source, const uint32_t *tensors, uint32_t count, const int64_t *start,
                                  const int64_t *extent, struct catalog *target, struct plan **out, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    uint64_t offset = 0;
    reshard_status status = RESHARD_OK;
    struct recipe *recipes = array_zeroed(count, sizeof(*recipes));
    if (!recipes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct catalog_tensor *tensor = &source->catalog->tensors[tensors[i]];
        status = target_add(target, tensor, start ? extent : catalog_vector_at(source->catalog, tensor->shape), &offset, err);
        recipes[i] = (struct recipe){ .source_tensor = tensors[i],
                                      .target_tensor = i,
                                      .is_whole = !start,
                                      .rank = tensor->rank,
                                      .source_start = start,
                                      .target_start = origin,
                                      .extent = extent };
    }
    if (!status)
        status = catalog_seal(target, true, err);
    if (!status)
        status = plan_new(source->catalog, target, recipes, count, out, err);
    free(recipes);
    return status;
}

reshard_status engine_stream(const struct engine_source *source, const uint32_t *tensors, uint32_t count, const int64_t *start,
                             const int64_t *extent, const struct engine_options *options, engine_sink sink, void *context,
                             reshard_error *err)
{
    struct catalog *target;
    struct plan *plan = NULL;
    if (start && count != 1)
        return error_set(err, RESHARD_ERR_USAGE, "a box of %" PRIu32 " tensors", count);
    reshard_status status = target_new(&source->catalog->limits, &target, err);
    if (status)
        return status;
    status = stream_plan(source, tensors, count, start, extent, target, &plan, err);
    if (!status)
        status = stream_work(plan, source, tensors, options, sink, context, err);
    plan_free(plan);
    catalog_free(target);
    return status;
}

/* Recipes of the given tensors, numbered as the targets of the stream. */
static reshard_status made_plan(const struct engine_source *source, const struct engine_made *made, const uint32_t *tensors, uint32_t count,
                                struct catalog *target, struct plan **out, reshard_error *err)
{
    uint64_t offset = 0;
    size_t total = 0;
    uint32_t used = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count; i++)
        total += made->first[tensors[i] + 1] - made->first[tensors[i]];
    struct recipe *recipes = total < UINT32_MAX ? array_zeroed(total, sizeof(*recipes)) : NULL;
    if (!recipes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct catalog_tensor *tensor = &made->made->tensors[tensors[i]];
        status = target_add(target, tensor, catalog_vector_at(made->made, tensor->shape), &offset, err);
        for (uint32_t r = made->first[tensors[i]]; r < made->first[tensors[i] + 1]; r++) {
            recipes[used] = made->recipes[r];
            recipes[used++].target_tensor = i;
        }
    }
    if (!status)
        status = catalog_seal(target, true, err);
    if (!status)
        status = plan_new(source->catalog, target, recipes, used, out, err);
    free(recipes);
    return status;
}

reshard_status engine_stream_made(const struct engine_source *source, const struct engine_made *made, const uint32_t *tensors,
                                  uint32_t count, const struct engine_options *options, engine_sink sink, void *context, reshard_error *err)
{
    struct catalog *target;
    struct plan *plan = NULL;
    reshard_status status = target_new(&source->catalog->limits, &target, err);
    if (status)
        return status;
    status = made_plan(source, made, tensors, count, target, &plan, err);
    if (!status)
        status = stream_work(plan, source, tensors, options, sink, context, err);
    plan_free(plan);
    catalog_free(target);
    return status;
}

/* A target with one tensor of the chunk's tensor's shape, and in it the same chunk. */
static reshard_status chunk_target(const struct catalog *source, const struct catalog_chunk *chunk, struct catalog *target,
                                   reshard_error *err)
{
    const struct catalog_tensor *like = &source->tensors[chunk->tensor];
    const struct chunk_layout *layout = catalog_layout_of(source, chunk);
    const int64_t *extent = catalog_vector_at(source, chunk->extent);
    uint32_t tensor;
    uint64_t bytes;
    struct catalog_chunk *added;
    reshard_status status =
        catalog_add_tensor(target, STR(""), like->dtype, like->rank, catalog_vector_at(source, like->shape), &tensor, err);
    if (status)
        return status;
    target->tensors[tensor].key = like->key;
    target->tensors[tensor].flags = TENSOR_HIDDEN;
    bool is_run = layout && layout->flat_count >= 0;
    uint64_t elements = is_run ? (uint64_t)layout->flat_count : (uint64_t)box_volume(like->rank, extent);
    if (!dtype_bytes(like->dtype, elements, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': chunk is no whole number of bytes", STR_ARG(like->key));
    status = catalog_add_chunk(target, tensor, catalog_vector_at(source, chunk->start), extent, 0, 0, bytes, &added, err);
    if (status || !is_run)
        return status;
    return catalog_chunk_set_run(target, added, layout->flat_begin, layout->flat_count, err);
}

reshard_status engine_stream_chunk(const struct engine_source *source, uint32_t chunk, const struct engine_options *options,
                                   engine_sink sink, void *context, reshard_error *err)
{
    const uint32_t tensor = source->catalog->chunks[chunk].tensor;
    struct catalog *target;
    struct plan *plan = NULL;
    reshard_status status = target_new(&source->catalog->limits, &target, err);
    if (status)
        return status;
    status = chunk_target(source->catalog, &source->catalog->chunks[chunk], target, err);
    if (!status)
        status = catalog_seal(target, true, err);
    if (!status)
        status = plan_new_chunk(source->catalog, chunk, target, &plan, err);
    if (!status)
        status = stream_work(plan, source, &tensor, options, sink, context, err);
    plan_free(plan);
    catalog_free(target);
    return status;
}
