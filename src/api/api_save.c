/* SPDX-License-Identifier: Apache-2.0 */
/* Saving together: what ranks have is described to all, and every rank writes its own (convert/joint_save). */
#include "api/save_kept.h"
#include "base/array.h"
#include "base/cursor.h"
#include "base/hash.h"
#include "base/name_map.h"

#include <inttypes.h>
#include <stdlib.h>

struct save_call {
    struct save_plan *plan;     /* own, or that of options.kept */
    struct save_plan own;
    struct convert_call convert;
    reshard_save_options given;
    const char *path;
};

static void save_release(struct save_call *call)
{
    save_plan_release(&call->own);
    map_call_release(&call->convert.map);
}

static reshard_status save_options_read(struct save_call *call, const reshard_save_options *options, const reshard_run_options *run,
                                        reshard_error *err)
{
    reshard_status status = struct_take(&call->given, sizeof(call->given), options, "reshard_save_options", err);
    if (!status && !call->given.convert)
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_save_options.convert is NULL");
    if (!status)
        status = convert_options_read(call->given.convert, run, call->path, &call->convert, err);
    if (!status && call->convert.options.store) {
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.store: ranks save to the file system");
        error_hint(err, "reshard_open_shards with reshard_convert, and writers, write to a store");
    }
    if (status)
        return status;
    call->convert.options.by_writer = !call->convert.options.layout && !call->convert.options.like;
    return RESHARD_OK;
}

/* ---- what is to be saved ---- */

static reshard_status common_warn(const struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->plan->group;
    reshard_status status = RESHARD_OK;
    for (uint32_t r = 1; r < group->size && call->given.warn && group->rank == 0 && !status; r++) {
        struct buffer text = { 0 };
        status = common_difference(save_plan_values(call->plan, 0), save_plan_values(call->plan, r), r, &text, err);
        if (!status && text.size && buffer_append_byte(&text, '\0'))
            call->given.warn((const char *)text.data, call->given.context);
        buffer_release(&text);
    }
    return status;
}

static reshard_status copies_spread(struct save_call *call, reshard_error *err)
{
    struct sharded_group *group = &call->plan->group;
    struct spread_owner **owners;
    reshard_status status = sharded_owners_new(group->ranks, group->size, &owners, err);
    if (!status)
        status = sharded_spread(group->ranks, group->size, SPREAD_TO_SAVE, owners, err);
    for (uint32_t r = 0; r < group->size && !status; r++)
        sharded_take_owners(&group->dicts[r], r, owners[r]);
    sharded_owners_free(owners, group->size);
    return status;
}

/* The main copies of all ranks. */
static reshard_status shards_collect(struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->plan->group;
    size_t total = 0;
    for (uint32_t r = 0; r < group->size; r++)
        total += group->ranks[r]->tensor_count;
    call->plan->shards = array_zeroed(total, sizeof(*call->plan->shards));
    if (!call->plan->shards)
        return error_set_memory(err);
    for (uint32_t r = 0; r < group->size; r++) {
        for (size_t i = 0; i < group->ranks[r]->tensor_count; i++) {
            const struct sharded_tensor *tensor = &group->ranks[r]->tensors[i];
            struct shard *shard = &call->plan->shards[call->plan->shard_count];
            if (!replica_is_main(&tensor->replica))
                continue;
            *shard = tensor->shard;
            if (!shard_has_values(shard) && !shard->is_elsewhere && !box_is_empty(shard->rank, shard->extent))
                return error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 ": tensor '%.*s' has no values", r, STR_ARG(shard->key));
            shard->writer = r;
            call->plan->shard_count++;
        }
    }
    return RESHARD_OK;
}

