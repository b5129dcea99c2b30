/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/kept_transfers.h"

#include "base/hash.h"
#include "names/mapping_pack.h"

#include <inttypes.h>
#include <stdlib.h>

#define KEPT_MAGIC "RSHTRANS"
#define KEPT_VERSION 1
#define KEPT_RANK_BYTES 16 /* that a rank takes at least: two empty lists */

static const char run_call[] = "reshard_transfers_run";

void kept_transfers_release(struct kept_transfers *kept)
{
    transfers_release(&kept->transfers);
    buffer_release(&kept->map);
    *kept = (struct kept_transfers){ 0 };
}

/* Where the shards of a rank begin within a list of all ranks, which is in their order. */
static size_t rank_first(const struct shard_list *all, uint32_t rank)
{
    size_t first = 0, end = all->count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (all->shards[middle].writer < rank)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static struct shard_list rank_part(const struct shard_list *all, uint32_t rank)
{
    const size_t first = rank_first(all, rank);
    return (struct shard_list){ .shards = all->count ? all->shards + first : NULL, .count = rank_first(all, rank + 1) - first };
}

/* ---- as bytes ---- */

reshard_status kept_transfer_at(const struct kept_transfers *kept, uint32_t index, struct kept_transfer *out, reshard_error *err)
{
    const struct transfers *transfers = &kept->transfers;
    const struct plan_step *step = &transfers->plan->steps[index];
    const struct shard *source = transfers_source(transfers, index);
    const uint32_t target = transfers->target->chunks[step->target_chunk].object;
    struct exchange_copy copy;
    out->step = transfers_step(transfers, index, &out->bytes);
    out->key = transfers->targets.shards[target].key;
    reshard_status status = transfers_copy(transfers, index, &copy, err);
    if (status)
        return status;
    out->source_key = source->key;
    out->source_shard = (uint32_t)((size_t)(source - transfers->sources.shards) - rank_first(&transfers->sources, out->step.from));
    out->target_shard = target - (uint32_t)rank_first(&transfers->targets, out->step.to);
    out->source_offset = (uint64_t)((uintptr_t)copy.source - (uintptr_t)source->data);
    out->target_offset = (uint64_t)((uintptr_t)copy.target - (uintptr_t)transfers->targets.shards[target].data);
    out->spec = copy.spec;
    copy_simplify(&out->spec);
    return RESHARD_OK;
}

/* Types that elements pass through. */
static void kept_casts_pack(const struct copy_spec *spec, struct buffer *out)
{
    buffer_append_u32le(out, spec->via_count);
    for (unsigned i = 0; i < spec->via_count; i++) {
        const struct str name = str_of(dtype_info(spec->via[i])->name);
        buffer_append_u32le(out, (uint32_t)name.size);
        buffer_append_str(out, name);
    }
}

static void kept_transfer_pack(const struct kept_transfer *transfer, struct buffer *out)
{
    const uint32_t numbers[] = { transfer->step.from, transfer->step.to, transfer->source_shard, transfer->target_shard };
    const struct copy_spec *spec = &transfer->spec;
    const int64_t *vectors[] = { spec->extent, spec->source_stride, spec->target_stride };
    for (int i = 0; i < 4; i++)
        buffer_append_u32le(out, numbers[i]);
    buffer_append_u64le(out, transfer->source_offset);
    buffer_append_u64le(out, transfer->target_offset);
    buffer_append_u64le(out, transfer->bytes);
    buffer_append_u32le(out, (uint32_t)spec->rank);
    for (int i = 0; i < 3; i++)
        for (int axis = 0; axis < spec->rank; axis++)
            buffer_append_u64le(out, (uint64_t)vectors[i][axis]);
    kept_casts_pack(spec, out);
}

reshard_status kept_transfers_pack(const struct kept_transfers *kept, struct buffer *out, reshard_error *err)
{
    const struct transfers *transfers = &kept->transfers;
    reshard_status status = RESHARD_OK;
    buffer_append(out, KEPT_MAGIC, sizeof(KEPT_MAGIC) - 1);
    buffer_append_u32le(out, KEPT_VERSION);
    buffer_append_u32le(out, transfers->rank_count);
    buffer_append_u64le(out, kept->scratch_bytes);
    buffer_append_u64le(out, kept->map.size);
    buffer_append_str(out, buffer_str(&kept->map));
    for (uint32_t rank = 0; rank < transfers->rank_count; rank++) {
        const struct shard_list source = rank_part(&transfers->sources, rank), target = rank_part(&transfers->targets, rank);
        shard_list_pack(&source, false, out);
        shard_list_pack(&target, false, out);
    }
    buffer_append_u64le(out, transfers->plan->step_count);
    for (uint32_t i = 0; i < transfers->plan->step_count && !status; i++) {
        struct kept_transfer transfer;
        status = kept_transfer_at(kept, i, &transfer, err);
        if (!status)
            kept_transfer_pack(&transfer, out);
    }
    if (!status && !out->failed)
        buffer_append_u64le(out, hash64(out->data, out->size, 0));
    return status ? status : out->failed ? buffer_error(out, err) : RESHARD_OK;
}

/* The hash is what stands at the end of the bytes. */
static reshard_status kept_hash(struct kept_transfers *kept, reshard_error *err)
{
    struct buffer packed = { 0 };
    reshard_status status = kept_transfers_pack(kept, &packed, err);
    if (!status)
        kept->hash = load_le(packed.data + packed.size - 8, 8);
    buffer_release(&packed);
    return status;
}

static reshard_status kept_head(struct cursor *cursor, struct kept_transfers *out, uint32_t *ranks, reshard_error *err)
{
    struct str magic;
    uint32_t version;
    if (!cursor_bytes(cursor, sizeof(KEPT_MAGIC) - 1, &magic) || !str_is(magic, KEPT_MAGIC) || !cursor_u32le(cursor, &version))
        return error_set_at(err, RESHARD_ERR_FORMAT, 0, "no plan of transfers: it does not begin with " KEPT_MAGIC);
    if (version != KEPT_VERSION)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, 8, "a plan of transfers of version %" PRIu32 ": this library reads version %d",
                            version, KEPT_VERSION);
    if (!cursor_u32le(cursor, ranks) || !cursor_u64le(cursor, &out->scratch_bytes) || !*ranks || *ranks > COMM_SIZE_MAX ||
        *ranks > cursor_left(cursor) / KEPT_RANK_BYTES)
        return error_set_at(err, RESHARD_ERR_FORMAT, 12, "a plan of transfers of %zu bytes that is cut off, or among no ranks",
                            cursor->size);
    return RESHARD_OK;
}

