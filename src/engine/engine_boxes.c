/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes of tensors into memory: a plan whose target has an object over the memory of each box, which is one chunk, strided if the memory
 * is. What conversions do for files (merging, order, threads, budget) is done for these.
 */
#include "engine/engine.h"

#include "base/array.h"
#include "base/checked.h"
#include "kernels/copy.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct boxes_target {
    struct catalog *catalog;
    struct recipe *recipes;
    struct store_object **objects;
    uint64_t *payload_bytes; /* by box: of its elements */
};

static void boxes_target_release(struct boxes_target *target, uint32_t count)
{
    for (uint32_t i = 0; target->objects && i < count; i++)
        store_object_close(target->objects[i]);
    catalog_free(target->catalog);
    free(target->recipes);
    free(target->objects);
    free(target->payload_bytes);
}

static reshard_status boxes_target_new(const struct engine_source *source, uint32_t count, struct boxes_target *out, reshard_error *err)
{
    *out = (struct boxes_target){ .catalog = catalog_new("memory"),
                                  .recipes = array_zeroed(count, sizeof(*out->recipes)),
                                  .objects = array_zeroed(count, sizeof(struct store_object *)),
                                  .payload_bytes = array_zeroed(count, sizeof(*out->payload_bytes)) };
    if (!out->catalog || !out->recipes || !out->objects || !out->payload_bytes)
        return error_set_memory(err);
    out->catalog->limits = *source->limits;
    out->catalog->limits.budget = NULL; /* what is asked for is the caller's choice, not the input's; and several threads read at once */
    return RESHARD_OK;
}

static reshard_status box_refuse_room(struct str key, uint64_t room, uint64_t bytes, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': room for %" PRIu64 " bytes, the box spans %" PRIu64, STR_ARG(key), room,
                     bytes);
}

reshard_status engine_box_measure(const struct engine_box *box, struct str key, int rank, const int64_t *extent, uint64_t *span,
                                  uint64_t *payload, reshard_error *err)
{
    int64_t volume, elements;
    bool is_good = shape_volume(rank, extent, &volume);
    if (is_good && box->flat_count)
        volume = box->flat_count;
    if (!is_good || !dtype_bytes(box->dtype, (uint64_t)volume, payload))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': part is no whole number of bytes", STR_ARG(key));
    *span = *payload;
    if (box->strides && dtype_element_bytes(box->dtype) == 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': elements of %s have no strides", STR_ARG(key),
                         dtype_info(box->dtype)->name);
    if (box->strides && (!strides_span(rank, extent, box->strides, &elements) || !dtype_bytes(box->dtype, (uint64_t)elements, span)))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': negative or too large strides", STR_ARG(key));
    if (box->strides && !strides_are_apart(rank, extent, box->strides))
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': by these strides elements share places in memory", STR_ARG(key));
    return *span <= box->bytes ? RESHARD_OK : box_refuse_room(key, box->bytes, *span, err);
}

static reshard_status box_set_layout(struct catalog *catalog, struct catalog_chunk *chunk, int rank, const int64_t *extent,
                                     const struct engine_box *box, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (box->strides && !strides_are_row_major(rank, extent, box->strides))
        status = catalog_chunk_set_strides(catalog, chunk, rank, box->strides, err);
    if (!status && box->flat_count)
        status = catalog_chunk_set_run(catalog, chunk, box->flat_begin, box->flat_count, err);
    return status;
}

/* Box number `index` as a tensor, an object, and the recipe between it and the source. */
static reshard_status boxes_target_add(const struct engine_source *source, const struct engine_box *box, uint32_t index,
                                       struct boxes_target *target, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_tensor *like = &source->catalog->tensors[box->tensor];
    const int64_t *extent = box->start ? box->extent : catalog_vector_at(source->catalog, like->shape);
    struct catalog *catalog = target->catalog;
    struct catalog_chunk *chunk;
    uint32_t tensor, object;
    uint64_t span = 0;
    char name[32];
    if (!copy_can_cast(like->dtype, box->dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %s cannot be cast to %s", STR_ARG(like->key),
                         dtype_info(like->dtype)->name, dtype_info(box->dtype)->name);
    reshard_status status = engine_box_measure(box, like->key, like->rank, extent, &span, &target->payload_bytes[index], err);
    if (!status)
        status = catalog_add_tensor(catalog, STR(""), box->dtype, like->rank, extent, &tensor, err);
    snprintf(name, sizeof(name), "memory of box %" PRIu32, index);
    if (!status)
        status = catalog_add_object(catalog, str_of(name), span, &object, err);
    if (!status)
        status = store_object_over(box->out, span, &target->objects[index], err);
    if (status)
        return status;
    catalog->tensors[tensor].key = like->key;
    catalog->tensors[tensor].flags = TENSOR_HIDDEN;
    target->recipes[index] = (struct recipe){ .source_tensor = box->tensor,
                                              .target_tensor = index,
                                              .is_whole = !box->start,
                                              .rank = like->rank,
                                              .source_start = box->start,
                                              .target_start = origin,
                                              .extent = box->extent };
    status = catalog_add_chunk(catalog, tensor, NULL, NULL, object, 0, span, &chunk, err);
    return status ? status : box_set_layout(catalog, chunk, like->rank, extent, box, err);
}

static reshard_status boxes_run(const struct engine_source *source, struct engine_box *boxes, uint32_t count,
                                const struct boxes_target *target, const struct engine_options *options, reshard_error *err)
{
    struct plan *plan = NULL;
    reshard_status status = catalog_seal(target->catalog, true, err);
    if (!status)
        status = plan_new(source->catalog, target->catalog, target->recipes, count, &plan, err);
    if (!status)
        status = engine_run(plan, source, target->objects, NULL, NULL, options, err);
    /* Each element is written once, so that the bytes tell. */
    for (uint32_t i = 0; plan && i < count; i++)
        boxes[i].is_done = store_memory_written(target->objects[i]) == target->payload_bytes[i];
    plan_free(plan);
    return status;
}

reshard_status engine_read_boxes(const struct engine_source *source, struct engine_box *boxes, uint32_t count,
                                 const struct engine_options *options, reshard_error *err)
{
    struct boxes_target target;
    struct engine_options running = *options;
    running.no_sync = true;
    reshard_status status = boxes_target_new(source, count, &target, err);
    for (uint32_t i = 0; i < count; i++)
        boxes[i].is_done = false;
    for (uint32_t i = 0; i < count && !status; i++)
        status = boxes_target_add(source, &boxes[i], i, &target, err);
    if (!status)
        status = boxes_run(source, boxes, count, &target, &running, err);
    boxes_target_release(&target, count);
    return status;
}