static reshard_status object_item(struct save_call *call, const struct sharded_object *object, struct live_item *out, reshard_error *err)
{
    struct buffer key = { 0 };
    bool is_kept = sharded_object_key(object, &key) && arena_str(&call->plan->keys, buffer_str(&key), &out->key);
    buffer_release(&key);
    out->json = object->json;
    out->file = object->file;
    if (is_kept && !object->json.size && !object->file.data) {
        struct value *value = value_new_str(&call->plan->bytes, object->bytes);
        if (value)
            value->kind = object->bytes.data ? VALUE_BYTES : VALUE_NONE;
        out->value = value;
        is_kept = value != NULL;
    }
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

/* Rank 0's common values, and what any rank has: of several the first one's. */
static reshard_status values_collect(struct save_plan *plan, reshard_error *err)
{
    struct name_map keys = { 0 };
    bool is_new = true, is_good = true;
    for (uint32_t r = 0; r < plan->group.size && is_good; r++) {
        const struct sharded_dict *values = save_plan_values(plan, r);
        for (size_t i = 0; i < values->value_count && is_good; i++) {
            const struct sharded_value *value = &values->values[i];
            if (value->kind == SHARDED_ANY_RANK)
                is_good = name_map_intern(&keys, value->key, &is_new) != NAME_NONE;
            if ((value->kind == SHARDED_ANY_RANK && is_new) || (value->kind == SHARDED_COMMON && r == 0))
                plan->items[plan->item_count++] = (struct live_item){ .key = value->key, .json = value->json, .file = value->file };
        }
    }
    name_map_release(&keys);
    return is_good ? RESHARD_OK : error_set_memory(err);
}

/* Objects of all ranks, and values. */
static reshard_status items_collect(struct save_call *call, reshard_error *err)
{
    struct save_plan *plan = call->plan;
    size_t total = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t r = 0; r < plan->group.size; r++)
        total += save_plan_values(plan, r)->object_count + save_plan_values(plan, r)->value_count;
    plan->items = array_zeroed(total, sizeof(*plan->items));
    if (!plan->items)
        return error_set_memory(err);
    for (uint32_t r = 0; r < plan->group.size; r++) {
        const struct sharded_dict *values = save_plan_values(plan, r);
        for (size_t i = 0; i < values->object_count && !status; i++) {
            if (replica_is_main(&values->objects[i].replica))
                status = object_item(call, &values->objects[i], &plan->items[plan->item_count++], err);
        }
    }
    if (!status)
        status = values_collect(plan, err);
    for (size_t i = 0; i < plan->item_count; i++)
        plan->items[i].value_count = plan->bytes.count;
    return status;
}

static reshard_status notes_warn(const struct save_call *call, const struct note_list *notes, reshard_error *err)
{
    struct buffer text = { 0 };
    bool is_good = true;
    for (uint32_t i = 0; i < notes->count && is_good; i++) {
        buffer_clear(&text);
        buffer_append_text(&text, "dropped: ");
        note_print(&notes->notes[i], &text);
        is_good = buffer_append_byte(&text, '\0');
        if (is_good)
            call->given.warn((const char *)text.data, call->given.context);
    }
    buffer_release(&text);
    return is_good ? RESHARD_OK : error_set_memory(err);
}

/* What the target does not have. */
static reshard_status dropped_warn(const struct save_call *call, reshard_error *err)
{
    const struct conversion *conversion = &call->plan->joint.feeding.conversion;
    if (!call->given.warn || call->plan->group.rank)
        return RESHARD_OK;
    reshard_status status = notes_warn(call, &conversion->losses, err);
    return status ? status : notes_warn(call, &conversion->target.dropped, err);
}

/* Lays the target out, and plans. */
static reshard_status save_lay_out(struct save_call *call, reshard_error *err)
{
    struct save_plan *plan = call->plan;
    reshard_status status = items_collect(call, err);
    const struct joint_input input = { .shards = plan->shards,
                                       .shard_count = plan->shard_count,
                                       .items = plan->items,
                                       .item_count = plan->item_count,
                                       .rank = plan->group.rank,
                                       .name = call->given.name ? call->given.name : "memory" };
    if (!status)
        status = joint_prepare(&plan->joint, &input, call->path, &call->convert.options, &call->convert.run.engine, err);
    if (!status)
        status = dropped_warn(call, err);
    return map_call_status(&call->convert.map, status, err);
}

static reshard_status save_prepare(struct save_call *call, reshard_error *err)
{
    const struct sharded_group *group = &call->plan->group;
    reshard_status status = call->given.no_check ? RESHARD_OK : sharded_check(group->ranks, group->size, err);
    if (!status)
        status = common_warn(call, err);
    if (!status && !call->given.no_spread)
        status = copies_spread(call, err);
    if (!status)
        status = shards_collect(call, err);
    return status ? status : save_lay_out(call, err);
}

/* ---- saving ---- */

/* What a rank would write, and a random number. */
struct save_identity {
    uint64_t target, turn;
};

/* Ranks that were told other options would write into each other's files, and so would late ones of a save that was given up: each save
 * has a number, which is rank 0's. */