/* The mapping that the bytes hold, which lies in arena. out->map is empty if there is none. */
static reshard_status kept_map(struct cursor *cursor, struct kept_transfers *out, struct arena *arena, struct mapping_options *map,
                               reshard_error *err)
{
    uint64_t size;
    struct str bytes;
    if (!cursor_u64le(cursor, &size) || !cursor_bytes(cursor, size, &bytes))
        return error_set_at(err, RESHARD_ERR_FORMAT, (int64_t)cursor->pos, "a plan of transfers that is cut off in its mapping");
    if (!size)
        return RESHARD_OK;
    return buffer_append_str(&out->map, bytes) ? mapping_unpack(bytes, arena, map, err) : buffer_error(&out->map, err);
}

/* What was planned must come out again, byte for byte: then no transfer can be wrong, twice there or missing. */
static reshard_status kept_compare(struct kept_transfers *kept, struct str bytes, reshard_error *err)
{
    struct buffer made = { .limit = bytes.size };
    reshard_status status = kept_transfers_pack(kept, &made, NULL);
    size_t same = 0;
    while (same < made.size && same < bytes.size && made.data[same] == (uint8_t)bytes.data[same])
        same++;
    if (status || same != bytes.size)
        status = error_set_at(err, RESHARD_ERR_FORMAT, (int64_t)same, "a plan of transfers of %zu bytes that from byte %zu on is not the "
                              "plan of its layouts: damaged, or made by other rules", bytes.size, same);
    else
        kept->hash = load_le(made.data + made.size - 8, 8);
    buffer_release(&made);
    return status;
}

