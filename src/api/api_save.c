/* SPDX-License-Identifier: Apache-2.0 */
/* Saving together: what ranks have is described to all, and every rank writes its own (convert/joint_save). */
#include "api/convert_call.h"
#include "api/sharded_group.h"
#include "base/hash.h"
#include "convert/joint_save.h"

#include <inttypes.h>
#include <stdlib.h>

struct save_call {
    struct sharded_group group;
    struct convert_call convert;
    reshard_save_options given;
    struct joint_save joint;
    const char *path;
    struct shard *shards;
    struct live_item *items;
    size_t shard_count, item_count;
    struct value_graph bytes;  /* values of objects that are bytes */
    struct arena keys;         /* of objects */
};

static void save_release(struct save_call *call)
{
    group_release(&call->group);
    joint_release(&call->joint);
    map_call_release(&call->convert.map);
    free(call->shards);
    free(call->items);
    value_graph_release(&call->bytes);
    arena_release(&call->keys);
}

static reshard_status save_options_read(struct save_call *call, const reshard_save_options *options, const reshard_run_options *run,
                                        reshard_error *err)
{
    reshard_status status = struct_take(&call->given, sizeof(call->given), options, "reshard_save_options", err);
    if (!status && !call->given.convert)
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_save_options.convert is NULL");
    if (!status)
        status = convert_options_read(call->given.convert, run, &call->convert, err);
    if (status)
        return status;
    call->convert.options.by_writer = !call->convert.options.layout && !call->convert.options.like;
    return RESHARD_OK;
}

/* ---- what is to be saved ---- */

static reshard_status common_warn(const struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    reshard_status status = RESHARD_OK;
    for (uint32_t r = 1; r < group->size && call->given.warn && group->rank == 0 && !status; r++) {
        struct buffer text = { 0 };
        status = common_difference(group->ranks[0], group->ranks[r], r, &text, err);
        if (!status && text.size && buffer_append_byte(&text, '\0'))
            call->given.warn((const char *)text.data, call->given.context);
        buffer_release(&text);
    }
    return status;
}

static reshard_status copies_spread(struct save_call *call, reshard_error *err)
{
    struct sharded_group *group = &call->group;
    struct spread_owner **owners;
    reshard_status status = sharded_owners_new(group->ranks, group->size, &owners, err);
    if (!status)
        status = sharded_spread(group->ranks, group->size, SPREAD_TO_SAVE, owners, err);
    for (uint32_t r = 0; r < group->size && !status; r++)
        status = sharded_take_owners(&group->dicts[r], r, owners[r], err);
    sharded_owners_free(owners, group->size);
    return status;
}

/* The main copies of all ranks. */
static reshard_status shards_collect(struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    size_t total = 0;
    for (uint32_t r = 0; r < group->size; r++)
        total += group->ranks[r]->tensor_count;
    call->shards = calloc(total + 1, sizeof(*call->shards));
    if (!call->shards)
        return error_set_memory(err);
    for (uint32_t r = 0; r < group->size; r++) {
        for (size_t i = 0; i < group->ranks[r]->tensor_count; i++) {
            const struct sharded_tensor *tensor = &group->ranks[r]->tensors[i];
            struct shard *shard = &call->shards[call->shard_count];
            if (!replica_is_main(&tensor->replica))
                continue;
            *shard = tensor->shard;
            if (!shard->data && !shard->is_elsewhere && !box_is_empty(shard->rank, shard->extent))
                return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 ": tensor '%.*s' has no values", r, STR_ARG(shard->key));
            shard->writer = r;
            call->shard_count++;
        }
    }
    return RESHARD_OK;
}