static reshard_status identity_agree(struct save_call *call, uint64_t *turn, reshard_error *err)
{
    const struct save_identity own = { call->plan->joint.target, hash_random_seed() };
    struct save_identity first = own, other;
    struct comm_gathered gathered = { 0 };
    reshard_status status = group_gather(&call->plan->group, &own, sizeof(own), &gathered, err);
    for (uint32_t r = 0; r < call->plan->group.size && !status; r++) {
        if (gathered.parts[r].size != sizeof(other))
            status = error_set(err, RESHARD_ERR_FORMAT, "rank %" PRIu32 " does not say what it would write", r);
        else
            memcpy(r ? &other : &first, gathered.parts[r].data, sizeof(other));
        if (!status && r > 0 && other.target != first.target)
            status = error_set(err, RESHARD_ERR_USAGE, "rank %" PRIu32 " would write another target than rank 0: the options differ", r);
    }
    group_gathered_release(&call->plan->group, &gathered);
    *turn = first.turn;
    if (!status)
        joint_set_turn(&call->plan->joint, first.turn);
    return status;
}

static reshard_status save_commit(struct save_call *call, const struct buffer *part, reshard_error *err)
{
    const struct sharded_group *group = &call->plan->group;
    struct comm_gathered gathered = { 0 };
    reshard_status status = group_gather(group, part->data, part->size, &gathered, err);
    if (!status && group->rank == 0)
        status = joint_commit(&call->plan->joint, gathered.parts, group->size, err);
    group_gathered_release(group, &gathered);
    bool is_there = !status && group->rank == 0;
    status = group_agree(group, status, err);
    if (status && is_there)
        error_hint(err, "the checkpoint is whole and in its place; what failed is only that all ranks learn of it");
    return status;
}

static reshard_status save_write(struct save_call *call, reshard_error *err)
{
    struct buffer part = { 0 };
    reshard_status status = call->plan->group.rank == 0 ? joint_begin(&call->plan->joint, err) : RESHARD_OK;
    status = group_agree(&call->plan->group, status, err);
    if (!status)
        status = group_agree(&call->plan->group, joint_write(&call->plan->joint, &part, err), err);
    if (!status)
        status = save_commit(call, &part, err);
    if (status && call->plan->group.rank == 0)
        joint_abandon(&call->plan->joint);
    buffer_release(&part);
    return status;
}

/* ---- a plan from an earlier save ---- */

/* What ranks tell each other first, where plans are kept: the number of the plan that this rank has for what it has now, 0 if none, and
 * then what its objects and common values are. */
#define KEPT_CALL "reshard_save with a kept plan"

static reshard_status kept_offer(struct save_call *call, reshard_sharded *sharded, const struct sharded_group *group, struct buffer *out,
                                 reshard_error *err)
{
    const reshard_kept *kept = call->given.kept;
    bool fits = kept->number && kept->rank == group->rank && kept->size == group->size && kept_can(&call->convert) &&
                kept_match_options(kept, &call->given, &call->convert) && kept->own == kept_description(&sharded->dict);
    buffer_append_u64le(out, fits ? kept->number : 0);
    return (!fits || kept_values_pack(&sharded->dict, out)) && !out->failed ? RESHARD_OK : error_set_memory(err);
}

/* Whether all ranks have the same plan. */
static bool kept_is_shared(const struct str *parts, uint32_t count, uint64_t *number)
{
    uint64_t other;
    *number = 0;
    for (uint32_t r = 0; r < count; r++) {
        struct cursor cursor = cursor_over(parts[r].data, parts[r].size);
        if (!cursor_u64le(&cursor, &other) || (r && other != *number))
            return false;
        *number = other;
    }
    return *number != 0;
}

/* Takes in what objects and values are; *changed: they are others than before. */
static reshard_status kept_values_take(reshard_kept *kept, const struct str *parts, bool *changed, reshard_error *err)
{
    struct save_plan *plan = &kept->plan;
    reshard_status status = RESHARD_OK;
    *changed = false;
    for (uint32_t r = 0; r < kept->size; r++) {
        uint64_t hash = hash64(parts[r].data + 8, parts[r].size - 8, 0);
        *changed |= hash != kept->values[r];
        kept->values[r] = hash;
    }
    if (!*changed)
        return RESHARD_OK;
    if (!plan->said)
        plan->said = array_zeroed(kept->size, sizeof(*plan->said));
    if (!plan->said)
        return error_set_memory(err);
    for (uint32_t r = 0; r < kept->size && !status; r++) {
        sharded_dict_release(&plan->said[r]);
        status = sharded_unpack(parts[r].data + 8, parts[r].size - 8, &plan->said[r], err);
    }
    return status;
}