reshard_status kept_transfers_unpack(struct str bytes, struct kept_transfers *out, reshard_error *err)
{
    struct cursor cursor = cursor_over(bytes.data, bytes.size);
    struct shard_list sources = { 0 }, targets = { 0 };
    struct arena arena = { 0 };
    struct mapping_options map;
    uint32_t ranks = 0;
    *out = (struct kept_transfers){ 0 };
    reshard_status status = kept_head(&cursor, out, &ranks, err);
    if (!status)
        status = kept_map(&cursor, out, &arena, &map, err);
    for (uint32_t rank = 0; rank < ranks && !status; rank++) {
        status = shard_list_unpack(&cursor, rank, &sources, err);
        if (!status)
            status = shard_list_unpack(&cursor, rank, &targets, err);
    }
    if (!status)
        status = transfers_make(&out->transfers, &sources, &targets, ranks, out->map.size ? &map : NULL, err);
    shard_list_release(&sources);
    shard_list_release(&targets);
    arena_release(&arena);
    return status ? status : kept_compare(out, bytes, err);
}

/* ---- making ---- */

static reshard_status kept_map_take(const struct kept_transfers_options *options, struct kept_transfers *out, reshard_error *err)
{
    *out = (struct kept_transfers){ .scratch_bytes = options->scratch_bytes };
    return !options->map || mapping_pack(options->map, &out->map) ? RESHARD_OK : error_set_memory(err);
}

reshard_status kept_transfers_make(struct comm *comm, const struct shard_list *source, const struct shard_list *target,
                                   const struct kept_transfers_options *options, struct kept_transfers *out, reshard_error *err)
{
    static const char call[] = "reshard_transfers_new";
    struct redistribution asked = { .scratch_bytes = options->scratch_bytes, .map = options->map };
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status begun = kept_map_take(options, out, &why);
    reshard_status status = comm_agree(comm, call, begun, &why);
    if (!status)
        status = transfers_make_together(comm, call, source, target, &asked, &out->transfers, &why);
    if (status) /* the ranks know */
        return error_pass(err, status, &why);
    out->scratch_bytes = asked.scratch_bytes;
    status = comm_agree(comm, call, kept_hash(out, &why), &why);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

static reshard_status lists_join(const struct shard_list *const *lists, uint32_t ranks, struct shard_list *out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (size_t i = 0; lists && lists[rank] && i < lists[rank]->count && !status; i++) {
            struct shard shard = lists[rank]->shards[i];
            shard.writer = rank;
            shard.is_elsewhere = true;
            shard.is_written = false;
            shard.data = NULL;
            shard.read = NULL;
            shard.write = NULL;
            status = shard_list_add(out, &shard, err);
        }
    }
    return status;
}

reshard_status kept_transfers_plan(const struct shard_list *const *sources, const struct shard_list *const *targets, uint32_t ranks,
                                   const struct kept_transfers_options *options, struct kept_transfers *out, reshard_error *err)
{
    struct shard_list all_sources = { 0 }, all_targets = { 0 };
    reshard_status begun = kept_map_take(options, out, err);
    if (begun)
        return begun;
    out->scratch_bytes = options->scratch_bytes ? options->scratch_bytes : EXCHANGE_SCRATCH_BYTES;
    reshard_status status = lists_join(sources, ranks, &all_sources, err);
    if (!status)
        status = lists_join(targets, ranks, &all_targets, err);
    if (!status)
        status = transfers_make(&out->transfers, &all_sources, &all_targets, ranks, options->map, err);
    shard_list_release(&all_sources);
    shard_list_release(&all_targets);
    return status ? status : kept_hash(out, err);
}

/* ---- running ---- */

static bool vectors_are_equal(int rank, const int64_t *a, const int64_t *b)
{
    return (!a && !b) || (a && b && shape_equal(rank, a, rank, b));
}

static bool shards_are_equal(const struct shard *a, const struct shard *b)
{
    return str_equal(a->key, b->key) && a->dtype == b->dtype && a->rank == b->rank && vectors_are_equal(a->rank, a->shape, b->shape) &&
           vectors_are_equal(a->rank, a->start, b->start) && vectors_are_equal(a->rank, a->extent, b->extent) &&
           a->is_flattened == b->is_flattened && (!a->is_flattened || (a->flat_begin == b->flat_begin && a->flat_end == b->flat_end)) &&
           vectors_are_equal(a->rank, a->strides, b->strides);
}

