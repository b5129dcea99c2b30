/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/redistribute.h"

#include "base/array.h"
#include "base/hash.h"
#include "names/mapping_pack.h"

#include <inttypes.h>
#include <stdlib.h>

/* Values go from memory to memory. */
static reshard_status functions_refuse(const struct shard_list *list, reshard_error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        const struct shard *shard = &list->shards[i];
        if (shard->read || shard->write)
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': values that functions give or take are not redistributed",
                             STR_ARG(shard->key));
    }
    return RESHARD_OK;
}

/* What a rank tells the others: its scratch, which mapping it has, and both lists. */
static reshard_status redistribute_pack(const struct shard_list *source, const struct shard_list *target,
                                        const struct redistribution *asked, struct buffer *out, reshard_error *err)
{
    struct buffer map = { 0 };
    reshard_status status = functions_refuse(source, err);
    if (!status)
        status = functions_refuse(target, err);
    if (status)
        return status;
    if (asked->map && !mapping_pack(asked->map, &map)) {
        buffer_release(&map);
        return error_set_memory(err);
    }
    buffer_append_u64le(out, asked->scratch_bytes ? asked->scratch_bytes : EXCHANGE_SCRATCH_BYTES);
    buffer_append_u64le(out, map.size ? hash64(map.data, map.size, 0) : 0);
    buffer_release(&map);
    return shard_list_pack(source, true, out) && shard_list_pack(target, true, out) ? RESHARD_OK : buffer_error(out, err);
}

struct message_head {
    uint64_t scratch_bytes; /* the least so far */
    uint64_t map;           /* rank 0's */
};

static reshard_status redistribute_unpack(const struct comm_gathered *gathered, uint32_t rank, struct shard_list *sources,
                                          struct shard_list *targets, struct message_head *head, reshard_error *err)
{
    struct cursor cursor = cursor_over(gathered->parts[rank].data, gathered->parts[rank].size);
    uint64_t scratch = 0, map = 0;
    bool has_head = cursor_u64le(&cursor, &scratch) && cursor_u64le(&cursor, &map);
    reshard_status status = has_head ? RESHARD_OK : error_set(err, RESHARD_ERR_FORMAT, "an empty message");
    if (!status)
        status = shard_list_unpack(&cursor, rank, sources, err);
    if (!status)
        status = shard_list_unpack(&cursor, rank, targets, err);
    if (!status && cursor_left(&cursor))
        status = error_set(err, RESHARD_ERR_FORMAT, "%zu bytes behind its shards", cursor_left(&cursor));
    if (status)
        error_prefix(err, "what rank %u says of its shards", rank);
    if (!status && rank && map != head->map)
        status = error_set(err, RESHARD_ERR_USAGE, "rank %u has another mapping than rank 0", rank);
    *head = (struct message_head){ scratch < head->scratch_bytes ? scratch : head->scratch_bytes, rank ? head->map : map };
    return status;
}

static reshard_status transfers_gather(struct comm *comm, const char *call, const struct buffer *own, struct redistribution *asked,
                                       struct transfers *out, reshard_error *err)
{
    struct comm_gathered gathered;
    struct message_head head = { .scratch_bytes = UINT64_MAX };
    struct shard_list sources = { 0 }, targets = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = comm_all_gather(comm, call, own->data, own->size, &gathered, err);
    if (status)
        return status;
    for (uint32_t rank = 0; rank < comm_size(comm) && !status; rank++)
        status = redistribute_unpack(&gathered, rank, &sources, &targets, &head, &why);
    comm_gathered_release(&gathered);
    asked->scratch_bytes = head.scratch_bytes;
    if (!status)
        status = transfers_make(out, &sources, &targets, comm_size(comm), asked->map, &why);
    shard_list_release(&sources);
    shard_list_release(&targets);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

struct own_steps {
    const struct transfers *transfers;
    struct exchange_step *steps;
    uint32_t *numbers; /* in the plan */
    uint32_t count;
};

static reshard_status own_describe(uint32_t step, struct exchange_copy *out, void *context, reshard_error *err)
{
    const struct own_steps *own = context;
    return transfers_copy(own->transfers, own->numbers[step], out, err);
}

static reshard_status own_steps_find(const struct transfers *transfers, uint32_t rank, struct own_steps *out, uint64_t *moved,
                                     reshard_error *err)
{
    const uint32_t count = transfers->plan->step_count;
    *moved = 0;
    *out = (struct own_steps){ .transfers = transfers,
                               .steps = array_zeroed(count, sizeof(*out->steps)),
                               .numbers = array_zeroed(count, sizeof(*out->numbers)) };
    if (!out->steps || !out->numbers)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes;
        const struct exchange_step step = transfers_step(transfers, i, &bytes);
        *moved += step.from != step.to ? bytes : 0;
        if (step.from != rank && step.to != rank)
            continue;
        out->numbers[out->count] = i;
        out->steps[out->count++] = step;
    }
    return RESHARD_OK;
}

reshard_status transfers_run(struct comm *comm, const char *call, const struct transfers *transfers, uint64_t scratch_bytes,
                             struct redistribution *redistribution, reshard_error *err)
{
    struct own_steps own = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = own_steps_find(transfers, comm_rank(comm), &own, &redistribution->moved, &why);
    status = comm_agree(comm, call, status, &why);
    if (!status) {
        const struct exchange exchange = { own.steps, own.count, own_describe, &own, scratch_bytes };
        status = exchange_run(comm, call, &exchange, &redistribution->totals, &why);
    }
    free(own.steps);
    free(own.numbers);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

reshard_status transfers_make_together(struct comm *comm, const char *call, const struct shard_list *source,
                                       const struct shard_list *target, struct redistribution *asked, struct transfers *out,
                                       reshard_error *err)
{
    struct buffer own = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = redistribute_pack(source, target, asked, &own, &why);
    status = comm_agree(comm, call, status, &why);
    if (!status)
        status = transfers_gather(comm, call, &own, asked, out, &why);
    buffer_release(&own);
    /* All see the same descriptions, and find the same faults: what differs is want of memory, about which transfers_run agrees. */
    if (status == RESHARD_ERR_MEMORY)
        comm_abort(comm, why.message);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

reshard_status redistribute(struct comm *comm, const struct shard_list *source, const struct shard_list *target,
                            struct redistribution *redistribution, reshard_error *err)
{
    static const char call[] = "reshard_redistribute";
    struct transfers transfers = { 0 };
    reshard_status status = transfers_make_together(comm, call, source, target, redistribution, &transfers, err);
    if (!status)
        status = transfers_run(comm, call, &transfers, redistribution->scratch_bytes, redistribution, err);
    transfers_release(&transfers);
    return status;
}