/* Values of tensors lie where they lie now. Which tensors have some is part of the description that the plan is for. */
static void kept_move(struct save_plan *plan, const struct sharded_dict *own)
{
    const struct sharded_dict *dict = &plan->group.dicts[plan->group.rank];
    size_t shard = 0;
    while (shard < plan->shard_count && plan->shards[shard].writer != plan->group.rank)
        shard++;
    for (size_t i = 0; i < dict->tensor_count; i++) {
        struct shard *kept = &plan->shards[shard];
        if (!replica_is_main(&dict->tensors[i].replica))
            continue;
        kept->data = own->tensors[i].shard.data;
        kept->read = own->tensors[i].shard.read;
        kept->context = own->tensors[i].shard.context;
        shard++;
    }
}

static void items_drop(struct save_plan *plan)
{
    free(plan->items);
    plan->items = NULL;
    plan->item_count = 0;
    value_graph_release(&plan->bytes);
    arena_release(&plan->keys);
}

/* The kept plan, for this save: where objects or values are others, the target is laid out anew, out of the same shards. */
static reshard_status kept_take_up(struct save_call *call, const reshard_sharded *sharded, const struct str *parts, reshard_error *err)
{
    struct save_plan *plan = call->plan;
    bool changed, is_good = false;
    kept_use_options(call->given.kept, &call->convert);
    reshard_status status = kept_values_take(call->given.kept, parts, &changed, err);
    if (!status)
        status = common_warn(call, err);
    if (!status)
        kept_move(plan, &sharded->dict);
    if (!status && !changed)
        status = joint_turn_to(&plan->joint, plan->shards, call->path, &call->convert.options, &call->convert.run.engine, &is_good, err);
    if (status || is_good)
        return status;
    joint_release(&plan->joint);
    items_drop(plan);
    return save_lay_out(call, err);
}

/* Looks whether all ranks have a plan for what they have now, and takes it up. */
static reshard_status kept_begin(struct save_call *call, reshard_comm *comm, reshard_sharded *sharded, bool *is_kept, reshard_error *err)
{
    reshard_kept *kept = call->given.kept;
    struct sharded_group group;
    struct comm_gathered gathered = { 0 };
    struct buffer own = { 0 };
    uint64_t number = 0;
    group_of(&group, comm, KEPT_CALL);
    reshard_status status = reshard_sharded_expand(sharded, err);
    if (!status)
        status = kept_offer(call, sharded, &group, &own, err);
    status = group_agree(&group, status, err);
    if (!status)
        status = group_gather(&group, own.data, own.size, &gathered, err);
    buffer_release(&own);
    *is_kept = !status && kept_is_shared(gathered.parts, group.size, &number);
    if (*is_kept) {
        kept->plan.group.comm = group.comm;
        call->plan = &kept->plan;
        kept->uses++;
        kept->turn++;
        status = group_agree(&group, kept_take_up(call, sharded, gathered.parts, err), err);
        const uint64_t turn[] = { number, kept->turn };
        joint_set_turn(&kept->plan.joint, hash64(turn, sizeof(turn), 0));
    }
    group_gathered_release(&group, &gathered);
    return status;
}

/* The plan that was just made is for the next save, too: what it was made for. */
static void kept_fill(struct save_call *call, const reshard_sharded *sharded, uint64_t turn)
{
    reshard_kept *kept = call->given.kept;
    const struct sharded_group *group = &call->plan->group;
    kept->rank = group->rank;
    kept->size = group->size;
    kept->own = kept_description(&sharded->dict);
    kept->values = array_zeroed(group->size, sizeof(*kept->values));
    bool is_good = kept->own && kept->values;
    for (uint32_t r = 0; r < group->size && is_good; r++) {
        struct buffer packed = { 0 };
        is_good = kept_values_pack(group->ranks[r], &packed);
        kept->values[r] = hash64(packed.data, packed.size, 0);
        buffer_release(&packed);
    }
    kept->number = is_good ? turn | 1 : 0; /* without memory this save goes on, and the next plans anew */
}

API_EXPORT reshard_status reshard_kept_new(reshard_kept **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = calloc(1, sizeof(**out));
    return *out ? RESHARD_OK : error_set_memory(err);
}

