/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/redistribute.h"

#include "base/name_map.h"
#include "base/sort.h"
#include "plan/plan_replica.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- catalogs of shards ---- */

struct side {
    const struct shard_list *list;
    struct catalog *catalog;
    struct name_map keys;      /* number = index in firsts */
    size_t *firsts;            /* by key: the first shard of it */
    bool is_apart;             /* each shard is a tensor of its own: they may overlap, and differ in type */
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
    if (!shard->is_flattened && !shard->strides)
        return RESHARD_OK;
    uint32_t strides = shard->strides ? catalog_vector(catalog, shard->strides, shard->rank) : CATALOG_NONE;
    struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
    if (!layout || (shard->strides && strides == CATALOG_NONE))
        return error_set_memory(err);
    layout->strides = strides;
    if (shard->is_flattened) {
        layout->flat_begin = shard->flat_begin;
        layout->flat_count = shard->flat_end - shard->flat_begin;
    }
    return RESHARD_OK;
}

static reshard_status side_add(struct side *side, size_t index, reshard_error *err)
{
    const struct shard *shard = &side->list->shards[index];
    struct catalog_chunk *chunk;
    uint32_t tensor = 0, object;
    uint64_t bytes;
    char name[48];
    if (!shard_span(shard, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a shard of rank %u is no whole number of bytes", STR_ARG(shard->key),
                         shard->writer);
    if (bytes && !shard->data && !shard->is_elsewhere)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a shard of rank %u has no values", STR_ARG(shard->key), shard->writer);
    snprintf(name, sizeof(name), "rank %u, shard %zu", shard->writer, index);
    reshard_status status = side_tensor(side, index, &tensor, err);
    if (!status)
        status = catalog_add_object(side->catalog, str_of(name), bytes, &object, err);
    if (!status)
        status = catalog_add_chunk(side->catalog, tensor, shard->start, shard->extent, object, 0, bytes, &chunk, err);
    return status ? status : side_layout(side->catalog, shard, chunk, err);
}

static reshard_status side_build(const struct shard_list *list, bool is_apart, struct catalog **out, reshard_error *err)
{
    struct side side = { .list = list, .is_apart = is_apart, .catalog = catalog_new("memory") };
    side.firsts = calloc(list->count + 1, sizeof(*side.firsts));
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

/* Targets may overlap, as long as each is written once: then each is a tensor of its own, which only takes longer to plan. */
static reshard_status target_build(const struct shard_list *list, struct catalog **out, reshard_error *err)
{
    reshard_error first = RESHARD_ERROR_INIT;
    reshard_status status = side_build(list, false, out, &first);
    return status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_USAGE ? side_build(list, true, out, err)
           : status                                                    ? error_pass(err, status, &first)
                                                                       : RESHARD_OK;
}

/* ---- the plan ---- */

static const struct shard *shard_of_chunk(const struct shard_list *list, const struct catalog *catalog, uint32_t chunk)
{
    return &list->shards[catalog->chunks[chunk].object];
}

static reshard_status recipe_of_target(const struct transfers *transfers, uint32_t target, struct recipe *out, reshard_error *err)
{
    const struct catalog_tensor *wanted = &transfers->target->tensors[target];
    const uint32_t source = catalog_find(transfers->source, wanted->key);
    const uint32_t rank = wanted->chunk_count ? shard_of_chunk(&transfers->targets, transfers->target, wanted->first_chunk)->writer : 0;
    *out = (struct recipe){ .source_tensor = source, .target_tensor = target, .is_whole = true };
    if (source == CATALOG_NONE)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s', of which rank %u wants a shard: no rank has any", STR_ARG(wanted->key),
                         rank);
    const struct catalog_tensor *have = &transfers->source->tensors[source];
    char shapes[2][SHAPE_TEXT_MAX];
    const int64_t *from = catalog_vector_at(transfers->source, have->shape), *to = catalog_vector_at(transfers->target, wanted->shape);
    if (have->rank == wanted->rank && (have->rank == 0 || memcmp(from, to, (size_t)have->rank * sizeof(*from)) == 0))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' has global shape %s, rank %u wants a shard of %s", STR_ARG(wanted->key),
                     shape_text(have->rank, from, ",", shapes[0]), rank, shape_text(wanted->rank, to, ",", shapes[1]));
}

static reshard_status transfers_plan(struct transfers *transfers, reshard_error *err)
{
    const uint32_t count = transfers->target->tensor_count;
    struct recipe *recipes = calloc((size_t)count + 1, sizeof(*recipes));
    reshard_status status = recipes ? RESHARD_OK : error_set_memory(err);
    for (uint32_t t = 0; t < count && !status; t++)
        status = recipe_of_target(transfers, t, &recipes[t], err);
    if (!status)
        status = plan_new(transfers->source, transfers->target, recipes, count, &transfers->plan, err);
    free(recipes);
    return status;
}

/* ---- which of several replicas ---- */

struct choice {
    const struct transfers *transfers;
    struct sort_entry *order; /* source chunks by content; then as much again to sort in */
    uint32_t *place;          /* by chunk: in order */
    uint64_t *sent;           /* by rank */
};

static uint32_t choice_rank(const struct choice *choice, uint32_t chunk)
{
    return shard_of_chunk(&choice->transfers->sources, choice->transfers->source, chunk)->writer;
}

