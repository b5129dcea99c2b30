/* SPDX-License-Identifier: Apache-2.0 */
#include "api/api_comm.h"
#include "api/redistribution.h"

const struct shard_list *redistribution_list(const reshard_shards *shards)
{
    static const struct shard_list none;
    return shards ? &shards->list : &none;
}

void redistribution_give(const struct redistribution *redistribution, reshard_redistribute_report *report)
{
    const reshard_redistribute_report made = { sizeof(made), redistribution->totals.kept, redistribution->totals.sent,
                                               redistribution->totals.received, redistribution->moved };
    if (report)
        struct_give(report, &made, sizeof(made));
}

/* Arguments that are wrong on one rank are an error on all. */
static reshard_status redistribute_arguments(const reshard_redistribute_options *options, reshard_redistribute_report *report,
                                             struct redistribution *out, reshard_error *err)
{
    reshard_redistribute_options taken;
    reshard_status status = report ? struct_clear(report, "reshard_redistribute_report", err) : RESHARD_OK;
    if (!status)
        status = struct_take(&taken, sizeof(taken), options, "reshard_redistribute_options", err);
    *out = (struct redistribution){ .scratch_bytes = status ? 0 : taken.scratch_bytes };
    return status;
}

API_EXPORT reshard_status reshard_redistribute(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                                               const reshard_redistribute_options *options, reshard_redistribute_report *report,
                                               reshard_error *err)
{
    struct redistribution redistribution;
    reshard_error why = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    reshard_status status = redistribute_arguments(options, report, &redistribution, &why);
    NEEDS(comm, err);
    status = comm_agree(comm->inner, __func__, status, &why);
    if (!status)
        status = redistribute(comm->inner, redistribution_list(source), redistribution_list(target), &redistribution, &why);
    if (status)
        return error_pass(err, status, &why);
    redistribution_give(&redistribution, report);
    return RESHARD_OK;
}
