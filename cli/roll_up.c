/* SPDX-License-Identifier: Apache-2.0 */
#include "roll_up.h"

#include "key_numbers.h"
#include "natural_order.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t name_hash(const char *name)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
    return (size_t)(hash ^ hash >> 32);
}

/* The slot of the name, or the empty one where it belongs. */
static size_t *find_slot(const struct roll_up *groups, const char *name)
{
    size_t at = name_hash(name) % groups->slot_count;
    while (groups->slots[at] && strcmp(groups->names[groups->slots[at] - 1], name) != 0)
        at = (at + 1) % groups->slot_count;
    return &groups->slots[at];
}

static bool make_room(struct roll_up *groups)
{
    size_t room = groups->room ? 2 * groups->room : 64;
    if (groups->count < groups->room)
        return true;
    char **names = realloc(groups->names, room * sizeof(*names));
    if (!names)
        return false;
    groups->names = names;
    size_t *slots = calloc(2 * room, sizeof(*slots));
    if (!slots)
        return false;
    free(groups->slots);
    groups->slots = slots;
    groups->slot_count = 2 * room;
    groups->room = room;
    for (size_t i = 0; i < groups->count; i++)
        *find_slot(groups, groups->names[i]) = i + 1;
    return true;
}

size_t roll_up_number(struct roll_up *groups, const char *name)
{
    if (!make_room(groups))
        return (size_t)-1;
    size_t *slot = find_slot(groups, name);
    if (*slot)
        return *slot - 1;
    char *copy = strdup(name);
    if (!copy)
        return (size_t)-1;
    groups->names[groups->count++] = copy;
    *slot = groups->count;
    return groups->count - 1;
}

void roll_up_release(struct roll_up *groups)
{
    for (size_t i = 0; i < groups->count; i++)
        free(groups->names[i]);
    free(groups->names);
    free(groups->slots);
    *groups = (struct roll_up){ 0 };
}

struct ordered_name {
    reshard_str name;
    size_t number;
};

static int compare_names(const void *x, const void *y)
{
    const struct ordered_name *a = x, *b = y;
    int order = natural_order(a->name, b->name);
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

size_t *roll_up_order(const struct roll_up *groups)
{
    struct ordered_name *names = calloc(groups->count + 1, sizeof(*names));
    size_t *order = calloc(groups->count + 1, sizeof(*order));
    for (size_t i = 0; names && i < groups->count; i++)
        names[i] = (struct ordered_name){ { groups->names[i], strlen(groups->names[i]) }, i };
    if (names)
        qsort(names, groups->count, sizeof(*names), compare_names);
    for (size_t i = 0; names && order && i < groups->count; i++)
        order[i] = names[i].number;
    if (!names) {
        free(order);
        order = NULL;
    }
    free(names);
    return order;
}

char *layer_name(reshard_str key)
{
    struct key_step step;
    for (size_t at = 0; key_step_next(key, &at, &step);) {
        if (step.number != NO_NUMBER)
            return strndup(key.data, step.end);
    }
    return strdup("");
}

char *module_name(reshard_str key)
{
    struct key_step step;
    size_t used = 0;
    char *out = malloc(key.size + 1);
    for (size_t at = 0; out && key_step_next(key, &at, &step);) {
        bool is_number = step.number != NO_NUMBER;
        size_t kept = is_number ? 1 : step.end - step.begin;
        if (step.begin)
            out[used++] = '.';
        memcpy(out + used, is_number ? "*" : key.data + step.begin, kept);
        used += kept;
    }
    if (out)
        out[used] = 0;
    return out;
}
