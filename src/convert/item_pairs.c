/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/item_pairs.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

/* Items of one side that have no partner yet, by name; those of one name in order. */
struct item_names {
    struct name_map names;
    uint32_t *first, *last; /* by name */
    uint32_t *next;         /* by item */
};

/* What is matched by: the path with the kinds of its parts, or the key. */
static bool item_name(const struct catalog *catalog, uint32_t item, bool by_path, struct buffer *out)
{
    struct path_part single;
    const struct path_part *parts;
    buffer_clear(out);
    if (!by_path)
        return buffer_append_str(out, catalog->items[item].key);
    return path_append_exact(parts, catalog_item_path(catalog, &catalog->items[item], &single, &parts), out);
}

static void item_names_release(struct item_names *names)
{
    name_map_release(&names->names);
    free(names->first);
    free(names->last);
    free(names->next);
}

static bool item_names_make(const struct item_side *side, bool by_path, struct buffer *text, struct item_names *out)
{
    const struct catalog *catalog = side->catalog;
    out->first = array_new(catalog->item_count, sizeof(*out->first));
    out->last = array_new(catalog->item_count, sizeof(*out->last));
    out->next = array_new(catalog->item_count, sizeof(*out->next));
    if (!out->first || !out->last || !out->next)
        return false;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        bool was_new;
        if (side->other[i] != CATALOG_NONE)
            continue;
        uint32_t name = item_name(catalog, i, by_path, text) ? name_map_intern(&out->names, buffer_str(text), &was_new) : NAME_NONE;
        if (name == NAME_NONE)
            return false;
        if (was_new)
            out->first[name] = i;
        else
            out->next[out->last[name]] = i;
        out->last[name] = i;
        out->next[i] = CATALOG_NONE;
    }
    return true;
}

static bool item_pairs_match(struct item_pairs *pairs, bool by_path)
{
    struct item_side *a = &pairs->sides[0], *b = &pairs->sides[1];
    struct item_names names = { 0 };
    struct buffer text = { 0 };
    bool good = item_names_make(b, by_path, &text, &names);
    for (uint32_t i = 0; good && i < a->catalog->item_count; i++) {
        if (a->other[i] != CATALOG_NONE)
            continue;
        good = item_name(a->catalog, i, by_path, &text);
        uint32_t name = good ? name_map_find(&names.names, buffer_str(&text)) : NAME_NONE;
        if (name == NAME_NONE || names.first[name] == CATALOG_NONE)
            continue;
        a->other[i] = names.first[name];
        b->other[names.first[name]] = i;
        names.first[name] = names.next[names.first[name]];
    }
    item_names_release(&names);
    buffer_release(&text);
    return good;
}

static bool item_side_begin(struct item_side *side, const struct catalog *catalog)
{
    side->catalog = catalog;
    side->other = array_new(catalog->item_count, sizeof(*side->other));
    side->lone_items = array_new(catalog->item_count, sizeof(*side->lone_items));
    if (!side->other || !side->lone_items)
        return false;
    memset(side->other, 0xFF, catalog->item_count * sizeof(*side->other));
    return true;
}

static bool item_side_note_lone(struct item_side *side)
{
    for (uint32_t i = 0; i < side->catalog->item_count; i++) {
        if (side->other[i] != CATALOG_NONE)
            continue;
        uint32_t key = name_map_intern(&side->lone, side->catalog->items[i].key, NULL);
        if (key == NAME_NONE)
            return false;
        side->lone_items[key] = i;
    }
    return true;
}

reshard_status item_pairs_find(const struct catalog *a, const struct catalog *b, struct item_pairs *out, reshard_error *err)
{
    *out = (struct item_pairs){ 0 };
    bool good = item_side_begin(&out->sides[0], a) && item_side_begin(&out->sides[1], b) && item_pairs_match(out, true) &&
                item_pairs_match(out, false) && item_side_note_lone(&out->sides[0]) && item_side_note_lone(&out->sides[1]);
    return good ? RESHARD_OK : error_set_memory(err);
}

void item_pairs_release(struct item_pairs *pairs)
{
    for (int i = 0; i < 2; i++) {
        free(pairs->sides[i].other);
        free(pairs->sides[i].lone_items);
        name_map_release(&pairs->sides[i].lone);
    }
    *pairs = (struct item_pairs){ 0 };
}

uint32_t item_side_lone(const struct item_side *side, struct str key)
{
    uint32_t number = name_map_find(&side->lone, key), item = number == NAME_NONE ? CATALOG_NONE : side->lone_items[number];
    return item != CATALOG_NONE && side->other[item] == CATALOG_NONE ? item : CATALOG_NONE;
}
