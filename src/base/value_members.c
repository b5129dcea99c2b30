/* SPDX-License-Identifier: Apache-2.0 */
#include "base/value_members.h"

#include "base/hash.h"
#include "base/value_parts.h"

#include <inttypes.h>

struct member_frame {
    const struct value *node;
    struct value *const *items;
    size_t count, next; /* of a mapping: pairs */
    size_t key_size;    /* of the name of node */
    bool is_mapping;
};

struct member_walk {
    struct member_frame frames[VALUE_MEMBERS_DEPTH];
    size_t depth, budget;
    struct work *work;
    struct buffer key;
};

/* Whether no key is there twice. */
static bool has_unique_keys(struct value *const *pairs, size_t count, struct work *work)
{
    struct value_index index = { 0 };
    bool is_unique =
        work_take_steps(work, count) && value_index_build(&index, pairs, count, 2, hash_table_seed()) && index.leaf_count == count / 2;
    value_index_release(&index);
    return is_unique;
}

/* A mapping whose keys can all be part of a name. */
static bool is_entered_mapping(const struct value *value, struct work *work, struct value ***pairs, size_t *count)
{
    if (!value_as_mapping(value, pairs, count) || *count == 0)
        return false;
    for (size_t i = 0; i < *count; i += 2) {
        const struct value *key = (*pairs)[i];
        if (!key || (key->kind != VALUE_STR && key->kind != VALUE_INT))
            return false;
    }
    return has_unique_keys(*pairs, *count, work);
}

/* Whether a mapping lies in a list, directly or in lists inside it. The budget bounds what shared nodes cost. */
static bool holds_mapping(struct member_walk *walk, const struct value *list)
{
    struct list_place { const struct value *list; size_t next; } stack[VALUE_MEMBERS_DEPTH] = { { list, 0 } };
    struct value **pairs;
    size_t depth = 1, count;
    while (depth) {
        struct list_place *top = &stack[depth - 1];
        if (top->next == top->list->list.count) {
            depth--;
            continue;
        }
        const struct value *item = top->list->list.items[top->next++];
        if (walk->budget)
            walk->budget--;
        if (!item || !walk->budget)
            continue;
        if (value_as_mapping(item, &pairs, &count))
            return true;
        if (item->kind == VALUE_LIST && depth < VALUE_MEMBERS_DEPTH)
            stack[depth++] = (struct list_place){ item, 0 };
    }
    return false;
}

/* Enters value if it has members; a node inside itself has none. */
static bool value_members_enter(struct member_walk *walk, const struct value *value)
{
    struct member_frame frame = { .node = value, .key_size = walk->key.size };
    struct value **items;
    if (!value || walk->depth == VALUE_MEMBERS_DEPTH)
        return false;
    for (size_t i = 0; i < walk->depth; i++) {
        if (walk->frames[i].node == value)
            return false;
    }
    if (is_entered_mapping(value, walk->work, &items, &frame.count)) {
        frame.is_mapping = true;
        frame.count /= 2;
        frame.items = items;
    } else if (value->kind == VALUE_LIST && holds_mapping(walk, value)) {
        frame.count = value->list.count;
        frame.items = value->list.items;
    } else {
        return false;
    }
    walk->frames[walk->depth++] = frame;
    return true;
}

/* Appends ".part" to the name; returns the member. */
static const struct value *next_member(struct member_walk *walk, struct member_frame *frame)
{
    size_t at = frame->next++;
    walk->key.size = frame->key_size;
    buffer_append_byte(&walk->key, '.');
    if (!frame->is_mapping) {
        buffer_printf(&walk->key, "%zu", at);
        return frame->items[at];
    }
    const struct value *key = frame->items[2 * at];
    if (key->kind == VALUE_INT)
        buffer_printf(&walk->key, "%" PRId64, key->integer);
    else
        buffer_append_str(&walk->key, key->text);
    return frame->items[2 * at + 1];
}

reshard_status value_members(const struct value *root, struct str prefix, struct work *work, value_member_visit visit, void *context,
                             reshard_error *err)
{
    struct member_walk walk = { .budget = VALUE_MEMBERS_MAX, .work = work };
    reshard_status status = RESHARD_OK;
    buffer_append_str(&walk.key, prefix);
    value_members_enter(&walk, root);
    while (walk.depth && !status) {
        struct member_frame *top = &walk.frames[walk.depth - 1];
        if (top->next == top->count) {
            walk.depth--;
            continue;
        }
        const struct value *member = next_member(&walk, top);
        if (walk.key.failed)
            status = error_set_memory(err);
        else if (!walk.budget || !--walk.budget)
            status = error_set(err, RESHARD_ERR_LIMIT, "more than %d members", VALUE_MEMBERS_MAX);
        else if (member && !value_members_enter(&walk, member) && !visit(context, buffer_str(&walk.key), member))
            break;
    }
    buffer_release(&walk.key);
    return !status && work_is_spent(work) ? work_error(work, err) : status;
}
