/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two passes: what items are built of is compared one by one, and which storages the two name at the same place is noted; then what these
 * hold is compared, each pair once. A storage is a hidden tensor of the catalog, or, where items are files of their own, bytes in such a
 * file, which are compared at once.
 */
#include "convert/diff_items.h"

#include "base/array.h"
#include "base/name_map.h"
#include "base/value_members.h"
#include "convert/header_items.h"
#include "convert/item_pairs.h"
#include "convert/pair_values.h"

#include <stdio.h>
#include <stdlib.h>

#define BYTES_A_UNIT 64 /* read and compared in runs */

/* An item that names a pair of tensors. */
struct item_mention {
    uint32_t item, pair;
};

struct items_comparing {
    struct diff_items *diff;
    struct item_pairs items;
    struct name_map pair_keys, mention_keys; /* (a, b); (item of a, item of b, a, b) */
    struct lockstep_pair *pairs;
    uint32_t pair_count, pair_capacity;
    struct item_mention *mentions;
    uint32_t mention_count, mention_capacity;
    bool *differs;           /* by item of a: it is said already */
    uint32_t a_item, b_item; /* which are compared */
    reshard_status status;   /* of what the comparing of values cannot return */
    reshard_error err;
};

static void report_item(struct diff_items *diff, struct str key, const char *text)
{
    diff->different++;
    finding_report(diff->findings, FINDING_FAILURE, "item", key, "%s", text);
}

/* ---- storages ---- */

static bool names_tensors(const struct source *source)
{
    return source->driver->abilities & FORMAT_ITEMS_NAME_TENSORS;
}

/* What items of a source name can be compared with another's. */
static bool names_known(const struct source *source)
{
    return names_tensors(source) || source->driver->read_item_storage;
}

static bool pair_note(struct items_comparing *comparing, uint32_t a, uint32_t b)
{
    const uint32_t key[] = { a, b };
    bool was_new;
    uint32_t pair = name_map_intern(&comparing->pair_keys, (struct str){ (const char *)key, sizeof(key) }, &was_new);
    if (pair == NAME_NONE || (was_new && !ARRAY_ROOM(comparing->pairs, comparing->pair_count, comparing->pair_capacity)) ||
        !ARRAY_ROOM(comparing->mentions, comparing->mention_count, comparing->mention_capacity))
        return false;
    if (was_new)
        comparing->pairs[comparing->pair_count++] = (struct lockstep_pair){ a, b };
    comparing->mentions[comparing->mention_count++] = (struct item_mention){ comparing->a_item, pair };
    return true;
}

/* Tensors of as many bytes are compared later; of others the items differ. */
static bool tensors_may_be_equal(struct items_comparing *comparing, uint32_t a, uint32_t b)
{
    const struct catalog *x = comparing->diff->a->source->catalog, *y = comparing->diff->b->source->catalog;
    if (a >= x->tensor_count || b >= y->tensor_count)
        return false;
    const struct catalog_tensor *s = &x->tensors[a], *t = &y->tensors[b];
    if ((s->flags | t->flags) & TENSOR_NO_DATA)
        return s->flags & t->flags & TENSOR_NO_DATA;
    if (s->dtype != t->dtype || catalog_tensor_bytes(x, s) != catalog_tensor_bytes(y, t))
        return false;
    if (!pair_note(comparing, a, b))
        comparing->status = error_set_memory(&comparing->err);
    return !comparing->status;
}

/* Appends what a storage of an item holds, whatever it is to the source. */
static reshard_status storage_bytes(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    if (!names_tensors(source))
        return source_read_item_storage(source, item, storage, out, err);
    const struct engine_source from = { .store = source->store, .catalog = catalog, .limits = &source->limits };
    uint64_t bytes = storage < catalog->tensor_count ? catalog_tensor_bytes(catalog, &catalog->tensors[storage]) : 0;
    if (bytes > source->limits.item_bytes)
        return error_set_limit(err, "item_bytes", bytes, source->limits.item_bytes);
    reshard_status status = bytes ? source_resolve(source, &storage, 1, err) : RESHARD_OK;
    struct engine_box box = { .tensor = storage, .bytes = bytes };
    if (status || !bytes)
        return status;
    box.dtype = catalog->tensors[storage].dtype;
    box.out = buffer_extend(out, (size_t)bytes);
    return box.out ? engine_read_boxes(&from, &box, 1, &(struct engine_options){ .threads = 1 }, err) : buffer_error(out, err);
}

