/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/load_rounds.h"

#include "base/array.h"

#include <stdlib.h>

#define STAGING_ALIGNMENT 64

static uint64_t room_bytes(uint64_t bytes)
{
    const uint64_t most = UINT64_MAX / STAGING_ALIGNMENT * STAGING_ALIGNMENT; /* which nobody has */
    return bytes > most ? most : (bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
}

/* ---- dealing ---- */

struct dealing {
    struct load_round *shards;
    uint32_t *next; /* by shard: the next that has the same reader; its reader has the first */
    uint64_t *used; /* by rank, in this round */
    uint64_t budget;
    uint32_t ranks, round;
};

/* Those of a reader: its own shard first. */
static bool dealing_fits(const struct dealing *dealing, uint32_t reader)
{
    for (uint32_t i = reader; i != UINT32_MAX; i = dealing->next[i]) {
        const uint64_t used = dealing->used[dealing->shards[i].rank], bytes = room_bytes(dealing->shards[i].bytes);
        if (used && bytes && (used > dealing->budget || bytes > dealing->budget - used))
            return false;
    }
    return true;
}

static void dealing_take(struct dealing *dealing, uint32_t reader)
{
    if (!dealing_fits(dealing, reader)) {
        dealing->round++;
        memset(dealing->used, 0, dealing->ranks * sizeof(*dealing->used));
    }
    for (uint32_t i = reader; i != UINT32_MAX; i = dealing->next[i]) {
        dealing->shards[i].round = dealing->round;
        dealing->used[dealing->shards[i].rank] += room_bytes(dealing->shards[i].bytes);
    }
}

reshard_status load_rounds_deal(struct load_round *shards, uint32_t count, uint32_t ranks, uint64_t budget, uint32_t *rounds,
                                reshard_error *err)
{
    struct dealing dealing = { .shards = shards,
                               .next = array_zeroed(count, sizeof(*dealing.next)),
                               .used = array_zeroed(ranks, sizeof(*dealing.used)),
                               .budget = budget,
                               .ranks = ranks };
    const bool is_there = dealing.next && dealing.used;
    for (uint32_t i = 0; is_there && i < count; i++)
        dealing.next[i] = UINT32_MAX;
    for (uint32_t i = count; is_there && i-- > 0;) {
        const uint32_t reader = shards[i].reader;
        if (reader == i)
            continue;
        dealing.next[i] = dealing.next[reader];
        dealing.next[reader] = i;
    }
    for (uint32_t i = 0; is_there && i < count; i++) {
        if (shards[i].reader == i)
            dealing_take(&dealing, i);
    }
    *rounds = dealing.round + 1;
    free(dealing.next);
    free(dealing.used);
    return is_there ? RESHARD_OK : error_set_memory(err);
}

/* ---- staging ---- */

reshard_status load_staging_new(const struct load_round *shards, uint32_t count, uint32_t rank, uint32_t rounds, struct load_staging *out,
                                reshard_error *err)
{
    uint64_t *bytes = array_zeroed(rounds, sizeof(*bytes));
    *out = (struct load_staging){ 0 };
    if (!bytes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        if (shards[i].rank == rank)
            bytes[shards[i].round] += room_bytes(shards[i].bytes);
    }
    for (uint32_t round = 0; round < rounds; round++)
        out->size = bytes[round] > out->size ? bytes[round] : out->size;
    free(bytes);
    if (!out->size)
        return RESHARD_OK;
    out->memory = out->size > PTRDIFF_MAX ? NULL : aligned_alloc(STAGING_ALIGNMENT, (size_t)out->size);
    return out->memory ? RESHARD_OK : error_set_memory(err);
}

void load_staging_release(struct load_staging *staging)
{
    free(staging->memory);
    *staging = (struct load_staging){ 0 };
}

uint8_t *load_staging_room(struct load_staging *staging, uint64_t bytes)
{
    uint8_t *room = staging->memory + staging->used;
    staging->used += room_bytes(bytes);
    return room;
}

reshard_status load_write(const struct shard *shard, const uint8_t *values, reshard_error *err)
{
    uint64_t bytes;
    if (!shard_bytes(shard, &bytes) || !bytes || !shard->write(values, 0, (size_t)bytes, shard->context))
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_CANCELLED, "'%.*s': the function that takes values failed", STR_ARG(shard->key));
}

/* ---- a list of one rank ---- */

bool load_is_staged(const struct shard_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->shards[i].write && !list->shards[i].data)
            return true;
    }
    return false;
}

static reshard_status list_deal(const struct shard_list *list, uint64_t budget, struct load_round *shards, uint32_t *rounds,
                                reshard_error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct shard *shard = &list->shards[i];
        shards[i] = (struct load_round){ .reader = (uint32_t)i };
        if (shard->write && !shard_bytes(shard, &shards[i].bytes))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a shard is no whole number of bytes", STR_ARG(shard->key));
    }
    return load_rounds_deal(shards, (uint32_t)list->count, 1, budget, rounds, err);
}

/* Those of the list that are in a round, with memory. */
static void round_take(const struct shard_list *list, const struct load_round *shards, uint32_t round, struct load_staging *staging,
                       struct shard_list *out)
{
    out->count = 0;
    staging->used = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (shards[i].round != round)
            continue;
        struct shard *shard = &out->shards[out->count++];
        *shard = list->shards[i];
        if (shard->write)
            shard->data = load_staging_room(staging, shards[i].bytes);
    }
}

static reshard_status list_write(const struct shard_list *list, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < list->count && !status; i++) {
        if (list->shards[i].write)
            status = load_write(&list->shards[i], list->shards[i].data, err);
    }
    return status;
}

reshard_status load_in_rounds(const struct shard_list *list, uint64_t budget, list_loader load, void *context, reshard_error *err)
{
    struct load_staging staging = { 0 };
    struct shard_list part = { 0 };
    uint32_t rounds = 0;
    if (!load_is_staged(list))
        return load(context, list, err);
    if (list->count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu shards", list->count);
    struct load_round *shards = array_zeroed(list->count, sizeof(*shards));
    part.shards = array_zeroed(list->count, sizeof(*part.shards));
    reshard_status status = shards && part.shards ? list_deal(list, budget, shards, &rounds, err) : error_set_memory(err);
    if (!status)
        status = load_staging_new(shards, (uint32_t)list->count, 0, rounds, &staging, err);
    for (uint32_t round = 0; round < rounds && !status; round++) {
        round_take(list, shards, round, &staging, &part);
        status = load(context, &part, err);
        if (!status)
            status = list_write(&part, err);
    }
    load_staging_release(&staging);
    free(part.shards);
    free(shards);
    return status;
}
