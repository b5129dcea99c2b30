/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of resharding in memory that are kept. */
#include "reshard/transfers.h"

#include "api/api_comm.h"
#include "api/printing.h"
#include "api/redistribution.h"
#include "base/array.h"
#include "convert/kept_transfers.h"

#include <inttypes.h>
#include <stdlib.h>

struct reshard_transfers {
    struct kept_transfers kept;
};

API_EXPORT void reshard_transfers_free(reshard_transfers *transfers)
{
    if (transfers)
        kept_transfers_release(&transfers->kept);
    free(transfers);
}

/* The handle, or none after a failure. */
static reshard_status transfers_end(reshard_transfers *made, reshard_status status, reshard_transfers **out)
{
    if (status)
        reshard_transfers_free(made);
    else
        *out = made;
    return status;
}

static reshard_status transfers_begin(const reshard_redistribute_options *options, struct redistribute_call *call,
                                      reshard_transfers **made, reshard_error *err)
{
    *made = calloc(1, sizeof(**made));
    reshard_status status = redistribute_call_read(options, call, err);
    return *made ? status : error_set_memory(err);
}

API_EXPORT reshard_status reshard_transfers_new(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                                                const reshard_redistribute_options *options, reshard_transfers **out, reshard_error *err)
{
    struct redistribute_call call;
    reshard_transfers *made = NULL;
    reshard_error why = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(comm, err);
    reshard_status status = comm_agree(comm->inner, __func__, transfers_begin(options, &call, &made, &why), &why);
    if (!status)
        status = kept_transfers_make(comm->inner, redistribution_list(source), redistribution_list(target), &call.asked, &made->kept, &why);
    redistribute_call_release(&call);
    status = transfers_end(made, status, out);
    return status ? error_pass(err, status, &why) : RESHARD_OK;
}

static const struct shard_list **transfers_lists(const reshard_shards *const *shards, int64_t ranks)
{
    const struct shard_list **lists = array_zeroed(ranks, sizeof(*lists));
    for (int64_t rank = 0; lists && rank < ranks; rank++)
        lists[rank] = redistribution_list(shards ? shards[rank] : NULL);
    return lists;
}

API_EXPORT reshard_status reshard_transfers_plan(const reshard_shards *const *sources, const reshard_shards *const *targets,
                                                 int64_t ranks, const reshard_redistribute_options *options, reshard_transfers **out,
                                                 reshard_error *err)
{
    struct redistribute_call call;
    reshard_transfers *made = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    if (ranks < 1 || ranks > COMM_SIZE_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "a plan for %" PRId64 " ranks: there are 1 to %d", ranks, COMM_SIZE_MAX);
    const struct shard_list **from = transfers_lists(sources, ranks), **to = transfers_lists(targets, ranks);
    reshard_status status = transfers_begin(options, &call, &made, err);
    if (!status)
        status = from && to ? kept_transfers_plan(from, to, (uint32_t)ranks, &call.asked, &made->kept, err) : error_set_memory(err);
    free(from);
    free(to);
    redistribute_call_release(&call);
    return transfers_end(made, status, out);
}

API_EXPORT reshard_status reshard_transfers_run(reshard_transfers *transfers, reshard_comm *comm, const reshard_shards *source,
                                                const reshard_shards *target, reshard_redistribute_report *report, reshard_error *err)
{
    struct redistribution redistribution = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_redistribute_report", &why);
    NEEDS(comm, err);
    if (!status && !transfers)
        status = argument_missing(__func__, "transfers", &why);
    status = comm_agree(comm->inner, __func__, status, &why);
    if (!status)
        status = kept_transfers_run(&transfers->kept, comm->inner, redistribution_list(source), redistribution_list(target),
                                    &redistribution, &why);
    if (status)
        return error_pass(err, status, &why);
    redistribution_give(&redistribution, report);
    return RESHARD_OK;
}

/* ---- looking ---- */