static bool bytes_are_equal(struct items_comparing *comparing, uint32_t a, uint32_t b)
{
    struct source *x = comparing->diff->a->source, *y = comparing->diff->b->source;
    struct buffer left = { .limit = (size_t)x->limits.item_bytes, .limit_name = "item_bytes" };
    struct buffer right = { .limit = (size_t)y->limits.item_bytes, .limit_name = "item_bytes" };
    reshard_status status = storage_bytes(x, comparing->a_item, a, &left, &comparing->err);
    if (!status)
        status = storage_bytes(y, comparing->b_item, b, &right, &comparing->err);
    if (!status)
        status = work_spend(x->limits.budget, (left.size + right.size) / BYTES_A_UNIT, &comparing->err);
    bool is_equal = !status && left.size == right.size && (!left.size || memcmp(left.data, right.data, left.size) == 0);
    comparing->status = status;
    buffer_release(&left);
    buffer_release(&right);
    return is_equal;
}

/* For value_compare: what was seen of these two items before was equal as far as is known. */
static bool storages_are_equal(void *context, uint32_t a, uint32_t b)
{
    struct items_comparing *comparing = context;
    const uint32_t key[] = { comparing->a_item, comparing->b_item, a, b };
    bool was_new;
    if (name_map_intern(&comparing->mention_keys, (struct str){ (const char *)key, sizeof(key) }, &was_new) == NAME_NONE) {
        comparing->status = error_set_memory(&comparing->err);
        return false;
    }
    if (!was_new)
        return true;
    bool are_tensors = names_tensors(comparing->diff->a->source) && names_tensors(comparing->diff->b->source);
    return are_tensors ? tensors_may_be_equal(comparing, a, b) : bytes_are_equal(comparing, a, b);
}

/* ---- what items are built of ---- */

/* A value of an item of a, and one of an item of b; key: what they are called. */
static reshard_status compare_values(struct items_comparing *comparing, const struct value *x, const struct value *y, struct str key,
                                     reshard_error *err)
{
    const struct source *a = comparing->diff->a->source, *b = comparing->diff->b->source;
    const struct value_storages storages = { storages_are_equal, comparing };
    bool same = !x == !y;
    reshard_status status = RESHARD_OK;
    if (x && y)
        status = value_compare(x, y, names_known(a) && names_known(b) ? &storages : NULL, a->limits.budget, &same, err);
    if (comparing->status) {
        *err = comparing->err;
        status = comparing->status;
    }
    if (!status && !same) {
        comparing->differs[comparing->a_item] = true;
        report_item(comparing->diff, key, "items differ");
    }
    return status;
}

static reshard_status compare_item(struct items_comparing *comparing, uint32_t a_index, uint32_t b_index, reshard_error *err)
{
    struct source *a = comparing->diff->a->source, *b = comparing->diff->b->source;
    reshard_status status = source_load_item(a, a_index, err);
    if (!status)
        status = source_load_item(b, b_index, err);
    if (status)
        return status;
    const struct catalog_item *x = &a->catalog->items[a_index], *y = &b->catalog->items[b_index];
    comparing->a_item = a_index;
    comparing->b_item = b_index;
    return compare_values(comparing, x->value, y->value, x->key, err);
}

/* An item that one side lacks. Headers that say nothing of the model are no difference: files without say the same. */
static reshard_status note_lone_item(struct diff_items *diff, bool is_first, uint32_t item, reshard_error *err)
{
    const struct checkpoint *side = is_first ? diff->a : diff->b;
    bool is_bare;
    reshard_status status = header_item_is_bare(side->source, item, &is_bare, err);
    if (!status && !is_bare)
        report_item(diff, side->source->catalog->items[item].key,
                       is_first ? "item is missing in the second" : "item is only in the second");
    return status;
}

