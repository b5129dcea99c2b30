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

reshard_status redistribute_call_read(const reshard_redistribute_options *options, struct redistribute_call *out, reshard_error *err)
{
    reshard_redistribute_options taken;
    *out = (struct redistribute_call){ .asked = { .scratch_bytes = 0 } };
    reshard_status status = struct_take(&taken, sizeof(taken), options, "reshard_redistribute_options", err);
    if (status)
        return status;
    out->asked.scratch_bytes = taken.scratch_bytes;
    if (!taken.map)
        return RESHARD_OK;
    out->asked.map = &out->map.options;
    return map_options_read(taken.map, &out->map, err);
}

void redistribute_call_release(struct redistribute_call *call)
{
    map_call_release(&call->map);
}

API_EXPORT reshard_status reshard_redistribute(reshard_comm *comm, const reshard_shards *source, const reshard_shards *target,
                                               const reshard_redistribute_options *options, reshard_redistribute_report *report,
                                               reshard_error *err)
{
    struct redistribute_call call = { .asked = { .scratch_bytes = 0 } };
    struct redistribution redistribution = { 0 };
    reshard_error why = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    reshard_status status = report ? struct_clear(report, "reshard_redistribute_report", &why) : RESHARD_OK;
    if (!status)
        status = redistribute_call_read(options, &call, &why);
    if (comm) { /* arguments that are wrong on one rank are an error on all */
        redistribution.scratch_bytes = call.asked.scratch_bytes;
        redistribution.map = call.asked.map;
        status = comm_agree(comm->inner, __func__, status, &why);
        if (!status)
            status = redistribute(comm->inner, redistribution_list(source), redistribution_list(target), &redistribution, &why);
    }
    redistribute_call_release(&call);
    NEEDS(comm, err);
    if (status)
        return error_pass(err, status, &why);
    redistribution_give(&redistribution, report);
    return RESHARD_OK;
}
