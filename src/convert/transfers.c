/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/redistribute.h"

#include "base/array.h"
#include "base/sort.h"
#include "convert/memory_catalog.h"
#include "formats/live.h"
#include "plan/plan_replica.h"

#include <stdlib.h>

/* Targets may overlap, as long as each is written once: then each is a tensor of its own, which only takes longer to plan. */
static reshard_status target_build(const struct shard_list *list, const struct memory_names *names, struct catalog **out,
                                   reshard_error *err)
{
    reshard_error first = RESHARD_ERROR_INIT;
    reshard_status status = memory_catalog_new(list, false, names, out, &first);
    return status == RESHARD_ERR_FORMAT || status == RESHARD_ERR_USAGE ? memory_catalog_new(list, true, names, out, err)
           : status                                                    ? error_pass(err, status, &first)
                                                                       : RESHARD_OK;
}

/* ---- the plan ---- */

static const struct shard *shard_of_chunk(const struct shard_list *list, const struct catalog *catalog, uint32_t chunk)
{
    return &list->shards[catalog->chunks[chunk].object];
}

static reshard_status target_is_unknown(const struct transfers *transfers, struct str key, uint32_t rank, reshard_error *err)
{
    error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s', of which rank %u wants a shard: %s", STR_ARG(key), rank,
              transfers->names.made.stage ? "the mapping makes none of what ranks have" : "no rank has any");
    if (transfers->names.made.warning)
        error_hint(err, "%s", transfers->names.made.warning);
    return RESHARD_ERR_USAGE;
}

static reshard_status recipes_of_target(struct transfers *transfers, uint32_t target, struct recipe_table *out, reshard_error *err)
{
    const struct catalog_tensor *wanted = &transfers->target->tensors[target];
    const uint32_t rank = wanted->chunk_count ? shard_of_chunk(&transfers->targets, transfers->target, wanted->first_chunk)->writer : 0;
    const int64_t *shape = catalog_vector_at(transfers->target, wanted->shape);
    struct memory_tensor found;
    char shapes[2][SHAPE_TEXT_MAX];
    if (!memory_names_find(&transfers->names, wanted->key, &found))
        return target_is_unknown(transfers, wanted->key, rank, err);
    if (shape_equal(found.rank, found.shape, wanted->rank, shape))
        return memory_names_recipes(&transfers->names, &found, target, wanted->dtype, out, err);
    return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' has global shape %s%s, rank %u wants a shard of %s", STR_ARG(wanted->key),
                     shape_text(found.rank, found.shape, ",", shapes[0]), transfers->names.made.stage ? " behind the mapping" : "", rank,
                     shape_text(wanted->rank, shape, ",", shapes[1]));
}

static reshard_status transfers_plan(struct transfers *transfers, reshard_error *err)
{
    struct recipe_table recipes = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t t = 0; t < transfers->target->tensor_count && !status; t++)
        status = recipes_of_target(transfers, t, &recipes, err);
    if (!status)
        status = plan_new(transfers->source, transfers->target, recipes.recipes, recipes.count, &transfers->planned, err);
    recipe_table_release(&recipes);
    if (!status)
        status = memory_plan_read(transfers->planned, &transfers->read, err);
    transfers->plan = transfers->read ? transfers->read : transfers->planned;
    return status;
}

static reshard_status transfers_name(struct transfers *transfers, const struct mapping_options *map, reshard_error *err)
{
    transfers->names.source = transfers->source;
    live_source_of(transfers->source, &limits_default, &transfers->named);
    return map ? memory_names_make(&transfers->named, &transfers->targets, map, &transfers->names, err) : RESHARD_OK;
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
                             .order = array_zeroed((size_t)transfers->source->chunk_count * 2, sizeof(*choice.order)),
                             .place = array_zeroed(transfers->source->chunk_count, sizeof(*choice.place)),
                             .sent = array_zeroed(transfers->rank_count, sizeof(*choice.sent)) };
    transfers->chosen = array_zeroed(plan->step_count, sizeof(*transfers->chosen));
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
                              const struct mapping_options *map, reshard_error *err)
{
    *out = (struct transfers){ .sources = *sources, .targets = *targets, .rank_count = rank_count };
    *sources = *targets = (struct shard_list){ 0 };
    if (out->sources.count >= UINT32_MAX || out->targets.count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu and %zu shards", out->sources.count, out->targets.count);
    reshard_status status = memory_catalog_new(&out->sources, false, NULL, &out->source, err);
    if (!status)
        status = transfers_name(out, map, err);
    if (!status)
        status = target_build(&out->targets, &out->names, &out->target, err);
    if (!status)
        status = transfers_plan(out, err);
    return status ? status : transfers_choose(out, err);
}

void transfers_release(struct transfers *transfers)
{
    plan_free(transfers->read);
    plan_free(transfers->planned);
    memory_names_release(&transfers->names);
    catalog_free(transfers->source);
    catalog_free(transfers->target);
    shard_list_release(&transfers->sources);
    shard_list_release(&transfers->targets);
    free(transfers->chosen);
    *transfers = (struct transfers){ 0 };
}

const struct shard *transfers_source(const struct transfers *transfers, uint32_t step)
{
    return shard_of_chunk(&transfers->sources, transfers->source, transfers->chosen[step]);
}

struct exchange_step transfers_step(const struct transfers *transfers, uint32_t step, uint64_t *bytes)
{
    const struct plan_step *planned = &transfers->plan->steps[step];
    const struct catalog_tensor *tensor = &transfers->target->tensors[transfers->target->chunks[planned->target_chunk].tensor];
    *bytes = 0;
    dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, transfers->plan->vectors + planned->extent), bytes);
    const uint32_t to = shard_of_chunk(&transfers->targets, transfers->target, planned->target_chunk)->writer;
    return (struct exchange_step){ transfers_source(transfers, step)->writer, to };
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
    out->source = address_at(transfers_source(transfers, step), copy.source_offset);
    out->target = address_at(shard_of_chunk(&transfers->targets, transfers->target, chosen.target_chunk), copy.target_offset);
    return RESHARD_OK;
}