/* ---- items whose members are items of the other side ---- */

/* An item that has no partner, while its members are looked for among those of the other side that have none. */
struct taking_apart {
    struct items_comparing *comparing;
    int side;         /* of the item: 0 is a */
    uint32_t item;
    uint32_t partner; /* an item that is one of its members, or CATALOG_NONE */
    bool compares;    /* else they are only looked for */
    reshard_status status;
    reshard_error *err;
};

static struct source *diff_items_source(const struct items_comparing *comparing, int side)
{
    return (side ? comparing->diff->b : comparing->diff->a)->source;
}

static reshard_status compare_member(struct taking_apart *taking, struct str key, const struct value *member, uint32_t other)
{
    struct items_comparing *comparing = taking->comparing;
    struct source *source = diff_items_source(comparing, !taking->side);
    reshard_status status = source_load_item(source, other, taking->err);
    const struct value *value = source->catalog->items[other].value;
    comparing->items.sides[!taking->side].other[other] = taking->item;
    comparing->a_item = taking->side ? other : taking->item;
    comparing->b_item = taking->side ? taking->item : other;
    if (status)
        return status;
    return compare_values(comparing, taking->side ? value : member, taking->side ? member : value, key, taking->err);
}

static bool take_member(void *context, struct str key, const struct value *member)
{
    struct taking_apart *taking = context;
    struct value **pairs;
    size_t count;
    const uint32_t other = item_side_lone(&taking->comparing->items.sides[!taking->side], key);
    taking->partner = taking->partner == CATALOG_NONE ? other : taking->partner;
    if (!taking->compares)
        return taking->partner == CATALOG_NONE;
    const bool is_empty = value_as_mapping(member, &pairs, &count) && count == 0; /* nothing is stored of such */
    if (other != CATALOG_NONE)
        taking->status = compare_member(taking, key, member, other);
    else if (!is_empty)
        report_item(taking->comparing->diff, key, taking->side ? "item is only in the second" : "item is missing in the second");
    return !taking->status;
}

/* torch.distributed.checkpoint stores the members of a dict each by itself: then they are the partners of the nested item. */
static reshard_status compare_apart(struct items_comparing *comparing, int side, uint32_t item, reshard_error *err)
{
    struct source *source = diff_items_source(comparing, side);
    const struct catalog_item *nested = &source->catalog->items[item];
    struct taking_apart taking = { .comparing = comparing, .side = side, .item = item, .partner = CATALOG_NONE, .err = err };
    reshard_error seen;
    reshard_status status = source_load_item(source, item, &seen);
    if (!status && nested->value)
        status = value_members(nested->value, nested->key, source->limits.budget, take_member, &taking, &seen);
    if (status || taking.partner == CATALOG_NONE)
        return failure_ends_run(status, &seen, err) ? status : RESHARD_OK; /* what is not read is no member's */
    taking.compares = true;
    comparing->items.sides[side].other[item] = taking.partner;
    status = value_members(nested->value, nested->key, source->limits.budget, take_member, &taking, err);
    return status ? status : taking.status;
}

static reshard_status compare_all_apart(struct items_comparing *comparing, int side, reshard_error *err)
{
    const struct catalog *catalog = diff_items_source(comparing, side)->catalog;
    const struct item_side *own = &comparing->items.sides[side], *other = &comparing->items.sides[!side];
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < catalog->item_count && other->lone.count && !status; i++)
        if (catalog->items[i].kind != ITEM_FILE && own->other[i] == CATALOG_NONE)
            status = compare_apart(comparing, side, i, err);
    return status;
}

