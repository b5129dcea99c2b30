/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/memory_catalog.h"

#include "base/array.h"
#include "base/name_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct side {
    const struct shard_list *list;
    struct catalog *catalog;
    struct name_map keys;      /* number = index in firsts */
    size_t *firsts;            /* by key: the first shard of it */
    size_t writer_first;       /* the first shard of the rank whose shards are being added */
    bool is_apart;
    const struct memory_names *names; /* of what is not left as it is; NULL: all */
};

static reshard_status shards_differ(const struct shard *a, const struct shard *b, reshard_error *err)
{
    char shapes[2][SHAPE_TEXT_MAX];
    return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': the shard of rank %u is %s of %s, that of rank %u %s of %s", STR_ARG(a->key),
                     a->writer, dtype_info(a->dtype)->name, shape_text(a->rank, a->shape, ",", shapes[0]), b->writer,
                     dtype_info(b->dtype)->name, shape_text(b->rank, b->shape, ",", shapes[1]));
}

static bool shapes_are_equal(const struct shard *a, const struct shard *b)
{
    return a->rank == b->rank && (a->rank == 0 || memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(*a->shape)) == 0);
}

static reshard_status side_tensor(struct side *side, size_t index, uint32_t *out, reshard_error *err)
{
    const struct shard *shard = &side->list->shards[index];
    bool is_new;
    uint32_t number = name_map_intern(&side->keys, shard->key, &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (is_new)
        side->firsts[number] = index;
    const struct shard *first = &side->list->shards[side->firsts[number]];
    if (!shapes_are_equal(first, shard) || (first->dtype != shard->dtype && !side->is_apart))
        return shards_differ(first, shard, err);
    *out = number;
    if (!is_new && !side->is_apart)
        return RESHARD_OK;
    reshard_status status = catalog_add_tensor(side->catalog, shard->key, shard->dtype, shard->rank, shard->shape, out, err);
    if (status)
        return status;
    struct catalog_tensor *tensor = &side->catalog->tensors[*out];
    tensor->tied_to = tensor->storage_group = CATALOG_NONE;
    if (side->is_apart)
        tensor->flags = TENSOR_HIDDEN;
    return RESHARD_OK;
}

static reshard_status side_layout(struct catalog *catalog, const struct shard *shard, struct catalog_chunk *chunk, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (shard->strides)
        status = catalog_chunk_set_strides(catalog, chunk, shard->rank, shard->strides, err);
    if (!status && shard->is_flattened)
        status = catalog_chunk_set_run(catalog, chunk, shard->flat_begin, shard->flat_end - shard->flat_begin, err);
    return status;
}

static reshard_status side_add(struct side *side, size_t index, reshard_error *err)
{
    const struct shard *shard = &side->list->shards[index];
    const bool is_left = side->names && memory_names_keep(side->names, shard->key);
    struct catalog_chunk *chunk;
    uint32_t tensor = 0, object;
    uint64_t bytes;
    char name[48];
    if (!shard_span(shard, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a shard of rank %u is no whole number of bytes", STR_ARG(shard->key),
                         shard->writer);
    if (bytes && !shard->data && !shard->is_elsewhere)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a shard of rank %u has no values", STR_ARG(shard->key), shard->writer);
    if (index && shard->writer != side->list->shards[index - 1].writer)
        side->writer_first = index;
    snprintf(name, sizeof(name), "rank %u, shard %zu", shard->writer, index - side->writer_first);
    reshard_status status = is_left ? RESHARD_OK : side_tensor(side, index, &tensor, err);
    if (!status)
        status = catalog_add_object(side->catalog, str_of(name), bytes, &object, err);
    if (status || is_left)
        return status;
    status = catalog_add_chunk(side->catalog, tensor, shard->start, shard->extent, object, 0, bytes, &chunk, err);
    return status ? status : side_layout(side->catalog, shard, chunk, err);
}

reshard_status memory_catalog_new(const struct shard_list *list, bool is_apart, const struct memory_names *names, struct catalog **out,
                                  reshard_error *err)
{
    struct side side = { .list = list, .is_apart = is_apart, .names = names, .catalog = catalog_new("memory") };
    side.firsts = array_zeroed(list->count, sizeof(*side.firsts));
    reshard_status status = side.catalog && side.firsts ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < list->count && !status; i++)
        status = side_add(&side, i, err);
    if (!status)
        status = catalog_seal(side.catalog, true, err);
    name_map_release(&side.keys);
    free(side.firsts);
    *out = status ? NULL : side.catalog;
    if (status)
        catalog_free(side.catalog);
    return status;
}

reshard_status memory_plan_read(const struct plan *plan, struct plan **out, reshard_error *err)
{
    uint8_t *is_read = array_zeroed(plan->step_count, 1);
    uint32_t count = 0;
    *out = NULL;
    if (!is_read)
        return error_set_memory(err);
    for (uint32_t i = 0; i < plan->step_count; i++)
        count += is_read[i] = plan->steps[i].source_chunk != CATALOG_NONE;
    reshard_status status = count < plan->step_count ? plan_select(plan, is_read, out, err) : RESHARD_OK;
    free(is_read);
    return status;
}
