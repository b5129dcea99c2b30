/* SPDX-License-Identifier: Apache-2.0 */
/* Loading together: which rank reads what, and the bytes from those who read to those who want them too. */
#include "api/load_call.h"
#include "base/array.h"
#include "base/checked.h"
#include "convert/load_rounds.h"
#include "convert/redistribute.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- reading ---- */

/* The part of a tensor that the checkpoint has: of the same extents, or, where it allows others, what the two have in common. */
struct stored_part {
    int64_t start[RANK_MAX + 1], extent[RANK_MAX + 1], strides[RANK_MAX + 1];
    struct shard shard;
    bool is_empty;
};

static reshard_status mismatch_error(const struct shard *shard, int rank, const int64_t *stored, reshard_error *err)
{
    char found[SHAPE_TEXT_MAX], expected[SHAPE_TEXT_MAX];
    return error_set(err, RESHARD_ERR_USAGE, "Global shape mismatch for loaded (%s) and expected (%s) tensor for key %.*s",
                     shape_text(rank, stored, ", ", found), shape_text(shard->rank, shard->shape, ", ", expected), STR_ARG(shard->key));
}

static reshard_status part_cut(const struct sharded_tensor *tensor, const int64_t *stored, struct stored_part *out, reshard_error *err)
{
    static const int64_t origin[RANK_MAX + 1];
    const struct shard *shard = &tensor->shard;
    int64_t at = 0;
    unsigned element = dtype_element_bytes(shard->dtype);
    if (shard->is_flattened || !element)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': a flat range, or elements of parts of bytes, of another global shape",
                         STR_ARG(shard->key));
    if (shard->strides)
        memcpy(out->strides, shard->strides, (size_t)shard->rank * sizeof(*out->strides));
    else
        strides_row_major(shard->rank, shard->extent, out->strides);
    out->is_empty = !box_intersect(shard->rank, shard->start, shard->extent, origin, stored, out->start, out->extent);
    for (int axis = 0; axis < shard->rank && !out->is_empty; axis++)
        at += (out->start[axis] - shard->start[axis]) * out->strides[axis];
    out->shard = *shard;
    out->shard.shape = stored;
    out->shard.start = out->start;
    out->shard.extent = out->extent;
    out->shard.strides = out->strides;
    out->shard.data = shard->data + (uint64_t)at * element;
    return RESHARD_OK;
}

static void values_clear(const struct shard *shard)
{
    uint64_t bytes;
    const unsigned element = dtype_element_bytes(shard->dtype);
    int64_t index[RANK_MAX + 1], volume = box_volume(shard->rank, shard->extent);
    if (!shard->strides) {
        if (shard_bytes(shard, &bytes))
            memset(shard->data, 0, bytes);
        return;
    }
    for (int64_t i = 0; i < volume; i++) {
        int64_t at = 0;
        shape_unravel(shard->rank, shard->extent, i, index);
        for (int axis = 0; axis < shard->rank; axis++)
            at += index[axis] * shard->strides[axis];
        memset(shard->data + (uint64_t)at * element, 0, element);
    }
}

static const int64_t *stored_shape(const struct load_call *call, struct str key, int *rank)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    struct memory_tensor found = { .rank = 0 };
    if (call->named) {
        bool is_there = memory_names_find(&call->names, key, &found);
        *rank = found.rank;
        return is_there ? found.shape : NULL;
    }
    int64_t index = reshard_tensor_find(call->checkpoint, key.data, key.size);
    if (index < 0)
        return NULL;
    reshard_tensor_at(call->checkpoint, (size_t)index, &tensor);
    *rank = tensor.rank;
    return tensor.shape;
}

static bool shapes_equal(const struct shard *shard, int rank, const int64_t *stored)
{
    return shard->rank == rank && (rank == 0 || memcmp(shard->shape, stored, (size_t)rank * sizeof(*stored)) == 0);
}

/* Adds what this rank reads of a tensor. */
static reshard_status reading_add(struct load_call *call, const struct sharded_tensor *tensor, reshard_shards *reading, reshard_error *err)
{
    struct stored_part part = { .is_empty = false };
    int rank = 0;
    const int64_t *stored = stored_shape(call, tensor->shard.key, &rank);
    if (!stored && rank == 0)
        return load_unexpected_error(call, tensor->shard.key, err);
    part.shard = tensor->shard;
    if (!shapes_equal(&tensor->shard, rank, stored)) {
        if (!tensor->allows_mismatch || tensor->shard.rank != rank)
            return mismatch_error(&tensor->shard, rank, stored, err);
        reshard_status status = part_cut(tensor, stored, &part, err);
        if (status)
            return status;
        values_clear(&tensor->shard);
    }
    return part.is_empty ? RESHARD_OK : shard_list_add(&reading->list, &part.shard, err);
}