static reshard_status object_item(struct save_call *call, const struct sharded_object *object, struct live_item *out, reshard_error *err)
{
    struct buffer key = { 0 };
    bool is_kept = sharded_object_key(object, &key) && arena_str(&call->keys, buffer_str(&key), &out->key);
    buffer_release(&key);
    out->json = object->json;
    if (is_kept && !object->json.size) {
        struct value *value = value_new_str(&call->bytes, object->bytes);
        if (value)
            value->kind = object->bytes.data ? VALUE_BYTES : VALUE_NONE;
        out->value = value;
        is_kept = value != NULL;
    }
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

/* Objects of all ranks, and rank 0's common values. */
static reshard_status items_collect(struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    size_t total = group->ranks[0]->value_count;
    reshard_status status = RESHARD_OK;
    for (uint32_t r = 0; r < group->size; r++)
        total += group->ranks[r]->object_count;
    call->items = calloc(total + 1, sizeof(*call->items));
    if (!call->items)
        return error_set_memory(err);
    for (uint32_t r = 0; r < group->size; r++) {
        for (size_t i = 0; i < group->ranks[r]->object_count && !status; i++) {
            if (replica_is_main(&group->ranks[r]->objects[i].replica))
                status = object_item(call, &group->ranks[r]->objects[i], &call->items[call->item_count++], err);
        }
    }
    for (size_t i = 0; i < group->ranks[0]->value_count; i++) {
        const struct sharded_value *value = &group->ranks[0]->values[i];
        call->items[call->item_count++] = (struct live_item){ .key = value->key, .json = value->json };
    }
    for (size_t i = 0; i < call->item_count; i++)
        call->items[i].value_count = call->bytes.count;
    return status;
}

static reshard_status save_prepare(struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->group;
    reshard_status status = call->given.no_check ? RESHARD_OK : sharded_check(group->ranks, group->size, err);
    if (!status)
        status = common_warn(call, err);
    if (!status && !call->given.no_spread)
        status = copies_spread(call, err);
    if (!status)
        status = shards_collect(call, err);
    if (!status)
        status = items_collect(call, err);
    const struct joint_input input = { .shards = call->shards,
                                       .shard_count = call->shard_count,
                                       .items = call->items,
                                       .item_count = call->item_count,
                                       .rank = group->rank,
                                       .name = call->given.name ? call->given.name : "memory" };
    if (!status)
        status = joint_prepare(&call->joint, &input, call->path, &call->convert.options, &call->convert.run.engine, err);
    return map_call_status(&call->convert.map, status, err);
}

/* ---- saving ---- */

/* What a rank would write, and a random number. */
struct save_identity {
    uint64_t target, turn;
};

/* Ranks that were told other options would write into each other's files, and so would late ones of a save that was given up: each save
 * has a number, which is rank 0's. */
static reshard_status identity_agree(struct save_call *call, reshard_error *err)
{
    const struct save_identity own = { joint_identity(&call->joint), hash_random_seed() };
    struct save_identity first = own, other;
    struct comm_gathered gathered = { 0 };
    if (!call->group.comm)
        return RESHARD_OK;
    reshard_status status = group_gather(&call->group, &own, sizeof(own), &gathered, err);
    for (uint32_t r = 0; r < call->group.size && !status; r++) {
        if (gathered.parts[r].size != sizeof(other))
            status = error_set(err, RESHARD_ERR_FORMAT, "rank %" PRIu32 " does not say what it would write", r);
        else
            memcpy(r ? &other : &first, gathered.parts[r].data, sizeof(other));
        if (!status && r > 0 && other.target != first.target)
            status = error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " would write another target than rank 0: the options differ", r);
    }
    comm_gathered_release(&gathered);
    if (!status)
        joint_set_turn(&call->joint, first.turn);
    return status;
}

static reshard_status save_commit(struct save_call *call, const struct buffer *part, reshard_error *err)
{
    struct comm_gathered gathered = { 0 };
    const struct str own = buffer_str(part);
    reshard_status status = RESHARD_OK;
    if (call->group.comm)
        status = group_gather(&call->group, part->data, part->size, &gathered, err);
    if (!status && call->group.rank == 0)
        status = joint_commit(&call->joint, call->group.comm ? gathered.parts : &own, call->group.size, err);
    comm_gathered_release(&gathered);
    bool is_there = !status && call->group.rank == 0;
    status = group_agree(&call->group, status, err);
    if (status && is_there)
        error_hint(err, "the checkpoint is whole and in its place; what failed is only that all ranks learn of it");
    return status;
}

static reshard_status save_write(struct save_call *call, reshard_error *err)
{
    struct buffer part = { 0 };
    reshard_status status = call->group.rank == 0 ? joint_begin(&call->joint, err) : RESHARD_OK;
    status = group_agree(&call->group, status, err);
    if (!status)
        status = group_agree(&call->group, joint_write(&call->joint, &part, err), err);
    if (!status)
        status = save_commit(call, &part, err);
    if (status && call->group.rank == 0)
        joint_abandon(&call->joint);
    buffer_release(&part);
    return status;
}

API_EXPORT reshard_status reshard_save(reshard_comm *comm, const char *path, reshard_sharded *sharded, const reshard_save_options *options,
                                       const reshard_run_options *run, reshard_error *err)
{
    struct save_call call = { .path = path };
    reshard_error own = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    err = err ? err : &own;
    reshard_status status =
        path && sharded && options ? save_options_read(&call, options, run, err)
                                   : argument_missing(__func__, !path ? "path" : !sharded ? "sharded" : "options", err);
    status = group_begin(&call.group, comm, "reshard_save", sharded, true, status, err);
    if (!status)
        status = group_agree(&call.group, save_prepare(&call, err), err);
    if (!status)
        status = identity_agree(&call, err);
    if (!status)
        status = save_write(&call, err);
    save_release(&call);
    return status;
}
