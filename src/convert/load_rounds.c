/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/load_rounds.h"

#include "base/array.h"
#include "base/checked.h"

#include <stdlib.h>

#define STAGING_ALIGNMENT 64
#define STAGING_DEFAULT ((uint64_t)128 << 20)

uint64_t load_staging_budget(const struct engine_options *options)
{
    return options->memory_bytes ? options->memory_bytes : STAGING_DEFAULT;
}

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
    uint64_t *more; /* by rank, of a reader's shards; zeros between */
    uint64_t budget;
    uint32_t ranks, round;
};

static bool rank_fits(const struct dealing *dealing, uint32_t rank)
{
    const uint64_t used = dealing->used[rank], more = dealing->more[rank];
    return !used || !more || (used <= dealing->budget && more <= dealing->budget - used);
}

/* A reader's shards: its own first, then those that are copied from it. */
static void dealing_take(struct dealing *dealing, uint32_t reader)
{
    const uint32_t end = UINT32_MAX;
    bool fits = true;
    for (uint32_t i = reader; i != end; i = dealing->next[i]) {
        uint64_t *more = &dealing->more[dealing->shards[i].rank];
        *more = capped_add_u64(*more, room_bytes(dealing->shards[i].bytes));
        fits = fits && rank_fits(dealing, dealing->shards[i].rank);
    }
    if (!fits) {
        dealing->round++;
        memset(dealing->used, 0, dealing->ranks * sizeof(*dealing->used));
    }
    for (uint32_t i = reader; i != end; i = dealing->next[i]) {
        const uint32_t rank = dealing->shards[i].rank;
        dealing->shards[i].round = dealing->round;
        dealing->used[rank] = capped_add_u64(dealing->used[rank], dealing->more[rank]);
        dealing->more[rank] = 0;
    }
}

reshard_status load_rounds_deal(struct load_round *shards, uint32_t count, uint32_t ranks, uint64_t budget, uint32_t *rounds,
                                reshard_error *err)
{
    struct dealing dealing = { .shards = shards,
                               .next = array_zeroed(count, sizeof(*dealing.next)),
                               .used = array_zeroed(ranks, sizeof(*dealing.used)),
                               .more = array_zeroed(ranks, sizeof(*dealing.more)),
                               .budget = budget,
                               .ranks = ranks };
    const bool is_there = dealing.next && dealing.used && dealing.more;
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
    free(dealing.more);
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
            bytes[shards[i].round] = capped_add_u64(bytes[shards[i].round], room_bytes(shards[i].bytes));
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

/* ---- progress ---- */

static void progress_add(struct engine_progress *sum, const struct engine_progress *more)
{
    sum->bytes_done += more->bytes_done;
    sum->bytes_read += more->bytes_read;
    sum->bytes_written += more->bytes_written;
}

static bool progress_tell(const struct engine_progress *round, void *context)
{
    struct load_progress *progress = context;
    struct engine_progress sum = *round;
    progress->last = *round;
    progress_add(&sum, &progress->before);
    sum.bytes_total = progress->total > sum.bytes_done ? progress->total : sum.bytes_done;
    return progress->all->progress(&sum, progress->all->context);
}

struct engine_options load_progress_options(struct load_progress *progress)
{
    struct engine_options options = *progress->all;
    progress_add(&progress->before, &progress->last);
    progress->last = (struct engine_progress){ 0 };
    if (options.progress && progress->total) {
        options.progress = progress_tell;
        options.context = progress;
    }
    return options;
}

/* ---- a list of one rank ---- */

reshard_status load_target_check(const struct shard *shard, reshard_error *err)
{
    if (shard->read && !shard->write)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': it has a function that gives values (read), and none that takes them (write)",
                         STR_ARG(shard->key));
    return RESHARD_OK;
}

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

static uint64_t list_bytes(const struct shard_list *list)
{
    uint64_t sum = 0, bytes;
    for (size_t i = 0; i < list->count; i++) {
        if ((list->shards[i].data || list->shards[i].write) && shard_bytes(&list->shards[i], &bytes))
            sum = capped_add_u64(sum, bytes);
    }
    return sum;
}

reshard_status load_in_rounds(const struct shard_list *list, const struct engine_options *options, list_loader load, void *context,
                              reshard_error *err)
{
    struct load_progress progress = { .all = options, .total = list_bytes(list) };
    struct load_staging staging = { 0 };
    struct shard_list part = { 0 };
    uint32_t rounds = 0;
    if (!load_is_staged(list))
        return load(context, list, options, err);
    if (list->count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu shards", list->count);
    struct load_round *shards = array_zeroed(list->count, sizeof(*shards));
    part.shards = array_zeroed(list->count, sizeof(*part.shards));
    reshard_status status =
        shards && part.shards ? list_deal(list, load_staging_budget(options), shards, &rounds, err) : error_set_memory(err);
    if (!status)
        status = load_staging_new(shards, (uint32_t)list->count, 0, rounds, &staging, err);
    for (uint32_t round = 0; round < rounds && !status; round++) {
        round_take(list, shards, round, &staging, &part);
        const struct engine_options own = load_progress_options(&progress);
        status = load(context, &part, &own, err);
        if (!status)
            status = list_write(&part, err);
    }
    load_staging_release(&staging);
    free(part.shards);
    free(shards);
    return status;
}
