/* SPDX-License-Identifier: Apache-2.0 */
#include "api/sharded_group.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

reshard_status group_agree(const struct sharded_group *group, reshard_status status, reshard_error *err)
{
    return group->comm ? comm_agree(group->comm, group->call, status, err) : status;
}

reshard_status group_gather(const struct sharded_group *group, const void *bytes, size_t size, struct comm_gathered *out,
                            reshard_error *err)
{
    if (group->comm)
        return comm_all_gather(group->comm, group->call, bytes, size, out, err);
    out->memory = malloc(size + 1);
    out->parts = malloc(sizeof(*out->parts));
    if (!out->memory || !out->parts) {
        group_gathered_release(group, out);
        return error_set_memory(err);
    }
    if (size)
        memcpy(out->memory, bytes, size);
    out->parts[0] = (struct str){ out->memory, size };
    return RESHARD_OK;
}

void group_gathered_release(const struct sharded_group *group, struct comm_gathered *gathered)
{
    if (group->comm) {
        comm_gathered_release(gathered);
        return;
    }
    free(gathered->memory);
    free(gathered->parts);
    *gathered = (struct comm_gathered){ 0 };
}

void group_of(struct sharded_group *group, const reshard_comm *comm, const char *call)
{
    struct comm *inner = comm ? comm->inner : NULL;
    *group = (struct sharded_group){
        .comm = inner, .call = call, .rank = inner ? comm_rank(inner) : 0, .size = inner ? comm_size(inner) : 1
    };
}

/* What came from this rank itself stands for its tensors again. */
static reshard_status own_restore(struct sharded_group *group, const struct sharded_dict *own, reshard_error *err)
{
    struct sharded_dict *dict = &group->dicts[group->rank];
    if (dict->tensor_count != own->tensor_count)
        return error_set(err, RESHARD_ERR_FORMAT, "rank %" PRIu32 " got another description than it sent", group->rank);
    for (size_t i = 0; i < dict->tensor_count; i++) {
        struct shard *shard = &dict->tensors[i].shard;
        shard->data = own->tensors[i].shard.data;
        shard->read = own->tensors[i].shard.read;
        shard->write = own->tensors[i].shard.write;
        shard->context = own->tensors[i].shard.context;
        shard->is_elsewhere = false;
    }
    return RESHARD_OK;
}

static reshard_status dicts_unpack(struct sharded_group *group, const struct str *parts, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    group->dicts = array_zeroed(group->size, sizeof(*group->dicts));
    group->ranks = array_zeroed(group->size, sizeof(const struct sharded_dict *));
    if (!group->dicts || !group->ranks)
        return error_set_memory(err);
    for (uint32_t r = 0; r < group->size && !status; r++) {
        group->ranks[r] = &group->dicts[r];
        status = sharded_unpack(parts[r].data, parts[r].size, &group->dicts[r], err);
        if (status)
            error_prefix(err, "rank %" PRIu32 " says", r);
    }
    return status;
}

reshard_status group_begin(struct sharded_group *group, reshard_comm *comm, const char *call, reshard_sharded *sharded, bool with_values,
                           reshard_status status, reshard_error *err)
{
    struct comm_gathered gathered = { 0 };
    struct buffer own = { 0 };
    group_of(group, comm, call);
    if (!status)
        status = reshard_sharded_expand(sharded, err);
    if (!status && !sharded_pack(&sharded->dict, with_values, &own))
        status = error_set_memory(err);
    status = group_agree(group, status, err);
    if (!status)
        status = group_gather(group, own.data, own.size, &gathered, err);
    buffer_release(&own);
    if (status)
        return status;
    status = dicts_unpack(group, gathered.parts, err);
    if (!status)
        status = own_restore(group, &sharded->dict, err);
    if (!status)
        status = sharded_number_copies(group->dicts, group->ranks, group->size, err);
    group_gathered_release(group, &gathered);
    return group_agree(group, status, err); /* no rank waits for one that could not take in what came */
}

void group_release(struct sharded_group *group)
{
    for (uint32_t r = 0; group->dicts && r < group->size; r++)
        sharded_dict_release(&group->dicts[r]);
    free(group->dicts);
    free((void *)group->ranks);
    *group = (struct sharded_group){ 0 };
}