API_EXPORT void reshard_kept_free(reshard_kept *kept)
{
    if (kept)
        kept_clear(kept);
    free(kept);
}

API_EXPORT uint64_t reshard_kept_uses(const reshard_kept *kept)
{
    return kept ? kept->uses : 0;
}

/* ---- common values that are compared ---- */

static reshard_status common_copy(const struct sharded_dict *from, struct sharded_dict *into, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < from->value_count && !status; i++)
        if (from->values[i].kind == SHARDED_COMMON)
            status = sharded_add_value(into, &from->values[i], err);
    return status;
}

/* What stands for this rank's common values goes along with them, until compared_drop. */
static reshard_status compared_add(const struct save_call *call, struct sharded_dict *dict, reshard_sharded **compared, reshard_error *err)
{
    reshard_status status = reshard_sharded_new(compared, err);
    if (!status)
        status = common_copy(dict, &(*compared)->dict, err);
    if (!status && call->given.preprocess(*compared, call->given.context))
        status = error_set(err, RESHARD_ERR_CANCELLED, "reshard_save_options.preprocess stopped the call");
    for (size_t i = 0; !status && i < (*compared)->dict.value_count; i++) {
        struct sharded_value value = (*compared)->dict.values[i];
        if (value.kind != SHARDED_COMMON)
            continue;
        if (!ARRAY_ROOM(dict->values, dict->value_count, dict->value_capacity))
            return error_set_memory(err);
        value.kind = SHARDED_COMPARED;
        dict->values[dict->value_count++] = value;
    }
    dict->has_compared = !status;
    return status;
}

static void compared_drop(struct sharded_dict *dict, reshard_sharded *compared)
{
    while (dict->value_count && dict->values[dict->value_count - 1].kind == SHARDED_COMPARED)
        dict->value_count--;
    dict->has_compared = false;
    reshard_sharded_free(compared);
}

/* ---- all of it ---- */

/* What all ranks have is described, and planned. */
static reshard_status save_plan_new(struct save_call *call, reshard_comm *comm, reshard_sharded *sharded, reshard_status status,
                                    reshard_error *err)
{
    reshard_kept *kept = call->given.kept;
    bool keeps = kept && !status && kept_can(&call->convert);
    uint64_t turn = 0;
    if (kept)
        kept_clear(kept);
    if (keeps) {
        call->plan = &kept->plan;
        status = kept_take_options(kept, &call->given, &call->convert) ? RESHARD_OK : error_set_memory(err);
        kept_use_options(kept, &call->convert);
    }
    status = group_begin(&call->plan->group, comm, "reshard_save", sharded, true, status, err);
    if (!status)
        status = group_agree(&call->plan->group, save_prepare(call, err), err);
    if (!status)
        status = identity_agree(call, &turn, err);
    if (!status && keeps)
        kept_fill(call, sharded, turn);
    return status;
}

static reshard_status save_run(struct save_call *call, reshard_comm *comm, reshard_sharded *sharded, reshard_status status,
                               reshard_error *err)
{
    reshard_kept *kept = call->given.kept;
    struct sharded_group group;
    bool is_kept = false;
    if (kept) {
        group_of(&group, comm, KEPT_CALL);
        status = group_agree(&group, status, err);
    }
    if (kept && !status)
        status = kept_begin(call, comm, sharded, &is_kept, err);
    if (!is_kept && (!kept || !status))
        status = save_plan_new(call, comm, sharded, status, err);
    if (!status)
        status = save_write(call, err);
    if (kept && (status || !kept->number))
        kept_clear(kept);
    return status;
}

API_EXPORT reshard_status reshard_save(reshard_comm *comm, const char *path, reshard_sharded *sharded, const reshard_save_options *options,
                                       const reshard_run_options *run, reshard_error *err)
{
    struct save_call call = { .path = path };
    reshard_sharded *compared = NULL;
    reshard_error own = RESHARD_ERROR_INIT;
    ERROR_SCOPE(err);
    err = err ? err : &own;
    reshard_status status =
        path && sharded && options ? save_options_read(&call, options, run, err)
                                   : argument_missing(__func__, !path ? "path" : !sharded ? "sharded" : "options", err);
    call.plan = &call.own;
    if (!status && call.given.preprocess)
        status = compared_add(&call, &sharded->dict, &compared, err);
    status = save_run(&call, comm, sharded, status, err);
    if (compared)
        compared_drop(&sharded->dict, compared);
    save_release(&call);
    return status;
}