/* Whether one rank reads for both: what they ask for is the same. */
static bool is_exchanged(const struct sharded_tensor *owner, const struct sharded_tensor *other)
{
    const struct shard *a = &owner->shard, *b = &other->shard;
    return a->dtype == b->dtype && owner->allows_mismatch == other->allows_mismatch && shard_takes_values(a) && shard_takes_values(b) &&
           shapes_equal(a, b->rank, b->shape);
}

/* ---- rounds ---- */

/* What the ranks read and send in one round after the other; a single one where nothing is staged. */
struct values_call {
    struct load_call *call;
    struct spread_owner **owners; /* NULL: each rank reads what it asks for */
    uint32_t **numbers;           /* by rank and tensor: in shards. NULL: nothing is staged */
    struct load_round *shards;
    uint32_t count, rounds;
    struct load_staging staging; /* of this rank */
    struct load_progress progress;
    struct sharded_dict *own; /* the tensors of this rank, which have memory in their round */
};

static void values_release(struct values_call *values)
{
    for (uint32_t r = 0; values->numbers && r < values->call->group.size; r++)
        free(values->numbers[r]);
    free(values->numbers);
    free(values->shards);
    load_staging_release(&values->staging);
    sharded_owners_free(values->owners, values->call->group.size);
}

/* The tensor that is read for tensor i of a rank; itself if its own rank does. */
static const struct sharded_tensor *read_for(const struct values_call *values, uint32_t rank, size_t index, uint32_t *reader)
{
    const struct sharded_dict *const *ranks = values->call->group.ranks;
    const struct sharded_tensor *own = &ranks[rank]->tensors[index];
    const struct spread_owner *owner = values->owners ? &values->owners[rank][index] : NULL;
    *reader = rank;
    if (values->call->named && memory_names_leave(&values->call->names, own->shard.key))
        return own; /* what stays as it is may be another on each rank */
    if (!owner || owner->rank == SPREAD_NONE || (owner->rank == rank && owner->index == index))
        return own;
    const struct sharded_tensor *other = &ranks[owner->rank]->tensors[owner->index];
    if (owner->rank == rank || !is_exchanged(other, own))
        return own;
    *reader = owner->rank;
    return other;
}

static bool is_staged(const struct load_call *call, const struct shard *shard)
{
    return shard->is_written && load_is_stored(call, shard->key);
}

static bool some_are_staged(const struct load_call *call)
{
    for (uint32_t r = 0; r < call->group.size; r++) {
        for (size_t i = 0; i < call->group.ranks[r]->tensor_count; i++) {
            if (is_staged(call, &call->group.ranks[r]->tensors[i].shard))
                return true;
        }
    }
    return false;
}