/* Takes over where this rank's values lie; the layout must be that of the plan. */
static reshard_status places_take(struct shard_list *kept, const struct shard_list *given, const char *what, reshard_error *err)
{
    if (kept->count != given->count)
        return error_set(err, RESHARD_ERR_USAGE, "the plan has %zu %s shards of this rank, the list %zu", kept->count, what, given->count);
    for (size_t i = 0; i < given->count; i++) {
        const struct shard *shard = &given->shards[i];
        uint64_t bytes;
        if (!shards_are_equal(&kept->shards[i], shard))
            return error_set(err, RESHARD_ERR_USAGE, "%s shard %zu, of tensor '%.*s', is not the one that was planned with, of '%.*s': the "
                             "layout has changed", what, i, STR_ARG(shard->key), STR_ARG(kept->shards[i].key));
        if (!shard->data && shard_span(shard, &bytes) && bytes)
            return error_set(err, RESHARD_ERR_USAGE, "%s shard %zu, of tensor '%.*s', has no values", what, i, STR_ARG(shard->key));
        kept->shards[i].data = shard->data;
    }
    return RESHARD_OK;
}

/* What a rank tells the others: which plan it has, and where they share memory the places of what it gives. */
static reshard_status places_exchange(struct kept_transfers *kept, struct comm *comm, const struct shard_list *source, reshard_error *err)
{
    struct comm_gathered gathered = { 0 };
    struct buffer own = { 0 };
    buffer_append_u64le(&own, kept->hash);
    for (size_t i = 0; i < source->count && comm_shares_memory(comm); i++)
        buffer_append_u64le(&own, (uint64_t)(uintptr_t)source->shards[i].data);
    reshard_status status = comm_agree(comm, run_call, own.failed ? buffer_error(&own, err) : RESHARD_OK, err);
    if (!status)
        status = comm_all_gather(comm, run_call, own.data, own.size, &gathered, err);
    for (uint32_t rank = 0; rank < comm_size(comm) && !status; rank++) {
        struct cursor cursor = cursor_over(gathered.parts[rank].data, gathered.parts[rank].size);
        struct shard_list part = rank_part(&kept->transfers.sources, rank);
        uint64_t number;
        if (!cursor_u64le(&cursor, &number) || number != kept->hash)
            status = error_set(err, RESHARD_ERR_USAGE, "rank %u has another plan than rank %u", rank, comm_rank(comm));
        for (size_t i = 0; i < part.count && comm_shares_memory(comm) && !status; i++)
            if (cursor_u64le(&cursor, &number))
                part.shards[i].data = (uint8_t *)(uintptr_t)number;
    }
    comm_gathered_release(&gathered);
    buffer_release(&own);
    return status;
}

reshard_status kept_transfers_run(struct kept_transfers *kept, struct comm *comm, const struct shard_list *source,
                                  const struct shard_list *target, struct redistribution *redistribution, reshard_error *err)
{
    reshard_error why = RESHARD_ERROR_INIT;
    reshard_status status = RESHARD_OK;
    struct shard_list own_source = rank_part(&kept->transfers.sources, comm_rank(comm));
    struct shard_list own_target = rank_part(&kept->transfers.targets, comm_rank(comm));
    if (comm_size(comm) != kept->transfers.rank_count)
        status = error_set(&why, RESHARD_ERR_USAGE, "a plan for %" PRIu32 " ranks, in a group of %" PRIu32, kept->transfers.rank_count,
                           comm_size(comm));
    if (!status)
        status = places_take(&own_source, source, "source", &why);
    if (!status)
        status = places_take(&own_target, target, "target", &why);
    status = comm_agree(comm, run_call, status, &why);
    if (!status)
        status = places_exchange(kept, comm, source, &why);
    if (!status)
        status = transfers_run(comm, run_call, &kept->transfers, kept->scratch_bytes, redistribution, &why);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}