static reshard_status compare_all(struct items_comparing *comparing, reshard_error *err)
{
    struct diff_items *diff = comparing->diff;
    const struct catalog *a = diff->a->source->catalog, *b = diff->b->source->catalog;
    reshard_status status = item_pairs_find(a, b, &comparing->items, err);
    const uint32_t *of_a = comparing->items.sides[0].other, *of_b = comparing->items.sides[1].other;
    for (uint32_t i = 0; !status && i < a->item_count; i++) {
        if (a->items[i].kind != ITEM_FILE && of_a[i] != CATALOG_NONE)
            status = compare_item(comparing, i, of_a[i], err);
        diff->items += a->items[i].kind != ITEM_FILE;
    }
    for (int side = 0; side < 2 && !status; side++)
        status = compare_all_apart(comparing, side, err);
    for (uint32_t i = 0; !status && i < a->item_count; i++)
        if (a->items[i].kind != ITEM_FILE && of_a[i] == CATALOG_NONE)
            status = note_lone_item(diff, true, i, err);
    for (uint32_t i = 0; !status && i < b->item_count; i++)
        if (b->items[i].kind != ITEM_FILE && of_b[i] == CATALOG_NONE)
            status = note_lone_item(diff, false, i, err);
    return status;
}

/* ---- what tensors in items hold ---- */

static reshard_status resolve_side(struct source *source, const struct lockstep_pair *pairs, uint32_t count, bool is_first,
                                   reshard_error *err)
{
    uint32_t *tensors = array_new(count, sizeof(*tensors));
    if (!tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        tensors[i] = is_first ? pairs[i].a : pairs[i].b;
    reshard_status status = source_resolve(source, tensors, count, err);
    free(tensors);
    return status;
}

/* Items whose tensors differ; mentions of an item lie together. */
static void report_tensors(const struct items_comparing *comparing, const struct difference *results)
{
    const struct catalog *catalog = comparing->diff->a->source->catalog;
    for (uint32_t i = 0, end; i < comparing->mention_count; i = end) {
        const uint32_t item = comparing->mentions[i].item;
        uint32_t differing = 0;
        char text[96];
        for (end = i; end < comparing->mention_count && comparing->mentions[end].item == item; end++)
            differing += results[comparing->mentions[end].pair].count > 0;
        snprintf(text, sizeof(text), "items differ: of %u tensors in it %u %s other values", end - i, differing,
                 differing == 1 ? "has" : "have");
        if (differing && !comparing->differs[item])
            report_item(comparing->diff, catalog->items[item].key, text);
    }
}

static reshard_status compare_tensors_in(struct items_comparing *comparing, const struct engine_options *engine, reshard_error *err)
{
    struct diff_items *diff = comparing->diff;
    const struct engine_source a = checkpoint_engine_source(diff->a), b = checkpoint_engine_source(diff->b);
    const struct pair_values values = { .a = &a, .b = &b, .catalog = a.catalog, .pairs = comparing->pairs, .count = comparing->pair_count,
                                        .tolerance = diff->tolerance, .findings = diff->findings, .team = diff->team };
    struct difference *results = array_new(comparing->pair_count, sizeof(*results));
    reshard_status status = results ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status = resolve_side(diff->a->source, comparing->pairs, comparing->pair_count, true, err);
    if (!status)
        status = resolve_side(diff->b->source, comparing->pairs, comparing->pair_count, false, err);
    if (!status)
        status = pair_values_compare(&values, engine, results, err);
    if (!status)
        report_tensors(comparing, results);
    free(results);
    return status;
}

reshard_status diff_items_compare(struct diff_items *diff, const struct engine_options *engine, reshard_error *err)
{
    struct items_comparing comparing = { .diff = diff, .differs = array_zeroed(diff->a->source->catalog->item_count, sizeof(bool)) };
    reshard_status status = comparing.differs ? compare_all(&comparing, err) : error_set_memory(err);
    if (!status)
        status = compare_tensors_in(&comparing, engine, err);
    item_pairs_release(&comparing.items);
    name_map_release(&comparing.pair_keys);
    name_map_release(&comparing.mention_keys);
    free(comparing.pairs);
    free(comparing.mentions);
    free(comparing.differs);
    return status;
}