/* Numbers all tensors, the first of each rank before the second of any: ranks read side by side. */
static reshard_status values_number(struct values_call *values, reshard_error *err)
{
    const struct sharded_group *group = &values->call->group;
    size_t total = 0, longest = 0;
    values->numbers = array_zeroed(group->size, sizeof(*values->numbers));
    for (uint32_t r = 0; values->numbers && r < group->size; r++) {
        const size_t count = group->ranks[r]->tensor_count;
        total += count;
        longest = count > longest ? count : longest;
        values->numbers[r] = array_zeroed(count, sizeof(*values->numbers[r]));
        if (!values->numbers[r])
            return error_set_memory(err);
    }
    if (total >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu tensors of all ranks", total);
    values->shards = values->numbers ? array_zeroed(total, sizeof(*values->shards)) : NULL;
    if (!values->shards)
        return error_set_memory(err);
    for (size_t i = 0; i < longest; i++) {
        for (uint32_t r = 0; r < group->size; r++) {
            if (i < group->ranks[r]->tensor_count)
                values->numbers[r][i] = values->count++;
        }
    }
    return RESHARD_OK;
}

static reshard_status values_deal(struct values_call *values, reshard_error *err)
{
    const struct load_call *call = values->call;
    reshard_status status = values_number(values, err);
    for (uint32_t r = 0; r < call->group.size && !status; r++) {
        for (size_t i = 0; i < call->group.ranks[r]->tensor_count && !status; i++) {
            const struct shard *shard = &call->group.ranks[r]->tensors[i].shard;
            struct load_round *dealt = &values->shards[values->numbers[r][i]];
            uint32_t reader;
            const struct sharded_tensor *read = read_for(values, r, i, &reader);
            *dealt = (struct load_round){ .rank = r, .reader = values->numbers[reader][read - call->group.ranks[reader]->tensors] };
            if (is_staged(call, shard) && !shard_bytes(shard, &dealt->bytes))
                status = error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': no whole number of bytes", STR_ARG(shard->key));
        }
    }
    if (!status)
        status = load_rounds_deal(values->shards, values->count, call->group.size, call->staging_bytes, &values->rounds, err);
    if (!status)
        status = load_staging_new(values->shards, values->count, call->group.rank, values->rounds, &values->staging, err);
    return status;
}

static uint64_t own_bytes(const struct values_call *values)
{
    uint64_t sum = 0, bytes;
    for (size_t i = 0; i < values->own->tensor_count; i++) {
        const struct shard *shard = &values->own->tensors[i].shard;
        uint32_t reader;
        read_for(values, values->call->group.rank, i, &reader);
        if (reader == values->call->group.rank && load_is_stored(values->call, shard->key) && shard_takes_values(shard) &&
            shard_bytes(shard, &bytes))
            sum = capped_add_u64(sum, bytes);
    }
    return sum;
}

static reshard_status values_begin(struct values_call *values, reshard_error *err)
{
    const struct sharded_group *group = &values->call->group;
    reshard_status status = RESHARD_OK;
    values->own = &values->call->group.dicts[group->rank];
    values->rounds = 1;
    if (group->size > 1 && !values->call->given.no_exchange) {
        status = sharded_owners_new(group->ranks, group->size, &values->owners, err);
        if (!status)
            status = sharded_spread(group->ranks, group->size, SPREAD_TO_LOAD, values->owners, err);
    }
    const bool has_rounds = !status && some_are_staged(values->call);
    values->progress = (struct load_progress){ .all = &values->call->running.engine, .total = has_rounds ? own_bytes(values) : 0 };
    return has_rounds ? values_deal(values, err) : status;
}

static bool is_in_round(const struct values_call *values, uint32_t rank, size_t index, uint32_t round)
{
    return !values->numbers || values->shards[values->numbers[rank][index]].round == round;
}

/* Tensors of this rank that are staged in this round get memory. */
static void round_stage(struct values_call *values, uint32_t round)
{
    const uint32_t rank = values->call->group.rank;
    values->staging.used = 0;
    for (size_t i = 0; values->numbers && i < values->own->tensor_count; i++) {
        struct shard *shard = &values->own->tensors[i].shard;
        if (is_in_round(values, rank, i, round) && is_staged(values->call, shard))
            shard->data = load_staging_room(&values->staging, values->shards[values->numbers[rank][i]].bytes);
    }
}

/* Hands over what is staged. */
static reshard_status round_write(struct values_call *values, uint32_t round, reshard_error *err)
{
    const uint32_t rank = values->call->group.rank;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; values->numbers && i < values->own->tensor_count; i++) {
        struct shard *shard = &values->own->tensors[i].shard;
        if (!is_in_round(values, rank, i, round) || !is_staged(values->call, shard))
            continue;
        if (!status)
            status = load_write(shard, shard->data, err);
        shard->data = NULL;
    }
    return status;
}

static reshard_status round_collect(struct values_call *values, uint32_t round, reshard_shards *reading, reshard_error *err)
{
    const uint32_t rank = values->call->group.rank;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < values->own->tensor_count && !status; i++) {
        const struct sharded_tensor *tensor = &values->own->tensors[i];
        uint32_t reader;
        if (!is_in_round(values, rank, i, round) || !tensor->shard.data || !load_is_stored(values->call, tensor->shard.key))
            continue;
        read_for(values, rank, i, &reader);
        if (reader == rank)
            status = reading_add(values->call, tensor, reading, err);
    }
    return status;
}

static reshard_status round_read(struct values_call *values, uint32_t round, reshard_error *err)
{
    struct load_call *call = values->call;
    reshard_shards *reading = NULL;
    reshard_status status = reshard_shards_new(&reading, err);
    if (!status) {
        round_stage(values, round);
        status = round_collect(values, round, reading, err);
    }
    const struct engine_options own = load_progress_options(&values->progress);
    if (!status && call->named)
        status = memory_load(call->named, &call->names, &reading->list, &own, err);
    else if (!status)
        status = load_list(call->checkpoint, &reading->list, &own, err);
    reshard_shards_free(reading);
    return status;
}