API_EXPORT uint64_t reshard_transfers_hash(const reshard_transfers *transfers)
{
    return transfers ? transfers->kept.hash : 0;
}

API_EXPORT int64_t reshard_transfers_ranks(const reshard_transfers *transfers)
{
    return transfers ? transfers->kept.transfers.rank_count : 0;
}

API_EXPORT size_t reshard_transfers_count(const reshard_transfers *transfers)
{
    return transfers ? transfers->kept.transfers.plan->step_count : 0;
}

API_EXPORT uint64_t reshard_transfers_pair_bytes(const reshard_transfers *transfers, int64_t from, int64_t to)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < reshard_transfers_count(transfers); i++) {
        uint64_t bytes;
        const struct exchange_step step = transfers_step(&transfers->kept.transfers, (uint32_t)i, &bytes);
        sum += step.from == from && step.to == to ? bytes : 0;
    }
    return sum;
}

API_EXPORT reshard_status reshard_transfers_at(const reshard_transfers *transfers, size_t index, reshard_transfer *out, reshard_error *err)
{
    static _Thread_local struct kept_transfer found;
    static _Thread_local const char *via[COPY_VIA_MAX];
    ERROR_SCOPE(err);
    NEEDS(out, err);
    reshard_status status = struct_clear(out, "reshard_transfer", err);
    if (status)
        return status;
    NEEDS(transfers, err);
    if (index >= reshard_transfers_count(transfers))
        return error_set(err, RESHARD_ERR_USAGE, "transfer %zu of %zu", index, reshard_transfers_count(transfers));
    status = kept_transfer_at(&transfers->kept, (uint32_t)index, &found, err);
    if (status)
        return status;
    for (unsigned i = 0; i < found.spec.via_count; i++)
        via[i] = dtype_info(found.spec.via[i])->name;
    const reshard_transfer made = { sizeof(made), found.step.from, found.step.to, public_str(found.key), found.source_shard,
                                    found.target_shard, dtype_info(found.spec.source_dtype)->name,
                                    dtype_info(found.spec.target_dtype)->name, found.source_offset, found.target_offset,
                                    (size_t)found.spec.rank, found.spec.extent, found.spec.source_stride, found.spec.target_stride,
                                    found.bytes, public_str(found.source_key), via, found.spec.via_count };
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

/* ---- printing ---- */

static void transfer_print(const struct kept_transfer *transfer, bool is_first, struct buffer *out)
{
    const struct copy_spec *spec = &transfer->spec;
    buffer_printf(out, "%s\n  {\"from\": %" PRIu32 ", \"to\": %" PRIu32 ", \"key\": ", is_first ? "" : ",", transfer->step.from,
                  transfer->step.to);
    buffer_append_json_visible(out, transfer->key);
    if (!str_equal(transfer->source_key, transfer->key)) {
        buffer_append_text(out, ", \"source_key\": ");
        buffer_append_json_visible(out, transfer->source_key);
    }
    buffer_printf(out, ", \"source_shard\": %" PRIu32 ", \"source_dtype\": \"%s\", \"source_offset\": %" PRIu64 ", ",
                  transfer->source_shard, dtype_info(spec->source_dtype)->name, transfer->source_offset);
    print_numbers(out, "source_strides", spec->source_stride, (size_t)spec->rank);
    buffer_printf(out, ", \"target_shard\": %" PRIu32 ", \"target_dtype\": \"%s\", \"target_offset\": %" PRIu64 ", ",
                  transfer->target_shard, dtype_info(spec->target_dtype)->name, transfer->target_offset);
    print_numbers(out, "target_strides", spec->target_stride, (size_t)spec->rank);
    buffer_append_text(out, ", ");
    print_numbers(out, "extent", spec->extent, (size_t)spec->rank);
    for (unsigned i = 0; i < spec->via_count; i++)
        buffer_printf(out, "%s\"%s\"%s", i ? ", " : ", \"via\": [", dtype_info(spec->via[i])->name, i + 1 < spec->via_count ? "" : "]");
    buffer_printf(out, ", \"bytes\": %" PRIu64 "}", transfer->bytes);
}

/* Pairs in the order of receivers, from the sums of one receiver's senders at a time: steps are in the order of receivers. */
static reshard_status pairs_print(const struct kept_transfers *kept, struct buffer *out, uint64_t *moved, reshard_error *err)
{
    const uint32_t count = kept->transfers.plan->step_count, ranks = kept->transfers.rank_count;
    uint64_t *sums = array_zeroed(ranks, sizeof(*sums)), bytes;
    const char *between = "";
    for (uint32_t i = 0; i < count && sums;) {
        const uint32_t to = transfers_step(&kept->transfers, i, &bytes).to;
        memset(sums, 0, ranks * sizeof(*sums));
        for (struct exchange_step step; i < count && (step = transfers_step(&kept->transfers, i, &bytes)).to == to; i++)
            sums[step.from] += bytes;
        for (uint32_t from = 0; from < ranks; from++) {
            *moved += from != to ? sums[from] : 0;
            if (sums[from])
                buffer_printf(out, "%s{\"from\": %" PRIu32 ", \"to\": %" PRIu32 ", \"bytes\": %" PRIu64 "}", between, from, to, sums[from]);
            between = *between || sums[from] ? ", " : "";
        }
    }
    free(sums);
    return sums ? RESHARD_OK : error_set_memory(err);
}

static reshard_status transfers_print(const struct kept_transfers *kept, struct printing *printing, reshard_error *err)
{
    struct buffer *text = &printing->text;
    struct buffer pairs = { 0 };
    uint64_t moved = 0;
    reshard_status status = pairs_print(kept, &pairs, &moved, err);
    buffer_printf(text, "{\"schema\": \"reshard-transfers/1\", \"hash\": \"%016" PRIx64 "\", \"ranks\": %" PRIu32
                  ", \"bytes_moved\": %" PRIu64 ", \"pairs\": [", kept->hash, kept->transfers.rank_count, moved);
    text->failed |= pairs.failed;
    buffer_append_str(text, buffer_str(&pairs));
    buffer_release(&pairs);
    buffer_append_text(text, "], \"transfers\": [");
    for (uint32_t i = 0; i < kept->transfers.plan->step_count && !status; i++) {
        struct kept_transfer transfer;
        status = kept_transfer_at(kept, i, &transfer, err);
        if (!status)
            transfer_print(&transfer, i == 0, text);
        if (!status)
            status = printing_step(printing, err);
    }
    buffer_append_text(text, "]}\n");
    return status;
}

API_EXPORT reshard_status reshard_transfers_print(const reshard_transfers *transfers, reshard_sink sink, void *context, reshard_error *err)
{
    struct printing printing = { .sink = sink, .context = context };
    ERROR_SCOPE(err);
    NEEDS(transfers, err);
    NEEDS(sink, err);
    return printing_end(&printing, transfers_print(&transfers->kept, &printing, err), err);
}

/* ---- as bytes ---- */

API_EXPORT reshard_status reshard_transfers_export(const reshard_transfers *transfers, void **bytes, size_t *size, reshard_error *err)
{
    struct buffer packed = { 0 };
    ERROR_SCOPE(err);
    NEEDS(bytes, err);
    NEEDS(size, err);
    *bytes = NULL;
    *size = 0;
    NEEDS(transfers, err);
    reshard_status status = kept_transfers_pack(&transfers->kept, &packed, err);
    if (status) {
        buffer_release(&packed);
        return status;
    }
    *bytes = packed.data;
    *size = packed.size;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_transfers_import(const void *bytes, size_t size, reshard_transfers **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(bytes, err);
    reshard_transfers *made = calloc(1, sizeof(*made));
    reshard_status status =
        made ? kept_transfers_unpack((struct str){ bytes, size }, &made->kept, err) : error_set_memory(err);
    return transfers_end(made, status, out);
}
