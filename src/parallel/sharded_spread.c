/* SPDX-License-Identifier: Apache-2.0 */
/* Who saves, or reads, what several ranks hold. The order is Megatron's, so that its caches of it are ours. */
#include "parallel/sharded_dict.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/name_map.h"

#include <stdlib.h>

/* A tensor of a rank. */
struct held {
    const struct shard *shard;
    uint32_t rank, index;
    uint32_t key;   /* its place among the sorted keys */
    bool is_main, is_unnumbered;
};

/* Equal pieces: [first, first + count) of the held ones. */
struct held_group {
    uint64_t bytes;
    uint32_t first, count;
    bool has_main;
};

struct spreading {
    struct name_map keys;
    uint32_t *key_place;  /* by number of the key */
    struct held *held;
    struct held_group *groups;
    uint32_t held_count, group_count;
    uint64_t *loads;      /* by rank */
};

static int compare_numbers(const int64_t *a, const int64_t *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (a[i] != b[i])
            return a[i] < b[i] ? -1 : 1;
    }
    return 0;
}

/* As Python orders (key, offset, flat range). The extent comes last: pieces of a regular grid do not differ in it. */
static int compare_pieces(const struct held *a, const struct held *b)
{
    const struct shard *x = a->shard, *y = b->shard;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    int order = compare_numbers(x->start, y->start, x->rank < y->rank ? x->rank : y->rank);
    if (!order && x->rank != y->rank)
        order = x->rank < y->rank ? -1 : 1;
    if (!order && x->is_flattened != y->is_flattened)
        order = x->is_flattened ? 1 : -1;
    if (!order && x->is_flattened)
        order = x->flat_begin != y->flat_begin ? (x->flat_begin < y->flat_begin ? -1 : 1)
                                               : (x->flat_end > y->flat_end) - (x->flat_end < y->flat_end);
    return order ? order : compare_numbers(x->extent, y->extent, x->rank);
}

static int by_piece(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    int order = compare_pieces(x, y);
    if (!order)
        order = x->rank < y->rank ? -1 : x->rank > y->rank;
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

static int by_turn(const void *a, const void *b)
{
    const struct held_group *x = a, *y = b;
    if (x->has_main != y->has_main)
        return x->has_main ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int by_key_name(const void *a, const void *b, void *context)
{
    const struct str *names = context;
    return str_compare(names[*(const uint32_t *)a], names[*(const uint32_t *)b]);
}

/* Numbers of keys become places in their order. */
static reshard_status keys_order(struct spreading *spreading, reshard_error *err)
{
    uint32_t count = spreading->keys.count, *order = array_new(count, sizeof(*order));
    spreading->key_place = array_new(count, sizeof(*spreading->key_place));
    if (!order || !spreading->key_place) {
        free(order);
        return error_set_memory(err);
    }
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof(*order), by_key_name, spreading->keys.names);
    for (uint32_t i = 0; i < count; i++)
        spreading->key_place[order[i]] = i;
    free(order);
    for (uint32_t i = 0; i < spreading->held_count; i++)
        spreading->held[i].key = spreading->key_place[spreading->held[i].key];
    return RESHARD_OK;
}

static reshard_status held_collect(struct spreading *spreading, const struct sharded_dict *const *ranks, size_t count, reshard_error *err)
{
    uint64_t total = 0;
    for (size_t r = 0; r < count; r++)
        total += ranks[r]->tensor_count;
    if (total >= SPREAD_NONE || count >= SPREAD_NONE)
        return error_set(err, RESHARD_ERR_LIMIT, "%llu shards", (unsigned long long)total);
    spreading->held = array_new(total, sizeof(*spreading->held));
    spreading->groups = array_new(total, sizeof(*spreading->groups));
    spreading->loads = array_zeroed(count, sizeof(*spreading->loads));
    if (!spreading->held || !spreading->groups || !spreading->loads)
        return error_set_memory(err);
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < ranks[r]->tensor_count; i++) {
            const struct sharded_tensor *tensor = &ranks[r]->tensors[i];
            uint32_t key = name_map_intern(&spreading->keys, tensor->shard.key, NULL);
            if (key == NAME_NONE)
                return error_set_memory(err);
            spreading->held[spreading->held_count++] =
                (struct held){ &tensor->shard, r, i, key, replica_is_main(&tensor->replica), replica_is_unnumbered(&tensor->replica) };
        }
    }
    return keys_order(spreading, err);
}

static void groups_make(struct spreading *spreading)
{
    for (uint32_t i = 0; i < spreading->held_count;) {
        const struct shard *shard = spreading->held[i].shard;
        struct held_group *group = &spreading->groups[spreading->group_count++];
        *group = (struct held_group){ .first = i };
        /* Of a flat range the whole box counts, as Megatron counts it. */
        if (!dtype_bytes(shard->dtype, (uint64_t)box_volume(shard->rank, shard->extent), &group->bytes))
            group->bytes = 1;
        for (; i < spreading->held_count && !compare_pieces(&spreading->held[group->first], &spreading->held[i]); i++)
            group->has_main |= spreading->held[i].is_main;
        group->count = i - group->first;
    }
}