/* The best of the chunks with the elements of `chunk` for a rank. */
static uint32_t choice_make(const struct choice *choice, uint32_t chunk, uint32_t rank)
{
    const struct catalog *source = choice->transfers->source;
    uint32_t best = chunk, first = choice->place[chunk];
    while (first > 0 && choice->order[first - 1].key == choice->order[first].key)
        first--;
    for (uint32_t i = first; i < source->chunk_count && choice->order[i].key == choice->order[first].key; i++) {
        uint32_t other = choice->order[i].value, holder = choice_rank(choice, other);
        if (source->chunks[other].tensor != source->chunks[chunk].tensor || !catalog_chunks_are_copies(source, chunk, other))
            continue;
        if (holder == rank)
            return other;
        if (choice->sent[holder] < choice->sent[choice_rank(choice, best)])
            best = other;
    }
    return best;
}

static void choice_sort(struct choice *choice)
{
    const struct catalog *source = choice->transfers->source;
    for (uint32_t c = 0; c < source->chunk_count; c++) {
        const struct catalog_tensor *tensor = &source->tensors[source->chunks[c].tensor];
        uint64_t key = (uint64_t)replica_key(source, tensor->rank, &source->chunks[c]);
        key ^= (uint64_t)source->chunks[c].tensor * UINT64_C(0x9E3779B97F4A7C15);
        choice->order[c] = (struct sort_entry){ (int64_t)(key >> 1), c };
    }
    entries_sort(choice->order, choice->order + source->chunk_count, source->chunk_count);
    for (uint32_t i = 0; i < source->chunk_count; i++)
        choice->place[choice->order[i].value] = i;
}

static reshard_status transfers_choose(struct transfers *transfers, reshard_error *err)
{
    const struct plan *plan = transfers->plan;
    struct choice choice = { .transfers = transfers,
                             .order = calloc((size_t)transfers->source->chunk_count * 2 + 1, sizeof(*choice.order)),
                             .place = calloc((size_t)transfers->source->chunk_count + 1, sizeof(*choice.place)),
                             .sent = calloc(transfers->rank_count, sizeof(*choice.sent)) };
    transfers->chosen = calloc((size_t)plan->step_count + 1, sizeof(*transfers->chosen));
    bool is_there = choice.order && choice.place && choice.sent && transfers->chosen;
    if (is_there)
        choice_sort(&choice);
    for (uint32_t s = 0; s < plan->step_count && is_there; s++) {
        uint32_t to = shard_of_chunk(&transfers->targets, transfers->target, plan->steps[s].target_chunk)->writer;
        uint64_t bytes;
        transfers->chosen[s] = choice_make(&choice, plan->steps[s].source_chunk, to);
        const struct exchange_step step = transfers_step(transfers, s, &bytes);
        if (step.from != step.to)
            choice.sent[step.from] += bytes;
    }
    free(choice.order);
    free(choice.place);
    free(choice.sent);
    return is_there ? RESHARD_OK : error_set_memory(err);
}

/* ---- the whole ---- */

reshard_status transfers_make(struct transfers *out, struct shard_list *sources, struct shard_list *targets, uint32_t rank_count,
                              reshard_error *err)
{
    *out = (struct transfers){ .sources = *sources, .targets = *targets, .rank_count = rank_count };
    *sources = *targets = (struct shard_list){ 0 };
    if (out->sources.count >= UINT32_MAX || out->targets.count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu and %zu shards", out->sources.count, out->targets.count);
    reshard_status status = side_build(&out->sources, false, &out->source, err);
    if (!status)
        status = target_build(&out->targets, &out->target, err);
    if (!status)
        status = transfers_plan(out, err);
    return status ? status : transfers_choose(out, err);
}

void transfers_release(struct transfers *transfers)
{
    plan_free(transfers->plan);
    catalog_free(transfers->source);
    catalog_free(transfers->target);
    shard_list_release(&transfers->sources);
    shard_list_release(&transfers->targets);
    free(transfers->chosen);
    *transfers = (struct transfers){ 0 };
}

struct exchange_step transfers_step(const struct transfers *transfers, uint32_t step, uint64_t *bytes)
{
    const struct plan_step *planned = &transfers->plan->steps[step];
    const struct catalog_tensor *tensor = &transfers->target->tensors[transfers->target->chunks[planned->target_chunk].tensor];
    *bytes = 0;
    dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, transfers->plan->vectors + planned->extent), bytes);
    return (struct exchange_step){ shard_of_chunk(&transfers->sources, transfers->source, transfers->chosen[step])->writer,
                                   shard_of_chunk(&transfers->targets, transfers->target, planned->target_chunk)->writer };
}

/* Also of memory that is another rank's, or not known: nobody looks there. */
static uint8_t *address_at(const struct shard *shard, uint64_t offset)
{
    return (uint8_t *)((uintptr_t)shard->data + (uintptr_t)offset);
}

reshard_status transfers_copy(const struct transfers *transfers, uint32_t step, struct exchange_copy *out, reshard_error *err)
{
    struct plan_step chosen = transfers->plan->steps[step];
    struct plan_copy copy;
    chosen.source_chunk = transfers->chosen[step];
    reshard_status status = plan_step_copy(transfers->plan, &chosen, &copy, err);
    if (status)
        return status;
    out->spec = copy.spec;
    out->source = address_at(shard_of_chunk(&transfers->sources, transfers->source, chosen.source_chunk), copy.source_offset);
    out->target = address_at(shard_of_chunk(&transfers->targets, transfers->target, chosen.target_chunk), copy.target_offset);
    return RESHARD_OK;
}