/* ---- from rank to rank ---- */

/* Pieces that lie with strides on one side or both: a transfer from the one who has read it to each that asks for it. */
struct strided_pieces {
    struct shard_list sources, targets; /* this rank's; each piece under a key of its own */
    struct name_map keys;               /* of sources */
    bool are_there;                     /* on some rank */
};

static reshard_status strided_add(struct strided_pieces *pieces, const struct sharded_group *group, const struct sharded_tensor *read,
                                  uint32_t reader, const struct sharded_tensor *tensor, uint32_t rank, reshard_error *err)
{
    struct buffer key = { 0 };
    struct shard source = read->shard, target = tensor->shard; /* with memory: what is staged has some */
    bool is_new = false;
    buffer_printf(&key, "%.*s, tensor %zu of rank %" PRIu32, STR_ARG(source.key), (size_t)(read - group->ranks[reader]->tensors), reader);
    source.key = target.key = buffer_str(&key);
    source.read = target.read = NULL;
    source.write = target.write = NULL;
    pieces->are_there = true;
    bool is_good = !key.failed && (reader != group->rank || name_map_intern(&pieces->keys, source.key, &is_new) != NAME_NONE);
    reshard_status status = is_good ? RESHARD_OK : error_set_memory(err);
    if (!status && is_new)
        status = shard_list_add(&pieces->sources, &source, err);
    if (!status && rank == group->rank)
        status = shard_list_add(&pieces->targets, &target, err);
    buffer_release(&key);
    return status;
}

/* All ranks come here if there is such a piece on any. */
static reshard_status strided_run(const struct sharded_group *group, struct strided_pieces *pieces, reshard_status status,
                                  reshard_error *err)
{
    struct transfers transfers = { .plan = NULL };
    struct redistribution asked = { .scratch_bytes = 0 };
    if (!status && pieces->are_there)
        status = transfers_make_together(group->comm, group->call, &pieces->sources, &pieces->targets, &asked, &transfers, err);
    if (!status && pieces->are_there)
        status = transfers_run(group->comm, group->call, &transfers, asked.scratch_bytes, &asked, err);
    transfers_release(&transfers);
    shard_list_release(&pieces->sources);
    shard_list_release(&pieces->targets);
    name_map_release(&pieces->keys);
    return status;
}

/* Bytes from those who have read them; all ranks see all messages in one order. */
static reshard_status round_exchange(struct values_call *values, uint32_t round, reshard_error *err)
{
    const struct sharded_group *group = &values->call->group;
    struct strided_pieces strided = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t r = 0; r < group->size && values->owners && !status; r++) {
        for (size_t i = 0; i < group->ranks[r]->tensor_count && !status; i++) {
            const struct sharded_tensor *tensor = &group->ranks[r]->tensors[i];
            uint64_t bytes = 0;
            uint32_t reader;
            if (!is_in_round(values, r, i, round))
                continue;
            const struct sharded_tensor *read = read_for(values, r, i, &reader);
            if (reader == r || !load_is_stored(values->call, tensor->shard.key) || !shard_bytes(&tensor->shard, &bytes))
                continue;
            if (tensor->shard.strides || read->shard.strides)
                status = bytes ? strided_add(&strided, group, read, reader, tensor, r, err) : RESHARD_OK;
            else if (r == group->rank)
                status = comm_recv(group->comm, reader, tensor->shard.data, bytes, err);
            else if (reader == group->rank)
                status = comm_send(group->comm, r, read->shard.data, bytes, err);
        }
    }
    if (values->owners && status)
        comm_abort(group->comm, err->message); /* the others wait for what is not sent */
    if (values->owners && !status)
        status = comm_run(group->comm, group->call, err);
    return strided_run(group, &strided, status, err);
}

/* ---- the whole ---- */

reshard_status load_values(struct load_call *call, reshard_error *err)
{
    struct values_call values = { .call = call };
    reshard_status status = group_agree(&call->group, values_begin(&values, err), err);
    reshard_status written = RESHARD_OK; /* of the round before */
    for (uint32_t round = 0; round < values.rounds && !status; round++) {
        status = group_agree(&call->group, written ? written : round_read(&values, round, err), err);
        if (!status)
            status = round_exchange(&values, round, err);
        if (!status)
            written = round_write(&values, round, err);
    }
    values_release(&values);
    return status ? status : group_agree(&call->group, written, err);
}