/* The holder that has least so far, of equal ones the first. */
static struct spread_owner group_owner(const struct spreading *spreading, const struct held_group *group)
{
    uint32_t best = group->first;
    for (uint32_t i = group->first; i < group->first + group->count; i++) {
        if (spreading->loads[spreading->held[i].rank] < spreading->loads[spreading->held[best].rank])
            best = i;
    }
    return (struct spread_owner){ spreading->held[best].rank, spreading->held[best].index };
}

static void groups_assign(struct spreading *spreading, enum spread_purpose purpose, struct spread_owner **owners)
{
    for (uint32_t g = 0; g < spreading->group_count; g++) {
        const struct held_group *group = &spreading->groups[g];
        struct spread_owner owner = { SPREAD_NONE, 0 };
        if (group->has_main || purpose == SPREAD_TO_LOAD) {
            owner = group_owner(spreading, group);
            spreading->loads[owner.rank] = capped_add_u64(spreading->loads[owner.rank], group->bytes);
        }
        for (uint32_t i = group->first; i < group->first + group->count; i++)
            owners[spreading->held[i].rank][spreading->held[i].index] = owner;
    }
}

static reshard_status spreading_begin(struct spreading *spreading, const struct sharded_dict *const *ranks, size_t count,
                                      reshard_error *err)
{
    reshard_status status = held_collect(spreading, ranks, count, err);
    if (status)
        return status;
    qsort(spreading->held, spreading->held_count, sizeof(*spreading->held), by_piece);
    groups_make(spreading);
    return RESHARD_OK;
}

static void spreading_release(struct spreading *spreading)
{
    name_map_release(&spreading->keys);
    free(spreading->key_place);
    free(spreading->held);
    free(spreading->groups);
    free(spreading->loads);
}

reshard_status sharded_spread(const struct sharded_dict *const *ranks, size_t count, enum spread_purpose purpose,
                              struct spread_owner **owners, reshard_error *err)
{
    struct spreading spreading = { 0 };
    reshard_status status = spreading_begin(&spreading, ranks, count, err);
    if (!status) {
        qsort(spreading.groups, spreading.group_count, sizeof(*spreading.groups), by_turn);
        groups_assign(&spreading, purpose, owners);
    }
    spreading_release(&spreading);
    return status;
}

/* ---- which copy is which ---- */

static const int64_t main_id = 0, copy_id = 1;

static void copies_number(const struct spreading *spreading, const struct held_group *group, struct sharded_dict *dicts)
{
    uint32_t main_rank = SPREAD_NONE;
    for (uint32_t i = group->first; i < group->first + group->count; i++) {
        const struct held *held = &spreading->held[i];
        if (!held->is_unnumbered)
            continue;
        if (!group->has_main && main_rank == SPREAD_NONE)
            main_rank = held->rank;
        /* Two of one rank are no copies, but a mistake, which the check tells. */
        dicts[held->rank].tensors[held->index].replica = (struct replica){ held->rank == main_rank ? &main_id : &copy_id, 1 };
    }
}

static bool has_unnumbered(const struct sharded_dict *dict)
{
    for (size_t i = 0; i < dict->tensor_count; i++)
        if (replica_is_unnumbered(&dict->tensors[i].replica))
            return true;
    return false;
}

reshard_status sharded_number_copies(struct sharded_dict *dicts, const struct sharded_dict *const *ranks, size_t count, reshard_error *err)
{
    struct spreading spreading = { 0 };
    reshard_status status = RESHARD_OK;
    bool is_needed = false;
    for (size_t r = 0; r < count && !is_needed; r++)
        is_needed = has_unnumbered(ranks[r]);
    if (is_needed)
        status = spreading_begin(&spreading, ranks, count, err);
    for (uint32_t g = 0; g < spreading.group_count; g++)
        copies_number(&spreading, &spreading.groups[g], dicts);
    spreading_release(&spreading);
    return status;
}

void sharded_owners_free(struct spread_owner **owners, size_t count)
{
    for (size_t r = 0; owners && r < count; r++)
        free(owners[r]);
    free((void *)owners);
}

reshard_status sharded_owners_new(const struct sharded_dict *const *ranks, size_t count, struct spread_owner ***out, reshard_error *err)
{
    *out = array_zeroed(count, sizeof(struct spread_owner *));
    if (!*out)
        return error_set_memory(err);
    for (size_t r = 0; r < count; r++) {
        (*out)[r] = array_zeroed(ranks[r]->tensor_count, sizeof(struct spread_owner));
        if (!(*out)[r])
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

void sharded_take_owners(struct sharded_dict *dict, uint32_t rank, const struct spread_owner *owners)
{
    for (size_t i = 0; i < dict->tensor_count; i++) {
        if (owners[i].rank != SPREAD_NONE)
            dict->tensors[i].replica = (struct replica){ owners[i].rank == rank && owners[i].index == i ? &main_id : &copy_id, 1 };
    }
}
